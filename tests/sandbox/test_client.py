"""The client: order, limits, threads, death of either side, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sweetrl.errors import UserError
from sweetrl.sandbox import Job, Limits, Sandbox, run_file
from sweetrl.sandbox.tiers import lightest
from tests.signals import ended, until

DOUBLE = "def f(x):\n    return 2 * x"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_seconds=0.6, call_seconds=0.3), workers=2) as shared:
        yield shared


def kinds(sandbox: Sandbox, source: str, *calls: str, **options: object) -> list[str]:
    outcome = sandbox.submit(Job((source,), calls, **options)).result()  # type: ignore[arg-type]
    return [call.kind for call in outcome.calls]


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_values_come_back_in_order(sandbox: Sandbox) -> None:
    jobs = [Job((DOUBLE,), (f"f({n})", f"f({n}.5)")) for n in range(100)]
    trees = [[call.tree for call in outcome.calls] for outcome in sandbox.run(jobs)]
    assert trees == [[2 * n, 2 * (n + 0.5)] for n in range(100)]


def test_every_way_to_end(sandbox: Sandbox) -> None:
    source = "import os, time\ndef f(x):\n    return [x, 1 / 0, time.sleep(9), os._exit(3), b'' * x][0]"
    assert kinds(sandbox, source, "f(1)") == ["exception"]
    source = "def f(x):\n    if x == 1: raise ValueError('line one\\nlast line')\n    while x == 2: pass\n    return x"
    outcome = sandbox.submit(Job((source,), ("f(0)", "f(1)", "f(2)", "f(3)", "g(1)", "f("))).result()
    assert [call.kind for call in outcome.calls] == [
        "value", "exception", "timeout", "value", "not_defined", "exception",
    ]  # fmt: skip
    assert outcome.calls[1].detail == "ValueError: last line"
    assert outcome.children == 2


def test_a_source_that_does_not_compile_gives_way_to_the_next(sandbox: Sandbox) -> None:
    outcome = sandbox.submit(Job(("def f(", DOUBLE), ("f(4)",))).result()
    assert outcome.calls[0].tree == 8
    outcome = sandbox.submit(Job(("def f(", "also wrong ("), ("f(4)",))).result()
    assert outcome.calls[0].kind == "exception" and "SyntaxError" in outcome.calls[0].detail


def test_split_namespace_hides_the_top_level_from_functions(sandbox: Sandbox) -> None:
    source = "import math\nK = 3\ndef f(x): return math.floor(x)\ndef g(x): return x"
    assert kinds(sandbox, source, "f(1.5)", "g(1)", "K", namespace="split") == ["exception", "value", "value"]
    assert kinds(sandbox, source, "f(1.5)", "g(1)", "K") == ["value"] * 3


def test_random_is_seeded_and_hash_order_fixed(sandbox: Sandbox) -> None:
    source = "import random\ndef f(): return [random.random(), list({'a', 'b', 'c', 'd'})]"
    jobs = [Job((source,), ("f()",), seed=seed) for seed in (1, 1, 2)]
    first, second, other = [outcome.calls[0].tree for outcome in sandbox.run(jobs)]
    assert first == second != other
    assert first[2] == other[2]


def test_a_hang_costs_about_the_limit_for_the_whole_solution() -> None:
    with Sandbox(workers=1) as sandbox:
        sandbox.layers()
        began = time.monotonic()
        outcome = sandbox.submit(
            Job(("import time\ndef f(x): time.sleep(60)",), tuple(f"f({n})" for n in range(10)))
        ).result()
    assert [call.kind for call in outcome.calls] == ["timeout"] * 10
    assert 1.8 < time.monotonic() - began < 18  # one limit is 2 s, and ten of them are 20 s


def test_many_threads_share_one_client(sandbox: Sandbox) -> None:
    wrong: list[int] = []

    def work(base: int) -> None:
        for n in range(base, base + 25):
            if sandbox.submit(Job((DOUBLE,), (f"f({n})",))).result().calls[0].tree != 2 * n:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_killed_zygote_is_replaced_and_its_job_done_again(sandbox: Sandbox) -> None:
    sandbox.layers()
    future = sandbox.submit(Job(("import time\ndef f(x):\n    time.sleep(0.2)\n    return x",), ("f(7)",)))
    time.sleep(0.05)
    for process in psutil.Process().children():
        if any("zygote.py" in word for word in process.cmdline()):
            process.kill()
    assert future.result().calls[0].tree == 7
    assert sandbox.submit(Job((DOUBLE,), ("f(1)",))).result().calls[0].tree == 2


def test_nothing_is_left_after_close() -> None:
    descriptors, others = len(os.listdir("/proc/self/fd")), below(os.getpid())  # other tests' services may live on
    sandbox = Sandbox(workers=2)
    list(sandbox.run([Job((DOUBLE,), ("f(1)",))] * 5))
    started = [process for process in below(os.getpid()) if process not in others]
    assert len(started) >= 2
    sandbox.close()
    sandbox.close()
    until(lambda: all(map(ended, started)), seconds=120)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(UserError, match="closed"):
        sandbox.submit(Job((DOUBLE,), ("f(1)",)))


def test_everything_ends_when_the_client_is_killed() -> None:
    script = (
        "import sys, time\nfrom sweetrl.sandbox import *\ns = Sandbox(workers=2, limits=Limits(60, 60))\n"
        "for _ in range(2): s.submit(Job(('while True: pass',), ('f()',)))\n"
        "time.sleep(0.5)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.readline() == b"ready\n"
    started = below(client.pid)
    assert len(started) >= 4
    client.kill()
    client.wait()
    until(lambda: all(map(ended, started)), seconds=120)


def test_a_forked_copy_of_the_client_starts_zygotes_of_its_own(sandbox: Sandbox) -> None:
    sandbox.layers()
    script = (
        "import os\nfrom sweetrl.sandbox import *\n"
        "s = Sandbox(workers=1)\nj = Job(('def f(): return 5',), ('f()',))\n"
        "assert s.submit(j).result().calls[0].tree == 5\n"
        "pid = os.fork()\n"
        "assert s.submit(j).result().calls[0].tree == 5\n"
        "s.close()\n"
        "if pid: assert os.waitpid(pid, 0)[1] == 0\n"
        "else: os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_unsafe_mode_is_named_in_every_result() -> None:
    with Sandbox(workers=1, without=("seccomp", "landlock", "namespaces"), unsafe=True) as sandbox:
        outcome = sandbox.submit(Job((DOUBLE,), ("f(2)",))).result()
    assert outcome.isolation == "UNSAFE:rlimits"
    assert outcome.calls[0].tree == 4


def test_on_another_system_the_error_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="Linux container or virtual machine"):
        Sandbox(workers=1).layers()


def test_the_source_can_be_inspected_where_it_is_a_module(sandbox: Sandbox) -> None:
    source = "import inspect\ndef f():\n    return inspect.getsource(f)"
    outcome = sandbox.submit(Job((source,), ("f()",))).result()
    assert outcome.calls[0].tree == "def f():\n    return inspect.getsource(f)\n"
    assert kinds(sandbox, source, "f()", "__file__", namespace="split") == ["exception"] * 2  # as officially


def test_run_file(tmp_path: Path) -> None:
    path = tmp_path / "solution.py"
    path.write_text("\ufeffdef f(x):\n    return {'x': (x, [1.5])}\n")
    report = run_file(path, ["f(1)", "g()"])
    assert report["calls"][0]["value"] == "{'x': (1, [1.5])}"  # type: ignore[index]
    assert report["calls"][1]["kind"] == "not_defined"  # type: ignore[index]
    with pytest.raises(UserError, match="no such file"):
        run_file(tmp_path / "missing.py", ["f(1)"])
    with pytest.raises(UserError, match="nothing to call"):
        run_file(path, [])


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def f(): return 1", 0),
        ("# important\nimport math\ndef f(): return math.pi", 0),
        ("from typing import List\ndef f(): return 1", 1),
        ("import math, re", 1),
        ("def f():\n    import numpy as np\n    return 1", 2),
        ("import re\nfrom urllib.parse import quote", 2),
        ("__import__('numpy')", 2),
        ("import math as m, numpy as np", 2),
    ],
)
def test_what_a_solution_imports_decides_who_runs_it(source: str, kind: int) -> None:
    assert lightest(("def g(): return 0", source), ("numpy", "bs4")) == kind


def test_every_kind_of_zygote_gives_the_same_results() -> None:
    body = "def f(x):\n    import sys\n    return [x, 'num' + 'py' in sys.modules, 'typing' in sys.modules]"
    with Sandbox(workers=1) as sandbox:
        jobs = [Job((f"{body}\n# {hint}",), ("f(1)",)) for hint in ("", "import typing", "import numpy")]
        trees = [outcome.calls[0].tree for outcome in sandbox.run(jobs * 3)]
        assert len(below(os.getpid())) >= 3
    assert trees == [["l", 1, False, False], ["l", 1, False, True], ["l", 1, True, True]] * 3


def test_a_library_is_there_in_whatever_way_it_is_imported() -> None:
    body = "def f(): return [bool(np.all([m.pi])), int(np.random.randint(10**9))]"
    sources = (
        "import numpy as np\nimport math as m",
        "import math as m, numpy as np",
        "import math as m, \\\n numpy as np",
        "from importlib import import_module as load\nimport math as m\nnp = load('numpy')",
    )
    with Sandbox(workers=1) as sandbox:
        outcomes = list(sandbox.run([Job((f"{source}\n{body}",), ("f()",)) for source in sources]))
        outcomes.append(sandbox.submit(Job(("import math",), ("__import__('numpy').int64(3)",))).result())
    first, *others = [outcome.calls[0].tree for outcome in outcomes[:-1]]
    assert first[1] is True and others == [first] * 3
    assert outcomes[-1].calls[0].tree == 3


def test_jobs_that_wait_behind_a_hang_or_a_death_are_done(sandbox: Sandbox) -> None:
    bad = ("while True: pass", "import os\nos._exit(5)", "import os\nos.kill(os.getpid(), 9)", "raise SystemExit")
    futures = []
    for n in range(24):
        source = bad[n // 3 % 4] if n % 3 == 0 else DOUBLE
        futures.append((n, sandbox.submit(Job((source,), (f"f({n})",)))))
    for n, future in futures:
        call = future.result().calls[0]
        assert (call.tree == 2 * n) == (n % 3 != 0), (n, call)


def test_a_claim_about_the_clock_buys_no_time() -> None:
    source = (
        "import os, struct\ndef f():\n    for fd in range(3, 64):\n        try:\n"
        "            for place in range(os.fstat(fd).st_size):\n"
        "                os.pwrite(fd, struct.pack('>Id', 8, {claim}), place)\n"
        "        except OSError: pass\n    while True: pass\n"
    )
    with Sandbox(Limits(wall_seconds=0.6, call_seconds=0.3), workers=1) as sandbox:
        for claim in ("float('nan')", "1e300", "-1e300", "float('inf')"):
            began = time.monotonic()
            outcome = sandbox.submit(Job((source.replace("{claim}", claim),), ("f()",))).result()
            assert time.monotonic() - began < 30  # it is 0.3 s on a machine that is not busy
            assert outcome.calls[0].kind in ("timeout", "refused", "killed"), (claim, outcome)
        assert sandbox.submit(Job((DOUBLE,), ("f(1)",))).result().calls[0].tree == 2


def test_a_busy_loop_gets_its_limit_of_processor_time_however_busy_the_machine_is(sandbox: Sandbox) -> None:
    outcome = sandbox.submit(Job(("def f(x):\n    while True: pass",), tuple(f"f({n})" for n in range(10)))).result()
    assert {call.kind for call in outcome.calls} == {"timeout"}
    assert outcome.cpu_seconds < 2 * sandbox.limits.wall_seconds
