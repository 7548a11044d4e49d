"""The command line `sweetrl`."""
