"""Who takes part in dialogues, and by which rules: the user who answers and the scorer, as domain and settings say.

`RolloutContext` is for many dialogues with an engine (sweetrl.rollout.run), `Conversation` for one with an agent from
outside, any program that turns the user's words into a reply:

env = sweetrl.domain("backend")
with sweetrl.opened(env) as world:
    talk = world.begin(next(env.tasks("test", 1, seed=7, difficulty=3)))
    words = talk.request
    while words is not None:
        words = talk.say(my_agent(talk.system, talk.messages))
    print(talk.score().reward)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from sweetrl.colbench.scoring import PricedScorer, RewardScorer
from sweetrl.plugins import find_reward
from sweetrl.protocols import AsyncEngine, Engine, Scorer, Tools, UserSimulator
from sweetrl.rollout.dialogue import Dialogue, open_dialogue
from sweetrl.rollout.scored import scored
from sweetrl.rollout.users import open_user
from sweetrl.seeds import dialogue_seed
from sweetrl.types import AgentTurn, Completion, Message, Outcome, Sampling, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import AgentSettings
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.engines.policy import Agent

ANY_REWARD = (-math.inf, math.inf)


@dataclass(frozen=True)
class RolloutContext:
    """The domain, the agent's engine and chat format, the user and the scorer, and how the agent talks.

    `chat` is None for an engine that takes text. The agent's last reply begins with `opening`.
    """

    domain: Domain
    engine: Engine | AsyncEngine
    chat: ChatFormat | None
    simulator: UserSimulator
    scorer: Scorer
    agent: AgentSettings
    opening: str = ""

    def sampling(self, n: int = 1) -> Sampling:
        """How the agent's replies are sampled."""
        return self.agent.sampling(n)

    def open(self, task: Task, attempt: int, seed: int) -> Dialogue:
        """Begin an attempt at `task`; `seed` is the run's."""
        return self.open_seeded(task, attempt, partial(dialogue_seed, seed, task.id, attempt))

    def open_seeded(self, task: Task, attempt: int, seed_of: Callable[[int], int]) -> Dialogue:
        """Begin an attempt at `task`; `seed_of` gives the seed of each agent turn (from 0), and of the user (-1)."""
        how = (self.agent, self.chat, self.opening)
        return open_dialogue(self.domain, self.simulator, task, attempt, seed_of, *how)

    def resume(self, trajectory: Trajectory, turns: int, seed_of: Callable[[int], int]) -> Dialogue:
        """Begin where the first `turns` agent turns of `trajectory`, and what the user said to them, are over."""
        dialogue = self.open_seeded(trajectory.task, trajectory.attempt, seed_of)
        sampled = {turn.message_index: turn for turn in trajectory.turns}
        for index in range(1, 2 * turns, 2):
            visible, words = trajectory.messages[index].content, trajectory.messages[index + 1].content
            turn = sampled.get(index) or AgentTurn(index, visible)
            if self.chat is not None and not turn.token_ids:  # imported, without ids
                turn = replace(turn, token_ids=self.chat.reply(turn.raw), finish_reason="stop")
            dialogue.retell(turn, visible, words)
        return dialogue


class Conversation:
    """A dialogue of `OpenEnvironment.begin`: `say` takes the agent's replies until it returns None, then `score`."""

    def __init__(self, dialogue: Dialogue, scorer: Scorer, agent: str = "") -> None:
        self._dialogue, self._scorer, self._agent = dialogue, scorer, agent
        self._scored: Trajectory | None = None

    @property
    def system(self) -> str:
        """The agent's system prompt."""
        return self._dialogue.texts[0][1]

    @property
    def request(self) -> str:
        """The user's request, which opens the dialogue."""
        return self._dialogue.task.problem_description

    @property
    def messages(self) -> tuple[Message, ...]:
        """What both sides have seen so far, from the user's request on."""
        return self._dialogue.environment.messages

    @property
    def done(self) -> bool:
        """Whether the dialogue has ended."""
        return self._dialogue.done

    @property
    def outcome(self) -> Outcome | None:
        """How the dialogue ended; None while it goes on."""
        return self._dialogue.environment.outcome

    def say(self, reply: str) -> str | None:
        """Take the agent's reply; return what the user says to it, or None where the dialogue ends.

        Half of a surrogate pair, which no file can hold, becomes a question mark. Raises RuntimeError after the end.
        """
        reply = reply.encode("utf-8", "replace").decode("utf-8")
        self._dialogue.take(Completion((), (), reply, "stop"))
        if not self.done:
            self._dialogue.ask()
        return None if self.done else self.messages[-1].content

    def score(self) -> Trajectory:
        """Return the ended dialogue with its reward (None where it was lost). RuntimeError while it goes on."""
        if not self.done:
            raise RuntimeError(f"the dialogue about task {self._dialogue.task.id!r} goes on; it is scored at its end")
        if self._scored is None:
            self._scored = scored([self._dialogue.close(self._agent)], self._scorer)[0]
        return self._scored


@dataclass(frozen=True)
class OpenEnvironment:
    """A domain that is open for dialogues: the user, the scorer, and the domain's tools behind both."""

    domain: Domain
    simulator: UserSimulator
    scorer: Scorer
    tools: Tools

    def begin(self, task: Task, seed: int = 0, attempt: int = 0, agent: str = "") -> Conversation:
        """Begin a dialogue about `task` with an agent from outside, called `agent`; `seed` is the user's."""
        task, agent_settings = self.domain.own(task), self.domain.settings.agent
        seed_of = partial(dialogue_seed, seed, task.id, attempt)
        dialogue = open_dialogue(self.domain, self.simulator, task, attempt, seed_of, agent_settings)
        return Conversation(dialogue, self.scorer, agent)

    def context(self, agent: Agent) -> RolloutContext:
        """Return what dialogues with `agent` need, as the domain's settings say."""
        settings = self.domain.settings.agent
        return RolloutContext(self.domain, agent.engine, agent.chat, self.simulator, self.scorer, settings)


@contextmanager
def open_environment(domain: Domain) -> Iterator[OpenEnvironment]:
    """Open what the domain's dialogues need, for as long as this lasts."""
    with domain.open() as tools, open_user(domain, tools) as simulator:
        yield OpenEnvironment(domain, simulator, scorer_of(domain, tools), tools)


def scorer_of(domain: Domain, tools: Tools) -> Scorer:
    """Return the domain's scorer, with `reward.function` over it if there is one, and `reward.turn_cost` over both."""
    settings, scorer = domain.settings.reward, domain.scorer(tools)
    if settings.function:
        reward = find_reward(settings.function)
        bounds = getattr(reward, "reward_range", ANY_REWARD)
        scorer = RewardScorer(reward, settings.function, bounds, scorer)
    return PricedScorer(scorer, settings.turn_cost) if settings.turn_cost else scorer
