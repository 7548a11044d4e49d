"""`sweetrl import`: files in, shards out; unequal attempts, bad rows, held-out tasks, rewards."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl import plugins
from sweetrl.backend.suite import generate
from sweetrl.colbench.files import named_by_content, trajectory_row, write_trajectories
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.scoring import PRICE
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.stages.import_dialogues import Importer
from sweetrl.types import Message, Task, Trajectory
from tests.stages.conftest import content, sweetrl


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def import_(*words: Any) -> tuple[dict[str, str], list[Trajectory]]:
    """What the command prints, and the dialogues that it writes to `out`."""
    printed = sweetrl("import", "--out", "out", *words)
    return dict(line.split("\t") for line in printed.splitlines()), list(TrajectoryStore("out"))


def chat(request: str, reply: str, **values: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": request}, {"role": "assistant", "content": reply}]
    return {"messages": messages, "reward": 0.5} | values


def write(name: str, *rows: Any) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def attempts(tasks: Sequence[Task], rewards: Sequence[float | None] = (0.5, 0.5)) -> list[Trajectory]:
    """Attempts at each task, block by block: at first a wrong program, then the reference."""
    dialogues = []
    for number, reward in enumerate(rewards):
        for task in tasks:
            answer = task.ground_truth if number else "pass"
            messages = (Message("user", task.problem_description), Message("assistant", f"I WANT TO ANSWER:\n{answer}"))
            dialogues.append(Trajectory(task, number, messages, answer=answer, reward=reward))
    return dialogues


def test_a_mended_reward_scores_every_dialogue(own_code: Callable[[Path, str], Path]) -> None:
    """What a reward had scored before it failed was kept with its old rewards, beside the new ones."""
    write_trajectories(Path("said.jsonl"), attempts(generate("test", 3, seed=1), [None]), 1)
    Path("params.yaml").write_text("collect: {shard: 1}\nreward: {function: 'mine:worth'}\n")
    fails = "def worth(task, dialogue, scored=[]):\n    scored.append(task)\n    return None if scored[1:] else 0.25\n"
    own_code(Path.cwd(), fails)
    with pytest.raises(UserError, match="it must return a number"):
        import_("said.jsonl")
    plugins.find.cache_clear()
    sys.modules.pop("mine")
    own_code(Path.cwd(), "def worth(task, dialogue):\n    return 0.75\n")
    _, dialogues = import_("said.jsonl")
    assert [dialogue.reward for dialogue in dialogues] == [0.75] * 3


def test_attempts_are_counted_by_task_whatever_their_number_and_file() -> None:
    first = write("a.jsonl", chat("One?", "x", reward=1), chat("Two?", "x"), chat("One?", "y"))
    second = write("b.jsonl", chat("One?", "z"), "", chat("Three?", "x"), chat("Mine", "x", task_id="mine"))
    facts, dialogues = import_(first, second)
    assert [dialogue.attempt for dialogue in dialogues] == [0, 0, 1, 2, 0, 0]
    ids = [dialogue.task.id for dialogue in dialogues]
    assert len(set(ids)) == 4 and ids[0] == ids[2] == ids[3]
    assert [name.rpartition("-")[0] for name in ids] == ["task"] * 5 + ["mine"]
    rows = [f"a.jsonl:{line}" for line in (1, 2, 3)] + [f"b.jsonl:{line}" for line in (1, 3, 4)]
    assert [dialogue.extra["source"] for dialogue in dialogues] == rows
    assert (facts["dialogues"], facts["tasks"], facts["recorded rewards"], facts["bad rows"]) == ("6", "4", "6", "0")
    assert facts["for rft"] == "enough"
    assert facts["for multi-turn-dpo"].startswith("2 preference pairs are fewer than 20 (validate.minimum_pairs)")
    assert facts["for sweet"].startswith("6 of 6 dialogues have no reference")


def test_tasks_with_equal_names_differ_by_their_content() -> None:
    rows = [chat("One?", "x"), chat("Two?", "x"), chat("One?", "x", reference="1"), chat("One?", "y", reference="1")]
    dialogues = import_(write("a.jsonl", *(row | {"task_id": "order"} for row in rows)))[1]
    ids = [dialogue.task.id for dialogue in dialogues]
    assert [dialogue.attempt for dialogue in dialogues] == [0, 0, 0, 1] and len(set(ids)) == 3
    Path("out").rename("before")
    again = write("b.jsonl", *(row | {"task_id": name} for row, name in zip(rows, ids, strict=True)))
    assert [dialogue.task.id for dialogue in import_(again)[1]] == ids, "and stay so"


def test_equal_files_give_equal_bytes_and_nothing_is_overwritten() -> None:
    name = write("a.jsonl", *(chat(f"{number}?", "x") for number in range(5)))
    import_(name)
    first = content("out")
    with pytest.raises(UserError, match="out: this is there already"):
        import_(name)
    Path("out").rename("before")
    import_(name)
    assert content("out") == first
    assert sorted(path.name for path in Path().iterdir()) == ["a.jsonl", "before", "out"]


def test_official_files_are_scored() -> None:
    tasks = list(generate("train", 3, seed=1))
    write_trajectories(Path("k.jsonl"), attempts(tasks), 2)
    _, dialogues = import_("k.jsonl")
    named = list(map(named_by_content, tasks))
    assert [dialogue.task for dialogue in dialogues] == named * 2
    assert all(renamed.id.startswith(f"{task.id}-") for renamed, task in zip(named, tasks, strict=True))
    assert [(dialogue.attempt, dialogue.reward) for dialogue in dialogues] == [(0, 0.0)] * 3 + [(1, 1.0)] * 3
    assert all(dialogue.tests for dialogue in dialogues)


def test_a_part_of_an_official_file_without_ids_has_unequal_attempts() -> None:
    """What write_trajectories refuses is read: five rows of three tasks, which have no names."""
    tasks = list(generate("train", 3, seed=1))
    rows = [trajectory_row(attempt) for attempt in attempts(tasks)][:5]
    for row in rows:
        del row["task"]["id"]
    _, dialogues = import_(write("part.jsonl", *rows), "--keep-rewards")
    assert [dialogue.attempt for dialogue in dialogues] == [0, 0, 0, 1, 1]
    assert [dialogue.task.id for dialogue in dialogues[3:]] == [dialogue.task.id for dialogue in dialogues[:2]]


def test_bad_rows_are_named_all_at_once_or_put_aside() -> None:
    good = chat("One?", "x", task_id="one")
    bad: list[Any] = ["{", chat("", "x"), {"words": []}, chat("Other?", "x", reward=2), '{"a": 1, "a": 2}']
    long = [{"role": "user" if at % 2 == 0 else "assistant", "content": "x"} for at in range(40)]
    name = write("a.jsonl", good, *bad, {"messages": long, "reward": 0.5})
    with pytest.raises(UserError, match="bad rows: 6, of which 5 may be left out") as error:
        import_(name, "--skip-bad", 5)
    lines = str(error.value).splitlines()[1:]
    assert [line.partition("line ")[2].partition(":")[0] for line in lines] == ["2", "3", "4", "5", "6", ""]
    assert "this is not JSON" in lines[0] and "neither a log" in lines[2]
    assert "`reward` is 2, outside 0 to 1" in lines[3] and lines[5] == "- and 1 more"
    assert sorted(path.name for path in Path().iterdir()) == ["a.jsonl"]  # nothing half-written
    facts, dialogues = import_(name, "--skip-bad", 6)
    assert len(dialogues) == 1 and facts["bad rows"] == "6"
    kept = [json.loads(line) for line in Path("out/bad-rows.jsonl").read_text().splitlines()]
    assert [row["line"] for row in kept] == [2, 3, 4, 5, 6, 7] and {row["file"] for row in kept} == {"a.jsonl"}
    assert kept[0]["row"] == "{" and kept[0]["why"].startswith("this is not JSON")
    assert "more than 10 turns; raise agent.max_turns" in kept[5]["why"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (json.dumps(chat("One?", "x")).replace("0.5", "1" * 400), "`reward` must be a valid number"),
        (json.dumps(chat("One?", "x")).replace("0.5", "1e999"), "`reward` must be a finite number"),
        ('{"a\\ud800": 1, "a\\ud800": 2}', "is there twice"),
    ],
)
def test_no_number_and_no_key_ends_an_import_with_a_trace(
    row: str, words: str, own_code: Callable[[Path, str], Path]
) -> None:
    own_code(Path.cwd(), "def worth(task, dialogue):\n    return 0.5\n")
    Path("params.yaml").write_text("reward: {function: 'mine:worth'}\n")  # whose bounds are infinite
    name = write("a.jsonl", row, chat("Two?", "x"))
    with pytest.raises(UserError, match=f"line 1: .*{words}"):
        import_(name)
    assert len(import_(name, "--skip-bad", 1)[1]) == 1


def test_what_params_yaml_allows_is_allowed_unless_the_command_says_otherwise() -> None:
    name = write("a.jsonl", "{", chat("Two?", "x"))
    Path("params.yaml").write_text("collect: {skip_bad: 1}\n")
    with pytest.raises(UserError, match="bad rows: 1, of which 0 may be left out"):
        import_(name, "--skip-bad", 0)
    assert len(import_(name)[1]) == 1


def test_an_answer_is_there_and_is_what_the_last_message_says() -> None:
    rows = [trajectory_row(attempt) for attempt in attempts(list(generate("train", 2, seed=1)))]
    del rows[0]["answer"]
    rows[1]["answer"] = "def other(): ..."
    with pytest.raises(UserError) as error:
        import_(write("k.jsonl", *rows))
    assert "line 1: the key `answer` is missing" in str(error.value)
    assert "line 2: `answer` is not what the last message says" in str(error.value)


def test_dialogues_about_held_out_tasks_are_left_out(write_tasks: Callable[..., Path]) -> None:
    tasks = list(generate("train", 4, seed=1))
    write_tasks(Path("test.jsonl"), [replace(task, id="") for task in tasks[:1]])
    write_trajectories(Path("k.jsonl"), attempts(tasks[:2]), 2)
    log = write("log.jsonl", chat(tasks[0].problem_description, "x"), chat("One?", "x"))
    Path("test.jsonl").write_text(Path("test.jsonl").read_text().replace('"id": "", ', ""))
    facts, dialogues = import_("k.jsonl", log, "--held-out", "test.jsonl")
    assert {dialogue.task.problem_description for dialogue in dialogues} == {tasks[1].problem_description, "One?"}
    assert (facts["held out"], facts["dialogues"]) == ("3", "3")
    with pytest.raises(UserError, match=r"there are no dialogues to take \(1 are about held-out tasks\)"):
        Path("out").rename("before")
        import_(write("log.jsonl", chat(tasks[0].problem_description, "x")), "--held-out", "test.jsonl")


def test_dialogues_that_break_off_are_lost_and_too_many_are_an_error() -> None:
    tasks = list(generate("train", 3, seed=1))
    rows = [trajectory_row(attempt) for attempt in attempts(tasks)]
    rows[0]["dialogue_history"] = rows[0]["dialogue_history"][:1]
    name = write("k.jsonl", *rows)
    with pytest.raises(UserError, match=r"1 of 6 dialogues end before the agent replies"):
        import_(name)
    Path("params.yaml").write_text("collect: {lost_share: 0.5}\n")
    lost = import_(name)[1][0]
    assert (lost.outcome, lost.reward, lost.error[:12]) == ("lost", None, "the file's d")


def test_the_price_of_questions_is_taken_off_recorded_rewards() -> None:
    Path("params.yaml").write_text("reward: {turn_cost: 0.1}\n")
    row = chat("One?", "Which?")
    row["messages"] += [{"role": "user", "content": "This."}, {"role": "assistant", "content": "So."}]
    (dialogue,) = import_(write("a.jsonl", row))[1]
    assert dialogue.reward == pytest.approx(0.4) and dialogue.parts[PRICE] == pytest.approx(-0.1)


def test_a_price_is_taken_off_once_by_those_who_read_our_own_files() -> None:
    Path("params.yaml").write_text("reward: {turn_cost: 0.1}\n")
    (task,) = generate("train", 1, seed=1)
    replies = ("assistant", "Which?"), ("user", "This."), ("assistant", f"I WANT TO ANSWER:\n{task.ground_truth}")
    messages = (Message("user", task.problem_description), *(Message(*reply) for reply in replies))
    trajectory = Trajectory(task, 0, messages, answer=task.ground_truth, reward=0.9, parts={"task": 1.0, PRICE: -0.1})
    write_trajectories(Path("k.jsonl"), [trajectory], 1)
    (dialogue,) = import_("k.jsonl", "--keep-rewards")[1]
    assert dialogue.parts == {"task": 1.0, PRICE: pytest.approx(-0.1)}
    assert dialogue.reward == pytest.approx(0.9) and dialogue.success


def test_memory_does_not_grow_with_the_number_of_dialogues() -> None:
    """A shard's dialogues are alive at a time, and not those of other shards."""
    import gc

    settings: Settings = parse_settings({"collect": {"shard": 10}})
    name = write("a.jsonl", *(chat(f"{number}?", "x") for number in range(200)))
    importer = Importer(load_domain(settings), [Path(name)])
    alive = 0
    for index, members in enumerate(importer.shards()):
        assert len(members) == 10
        if index == 19:
            dialogues = (instance for instance in gc.get_objects() if type(instance) is Trajectory)
            alive = sum(dialogue.extra.get("source", "").startswith("a.jsonl") for dialogue in dialogues)
    assert 10 <= alive <= 30
