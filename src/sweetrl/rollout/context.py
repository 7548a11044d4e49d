"""Who takes part in dialogues, and by which rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweetrl.colbench.environment import Environment
from sweetrl.protocols import AsyncEngine, Engine, Scorer, UserSimulator
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.seeds import dialogue_seed
from sweetrl.types import Sampling, Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.settings import AgentSettings


@dataclass(frozen=True)
class RolloutContext:
    """The domain, the agent's engine and chat format, the user and the scorer, and how the agent talks.

    `chat` is None for an engine that takes text. `reply_characters` is where the user's replies are cut; 0: where the
    domain says.
    """

    domain: Domain
    engine: Engine | AsyncEngine
    chat: ChatFormat | None
    simulator: UserSimulator
    scorer: Scorer
    agent: AgentSettings
    reply_characters: int = 0

    def sampling(self, n: int = 1) -> Sampling:
        """How the agent's replies are sampled."""
        return Sampling(self.agent.max_new_tokens, self.agent.temperature, self.agent.top_p, n)

    def open(self, task: Task, attempt: int, seed: int) -> Dialogue:
        """Begin an attempt at `task`; `seed` is the run's."""
        return self.open_seeded(task, attempt, lambda turn: dialogue_seed(seed, task.id, attempt, turn))

    def open_seeded(self, task: Task, attempt: int, seed_of: Callable[[int], int]) -> Dialogue:
        """Begin an attempt at `task`; `seed_of` gives the seed of each agent turn (from 0), and of the user (-1)."""
        cut = self.reply_characters or self.domain.reply_characters
        environment = Environment(task, self.domain, self.simulator, self.agent.max_turns, cut, seed_of(-1))
        system = self.domain.system_prompt(self.agent.prompt)
        texts = [("system", system), ("user", task.problem_description)]
        ids = () if self.chat is None else self.chat.open(system, task.problem_description)
        return Dialogue(task, attempt, seed_of, environment, self.chat, ids, texts)
