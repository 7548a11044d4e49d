"""What the store knows, read and not changed: versions, aliases and runs.

MLflow takes seconds to be imported. The embedded store is a database whose tables are known, so it is read directly;
servers, other databases and tables of another version of MLflow are read through MLflow's own client.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.paths import POLICY
from sweetrl.settings import Settings, TrackingSettings
from sweetrl.tracking.chat_agent import agent_config
from sweetrl.tracking.registry import Registration, Registry, evaluation_tags, known_number
from sweetrl.tracking.runs import DataInput
from sweetrl.tracking.store import EMBEDDED, is_missing, tracking_uri

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

# States of MLflow's database (table alembic_version) in which the statements below are right; a test compares them with
# what MLflow's client says, and fails where a newer MLflow has another state.
KNOWN_TABLES = ("dc11669786a5",)
DELETED = "Deleted_Internal"  # the stage of a version that was deleted
ELSEWHERE = ("MLFLOW_REGISTRY_URI", "MLFLOW_WORKSPACE")  # variables that lead MLflow's client to other records
PATIENCE = 30.0  # seconds that a reader waits for a writer


@dataclass(frozen=True)
class VersionFacts:
    """A registered version; `created` in milliseconds since 1970, `run_id` is the run that made it."""

    version: str
    created: int
    run_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


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
    """The records of the model `tracking.model`, through MLflow's client."""

    def __init__(self, settings: TrackingSettings, root: Path | None = None):
        self.settings, self.root = settings, root

    @cached_property
    def registry(self) -> Registry:
        """MLflow's client; loading it takes seconds."""
        return Registry(self.settings, self.root)

    def get(self, reference: str) -> VersionFacts:
        """Return the version that `reference` names (an alias or a number); an unknown one is a UserError."""
        return _version(self.registry.get(reference))

    def find(self, adapter: str, base: str) -> VersionFacts | None:
        """Return the version with this adapter on this base, if it is registered."""
        found = self.registry.find(adapter, base)
        return None if found is None else _version(found)

    def aliases_of(self, version: str) -> tuple[str, ...]:
        """Return the aliases that point to a version."""
        return self.registry.aliases_of(version)

    def run(self, run_id: str) -> FoundRun | None:
        """Return what is known about a run; None where the store does not know it."""
        from mlflow.exceptions import MlflowException

        try:
            found = self.registry.client.get_run(run_id)
        except MlflowException as error:
            if not is_missing(error):
                raise
            return None
        info, data = found.info, found.data
        inputs = []
        for item in found.inputs.dataset_inputs if found.inputs else ():
            tags = {tag.key: tag.value for tag in item.tags}
            inputs.append(_input(item.dataset.name, item.dataset.digest, tags))
        times = (info.start_time, info.end_time)
        return _run(run_id, info.run_name, info.status, times, data.tags, data.params, data.metrics, inputs)

    def histories(self, run_id: str, names: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        """Return the metrics `names` of a run by step, (step, value) in order; unknown runs and metrics have none."""
        from mlflow.exceptions import MlflowException

        found = {}
        for name in names:
            try:
                rows = self.registry.client.get_metric_history(run_id, name)
            except MlflowException as error:
                if not is_missing(error):
                    raise
                rows = []
            found[name] = sorted((row.step, row.value) for row in rows)
        return found

    def files(self, run_id: str, folder: str, scratch: Path) -> list[Path]:
        """Return the files in a folder of a run's artifacts, sorted; `scratch` takes what lies elsewhere.

        An unknown folder has none; a store that does not answer is a UserError.
        """
        import mlflow
        from mlflow.exceptions import MlflowException

        uri, fetch = self.registry.store.uri, mlflow.artifacts.download_artifacts
        try:
            there = [one.path for one in self.registry.client.list_artifacts(run_id, folder) if not one.is_dir]
            return sorted(
                Path(fetch(run_id=run_id, artifact_path=path, dst_path=str(scratch), tracking_uri=uri))
                for path in there
            )
        except MlflowException as error:
            if not is_missing(error):
                raise UserError(f"run {run_id}: its artifacts cannot be read ({error}); try again.") from error
            return []


class EmbeddedRecords(Records):
    """The same from the database of the embedded store, which is not written to."""

    def __init__(self, settings: TrackingSettings, root: Path | None, database: Path):
        super().__init__(settings, root)
        self.database = database

    def known(self) -> bool:
        """Whether the database is there, and in a state in which the statements here are right."""
        if not self.database.exists():
            return False
        try:
            return self._rows("select version_num from alembic_version") in [[(state,)] for state in KNOWN_TABLES]
        except UserError:
            return False

    def get(self, reference: str) -> VersionFacts:
        """As above. What is unknown here is asked of MLflow's client, which says what is known."""
        wanted = reference.removeprefix("@")
        number = self._aliases().get(wanted, wanted)
        found = next(self._versions("version = ?", int(number)), None) if known_number(number) else None
        return super().get(reference) if found is None else found

    def find(self, adapter: str, base: str) -> VersionFacts | None:
        """As above."""
        numbers = "select version from model_version_tags where name = ? and key = 'adapter_hash' and value = ?"
        for one in self._versions(f"version in ({numbers})", self.settings.model, adapter):
            if one.tags.get("base_hash", "") == base:
                return one
        return None

    def aliases_of(self, version: str) -> tuple[str, ...]:
        """As above."""
        return tuple(sorted(alias for alias, number in self._aliases().items() if number == version))

    def run(self, run_id: str) -> FoundRun | None:
        """As above."""
        found = self._rows("select name, status, start_time, end_time from runs where run_uuid = ?", run_id)
        if not found:
            return None
        name, status, *times = found[0]
        metrics = self._rows(
            "select key, case is_nan when 1 then null else value end from latest_metrics where run_uuid = ?", run_id
        )
        inputs = []
        for identifier, title, digest in self._rows(
            "select input_uuid, name, digest from inputs join datasets on source_id = dataset_uuid "
            "where destination_type = 'RUN' and destination_id = ?",
            run_id,
        ):
            tags = self._pairs("select name, value from input_tags where input_uuid = ?", identifier)
            inputs.append(_input(title, digest, tags))
        return _run(
            run_id,
            name,
            status,
            (times[0], times[1]),
            self._pairs("select key, value from tags where run_uuid = ?", run_id),
            self._pairs("select key, value from params where run_uuid = ?", run_id),
            {key: float("nan") if value is None else value for key, value in metrics},
            inputs,
        )

    def histories(self, run_id: str, names: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        """As above."""
        found: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
        marks = ", ".join("?" * len(found))
        for name, step, value in self._rows(
            "select key, step, value from metrics "
            f"where run_uuid = ? and is_nan = 0 and key in ({marks}) order by step",
            run_id,
            *found,
        ):
            found[name].append((step, value))
        return found

    def files(self, run_id: str, folder: str, scratch: Path) -> list[Path]:
        """As above; files on this machine are where they are."""
        found = self._rows("select artifact_uri from runs where run_uuid = ?", run_id)
        if not found:
            return []
        place = urlsplit(found[0][0])
        if place.scheme not in ("", "file"):
            return super().files(run_id, folder, scratch)
        below = Path(unquote(place.path)) / folder
        return sorted(path for path in below.iterdir() if path.is_file()) if below.is_dir() else []

    def _aliases(self) -> dict[str, str]:
        found = self._rows("select alias, version from registered_model_aliases where name = ?", self.settings.model)
        return {alias: str(version) for alias, version in found}

    def _versions(self, condition: str, *values: Any) -> Iterator[VersionFacts]:
        for number, created, run_id in self._rows(
            "select version, creation_time, run_id from model_versions "
            f"where name = ? and current_stage != '{DELETED}' and {condition} order by version",
            self.settings.model,
            *values,
        ):
            tags = self._pairs(
                "select key, value from model_version_tags where name = ? and version = ?", self.settings.model, number
            )
            yield VersionFacts(str(number), created, run_id or None, tags)

    def _pairs(self, statement: str, *values: Any) -> dict[str, str]:
        return {key: value if value is not None else "" for key, value in self._rows(statement, *values)}

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        place = f"{self.database.as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(place, timeout=PATIENCE, uri=True)) as connection:
                return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise UserError(f"{self.database}: this cannot be read ({error}); try again.") from error


def open_records(settings: TrackingSettings, root: Path | None = None) -> Records:
    """Return the records of the store that `settings` (or MLFLOW_TRACKING_URI) name."""
    uri = tracking_uri(settings, root)
    if uri.startswith(EMBEDDED) and not any(os.environ.get(name) for name in ELSEWHERE):
        found = EmbeddedRecords(settings, root, Path(uri.removeprefix(EMBEDDED)))
        if found.known():
            return found
    return Records(settings, root)


def known_registration(settings: Settings, root: Path) -> Registration | None:
    """Return the version that models/policy of `root` is registered as, with the evaluation that lies there.

    None where registering would change anything.
    """
    config = agent_config(settings, root)
    records = open_records(settings.tracking, root)
    found = records.find(dvc_hash(root / POLICY), config.base_hash)
    if found is None or any(found.tags.get(key) != value for key, value in evaluation_tags(settings, root).items()):
        return None
    aliases = records.aliases_of(found.version)
    return Registration(settings.tracking.model, found.version, False, aliases, found.tags)


def _version(found: ModelVersion) -> VersionFacts:
    return VersionFacts(str(found.version), found.creation_timestamp, found.run_id or None, dict(found.tags))


def _input(name: str, digest: str, tags: dict[str, str]) -> DataInput:
    return DataInput(name, tags.get("dvc.path", ""), digest, tags.get("mlflow.data.context", "input"))


def _run(
    run_id: str,
    name: str,
    status: str,
    times: tuple[int, int | None],
    tags: dict[str, str],
    params: dict[str, str],
    metrics: dict[str, float],
    inputs: list[DataInput],
) -> FoundRun:
    facts = RunFacts(
        run_id=run_id,
        name=name,
        status=status,
        commit=tags.get("mlflow.source.git.commit", ""),
        seconds=(times[1] - times[0]) / 1000 if times[1] else None,
        params=dict(sorted(params.items())),
        metrics=dict(sorted(metrics.items())),
        inputs=tuple(sorted(inputs, key=lambda one: (one.name, one.path))),
    )
    return FoundRun(facts, tags.get("mlflow.parentRunId", ""))
