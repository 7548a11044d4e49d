"""The page about a batch's quality: every expectation in plain words, what was observed beside what is allowed.

One file without scripts that loads nothing, in the look of the evaluation's report. The last accepted batches are drawn
as lines; they are kept in a file of their own, which no result depends on. Rows that break a rule lead into the viewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sweetrl.errors import UserError
from sweetrl.evaluation.report import fill, markup, percent
from sweetrl.io import read_json, write_json, write_text
from sweetrl.validation.suites import WHOLE, Rule, Table, Verdict
from sweetrl.validation.tables import Summary

KEPT = 20  # batches in a line
TITLES = {"shards": "Files", "trajectories": "Dialogues", "pairs": "Preference pairs", "tasks": "Tasks"}
EXPORT = "view"  # where `sweetrl view --export` is looked for, beside the page
WIDTH, HEIGHT, MARGIN = 132.0, 30.0, 4.0  # of a line, in pixels


def write_page(
    path: Path,
    tables: Sequence[Table],
    verdicts: Sequence[Verdict],
    summary: Summary | None,
    history: Path,
    source: str,
) -> None:
    """Write the page to `path`.

    `summary` is None where the batch cannot be read. `history` is the file of earlier batches (see `remember`), and
    `source` the folder of dialogues as it is called in the viewer's addresses.
    """
    earlier = [batch for batch in read_history(history) if summary is None or batch["batch"] != summary.batch]
    verdict_of = {(verdict.table, verdict.rule): verdict for verdict in verdicts}
    exported = (path.parent / EXPORT / "index.html").exists()
    sections = []
    for table in tables:
        rules = [
            rule_row(rule, verdict_of[table.name, rule.name], earlier, source, exported)
            for rule in table.rules
            if (table.name, rule.name) in verdict_of
        ]
        failed = sum(not rule["success"] for rule in rules)
        sections.append({"title": TITLES[table.name], "rows": len(table.rows), "rules": rules, "failed": failed})
    page = {
        "failed": sum(not verdict.success for verdict in verdicts),
        "rules": len(verdicts),
        "sections": sections,
        "facts": {} if summary is None else batch_facts(summary),
        "earlier": len(earlier),
        "exported": exported,
        "export": f"{path.parent.name}/{EXPORT}",
    }
    write_text(path, fill("data-quality.html", page, "sweetrl.validation"))


def rule_row(
    rule: Rule, verdict: Verdict, earlier: Sequence[Mapping[str, Any]], source: str, exported: bool
) -> dict[str, Any]:
    """Return one expectation as the page shows it."""
    name = history_key(verdict)
    values = [batch["observed"][name] for batch in earlier if name in batch["observed"]]
    by_row = rule.kind not in WHOLE
    bounds = (verdict.low, verdict.high)
    return {
        "says": rule.says,
        "fix": rule.fix,
        "success": verdict.success,
        "observed": in_rows(verdict) if by_row else number(verdict.observed),
        "allowed": allowed(bounds, by_row),
        "line": markup(line([*values, verdict.observed], bounds, verdict.success)),
        "broken": [broken_row(key, detail, source, exported) for key, detail in verdict.broken],
        "unlisted": max(0, verdict.unexpected - len(verdict.broken)) if by_row else 0,
    }


def in_rows(verdict: Verdict) -> str:
    """How many of how many rows break a rule."""
    share = f" ({percent(verdict.observed)})" if verdict.unexpected else ""
    return f"{verdict.unexpected:,} of {verdict.checked:,}{share}"


def allowed(bounds: tuple[float | None, float | None], by_row: bool) -> str:
    """What may be observed, in words."""
    low, high = bounds
    if by_row:
        return f"at most {percent(high)}" if high else "none"
    if low is not None and high is not None:
        return f"{number(low)} to {number(high)}"
    return f"at least {number(low)}" if low is not None else f"at most {number(high)}" if high is not None else "any"


def number(value: float) -> str:
    """A count as it is, anything else with three digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def broken_row(key: Mapping[str, Any], detail: str, source: str, exported: bool) -> dict[str, str]:
    """One row that breaks a rule; `link` leads to its dialogue, "" where there is none or no viewer beside the page."""
    address = ""
    if "task_id" in key and key.get("attempt") is not None:
        address = "#/dialogue/" + "/".join(
            quote(str(part), safe="") for part in (source, key["task_id"], key["attempt"])
        )
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in key.items() if name != "row")
    link = f"{EXPORT}/index.html{address}" if address and exported else ""
    return {"row": str(key.get("row", "")), "about": about, "detail": detail, "link": link, "address": address}


def batch_facts(summary: Summary) -> dict[str, str]:
    """The batch in a few numbers, as people write them."""
    return {
        "dialogues": f"{summary.trajectories:,} at {summary.tasks:,} tasks",
        "mean reward": f"{summary.mean_reward:.3f} ± {summary.reward_error:.3f}",
        "success": percent(summary.success_rate),
        "agent's turns": f"{summary.mean_turns:.2f} ± {summary.turns_error:.2f}",
        "lost": f"{summary.lost:,}",
        "batch": summary.batch,
    }


def line(values: Sequence[float], bounds: tuple[float | None, float | None], success: bool) -> str:
    """The last batches as a line of SVG, oldest first; dashes are bounds, the dot is the batch of this page."""
    limits = [bound for bound in bounds if bound is not None]
    low, high = min([*values, *limits]), max([*values, *limits])
    span = (high - low) or 1.0

    def down(value: float) -> float:
        return round(HEIGHT - MARGIN - (value - low) / span * (HEIGHT - 2 * MARGIN), 1)

    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)
    places = [(round(MARGIN + index * step, 1), down(value)) for index, value in enumerate(values)]
    if len(places) == 1:
        places = [(WIDTH - MARGIN, places[0][1])]
    points = " ".join(f"{across},{y}" for across, y in places)
    dashes = "".join(f'<path d="M0 {down(bound)}H{WIDTH:g}" class="bound"/>' for bound in limits)
    label = f"{number(values[-1])} now" + (f", {number(values[-2])} before" if len(values) > 1 else "")
    across, y = places[-1]
    kind = "ok" if success else "not"
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">{dashes}'
        f'<polyline points="{points}" class="past"/><circle cx="{across}" cy="{y}" r="3" class="{kind}"/></svg>'
    )


# The last batches


def history_key(verdict: Verdict) -> str:
    """What an expectation is called in the file of earlier batches."""
    return f"{verdict.table}.{verdict.rule}"


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return what was observed of the accepted batches, oldest first; none where there is no file."""
    if not path.exists():
        return []
    batches = read_json(path)
    if not isinstance(batches, list) or not all(
        isinstance(batch, dict) and {"batch", "observed"} <= set(batch) for batch in batches
    ):
        raise UserError(f"{path}: this is not the history of batches; remove the file and run again.")
    return batches


def remember(path: Path, batch: str, verdicts: Sequence[Verdict]) -> None:
    """Add an accepted batch to the file of the last ones; one that is there already is not added twice."""
    others = [earlier for earlier in read_history(path) if earlier["batch"] != batch]
    entry = {"batch": batch, "observed": {history_key(verdict): verdict.observed for verdict in verdicts}}
    write_json(path, [*others, entry][-KEPT:])
