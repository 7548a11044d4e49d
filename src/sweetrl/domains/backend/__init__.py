"""Backend Programming: a Python function, scored by hidden unit tests."""

from sweetrl.domains.backend.domain import Backend

__all__ = ["Backend"]
