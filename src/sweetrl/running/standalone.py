"""`sweetrl collect` and `sweetrl evaluate`: any agent, any user, any task file, without a pipeline around them.

Unfinished work lies beside the output (or in .scratch): a killed command, given again, goes on where it was.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.io import publish, write_json
from sweetrl.paths import SCRATCH
from sweetrl.plugins import load_domain
from sweetrl.running.stage import seed_everything
from sweetrl.settings import Settings
from sweetrl.types import Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


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


def with_choices(settings: Settings, choices: Choices) -> Settings:
    """Return `settings` with the command line's choices in them."""
    engine: dict[str, Any] = {}
    model: dict[str, Any] = {}
    kind = choices.engine or ("openai" if choices.urls else settings.engine.kind)
    engine["kind"] = str(kind)
    if choices.urls:
        engine["urls"] = " ".join(choices.urls)
    if choices.model is not None:
        (engine if kind == "openai" else model)["model" if kind == "openai" else "base"] = choices.model
    server: dict[str, Any] = {}
    simulator: dict[str, Any] = {}
    if choices.user_urls:
        server["urls"] = " ".join(choices.user_urls)
    if choices.user_model is not None:
        server["model"] = choices.user_model
    played = load_domain(settings).model_kind if server else settings.simulator.kind
    simulator["kind"] = str(choices.user or played)
    if choices.recording is not None:
        simulator["recording"] = str(choices.recording)
    changed: dict[str, Any] = {
        "engine": settings.engine.model_copy(update=engine),
        "model": settings.model.model_copy(update=model),
        "simulator": settings.simulator.model_copy(
            update={**simulator, "server": settings.simulator.server.model_copy(update=server)}
        ),
    }
    if choices.concurrency is not None:
        together = {"concurrency": choices.concurrency}
        changed["engine"] = changed["engine"].model_copy(update=together)
        changed["evaluate"] = settings.evaluate.model_copy(update={"batch": choices.concurrency})
        changed["collect"] = settings.collect.model_copy(update={"batch": choices.concurrency})
    if choices.seed is not None:
        changed["seed"] = choices.seed
    return settings.model_copy(update=changed)


def collect_standalone(
    settings: Settings, tasks: Path, out: Path, attempts: int, limit: int | None, adapter: Path | None
) -> dict[str, Any]:
    """Attempt the tasks of a file and write the dialogues to `out`; return what they came to and what they cost.

    A `.jsonl` is written in the official form (`attempts` contiguous blocks), anything else as a folder of shards.
    Raises UserError where `out` is there already, and where too many dialogues are lost.
    """
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise UserError(f"{out}: this is there already; remove it or name another output.")
    return _attempt(settings, tasks, out, attempts, limit, adapter, settings.collect.lost_share)[0]


def evaluate_standalone(
    settings: Settings, tasks: Path, out: Path | None, limit: int | None, adapter: Path | None, report: Path | None
) -> dict[str, Any]:
    """Attempt each task of a file once; return success, mean reward (both with intervals) and costs."""
    from sweetrl.evaluation.statistics import bootstrap_mean, wilson_interval

    if out is not None and out.exists() and (out.is_file() or any(out.iterdir())):
        raise UserError(f"{out}: this is there already; remove it or name another output.")
    summary, scored = _attempt(settings, tasks, out, 1, limit, adapter, settings.evaluate.lost_share)
    # A mean is worth nothing without the name of what computed it.
    summary["scoring"] = settings.reward.function or load_domain(settings).scoring()
    confidence = settings.evaluate.confidence
    if len(scored) < 2:
        raise UserError(
            f"{tasks}: intervals need at least 2 scored dialogues, there are {len(scored)}; take more tasks."
        )
    rewards = [reward for reward, _ in scored]
    estimates = {
        "success": wilson_interval(sum(success for _, success in scored), len(scored), confidence),
        "reward": bootstrap_mean(rewards, confidence, settings.evaluate.resamples, settings.seed),
    }
    named = {name: f"{one.value:.1%} ({one.low:.1%} to {one.high:.1%})" for name, one in estimates.items()}
    if report is not None:
        write_json(report, summary | {name: one.as_dict() for name, one in estimates.items()})
    return named | {name: value for name, value in summary.items() if name not in ("success", "reward")}


def _attempt(
    settings: Settings,
    tasks: Path,
    out: Path | None,
    attempts: int,
    limit: int | None,
    adapter: Path | None,
    lost_share: float,
) -> tuple[dict[str, Any], list[tuple[float, bool]]]:
    """Make the dialogues and write them; return the summary, and reward and success of the scored ones."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("httpx", "transformers"):
        logging.getLogger(name).setLevel(logging.WARNING)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    domain = load_domain(settings)
    found = list(islice(read_any_tasks(tasks, domain), limit))
    check_user(domain, found, tasks)

    from sweetrl.api import rollouts
    from sweetrl.api.policy import Policy
    from sweetrl.colbench.files import write_trajectories
    from sweetrl.rollout.ledger import Ledger, cost_metrics
    from sweetrl.rollout.scored import summarize

    seed_everything(settings.seed, settings.model.threads, torch=settings.engine.kind == "transformers")
    scratch = _scratch(settings, found, attempts, adapter, out)
    ledger = Ledger(scratch / "costs.jsonl")
    policy = Policy.of(settings, adapter)
    name, spent = policy.name, dict[str, float]()

    def note(values: Mapping[str, float]) -> None:
        spent.update({key.replace("simulator/", "user_"): value for key, value in values.items()})

    running = rollouts.Running(log=scratch / "server.log", ledger=ledger, spent=note)
    configured = domain.configured(
        settings.model_copy(update={"collect": settings.collect.model_copy(update={"lost_share": lost_share})})
    )
    store = rollouts.collect(configured, policy, found, attempts=attempts, out=scratch / "shards", running=running)
    summary: dict[str, Any] = summarize(store)
    times = {name.removeprefix("dialogue/"): value for name, value in cost_metrics(ledger.read()).items()}
    spent |= {f"{name}_per_dialogue": times[name] for name in ("seconds", "gpu_seconds") if name in times}
    scored = [(one.reward, one.success) for one in store if one.reward is not None]
    if out is not None and out.suffix == ".jsonl":
        write_trajectories(out, store, attempts)
    elif out is not None:
        publish(store.folder, out)
    shutil.rmtree(scratch, ignore_errors=True)
    summary = {"agent": name, "user": settings.simulator.kind, "tasks": len(found)} | summary | spent
    return ({**summary, "written": str(out)} if out is not None else summary), scored


def read_any_tasks(path: Path, domain: Domain) -> list[Task]:
    """Return the tasks of an official file, or of a table of this project, which knows its suite itself."""
    from sweetrl.colbench.files import read_tasks
    from sweetrl.colbench.store import read_task_table

    return read_task_table(path) if path.suffix == ".parquet" else list(read_tasks(path, domain))


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
    from sweetrl.api import rollouts

    key = rollouts.fingerprint(settings, tasks, attempts, adapter)
    return (SCRATCH if out is None else out.parent) / (f"standalone-{key}" if out is None else f".{out.name}.{key}")
