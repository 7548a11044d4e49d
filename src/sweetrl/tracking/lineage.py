"""How a result came about, read and not changed: what dvc.lock says of it, its runs, and the chain behind a version."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import TrackingSettings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.paths import RUNS
from sweetrl.tracking.registry import open_reference
from sweetrl.tracking.runs import DataInput
from sweetrl.tracking.store import Store, allowing, connect, require_store

if TYPE_CHECKING:
    from mlflow.entities import Run


def data_hashes(root: Path) -> dict[str, str]:
    """Return path -> DVC hash of every stage's data, as dvc.lock has them; sources and run files are left out.

    Nothing where there is no such file; a broken one is a UserError.
    """
    path, hashes = root / "dvc.lock", dict[str, str]()
    if not path.exists():
        return {}
    try:
        for stage in (read_yaml(path) or {}).get("stages", {}).values():
            for item in [*stage.get("deps", []), *stage.get("outs", [])]:
                if "md5" in item and not item["path"].startswith(("src/", RUNS.as_posix())):
                    hashes[item["path"]] = item["md5"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: this is not what DVC writes; `git checkout dvc.lock` brings it back.") from error
    return dict(sorted(hashes.items()))


@dataclass(frozen=True)
class RunFacts:
    """What the store knows about one run: `inputs` are data sets by DVC hash, `parent` is the run above it, or ""."""

    run_id: str
    name: str
    status: str
    commit: str = ""
    seconds: float | None = None
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    inputs: tuple[DataInput, ...] = ()
    parent: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.run_id} ({self.status})"


class Records:
    """The runs in the store of `settings`; who reads makes no store."""

    def __init__(self, settings: TrackingSettings, root: Path | None = None):
        self.settings, self.root = settings, root

    @cached_property
    def store(self) -> Store:
        """MLflow's client; loading it takes seconds. A UserError where there is no store yet."""
        require_store(self.settings, self.root)
        return connect(self.settings, self.root)

    def run(self, run_id: str | None) -> RunFacts | None:
        """Return what is known about a run; None where the store does not know it."""
        run = self.store.run(run_id) if run_id else None
        return None if run is None else _facts(run)

    def made(self, folder: Path) -> dict[str, RunFacts]:
        """Return stage -> the run that made its results in `folder`, for those that are known."""
        if not (folder / RUNS).is_dir():  # nothing to ask the store about
            return {}
        return {stage: _facts(run) for stage, run in self.store.stage_runs(folder).items()}

    def histories(self, run_id: str, names: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        """Return the metrics `names` of a run as (step, value) in order: none for unknown ones, and no NaN."""
        histories: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
        with allowing("RESOURCE_DOES_NOT_EXIST"):
            for name in names:
                rows = self.store.client.get_metric_history(run_id, name)
                histories[name] = sorted((row.step, row.value) for row in rows if not math.isnan(row.value))
        return histories

    def files(self, run_id: str, folder: str, scratch: Path) -> list[Path]:
        """Return the files in a folder of a run's artifacts, sorted, which are copied to `scratch`.

        An unknown folder has none; a store that does not answer is a UserError.
        """
        from mlflow.exceptions import MlflowException

        client = self.store.client
        try:
            with allowing("RESOURCE_DOES_NOT_EXIST"):
                paths = [item.path for item in client.list_artifacts(run_id, folder) if not item.is_dir]
                return sorted(Path(client.download_artifacts(run_id, path, str(scratch))) for path in paths)
        except MlflowException as error:
            raise UserError(f"run {run_id}: its artifacts cannot be read ({error}); try again.") from error
        return []


def _facts(run: Run) -> RunFacts:
    info, data, inputs = run.info, run.data, []
    for item in run.inputs.dataset_inputs if run.inputs else ():
        tags = {tag.key: tag.value for tag in item.tags}
        context = tags.get("mlflow.data.context", "input")
        inputs.append(DataInput(item.dataset.name, tags.get("dvc.path", ""), item.dataset.digest, context))
    return RunFacts(
        run_id=info.run_id,
        name=info.run_name,
        status=info.status,
        commit=data.tags.get("mlflow.source.git.commit", ""),
        seconds=(info.end_time - info.start_time) / 1000 if info.end_time else None,
        params=dict(sorted(data.params.items())),
        metrics=dict(sorted(data.metrics.items())),
        inputs=tuple(sorted(inputs, key=lambda read: (read.name, read.path))),
        parent=data.tags.get("mlflow.parentRunId", ""),
    )


@dataclass(frozen=True)
class Lineage:
    """Where a registered version comes from.

    `run` trained it, `parent` is the pipeline run (None where it was trained outside of one, or the store is another),
    `stages` are the runs of all stages whose results it rests on, `code` says which domain and method (your own with
    the hash of its source), `data` maps paths to DVC hashes.
    """

    model: str
    version: str
    aliases: tuple[str, ...] = ()
    created: str = ""
    commit: str = ""
    dirty: bool = False
    dvc_lock: str = ""
    adapter_hash: str = ""
    base: str = ""
    base_hash: str = ""
    run: RunFacts | None = None
    parent: RunFacts | None = None
    stages: tuple[RunFacts, ...] = ()
    code: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)

    def summary(self) -> Iterator[tuple[str, str]]:
        """Yield the chain as (what, value) in few lines: what is many is counted."""
        yield from self._head()
        yield "code", ", ".join(f"{key} {value}" for key, value in self.code.items()) or "not known"
        yield "data", f"{len(self.data)} files and folders by hash"
        yield "stages", f"{len(self.stages)} runs"
        yield "params", f"{len(self.params)} values"
        measure = self.evaluation.get("measure", "success")
        measured = {name: self.evaluation.get(f"{measure}_{name}") for name in ("before", "after", "difference")}
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in measured.items() if value is not None)
        tasks = self.evaluation.get("tasks", 0)
        yield "result", f"{measure} {numbers} on {tasks:,} tasks" if numbers else "not measured"
        costs = (f"{amount:,.0f} {name.replace('_', ' ')}" for name, amount in self.cost.items())
        yield "cost", ", ".join(costs) or "not known"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the whole chain as (what, value), in the order in which a user asks."""
        yield from self._head()
        yield from self.code.items()
        yield from ((f"data {path}", content) for path, content in self.data.items())
        yield from ((f"stage {stage.name}", f"run {stage.run_id} ({stage.status})") for stage in self.stages)
        yield from ((f"param {name}", value) for name, value in self.params.items())
        for name, value in self.evaluation.items():
            yield f"result {name}", f"{value:.4g}" if isinstance(value, float) else str(value)
        yield from ((f"cost {name}", f"{amount:,.0f}") for name, amount in self.cost.items())

    def _head(self) -> Iterator[tuple[str, str]]:
        names = f" ({', '.join('@' + alias for alias in self.aliases)})" if self.aliases else ""
        yield "model", f"{self.model} version {self.version}{names}, registered {self.created}"
        yield "adapter", self.adapter_hash
        yield "base", f"{self.base} {self.base_hash}".strip()
        yield "run", str(self.run or "not in this store")
        yield "pipeline run", str(self.parent or "none")
        yield "commit", (self.commit or "not in git") + (" with uncommitted changes" if self.dirty else "")
        yield "dvc.lock", self.dvc_lock or "none"


def lineage(reference: str, settings: TrackingSettings, root: Path | None = None) -> Lineage:
    """Return the chain behind `reference`, MODEL[@ALIAS] or MODEL/VERSION; an unknown one is a UserError."""
    registry, name = open_reference(reference, settings, root)
    version = registry.get(name)
    tags, number, records = version.tags, str(version.version), Records(settings, root)
    records.store = registry.store
    run = records.run(version.run_id)
    parent = records.run((run.parent if run else "") or tags.get("parent_run"))
    noted: dict[str, Any] = {key: tags.get(key, "") for key in ("dvc_lock", "adapter_hash", "base", "base_hash")}
    noted |= {key: json.loads(tags.get(key, "{}")) for key in ("code", "data", "evaluation", "cost")}
    stages = map(records.run, json.loads(tags.get("stage_runs", "{}")).values())
    return Lineage(
        model=registry.name,
        version=number,
        aliases=registry.aliases_of(number),
        created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=tags.get("git_commit", ""),
        dirty=tags.get("git_dirty") == "true",
        run=run,
        parent=parent,
        stages=tuple(stage for stage in stages if stage is not None),
        params=next((each.params for each in (parent, run) if each is not None and each.params), {}),
        **noted,
    )
