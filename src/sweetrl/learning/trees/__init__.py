"""Dialogue trees: rows that begin alike are computed once, in one pass with tree attention.

layout.py     rows merged by common prefix, as plain arrays
attention.py  who sees whom: three backends, one of them fit for each device
forward.py    log-probs of the rows' reply tokens, from trees or from flat batches
"""
