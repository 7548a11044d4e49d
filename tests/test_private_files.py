"""Files with dialogues are for their owner alone, whatever the umask is: all that tiny runs of each kind write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.cli.main import app
from sweetrl.colbench.users import Recording
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.io import append_row, private_file, publish, write_json
from sweetrl.rollout.ledger import DialogueCost, Ledger
from sweetrl.stages.collect import collect
from sweetrl.stages.tasks import tasks as make_tasks
from sweetrl.types import Message, Task


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, and the most generous umask there is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def shared(given: set[Path]) -> list[str]:
    """What others may read, write or enter, beside what was `given` to the program."""
    wide = [path for path in Path().rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
    return sorted(str(path) for path in wide if path not in given)


def sweetrl(*words: Any) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.output


def made(*names: str) -> None:
    """The run has really written these."""
    for name in names:
        assert list(Path().glob(name)), (name, sorted(Path().rglob("*")))


def test_dialogues_collected_outside_of_a_project(fake_server: Any, write_tasks: Callable[..., Path]) -> None:
    request, tests = "Write {}. The signature of the function is: def f(x)", (("a", "f(1)"),)
    tasks = [Task(name, request.format(name), "def f(x): return x", tests) for name in ("one", "two")]
    given = {write_tasks(Path("tasks.jsonl"), tasks)}
    answers = {"index": 0, "answer": "def f(x): return x"}
    Path("answers.jsonl").write_text(json.dumps(answers) + "\n", encoding="utf-8")
    with (
        fake_server(reply=lambda _: "I WANT TO ANSWER:\ndef f(x): return x") as server,
        fake_server(reply=lambda _: "I do not know.") as users,
    ):
        far = ["--url", server.url, "--model", "mine", "--user-url", users.url, "--user-model", "theirs"]
        source = ["--tasks", "tasks.jsonl"]
        sweetrl("collect", *source, "--out", "a/b/all.jsonl", *far)
        sweetrl("evaluate", *source, "--json", "new/numbers.json", "--out", "shards", *far)
    sweetrl("score", *source, "--answers", "answers.jsonl", "--json", "scores.json")
    sweetrl("tasks", "--split", "test", "--count", 1, "--out", "made.parquet")
    made("a/b/all.jsonl", "shards/shard-*.parquet", "new/numbers.json", "scores.json", "made.parquet")
    assert shared(given | {Path("answers.jsonl")}) == []


def test_dialogues_of_others_and_the_rows_that_are_left_out() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Which?"}]
    Path("log.jsonl").write_text(json.dumps({"messages": messages, "reward": 0.5}) + "\nno row\n", encoding="utf-8")
    sweetrl("import", "--out", "out", "--skip-bad", 1, "log.jsonl")
    made("out/shard-*.parquet", "out/bad-rows.jsonl")
    assert shared({Path("log.jsonl")}) == []


def test_files_that_grow() -> None:
    messages = (Message("user", "Hi"),)
    Recording(Path("r/recorded.jsonl")).add(Task("t", "Hi", ""), messages, "user", "No.")
    append_row(Path("j/journal.jsonl"), ["a reply"])
    Ledger(Path("l/costs.jsonl")).add([DialogueCost("t", 0, "policy", False, 1, 9, 0, 3, 0.2, 0.1, 0.0)])
    made("r/recorded.jsonl", "j/journal.jsonl", "l/costs.jsonl")
    assert shared(set()) == []


def test_a_stage_its_scratch_and_its_caches(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is only there while a stage is at work, and what libraries write there with a mode of their own."""
    values = {
        "seed": 7,
        "tasks": {"train": 3, "validation": 1, "test": 1},
        "model": {"base": str(tiny_model), "device": "cpu", "threads": 1},
        "agent": {"max_turns": 2, "max_new_tokens": 8},
        "collect": {"tasks": 2, "attempts": 2, "batch": 2, "shard": 2},
    }
    Path("params.yaml").write_text("seed: 7\n")
    Path("models").mkdir()
    monkeypatch.setattr("sweetrl.stages.scratch.shutil.rmtree", lambda *_, **__: None)  # to look at the scratch
    make_tasks(parse_settings(values))
    collect(parse_settings(values))
    made("data/tasks/train.parquet", "data/trajectories/*", ".scratch/collect-*/shards/*", "reports/runs/collect.json")
    assert shared({Path("params.yaml"), Path("models")}) == []


def test_a_folder_is_published_for_its_owner_whatever_modes_libraries_gave(tmp_path: Path) -> None:
    source = tmp_path / "source" / "deep"
    source.mkdir(parents=True)
    (source / "weights").write_text("x")
    publish(source.parent, tmp_path / "new" / "model")
    assert shared({path.relative_to(tmp_path) for path in (source.parent, *source.parent.rglob("*"))}) == []
    publish(source.parent, tmp_path / "given", shared=True)
    assert (tmp_path / "given" / "deep" / "weights").stat().st_mode & 0o777 == 0o666


def test_what_a_user_shares_stays_shared() -> None:
    place = private_file(Path("grows"))
    place.chmod(0o640)
    append_row(place, 1)
    Path("folder").mkdir(mode=0o750)
    write_json(Path("folder/a.json"), 1)
    assert place.stat().st_mode & 0o777 == 0o640 and Path("folder").stat().st_mode & 0o777 == 0o750
