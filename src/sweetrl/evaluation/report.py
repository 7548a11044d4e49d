"""The evaluation as one self-contained page: numbers with their intervals, charts, and dialogues to read side by side.

Nothing is loaded from anywhere and nothing depends on the clock: equal evaluations give equal bytes. All text that
comes from models, people or files is escaped by the template engine.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from operator import mul
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from sweetrl.evaluation import charts
from sweetrl.evaluation.metrics import AFTER, BEFORE, paired
from sweetrl.paths import EVALUATION_DIALOGUES
from sweetrl.rollout.scored import THOUGHTS
from sweetrl.types import Outcome, RankedState, Report, Result, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


Tone = Literal["better", "worse", "open"]
VIEWER = "http://127.0.0.1:8010/"  # where `sweetrl view` answers; its own copies of the report lead to themselves
EXAMPLE_STATES = 3
MOST_TOPICS = 60  # in a chart; tasks with names of their own are a topic each, thousands in a file
LONGEST_NAME = 40  # characters of a topic in a chart; the table has the full name
SHOWN_REPLIES = 3  # best and worst candidates shown of a state
# What stands above the answer of a dialogue.
ENDED: dict[Outcome, str] = {
    "answered": "The answer",
    "max_turns_reached": "The last turn is over; the last reply counts as the answer",
    "user_left": "The user has left; the last reply counts as the answer",
    "lost": "The dialogue was lost",
}


def render(report: Report) -> str:
    """Return the page as HTML."""
    return fill("report.html", page(report))


def fill(template: str, values: Mapping[str, Any], package: str = "sweetrl.evaluation") -> str:
    """Return a template of `package` (or of this one) with `values` in it, as HTML."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(name) for name in (package, "sweetrl.evaluation")])
    options: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, **options)
    environment.filters |= {"percent": percent, "points": points, "p_value": p_value, "number": number}
    environment.globals |= {"viewer": VIEWER, "both_dialogues": both_dialogues}
    return environment.get_template(template).render(**values)


def both_dialogues(task_id: str) -> str:
    """Return where the viewer shows the dialogues about a task before and after training side by side."""
    before, after = (
        "/".join(quote(part, safe="") for part in ((EVALUATION_DIALOGUES / name).as_posix(), task_id, "0"))
        for name in (BEFORE, AFTER)
    )
    return f"{VIEWER}#/dialogue/{before}?with={quote(after, safe='')}"


def without_viewer(page: str) -> str:
    """Return a report without its links into the viewer: of dialogues that are not kept."""
    return re.sub(r'<p class="small viewer">.*?</p>\n?|<a class="viewer" [^>]*>.*?</a>', "", page, flags=re.S)


def page(report: Report) -> dict[str, Any]:
    """Return what the template shows, as plain values and charts."""
    comparison, labels = report.comparison, report.domain.shown_labels
    before, after = paired(report.results)
    return {
        "labels": labels,
        "comparison": comparison,
        "level": level(comparison),
        "verdicts": verdicts(comparison),
        "headline": [headline(comparison, key, getattr(labels, key)) for key in ("success", "reward")],
        "turns": mean_turns(comparison["policies"]),
        "outcomes": paired_outcomes(before, after),
        "reward_chart": reward_chart(before, after, labels.reward_axis),
        "turn_chart": turn_chart(before, after),
        "faults": fault_rows(comparison["policies"], labels.faults),
        "topics": comparison["topics"],
        "held_out": comparison.get("held_out"),
        "topic_chart": topic_chart(comparison["topics"]) if len(comparison["topics"]) <= MOST_TOPICS else None,
        "examples": examples(before, after, report.before, report.after),
        "critic": critic_section(report.states, report.contexts, report.domain),
        "facts": dict(report.facts),
    }


class Verdict(NamedTuple):
    """What a comparison shows of one measure, what the domain calls it, and the change in numbers."""

    measure: str
    label: str
    tone: Tone
    change: str

    @property
    def sentence(self) -> str:
        """The verdict as the report has it."""
        words = {"better": "Training helped", "worse": "Training hurt", "open": "No difference is shown"}
        return f"{words[self.tone]}: {self.change}."


def verdicts(comparison: Mapping[str, Any]) -> list[Verdict]:
    """Say of each measure of evaluation.json what it shows: harm first, then what the domain is about.

    Each measure has a chance of error of its own: 1 - confidence, two-sided.
    """
    unordered, labels = [], comparison.get("labels", {"success": "success rate", "reward": "mean reward"})
    for measure, gain in comparison.get("difference", {}).items():
        label = labels[measure][:1].lower() + labels[measure][1:]
        change = (
            f"{label} changed by {points(gain['value'])} points on {comparison['tasks']:,} held-out tasks "
            f"({level(comparison)} interval {points(gain['low'])} to {points(gain['high'])}, "
            f"{gain['test']} {p_value(gain['p_value'])})"
        )
        unordered.append(Verdict(measure, label, tone(gain, comparison["confidence"]), change))
    first = comparison.get("measure", "success")
    return sorted(unordered, key=lambda each: (each.tone != "worse", each.measure != first))


def harm(comparison: Mapping[str, Any]) -> str:
    """Return the changes of the measures in which the trained policy is worse than its base; "" where in none."""
    return "; ".join(each.change for each in verdicts(comparison) if each.tone == "worse")


def level(comparison: Mapping[str, Any]) -> str:
    """The confidence level as people write it: 0.999 is no 100 %."""
    return f"{100 * comparison['confidence']:.6g}\u00a0%"


def tone(difference: Mapping[str, Any], confidence: float) -> Tone:
    """Whether a difference is shown: its interval lies on one side of zero, and its test agrees, as at the gate.

    On few tasks that differ a bootstrap alone is too sure.
    """
    if difference["p_value"] >= 1.0 - confidence:
        return "open"
    if difference["low"] > 0:
        return "better"
    return "worse" if difference["high"] < 0 else "open"


def headline(comparison: Mapping[str, Any], key: str, title: str) -> dict[str, Any]:
    """One of the two large numbers."""
    return {
        "title": title,
        "before": comparison["policies"][BEFORE][key],
        "after": comparison["policies"][AFTER][key],
        "difference": comparison["difference"][key],
        "tone": tone(comparison["difference"][key], comparison["confidence"]),
    }


def paired_outcomes(before: Sequence[Result], after: Sequence[Result]) -> list[dict[str, Any]]:
    """What became of each task: solved by both, only after, only before, by neither."""
    counts, total = Counter((old.success, new.success) for old, new in zip(before, after, strict=True)), len(before)
    kinds = (
        ((True, True), "both", "solved by both"),
        ((False, True), "won", "solved only after training"),
        ((True, False), "lost", "solved only before"),
        ((False, False), "neither", "solved by neither"),
    )
    return [
        {"kind": kind, "label": label, "count": counts[key], "share": counts[key] / total} for key, kind, label in kinds
    ]


def fault_rows(
    policies: Mapping[str, Mapping[str, Any]], kinds: Sequence[tuple[str, str, bool]]
) -> list[dict[str, Any]]:
    """What goes wrong before and after, as rows of a table; whether more is better decides the colour."""
    rows = []
    for key, label, more_is_better in kinds:
        if key not in policies[BEFORE]:
            continue
        old, new = policies[BEFORE][key], policies[AFTER][key]
        change = new["value"] - old["value"]
        better = abs(change) >= 0.0005 and (change > 0) == more_is_better
        rows.append({"label": label, "before": old, "after": new, "change": change, "better": better})
    return rows


def reward_chart(before: Sequence[Result], after: Sequence[Result], axis: str) -> str:
    """The rewards in tenths; those outside 0 to 1 count with the nearest."""
    tenths = [
        [min(10, max(0, round((result.reward or 0.0) * 10))) for result in results] for results in (before, after)
    ]
    shares = [_shares(values, range(11)) for values in tenths]
    return charts.bars([f"{tenth * 10}" for tenth in range(11)], shares[0], shares[1], axis, "rewards")


def mean_turns(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the mean turns of dialogues as the page says them, and the mean tokens of thoughts where there are any."""

    def means(key: str) -> str:
        before, after = (policies[name].get(key, {"value": 0.0})["value"] for name in (BEFORE, AFTER))
        return f"{before:.1f} before, {after:.1f} after on average"

    thinking = any(THOUGHTS in policies[name] for name in (BEFORE, AFTER))
    return means("turns") + (f"; tokens of thoughts a reply: {means(THOUGHTS)}" if thinking else "")


def turn_chart(before: Sequence[Result], after: Sequence[Result]) -> str:
    """How many turns the agent took."""
    turns = range(1, max(result.turns for result in (*before, *after)) + 1)
    shares = [_shares([result.turns for result in results], turns) for results in (before, after)]
    return charts.bars([str(turn) for turn in turns], shares[0], shares[1], "agent turns in a dialogue", "turns")


def topic_chart(topics: Mapping[str, Mapping[str, Any]]) -> str:
    """Success in each domain, before and after."""
    labels = []
    for name, topic in topics.items():
        short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        labels.append(f"{short} ({topic['tasks']}{', held out' if topic['held_out'] else ''})")
    rates = [[topic[policy] for topic in topics.values()] for policy in (BEFORE, AFTER)]
    return charts.dumbbells(labels, rates[0], rates[1], "topics")


def _shares(values: Sequence[int], places: range) -> list[float]:
    counts = Counter(values)
    return [counts[place] / len(values) for place in places]


def examples(
    before: Sequence[Result], after: Sequence[Result], old: Sequence[Trajectory], new: Sequence[Trajectory]
) -> list[dict[str, Any]]:
    """Up to three tasks with both dialogues: one won by training, one lost, one that both failed.

    Of the tasks won (lost), the one with the largest gain (loss) of reward; of those both failed, the one where the
    trained policy came closest. Ties go to the first task.
    """
    earlier, later = ({dialogue.task.id: dialogue for dialogue in dialogues} for dialogues in (old, new))
    shown = []
    for kind, label, successes, weights in (
        ("won", "Won by training", (False, True), (-1.0, 1.0)),
        ("lost", "Lost by training", (True, False), (1.0, -1.0)),
        ("neither", "Failed by both", (False, False), (0.0, 1.0)),
    ):
        pairs = [pair for pair in zip(before, after, strict=True) if (pair[0].success, pair[1].success) == successes]
        if pairs:
            first, second = max(
                pairs, key=lambda pair: sum(map(mul, weights, (result.reward or 0.0 for result in pair)))
            )
            dialogue = earlier[first.task_id]
            sides = [side(dialogue, first, "Before training"), side(later[first.task_id], second, "After training")]
            shown.append({"kind": kind, "label": label, "task": dialogue.task, "topic": first.topic, "sides": sides})
    return shown


def side(trajectory: Trajectory, result: Result, name: str) -> dict[str, Any]:
    """One dialogue as the page shows it; the answer is apart, the request is shown above."""
    messages = list(trajectory.messages[1:])
    final = messages.pop() if messages and messages[-1].role == "assistant" else None
    notes = []
    for count, words in (
        (result.untold, "detail{} not asked for"),
        (result.forgotten, "detail{} forgotten"),
        (result.mistaken, "detail{} with a wrong value"),
        (result.repeated, "repeated question{}"),
    ):
        if count:
            notes.append(f"{count} {words.format('' if count == 1 else 's')}")
    return {
        "name": name,
        "messages": messages,
        "answer": (trajectory.answer or "").strip() if final is not None else "",
        "ended": ENDED[trajectory.outcome],
        "reward": result.reward,
        "tests": trajectory.tests,
        "passed": result.tests_passed,
        "notes": notes,
    }


def critic_section(
    states: Sequence[RankedState], contexts: Mapping[tuple[str, int], Trajectory], domain: Domain
) -> dict[str, Any] | None:
    """The critic's advantages by turn, and a few states with their best and worst candidates."""
    if not any(state.candidates for state in states):
        return None
    return {
        "states": len(states),
        "replies": sum(reply.count for state in states for reply in state.candidates),
        "chart": advantage_chart(states, domain),
        "legend": [(f"{kind}s", color) for kind, color in reply_colors(domain)],
        "examples": [
            rated_state(state, contexts.get((state.task_id, state.attempt))) for state in example_states(states)
        ],
    }


def advantage_chart(states: Sequence[RankedState], domain: Domain) -> str:
    """Mean advantage of the sampled replies by turn, with quartiles: each type of reply apart."""
    import numpy as np

    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for state in states:
        for reply in state.candidates:
            values[domain.reply_type(reply.text), state.turn + 1] += [reply.advantage] * reply.count
    series = []
    for kind, color in reply_colors(domain):
        turns = sorted(turn for of_kind, turn in values if of_kind == kind)
        rows = [(np.mean(values[kind, turn]), *np.percentile(values[kind, turn], [25, 75])) for turn in turns]
        series.append(
            (f"{kind}s", color, turns, [dict(zip(("value", "low", "high"), row, strict=True)) for row in rows])
        )
    return charts.lines_by_turn(series, "advantage (nats a token)", "advantages")


def reply_colors(domain: Domain) -> list[tuple[str, str]]:
    """Return (type, colour) of the domain's types of replies; that of the last one, the answer, is the palette's."""
    *questions, answer = domain.reply_types
    *palette, last = charts.REPLY_COLORS
    return [*zip(questions, cycle(palette), strict=False), (answer, last)]


def example_states(states: Sequence[RankedState]) -> list[RankedState]:
    """The states whose best and worst replies lie furthest apart, of different tasks, two replies or more."""

    def spread(state: RankedState) -> float:
        advantages = [reply.advantage for reply in state.candidates]
        return max(advantages) - min(advantages)

    chosen: dict[str, RankedState] = {}
    for state in sorted((state for state in states if len(state.candidates) > 1), key=spread, reverse=True):
        chosen.setdefault(state.task_id, state)
    return list(chosen.values())[:EXAMPLE_STATES]


def rated_state(state: RankedState, context: Trajectory | None) -> dict[str, Any]:
    """One state as the page shows it: what was said before, then the best and the worst replies."""
    ranked = sorted(state.candidates, key=lambda reply: -reply.advantage)
    half = min(SHOWN_REPLIES, len(ranked) // 2)
    largest = max(abs(reply.advantage) for reply in ranked) or 1.0
    rows = [{"reply": reply, "width": abs(reply.advantage) / largest} for reply in ranked]
    return {
        "task_id": state.task_id,
        "turn": state.turn + 1,
        "hidden": context.task.hidden_information if context else None,
        "messages": list(context.messages[: 2 * state.turn + 1]) if context else [],
        "best": rows[:half],
        "worst": rows[-half:],
        "left_out": len(rows) - 2 * half,
    }


def percent(value: float) -> str:
    """0.2345 as 23.4 %, which stays on one line."""
    return f"{100 * value:.1f}\u00a0%"


def points(value: float) -> str:
    """0.123 as +12.3 (percentage points)."""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def p_value(value: float) -> str:
    """A p-value as people write it."""
    return "p\u00a0<\u00a00.001" if value < 0.001 else f"p\u00a0=\u00a0{value:.3f}"


def number(value: float) -> str:
    """A signed number with three digits."""
    return f"{value:+.3f}".replace("-", "−")
