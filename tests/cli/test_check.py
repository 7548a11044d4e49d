"""`sweetrl check`: each thing that makes a run useless is named before the run, with what to do about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.cli import check, main
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.stages.parameters import with_values
from sweetrl.types import Task

BASE = Path(__file__).resolve().parents[2] / "models/base"
TASKS = [
    Task(
        f"mine-{n}",
        f"I want function {n}. The signature of the function is: def f(x)",
        f"def f(x):\n    scaled = x * {n}\n    return scaled + {n}",
        (("test1", "f(1)"), ("test2", "f(5)")),
    )
    for n in range(12)
]


def half_right(body: dict[str, Any]) -> str:
    number = body["messages"][1]["content"].split(".")[0].rpartition(" ")[2]
    added, comment = number if body["seed"] % 2 else 99, body["seed"]
    return f"I WANT TO ANSWER:\ndef f(x):  # {comment}\n    return x * {number} + {added}"


def never_right(body: dict[str, Any]) -> str:
    return f"I WANT TO ANSWER:\ndef f(x):\n    return {6 if body['seed'] % 2 else 99}"


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tasks: Any, fake_server: Any) -> Callable[..., Any]:
    """A function that checks a project of own tasks, with these tasks and settings, and a base that replies so."""
    monkeypatch.chdir(tmp_path)

    def look(tasks: list[Task] = TASKS, reply: Any = half_right, **changes: Any) -> dict[str, check.Check]:
        write_tasks(Path("train.jsonl"), tasks[:10])
        write_tasks(Path("test.jsonl"), tasks[10:])
        with fake_server(reply=reply) as server:
            at = {"urls": server.url, "model": "mine"}
            tree = {
                "tasks": {"source": "files", "train_file": "train.jsonl", "test_file": "test.jsonl", "validation": 1},
                "engine": {"kind": "openai", **at},
                "simulator": {"kind": "llm", "server": at},
                "collect": {"tasks": 100, "attempts": 4},
                "validate": {"minimum_pairs": 5},
            }
            settings: Settings = with_values(parse_settings(tree), {"model.base": str(BASE), **changes})
            return {row.name: row for row in check.rehearse(settings)}

    return look


def test_a_sound_project_is_ok_throughout(tried: Callable[..., Any]) -> None:
    rows = tried()
    assert {row.status for row in rows.values()} == {"ok"}, rows
    assert list(rows) == ["method", "tasks", "c", "references", "dialogues", "base", "rewards", "pairs", "room"]
    assert rows["tasks"].seen == "9 train, 1 validation, 2 test"
    dialogues = 9 * 4
    succeeded = int(rows["base"].seen.split()[4])
    assert 0 < succeeded < dialogues and f"of {dialogues} dialogues; pass@4 " in rows["base"].seen
    assert rows["pairs"].seen.endswith("at 9")  # as many tasks as there are, not collect.tasks


HARMS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a reference does not compile": (
        {"tasks": [replace(TASKS[0], ground_truth="def f(x:\n    return 7"), *TASKS[1:]]},
        *("references", "fail", r"1 of 11: that of task mine-0 fails \(test1: .*SyntaxError"),
    ),
    "an option that the method has not": (
        {"method": "mine:Method", "method_options": {"learning_rat": 1e-3}},
        *("method", "fail", "unknown parameter `learning_rat`"),
    ),
    "a base that copies too little": (
        {"reply": never_right, "model.base": "copies"},
        *("base", "warn", r"succeeds in 0 of 36 dialogues; pass@4 0\.0% .*23% of the values .* `pretrain\.steps`"),
    ),
    "a base that never succeeds": ({"reply": never_right}, "base", "warn", "in 0 of 36 .* take easier tasks"),
    "equal rewards": (
        {"reward.function": "mine:same"},
        *("rewards", "warn", r"all 36 are 0\.5 equal rewards teach nothing"),
    ),
    "nothing to compare": ({"collect.attempts": 1}, "pairs", "warn", "0 at 0 of 9 tasks.* nothing can be compared"),
    "c in the request": (
        {"tasks": [replace(task, problem_description=f"Write {task.ground_truth}") for task in TASKS]},
        *("c", "fail", "11 of 11: the request of task mine-0 holds line 2 of the reference"),
    ),
    "c in the system prompt": (
        {"agent.prompt": "prompt.txt"},
        *("c", "warn|fail", "the system prompt of task mine-3 holds line 2 of the reference"),
    ),
    "a user who knows nothing": ({"simulator.kind": "scripted"}, "dialogues", "fail", "knows nothing about these"),
    "a test task that is trained on": (
        {"tasks": [*TASKS[:11], replace(TASKS[0], id="again")]},
        "tasks",
        "fail",
        "apart",
    ),
}
OWN = """
import sweetrl

class Method(sweetrl.Method):
    pass

def same(task, dialogue):
    return 0.5
"""


@pytest.mark.parametrize("harm", HARMS)
def test_what_makes_a_run_useless_is_named_before_it(
    harm: str, tried: Callable[..., Any], own_code: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    own_code(tmp_path, OWN)
    (tmp_path / "prompt.txt").write_text("Help. For example: scaled = x * 3")
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies/recipe.json").write_text(json.dumps({"copied_values": 0.23}))
    given, name, status, words = HARMS[harm]
    row = tried(**given)[name]
    assert re.fullmatch(status, row.status), row
    assert row.advice and re.search(words, f"{row.seen} {row.advice}"), row


def test_a_server_that_is_not_there_fails(tried: Callable[..., Any]) -> None:
    row = tried(**{"engine.urls": "http://127.0.0.1:9", "engine.attempts": 1})["dialogues"]
    assert row.status == "fail" and "127.0.0.1:9" in row.seen


def test_what_fails_is_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("sead: 7\n")
    done = CliRunner().invoke(main.app, ["check", "--json"])
    assert done.exit_code == 1
    assert [row["name"] for row in json.loads(done.output)] == ["params.yaml"]
