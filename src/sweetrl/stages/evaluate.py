"""Stage `evaluate`: the policy before and after training on the same held-out tasks, with the same seeds.

data/tasks/test.parquet, models/base, models/policy -> data/evaluation/{base,trained}/ (the dialogues),
reports/results.parquet (a row for each task and policy), reports/evaluation.json, reports/report.html. Every byte
follows from the inputs and parameters. What the critic thought of candidates (data/preferences, with the dialogues in
data/trajectories) is shown in the report if it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.io import write_json, write_text
from sweetrl.settings import Settings
from sweetrl.stages.collect import cost, log_costs
from sweetrl.stages.common import publish, stage_main, stage_run
from sweetrl.tracking.traces import log_dialogues

if TYPE_CHECKING:
    from sweetrl.colbench.simulators import Simulator
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.colbench.types import Task, Trajectory
    from sweetrl.engines.base import Usage
    from sweetrl.evaluation.report import AdvantageState
    from sweetrl.rollout.ledger import Ledger
    from sweetrl.rollout.scored import Scores
    from sweetrl.stages.meter import Meter

TASKS = Path("data/tasks/test.parquet")
POLICY = Path("models/policy")
CANDIDATES = Path("data/preferences/candidates.parquet")
TRAJECTORIES = Path("data/trajectories")
DIALOGUES = Path("data/evaluation")
RESULTS = Path("reports/results.parquet")
EVALUATION = Path("reports/evaluation.json")
REPORT = Path("reports/report.html")


def evaluate(settings: Settings) -> None:
    """Attempt the first evaluate.tasks test tasks with both policies, once each. Finished shards survive a kill."""
    from sweetrl.colbench.store import TrajectoryStore, read_task_table

    tasks = read_task_table(TASKS)[: settings.evaluate.tasks]
    if len(tasks) < 2:
        raise UserError(f"{TASKS}: an evaluation needs at least 2 tasks; raise evaluate.tasks and tasks.test.")
    if not (POLICY / "adapter_config.json").exists():  # said before half an evaluation is done
        raise UserError(f"{POLICY}: there is no trained policy here; run the stage `train-policy` first.")
    with stage_run("evaluate", settings) as run:
        from sweetrl.colbench.frontend.scoring import PageScorer
        from sweetrl.engines.make import adapter_rank, serving
        from sweetrl.evaluation.looking import look_at_pages
        from sweetrl.evaluation.metrics import AFTER, BEFORE, compare, result_of, write_results
        from sweetrl.evaluation.pages import summary
        from sweetrl.evaluation.report import Report, render
        from sweetrl.rollout.ledger import Ledger
        from sweetrl.rollout.people import usage_of
        from sweetrl.rollout.scene import scene
        from sweetrl.stages.meter import Meter

        run.log_input("test-tasks", TASKS)
        run.log_input("base", settings.model.base)
        run.log_input("policy", POLICY)
        scratch = run.scratch(TASKS, settings.model.base, POLICY)
        adapters = {BEFORE: None, AFTER: POLICY}
        stores = {name: TrajectoryStore(scratch / "dialogues" / name) for name in adapters}
        ledgers = {name: Ledger(scratch / f"costs-{name}{run.share.suffix}.jsonl") for name in adapters}
        with (
            serving(
                settings.engine, settings.model, scratch / f"server{run.share.suffix}.log", adapter_rank(POLICY)
            ) as engine,
            scene(settings) as (simulator, scorer),
            Meter("evaluate", 2 * len(tasks), "dialogues") as meter,
        ):
            served = settings.model_copy(update={"engine": engine})
            for name, adapter in adapters.items():
                usage = attempt(
                    tasks, adapter, name, stores[name], served, simulator, scorer, meter, ledgers[name], run.mine
                )
                run.log_metrics({f"{key}/{name}": value for key, value in cost(usage).items()})
            run.log_metrics(cost(usage_of(simulator), "simulator/"))
            if not run.share.whole:
                return
            dialogues = {name: list(store.read()) for name, store in stores.items()}
            rounds = settings.agent.rounds
            results = [result_of(one, name, rounds) for name, trajectories in dialogues.items() for one in trajectories]
            pages = look_at_pages(settings, dialogues, results, scorer) if isinstance(scorer, PageScorer) else None
        for name in adapters:
            log_costs(run, scratch, f"costs-{name}*.jsonl", f"/{name}")
        log_dialogues(run.log, stores, settings)
        comparison = compare(results, settings.evaluate.confidence, settings.evaluate.resamples, settings.seed)
        if pages is not None:
            ruler = settings.evaluate
            told = summary(dialogues, results, pages, ruler.confidence, ruler.resamples, settings.seed)
            comparison["pages"] = told
            run.log_metrics(
                {
                    f"{name}/{key}": value["value"]
                    for name, one in told["policies"].items()
                    for key, value in one.items()
                }
            )
        states = read_advantages(CANDIDATES)
        contexts = read_contexts(TRAJECTORIES, states)
        report = Report(
            comparison, results, dialogues[BEFORE], dialogues[AFTER], states, facts(settings), contexts, pages
        )
        publish(scratch / "dialogues", DIALOGUES)
        write_results(RESULTS, results)
        write_json(EVALUATION, comparison)
        write_text(REPORT, render(report))
        run.log_metrics(
            {name: value for name, value in comparison.items() if isinstance(value, int | float)}
            | {
                f"{name}/{key}": value["value"]
                for name, one in comparison["policies"].items()
                for key, value in one.items()
            }
        )
        run.log_artifact(REPORT)
        run.log_artifact(EVALUATION)
        success, passed = (comparison["difference"][key] for key in ("success", "tests_passed"))
        if pages is not None:
            won = comparison["pages"]["policies"][AFTER]["wins_over_other"]["value"]
            run.summary = (
                f"{comparison['tasks']} tasks, mean reward ({pages.reward}) {comparison['tests_passed_before']:.3f} "
                f"before and {comparison['tests_passed_after']:.3f} after training ({passed['value']:+.3f}, interval "
                f"{passed['low']:+.3f} to {passed['high']:+.3f}, p = {passed['p_value']:.2g}), {won:.1%} of the pages "
                f"won; {REPORT}"
            )
            return
        run.summary = (
            f"{comparison['tasks']} tasks, success {comparison['success_before']:.1%} before and "
            f"{comparison['success_after']:.1%} after training ({success['value']:+.1%}, interval "
            f"{success['low']:+.1%} to {success['high']:+.1%}), tests passed "
            f"{comparison['tests_passed_before']:.1%} and {comparison['tests_passed_after']:.1%} "
            f"(p = {passed['p_value']:.2g}); {REPORT}"
        )


def attempt(
    tasks: list[Task],
    adapter: Path | None,
    name: str,
    store: TrajectoryStore,
    settings: Settings,
    simulator: Simulator,
    scorer: Scores,
    meter: Meter,
    ledger: Ledger | None = None,
    mine: Callable[[int], bool] | None = None,
) -> Usage:
    """Let one policy attempt every task once and score it, into `store`; a complete store is left as it is."""
    from sweetrl.engines.make import make_agent
    from sweetrl.rollout.scored import Actors, rollout_scored

    batch = settings.evaluate.batch
    agent = make_agent(settings.engine, settings.model, adapter, batch)
    actors = Actors(
        agent.engine,
        agent.chat,
        simulator,
        scorer,
        settings.agent,
        settings.simulator.characters(settings.suite),
    )
    try:
        rollout_scored(
            [(task, 0) for task in tasks],
            actors,
            store,
            seed=settings.seed,
            policy_name=name,
            batch=batch,
            shard=batch,
            progress=meter,
            lost_share=settings.evaluate.lost_share,
            ledger=ledger,
            mine=mine,
        )
        return agent.engine.usage()
    finally:
        agent.engine.close()


def facts(settings: Settings) -> dict[str, Any]:
    """What the report says about how it was made."""
    return {
        "Base model": settings.model.base,
        "Person": settings.simulator.kind,
        "Rounds": settings.agent.rounds,
        "Temperature": settings.agent.temperature,
        "Tokens a reply, at most": settings.agent.max_new_tokens,
        "Scoring": settings.similarity.kind if settings.suite == "frontend" else settings.reward.semantics,
        "Seed": settings.seed,
        "Bootstrap resamples": settings.evaluate.resamples,
    }


def read_advantages(path: Path) -> list[AdvantageState]:
    """Return what the critic thought of candidate replies, in the report's form; nothing where there is no file."""
    if not path.exists():
        return []
    from sweetrl.evaluation.report import AdvantageState, RatedReply
    from sweetrl.learning.preferences import read_candidates

    return [
        AdvantageState(
            state.task_id,
            state.attempt,
            state.turn,
            tuple(RatedReply(one.text, one.count, one.advantage) for one in state.candidates),
        )
        for state in read_candidates(path)
    ]


def read_contexts(folder: Path, states: list[AdvantageState]) -> dict[tuple[str, int], Trajectory]:
    """Return the offline dialogues of the states that the report shows, by task id and attempt."""
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.evaluation.report import example_states

    wanted = {(state.task_id, state.attempt) for state in example_states(states)}
    if not wanted or not folder.exists():
        return {}
    return {
        (one.task.id, one.attempt): one
        for one in TrajectoryStore(folder).read()
        if (one.task.id, one.attempt) in wanted
    }


def main() -> None:
    """Run the stage with the parameters of params.yaml."""
    stage_main(evaluate)


if __name__ == "__main__":
    main()
