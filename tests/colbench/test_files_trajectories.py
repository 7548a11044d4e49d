"""Official trajectory files: blocks of attempts, both ways, in constant memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.colbench.files import read_trajectories, write_trajectories
from sweetrl.colbench.scoring import PRICE, TASK
from sweetrl.errors import UserError
from sweetrl.types import AgentTurn, Message, Task, Trajectory

BACKEND = Backend()


def task(number: int) -> Task:
    return Task(f"task-{number}", f"Write f{number}.", f"def f{number}(): pass", (("test1", f"f{number}()"),))


def trajectory(number: int, attempt: int, **changes: Any) -> Trajectory:
    answer = f"\ndef f{number}(): return {attempt}"
    raw = f"I know. OUTPUT:I WANT TO ANSWER:{answer}"
    made = Trajectory(
        task=task(number),
        attempt=attempt,
        messages=(
            Message("user", f"Write f{number}."),
            Message("assistant", f"What {attempt}?"),
            Message("user", "I do not know."),
            Message("assistant", f"I WANT TO ANSWER:{answer}"),
        ),
        turns=(AgentTurn(1, f"What {attempt}?"), AgentTurn(3, raw)),
        answer=answer,
        reward=attempt / 4,
    )
    return replace(made, **changes)


def blocks(tasks: int, attempts: int) -> list[Trajectory]:
    return [trajectory(number, attempt) for attempt in range(attempts) for number in range(tasks)]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(read_trajectories(path, BACKEND))
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and message.endswith(".")
    return message


def test_the_official_rows_in_contiguous_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    assert write_trajectories(path, blocks(3, 2), 2) == 6
    written = rows(path)
    assert [row["task"]["problem_description"] for row in written] == ["Write f0.", "Write f1.", "Write f2."] * 2
    assert set(written[0]) == {"task", "dialogue_history", "answer", "reward"}
    history = written[4]["dialogue_history"]
    assert [set(message) for message in history] == [{"role", "content"}, {"role", "content", "input", "output"}] * 2
    assert history[1]["input"] == "user: Write f1.\n\nassistant:"
    assert history[3]["output"] == "I know. OUTPUT:I WANT TO ANSWER:\ndef f1(): return 1"
    assert history[3]["content"] == "I WANT TO ANSWER:\ndef f1(): return 1"


def test_task_by_task_gives_the_same_file_as_block_by_block(tmp_path: Path) -> None:
    by_task = [trajectory(number, attempt) for number in range(4) for attempt in range(3)]
    write_trajectories(tmp_path / "a.jsonl", by_task, 3)
    write_trajectories(tmp_path / "b.jsonl", blocks(4, 3), 3)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_input_comes_from_the_formatter_and_is_ignored_on_the_way_back(tmp_path: Path) -> None:
    path, seen = tmp_path / "t.jsonl", []

    def form(messages: Sequence[Message]) -> str:
        seen.append([message.role for message in messages])
        return "<|begin|>"

    write_trajectories(path, [trajectory(0, 0)], 1, form)
    assert seen == [["user"], ["user", "assistant", "user"]]
    assert rows(path)[0]["dialogue_history"][1]["input"] == "<|begin|>"
    row = rows(path)[0]
    row["dialogue_history"][1]["input"] = {"not": "even a string"}
    path.write_text(json.dumps(row))
    assert list(read_trajectories(path, BACKEND)) == [trajectory(0, 0)]


def test_tasks_without_ids_are_named_by_their_place_in_the_block(tmp_path: Path) -> None:
    path = tmp_path / "real.jsonl"
    write_trajectories(path, blocks(2, 2), 2)
    official = rows(path)
    for row in official:
        del row["task"]["id"], row["reward"]
        for message in row["dialogue_history"]:
            message.pop("input", None), message.pop("output", None)
    path.write_text("\n".join(map(json.dumps, official)))
    read = list(read_trajectories(path, BACKEND))
    assert [(dialogue.task.id, dialogue.attempt) for dialogue in read] == [
        ("real-00000", 0), ("real-00001", 0), ("real-00000", 1), ("real-00001", 1),
    ]  # fmt: skip
    assert read[0].reward is None and read[0].turns[1] == AgentTurn(3, read[0].messages[3].content)


def test_how_it_ended_is_read_off_the_last_message(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    silent = trajectory(0, 0, answer="def f0(): ...", outcome="max_turns_reached")
    silent = replace(silent, messages=(*silent.messages[:3], Message("assistant", "def f0(): ...")))
    silent = replace(silent, turns=(silent.turns[0], AgentTurn(3, "def f0(): ...")))
    lost = trajectory(1, 0, answer=None, reward=None, outcome="lost")
    lost = replace(lost, messages=lost.messages[:3], turns=lost.turns[:1])
    write_trajectories(path, [silent, lost], 1)
    assert rows(path)[1]["answer"] == "No answer"
    assert list(read_trajectories(path, BACKEND)) == [silent, lost]


def test_success_is_written_where_the_reward_does_not_imply_it(tmp_path: Path) -> None:
    """As with a reward of one's own, also where its questions have a price (`reward.turn_cost`)."""
    path = tmp_path / "t.jsonl"
    verdicts = [(0.9, True), (1.0, False), (1.0, True), (0.5, False), (1.0, None)]
    given = [trajectory(number, 0, reward=reward, solved=solved) for number, (reward, solved) in enumerate(verdicts)]
    given.append(trajectory(5, 0, reward=0.75, solved=False, parts={TASK: 1.0, PRICE: -0.25}))
    write_trajectories(path, given, 1)
    assert [row.get("solved") for row in rows(path)] == [True, False, None, None, None, False]
    for attempts in (given, list(read_trajectories(path, BACKEND))):
        assert [attempt.success for attempt in attempts] == [True, False, True, False, True, False]
    path.write_text(json.dumps(rows(path)[0] | {"solved": "yes"}))
    assert "`solved` must be a valid boolean" in complaint(path)


def test_an_attempt_that_is_missing_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    swapped = [trajectory(0, 0), trajectory(1, 0), trajectory(1, 1), trajectory(0, 1)]
    for attempts in (blocks(3, 2)[:-1], swapped, [*blocks(3, 2), trajectory(0, 1)]):
        with pytest.raises(UserError, match=r"attempt 2 was not made at the tasks of attempt 1, in their order"):
            write_trajectories(path, attempts, 2)
    with pytest.raises(UserError, match=r"task 'task-0' has an attempt 2, but k is 1"):
        write_trajectories(path, blocks(3, 2), 1)
    with pytest.raises(UserError, match=r"cannot write k = 0"):
        write_trajectories(path, [], 0)
    assert list(tmp_path.iterdir()) == []


# Bad rows


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"task": {}}, "task: the key `problem_description` is missing"),
        ({"dialogue_history": []}, "`dialogue_history` list should have at least 1 item"),
        ({"dialogue_history": ["hi"]}, "`dialogue_history[0]` must be a valid dictionary"),
        (
            {"dialogue_history": [{"role": "assistant", "content": "hi"}]},
            "dialogue_history[0]: expected the user's turn, found role 'assistant'",
        ),
        (
            {"dialogue_history": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
            "dialogue_history[1]: expected the assistant's turn, found role 'user'",
        ),
        ({"reward": 1.5}, "`reward` is 1.5, outside 0 to 1 (tests passed)"),
        ({"reward": True}, "`reward` must be a valid number"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [trajectory(0, 0)], 1)
    path.write_text(json.dumps({**rows(path)[0], **change}))
    assert f"line 1: {fault}" in complaint(path)


# Any dialogue, any k


@st.composite
def dialogues(draw: st.DrawFn, number: int, attempt: int) -> Trajectory:
    texts = draw(st.lists(st.text(), min_size=1, max_size=7))
    messages = tuple(Message("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(texts))
    raw = [AgentTurn(index, draw(st.text())) for index in range(1, len(texts), 2)]
    lost = len(texts) % 2 == 1
    return Trajectory(
        task=task(number),
        attempt=attempt,
        messages=messages,
        turns=tuple(raw),
        answer=None if lost else draw(st.text()),
        reward=draw(st.none() | st.floats(0, 1)),
        outcome="lost" if lost else "answered" if "I WANT TO ANSWER:" in texts[-1] else "max_turns_reached",
    )


@given(data=st.data(), tasks=st.integers(1, 4), attempts=st.integers(1, 4))
def test_any_dialogue_survives(
    data: st.DataObject, tasks: int, attempts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("files") / "t.jsonl"
    given = [data.draw(dialogues(number, attempt)) for attempt in range(attempts) for number in range(tasks)]
    assert write_trajectories(path, given, attempts) == len(given)
    assert list(read_trajectories(path, BACKEND)) == given


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    rows_of_100_kb, attempts = 150, 3

    def many():  # type: ignore[no-untyped-def]
        for number in range(rows_of_100_kb // attempts):
            for attempt in range(attempts):
                yield trajectory(number, attempt, answer="x" * 100_000)

    tracemalloc.start()
    try:
        write_trajectories(path, many(), attempts)
        assert sum(1 for _ in read_trajectories(path, BACKEND)) == rows_of_100_kb
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 15_000_000
    assert peak < 3_000_000
