"""Who takes part in dialogues, and by which rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sweetrl.protocols import AsyncEngine, Engine, Scorer, UserSimulator
from sweetrl.rollout.dialogue import Dialogue, open_dialogue
from sweetrl.seeds import dialogue_seed
from sweetrl.types import AgentTurn, Sampling, Task, Trajectory

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
        return open_dialogue(
            self.domain, self.simulator, task, attempt, seed_of, self.agent, self.reply_characters, self.chat
        )

    def resume(self, told: Trajectory, turns: int, seed_of: Callable[[int], int]) -> Dialogue:
        """Begin where the first `turns` agent turns of `told`, and what the user said to them, are over."""
        dialogue = self.open_seeded(told.task, told.attempt, seed_of)
        known = {turn.message_index: turn for turn in told.turns}
        for index in range(1, 2 * turns, 2):
            said, words = told.messages[index].content, told.messages[index + 1].content
            turn = known.get(index) or AgentTurn(index, said)
            if self.chat is not None and not turn.token_ids:  # imported, without ids
                turn = replace(turn, token_ids=self.chat.reply(turn.raw), finish_reason="stop")
            dialogue.retell(turn, said, words)
        return dialogue
