"""Critics that need no training: the ones that `rank.critic` names, and how they are made.

They are a `Critic` (sweetrl.protocols) like the trained one (sweetrl.sweet.critic), so that ranking (stage 2) and
Best-of-N take any of them. `rollout-value`, which plays dialogues on, is in sweetrl.evaluation.rollout_value.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.prompts import render
from sweetrl.config.settings import JudgeSettings, RankingSettings
from sweetrl.errors import UserError
from sweetrl.protocols import Chat, Sampler, Work
from sweetrl.seeds import state_seed
from sweetrl.thoughts import MARKS, Marks, split_thoughts
from sweetrl.types import Prompt, Reply, Sampling, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.protocols import Critic


def make_critic(
    domain: Domain, settings: RankingSettings, folder: Path | None, base: tuple[Any, Any] | None = None
) -> Critic:
    """Return the critic that `rank.critic` names; a trained one is loaded from `folder`.

    `base` is the base model and its tokenizer, if they are loaded already: a trained critic's adapter is put on that
    model, and a critic without training, or a judge that has no model of its own, is that model. The critic that plays
    dialogues on (`rollout-value`) needs an agent and a user: sweetrl.evaluation.rollout_value.open_critic makes it.
    """
    from sweetrl.lm.adapters import load_base
    from sweetrl.sweet.critic import load_critic, log_ratio_critic

    kind, privileged = settings.rank.critic, settings.critic.privileged
    if kind == "random":
        return RandomCritic(settings.seed)
    if kind == "oracle":
        return OracleCritic(domain)
    if kind == "judge":
        from sweetrl.engines.transformers import TransformersEngine

        model, own = settings.model, settings.judge.model  # a model of its own, or the base
        loaded = None if own else base
        name = own or model.base
        options = {} if own else model.chat_options
        how = (model.dtype, model.device, model.threads)
        engine = TransformersEngine(name, None, *how, loaded=loaded, chat_options=options)
        return JudgeCritic(domain, engine.lasting(), engine.chat, settings.judge, settings.seed, privileged)
    if kind == "privileged-ratio":
        if not privileged:
            raise UserError(
                "rank.critic: `privileged-ratio` is what c changes, and with `critic.privileged: false` nobody sees c; "
                "set it to true, or take another critic."
            )
        loaded_base = base or load_base(settings.model)
        return log_ratio_critic(domain, settings.critic, settings.rank, *loaded_base, conditioned_reference=False)
    if folder is None:
        raise UserError("rank: there is no trained critic; give one, or set rank.critic to another kind.")
    return load_critic(domain, settings.critic, settings.rank, folder, base)


class _ReplyCritic:
    """A critic that rates each reply by itself."""

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """What each reply is worth."""
        return [
            [[self.worth(dialogue, turn, reply) for reply in replies] for turn, replies in enumerate(turns)]
            for dialogue, turns in work
        ]

    def worth(self, dialogue: Trajectory, turn: int, reply: Reply) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomCritic(_ReplyCritic):
    """A control: numbers that depend on the seed and the state only, uniform in [0, 1)."""

    seed: int

    def worth(self, dialogue: Trajectory, turn: int, reply: Reply) -> float:
        """A number by the state and the reply."""
        purpose = f"random:{reply.token_ids}"
        return random.Random(state_seed(self.seed, purpose, dialogue.task.id, dialogue.attempt, turn)).random()


@dataclass(frozen=True)
class OracleCritic(_ReplyCritic):
    """A control for tasks whose making is known: it gives replies what the domain's judge says they are worth.

    Replies of equal worth are equal.
    """

    domain: Domain

    def worth(self, dialogue: Trajectory, turn: int, reply: Reply) -> float:
        """The worth of `Domain.judge`; a task that it does not know is a UserError."""
        judgment = self.domain.judge(dialogue.task, dialogue.messages[: 2 * turn + 1], reply.text)
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
    engine: Sampler
    chat: Chat
    settings: JudgeSettings
    seed: int
    privileged: bool = True

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """All comparisons of all dialogues in one call of the engine, greedy."""
        comparisons: list[tuple[int, int, int, int]] = []  # dialogue, turn, the reply shown first, the other
        prompts: list[Prompt] = []
        for number, (dialogue, turns) in enumerate(work):
            for turn, replies in enumerate(turns):
                seed = state_seed(self.seed, "judge", dialogue.task.id, dialogue.attempt, turn)
                for pair in rivals(len(replies), self.settings.comparisons, seed):
                    for first, second in (pair, pair[::-1]):
                        text = self._question(dialogue, turn, replies[first].text, replies[second].text)
                        prompts.append(Prompt(self.chat.open(None, text), seed))
                        comparisons.append((number, turn, first, second))
        sampling = Sampling(max_new_tokens=self.settings.max_new_tokens, temperature=0.0)
        verdicts = self.engine.sample(prompts, sampling) if prompts else []
        shares: dict[tuple[int, int, int], list[float]] = defaultdict(list)
        for (number, turn, first, second), (verdict,) in zip(comparisons, verdicts, strict=True):
            share = first_wins(verdict.text, self.domain.settings.model.marks)
            shares[number, turn, first].append(share)
            shares[number, turn, second].append(1.0 - share)
        return [
            [
                [fmean(shares.get((number, turn, place), [0.5])) for place in range(len(replies))]
                for turn, replies in enumerate(turns)
            ]
            for number, (_, turns) in enumerate(work)
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
            first=self.domain.visible(first),
            second=self.domain.visible(second),
        )


def first_wins(verdict: str, marks: Marks = MARKS) -> float:
    """Read a judge's verdict: 1 if the last A or B that it says is an A, 0 if a B, 0.5 if there is neither."""
    named = VERDICT.findall(split_thoughts(verdict, marks)[1])
    return float(named[-1] == "A") if named else 0.5


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
