"""`sweetrl collect` and `sweetrl evaluate`: any agent, any user, any task file, without a pipeline around them.

Unfinished work lies beside the output (or in .scratch): a killed command, given again, goes on where it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sweetrl.api import rollouts
from sweetrl.api.calls import dialogues_call, evaluated, unfinished
from sweetrl.bounded import check_parquet
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.files import read_tasks, write_trajectories
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore, format_of, read_task_table
from sweetrl.config.settings import Settings
from sweetrl.console.printing import note
from sweetrl.console.progress import Meter
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import results_of, summarize_policy
from sweetrl.evaluation.statistics import bootstrap_mean
from sweetrl.io import digest, publish, write_json
from sweetrl.paths import SCRATCH
from sweetrl.rollout.ledger import Ledger, cost_metrics
from sweetrl.rollout.scored import summarize, thought_counter
from sweetrl.rollout.users import user_name
from sweetrl.stages.parameters import with_values
from sweetrl.stages.run import seed_everything
from sweetrl.types import Task


def with_choices(
    settings: Settings,
    engine: str | None = None,
    urls: Sequence[str] | None = None,
    model: str | None = None,
    user: str | None = None,
    user_urls: Sequence[str] | None = None,
    user_model: str | None = None,
    recording: Path | None = None,
    concurrency: int | None = None,
    seed: int | None = None,
    top_p: float | None = None,
) -> Settings:
    """Return `settings` with what the command line says of agent and user; None is what they say already."""
    kind = str(engine or ("openai" if urls else settings.engine.kind))
    user_is_named = user_urls or user_model is not None
    played = load_domain(settings).model_kind if user_is_named else settings.simulator.kind
    values = {
        "engine.kind": kind,
        "engine.urls": " ".join(urls) if urls else None,
        "engine.model" if kind == "openai" else "model.base": model,
        "simulator.kind": str(user or played),
        "simulator.recording": None if recording is None else str(recording),
        "simulator.server.urls": " ".join(user_urls) if user_urls else None,
        "simulator.server.model": user_model,
        "seed": seed,
        "agent.top_p": top_p,
    }
    at_once = dict.fromkeys(("engine.concurrency", "collect.batch", "evaluate.batch"), concurrency)
    return with_values(settings, values | at_once)


def collect_standalone(
    settings: Settings, tasks: Path, out: Path, attempts: int, limit: int | None, adapter: Path | None
) -> dict[str, Any]:
    """Attempt the tasks of a file and write the dialogues to `out`; return what they came to and what they cost.

    A `.jsonl` is written in the official form (`attempts` contiguous blocks), anything else as a folder of shards.
    Raises UserError where `out` is there already, and where too many dialogues are lost.
    """
    check_free(out)
    task_list = _tasks_of(settings, tasks, limit)
    with _attempted("collect", [settings], task_list, attempts, out, adapter) as ((store, summary),):
        _write(store, out, attempts)
    return {**summary, "written": str(out)}


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

    At several `temperatures` (by default the one that the stage `evaluate` samples at) each of them attempts all tasks,
    with the same seeds: what is returned is then the best one's, with every one's under `temperatures`, and the
    dialogues lie in a folder for each in `out`. `report` is a file for what is returned.
    """
    for temperature in temperatures:
        if not 0.0 <= temperature < math.inf:
            raise UserError(f"a temperature of {temperature:g} is impossible; give 0 (greedy) or more.")
    settings = evaluated(with_values(settings, {"collect.lost_share": settings.evaluate.lost_share}))
    each = [with_values(settings, {"agent.temperature": value}) for value in dict.fromkeys(temperatures)] or [settings]
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
    with _attempted("evaluate", each, task_list, 1, out, adapter) as attempted:
        rows = [summary | _measured(own, store) for own, (store, summary) in zip(each, attempted, strict=True)]
        if out is not None:
            for (store, _), row in zip(attempted, rows, strict=True):
                row["written"] = str(out / store.folder.name if several else out)
            if several:
                publish(attempted[0][0].folder.parent, out)
            else:
                _write(attempted[0][0], out, 1)
    result = rows[0]
    if several:
        first = load_domain(settings).measure
        best = max(rows, key=lambda row: (row[first], row["success"], row["reward"]))
        result = {**best, "best": best, "temperatures": rows}
    if report is not None:
        write_json(report, result)
    return result


def _write(store: TrajectoryStore, out: Path, attempts: int) -> None:
    """Put dialogues to `out`: an official file, or a folder of shards."""
    if out.suffix == ".jsonl":
        write_trajectories(out, store, attempts)
    else:
        publish(store.folder, out)


@contextmanager
def _attempted(
    name: str, each: Sequence[Settings], tasks: Sequence[Task], attempts: int, out: Path | None, adapter: Path | None
) -> Iterator[list[tuple[TrajectoryStore, dict[str, Any]]]]:
    """Yield the dialogues at each temperature with what they came to and cost; unfinished work is kept for a next try.

    There is one server for all of them, and one meter.
    """
    settings = each[0]
    in_process = settings.engine.kind == "transformers"
    loading = f"loading torch and the agent ({settings.model.base})"
    note(f"{loading if in_process else f'starting the agent (engine {settings.engine.kind})'} ...")
    seed_everything(settings.seed, settings.model.threads, torch=in_process)
    policy = Policy(settings.model, settings.engine, adapter)
    sizes = settings.collect.batch, settings.collect.shard
    temperatures = [configured.agent.temperature for configured in each]
    key = digest(dialogues_call(load_domain(settings), [policy], tasks, attempts, *sizes), temperatures)
    with unfinished(SCRATCH / key if out is None else out, key) as scratch:
        with (
            rollouts.serving([policy], scratch / "server.log") as (served,),
            Meter(name, len(each) * len(tasks) * attempts, "dialogues") as meter,
        ):
            attempted = [_attempt(configured, served, tasks, attempts, scratch, meter) for configured in each]
        yield attempted


def _attempt(
    settings: Settings, policy: Policy, tasks: Sequence[Task], attempts: int, scratch: Path, meter: Meter
) -> tuple[TrajectoryStore, dict[str, Any]]:
    name = f"temperature-{settings.agent.temperature:g}"
    ledger, spent = Ledger(scratch / f"costs-{name}.jsonl"), dict[str, float]()
    running = rollouts.Running(scratch / "server.log", meter, ledger, spent=spent.update)
    place = scratch / "dialogues" / name
    store = rollouts.collect(load_domain(settings), policy, tasks, attempts=attempts, out=place, running=running)
    spent = {key.replace("simulator/", "user_"): value for key, value in spent.items()}
    times = {name.removeprefix("dialogue/"): value for name, value in cost_metrics(ledger.read()).items()}
    spent |= {f"{name}_per_dialogue": times[name] for name in ("seconds", "gpu_seconds") if name in times}
    facts = {"agent": policy.name, "user": user_name(load_domain(settings)), "tasks": len(tasks)}
    return store, {**facts, **summarize(store, thought_counter(settings.model)), **spent}


def _measured(settings: Settings, store: TrajectoryStore) -> dict[str, Any]:
    """What `evaluate` says of the dialogues at one temperature."""
    domain, ruler, agent = load_domain(settings), settings.evaluate, settings.agent
    scored = [row for row in results_of({"": list(store)}, domain, agent.max_turns) if row.reward is not None]
    if len(scored) < 2:
        raise UserError(f"intervals need at least 2 scored dialogues, there are {len(scored)}; take more tasks.")
    summary = summarize_policy(scored, ruler.confidence, ruler.resamples, settings.seed)
    intervals = {name: summary[name] for name in ("success", "reward")}
    parts = [dialogue.parts for dialogue in store if dialogue.reward is not None]
    names = dict.fromkeys(name for each in parts for name in each)
    for name in names if len(names) > 1 else ():
        values = [each.get(name, 0.0) for each in parts]
        mean = bootstrap_mean(values, ruler.confidence, ruler.resamples, settings.seed)
        intervals[f"reward: {name}"] = mean.as_dict()
    questions = sum(result.questions for result in scored)
    return {
        **{name: interval["value"] for name, interval in intervals.items()},
        "intervals": intervals,
        "questions": questions / len(scored),
        "success_per_question": sum(result.success for result in scored) / questions if questions else None,
        "temperature": agent.temperature,
        "top_p": agent.top_p,
        "seed": settings.seed,
        # A mean is worth nothing without the name of what computed it.
        "scoring": domain.scoring_with_price(),
    }


def _tasks_of(settings: Settings, path: Path, limit: int | None) -> list[Task]:
    """The tasks to attempt; UserError where the user would have to answer about what they know nothing about."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    domain = load_domain(settings)
    tasks = read_any_tasks(path, domain)[:limit]
    if any(task.suite != domain.spec for task in tasks):
        raise UserError(f"{path}: these are not tasks of the suite `{domain.spec}`; set `suite` to the tasks' own.")
    if domain.settings.simulator.kind == "scripted" and not all(domain.knows(task) for task in tasks):
        raise UserError(
            f"{path}: the scripted user knows nothing about these tasks; name a model (--user-url and --user-model), "
            "a --recording (--user replay), or play the user yourself (--user human)."
        )
    return tasks


def check_free(out: Path) -> None:
    """UserError where there is something at `out` already."""
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise UserError(f"{out}: this is there already; remove it or name another output.")


def read_any_tasks(path: Path, domain: Domain) -> list[Task]:
    """Return the tasks of official rows (.jsonl, .parquet), or of a table of this project, which knows its suite."""
    if path.suffix != ".parquet" or format_of(path) is None:
        return list(read_tasks(path, domain))
    check_parquet([path])  # it may be another's
    return read_task_table(path)
