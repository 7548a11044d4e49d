"""A synthetic ColBench Frontend suite: the same files and types as the real one, generated from a seed."""

from sweetrl.colbench.synthetic_frontend.suite import generate

__all__ = ["generate"]
