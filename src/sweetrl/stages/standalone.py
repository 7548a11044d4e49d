"""`sweetrl collect` and `sweetrl evaluate`: any agent, any user, any task file, without a pipeline around them.

Unfinished work lies beside the output (or in .scratch): a killed command, given again, goes on where it was.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.console.printing import note
from sweetrl.console.progress import Meter
from sweetrl.errors import UserError
from sweetrl.io import publish, write_json
from sweetrl.paths import SCRATCH
from sweetrl.stages.parameters import with_values
from sweetrl.stages.run import seed_everything
from sweetrl.stages.scratch import alone
from sweetrl.types import Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.engines.policy import Policy


@dataclass(frozen=True)
class Choices:
    """What the command line says of agent and user; None is what params.yaml says."""

    engine: str | None = None
    urls: Sequence[str] | None = None
    model: str | None = None
    user: str | None = None
    user_urls: Sequence[str] | None = None
    user_model: str | None = None
    recording: Path | None = None
    concurrency: int | None = None
    seed: int | None = None
    top_p: float | None = None


def with_choices(settings: Settings, choices: Choices) -> Settings:
    """Return `settings` with the command line's choices in them."""
    kind = str(choices.engine or ("openai" if choices.urls else settings.engine.kind))
    user_is_named = choices.user_urls or choices.user_model is not None
    played = load_domain(settings).model_kind if user_is_named else settings.simulator.kind
    values = {
        "engine.kind": kind,
        "engine.urls": " ".join(choices.urls) if choices.urls else None,
        "engine.model" if kind == "openai" else "model.base": choices.model,
        "simulator.kind": str(choices.user or played),
        "simulator.recording": None if choices.recording is None else str(choices.recording),
        "simulator.server.urls": " ".join(choices.user_urls) if choices.user_urls else None,
        "simulator.server.model": choices.user_model,
        "seed": choices.seed,
        "agent.top_p": choices.top_p,
    }
    at_once = dict.fromkeys(("engine.concurrency", "collect.batch", "evaluate.batch"), choices.concurrency)
    return with_values(settings, values | at_once)


def collect_standalone(
    settings: Settings, tasks: Path, out: Path, attempts: int, limit: int | None, adapter: Path | None
) -> dict[str, Any]:
    """Attempt the tasks of a file and write the dialogues to `out`; return what they came to and what they cost.

    A `.jsonl` is written in the official form (`attempts` contiguous blocks), anything else as a folder of shards.
    Raises UserError where `out` is there already, and where too many dialogues are lost.
    """
    from sweetrl.engines.policy import Policy

    check_free(out)
    task_list = _tasks_of(settings, tasks, limit)
    note(loading_words(settings))
    policy = Policy(settings.model, settings.engine, adapter)
    with ExitStack() as held:
        made = _attempt(settings, policy, task_list, attempts, out, settings.collect.lost_share, held)
        made.write(out, attempts)
        made.forget()
    return {**made.summary, "written": str(out)}


def evaluate_standalone(
    settings: Settings,
    tasks: Path,
    out: Path | None,
    limit: int | None,
    adapter: Path | None,
    report: Path | None,
    temperatures: Sequence[float] = (),
) -> dict[str, Any]:
    """Attempt each task of a file once; return success, mean reward (both with intervals), questions and costs.

    At several `temperatures` (by default `agent.temperature` alone) each of them attempts all tasks, with the same
    seeds: what is returned is then the best one's, with every one's under `temperatures`, and the dialogues lie in a
    folder for each in `out`. `report` is a file for what is returned.
    """
    from sweetrl.api import rollouts
    from sweetrl.engines.policy import Policy

    each = [_at_temperature(settings, one) for one in dict.fromkeys(temperatures)] or [settings]
    several = len(each) > 1
    if out is not None:
        check_free(out)
        if several and out.suffix == ".jsonl":
            raise UserError(f"{out}: a file holds the dialogues of one temperature; name a folder for several.")
    if not tasks.exists():
        raise UserError(f"{tasks}: there is no such file; name another one, or let `sweetrl tasks` write some.")
    task_list = _tasks_of(settings, tasks, limit)
    if len(task_list) < 2:
        raise UserError(f"{tasks}: intervals need at least 2 tasks, there is {len(task_list)}; take more tasks.")
    note(loading_words(settings))
    policy = Policy(settings.model, settings.engine, adapter)
    log = rollouts.Running(_scratch(settings, task_list, 1, adapter, out) / "server.log")
    made: list[_Made] = []
    # One server for all temperatures, and one meter; unfinished work stays until all of them are through.
    with ExitStack() as held:
        with (
            rollouts.serving([policy], log) as (served,),
            Meter("evaluate", len(each) * len(task_list), "dialogues") as meter,
        ):
            for configured in each:
                made.append(_attempt(configured, served, task_list, 1, out, settings.evaluate.lost_share, held, meter))
        measured = [_measured(one, tasks) for one in made]
        if out is not None and several:
            gathered = made[0].scratch / "all"
            for one, row in zip(made, measured, strict=True):
                name = f"temperature-{one.settings.agent.temperature:g}"
                publish(one.store.folder, gathered / name)
                row["written"] = str(out / name)
            publish(gathered, out)
        elif out is not None:
            made[0].write(out, 1)
            measured[0]["written"] = str(out)
        for one in made:
            one.forget()
    result = measured[0]
    if several:
        first = load_domain(settings).measure
        best = max(measured, key=lambda row: (row[first], row["success"], row["reward"]))
        result = {**best, "best": best, "temperatures": measured}
    if report is not None:
        write_json(report, result)
    return result


def loading_words(settings: Settings) -> str:
    """What is awaited before the first dialogue, in words."""
    if settings.engine.kind == "transformers":
        return f"loading torch and the agent ({settings.model.base}) ..."
    return f"starting the agent (engine {settings.engine.kind}) ..."


@dataclass(frozen=True)
class _Made:
    """Dialogues of one call: where they lie, what they came to and what they cost."""

    settings: Settings
    scratch: Path
    store: TrajectoryStore
    summary: dict[str, Any]

    def write(self, out: Path, attempts: int) -> None:
        """Put the dialogues to `out`: an official file, or a folder of shards."""
        from sweetrl.colbench.files import write_trajectories

        if out.suffix == ".jsonl":
            write_trajectories(out, self.store, attempts)
        else:
            publish(self.store.folder, out)

    def forget(self) -> None:
        """Remove the unfinished work, which is finished."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def _measured(made: _Made, tasks: Path) -> dict[str, Any]:
    """What `evaluate` says of the dialogues at one temperature."""
    from sweetrl.evaluation.statistics import bootstrap_mean, wilson_interval

    settings, domain = made.settings, load_domain(made.settings)
    ruler, agent = settings.evaluate, settings.agent
    scored = [(one.reward, one.success, len(domain.questions(one))) for one in made.store if one.reward is not None]
    if len(scored) < 2:
        raise UserError(
            f"{tasks}: intervals need at least 2 scored dialogues, there are {len(scored)}; take more tasks."
        )
    successes, questions = sum(success for _, success, _ in scored), sum(count for *_, count in scored)
    rewards = [reward for reward, *_ in scored]
    intervals = {
        "success": wilson_interval(successes, len(scored), ruler.confidence).as_dict(),
        "reward": bootstrap_mean(rewards, ruler.confidence, ruler.resamples, settings.seed).as_dict(),
    }
    return {
        **made.summary,
        **{name: one["value"] for name, one in intervals.items()},
        "intervals": intervals,
        "questions": questions / len(scored),
        "success_per_question": successes / questions if questions else None,
        "temperature": agent.temperature,
        "top_p": agent.top_p,
        "seed": settings.seed,
        # A mean is worth nothing without the name of what computed it.
        "scoring": domain.scoring_with_price(),
    }


def _at_temperature(settings: Settings, temperature: float) -> Settings:
    if not 0.0 <= temperature < math.inf:
        raise UserError(f"a temperature of {temperature:g} is impossible; give 0 (greedy) or more.")
    return with_values(settings, {"agent.temperature": temperature})


def _tasks_of(settings: Settings, tasks: Path, limit: int | None) -> list[Task]:
    """The tasks to attempt, of which the user knows enough."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    domain = load_domain(settings)
    task_list = list(islice(read_any_tasks(tasks, domain), limit))
    check_user(domain, task_list, tasks)
    return task_list


def _attempt(
    settings: Settings,
    policy: Policy,
    tasks: Sequence[Task],
    attempts: int,
    out: Path | None,
    lost_share: float,
    held: ExitStack,
    progress: Callable[[int], None] | None = None,
) -> _Made:
    """Make the dialogues, or find what is made of them already; their folder is this process's until `held` is left."""
    from sweetrl.api import rollouts
    from sweetrl.rollout.ledger import Ledger, cost_metrics
    from sweetrl.rollout.scored import summarize

    seed_everything(settings.seed, settings.model.threads, torch=settings.engine.kind == "transformers")
    scratch = _scratch(settings, tasks, attempts, policy.adapter, out)
    held.enter_context(alone(scratch))
    if out is not None:
        check_free(out)  # by now another process may have made it
    ledger = Ledger(scratch / "costs.jsonl")
    spent = dict[str, float]()

    def note(values: Mapping[str, float]) -> None:
        spent.update({key.replace("simulator/", "user_"): value for key, value in values.items()})

    running = rollouts.Running(log=scratch / "server.log", progress=progress, ledger=ledger, spent=note)
    domain = load_domain(settings).configured(with_values(settings, {"collect.lost_share": lost_share}))
    store = rollouts.collect(domain, policy, tasks, attempts=attempts, out=scratch / "shards", running=running)
    times = {name.removeprefix("dialogue/"): value for name, value in cost_metrics(ledger.read()).items()}
    spent |= {f"{name}_per_dialogue": times[name] for name in ("seconds", "gpu_seconds") if name in times}
    summary = {
        "agent": policy.name,
        "user": settings.simulator.kind,
        "tasks": len(tasks),
        **summarize(store),
        **spent,
    }
    return _Made(settings, scratch, store, summary)


def check_free(out: Path) -> None:
    """UserError where there is something at `out` already."""
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise UserError(f"{out}: this is there already; remove it or name another output.")


def read_any_tasks(path: Path, domain: Domain) -> list[Task]:
    """Return the tasks of official rows (.jsonl, .parquet), or of a table of this project, which knows its suite."""
    from sweetrl.colbench.files import read_tasks
    from sweetrl.colbench.store import format_of, read_task_table

    own = path.suffix == ".parquet" and format_of(path) is not None
    return read_task_table(path) if own else list(read_tasks(path, domain))


def check_user(domain: Domain, tasks: Sequence[Task], path: Path) -> None:
    """UserError where the scripted user would have to answer about tasks that they know nothing about."""
    if any(task.suite != domain.spec for task in tasks):
        raise UserError(
            f"{path}: these are not tasks of the suite `{domain.spec}`; set `suite` in params.yaml to that of the "
            "tasks."
        )
    if domain.settings.simulator.kind == "scripted" and not all(domain.knows(task) for task in tasks):
        raise UserError(
            f"{path}: the scripted user knows nothing about these tasks, which are not of the synthetic suite; name "
            "a model (--user-url and --user-model), a --recording (--user replay), or play the user yourself "
            "(--user human)."
        )


def _scratch(settings: Settings, tasks: Sequence[Task], attempts: int, adapter: Path | None, out: Path | None) -> Path:
    """The folder of unfinished work: named by all that decides the dialogues, so nothing of another run is taken."""
    from sweetrl.api.calls import fingerprint

    key = fingerprint(settings, tasks, attempts, adapter)
    return (SCRATCH if out is None else out.parent) / (f"standalone-{key}" if out is None else f".{out.name}.{key}")
