"""Domains in the libraries that others train and evaluate with, and the other way; each needs its own package."""
