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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.config.settings import TrackingSettings
from sweetrl.file_hashes import dvc_hash
from sweetrl.seeds import trace_draw
from sweetrl.tracking.store import Store, connect, is_missing, tracking_enabled

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.types import Trajectory

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "SWEETRL_PARENT_RUN"  # DVC does not hash the environment, so the parent never invalidates a stage
# What git's hooks hand on to the programs that they start: a repository and an index.
OTHER_REPOSITORY = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}
WRITTEN_BY_RUNS = ":(top,exclude,glob)**/dvc.lock"  # for git
ERROR_TAG = "sweetrl.error"  # what ended a pipeline run that has failed
RETRAINING_TAG = "sweetrl.retraining"  # of a retraining's pipeline run: what its journal calls it
FLUSH_SECONDS = 30.0  # opening MLflow takes about 3 s and one write about 70 ms: batches keep that out of the way
BATCH_METRICS, BATCH_PARAMS, LONGEST_PARAM = 1000, 100, 6000
PEOPLE = ("", "human")  # users of imported dialogues, and those at a terminal
LONGEST_NAME = 200  # characters of a task's id; imported ones are as long as somebody has made them
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

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        own = git_environment()
        return subprocess.run(["git", *arguments], cwd=root, env=own, capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "HEAD")
        if head.returncode:
            return "", False
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", WRITTEN_BY_RUNS).stdout
        return head.stdout.strip(), bool(changed.strip())
    except OSError:
        return "", False


@dataclass
class RunLog:
    """A run that is opened in MLflow when there is something to write, at the latest by `finish`.

    Calls only fill buffers; they are written when `FLUSH_SECONDS` have gone by, and at the end. With the `run_id` of a
    run that was killed or has failed, that run goes on, and the runs that it had left open below it are closed.
    """

    settings: TrackingSettings
    name: str
    tags: dict[str, str] = field(default_factory=dict)
    parent: str | None = None
    root: Path | None = None
    run_id: str | None = None
    store: Store | None = None

    def __post_init__(self) -> None:
        self._enabled = tracking_enabled()
        self._started = time.time()
        self._flushed = time.monotonic()
        self._params: dict[str, str] = {}
        self._metrics: list[tuple[str, float, int, int]] = []  # name, value, time in ms, step
        self._inputs: list[DataInput] = []
        self._artifacts: list[tuple[Path, str | None]] = []
        self._new_tags: dict[str, str] = {}

    @property
    def enabled(self) -> bool:
        """Whether this run is (still) recorded."""
        return self._enabled

    def log_params(self, values: Mapping[str, Any]) -> None:
        """Note parameters; nested mappings become dotted names."""
        self._params.update(flatten(values))
        self._maybe_flush()

    def log_metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Note one value for each metric at `step`."""
        now = int(time.time() * 1000)
        self._metrics.extend((name, float(value), now, step) for name, value in values.items())
        self._maybe_flush()

    def log_metric_series(self, name: str, values: Sequence[float], first_step: int = 0) -> None:
        """Note a whole curve of one metric, a value for each step from `first_step` on."""
        now = int(time.time() * 1000)
        self._metrics.extend((name, float(value), now, first_step + index) for index, value in enumerate(values))
        self._maybe_flush()

    def log_input(self, name: str, path: Path | str, context: str = "input") -> DataInput:
        """Note that the run reads the file or folder at `path`; it is named by its DVC hash."""
        read = DataInput(name, Path(path).as_posix(), dvc_hash(Path(path)), context)
        self.add_input(read)
        return read

    def add_input(self, read: DataInput) -> None:
        """Note a data set whose hash is known already."""
        self._inputs.append(read)

    def log_artifact(self, path: Path | str, folder: str | None = None) -> None:
        """Copy a file to the run's artifacts at the next writing."""
        self._artifacts.append((Path(path), folder))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Note tags."""
        self._new_tags.update(tags)

    def take_over(self, tag: str) -> str | None:
        """Go on with the run that has this one's value of `tag`, and return its id; None where there is none.

        A process that is killed between opening a run and writing its id down has told nobody else.
        """
        self._guarded(lambda: self._find(tag))
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
        self._guarded(self._close_children)

    def use(self, action: Callable[[Store, str], object]) -> None:
        """Open the run and call `action(store, run id)`; what goes wrong there is a warning, as with all logging."""
        self._guarded(lambda: action(*self._open()))

    def _find(self, tag: str) -> None:
        self.store = connect(self.settings, self.root)
        query = f"tags.`{tag}` = '{self.tags[tag]}'"
        if runs := self.store.client.search_runs([self.store.experiment_id], query, max_results=1):
            self.run_id, self.store = runs[0].info.run_id, None  # to be opened again, as after a kill

    def _close_children(self) -> None:
        if self.run_id is None or self.store is None:
            return
        query = f"tags.`mlflow.parentRunId` = '{self.run_id}' and attributes.status = 'RUNNING'"
        for run in self.store.client.search_runs([self.store.experiment_id], query):
            self.store.client.set_terminated(run.info.run_id, "KILLED")

    def _maybe_flush(self) -> None:
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def _guarded(self, action: Callable[[], object]) -> None:
        if not self._enabled:
            return
        try:
            action()
        except Exception as error:  # tracking must never decide whether a stage succeeds
            self._enabled = False
            logger.warning("MLflow: %s; this run goes on without being recorded.", str(error).strip().split("\n")[0])

    def _open(self) -> tuple[Store, str]:
        """Return the store and the run's id; the run is created, or goes on, where that has not been done."""
        if self.run_id is not None and self.store is not None:
            return self.store, self.run_id
        self.store = connect(self.settings, self.root)
        if self.run_id is not None and self._reopened(self.store, self.run_id):
            return self.store, self.run_id
        commit, dirty = git_state(self.root)
        tags = {"mlflow.source.name": f"sweetrl {self.name}", "mlflow.source.type": "PROJECT", **self.tags}
        if commit:
            tags |= {"mlflow.source.git.commit": commit, "git.dirty": str(dirty).lower()}
        if self.parent:
            tags["mlflow.parentRunId"] = self.parent
        run = self.store.client.create_run(
            self.store.experiment_id, start_time=int(self._started * 1000), tags=tags, run_name=self.name
        )
        self.run_id = str(run.info.run_id)
        return self.store, self.run_id

    def _reopened(self, store: Store, run_id: str) -> bool:
        """Let the run `run_id` go on; False where this store does not know it."""
        from mlflow.exceptions import MlflowException

        try:
            run = store.client.get_run(run_id)
        except MlflowException as error:
            if not is_missing(error):
                raise
            return False
        store.client.update_run(run_id, status="RUNNING")
        if ERROR_TAG in run.data.tags:
            store.client.delete_tag(run_id, ERROR_TAG)
        self._close_children()
        return True

    def _write(self, store: Store, run_id: str) -> None:
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(key, value[:LONGEST_PARAM]) for key, value in self._params.items()]
        metrics = [Metric(name, value, when, step) for name, value, when, step in self._metrics]
        tags = [RunTag(key, value) for key, value in self._new_tags.items()]
        while params or metrics or tags:
            store.client.log_batch(run_id, metrics[:BATCH_METRICS], params[:BATCH_PARAMS], tags[:BATCH_PARAMS])
            metrics, params, tags = metrics[BATCH_METRICS:], params[BATCH_PARAMS:], tags[BATCH_PARAMS:]
        if self._inputs:
            store.client.log_inputs(run_id, datasets=[_dataset(read) for read in self._inputs])
        for path, folder in self._artifacts:
            store.client.log_artifact(run_id, str(path), folder)
        self._params, self._metrics, self._inputs, self._artifacts, self._new_tags = {}, [], [], [], {}


def _dataset(read: DataInput) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"uri": read.path})
    dataset = Dataset(name=read.name, digest=read.hash, source_type="local", source=source)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", read.context), InputTag("dvc.path", read.path)])


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
    chosen = {
        policy: sorted(place for _, place in heapq.nsmallest(tracking.traces, _draws(store, seed)))
        for policy, store in stores.items()
    }
    shown = [
        (policy, dialogue)
        for policy, places in chosen.items()
        for dialogue in stores[policy].pick(places)
        if dialogue.simulator not in PEOPLE or tracking.traces_of_people
    ]
    if shown:
        log.use(lambda store, run_id: _write_traces(store, run_id, shown))
    return len(shown)


def _draws(store: TrajectoryStore, seed: int) -> Iterator[tuple[float, int]]:
    for place, outline in enumerate(store.outlines()):
        yield trace_draw(seed, outline.task.id, outline.attempt), place


def _write_traces(store: Store, run_id: str, shown: Sequence[tuple[str, Trajectory]]) -> None:
    import mlflow

    logging.getLogger("mlflow.tracing").setLevel(logging.WARNING)  # it tells at the end of each program that it flushes
    try:
        for policy, dialogue in shown:
            _write_trace(store, run_id, policy, dialogue)
        mlflow.flush_trace_async_logging()
    except Exception as error:  # traces are for reading: without them the run is recorded all the same
        logger.warning("MLflow: %s; dialogues of this run are not traced.", str(error).strip().split("\n")[0])


def _write_trace(store: Store, run_id: str, policy: str, dialogue: Trajectory) -> None:
    """Write one dialogue as one trace: a span for each agent turn, verdict and cause on the root."""
    client = store.client
    task = _plain(dialogue.task.id)[:LONGEST_NAME]
    attributes: dict[str, Any] = {
        "sweetrl.policy": dialogue.policy or policy,
        "sweetrl.simulator": dialogue.simulator,
        "sweetrl.attempt": dialogue.attempt,
        "sweetrl.outcome": dialogue.outcome,
        **{f"sweetrl.{key}": _plain(value) for key, value in dialogue.extra.items()},
    }
    if dialogue.reward is not None:
        attributes["sweetrl.reward"] = dialogue.reward
    # The moments are those of logging: dialogues are not timed, so that equal runs give equal files.
    now = time.time_ns()
    root: Any = client.start_trace(
        name=f"{policy} {task}",
        span_type="AGENT",
        inputs={"request": _plain(dialogue.task.problem_description)},
        attributes=attributes,
        tags={"sweetrl.task": task, "sweetrl.policy": policy, "sweetrl.outcome": dialogue.outcome},
        experiment_id=store.experiment_id,
        start_time_ns=now,
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
            start_time_ns=now + number,
        )
        client.end_span(root.trace_id, span.span_id, outputs={"agent": _plain(turn.raw)}, end_time_ns=now + number + 1)
    client.end_trace(
        root.trace_id,
        outputs={"answer": _plain(dialogue.answer or ""), "error": _plain(dialogue.error)},
        status="ERROR" if dialogue.outcome == "lost" else "OK",
        end_time_ns=now + len(dialogue.turns) + 2,
    )


def _plain(text: str) -> str:
    """Text that is only shown: MLflow's pages read Markdown, whose pictures they load from wherever a dialogue says.

    A zero-width space takes a picture's mark apart. NUL characters are replaced: PostgreSQL takes them nowhere.
    """
    return text.replace("\0", "\ufffd").replace("![", "!\u200b[")
