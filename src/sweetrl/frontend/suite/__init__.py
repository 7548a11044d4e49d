"""A synthetic ColBench Frontend suite: the same files and types as the real one, generated from a seed."""

from sweetrl.frontend.suite.tasks import generate

__all__ = ["generate"]
