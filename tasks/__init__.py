"""The steps that flows are made of: run a stage, push data, register, decide, notify. Thin, and each usable on its own.

Only `steps` knows Prefect (and `status` asks its server); `pipeline`, `workspace`, `objects` and `pruning` know DVC;
`workspace`, `batches`, `journal`, `origin` and `pruning` know git.
"""
