"""The plug-in `sweetrl-verifiers` of the library verifiers, which looks for one by the name of a top-level module.

Everything is in sweetrl.interop.verifiers; verifiers wants exactly one Taskset and one Env in `__all__`.
"""

from sweetrl.interop.verifiers import DomainEnv, DomainTaskset

__all__ = ["DomainEnv", "DomainTaskset"]
