"""Honest programs give the same values in the sandbox and outside; what is refused on purpose says so in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sweetrl.sandbox import Job, Sandbox
from tests.sandbox.honest_programs import Program, programs

HERE = Path(__file__).parent

# Where Python itself lies in /tmp, an answer has no /tmp of its own.
OWN_TMP = not any(path.startswith("/tmp/") for path in sysconfig.get_paths().values())
PROGRAMS = [program for program in programs() if OWN_TMP or "/tmp/" not in program.source]
# name: (layers left out, whether there is a folder to write to)
MODES = {
    "all layers": ([], True),
    "no landlock": (["landlock"], True),
    "no namespaces": (["namespaces"], False),
    "an old kernel without namespaces": (["namespaces", "landlock truncation"], False),
}


@pytest.fixture(scope="module")
def outside() -> dict[str, list[object]]:
    """The values of each program's calls, in processes of their own without any sandbox."""
    environment = {
        **os.environ,
        **{"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC", "USER": "nobody", "LOGNAME": "nobody"},
        **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    }
    honest = [program for program in PROGRAMS if not program.refused]
    done = subprocess.run(
        [sys.executable, str(HERE / "honest_programs.py")],
        input=json.dumps([[program.source, *program.calls] for program in honest]),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return {program.name: trees for program, trees in zip(honest, json.loads(done.stdout), strict=True)}


def inside(chosen: list[Program], without: list[str]) -> dict[str, list[tuple[str, object, str]]]:
    with Sandbox(workers=2, without=without) as sandbox:
        outcomes = sandbox.run(Job((program.source,), program.calls) for program in chosen)
        return {
            program.name: [(call.kind, call.tree, call.detail) for call in outcome.calls]
            for program, outcome in zip(chosen, outcomes, strict=True)
        }


def test_the_programs_are_many_and_work_outside(outside: dict[str, list[object]]) -> None:
    assert len(outside) >= 300
    assert len({program.source for program in PROGRAMS}) == len(PROGRAMS) == len({program.name for program in PROGRAMS})
    failed = {name: trees for name, trees in outside.items() if any(isinstance(tree, dict) for tree in trees)}
    assert failed == {}
    assert all(outside.values())


@pytest.mark.parametrize(
    "mode",
    [
        "all layers",
        "an old kernel without namespaces",
        pytest.param("no landlock", marks=pytest.mark.slow),
        pytest.param("no namespaces", marks=pytest.mark.slow),
    ],
)
def test_honest_programs_come_to_the_same(mode: str, outside: dict[str, list[object]]) -> None:
    without, folder = MODES[mode]
    honest = [program for program in PROGRAMS if not program.refused]
    actual = inside(honest, without)
    different = {}
    for program in honest:
        expected = [("value", json.loads(json.dumps(tree)), "") for tree in outside[program.name]]
        if program.files and not folder:
            calls = actual[program.name]
            assert all(call in expected or "the sandbox" in call[2] for call in calls), (program.name, calls)
        elif actual[program.name] != expected:
            different[program.name] = (actual[program.name], expected)
    assert different == {}


def test_what_is_refused_on_purpose_says_so() -> None:
    refused = [program for program in PROGRAMS if program.refused]
    assert len(refused) >= 12
    actual = inside(refused, [])
    for program in refused:
        kind, _, detail = actual[program.name][0]
        assert kind == ("memory" if program.refused == "MemoryError" else "exception"), (program.name, detail)
        assert program.refused in detail, (program.name, detail)
