"""All parts of a profile, several at a time: each is a stage of dvc.yaml, run by `dvc` as a program.

DVC runs one stage after the other; the variants of a reproduction do not need each other and use one core each.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.io import OWNER_UMASK, private_file, private_folder
from sweetrl.progress import Meter
from sweetrl.reproduce.run import WORK, Profile

logger = logging.getLogger(__name__)
LOGS = WORK / "logs"
MOST = 8  # workers by default: each takes some GiB
STARTER = "SWEETRL_REPRODUCE_STARTER"  # the process of `all`, for the parts that it runs
_LIBRARY = ctypes.CDLL(None)  # loaded here: between fork and exec it must not be
# A variant's folder, and its stages in dvc.yaml: training, and what its policy does then.
_STAGES = {
    "variants": ("variant", "measure"),
    "large": ("large", "measure-large"),
    "online": ("online", "measure-online"),
}


@dataclass(frozen=True)
class Part:
    """A stage of dvc.yaml, `name` as DVC calls it, and the parts that have to be there before it."""

    name: str
    after: frozenset[str] = frozenset()


def parts(profile: Profile) -> list[Part]:
    """Return what can be run side by side, in the order in which it is begun: all but the report.

    A part that needs one which the profile does not list is a UserError: it would be waited for in vain.
    """
    first = [Part("warm-start")] if profile.warms_up else []
    found = [*first, *(Part(f"seed-data@{seed}", frozenset(one.name for one in first)) for seed in profile.seeds)]
    if profile.values.get("large"):
        found.append(Part("base-large"))
    for one in profile.variants:
        for seed in profile.seeds_of(one):
            after = {f"seed-data@{seed}"} | ({"base-large"} if one.folder == "large" else set())
            training, measuring = (f"{stage}@{one.name}-{seed}" for stage in _STAGES[one.folder])
            found += [Part(training, frozenset(after)), Part(measuring, frozenset({*after, training}))]
    for name in profile.values["critics"]:
        for seed in profile.values["best_of_n_seeds"]:
            found.append(Part(f"best-of-n@{name}-{seed}", frozenset({f"seed-data@{seed}", f"variant@{name}-{seed}"})))
    names = {part.name for part in found}
    for part in found:
        if lacking := sorted(part.after - names):
            raise UserError(
                f"{profile.folder / 'params.yaml'}: `{part.name}` needs `{lacking[0]}`, which the profile does not "
                "list; add its seed to `seeds` (its variant to `variants`), or take it out of `large_seeds`, "
                "`online_seeds`, `critics` or `best_of_n_seeds`."
            )
    return found


def default_workers(profile: Profile) -> int:
    """Return how many parts the processors are enough for, by the threads that each is given (0: all of them)."""
    threads = int(profile.settings["model"]["threads"])
    return max(1, min(MOST, (os.cpu_count() or 1) // threads)) if threads else 1


def run_all(profile: Profile, workers: int, program: Sequence[str] = ("dvc",)) -> None:
    """Run every part in `workers` workers, then the report. UserError names the parts that failed.

    What is finished stays finished: the same call goes on after a failure, or after this process was ended.
    """
    private_folder(profile.folder / LOGS)
    board = _Board(parts(profile))
    logger.info("%d parts, %d at a time; what they say is in %s", len(board.waiting), workers, profile.folder / LOGS)
    with Meter("reproduce", len(board.waiting), "parts") as meter:
        arguments = (board, profile.folder, program, meter)
        threads = [threading.Thread(target=_worker, args=arguments) for _ in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            board.stop()  # the programs under way got the signal, too
            raise
    if board.failed:
        first = next(iter(board.failed))
        raise UserError(
            f"reproduce: {', '.join(board.failed)} failed; {profile.folder / LOGS / first}.log says why. What is "
            "finished is kept: run the same command to go on."
        )
    # A profile may list nothing of a kind (`large: []`); DVC wants the folder that the report would read of it.
    for folder in (*_STAGES, "best-of-n", "measured"):
        (profile.folder / folder).mkdir(exist_ok=True)
    # The report alone: dvc.yaml has every variant on every seed, and not all of them are wanted.
    report = [*program, "repro", "--single-item", "dvc.yaml:report"]
    if subprocess.run(report, cwd=profile.folder, check=False).returncode:
        raise UserError("reproduce: the report failed, as said above; run the same command to go on.")


class _Board:
    """Which parts wait, run, are done, or have failed; one lock for all workers."""

    def __init__(self, waiting: list[Part]) -> None:
        self.waiting = list(waiting)
        self.done: set[str] = set()
        self.failed: dict[str, None] = {}
        self._change = threading.Condition()

    def take(self) -> Part | None:
        """Return a part whose needs are met, as soon as there is one; None when no more will come."""
        with self._change:
            while True:
                # What a failed part was needed for is not begun, and is not a failure of its own.
                self.waiting = [each for each in self.waiting if not each.after & self.failed.keys()]
                if not self.waiting:
                    return None
                for part in self.waiting:
                    if part.after <= self.done:
                        self.waiting.remove(part)
                        return part
                self._change.wait()

    def finish(self, part: Part, well: bool, meter: Meter) -> None:
        """Note how a part went."""
        with self._change:
            if well:
                self.done.add(part.name)
            else:
                self.failed[part.name] = None
            meter(1)
            self._change.notify_all()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._change:
            self.waiting = []
            self._change.notify_all()


def end_with_parent() -> None:
    """Let this process end (SIGTERM) when its parent does, however that ends; on Linux. A part of a dead `all` ends."""
    with contextlib.suppress(AttributeError):
        _LIBRARY.prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG
    starter = os.environ.get(STARTER)
    if starter and sys.platform == "linux" and not Path("/proc", starter).exists():  # while this one was starting
        os._exit(128 + signal.SIGTERM)


def _worker(board: _Board, folder: Path, program: Sequence[str], meter: Meter) -> None:
    while (part := board.take()) is not None:
        began = time.monotonic()
        log = folder / LOGS / f"{part.name}.log"
        # Two workers meet at DVC's own lock for a moment, before and after a stage.
        command = [*program, "--wait-for-lock", "repro", "--single-item", f"dvc.yaml:{part.name}"]
        with private_file(log).open("wb") as out:
            # It ends with this process: else the next `all` finds what it makes locked.
            status = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, STARTER: str(os.getpid())},
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                umask=OWNER_UMASK,
                preexec_fn=end_with_parent,
            ).returncode
        how = f"failed with status {status}, see {log}" if status else "done"
        logger.info("%s: %s after %.0f s", part.name, how, time.monotonic() - began)
        board.finish(part, status == 0, meter)


__all__ = ["Part", "default_workers", "parts", "run_all"]
