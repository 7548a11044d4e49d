"""A synthetic ColBench Backend suite: the same files and types as the real one, generated from a seed."""

from sweetrl.colbench.synthetic.people import ScriptedSimulator
from sweetrl.colbench.synthetic.suite import generate

__all__ = ["ScriptedSimulator", "generate"]
