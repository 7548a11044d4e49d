"""What the store knows, read and not changed: runs, and the whole chain behind a registered version."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sweetrl.config.settings import TrackingSettings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHAMPION, Registry
from sweetrl.tracking.runs import DataInput
from sweetrl.tracking.store import is_missing, require_store


@dataclass(frozen=True)
class RunFacts:
    """What the store knows about one run; `inputs` are the data sets it read, by DVC hash."""

    run_id: str
    name: str
    status: str
    commit: str = ""
    seconds: float | None = None
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    inputs: tuple[DataInput, ...] = ()


@dataclass(frozen=True)
class FoundRun:
    """A run, and the id of the run above it (empty where there is none)."""

    facts: RunFacts
    parent: str = ""


class Records:
    """The runs in the store of `settings`; who reads makes no store."""

    def __init__(self, settings: TrackingSettings, root: Path | None = None):
        self.settings, self.root = settings, root

    @cached_property
    def registry(self) -> Registry:
        """MLflow's client; loading it takes seconds. A UserError where there is no store yet."""
        require_store(self.settings, self.root)
        return Registry(self.settings, self.root)

    def run(self, run_id: str) -> FoundRun | None:
        """Return what is known about a run; None where the store does not know it."""
        from mlflow.exceptions import MlflowException

        try:
            run = self.registry.client.get_run(run_id)
        except MlflowException as error:
            if not is_missing(error):
                raise
            return None
        info, data = run.info, run.data
        inputs = []
        for item in run.inputs.dataset_inputs if run.inputs else ():
            tags = {tag.key: tag.value for tag in item.tags}
            context = tags.get("mlflow.data.context", "input")
            inputs.append(DataInput(item.dataset.name, tags.get("dvc.path", ""), item.dataset.digest, context))
        facts = RunFacts(
            run_id=run_id,
            name=info.run_name,
            status=info.status,
            commit=data.tags.get("mlflow.source.git.commit", ""),
            seconds=(info.end_time - info.start_time) / 1000 if info.end_time else None,
            params=dict(sorted(data.params.items())),
            metrics=dict(sorted(data.metrics.items())),
            inputs=tuple(sorted(inputs, key=lambda read: (read.name, read.path))),
        )
        return FoundRun(facts, data.tags.get("mlflow.parentRunId", ""))

    def histories(self, run_id: str, names: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        """Return the metrics `names` of a run by step, (step, value) in order; unknown runs and metrics have none.

        Values that are no number are left out.
        """
        from mlflow.exceptions import MlflowException

        found = {}
        for name in names:
            try:
                rows = self.registry.client.get_metric_history(run_id, name)
            except MlflowException as error:
                if not is_missing(error):
                    raise
                rows = []
            found[name] = sorted((row.step, row.value) for row in rows if not math.isnan(row.value))
        return found

    def files(self, run_id: str, folder: str, scratch: Path) -> list[Path]:
        """Return the files in a folder of a run's artifacts, sorted; `scratch` takes what lies elsewhere.

        An unknown folder has none; a store that does not answer is a UserError. The embedded store's lie in the
        project (`tracking.artifacts`), and MLflow is not needed for them.
        """
        here = (self.root or Path()) / self.settings.artifacts / run_id / "artifacts" / folder
        if here.is_dir():
            return sorted(path for path in here.iterdir() if path.is_file())
        import mlflow
        from mlflow.exceptions import MlflowException

        uri, fetch = self.registry.store.uri, mlflow.artifacts.download_artifacts
        try:
            items = self.registry.client.list_artifacts(run_id, folder)
            return sorted(
                Path(fetch(run_id=run_id, artifact_path=item.path, dst_path=str(scratch), tracking_uri=uri))
                for item in items
                if not item.is_dir
            )
        except MlflowException as error:
            if not is_missing(error):
                raise UserError(f"run {run_id}: its artifacts cannot be read ({error}); try again.") from error
            return []


@dataclass(frozen=True)
class Lineage:
    """Where a registered version comes from.

    `run` trained it, `parent` is the pipeline run (None where it was trained outside of one, or the store is another),
    `stages` are the runs of all stages whose results it rests on, `code` says which domain and method (your own with
    the hash of its source), `data` maps paths to DVC hashes.
    """

    model: str
    version: str
    aliases: tuple[str, ...]
    created: str
    commit: str
    dirty: bool
    dvc_lock: str
    adapter_hash: str
    base: str
    base_hash: str
    run: RunFacts | None
    parent: RunFacts | None
    stages: tuple[RunFacts, ...]
    code: dict[str, str]
    data: dict[str, str]
    params: dict[str, str]
    evaluation: dict[str, Any]
    cost: dict[str, float]

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
        for path, content in self.data.items():
            yield f"data {path}", content
        for stage in self.stages:
            yield f"stage {stage.name}", f"run {stage.run_id} ({stage.status})"
        for name, value in self.params.items():
            yield f"param {name}", value
        for name, value in self.evaluation.items():
            yield f"result {name}", f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, amount in self.cost.items():
            yield f"cost {name}", f"{amount:,.0f}"

    def _head(self) -> Iterator[tuple[str, str]]:
        names = f" ({', '.join('@' + alias for alias in self.aliases)})" if self.aliases else ""
        yield "model", f"{self.model} version {self.version}{names}, registered {self.created}"
        yield "adapter", self.adapter_hash
        yield "base", f"{self.base} {self.base_hash}".strip()
        yield "run", f"{self.run.name} {self.run.run_id} ({self.run.status})" if self.run else "not in this store"
        yield (
            "pipeline run",
            f"{self.parent.name} {self.parent.run_id} ({self.parent.status})" if self.parent else "none",
        )
        yield "commit", (self.commit or "not in git") + (" with uncommitted changes" if self.dirty else "")
        yield "dvc.lock", self.dvc_lock or "none"


def split_reference(reference: str, default: str) -> tuple[str, str]:
    """Split MODEL[@ALIAS] or MODEL/VERSION into name and alias or number; the alias is `champion` unless given."""
    name, at, alias = reference.partition("@")
    if not at:
        name, at, alias = reference.partition("/")
    if at and not alias:
        raise UserError(
            f"{reference}: there is no alias behind the {at}; write MODEL@ALIAS, for example {default}@champion."
        )
    return name or default, alias or CHAMPION


def lineage(reference: str, settings: TrackingSettings, root: Path | None = None) -> Lineage:
    """Return the chain behind `reference`, MODEL[@ALIAS] or MODEL/VERSION; an unknown one is a UserError."""
    name, alias = split_reference(reference, settings.model)
    records = Records(settings.model_copy(update={"model": name}), root)
    version = records.registry.get(alias)
    tags = version.tags
    run = records.run(version.run_id) if version.run_id else None
    above = (run.parent if run else "") or tags.get("parent_run")
    parent = records.run(above) if above else None
    stages = [records.run(run_id) for run_id in json.loads(tags.get("stage_runs", "{}")).values() if run_id]
    return Lineage(
        model=name,
        version=str(version.version),
        aliases=records.registry.aliases_of(str(version.version)),
        created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=tags.get("git_commit", ""),
        dirty=tags.get("git_dirty") == "true",
        dvc_lock=tags.get("dvc_lock", ""),
        adapter_hash=tags.get("adapter_hash", ""),
        base=tags.get("base", ""),
        base_hash=tags.get("base_hash", ""),
        run=run.facts if run else None,
        parent=parent.facts if parent else None,
        stages=tuple(stage.facts for stage in stages if stage is not None),
        code=json.loads(tags.get("code", "{}")),
        data=json.loads(tags.get("data", "{}")),
        params=next((known.facts.params for known in (parent, run) if known is not None and known.facts.params), {}),
        evaluation=json.loads(tags.get("evaluation", "{}")),
        cost=json.loads(tags.get("cost", "{}")),
    )
