"""What a user sees of a flow in the terminal: one line for each error, a table at the end, where to look next."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from sweetrl.console.printing import print_json
from sweetrl.console.screen import Screen
from sweetrl.errors import UserError
from sweetrl.text import printable, without_login
from tasks.outages import outage, stop_asking
from tasks.plan import PlannedStage
from tasks.training import Outcome


def parser(module: str, what: str) -> argparse.ArgumentParser:
    """Return a parser for `python -m flows.<module>`."""
    return argparse.ArgumentParser(prog=f"python -m flows.{module}", description=what)


def command_line(action: Callable[[], object]) -> int:
    """Run `action`; errors become one sentence on stderr and status 1, an interruption stops the stages too."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started this has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    _silence_traces()
    try:
        action()
    except UserError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 1
    except BaseException as error:
        code = interruption(error)
        if code is not None:
            _leave(code)
        if "ephemeral Prefect API server" not in str(error):
            if told := outage(error):
                print(printable(f"error: {told}"), file=sys.stderr)
                return 1
            raise
        reason = str(error).strip().splitlines()[-1]
        print(
            f"error: Prefect's embedded server did not start ({reason}); run again when the machine is less busy, or "
            "raise PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.",
            file=sys.stderr,
        )
        return 1
    return 0


def interruption(error: BaseException) -> int | None:
    """Return the exit status of an interruption, None for other errors.

    What comes out of Prefect may be its client's failure to tell its dead server about the interruption.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return 130
        if isinstance(seen, SystemExit):
            return seen.code if isinstance(seen.code, int) else 1
        if type(seen).__name__ == "TerminationSignal":
            return 143
        seen = seen.__context__
    return None


def _leave(code: int) -> None:
    """Say that the work was interrupted, and end at once with everything that was started.

    A signal from the terminal reaches Prefect's embedded server too: its client would wait for it at exit, for minutes.
    """
    import psutil

    print(
        "interrupted; finished work is kept, the unfinished stage's in .scratch/: run the same command again to go on.",
        file=sys.stderr,
    )
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.terminate()
    for child in psutil.wait_procs(children, timeout=5)[1]:
        with contextlib.suppress(psutil.Error):
            child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    stop_asking()
    signal.default_int_handler(number, frame)


def _silence_traces() -> None:
    """Prefect logs every failure with its whole trace, and what it does itself; the sentence is printed once, by us."""

    def shorten(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            if isinstance(record.exc_info[1], UserError):
                return False
            record.exc_info, record.exc_text = None, None
        return not record.getMessage().startswith(
            ("Finished in state", "Beginning flow run", "Starting temporary", "Stopping temporary", "Crash detected!")
        )

    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(shorten)
    # Whose server is gone is told by us: that Prefect could not send it events and lines is no news. Prefect sets up
    # its logging later and then forgets levels, not filters.
    for name in ("prefect.events.clients", "prefect._internal.concurrency"):
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.CRITICAL)
    logging.raiseExceptions = False


def show_plan(planned: Sequence[PlannedStage], as_json: bool = False) -> None:
    """Print what a run would do with each stage, and why; a stage that is left although it has changed is named."""
    if as_json:
        print_json([{"stage": one.stage, "would": one.would, "why": list(one.why)} for one in planned])
        return
    from rich.table import Table

    console = Screen()
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("stage", "would", "why"):
        table.add_column(name, no_wrap=name != "why")
    words = {"run": "run", "perhaps": "perhaps run", "skip": "be skipped", "left": "be left as it is"}
    for one in planned:
        table.add_row(one.stage, words[one.would], one.reason)
    console.print(table)
    count = sum(one.would == "run" for one in planned)
    perhaps = sum(one.would == "perhaps" for one in planned)
    console.print(f"{count} would run, {perhaps} perhaps; nothing was changed")
    if stale := [one.stage for one in planned if one.would == "left" and one.why]:
        console.print(f"left although changed: {', '.join(stale)}; the result would not be registered")


def show_outcome(outcome: Outcome, report: Path | None = None, as_json: bool = False) -> None:
    """Print the summary of a pipeline run: stages, success before and after, version and aliases, where to look.

    With `as_json` all that is known of it, for other programs.
    """
    if as_json:
        print_json(asdict(outcome))
        return
    from rich.table import Table

    console = Screen(soft_wrap=False)
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("stage", "status", "time", "result"):
        table.add_column(name, justify="right" if name == "time" else "left")
    for result in outcome.stages:
        seconds = f"{result.seconds:.0f} s" if result.status in ("ran", "restored") else ""
        table.add_row(result.stage, result.status, seconds, result.summary)
    console.print(table)
    console.print()
    if outcome.evaluation:
        console.print(evaluation_table(outcome.evaluation))
        console.print()
    if outcome.registration is not None:
        console.print(registration_line(outcome))
        if outcome.gate is not None:
            console.print(f"gate: {outcome.gate.reason}")
    if outcome.stale:
        console.print(f"not registered: {', '.join(outcome.stale)} left although changed; `sweetrl run` makes the rest")
    console.print()
    if report is not None and not outcome.stale:
        console.print(f"report:  {report}", soft_wrap=True)
    if outcome.tracking:
        embedded = outcome.tracking.startswith("sqlite:")
        where = f"mlflow ui --backend-store-uri {outcome.tracking}" if embedded else without_login(outcome.tracking)
        console.print(f"runs:    {where}", soft_wrap=True)
    if outcome.registration is not None:
        model = outcome.registration.model
        console.print(f"lineage: sweetrl lineage {model}/{outcome.registration.version}")
    done = "nothing had changed" if outcome.unchanged else "done"
    console.print(f"{done} in {outcome.seconds:.0f} s")


def registration_line(outcome: Outcome) -> str:
    """Return which version there is, whether it is new, and under which aliases."""
    registration = outcome.registration
    assert registration is not None
    aliases = set(registration.aliases)
    if outcome.gate is not None:
        aliases -= {"champion", "challenger"}
        aliases.add("champion" if outcome.gate.champion == registration.version else "challenger")
    names = ", ".join("@" + alias for alias in sorted(aliases)) or "no alias"
    what = "registered" if registration.created else "is registered already"
    return f"model: {registration.model} version {registration.version} {what} ({names})"


def evaluation_table(evaluation: dict[str, Any]) -> Any:
    """Return the held-out results before and after training, with their intervals, as a table."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="bold")  # 80 columns
    for number, name in enumerate((f"{evaluation['tasks']:,} tasks", "before", "after", "difference", "p")):
        table.add_column(name, no_wrap=number > 0)  # a long label is broken, never a figure
    labels = evaluation.get("labels", {"success": "Success rate", "reward": "Mean reward"})
    for key, name in sorted(labels.items(), key=lambda item: item[0] != evaluation.get("measure", "success")):
        before, after = (evaluation["policies"][policy][key] for policy in ("base", "trained"))
        difference = evaluation["difference"][key]
        table.add_row(
            name[:1].lower() + name[1:],
            estimate(before),
            estimate(after),
            estimate(difference, signed=True),
            f"{difference['p_value']:.2g}",
        )
    table.caption = f"held-out tasks; in brackets: {evaluation['confidence']:.0%} interval"
    table.caption_justify = "left"
    return table


def estimate(value: Mapping[str, float], signed: bool = False) -> str:
    """Return an estimate with its interval in per cent."""
    number, low, high = (100 * value[key] for key in ("value", "low", "high"))
    if signed:
        return f"{number:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"{number:.1f}% [{low:.1f}, {high:.1f}]"
