"""The output at the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from flows.console import evaluation_table, show_outcome
from sweetrl.backend import Backend
from sweetrl.colbench.domain import Domain
from sweetrl.frontend import Frontend
from sweetrl.gate.decision import Measured, first_decision
from sweetrl.tracking.registry import Registration
from tasks.pipeline import StageResult
from tasks.promotion import GateResult
from tasks.training import Outcome
from tests.tasks.fake_project import python


def estimate(value: float, low: float, high: float, **more: float | str) -> dict:
    return {"value": value, "low": low, "high": high, "n": 1000, "confidence": 0.95, **more}


EVALUATION = {
    "tasks": 1000,
    "confidence": 0.95,
    "policies": {
        "base": {"success": estimate(0.261, 0.234, 0.289), "reward": estimate(0.44, 0.41, 0.47)},
        "trained": {"success": estimate(0.402, 0.372, 0.433), "reward": estimate(0.55, 0.52, 0.58)},
    },
    "difference": {
        "success": estimate(0.141, 0.11, 0.172, p_value=1e-5, test="exact McNemar"),
        "reward": estimate(0.11, 0.08, 0.14, p_value=2e-4, test="sign-flip permutation"),
    },
}


def outcome(status: str, created: bool, gate: GateResult | None) -> Outcome:
    stages = (StageResult("tasks", status, 3.0, "40 tasks"), StageResult("evaluate", status, 60.0, "[b]"))  # type: ignore[arg-type]
    aliases = ("challenger",) if gate else ("champion",)
    registration = Registration("sweetrl-agent", "2", created, aliases)
    return Outcome(stages, registration, gate, "p", "sqlite:////x y/mlflow.db", 63.0, EVALUATION)


def test_the_summary_names_results_version_and_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    decision = first_decision(Measured({"a": 1.0, "b": 0.0}, evaluation=EVALUATION))
    gate = GateResult("2", True, "2", None, decision.reason, decision)
    show_outcome(outcome("ran", True, gate), Path("/x/reports/report.html"))
    printed = capsys.readouterr().out
    assert "26.1% [23.4, 28.9]" in printed and "40.2% [37.2, 43.3]" in printed
    assert "+14.1 [+11.0, +17.2]" in printed and "95\u00a0% interval" in printed
    assert "model: sweetrl-agent version 2 registered (@champion)" in printed
    assert "gate: promoted: there is no champion yet" in printed
    assert "make ui, or mlflow ui --backend-store-uri 'sqlite:////x y/mlflow.db'" in printed
    assert "/x/reports/report.html" in printed and "sweetrl lineage sweetrl-agent/2" in printed
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert "[b]" in printed, "what stages say is not markup"


def named(domain: Domain) -> dict:
    """The evaluation as stage `evaluate` writes it for `domain`."""
    labels = domain.shown_labels
    return EVALUATION | {"measure": domain.measure, "labels": {"success": labels.success, "reward": labels.reward}}


@pytest.mark.parametrize(
    ("domain", "width", "first", "second"),
    [
        (Frontend(), 200, "likeness to the reference (layout)", "equal to the reference"),
        (Frontend(), 80, "55.0% [52.0, 58.0]", "40.2% [37.2, 43.3]"),  # figures are never broken
        (Backend(), 80, "success rate 26.1% [23.4, 28.9]", "tests passed 44.0% [41.0, 47.0]"),
        (Domain(), 80, "success rate 26.1% [23.4, 28.9]", "mean reward 44.0% [41.0, 47.0]"),  # it says nothing itself
    ],
)
def test_the_domains_measure_comes_first(
    domain: Domain, width: int, first: str, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    part = {name: EVALUATION["policies"][name]["reward"] for name in ("base", "trained")}
    parts = {"questions": part | {"difference": EVALUATION["difference"]["reward"]}}
    Console(width=width).print(evaluation_table(named(domain) | {"parts": parts}))
    printed = capsys.readouterr().out
    assert "questions" in printed and printed.count("+11.0 [+8.0, +14.0]") == 2
    words = " ".join(printed.split())
    assert 0 < words.index(first) < words.index(second)
    if isinstance(domain, Frontend):
        assert "+11.0 [+8.0, +14.0]" in printed and "tests passed" not in printed
    assert all(len(line) <= width for line in printed.splitlines())


def test_the_summary_of_a_run_with_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    show_outcome(outcome("skipped", False, None))
    printed = capsys.readouterr().out
    assert "version 2 is registered already (@champion)" in printed
    assert "nothing had changed in 63 s" in printed
    assert "report:" not in printed


def test_no_setting_of_the_users_own_prefect_takes_the_embedded_server_away(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import flows; from prefect.settings import get_current_settings as now; print(now().server.ephemeral.enabled)"
    )
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    own = {"PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false", "PREFECT_SERVER_EPHEMERAL_ENABLED": "false"}
    assert python("-c", code, **own).stdout == "True\n"
