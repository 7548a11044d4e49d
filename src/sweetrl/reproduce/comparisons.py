"""The report's parts, made of results.json alone: what is compared, then the details, as drawings and tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sweetrl.evaluation.best_of_n import WITH_PRIOR
from sweetrl.evaluation.report import p_value, percent, points
from sweetrl.reproduce import figures
from sweetrl.reproduce.outcomes import WORSE
from sweetrl.reproduce.variants import AMOUNTS, ONLINE, TABLES, VARIANTS

Results = Mapping[str, Any]
Row = Mapping[str, Any]
# Fewer questions in a dialogue than this, and success a question is a quotient of rare events.
FEW_QUESTIONS = 0.5
SEED_DATA, PICKING = "seed-data", "Figure 3a"  # beside the variants' tables


@dataclass(frozen=True)
class Table:
    """Cells in rows under a head; `note` stands below."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing, made when it is asked for."""

    name: str
    says: str
    draw: Callable[[], str]


@dataclass(frozen=True)
class Part:
    """Drawings and tables under a title."""

    title: str
    tables: Sequence[Table]
    figures: Sequence[Figure] = ()


def number(value: float) -> str:
    """A mean with one decimal."""
    return f"{value:.1f}"


def interval(estimate: Mapping[str, float]) -> str:
    """A share with its interval."""
    return f"{percent(estimate['value'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"


def gap(estimate: Mapping[str, float]) -> str:
    """A difference of shares with its interval, in points."""
    return f"{points(estimate['value'])} [{points(estimate['low'])}, {points(estimate['high'])}]"


def at(temperature: str) -> str:
    """A temperature in a head."""
    return "chosen T" if temperature == "chosen" else f"T = {temperature}"


def heads(titles: Sequence[str], temperatures: Sequence[str]) -> list[str]:
    """The heads of columns: each title at each temperature."""
    return [f"{title}, {at(name)}" for title in titles for name in temperatures]


def cells(
    rates: Mapping[str, Mapping[str, Any]], temperatures: Sequence[str], *forms: tuple[str, Callable[[Any], str]]
) -> list[str]:
    """A row's cells under such heads: for each (key, format) one at each temperature, from the `rates` there."""
    return [cell(rates.get(name), key, form) for key, form in forms for name in temperatures]


def differences(rates: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The differences from the row that it is compared with, by temperature, where there are some."""
    return {name: values["difference"] for name, values in rates.items() if "difference" in values}


def slug(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def cell(values: Mapping[str, Any] | None, key: str, form: Callable[[Any], str]) -> str:
    """What a cell of a table says; empty where there is no such value."""
    return form(values[key]) if values and values.get(key) is not None else ""


def parts(results: Results) -> list[Part]:
    """Everything that there is to show, in order; `results` may come from results.json."""
    rows = [row for name in VARIANTS if (row := results["rows"].get(name)) and row["at"]]
    compared = (_tables, _held_out, _users, _questions, _claims, _temperatures, _seeds)
    makers = (*compared, _faults, _critics, _picking, _tuning, _costs)
    return [part for make in makers for part in make(results, rows) if part.tables]


def _tables(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """The paper's tables, and ours of the same kind."""
    measure = results["measure"]
    label = results["labels"][measure]
    for title in TABLES:
        of_table = [row for row in rows if row["table"] == title]
        if not of_table:
            continue
        says = f"{title}: {label} at each temperature, with hierarchical intervals; ticks are seeds"
        ticks = {
            (row["label"], name): [means[measure] for means in rates["by_seed"].values()]
            for row in of_table
            for name, rates in row["at"].items()
        }
        by_label = {row["label"]: row["at"] for row in of_table}
        bars = _bars(results, title, says, f"{label}, with intervals; ticks: seeds", by_label, ticks)
        tables = [_table(results, of_table), *([_online(of_table)] if title == ONLINE else [])]
        yield Part(title, tables, [bars, *(_amounts(results, rows) if title == AMOUNTS else [])])


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
        (label, {name: rates[measure] for name, rates in row.items() if rates[measure]}) for label, row in rows.items()
    ]
    names = [name for name in results["temperatures"] if any(name in row for row in rows.values())]
    series = [(name, at(name)) for name in names if name != "chosen"]
    marked = ("chosen", at("chosen")) if "chosen" in names else None
    return Figure(slug(title), says, lambda: figures.bars(estimates, series, axis, slug(title), marked, seeds))


def _amounts(results: Results, rows: Sequence[Row]) -> list[Figure]:
    """A curve for each method that has learnt from a part of the tasks, with the untrained agent beside them."""
    measure, name = results["measure"], results["temperatures"][0]
    rates = {row["variant"]: row["at"][name][measure] for row in rows if name in row["at"]}
    curves: dict[str, dict[float, Any]] = {}
    for part in (VARIANTS[variant] for variant in rates if VARIANTS[variant].table == AMOUNTS):
        of_all = next(each for each in VARIANTS.values() if each.data == 1 and each.settings == part.settings)
        curve = curves.setdefault(of_all.label, {100.0: rates[of_all.name]} if of_all.name in rates else {})
        curve[round(100 * part.data)] = rates[part.name]
    if "zero-shot" in rates and curves:
        shares = {share for curve in curves.values() for share in curve}
        curves[VARIANTS["zero-shot"].label] = dict.fromkeys(shares, rates["zero-shot"])
    series = {label: sorted(curve.items()) for label, curve in curves.items()}
    label = f"{results['labels'][measure]}, {at(name)}"
    says = f"{AMOUNTS}: {label}, by the share of the tasks that is learnt from"
    draw = partial(figures.curves, series, "share of the tasks, %", "amounts", label)
    return [Figure("amounts", says, draw)] if series else []


def _table(results: Results, rows: Sequence[Row]) -> Table:
    measure, temperatures = results["measure"], results["temperatures"]
    # A row that is compared with nothing is against itself.
    own = {VARIANTS[row["variant"]].against for row in rows if differences(row["at"])} - {"sweet"}
    below = VARIANTS[min(own, default="sweet")].label
    paper = "paper_pages" if measure == "reward" else "paper"
    met = [name for name in temperatures if any(name in rates for row in rows for rates in row["personas"].values())]
    body = [
        [
            row["label"],
            *cells(row["at"], temperatures, (measure, interval)),
            *(_other_users(row, name, measure) for name in met),
            *cells(differences(row["at"]), temperatures, (measure, gap)),
            " / ".join("-" if value is None else f"{value}" for value in row[paper]),
        ]
        for row in rows
    ]
    label = results["labels"][measure]
    head = [*heads([label], temperatures), *heads([f"{label} with other users"], met)]
    return Table(["", *head, *heads([f"minus {below}"], temperatures), f"paper: {results['paper']}"], body)


def _other_users(row: Row, temperature: str, measure: str) -> str:
    """A row's scores with users whom it was not trained with, the lowest first."""
    personas = row["personas"].items()
    scores = {name: rates[temperature][measure]["value"] for name, rates in personas if temperature in rates}
    return ", ".join(f"{name} {percent(scores[name])}" for name in sorted(scores, key=scores.__getitem__))


def _online(rows: Sequence[Row]) -> Table:
    """What the rows of methods that go on collecting have learnt from, and how they fared on the way."""
    head = [
        "",
        "dialogues learnt from",
        "success on training tasks (start of iterations 2, 3, ...; last fifth of GRPO)",
    ]
    trained = [row for row in rows if "dialogues" in row]
    return Table(
        head,
        [[row["label"], f"{row['dialogues']:,.0f}", ", ".join(map(percent, row["on_the_way"]))] for row in trained],
    )


def _held_out(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Success on the tasks of domains that training never saw."""
    measure, temperatures = results["measure"], results["temperatures"]
    by_label = {
        row["label"]: {name: rates["held_out"] for name, rates in row["at"].items() if rates.get("held_out")}
        for row in rows
    }
    by_label = {label: at for label, at in by_label.items() if any(rates[measure] for rates in at.values())}
    if not by_label:
        return
    title, label = "Held-out domains", results["labels"][measure]
    others = {row["label"] for row in rows if VARIANTS[row["variant"]].against != "sweet"}  # minus another row
    never = "domains that training never saw"
    figure = _bars(results, title, f"{title}: {label} on tasks of {never}", f"{label}, {never}", by_label)
    body = [
        [
            name,
            *cells(at, temperatures, (measure, interval)),
            *cells({} if name in others else differences(at), temperatures, (measure, gap)),
        ]
        for name, at in by_label.items()
    ]
    tasks = max(rates[measure]["n"] for at in by_label.values() for rates in at.values() if rates[measure])
    head = ["", *heads([label, "minus SWEET-RL"], temperatures)]
    yield Part(title, [Table(head, body, f"{tasks:,} tasks for a row with all seeds.")], [figure])


def _users(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """The same policies with users whom they were not trained with."""
    measure = results["measure"]
    used = {name for row in rows for at in row["personas"].values() for name in at}
    temperatures = [name for name in results["temperatures"] if name in used]
    by_user = {
        f"{row['label']}, {persona or 'usual'}": {name: rates for name, rates in at.items() if name in used}
        for persona in ("", *results["personas"])
        for row in rows
        if row["personas"] and (at := row["personas"].get(persona) if persona else row["at"])
    }
    if not by_user:
        return
    title, label = "Other users", results["labels"][measure]
    says = f"{title}: {label} with users whom the agent was not trained with"
    forms = ((measure, interval), ("questions", _mean))
    body = [[name, *cells(at, temperatures, *forms)] for name, at in by_user.items()]
    head = ["", *heads([label, "questions"], temperatures)]
    yield Part(title, [Table(head, body)], [_bars(results, title, says, f"{label}, by user", by_user)])


def _mean(estimate: Mapping[str, float]) -> str:
    """The value of an estimate alone."""
    return number(estimate["value"])


def _questions(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """What the user is asked for it."""
    measure, labels, temperatures = results["measure"], results["labels"], results["temperatures"]
    other = "reward" if measure == "success" else "success"
    each, few = f"{labels['success']} a question", False
    body = []
    for row in rows:
        shown = dict(row["at"])
        for name, rates in row["at"].items():
            if "success_per_question" in rates and rates["questions"]["value"] < FEW_QUESTIONS:
                few, shown[name] = True, {**rates, "success_per_question": None}
        forms = (("questions", _mean), ("success_per_question", interval), (other, interval))
        body.append([row["label"], *cells(shown, temperatures, *forms)])
    note = f'"{each}" is left out where fewer than one question is asked in two dialogues.' if few else ""
    yield Part("Questions", [Table(["", *heads(["questions", each, labels[other]], temperatures)], body, note)])


def _claims(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """What was claimed before, and what has come of it."""
    claims = results["claims"]
    measured = [claim for claim in claims if claim["difference"]]
    drawn = [(f"{each['claim']} ({at(each['temperature'])})", each["difference"], each["verdict"]) for each in measured]
    figure = Figure(
        "claims",
        "Claims: differences with hierarchical intervals (thick) and t intervals over seeds (thin)",
        lambda: figures.claims(drawn, "difference; thick: hierarchical interval, thin: t over seeds", "claims"),
    )
    body = []
    for claim in measured:
        estimate = claim["difference"]
        alone = ", one seed only" if estimate["groups"] == 1 and claim["verdict"] != "open" else ""
        where = [at(claim["temperature"]), "held-out domains" if claim["held_out"] else "", claim["persona"]]
        t = "" if estimate["t_low"] is None else f"[{points(estimate['t_low'])}, {points(estimate['t_high'])}]"
        body.append(
            [
                claim["claim"],
                ", ".join(filter(None, [*where, results["labels"][claim["measure"]]])),
                gap(estimate),
                t,
                f"{estimate['groups']}",
                p_value(claim["p_adjusted"]),
                claim["written"] + (", taken out later" if claim["withdrawn"] else ""),
                claim["verdict"] + alone,
            ]
        )
    head = ["claim", "where", "difference", "t interval over seeds", "seeds", "p (Holm)", "written down", ""]
    note = (
        "p: two-sided, of the hierarchical bootstrap (seeds, then tasks within each), adjusted by Holm over all claims "
        f"of the file, those not measured and those taken out later, too. {results['claims_file']}"
    )
    if left := len(claims) - len(measured):
        note += f" Not measured yet: {left} of {len(claims)} claims."
    if body:
        yield Part("Claims", [Table(head, body, note)], [figure])


def _temperatures(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """How each variant did on validation tasks at the temperatures of the grid."""
    measure, tried = results["measure"], [row for row in rows if row["validation"]]
    names = sorted({name for row in tried for name in row["validation"]}, key=float)
    if len(names) < 2:  # nothing was chosen
        return
    label = f"{results['labels'][measure]}, validation tasks"
    body = [
        [
            row["label"],
            *(cell(row["validation"].get(name), measure, percent) for name in names),
            ", ".join(f"{value:g}" for value in row["chosen"].values()),
        ]
        for row in tried
    ]
    head = ["", *map(at, names), "chosen, by seed"]
    note = (
        f"{label}: means over seeds. The best temperature is chosen for each variant and seed; of several the lowest."
    )
    yield Part("Temperatures", [Table(head, body, note)])


def _seeds(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Every training's own value, and the t interval over them."""
    measure, temperatures = results["measure"], results["temperatures"]

    def values(by_seed: Mapping[str, Any]) -> str:
        return ", ".join(percent(means[measure]) for means in by_seed.values())

    def reach(estimate: Mapping[str, Any]) -> str:
        if estimate["t_low"] is None:
            return ""
        return f"[{percent(max(0.0, estimate['t_low']))}, {percent(min(1.0, estimate['t_high']))}]"

    head = ["", *(f"{what}, {at(name)}" for name in temperatures for what in ("seeds", "t interval"))]
    forms: list[tuple[str, Callable[[Any], str]]] = [("by_seed", values), (measure, reach)]
    body = [
        [row["label"], *(cell(row["at"].get(name), key, form) for name in temperatures for key, form in forms)]
        for row in rows
    ]
    yield Part("Seeds", [Table(head, body)])


# By the names of evaluation.json; shares but for the first and the last.
FAULTS = (
    *("turns", "premature_answers", "details_brought_out", "repeated_questions", "irrelevant_questions"),
    *("unhinted_questions", "forgotten_details", "mistaken_details", "max_turns_reached", "reply_tokens"),
)
_TITLES = {"max_turns_reached": "last turn reached", "reply_tokens": "tokens a reply"}


def _faults(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """What goes wrong in the dialogues, at each temperature."""
    for name in results["temperatures"]:
        if name == "chosen" and len(results["temperatures"]) > 1:
            continue
        measured = [(row["label"], row["at"][name]) for row in rows if name in row["at"]]
        faults = [key for key in FAULTS if any(key in rates for _, rates in measured)]
        body = [[label, *(cell(rates, key, partial(_fault, key)) for key in faults)] for label, rates in measured]
        head = ["", *(_TITLES.get(key, key.replace("_", " ")) for key in faults)]
        yield Part(f"What goes wrong, {at(name)}", [Table(head, body)] if measured else [])


def _fault(name: str, rate: Any) -> str:
    value = float(rate["value"] if isinstance(rate, Mapping) else rate)
    return number(value) if name in (FAULTS[0], FAULTS[-1]) else percent(value)


_CRITICS = (
    ("critic_accuracy", "accuracy on its pairs"),
    *((f"needed_over_{other}", f"needed above {other}") for other in WORSE),
    ("better_over_worse", "more details right above fewer"),
)


def _critics(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """How critics rank replies on which there is a verdict."""
    judged = [row for row in rows if any(key in row["training"] for key, _ in _CRITICS[1:])]
    columns = [(key, title) for key, title in _CRITICS if any(key in row["training"] for row in judged)]
    body = [[row["label"], *(cell(row["training"], key, percent) for key, _ in columns)] for row in judged]
    yield Part("Critics", [Table(["", *(title for _, title in columns)], body)] if judged else [])


def _picking(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Best-of-N, seed by seed: every critic's curve, and beside it the one whose score has the prior."""
    labels = {f"{name}{end}": f"{variant.label}{end}" for name, variant in VARIANTS.items() for end in ("", WITH_PRIOR)}
    for seed, curves in results["best_of_n"].items():
        gaps = results["best_of_n_gaps"][seed]
        names = [name for name in labels if name in curves]
        series = {labels[name]: [(float(point["n"]), point["success"]) for point in curves[name]] for name in names}
        numbers = [point["n"] for point in curves[names[0]]] if names else []
        body = [
            [labels[name], *(interval(point["success"]) for point in curves[name]), cell(gaps, name, gap)]
            for name in names
        ]
        head = ["critic", *(f"N = {n}" for n in numbers), "SWEET-RL minus this, mean over N > 1"]
        title = f"{PICKING}: Best-of-N, success (seed {seed})"
        figure = Figure(f"best-of-n-{seed}", title, partial(figures.curves, series, "N", f"best-of-n-{seed}"))
        yield Part(title, [Table(head, body)] if names else [], [figure])


def _tuning(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """How many runs were tried for each method, and what they reached."""
    budgets, label = results["tuning"], results["labels"][results["measure"]]
    if not budgets:
        return
    temperatures = sorted({name for budget in budgets for name in budget["at"]}, key=float)
    heads = [(name, key) for name in temperatures for key in ("best", "median", "settings")]
    forms: dict[str, Callable[[Any], str]] = {"best": percent, "median": percent, "settings": _settings}
    body = [
        [budget["label"], f"{budget['runs']}", *(cell(budget["at"].get(name), key, forms[key]) for name, key in heads)]
        for budget in budgets
    ]
    head = ["", "runs", *(f"{'settings of the best' if key == 'settings' else key}, {at(name)}" for name, key in heads)]
    yield Part("Tuning", [Table(head, body, f"{label} on validation tasks; tuning.yaml lists every run.")])


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values.items()) or "as they are"


def _costs(results: Results, rows: Sequence[Row]) -> Iterator[Part]:
    """Minutes of a variant of each row, and the sum of everything."""
    spent = {row["label"]: (row["training"]["seconds"], row["training"]["measuring_seconds"]) for row in rows}
    body = [
        [name, number((both - measuring) / 60), number(measuring / 60)] for name, (both, measuring) in spent.items()
    ]
    hours = results["hours"]
    sums = ", ".join(f"{name} {60 * hours[name]:.0f} min" for name in (SEED_DATA, *TABLES, PICKING) if name in hours)
    note = (
        f"All parts one after the other: {sum(hours.values()):.1f} hours on the clock ({sums}). Candidates that an "
        "earlier variant has sampled are not sampled again, so later variants look cheaper than they would be alone."
    )
    yield Part("What it costs", [Table(["", "minutes of training", "minutes of measuring"], body, note)])
