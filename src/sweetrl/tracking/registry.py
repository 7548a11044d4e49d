"""Registered versions of the policy: saved once for each adapter, with their data, code and results as tags.

A version holds the adapter, the base if it is small, the package's code, requirements, an example and the lineage: a
machine that has it and a package index needs nothing else, no checkout and no package of that name.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import TrackingSettings
from sweetrl.errors import UnknownVersion, UserError
from sweetrl.file_hashes import IGNORED
from sweetrl.io import digest, read_json, write_json
from sweetrl.models.check import is_full
from sweetrl.paths import EVALUATION, EVALUATION_DIALOGUES, POLICY, RESULTS
from sweetrl.tracking import limits
from sweetrl.tracking.chat_agent import AgentConfig
from sweetrl.tracking.store import Store, allowing, connect, reason, require_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

CHAMPION, CHALLENGER = "champion", "challenger"
# Metrics that add up to a cost; the user's model has an account of its own.
COUNTED = ("seconds", "gpu_seconds", "prompt_tokens", "cached_tokens", "generated_tokens")
VERDICT = "**Gate:** "  # how the verdict begins in a description
YET = " (It has yet to become champion.)"
PROMOTION = "champion."  # tags of a version: for each time that it became champion why, when and after whom
MIB = 2**20
# What the stored code imports to load an agent and let it answer, with what transformers and peft load without asking.
NEEDED = ("accelerate", "mlflow", "numpy", "peft", "pydantic", "safetensors", "tokenizers", "torch", "transformers")
DIALOGUES = "dialogues.json"  # beside a version's results: what its evaluated dialogues took
EXAMPLE = [{"role": "user", "content": "I want a function that computes the price of a ticket. def price(hours)"}]
STORED = "stored"  # tag of a logged model: of which model, adapter and base it is
ANNOUNCED = "announced"  # tag of a version: when the event said that it is registered
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
    """One entry of the champions' history: `before` was champion before it ("": nobody), `number` counts them all."""

    version: str
    reason: str
    time: str
    before: str = ""
    number: int = 0


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
        return sorted(self.client.search_model_versions(query), key=lambda version: int(version.version))

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
        # A store that fails has not said that there is no champion.
        with answering(self, f"say which versions of {self.name} have an alias"), allowing("RESOURCE_DOES_NOT_EXIST"):
            aliases = self.client.get_registered_model(self.name).aliases
            return {alias: str(number) for alias, number in aliases.items()}
        return {}

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
        """Return who was champion, oldest first; the last one is it now.

        The alias is the truth, and it moves behind the tag that says so: from the champion on, what counts is who was
        champion before whom. What a process has left that died between the two is passed over.
        """
        entries, version, history = self._promotions(), self.aliases().get(CHAMPION, ""), list[Promotion]()
        while version:
            places = [place for place, entry in enumerate(entries) if entry.version == version]
            if places:
                entries, entry = entries[: places[-1]], entries[places[-1]]
            else:
                why = "not recorded: it was deleted since, or its alias was set without this project's flows"
                entry = Promotion(version, why, "", entries[-1].version if entries else "")
            history.append(entry)
            version = entry.before
        return history[::-1]

    def _promotions(self) -> list[Promotion]:
        """All promotions by the tags of the versions, oldest first, those that died before the alias, too."""
        return sorted(
            (
                Promotion(str(version.version), number=int(key.removeprefix(PROMOTION)), **json.loads(text))
                for version in self.versions()
                for key, text in version.tags.items()
                if key.startswith(PROMOTION)
            ),
            key=lambda entry: (entry.number, entry.time),
        )

    def promote(self, version: str, reason: str) -> None:
        """Make `version` the champion and keep why; where it is the champion, only `settle` it."""
        before = self.aliases().get(CHAMPION, "")
        if before != version:
            number = 1 + max((entry.number for entry in self._promotions()), default=0)
            row = {"reason": limits.text(reason, limits.REASON), "time": utc_now(), "before": before}
            self.tag(version, {f"{PROMOTION}{number}": json.dumps(row, ensure_ascii=False)})
            self.set_alias(CHAMPION, version)
        self.settle(version)

    def settle(self, version: str) -> None:
        """Do what follows from `version` being the champion: its verdict says so, and it is no challenger any more."""
        verdict = json.loads(self.get(version).tags.get(GATE, "null"))
        if verdict is not None and verdict["promote"] and not verdict["promoted"]:
            self.note_gate(version, verdict | {"promoted": True})
        self.forget_challenger(version)

    def tag(self, version: str, values: Mapping[str, str]) -> None:
        """Write tags of a version; one that MLflow cannot hold is a UserError."""
        for key, value in limits.facts(values, f"{self.name} version {version}").items():
            self.client.set_model_version_tag(self.name, version, key, value)

    def forget_challenger(self, version: str) -> None:
        """Take the alias `challenger` from `version`, if it has it."""
        if self.aliases().get(CHALLENGER) == version:
            self.client.delete_registered_model_alias(self.name, CHALLENGER)

    def withdraw(self, version: str) -> None:
        """Let `version` be no challenger, and its verdict say that it is not to be promoted any more."""
        self.forget_challenger(version)
        verdict = json.loads(self.get(version).tags.get(GATE, "null"))
        if verdict is not None and verdict["promote"] and not verdict["promoted"]:
            self.note_gate(version, verdict | {"promote": False, "reason": f"withdrawn; it was: {verdict['reason']}"})

    def note_gate(self, version: str, verdict: Mapping[str, Any]) -> None:
        """Write what the gate decided about `version` where everybody sees it: in its tag `gate` and description."""
        self.tag(version, {GATE: json.dumps(verdict)})
        self.describe(version)

    def describe(self, version: str) -> None:
        """Begin a version's description with its gate's verdict and results, by its tags; what stands below stays."""
        described = self.client.get_model_version(self.name, version)
        evaluation, gate = (json.loads(described.tags.get(key, "null")) for key in ("evaluation", GATE))
        verdict = f"{VERDICT}{limits.text(gate['reason'], limits.TEXT // 2)}" if gate else ""
        if gate and gate["promote"] and not gate["promoted"]:
            verdict += YET
        paragraphs = (described.description or "").split("\n\n")
        below = dropwhile(lambda paragraph: paragraph.startswith((VERDICT, "| ")), paragraphs)
        text = limits.text("\n\n".join(filter(None, [verdict, result_table(evaluation or {}), *below])))
        if text != described.description:
            self.client.update_model_version(self.name, version, text)

    def download(self, version: ModelVersion, path: str, folder: Path) -> Path:
        """Copy one file or folder stored with a version into `folder`; what cannot be had is a UserError."""
        import mlflow

        try:
            where = self.client.get_logged_model(model_id(version)).artifact_location
            uri = f"{where.rstrip('/')}/{path}"
            return Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(folder), tracking_uri=self.store.uri))
        except Exception as error:  # every kind of store has errors of its own
            raise UserError(f"{self.name}/{version.version}: no {path} ({reason(error)}); try again.") from error

    def attach_evaluation(self, version: str, root: Path, tags: Mapping[str, str]) -> None:
        """Store (or replace) what a version reached on the held-out tasks, as it lies in the folder `root`.

        Until all of it is stored, the version has no evaluation key: who dies in the middle leaves none to compare by.
        """
        self.tag(version, {"evaluation_key": ""})
        keep_results(self.client, model_id(self.client.get_model_version(self.name, version)), root)
        self.tag(version, tags)
        self.describe(version)


def split_reference(reference: str, default: str) -> tuple[str, str]:
    """Split MODEL[@ALIAS] or MODEL/VERSION into name and alias or number; the alias is `champion` unless given."""
    name, at, alias = reference.partition("@")
    if not at:
        name, at, alias = reference.partition("/")
    if at and not alias:
        raise UserError(f"{reference}: there is no alias behind the {at}; write {default}@champion, for example.")
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
        raise UserError(f"{registry.store.name} cannot {what} ({reason(error)}); try again when it answers.") from error


def utc_now() -> str:
    """Return the time in UTC, to the second, as the registry's tags have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def model_id(version: ModelVersion) -> str:
    """Return the id of the logged model behind a version (`ModelVersion.model_id` itself stays empty)."""
    return str(version.source).removeprefix("models:/")


def logged_name(model: str) -> str:
    """Return the name of the logged models behind the registered `model`; MLflow takes no `.` and `%` there."""
    return re.sub("[.%]", "-", model)


def trained_rows(path: Path) -> list[dict[str, Any]]:
    """Read what became of the trained policy on each task from a per-task result file; lost dialogues are left out."""
    from pyarrow import parquet

    rows = parquet.read_table(path).to_pylist()
    return [row for row in rows if row["policy"] == "trained" and row["reward"] is not None]


def read_rewards(path: Path) -> dict[str, float]:
    """Read task id -> reward of the trained policy from a per-task result file; lost dialogues are left out."""
    return {row["task_id"]: float(row["reward"]) for row in trained_rows(path)}


def headline(path: Path) -> dict[str, Any]:
    """Return the numbers of an evaluation file that fit in a line: its first level, and the differences' intervals."""
    content = read_json(path)
    flat = {key: value for key, value in content.items() if isinstance(value, int | float | str)}
    for name, estimate in content.get("difference", {}).items():
        flat |= {f"{name}_low": estimate["low"], f"{name}_high": estimate["high"]}
    return flat


def cost(runs: Iterable[Run]) -> dict[str, float]:
    """Sum what a version took over its stages: wall seconds, tokens, GPU-seconds (`simulator_`: the user's model)."""
    metrics, total = [item for run in runs for item in run.data.metrics.items()], {}
    for name in (*COUNTED, *(f"simulator/{name}" for name in COUNTED)):
        # evaluate counts each policy's: generated_tokens/base
        if values := [value for metric, value in metrics if f"{metric}/".startswith(f"{name}/")]:
            total[name.replace("/", "_")] = round(sum(values), 1)
    return total


def result_table(evaluation: Mapping[str, Any]) -> str:
    """Return the headline of an evaluation (the first level of evaluation.json) as a table; "" where there is none."""
    rows = []
    for key, label, scale, form in (("success", "tasks solved, %", 100, ".1f"), ("reward", "mean reward", 1, ".3f")):
        names = ("before", "after", "difference", "low", "high")
        if all(f"{key}_{name}" in evaluation for name in names):
            before, after, *difference = (scale * evaluation[f"{key}_{name}"] for name in names)
            change = "{:+{form}} [{:+{form}}, {:+{form}}]".format(*difference, form=form)
            rows.append(f"| **{label}** | {before:{form}} | **{after:{form}}** | {change} |")
    if not rows:
        return ""
    tasks = evaluation.get("tasks")
    sure = f"{evaluation.get('confidence', 0.95):.0%}".replace("%", " %")
    head = f"| {f'on {tasks:,} ' if tasks else ''}held-out tasks | before | after | difference [{sure} interval] |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def run_note(evaluation: Mapping[str, Any], reason: str = "", version: str = "", report: str = "") -> str:
    """Return the description of a pipeline run: the gate's verdict, result, version, report, those that there are."""
    parts = [f"{VERDICT}{reason}"] if reason else []
    parts += [result_table(evaluation)]
    parts += [f"**Registered as** {version}"] if version else []
    parts += [f"**Report:** `{report}`, under Artifacts"] if report else []
    return "\n\n".join(filter(None, parts))


def log_version(
    store: Store,
    tracking: TrackingSettings,
    root: Path,
    config: AgentConfig,
    base: Path,
    trained: str,
    tags: dict[str, str],
    source_run: str | None,
    code: Sequence[str] = (),
) -> str:
    """Store models/policy of `root` as a new version of `tracking.model`, and return its number.

    `base` is the base's folder, if it is one; it is stored, too, if it is no larger than `tracking.base_mib`.
    `trained` says by which method and on which domain. `code` are files and folders of your own below `root`:
    serving needs none of them, they are stored beside dvc.lock and params.yaml, for `sweetrl restore`.

    The version comes last. Where a process died before that, the logged model that it has left is gone on with.
    """
    client, name = store.client, tracking.model
    same = {STORED: digest(name, tags["adapter_hash"], tags["base_hash"])}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        size = sum(path.stat().st_size for path in base.rglob("*") if path.is_file())
        full = is_full(root / POLICY)  # then the base is no part of the agent
        bundled = base if base.is_dir() and size <= tracking.base_mib * MIB and not full else None
        _save(path, Path(folder), root / POLICY, bundled, config)
        left = client.search_logged_models([store.experiment_id], f"tags.{STORED} = '{same[STORED]}'")
        logged = next(iter(left), None) or client.create_logged_model(
            store.experiment_id, logged_name(name), source_run, same, model_type="agent"
        )
        client.log_model_artifacts(logged.model_id, str(path))
        records = Path(folder) / "lineage"
        for name_here in ("dvc.lock", "params.yaml", *code):
            source, place = root / name_here, records / name_here
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, place, ignore=shutil.ignore_patterns(*IGNORED), dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, place)
        client.log_model_artifacts(logged.model_id, str(records), "lineage")
    keep_results(client, logged.model_id, root)
    client.finalize_logged_model(logged.model_id, "READY")
    with allowing("RESOURCE_ALREADY_EXISTS"):
        client.create_registered_model(name, description="SWEET-RL policies")
    created = client.create_model_version(
        name,
        source=f"models:/{logged.model_id}",
        run_id=source_run,
        tags=limits.facts(tags, f"{name}, a new version"),
        description=description(trained, config, bundled is not None, full),
        model_id=logged.model_id,  # servers refuse a source of this kind without it
    )
    return str(created.version)


def keep_results(client: MlflowClient, model_id: str, root: Path) -> None:
    """Store (or replace) with a logged model what the policy of `root` reached on the held-out tasks."""
    with tempfile.TemporaryDirectory() as folder:
        for result in (root / EVALUATION, root / RESULTS, write_dialogue_facts(root, Path(folder))):
            client.log_model_artifact(model_id, str(result), "evaluation")


def write_dialogue_facts(root: Path, folder: Path) -> Path:
    """Write into `folder` what the trained policy's evaluated dialogues of `root` took, and return the file's path.

    By task id: `tokens`, what the agent generated (null where a server did not hand out ids), and `user`, who answered
    it. Without dialogues nothing is known, and the file holds nothing.
    """
    shards, path = root / EVALUATION_DIALOGUES / "trained", folder / DIALOGUES
    facts: dict[str, dict[str, Any]] = {}
    for dialogue in TrajectoryStore(shards).read() if shards.exists() else ():
        counts = [len(turn.token_ids) for turn in dialogue.turns]
        facts[dialogue.task.id] = {"tokens": sum(counts) if all(counts) else None, "user": dialogue.simulator}
    write_json(path, facts)
    return path


def _save(path: Path, scratch: Path, adapter: Path, base: Path | None, config: AgentConfig) -> None:
    import mlflow
    import pandas
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    import sweetrl
    from sweetrl.tracking import agent

    def copied(folder: Path, name: str, *ignored: str) -> str:
        """Under a fixed name: the version says where its parts came from, and no path of ours means anything there."""
        return str(shutil.copytree(folder, scratch / name, ignore=shutil.ignore_patterns(*ignored)))

    artifacts = {"adapter": copied(adapter, POLICY.name, *IGNORED)}
    if base is not None:
        artifacts["base"] = copied(base, "base", *IGNORED)
    message = Schema([ColSpec("string", "role"), ColSpec("string", "content")])
    temperature = ParamSpec("temperature", "double", config.temperature)
    tokens = ParamSpec("max_new_tokens", "long", config.max_new_tokens)
    params = ParamSchema([temperature, ParamSpec("seed", "long", 0), tokens])
    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(agent.__file__),
        artifacts=artifacts,
        code_paths=[copied(Path(str(sweetrl.__file__)).parent, "sweetrl", "__pycache__", ".*")],
        model_config=asdict(config),
        signature=ModelSignature(message, Schema([ColSpec("string")]), params),
        input_example=pandas.DataFrame(EXAMPLE),
        # As a package index has them: behind a plus (torch's 2.8.0+cpu) is a build, which no index of its own has.
        pip_requirements=[f"{name}=={metadata.version(name).partition('+')[0]}" for name in NEEDED],
    )


def description(trained: str, config: AgentConfig, bundled: bool, full: bool = False) -> str:
    """Return what the registry's page says about a version."""
    base = f"{config.base} ({config.base_hash or config.base_revision or 'content not recorded'})"
    where = "stored with it" if bundled else "not stored with it: set SWEETRL_BASE_MODEL to its folder"
    began = f"All weights, trained by {trained}. It began as {base}. "
    return (
        (began if full else f"A peft adapter trained by {trained}. Its base is {base}, {where}. ")
        + f"It talks over at most {config.max_turns} turns. "
        "Input: the messages of one dialogue, ending with the user's; output: the agent's reply."
    )
