"""The whole chain behind a registered version: run, parent run, commit, data hashes, parameters, results, cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.settings import TrackingSettings
from sweetrl.tracking.registry import CHAMPION, Registry
from sweetrl.tracking.runs import DataInput
from sweetrl.tracking.store import Store, is_missing


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

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the chain as (what, value), in the order in which a user asks."""
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
        yield from self.code.items()
        for path, found in self.data.items():
            yield f"data {path}", found
        for stage in self.stages:
            yield f"stage {stage.name}", f"run {stage.run_id} ({stage.status})"
        for name, value in self.params.items():
            yield f"param {name}", value
        for name, value in self.evaluation.items():
            yield f"result {name}", f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, amount in self.cost.items():
            yield f"cost {name}", f"{amount:,.0f}"


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
    registry = Registry(settings.model_copy(update={"model": name}), root)
    version = registry.get(alias)
    tags = version.tags
    run = _run(registry.store, version.run_id)
    parent = _run(registry.store, _parent(registry.store, version.run_id) or tags.get("parent_run"))
    runs = [_run(registry.store, identifier) for identifier in json.loads(tags.get("stage_runs", "{}")).values()]
    return Lineage(
        model=name,
        version=str(version.version),
        aliases=registry.aliases_of(str(version.version)),
        created=_time(version.creation_timestamp),
        commit=tags.get("git_commit", ""),
        dirty=tags.get("git_dirty") == "true",
        dvc_lock=tags.get("dvc_lock", ""),
        adapter_hash=tags.get("adapter_hash", ""),
        base=tags.get("base", ""),
        base_hash=tags.get("base_hash", ""),
        run=run,
        parent=parent,
        stages=tuple(found for found in runs if found is not None),
        code=json.loads(tags.get("code", "{}")),
        data=json.loads(tags.get("data", "{}")),
        params=_params(parent, run),
        evaluation=json.loads(tags.get("evaluation", "{}")),
        cost=json.loads(tags.get("cost", "{}")),
    )


def _params(parent: RunFacts | None, run: RunFacts | None) -> dict[str, str]:
    """The pipeline's parameters; those of the training run alone where it ran outside of a pipeline."""
    for facts in (parent, run):
        if facts is not None and facts.params:
            return dict(sorted(facts.params.items()))
    return {}


def _time(milliseconds: int | None) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp((milliseconds or 0) / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _parent(store: Store, run_id: str | None) -> str | None:
    found = _raw(store, run_id)
    return found.data.tags.get("mlflow.parentRunId") if found is not None else None


def _raw(store: Store, run_id: str | None) -> Any:
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    try:
        return store.client.get_run(run_id)
    except MlflowException as error:
        if not is_missing(error):
            raise
        return None


def _run(store: Store, run_id: str | None) -> RunFacts | None:
    found = _raw(store, run_id)
    if found is None:
        return None
    info, data = found.info, found.data
    inputs = []
    for item in found.inputs.dataset_inputs:
        tags = {tag.key: tag.value for tag in item.tags}
        context = tags.get("mlflow.data.context", "input")
        inputs.append(DataInput(item.dataset.name, tags.get("dvc.path", ""), item.dataset.digest, context))
    return RunFacts(
        run_id=info.run_id,
        name=info.run_name,
        status=info.status,
        commit=data.tags.get("mlflow.source.git.commit", ""),
        seconds=(info.end_time - info.start_time) / 1000 if info.end_time else None,
        params=dict(data.params),
        metrics=dict(data.metrics),
        inputs=tuple(inputs),
    )
