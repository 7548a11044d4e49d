"""The report's details, made of results.json alone: what goes wrong, critics, Best-of-N, tuning, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sweetrl.evaluation.report import percent
from sweetrl.reproduce import figures
from sweetrl.reproduce.parts import NONE, Figure, Part, Results, Row, Table, at, cell, gap, interval, number, slug
from sweetrl.reproduce.variants import TABLES, VARIANTS

SEED_DATA, PICKING = "seed-data", "Figure 3a"  # beside the variants' tables
FAULTS = (
    ("turns", "turns", number),
    ("premature_answers", "premature answers", percent),
    ("details_brought_out", "details brought out", percent),
    ("repeated_questions", "repeated questions", percent),
    ("irrelevant_questions", "irrelevant questions", percent),
    ("unhinted_questions", "unhinted questions", percent),
    ("forgotten_details", "forgotten details", percent),
    ("mistaken_details", "mistaken details", percent),
    ("max_turns_reached", "last turn reached", percent),
    ("reply_tokens", "tokens a reply", number),
)


def details(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """What there is beside comparisons, in order."""
    for make in (_faults, _critics, _picking, _tuning, _costs):
        yield from make(results, rows)


def _faults(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """What goes wrong in the dialogues, at each temperature."""
    for name in results["temperatures"]:
        if name == "chosen" and len(results["temperatures"]) > 1:
            continue
        these = [(row["label"], row["at"][name]) for row in rows if name in row["at"]]
        known = [fault for fault in FAULTS if any(fault[0] in found for _, found in these)]
        body = [
            [label, *(form(_value(found[key])) if key in found else NONE for key, _, form in known)]
            for label, found in these
        ]
        drawn = [(key, title) for key, title, form in known if form is percent and key in _DRAWN]
        estimates = [(label, {key: found[key] for key, _ in drawn if key in found}) for label, found in these]
        title, file = f"What goes wrong, {at(name)}", f"faults-{slug(name)}"
        figure = Figure(file, title, partial(figures.bars, estimates, drawn, f"share, {at(name)}", file))
        table = [Table(["", *(title for _, title, _ in known)], body)] if these else []
        yield Part(title, [figure] if drawn else [], table)


_DRAWN = ("premature_answers", "repeated_questions", "irrelevant_questions", "unhinted_questions")


def _value(found: Any) -> float:
    return float(found["value"] if isinstance(found, Mapping) else found)


_OVER = ("hinted", "plausible", "irrelevant", "repeated", "premature")
_CRITICS = (
    ("critic_accuracy", "accuracy on its pairs"),
    *((f"needed_over_{other}", f"needed above {other}") for other in _OVER),
    ("better_over_worse", "more details right above fewer"),
)


def _critics(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """How critics rank replies whose worth is known."""
    these = [row for row in rows if any(key in row["training"] for key, _ in _CRITICS[1:])]
    known = [(key, title) for key, title in _CRITICS if any(key in row["training"] for row in these)]
    if not these:
        return
    shares = [(row["label"], row["training"]) for row in these]
    estimates = [(label, {key: {"value": some[key]} for key, _ in known if key in some}) for label, some in shares]
    draw = partial(figures.bars, estimates, known, "share of pairs in the right order", "critics")
    figure = Figure("critics", "Critics: how often each ranks the better reply higher", draw)
    body = [[row["label"], *(cell(row["training"], key, percent) for key, _ in known)] for row in these]
    yield Part("Critics", [figure], [Table(["", *(title for _, title in known)], body)])


def _picking(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Best-of-N, seed by seed."""
    for seed, curves in results["best_of_n"].items():
        gaps = results["best_of_n_gaps"][seed]
        names = [name for name in VARIANTS if name in curves]
        series = {VARIANTS[name].label: [(float(one["n"]), one["success"]) for one in curves[name]] for name in names}
        numbers = [one["n"] for one in curves[names[0]]] if names else []
        body = [
            [VARIANTS[name].label, *(interval(one["success"]) for one in curves[name]), cell(gaps, name, gap)]
            for name in names
        ]
        head = ["critic", *(f"N = {n}" for n in numbers), "SWEET-RL minus this, mean over N > 1"]
        title = f"{PICKING}: Best-of-N, success (seed {seed})"
        figure = Figure(f"best-of-n-{seed}", title, partial(figures.curves, series, "N", f"best-of-n-{seed}"))
        yield Part(title, [figure], [Table(head, body)] if names else [])


def _tuning(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """How many runs were tried for each method, and what they reached."""
    found, label = results["tuning"], results["labels"][results["measure"]]
    if not found:
        return
    temperatures = sorted({name for one in found for name in one["at"]}, key=float)
    drawn = [(one["label"], {name: said["values"] for name, said in one["at"].items()}) for one in found]
    draw = partial(figures.runs, drawn, f"{label} on validation tasks; a tick for each run", "tuning")
    figure = Figure("tuning", f"Tuning: {label} of every run on validation tasks", draw)
    heads = [(name, key) for name in temperatures for key in ("best", "median", "settings")]
    forms: dict[str, Callable[[Any], str]] = {"best": percent, "median": percent, "settings": _settings}
    body = [
        [one["label"], f"{one['runs']}", *(cell(one["at"].get(name), key, forms[key]) for name, key in heads)]
        for one in found
    ]
    head = ["", "runs", *(f"{'settings of the best' if key == 'settings' else key}, {at(name)}" for name, key in heads)]
    yield Part("Tuning", [figure], [Table(head, body, f"{label} on validation tasks; tuning.yaml lists every run.")])


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values.items()) or "as they are"


def _costs(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Minutes of a variant of each row, and the sum of everything."""
    estimates = []
    for row in rows:
        measuring = row["training"]["measuring_seconds"]
        both = {"training": row["training"]["seconds"] - measuring, "measuring": measuring}
        estimates.append((row["label"], {key: {"value": seconds / 60} for key, seconds in both.items()}))
    series = [("training", "training"), ("measuring", "measuring")]
    draw = partial(figures.bars, estimates, series, "minutes for a seed", "costs", shares=False)
    figure = Figure("costs", "What it costs: minutes for a seed", draw)
    body = [[label, *(number(both[key]["value"]) for key, _ in series)] for label, both in estimates]
    hours = results["hours"]
    sums = ", ".join(f"{name} {60 * hours[name]:.0f} min" for name in (SEED_DATA, *TABLES, PICKING) if name in hours)
    note = (
        f"All parts one after the other: {sum(hours.values()):.1f} hours on the clock ({sums}). Candidates that an "
        "earlier variant has sampled are not sampled again, so later variants look cheaper than they would be alone."
    )
    yield Part("What it costs", [figure], [Table(["", "minutes of training", "minutes of measuring"], body, note)])
