"""`sweetrl collect` and `sweetrl evaluate` on a task file of one's own, against servers: one command, no pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.backend import Backend
from sweetrl.backend.suite import generate
from sweetrl.cli.main import app
from sweetrl.colbench.files import read_trajectories
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.errors import UserError
from sweetrl.types import Task
from tests.stages.conftest import kill_at, sweetrl

FOREIGN = [
    Task(
        f"mine-{n}",
        f"I want function {n}. The signature of the function is: def f(x)",
        f"def f(x):\n    return x + {n}",
    )
    for n in range(5)
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tasks: Callable[..., Path]) -> Path:
    """An empty folder that is no project, with two task files."""
    monkeypatch.chdir(tmp_path)
    tasks = [Task(**{**vars(task), "test_cases": (("test1", "f(1)"), ("test2", "f(5)"))}) for task in FOREIGN]
    write_tasks(Path("tasks.jsonl"), tasks)
    write_task_table(Path("synthetic.parquet"), generate("test", 4, seed=1))
    return tmp_path


def says(body: dict[str, Any]) -> str:
    return "I do not know."


def right(body: dict[str, Any]) -> str:
    """Ask once, then write what is right for the tasks with an even number."""
    if len(body["messages"]) < 4:
        return "What shall it add?"
    number = int(body["messages"][1]["content"].split(".")[0].rpartition(" ")[2])
    return f"I WANT TO ANSWER:\ndef f(x):\n    return x + {number if number % 2 == 0 else 99}"


def test_collect_writes_official_files_and_shards(fake_server: Any, here: Path) -> None:
    with fake_server(reply=right) as server, fake_server(reply=says) as users:
        far = ["--url", server.url, "--model", "mine", "--user-url", users.url, "--user-model", "theirs"]
        output = sweetrl("collect", "--tasks", "tasks.jsonl", "--out", "all.jsonl", "--attempts", 2, *far)
        sweetrl("collect", "--tasks", "tasks.jsonl", "--out", "shards", "--attempts", 2, "--limit", 3, *far)
        with pytest.raises(UserError, match=r"all\.jsonl: this is there already"):
            sweetrl("collect", "--tasks", "tasks.jsonl", "--out", "all.jsonl", *far)
    facts = dict(line.split("\t") for line in output.splitlines() if "\t" in line)
    assert (facts["agent"], facts["tasks"], facts["dialogues"]) == ("mine", "5", "10")
    assert facts["user"].startswith("llm:theirs@")  # the model, and a digest of its prompt
    assert (facts["success"], facts["share leaked"], facts["written"]) == ("0.6", "0", "all.jsonl")
    assert float(facts["prompt tokens"]) > 0 and float(facts["user prompt tokens"]) > 0
    dialogues = list(read_trajectories(Path("all.jsonl"), Backend()))
    assert [dialogue.attempt for dialogue in dialogues] == [0] * 5 + [1] * 5
    assert [dialogue.reward for dialogue in dialogues] == [1.0, 0.0, 1.0, 0.0, 1.0] * 2
    attempts = [(dialogue.task.id, dialogue.attempt) for dialogue in TrajectoryStore(Path("shards")).read()]
    assert attempts == [(f"mine-{n}", k) for n in range(3) for k in range(2)]
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []


def test_the_same_command_twice_at_a_time_loses_nothing(
    fake_server: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("params.yaml").write_text("collect: {shard: 2}\n")
    write = TrajectoryStore.write_shard
    with fake_server(reply=right) as server, fake_server(reply=says) as users:
        far = ["--url", server.url, "--model", "mine", "--user-url", users.url, "--user-model", "theirs"]
        words = ["collect", "--tasks", "tasks.jsonl", "--out", "all.jsonl", *far]
        with monkeypatch.context() as patch:
            kill_at(0, patch)
            assert CliRunner().invoke(app, words).exit_code == 130
        messages: list[str] = []

        def twice(store: TrajectoryStore, index: int, members: Any) -> None:
            messages.append(str(CliRunner().invoke(app, words).exception))
            write(store, index, members)

        with monkeypatch.context() as patch:
            patch.setattr(TrajectoryStore, "write_shard", twice)
            sweetrl(*words)
    assert messages and all("another process is at this very work; wait for it" in message for message in messages)
    assert len(Path("all.jsonl").read_text().splitlines()) == 5
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []


def test_evaluate_has_intervals_and_goes_on_after_a_failure(fake_server: Any, here: Path) -> None:
    words = ["evaluate", "--tasks", "tasks.jsonl", "--json", "numbers.json", "--url"]
    with fake_server(reply=right) as server, fake_server(reply=says) as users:
        more = ["--model", "mine", "--user-url", users.url, "--user-model", "theirs", "--concurrency", 1]
        server._chat, chat = (lambda body: chat(body) if server.requests < 7 else (418, {"error": "tea"})), server._chat
        with pytest.raises(UserError, match=r"2 of 5 dialogues are lost|1 of 5 dialogues are lost"):
            sweetrl(*words, server.url, *more)
        server._chat = chat
        before = server.requests
        output = sweetrl(*words, server.url, *more)
        assert server.requests - before == 2 * 2  # three of five were finished
    numbers = json.loads(Path("numbers.json").read_text())
    assert numbers["success"] == numbers["intervals"]["success"]["value"] == 0.6
    assert numbers["intervals"]["success"]["n"] == 5
    assert numbers["intervals"]["success"]["low"] < 0.6 < numbers["intervals"]["success"]["high"]
    assert (numbers["dialogues"], numbers["agent"], numbers["share_lost"]) == (5.0, "mine", 0.0)
    assert "success\t60.0% (" in output


def test_evaluate_takes_the_temperature_that_params_yaml_evaluates_at(fake_server: Any, here: Path) -> None:
    """`collect` samples at the agent's own, which makes attempts that differ."""
    Path("params.yaml").write_text("agent: {temperature: 0.7}\nevaluate: {temperature: 0.0}\n")
    asked: list[float] = []

    def notes(body: dict[str, Any]) -> str:
        asked.append(body["temperature"])
        return right(body)

    with fake_server(reply=notes) as server, fake_server(reply=says) as users:
        far = ["--url", server.url, "--model", "mine", "--user-url", users.url, "--user-model", "theirs"]
        output = sweetrl("evaluate", "--tasks", "tasks.jsonl", *far)
        assert set(asked) == {0.0} and "temperature\t0\n" in output
        asked.clear()
        sweetrl("evaluate", "--tasks", "tasks.jsonl", "--temperature", 0.5, *far)
        assert set(asked) == {0.5}
        asked.clear()
        sweetrl("collect", "--tasks", "tasks.jsonl", "--out", "all.jsonl", *far)
    assert set(asked) == {0.7}


def test_evaluate_at_several_temperatures(fake_server: Any, here: Path) -> None:
    def warm(body: dict[str, Any]) -> str:
        """Right at 0.5; without a word to the user at 0."""
        if body["temperature"] == 0.0:
            return "I WANT TO ANSWER:\ndef f(x):\n    return None"
        return right(body) if body["temperature"] == 0.5 else "What else?"

    words = ["evaluate", "--tasks", "tasks.jsonl", "--json", "numbers.json", "--out", "said", "--model", "mine"]
    each = [f"--temperature={temperature}" for temperature in (0, 0.5, 1.2, 0.5)]
    Path("params.yaml").write_text("agent: {max_turns: 3}\n")
    with fake_server(reply=warm) as server, fake_server(reply=says) as users:
        far = ["--url", server.url, "--user-url", users.url, "--user-model", "theirs", "--top-p", 0.9]
        output = sweetrl(*words, *each, *far)
        with pytest.raises(UserError, match=r"said: this is there already"):
            sweetrl(*words, *each, *far)
        with pytest.raises(UserError, match=r"said\.jsonl: a file holds the dialogues of one temperature"):
            sweetrl("evaluate", "--tasks", "tasks.jsonl", "--out", "said.jsonl", *each, *far)
    numbers = json.loads(Path("numbers.json").read_text())
    measured = [(row["temperature"], row["success"], row["questions"]) for row in numbers["temperatures"]]
    assert measured == [(0.0, 0.0, 0.0), (0.5, 0.6, 1.0), (1.2, 0.0, 2.0)]
    assert [row["success_per_question"] for row in numbers["temperatures"]] == [None, 0.6, 0.0]
    best = numbers["best"]
    assert best == numbers["temperatures"][1] and best.items() <= numbers.items()
    assert (best["top_p"], best["tasks"], best["turns"], best["agent"]) == (0.9, 5, 2.0, "mine")
    header, *rows = (line.split("\t") for line in output.splitlines() if "\t" in line)
    assert header == ["temperature", "success", "reward", "turns", "questions", "success per question"]
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        ("0", "1", "0", "-"),
        ("0.5", "2", "1", "0.6"),
        ("1.2", "3", "2", "0"),
    ]
    assert rows[1][1].startswith("60.0% (")
    folders = {path.name: len(TrajectoryStore(path)) for path in Path("said").iterdir()}
    assert folders == {"temperature-0": 5, "temperature-0.5": 5, "temperature-1.2": 5}
    assert best["written"] == "said/temperature-0.5"
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []


def test_several_temperatures_go_on_where_they_were(fake_server: Any, here: Path) -> None:
    words = ["evaluate", "--tasks", "tasks.jsonl", "--temperature", 0, "--temperature", 1, "--model", "mine"]
    with fake_server(reply=right) as server, fake_server(reply=says) as users:
        more = ["--url", server.url, "--user-url", users.url, "--user-model", "theirs", "--concurrency", 1]
        server._chat, chat = (lambda body: chat(body) if body["temperature"] == 0 else (418, {"tea": 1})), server._chat
        with pytest.raises(UserError, match="dialogues are lost"):
            sweetrl(*words, *more)
        server._chat = chat
        before = server.requests
        sweetrl(*words, *more)
        assert server.requests - before == 5 * 2  # nothing of the temperature that was finished


def test_a_model_in_this_process_and_the_scripted_user(here: Path, tiny_model: Path) -> None:
    Path("params.yaml").write_text("agent: {max_turns: 2, max_new_tokens: 8}\nmodel: {device: cpu, threads: 1}\n")
    output = sweetrl("evaluate", "--tasks", "synthetic.parquet", "--model", tiny_model, "--out", "said.jsonl")
    assert f"agent\t{tiny_model}\n" in output and "dialogues\t4\n" in output
    assert len(list(read_trajectories(Path("said.jsonl"), Backend()))) == 4
