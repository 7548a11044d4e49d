"""The steps that flows are made of: run a stage, push data, register, decide, notify. Thin, and each usable on its own.

Only `steps` knows Prefect, and only `pipeline` and `workspace` know DVC and git.
"""
