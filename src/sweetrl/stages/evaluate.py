"""Stage `evaluate`: the policy before and after training on the same held-out tasks, with the same seeds.

data/tasks/test.parquet, models/base, models/policy -> data/evaluation/{base,trained}/ (the dialogues),
reports/results.parquet (a row for each task and policy), reports/evaluation.json, reports/report.html. Every byte
follows from the inputs and parameters. What the critic thought of candidates (data/preferences, with the dialogues in
data/trajectories) is shown in the report if it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.api.calls import settings_of
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.io import publish, write_json, write_text
from sweetrl.methods.base import find_method
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
from sweetrl.stages.run import StageRun, log_costs, stage_main, stage_run
from sweetrl.tracking.runs import log_dialogues
from sweetrl.types import RankedState

if TYPE_CHECKING:
    from sweetrl.api.rollouts import Evaluation, Running
    from sweetrl.colbench.domain import Domain
    from sweetrl.types import Trajectory


def evaluate(settings: Settings) -> None:
    """Attempt the first evaluate.tasks test tasks with both policies, once each. Finished shards survive a kill."""
    from sweetrl.colbench.store import TrajectoryStore, read_task_table

    agent = find_method(settings.method).at_evaluation(settings.evaluated_agent)
    settings = settings.model_copy(update={"agent": agent})
    tasks = read_task_table(TEST_TASKS)[: settings.evaluate.tasks]
    if len(tasks) < 2:
        raise UserError(f"{TEST_TASKS}: an evaluation needs at least 2 tasks; raise evaluate.tasks and tasks.test.")
    if not (POLICY / "adapter_config.json").exists():  # said before half an evaluation is done
        raise UserError(f"{POLICY}: there is no trained policy here; run the stage `train-policy` first.")
    with stage_run("evaluate", settings) as run:
        from sweetrl.api import rollouts
        from sweetrl.engines.policy import Policy
        from sweetrl.evaluation.metrics import AFTER, BEFORE, write_results

        run.log_input("test-tasks", TEST_TASKS)
        run.log_input("base", settings.model.base)
        run.log_input("policy", POLICY)
        scratch = run.scratch(TEST_TASKS, settings.model.base, POLICY)
        domain = load_domain(settings)
        before = Policy(settings.model, settings.engine)
        policies = {BEFORE: before, AFTER: before.adapted(POLICY)}
        stores = {name: TrajectoryStore(scratch / "dialogues" / name) for name in policies}
        running = {name: how_to_run(run, scratch, name) for name in policies}
        with rollouts.attempted(domain, policies, tasks, stores, running=running) as environment:
            if not run.share.whole:
                return
            found = rollouts.summarise(domain, stores, environment)
        for name in policies:
            log_costs(run, scratch, f"costs-{name}*.jsonl", f"/{name}")
        log_dialogues(run.log, stores, settings.tracking, settings.seed)
        publish(scratch / "dialogues", EVALUATION_DIALOGUES)
        write_results(RESULTS, found.results)
        write_json(EVALUATION, found.comparison)
        write_text(REPORT, report(domain, found))
        run.log_metrics(flat(found.comparison))
        run.log_artifact(REPORT)
        run.log_artifact(EVALUATION)
        run.summary = f"{headline(domain, found.comparison)}; {REPORT}"


def how_to_run(run: StageRun, scratch: Path, name: str) -> Running:
    """Where one policy's ledger lies, and under which names its cost is logged."""
    from sweetrl.api.rollouts import Running
    from sweetrl.rollout.ledger import Ledger

    def spent(values: Mapping[str, float]) -> None:
        user = "simulator/"
        run.log_metrics({key if key.startswith(user) else f"{key}/{name}": value for key, value in values.items()})

    return Running(
        log=scratch / f"server{run.share.suffix}.log",
        ledger=Ledger(scratch / f"costs-{name}{run.share.suffix}.jsonl"),
        mine=run.mine,
        spent=spent,
    )


def report(domain: Domain, found: Evaluation) -> str:
    """Return the report as HTML: the domain's own, or the usual one."""
    from sweetrl.evaluation.metrics import AFTER, BEFORE
    from sweetrl.evaluation.report import render
    from sweetrl.types import Report

    states = read_states(PREFERENCES)
    before, after = found.dialogues[BEFORE], found.dialogues[AFTER]
    shown = Report(domain, found.comparison, found.results, before, after, states, facts(domain), read_contexts(states))
    own = domain.report(shown, found.examined)
    return render(shown) if own is None else own


def flat(comparison: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a comparison as metrics: the headline, and each policy's means."""
    found = {name: value for name, value in comparison.items() if isinstance(value, int | float)}
    tables = [comparison["policies"], *(one["policies"] for one in comparison.values() if _has_policies(one))]
    for table in tables:
        for policy, values in table.items():
            found |= {f"{policy}/{key}": value["value"] for key, value in values.items()}
    return found


def _has_policies(value: Any) -> bool:
    return isinstance(value, Mapping) and "policies" in value


def headline(domain: Domain, comparison: Mapping[str, Any]) -> str:
    """Return the comparison in one sentence: success and mean reward, what the domain is about first."""
    labels = {"success": domain.shown_labels.success, "reward": domain.shown_labels.reward}
    parts = []
    for name in sorted(labels, key=lambda one: one != domain.measure):
        label, change = labels[name], comparison["difference"][name]
        before, after = comparison[f"{name}_before"], comparison[f"{name}_after"]
        parts.append(
            f"{label[:1].lower()}{label[1:]} {before:.1%} before and {after:.1%} after training "
            f"({change['value']:+.1%}, interval {change['low']:+.1%} to {change['high']:+.1%}, "
            f"p = {change['p_value']:.2g})"
        )
    return f"{comparison['tasks']} tasks, {', '.join(parts)}"


def facts(domain: Domain) -> dict[str, Any]:
    """What the report says about how it was made."""
    settings = settings_of(domain)
    return {
        "Domain": settings.suite,
        "Method": settings.method,
        "Base model": settings.model.base,
        "User": settings.simulator.kind,
        "Turns, at most": settings.agent.max_turns,
        "Temperature": settings.agent.temperature,
        "Tokens a reply, at most": settings.agent.max_new_tokens,
        "Scoring": domain.scoring_with_price(),
        "Seed": settings.seed,
        "Bootstrap resamples": settings.evaluate.resamples,
    }


def read_states(folder: Path) -> Sequence[RankedState]:
    """Return what the critic thought of candidate replies; nothing where there is no ranking."""
    from sweetrl.sweet.preferences import CANDIDATES
    from sweetrl.sweet.tables import Table

    path = folder / CANDIDATES
    return Table(path, RankedState) if path.exists() else []


def read_contexts(states: Sequence[RankedState]) -> dict[tuple[str, int], Trajectory]:
    """Return the offline dialogues of the states that the report shows, by task id and attempt."""
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.evaluation.report import example_states

    wanted = {(state.task_id, state.attempt) for state in example_states(states)}
    if not wanted or not TRAJECTORIES.exists():
        return {}
    store = TrajectoryStore(TRAJECTORIES)
    places = [place for place, one in enumerate(store.outlines()) if (one.task.id, one.attempt) in wanted]
    return {(one.task.id, one.attempt): one for one in store.pick(places)}


if __name__ == "__main__":
    stage_main(evaluate)
