"""The reproduction's results: results.json, results.md (pictures, then tables, for docs/), figures/ and report.html.

What has been measured is added to outcomes.parquet; variants that have not been run here are taken from it, if they
were measured with the present settings and base. Others are left out, and named as such.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sweetrl.colbench.domain import Domain
from sweetrl.errors import UserError
from sweetrl.evaluation.report import fill
from sweetrl.io import read_json, write_json, write_text
from sweetrl.reproduce import figures
from sweetrl.reproduce.claims import CLAIMS, judged, sha256
from sweetrl.reproduce.comparisons import PICKING, SEED_DATA, Results, Table, parts
from sweetrl.reproduce.outcomes import (
    OUTCOMES,
    Condition,
    Key,
    Measured,
    Outcome,
    measured_outcome,
    picking_gap,
    read_outcomes,
    row_of,
    write_outcomes,
)
from sweetrl.reproduce.run import Profile, picked
from sweetrl.reproduce.tuning import TUNING, budgets, read_tuning

RESULTS, MARKDOWN, PAGE, FIGURES = Path("results.json"), Path("results.md"), Path("report.html"), Path("figures")
FORMAT = 2  # of results.json: raised when `markdown` cannot read earlier ones
AGAINST = "sweet"


def write(profile: Profile) -> None:
    """Read every variant that there is and write the three files and the figures."""
    ruler, domain = profile.settings["evaluate"], profile.domain
    outcomes, stale = _outcomes(profile)
    planned = [(variant, profile.seeds_of(variant)) for variant in profile.variants]
    rows = [
        Measured(variant, {seed: outcomes[variant.name, seed] for seed in seeds if (variant.name, seed) in outcomes})
        for variant, seeds in planned
    ]
    measured = {row.variant.name: row for row in rows if row.outcomes}
    if not measured:
        raise UserError("measured/: no variant has been run yet; run `make reproduce`.")
    level, resamples = ruler["confidence"], ruler["resamples"]
    picking = _best_of_n(profile)
    temperatures = [f"{temperature:g}" for temperature in profile.temperatures]
    if len({*profile.temperatures, *profile.values["choose"]["grid"]}) > 1:  # else there was nothing to choose
        temperatures.append("chosen")
    met = [f"{temperature:g}" for temperature in profile.persona_temperatures]
    conditions = [Condition(name) for name in temperatures]
    conditions += [Condition(name, persona) for persona in profile.personas for name in met]
    results = {
        "format": FORMAT,
        "profile": profile.values["profile"],
        "seeds": profile.seeds,
        "tasks_for_each_seed": ruler["tasks"],
        "temperatures": temperatures,
        "personas": profile.personas,
        **_words(domain),
        "rows": {
            name: row_of(row, measured.get(row.variant.against), conditions, level, resamples)
            for name, row in measured.items()
        },
        "claims": judged(profile.claims, measured, level, resamples),
        "claims_file": _claims_file(profile, measured),
        "tuning": budgets(read_tuning(profile.folder / TUNING), domain.measure),
        "best_of_n": {
            seed: {name: curve for picks in critics.values() for name, curve in picks["curves"].items()}
            for seed, critics in picking.items()
        },
        "best_of_n_gaps": {
            seed: {
                name: picking_gap(points[AGAINST], own, level, resamples)
                for name, own in points.items()
                if AGAINST in points and name != AGAINST
            }
            for seed, points in _picks(picking).items()
        },
        "hours": _hours(profile, measured, picking),
        "origins": _origins(outcome for row in measured.values() for outcome in row.outcomes.values()),
        "stale": [f"{name} {seed}" for name, seed in stale],
        "missing": [
            f"{variant.name} {seed}"
            for variant, seeds in planned
            for seed in seeds
            if (variant.name, seed) not in outcomes
        ]
        + [
            f"Best-of-N with {name} {seed}"
            for seed in profile.values["best_of_n_seeds"]
            for name in profile.values["critics"]
            if name not in picking.get(str(seed), {})
        ],
    }
    write_outcomes(OUTCOMES, {**stale, **outcomes})  # what git has of it is never taken out here
    write_json(RESULTS, json.loads(json.dumps(results), parse_float=lambda text: round(float(text), 6)))
    results = read_json(RESULTS)  # what is shown can be made of the file alone, which is sorted
    write_text(MARKDOWN, markdown(results))
    shutil.rmtree(FIGURES, ignore_errors=True)
    drawings = {figure.name: figure.draw() for part in parts(results) for figure in part.figures}
    for name, svg in drawings.items():
        write_text(FIGURES / f"{name}.svg", figures.as_file(svg))
    write_text(PAGE, page(results, drawings))
    print(f"reproduce: {len(measured)} of {len(planned)} rows; {RESULTS}, {MARKDOWN}, {PAGE}, {FIGURES}/", flush=True)


def _outcomes(profile: Profile) -> tuple[dict[Key, Outcome], dict[Key, Outcome]]:
    """What was measured here, with what outcomes.parquet has beside it; and what it has of other settings."""
    kept = read_outcomes(profile.folder / OUTCOMES)
    stale = {key: outcome for key, outcome in kept.items() if not profile.still(outcome)}
    for variant in profile.variants:
        for seed in profile.seeds_of(variant):
            if here := measured_outcome(variant, seed, profile.folder):
                kept[variant.name, seed] = here
                stale.pop((variant.name, seed), None)
    return {key: outcome for key, outcome in kept.items() if key not in stale}, stale


def _origins(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """When, on which commit and processor how many policies were measured."""
    counts = Counter(tuple(sorted(outcome.summary["origin"].items())) for outcome in outcomes)
    return [{**dict(origin), "policies": count} for origin, count in sorted(counts.items())]


def _words(domain: Domain) -> dict[str, Any]:
    """What is measured first, what success and reward are called, and which of the paper's numbers stand beside."""
    rewarded, shown = domain.measure == "reward", domain.shown_labels
    labels = {"success": shown.success if rewarded else "success", "reward": shown.reward}
    labels = {key: label[:1].lower() + label[1:] for key, label in labels.items()}
    paper = "cosine, win rate" if rewarded else "tests passed, success"
    return {"measure": domain.measure, "labels": labels, "paper": paper}


def _claims_file(profile: Profile, measured: Mapping[str, Measured]) -> str:
    """Whether claims.yaml is as it was when the variants were measured."""
    now = sha256(profile.folder / CLAIMS)
    then = [record["sha256"] for row in measured.values() for record in row.claims.values()]
    changed = sum(digest != now for digest in then)
    if not changed:
        return f"{CLAIMS} is as it was when each of the {len(then)} policies met its first test task."
    return (
        f"{CLAIMS} has been changed since {changed} of the {len(then)} policies met their first test task: the column "
        "`written down` says of each claim whether it was there."
    )


def _best_of_n(profile: Profile) -> dict[str, dict[str, Any]]:
    """What Best-of-N has come to, by seed and then by critic, where it has been run."""
    names, seeds = profile.values["critics"], profile.values["best_of_n_seeds"]
    there = {str(seed): {name: path for name in names if (path := picked(name, seed)).exists()} for seed in seeds}
    return {seed: {name: read_json(path) for name, path in paths.items()} for seed, paths in there.items() if paths}


def _picks(picking: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """The points of every curve, by seed and then by the curve's name."""
    picks: dict[str, dict[str, list[Any]]] = {seed: {} for seed in picking}
    for seed, critics in picking.items():
        for point in (point for curves in critics.values() for point in curves["points"]):
            picks[seed].setdefault(point["critic"], []).append(point)
    return picks


def _hours(
    profile: Profile, measured: Mapping[str, Measured], picking: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Hours on the clock of the parts that are there, as if they had run one after the other; whole parts only."""
    facts = [Path("seed-data") / str(seed) / "facts.json" for seed in profile.seeds]
    spent = [(SEED_DATA, stage) for path in facts if path.exists() for stage in read_json(path).values()]
    spent += [
        (row.variant.table, stage)
        for row in measured.values()
        for stages in row.stages.values()
        for stage in stages.values()
    ]
    spent += [(PICKING, curves["seconds"]) for critics in picking.values() for curves in critics.values()]
    seconds = Counter[str]()
    for part, stage in spent:
        seconds[part] += stage["seconds"]
    return {part: value / 3600 for part, value in seconds.items()}


def markdown(results: Results) -> str:
    """The report as Markdown: pictures first, then the tables."""
    shown = parts(results)
    blocks = ["### Pictures"]
    for figure in [figure for part in shown for figure in part.figures]:
        blocks += [f"{figure.says}:", f"![{figure.says}]({FIGURES}/{figure.name}.svg)"]
    for part in shown:
        blocks += [f"### {part.title}", *(text for table in part.tables for text in _markdown(table))]
    for origin in results.get("origins", []):
        date, processor, commit = origin["date"], origin["processor"], origin["commit"]
        blocks += [f"Policies measured on {date}, {processor}, at {commit}: {origin['policies']}."]
    for what, names in (("Measured with other settings, and left out", "stale"), ("Not run", "missing")):
        if results.get(names):
            blocks += [f"{what}: {', '.join(results[names])}."]
    return "\n\n".join(blocks) + "\n"


def _markdown(table: Table) -> Iterator[str]:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    yield "\n".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|" for line in lines)
    if table.note:
        yield table.note


def page(results: Results, drawings: Mapping[str, str]) -> str:
    """The same as one page that loads nothing."""
    shown = [(part, [drawings[figure.name] for figure in part.figures]) for part in parts(results)]
    return fill("report.html", {"results": results, "parts": shown}, "sweetrl.reproduce")
