"""What holds on old kernels and between two answers, and what no answer can make expensive."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.sandbox import Job, Limits, Sandbox, worker
from sweetrl.sandbox.limits import CallResult

OWN_USERS = range(61184, 65520)
OLD_KERNEL = ("namespaces", "landlock truncation")  # as in a container on Linux before 6.2
SPOIL = """
import os
ATTEMPTS = {
    "truncate": lambda path: os.truncate(path, 0),
    "read": lambda path: os.close(os.open(path, os.O_RDONLY | os.O_TRUNC)),
    "write": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "neither": lambda path: os.close(os.open(path, 3 | os.O_TRUNC)),
    "mode": lambda path: os.chmod(path, 0o600),
    "times": lambda path: os.utime(path, (1, 1)),
    "name": lambda path: os.rename(path, path + "2"),
    "remove": os.remove,
}
def spoil(how, path):
    try:
        ATTEMPTS[how](path)
    except OSError:
        return os.getuid()
"""


@pytest.fixture
def victim() -> Iterator[Path]:
    """A file outside that any user may write to, in a folder in which any user may do anything."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "precious"
        path.write_text("whole")
        path.chmod(0o666)
        yield path


def call(sandbox: Sandbox, source: str, *calls: str) -> tuple[CallResult, ...]:
    return sandbox.submit(Job((source,), calls)).result().calls


@pytest.mark.parametrize("without", [OLD_KERNEL, ("namespaces",), ("landlock",), ()])
def test_files_outside_stay_unchanged(without: tuple[str, ...], victim: Path) -> None:
    before = victim.stat()
    ways = ("truncate", "read", "write", "neither", "mode", "times", "name", "remove")
    with Sandbox(workers=1, without=without) as sandbox:
        results = call(sandbox, SPOIL, *(f"spoil({how!r}, {str(victim)!r})" for how in ways))
    after = victim.stat()
    assert victim.read_text() == "whole"
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert [result.kind for result in results] == ["value"] * len(ways)
    assert {result.tree for result in results} <= {65534, os.geteuid(), *OWN_USERS}


def test_answers_of_root_run_as_a_user_of_their_own() -> None:
    """Also where Python lies in a folder of root's own, as far as root may let others through to it."""
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    if os.geteuid() != 0 or not int(status["CapBnd"], 16) & 1 << 2:
        pytest.skip("only root with all its rights can do so")
    with Sandbox(workers=1, without=("namespaces",)) as sandbox:
        ids = call(sandbox, "import csv, os, numpy\ndef f(): return os.getuid(), os.getgid(), os.getgroups()", "f()")
    _, user, group, groups = ids[0].tree
    assert user == group and user in OWN_USERS and groups == ["l"]


HOARD = """
import threading, time
threading.stack_size(32768)
def hoard():
    started = 0
    try:
        while started < 2000:
            threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    return started
"""


@pytest.mark.parametrize("without", [("namespaces",), ()])
def test_an_answer_of_root_has_a_limit_on_threads(without: tuple[str, ...]) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's threads are counted with all that this user runs")
    with Sandbox(Limits(processes=40), workers=1, without=without) as sandbox:
        (result,) = call(sandbox, HOARD, "hoard()")
    assert 30 <= result.tree <= 44


@pytest.mark.parametrize("attempts", [1, 8])
def test_where_no_process_can_be_started_the_client_tries_again(attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have taken all that the machine allows: neither the start nor a new zygote ends the run."""
    real, refused = subprocess.Popen, []

    def popen(*arguments: Any, **options: Any) -> Any:
        if len(refused) < attempts:
            refused.append(1)
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with Sandbox(workers=1) as sandbox:
        assert call(sandbox, "def f(): return 1", "f()")[0].tree == 1
        refused.clear()
        os.kill(sandbox._workers()[0]._process.pid, signal.SIGKILL)
        while not refused:  # what it has forked may answer until the kernel ends that, too
            assert call(sandbox, "def f(): return 2", "f()")[0].tree == 2
    assert len(refused) == attempts


ENDINGS = {
    "os._exit(0)": "killed",
    "os.kill(os.getpid(), 9)": "killed",
    "os.abort()": "killed",
    "ctypes.string_at(0)": "killed",
    "repr(Deep())": "killed" if sys.version_info < (3, 12) else "exception",  # newer ones guard C's stack, too
    "threading.Thread(target=os._exit, args=(0,)).start() or time.sleep(1)": "killed",
    "threading.Thread(target=sys.exit).start()": "value",
    "sys.exit()": "exception",
    "bytearray(2**40)": "memory",
    "return 'x' * 10**7": "refused",
    "while True: print('x' * 10**6)": "timeout",
}


@pytest.mark.parametrize("wait", ["while time.monotonic() < end: pass", "time.sleep(0.3)"])
def test_a_call_costs_its_time_however_it_ends(wait: str) -> None:
    start = (
        "import ctypes, os, sys, threading, time\nsys.setrecursionlimit(10**9)\n"
        "class Deep:\n    def __repr__(self): return repr(self)\n"
        f"def f(x):\n    end = time.monotonic() + 0.3\n    {wait}\n    "
    )
    with Sandbox(Limits(wall_seconds=0.8, call_seconds=0.6), workers=1) as sandbox:
        for ending, kind in ENDINGS.items():
            outcome = sandbox.submit(Job((start + ending,), tuple(f"f({n})" for n in range(50)))).result()
            assert outcome.children <= 4 and outcome.cpu_seconds < 3, (ending, outcome)  # 50 calls are 15 s
            assert {result.kind for result in outcome.calls} <= {kind, "timeout"}, (ending, outcome)
            assert outcome.calls[-1].kind == "timeout", (ending, outcome)


def test_a_canary_tries_to_empty_a_file(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the filter let it through on an old kernel, nothing would be scored."""
    parts = worker._code()
    path = Path(worker.__file__).with_name("guards.py")
    source = path.read_text().replace("install_zygote(own_root, truncation)", "install_zygote(True, True)")
    careless = compile(source, str(path), "exec", dont_inherit=True)
    monkeypatch.setattr(worker, "_code", lambda: {**parts, "guards": careless})
    monkeypatch.setattr(tempfile, "tempdir", str(victim.parent))
    message = r"attacks succeeded \(.*empty a file, empty a file by opening it for nothing"
    with Sandbox(workers=1, without=OLD_KERNEL) as sandbox, pytest.raises(UserError, match=message):
        sandbox.layers()
    assert os.listdir(victim.parent) == ["precious"]  # the bait is gone


def test_an_answer_finds_nothing_of_the_answer_before() -> None:
    leave = """
import fcntl, os
def leave():
    kept = []
    for fd in (0, 1, 2):
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) if fd == 0 else None
    os.makedirs("a/b")
    open("file", "w").close()
    os.chmod(".", 0o500)
    os.utime(".", (123456789, 987654321))
    return len(os.listdir("."))
"""
    look = """
import fcntl, os
def look():
    s = os.stat(".")
    fcntl.flock(0, fcntl.LOCK_EX | fcntl.LOCK_NB)
    flags = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (0, 1, 2)]
    return flags, s.st_mode, s.st_mtime_ns, s.st_atime_ns, os.listdir(".")
"""
    with Sandbox(workers=1) as sandbox:
        before = call(sandbox, look, "look()")[0]
        assert call(sandbox, leave, "leave()")[0].tree == 2
        after = call(sandbox, look, "look()")[0]
    assert before.kind == after.kind == "value", (before, after)
    assert after.tree == before.tree


TRUNCATED = """
import os
def f():
    for fd in range(3, 64):
        try:
            os.ftruncate(fd, {size})
        except OSError:
            pass
        try:
            os.pwrite(fd, bytes(4096), 0)
        except OSError:
            pass
    os.kill(os.getpid(), 9)
"""
DEEP = """
import os
def f():
    for i in range(900):
        name = "d" * 200 + str(i)
        os.mkdir(name)
        os.chdir(name)
    os.chmod("..", 0o500)
    return 1
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each zygote that is started."""
    launches: list[int] = []
    launch = worker.Worker._launch

    def counted(self: Any) -> None:
        launches.append(1)
        launch(self)

    monkeypatch.setattr(worker.Worker, "_launch", counted)
    return launches


@pytest.mark.parametrize("size", [0, 40, 1 << 20])
def test_a_result_file_cut_short_costs_no_zygote(size: int, started: list[int]) -> None:
    with Sandbox(workers=1) as sandbox:
        sandbox.layers()
        began = time.monotonic()
        results = call(sandbox, TRUNCATED.replace("{size}", str(size)), *["f()"] * 10)
        seconds = time.monotonic() - began
    assert {result.kind for result in results} <= {"killed", "refused"}
    assert len(started) == 1
    assert seconds < 60  # it is 0.1 s on a machine that is not busy


def test_deep_folders_cost_no_zygote(started: list[int]) -> None:
    with Sandbox(workers=1) as sandbox:
        assert [call(sandbox, DEEP, "f()")[0].tree for _ in range(3)] == [1, 1, 1]
        assert call(sandbox, "import os\ndef f(): return os.listdir('.')", "f()")[0].tree == ["l"]
    assert len(started) == 1


def test_a_source_that_is_too_long_is_refused() -> None:
    long, longer = ("def f(): return 1\n#" + "x" * (mib << 20) for mib in (10, 20))
    with Sandbox(workers=1) as sandbox:
        assert sandbox.submit(Job((long, long + "y"), ("f()",))).result().calls[0].tree == 1
        outcome = sandbox.submit(Job((longer, "def f(): return 2"), ("f()", "f()"))).result()
        assert [result.kind for result in outcome.calls] == ["refused"] * 2
        assert outcome.calls[0].detail == "the source has 20,971,539 bytes, more than 16,777,216"
        short = Limits(source_kib=1)
        readings = ("not Python (", "def f(): return 3", "def f(): return 4" + "\n" * 1024)
        assert sandbox.submit(Job(readings, ("f()",), limits=short)).result().calls[0].tree == 3
