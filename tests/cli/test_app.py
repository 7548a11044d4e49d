"""What all commands share: -h, --version, --quiet, --json, --set, completion, Ctrl-C, and names of options."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from sweetrl import __version__
from sweetrl.cli import app as command_line
from sweetrl.cli import main
from sweetrl.console import logs
from sweetrl.console.printing import note


def commands(app: Any = main.app, before: str = "") -> dict[str, set[str]]:
    """Every command's words -> the names of its options."""
    group = get_command(app)
    options: dict[str, set[str]] = {}
    for name, group_or_command in group.commands.items():  # type: ignore[attr-defined]
        inner = getattr(group_or_command, "commands", None)
        for word, command in inner.items() if inner else ((name, group_or_command),):
            options[f"{name} {word}" if inner else name] = {option for param in command.params for option in param.opts}
    return options


@pytest.mark.parametrize("command", commands())
def test_every_command_explains_itself(command: str) -> None:
    for name in ("-h", "--help"):
        result = CliRunner().invoke(main.app, [*command.split(), name])
        assert result.exit_code == 0
        assert result.output.startswith("Usage: ") and "--quiet" in result.output


def test_the_same_things_have_the_same_names() -> None:
    """And every command that prints a result prints it as JSON, too."""
    options_of = commands()
    assert {name for name, options in options_of.items() if "--json" not in options} == {"serve"}  # it has no result
    assert not any({"--policy", "--source", "--trajectories", "--save"} & options for options in options_of.values())


def test_version() -> None:
    assert CliRunner().invoke(main.app, ["--version"]).output.strip() == f"sweetrl {__version__}"


def test_help_is_whole_sentences_and_loads_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sweetrl.cli", "-h"], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {
        "torch", "mlflow", "prefect", "dvc", "transformers", "pydantic", "yaml", "numpy", "pyarrow", "rich.console",
        "peft", "great_expectations", "pandas", "scipy", "httpx", "sweetrl.config.settings",
    }  # fmt: skip
    assert "typer" in imported and not imported & heavy
    listed = done.stdout.partition("Commands:")[2]
    assert "..." not in listed and listed.count(".\n") >= len(get_command(main.app).commands)  # type: ignore[attr-defined]


def test_quiet_leaves_the_result_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    app = command_line.App(add_completion=False)

    @app.command()
    def work() -> None:
        logging.getLogger("sweetrl").info("half done")
        note("loading")
        logging.getLogger("elsewhere").warning("an old call")
        warnings.warn("an old name", stacklevel=1)
        print("the result")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").touch()
    progress = "half done\nloading\nwarnings of libraries are in .scratch/logs/work.log\n"
    for words, expected in (([], progress), (["-q"], "")):
        monkeypatch.setattr(sys, "argv", ["sweetrl", *words])
        assert command_line.run_app(app) == 0
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("the result\n", expected)
    kept = (tmp_path / ".scratch/logs/work.log").read_text()
    assert kept.count("an old call") == 2 and "an old name" in kept and "half done" not in kept


def test_what_libraries_say_goes_where_nobody_else_writes_or_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in /tmp may be somebody else's, with a link to a file of ours in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with logs.own_words_only("work") as aside:
        logging.getLogger("elsewhere").warning("an old call")
    assert aside.path == tmp_path / "home/.cache/sweetrl/logs/work.log" and "an old call" in aside.path.read_text()
    (tmp_path / "params.yaml").touch()
    (tmp_path / ".scratch").touch()
    with logs.own_words_only("work") as aside:
        logging.getLogger("elsewhere").warning("an old call")
    assert not aside.used, "no error of the command's"


def test_an_interruption_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    app = command_line.App(add_completion=False)

    @app.command(kept="finished rows are kept: give the same command again to go on")
    def work() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["sweetrl"])
    assert command_line.run_app(app) == 130
    expected = "interrupted; finished rows are kept: give the same command again to go on.\n"
    assert capsys.readouterr().err == expected


def test_parameters_are_set_for_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 3\n")
    words = ["tasks", "--split", "test", "--count", "1", "--json", "--out"]
    tasks = [
        json.loads(CliRunner().invoke(main.app, [*words, name, *more]).stdout)
        for name, more in (("a.jsonl", []), ("b.parquet", ["--set", "seed=4", "--set", "tasks.difficulty=2"]))
    ]
    assert [(task["seed"], task["difficulty"]) for task in tasks] == [(3, 3), (4, 2)]
    assert (tmp_path / "params.yaml").read_text() == "seed: 3\n"


@pytest.mark.parametrize(
    ("words", "quiet"),
    [
        ("run -n -q --set a=1 --set b=2 --from rank --until evaluate --profile small --json", "1"),
        ("ingest s3://team/x/ --kind tasks --again --no-push --no-event --json", None),
    ],
)
def test_a_command_goes_on_as_its_flow(
    words: str, quiet: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "flows").mkdir()
    monkeypatch.chdir(tmp_path)
    called: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *arguments: called.append((*arguments, os.environ.get("SWEETRL_QUIET"))))
    monkeypatch.setattr(sys, "argv", ["sweetrl", *words.split()])
    assert command_line.run_app(main.app) == 0
    assert called == [(sys.executable, [sys.executable, "-m", *f"flows.{words}".split()], quiet)]
    assert "SWEETRL_QUIET" not in os.environ
