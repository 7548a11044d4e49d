"""Registered versions of the policy: saved once for each adapter, with their data, code and results as tags."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import TrackingSettings
from sweetrl.errors import UnknownVersion, UserError
from sweetrl.io import read_json
from sweetrl.paths import RUNS
from sweetrl.tracking.packing import keep_results
from sweetrl.tracking.store import Store, allowing, connect, reason, require_store

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

CHAMPION, CHALLENGER = "champion", "challenger"
# Metrics that add up to a cost; the user's model has an account of its own.
COUNTED = {"generated_tokens", "prompt_tokens", "cached_tokens", "trained_tokens", "gpu_seconds"}
SIMULATOR = "simulator"
HISTORY = "champion_history"  # tag of the registered model: who was champion when, and why
KEPT = 50  # champions in that history
GATE = "gate"  # tag of a version: what the gate decided about it; a version without it has not stood before the gate


@dataclass(frozen=True)
class Registration:
    """A version in the registry: whether it is new, and which aliases point to it."""

    model: str
    version: str
    created: bool
    aliases: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Promotion:
    """One entry of the champions' history."""

    version: str
    reason: str
    time: str


class Registry:
    """The model registry behind `tracking.model`; every method talks to the store."""

    def __init__(self, settings: TrackingSettings, root: Path | None = None, store: Store | None = None):
        self.name = settings.model
        if not self.name.strip() or not self.name.isprintable() or set(self.name) & set("/:\"'`\\"):
            raise UserError(f"{self.name}: this is no name of a registered model; write MODEL, MODEL@ALIAS or MODEL/3.")
        self.store = store or connect(settings, root)
        self.client = self.store.client

    def versions(self, condition: str = "") -> list[ModelVersion]:
        """Return all versions, oldest first, or those for which `condition` (MLflow's filter language) holds."""
        query = " and ".join(filter(None, [f"name = '{self.name}'", condition]))
        page = self.client.search_model_versions(query)
        versions = list(page)
        while page.token:
            page = self.client.search_model_versions(query, page_token=page.token)
            versions += page
        return sorted(versions, key=lambda version: int(version.version))

    def get(self, reference: str) -> ModelVersion:
        """Return the version that `reference` names (an alias or a number); an unknown one is a UserError."""
        name, aliases = reference.removeprefix("@"), self.aliases()
        versions = {str(version.version): version for version in self.versions()}
        number = aliases.get(name, name)
        if number in versions:
            return versions[number]
        if not versions:
            raise UnknownVersion(f"{self.name}: no version is registered yet; `sweetrl run` trains and registers one.")
        names = ", ".join([*(f"@{alias}" for alias in aliases), *versions])
        raise UnknownVersion(f"{self.name}@{name}: there is no such alias or version; known are {names}.")

    def aliases(self) -> dict[str, str]:
        """Return alias -> version number; empty where the model is not registered yet."""
        model = self._model()
        return {alias: str(number) for alias, number in model.aliases.items()} if model is not None else {}

    def _model(self) -> RegisteredModel | None:
        """The registered model with its tags and aliases, None where it is not registered yet."""
        # A store that fails has not said that there is no champion.
        with answering(self, f"say which versions of {self.name} have an alias"), allowing("RESOURCE_DOES_NOT_EXIST"):
            return self.client.get_registered_model(self.name)
        return None

    def aliases_of(self, version: str) -> tuple[str, ...]:
        """Return the aliases that point to a version."""
        return tuple(sorted(alias for alias, number in self.aliases().items() if number == version))

    def find(self, adapter: str, base: str) -> ModelVersion | None:
        """Return the version with this adapter on this base, if it is registered."""
        versions = self.versions(f"tags.adapter_hash = '{adapter}'")
        return next((version for version in versions if version.tags.get("base_hash", "") == base), None)

    def set_alias(self, alias: str, version: str) -> None:
        """Point `alias` to `version`."""
        self.client.set_registered_model_alias(self.name, alias, version)

    def history(self) -> list[Promotion]:
        """Return who was champion, oldest first, without those that a rollback has left; the last one is it now.

        The alias is the truth. `promote` writes the history before the alias and `step_back` after it, so that what a
        process which died between the two has left is one entry too many, and is left out here.
        """
        model = self._model()
        if model is None:
            return []
        entries = [Promotion(**values) for values in json.loads(model.tags.get(HISTORY, "[]"))]
        champion = str(model.aliases.get(CHAMPION, ""))
        places = [place for place, entry in enumerate(entries) if entry.version == champion]
        if places or not champion:
            return entries[: places[-1] + 1] if places else entries
        return [*entries, Promotion(champion, "the alias was moved without this project's flows", "")]

    def promote(self, version: str, reason: str) -> None:
        """Make `version` the champion and write that into the history; nothing changes if it is the champion."""
        history = self.history()
        if not history or history[-1].version != version:
            history.append(Promotion(version, reason, utc_now()))
        self._write_history(history)
        self.set_alias(CHAMPION, version)
        self.forget_challenger(version)

    def forget_challenger(self, version: str) -> None:
        """Take the alias `challenger` from `version`, if it has it."""
        if self.aliases().get(CHALLENGER) == version:
            self.client.delete_registered_model_alias(self.name, CHALLENGER)

    def note_gate(self, version: str, verdict: Mapping[str, Any]) -> None:
        """Write what the gate decided about `version` where everybody sees it: in its tag `gate` and description."""
        self.client.set_model_version_tag(self.name, version, GATE, json.dumps(verdict))
        self.describe(version)

    def describe(self, version: str) -> None:
        """Let a version's description begin with what the gate decided and what it reached, as its tags have it.

        What the version is, the last paragraph, stays.
        """
        described = self.client.get_model_version(self.name, version)
        evaluation, gate = (json.loads(described.tags.get(key, "null")) for key in ("evaluation", GATE))
        verdict = f"**Gate:** {gate['reason']}" if gate else ""
        if gate and gate["promote"] and not gate["promoted"]:
            verdict += " (It has yet to become champion.)"
        what_it_is = (described.description or "").rpartition("\n\n")[2]
        text = "\n\n".join(filter(None, [verdict, result_table(evaluation or {}), what_it_is]))
        if text != described.description:
            self.client.update_model_version(self.name, version, text)

    def champion_before(self) -> Promotion:
        """Return the champion before the current one, a UserError where there is none; deleted ones are passed over."""
        return self._at_least_two()[-2]

    def step_back(self) -> tuple[Promotion, Promotion]:
        """Make the champion before the current one the champion again; return (left, returned to)."""
        *history, before, left = self._at_least_two()
        self.set_alias(CHAMPION, before.version)
        self._write_history([*history, before])
        return left, before

    def _at_least_two(self) -> list[Promotion]:
        """The history, whose last entries are a champion that can be returned to and the one that is it now."""
        there = {str(version.version) for version in self.versions()}
        *earlier, now = self.history() or [Promotion("", "", "")]
        while earlier and (earlier[-1].version not in there or earlier[-1].version == now.version):
            earlier.pop()
        if not earlier:
            raise UserError(f"{self.name}: there is no earlier champion to return to.")
        return [*earlier, now]

    def _write_history(self, entries: list[Promotion]) -> None:
        text = json.dumps([vars(entry) for entry in entries[-KEPT:]])
        self.client.set_registered_model_tag(self.name, HISTORY, text)

    def download(self, version: ModelVersion, path: str, folder: Path) -> Path:
        """Copy one file or folder stored with a version into `folder`; what cannot be had is a UserError."""
        import mlflow

        try:
            where = self.client.get_logged_model(model_id(version)).artifact_location
            uri = f"{where.rstrip('/')}/{path}"
            return Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(folder), tracking_uri=self.store.uri))
        except Exception as error:  # every kind of store has errors of its own
            raise UserError(
                f"{self.name} version {version.version}: {path} cannot be had from its artifacts ({reason(error)}); "
                "nothing was changed, so try again when their store answers, if they are still there."
            ) from error

    def attach_evaluation(self, version: str, root: Path, tags: Mapping[str, str]) -> None:
        """Store (or replace) what a version reached on the held-out tasks, as it lies in the folder `root`."""
        keep_results(self.client, model_id(self.client.get_model_version(self.name, version)), root)
        for key, value in tags.items():
            self.client.set_model_version_tag(self.name, version, key, value)
        self.describe(version)


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


def open_reference(reference: str, settings: TrackingSettings, root: Path | None = None) -> tuple[Registry, str]:
    """Return the registry of the model that `reference` names, and its alias or number; who reads makes no store."""
    name, alias = split_reference(reference, settings.model)
    named = settings.model_copy(update={"model": name})
    require_store(named, root)
    return Registry(named, root), alias


@contextlib.contextmanager
def answering(registry: Registry, what: str) -> Iterator[None]:
    """Turn a store's failure into a sentence; it has not said that there is nothing."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise UserError(
            f"{registry.store.name}: the registry cannot {what} ({reason(error)}); nothing was changed, so try again "
            "when it answers."
        ) from error


def utc_now() -> str:
    """Return the time in UTC, to the second, as the registry's tags have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def model_id(version: ModelVersion) -> str:
    """Return the id of the logged model behind a version (`ModelVersion.model_id` itself stays empty)."""
    return str(version.source).removeprefix("models:/")


def trained_rows(path: Path) -> list[dict[str, Any]]:
    """Read what became of the trained policy on each task from a per-task result file; lost dialogues are left out."""
    from pyarrow import parquet

    rows = parquet.read_table(path).to_pylist()
    return [row for row in rows if row["policy"] == "trained" and row["reward"] is not None]


def read_rewards(path: Path) -> dict[str, float]:
    """Read task id -> reward of the trained policy from a per-task result file; lost dialogues are left out."""
    return {row["task_id"]: float(row["reward"]) for row in trained_rows(path)}


def headline(path: Path) -> dict[str, Any]:
    """Return the numbers of an evaluation file that fit in a line: those on its first level."""
    return {key: value for key, value in read_json(path).items() if isinstance(value, int | float | str)}


def stage_runs(root: Path) -> dict[str, dict[str, Any]]:
    """Return stage -> its run file (reports/runs/<stage>.json), for the stages that have one."""
    return {path.stem: read_json(path) for path in sorted((root / RUNS).glob("*.json"))}


def cost(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Sum what a version took over its stages: wall seconds, tokens, GPU-seconds (`simulator_`: the user's model)."""
    total = {"seconds": sum(float(run.get("seconds", 0.0)) for run in runs.values())}
    for run in runs.values():
        for name, value in run.get("metrics", {}).items():
            kind, _, rest = name.partition("/")  # evaluate counts each policy's: generated_tokens/base
            if kind == SIMULATOR and rest in COUNTED:
                total[f"simulator_{rest}"] = total.get(f"simulator_{rest}", 0.0) + float(value)
            elif kind in COUNTED:
                total[kind] = total.get(kind, 0.0) + float(value)
    return {name: round(value, 1) for name, value in total.items()}


def result_table(evaluation: Mapping[str, Any]) -> str:
    """Return the headline of an evaluation (the first level of evaluation.json) as a table; "" where there is none."""
    rows = []
    for key, label, form in (("success", "tasks solved", "{:.1%}"), ("reward", "mean reward", "{:.3f}")):
        before, after = evaluation.get(f"{key}_before"), evaluation.get(f"{key}_after")
        if before is not None and after is not None:
            before, after = (form.format(value).replace("%", " %") for value in (before, after))
            rows.append(f"| **{label}** | {before} | **{after}** |")
    if not rows:
        return ""
    tasks = evaluation.get("tasks")
    head = f"| {f'on {tasks:,} ' if tasks else ''}held-out tasks | before | after |"
    return "\n".join([head, "|---|---|---|", *rows])


def run_note(evaluation: Mapping[str, Any], reason: str = "", version: str = "", report: str = "") -> str:
    """Return the description of a pipeline run: the gate's verdict, result, version, report, those that there are."""
    parts = [f"**Gate:** {reason}"] if reason else []
    parts += [result_table(evaluation)]
    parts += [f"**Registered as** {version}"] if version else []
    parts += [f"**Report:** `{report}`, under Artifacts"] if report else []
    return "\n\n".join(filter(None, parts))
