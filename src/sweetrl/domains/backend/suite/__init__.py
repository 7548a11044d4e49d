"""A synthetic ColBench Backend suite: the same files and types as the real one, generated from a seed."""

from sweetrl.domains.backend.suite.agents import ScriptedSimulator
from sweetrl.domains.backend.suite.tasks import generate

__all__ = ["ScriptedSimulator", "generate"]
