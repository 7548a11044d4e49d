"""A run with nothing to do is recognized without Prefect and MLflow, and nothing that DVC would notice is missed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.pipeline import changed_stages
from tasks.training import at_rest, run_pipeline
from tests.tasks.fake_project import python, quiet_steps

LOADED = "import sys; from pathlib import Path; from flows.run import run_here; done = run_here(Path.cwd()); "
NOTHING_HEAVY = "assert not {'prefect', 'mlflow', 'torch', 'sqlalchemy'} & set(sys.modules); print(done.unchanged)"


def edit(path: Path) -> None:
    path.unlink()  # it may be linked to DVC's cache
    path.write_text("by hand")


@pytest.mark.slow
def test_every_change_is_noticed(toy) -> None:
    run_pipeline(toy.root, quiet_steps())
    again, outcome = run_pipeline(toy.root, quiet_steps()), at_rest(toy.root)
    assert outcome is not None and outcome.unchanged
    assert (outcome.stages, outcome.evaluation, outcome.tracking) == (again.stages, again.evaluation, again.tracking)
    changes: list[tuple[set[str], Callable[[], object]]] = [
        ({"second"}, lambda: toy.set(second="b")),
        ({"third"}, lambda: (toy.root / "data/third.txt").unlink()),
        ({"first", "second", "third"}, lambda: edit(toy.root / "data/first.txt")),
        ({"first", "second", "third"}, lambda: shutil.rmtree(toy.root / ".dvc/cache/files")),
    ]
    for changed, change in changes:
        change()
        assert at_rest(toy.root) is None
        assert changed_stages(toy.root) == changed
        toy.set(second="a")
        run_pipeline(toy.root, quiet_steps())
        assert at_rest(toy.root) is not None


@pytest.mark.slow
def test_a_run_with_nothing_to_do_loads_neither_prefect_nor_mlflow(toy) -> None:
    run_pipeline(toy.root, quiet_steps())
    done = python("-c", LOADED + NOTHING_HEAVY, cwd=toy.root)
    assert done.stdout.strip() == "True", done.stderr


def test_a_policy_that_is_not_registered_as_it_lies_here_is_something_to_do(
    toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.tracking.registry import Registration
    from tasks import training

    run_pipeline(toy.root, quiet_steps())
    (toy.root / "models/policy").mkdir(parents=True)
    (toy.root / "reports/evaluation.json").write_text("{}")
    monkeypatch.setenv("SWEETRL_TRACKING", "on")
    for registration, nothing_to_do in (
        (None, False),
        (Registration("agent", "1", False, ("challenger",), {}), False),  # it has not stood before the gate
        (Registration("agent", "1", False, ("champion",), {}), True),
    ):
        monkeypatch.setattr(training, "current_registration", lambda settings, root, noted=registration: noted)
        outcome = at_rest(toy.root)
        assert (outcome is not None) is nothing_to_do
        assert outcome is None or outcome.registration == registration
