"""What is seen of a flow while it works: at a terminal, in a file, and with --quiet."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from flows import display as module
from flows.display import Display
from sweetrl.console.screen import Screen


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal in a file."""
    found = Screen(file=StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(module, "Screen", lambda **options: found)
    monkeypatch.delenv("SWEETRL_QUIET", raising=False)
    monkeypatch.setenv("SWEETRL_PROGRESS_SECONDS", "15")
    return found


@pytest.fixture
def console() -> Iterator[StringIO]:
    """What Prefect's handler of the root logger would print."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def seen(screen: Screen) -> list[str]:
    """The lines as they were drawn, one after the other, without what steers the terminal."""
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.file.getvalue())  # type: ignore[attr-defined]
    return [" ".join(line.split()) for line in re.split(r"[\r\n]+", text) if line.strip()]


def work() -> None:
    """What a flow logs."""
    flow, task = logging.getLogger("prefect.flow_runs"), logging.getLogger("prefect.task_runs")
    flow.warning("stage 3 of 9: collect")
    for line in (
        "collect: 640 of 2800 dialogues, 12.1 a second, about 3 min left",
        "UserWarning: some library is old",
        "collect: 2800 dialogues, mean reward 0.40 (231.0 s)",
    ):
        task.warning(line)
    flow.warning("collect: ran in 231 s")
    logging.getLogger("elsewhere").warning("an old call")


def test_at_a_terminal_there_is_a_bar_and_the_rest_is_in_a_log(
    tmp_path: Path, screen: Screen, console: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys, "stderr", Terminal())
    with Display(tmp_path) as display:
        display.loading("loading Prefect and MLflow")
        assert display.mode == "bar"
        display._bar.refresh()  # type: ignore[union-attr]
        display.attach()
        work()
        display._bar.refresh()  # type: ignore[union-attr]
    lines = seen(screen)
    assert any("loading Prefect and MLflow ..." in line for line in lines)
    assert any(
        "stage 3 of 9: collect" in line and "640 of 2800, 12.1 a second, about 3 min left" in line for line in lines
    )
    assert "collect: ran in 231 s" in lines and "collect: 2800 dialogues, mean reward 0.40 (231.0 s)" in lines
    assert not any("old" in line for line in lines), "what libraries say is in the log"
    kept = (tmp_path / ".scratch/logs/run.log").read_text()
    assert "UserWarning: some library is old\n" in kept and "an old call\n" in kept and console.getvalue() == ""
    assert module.sys.stderr.getvalue() == f"log:     {tmp_path}/.scratch/logs/run.log\n"  # type: ignore[attr-defined]


def test_with_quiet_nothing_is_seen_and_an_error_names_the_log(
    tmp_path: Path, console: StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWEETRL_QUIET", "1")
    for fails in (False, True):
        try:
            with Display(tmp_path) as display:
                display.loading("loading")
                display.attach()
                work()
                if fails:
                    raise KeyError
        except KeyError:
            pass
        said = f"log:     {tmp_path}/.scratch/logs/run.log\n" if fails else ""
        assert (capsys.readouterr().err, console.getvalue()) == (said, "")
    assert (tmp_path / ".scratch/logs/run.log").read_text().count("stage 3 of 9") == 1, "the last run's alone"


def test_without_a_terminal_every_line_is_printed(
    tmp_path: Path, console: StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.delenv("SWEETRL_QUIET", raising=False)
    with Display(tmp_path) as display:
        display.loading("loading Prefect and MLflow")
        display.attach()
        work()
    assert capsys.readouterr().err == "loading Prefect and MLflow ...\n"
    assert "some library is old" in console.getvalue() and not (tmp_path / ".scratch").exists()
