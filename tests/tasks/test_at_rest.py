"""A run with nothing to do is known without Prefect and MLflow, and nothing that DVC would notice is missed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.pipeline import changed_stages, execute_stage
from tasks.training import Steps, at_rest, run_pipeline
from tests.tasks.fake_project import quiet

ROOT = Path(__file__).resolve().parents[2]
LOADED = "import sys; from pathlib import Path; from flows.run import run_here; done = run_here(Path.cwd()); "
NOTHING_HEAVY = "assert not {'prefect', 'mlflow', 'torch', 'sqlalchemy'} & set(sys.modules); print(done.unchanged)"


STEPS = Steps(run=lambda stage, root, env: execute_stage(root, stage, env, quiet), say=quiet)


def edit(path: Path) -> None:
    path.unlink()  # it may be linked to DVC's cache
    path.write_text("by hand")


CHANGES: dict[str, tuple[set[str], Callable[..., object]]] = {
    "a parameter": ({"second"}, lambda toy: toy.set(second="b")),
    "an input and output edited": ({"first", "second", "third"}, lambda toy: edit(toy.root / "data/first.txt")),
    "an output is gone": ({"third"}, lambda toy: (toy.root / "data/third.txt").unlink()),
    "an output is not in the cache": (
        {"first", "second", "third"},
        lambda toy: shutil.rmtree(toy.root / ".dvc/cache/files"),
    ),
    "a command": (
        {"third"},
        lambda toy: (toy.root / "dvc.yaml").write_text(
            (toy.root / "dvc.yaml").read_text().replace("stage.py third", "stage.py  third")
        ),
    ),
    "no lock": ({"first", "second", "third"}, lambda toy: (toy.root / "dvc.lock").unlink()),
}


@pytest.mark.slow
def test_every_change_is_noticed(toy) -> None:
    run_pipeline(toy.root, STEPS)
    kept = toy.root.with_name("kept")
    shutil.copytree(toy.root, kept, symlinks=True)
    again, found = run_pipeline(toy.root, STEPS), at_rest(toy.root)
    assert found is not None and found.unchanged
    assert (found.stages, found.evaluation, found.tracking) == (again.stages, again.evaluation, again.tracking)
    for name, (changed, change) in CHANGES.items():
        shutil.rmtree(toy.root)
        shutil.copytree(kept, toy.root, symlinks=True)
        toy.set(second="a")
        assert at_rest(toy.root) is not None, name
        change(toy)
        assert at_rest(toy.root) is None, name
        assert changed_stages(toy.root) == changed, name


@pytest.mark.slow
def test_a_run_with_nothing_to_do_loads_neither_prefect_nor_mlflow(toy) -> None:
    run_pipeline(toy.root, STEPS)
    done = subprocess.run(
        [sys.executable, "-c", LOADED + NOTHING_HEAVY],
        cwd=toy.root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "SWEETRL_TRACKING": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_a_policy_that_is_not_registered_as_it_lies_here_is_something_to_do(
    toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.tracking.registry import Registration
    from tasks import training

    run_pipeline(toy.root, STEPS)
    (toy.root / "models/policy").mkdir(parents=True)
    (toy.root / "reports/evaluation.json").write_text("{}")
    monkeypatch.setenv("SWEETRL_TRACKING", "on")
    for known, nothing_to_do in (
        (None, False),
        (Registration("agent", "1", False, ("challenger",), {}), False),  # it has not stood before the gate
        (Registration("agent", "1", False, ("champion",), {}), True),
    ):
        monkeypatch.setattr(training, "known_registration", lambda settings, root, found=known: found)
        found = at_rest(toy.root)
        assert (found is not None) is nothing_to_do
        assert found is None or found.registration == known
