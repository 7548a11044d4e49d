"""What a reply is worth, by playing the dialogue on: the critic `rollout-value`, and how critics are opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import reward_of
from sweetrl.methods.critics import make_critic
from sweetrl.protocols import AsyncEngine, Critic, Work
from sweetrl.rollout.context import RolloutContext, open_environment
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.driver import advance_together
from sweetrl.rollout.scored import Losses, scored
from sweetrl.seeds import state_seed
from sweetrl.types import Completion, Reply, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import RankingSettings
    from sweetrl.engines.policy import Agent


class RolloutValueCritic:
    """V(o_t, a) = (1/K) sum_k R(dialogue k): K continuations by the agent and the user of what follows `a`, to the end.

    The multiturn-aware reward of CollabLLM (Wu et al., arXiv 2502.00640) with a window that reaches to the end. A reply
    that ends the dialogue is scored as it is. Departs in the reward, which is the task's alone: no price of tokens, and
    no judge of how interactive the dialogue was (a `reward.function` can say both).

    All continuations of a call advance in lock-step. Each has seeds of its own, from (state, reply, k), so its replies
    depend on what else is under way by rounding only. `spent` counts continuations, and the replies sampled in them.
    A larger share of lost ones than `lost_share` is a UserError. A continuation that outgrew the context has failed, as
    in an evaluation; a reply all of whose continuations are lost is worth as little as the worst reply beside it.
    """

    def __init__(self, context: RolloutContext, rollouts: int, seed: int = 0, lost_share: float = 1.0) -> None:
        if isinstance(context.engine, AsyncEngine) or context.chat is None:
            raise UserError(
                "rank.critic: `rollout-value` plays many dialogues together; set `engine.kind: transformers`."
            )
        self.context, self.rollouts, self.seed, self.lost_share = context, rollouts, seed, lost_share
        self.engine, self.end_of_turn = context.engine, context.chat.end_of_turn
        self.spent = {"rollouts": 0, "rollout_replies": 0}

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """The mean reward of every reply's continuations."""
        places: list[tuple[int, int, int]] = []
        dialogues: list[Dialogue] = []
        first: dict[int, Completion] = {}
        for number, (offline, turns) in enumerate(work):
            for turn, replies in enumerate(turns):
                for place, reply in enumerate(replies):
                    for rollout in range(1 if self._ends(turn, reply) else self.rollouts):
                        dialogue = self.context.resume(
                            offline, turn, partial(self._seed_of, offline, turn, reply, rollout)
                        )
                        first[id(dialogue)] = self._spoken(reply)
                        dialogues.append(dialogue)
                        places.append((number, turn, place))
        earlier = sum(len(dialogue.turns) + 1 for dialogue in dialogues)
        together = 1 if getattr(self.context.simulator, "serial", False) else max(1, len(dialogues))
        for start in range(0, len(dialogues), together):
            self._play(dialogues[start : start + together], first)
        self.spent["rollouts"] += len(dialogues)
        self.spent["rollout_replies"] += sum(len(dialogue.turns) for dialogue in dialogues) - earlier
        played = scored([dialogue.close("") for dialogue in dialogues], self.context.scorer)
        Losses(len(played), self.lost_share).add(played)
        rewards: dict[tuple[int, int, int], list[float]] = {}
        for where, trajectory in zip(places, played, strict=True):
            reward = reward_of(trajectory, self.context.domain)
            if reward is not None:
                rewards.setdefault(where, []).append(reward)
        return [
            [
                _means([rewards.get((number, turn, place), []) for place in range(len(replies))])
                for turn, replies in enumerate(turns)
            ]
            for number, (_, turns) in enumerate(work)
        ]

    def _play(self, dialogues: Sequence[Dialogue], first: dict[int, Completion]) -> None:
        """Say in each dialogue first what is rated, then what the agent says."""
        session, sampling = self.engine.session(), self.context.sampling()

        def speak(active: Sequence[Dialogue]) -> list[Completion]:
            if id(active[0]) in first:
                return [first.pop(id(dialogue)) for dialogue in active]
            prompts = [dialogue.prompt() for dialogue in active]
            return [completion for (completion,) in session.sample(prompts, sampling)]

        advance_together(dialogues, speak, self.context.simulator)

    def _ends(self, turn: int, reply: Reply) -> bool:
        """Whether `reply` at turn `turn` (from 0) ends the dialogue."""
        domain = self.context.domain
        return turn + 1 >= self.context.agent.max_turns or domain.answers(domain.visible(reply.text))

    def _spoken(self, reply: Reply) -> Completion:
        ended = bool(reply.token_ids) and reply.token_ids[-1] == self.end_of_turn
        return Completion(reply.token_ids, (), reply.text, "stop" if ended else "length")

    def _seed_of(self, offline: Trajectory, turn: int, reply: Reply, rollout: int, later: int) -> int:
        """The seed of a continuation's agent turn `later`, and of its user (-1)."""
        purpose = f"rollout value:{reply.token_ids}:{rollout}:{later}"
        return state_seed(self.seed, purpose, offline.task.id, offline.attempt, turn)


def _means(rewards: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each reply's rewards; without any, the least mean of the others (0 where nobody has one)."""
    means = [sum(of_reply) / len(of_reply) if of_reply else None for of_reply in rewards]
    worst = min((mean for mean in means if mean is not None), default=0.0)
    return [worst if mean is None else mean for mean in means]


@contextmanager
def open_critic(
    domain: Domain,
    settings: RankingSettings,
    folder: Path | None,
    agent: Agent | None,
    loaded: tuple[Any, Any] | None = None,
) -> Iterator[Critic]:
    """Yield the critic that `rank.critic` names (methods.critics.make_critic), with what it needs while it rates.

    `agent` plays the continuations of `rollout-value`, and other critics need none; the user and the scorer are the
    domain's.
    """
    if settings.rank.critic != "rollout-value":
        yield make_critic(domain, settings, folder, loaded)
        return
    assert agent is not None
    with open_environment(domain) as environment:
        context = environment.context(agent)
        yield RolloutValueCritic(context, settings.rank.rollouts, settings.seed, settings.collect.lost_share)
