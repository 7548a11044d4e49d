"""The whole chain behind a registered version: run, parent run, commit, data hashes, parameters, results, cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.settings import TrackingSettings
from sweetrl.tracking.records import RunFacts, open_records
from sweetrl.tracking.registry import CHAMPION
from sweetrl.tracking.store import require_store


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
        told = {name: self.evaluation.get(f"{measure}_{name}") for name in ("before", "after", "difference")}
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in told.items() if value is not None)
        tasks = self.evaluation.get("tasks", 0)
        yield "result", f"{measure} {numbers} on {tasks:,} tasks" if numbers else "not measured"
        costs = (f"{amount:,.0f} {name.replace('_', ' ')}" for name, amount in self.cost.items())
        yield "cost", ", ".join(costs) or "not known"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the whole chain as (what, value), in the order in which a user asks."""
        yield from self._head()
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
    require_store(settings.model_copy(update={"model": name}), root)
    records = open_records(settings.model_copy(update={"model": name}), root)
    version = records.get(alias)
    tags = version.tags
    run = records.run(version.run_id) if version.run_id else None
    above = (run.parent if run else "") or tags.get("parent_run")
    parent = records.run(above) if above else None
    stages = [records.run(run_id) for run_id in json.loads(tags.get("stage_runs", "{}")).values() if run_id]
    return Lineage(
        model=name,
        version=version.version,
        aliases=records.aliases_of(version.version),
        created=_time(version.created),
        commit=tags.get("git_commit", ""),
        dirty=tags.get("git_dirty") == "true",
        dvc_lock=tags.get("dvc_lock", ""),
        adapter_hash=tags.get("adapter_hash", ""),
        base=tags.get("base", ""),
        base_hash=tags.get("base_hash", ""),
        run=run.facts if run else None,
        parent=parent.facts if parent else None,
        stages=tuple(found.facts for found in stages if found is not None),
        code=json.loads(tags.get("code", "{}")),
        data=json.loads(tags.get("data", "{}")),
        params=next((found.facts.params for found in (parent, run) if found is not None and found.facts.params), {}),
        evaluation=json.loads(tags.get("evaluation", "{}")),
        cost=json.loads(tags.get("cost", "{}")),
    )


def _time(milliseconds: int | None) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp((milliseconds or 0) / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
