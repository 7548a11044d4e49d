"""Training curves in the services of `tracking.report_to`: real, tiny trainings, offline."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import sweetrl
from sweetrl.errors import UserError
from sweetrl.types import Trajectory

REPOSITORY = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 2, "micro_batch_size": 2, "lora": {"rank": 2}}
TINY: dict[str, Any] = {"device": "cpu", "threads": 1}


def learn(model: str | Path, folder: Path, *services: str) -> None:
    """Train a tiny policy on four dialogues in two steps, as the project in the working directory would."""
    tracking = {"report_to": list(services), "experiment": "bookings"}
    env = sweetrl.domain("examples.forms:Forms", tracking=tracking)
    talks = dialogues(env)
    sweetrl.train("rft", env, sweetrl.Policy.load(model, **TINY), dialogues=talks, out=folder / "policy", **OPTIONS)


def dialogues(env: sweetrl.Domain) -> list[Trajectory]:
    """Four dialogues of the highest reward."""
    talks = []
    with sweetrl.opened(env) as world:
        for task in env.tasks("train", 4, 1, 3):
            talk = world.begin(task, 1)
            talk.say(f"I WANT TO ANSWER:\n{task.ground_truth}")
            talks.append(talk.score())
    return talks


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TENSORBOARD_LOGGING_DIR", "WANDB_PROJECT", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_process(model: Path, folder: Path, service: str, **environment: str) -> str:
    """The same training in a process of its own: services leave threads, handlers and servers behind."""
    done = subprocess.run(
        [sys.executable, __file__, str(model), str(folder), service],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(folder), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tensorboard(tiny_model: Path, project: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    learn(tiny_model, project, "tensorboard")
    (written,) = (project / "tensorboard").rglob("events.out.tfevents.*")
    assert written.parent == project / "tensorboard" / "train-policy"
    events = EventAccumulator(str(written.parent))
    events.Reload()
    curve = events.Scalars("train/loss")
    assert [point.step for point in curve] == [1, 2] and all(point.value > 0 for point in curve)
    assert (project / "policy" / "adapter_model.safetensors").exists()


def test_wandb_offline(tiny_model: Path, project: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install wandb")
    output = in_process(tiny_model, project, "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    (written,) = (project / "wandb").glob("offline-run-*/run-*.wandb")
    assert output.split() == ["bookings", "train-policy"]
    assert b"train/loss" in written.read_bytes()


def test_a_missing_package_is_one_sentence(tiny_model: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = importlib.machinery.PathFinder.find_spec
    monkeypatch.setattr(
        importlib.machinery.PathFinder, "find_spec", lambda name, *more: None if name == "wandb" else real(name, *more)
    )
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(
        UserError,
        match=r"^params\.yaml: `tracking\.report_to` lists wandb, which is not installed: pip install wandb, or "
        r"take it off the list\.$",
    ):
        learn(tiny_model, project, "wandb")
    assert not (project / "policy").exists()


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        learn(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    if sys.argv[3] == "wandb":
        import wandb

        print(wandb.run.project, wandb.run.name)
