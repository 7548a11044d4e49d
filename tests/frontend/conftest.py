"""A renderer for the tests, where the machine has a browser; and dialogues in which a test says the agent's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sweetrl.config.settings import AgentSettings
from sweetrl.frontend import Frontend
from sweetrl.protocols import UserSimulator
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.types import Task
from tests.browser.conftest import real_pages, renderer  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., Dialogue]:
    """A function that opens a dialogue with `user` about `task`, as a rollout would; nobody samples, nobody scores."""

    def opened(task: Task, user: UserSimulator, max_turns: int = 10, seed: int = 0) -> Dialogue:
        nobody: Any = None
        agent = AgentSettings(max_turns=max_turns)
        return RolloutContext(Frontend(), nobody, None, user, nobody, agent).open(task, 0, seed)

    return opened
