"""Stage 2, first half: candidate replies at the turns of offline dialogues, rated by the critic, and pairs of them.

At every agent turn o_t, N replies a ~ pi(. | o_t) (sweetrl.sweet.candidates) are rated by A(o_t, a, c) of Eq. 3; chosen
replies are drawn from the upper half by advantage and rejected ones from the lower. The actor, who samples, never sees
c; the critic does. Eq. 4 (sweetrl.sweet.trainer.PolicyTrainer) then learns from the pairs, without c.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.colbench.domain import QUESTION
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import CriticSettings, RankingSettings, RankSettings
from sweetrl.console.progress import Meter
from sweetrl.lm.data import Row, encode
from sweetrl.lm.memory import pass_tokens
from sweetrl.lm.passes import Layout
from sweetrl.lm.recorded import compare, recorded_rows
from sweetrl.lm.rows import Listed
from sweetrl.protocols import Chat, Critic, Replies, Work
from sweetrl.seeds import state_seed
from sweetrl.sweet import preferences as files
from sweetrl.sweet.candidates import LocalSampler, Samples, ServerSampler
from sweetrl.sweet.critic import LogRatioCritic
from sweetrl.sweet.data import critic_row
from sweetrl.sweet.pairs import usable
from sweetrl.sweet.preferences import Blocks, Ranking, Replay
from sweetrl.sweet.tables import Table, write_table
from sweetrl.thoughts import split_thoughts
from sweetrl.types import Candidate, Preference, RankedState, ReplyRatios, TokenRatios, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

Room = Callable[[Trajectory, Row], int]  # how many tokens of a dialogue (what the actor saw) and a reply can be read
Rate = Callable[[Sequence[Work]], list[list[list[float]]]]  # a critic's
OpenCritic = Callable[[LocalSampler | ServerSampler], AbstractContextManager[Critic]]


def rank_dialogues(
    env: Domain,
    settings: RankingSettings,
    open_critic: OpenCritic,
    dialogues: Iterable[Trajectory],
    blocks: Blocks,
    cache: Path | None = None,
    out: Path | None = None,
) -> tuple[Ranking, Sequence[Trajectory]]:
    """Rank candidates at the turns of a share of `dialogues`, by `settings`; return that, and which dialogues.

    `dialogues` are read several times, a block at a time. The critic is opened when servers have been asked for all
    replies. The ranking is written to the folder `out` (by default a temporary one), and read from there. In the folder
    `cache` replies that were sampled in this process are kept for other critics. `metrics` are what it has cost.
    """
    started = time.monotonic()
    in_process = settings.engine.kind == "transformers"
    sampler = LocalSampler(settings, cache) if in_process else ServerSampler(env, settings, blocks.folder, blocks.log)
    chat, system = sampler.chat, env.system_prompt(settings.agent.prompt)
    chosen = choose_dialogues(dialogues, settings.rank.share, settings.seed)
    privileged = settings.critic.privileged
    fitting = rankable(chosen, env, chat, system, privileged, sampler.limit)

    def room(dialogue: Trajectory, row: Row) -> int:
        return sampler.limit + row.longest - tokens_read(dialogue, env, chat, system, privileged)

    def parts() -> Iterator[list[Trajectory]]:
        reading = iter(fitting)
        while part := list(islice(reading, settings.rank.block)):
            yield part

    sampler.begin(parts, blocks.missing)
    with ExitStack() as stack, Meter("rank", len(fitting), "dialogues") as meter:
        critic = stack.enter_context(open_critic(sampler))
        compared = compare_recorded(critic, sampler, fitting, system, settings)
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweetrl-rank-")))
        log_ratio = critic if isinstance(critic, LogRatioCritic) else None
        explained = min(settings.rank.token_ratios, len(fitting)) if log_ratio else 0

        def ratios_file(number: int) -> Path:
            return (blocks.folder or temporary) / f"ratios-{number:06d}.parquet"

        def rank_block(number: int, part: Sequence[Trajectory]) -> list[RankedState]:
            rows = [(dialogue, encode(dialogue, chat, system)) for dialogue in part]
            left, ratios = max(0, explained - number * settings.rank.block), list[TokenRatios]()

            def rate(work: Sequence[Work]) -> list[list[list[float]]]:
                """As the critic does, and keep what the advantages of the first dialogues are made of."""
                kept = [token_ratios(log_ratio, *each) for each in work[:left]] if log_ratio else []
                ratios.extend(state for _, by_turn in kept for state in by_turn)
                return [advantages for advantages, _ in kept] + critic.rate(work[len(kept) :])

            states = rank_sampled(rows, sampler.samples(number, rows, critic), rate, room)
            if left:  # before the states, so that a block with states has both
                write_table(ratios_file(number), TokenRatios, ratios)
            return states

        def states() -> Iterator[RankedState]:
            for number, part in enumerate(parts()):
                yield from blocks.states(number, partial(rank_block, number, part))
                meter(len(part))

        def ratios() -> Iterator[TokenRatios]:
            for number in range(math.ceil(explained / settings.rank.block)):
                yield from Table(ratios_file(number), TokenRatios)

        if blocks.mine is not None:
            return Ranking(list(states()), [], []), fitting
        folder = out or temporary
        ranked = write_table(folder / files.CANDIDATES, RankedState, states())
        pairs = choose_preferences(ranked, env, settings.rank, settings.seed)
        preferences = write_table(folder / files.PREFERENCES, Preference, pairs)
        replay = write_table(folder / files.SFT_REPLAY, Replay, find_replay(dialogues, chat, system))
        kept: Sequence[TokenRatios] = ()
        if explained:
            kept = write_table(folder / files.TOKEN_RATIOS, TokenRatios, ratios())
        else:
            (folder / files.TOKEN_RATIOS).unlink(missing_ok=True)  # of an earlier ranking
    metrics = {
        "dialogues": len(fitting),
        "dialogues_too_long": len(chosen) - len(fitting),
        "replay": len(replay),
        **compared,
        **sampler.metrics(time.monotonic() - started),
        **getattr(critic, "spent", {}),
    }
    return Ranking(ranked, preferences, replay, metrics, kept), fitting


def compare_recorded(
    critic: Critic,
    sampler: LocalSampler | ServerSampler,
    dialogues: Sequence[Trajectory],
    system: str,
    settings: RankingSettings,
) -> dict[str, float]:
    """Compare what `dialogues` recorded with what the base in this process computes (lm.recorded), where there is one.

    That is the base under the critic's adapter, in its layout, or the one that samples, in flat batches.
    """
    model, layout = getattr(critic, "model", None), getattr(critic, "layout", None)
    if not isinstance(layout, Layout):
        if sampler.base is None:
            return {}
        model, layout = sampler.base[0], Layout(None, pass_tokens(sampler.base[0], settings.rank.tokens)[0])
    lay_out = partial(encode, chat=sampler.chat, system=system)
    return compare(model, recorded_rows(dialogues, settings.model.base, lay_out, settings.seed), layout)


class Dialogues(Listed[Trajectory]):
    """The dialogues at `places` (rising) of a source that can be read again and again; each iteration is a reading."""

    def __init__(self, source: Iterable[Trajectory], places: Sequence[int]) -> None:
        inner = source if isinstance(source, Dialogues) else None
        self.source: Iterable[Trajectory] = source if inner is None else inner.source
        self.places: Sequence[int] = places if inner is None else [inner.places[place] for place in places]

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Trajectory]:
        if isinstance(self.source, TrajectoryStore):
            return self.source.pick(self.places)
        places = set(self.places)
        return (dialogue for place, dialogue in enumerate(self.source) if place in places)

    def item(self, index: int) -> Trajectory:
        """Read dialogue number `index`."""
        return next(iter(Dialogues(self.source, self.places[index : index + 1])))


def choose_dialogues(trajectories: Iterable[Trajectory], share: float, seed: int) -> Dialogues:
    """Draw `share` of the usable trajectories (at least one), in their own order.

    `trajectories` can be read again and again; they are read when the result is.
    """
    outlines = trajectories.outlines() if isinstance(trajectories, TrajectoryStore) else trajectories
    candidates = [place for place, outline in enumerate(outlines) if usable(outline)]
    count = min(len(candidates), max(1, round(share * len(candidates))))
    picked = sorted(random.Random(seed).sample(range(len(candidates)), count))
    return Dialogues(trajectories, [candidates[index] for index in picked])


def rankable(
    dialogues: Sequence[Trajectory], domain: Domain, chat: Chat, system: str, privileged: bool, limit: int
) -> Dialogues:
    """Leave out the dialogues that the critic cannot read in `limit` tokens, with c in front if `privileged`."""
    lengths = (tokens_read(dialogue, domain, chat, system, privileged) for dialogue in dialogues)
    return Dialogues(dialogues, [place for place, length in enumerate(lengths) if length <= limit])


def tokens_read(dialogue: Trajectory, domain: Domain, chat: Chat, system: str, privileged: bool) -> int:
    """Return how many tokens the critic reads of a dialogue, with c in front if `privileged`."""
    view = CriticSettings(privileged=privileged)
    return critic_row(dialogue, domain, chat, system, view).longest


def rank_sampled(
    rows: Sequence[tuple[Trajectory, Row]], sampled: Samples, rate: Rate, room: Room | None = None
) -> list[RankedState]:
    """Let a critic's `rate` score what was sampled at every turn of dialogues (each with what the actor saw).

    Replies that go further than `room` are left out: the critic reads c before them, and its context would not do.
    """
    if room is not None:
        longest = [room(dialogue, row) for dialogue, row in rows]
        sampled = [
            [
                tuple(reply for reply in replies if len(row.prompt(turn)) + len(reply.token_ids) <= most)
                for turn, replies in enumerate(turns)
            ]
            for (_, row), turns, most in zip(rows, sampled, longest, strict=True)
        ]
    rated = rate([(dialogue, turns) for (dialogue, _), turns in zip(rows, sampled, strict=True)])
    states: list[RankedState] = []
    for (trajectory, row), turns, advantages in zip(rows, sampled, rated, strict=True):
        for turn, (_, replies, values) in enumerate(zip(row.spans, turns, advantages, strict=True)):
            candidates = tuple(replace(reply, advantage=value) for reply, value in zip(replies, values, strict=True))
            states.append(RankedState(trajectory.task.id, trajectory.attempt, turn, row.prompt(turn), candidates))
    return states


def choose_pairs(
    candidates: Sequence[Candidate], domain: Domain, settings: RankSettings, chance: random.Random
) -> list[tuple[Candidate, Candidate]]:
    """Choose (chosen, rejected) at one state: distinct words, advantages that differ by `margin` and by more than 0.

    halves     random pairs, chosen from the upper half by advantage and rejected from the lower (of an odd number the
               middle one is in neither)
    extremes   the best against the worst

    With reply_types `same`, each type of reply (`Domain.reply_types`) is a group of its own; with `no_questions`, no
    question is in a pair.
    """
    types = {reply.token_ids: domain.reply_type(reply.text) for reply in candidates}
    marks = domain.settings.model.marks
    spoken = {reply.token_ids: split_thoughts(reply.text, marks)[1] for reply in candidates}
    groups = [list(candidates)]
    if settings.reply_types == "no_questions":
        groups = [[reply for reply in candidates if types[reply.token_ids] != QUESTION]]
    if settings.reply_types == "same":
        groups = [[reply for reply in candidates if types[reply.token_ids] == kind] for kind in domain.reply_types]
    eligible: list[tuple[Candidate, Candidate]] = []
    for group in groups:
        ordered = sorted(group, key=lambda reply: -reply.advantage)
        if not settings.distinct:
            ordered = [reply for reply in ordered for _ in range(reply.count)]
        half = len(ordered) // 2
        if not half:
            continue
        if settings.selection == "extremes":
            half = 1
        eligible += [
            (chosen, rejected)
            for chosen in ordered[:half]
            for rejected in ordered[-half:]
            if spoken[chosen.token_ids] != spoken[rejected.token_ids]
            and chosen.advantage > rejected.advantage
            and chosen.advantage - rejected.advantage >= settings.margin
        ]
    return chance.sample(eligible, min(settings.pairs, len(eligible)))


def choose_preferences(
    states: Sequence[RankedState], domain: Domain, settings: RankSettings, seed: int
) -> Iterator[Preference]:
    """Choose pairs at every state, from a seed of the state's own. The advantages are those that were compared.

    With reply_types `mean_centered` and `median_centered` the states are read twice.
    """
    for state in centered(states, domain, settings.reply_types):
        where = (state.task_id, state.attempt, state.turn)
        chance = random.Random(state_seed(seed, "pairs", *where))
        for good, bad in choose_pairs(state.candidates, domain, settings, chance):
            yield Preference(*where, state.prompt_ids, good.token_ids, bad.token_ids, good.advantage, bad.advantage)


def centered(states: Sequence[RankedState], domain: Domain, reply_types: str) -> Iterable[RankedState]:
    """Return `states` with the mean or median advantage of each type of reply taken off the replies of that type.

    `reply_types` (`rank.reply_types`) says which; values that do not centre give `states`. Means and medians go over
    all samples, so the states are read twice. Both attempts of a pair in Eq. 2 have exactly one answer, so a constant
    added to the advantage of every answer changes no loss: only what is left without it says whether to ask or to
    answer. A few replies of very low advantage (babble) shift a mean, and hardly a median.
    """
    middle_of = {"mean_centered": mean, "median_centered": median}.get(reply_types)
    if middle_of is None:
        return states
    advantages = {kind: array("d") for kind in domain.reply_types}
    counts = {kind: array("q") for kind in domain.reply_types}
    for state in states:
        for reply in state.candidates:
            kind = domain.reply_type(reply.text)
            advantages[kind].append(reply.advantage)
            counts[kind].append(reply.count)
    middle = {kind: middle_of(advantages[kind], counts[kind]) for kind in domain.reply_types}
    return (replace(state, candidates=shifted(state.candidates, domain, middle)) for state in states)


def shifted(candidates: Iterable[Candidate], domain: Domain, middle: Mapping[str, float]) -> tuple[Candidate, ...]:
    """Return `candidates` with the value of each one's type of reply taken off its advantage."""
    return tuple(
        replace(reply, advantage=reply.advantage - middle[domain.reply_type(reply.text)]) for reply in candidates
    )


def mean(values: Sequence[float], counts: Sequence[int]) -> float:
    """The mean of `values`, each as often as its count; 0 where there are none."""
    return sum(value * count for value, count in zip(values, counts, strict=True)) / max(1, sum(counts))


def median(values: Sequence[float], counts: Sequence[int]) -> float:
    """The median of `values`, each as often as its count (of two the lower); 0 where there are none."""
    below, half = 0, sum(counts) / 2
    for value, count in sorted(zip(values, counts, strict=True)):
        below += count
        if below >= half:
            return value
    return 0.0


def find_replay(trajectories: Iterable[Trajectory], chat: Chat, system: str) -> Iterator[Replay]:
    """Yield the successful dialogues as the actor saw them (without c)."""
    for trajectory in trajectories:
        if usable(trajectory) and trajectory.success:
            row = encode(trajectory, chat, system)
            starts, ends = zip(*row.spans, strict=True)
            yield Replay(trajectory.task.id, trajectory.attempt, row.token_ids, starts, ends, row.starts)


def token_ratios(
    critic: LogRatioCritic, dialogue: Trajectory, turns: Replies
) -> tuple[list[list[float]], list[TokenRatios]]:
    """Return the advantages of candidates at every turn of `dialogue`, and what they are made of.

    For every token of a reply, log pi_theta - log pi_ref (Eq. 3 before its mean), by turn.
    """
    advantages, ratios = critic.rate_tokens(dialogue, turns)
    tokenizer = getattr(critic.chat, "tokenizer", None)
    tokens = {token for replies in turns for reply in replies for token in reply.token_ids}
    texts = {token: str(token) if tokenizer is None else tokenizer.decode([token]) for token in tokens}
    by_turn = []
    for turn, (replies, values) in enumerate(zip(turns, ratios, strict=True)):
        explained = (
            ReplyRatios(tuple(texts[token] for token in reply.token_ids), tuple(value))
            for reply, value in zip(replies, values, strict=True)
        )
        by_turn.append(TokenRatios(dialogue.task.id, dialogue.attempt, turn, tuple(explained)))
    return advantages, by_turn
