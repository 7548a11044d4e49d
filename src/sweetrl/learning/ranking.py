"""Candidate replies at the turns of offline dialogues, ranked by the critic, and the preference pairs among them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from sweetrl.colbench.environment import marked_answer, visible_reply
from sweetrl.colbench.pages import find_page
from sweetrl.colbench.synthetic.judge import judge_reply
from sweetrl.colbench.synthetic_frontend.judge import worth as page_worth
from sweetrl.colbench.types import Trajectory
from sweetrl.engines.base import Engine, Prompt, Sampling
from sweetrl.learning.batches import Chat, Row, encode
from sweetrl.learning.critics import LogRatioCritic, Reply, ReplyCritic, derived_seed
from sweetrl.learning.pairs import usable
from sweetrl.learning.passes import Layout, model_layout
from sweetrl.learning.whole import critic_row
from sweetrl.settings import CriticSettings, RankSettings


@dataclass(frozen=True)
class Candidate:
    """One distinct reply at a state: its ids as sampled, how often it was, and its advantage."""

    token_ids: tuple[int, ...]
    text: str
    count: int
    advantage: float

    @property
    def answers(self) -> bool:
        """Whether this reply ends the dialogue with an answer (else it asks)."""
        return marked_answer(visible_reply(self.text)) is not None

    @property
    def kind(self) -> str:
        """What kind of reply it is: `answer`, `page` (shows one to be looked at), or `ask`."""
        if self.answers:
            return "answer"
        return "page" if find_page(visible_reply(self.text)) is not None else "ask"


KINDS = ("ask", "page", "answer")


@dataclass(frozen=True)
class RankedState:
    """An agent's turn (from 0) in an offline dialogue: what the actor sees, and the candidates in order of sampling."""

    task_id: str
    attempt: int
    turn: int
    prompt_ids: tuple[int, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Preference:
    """Two replies to one state; nothing in it knows the training-time information c."""

    task_id: str
    attempt: int
    turn: int
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    chosen_advantage: float
    rejected_advantage: float


@dataclass(frozen=True)
class Anchor:
    """A successful dialogue as the actor saw it, and where its replies are."""

    task_id: str
    attempt: int
    row: Row


def choose_dialogues(trajectories: Iterable[Trajectory], share: float, seed: int) -> list[Trajectory]:
    """Draw `share` of the usable trajectories (at least one), in their own order."""
    candidates = [trajectory for trajectory in trajectories if usable(trajectory)]
    count = min(len(candidates), max(1, round(share * len(candidates))))
    picked = sorted(random.Random(seed).sample(range(len(candidates)), count))
    return [candidates[index] for index in picked]


def rankable(
    dialogues: Sequence[Trajectory], chat: Chat, system: str, privileged: bool, limit: int
) -> list[Trajectory]:
    """Leave out the dialogues that the critic cannot read in `limit` tokens, with c in front if `privileged`."""
    view = CriticSettings(privileged=privileged)
    return [one for one in dialogues if len(critic_row(one, chat, system, view).token_ids) <= limit]


def sample_candidates(
    rows: Sequence[tuple[Trajectory, Row]], engine: Engine, sampling: Sampling, seed: int
) -> list[list[dict[tuple[int, ...], tuple[str, int]]]]:
    """Sample `sampling.n` replies at every agent turn of every dialogue.

    Returns for each dialogue and turn {token ids: (text, count)} in order of first appearance.
    """
    prompts = [
        Prompt(row.token_ids[:start], derived_seed(seed, "candidates", one.task.id, one.attempt, turn))
        for one, row in rows
        for turn, (start, _) in enumerate(row.spans)
    ]
    completions = iter(engine.sample(prompts, sampling))
    result = []
    for _, row in rows:
        turns = []
        for _ in row.spans:
            distinct: dict[tuple[int, ...], tuple[str, int]] = {}
            for completion in next(completions):
                if completion.token_ids:
                    text, count = distinct.get(completion.token_ids, (completion.text, 0))
                    distinct[completion.token_ids] = (text, count + 1)
            turns.append(distinct)
        result.append(turns)
    return result


def rank_dialogues(
    dialogues: Sequence[Trajectory],
    engine: Engine,
    critic: Any,
    chat: Chat,
    system: str,
    sampling: Sampling,
    seed: int,
    privileged: bool = True,
    conditioned_reference: bool = True,
    mean: bool = True,
    layout: Layout | None = None,
) -> list[RankedState]:
    """Sample candidates at every turn of `dialogues` and score their advantages with the critic, a model.

    `layout` says how the critic computes (by default in trees, where its attention can be masked). Other critics and
    views of the dialogue: `rank_with`.
    """
    view = CriticSettings(privileged=privileged, normalization="turn" if mean else "none")
    layout = model_layout(critic, "trees") if layout is None else layout
    judge = LogRatioCritic(critic, chat, system, view, layout, conditioned_reference)
    return rank_with(dialogues, engine, judge, chat, system, sampling, seed)


def rank_with(
    dialogues: Sequence[Trajectory],
    engine: Engine,
    critic: ReplyCritic,
    chat: Chat,
    system: str,
    sampling: Sampling,
    seed: int,
) -> list[RankedState]:
    """Sample candidates at every turn of `dialogues` and let `critic` score them.

    The engine sees what the actor sees; only the critic knows c. Depends on nothing but its arguments.
    """
    rows = [(trajectory, encode(trajectory, chat, system)) for trajectory in dialogues]
    sampled = sample_candidates(rows, engine, sampling, seed)
    branches = [[[Reply(ids, text) for ids, (text, _) in distinct.items()] for distinct in turns] for turns in sampled]
    scored = critic.advantages(list(zip(dialogues, branches, strict=True)))
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
    candidates: Sequence[Candidate], settings: RankSettings, chance: random.Random
) -> list[tuple[Candidate, Candidate]]:
    """Choose (chosen, rejected) at one state: distinct texts, advantages that differ by `margin` and by more than 0.

    halves     random pairs, chosen from the upper half by advantage and rejected from the lower (of an odd number the
               middle one is in neither)
    extremes   the best against the worst
    With kinds `same`, questions, pages that are only shown, and answers are groups of their own; with `pages`, no
    question is in a pair.
    """
    groups = [[one for one in candidates if settings.kinds != "pages" or one.kind != "ask"]]
    if settings.kinds == "same":
        groups = [[one for one in candidates if one.kind == kind] for kind in KINDS]
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


def choose_preferences(states: Iterable[RankedState], settings: RankSettings, seed: int) -> list[Preference]:
    """Choose pairs at every state, from a seed of the state's own. The advantages are those that were compared."""
    result = []
    for state in centred(states) if settings.kinds == "centred" else states:
        where = (state.task_id, state.attempt, state.turn)
        chance = random.Random(derived_seed(seed, "pairs", *where))
        for good, bad in choose_pairs(state.candidates, settings, chance):
            result.append(
                Preference(*where, state.prompt_ids, good.token_ids, bad.token_ids, good.advantage, bad.advantage)
            )
    return result


def centred(states: Iterable[RankedState]) -> list[RankedState]:
    """Return `states` with the questions' mean advantage taken off each question, and likewise pages' and answers'.

    The means go over all samples. Both attempts of a pair in Eq. 2 have exactly one answer, so a constant added to the
    advantage of every answer changes no loss: only what is left without it says whether to ask or to answer.
    """
    known = list(states)
    totals = {kind: [0.0, 0] for kind in KINDS}
    for state in known:
        for one in state.candidates:
            totals[one.kind][0] += one.count * one.advantage
            totals[one.kind][1] += one.count
    mean = {kind: total / max(1, count) for kind, (total, count) in totals.items()}
    return [
        replace(
            state,
            candidates=tuple(replace(one, advantage=one.advantage - mean[one.kind]) for one in state.candidates),
        )
        for state in known
    ]


def find_anchors(trajectories: Iterable[Trajectory], chat: Chat, system: str) -> list[Anchor]:
    """Return the successful dialogues as the actor saw them (without c)."""
    return [
        Anchor(one.task.id, one.attempt, encode(one, chat, system))
        for one in trajectories
        if usable(one) and one.success
    ]


def ranking_metrics(states: Sequence[RankedState], preferences: Sequence[Preference]) -> dict[str, float]:
    """Counts, advantages by turn, and what kinds of replies are preferred to what."""
    by_state = {(state.task_id, state.attempt, state.turn): state for state in states}
    metrics: dict[str, float] = {
        "states": len(states),
        "candidates": sum(one.count for state in states for one in state.candidates),
        "distinct": sum(len(state.candidates) for state in states),
        "pairs": len(preferences),
        "states_without_pair": len(by_state) - len({(p.task_id, p.attempt, p.turn) for p in preferences}),
    }
    metrics["distinct_per_state"] = metrics["distinct"] / max(1, len(states))
    if preferences:
        margins = [one.chosen_advantage - one.rejected_advantage for one in preferences]
        metrics["margin"] = sum(margins) / len(margins)
        metrics["length/chosen"] = sum(len(one.chosen_ids) for one in preferences) / len(preferences)
        metrics["length/rejected"] = sum(len(one.rejected_ids) for one in preferences) / len(preferences)
    kinds = {"ask_over_ask": 0, "ask_over_answer": 0, "answer_over_ask": 0, "answer_over_answer": 0}
    answers = {key: {one.token_ids: one.answers for one in state.candidates} for key, state in by_state.items()}
    for one in preferences:
        known = answers[one.task_id, one.attempt, one.turn]
        names = ["answer" if known[ids] else "ask" for ids in (one.chosen_ids, one.rejected_ids)]
        kinds[f"{names[0]}_over_{names[1]}"] += 1
    metrics |= {f"pairs/{name}": count for name, count in kinds.items()}
    weighted: dict[str, list[tuple[float, int]]] = {}
    for state in states:
        for candidate in state.candidates:
            kind = "answer" if candidate.answers else "ask"
            for name in ("advantage", f"advantage/{kind}", f"advantage/turn_{state.turn + 1:02d}"):
                weighted.setdefault(name, []).append((candidate.advantage, candidate.count))
    for name, values in sorted(weighted.items()):
        metrics[name] = sum(value * count for value, count in values) / sum(count for _, count in values)
    return metrics


# What a good critic ranks higher, and what lower, whatever the agent has asked before.
CONTRASTS = (
    ("needed", "plausible"),
    ("needed", "irrelevant"),
    ("needed", "repeated"),
    ("needed", "premature"),
    ("plausible", "irrelevant"),
    ("complete", "mistaken"),
    ("complete", "irrelevant"),
    ("complete", "repeated"),
)


def judged_metrics(states: Sequence[RankedState], dialogues: Iterable[Trajectory]) -> dict[str, float]:
    """How far the critic knows good replies from bad, on tasks of the synthetic suite (empty for others).

    `judged/V/share` and `judged/V/advantage` for each verdict V of judge_reply, and for each contrast
    `ranked/V_over_W`: the share of pairs of a V and a W at one state in which V has the higher advantage (ties count
    half; 0.5 is chance). Of pages, `ranked/better_over_worse` is the share of pairs at one state in which the page with
    more details right (synthetic_frontend.judge) has the higher advantage.
    """
    by_key = {(one.task.id, one.attempt): one for one in dialogues}
    totals: dict[str, tuple[int, float]] = {}
    pairs: dict[str, tuple[float, int]] = {}
    for state in states:
        dialogue = by_key[state.task_id, state.attempt]
        earlier = dialogue.messages[: 2 * state.turn + 1]
        found: dict[str, list[float]] = {}
        if dialogue.task.suite == "frontend":
            known = [(page_worth(dialogue.task, one.text), one.advantage) for one in state.candidates]
            for (worth, advantage), (other, theirs) in combinations(known, 2):
                if worth is not None and other is not None and worth != other:
                    high, low = (advantage, theirs) if worth > other else (theirs, advantage)
                    won, many = pairs.get("better_over_worse", (0.0, 0))
                    pairs["better_over_worse"] = (won + (high > low) + 0.5 * (high == low), many + 1)
            continue
        for one in state.candidates:
            verdict = judge_reply(dialogue.task, earlier, one.text)
            if verdict is not None:
                found.setdefault(verdict, []).append(one.advantage)
                count, total = totals.get(verdict, (0, 0.0))
                totals[verdict] = (count + one.count, total + one.count * one.advantage)
        for better, worse in CONTRASTS:
            for high in found.get(better, ()):
                for low in found.get(worse, ()):
                    won, many = pairs.get(f"{better}_over_{worse}", (0.0, 0))
                    pairs[f"{better}_over_{worse}"] = (won + (high > low) + 0.5 * (high == low), many + 1)
    everything = sum(count for count, _ in totals.values())
    metrics: dict[str, float] = {}
    for name, (count, total) in sorted(totals.items()):
        metrics |= {f"judged/{name}/share": count / everything, f"judged/{name}/advantage": total / count}
    return metrics | {f"ranked/{name}": won / many for name, (won, many) in pairs.items()}
