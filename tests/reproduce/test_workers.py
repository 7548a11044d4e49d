"""Parallel parts: in an order that their needs allow, each once; a part that fails is named and not built upon."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from sweetrl.errors import UserError
from sweetrl.reproduce import workers
from sweetrl.reproduce.run import Profile
from tests.signals import until

ROOT = Path(__file__).resolve().parents[2]
# A substitute for DVC: records when each target begins and ends; fails for those in the file `broken`.
DVC = """
import pathlib, sys, time
target = sys.argv[-1].removeprefix("dvc.yaml:")
def note(what):
    with open("calls", "a") as file: file.write(f"{what} {target}\\n")
note("begin")
time.sleep(0.03)
note("end")
broken = pathlib.Path("broken")
sys.exit(broken.exists() and target in broken.read_text().split())
"""


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    folder = tmp_path / "reproduce" / "small"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copy(ROOT / "reproduce" / "small" / "params.yaml", folder)
    (tmp_path / "dvc.py").write_text(DVC, encoding="utf-8")
    return Profile(folder)


def program(profile: Profile) -> list[str]:
    return [sys.executable, str(profile.folder / "../../dvc.py")]


def calls(profile: Profile) -> list[list[str]]:
    return [line.split() for line in (profile.folder / "calls").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "reproduce").glob("*/params.yaml")))
def test_every_stage_of_dvc_yaml_is_a_part(name: str) -> None:
    """What dvc.yaml expands to, except frozen stages, those with their own command, and the report, which needs all."""
    profile = Profile(ROOT / "reproduce" / name)
    stages: dict[str, Any] = yaml.safe_load((profile.folder / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    expected = set()
    for stage, spec in stages.items():
        if stage == "report" or spec.get("frozen") or not spec["cmd"].startswith("python -m sweetrl.reproduce"):
            continue
        matrix = [profile.values[value.strip("${}")] for value in spec.get("matrix", {}).values()]
        for values in itertools.product(*matrix):
            expected.add("@".join([stage, "-".join(map(str, values))]) if values else stage)
    parts = workers.parts(profile)
    fewer = profile.values.get("fewer_seeds", {"count": 0, "variants": []})
    assert set(parts) <= expected
    left_out = [name.partition("@")[2].rpartition("-")[0] for name in expected - set(parts)]
    assert sorted(set(left_out)) == sorted(fewer["variants"]), "only what has fewer seeds is not run on all of them"
    assert all(needs <= expected for needs in parts.values())


def test_rows_can_be_run_by_name(profile: Profile) -> None:
    parts = workers.parts(profile, ["other-c", "zero-shot", "grpo-distillation"])
    seeds = set(profile.seeds)
    assert {part for part in parts if part.startswith("seed-data")} == {f"seed-data@{seed}" for seed in seeds}
    assert {part.rpartition("-")[0] for part in parts} == {
        *("seed", "variant@other-c", "measure@other-c", "variant@zero-shot", "measure@zero-shot"),
        *("online@grpo-distillation", "measure-online@grpo-distillation"),
    }
    with pytest.raises(UserError, match=r"no variant `other`; add it to its `variants`"):
        workers.parts(profile, ["sweet", "other"])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_parts_begin_after_what_they_need(profile: Profile, count: int) -> None:
    workers.run_all(profile, count, program(profile))
    seen = calls(profile)
    for part, needs in workers.parts(profile).items():
        assert seen.count(["begin", part]) == 1
        began = seen.index(["begin", part])
        assert all(seen.index(["end", needed]) < began for needed in needs)
    assert seen[-2:] == [["begin", "report"], ["end", "report"]]
    assert all((profile.folder / name).is_dir() for name in ("large", "online", "best-of-n")), "what the report reads"
    running = most = 0
    for what, _ in seen:
        running += 1 if what == "begin" else -1
        most = max(most, running)
    assert min(count, 2) <= most <= count


@pytest.mark.slow
def test_what_fails_is_named_and_nothing_is_built_upon_it(profile: Profile) -> None:
    (profile.folder / "broken").write_text("seed-data@12 variant@rft-11", encoding="utf-8")
    with pytest.raises(UserError, match=r"seed-data@12, variant@rft-11 failed; .*seed-data@12\.log says why"):
        workers.run_all(profile, 2, program(profile))
    begun = {name for what, name in calls(profile) if what == "begin"}
    assert {"variant@sweet-11", "measure@sweet-11"} <= begun
    assert "measure@rft-11" not in begun
    assert not any(name.endswith("-12") for name in begun)
    assert "report" not in begun


def test_a_killed_reproduction_leaves_nothing_running(profile: Profile) -> None:
    """Its parts went on, and the next `make reproduce` failed without a message, because they held DVC's locks."""
    part = "from sweetrl.reproduce import __main__ as part; part.run = lambda arguments: __import__('time').sleep(60)"
    text = f"""
import os, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {f"{part}; part.main()"!r}])
pathlib.Path(f"pids-{{os.getpid()}}").write_text(f"{{os.getpid()}} {{child.pid}}")
child.wait()
"""
    (profile.folder / "../../dvc.py").write_text(text, encoding="utf-8")
    call = (
        "import sys; from pathlib import Path; from sweetrl.reproduce import run, workers; "
        f"workers.run_all(run.Profile(Path({str(profile.folder)!r})), 2, {program(profile)!r})"
    )
    starter = subprocess.Popen([sys.executable, "-c", call])

    until(lambda: len(list(profile.folder.glob("pids-*"))) == 2)
    until(lambda: all(path.read_text().count(" ") for path in profile.folder.glob("pids-*")))
    pids = [int(pid) for path in profile.folder.glob("pids-*") for pid in path.read_text().split()]
    time.sleep(1.0)
    starter.kill()
    starter.wait()

    def runs(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    until(lambda: not any(map(runs, pids)), f"{pids} have not ended")
