"""What dialogues need around them: the user who answers and the scorer of answers, as the domain and settings say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweetrl.colbench.scoring import PricedScorer, RewardScorer
from sweetrl.plugins import find_reward
from sweetrl.protocols import Scorer, Tools, UserSimulator
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.conversation import Conversation
from sweetrl.rollout.dialogue import open_dialogue
from sweetrl.rollout.users import open_user
from sweetrl.seeds import dialogue_seed
from sweetrl.types import Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.engines.make import Agent

ANY_REWARD = (-math.inf, math.inf)


@dataclass(frozen=True)
class OpenEnvironment:
    """A domain that is open for dialogues: the user, the scorer, and the domain's tools behind both."""

    domain: Domain
    simulator: UserSimulator
    scorer: Scorer
    tools: Tools

    def begin(self, task: Task, seed: int = 0, attempt: int = 0, agent: str = "") -> Conversation:
        """Begin a dialogue about `task` with an agent from outside, called `agent`; `seed` is the user's."""
        settings = self.domain.settings
        dialogue = open_dialogue(
            self.domain,
            self.simulator,
            self.domain.own(task),
            attempt,
            lambda turn: dialogue_seed(seed, task.id, attempt, turn),
            settings.agent,
            settings.simulator.reply_characters,
        )
        return Conversation(dialogue, self.scorer, agent)

    def context(self, agent: Agent) -> RolloutContext:
        """Return what dialogues with `agent` need, as the domain's settings say."""
        settings = self.domain.settings
        return RolloutContext(
            self.domain,
            agent.engine,
            agent.chat,
            self.simulator,
            self.scorer,
            settings.agent,
            settings.simulator.reply_characters,
        )


@contextmanager
def open_environment(domain: Domain) -> Iterator[OpenEnvironment]:
    """Open what the domain's dialogues need, for as long as this lasts."""
    with domain.open() as tools, open_user(domain, tools) as simulator:
        yield OpenEnvironment(domain, simulator, scorer_of(domain, tools), tools)


def scorer_of(domain: Domain, tools: Tools) -> Scorer:
    """Return the domain's scorer, with `reward.function` over it if there is one, and `reward.turn_cost` over both."""
    wanted = domain.settings.reward
    if wanted.function:
        reward = find_reward(wanted.function)
        bounds = getattr(reward, "reward_range", ANY_REWARD)
        scorer: Scorer = RewardScorer(reward, wanted.function, bounds, domain.scorer(tools))
    else:
        scorer = domain.scorer(tools)
    return PricedScorer(scorer, wanted.turn_cost) if wanted.turn_cost else scorer
