"""sweetrl: SWEET-RL (arXiv 2503.15478) and its benchmark ColBench as a product, and as a library.

    import sweetrl

    env = sweetrl.domain("backend")
    policy = sweetrl.Policy.load("models/base")
    dialogues = sweetrl.collect(env, policy, attempts=4, seed=7)
    critic = sweetrl.train_critic(env, policy, dialogues)
    ranking = sweetrl.rank(env, policy, critic, dialogues)
    trained = sweetrl.train("sweet", env, policy, ranking=ranking)
    print(sweetrl.evaluate(env, [policy, trained]).comparison["success_after"])

Everything is imported when it is first used: `import sweetrl` alone loads neither torch nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sweetrl.api.learning import rank, train, train_critic
    from sweetrl.api.rollouts import collect, domain, evaluate, opened, play
    from sweetrl.colbench.domain import Domain, Labels, Pretraining
    from sweetrl.config.settings import Settings, TrainerSettings
    from sweetrl.engines.policy import Policy
    from sweetrl.errors import UserError, UserLeft
    from sweetrl.methods.base import Method
    from sweetrl.types import Demonstration, Judgment, Leak, Message, Score, Task, Trajectory

_HOMES = {
    "Policy": "sweetrl.engines.policy",
    **dict.fromkeys(("collect", "domain", "evaluate", "opened", "play"), "sweetrl.api.rollouts"),
    **dict.fromkeys(("rank", "train", "train_critic"), "sweetrl.api.learning"),
    # What domains and methods of one's own are written with.
    **dict.fromkeys(("Domain", "Labels", "Pretraining"), "sweetrl.colbench.domain"),
    "Method": "sweetrl.methods.base",
    **dict.fromkeys(("Settings", "TrainerSettings"), "sweetrl.config.settings"),
    **dict.fromkeys(("Demonstration", "Judgment", "Leak", "Message", "Score", "Task", "Trajectory"), "sweetrl.types"),
    **dict.fromkeys(("UserError", "UserLeft"), "sweetrl.errors"),
}

__all__ = [
    "Demonstration",
    "Domain",
    "Judgment",
    "Labels",
    "Leak",
    "Message",
    "Method",
    "Policy",
    "Pretraining",
    "Score",
    "Settings",
    "Task",
    "TrainerSettings",
    "Trajectory",
    "UserError",
    "UserLeft",
    "__version__",
    "collect",
    "domain",
    "evaluate",
    "opened",
    "play",
    "rank",
    "train",
    "train_critic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sweetrl' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
