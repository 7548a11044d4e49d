"""How well a critic ranks: what it prefers, and how rightly on tasks that the domain's judge knows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING

from sweetrl.types import Preference, RankedState, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


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
        samples += sum(reply.count for reply in state.candidates)
        distinct += len(state.candidates)
        types = {reply.token_ids: domain.reply_type(reply.text) for reply in state.candidates}
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
        by_verdict: dict[str, list[float]] = {}
        worths: list[tuple[float, float]] = []
        for reply in state.candidates:
            judgment = domain.judge(dialogue.task, earlier, reply.text)
            if judgment is None:
                continue
            if not judgment.verdict:
                worths.append((judgment.worth, reply.advantage))
                continue
            by_verdict.setdefault(judgment.verdict, []).append(reply.advantage)
            count, total = totals.get(judgment.verdict, (0, 0.0))
            totals[judgment.verdict] = (count + reply.count, total + reply.count * reply.advantage)
        for (worth, advantage), (other, theirs) in combinations(worths, 2):
            if worth != other:
                high, low = (advantage, theirs) if worth > other else (theirs, advantage)
                compare("better_over_worse", high, low)
        for better, worse in domain.contrasts:
            for high in by_verdict.get(better, ()):
                for low in by_verdict.get(worse, ()):
                    compare(f"{better}_over_{worse}", high, low)
    everything = sum(count for count, _ in totals.values())
    metrics: dict[str, float] = {}
    for name, (count, total) in sorted(totals.items()):
        metrics |= {f"judged/{name}/share": count / everything, f"judged/{name}/advantage": total / count}
    return metrics | {f"ranked/{name}": won / many for name, (won, many) in pairs.items()}
