"""A synthetic ColBench Backend suite: the same files and types as the real one, generated from a seed."""

from sweetrl.backend.suite.tasks import generate
from sweetrl.backend.suite.users import ScriptedSimulator

__all__ = ["ScriptedSimulator", "generate"]
