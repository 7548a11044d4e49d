"""`collect.source: files`: dialogues that others have made go through every stage to a trained policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend.suite import generate
from sweetrl.colbench.files import named_by_content, write_trajectories
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.paths import PAIRS, POLICY, PREFERENCES, TEST_TASKS, TRAJECTORIES, VALIDATION_TASKS
from sweetrl.stages.collect import collect
from sweetrl.stages.rank import rank
from sweetrl.stages.train_critic import train_critic
from sweetrl.stages.train_policy import train_policy
from sweetrl.stages.validate import validate
from sweetrl.sweet.pairs import read_pairs
from sweetrl.types import AgentTurn, Message, Task, Trajectory
from tests.stages.conftest import content, kill_at

TRAINER = {
    "learning_rate": 1e-3, "epochs": 1, "batch_size": 4, "micro_batch_size": 4, "checkpoints": 1, "lora": {"rank": 2}
}  # fmt: skip
QUESTIONS = ("Which one is it?", "Have you tried it again?", "What does it say?")


def settings(method: str = "sweet", **changes: Any) -> Settings:
    tree: dict[str, Any] = {
        "seed": 7,
        "method": method,
        "sources": {"trajectories": "logs"},
        "model": {"base": "models/base", "device": "cpu", "threads": 1},
        "agent": {"max_turns": 5, "max_new_tokens": 5},
        "collect": {"source": "files", "shard": 8},
        "validate": {"minimum_pairs": 3},
        "critic": {**TRAINER, "privileged": False, "pairs": "all"},
        "rank": {"share": 0.3, "candidates": 3, "block": 2},
        "policy": TRAINER,
        "multi_turn_dpo": TRAINER,
        "rft": TRAINER,
    }
    for name, values in changes.items():
        tree[name] = {**tree.get(name, {}), **values}
    return parse_settings(tree)


def chat(task: int, attempt: int) -> dict[str, Any]:
    """A logged dialogue: attempts differ in length and in how well they went."""
    turns = [{"role": "system", "content": "You help."}, {"role": "user", "content": f"My machine {task} is broken."}]
    for question in QUESTIONS[:attempt]:
        turns += [{"role": "assistant", "content": question}, {"role": "user", "content": f"It is the number {task}."}]
    turns += [{"role": "assistant", "content": f"Press the button {task + attempt}."}]
    return {"messages": turns, "reward": (1.0, 0.25, 0.5)[attempt], "metadata": {"shop": task}}


def write_log(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def project(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root with the tiny model, held-out tasks, and a log of 15 dialogues at 8 tasks."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/base").symlink_to(tiny_model)
    for number, path in enumerate((VALIDATION_TASKS, TEST_TASKS)):
        write_task_table(path, generate("test", 2, seed=number))
    write_log(Path("logs/shop.jsonl"), [chat(task, attempt) for task in range(8) for attempt in range(1 + task % 3)])
    return tmp_path


@pytest.mark.slow
def test_a_log_without_tests_and_references_trains_by_every_method(project: Path) -> None:
    """Unequal attempts, rewards only: sweet with its critic and ranking, multi-turn-dpo, and rft."""
    config = settings()
    collect(config)
    dialogues = list(TrajectoryStore(TRAJECTORIES))
    assert len(dialogues) == 15
    assert sorted({dialogue.attempt for dialogue in dialogues}) == [0, 1, 2]
    assert {(len(each.tests), each.outcome, each.task.ground_truth) for each in dialogues} == {(0, "user_left", "")}
    assert dialogues[1].extra == {"metadata.shop": "1", "source": "shop.jsonl:2"}
    validate(config)
    repeated = {dialogue.task.id for dialogue in dialogues if dialogue.attempt}
    assert {pair.task_id for pair in read_pairs(PAIRS)} == repeated
    train_critic(config)
    rank(config)
    assert (PREFERENCES / "candidates.parquet").exists()
    for method in ("sweet", "multi-turn-dpo", "rft"):
        train_policy(settings(method))
        assert (POLICY / "adapter_model.safetensors").exists(), method
        shutil.rmtree(POLICY)


@pytest.fixture
def official(project: Path) -> Iterator[Callable[..., list[Task]]]:
    """A function that writes an official trajectory file, two attempts at each of six tasks, and returns the tasks."""

    def write(**rows: Any) -> list[Task]:
        tasks = list(generate("train", 6, seed=1))
        made = []
        for attempt in (0, 1):
            for task in tasks:
                answer = task.ground_truth if attempt else "def nothing():\n    return None"
                replies = ["Is there a maximum?", f"I WANT TO ANSWER:\n```python\n{answer}\n```"]
                words = (task.problem_description, replies[0], "I do not know.", replies[1])
                messages = tuple(Message("assistant" if at % 2 else "user", text) for at, text in enumerate(words))
                turns = tuple(AgentTurn(at, words[at]) for at in (1, 3))
                made.append(Trajectory(task, attempt, messages, turns, replies[1].removeprefix("I WANT TO ANSWER:")))
        shutil.rmtree("logs")
        Path("logs").mkdir()
        write_trajectories(Path("logs/official.jsonl"), made, 2)
        return tasks

    yield write


@pytest.mark.slow
def test_an_official_file_is_scored_and_trained_on(official: Callable[..., list[Task]]) -> None:
    tasks = official()
    write_task_table(VALIDATION_TASKS, tasks[4:5])
    write_task_table(TEST_TASKS, tasks[5:])
    config = settings(critic={"privileged": True, "pairs": "official"})
    collect(config)
    dialogues = list(TrajectoryStore(TRAJECTORIES))
    assert [(dialogue.task.id, dialogue.attempt) for dialogue in dialogues] == [
        (named_by_content(task).id, n) for n in (0, 1) for task in tasks[:4]
    ]
    assert [dialogue.reward for dialogue in dialogues] == [0.0] * 4 + [1.0] * 4
    assert all(len(dialogue.tests) == len(dialogue.task.test_cases) for dialogue in dialogues)
    for stage in (validate, train_critic, rank, train_policy):
        stage(config)
    assert (POLICY / "adapter_model.safetensors").exists()


def test_a_killed_import_goes_on_behind_its_last_shard(
    official: Callable[..., list[Task]], monkeypatch: pytest.MonkeyPatch
) -> None:
    official()
    config = settings(collect={"shard": 5})
    collect(config)
    undisturbed = content(TRAJECTORIES)
    assert len(undisturbed) == 3
    made = kill_at(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        collect(config)
    assert content(TRAJECTORIES) == undisturbed  # the earlier result still stands
    collect(config)
    assert made == [0, 1, 2]
    assert content(TRAJECTORIES) == undisturbed


def test_shares_of_an_import_leave_the_same_bytes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(settings())
    unshared = content(TRAJECTORIES)
    shutil.rmtree(TRAJECTORIES)
    monkeypatch.setenv("SWEETRL_SHARE", "1/2")
    collect(settings())
    assert not TRAJECTORIES.exists()
    assert [path.name for path in Path(".scratch").rglob("*.parquet")] == ["shard-00001.parquet"]
    monkeypatch.delenv("SWEETRL_SHARE")
    collect(settings())
    assert content(TRAJECTORIES) == unshared


def test_changed_files_are_another_import(project: Path) -> None:
    collect(settings())
    write_log(Path("logs/more.jsonl"), [chat(9, 0)])
    collect(settings())
    dialogues = list(TrajectoryStore(TRAJECTORIES))
    assert dialogues[0].extra["source"] == "more.jsonl:1" and len(dialogues) == 16


@pytest.mark.parametrize(
    ("method", "rows", "changes", "words"),
    [
        ("rft", [chat(1, 1), chat(1, 2)], {}, r"none of the 2 dialogues has a reward of 1 \(rft\.min_reward\)"),
        ("multi-turn-dpo", [chat(1, 0), chat(2, 1)], {}, r"no task has two whose rewards differ by 0\.1"),
        (
            "multi-turn-dpo",
            [chat(1, 1), chat(1, 2)],
            {"critic": {"pairs": "official"}},
            "no task has one that succeeds",
        ),
        ("sweet", [chat(1, 0), chat(2, 1)], {}, r"cannot learn from these: of the 2 dialogues no task has two"),
        ("sweet", [chat(1, 0), chat(1, 1)], {"critic": {"privileged": True}}, r"2 of 2 dialogues have no reference"),
    ],
)
def test_data_that_a_method_cannot_learn_from_are_refused_before_training(
    project: Path, method: str, rows: list[dict[str, Any]], changes: dict[str, Any], words: str
) -> None:
    write_log(Path("logs/shop.jsonl"), rows)
    config = settings(method, **changes)
    collect(config)
    with pytest.raises(UserError, match=words):
        validate(config)
    assert not PAIRS.exists()


def test_files_that_are_not_there_are_one_sentence(project: Path) -> None:
    shutil.rmtree("logs")
    with pytest.raises(UserError, match=r"`sources\.trajectories: logs`: name a \.jsonl or \.parquet file"):
        collect(settings())
    write_log(Path("logs/shop.jsonl"), [{"messages": []}])
    with pytest.raises(UserError, match=r"bad rows: 1, of which 0 may be left out"):
        collect(settings())
    assert not TRAJECTORIES.exists()
