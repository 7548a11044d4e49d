"""What the guides paste is run: Python blocks as they stand (with smaller numbers), settings, options of commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweetrl.browser.binary import find_browser
from sweetrl.errors import UserError
from sweetrl.plugins import load_domain, load_method
from sweetrl.settings import parse_settings
from sweetrl.types import Message

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
ELSEWHERE = ("my_package.", "sweetrl.interop.")  # code that only a reader has, or an environment of its own
SMALLER = {"tasks=100": "tasks=24", "tasks=200": "tasks=4"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def python_of(name: str) -> str:
    """The Python of a page, block after block, as a reader would type it; with smaller numbers."""
    text = "\n\n".join(blocks(REPOSITORY / "docs" / name, "python"))
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text


def merged(tree: Any, change: Any) -> Any:
    if isinstance(tree, dict) and isinstance(change, dict):
        return {**tree, **{key: merged(tree.get(key), value) for key, value in change.items()}}
    return change


def settings_blocks() -> Iterator[Any]:
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml")):
            yield pytest.param(yaml.safe_load(text), id=f"{page.name}-{number}")


@pytest.mark.parametrize("change", settings_blocks())
def test_settings_in_the_guides_are_taken(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    tree = merged(yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8")), change)
    settings = parse_settings(tree, "the guide")
    if not settings.suite.startswith(ELSEWHERE):
        load_domain(settings)
        load_method(settings).settings_of(settings)


def commands() -> Iterator[Any]:
    for page in PAGES:
        text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
        text += "\n" + "\n".join(re.findall(r"^    ((?:sweetrl|python) .*)$", page.read_text(encoding="utf-8"), re.M))
        for line in dict.fromkeys(text.splitlines()):
            line = re.sub(r"^cd \S+ && ", "", line.partition("  #")[0].strip())
            if line.startswith(("sweetrl ", "python ")):
                yield pytest.param(line, id=f"{page.name}-{line[:50]}")


@pytest.mark.parametrize("line", commands())
def test_commands_in_the_guides_have_the_options_that_they_use(line: str) -> None:
    from typer.main import get_command

    from sweetrl.cli import app

    words = shlex.split(line)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if words[0] == "sweetrl":
        command: Any = get_command(app)
        for word in words[1:]:
            if not hasattr(command, "commands"):
                break
            command = command.commands[word]
        known = {option for parameter in command.params for option in parameter.opts}
    else:
        place = words[2].replace(".", "/") if words[1] == "-m" else words[1].removesuffix(".py")
        files = [REPOSITORY / root / f"{place}{end}" for root in ("", "src") for end in (".py", "/__main__.py")]
        source = next(file for file in files if file.exists()).read_text(encoding="utf-8")
        known = {
            option
            for option in options
            if f'"{option}"' in source or re.search(rf"\b{option[2:].replace('-', '_')}: ", source)  # argparse, typer
        }
    assert set(options) <= known, line


def test_the_python_of_extending_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    exec(python_of("extending.md"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["My word is test0.", "1.0"]
    assert any(json.loads(printed[2])), "the critic has learnt nothing"
    changed = names["found"].comparison["policies"]
    assert names["found"].comparison["tasks"] == 4 and changed["base"] != changed["trained"]
    user = names["Terse"](patience=1)
    assert user.reply(names["task"], [Message("user", "?"), Message("assistant", "?")], 7) == "test0"
    with pytest.raises(names["sweetrl"].UserLeft):
        user.reply(names["task"], [Message("user", "?")] * 3, 7)
    dialogue = names["dialogues"][0]
    questions = sum(message.role == "assistant" for message in dialogue.messages) - 1
    assert names["brief"](dialogue.task, dialogue)["questions"] == pytest.approx(-0.02 * questions)


def test_the_python_of_the_quick_start_and_the_sandbox_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    exec(python_of("quick-start.md"), names)
    assert str(names["dialogue"].reward) in capsys.readouterr().out
    exec(python_of("sandbox.md"), names)
    calls = names["outcome"].calls
    assert calls[0].tree == 2 and calls[1].kind == "exception"


def test_the_python_of_the_browser_runs() -> None:
    try:
        find_browser()
    except UserError as error:
        pytest.skip(str(error))
    names: dict[str, Any] = {"html": "<h1>Hi</h1>", "htmls": ["<p>a</p>", "<p>b</p>"]}
    exec(python_of("browser.md").partition("from sweetrl.domains")[0], names)
    assert names["page"].png and len(names["pages"]) == 2


def test_the_log_of_the_guide_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.running.importing import import_standalone

    monkeypatch.chdir(tmp_path)
    (line,) = blocks(REPOSITORY / "docs" / "own-dialogues.md", "json")
    Path("shop.jsonl").write_text(line)
    import_standalone(parse_settings({}), [Path("shop.jsonl")], Path("out"), ())
    (found,) = TrajectoryStore("out")
    assert (found.task.id, found.reward, found.answer) == ("lost-parcel", 1.0, "It arrives tomorrow.")
