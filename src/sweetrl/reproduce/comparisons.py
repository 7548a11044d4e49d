"""The report's comparisons, made of results.json alone: rows at every temperature, what was claimed, seeds, users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sweetrl.evaluation.report import p_value, percent, points
from sweetrl.reproduce import figures
from sweetrl.reproduce.parts import (
    NONE,
    Figure,
    Part,
    Results,
    Row,
    Table,
    at,
    cell,
    cells,
    gap,
    heads,
    interval,
    number,
    slug,
)
from sweetrl.reproduce.variants import AMOUNTS, METHODS, ONLINE, TABLES, VARIANTS

# Fewer questions in a dialogue than this, and success a question is a quotient of rare events.
FEW_QUESTIONS = 0.5


def comparisons(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """What is compared, in order."""
    yield from _tables(results, rows)
    yield from _held_out(results, rows)
    yield from _users(results, rows)
    yield from _questions(results, rows)
    yield from _claims(results)
    yield from _temperatures(results, rows)
    yield from _seeds(results, rows)


def _tables(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """The paper's tables, and ours of the same kind."""
    for title in TABLES:
        these = [row for row in rows if row["table"] == title]
        if not these:
            continue
        drawings = _amounts(results, rows) if title == AMOUNTS else []
        label = results["labels"][results["measure"]]
        seeds = {
            (row["label"], name): [one[results["measure"]] for one in found["by_seed"].values()]
            for row in these
            for name, found in row["at"].items()
        }
        bars = _bars(
            results,
            title,
            f"{title}: {label} at each temperature, with hierarchical intervals; ticks are seeds",
            f"{label}, with intervals; ticks: seeds",
            {row["label"]: row["at"] for row in these},
            seeds,
        )
        tables = [_table(results, these), *([_online(these)] if title == ONLINE else [])]
        yield Part(title, [bars, *drawings], tables)


def _bars(
    results: Results,
    title: str,
    says: str,
    axis: str,
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]],
    seeds: Mapping[tuple[str, str], Sequence[float]] | None = None,
) -> Figure:
    """Bars of the measure, by the rows' labels and temperatures; the temperature that was chosen is marked."""
    measure = results["measure"]
    estimates = [
        (label, {name: found[measure] for name, found in row.items() if found[measure]}) for label, row in rows.items()
    ]
    known = {name for row in rows.values() for name in row}
    names = [name for name in results["temperatures"] if name in known]
    series = [(name, at(name)) for name in names if name != "chosen"]
    marked = ("chosen", at("chosen")) if "chosen" in names else None
    return Figure(slug(title), says, lambda: figures.bars(estimates, series, axis, slug(title), marked, seeds))


def _amounts(results: Results, rows: Sequence[Row]) -> list[Figure]:
    """A curve for each method that has learnt from a part of the tasks, with the untrained agent beside them."""
    measure, name = results["measure"], results["temperatures"][0]
    found = {row["variant"]: row["at"][name][measure] for row in rows if name in row["at"]}
    curves: dict[str, dict[float, Any]] = {}
    for part in (VARIANTS[variant] for variant in found if VARIANTS[variant].table == AMOUNTS):
        whole = next(one for one in VARIANTS.values() if one.data == 1 and one.settings == part.settings)
        curve = curves.setdefault(whole.label, {100.0: found[whole.name]} if whole.name in found else {})
        curve[round(100 * part.data)] = found[part.name]
    if "zero-shot" in found and curves:
        shares = {share for curve in curves.values() for share in curve}
        curves[VARIANTS["zero-shot"].label] = dict.fromkeys(shares, found["zero-shot"])
    series = {label: sorted(curve.items()) for label, curve in curves.items()}
    label = f"{results['labels'][measure]}, {at(name)}"
    drawing = Figure(
        "amounts",
        f"{AMOUNTS}: {label}, by the share of the tasks that is learnt from",
        lambda: figures.curves(series, "share of the tasks, %", "amounts", label),
    )
    return [drawing] if series else []


def _table(results: Results, rows: Sequence[Row]) -> Table:
    measure, temperatures = results["measure"], results["temperatures"]
    label = results["labels"][measure]
    own = {VARIANTS[row["variant"]].against for row in rows} - {"sweet"}
    below = VARIANTS[min(own)].label if own else VARIANTS["sweet"].label
    paper = "paper_pages" if measure == "reward" else "paper"
    body = [
        [
            row["label"],
            *cells(row["at"], temperatures, (measure, interval)),
            *cells(_differences(row["at"]), temperatures, (measure, gap)),
            " / ".join("-" if value is None else f"{value}" for value in row[paper]),
        ]
        for row in rows
    ]
    head = ["", *heads([label, f"minus {below}"], temperatures), f"paper: {results['paper']}"]
    return Table(head, body)


def _differences(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: one["difference"] for name, one in found.items() if "difference" in one}


def _online(rows: Sequence[Row]) -> Table:
    """What the rows of methods that go on collecting have learnt from, and how they fared on the way."""
    return Table(
        ["", "dialogues learnt from", "success on training tasks (start of iterations 2, 3, ...; last fifth of GRPO)"],
        [
            [row["label"], f"{row['dialogues']:,.0f}", ", ".join(percent(value) for value in row["on_the_way"])]
            for row in rows
            if "dialogues" in row
        ],
    )


def _held_out(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Success on the tasks of domains that training never saw."""
    measure, temperatures = results["measure"], results["temperatures"]
    those = {
        row["label"]: {name: found["held_out"] for name, found in row["at"].items() if found.get("held_out")}
        for row in rows
    }
    those = {label: found for label, found in those.items() if any(one[measure] for one in found.values())}
    if not those:
        return
    title, label = "Held-out domains", results["labels"][measure]
    never = "domains that training never saw"
    figure = _bars(results, title, f"{title}: {label} on tasks of {never}", f"{label}, {never}", those)
    body = [
        [
            name,
            *cells(found, temperatures, (measure, interval)),
            *cells(_differences(found), temperatures, (measure, gap)),
        ]
        for name, found in those.items()
    ]
    tasks = max(one[measure]["n"] for found in those.values() for one in found.values() if one[measure])
    head = ["", *heads([label, "minus SWEET-RL"], temperatures)]
    yield Part(title, [figure], [Table(head, body, f"{tasks:,} tasks for a row with all seeds.")])


def _users(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """The same policies with users whom they were not trained with."""
    measure = results["measure"]
    known = {key for row in rows for found in row["personas"].values() for key in found}
    temperatures = [key for key in results["temperatures"] if key in known]
    met = {
        f"{row['label']}, {persona or 'usual'}": {name: one for name, one in found.items() if name in known}
        for persona in ("", *results["personas"])
        for row in rows
        if row["personas"]
        for found in [row["personas"].get(persona) if persona else row["at"]]
        if found
    }
    if not met:
        return
    title, label = "Other users", results["labels"][measure]
    says = f"{title}: {label} with users whom the agent was not trained with"
    body = [
        [name, *cells(found, temperatures, (measure, interval), ("questions", lambda one: number(one["value"])))]
        for name, found in met.items()
    ]
    head = ["", *heads([label, "questions"], temperatures)]
    yield Part(title, [_bars(results, title, says, f"{label}, by user", met)], [Table(head, body)])


def _questions(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """What the user is asked for it."""
    measure, temperatures = results["measure"], results["temperatures"]
    other = "reward" if measure == "success" else "success"
    labels, drawn = results["labels"], []
    for name in temperatures:
        measured = [(row["label"], row["at"][name]) for row in rows if name in row["at"]]
        cloud = [(label, found["questions"], found[measure]) for label, found in measured]
        axes, file = ("questions in a dialogue", f"{labels[measure]}, {at(name)}"), f"questions-{slug(name)}"
        says = f"Questions: {labels[measure]} against questions asked, {at(name)}"
        drawn.append(Figure(file, says, partial(figures.cloud, cloud, axes, file)))
    forms: list[tuple[str, str, Callable[[Any], str]]] = [
        ("questions", "questions", lambda one: number(one["value"])),
        ("success_per_question", f"{labels['success']} a question", interval),
        (other, labels[other], interval),
    ]
    head = ["", *heads([title for _, title, _ in forms], temperatures)]
    note, body = "", []
    for row in rows:
        body.append([row["label"]])
        for key, _, form in forms:
            for name in temperatures:
                found = row["at"].get(name, {})
                if key == "success_per_question" and key in found and found["questions"]["value"] < FEW_QUESTIONS:
                    title = f"{labels['success']} a question"
                    note = f'"{title}" is left out where fewer than one question is asked in two dialogues.'
                    body[-1].append(NONE)
                else:
                    body[-1].append(cell(found, key, form))
    yield Part("Questions", drawn, [Table(head, body, note)])


def _claims(results: Results) -> Iterator[Part]:
    """What was claimed before, and what has come of it."""
    found = results["claims"]
    measured = [one for one in found if one["difference"]]
    drawn = [(f"{one['claim']} ({at(one['temperature'])})", one["difference"], one["verdict"]) for one in measured]
    figure = Figure(
        "claims",
        "Claims: differences with hierarchical intervals (thick) and t intervals over seeds (thin)",
        lambda: figures.claims(drawn, "difference; thick: hierarchical interval, thin: t over seeds", "claims"),
    )
    body = []
    for one in measured:
        difference = one["difference"]
        seeds = difference["groups"]
        alone = ", one seed only" if seeds == 1 and one["verdict"] != "open" else ""
        where = [at(one["temperature"]), *(["held-out domains"] if one["held_out"] else []), one["persona"]]
        body.append(
            [
                one["claim"],
                ", ".join(filter(None, [*where, results["labels"][one["measure"]]])),
                gap(difference),
                _t(difference),
                f"{seeds}",
                p_value(one["p_adjusted"]),
                one["written"] + (", taken out later" if one["withdrawn"] else ""),
                one["verdict"] + alone,
            ]
        )
    head = ["claim", "where", "difference", "t interval over seeds", "seeds", "p (Holm)", "written down", ""]
    note = (
        "p: two-sided, of the hierarchical bootstrap (seeds, then tasks within each), adjusted by Holm over all claims "
        f"of the file, those not measured and those taken out later, too. {results['claims_file']}"
    )
    if left := len(found) - len(measured):
        note += f" Not measured yet: {left} of {len(found)} claims."
    if body:
        yield Part("Claims", [figure], [Table(head, body, note)])


def _t(estimate: Mapping[str, Any]) -> str:
    if estimate["t_low"] is None:
        return NONE
    return f"[{points(estimate['t_low'])}, {points(estimate['t_high'])}]"


def _temperatures(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """How each variant did on validation tasks at the temperatures of the grid."""
    measure, known = results["measure"], [row for row in rows if row["validation"]]
    names = sorted({name for row in known for name in row["validation"]}, key=float)
    if not names:
        return
    shown = [row for row in known if row["table"] == METHODS] or known
    series = {
        row["label"]: [
            (float(name), {"value": one[measure]}) for name in names for one in [row["validation"].get(name)] if one
        ]
        for row in shown
    }
    label = f"{results['labels'][measure]}, validation tasks"
    figure = Figure(
        "temperatures",
        f"Temperatures: {label}",
        lambda: figures.curves(series, "temperature", "temperatures", label, powers=False),
    )
    body = [
        [
            row["label"],
            *(cell(row["validation"].get(name), measure, percent) for name in names),
            ", ".join(f"{value:g}" for value in row["chosen"].values()),
        ]
        for row in known
    ]
    note = (
        f"{label}: means over seeds. The best temperature is chosen for each variant and seed; of several the lowest."
    )
    yield Part("Temperatures", [figure], [Table(["", *(at(name) for name in names), "chosen, by seed"], body, note)])


def _seeds(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Every training's own value, and the interval that knows nothing else."""
    measure, temperatures = results["measure"], results["temperatures"]

    def values(found: Mapping[str, Any] | None) -> str:
        return ", ".join(percent(one[measure]) for one in found["by_seed"].values()) if found else NONE

    def reach(found: Mapping[str, Any] | None) -> str:
        if not found or found[measure]["t_low"] is None:
            return NONE
        return f"[{percent(max(0.0, found[measure]['t_low']))}, {percent(min(1.0, found[measure]['t_high']))}]"

    head = ["", *(f"{what}, {at(name)}" for name in temperatures for what in ("seeds", "t interval"))]
    body = [
        [row["label"], *(form(row["at"].get(name)) for name in temperatures for form in (values, reach))]
        for row in rows
    ]
    yield Part("Seeds", [], [Table(head, body)])
