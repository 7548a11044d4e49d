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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweetrl.config.settings import ValidateSettings
from sweetrl.validation.tables import KEYS, Rows, Summary

SHOWN = 5  # rows named in a sentence; more are on the page of the batch's quality
LISTED = 200  # rows of a rule on that page; all of them are in the Data Docs
# Great Expectations' expectations that stand in several rules.
UNIQUE, UNIQUE_TOGETHER = "ExpectColumnValuesToBeUnique", "ExpectCompoundColumnsToBeUnique"
BETWEEN, ROW_COUNT = "ExpectColumnValuesToBeBetween", "ExpectTableRowCountToBeBetween"
MEAN_BETWEEN = "ExpectColumnMeanToBeBetween"
WHOLE = (ROW_COUNT, MEAN_BETWEEN)  # what is observed is a count or a mean of the table, and not a share of its rows
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


@dataclass(frozen=True)
class Table:
    """Rows, and the rules they must satisfy. `keys` are the columns that name a row."""

    name: str
    rows: Rows
    columns: tuple[str, ...]
    rules: tuple[Rule, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of one rule; `sentence` is empty where it holds, `rows` names those that break it."""

    table: str
    rule: str
    success: bool
    checked: int
    unexpected: int
    sentence: str = ""
    rows: tuple[str, ...] = ()
    observed: float = 0.0
    """The share of rows that break a rule about rows; else what was counted or averaged, which must lie within..."""
    low: float | None = None
    high: float | None = None
    """... these bounds (None: none)."""
    broken: tuple[tuple[dict[str, Any], str], ...] = ()
    """The keys of rows that break the rule, also of those that are allowed to, with what is wrong; LISTED at most."""


@dataclass(frozen=True)
class Limits:
    """What the settings, the domain and the method say about a batch; `attempts` is None where tasks may differ in it.

    Such dialogues are from files (`collect.source`).
    """

    attempts: int | None
    settings: ValidateSettings
    previous: Summary | None = None
    current: Summary | None = field(default=None, compare=False)
    reward_range: tuple[float, float] = (0.0, 1.0)
    pairs_needed: bool = True


def shards_table(rows: Rows) -> Table:
    """The files themselves: there is one at least, and each has the schema."""
    again = "run the stage `collect` again"
    rules = (
        Rule("shards_exist", ROW_COUNT, {"min_value": 1}, "there must be shards", again),
        _empty("schema", "every shard must have the schema of docs/data-formats.md", again),
    )
    return Table("shards", rows, ("row", "schema"), rules, ("row",))


def trajectories_table(rows: Rows, limits: Limits) -> Table:
    """Every collected dialogue, and the batch as a whole against the batch accepted before it."""
    k, settings = limits.attempts, limits.settings
    again = "collect the batch again" if k is not None else "mend the files, or leave these rows out"
    least, most = limits.reward_range
    attempt = {"column_list": ["task_id", "attempt"]}
    rules = [Rule("unique_attempts", UNIQUE_TOGETHER, attempt, "no attempt at a task may be there twice", again)]
    if k is not None:
        each, numbers = {"column": "attempts", "value_set": [k]}, {"column": "attempt", **_bounds((0, k - 1))}
        says = f"every task must have exactly {k} attempts (collect.attempts)"
        rules += [
            Rule("attempts_per_task", "ExpectColumnValuesToBeInSet", each, says, again),
            Rule("attempt_numbers", BETWEEN, numbers, f"attempts must be numbered 0 to {k - 1}", again),
        ]
    reward, says = {"column": "reward", **_bounds(limits.reward_range)}, f"rewards must lie in {least:g} to {most:g}"
    rules += [
        _empty("task", "attempts with one task id must be at one task", again),
        _empty("turn_order", "the user must open with the request, then both alternate, and the agent must end", again),
        _empty("protocol", "the dialogue must follow the protocol", f"check agent.max_turns, or {again}"),
        _empty("turn_record", "the recorded turns must be those of the messages", again),
        _empty("tokens", "token ids must decode to the raw reply", f"check model.base, or {again}"),
        Rule("reward_bounds", BETWEEN, reward, says, "score the batch again"),
        _empty("scored", "every finished dialogue must have a reward and a lost one none", "score the batch again"),
        _empty("tests", "the reward must be what the domain says it is", "score the batch again"),
        _empty(
            "leak",
            "nothing the actor sees may hold training-time information",
            f"fix the simulator or the prompt that gave it away, then {again}",
        ),
        Rule("unique_seeds", UNIQUE, {"column": "seed"}, "no two sampled dialogues may share a seed", again),
        _empty(
            "duplicate",
            f"at most {settings.duplicate_share:.0%} of the attempts may repeat another word for word "
            "(validate.duplicate_share)",
            "raise agent.temperature, or collect more varied tasks",
            mostly=1.0 - settings.duplicate_share,
        ),
        _empty(
            "lost",
            f"at most {settings.lost_share:.0%} of the dialogues may be lost (validate.lost_share)",
            "see why in the dialogues' `error`, then collect the batch again",
            mostly=1.0 - settings.lost_share,
        ),
    ]
    before, now = limits.previous, limits.current
    if before is not None and now is not None:
        errors = (before.reward_error, now.reward_error)
        rules.append(_shift("reward", "mean reward", before.mean_reward, settings.reward_shift, errors))
        errors = (before.turns_error, now.turns_error)
        rules.append(_shift("turns", "mean number of agent turns", before.mean_turns, settings.turns_shift, errors))
    columns = (*KEYS, "task", "turn_order", "protocol", "turn_record", "tokens", "reward", "scored", "tests", "leak")
    more = ("seed", "lost", "turns", "attempts", "duplicate", "reward_by_task", "turns_by_task")
    return Table("trajectories", rows, (*columns, *more), tuple(rules), KEYS)


def pairs_table(rows: Rows, limits: Limits) -> Table:
    """The preference pairs made of the dialogues."""
    least = limits.settings.minimum_pairs
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
    if limits.pairs_needed:
        rules.insert(0, Rule("enough_pairs", ROW_COUNT, {"min_value": least}, says, fix))
    keys = ("row", "task_id", "chosen_attempt", "rejected_attempt")
    return Table("pairs", rows, (*keys, "chosen_reward", "rejected_reward", "members"), tuple(rules), keys)


def run_tables(tables: Sequence[Table], docs: Path) -> list[Verdict]:
    """Run every rule of `tables` with Great Expectations and write its Data Docs to `docs` (replacing older ones).

    Its pages take values as markup. Names of tasks, files and faults are others' words, so it is given them escaped.
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
    context.add_data_docs_site(
        "sweetrl",
        {
            "class_name": "SiteBuilder",
            "store_backend": {
                "class_name": "TupleFilesystemStoreBackend",
                "base_directory": str(docs.resolve()),
            },
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        },
    )
    source = context.data_sources.add_pandas("sweetrl")
    form = {"result_format": "COMPLETE", "return_unexpected_index_query": False}
    verdicts: list[Verdict] = []
    for table in tables:
        values = {name: list(map(_escaped, table.rows.column(name))) for name in table.columns if table.rows}
        frame = pd.DataFrame(values, columns=table.columns)
        suite = context.suites.add(gx.ExpectationSuite(table.name))
        for rule in table.rules:
            expectation = getattr(gx.expectations, rule.kind)
            suite.add_expectation(expectation(**rule.arguments, notes=rule.says, meta={"rule": rule.name}))
        batch = source.add_dataframe_asset(table.name).add_batch_definition_whole_dataframe("all")
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(name=table.name, data=batch, suite=suite)
        )
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(
                name=table.name,
                validation_definitions=[definition],
                result_format=form | {"unexpected_index_column_names": list(table.keys)},
            )
        )
        outcome = checkpoint.run(batch_parameters={"dataframe": frame})
        (result,) = outcome.run_results.values()
        outcomes = {
            (each.expectation_config.meta or {})["rule"]: each for each in result.results if each.expectation_config
        }
        verdicts += [_verdict(table, rule, outcomes[rule.name]) for rule in table.rules]
    context.build_data_docs()
    return verdicts


def _verdict(table: Table, rule: Rule, outcome: Any) -> Verdict:
    result = dict(outcome.result)
    listed = result.get("unexpected_index_list") or ()
    result["unexpected_index_list"] = [{name: _unescaped(value) for name, value in row.items()} for row in listed]
    raised = (outcome.exception_info or {}).get("exception_message")
    if raised:
        raise RuntimeError(f"expectation {rule.name} could not be evaluated: {raised}")
    checked = int(result.get("element_count", len(table.rows)))
    unexpected = int(result.get("unexpected_count", 0 if outcome.success else 1))
    success = bool(outcome.success)
    sentence = "" if success else _sentence(table, rule, result, checked, unexpected)
    rows = () if success else tuple(str(row["row"]) for row in result["unexpected_index_list"])
    verdict = Verdict(table.name, rule.name, success, checked, unexpected, sentence, rows)
    if "unexpected_count" in result:
        allowed = 1.0 - float(rule.arguments.get("mostly", 1.0))
        share = unexpected / checked if checked else 0.0
        return replace(verdict, observed=share, high=allowed, broken=_broken(table, rule, result, LISTED))
    bounds = (rule.arguments.get("min_value"), rule.arguments.get("max_value"))
    return replace(verdict, observed=float(result.get("observed_value") or 0.0), low=bounds[0], high=bounds[1])


def _escaped(value: Any) -> Any:
    return html.escape(value) if isinstance(value, str) else value


def _unescaped(value: Any) -> Any:
    return html.unescape(value) if isinstance(value, str) else value


def _sentence(table: Table, rule: Rule, result: dict[str, Any], checked: int, unexpected: int) -> str:
    """One sentence about a failed rule: what must hold, how often it does not, where, and what to do."""
    fix = f"; {rule.fix}." if rule.fix else "."
    if "unexpected_count" not in result:  # a rule about the table as a whole
        return f"{table.name}: {rule.says}, found {_number(result.get('observed_value'))}{fix}"
    named = [f"{_name(key)}: {detail}" if detail else _name(key) for key, detail in _broken(table, rule, result, SHOWN)]
    count = len(_distinct(table, result))
    more = f" and {count - SHOWN} more" if count > SHOWN else ""
    return f"{table.name}: {rule.says}, but {unexpected} of {checked} rows do not: {', '.join(named)}{more}{fix}"


def _distinct(table: Table, result: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The keys of the rows that break a rule, each once."""
    return list(dict.fromkeys(tuple(row.get(key) for key in table.keys) for row in result["unexpected_index_list"]))


def _broken(table: Table, rule: Rule, result: dict[str, Any], most: int) -> tuple[tuple[dict[str, Any], str], ...]:
    """The first `most` rows that break a rule: what names them, and what is wrong with them ("": nothing more)."""
    broken = dict.fromkeys(_distinct(table, result)[:most], "")
    if broken and rule.column and rule.column not in table.keys:
        values = table.rows.column(rule.column)
        for place, key in enumerate(zip(*map(table.rows.column, table.keys), strict=True)):
            if key in broken and values[place] is not None:
                broken[key] = _detail(rule, values[place])
    return tuple((dict(zip(table.keys, key, strict=True)), detail) for key, detail in broken.items())


def _name(key: dict[str, Any]) -> str:
    if "task_id" not in key:
        return str(key["row"])
    attempts = (
        f"attempt {key['attempt']}"
        if "attempt" in key
        else f"attempts {key['chosen_attempt']} over {key['rejected_attempt']}"
    )
    return f"task {key['task_id']} {attempts} ({key['row']})"


def _detail(rule: Rule, value: Any) -> str:
    return value if isinstance(value, str) and rule.column != "seed" else f"{rule.column} {_number(value)}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bounds(bounds: tuple[float, float]) -> dict[str, float]:
    """The finite ends of a range, as Great Expectations takes them; without any, only the type is checked."""
    named = {"min_value": bounds[0], "max_value": bounds[1]}
    finite = {name: value for name, value in named.items() if math.isfinite(value)}
    return finite or {"min_value": -sys.float_info.max}


def _empty(column: str, says: str, fix: str = "", mostly: float = 1.0) -> Rule:
    return Rule(column, "ExpectColumnValuesToBeNull", {"column": column, "mostly": mostly}, says, fix)


def _shift(what: str, name: str, before: float, limit: float, errors: tuple[float, float]) -> Rule:
    allowed = limit + NOISE * (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    return Rule(
        f"{what}_shift",
        MEAN_BETWEEN,
        {"column": f"{what}_by_task", "min_value": before - allowed, "max_value": before + allowed},
        f"the {name} may differ by at most {limit:g} (validate.{what}_shift) and sampling error from the accepted "
        f"batch's {before:.3g}",
        "find out what changed; if it was meant to, remove data/accepted.json and run again",
    )
