"""The page about a batch's quality: every expectation in plain words, what was observed beside what is allowed.

One file without scripts that loads nothing, in the look of the evaluation's report. The last accepted batches are drawn
as lines; they are kept in a file of their own, which no result depends on. Rows that break a rule lead into the viewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sweetrl.evaluation.report import fill, percent
from sweetrl.io import read_json, write_json, write_text
from sweetrl.validation.suites import OF_TABLE, Rule, Table, Verdict
from sweetrl.validation.tables import Summary

KEPT = 20  # batches in a line
LISTED = 200  # rows of a rule; all of them are in the Data Docs
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
        rules = [_rule_row(rule, verdict_of[table.name, rule.name], earlier, source, exported) for rule in table.rules]
        failed = sum(not rule["success"] for rule in rules)
        sections.append({"title": TITLES[table.name], "rows": len(table.rows), "rules": rules, "failed": failed})
    page = {
        "failed": sum(not verdict.success for verdict in verdicts),
        "rules": len(verdicts),
        "sections": sections,
        "facts": {} if summary is None else _batch_facts(summary),
        "earlier": len(earlier),
        "exported": exported,
        "export": f"{path.parent.name}/{EXPORT}",
    }
    write_text(path, fill("data-quality.html", page, "sweetrl.validation"))


def _rule_row(
    rule: Rule, verdict: Verdict, earlier: Sequence[Mapping[str, Any]], source: str, exported: bool
) -> dict[str, Any]:
    """One expectation as the page shows it."""
    name, low, high = f"{verdict.table}.{verdict.rule}", verdict.low, verdict.high
    values = [batch["observed"][name] for batch in earlier if name in batch["observed"]]
    by_row = rule.kind not in OF_TABLE
    share = f" ({percent(verdict.observed)})" if verdict.unexpected else ""
    if by_row:
        allowed = f"at most {percent(high)}" if high else "none"
    elif high is None:
        allowed = f"at least {_number(low or 0.0)}"
    else:
        allowed = f"{_number(low or 0.0)} to {_number(high)}"
    return {
        "says": rule.says,
        "fix": rule.fix,
        "success": verdict.success,
        "observed": f"{verdict.unexpected:,} of {verdict.checked:,}{share}" if by_row else _number(verdict.observed),
        "allowed": allowed,
        "line": line([*values, verdict.observed], (low, high), verdict.success),
        "broken": [_broken_row(key, detail, source, exported) for key, detail in verdict.broken[:LISTED]],
        "unlisted": max(0, verdict.unexpected - LISTED) if by_row else 0,
    }


def _number(value: float) -> str:
    """A count as it is, anything else with three digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def _broken_row(key: Mapping[str, Any], detail: str, source: str, exported: bool) -> dict[str, str]:
    """One row that breaks a rule; `link` leads to its dialogue, "" where there is none or no viewer beside the page."""
    address = ""
    if key.get("attempt") is not None:
        parts = (source, key["task_id"], key["attempt"])
        address = "#/dialogue/" + "/".join(quote(str(part), safe="") for part in parts)
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in key.items() if name != "row")
    link = f"{EXPORT}/index.html{address}" if address and exported else ""
    return {"row": str(key["row"]), "about": about, "detail": detail, "link": link, "address": address}


def _batch_facts(summary: Summary) -> dict[str, str]:
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
    start = MARGIN if len(values) > 1 else WIDTH - MARGIN
    places = [(round(start + index * step, 1), down(value)) for index, value in enumerate(values)]
    points = " ".join(f"{across},{y}" for across, y in places)
    dashes = "".join(f'<path d="M0 {down(bound)}H{WIDTH:g}" class="bound"/>' for bound in limits)
    label = f"{_number(values[-1])} now" + (f", {_number(values[-2])} before" if len(values) > 1 else "")
    across, y = places[-1]
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">{dashes}'
        f'<polyline points="{points}" class="past"/>'
        f'<circle cx="{across}" cy="{y}" r="3" class="{"ok" if success else "not"}"/></svg>'
    )


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return what was observed of the last accepted batches, oldest first; none where there is no file."""
    batches: list[dict[str, Any]] = read_json(path) if path.exists() else []
    return batches


def remember(path: Path, batch: str, verdicts: Sequence[Verdict]) -> None:
    """Add an accepted batch to the file of the last ones; one that is there already is not added twice."""
    others = [earlier for earlier in read_history(path) if earlier["batch"] != batch]
    observed = {f"{verdict.table}.{verdict.rule}": verdict.observed for verdict in verdicts}
    write_json(path, [*others, {"batch": batch, "observed": observed}][-KEPT:])
