"""Stage 2, first half: candidate replies at the turns of offline dialogues, rated by the critic, and pairs of them.

At every agent turn o_t, N replies a ~ pi(. | o_t) (sweetrl.sweet.candidates) are rated by A(o_t, a, c) of Eq. 3; chosen
replies are drawn from the upper half by advantage and rejected ones from the lower. The actor, who samples, never sees
c; the critic does. Eq. 4 (sweetrl.sweet.trainer.PolicyTrainer) then learns from the pairs, without c.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sweetrl.colbench.domain import QUESTION
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import CriticSettings, RankingSettings, RankSettings
from sweetrl.console.progress import Meter
from sweetrl.lm.data import Row, encode
from sweetrl.lm.rows import Listed
from sweetrl.protocols import Chat, Critic, Replies, Work
from sweetrl.seeds import state_seed
from sweetrl.sweet import preferences as files
from sweetrl.sweet.candidates import LocalSampler, ServerSampler
from sweetrl.sweet.critic import LogRatioCritic
from sweetrl.sweet.data import critic_row
from sweetrl.sweet.pairs import usable
from sweetrl.sweet.preferences import Blocks, Ranking, Replay
from sweetrl.sweet.samples import Samples
from sweetrl.types import Candidate, Preference, RankedState, Reply, TokenRatios, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

T = TypeVar("T")
Room = Callable[[Trajectory, Row], int]  # how many tokens of a dialogue (what the actor saw) and a reply can be read
OpenCritic = Callable[[LocalSampler | ServerSampler], AbstractContextManager[Critic]]


def rank_dialogues(
    env: Domain,
    settings: RankingSettings,
    open_critic: OpenCritic,
    dialogues: Iterable[Trajectory],
    blocks: Blocks,
    progress: Callable[[int], None] | None = None,
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
    room = room_for_replies(env, chat, system, privileged, sampler.limit)

    def parts() -> Iterator[list[Trajectory]]:
        reading = iter(fitting)
        while part := list(islice(reading, settings.rank.block)):
            yield part

    def rank_block(number: int, part: Sequence[Trajectory], critic: Critic) -> list[RankedState]:
        rows = [(dialogue, encode(dialogue, chat, system)) for dialogue in part]
        return rank_sampled(rows, sampler.samples(number, rows, critic), critic, room)

    sampler.begin(parts, blocks.missing)
    with (
        ExitStack() as stack,
        Meter("rank", len(fitting), "dialogues") if progress is None else nullcontext(progress) as meter,
    ):
        critic = stack.enter_context(open_critic(sampler))
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweetrl-rank-")))
        ratios = RatioSample(critic, settings.rank, len(fitting), blocks.folder or temporary)

        def states() -> Iterator[RankedState]:
            for number, part in enumerate(parts()):
                yield from blocks.states(number, partial(ratios.rank, number, partial(rank_block, number, part)))
                meter(len(part))

        if blocks.mine is not None:
            return Ranking(list(states()), [], []), fitting
        folder = out or temporary
        ranked = _written(folder / files.CANDIDATES, files.write_candidates, states(), files.read_candidates)
        pairs = choose_preferences(ranked, env, settings.rank, settings.seed)
        preferences = _written(folder / files.PREFERENCES, files.write_preferences, pairs, files.read_preferences)
        successful = find_replay(dialogues, chat, system)
        replay = _written(folder / files.SFT_REPLAY, files.write_replay, successful, files.read_replay)
        kept: Sequence[TokenRatios] = ()
        if ratios.count:
            kept = _written(folder / files.TOKEN_RATIOS, files.write_token_ratios, ratios, files.read_token_ratios)
        else:
            (folder / files.TOKEN_RATIOS).unlink(missing_ok=True)  # of an earlier ranking
    metrics = {
        "dialogues": len(fitting),
        "dialogues_too_long": len(chosen) - len(fitting),
        "replay": len(replay),
        **sampler.metrics(time.monotonic() - started),
        **getattr(critic, "spent", {}),
    }
    return Ranking(ranked, preferences, replay, metrics, kept), fitting


def _written(
    path: Path, write: Callable[[Path, Iterable[T]], None], rows: Iterable[T], read: Callable[[Path], Sequence[T]]
) -> Sequence[T]:
    """Write `rows` to a file, and return them as they are read from there."""
    write(path, rows)
    return read(path)


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
    view = CriticSettings(privileged=privileged)

    def fits(dialogue: Trajectory) -> bool:
        return len(critic_row(dialogue, domain, chat, system, view).token_ids) <= limit

    return Dialogues(dialogues, [place for place, dialogue in enumerate(dialogues) if fits(dialogue)])


def room_for_replies(domain: Domain, chat: Chat, system: str, privileged: bool, limit: int) -> Room:
    """Return how far a dialogue and a reply may go, as the actor sees them, for the critic to read them in `limit`."""
    view = CriticSettings(privileged=privileged)

    def room(dialogue: Trajectory, row: Row) -> int:
        return limit - (len(critic_row(dialogue, domain, chat, system, view).token_ids) - len(row.token_ids))

    return room


def rank_sampled(
    rows: Sequence[tuple[Trajectory, Row]], sampled: Samples, critic: Critic, room: Room | None = None
) -> list[RankedState]:
    """Let `critic` score the replies that were sampled at every turn of dialogues (each with what the actor saw).

    Replies that go further than `room` are left out: the critic reads c before them, and its context would not do.
    """
    if room is not None:
        longest = [room(dialogue, row) for dialogue, row in rows]
        sampled = [
            [
                {ids: counted for ids, counted in replies.items() if start + len(ids) <= most}
                for (start, _), replies in zip(row.spans, turns, strict=True)
            ]
            for (_, row), turns, most in zip(rows, sampled, longest, strict=True)
        ]
    branches = [[[Reply(ids, text) for ids, (text, _) in replies.items()] for replies in turns] for turns in sampled]
    rated = critic.rate([(dialogue, turns) for (dialogue, _), turns in zip(rows, branches, strict=True)])
    states: list[RankedState] = []
    for (trajectory, row), turns, advantages in zip(rows, sampled, rated, strict=True):
        for turn, (distinct, values) in enumerate(zip(turns, advantages, strict=True)):
            candidates = tuple(
                Candidate(ids, text, count, value)
                for (ids, (text, count)), value in zip(distinct.items(), values, strict=True)
            )
            prompt_ids = row.token_ids[: row.spans[turn][0]]
            states.append(RankedState(trajectory.task.id, trajectory.attempt, turn, prompt_ids, candidates))
    return states


def choose_pairs(
    candidates: Sequence[Candidate], domain: Domain, settings: RankSettings, chance: random.Random
) -> list[tuple[Candidate, Candidate]]:
    """Choose (chosen, rejected) at one state: distinct texts, advantages that differ by `margin` and by more than 0.

    halves     random pairs, chosen from the upper half by advantage and rejected from the lower (of an odd number the
               middle one is in neither)
    extremes   the best against the worst

    With reply_types `same`, each type of reply (`Domain.reply_types`) is a group of its own; with `no_questions`, no
    question is in a pair.
    """
    types = {reply.token_ids: domain.reply_type(reply.text) for reply in candidates}
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
            if chosen.text != rejected.text
            and chosen.advantage > rejected.advantage
            and chosen.advantage - rejected.advantage >= settings.margin
        ]
    return chance.sample(eligible, min(settings.pairs, len(eligible)))


def choose_preferences(
    states: Sequence[RankedState], domain: Domain, settings: RankSettings, seed: int
) -> Iterator[Preference]:
    """Choose pairs at every state, from a seed of the state's own. The advantages are those that were compared.

    With reply_types `mean_centered` the states are read twice.
    """
    for state in mean_centered(states, domain) if settings.reply_types == "mean_centered" else states:
        where = (state.task_id, state.attempt, state.turn)
        chance = random.Random(state_seed(seed, "pairs", *where))
        for good, bad in choose_pairs(state.candidates, domain, settings, chance):
            yield Preference(*where, state.prompt_ids, good.token_ids, bad.token_ids, good.advantage, bad.advantage)


def mean_centered(states: Sequence[RankedState], domain: Domain) -> Iterator[RankedState]:
    """Yield `states` with the mean advantage of each type of reply taken off the replies of that type.

    The means go over all samples, so the states are read twice. Both attempts of a pair in Eq. 2 have exactly one
    answer, so a constant added to the advantage of every answer changes no loss: only what is left without it says
    whether to ask or to answer.
    """
    totals = {kind: [0.0, 0] for kind in domain.reply_types}
    for state in states:
        for reply in state.candidates:
            total = totals[domain.reply_type(reply.text)]
            total[0] += reply.count * reply.advantage
            total[1] += reply.count
    mean = {kind: total / max(1, count) for kind, (total, count) in totals.items()}
    for state in states:
        shifted = (
            replace(reply, advantage=reply.advantage - mean[domain.reply_type(reply.text)])
            for reply in state.candidates
        )
        yield replace(state, candidates=tuple(shifted))


def find_replay(trajectories: Iterable[Trajectory], chat: Chat, system: str) -> Iterator[Replay]:
    """Yield the successful dialogues as the actor saw them (without c)."""
    for trajectory in trajectories:
        if usable(trajectory) and trajectory.success:
            yield Replay(trajectory.task.id, trajectory.attempt, encode(trajectory, chat, system))


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
        pairs = tuple(
            tuple(zip((texts[token] for token in reply.token_ids), value, strict=True))
            for reply, value in zip(replies, values, strict=True)
        )
        by_turn.append(TokenRatios(dialogue.task.id, dialogue.attempt, turn, pairs))
    return advantages, by_turn


class RatioSample:
    """The token log-ratios of the first `settings.token_ratios` of a ranking's dialogues, in their order.

    They lie in `folder`, a file for each block of dialogues that has some. Only critics of log-ratios have any.
    """

    def __init__(self, critic: Critic, settings: RankSettings, dialogues: int, folder: Path) -> None:
        self.critic, self.block, self.folder = critic, settings.block, folder
        self.count = min(settings.token_ratios, dialogues) if isinstance(critic, LogRatioCritic) else 0

    def rank(self, number: int, rank: Callable[[Critic], list[RankedState]]) -> list[RankedState]:
        """Return what `rank` makes of block `number` with the critic, and keep the block's part of the sample.

        It is written before the states are: a block whose states are there has its part.
        """
        left = self.count - number * self.block
        if left <= 0 or not isinstance(self.critic, LogRatioCritic):
            return rank(self.critic)
        recording = RecordingCritic(self.critic, left)
        states = rank(recording)
        files.write_token_ratios(self._path(number), recording.ratios)
        return states

    def __iter__(self) -> Iterator[TokenRatios]:
        """Read the parts of all blocks, which have been made."""
        for number in range(-(-self.count // self.block)):
            yield from files.read_token_ratios(self._path(number))

    def _path(self, number: int) -> Path:
        return self.folder / f"ratios-{number:06d}.parquet"


class RecordingCritic:
    """A critic of log-ratios that keeps those of the first `count` dialogues that it rates, in `ratios`."""

    def __init__(self, critic: LogRatioCritic, count: int) -> None:
        self.critic, self.model, self.count = critic, critic.model, count
        self.ratios: list[TokenRatios] = []

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """As the critic does (sweetrl.protocols.Critic)."""
        rated = []
        for dialogue, turns in work[: self.count]:
            advantages, ratios = token_ratios(self.critic, dialogue, turns)
            rated.append(advantages)
            self.ratios += ratios
        rest = work[self.count :]
        self.count -= len(rated)
        return rated + self.critic.rate(rest)
