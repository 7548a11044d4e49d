"""The stages of dvc.yaml: order and state are read in-process through DVC, changed ones run in a subprocess."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.console.logs import work_alone
from sweetrl.errors import UserError
from sweetrl.io import OWNER_UMASK, atomic_path, read_json
from sweetrl.paths import RUNS
from sweetrl.stages.scratch import remove_recorded

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage

Status = Literal["ran", "restored", "skipped", "left"]
HOURS = 3600.0


@dataclass(frozen=True)
class Policy:
    """How a stage is run; never what it depends on (dvc.yaml says that). `limit` in seconds.

    `retries` are for lost connections and killed machines: a stage that says what is wrong with its input is not tried
    again.
    """

    limit: float = 2 * HOURS
    retries: int = 0


POLICIES: dict[str, Policy] = {
    "pretrain": Policy(24 * HOURS),
    "collect": Policy(24 * HOURS, 2),
    "train-critic": Policy(48 * HOURS, 1),
    "rank": Policy(24 * HOURS, 2),
    "train-policy": Policy(48 * HOURS, 1),
    "evaluate": Policy(24 * HOURS, 2),
    "iterate": Policy(96 * HOURS, 2),
    "evaluate-iterations": Policy(24 * HOURS, 2),
}

PIPELINE = "dvc.yaml"
# Stages that stand in a pipeline file of their own, which `run_pipeline` does not run.
FILES = {"iterate": "iterations/dvc.yaml", "evaluate-iterations": "iterations/dvc.yaml"}
LOST = "failed to transfer"  # DVC's words about a file that it could not copy
# DVC's advice for people at a prompt, and what it does with its own files.
NOISE = (
    *("Use `dvc push`", "To track the changes", "To enable auto staging", "git add ", "dvc config core.", "> python"),
    *("Updating lock file", "Generating lock file", "Verifying outputs in frozen stage"),
)
KEPT_LINES = 400  # of a stage's output, to find what went wrong
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Selection:
    """The stages from `begin` to `until`, in the order in which they run; without the two, all."""

    begin: str = ""
    until: str = ""

    def of(self, order: Sequence[str]) -> set[str]:
        """Return those of the stages in `order` that are taken: `begin` and what comes behind, up to `until`."""
        first = order.index(self.begin) if self.begin else 0
        last = order.index(self.until) if self.until else len(order) - 1
        if first > last:
            raise UserError(f"--from {self.begin} --until {self.until}: {self.until} comes first; exchange the two.")
        return set(order[first : last + 1])


ALL = Selection()


@dataclass(frozen=True)
class StageResult:
    """What became of a stage: it ran, was restored from DVC's cache, had not changed, or was left as it is."""

    stage: str
    status: Status
    seconds: float = 0.0
    summary: str = ""


class StageFailed(UserError):
    """A stage failed; `explained`: by the stage itself (then trying again is pointless)."""

    def __init__(self, stage: str, reason: str, explained: bool = False):
        self.stage, self.reason, self.explained = stage, reason, explained
        super().__init__(f"stage {stage} failed: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return StageFailed, (self.stage, self.reason, self.explained)


def policy_of(stage: str) -> Policy:
    """Return how `stage` is run."""
    return POLICIES.get(stage, Policy())


@contextlib.contextmanager
def open_repo(root: Path) -> Iterator[Repo]:
    """Open the DVC project at `root`, quietly and without analytics; a folder that is none is a UserError."""
    work_alone()
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    try:
        with Repo(str(root)) as repo:
            yield repo
    except DvcException as error:
        raise UserError(f"{root}: {_one_line(str(error))}") from error
    except FileNotFoundError as error:  # DVC follows the links of a folder into a cache that others may have cleaned
        if not error.filename or not Path(error.filename).is_symlink():
            raise
        hint = "remove the link and run again (`dvc fetch` for what no stage makes)"
        raise UserError(
            f"{error.filename}: this link leads to nothing, DVC's cache has lost the file; {hint}."
        ) from error


@contextlib.contextmanager
def open_stages(root: Path, file: str = PIPELINE) -> Iterator[dict[str, Stage]]:
    """Yield the stages of one pipeline file of the DVC project at `root`, each after those it depends on."""
    import networkx
    from dvc.repo import lock_repo
    from dvc.repo.index import Index

    with open_repo(root) as repo, lock_repo(repo):
        graph = Index.from_file(repo, str(Path(repo.root_dir) / file)).graph
        yield {str(stage.name): stage for stage in networkx.dfs_postorder_nodes(graph)}


def stage_states(root: Path, names: Sequence[str] | None = None) -> dict[str, bool]:
    """Return stage (of `names`) -> whether its command, parameters, inputs or outputs have changed, in order."""
    with open_stages(root) as stages:
        return {name: stage.changed() for name, stage in stages.items() if names is None or name in names}


def changed_stages(root: Path, names: Sequence[str] | None = None) -> set[str]:
    """Return those of the stages `names` (default: all) that have changed."""
    return {stage for stage, changed in stage_states(root, names).items() if changed}


def unrecorded(root: Path) -> list[str]:
    """Return the outputs of the pipeline that are not what dvc.lock says, and not in DVC's cache as they are."""
    with open_stages(root) as stages:
        there = [out for stage in stages.values() for out in stage.outs if out.use_cache and out.exists]
        changed = [(out, out.get_hash()) for out in there if out.changed_checksum()]
        return sorted(str(out) for out, now in changed if not out.cache.exists(now.value))


def result_of(root: Path, stage: str, status: Status, seconds: float = 0.0) -> StageResult:
    """Return what became of a stage, with what its run file says; data may have been pulled without it."""
    path = root / RUNS / f"{stage}.json"
    facts = read_json(path) if path.exists() else {}
    return StageResult(stage, status, seconds, facts.get("summary", ""))


def stage_environment(root: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a stage: this Python and the sources of `root` first, lines as they are printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    sources = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH", "")]))
    fixed = {"PATH": path, "PYTHONPATH": sources, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1"}
    fixed["SWEETRL_DIE_WITH_PARENT"] = str(os.getpid())
    return {**os.environ, **fixed, **(extra or {})}


def run_command(
    stage: str, command: Sequence[str], cwd: Path, env: Mapping[str, str], line: Callable[[str], None] = print
) -> list[str]:
    """Run a command of `stage` and return its last lines; `line` gets those of stdout and stderr as they come.

    StageFailed where it fails, or goes on past the stage's limit. What it writes is for its owner alone. Past the
    limit, when this process is interrupted, and when the command has ended without its children, the whole process
    group is stopped: SIGTERM, then SIGKILL.
    """
    limit, lines, overdue = policy_of(stage).limit, list[str](), Event()
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        umask=OWNER_UMASK,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )

    def watch() -> None:
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            overdue.set()
        _stop_group(process)  # a child that is left would keep the pipe open

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    assert process.stdout is not None
    try:
        for written in process.stdout:
            text = written.decode("utf-8", errors="replace").rstrip().split("\r")[-1]
            lines.append(text)
            del lines[:-KEPT_LINES]
            if text and not text.strip().startswith(NOISE) and "is frozen. Its dependencies" not in text:
                line(text)
    finally:
        _stop_group(process)
        watcher.join()
        process.stdout.close()
    if overdue.is_set():
        hint = "finished work is kept: run the same command again to go on, or raise the limit in tasks/pipeline.py"
        raise StageFailed(stage, f"it ran past its limit of {timedelta(seconds=limit)} and was stopped; {hint}.")
    if process.returncode:
        raise failure(stage, lines, process.returncode)
    return lines


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and everything in its group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    """In the child: ask the kernel for SIGTERM when the flow is killed so hard that it cannot stop us itself."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def execute_stage(
    root: Path,
    stage: str,
    env: Mapping[str, str] | None = None,
    line: Callable[[str], None] = print,
) -> StageResult:
    """Bring one stage up to date with `dvc repro --single-item`; raises StageFailed with one sentence.

    A result that DVC could not put into its cache is no result: dvc.lock is as it was then, and nothing is lost.
    """
    file = FILES.get(stage, PIPELINE)
    lock = (root / file).with_suffix(".lock")
    before = lock.read_bytes() if lock.exists() else None
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", f"{file}:{stage}"]
    started = time.monotonic()
    lines = run_command(stage, command, root, stage_environment(root, env), line)
    status = _status(lines)
    if status != "skipped" and _not_stored(root, file, stage):
        with contextlib.suppress(UserError):  # on a full disk it may have to stay
            if before is None:
                lock.unlink(missing_ok=True)
            else:
                with atomic_path(lock, shared=True) as temporary:
                    temporary.write_bytes(before)
        raise _storing_failed(stage)
    remove_recorded(root)
    return result_of(root, stage, status, time.monotonic() - started)


def _not_stored(root: Path, file: str, stage: str) -> bool:
    """Whether dvc.lock names outputs of `stage` that DVC's cache does not hold; DVC may end with status 0 then."""
    with open_stages(root, file) as stages:
        return any(out.use_cache and out.changed_cache() for out in stages[stage].outs)


def _storing_failed(stage: str) -> StageFailed:
    hint = "make room or mend it (`dvc cache dir` says where it is) and run the same command again: the work is kept."
    return StageFailed(stage, f"DVC could not put its result into the cache; {hint}", explained=True)


def failure(stage: str, lines: Sequence[str], code: int) -> StageFailed:
    """Turn the last lines of a failed stage into one sentence: its own error, or what DVC or the system says."""
    own = [text.removeprefix("error: ") for text in lines if text.startswith("error: ")]
    if own:
        return StageFailed(stage, own[-1], explained=True)
    output = "\n".join(lines)
    if LOST in output:
        return _storing_failed(stage)
    if "Unable to acquire lock" in output or "is busy" in output:
        return StageFailed(stage, "another run is at work in this folder; wait for it to end.", explained=True)
    exited = re.search(r"exited with (-?\d+)", output)
    if number := _signal(code) or (_signal(int(exited[1])) if exited else 0):
        why = ", perhaps for lack of memory" if number == signal.SIGKILL else ""
        return StageFailed(stage, f"it was killed (signal {number}{why}); run the same command again to go on.")
    crashed = [text for text in lines if re.match(r"\w[\w.]*(Error|Exception|Interrupt)\b", text)]
    if crashed:
        return StageFailed(stage, f"{_one_line(crashed[-1])} (the full trace is in the log)")
    errors = [text.removeprefix("ERROR: ") for text in lines if text.startswith("ERROR: ")]
    reason = (errors or lines or [f"exit status {code}"])[-1]
    return StageFailed(stage, _one_line(reason), explained=bool(errors) and "failed to run" not in reason)


def _signal(code: int) -> int:
    """The signal in an exit status, 0 if none: -n of a program run directly, 128 + n of one run by a shell."""
    return -code if code < 0 else code - 128 if 128 < code < 128 + signal.NSIG else 0


def _status(lines: Sequence[str]) -> Status:
    for text in lines:
        if "is cached - skipping run" in text:
            return "restored"
        if "didn't change, skipping" in text:
            return "skipped"
        if text.startswith("Running stage"):
            return "ran"
    return "skipped"  # a frozen stage is only verified


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
