"""Every attack gets what it deserves, and the innocent solution after it scores 1.0, in every isolation mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.sandbox import Sandbox, worker

HERE = Path(__file__).parent
RUN = [sys.executable, str(HERE / "run_attacks.py")]
# name: (layers left out, as an ordinary user, with further user namespaces refused by the kernel, layers expected)
MODES = {
    "no namespaces": (["namespaces"], False, False, "landlock+seccomp+rlimits"),
    "no landlock": (["landlock"], False, False, "namespaces+seccomp+rlimits"),
    "ordinary user": ([], True, False, "namespaces+landlock+seccomp+rlimits"),
    "user namespaces refused": ([], True, True, "landlock+seccomp+rlimits"),
}


def attack(without: list[str], user: bool = False, refused: bool = False, **options: Any) -> dict[str, Any]:
    environment = dict(os.environ)
    command = [*RUN, json.dumps({"without": without, "data": str(HERE / "attacks.py"), **options})]
    if user:
        if os.geteuid() != 0:
            pytest.skip("only root can become another user: run these tests as root")
        reach = [sys.base_prefix, sys.prefix, str(HERE.parents[1])]
        command = [sys.executable, str(HERE / "as_user.py"), *reach, "--", *command]
    if refused:
        environment["SWEETRL_NO_NAMESPACES"] = "1"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not Path("/tmp/sweetrl-hostile").exists()
    return json.loads(done.stdout)


def wrong(rows: list[list[Any]]) -> list[str]:
    """The attacks that did not get what they deserve, or after which an innocent solution suffered."""
    problems = []
    for family, name, outcome, passed, reasons, innocent in rows:
        deserved = {
            "zero": not any(passed),
            "part": passed == [x != 3 for x in range(2, 7)],
            "full": all(passed),
            "any": not all(passed),
        }[outcome]
        if not deserved:
            problems.append(f"{family}: {name}: expected {outcome}, got {passed} {reasons}")
        if innocent != 1.0:
            problems.append(f"{family}: {name}: the innocent solution after it scored {innocent}")
    return problems


def test_attacks_under_all_layers() -> None:
    before = Path("/proc/self/mountinfo").read_text()
    report = attack([])
    assert report["isolation"] in ("namespaces+landlock+seccomp+rlimits", "landlock+seccomp+rlimits")
    assert len(report["rows"]) >= 120
    assert wrong(report["rows"]) == []
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_attacks_in_other_modes(mode: str) -> None:
    without, user, refused, layers = MODES[mode]
    report = attack(without, user, refused)
    assert report["isolation"] == layers
    assert wrong(report["rows"]) == []


def test_kernel_and_leak_attacks_where_namespaces_are_missing() -> None:
    report = attack(["namespaces"], families=["kernel", "leaks", "legitimate"])
    assert report["isolation"] == "landlock+seccomp+rlimits"
    assert wrong(report["rows"]) == []


def test_nothing_is_scored_where_too_little_holds() -> None:
    command = [*RUN, json.dumps({"without": ["namespaces", "landlock"]})]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "this machine offers too little to hold untrusted code" in done.stderr


def test_a_canary_that_gets_through_stops_the_scoring() -> None:
    command = [*RUN, json.dumps({"without": ["rlimits"]})]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "the sandbox's own attacks succeeded (more memory)" in done.stderr


def test_a_filter_with_one_call_too_many_stops_the_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = worker._code()
    path = Path(parts["seccomp"].co_filename)
    text = path.read_text().replace("read:0:63", "memfd_create:319:279 keyctl:250:219 read:0:63")
    loose = {**parts, "seccomp": compile(text, str(path), "exec", dont_inherit=True)}
    monkeypatch.setattr(worker, "_code", lambda: loose)
    with pytest.raises(UserError, match=r"own attacks succeeded \(keyctl, memfd_create\)"):
        Sandbox(workers=1).layers()
