"""From files to a batch: what is taken, what is put aside and why, and that no row is taken twice or lost."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweetrl.colbench.files import named_by_content
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.ingest import batches, checks
from sweetrl.ingest.batches import Made, State, checks_of, kind_of, make_batch
from sweetrl.ingest.sources import Changed, Folder
from sweetrl.stages.import_dialogues import Importer
from sweetrl.types import Task, Trajectory
from tests.ingest.made import chat, check_plainly, write


class Intake:
    """A source, a state and the batches so far, as tasks/ingestion.py would keep them."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root, self.source = root, root / "in"
        self.source.mkdir(exist_ok=True)
        self.state, self.made = State(root / "state"), list[Made]()
        self.settings = parse_settings({"method": "rft", "ingest": settings, "tasks": {"validation": 1}})

    def set(self, **sections: dict[str, Any]) -> None:
        tree = self.settings.model_dump(mode="json", by_alias=True)
        self.settings = parse_settings({**tree, **{name: {**tree[name], **some} for name, some in sections.items()}})

    def folder(self, batch: str) -> Path:
        return self.root / "batches" / batch

    def take(self, again: bool = False) -> Made | None:
        number = f"{len(self.made) + 1:06d}"
        made = make_batch(
            self.settings,
            Folder(self.source),
            self.state,
            number,
            self.folder(f"{self.settings.ingest.kind}-{number}"),
            lambda: checks_of(self.settings, self.root, self.root / "docs"),
            self.earlier,
            again,
        )
        if made is not None:
            self.made.append(made)
        return made

    def earlier(self) -> list[Path]:
        last = next((batch for batch in reversed(self.made) if batch.batch), None)
        return [] if last is None else [self.folder(last.batch) / f"{name}.jsonl" for name in last.holds]

    def rows(self, batch: str, name: str = "") -> list[Any]:
        lines = (self.folder(batch) / f"{name or batch}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def aside(self, number: str) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self.state.folder / f"quarantine/{number}.jsonl").read_text().splitlines()
        ]


@pytest.fixture
def intake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Intake:
    monkeypatch.setattr(checks, "run_tables", check_plainly)
    return Intake(tmp_path)


def test_new_files_become_a_batch_once(intake: Intake) -> None:
    write(intake.source / "a.jsonl", chat(1), chat(2))
    write(intake.source / "deep/b.jsonl", chat(3))
    made = intake.take()
    assert made is not None and (made.batch, made.files, made.rows, made.bad) == ("dialogues-000001", 2, 3, 0)
    assert made.holds == ("dialogues-000001",) and made.lacks == ""
    assert intake.rows(made.batch) == [chat(1), chat(2), chat(3)], "rows are as they came"
    assert intake.take() is None
    # The same rows under another name, and a file that has grown, bring only what is new.
    write(intake.source / "copy.jsonl", chat(2))
    write(intake.source / "a.jsonl", chat(1), chat(2), chat(4))
    made = intake.take()
    assert made is not None and (made.rows, made.repeated, made.files) == (1, 3, 2)
    assert intake.rows("dialogues-000002") == [chat(4)]
    assert intake.rows("dialogues-000002", "dialogues-000001") == [chat(1), chat(2), chat(3)]


def test_bad_rows_are_put_aside_with_file_row_and_reason(intake: Intake) -> None:
    deep = "[" * 70 + "]" * 70
    write(
        intake.source / "a.jsonl",
        chat(1),
        "{no json",
        b'{"text": "\xff\xfe"}',
        chat(2, metadata={"deep": json.loads(deep)}),
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        chat(3, messages=[]),
        chat(4, reward=7),
        chat(5, metadata={"long": "x" * 7 * 2**20}),
        chat(6, task_id="one"),
        chat(7, task_id="one"),
        "",
        chat(8, outcome="maybe"),
    )
    made = intake.take()
    assert made is not None and (made.rows, made.bad) == (3, 8)
    assert intake.rows(made.batch) == [chat(1), chat(6, task_id="one"), chat(7, task_id="one")]
    aside = {row["line"]: row for row in intake.aside("000001")}
    assert {row["file"] for row in aside.values()} == {"a.jsonl"}
    for line, words in {
        2: "this is not JSON",
        3: "is not UTF-8",
        4: "more than 64 levels",
        5: "this is not JSON",
        6: "`messages` needs a request",
        7: "outside 0 to 1",
        8: "the row has more than 6 MiB",
        12: "`outcome` must be 'success' or 'failure'",
    }.items():
        assert words in aside[line]["why"], aside[line]["why"]
    assert aside[2]["row"] == "{no json", "kept as it came"
    assert base64.b64decode(aside[3]["base64"]) == b'{"text": "\xff\xfe"}'
    assert json.loads(aside[7]["row"]) == chat(4, reward=7)


def test_rows_that_break_an_expectation_are_put_aside(intake: Intake) -> None:
    program = "def price(hours):\n    total = hours * 7919 + 42\n    return round(total, 2)"
    turns = [{"role": "assistant", "content": "How?"}, {"role": "user", "content": f"Like this: {program}"}]
    leaky = chat(1, reference=program)
    leaky["messages"][1:1] = turns
    write(intake.source / "a.jsonl", leaky, chat(2))
    made = intake.take()
    assert made is not None and (made.rows, made.bad) == (1, 1)
    (aside,) = intake.aside("000001")
    assert aside["line"] == 1 and aside["why"].startswith("expectation leak: nothing the actor sees may hold")


def test_only_dialogues_with_consent_are_taken_and_others_are_kept_nowhere(intake: Intake) -> None:
    without = chat(2)
    del without["consent"]
    words = "words of somebody who has not agreed"
    no = chat(3, consent=False, metadata={"note": words})
    write(
        intake.source / "a.jsonl", chat(1), without, no, chat(4, consent="yes"), chat(5, consent=1), {"consent": None}
    )
    made = intake.take()
    assert made is not None and (made.rows, made.without_consent, made.bad) == (1, 5, 0)
    kept = [path for path in intake.root.rglob("*") if path.is_file() and intake.source not in path.parents]
    assert not any(words.encode() in path.read_bytes() for path in kept)


def test_files_over_the_limits_wait_or_are_named(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "FILES", 2)
    intake.set(ingest={"file_mib": 1})
    write(intake.source / "0.jsonl", "x" * 2**20)
    for number in range(1, 4):
        write(intake.source / f"{number}.jsonl", chat(number))
    write(intake.source / "4\u202e.jsonl", chat(4))
    made = intake.take()
    assert made is not None and (made.files, made.rows, made.bad, made.later) == (2, 1, 1, 3)
    assert intake.aside("000001") == [
        {
            "file": "0.jsonl",
            "line": None,
            "why": "it is larger than 1 MiB (ingest.file_mib); it was not read and is where it was",
        }
    ]
    made = intake.take()
    assert made is not None and (made.rows, made.later) == (2, 1)
    made = intake.take()
    assert made is not None and (made.batch, made.bad) == ("", 1)
    assert not intake.folder("dialogues-000003").exists(), "nothing was taken, so there is no batch"
    assert "signs not shown" in intake.aside("000003")[0]["why"]
    assert intake.take() is None
    raw = (intake.state.folder / "seen/000003.jsonl").read_bytes()
    assert raw.isascii(), "names of others steer no terminal"


def test_as_much_as_fits_is_taken_at_a_time(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "TOTAL", 2**20)
    for number in range(3):
        write(intake.source / f"{number}.jsonl", chat(number, metadata={"long": "x" * 600_000}))
    taken = [intake.take() for _ in range(4)]
    assert [made and (made.rows, made.later) for made in taken] == [(1, 2), (1, 1), (1, 0), None]


def in_two_turns() -> dict[str, Any]:
    """A dialogue in which the agent asks before it answers."""
    row = chat(2)
    row["messages"][1:1] = [{"role": "assistant", "content": "Why?"}, {"role": "user", "content": "So."}]
    return row


def test_bad_files_can_be_looked_at_again(intake: Intake) -> None:
    intake.set(agent={"max_turns": 1})
    write(intake.source / "a.jsonl", chat(1), in_two_turns())
    assert (first := intake.take()) is not None and (first.rows, first.bad) == (1, 1)
    intake.set(agent={"max_turns": 2})
    assert intake.take() is None
    made = intake.take(again=True)
    assert made is not None and (made.rows, made.repeated, made.bad) == (1, 1, 0)
    assert intake.take(again=True) is None


def test_each_file_with_something_bad_has_its_turn_to_be_looked_at_again(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FILES", 1)
    for name in "ab":
        (intake.source / f"{name}.jsonl").write_text("bad\n")
    for again in (False, False, True, True, True):
        intake.take(again=again)
    (intake.source / "z.jsonl").write_text("bad\n")
    intake.take(again=True)
    looked = [json.loads(path.read_text())["name"] for path in sorted((intake.state.folder / "seen").iterdir())]
    assert looked == ["a.jsonl", "b.jsonl", "a.jsonl", "b.jsonl", "a.jsonl", "z.jsonl"], "new ones go first"


def test_a_file_of_bad_rows_is_put_aside_as_a_whole_and_others_are_taken(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BAD_ROWS", 3)
    monkeypatch.setattr(batches, "MOST_BAD", 3)
    write(intake.source / "a.jsonl", chat(1))
    lines = [json.dumps(chat(1)), json.dumps(chat(2)), *["bad"] * 4, json.dumps(chat(3))]
    (intake.source / "b.jsonl").write_text("\n".join(lines))
    (intake.source / "c.jsonl").write_text("\n".join([json.dumps(chat(2)), *["bad"] * 3]))
    write(intake.source / "d.jsonl", chat(4))
    made = intake.take()
    assert made is not None and (made.rows, made.files, made.bad, made.later) == (2, 3, 4, 1)
    assert [row["line"] for row in intake.aside("000001")] == [None, 2, 3, 4]
    assert "more than 3 of its rows are bad" in intake.aside("000001")[0]["why"]
    assert len(intake.rows(made.batch)) == 2, "that of a.jsonl, and that of c.jsonl, which b.jsonl had, too"
    assert (made := intake.take()) is not None and (made.rows, made.later) == (1, 0)


def test_a_window_holds_the_newest_batches(intake: Intake) -> None:
    intake.set(ingest={"window": 2})
    holds = []
    for number in range(1, 4):
        write(intake.source / f"{number}.jsonl", chat(number))
        made = intake.take()
        assert made is not None
        holds.append(made.holds)
    assert holds == [
        ("dialogues-000001",),
        ("dialogues-000001", "dialogues-000002"),
        ("dialogues-000002", "dialogues-000003"),
    ]
    assert sorted(path.name for path in intake.folder("dialogues-000003").iterdir()) == [
        "dialogues-000002.jsonl",
        "dialogues-000003.jsonl",
    ]


def test_what_older_rows_may_no_longer_be_is_put_aside_too(intake: Intake) -> None:
    write(intake.source / "a.jsonl", in_two_turns())
    assert (made := intake.take()) is not None and made.rows == 1
    intake.set(agent={"max_turns": 1})
    write(intake.source / "b.jsonl", chat(3))
    made = intake.take()
    assert made is not None and (made.rows, made.bad) == (1, 1)
    (aside,) = intake.aside("000002")
    assert aside["file"] == "batch dialogues-000001" and "raise agent.max_turns" in aside["why"]
    assert not (intake.folder("dialogues-000002") / "dialogues-000001.jsonl").exists()


def test_a_batch_says_what_training_on_it_would_lack(intake: Intake) -> None:
    write(intake.source / "a.jsonl", chat(1, reward=0.0))
    made = intake.take()
    assert made is not None and made.rows == 1 and "rft.min_reward" in made.lacks
    write(intake.source / "b.jsonl", chat(2))
    made = intake.take()
    assert made is not None and made.lacks == "" and len(made.holds) == 2


def test_a_file_that_changed_meanwhile_is_seen_the_next_time(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(intake.source / "a.jsonl", chat(1))
    write(intake.source / "b.jsonl", chat(2))
    fetch = Folder.fetch

    def busy(self: Folder, entry: Any, target: Path, limit: int) -> None:
        if entry.name == "a.jsonl":
            raise Changed
        fetch(self, entry, target, limit)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "fetch", busy)
        made = intake.take()
    assert made is not None and (made.rows, made.files, made.later) == (1, 1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "fetch", busy)
        assert intake.take() is None and not intake.folder("dialogues-000002").exists()
    made = intake.take()
    assert made is not None and intake.rows(made.batch) == [chat(1)]


def test_dialogues_about_held_out_tasks_are_put_aside(intake: Intake) -> None:
    from sweetrl.colbench.store import write_task_table
    from sweetrl.types import Task

    held = Task("t", chat(2)["messages"][0]["content"], "def add(x): return x + 2", suite="backend")
    write_task_table(intake.root / "data/tasks/test.parquet", [held])
    write(intake.source / "a.jsonl", chat(1), chat(2))
    made = intake.take()
    assert made is not None and (made.rows, made.bad) == (1, 1)
    assert "nothing may be learnt from what is measured on" in intake.aside("000001")[0]["why"]


def task(number: int, **values: Any) -> dict[str, Any]:
    program = f"def add(x): return x + {number}"
    facts = {
        "problem_description": f"Add {number}: def add(x):",
        "ground_truth": program,
        "test_cases": {"t": "add(1)"},
    }
    return facts | values


def test_task_files_become_files_to_train_and_test_on(intake: Intake) -> None:
    write(intake.root / "test.jsonl", task(99))
    intake.set(ingest={"kind": "tasks"})
    with pytest.raises(UserError, match=r"needs `tasks.source: files`"):
        write(intake.source / "a.jsonl", task(1))
        intake.take()
    intake.set(tasks={"source": "files", "train_file": "none", "test_file": "test.jsonl"})
    write(intake.source / "a.jsonl", task(1), task(2, id="two"), task(99), task(3, ground_truth=7))
    made = intake.take()
    assert made is not None and (made.batch, made.rows, made.bad, made.lacks) == ("tasks-000001", 2, 2, "")
    drawn = "import random\ndef add(x): return x + random.random()"
    weak = {"t": "add(0)"}
    new = [task(4, id="two"), task(4, id="two", test_cases={"t": "add(4)"}), task(6)]
    old = [task(1), task(1, id="three"), task(2, test_cases=weak), task(5, ground_truth=drawn)]
    write(intake.source / "b.jsonl", *new, *old)
    made = intake.take()
    assert made is not None and (made.rows, made.repeated, made.bad) == (3, 1, 3)
    train = intake.rows("tasks-000002", "train")
    assert [row | {"id": ""} for row in train] == [row | {"id": ""} for row in (*new, task(1), task(2))], "newest first"
    assert [row["id"][:4] for row in train] == ["two-", "two-", "task", "task", "two-"]
    assert len({row["id"] for row in train}) == 5, "tasks of one name are told apart by their content"
    reasons = [row["why"] for row in intake.aside("000002")]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "the same task is there already", checks.HELD_OUT, "its reference gives `add(1)` another value each time"
    ]  # fmt: skip
    assert intake.rows("tasks-000002", "test") == [task(99)]


OURS = {"task_id": "order", "reference": "def add(x): return x + 1"}
NAMED = named_by_content(Task("order", chat(1)["messages"][0]["content"], OURS["reference"])).id
ROWS = st.fixed_dictionaries(
    {"number": st.integers(1, 3)},
    optional={
        "task_id": st.sampled_from(["order", "task", NAMED, "dialogues-000001-00000", "test-1", "!"]),
        "reference": st.sampled_from([OURS["reference"], "def add(x): return 0", ""]),
        "reward": st.sampled_from([0.0, 1.0]),
        "metadata": st.just({"note": "another dialogue"}),
    },
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(ROWS, max_size=6), after=st.lists(ROWS, max_size=6), at_once=st.booleans())
def test_no_row_silences_a_task_or_chooses_its_reference(
    before: list[dict[str, Any]], after: list[dict[str, Any]], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever rows others put in front of ours and behind them, ours are taken, and are at the task that they say."""
    monkeypatch.setattr(checks, "run_tables", check_plainly)
    own = [chat(1, **OURS, metadata={"n": n}) for n in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        intake = Intake(Path(folder))
        intake.set(validate={"duplicate_share": 1.0})
        for name, rows in (("!", [chat(**row) for row in before]), ("m", own), ("z", [chat(**row) for row in after])):
            write(intake.source / f"{name}.jsonl", *rows)
            if not at_once:
                intake.take()
        if at_once:
            intake.take()
        assert all(made.bad == 0 for made in intake.made)
        last = intake.folder(next(made.batch for made in reversed(intake.made) if made.batch))
        dialogues = [dialogue for _, dialogue in Importer(load_domain(intake.settings), sorted(last.iterdir())).rows()]
    tasks = [dialogue.task for dialogue in dialogues if isinstance(dialogue, Trajectory)]
    assert len(tasks) == len(dialogues) >= 3 and sum(task.id == NAMED for task in tasks) >= 3
    assert len({task.id for task in tasks}) == len(set(tasks)), "an id has one content"
    assert {task.ground_truth for task in tasks if task.id == NAMED} == {OURS["reference"]}


@pytest.mark.parametrize("name", ["!{}", "{}", "!/{}", "!{}/0", "ours/!{}", "ours/{}/0"])
@pytest.mark.parametrize("folder", ["", "ours/"])
def test_no_names_and_no_number_of_new_files_keep_others_out(
    intake: Intake, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    monkeypatch.setattr(batches, "FILES", 3)

    def flood(first: int, count: int) -> None:
        for number in range(first, first + count):
            os.utime(write(intake.source / f"{name.format(number)}.jsonl", chat(number)), (0, 0))

    flood(10, 6)
    write(intake.source / f"{folder}served.jsonl", chat(1))
    for turn in range(4):
        flood(100 + 10 * turn, 6)
        made = intake.take()
        assert made is not None and made.files == 3
        if chat(1) in intake.rows(made.batch):
            break
    assert turn < 3


def test_batches_names_say_their_kind() -> None:
    assert (kind_of("dialogues-000007"), kind_of("tasks-1")) == ("dialogues", "tasks")
    with pytest.raises(UserError, match="no batch's name"):
        kind_of("../x")
