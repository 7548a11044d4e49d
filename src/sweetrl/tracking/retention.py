"""Which versions of a registered model stay, and how the rest of them, their models and their runs go for good.

MLflow only marks what is deleted; the bytes are its artifacts, which go here, at an embedded store and at a server
alike. The rows that stay behind are small: `mlflow gc`, where the database's password is, removes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.tracking.comparisons import entries
from sweetrl.tracking.registry import GATE, Registry, logged_name
from sweetrl.tracking.runs import RETRAINING_TAG
from sweetrl.tracking.store import Store, allowing

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion

PAGE = 200


def reasons_to_stay(
    registry: Registry, versions: Sequence[ModelVersion], keep: int, since: float, places: Mapping[str, str]
) -> dict[str, str]:
    """Return version -> why it stays, for those that do.

    `keep` is how many of the last champions stay, `since` the time from which on everything does, `places` maps the
    hash of a policy that is in use to the place where it is.
    """
    past = list(dict.fromkeys(entry.version for entry in reversed(registry.history())))[:keep]
    copies = _copies(registry, versions)
    named: dict[str, list[str]] = {}
    for alias, number in registry.aliases().items():
        named.setdefault(number, []).append(f"@{alias}")
    stays: dict[str, str] = {}
    for version in versions:
        number, tags = str(version.version), version.tags
        verdict = json.loads(tags.get(GATE, "null")) or {}
        why = {
            "is " + ", ".join(named.get(number, ())): number in named,
            f"is one of the last {keep} champions": number in past,
            "has won, and waits": verdict.get("promote") and not verdict.get("promoted"),
            f"is the policy of {places.get(tags.get('adapter_hash', ''))}": tags.get("adapter_hash") in places,
            f"{copies.get(number)} is a copy of it": number in copies,
            "is young": version.creation_timestamp / 1000 >= since,
        }
        if (first := next((text for text, holds in why.items() if holds), None)) is not None:
            stays[number] = first
    return stays


def newest_comparisons(versions: Iterable[ModelVersion]) -> set[str]:
    """Return the versions that know how often the newest test tasks have served: `gate.fresh_after_...` counts it."""
    rows = {
        str(version.version): [int(row["first"]) for row in entries(version.tags, "comparison").values()]
        for version in versions
    }
    newest = max((first for firsts in rows.values() for first in firsts), default=None)
    return {number for number, firsts in rows.items() if newest in firsts}


def _copies(registry: Registry, versions: Sequence[ModelVersion]) -> dict[str, str]:
    """Return version -> the version of another registered model that holds the same logged model."""
    own = {f"models:/{registry.name}/{version.version}": str(version.version) for version in versions}
    own |= {str(version.source): str(version.version) for version in versions}
    return {own[copy.source]: f"{copy.name} version {copy.version}" for copy in _others(registry) if copy.source in own}


def _others(registry: Registry) -> list[ModelVersion]:
    """The versions of all other registered models."""
    return [version for version in _all(registry.client.search_model_versions) if version.name != registry.name]


def _all(search: Callable[..., Any], *given: Any, **named: Any) -> Iterator[Any]:
    """Yield what a search of MLflow's finds, page after page."""
    token = None
    while True:
        page = search(*given, max_results=PAGE, page_token=token, **named)
        yield from page
        if not (token := page.token):
            return


def unused_models(registry: Registry, kept: Collection[str], since: float) -> list[LoggedModel]:
    """Return the logged models of this name that no version holds but those that go, and that are older than `since`.

    A registration that died leaves one without a version.
    """
    versions = _all(registry.client.search_model_versions)
    used = {str(each.source) for each in versions if each.name != registry.name or str(each.version) in kept}
    return [
        model
        for model in _all(registry.client.search_logged_models, [registry.store.experiment_id])
        if model.name == logged_name(registry.name)
        and f"models:/{model.model_id}" not in used
        and model.creation_timestamp / 1000 < since
    ]


def unused_runs(registry: Registry, kept: Iterable[ModelVersion], named: Collection[str], since: float) -> list[Run]:
    """Return the pipeline runs of this model that ended before `since`, each behind the runs below it.

    Where one of these is that of a `kept` version, in `named` (by its id, or the mark of its retraining) or young, they
    all stay. Projects may share an experiment: the parameter `tracking.model` says whose a pipeline run is, and a run
    below none is nobody's. What two projects have made alike may be known by the same runs: those of other models'
    versions stay, too.
    """
    used: set[str | None] = {*named}
    for version in (*kept, *_others(registry)):
        stages = json.loads(version.tags.get("stage_runs", "{}")).values()
        used |= {version.run_id, version.tags.get("parent_run"), *stages}
    store = registry.store
    runs: dict[str, Run] = {run.info.run_id: run for run in _all(store.client.search_runs, [store.experiment_id])}

    def above(name: str) -> list[str]:
        """A run and those above it, the pipeline's last."""
        line = [name]
        while (parent := runs[line[-1]].data.tags.get("mlflow.parentRunId", "")) in runs:
            line.append(parent)
        return line

    lines = {name: above(name) for name in runs}
    own_pipelines = {name for name, run in runs.items() if run.data.params.get("tracking.model") == registry.name}
    for name, run in runs.items():
        marked = run.data.tags.get(RETRAINING_TAG) in named
        if name in used or marked or not run.info.end_time or run.info.end_time / 1000 >= since:
            own_pipelines.discard(lines[name][-1])
    unused = [name for name, line in lines.items() if line[-1] in own_pipelines]
    return [runs[name] for name in sorted(unused, key=lambda name: -len(lines[name]))]


def artifacts_size(location: str) -> int:
    """Return how many bytes of artifacts are stored below `location`."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    files = get_artifact_repository(location)

    def size(path: str | None) -> int:
        return sum(size(item.path) if item.is_dir else item.file_size or 0 for item in files.list_artifacts(path))

    return size(None)


def remove_version(registry: Registry, version: ModelVersion) -> None:
    """Delete a version; one that has got an alias meanwhile is a UserError, before anything of it is gone."""
    number = str(version.version)
    if aliases := registry.aliases_of(number):
        raise UserError(f"{registry.name}: version {number} has become @{aliases[0]} meanwhile; run this once more.")
    with allowing("RESOURCE_DOES_NOT_EXIST"):
        registry.client.delete_model_version(registry.name, number)


def remove_model(store: Store, model: LoggedModel) -> None:
    """Delete a logged model: its artifacts, then itself, so that whoever dies between the two is finished later."""
    _remove_artifacts(model.artifact_location)
    with allowing("RESOURCE_DOES_NOT_EXIST"):
        store.client.delete_logged_model(model.model_id)


def remove_run(store: Store, run: Run) -> None:
    """Delete a run: its artifacts, then itself."""
    _remove_artifacts(run.info.artifact_uri)
    with allowing("RESOURCE_DOES_NOT_EXIST"):
        store.client.delete_run(run.info.run_id)


def _remove_artifacts(location: str) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(location).delete_artifacts()
