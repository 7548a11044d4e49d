"""What happened in evaluated dialogues: one flat row for each, and the summary of two policies on the same tasks.

For every task: reward, success, turns, how it ended, questions in the same words as an earlier one; and what went wrong
where the domain knows how a task was made (`Domain.diagnose`; of programs: sweetrl.backend.suite.judge.faults).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.scoring import price
from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import (
    bootstrap_mean,
    mcnemar_exact,
    paired_difference,
    paired_p_value,
    wilson_interval,
)
from sweetrl.plugins import find_reward
from sweetrl.rollout.context import ANY_REWARD
from sweetrl.sweet.tables import Table, write_table
from sweetrl.types import Preference, RankedState, Result, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

BEFORE, AFTER = "base", "trained"


def result_of(trajectory: Trajectory, policy: str, domain: Domain, max_turns: int = 10) -> Result:
    """Describe one finished dialogue of `policy` ("base" or "trained"); the agent had at most `max_turns` turns."""
    questions = domain.questions(trajectory)
    distinct = {" ".join(question.lower().split()) for question in questions}
    diagnosis: dict[str, Any] = {"topic": _group(trajectory), "repeated": len(questions) - len(distinct)}
    diagnosis |= domain.diagnose(trajectory, questions, max_turns)
    return Result(
        task_id=trajectory.task.id,
        policy=policy,
        reward=reward_of(trajectory, domain),
        success=trajectory.success,
        outcome=trajectory.outcome,
        tests_passed=sum(test.passed for test in trajectory.tests),
        tests=len(trajectory.tests),
        turns=sum(message.role == "assistant" for message in trajectory.messages),
        questions=len(questions),
        **diagnosis,
    )


def reward_of(trajectory: Trajectory, domain: Domain) -> float | None:
    """Return the reward that a dialogue has where agents are measured.

    A dialogue that outgrew the agent's context after its first reply has failed: its reward is the least that there
    is, less the price of its questions, or None where there is no least reward (one without `reward_range`). A dialogue
    that was lost to others (a server, the user), or that was too long from the start, has no reward.
    """
    if not trajectory.outgrown:
        return trajectory.reward
    settings = domain.settings.reward
    least = domain.reward_range[0]
    if settings.function:
        try:
            least = getattr(find_reward(settings.function), "reward_range", ANY_REWARD)[0]
        except UserError:  # not here, where somebody else's dialogues are looked at
            return None
    return least - price(trajectory, settings.turn_cost) if isfinite(least) else None


def results_of(dialogues: Mapping[str, Sequence[Trajectory]], domain: Domain, max_turns: int = 10) -> list[Result]:
    """Describe the dialogues of each policy; where the reward has no least value, a failure is the least among them.

    That is for dialogues that outgrew the agent's context (`reward_of`): left out, they would be no failures.
    """
    described = [
        (dialogue, result_of(dialogue, name, domain, max_turns))
        for name, of_policy in dialogues.items()
        for dialogue in of_policy
    ]
    least = min((result.reward for _, result in described if result.reward is not None), default=None)
    return [
        replace(result, reward=least) if dialogue.outgrown and result.reward is None else result
        for dialogue, result in described
    ]


def _group(trajectory: Trajectory) -> str:
    """What a task without a known topic is counted under: the topic noted with it, or its id without the number."""
    return trajectory.extra.get("topic") or re.sub(r"[-_]?(?<!\d)\d++$", "", trajectory.task.id) or "tasks"


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write one row for each task and policy as Parquet (zstd); equal results give equal bytes."""
    write_table(Path(path), Result, results)


def read_results(path: Path) -> list[Result]:
    """Read what `write_results` wrote; anything else, or nothing, is a UserError that names the file."""
    return list(Table(Path(path), Result, "evaluate"))


def summarize_policy(results: Sequence[Result], confidence: float, resamples: int, seed: int) -> dict[str, Any]:
    """Sum up one policy's scored results: rates with Wilson's interval, means with the bootstrap's."""

    def mean(values: Iterable[float]) -> dict[str, Any]:
        return bootstrap_mean(list(values), confidence, resamples, seed).as_dict()

    def rate(hits: Iterable[bool]) -> dict[str, Any]:
        all_hits = list(hits)
        return wilson_interval(sum(all_hits), len(all_hits), confidence).as_dict()

    def total(name: str, of: Iterable[Result] = results) -> int:
        return sum(getattr(result, name) or 0 for result in of)

    summary: dict[str, Any] = {
        "success": rate(result.success for result in results),
        "reward": mean(result.reward or 0.0 for result in results),
        "turns": mean(float(result.turns) for result in results),
        "answered": rate(result.outcome == "answered" for result in results),
        "max_turns_reached": rate(result.outcome == "max_turns_reached" for result in results),
        "repeated_questions": _share(total("repeated"), total("questions")),
    }
    diagnosed = [result for result in results if result.details is not None]
    if diagnosed:
        details = total("details", diagnosed)
        brought_out = details - total("untold", diagnosed)
        summary |= {
            "premature_answers": rate(bool(result.premature) for result in diagnosed),
            "details_brought_out": _share(brought_out, details),
            "forgotten_details": _share(total("forgotten", diagnosed), brought_out),
            "mistaken_details": _share(total("mistaken", diagnosed), brought_out),
        }
    for kind in ("irrelevant", "unhinted"):
        judged = [result for result in results if getattr(result, kind) is not None]
        if judged:
            summary[f"{kind}_questions"] = _share(total(kind, judged), total("questions", judged))
    return summary


def over_tasks(attempts: Iterable[Trajectory]) -> dict[str, dict[str, Any]]:
    """Return `means_over_tasks` of the attempts that have a reward."""
    return means_over_tasks((each.task.id, each.success, each.reward) for each in attempts if each.reward is not None)


def means_over_tasks(attempts: Iterable[tuple[Hashable, float, float]]) -> dict[str, dict[str, Any]]:
    """Return `success` and `mean reward` of (task, success, reward) as means over the tasks, with 95 % intervals.

    The attempts at a task are not independent, tasks are: a task counts by its own mean. Fewer than two say nothing.
    """
    tasks = defaultdict[Hashable, list[tuple[float, float]]](list)
    for task, solved, value in attempts:
        tasks[task].append((solved, value))
    if len(tasks) < 2:
        return {}
    success, reward = zip(*(map(fmean, zip(*scored, strict=True)) for scored in tasks.values()), strict=True)
    always = {*success} <= {0.0, 1.0}  # each task is solved by all its attempts or by none
    rate = wilson_interval(int(sum(success)), len(tasks)) if always else bootstrap_mean(success)
    return {"success": rate.as_dict(), "mean reward": bootstrap_mean(reward).as_dict()}


def compare(
    results: Sequence[Result], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """Compare the policies "base" and "trained" on the tasks that both finished; the content of evaluation.json.

    A task that either lost (a failing engine or user, nobody's failure) is left out for both and counted in
    `tasks_lost`. Scalars on the first level are the headline. Fewer than two tasks: UserError.
    """
    before, after = paired(results)
    base, trained = (summarize_policy(results, confidence, resamples, seed) for results in (before, after))
    old, new = ([result.reward or 0.0 for result in results] for results in (before, after))
    difference = paired_difference(old, new, confidence, resamples, seed)
    p_value = paired_p_value(old, new, resamples, seed)
    solved = [[result.success for result in results] for results in (before, after)]
    gain = paired_difference(solved[0], solved[1], confidence, resamples, seed)
    gained, lost, exact = mcnemar_exact(solved[0], solved[1])
    content = {
        "tasks": len(before),
        "tasks_lost": len({result.task_id for result in results}) - len(before),
        "confidence": confidence,
        "resamples": resamples,
        "success_before": base["success"]["value"],
        "success_after": trained["success"]["value"],
        "success_difference": gain.value,
        "success_p_value": exact,
        "reward_before": base["reward"]["value"],
        "reward_after": trained["reward"]["value"],
        "reward_difference": difference.value,
        "reward_p_value": p_value,
        "policies": {BEFORE: base, AFTER: trained},
        "difference": {
            "success": gain.as_dict() | {"p_value": exact, "test": "exact McNemar", "gained": gained, "lost": lost},
            "reward": difference.as_dict() | {"p_value": p_value, "test": "sign-flip permutation"},
        },
        "topics": {
            name: _rates(pairs, confidence) | {"held_out": all(old.held_out for old, _ in pairs)}
            for name in sorted({old.topic for old in before})
            if (pairs := [(old, new) for old, new in zip(before, after, strict=True) if old.topic == name])
        },
    }
    held_out = [(old, new) for old, new in zip(before, after, strict=True) if old.held_out]
    if held_out and len(held_out) < len(before):  # domains that no training task has, beside others
        rates = _rates(held_out, confidence)
        content |= {"held_out_before": rates[BEFORE]["value"], "held_out_after": rates[AFTER]["value"]}
        content["held_out"] = rates
    return content


def compare_parts(
    before: Iterable[Trajectory], after: Iterable[Trajectory], confidence: float, resamples: int, seed: int
) -> dict[str, Any]:
    """Compare each named part of the reward, where it has several, on the tasks that both policies have scored.

    Part -> its mean "base" and "trained", and their paired "difference", with intervals.
    """
    old, new = (
        {attempt.task.id: attempt.parts for attempt in attempts if attempt.reward is not None}
        for attempts in (before, after)
    )
    tasks = [task for task in old if task in new]
    names = dict.fromkeys(name for task in tasks for parts in (old[task], new[task]) for name in parts)
    compared: dict[str, Any] = {}
    for name in names if len(names) > 1 else ():
        values = [[parts[task].get(name, 0.0) for task in tasks] for parts in (old, new)]
        means = [bootstrap_mean(each, confidence, resamples, seed).as_dict() for each in values]
        difference = paired_difference(values[0], values[1], confidence, resamples, seed).as_dict()
        p_value = paired_p_value(values[0], values[1], resamples, seed)
        compared[name] = {BEFORE: means[0], AFTER: means[1], "difference": difference | {"p_value": p_value}}
    return compared


def paired(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Return the scored results before and after on the same tasks, in the order of the tasks."""
    counts = Counter((result.task_id, result.policy) for result in results)
    if twice := [task for (task, _), count in counts.items() if count > 1]:
        raise UserError(f"task {twice[0]}: there are several results of one policy; give every task its own id.")
    before, after = (
        {result.task_id: result for result in results if result.policy == policy and result.reward is not None}
        for policy in (BEFORE, AFTER)
    )
    tasks = [task for task in before if task in after]
    return [before[task] for task in tasks], [after[task] for task in tasks]


def _rates(pairs: Sequence[tuple[Result, Result]], confidence: float) -> dict[str, Any]:
    """Success before and after on some of the tasks, with Wilson's intervals."""
    rates = [
        wilson_interval(sum(result.success for result in results), len(pairs), confidence).as_dict()
        for results in zip(*pairs, strict=True)
    ]
    return {"tasks": len(pairs), BEFORE: rates[0], AFTER: rates[1]}


def _share(count: int, total: int) -> dict[str, Any]:
    """A share of things that are not independent (several in a dialogue), so without an interval."""
    return {"value": count / total if total else 0.0, "count": count, "of": total}


# How well a critic ranks: what it prefers, and how rightly on tasks that the domain's judge knows


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
    names = ("states", "candidates", "distinct", "pairs", "states_without_pair")
    metrics: dict[str, float] = {name: counts[name] for name in names}
    metrics["distinct_per_state"] = counts["distinct"] / max(1, counts["states"])
    metrics |= {name: value / counts["pairs"] for name, value in sums.items()}
    metrics |= {f"pairs/{name}": many for name, many in over.items()}
    return metrics | {name: totals[name] / weights[name] for name in sorted(weights)}


def judged_metrics(states: Iterable[RankedState], dialogues: Iterable[Trajectory], domain: Domain) -> dict[str, float]:
    """How well the critic tells good replies from bad, on tasks that the domain's judge knows (empty for others).

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
