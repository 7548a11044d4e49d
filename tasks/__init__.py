"""The steps that flows are made of: run a stage, push data, register, decide, notify. Thin, and each usable on its own.

Only `steps` knows Prefect; `pipeline`, `workspace` and `objects` know DVC; `workspace`, `batches`, `journal` and
`pruning` know git.
"""
