"""New data from outside: files found, read within limits, validated, and made a batch that a retraining can take."""
