"""What must not slow the client down, end it, or leave it waiting."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.sandbox import Job, Limits, Sandbox
from sweetrl.sandbox.claims import schedule_of

DOUBLE = "def f(x):\n    return 2 * x"


@pytest.mark.parametrize("name", [b"\x1cState:\tR", b"\x0bNSpid:\t9", b"\nState:\tR"])
def test_a_process_does_not_choose_what_the_kernel_says_of_it(name: bytes) -> None:
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, {name!r}); print('named', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"named\n"
        try:
            end = time.monotonic() + 120
            while (schedule := schedule_of(os.getpid(), child.pid)) is None or schedule[0]:  # until it sleeps
                assert time.monotonic() < end, schedule
                time.sleep(0.05)
        finally:
            child.kill()


@pytest.mark.parametrize("job", [Job((), ("f(1)",)), Job(DOUBLE, ("f(1)",)), Job((DOUBLE,), ["f(1)"])])  # type: ignore[arg-type]
def test_what_is_no_job_is_refused(job: Job) -> None:
    with pytest.raises(TypeError, match="a tuple of one source or more, and a tuple of calls"):
        Sandbox().submit(job)


def test_a_job_that_cannot_be_sent_keeps_nobody_waiting_and_ends_nothing() -> None:
    job, limits = Job((DOUBLE,), ("f(1)",)), resource.getrlimit(resource.RLIMIT_NOFILE)
    with Sandbox(workers=1) as sandbox:
        assert sandbox.submit(job).result().calls[0].tree == 2
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # no descriptor is left
        try:
            with pytest.raises(OSError, match="Too many open files"):
                sandbox.submit(job).result(timeout=120)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        with pytest.raises(ValueError, match="unmarshallable"):
            sandbox.submit(Job((DOUBLE,), ("f(1)",), seed=object())).result(timeout=120)  # type: ignore[arg-type]
        assert sandbox.submit(job).result().calls[0].tree == 2


def test_a_machine_that_has_no_descriptor_left_for_the_first_zygote_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sweetrl.sandbox.worker._READY_SECONDS", 0.3)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(UserError, match=r"can start no process here \(Too many open files\): run `sweetrl doctor`"):
            Sandbox(workers=1).layers()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_zygote_that_comes_too_late_is_a_sentence_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    uncaught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    with Sandbox(workers=1) as sandbox:
        sandbox.layers()
        monkeypatch.setattr("sweetrl.sandbox.worker._READY_SECONDS", 0.01)
        future = sandbox.submit(Job((f"import numpy\n{DOUBLE}",), ("f(1)",)))
        with pytest.raises(UserError, match=r"did not start within .* s: run `sweetrl doctor`"):
            future.result(timeout=120)
    assert uncaught == []


def test_a_limit_of_a_month_is_accepted() -> None:
    with Sandbox(Limits(wall_seconds=3e6, call_seconds=3e6), workers=1) as sandbox:
        assert sandbox.submit(Job((DOUBLE,), ("f(1)",))).result().calls[0].tree == 2


@pytest.mark.parametrize("closed", [(0, 1), (1, 2), (0, 1, 2)])
def test_closed_standard_streams_are_no_obstacle(closed: tuple[int, ...]) -> None:
    code = (
        "import os, sys\nfrom sweetrl.sandbox import Job, Sandbox\n"
        f"for descriptor in {closed}: os.close(descriptor)\n"
        f"job = Job(({DOUBLE!r},), ('f(1)',))\n"
        "with Sandbox(workers=1) as sandbox: os._exit(sandbox.submit(job).result().calls[0].tree)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 2


def test_a_zygote_that_cannot_start_says_why() -> None:
    with pytest.raises(UserError, match=r"could not start \(OverflowError: .*\): run `sweetrl doctor`"):
        Sandbox(Limits(memory_mib=1 << 50), workers=1).layers()


def test_the_kernel_leaves_a_solution_the_time_that_its_limits_give() -> None:
    source = "import resource\ndef f():\n    return resource.getrlimit(resource.RLIMIT_CPU)[0]"
    for wall in (2.0, 1000.0, float("inf")):
        with Sandbox(Limits(wall_seconds=wall), workers=1) as sandbox:
            seconds = sandbox.submit(Job((source,), ("f()",))).result().calls[0].tree
        assert seconds >= min(wall * (os.cpu_count() or 1), 1e9), wall


def test_numpy_is_seeded_in_every_zygote() -> None:
    source = "import numpy\ndef f(): return [float(numpy.random.rand()), int(numpy.random.randint(10**9))]"
    jobs, numbers = [Job((source,), ("f()",), seed=n) for n in (0, 1)], []
    for _ in range(2):
        with Sandbox(workers=1) as sandbox:
            numbers.append([outcome.calls[0].tree for outcome in sandbox.run(jobs)])
    assert numbers[0] == numbers[1] and numbers[0][0] != numbers[0][1]


@pytest.mark.parametrize(
    "how", ["signal.signal(number, signal.SIG_IGN)", "signal.pthread_sigmask(signal.SIG_BLOCK, [number])"]
)
def test_signals_reach_a_solution_whatever_the_client_was_started_with(how: str) -> None:
    source = (
        "import os, signal, time\n"
        "def f():\n"
        "    def ring(*_): raise TimeoutError\n"
        "    signal.signal(signal.SIGALRM, ring)\n"
        "    caught = 0\n"
        "    for alarm in (False, True):\n"
        "        try:\n"
        "            signal.setitimer(signal.ITIMER_REAL, 0.01) if alarm else os.kill(os.getpid(), signal.SIGINT)\n"
        "            time.sleep(0.5)\n"
        "        except (KeyboardInterrupt, TimeoutError):\n"
        "            caught += 1\n"
        "    return caught\n"
    )
    code = (
        "import os, signal\nfrom sweetrl.sandbox import Job, Sandbox\n"
        f"for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGALRM): {how}\n"
        f"job = Job(({source!r},), ('f()',))\n"
        "with Sandbox(workers=1) as sandbox: os._exit(sandbox.submit(job).result().calls[0].tree)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 2


def test_files_of_a_solution_have_the_modes_that_they_have_elsewhere() -> None:
    source = "import os\ndef f():\n    open('a', 'w').close()\n    return oct(os.stat('a').st_mode)"
    before = os.umask(0o077)
    try:
        with Sandbox(workers=1) as sandbox:
            outcome = sandbox.submit(Job((source,), ("f()",))).result()
    finally:
        os.umask(before)
    if "namespaces" not in outcome.isolation:
        pytest.skip("there is no folder to write to without namespaces")
    assert outcome.calls[0].tree == "0o100644"


def test_an_interpreter_finds_its_library_and_a_solution_sees_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    start = subprocess.Popen

    def popen(*arguments: Any, env: dict[str, str], **more: Any) -> Any:
        started.append(env)
        return start(*arguments, env=env, **more)

    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib")
    monkeypatch.setattr(subprocess, "Popen", popen)
    source = (
        "import ctypes, os\ndef f():\n    return [ctypes.CDLL(None).getenv(b'LD_LIBRARY_PATH'), *os.environ.values()]"
    )
    with Sandbox(workers=1) as sandbox:
        tree = sandbox.submit(Job((source,), ("f()",))).result().calls[0].tree
    assert [env["LD_LIBRARY_PATH"] for env in started] == ["/opt/python/lib"] * len(started)
    assert started and tree[1] == 0 and "/opt/python/lib" not in tree


def test_a_solution_is_started_without_arguments() -> None:
    source = (
        "import argparse, sys\ndef f():\n    parsed = argparse.ArgumentParser().parse_args()\n"
        "    return [vars(parsed), len(sys.argv), len(sys.orig_argv)]"
    )
    with Sandbox(workers=1) as sandbox:
        assert sandbox.submit(Job((source,), ("f()",))).result().calls[0].tree == ["l", ["d"], 1, 1]
