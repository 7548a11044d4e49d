"""A run whose version is worse than its base says so first and in red, and ends with an error once all is done."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

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


EVENTS: list[tuple[Any, ...]] = []


def ended(accepted: bool) -> Outcome:
    """A run whose version 2 solves more tasks and has a lower mean reward."""
    gate = GateResult("2", False, "2" if accepted else "1", "1", "as the gate says")
    return Outcome((), Registration("sweetrl-agent", "2", True), gate, evaluation=HARMFUL)


def fake(
    which: str, outcome: Outcome, patch: pytest.MonkeyPatch, left: str = ""
) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """A flow that ends with `outcome`, and how its program shows that."""
    for module in (train, retrain):
        patch.setattr(module, "prefect_steps", lambda *arguments: Steps(say=quiet))
        patch.setattr(module, "announce", lambda *event: EVENTS.append(event))
    EVENTS.clear()
    patch.setattr(train, "run_pipeline", lambda *arguments, **options: outcome)
    patch.setattr(run, "at_rest", lambda *arguments: outcome)
    patch.setattr(retraining, "retrain", lambda *arguments: [retraining.Retraining("retrain/x", outcome, left=left)])
    return {
        "train": (train.train.fn.__wrapped__, console.show_outcome),
        "at rest": (partial(run.run_here, console.Path.cwd()), console.show_outcome),
        "retrain": (retrain.retrain.fn.__wrapped__, partial(retrain.show_retrainings, go_on=False)),
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
    flow, show = fake(which, ended(accepted), monkeypatch)
    code = console.command_line(lambda: console.show_all(flow, show))
    printed = capsys.readouterr()
    assert "gate: as the gate says" in printed.out, "all that was done is shown"
    change = "mean reward changed by −19.0 points on 1,000 held-out tasks"
    assert code == (0 if accepted else 3)
    assert (f"error: the new version is worse than its base: {change}" in printed.err) is not accepted
    assert printed.out.startswith(f"\x1b[1;31mHARM: worse than its base: {change}") is not accepted


def test_a_winner_that_waits_is_reported_each_night(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, it was exit status 0 and Completed, and nobody noticed that a better version waited for a merge."""
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(console, "_silence_traces", lambda: None)
    flow, show = fake("retrain", ended(True), monkeypatch, "version 2 has won and is not merged: params.yaml is edited")
    assert console.command_line(lambda: console.show_all(flow, show)) == 4
    printed = capsys.readouterr()
    assert "branch:  retrain/x" in printed.out and "error: version 2 has won and is not merged" in printed.err
    assert [event[:3] for event in EVENTS] == [("waiting", "model", "sweetrl-agent")]
    state = retrain.retrain.fn()
    assert state.is_failed() and state.name == "Waiting" and "version 2 has won" in state.message


def test_what_the_gate_refuses_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = SimpleNamespace(promote=False)
    gate = GateResult("2", False, "1", "1", "no better than version 1", cast(Any, decision))
    fake("train", ended(True), monkeypatch)
    train.announce_outcome(replace(ended(True), gate=gate))
    assert [event[0] for event in EVENTS] == ["refused"]
