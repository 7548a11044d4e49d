"""The reproduction's results: results.json, results.md (the tables, for docs/) and report.html (with the drawings).

Variants that have not been run are left out, and named as such; nothing is taken from anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.evaluation.report import p_value, percent, points
from sweetrl.io import read_json, write_json, write_text
from sweetrl.reproduce import figures
from sweetrl.reproduce.run import Profile, picked
from sweetrl.reproduce.tables import Measured, claims, picking_gap, read_variant, row_of
from sweetrl.reproduce.variants import ONLINE, TABLES, VARIANTS
from sweetrl.types import Candidate, Message, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

RESULTS, MARKDOWN, PAGE = Path("results.json"), Path("results.md"), Path("report.html")
AGAINST = "sweet"
SEED_DATA, PICKING = "seed-data", "Figure 3a"  # beside the variants' tables


def number(value: float) -> str:
    """A mean with one decimal."""
    return f"{value:.1f}"


FAULTS = (
    ("turns", "turns", number),
    ("premature_answers", "premature answers", percent),
    ("details_brought_out", "details brought out", percent),
    ("repeated_questions", "repeated questions", percent),
    ("irrelevant_questions", "irrelevant questions", percent),
    ("forgotten_details", "forgotten details", percent),
    ("mistaken_details", "mistaken details", percent),
    ("max_turns_reached", "last turn reached", percent),
)


def write(profile: Profile) -> None:
    """Read every variant that there is and write the three files."""
    ruler, domain = profile.settings["evaluate"], profile.domain
    found = {variant.name: read_variant(variant, profile.seeds_of(variant)) for variant in profile.variants}
    measured = {name: one for name, one in found.items() if one.results}
    if not measured:
        raise UserError("variants/: no variant has been run yet; run `make reproduce`.")
    level, resamples = ruler["confidence"], ruler["resamples"]
    picking = _best_of_n(profile)
    rows = {name: row_of(one, measured.get(one.variant.against), level, resamples) for name, one in measured.items()}
    results = {
        "profile": profile.values["profile"],
        "seeds": profile.seeds,
        "tasks_for_each_seed": ruler["tasks"],
        **({"scoring": domain.scoring()} if domain.measure == "reward" else {}),
        "rows": rows,
        "claims": claims(measured, level, resamples, "reward" if domain.measure == "reward" else "success"),
        "best_of_n": {
            seed: {name: one["curves"][name] for name, one in critics.items()} for seed, critics in picking.items()
        },
        "best_of_n_gaps": {
            seed: {
                name: picking_gap(critics[AGAINST]["points"], one["points"], level, resamples)
                for name, one in critics.items()
                if AGAINST in critics and name != AGAINST
            }
            for seed, critics in picking.items()
        },
        "hours": _hours(profile, measured, picking),
        "missing": [
            f"{name} {s}" for name, one in found.items() for s in profile.seeds_of(one.variant) if s not in one.results
        ]
        + [
            f"Best-of-N with {name} {seed}"
            for seed in profile.values["best_of_n_seeds"]
            for name in profile.values["critics"]
            if name not in picking.get(str(seed), {})
        ],
    }
    write_json(RESULTS, results)
    write_text(MARKDOWN, markdown(results))
    drawn = [PAGE] if domain.measure == "success" else []  # the drawings are of success
    if drawn:
        write_text(PAGE, page(results, measured, domain))
    print(
        f"reproduce: {len(measured)} of {len(found)} rows; {', '.join(map(str, [RESULTS, MARKDOWN, *drawn]))}",
        flush=True,
    )


def _best_of_n(profile: Profile) -> dict[str, dict[str, Any]]:
    """What Best-of-N has come to, by seed and then by critic, where it has been run."""
    found = {
        str(seed): {
            name: read_json(path) for name in profile.values["critics"] if (path := picked(name, seed)).exists()
        }
        for seed in profile.values["best_of_n_seeds"]
    }
    return {seed: critics for seed, critics in found.items() if critics}


def _hours(
    profile: Profile, measured: Mapping[str, Measured], picking: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Hours on the clock of the parts that are there, as if they had run one after the other; whole parts only."""
    found = {SEED_DATA: 0.0}
    for seed in profile.seeds:
        path = Path("seed-data") / str(seed) / "facts.json"
        if path.exists():
            found[SEED_DATA] += sum(stage["seconds"] for stage in read_json(path).values())
    for one in measured.values():
        spent = sum(stage["seconds"] for stages in one.stages.values() for stage in stages.values())
        found[one.variant.table] = found.get(one.variant.table, 0.0) + spent
    if picking:
        found[PICKING] = sum(one["seconds"]["seconds"] for critics in picking.values() for one in critics.values())
    return {name: seconds / 3600 for name, seconds in found.items()}


def markdown(results: Mapping[str, Any]) -> str:
    """The tables as Markdown, in the order of the variants; `results` may come from results.json."""
    rows = [results["rows"][name] for name in VARIANTS if name in results["rows"]]
    if "scoring" in results:
        return pages(results, rows)
    parts = []
    for table in TABLES:
        these = [row for row in rows if row["table"] == table and "success" in row]
        if these:
            parts += [f"### {table}", _table(these)]
        if these and table == ONLINE:
            parts += [_online(these)]
    if results["claims"]:
        parts += ["### The paper's claims", _claims(results["claims"])]
    measured = [row for row in rows if "success" in row]
    parts += ["### What goes wrong", _faults(measured), "### Critics", _critics(measured)]
    for seed, curves in results["best_of_n"].items():
        gaps = results["best_of_n_gaps"][seed]
        parts += [f"### {PICKING}: Best-of-N, success (seed {seed})", _curves(curves, gaps)]
    parts += ["### What it costs", _costs(measured, results["hours"])]
    if results["missing"]:
        parts += ["Not run: " + ", ".join(results["missing"]) + "."]
    return "\n\n".join(parts) + "\n"


def _costs(rows: Sequence[Mapping[str, Any]], hours: Mapping[str, float]) -> str:
    """Minutes of a variant of each row, and the sum of everything."""
    lines = ["| | minutes for a seed |", "|---|---|"]
    lines += [f"| {row['label']} | {row['training']['seconds'] / 60:.1f} |" for row in rows]
    parts = ", ".join(f"{name} {60 * hours[name]:.0f} min" for name in (SEED_DATA, *TABLES, PICKING) if name in hours)
    lines += ["", f"All parts one after the other: {sum(hours.values()):.1f} hours on the clock ({parts})."]
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| | tests passed | success | seeds | success minus SWEET-RL | paper: tests passed, success |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        passed, success, gap = row["reward"], row["success"], row.get("difference")
        seeds = ", ".join(percent(value) for value in row["success_by_seed"].values())
        paper = " / ".join("-" if value is None else f"{value}" for value in row["paper"])
        lines.append(
            f"| {row['label']} | {percent(passed['value'])} | {_interval(success)} | {seeds} | "
            f"{_gap(gap['success']) if gap else ''} | {paper} |"
        )
    return "\n".join(lines)


def _online(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the rows of methods that go on collecting have learnt from, and how they fared on the way."""
    lines = [
        "| | dialogues learnt from | success on training tasks (start of iterations 2, 3, ...; last fifth of GRPO) |",
        "|---|---|---|",
    ]
    for row in rows:
        way = ", ".join(percent(value) for value in row["on_the_way"])
        lines.append(f"| {row['label']} | {row['dialogues']:,.0f} | {way} |")
    return "\n".join(lines)


PAGE_FAULTS = tuple(row for row in FAULTS if not row[0].endswith("_questions"))


def pages(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables where pages were designed: the reward and what is missing to SWEET-RL's."""
    name = results["scoring"]
    parts = []
    for table in TABLES:
        these = [row for row in rows if row["table"] == table]
        if these:
            parts += [f"### {table}", _likeness(these, name)]
    if results["claims"]:
        said = [f"| claim | difference in likeness ({name}) | difference in equal pages | |", "|---|---|---|---|"]
        for one in results["claims"]:
            gap = one["difference"]
            told = f"{_gap(gap['reward'])} | {_gap(gap['success'])}" if gap else "|"
            said.append(f"| {one['claim']} | {told} | {one['verdict']} |")
        parts += ["### The paper's claims", "\n".join(said)]
    parts += ["### How dialogues go", _faults(rows, PAGE_FAULTS)]
    for row in rows:
        if "better_over_worse" in row["training"]:
            known = percent(row["training"]["better_over_worse"])
            parts.append(
                f"{row['label']}: of two candidate pages the critic prefers the one with more details right in {known}."
            )
    parts += ["### What it costs", _costs(rows, results["hours"])]
    if results["missing"]:
        parts += ["Not run: " + ", ".join(results["missing"]) + "."]
    return "\n\n".join(parts) + "\n"


def _likeness(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    lines = [
        f"| | likeness ({name}) | seeds | equal to the reference | likeness minus SWEET-RL | paper: cosine, win rate |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        gap = row.get("difference")
        seeds = ", ".join(percent(value) for value in row["reward_by_seed"].values())
        paper = " / ".join("-" if value is None else f"{value}" for value in VARIANTS[row["variant"]].pages)
        lines.append(
            f"| {row['label']} | {_interval(row['reward'])} | {seeds} | {_interval(row['success'])} | "
            f"{_gap(gap['reward']) if gap else ''} | {paper} |"
        )
    return "\n".join(lines)


def _interval(estimate: Mapping[str, float]) -> str:
    return f"{percent(estimate['value'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"


def _gap(estimate: Mapping[str, float]) -> str:
    return f"{points(estimate['value'])} [{points(estimate['low'])}, {points(estimate['high'])}]"


def _claims(found: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| claim | difference in success | exact McNemar p | |", "|---|---|---|---|"]
    for one in found:
        gap = one["difference"]
        if gap is None:
            lines.append(f"| {one['claim']} | | | {one['verdict']} |")
            continue
        success = gap["success"]
        lines.append(f"| {one['claim']} | {_gap(success)} | {p_value(success['p_value'])} | {one['verdict']} |")
    return "\n".join(lines)


def _faults(rows: Sequence[Mapping[str, Any]], faults: Sequence[tuple[str, str, Any]] = FAULTS) -> str:
    head = [title for _, title, _ in faults]
    lines = ["| | " + " | ".join(head) + " | tokens a reply |", "|---" * (len(head) + 2) + "|"]
    for row in rows:
        values = [form(row[key]["value"]) if key in row else "" for key, _, form in faults]
        tokens = row["training"].get("reply_tokens")
        lines.append(f"| {row['label']} | " + " | ".join(values) + f" | {'' if tokens is None else number(tokens)} |")
    return "\n".join(lines)


def _critics(rows: Sequence[Mapping[str, Any]]) -> str:
    others = ("plausible", "irrelevant", "repeated", "premature")
    names = ("critic_accuracy", *(f"needed_over_{other}" for other in others))
    lines = [
        "| | accuracy on its pairs | " + " | ".join(f"needed above {other}" for other in others) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for row in rows:
        if "needed_over_irrelevant" in row["training"]:
            values = [percent(row["training"][name]) if name in row["training"] else "" for name in names]
            lines.append(f"| {row['label']} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def _curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], gaps: Mapping[str, Mapping[str, float]]) -> str:
    numbers = [place["n"] for place in next(iter(curves.values()))]
    order = {name: place for place, name in enumerate(VARIANTS)}
    heads = ["critic", *(f"N = {n}" for n in numbers), "SWEET-RL minus this, mean over N > 1"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, places in sorted(curves.items(), key=lambda item: order[item[0]]):
        rates = " | ".join(_interval(place["success"]) for place in places)
        lines.append(f"| {VARIANTS[name].label} | {rates} | {_gap(gaps[name]) if name in gaps else ''} |")
    return "\n".join(lines)


def page(results: Mapping[str, Any], measured: Mapping[str, Measured], domain: Domain) -> str:
    """The same with drawings, as one page that loads nothing."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "points": points, "p_value": p_value, "number": number}
    rows = [row for row in results["rows"].values() if "success" in row]
    tables = [
        {
            "name": name,
            "rows": these,
            "chart": Markup(figures.rates(these, f"rates-{index}")),
        }
        for index, name in enumerate(TABLES)
        if (these := [row for row in rows if row["table"] == name])
    ]
    picking = [
        {"seed": seed, "chart": Markup(figures.curves(_series(curves), "N", f"best-{seed}"))}
        for seed, curves in results["best_of_n"].items()
    ]
    template = resources.files("sweetrl.reproduce") / "report.html"
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        results=results,
        tables=tables,
        faults=FAULTS,
        rows=rows,
        picking=picking,
        dialogues=_dialogues(measured.get(AGAINST), domain),
    )


def _series(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[tuple[float, Mapping[str, float]]]]:
    return {
        VARIANTS[name].label if name in VARIANTS else name: [(float(place["n"]), place["success"]) for place in places]
        for name, places in curves.items()
    }


def _dialogues(sweet: Measured | None, domain: Domain, many: int = 3) -> list[dict[str, Any]]:
    """The longest ranked dialogues of the first seed: what was said, and what the critic made of every candidate."""
    if sweet is None or not sweet.results:
        return []
    from markupsafe import Markup

    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.learning.preferences import CANDIDATES, read_candidates

    seed = min(sweet.results)
    candidates = Path("variants") / AGAINST / str(seed) / "preferences" / CANDIDATES
    if not candidates.exists():
        return []
    by_dialogue: dict[tuple[str, int], list[Any]] = {}
    for state in read_candidates(candidates):
        by_dialogue.setdefault((state.task_id, state.attempt), []).append(state)
    chosen = sorted(by_dialogue, key=lambda key: (-len(by_dialogue[key]), key))[:many]
    known = {
        (one.task.id, one.attempt): one
        for one in TrajectoryStore(Path("seed-data") / str(seed) / "trajectories").read()
        if (one.task.id, one.attempt) in chosen
    }
    shown = []
    for index, key in enumerate(chosen):
        dialogue = known[key]
        turns = []
        for state in sorted(by_dialogue[key], key=lambda one: one.turn):
            earlier = dialogue.messages[: 2 * state.turn + 1]
            turns.append([(_verdict(domain, dialogue, earlier, one), one.advantage) for one in state.candidates])
        drawing = figures.advantages(turns, f"advantage-{index}")
        shown.append(
            {
                "task": dialogue.task.id,
                "hidden": dialogue.task.hidden_information,
                "messages": dialogue.messages,
                "reward": dialogue.reward,
                "chart": Markup(drawing),
            }
        )
    return shown


def _verdict(domain: Domain, dialogue: Trajectory, earlier: Sequence[Message], candidate: Candidate) -> str:
    judgment = domain.judge(dialogue.task, earlier, candidate.text)
    return (judgment.verdict if judgment is not None else "") or "unclear"


__all__ = ["markdown", "page", "write"]
