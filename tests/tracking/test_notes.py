"""What MLflow's pages say: results and verdicts in words, and how an experiment opens."""

from __future__ import annotations

from sweetrl.tracking.registry import result_table, run_note, version_note
from sweetrl.tracking.store import EXPERIMENT, missing_tags

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


def test_a_version_keeps_its_last_paragraph_however_often_it_is_described() -> None:
    once = version_note("What it is.", NUMBERS, None)
    gate = {"promote": True, "promoted": False, "reason": "better."}
    twice = version_note(once, NUMBERS, gate)
    assert twice.startswith("**Gate:** better. (It has yet to become champion.)\n\n| on 1,000")
    last = version_note(twice, {}, gate | {"promoted": True})
    assert last == "**Gate:** better.\n\nWhat it is."


def test_only_what_is_missing_or_guessed_is_set_on_an_experiment() -> None:
    kind = "mlflow.experimentKind"
    assert missing_tags({}) == EXPERIMENT
    assert missing_tags({**EXPERIMENT, kind: "genai_development"}) == {}
    for guessed in ("genai_development_inferred", "no_inferred_type"):
        assert missing_tags({**EXPERIMENT, kind: guessed}) == {kind: EXPERIMENT[kind]}
