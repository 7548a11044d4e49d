"""Retrainings with a fault at a random moment, and a table of their outcomes.

Every run draws a fault, the step of the journal after which it begins, a delay and how long it lasts. What ends a run
is kept; then the documented way to finish is taken, and git, S3 and registry are compared.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from sweetrl.io import write_json
from tests.services.checks import Books
from tests.services.faults import SmallDisk
from tests.services.servers import Server, Worker
from tests.services.team import ENDED, Checkout, Done

STEPS = ("taking", "taken", "worktree", "trained", "pushed", "registered", "decided", "merged", "promoted")
PATIENCE = 300.0  # seconds that a run may take, with all tries of all clients


@dataclass
class Row:
    """One run with its fault and its outcome: "right", or what was wrong."""

    seed: int
    fault: str
    after: str
    how: str
    ended: str
    message: str
    finished: str
    outcome: str
    seconds: float


class Trouble:
    """A fault that lasts from `begin` to `end`."""

    def __init__(
        self, begin: Callable[[], object], end: Callable[[], object] = lambda: None, lasts: float = 0.0
    ) -> None:
        self.begin, self.end, self.lasts = begin, end, lasts


class Runs:
    """Random runs in one checkout; `disk` is the small one that the checkout lies on, None where there is none."""

    def __init__(self, checkout: Checkout, books: Books, worker: Worker, disk: SmallDisk | None) -> None:
        self.checkout, self.books, self.worker, self.disk = checkout, books, worker, disk
        self.rows: list[Row] = []

    def kinds(self) -> dict[str, Callable[[random.Random], Trouble]]:
        """Name -> how the fault is made; `Trouble.begin` is called while a retraining is at work."""
        team = self.checkout.team

        def server(service: Server) -> Callable[[random.Random], Trouble]:
            def made(chance: random.Random) -> Trouble:
                hard = chance.random() < 0.5
                return Trouble(lambda: service.stop(hard), service.start, chance.uniform(0, 20))

            return made

        def refusal(status: int) -> Callable[[random.Random], Trouble]:
            return lambda chance: Trouble(
                lambda: team.to_s3.refuse(status), lambda: team.to_s3.refuse(0), chance.uniform(1, 60)
            )

        makers: dict[str, Callable[[random.Random], Trouble]] = {
            "PostgreSQL stopped and started": server(team.postgres),
            "MLflow stopped and started": server(team.mlflow),
            "Prefect stopped and started": server(team.prefect),
            "S3 stopped and started": server(team.s3),
            "S3 answers 503": refusal(503),
            "S3 answers 403": refusal(403),
            "connections to the S3 broken off": lambda chance: Trouble(team.to_s3.cut),
            "kill -9 of the flow": lambda chance: Trouble(lambda: self.signal("flow", signal.SIGKILL)),
            "Ctrl-C": lambda chance: Trouble(lambda: self.signal("flow", signal.SIGINT)),
            "SIGTERM to the flow": lambda chance: Trouble(lambda: self.signal("flow", signal.SIGTERM)),
            "kill -9 of what the flow runs": lambda chance: Trouble(lambda: self.signal("child", signal.SIGKILL)),
            "git's origin refuses": lambda chance: Trouble(self.refuse_pushes, self.take_pushes, chance.uniform(1, 30)),
            "two at once, one killed": lambda chance: Trouble(lambda: self.signal("flow", signal.SIGKILL)),
        }
        if self.disk is not None:
            makers["disk full"] = lambda chance: self.full_disk(chance)
        return makers

    def full_disk(self, chance: random.Random) -> Trouble:
        assert self.disk is not None
        left = chance.choice([0, 8, 40, 200, 1000])
        return Trouble(lambda: self.disk.fill(left), self.disk.free, chance.uniform(10, 60))

    def refuse_pushes(self) -> None:
        hook = self.checkout.origin / "hooks/pre-receive"
        hook.write_text("#!/bin/sh\necho 'no pushes now' >&2\nexit 1\n")
        hook.chmod(0o755)

    def take_pushes(self) -> None:
        (self.checkout.origin / "hooks/pre-receive").unlink(missing_ok=True)

    def signal(self, target: str, number: signal.Signals) -> None:
        """Send a signal to the flow that is at work, or to one of the programs that it runs."""
        with contextlib.suppress(psutil.Error):
            if target == "flow":
                self.flow().send_signal(number)
            else:
                children = self.flow().children(recursive=True)
                if children:
                    children[-1].send_signal(number)

    def flow(self) -> psutil.Process:
        """The process of the flow that was started last, by hand or by the worker."""
        if self.by_hand is not None:
            return psutil.Process(self.by_hand.pid)
        assert self.worker.process is not None
        below = psutil.Process(self.worker.process.pid).children(recursive=True)
        flows = [process for process in below if "prefect" in " ".join(process.cmdline())]
        if not flows:
            raise psutil.NoSuchProcess(0)
        return flows[-1]

    by_hand: subprocess.Popen[str] | None = None

    def run(self, seed: int) -> Row:
        """Make one run with the fault that `seed` draws, finish it, and check the books."""
        chance = random.Random(seed)
        name = chance.choice(sorted(self.kinds()))
        through_worker = chance.random() < 0.3 and name not in ("Ctrl-C", "two at once, one killed")
        after, delay = chance.choice(STEPS), chance.uniform(0, 3)
        trouble = self.kinds()[name](chance)
        began = time.monotonic()
        done, other = self.attempt(name, trouble, through_worker, after, delay)
        ended = "went on" if done.code == 0 else "killed" if done.code < 0 else "failed"
        wrong = [] if done.code <= 0 else not_one_sentence(done)
        if other is not None and other.code:
            wrong += not_one_sentence(other)
        finished = ""
        for _ in range(3):
            if not self.checkout.unfinished():
                break
            continued = self.checkout.run("flows.retrain", "--continue")
            finished = "by --continue"
            if continued.code:
                wrong += [f"--continue: {continued.message or continued.err[-300:]}"]
        with contextlib.suppress(OSError):
            self.take_pushes()
        try:
            self.books.check()
        except AssertionError as error:
            wrong.append(str(error).strip().splitlines()[0][:300])
        message = self.short(done.message)
        row = Row(
            seed,
            name,
            after,
            "worker" if through_worker else "by hand",
            ended,
            message,
            finished,
            "; ".join(wrong) or "right",
            round(time.monotonic() - began, 1),
        )
        self.rows.append(row)
        return row

    def short(self, text: str) -> str:
        """A message without paths, ports and branch names, which differ from machine to machine."""
        text = text.removeprefix("error: ").replace(str(self.checkout.root), "~")
        text = re.sub(r"retrain/[\w-]+|retrain-\d\w+(-\d+)?", "retrain/...", text)
        return re.sub(r"127\.0\.0\.1:\d+", "server", text)[:400]

    def attempt(
        self, name: str, trouble: Trouble, through_worker: bool, after: str, delay: float
    ) -> tuple[Done, Done | None]:
        """Run a retraining with a fault; return how it ended, and how a second one beside it ended."""
        before = self.checkout.count(after)
        self.by_hand, flow_run, beside = None, "", None
        if through_worker:
            flow_run = self.checkout.ask("nightly")
        else:
            beside = self.checkout.start("flows.retrain") if name.startswith("two at once") else None
            self.by_hand = self.checkout.start("flows.retrain")
        deadline = time.monotonic() + PATIENCE
        while self.checkout.count(after) == before and not self.over(flow_run) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(delay)
        trouble.begin()
        try:
            until = time.monotonic() + trouble.lasts
            while time.monotonic() < until and (not self.over(flow_run) or flow_run):
                time.sleep(0.1)
        finally:
            trouble.end()
        if self.by_hand is None:
            return self.of_worker(flow_run), None
        out, err = self.by_hand.communicate(timeout=PATIENCE)
        done = Done(self.by_hand.returncode, out, err)
        if beside is None:
            return done, None
        out, err = beside.communicate(timeout=PATIENCE)
        return done, Done(beside.returncode, out, err)

    def of_worker(self, flow_run: str) -> Done:
        state = self.checkout.ended(flow_run, PATIENCE)
        code = {"COMPLETED": 0, "CRASHED": -9}.get(state["type"], 1)
        message = str(state["message"] or "").removeprefix("Flow run encountered an exception: ")
        return Done(
            code, self.checkout.logs(flow_run), "error: " + re.sub(r"^\w*(Error|Failed|Merged|Busy): ", "", message)
        )

    def over(self, flow_run: str) -> bool:
        if self.by_hand is not None:
            return self.by_hand.poll() is not None
        with contextlib.suppress(Exception):  # its server may be the one that is down
            return self.checkout.state(flow_run)["type"] in ENDED
        return False

    def write(self, path: Path) -> None:
        """Write the runs as JSON."""
        write_json(path, [asdict(row) for row in self.rows])


def not_one_sentence(done: Done) -> list[str]:
    """What is wrong with the message of a run that failed."""
    if done.code in (130, 143):
        return []
    text = done.message
    if not text:
        return [f"it ended with {done.code} and no message: {done.err.strip()[-300:]!r}"]
    if "Traceback" in done.err or "\n" in text:
        return [f"a trace was printed: {done.err.strip()[-300:]!r}"]
    return []
