"""Backend Programming: a Python function, scored by hidden unit tests."""

from sweetrl.backend.domain import Backend

__all__ = ["Backend"]
