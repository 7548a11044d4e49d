"""A run whose version is worse than its base says so first and in red, and ends with an error once all is done."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from flows import console, retrain, run, train
from sweetrl.tracking.registry import Registration
from tasks import retraining
from tasks.promotion import GateResult
from tasks.training import Outcome, Steps
from tests.flows.test_console import EVALUATION
from tests.tasks.fake_project import quiet

WORSE = {"value": -0.19, "low": -0.2, "high": -0.18, "p_value": 0.001, "test": "sign-flip permutation"}
HARMFUL = EVALUATION | {"difference": {**EVALUATION["difference"], "reward": WORSE}}


def ended(accepted: bool) -> Outcome:
    """A run whose version 2 solves more tasks and has a lower mean reward."""
    gate = GateResult("2", False, "2" if accepted else "1", "1", "as the gate says")
    return Outcome((), Registration("sweetrl-agent", "2", True), gate, evaluation=HARMFUL)


def how(which: str, outcome: Outcome, patch: pytest.MonkeyPatch) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """A flow that ends with `outcome`, and how its program shows that."""
    for module in (train, retrain):
        patch.setattr(module, "prefect_steps", lambda *arguments: Steps(say=quiet))
    patch.setattr(train, "announce", lambda *arguments: None)
    patch.setattr(train, "run_pipeline", lambda *arguments, **options: outcome)
    patch.setattr(run, "at_rest", lambda *arguments: outcome)
    patch.setattr(retraining, "retrain", lambda *arguments: [retraining.Retraining("retrain/x", outcome)])
    return {
        "train": (train.train.fn, console.show_outcome),
        "at rest": (partial(run.run_here, console.Path.cwd()), console.show_outcome),
        "retrain": (retrain.retrain.fn, partial(retrain.show_retrainings, go_on=False)),
    }[which]


@pytest.mark.parametrize("which", ["train", "at rest", "retrain"])
@pytest.mark.parametrize("accepted", [False, True])
def test_harm_is_shown_first_and_is_the_exit_status(
    which: str, accepted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "300")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(console, "_silence_traces", lambda: None)
    flow, show = how(which, ended(accepted), monkeypatch)
    code = console.command_line(lambda: console.show_all(flow, show))
    said = capsys.readouterr()
    assert "gate: as the gate says" in said.out, "all that was done is shown"
    change = "mean reward changed by −19.0 points on 1,000 held-out tasks"
    assert code == (not accepted)
    assert (f"error: the new version is worse than its base: {change}" in said.err) is not accepted
    assert said.out.startswith(f"\x1b[1;31mHARM: worse than its base: {change}") is not accepted
