"""How well a critic ranks: what it prefers, and how rightly on tasks that the domain's judge knows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations, product
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
    counts: Counter[str] = Counter()
    sums: dict[str, float] = defaultdict(float)
    over = {f"{good}_over_{bad}": 0 for good in domain.reply_types for bad in domain.reply_types}
    totals, weights = defaultdict[str, float](float), Counter[str]()
    for state in states:
        counts["states"] += 1
        counts["distinct"] += len(state.candidates)
        types = {reply.token_ids: domain.reply_type(reply.text) for reply in state.candidates}
        for candidate in state.candidates:
            counts["candidates"] += candidate.count
            kind = types[candidate.token_ids]
            for name in ("advantage", f"advantage/{kind}", f"advantage/turn_{state.turn + 1:02d}"):
                totals[name] += candidate.advantage * candidate.count
                weights[name] += candidate.count
        before, key = counts["pairs"], (state.task_id, state.attempt, state.turn)
        while following is not None and (following.task_id, following.attempt, following.turn) == key:
            counts["pairs"] += 1
            sums["margin"] += following.chosen_advantage - following.rejected_advantage
            sums["length/chosen"] += len(following.chosen_ids)
            sums["length/rejected"] += len(following.rejected_ids)
            over[f"{types[following.chosen_ids]}_over_{types[following.rejected_ids]}"] += 1
            following = next(waiting, None)
        counts["states_without_pair"] += counts["pairs"] == before
    if following is not None:
        raise ValueError("preferences are not in the order of their states")
    names = ("states", "candidates", "distinct", "pairs", "states_without_pair")
    metrics: dict[str, float] = {name: counts[name] for name in names}
    metrics["distinct_per_state"] = counts["distinct"] / max(1, counts["states"])
    metrics |= {name: value / counts["pairs"] for name, value in sums.items()}
    metrics |= {f"pairs/{name}": many for name, many in over.items()}
    return metrics | {name: totals[name] / weights[name] for name in sorted(weights)}


def judged_metrics(states: Iterable[RankedState], dialogues: Iterable[Trajectory], domain: Domain) -> dict[str, float]:
    """How far the critic knows good replies from bad, on tasks that the domain's judge knows (empty for others).

    `judged/V/share` and `judged/V/advantage` for each verdict V, and for each of the domain's contrasts
    `ranked/V_over_W`: the share of pairs of a V and a W at one state in which V has the higher advantage (ties count
    half; 0.5 is chance). Of judgments without a verdict, `ranked/better_over_worse` is the share of pairs at one state
    in which the reply that is worth more has the higher advantage. The dialogues come in the order of their states.
    """
    reading = iter(dialogues)
    dialogue = next(reading, None)
    totals, counts = defaultdict[str, float](float), Counter[str]()
    won, compared = defaultdict[str, float](float), Counter[str]()

    def compare(name: str, high: float, low: float) -> None:
        won[name] += (high > low) + 0.5 * (high == low)
        compared[name] += 1

    for state in states:
        while dialogue is not None and (dialogue.task.id, dialogue.attempt) != (state.task_id, state.attempt):
            dialogue = next(reading, None)
        if dialogue is None:
            raise ValueError("dialogues are not in the order of their states")
        earlier = dialogue.messages[: 2 * state.turn + 1]
        by_verdict: dict[str, list[float]] = defaultdict(list)
        worths: list[tuple[float, float]] = []
        for reply in state.candidates:
            judgment = domain.judge(dialogue.task, earlier, reply.text)
            if judgment is None:
                continue
            if not judgment.verdict:
                worths.append((judgment.worth, reply.advantage))
                continue
            by_verdict[judgment.verdict].append(reply.advantage)
            counts[judgment.verdict] += reply.count
            totals[judgment.verdict] += reply.count * reply.advantage
        for pair in combinations(worths, 2):
            (worse, low), (better, high) = sorted(pair, key=lambda reply: reply[0])
            if worse != better:
                compare("better_over_worse", high, low)
        for good, bad in domain.contrasts:
            for high, low in product(by_verdict[good], by_verdict[bad]):
                compare(f"{good}_over_{bad}", high, low)
    metrics: dict[str, float] = {}
    for name, count in sorted(counts.items()):
        metrics |= {f"judged/{name}/share": count / counts.total(), f"judged/{name}/advantage": totals[name] / count}
    return metrics | {f"ranked/{name}": won[name] / many for name, many in compared.items()}
