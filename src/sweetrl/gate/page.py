"""A comparison at the gate as one self-contained page: the verdict, the numbers, every slice, what a dialogue takes."""

from __future__ import annotations

from sweetrl.evaluation.report import fill
from sweetrl.gate.decision import Decision, percent
from sweetrl.settings import GateSettings

WORDS = {"safe": "ruled out", "loss": "shown", "unclear": "cannot be told"}


def render(decision: Decision, rules: GateSettings, challenger: str, champion: str) -> str:
    """Return the page of a decision about version `challenger` against version `champion` as HTML."""
    values = {
        "decision": decision,
        "rules": rules,
        "challenger": challenger,
        "champion": champion,
        "level": percent(decision.confidence),
        "words": WORDS,
        "tone": "better" if decision.promote else "open",
    }
    return fill("gate.html", values, "sweetrl.gate")
