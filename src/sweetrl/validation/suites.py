"""The expectations of stage `validate`, and the one function that runs them with Great Expectations.

Each rule is a Great Expectations expectation over one of three tables (shards, trajectories, pairs) and the words a
failure is reported with. Great Expectations takes 6 s to import, so everything here is asked for in one call.
"""

from __future__ import annotations

import html
import logging
import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweetrl.config.settings import ValidateSettings
from sweetrl.validation.tables import KEYS, Rows, Summary

SHOWN = 5  # rows named in a sentence; more are on the page of the batch's quality
PLACE = "place"  # the column by which rows that break a rule are recognised
# Great Expectations' expectations that stand in several rules.
UNIQUE, UNIQUE_TOGETHER = "ExpectColumnValuesToBeUnique", "ExpectCompoundColumnsToBeUnique"
BETWEEN, ROW_COUNT = "ExpectColumnValuesToBeBetween", "ExpectTableRowCountToBeBetween"
MEAN_BETWEEN = "ExpectColumnMeanToBeBetween"
OF_TABLE = (ROW_COUNT, MEAN_BETWEEN)  # what is observed is a count or a mean of the table, and not a share of its rows
NOISE = 1.96  # standard errors allowed on top of the largest shift, so that a small batch does not fail by chance


@dataclass(frozen=True)
class Rule:
    """One expectation: `kind` and `arguments` are Great Expectations' own, `says` what must hold, `fix` what to do."""

    name: str
    kind: str
    arguments: dict[str, Any]
    says: str
    fix: str = ""

    @property
    def column(self) -> str | None:
        """The column whose value explains a failing row."""
        return self.arguments.get("column")

    @property
    def columns(self) -> list[str]:
        """All columns that the rule looks at."""
        given = self.arguments
        named = (given[name] for name in ("column", "column_A", "column_B") if name in given)
        return [*named, *given.get("column_list", [])]


@dataclass(frozen=True)
class Table:
    """Rows, and the rules they must satisfy. `keys` are the columns that name a row."""

    name: str
    rows: Rows
    rules: Sequence[Rule]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one rule; `sentence` is empty where it holds."""

    table: str
    rule: str
    success: bool
    checked: int
    unexpected: int
    sentence: str = ""
    observed: float = 0.0
    """The share of rows that break a rule about rows; else what was counted or averaged, which must lie within..."""
    low: float | None = None
    high: float | None = None
    """... these bounds (None: none)."""
    broken: tuple[tuple[dict[str, Any], str], ...] = ()
    """The keys of rows that break the rule, also of those that are allowed to, with what is wrong ("": no more)."""


def shards_table(rows: Rows) -> Table:
    """The files themselves: there must be at least one, and each must have the schema."""
    again = "run the stage `collect` again"
    rules = (
        Rule("shards_exist", ROW_COUNT, {"min_value": 1}, "there must be shards", again),
        _empty("schema", "every shard must have the schema of docs/data-formats.md", again),
    )
    return Table("shards", rows, rules, ("row",))


def trajectories_table(
    rows: Rows,
    settings: ValidateSettings,
    attempts: int | None = None,
    reward_range: tuple[float, float] = (0.0, 1.0),
    before: Summary | None = None,
    now: Summary | None = None,
) -> Table:
    """Every collected dialogue, and the batch as a whole (`now`) against the one accepted `before` it, if there is one.

    `attempts` is how many each task must have; None for dialogues from files (`collect.source`).
    """
    again = "collect the batch again" if attempts is not None else "mend the files, or leave these rows out"
    least, most = reward_range
    attempt = {"column_list": ["task_id", "attempt"]}
    rules = [Rule("unique_attempts", UNIQUE_TOGETHER, attempt, "no attempt at a task may be there twice", again)]
    if attempts is not None:
        each = {"column": "attempts", "value_set": [attempts]}
        numbers = {"column": "attempt", **_bounds(0, attempts - 1)}
        says = f"every task must have exactly {attempts} attempts (collect.attempts)"
        rules += [
            Rule("attempts_per_task", "ExpectColumnValuesToBeInSet", each, says, again),
            Rule("attempt_numbers", BETWEEN, numbers, f"attempts must be numbered 0 to {attempts - 1}", again),
        ]
    reward, says = {"column": "reward", **_bounds(least, most)}, f"rewards must lie in {least:g} to {most:g}"
    rules += [
        _empty("task", "attempts with one task id must be at one task", again),
        _empty("turn_order", "the user must open with the request, then both alternate, and the agent must end", again),
        _empty("protocol", "the dialogue must follow the protocol", f"check agent.max_turns, or {again}"),
        _empty("turn_record", "the recorded turns must be those of the messages", again),
        _empty("tokens", "token ids must decode to the raw reply", f"check model.base, or {again}"),
        Rule("reward_bounds", BETWEEN, reward, says, "score the batch again"),
        _empty("scored", "every finished dialogue must have a reward and a lost one none", "score the batch again"),
        _empty("tests", "the reward must be what the domain says it is, each time", "score the batch again"),
        _empty(
            "leak",
            "nothing the actor sees may hold training-time information",
            f"fix the simulator or the prompt that gave it away, then {again}",
        ),
        Rule("unique_seeds", UNIQUE, {"column": "seed"}, "no two sampled dialogues may share a seed", again),
        _empty(
            "duplicate",
            f"at most {100 * settings.duplicate_share:g}% of the attempts may repeat another word for word "
            "(validate.duplicate_share)",
            "raise agent.temperature, or collect more varied tasks",
            mostly=1.0 - settings.duplicate_share,
        ),
        _empty(
            "lost",
            f"at most {100 * settings.lost_share:g}% of the dialogues may be lost (validate.lost_share)",
            "see why in the dialogues' `error`, then collect the batch again",
            mostly=1.0 - settings.lost_share,
        ),
    ]
    if before is not None and now is not None:
        rules += [
            _shift("reward", "mean reward", settings.reward_shift, before, now),
            _shift("turns", "mean number of agent turns", settings.turns_shift, before, now),
        ]
    return Table("trajectories", rows, rules, KEYS)


def pairs_table(rows: Rows, least: int | None) -> Table:
    """The preference pairs made of the dialogues, `least` of them (None: any number)."""
    says = f"there must be at least {least} preference pairs (validate.minimum_pairs)"
    fix = "raise collect.tasks or collect.attempts, or set critic.pairs to `all`"
    order = {"column_A": "chosen_reward", "column_B": "rejected_reward", "or_equal": False}
    above = "the chosen reward must be above the rejected one"
    pair = {"column_list": ["task_id", "chosen_attempt", "rejected_attempt"]}
    rules = [
        Rule("chosen_above_rejected", "ExpectColumnPairValuesAToBeGreaterThanB", order, above),
        Rule("unique_pairs", UNIQUE_TOGETHER, pair, "no pair may be there twice"),
        _empty("members", "both attempts of a pair must be among the trajectories of its task, with these rewards"),
    ]
    if least is not None:
        rules.insert(0, Rule("enough_pairs", ROW_COUNT, {"min_value": least}, says, fix))
    return Table("pairs", rows, rules, ("row", "task_id", "chosen_attempt", "rejected_attempt"))


def run_tables(tables: Sequence[Table], docs: Path) -> list[Verdict]:
    """Run every rule of `tables` with Great Expectations and write its Data Docs to `docs` (replacing older ones).

    Its pages take values as markup, so names of tasks, files and faults are escaped.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    import great_expectations as gx
    import pandas as pd
    from great_expectations.data_context.types.base import ProgressBarsConfig

    shutil.rmtree(docs, ignore_errors=True)
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    for usual in list(context.get_site_names()):
        context.delete_data_docs_site(usual)
    place = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.resolve())}
    index = {"class_name": "DefaultSiteIndexBuilder"}
    site: Any = {"class_name": "SiteBuilder", "store_backend": place, "site_index_builder": index}
    context.add_data_docs_site("sweetrl", site)
    source = context.data_sources.add_pandas("sweetrl")
    form = {"result_format": "COMPLETE", "return_unexpected_index_query": False}
    verdicts: list[Verdict] = []
    for table in tables:
        names = dict.fromkeys([*table.keys, *(name for rule in table.rules for name in rule.columns)])
        values = {
            name: [html.escape(value) if isinstance(value, str) else value for value in table.rows.column(name)]
            for name in names
        }
        frame = pd.DataFrame(values | {PLACE: range(len(table.rows))})
        suite = context.suites.add(gx.ExpectationSuite(table.name))
        for rule in table.rules:
            expectation = getattr(gx.expectations, rule.kind)
            suite.add_expectation(expectation(**rule.arguments, notes=rule.says, meta={"rule": rule.name}))
        batch = source.add_dataframe_asset(table.name).add_batch_definition_whole_dataframe("all")
        definition = gx.ValidationDefinition(name=table.name, data=batch, suite=suite)
        checkpoint = gx.Checkpoint(
            name=table.name,
            validation_definitions=[context.validation_definitions.add(definition)],
            result_format=form | {"unexpected_index_column_names": [PLACE, *table.keys]},
        )
        (result,) = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame}).run_results.values()
        outcomes = {each.expectation_config.meta["rule"]: each for each in result.results}  # type: ignore[union-attr]
        verdicts += [_verdict(table, rule, outcomes[rule.name]) for rule in table.rules]
    context.build_data_docs()
    return verdicts


def _verdict(table: Table, rule: Rule, outcome: Any) -> Verdict:
    """What Great Expectations found, with one sentence where it fails: what must hold, how often, where, what to do."""
    result, success = outcome.result, bool(outcome.success)
    if raised := (outcome.exception_info or {}).get("exception_message"):
        raise RuntimeError(f"expectation {rule.name} could not be evaluated: {raised}")
    checked = int(result.get("element_count", len(table.rows)))
    unexpected = int(result.get("unexpected_count", not success))
    # Of a rule about the table as a whole; those about rows come next.
    broken: tuple[tuple[dict[str, Any], str], ...] = ()
    observed, actual = result.get("observed_value") or 0.0, f"found {_number(result.get('observed_value'))}"
    low, high = rule.arguments.get("min_value"), rule.arguments.get("max_value")
    if "unexpected_count" in result:
        places = dict.fromkeys(int(row[PLACE]) for row in result.get("unexpected_index_list") or ())
        broken = tuple(_broken(table, rule, place) for place in places)
        observed, low, high = unexpected / max(1, checked), None, 1.0 - rule.arguments.get("mostly", 1.0)
        named = [f"{_name(key)}: {detail}" if detail else _name(key) for key, detail in broken[:SHOWN]]
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        actual = f"but {unexpected} of {checked} rows do not: {', '.join(named)}{more}"
    fix = f"; {rule.fix}." if rule.fix else "."
    sentence = "" if success else f"{table.name}: {rule.says}, {actual}{fix}"
    return Verdict(table.name, rule.name, success, checked, unexpected, sentence, float(observed), low, high, broken)


def _broken(table: Table, rule: Rule, place: int) -> tuple[dict[str, Any], str]:
    """A row that breaks a rule: what names it, and what is wrong with it ("": nothing more)."""
    row, name = table.rows[place], rule.column
    key, value = {column: row[column] for column in table.keys}, row.get(name)
    if name in table.keys or value is None:
        return key, ""
    return key, value if isinstance(value, str) and name != "seed" else f"{name} {_number(value)}"


def _name(key: dict[str, Any]) -> str:
    if "task_id" not in key:
        return str(key["row"])
    attempts = (
        f"attempt {key['attempt']}"
        if "attempt" in key
        else f"attempts {key['chosen_attempt']} over {key['rejected_attempt']}"
    )
    return f"task {key['task_id']} {attempts} ({key['row']})"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bounds(low: float, high: float) -> dict[str, float]:
    """The finite ends of a range, as Great Expectations takes them; without any, only the type is checked."""
    ends = {"min_value": low, "max_value": high}
    return {name: value for name, value in ends.items() if math.isfinite(value)} or {"min_value": -sys.float_info.max}


def _empty(column: str, says: str, fix: str = "", mostly: float = 1.0) -> Rule:
    return Rule(column, "ExpectColumnValuesToBeNull", {"column": column, "mostly": mostly}, says, fix)


def _shift(what: str, name: str, limit: float, before: Summary, now: Summary) -> Rule:
    mean, errors = getattr(before, f"mean_{what}"), [getattr(batch, f"{what}_error") for batch in (before, now)]
    allowed = limit + NOISE * math.hypot(*errors)
    return Rule(
        f"{what}_shift",
        MEAN_BETWEEN,
        {"column": f"{what}_by_task", "min_value": mean - allowed, "max_value": mean + allowed},
        f"the {name} may differ by at most {limit:g} (validate.{what}_shift) and sampling error from the accepted "
        f"batch's {mean:.3g}",
        "find out what changed; if it was meant to, remove data/accepted.json and run again",
    )
