"""Stage `evaluate`: the policy before and after training on the same held-out tasks, with the same seeds.

data/tasks/test.parquet, models/base, models/policy -> data/evaluation/{base,trained}/ (the dialogues),
reports/results.parquet (a row for each task and policy), reports/evaluation.json, reports/report.html. Every byte
follows from the inputs and parameters. What the critic thought of candidates (data/preferences, with the dialogues in
data/trajectories) is shown in the report if it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweetrl.api import rollouts
from sweetrl.api.calls import evaluated, settings_of
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore, read_task_table
from sweetrl.config.settings import Settings
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import AFTER, BEFORE, write_results
from sweetrl.evaluation.report import example_states, harm, level, render, verdicts
from sweetrl.io import publish, write_json, write_text
from sweetrl.models.check import is_trained
from sweetrl.paths import (
    EVALUATION,
    EVALUATION_DIALOGUES,
    POLICY,
    PREFERENCES,
    REPORT,
    RESULTS,
    TEST_TASKS,
    TRAJECTORIES,
)
from sweetrl.rollout.users import user_name
from sweetrl.stages.rescoring import recorded, score_again
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.sweet.preferences import CANDIDATES
from sweetrl.sweet.tables import Table
from sweetrl.tracking.runs import HARM_TAG, USER_TAG, log_dialogues
from sweetrl.types import RankedState, Report, Trajectory


def evaluate(settings: Settings) -> None:
    """Attempt the first evaluate.tasks test tasks with both policies, once each. Finished shards survive a kill."""
    settings = evaluated(settings)
    tasks = read_task_table(TEST_TASKS)[: settings.evaluate.tasks]
    if len(tasks) < 2:
        raise UserError(f"{TEST_TASKS}: an evaluation needs at least 2 tasks; raise evaluate.tasks and tasks.test.")
    if not is_trained(POLICY):  # said before half an evaluation is done
        raise UserError(f"{POLICY}: there is no trained policy here; run the stage `train-policy` first.")
    with stage_run("evaluate", settings) as run:
        for name, path in (("test-tasks", TEST_TASKS), ("base", settings.model.base), ("policy", POLICY)):
            run.log_input(name, path)
        scratch = run.scratch()
        domain = load_domain(settings)
        before = Policy(settings.model, settings.engine)
        policies = {BEFORE: before, AFTER: before.adapted(POLICY)}
        stores = {name: TrajectoryStore(scratch / "dialogues" / name) for name in policies}
        running = {name: run.running(scratch, name) for name in policies}
        if earlier := recorded(run, scratch, EVALUATION_DIALOGUES, TRAJECTORIES, PREFERENCES, POLICY):
            score_again(run, domain, TrajectoryStore(earlier / BEFORE), stores[BEFORE])  # the base is as it was
        run.spread()
        with rollouts.attempted(domain, policies, [(task, 0) for task in tasks], stores, running) as environment:
            if not run.share.is_all:
                return
            result = rollouts.summarise(domain, policies, stores, environment)
        for name in policies:
            run.log_costs(scratch, name)
        log_dialogues(run.log, stores, settings.tracking, settings.seed)
        publish(scratch / "dialogues", EVALUATION_DIALOGUES)
        write_results(RESULTS, result.results)
        write_json(EVALUATION, result.comparison)
        write_text(REPORT, report(domain, result))
        run.log_metrics(flat(result.comparison))
        run.log.set_tags({USER_TAG: user_name(domain)})
        if hurt := harm(result.comparison):
            run.log.set_tags({HARM_TAG: hurt})
        run.log.log_artifact(REPORT)
        run.log.log_artifact(EVALUATION)
        run.summary = f"{headline(result.comparison)}; {REPORT}"


def report(domain: Domain, evaluation: rollouts.Evaluation) -> str:
    """Return the report as HTML: the domain's own, or the usual one."""
    settings = settings_of(domain)
    facts = {
        "Domain": settings.suite,
        "Method": settings.method,
        "Base model": settings.model.base,
        "User": user_name(domain),
        "Turns, at most": settings.agent.max_turns,
        "Temperature": settings.agent.temperature,
        "Tokens a reply, at most": settings.agent.reply_tokens,
        "Scoring": domain.scoring_with_price(),
        "Seed": settings.seed,
        "Bootstrap resamples": settings.evaluate.resamples,
    }
    ranked = PREFERENCES / CANDIDATES
    states: Sequence[RankedState] = Table(ranked, RankedState) if ranked.exists() else []
    before, after = evaluation.dialogues[BEFORE], evaluation.dialogues[AFTER]
    shown = Report(
        domain, evaluation.comparison, evaluation.results, before, after, states, facts, read_contexts(states)
    )
    return (evaluation.render or render)(shown)


def flat(comparison: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a comparison as metrics: the headline, and each policy's means."""
    numbers = {name: value for name, value in comparison.items() if isinstance(value, int | float)}
    parts = [comparison, *(part for part in comparison.values() if isinstance(part, Mapping) and "policies" in part)]
    for part in parts:
        for policy, values in part["policies"].items():
            numbers |= {f"{policy}/{key}": value["value"] for key, value in values.items()}
    return numbers


def headline(comparison: Mapping[str, Any]) -> str:
    """Return the comparison in one sentence: success and mean reward, harm first, then what the domain is about."""
    parts = []
    for name, label, tone, _ in verdicts(comparison):
        change = comparison["difference"][name]
        before, after = comparison[f"{name}_before"], comparison[f"{name}_after"]
        worse = "worse: " if tone == "worse" else ""
        parts.append(
            f"{worse}{label} {before:.1%} before and {after:.1%} after training "
            f"({change['value']:+.1%}, {level(comparison)} interval {change['low']:+.1%} to {change['high']:+.1%}, "
            f"p = {change['p_value']:.2g})"
        )
    return f"{comparison['tasks']} tasks, {', '.join(parts)}"


def read_contexts(states: Sequence[RankedState]) -> dict[tuple[str, int], Trajectory]:
    """Return the offline dialogues of the states that the report shows, by task id and attempt."""
    shown = {(state.task_id, state.attempt) for state in example_states(states)}
    if not shown or not TRAJECTORIES.exists():
        return {}
    store = TrajectoryStore(TRAJECTORIES)
    places = [place for place, row in enumerate(store.outlines()) if (row.task.id, row.attempt) in shown]
    return {(dialogue.task.id, dialogue.attempt): dialogue for dialogue in store.pick(places)}


if __name__ == "__main__":
    stage_main(evaluate)
