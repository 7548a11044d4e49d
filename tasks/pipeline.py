"""The stages of dvc.yaml: order and state are read in-process through DVC, changed ones run in a subprocess."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.errors import UserError
from sweetrl.io import atomic_path, read_json
from sweetrl.paths import RUNS
from sweetrl.stages.scratch import remove_recorded
from tasks.process import TimeLimitExceeded, run_program

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.repo.index import Index

Status = Literal["ran", "restored", "skipped", "left"]
HOURS = 3600.0


@dataclass(frozen=True)
class Policy:
    """How a stage is run, by its name; never what it depends on (dvc.yaml says that).

    `limit` in seconds; `retries` are for lost connections and killed machines: a stage that says what is wrong with its
    input is not tried again. Prefect limits how many runs with one of the `tags` go on at a time.
    """

    limit: float = 2 * HOURS
    retries: int = 0
    retry_seconds: float = 30.0
    tags: tuple[str, ...] = ()


POLICIES: dict[str, Policy] = {
    "pretrain": Policy(limit=24 * HOURS, tags=("accelerator",)),
    "collect": Policy(limit=24 * HOURS, retries=2, tags=("accelerator", "rollout")),
    "train-critic": Policy(limit=48 * HOURS, retries=1, tags=("accelerator",)),
    "rank": Policy(limit=24 * HOURS, retries=2, tags=("accelerator",)),
    "train-policy": Policy(limit=48 * HOURS, retries=1, tags=("accelerator",)),
    "evaluate": Policy(limit=24 * HOURS, retries=2, tags=("accelerator", "rollout")),
    "iterate": Policy(limit=96 * HOURS, retries=2, tags=("accelerator", "rollout")),
    "evaluate-iterations": Policy(limit=24 * HOURS, retries=2, tags=("accelerator", "rollout")),
}

# Stages that stand in a pipeline file of their own, which `run_pipeline` does not run.
PIPELINE = "dvc.yaml"
LOST = "failed to transfer"  # DVC's words about a file that it could not copy
FILES = {"iterate": "iterations/dvc.yaml", "evaluate-iterations": "iterations/dvc.yaml"}


@dataclass(frozen=True)
class Selection:
    """The stages from `begin` to `until`, in the order in which they run; without the two, all."""

    begin: str | None = None
    until: str | None = None

    def of(self, order: Sequence[str]) -> set[str]:
        """Return those of the stages in `order` that are taken: `begin` and what comes behind, up to `until`."""
        first = order.index(self.begin) if self.begin else 0
        last = order.index(self.until) if self.until else len(order) - 1
        if first > last:
            raise UserError(f"--from {self.begin} --until {self.until}: {self.until} comes first; exchange the two.")
        return set(order[first : last + 1])


@dataclass(frozen=True)
class StageResult:
    """What became of a stage: it ran, was restored from DVC's cache, had not changed, or was left as it is."""

    stage: str
    status: Status
    seconds: float = 0.0
    run_id: str | None = None
    summary: str = ""


class StageFailed(UserError):
    """A stage failed; `told` says whether the stage itself explained it (then trying again is pointless)."""

    def __init__(self, stage: str, reason: str, told: bool = False):
        self.stage, self.reason, self.told = stage, reason, told
        super().__init__(f"stage {stage} failed: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return StageFailed, (self.stage, self.reason, self.told)


def policy_of(stage: str) -> Policy:
    """Return how `stage` is run."""
    return POLICIES.get(stage, Policy())


@contextlib.contextmanager
def open_repo(root: Path) -> Iterator[Repo]:
    """Open the DVC project at `root`, quietly and without analytics; a folder that is none is a UserError."""
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    try:
        with Repo(str(root)) as repo:
            yield repo
    except DvcException as error:
        raise UserError(f"{root}: {_one_line(str(error))}") from error


def stage_order(root: Path) -> list[str]:
    """Return the names of the stages in dvc.yaml, each after those it depends on, from DVC's own index."""
    import networkx

    with open_repo(root) as repo:
        return [str(stage.name) for stage in networkx.dfs_postorder_nodes(_index(repo).graph)]


@contextlib.contextmanager
def open_index(root: Path) -> Iterator[tuple[Repo, Index]]:
    """Open the DVC project at `root` and the index of its dvc.yaml."""
    with open_repo(root) as repo:
        yield repo, _index(repo)


def _index(repo: Repo, file: str = PIPELINE) -> Index:
    """DVC's index of one pipeline file; the project's other pipelines, of hundreds of stages, are not read."""
    from dvc.repo.index import Index

    return Index.from_file(repo, str(Path(repo.root_dir) / file))


def changed_stages(root: Path, names: list[str] | None = None) -> set[str]:
    """Return those of the stages `names` (default: all) whose command, parameters, inputs or outputs have changed."""
    from dvc.repo import lock_repo

    with open_repo(root) as repo, lock_repo(repo):
        stages = {str(stage.name): stage for stage in _index(repo).stages}
        return {name for name in names or stages if stages[name].changed()}


def stage_states(root: Path) -> dict[str, bool]:
    """Return stage -> whether anything of it has changed, for all stages, in the order of `stage_order`."""
    import networkx
    from dvc.repo import lock_repo

    with open_repo(root) as repo, lock_repo(repo):
        return {str(stage.name): stage.changed() for stage in networkx.dfs_postorder_nodes(_index(repo).graph)}


def not_stored(root: Path, stage: str) -> list[str]:
    """Return the outputs of `stage` that its dvc.lock names and DVC's cache does not hold."""
    with open_repo(root) as repo:
        found = next(one for one in _index(repo, FILES.get(stage, PIPELINE)).stages if one.name == stage)
        return sorted(str(out) for out in found.outs if out.use_cache and out.changed_cache())


def unrecorded(root: Path) -> list[str]:
    """Return the outputs of the pipeline that are not what dvc.lock says, and not in DVC's cache as they are."""
    from dvc.repo import lock_repo

    with open_repo(root) as repo, lock_repo(repo):
        there = [out for stage in _index(repo).stages for out in stage.outs if out.use_cache and out.exists]
        changed = [(out, out.get_hash()) for out in there if out.changed_checksum()]
        return sorted(str(out) for out, found in changed if not out.cache.exists(found.value))


def run_facts(root: Path, stage: str) -> dict[str, Any]:
    """Return the stage's run file; empty where there is none (data pulled without it, or the frozen base model)."""
    path = root / RUNS / f"{stage}.json"
    with contextlib.suppress(UserError):
        found = read_json(path) if path.exists() else {}
        return found if isinstance(found, dict) else {}
    return {}


def skipped(root: Path, stage: str) -> StageResult:
    """Return the result of a stage with nothing to do."""
    facts = run_facts(root, stage)
    return StageResult(stage, "skipped", 0.0, facts.get("run_id"), facts.get("summary", ""))


def left(root: Path, stage: str) -> StageResult:
    """Return the result of a stage that was not asked for."""
    facts = run_facts(root, stage)
    return StageResult(stage, "left", 0.0, facts.get("run_id"), facts.get("summary", ""))


def stage_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a stage: this Python first on the PATH, no analytics, lines as they are printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    fixed = {"PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1"}
    fixed["SWEETRL_DIE_WITH_PARENT"] = str(os.getpid())
    return {**os.environ, **fixed, **(extra or {})}


def execute_stage(
    root: Path,
    stage: str,
    env: Mapping[str, str] | None = None,
    line: Callable[[str], None] = print,
    limit: float | None = None,
) -> StageResult:
    """Bring one stage up to date with `dvc repro --single-item`; raises StageFailed with one sentence.

    The stage runs in its own process group, which is stopped on errors and past `limit` seconds (default: the policy).
    A result that DVC could not put into its cache is no result: dvc.lock is as it was then, and nothing is lost.
    """
    limit = policy_of(stage).limit if limit is None else limit
    address = f"{FILES[stage]}:{stage}" if stage in FILES else stage
    lock = (root / FILES.get(stage, PIPELINE)).with_suffix(".lock")
    before = lock.read_bytes() if lock.exists() else None
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", address]
    started = time.monotonic()
    lines: list[str] = []

    def take(text: str) -> None:
        lines.append(text)
        del lines[:-400]
        if text and not _noise(text):
            line(text)

    sources = root / "src"
    # A worktree runs its own sources, whichever checkout is the installed one.
    own = {"PYTHONPATH": os.pathsep.join(filter(None, [str(sources), os.environ.get("PYTHONPATH", "")]))}
    try:
        code = run_program(command, root, stage_environment({**own, **(env or {})}), limit, take)
    except TimeLimitExceeded as error:
        hint = "finished work is kept: run the same command again to go on, or raise its limit in tasks/pipeline.py"
        raise StageFailed(
            stage, f"it took longer than its limit of {_duration(limit)} and was stopped; {hint}."
        ) from error
    if code:
        raise failure(stage, lines, code)
    status = _status(stage, lines)
    if status != "skipped" and (missing := not_stored(root, stage)):
        _put_back(lock, before)
        raise _storing_failed(stage, ", ".join(missing), lines)
    remove_recorded(root)
    seconds = time.monotonic() - started
    facts = run_facts(root, stage)
    return StageResult(stage, status, seconds, facts.get("run_id"), facts.get("summary", ""))


def _put_back(lock: Path, before: bytes | None) -> None:
    """Make dvc.lock what it was: it must name no data that are nowhere. On a full disk it may have to stay."""
    with contextlib.suppress(UserError):
        if before is None:
            lock.unlink(missing_ok=True)
        else:
            with atomic_path(lock, shared=True) as temporary:
                temporary.write_bytes(before)


def _storing_failed(stage: str, what: str, lines: list[str]) -> StageFailed:
    """The sentence about outputs that DVC could not put into its cache: often it ends with status 0 all the same."""
    said = [text for text in lines if LOST in text]
    reason = re.search(r"\[Errno \d+\] ([^:]+)", said[-1]) if said else None
    why = f" ({reason[1].strip()})" if reason else ""
    hint = "make room or mend it (`dvc cache dir` says where it is) and run the same command again: the work is kept."
    return StageFailed(stage, f"DVC could not put {what} into its cache{why}; {hint}", told=True)


def failure(stage: str, lines: list[str], code: int) -> StageFailed:
    """Turn the last lines of a failed stage into one sentence: its own error, or what DVC or the system says."""
    for text in reversed(lines):
        if text.startswith("error: "):
            return StageFailed(stage, text.removeprefix("error: "), told=True)
    said = "\n".join(lines)
    if LOST in said:
        return _storing_failed(stage, "its result", lines)
    if "Unable to acquire lock" in said or "is busy" in said:
        return StageFailed(stage, "another run is at work in this folder; wait for it to end.", told=True)
    number = _signal(code)
    if exited := re.search(r"exited with (-?\d+)", said):
        number = number or _signal(int(exited[1]))
    if number:
        why = ", perhaps for lack of memory" if number == 9 else ""
        return StageFailed(stage, f"it was killed (signal {number}{why}); run the same command again to go on.")
    errors = [text for text in lines if text.startswith("ERROR: ")]
    crashed = [text for text in lines if re.match(r"\w[\w.]*(Error|Exception|Interrupt)\b", text)]
    if crashed:
        return StageFailed(stage, f"{_one_line(crashed[-1])} (the full trace is in the log)")
    reason = errors[-1].removeprefix("ERROR: ") if errors else lines[-1] if lines else f"exit status {code}"
    return StageFailed(stage, _one_line(reason), told=bool(errors) and "failed to run" not in reason)


def _signal(code: int) -> int:
    """The signal in an exit status, 0 if none: -n of a program run directly, 128 + n of one run by a shell."""
    return -code if code < 0 else code - 128 if 128 < code < 128 + signal.NSIG else 0


def _status(stage: str, lines: list[str]) -> Status:
    for text in lines:
        if "is cached - skipping run" in text:
            return "restored"
        if "didn't change, skipping" in text:
            return "skipped"
        if text.startswith("Running stage"):
            return "ran"
    return "skipped"  # a frozen stage is only verified


def _noise(text: str) -> bool:
    """DVC's advice for people at a prompt."""
    noise = (
        "Use `dvc push`",
        "To track the changes",
        "To enable auto staging",
        "git add ",
        "dvc config core.",
        "> python",
    )
    lock = ("Updating lock file", "Generating lock file", "Verifying outputs in frozen stage")
    return text.strip().startswith(noise + lock) or "is frozen. Its dependencies" in text


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _duration(seconds: float) -> str:
    return f"{seconds / HOURS:g} hours" if seconds >= HOURS else f"{seconds:g} s"
