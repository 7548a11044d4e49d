"""Words of models, servers, files and programs on the screen: they are read, and they steer nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.cli import show
from sweetrl.colbench.find import find_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.colbench.users import ConsoleUser
from sweetrl.console.logs import any_letters
from sweetrl.console.printing import print_facts, print_table
from sweetrl.console.screen import Screen
from sweetrl.text import printable, without_login
from sweetrl.types import Message, Task, TestResult, Trajectory

TITLE, CLEAR, BIDI, MARKUP = "\x1b]0;owned\x07", "\x1b[2J", "\u202e", "[red on red]x[/]"
BAD = f"{TITLE}{CLEAR}{BIDI}{MARKUP}:warning:"
# What rich itself writes: colours and hyperlinks are not among them here.
OURS = re.compile(r"\x1b\[[\d;]*m")


def hostile() -> Trajectory:
    task = Task(BAD, BAD, f"# {BAD}\ndef f():\n    return 1", ((BAD, BAD),), hidden_information=BAD)
    return Trajectory(
        task=task,
        messages=(Message("system", BAD), Message("user", BAD), Message("assistant", f"I WANT TO ANSWER:\n{BAD}")),
        turns=(),
        attempt=0,
        seed=0,
        policy=BAD,
        simulator=BAD,
        outcome="answered",
        error=BAD,
        reward=0.0,
        tests=(TestResult(BAD, False, BAD, BAD),),
    )


def assert_harmless(text: str) -> None:
    left = OURS.sub("", text)
    assert "\x1b" not in left and "\x07" not in left and BIDI not in left
    assert MARKUP in re.sub(r"\s*│?\n│?\s*", "", left) or MARKUP in left, "what was said is shown as it was said"


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_in_a_trajectory_steers_the_terminal(tmp_path: Path, terminal: bool) -> None:
    TrajectoryStore(tmp_path).write_shard(0, [hostile()])
    console = Screen(file=StringIO(), width=200, force_terminal=terminal, color_system="standard")
    domain = find_domain("backend")
    show.list_trajectories(console, tmp_path, domain, None, 10)
    show.show_trajectory(console, show.find(tmp_path, domain, "0", 0), domain, privileged=True)
    assert_harmless(console.file.getvalue())


def test_nor_in_the_facts_of_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts(BAD, [(BAD, BAD)])
    print_table(BAD, [BAD], [[BAD]])
    assert_harmless(capsys.readouterr().out)


def test_a_row_is_one_line_for_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts("lineage", [("engine.arguments", "--a 1\n--b\t2\n"), ("seed", "7")])
    assert capsys.readouterr().out == "engine.arguments\t--a 1 --b 2\nseed\t7\n"


def test_nor_in_what_an_agent_says_to_whoever_plays_the_user() -> None:
    shown: list[str] = []
    messages = [Message("user", BAD), Message("assistant", BAD)]
    ConsoleUser(ask=lambda prompt: "Yes.", tell=shown.append).reply(hostile().task, messages, 0)
    assert_harmless("".join(shown))


def test_nor_in_an_error(tmp_path: Path) -> None:
    place = tmp_path / f"no{TITLE}{MARKUP}.jsonl"
    words = [sys.executable, "-m", "sweetrl.cli", "show", "--dialogues", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "there are no dialogues here" in done.stderr
    assert_harmless(done.stderr)


def test_what_is_typed_in_another_encoding_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"it is \xe9 7\n"), encoding="utf-8"))
    any_letters()
    assert input() == "it is \ufffd 7"


@given(st.text())
def test_what_is_printable_stays_and_is_as_long(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text) and printable(shown) == shown
    assert all(a == b for a, b in zip(text, shown, strict=True) if a.isprintable() or a in "\n\t")
    shown.encode()
    assert json.loads(json.dumps(shown)) == shown


def test_emoji_of_several_parts_and_persian_words_stay_whole() -> None:
    assert printable("👩\u200d💻 می\u200cخواهم") == "👩\u200d💻 می\u200cخواهم"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:pass@word@host:5000/path?a=b@c", "http://host:5000/path?a=b@c"),
        ("postgresql+psycopg2://me:secret@db/mlflow", "postgresql+psycopg2://db/mlflow"),
        ("http://me:secret@[::1", "http://[::1"),
        ("https://host/a@b", "https://host/a@b"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
    ],
)
def test_no_message_shows_the_password_of_an_address(address: str, shown: str) -> None:
    assert without_login(address) == shown


def test_a_terminal_of_another_encoding_gets_what_it_can_show(tmp_path: Path) -> None:
    """Rich draws lines, and words are whatever somebody has written; JSON loses none of them."""
    dialogue = Trajectory(
        Task("t-1", "Wie viel? \u20ac \U0001f600 \u00e4", ""), 0, (Message("user", "\u20ac \U0001f600 \u00e4"),)
    )
    TrajectoryStore(tmp_path).write_shard(0, [dialogue])
    for encoding, more, says in (
        ("latin-1", [], "\\u20ac \\U0001f600 \u00e4"),
        ("ascii", ["--json"], "\\u20ac \\ud83d\\ude00 \\u00e4"),
        ("utf-8", ["--json"], "\u20ac \U0001f600 \u00e4"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sweetrl.cli", "show", "t-1", "--dialogues", tmp_path, *more],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        )
        assert done.returncode == 0 and says in done.stdout.decode(encoding), done.stderr
