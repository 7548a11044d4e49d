"""Best-of-N with the critics that are there: `python -m sweetrl.stages.best_of_n`, beside the pipeline.

The base agent picks at every turn the reply that a critic likes best: the trained one in models/critic/ (if it is
there), the untrained privileged ratio, random numbers, the oracle of a synthetic suite, and the critic that rank.critic
names. Each does so by its advantages, and by A / `policy.advantage_temperature` + log pi_ref(a | o), which has the
prior. data/tasks/test.parquet -> reports/best-of-n.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import read_task_table
from sweetrl.config.settings import Settings
from sweetrl.console.printing import in_words
from sweetrl.console.progress import Meter
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.evaluation import best_of_n as core
from sweetrl.evaluation.rollout_value import open_critic
from sweetrl.io import read_json, write_json
from sweetrl.models.check import is_trained
from sweetrl.models.load import load_tokenizer
from sweetrl.paths import BEST_OF_N, CRITIC, TEST_TASKS
from sweetrl.rollout.context import open_environment
from sweetrl.stages.parameters import with_values
from sweetrl.stages.run import stage_main, stage_run


def best_of_n(settings: Settings) -> None:
    """Attempt the first best_of_n.tasks test tasks for every critic and N."""
    kinds = ["trained"] if is_trained(CRITIC) else []
    kinds += ["privileged-ratio"] if settings.critic.privileged else []
    kinds += ["random", *(["oracle"] if settings.tasks.source == "synthetic" else [])]
    kinds += [settings.rank.critic] if settings.rank.critic != "trained" else []
    pick(settings, {kind: (with_values(settings, {"rank.critic": kind}), CRITIC) for kind in dict.fromkeys(kinds)})


def pick(settings: Settings, critics: Mapping[str, tuple[Settings, Path]]) -> None:
    """Attempt the tasks with the `critics`, each by its own settings and, where it was trained, from its folder.

    Finished batches survive a kill; those with a lost dialogue get another chance.
    """
    how = settings.best_of_n
    tasks = read_task_table(TEST_TASKS)[: how.tasks]
    if len(tasks) < 2:
        raise UserError(f"{TEST_TASKS}: Best-of-N needs at least 2 tasks; raise best_of_n.tasks and tasks.test.")
    with stage_run("best-of-n", settings) as run:
        run.log_input("test-tasks", TEST_TASKS)
        run.log_input("base", settings.model.base)
        scratch = run.scratch(*(folder for _, folder in critics.values()))
        numbers = [2**power for power in range(how.max_n.bit_length())]
        points: list[core.Point] = []
        with (
            ExitStack() as stack,
            open_environment(load_domain(settings)) as environment,
            Policy(settings.model, settings.engine).serving(scratch / "server.log") as served,
            Meter("best-of-n", len(tasks), "tasks") as meter,
        ):
            agent = served.open()
            # The critics want token ids from an engine that knows only text, too.
            base, options = settings.model.base, settings.model.chat_options
            chat = ChatFormat(load_tokenizer(base), **options) if agent.chat is None else None
            opened = {
                name: stack.enter_context(open_critic(load_domain(own), own, folder, agent))
                for name, (own, folder) in critics.items()
            }
            context = environment.context(agent)
            # An engine that knows only text gives no log-probabilities.
            priors = critics.items() if chat is None else ()
            temperatures = {name: value for name, (own, _) in priors if (value := own.policy.advantage_temperature)}
            for first in range(0, len(tasks), how.batch):
                file, batch = scratch / f"batch-{first:06d}.json", tasks[first : first + how.batch]
                if file.exists():
                    reached = [core.Point(**point) for point in read_json(file)]
                else:
                    reached = core.best_of_n(batch, context, opened, numbers, settings.seed, chat, temperatures)
                    if all(point.reward is not None for point in reached):
                        write_json(file, [asdict(point) for point in reached])
                points += reached
                meter(len(batch))
            agent.engine.close()
        ruler = settings.evaluate
        curves = core.curves(points, ruler.confidence, ruler.resamples, settings.seed)
        write_json(BEST_OF_N, {"curves": curves, "points": [asdict(point) for point in points]})
        for name, places in curves.items():
            for place in places:
                run.log_metrics({f"success/{name}": place["success"]["value"]}, step=place["n"])
        run.log.log_artifact(BEST_OF_N)
        ends = [f"{name} {in_words(places[-1]['success'])}" for name, places in curves.items()]
        run.summary = f"{len(tasks)} tasks, success at N = {numbers[-1]}: {', '.join(ends)}; {BEST_OF_N}"


if __name__ == "__main__":
    stage_main(best_of_n)
