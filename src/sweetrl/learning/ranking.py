"""Candidate replies at the turns of offline dialogues, ranked by the critic, and the preference pairs among them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from sweetrl.colbench.domain import QUESTION
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.learning.batches import Row, encode
from sweetrl.learning.pairs import usable
from sweetrl.learning.rows import Listed
from sweetrl.learning.samples import Distinct, SampleCache, Samples
from sweetrl.learning.whole import critic_row
from sweetrl.protocols import Chat, Critic, Engine
from sweetrl.seeds import state_seed
from sweetrl.settings import CriticSettings, RankSettings
from sweetrl.types import Candidate, Completion, Preference, Prompt, RankedState, Reply, Sampling, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


Room = Callable[[Trajectory, Row], int]  # how many tokens of a dialogue (what the actor saw) and a reply can be read


@dataclass(frozen=True)
class Replay:
    """A successful dialogue as the actor saw it, and where its replies are."""

    task_id: str
    attempt: int
    row: Row


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
        wanted = set(self.places)
        return (one for place, one in enumerate(self.source) if place in wanted)

    def item(self, index: int) -> Trajectory:
        """Read dialogue number `index`."""
        return next(iter(Dialogues(self.source, self.places[index : index + 1])))


def choose_dialogues(trajectories: Iterable[Trajectory], share: float, seed: int) -> Dialogues:
    """Draw `share` of the usable trajectories (at least one), in their own order.

    `trajectories` can be read again and again; they are read when the result is.
    """
    outlines = trajectories.outlines() if isinstance(trajectories, TrajectoryStore) else trajectories
    candidates = [place for place, one in enumerate(outlines) if usable(one)]
    count = min(len(candidates), max(1, round(share * len(candidates))))
    picked = sorted(random.Random(seed).sample(range(len(candidates)), count))
    return Dialogues(trajectories, [candidates[index] for index in picked])


def rankable(
    dialogues: Sequence[Trajectory], domain: Domain, chat: Chat, system: str, privileged: bool, limit: int
) -> Dialogues:
    """Leave out the dialogues that the critic cannot read in `limit` tokens, with c in front if `privileged`."""
    view = CriticSettings(privileged=privileged)

    def fits(one: Trajectory) -> bool:
        return len(critic_row(one, domain, chat, system, view).token_ids) <= limit

    return Dialogues(dialogues, [place for place, one in enumerate(dialogues) if fits(one)])


def room_for_replies(domain: Domain, chat: Chat, system: str, privileged: bool, limit: int) -> Room:
    """Return how far a dialogue and a reply may go, as the actor sees them, for the critic to read them in `limit`."""
    view = CriticSettings(privileged=privileged)

    def room(one: Trajectory, row: Row) -> int:
        return limit - (len(critic_row(one, domain, chat, system, view).token_ids) - len(row.token_ids))

    return room


def sample_candidates(rows: Sequence[tuple[Trajectory, Row]], engine: Engine, sampling: Sampling, seed: int) -> Samples:
    """Sample `sampling.n` replies at every agent turn of every dialogue.

    Returns for each dialogue and turn {token ids: (text, count)} in order of first appearance.
    """
    prompts = [
        Prompt(row.token_ids[:start], candidates_seed(seed, one, turn))
        for one, row in rows
        for turn, (start, _) in enumerate(row.spans)
    ]
    completions = iter(engine.sample(prompts, sampling))
    return [[distinct_replies(next(completions)) for _ in row.spans] for _, row in rows]


def candidates_seed(seed: int, dialogue: Trajectory, turn: int) -> int:
    """Return the seed of the candidates at agent turn `turn` (from 0) of `dialogue`; `seed` is the run's."""
    return state_seed(seed, "candidates", dialogue.task.id, dialogue.attempt, turn)


def distinct_replies(completions: Iterable[Completion]) -> Distinct:
    """Count equal replies, in order of first appearance; completions without tokens had no room and are none."""
    distinct: Distinct = {}
    for completion in completions:
        if completion.token_ids:
            text, count = distinct.get(completion.token_ids, (completion.text, 0))
            distinct[completion.token_ids] = (text, count + 1)
    return distinct


def rank_dialogues(
    dialogues: Sequence[Trajectory],
    engine: Engine,
    critic: Critic,
    chat: Chat,
    system: str,
    sampling: Sampling,
    seed: int,
    off: Callable[[], AbstractContextManager[object]] = nullcontext,
    kept: SampleCache | None = None,
    room: Room | None = None,
) -> list[RankedState]:
    """Sample candidates at every turn of `dialogues` and let `critic` score those for which there is `room`.

    The engine sees what the actor sees; only the critic knows c. Depends on nothing but its arguments. While replies
    are sampled `off` holds: it switches off the critic's adapter where engine and critic share a model. What `kept`
    holds already is not sampled again.
    """
    rows = [(trajectory, encode(trajectory, chat, system)) for trajectory in dialogues]

    def sample() -> Samples:
        with off():
            return sample_candidates(rows, engine, sampling, seed)

    if kept is None:
        sampled = sample()
    else:
        sampled = kept.find([(f"{one.task.id} {one.attempt}", row) for one, row in rows], sampling, seed, sample)
    return rank_sampled(rows, sampled, critic, room)


def rank_sampled(
    rows: Sequence[tuple[Trajectory, Row]], sampled: Samples, critic: Critic, room: Room | None = None
) -> list[RankedState]:
    """Let `critic` score the replies that were sampled at every turn of dialogues (each with what the actor saw).

    Replies that go further than `room` are left out: the critic reads c before them, and its context would not do.
    """
    if room is not None:
        sampled = [
            [
                {ids: said for ids, said in replies.items() if start + len(ids) <= most}
                for (start, _), replies in zip(row.spans, turns, strict=True)
            ]
            for (one, row), turns in zip(rows, sampled, strict=True)
            for most in (room(one, row),)
        ]
    branches = [[[Reply(ids, text) for ids, (text, _) in distinct.items()] for distinct in turns] for turns in sampled]
    scored = critic.rate([(one, turns) for (one, _), turns in zip(rows, branches, strict=True)])
    states: list[RankedState] = []
    for (trajectory, row), turns, advantages in zip(rows, sampled, scored, strict=True):
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
    types = {one.token_ids: domain.reply_type(one.text) for one in candidates}
    groups = [[one for one in candidates if settings.reply_types != "no_questions" or types[one.token_ids] != QUESTION]]
    if settings.reply_types == "same":
        groups = [[one for one in candidates if types[one.token_ids] == kind] for kind in domain.reply_types]
    eligible: list[tuple[Candidate, Candidate]] = []
    for group in groups:
        ordered = sorted(group, key=lambda one: -one.advantage)
        if not settings.distinct:
            ordered = [one for one in ordered for _ in range(one.count)]
        half = len(ordered) // 2
        if not half:
            continue
        if settings.selection == "extremes":
            half = 1
        eligible += [
            (good, bad)
            for good in ordered[:half]
            for bad in ordered[-half:]
            if good.text != bad.text
            and good.advantage > bad.advantage
            and good.advantage - bad.advantage >= settings.margin
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
        for one in state.candidates:
            total = totals[domain.reply_type(one.text)]
            total[0] += one.count * one.advantage
            total[1] += one.count
    mean = {kind: total / max(1, count) for kind, (total, count) in totals.items()}
    for state in states:
        shifted = (
            replace(one, advantage=one.advantage - mean[domain.reply_type(one.text)]) for one in state.candidates
        )
        yield replace(state, candidates=tuple(shifted))


def find_replay(trajectories: Iterable[Trajectory], chat: Chat, system: str) -> Iterator[Replay]:
    """Yield the successful dialogues as the actor saw them (without c)."""
    for one in trajectories:
        if usable(one) and one.success:
            yield Replay(one.task.id, one.attempt, encode(one, chat, system))


def ranking_metrics(
    states: Iterable[RankedState], preferences: Iterable[Preference], domain: Domain
) -> dict[str, float]:
    """Counts, advantages by turn and by type of reply, and which types of replies are preferred to which.

    `preferences` are those of `states` in the same order.
    """
    waiting = iter(preferences)
    following = next(waiting, None)
    count = samples = distinct = pairs = without = 0
    margin, chosen_length, rejected_length = 0.0, 0, 0
    over = {f"{good}_over_{bad}": 0 for good in domain.reply_types for bad in domain.reply_types}
    weighted: dict[str, tuple[float, int]] = {}
    for state in states:
        count += 1
        samples += sum(one.count for one in state.candidates)
        distinct += len(state.candidates)
        types = {one.token_ids: domain.reply_type(one.text) for one in state.candidates}
        for candidate in state.candidates:
            kind = types[candidate.token_ids]
            for name in ("advantage", f"advantage/{kind}", f"advantage/turn_{state.turn + 1:02d}"):
                total, weight = weighted.get(name, (0.0, 0))
                weighted[name] = total + candidate.advantage * candidate.count, weight + candidate.count
        before, key = pairs, (state.task_id, state.attempt, state.turn)
        while following is not None and (following.task_id, following.attempt, following.turn) == key:
            pairs += 1
            margin += following.chosen_advantage - following.rejected_advantage
            chosen_length += len(following.chosen_ids)
            rejected_length += len(following.rejected_ids)
            over[f"{types[following.chosen_ids]}_over_{types[following.rejected_ids]}"] += 1
            following = next(waiting, None)
        without += pairs == before
    if following is not None:
        raise ValueError("preferences are not in the order of their states")
    metrics: dict[str, float] = {
        "states": count,
        "candidates": samples,
        "distinct": distinct,
        "pairs": pairs,
        "states_without_pair": without,
        "distinct_per_state": distinct / max(1, count),
    }
    if pairs:
        metrics["margin"] = margin / pairs
        metrics["length/chosen"] = chosen_length / pairs
        metrics["length/rejected"] = rejected_length / pairs
    metrics |= {f"pairs/{name}": many for name, many in over.items()}
    return metrics | {name: total / weight for name, (total, weight) in sorted(weighted.items())}


def judged_metrics(states: Iterable[RankedState], dialogues: Iterable[Trajectory], domain: Domain) -> dict[str, float]:
    """How far the critic knows good replies from bad, on tasks that the domain's judge knows (empty for others).

    `judged/V/share` and `judged/V/advantage` for each verdict V, and for each of the domain's contrasts
    `ranked/V_over_W`: the share of pairs of a V and a W at one state in which V has the higher advantage (ties count
    half; 0.5 is chance). Of judgments without a verdict, `ranked/better_over_worse` is the share of pairs at one state
    in which the reply that is worth more has the higher advantage. The dialogues come in the order of their states.
    """
    reading = iter(dialogues)
    dialogue = next(reading, None)
    totals: dict[str, tuple[int, float]] = {}
    pairs: dict[str, tuple[float, int]] = {}

    def compare(name: str, high: float, low: float) -> None:
        won, many = pairs.get(name, (0.0, 0))
        pairs[name] = (won + (high > low) + 0.5 * (high == low), many + 1)

    for state in states:
        while dialogue is not None and (dialogue.task.id, dialogue.attempt) != (state.task_id, state.attempt):
            dialogue = next(reading, None)
        if dialogue is None:
            raise ValueError("dialogues are not in the order of their states")
        earlier = dialogue.messages[: 2 * state.turn + 1]
        found: dict[str, list[float]] = {}
        worths: list[tuple[float, float]] = []
        for one in state.candidates:
            judgment = domain.judge(dialogue.task, earlier, one.text)
            if judgment is None:
                continue
            if not judgment.verdict:
                worths.append((judgment.worth, one.advantage))
                continue
            found.setdefault(judgment.verdict, []).append(one.advantage)
            count, total = totals.get(judgment.verdict, (0, 0.0))
            totals[judgment.verdict] = (count + one.count, total + one.count * one.advantage)
        for (worth, advantage), (other, theirs) in combinations(worths, 2):
            if worth != other:
                high, low = (advantage, theirs) if worth > other else (theirs, advantage)
                compare("better_over_worse", high, low)
        for better, worse in domain.contrasts:
            for high in found.get(better, ()):
                for low in found.get(worse, ()):
                    compare(f"{better}_over_{worse}", high, low)
    everything = sum(count for count, _ in totals.values())
    metrics: dict[str, float] = {}
    for name, (count, total) in sorted(totals.items()):
        metrics |= {f"judged/{name}/share": count / everything, f"judged/{name}/advantage": total / count}
    return metrics | {f"ranked/{name}": won / many for name, (won, many) in pairs.items()}
