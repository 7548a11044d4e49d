"""What MLflow's pages say of a run: its verdict and results in words; of a version in test_registry.py."""

from __future__ import annotations

from sweetrl.tracking.registry import result_table, run_note

NUMBERS = {
    "tasks": 1000,
    "success_before": 0.263,
    "success_after": 0.839,
    "reward_before": 0.391,
    "reward_after": 0.878,
}


def test_a_run_says_the_verdict_first_then_the_numbers() -> None:
    verdict, table, version, report = run_note(NUMBERS, "it wins.", "agent/3", "report.html").split("\n\n")
    assert verdict == "**Gate:** it wins." and version == "**Registered as** agent/3" and "report.html" in report
    assert table.splitlines()[0] == "| on 1,000 held-out tasks | before | after |"
    assert table.splitlines()[2:] == [
        "| **tasks solved** | 26.3 % | **83.9 %** |",
        "| **mean reward** | 0.391 | **0.878** |",
    ]
    assert run_note({"mean": 1.0}) == "", "an evaluation of another kind"
    assert result_table({}) == ""
