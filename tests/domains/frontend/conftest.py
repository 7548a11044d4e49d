"""Dialogues about pages in which a test says the agent's words itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sweetrl.domains.frontend import Frontend
from sweetrl.protocols import UserSimulator
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.settings import AgentSettings
from sweetrl.types import Task


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., Dialogue]:
    """A function that opens a dialogue with `user` about `task`, as a rollout would; nobody samples, nobody scores."""

    def opened(task: Task, user: UserSimulator, max_turns: int = 10, seed: int = 0) -> Dialogue:
        nobody: Any = None
        agent = AgentSettings(max_turns=max_turns)
        return RolloutContext(Frontend(), nobody, None, user, nobody, agent).open(task, 0, seed)

    return opened
