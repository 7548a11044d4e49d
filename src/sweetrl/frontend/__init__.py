"""Frontend Design: a web page, scored by how much it looks like the one the user has in mind."""

from sweetrl.frontend.domain import Frontend

__all__ = ["Frontend"]
