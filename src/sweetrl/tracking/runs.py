"""One MLflow run, written in batches and never in the way: an unreachable store is a warning, not a failure.

A sample of its dialogues becomes traces (`log_dialogues`), turn by turn, to be read in MLflow's own pages.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import TrackingSettings
from sweetrl.file_hashes import dvc_hash
from sweetrl.seeds import trace_draw
from sweetrl.tracking import limits
from sweetrl.tracking.store import Store, connect, reason, tracking_enabled
from sweetrl.types import Trajectory

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput


logger = logging.getLogger(__name__)

PARENT_VARIABLE = "SWEETRL_PARENT_RUN"  # DVC does not hash the environment, so the parent never invalidates a stage
# What git's hooks hand on to the programs that they start: a repository and an index.
OTHER_REPOSITORY = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}
WRITTEN_BY_RUNS = ":(top,exclude,glob)**/dvc.lock"  # for git
ERROR_TAG = "sweetrl.error"  # what ended a pipeline run that has failed
USER_TAG = "sweetrl.user"  # of an evaluation: who answered the agents, with what decides their words
HARM_TAG = "sweetrl.harm"  # of an evaluation that shows harm, and of its pipeline run: the changes
RETRAINING_TAG = "sweetrl.retraining"  # of a retraining's pipeline run: what its journal calls it
FLUSH_SECONDS = 30.0  # opening MLflow takes about 3 s and one write about 70 ms: batches keep that out of the way
PEOPLE = ("", "human")  # users of imported dialogues, and those at a terminal
LONGEST_NAME = 200  # characters of a task's id
Status = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class DataInput:
    """A data set that a run has read: its name, its path in the project and its DVC hash."""

    name: str
    path: str
    hash: str
    context: str = "input"


def git_environment() -> dict[str, str]:
    """Return the environment for git in the repository of the folder that it is called in, whichever a hook is in."""
    return {name: value for name, value in os.environ.items() if name not in OTHER_REPOSITORY}


def git_state(root: Path | None = None) -> tuple[str, bool]:
    """Return the commit of the checkout at `root` and whether files differ from it; ("", False) where there is none.

    A dvc.lock that differs does not count: it is what runs write, and a version keeps its own.
    """

    def git(*arguments: str) -> str:
        options: dict[str, Any] = {"cwd": root, "env": git_environment(), "capture_output": True, "text": True}
        return subprocess.run(["git", *arguments], check=True, **options).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return commit, bool(git("status", "--porcelain", "--untracked-files=no", "--", ":/", WRITTEN_BY_RUNS))
    except (OSError, subprocess.CalledProcessError):
        return "", False


@dataclass
class _Pending:
    """What was noted and is not written yet."""

    params: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)  # name, value, time in ms, step
    tags: dict[str, str] = field(default_factory=dict)
    inputs: list[DataInput] = field(default_factory=list)
    artifacts: list[tuple[Path, str | None]] = field(default_factory=list)


@dataclass
class RunLog:
    """A run that is opened in MLflow when there is something to write, at the latest by `finish`.

    Calls only fill buffers; they are written when `FLUSH_SECONDS` have gone by, and at the end.
    """

    settings: TrackingSettings
    name: str
    tags: dict[str, str] = field(default_factory=dict)
    parent: str | None = None
    root: Path | None = None
    run_id: str | None = field(default=None, init=False)
    store: Store | None = field(default=None, init=False)
    failure: Exception | None = field(default=None, init=False)  # why it is not recorded any more

    def __post_init__(self) -> None:
        self.enabled = tracking_enabled()
        """Whether this run is (still) recorded."""
        self._started, self._flushed = time.time(), time.monotonic()
        self._pending = _Pending()

    def log_params(self, values: Mapping[str, Any]) -> None:
        """Note parameters; nested mappings become dotted names."""
        self._pending.params.update(flatten(values))

    def log_metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Note one value for each metric at `step`."""
        now = int(time.time() * 1000)
        self._pending.metrics.extend((name, float(value), now, step) for name, value in values.items())
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def log_input(self, name: str, path: Path | str, context: str = "input") -> DataInput:
        """Note that the run reads the file or folder at `path`; it is named by its DVC hash."""
        read = DataInput(name, Path(path).as_posix(), dvc_hash(Path(path)), context)
        self.add_input(read)
        return read

    def add_input(self, read: DataInput) -> None:
        """Note a data set whose hash is known already."""
        self._pending.inputs.append(read)

    def log_artifact(self, path: Path | str, folder: str | None = None) -> None:
        """Copy a file to the run's artifacts at the next writing."""
        self._pending.artifacts.append((Path(path), folder))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Note tags."""
        self._pending.tags.update(tags)

    def take_over(self) -> str | None:
        """Go on with the run that an earlier attempt at this one's retraining has left; return its id, None without.

        It may have been killed or have failed; the runs that it has left open below it are closed.
        """
        self._guarded(self._find)
        return self.run_id

    def open(self) -> str | None:
        """Create the run in MLflow now and return its id; None where tracking is off or the store cannot be reached."""
        self._guarded(self._open)
        return self.run_id

    def flush(self) -> None:
        """Write everything noted so far."""
        self._flushed = time.monotonic()
        self.use(self._write)

    def finish(self, status: Status = "FINISHED") -> None:
        """Write what is left and close the run."""
        self.flush()
        self.use(lambda store, run_id: store.client.set_terminated(run_id, status))

    def close_children(self) -> None:
        """Close as KILLED the runs below this one that a killed process has left open."""
        self.use(_close_children)

    def use(self, action: Callable[[Store, str], object]) -> None:
        """Open the run and call `action(store, run id)`; what goes wrong there is a warning, as with all logging."""
        self._guarded(lambda: action(*self._open()))

    def _guarded(self, action: Callable[[], object]) -> None:
        if not self.enabled:
            return
        try:
            action()
        except Exception as error:  # tracking must never decide whether a stage succeeds
            self.enabled, self.failure = False, error
            logger.warning("MLflow: %s; this run goes on without being recorded.", reason(error))

    def _find(self) -> None:
        store = connect(self.settings, self.root)
        query = f"tags.`{RETRAINING_TAG}` = '{self.tags[RETRAINING_TAG]}'"
        for run in store.client.search_runs([store.experiment_id], query, max_results=1):
            store.client.update_run(run.info.run_id, status="RUNNING")
            if ERROR_TAG in run.data.tags:
                store.client.delete_tag(run.info.run_id, ERROR_TAG)
            _close_children(store, run.info.run_id)
            self.store, self.run_id = store, run.info.run_id

    def _open(self) -> tuple[Store, str]:
        """Return the store and the run's id; the run is created where that has not been done."""
        if self.store is None or self.run_id is None:
            store = connect(self.settings, self.root)
            self.store, self.run_id = store, self._create(store)
        return self.store, self.run_id

    def _create(self, store: Store) -> str:
        tags = {"mlflow.source.name": f"sweetrl {self.name}", "mlflow.source.type": "PROJECT", **self.tags}
        commit, dirty = git_state(self.root)
        if commit:
            tags |= {"mlflow.source.git.commit": commit, "git.dirty": str(dirty).lower()}
        if self.parent:
            tags["mlflow.parentRunId"] = self.parent
        begun = int(self._started * 1000)
        name = limits.text(self.name, limits.KEY)
        run = store.client.create_run(store.experiment_id, start_time=begun, tags=limits.tags(tags), run_name=name)
        return str(run.info.run_id)

    def _write(self, store: Store, run_id: str) -> None:
        from mlflow.entities import Metric, Param, RunTag

        pending = self._pending
        store.client.log_batch(
            run_id,
            [Metric(limits.key(name), value, when, step) for name, value, when, step in pending.metrics],
            [Param(limits.key(name), limits.text(value, limits.PARAM)) for name, value in pending.params.items()],
            [RunTag(name, value) for name, value in limits.tags(pending.tags).items()],
        )
        if pending.inputs:
            store.client.log_inputs(run_id, datasets=[_dataset(read) for read in pending.inputs])
        for path, folder in pending.artifacts:
            store.client.log_artifact(run_id, str(path), folder)
        self._pending = _Pending()


def _close_children(store: Store, run_id: str) -> None:
    query = f"tags.`mlflow.parentRunId` = '{run_id}' and attributes.status = 'RUNNING'"
    for run in store.client.search_runs([store.experiment_id], query):
        store.client.set_terminated(run.info.run_id, "KILLED")


def _dataset(read: DataInput) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name, path = (limits.text(text, limits.DATA_SET) for text in (read.name, read.path))
    dataset = Dataset(name=name, digest=read.hash, source_type="local", source=json.dumps({"uri": read.path}))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", read.context), InputTag("dvc.path", path)])


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Turn nested mappings into dotted names and every value into text, as MLflow's parameters need it."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def log_dialogues(log: RunLog, stores: Mapping[str, TrajectoryStore], tracking: TrackingSettings, seed: int) -> int:
    """Log `tracking.traces` dialogues of each of the `stores` (by policy) to the run; return how many were logged.

    Which ones follows from seed, task and attempt: both policies of an evaluation are traced on the same tasks.
    Dialogues with people are left out unless `tracking.traces_of_people` says that they may be shown.
    """
    if not tracking.traces or not log.enabled:
        return 0
    shown: list[tuple[str, Trajectory]] = []
    for policy, store in stores.items():
        draws = ((trace_draw(seed, row.task.id, row.attempt), place) for place, row in enumerate(store.outlines()))
        dialogues = store.pick(sorted(place for _, place in heapq.nsmallest(tracking.traces, draws)))
        shown += [(policy, each) for each in dialogues if each.simulator not in PEOPLE or tracking.traces_of_people]
    if shown:
        log.use(lambda store, run_id: _write_traces(store, run_id, shown))
    return len(shown)


def _write_traces(store: Store, run_id: str, shown: Sequence[tuple[str, Trajectory]]) -> None:
    import mlflow

    logging.getLogger("mlflow.tracing").setLevel(logging.WARNING)  # it tells at the end of each program that it flushes
    try:
        for policy, dialogue in shown:
            _write_trace(store, run_id, policy, dialogue)
        mlflow.flush_trace_async_logging()
    except Exception as error:  # traces are for reading: without them the run is recorded all the same
        logger.warning("MLflow: %s; dialogues of this run are not traced.", reason(error))


def _write_trace(store: Store, run_id: str, policy: str, dialogue: Trajectory) -> None:
    """Write one dialogue as one trace: a span for each agent turn, verdict and cause on the root."""
    client, task = store.client, _plain(dialogue.task.id)[:LONGEST_NAME]
    attributes: dict[str, Any] = {
        "sweetrl.policy": dialogue.policy or policy,
        "sweetrl.simulator": dialogue.simulator,
        "sweetrl.attempt": dialogue.attempt,
        "sweetrl.outcome": dialogue.outcome,
        **{f"sweetrl.{key}": _plain(value) for key, value in dialogue.extra.items()},
        **({} if dialogue.reward is None else {"sweetrl.reward": dialogue.reward}),
    }
    # The moments are those of logging: dialogues are not timed, so that equal runs give equal files.
    root: Any = client.start_trace(
        name=f"{policy} {task}",
        span_type="AGENT",
        inputs={"request": _plain(dialogue.task.problem_description)},
        attributes=attributes,
        tags={"sweetrl.task": task, "sweetrl.policy": policy, "sweetrl.outcome": dialogue.outcome},
        experiment_id=store.experiment_id,
        run_id=run_id,
    )
    for number, turn in enumerate(dialogue.turns, start=1):
        span = client.start_span(
            name=f"turn {number}",
            trace_id=root.trace_id,
            parent_id=root.span_id,
            span_type="CHAT_MODEL",
            inputs={"user": _plain(dialogue.messages[turn.message_index - 1].content)},
            attributes={"sweetrl.tokens": len(turn.token_ids), "sweetrl.finish_reason": turn.finish_reason},
        )
        client.end_span(root.trace_id, span.span_id, outputs={"agent": _plain(turn.raw)})
    outputs = {"answer": _plain(dialogue.answer or ""), "error": _plain(dialogue.error)}
    client.end_trace(root.trace_id, outputs, status="ERROR" if dialogue.outcome == "lost" else "OK")


def _plain(text: str) -> str:
    """Text that is only shown: no NUL, which PostgreSQL refuses, and no Markdown pictures, which pages would load."""
    return text.replace("\0", "\ufffd").replace("![", "!\u200b[")
