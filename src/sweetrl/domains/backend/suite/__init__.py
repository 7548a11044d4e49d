"""A synthetic ColBench Backend suite: the same files and types as the real one, generated from a seed."""

from sweetrl.domains.backend.suite.tasks import generate
from sweetrl.domains.backend.suite.users import ScriptedSimulator

__all__ = ["ScriptedSimulator", "generate"]
