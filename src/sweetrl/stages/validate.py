"""Stage `validate`: is the collected batch fit to learn from? If not, it stops and names the rows.

data/trajectories -> data/pairs.parquet, reports/validation.json; for people reports/data-quality.html, and Great
Expectations' Data Docs in reports/data-docs (not outputs of the stage: the one shows earlier batches, too, the others
carry times). The checks are in sweetrl.evaluation.checks and sweetrl.validation.suites.

The last accepted batch's summary is kept in data/accepted.json, which is neither an input nor an output of the stage:
as an input it would make the stage run again after each of its own runs. It can only stop a batch, never change what
the stage writes, so equal inputs still give equal bytes. It keeps one batch more, so that the same batch, validated
again, is compared with what it was compared with before. Remove the file to accept a shift that was meant; carry it
along where a retraining works in another checkout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.io import read_json, write_json
from sweetrl.methods.base import find_method
from sweetrl.models.load import load_tokenizer
from sweetrl.paths import ACCEPTED, DATA_DOCS, DATA_QUALITY, PAIRS, QUALITY_HISTORY, TRAJECTORIES, VALIDATION
from sweetrl.stages.run import StageRun, stage_main, stage_run
from sweetrl.sweet.pairs import DataCounts, write_pairs
from sweetrl.validation.quality import remember, write_page
from sweetrl.validation.suites import Verdict, pairs_table, run_tables, shards_table, trajectories_table
from sweetrl.validation.tables import Summary, TrajectoryTable, batch_digest, pair_rows, places, shard_rows, summarise


def validate(settings: Settings) -> None:
    """Check the batch in data/trajectories; UserError with one sentence for each failed expectation."""
    with stage_run("validate", settings, torch=False) as run:
        run.log_input("trajectories", TRAJECTORIES)
        check_batch(settings, run)


def check_batch(settings: Settings, run: StageRun) -> None:
    """The stage's body: tables, expectations, and only then the outputs."""
    store = TrajectoryStore(TRAJECTORIES)
    shards = shards_table(shard_rows(store))
    if not shards.rows or any(row["schema"] for row in shards.rows):
        verdicts = run_tables([shards], DATA_DOCS)  # what has no schema cannot be read any further
        write_page(DATA_QUALITY, [shards], verdicts, None, QUALITY_HISTORY, str(TRAJECTORIES))
        refuse_failures(verdicts)

    domain = load_domain(settings)
    chat = ChatFormat(load_tokenizer(settings.model.base), **settings.model.chat_options)

    def decode(ids: Sequence[int]) -> str:
        return chat.decode([ids])[0]

    system = domain.system_prompt(settings.agent.prompt)
    recorded = settings.collect.source == "files" and settings.collect.keep_rewards
    table = TrajectoryTable(domain, settings.agent.max_turns, system, decode, recorded)
    data, method = DataCounts(domain, settings.critic, settings.rank, settings.rft), find_method(settings.method)
    pairs, counts = data.read(table.watch(store.read(), places(store)))
    if why := method.missing_data(data):
        raise UserError(f"{TRAJECTORIES}: the method `{method.name}` cannot learn from these: {why}.")
    rows = table.rows()
    summary = summarise(rows, batch_digest(store))
    rewarded = [settings.suite, settings.reward.function]
    previous = accepted_before(summary.batch, rewarded)
    attempts = settings.collect.attempts if settings.collect.source == "sampled" else None
    least = settings.validate_.minimum_pairs if "pairs" in method.needs else None
    tables = [
        shards,
        trajectories_table(rows, settings.validate_, attempts, domain.reward_bounds, previous, summary),
        pairs_table(pair_rows(pairs, rows), least),
    ]
    verdicts = run_tables(tables, DATA_DOCS)
    shown = ("mean_reward", "success_rate", "mean_turns", "lost")
    run.log_metrics({name: getattr(summary, name) for name in shown})
    run.log_metrics({"pairs": len(pairs), "failed_expectations": sum(not verdict.success for verdict in verdicts)})
    write_page(DATA_QUALITY, tables, verdicts, summary, QUALITY_HISTORY, str(TRAJECTORIES))
    refuse_failures(verdicts)

    write_pairs(PAIRS, pairs)
    # Nothing here depends on the clock or on earlier batches.
    expectations = [
        {name: getattr(verdict, name) for name in ("table", "rule", "checked", "unexpected")}
        for verdict in verdicts
        if not verdict.rule.endswith("_shift")
    ]
    write_json(VALIDATION, {"batch": asdict(summary), "pairs": counts, "expectations": expectations})
    kept = {"accepted": asdict(summary), "previous": asdict(previous) if previous else None, "rewarded": rewarded}
    write_json(ACCEPTED, kept)
    remember(QUALITY_HISTORY, summary.batch, verdicts)
    run.summary = (
        f"{summary.trajectories} dialogues at {summary.tasks} tasks hold all {len(verdicts)} expectations "
        f"and give {len(pairs)} pairs; see {DATA_QUALITY}"
    )


def accepted_before(batch: str, rewarded: list[str]) -> Summary | None:
    """The summary of the batch that was accepted before `batch`, or None where there is none.

    One of another domain, or with another reward function (`rewarded`), shows no shift.
    """
    if not ACCEPTED.exists():
        return None
    content = read_json(ACCEPTED)
    if content.get("rewarded", rewarded) != rewarded:
        return None
    try:
        kept = content["previous"] if content["accepted"]["batch"] == batch else content["accepted"]
        return None if kept is None else Summary(**kept)
    except (TypeError, KeyError) as error:
        raise UserError(f"{ACCEPTED}: this is not a batch's summary; remove the file and run again.") from error


def refuse_failures(verdicts: Sequence[Verdict]) -> None:
    """Raise a UserError that lists every failed expectation, if there are any."""
    if failed := [verdict for verdict in verdicts if not verdict.success]:
        lines = "".join(f"\n- {verdict.sentence}" for verdict in failed)
        tables = ", ".join(dict.fromkeys(verdict.table for verdict in failed))
        raise UserError(
            f"{TRAJECTORIES}: {len(failed)} of {len(verdicts)} expectations failed in {tables}; the rows are in "
            f"{DATA_QUALITY}:{lines}"
        )


if __name__ == "__main__":
    stage_main(validate)
