"""What the report of an evaluation of pages shows: likeness and wins, and dialogues with pictures of their pages."""

from __future__ import annotations

from typing import Any

from sweetrl.domains.frontend.evaluation import Pages, examples
from sweetrl.evaluation.metrics import AFTER, BEFORE, paired
from sweetrl.evaluation.report import (
    critic_section,
    fault_rows,
    fill,
    headline,
    level,
    markup,
    reward_chart,
    tone,
    turn_chart,
    verdict,
)
from sweetrl.types import Report

FAULTS = (
    ("first_page", "Likeness of the first page", True),
    ("last_page", "Likeness of the last page, which is the answer", True),
    ("gained_in_dialogue", "Gained between the two", True),
    ("wins_over_other", "Page more like the reference than the other policy's (ties count half)", True),
    ("wins_over_rival", "Page more like the reference than the rival's (ties count half)", True),
    ("no_answer", "No page at all", False),
    ("not_rendered", "Answer could not be rendered", False),
    ("answered", "Ended with an answer", True),
    ("max_turns_reached", "Reached the last turn without one", False),
    ("premature_answers", "Answered with turns left, before the page was right", False),
    ("details_brought_out", "Hidden details that the user told, or that were right unsaid", True),
    ("forgotten_details", "Details told, but not on the last page", False),
    ("mistaken_details", "Details told, but with another value on the last page", False),
)


def render(report: Report, pages: Pages) -> str:
    """Return the report as HTML."""
    return fill("pages.html", designs(report, pages), "sweetrl.domains.frontend")


def designs(report: Report, pages: Pages) -> dict[str, Any]:
    """Return what the template of pages shows, as plain values, charts and pictures."""
    comparison = report.comparison
    before, after = paired(report.results)
    change = comparison["difference"]["reward"]
    policies = {name: {**one, **comparison["policies"][name]} for name, one in comparison["pages"]["policies"].items()}
    return {
        "comparison": comparison,
        "level": level(comparison),
        "reward": pages.reward,
        "rival": pages.rival,
        "verdict": verdict(comparison, "reward", f"the mean reward ({pages.reward})"),
        "tone": tone(change, comparison["confidence"]),
        "headline": [
            headline(comparison, "reward", f"Likeness to the reference ({pages.reward})"),
            headline(comparison, "success", "Equal to the reference"),
        ],
        "turns": [comparison["policies"][name]["turns"]["value"] for name in (BEFORE, AFTER)],
        "reward_chart": markup(reward_chart(before, after, "likeness to the reference, %")),
        "turn_chart": markup(turn_chart(before, after)),
        "rows": fault_rows(policies, FAULTS),
        "examples": examples(report.results, report.before, report.after, pages),
        "critic": critic_section(report.states, report.contexts, report.domain) if report.states else None,
        "facts": dict(report.facts),
    }
