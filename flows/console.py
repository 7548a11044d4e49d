"""What a user sees of a flow in the terminal: one line for each error, a table at the end, where to look next."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from sweetrl.config.settings import load_settings
from sweetrl.console.printing import print_json
from sweetrl.console.screen import Screen
from sweetrl.errors import UserError
from sweetrl.evaluation.report import level, verdicts
from sweetrl.text import printable, without_login
from tasks.outages import outage, stop_asking
from tasks.training import Outcome, PlannedStage, Result, Unsettled

# What Prefect does by itself, which it logs for everybody.
OWN_WORDS = ("Finished in state", "Beginning flow run", "Starting temporary", "Stopping temporary", "Crash detected!")


def program(function: Callable[..., object]) -> typer.Typer:
    """Return `function` as the program `python -m flows.<module>`: its parameters are the words and options."""

    @wraps(function)
    def run(**given: Any) -> None:
        sys.exit(command_line(partial(function, **given)))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(run)
    return app


def command_line(action: Callable[[], object]) -> int:
    """Run `action`, and return its exit status; errors become one sentence on stderr and status 1 (Unsettled: its own).

    An interruption stops the stages, too.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started this has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    _silence_traces()
    try:
        load_settings()  # a mistyped value is reported before Prefect's server starts
        status = action()
    except BaseException as error:
        if (code := interruption(error)) is not None:
            _leave(code)
        sentence = error if isinstance(error, UserError) else outage(error)
        if "ephemeral Prefect API server" in str(error):
            sentence = UserError(
                "Prefect's embedded server did not start; run again when the machine is less busy, or raise "
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS."
            )
        if sentence is None:
            raise
        print(printable(f"error: {sentence}"), file=sys.stderr)
        return sentence.status if isinstance(sentence, Unsettled) else 1
    return status if isinstance(status, int) else 0


def interruption(error: BaseException) -> int | None:
    """Return the exit status of an interruption, None for other errors.

    What comes out of Prefect may be its client's failure to tell its dead server about the interruption.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return 130
        if isinstance(cause, SystemExit):
            return cause.code if isinstance(cause.code, int) else 1
        if type(cause).__name__ == "TerminationSignal":
            return 143
        cause = cause.__context__
    return None


def _leave(code: int) -> None:
    """Say that the work was interrupted, and end now with all children: Prefect would wait for its server."""
    import psutil

    print(
        "interrupted; finished work is kept, the unfinished stage's in .scratch/: run the same command again to go on.",
        file=sys.stderr,
    )
    children = psutil.Process().children(recursive=True)
    for end in ("terminate", "kill"):
        for child in children:
            with contextlib.suppress(psutil.Error):
                getattr(child, end)()
        _, children = psutil.wait_procs(children, timeout=5)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    stop_asking()
    signal.default_int_handler(number, frame)


def _silence_traces() -> None:
    """Prefect logs every failure with its whole trace, and what it does itself; the sentence is printed once, by us."""

    def shorten(record: logging.LogRecord) -> bool:
        from_user = record.exc_info is not None and isinstance(record.exc_info[1], UserError)
        record.exc_info = record.exc_text = None
        return not from_user and not record.getMessage().startswith(OWN_WORDS)

    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(shorten)
    # Whose server is gone is told by us: that Prefect could not send it events and lines is no news. Prefect sets up
    # its logging later and then forgets levels, not filters.
    for name in ("prefect.events.clients", "prefect._internal.concurrency"):
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.CRITICAL)
    logging.raiseExceptions = False


def show_all(run: Callable[[], Result], show: Callable[[Result], object]) -> None:
    """Run a flow and show what it did, also where a person must act on it."""
    try:
        done = run()
    except Unsettled as unsettled:
        show(unsettled.result)
        raise
    show(done)


def show_plan(planned: Sequence[PlannedStage], as_json: bool = False) -> None:
    """Print what a run would do with each stage, and why; a stage that is left although it has changed is named."""
    if as_json:
        print_json([asdict(stage) for stage in planned])
        return
    words = {"run": "run", "perhaps": "perhaps run", "skip": "be skipped", "left": "be left as it is"}
    console = Screen()
    console.print(table(("stage", "would", "why"), [(row.stage, words[row.would], row.reason) for row in planned]))
    count, perhaps = (sum(row.would == would for row in planned) for would in ("run", "perhaps"))
    console.print(f"{count} would run, {perhaps} perhaps; nothing was changed")
    if stale := [row.stage for row in planned if row.would == "left" and row.why]:
        console.print(f"left although changed: {', '.join(stale)}; the result would not be registered")


def show_outcome(outcome: Outcome, report: Path | None = None, as_json: bool = False) -> None:
    """Print the summary of a pipeline run; with `as_json` all of its facts, for other programs."""
    if as_json:
        print_json(asdict(outcome) | {"harm": outcome.harm})
        return
    console, registration = Screen(soft_wrap=False), outcome.registration
    if outcome.harm:
        console.print(f"HARM: worse than its base: {outcome.harm}", "", sep="\n", style="bold red")
    rows = [
        (stage.stage, stage.status, f"{stage.seconds:.0f} s" if stage.seconds else "", stage.summary)
        for stage in outcome.stages
    ]
    console.print(table(("stage", "status", "time", "result"), rows), "", sep="\n")
    if outcome.evaluation:
        console.print(evaluation_table(outcome.evaluation), "", sep="\n")
    if registration is not None:
        console.print(registration_line(outcome))
        if outcome.gate is not None:
            worse = outcome.gate.decision is not None and outcome.gate.decision.tone == "worse"
            console.print(f"gate: {outcome.gate.reason}", style="red" if worse else None)
    if outcome.stale:
        console.print(f"not registered: {', '.join(outcome.stale)} left although changed; `make run` makes the rest")
    console.print()
    if report is not None and not outcome.stale:
        console.print(f"report:  {report}", soft_wrap=True)
    if outcome.tracking:
        ui = shlex.join(["mlflow", "ui", "--backend-store-uri", outcome.tracking])
        embedded = outcome.tracking.startswith("sqlite:")
        console.print(
            f"runs:    {f'make ui, or {ui}' if embedded else without_login(outcome.tracking)}", soft_wrap=True
        )
    if registration is not None:
        version = shlex.quote(f"{registration.model}/{registration.version}")
        console.print(f"lineage: sweetrl lineage {version}", soft_wrap=True)
    console.print(f"{'nothing had changed' if outcome.unchanged else 'done'} in {outcome.seconds:.0f} s")


def registration_line(outcome: Outcome) -> str:
    """Return which version there is, whether it is new, and under which aliases."""
    registration, gate = outcome.registration, outcome.gate
    assert registration is not None
    aliases = set(registration.aliases)
    if gate is not None:
        now = "champion" if gate.champion == registration.version else "challenger"
        aliases = aliases - {"champion", "challenger"} | {now}
    names = ", ".join("@" + alias for alias in sorted(aliases)) or "no alias"
    what = "registered" if registration.created else "is registered already"
    return f"model: {registration.model} version {registration.version} {what} ({names})"


def evaluation_table(evaluation: dict[str, Any]) -> Any:
    """Return the held-out results before and after training, with their intervals, as a table of 80 columns."""
    rows: list[Sequence[str]] = []
    for key, label, *_ in verdicts(evaluation):
        before, after = (estimate(evaluation["policies"][policy][key]) for policy in ("base", "trained"))
        difference = evaluation["difference"][key]
        change = estimate(difference, signed=True)
        rows.append((label, before, after, change, f"{difference['p_value']:.2g}"))
    for name, part in evaluation.get("parts", {}).items():  # of the reward, where it has several
        means = (estimate(part[policy]) for policy in ("base", "trained"))
        change = part["difference"]
        rows.append((f"reward: {name}", *means, estimate(change, signed=True), f"{change['p_value']:.2g}"))
    header = (f"{evaluation['tasks']:,} tasks", "before", "after", "difference", "p")
    caption = f"held-out tasks; in brackets: {level(evaluation)} interval"
    narrow = {"padding": (0, 1), "pad_edge": False, "collapse_padding": True}
    return table(header, rows, caption=caption, caption_justify="left", **narrow)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], **options: Any) -> Any:
    """Return a table for the terminal; the text on its two sides is broken where it is long, the figures never."""
    from rich.table import Table

    rich_table = Table(**{"box": None, "padding": (0, 2), "header_style": "bold"} | options)
    for name in header:
        rich_table.add_column(name, no_wrap=name not in (header[0], header[-1]))
    for row in rows:
        rich_table.add_row(*row)
    return rich_table


def estimate(value: Mapping[str, float], signed: bool = False) -> str:
    """Return an estimate with its interval in per cent."""
    number, low, high = (100 * value[key] for key in ("value", "low", "high"))
    if signed:
        return f"{number:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"{number:.1f}% [{low:.1f}, {high:.1f}]"
