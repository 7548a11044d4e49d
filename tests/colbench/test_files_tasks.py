"""Official task files: what is read, the row of a task, and how a bad row is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.colbench.files import read_tasks, task_row
from sweetrl.errors import UserError
from sweetrl.frontend import Frontend
from sweetrl.types import Task

ROW: dict[str, Any] = {
    "problem_description": "Write it. The signature of the function is: def f(x)",
    "ground_truth": "def f(x):\n    return x",
    "test_cases": {"test1": "f(1)", "test2": "f('\u2028')"},
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(read_tasks(path, Backend()))
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and message.endswith(".")
    return message


def test_reads_the_official_fields_in_file_order(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", ROW, "", {**ROW, "hidden_information": "h", "id": "own", "idx": [1]})
    first, second = read_tasks(path, Backend())
    assert first == Task(
        id="some-00000",
        problem_description=ROW["problem_description"],
        ground_truth=ROW["ground_truth"],
        test_cases=(("test1", "f(1)"), ("test2", "f('\u2028')")),
    )
    assert (second.id, second.hidden_information) == ("own", "h")


def test_lines_end_at_line_feeds_only_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    text = json.dumps({**ROW, "ground_truth": "a\u2028b\x85c"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n" + json.dumps(ROW).encode())
    assert [task.ground_truth for task in read_tasks(path, Backend())] == ["a\u2028b\x85c", ROW["ground_truth"]]


def test_a_page_needs_no_unit_tests(tmp_path: Path) -> None:
    path = write(tmp_path / "pages.jsonl", {"problem_description": "a page", "ground_truth": "<html>"})
    (task,) = read_tasks(path, Frontend())
    assert (task.suite, task.test_cases) == ("frontend", ())
    assert "test_cases" not in task_row(task)
    assert "`test_cases` is missing" in complaint(path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"test_cases": {"test1": 1.5}}, "`test_cases.test1` must be a valid string"),
        ({"hidden_infromation": "h"}, "the key `hidden_infromation` is not known; call it `hidden_information`"),
        ({"id": ""}, "`id` string should have at least 1 character"),
    ],
)
def test_a_wrong_type_is_named(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    assert f"line 1: {fault}" in complaint(write(tmp_path / "t.jsonl", {**ROW, **change}))


def test_a_test_name_twice_is_refused_where_json_would_keep_the_last(tmp_path: Path) -> None:
    row = json.dumps(ROW).replace("test2", "test1")
    assert "the key `test1` is there twice" in complaint(write(tmp_path / "t.jsonl", row))


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n" + '{"é": 1}'.encode("latin-1"))
    assert "line 2: byte 3 is not UTF-8" in complaint(path)
    path.write_bytes(json.dumps(ROW).encode("utf-16"))
    assert "line 1: byte 1 is not UTF-8" in complaint(path)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[1]", "expected one JSON object a line"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": ' + "9" * 5000 + "}", "this is not JSON"),
        ("[" * 200_000, "this is not JSON"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"a": 1} {"b": 2}', "Extra data"),
    ],
)
def test_what_is_no_object_is_refused(tmp_path: Path, line: str, fault: str) -> None:
    assert fault in complaint(write(tmp_path / "t.jsonl", line))


def test_a_whole_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", json.dumps({**ROW, "ground_truth": "\U0001f600"}))
    assert [task.ground_truth for task in read_tasks(path, Backend())] == ["\U0001f600"]


TASKS = st.builds(
    Task,
    id=st.text(min_size=1),
    problem_description=st.text(),
    ground_truth=st.text(),
    test_cases=st.dictionaries(st.text(), st.text().map(lambda text: f"f({text!r})"), min_size=1, max_size=4).map(
        lambda calls: tuple(calls.items())
    ),
    hidden_information=st.none() | st.text(),
)


@given(tasks=st.lists(TASKS, min_size=1, max_size=5, unique_by=lambda task: task.id))
def test_rows_of_tasks_are_read_as_the_tasks(
    tasks: list[Task], write_tasks: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_tasks(tmp_path_factory.mktemp("tasks") / "t.jsonl", tasks)
    assert list(read_tasks(path, Backend())) == tasks
