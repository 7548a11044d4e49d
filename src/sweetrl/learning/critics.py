"""Whoever gives candidate replies an advantage: trained critics of three kinds, a language model as judge, controls.

All of them are a `Critic` (sweetrl.protocols), so that ranking (stage 2) and Best-of-N take any of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.markers import visible_reply
from sweetrl.colbench.prompts import render
from sweetrl.errors import UserError
from sweetrl.learning.batches import Row, encode
from sweetrl.learning.heads import POOLING
from sweetrl.learning.passes import Layout
from sweetrl.learning.scoring import REPLY, TokenSet, branch_advantages, branch_ratios, branch_values, reduced
from sweetrl.learning.whole import critic_row, header_length
from sweetrl.protocols import Chat, Engine, Replies, Work
from sweetrl.seeds import state_seed
from sweetrl.settings import CriticSettings, JudgeSettings
from sweetrl.types import AgentTurn, Prompt, Reply, Sampling, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


def _ids(turns: Replies) -> list[list[tuple[int, ...]]]:
    return [[reply.token_ids for reply in replies] for replies in turns]


@dataclass(frozen=True)
class LogRatioCritic:
    """Eq. 3: how much more likely the trained adapter finds a reply than the base does.

    `view` says what it sees (c, and where) and how it normalises; with `conditioned_reference` False the base does not
    see c (the official code). On a base without an adapter, that is the critic `privileged-ratio`, which needs no
    training: A = (1/L) sum_l [ log pi_ref(a_l | o, a_<l, c) - log pi_ref(a_l | o, a_<l) ], how much likelier c makes a
    reply.
    """

    model: Any
    domain: Domain
    chat: Chat
    system: str
    view: CriticSettings
    layout: Layout
    conditioned_reference: bool = True

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """The mean over a reply's tokens (the sum without normalisation) of log pi_theta - log pi_ref."""
        scored = REPLY
        if self.view.token_set == "official":
            scored = TokenSet(header_length(self.chat), self.chat.reply("x")[-1])
        found = []
        for dialogue, turns in work:
            trunk, reference = self._contexts(dialogue)
            found.append(branch_advantages(self.model, trunk, _ids(turns), self.layout, reference, self._mean, scored))
        return found

    def rate_tokens(self, dialogue: Trajectory, turns: Replies) -> tuple[list[list[float]], list[list[list[float]]]]:
        """The advantages of a dialogue's candidates as `rate` gives them, and the log-ratios of each one's own tokens.

        An advantage is the mean (the sum without normalisation) of its log-ratios. With `critic.token_set: official`
        it is not, as the two sides go over different tokens: then the log-ratios are passes of their own.
        """
        trunk, reference = self._contexts(dialogue)
        ratios = branch_ratios(self.model, trunk, _ids(turns), self.layout, reference)
        official = self.view.token_set == "official"
        advantages = self.rate([(dialogue, turns)])[0] if official else reduced(ratios, self._mean)
        return advantages, [[one.tolist() for one in turn] for turn in ratios]

    @property
    def _mean(self) -> bool:
        return self.view.normalization != "none"

    def _contexts(self, dialogue: Trajectory) -> tuple[Row, Row | None]:
        """What the critic is given, and what its reference is where that is something else."""
        trunk = critic_row(dialogue, self.domain, self.chat, self.system, self.view)
        return trunk, None if self.conditioned_reference else encode(dialogue, self.chat, self.system)


@dataclass(frozen=True)
class HeadCritic:
    """A regression head or a value head (sweetrl.learning.heads)."""

    model: Any
    domain: Domain
    chat: Chat
    system: str
    view: CriticSettings
    layout: Layout

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """The head's value; a value function ranks like the advantage, as V(o_t) is the same for all candidates."""
        flat = Layout(None, self.layout.tokens, self.layout.pad_id)
        pooling = POOLING[self.view.parameterization]
        return [
            branch_values(
                self.model,
                critic_row(dialogue, self.domain, self.chat, self.system, self.view),
                _ids(turns),
                flat,
                pooling,
            )
            for dialogue, turns in work
        ]


@dataclass(frozen=True)
class RandomCritic:
    """A control: numbers that depend on the seed and the state only."""

    seed: int

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """Uniform in [0, 1)."""
        return [
            [[self._number(one, turn, reply) for reply in replies] for turn, replies in enumerate(turns)]
            for one, turns in work
        ]

    def _number(self, dialogue: Trajectory, turn: int, reply: Reply) -> float:
        purpose = f"random:{reply.token_ids}"
        return random.Random(state_seed(self.seed, purpose, dialogue.task.id, dialogue.attempt, turn)).random()


@dataclass(frozen=True)
class OracleCritic:
    """A control for tasks whose making is known: it gives replies what the domain's judge says they are worth.

    Replies of equal worth are equal.
    """

    domain: Domain

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """The worth of `Domain.judge`; a task that it does not know is a UserError."""
        return [
            [[self._worth(one, turn, reply.text) for reply in replies] for turn, replies in enumerate(turns)]
            for one, turns in work
        ]

    def _worth(self, dialogue: Trajectory, turn: int, text: str) -> float:
        judgment = self.domain.judge(dialogue.task, dialogue.messages[: 2 * turn + 1], text)
        if judgment is None:
            raise UserError(
                f"task {dialogue.task.id}: the oracle knows only how tasks of a synthetic suite were made; set "
                "rank.critic to `trained`, `judge` or `random`."
            )
        return judgment.worth


VERDICT = re.compile(r"\b[AB]\b")


@dataclass(frozen=True)
class JudgeCritic:
    """A language model compares replies two by two; a reply's advantage is its share of won comparisons, in [0, 1].

    Each reply is compared with `settings.comparisons` others of its state, drawn from the seed, in both orders, so that
    a liking for the first place cancels. A verdict that names neither counts half for both. `privileged` shows c.
    """

    domain: Domain
    engine: Engine
    chat: Chat
    settings: JudgeSettings
    seed: int
    privileged: bool = True

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """All comparisons of all dialogues in one call of the engine, greedy."""
        questions: list[tuple[int, int, int, int]] = []  # dialogue, turn, first, second
        prompts: list[Prompt] = []
        for number, (dialogue, turns) in enumerate(work):
            for turn, replies in enumerate(turns):
                seed = state_seed(self.seed, "judge", dialogue.task.id, dialogue.attempt, turn)
                for first, second in rivals(len(replies), self.settings.comparisons, seed):
                    for one, other in ((first, second), (second, first)):
                        text = self._question(dialogue, turn, replies[one].text, replies[other].text)
                        prompts.append(Prompt(self.chat.open(None, text), seed))
                        questions.append((number, turn, one, other))
        sampling = Sampling(max_new_tokens=self.settings.max_new_tokens, temperature=0.0)
        wins = [[[0.0] * len(replies) for replies in turns] for _, turns in work]
        counts = [[[0] * len(replies) for replies in turns] for _, turns in work]
        answers = self.engine.sample(prompts, sampling) if prompts else []
        for (number, turn, one, other), (answer,) in zip(questions, answers, strict=True):
            share = first_wins(answer.text)
            for place, won in ((one, share), (other, 1.0 - share)):
                wins[number][turn][place] += won
                counts[number][turn][place] += 1
        return [
            [
                [won / count if count else 0.5 for won, count in zip(*pair, strict=True)]
                for pair in zip(*both, strict=True)
            ]
            for both in zip(wins, counts, strict=True)
        ]

    def _question(self, dialogue: Trajectory, turn: int, first: str, second: str) -> str:
        lines = [
            f"{'Assistant' if message.role == 'assistant' else 'Person'}: {message.content}"
            for message in dialogue.messages[: 2 * turn + 1]
        ]
        reference = self.domain.reference(dialogue.task) if self.privileged else "(not known)"
        return render(
            self.settings.prompt or self.domain.judge_template,
            reference=reference,
            dialogue="\n\n".join(lines),
            first=visible_reply(first),
            second=visible_reply(second),
        )


def own_replies(dialogue: Trajectory, chat: Chat | None = None) -> list[list[Reply]]:
    """Return the replies of a dialogue as candidates in their own places; `chat` tokenises those without ids."""
    known = {turn.message_index: turn for turn in dialogue.turns}
    found = []
    for index, message in enumerate(dialogue.messages):
        if message.role != "assistant":
            continue
        turn = known.get(index) or AgentTurn(index, message.content)
        ids = turn.token_ids or (() if chat is None else chat.reply(turn.raw))
        found.append([Reply(tuple(ids), turn.raw)])
    return found


def first_wins(verdict: str) -> float:
    """Read a judge's verdict: 1 if the last A or B in it is an A, 0 if a B, 0.5 if there is neither."""
    found = VERDICT.findall(verdict)
    return float(found[-1] == "A") if found else 0.5


def rivals(count: int, comparisons: int, seed: int) -> list[tuple[int, int]]:
    """Draw pairs of `count` replies: in a shuffled circle each meets the next ones, `comparisons` rivals or a few more.

    Every reply is in equally many pairs (all of them where `count` is small), and no pair comes twice.
    """
    order = random.Random(seed).sample(range(count), count)
    steps = min(-(-comparisons // 2), count // 2)
    pairs = {
        (min(pair), max(pair))
        for step in range(1, steps + 1)
        for place in range(count)
        if (pair := (order[place], order[(place + step) % count]))[0] != pair[1]
    }
    return sorted(pairs)
