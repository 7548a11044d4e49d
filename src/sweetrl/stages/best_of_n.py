"""Best-of-N with the critics that are there: `python -m sweetrl.stages.best_of_n`, beside the pipeline.

The base agent picks at every turn the reply that a critic likes best: the trained one in models/critic/ (if it is
there), random numbers, and the oracle of the synthetic suite. data/tasks/test.parquet -> reports/best-of-n.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.io import read_json, write_json
from sweetrl.settings import Settings
from sweetrl.stages.common import stage_main, stage_run
from sweetrl.stages.evaluate import TASKS
from sweetrl.stages.meter import Meter
from sweetrl.stages.rank import make_critic
from sweetrl.stages.training import CRITIC

OUT = Path("reports/best-of-n.json")


def best_of_n(settings: Settings) -> None:
    """Attempt the first best_of_n.tasks test tasks for every critic and N."""
    found = {"trained": settings} if (CRITIC / "adapter_config.json").exists() else {}
    for kind in ("random", *(["oracle"] if settings.tasks.source == "synthetic" else [])):
        found[kind] = settings.model_copy(update={"rank": settings.rank.model_copy(update={"critic": kind})})
    pick(settings, {name: (own, CRITIC) for name, own in found.items()})


def pick(settings: Settings, critics: Mapping[str, tuple[Settings, Path]]) -> None:
    """Attempt the tasks with the `critics`, each by its own settings and, where it was trained, from its folder.

    Finished batches survive a kill.
    """
    from sweetrl.colbench.store import read_task_table
    from sweetrl.evaluation import best_of_n as core

    wanted = settings.best_of_n
    tasks = read_task_table(TASKS)[: wanted.tasks]
    if len(tasks) < 2:
        raise UserError(f"{TASKS}: Best-of-N needs at least 2 tasks; raise best_of_n.tasks and tasks.test.")
    with stage_run("best-of-n", settings) as run:
        from sweetrl.colbench.rewards import Scorer
        from sweetrl.engines.transformers import TransformersEngine
        from sweetrl.rollout.people import person

        run.log_input("test-tasks", TASKS)
        run.log_input("base", settings.model.base)
        scratch = run.scratch(TASKS, Path(settings.model.base), *(folder for _, folder in critics.values()))
        made = {name: make_critic(own, folder) for name, (own, folder) in critics.items()}
        model = settings.model
        engine = TransformersEngine(model.base, None, model.dtype, model.device, model.threads)
        numbers = [2**power for power in range(wanted.most.bit_length())]
        points: list[core.Point] = []
        with (
            person(settings.simulator, settings.model) as simulator,
            Scorer(settings.reward) as scorer,
            Meter("best-of-n", len(tasks), "tasks") as meter,
        ):
            for first in range(0, len(tasks), wanted.batch):
                part = scratch / f"batch-{first:06d}.json"
                if not part.exists():
                    found = core.best_of_n(
                        tasks[first : first + wanted.batch],
                        engine,
                        engine.chat,
                        simulator,
                        scorer,
                        made,
                        settings.agent,
                        numbers,
                        settings.simulator.reply_characters,
                        settings.seed,
                        wanted.batch,
                    )
                    write_json(part, [asdict(point) for point in found])
                points += [core.Point(**point) for point in read_json(part)]
                meter(len(tasks[first : first + wanted.batch]))
        engine.close()
        ruler = settings.evaluate
        curves = core.curves(points, ruler.confidence, ruler.resamples, settings.seed)
        write_json(OUT, {"curves": curves, "points": [asdict(point) for point in points]})
        for name, places in curves.items():
            for place in places:
                run.log_metrics({f"success/{name}": place["success"]["value"]}, step=place["n"])
        run.log_artifact(OUT)
        ends = [f"{name} {places[-1]['success']['value']:.1%}" for name, places in curves.items()]
        run.summary = f"{len(tasks)} tasks, success at N = {numbers[-1]}: {', '.join(ends)}; {OUT}"


def main() -> None:
    """Run it with the parameters in params.yaml."""
    stage_main(best_of_n)


if __name__ == "__main__":
    main()
