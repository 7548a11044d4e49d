"""The steps that flows are made of: run a stage, push data, register, decide, notify. Thin, and each usable on its own.

Only `steps` knows Prefect, `pipeline` and `workspace` know DVC, `workspace`, `batches` and `journal` know git.
"""
