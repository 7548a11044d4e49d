"""What happened in evaluated dialogues: one flat row for each, and the summary of two policies on the same tasks.

For every task: reward, success, turns, how it ended, questions in the same words as an earlier one. Where the domain
knows how a task was made (`Domain.diagnose`), also what went wrong:
premature    the agent answered with turns left, although it had not been told every hidden detail
repeated     a question about nothing but what was asked before
irrelevant   a question about nothing that this kind of task can have
untold       a hidden detail that no question brought out
forgotten    a detail that was told, and that is missing from the answer
mistaken     a detail that was told, and that has another value in the answer
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from math import isfinite
from pathlib import Path
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
from sweetrl.io import atomic_path
from sweetrl.plugins import find_reward
from sweetrl.rollout.environment import ANY_REWARD
from sweetrl.types import Result, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

BEFORE, AFTER = "base", "trained"


COLUMNS = tuple(field.name for field in fields(Result))


def result_of(trajectory: Trajectory, policy: str, domain: Domain, max_turns: int = 10) -> Result:
    """Describe one finished dialogue of `policy` ("base" or "trained"); the agent had at most `max_turns` turns."""
    questions = domain.questions(trajectory)
    known: dict[str, Any] = {"topic": _group(trajectory), "repeated": _repeated_words(questions)}
    known |= domain.diagnose(trajectory, questions, max_turns)
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
        **known,
    )


def reward_of(trajectory: Trajectory, domain: Domain) -> float | None:
    """Return the reward that a dialogue has where agents are measured.

    One that outgrew the agent's context after its first reply has failed: its reward is the least that there is, less
    the price of its questions. Where none is known (a reward without `reward_range`) it has none, as one that was lost
    to others (a server, the user), or that was too long from the start.
    """
    if not trajectory.outgrown:
        return trajectory.reward
    wanted = domain.settings.reward
    least = domain.reward_range[0]
    if wanted.function:
        try:
            least = getattr(find_reward(wanted.function), "reward_range", ANY_REWARD)[0]
        except UserError:  # not here, where somebody else's dialogues are looked at
            return None
    return least - price(trajectory, wanted.turn_cost) if isfinite(least) else None


def results_of(dialogues: Mapping[str, Sequence[Trajectory]], domain: Domain, max_turns: int = 10) -> list[Result]:
    """Describe the dialogues of each policy; where the reward has no least value, a failure is the least among them.

    That is for dialogues that outgrew the agent's context (`reward_of`): left out, they would be no failures.
    """
    found = [(one, result_of(one, name, domain, max_turns)) for name, spoken in dialogues.items() for one in spoken]
    least = min((result.reward for _, result in found if result.reward is not None), default=None)
    return [
        replace(result, reward=least) if one.outgrown and result.reward is None else result for one, result in found
    ]


def _group(trajectory: Trajectory) -> str:
    """What a task without a known topic is counted under: the topic noted with it, or its id without the number."""
    return trajectory.extra.get("topic") or re.sub(r"[-_]?(?<!\d)\d++$", "", trajectory.task.id) or "tasks"


def _repeated_words(questions: Sequence[str]) -> int:
    counts = Counter(" ".join(question.lower().split()) for question in questions)
    return sum(count - 1 for count in counts.values())


# Files


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write one row for each task and policy as Parquet (zstd); equal results give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"str": pa.string(), "float": pa.float64(), "bool": pa.bool_(), "int": pa.int32()}
    schema = pa.schema([(field.name, types[str(field.type).split(" ")[0]]) for field in fields(Result)])
    table = pa.Table.from_pylist([asdict(result) for result in results], schema=schema)
    with atomic_path(Path(path)) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_results(path: Path) -> list[Result]:
    """Read what `write_results` wrote; a missing file or column is a UserError that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path(path).exists():
        raise UserError(f"{path}: there is no such file; run the stage `evaluate` first.")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: this is not a Parquet file; run the stage `evaluate` again.") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: column `{missing[0]}` is missing; run the stage `evaluate` again.")
    return [Result(**row) for row in table.select(list(COLUMNS)).to_pylist()]


# Summaries


def summarize_policy(results: Sequence[Result], confidence: float, resamples: int, seed: int) -> dict[str, Any]:
    """Sum up one policy's scored results: rates with Wilson's interval, means with the bootstrap's."""

    def mean(values: Iterable[float]) -> dict[str, Any]:
        return bootstrap_mean(list(values), confidence, resamples, seed).as_dict()

    def rate(hits: Iterable[bool]) -> dict[str, Any]:
        all_hits = list(hits)
        return wilson_interval(sum(all_hits), len(all_hits), confidence).as_dict()

    questions = sum(result.questions for result in results)
    summary: dict[str, Any] = {
        "success": rate(result.success for result in results),
        "reward": mean(result.reward or 0.0 for result in results),
        "turns": mean(float(result.turns) for result in results),
        "answered": rate(result.outcome == "answered" for result in results),
        "max_turns_reached": rate(result.outcome == "max_turns_reached" for result in results),
        "repeated_questions": _share(sum(result.repeated for result in results), questions),
    }
    known = [result for result in results if result.details is not None]
    if known:
        details = sum(result.details or 0 for result in known)
        untold = sum(result.untold or 0 for result in known)
        summary |= {
            "premature_answers": rate(bool(result.premature) for result in known),
            "details_brought_out": _share(details - untold, details),
            "forgotten_details": _share(sum(result.forgotten or 0 for result in known), details - untold),
            "mistaken_details": _share(sum(result.mistaken or 0 for result in known), details - untold),
        }
    judged = [result for result in results if result.irrelevant is not None]
    if judged:
        summary["irrelevant_questions"] = _share(
            sum(result.irrelevant or 0 for result in judged), sum(result.questions for result in judged)
        )
    hinted = [result for result in results if result.unhinted is not None]
    if hinted:
        summary["unhinted_questions"] = _share(
            sum(result.unhinted or 0 for result in hinted), sum(result.questions for result in hinted)
        )
    return summary


def compare(
    results: Sequence[Result], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """Compare the policies "base" and "trained" on the tasks that both finished; the content of evaluation.json.

    A task that either lost (a failing engine or user, nobody's failure) is left out for both and counted in
    `tasks_lost`. Scalars on the first level are the headline. Fewer than two tasks: UserError.
    """
    before, after = paired(results)
    base, trained = (summarize_policy(one, confidence, resamples, seed) for one in (before, after))
    rewards = [result.reward or 0.0 for result in before], [result.reward or 0.0 for result in after]
    successes = [result.success for result in before], [result.success for result in after]
    difference = paired_difference(rewards[0], rewards[1], confidence, resamples, seed)
    gain = paired_difference(successes[0], successes[1], confidence, resamples, seed)
    exact = mcnemar_exact(successes[0], successes[1])
    p_value = paired_p_value(rewards[0], rewards[1], resamples, seed)
    return {
        "tasks": len(before),
        "tasks_lost": len({result.task_id for result in results}) - len(before),
        "confidence": confidence,
        "resamples": resamples,
        "success_before": base["success"]["value"],
        "success_after": trained["success"]["value"],
        "success_difference": gain.value,
        "success_p_value": exact.p_value,
        "reward_before": base["reward"]["value"],
        "reward_after": trained["reward"]["value"],
        "reward_difference": difference.value,
        "reward_p_value": p_value,
        "policies": {BEFORE: base, AFTER: trained},
        "difference": {
            "success": gain.as_dict()
            | {"p_value": exact.p_value, "test": "exact McNemar", "gained": exact.gained, "lost": exact.lost},
            "reward": difference.as_dict() | {"p_value": p_value, "test": "sign-flip permutation"},
        },
        "topics": by_topic(before, after, confidence),
    } | _of_held_out(before, after, confidence)


def _of_held_out(before: Sequence[Result], after: Sequence[Result], confidence: float) -> dict[str, Any]:
    """Success in those domains that no training task has, where only some of the tasks are of such."""
    places = [index for index, result in enumerate(before) if result.held_out]
    if not places or len(places) == len(before):
        return {}
    found = _rates(before, after, places, confidence)
    scalars = {"held_out_before": found[BEFORE]["value"], "held_out_after": found[AFTER]["value"]}
    return {**scalars, "held_out": found}


def paired(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Return the scored results before and after on the same tasks, in the order of the tasks."""
    twice = [key for key, count in Counter((one.task_id, one.policy) for one in results).items() if count > 1]
    if twice:
        raise UserError(f"task {twice[0][0]}: there are several results of one policy; give every task its own id.")
    before = {result.task_id: result for result in results if result.policy == BEFORE and result.reward is not None}
    after = {result.task_id: result for result in results if result.policy == AFTER and result.reward is not None}
    tasks = [task for task in before if task in after]
    return [before[task] for task in tasks], [after[task] for task in tasks]


def by_topic(before: Sequence[Result], after: Sequence[Result], confidence: float) -> dict[str, dict[str, Any]]:
    """Success before and after in each topic, with Wilson's interval."""
    topics: dict[str, dict[str, Any]] = {}
    for name in sorted({result.topic for result in before}):
        places = [index for index, result in enumerate(before) if result.topic == name]
        held_out = all(before[index].held_out for index in places)
        topics[name] = {**_rates(before, after, places, confidence), "held_out": held_out}
    return topics


def _rates(
    before: Sequence[Result], after: Sequence[Result], places: Sequence[int], confidence: float
) -> dict[str, Any]:
    """Success before and after on some of the tasks."""
    rates = [
        wilson_interval(sum(one[index].success for index in places), len(places), confidence).as_dict()
        for one in (before, after)
    ]
    return {"tasks": len(places), BEFORE: rates[0], AFTER: rates[1]}


def _share(count: int, total: int) -> dict[str, Any]:
    """A share of things that are not independent (several in a dialogue), so without an interval."""
    return {"value": count / total if total else 0.0, "count": count, "of": total}
