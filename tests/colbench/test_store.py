"""The project's own Parquet files: exact, repeatable, and clear about damage."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.colbench.store import TrajectoryStore, read_task_table, write_task_table
from sweetrl.errors import UserError
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory

TASK = Task("a", "Write f.", "def f(): pass", (("test1", "f()"),), hidden_information=None)
FULL = Trajectory(
    task=TASK,
    attempt=3,
    messages=(
        Message("user", "Write f."),
        Message("assistant", " shown"),
        Message("user", "ok"),
        Message("assistant", ""),
    ),
    turns=(
        AgentTurn(1, "thought OUTPUT: shown", (5, 0, 70_000), (-0.1, -1e-300, -math.inf), "length", 0, (7, 8)),
        AgentTurn(3, "", (2,), (math.log(0.3),), "stop", 4, (70_001,)),
    ),
    answer="",
    reward=0.1,
    tests=(TestResult("test1", True, "equal"), TestResult("test2", False, "error", "é\x00")),
    outcome="max_turns_reached",
    seed=2**63 - 1,
    policy="base",
    simulator="scripted",
    error="none",
    extra={"b": "2", "a": ""},
    parts={"tests": 0.5, "brevity": -0.4},
    solved=False,
)
BARE = Trajectory(TASK, 0, (Message("user", ""),), outcome="lost")


def test_equal_trajectories_give_equal_bytes(tmp_path: Path) -> None:
    reordered = replace(FULL, extra={"a": "", "b": "2"}, parts={"brevity": -0.4, "tests": 0.5})
    first = TrajectoryStore(tmp_path / "a").write_shard(0, [FULL, BARE] * 50)
    second = TrajectoryStore(tmp_path / "b").write_shard(0, [reordered, BARE] * 50)
    assert first.read_bytes() == second.read_bytes()
    write_task_table(tmp_path / "a.parquet", [TASK])
    write_task_table(tmp_path / "b.parquet", iter([TASK]))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_shard_is_replaced_whole_and_other_files_are_not_shards(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    assert store.shards() == {}
    store.write_shard(0, [FULL])
    store.write_shard(0, [BARE])
    (tmp_path / ".shard-00001.parquet.x.part").write_text("half")
    (tmp_path / "notes.txt").write_text("")
    assert list(store.read()) == [BARE] and list(store.shards()) == [0]


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    for name in (".shard-00001.parquet.x.part", ".shard-00002.parquet.y.part"):
        (tmp_path / name).write_text("half")
    store.write_shard(1, [BARE])
    # Another shard's may be under way.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".shard-00002.parquet.y.part", "shard-00001.parquet"]


def test_a_store_is_a_sequence(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    store.write_shard(0, [FULL, BARE])
    store.write_shard(1, [])
    store.write_shard(2, [replace(BARE, attempt=5)])
    assert len(store) == 3 and list(store) == [FULL, BARE, replace(BARE, attempt=5)]
    assert [store[index] for index in (0, 1, 2, -1, -3)] == [FULL, BARE, store[2], store[2], FULL]
    assert store[2].attempt == 5
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"there is no trajectory {index}, only 3"):
            store[index]


def test_a_temporary_store_goes_with_its_last_holder() -> None:
    store = TrajectoryStore.temporary()
    path = store.write_shard(0, [BARE])
    assert list(store) == [BARE]
    del store
    gc.collect()
    assert not path.parent.parent.exists()


def complaint(action, *arguments) -> str:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError) as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "none")
    assert "there are no trajectories here" in complaint(list, store.read())
    store.write_shard(0, [BARE])
    store.write_shard(2, [BARE])
    assert "shard 1 is missing" in complaint(list, store.read())
    assert "there is no such file" in complaint(read_task_table, tmp_path / "none.parquet")


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    path = store.write_shard(0, [FULL] * 100)
    complete = path.read_bytes()
    path.write_bytes(complete[: len(complete) // 2])
    assert f"{path}: this is no complete Parquet file" in complaint(list, store.read())
    path.write_bytes(complete[:4] + b"\xff" * (len(complete) // 2) + complete[4 + len(complete) // 2 :])
    assert str(path) in complaint(list, store.read())
    path.write_bytes(b"")
    assert "no complete Parquet file" in complaint(len, store)


def test_a_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    pq.write_table(pa.table({"id": ["a"]}), path)
    assert "expected the format tasks/1, found no format of this project" in complaint(read_task_table, path)
    shard = TrajectoryStore(tmp_path).write_shard(0, [BARE])
    assert "expected the format tasks/1, found trajectories/2" in complaint(read_task_table, shard)
    write_task_table(path, [])
    assert "holds no tasks" in complaint(read_task_table, path)
    for form in ("trajectories/1", "tasks/1"):
        pq.write_table(pq.read_table(shard).replace_schema_metadata({"sweetrl.format": form}), shard)
        message = f"{shard}: expected the format trajectories/2, found {form}; run the stage that writes it again."
        assert complaint(list, TrajectoryStore(tmp_path).read()) == complaint(len, TrajectoryStore(tmp_path)) == message


NAMES = st.text(max_size=8)
TASKS = st.builds(
    Task,
    id=NAMES,
    problem_description=NAMES,
    ground_truth=NAMES,
    test_cases=st.lists(st.tuples(NAMES, NAMES), max_size=3).map(tuple),
    hidden_information=st.none() | NAMES,
    suite=st.sampled_from(["backend", "frontend"]),
)


@given(tasks=st.lists(TASKS, min_size=1, max_size=4))
def test_any_task_survives(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("table") / "t.parquet"
    write_task_table(path, tasks)
    assert read_task_table(path) == tasks


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    messages = draw(st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), NAMES), min_size=1, max_size=4))
    ids = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
    logs = st.lists(st.floats(max_value=0, allow_nan=False), max_size=3).map(tuple)
    turn = st.builds(
        AgentTurn, st.integers(0, len(messages) - 1), NAMES, ids, logs, st.sampled_from(["stop", "length"])
    )
    return Trajectory(
        task=draw(TASKS),
        attempt=draw(st.integers(0, 99)),
        messages=tuple(messages),
        turns=tuple(draw(st.lists(turn, max_size=3))),
        answer=draw(st.none() | NAMES),
        reward=draw(st.none() | st.floats(0, 1)),
        tests=tuple(draw(st.lists(st.builds(TestResult, NAMES, st.booleans(), NAMES, NAMES), max_size=3))),
        outcome=draw(st.sampled_from(["answered", "max_turns_reached", "user_left", "lost"])),
        seed=draw(st.integers(0, 2**63 - 1)),
        policy=draw(NAMES),
        simulator=draw(NAMES),
        error=draw(NAMES),
        extra=draw(st.dictionaries(NAMES, NAMES, max_size=2)),
        parts=draw(st.dictionaries(NAMES, st.floats(allow_nan=False), max_size=2)),
        solved=draw(st.none() | st.booleans()),
    )


@given(given=st.lists(trajectories(), max_size=3))
def test_any_trajectory_survives(given: list[Trajectory], tmp_path_factory: pytest.TempPathFactory) -> None:
    store = TrajectoryStore(tmp_path_factory.mktemp("store"))
    store.write_shard(0, given)
    assert list(store.read()) == given
