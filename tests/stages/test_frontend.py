"""`suite: frontend` from the task files to scored dialogues, with a browser and an agent at a server that listens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweetrl.rollout.scene import page_person

from sweetrl.browser.page import Page
from sweetrl.browser.renderer import Renderer
from sweetrl.colbench.files import read_tasks, read_trajectories, write_tasks
from sweetrl.colbench.simulators import ReplaySimulator
from sweetrl.colbench.store import TrajectoryStore, read_task_table, write_task_table
from sweetrl.domains.frontend.scoring import PageScorer
from sweetrl.domains.frontend.suite import generate
from sweetrl.domains.frontend.suite.agents import OracleAgent
from sweetrl.domains.frontend.suite.sketch import sketch
from sweetrl.domains.frontend.users import PageUser, VisionUser
from sweetrl.errors import UserError
from sweetrl.evaluation.checks import leak, protocol, scored
from sweetrl.rollout.environment import open_environment
from sweetrl.running.standalone import collect_alone, evaluate_alone
from sweetrl.settings import Settings, parse_settings
from sweetrl.stages.collect import collect
from sweetrl.stages.tasks import split_tasks
from sweetrl.types import Message, Task

VALUES: dict[str, Any] = {
    "suite": "frontend",
    "model": {"base": "models/base", "device": "cpu", "threads": 1},
    "agent": {"rounds": 10, "max_new_tokens": 600},
    "browser": {"cache": "", "tabs": 2},
    "tasks": {"train": 6, "validation": 2, "test": 4},
}
TASKS = list(generate("test", 4, 3, 2))


def settings(**changes: Any) -> Settings:
    return parse_settings(VALUES | changes)


def listener(body: dict[str, Any]) -> str:
    """An agent that shows what it was told."""
    messages = [Message(one["role"], one["content"]) for one in body["messages"] if one["role"] != "system"]
    return OracleAgent().act(TASKS[0], messages)


@pytest.fixture
def browser() -> None:
    try:
        with Renderer(settings().browser) as renderer:
            renderer.render("<html><body>x</body></html>")
    except UserError as error:
        pytest.skip(f"no browser here: {error}")


def test_the_tasks_are_pages() -> None:
    splits = split_tasks(settings())
    assert {name: len(tasks) for name, tasks in splits.items()} == {"train": 6, "validation": 2, "test": 4}
    assert all(task.suite == "frontend" and not task.test_cases for tasks in splits.values() for task in tasks)
    backend = split_tasks(settings(suite="backend"))
    assert all(task.suite == "backend" for tasks in backend.values() for task in tasks)


def test_tasks_of_official_files(tmp_path: Path) -> None:
    for name, split in (("train", "train"), ("test", "test")):
        write_tasks(tmp_path / f"{name}.jsonl", generate(split, 5, 1))  # type: ignore[arg-type]
    files = {"source": "files", "train_file": str(tmp_path / "train.jsonl"), "test_file": str(tmp_path / "test.jsonl")}
    splits = split_tasks(settings(tasks={**files, "train": 3, "validation": 2, "test": 5}))
    assert splits["test"] == list(read_tasks(tmp_path / "test.jsonl", "frontend"))


def test_whoever_listens_gets_the_page_and_the_files_say_so(
    browser: None, fake_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tasks(Path("pages.jsonl"), TASKS)
    with fake_server(reply=listener) as server:
        asked = settings(engine={"kind": "openai", "urls": server.url, "model": "listener"})
        summary = collect_alone(asked, Path("pages.jsonl"), Path("out.jsonl"), 1, None, None)
        report = evaluate_alone(asked, Path("pages.jsonl"), Path("shards"), None, None, Path("report.json"))
    assert summary["success"] == summary["reward"] == 1.0 and summary["share_lost"] == 0.0
    assert report["success"].startswith("100.0%") and report["likeness_layout"].startswith("100.0%")
    dialogues = list(read_trajectories(Path("out.jsonl"), suite="frontend"))
    assert [one.answer for one in dialogues] == [task.ground_truth for task in TASKS]
    for one in TrajectoryStore(Path("shards")).read():
        assert one.extra["reward"] == "layout" and one.simulator == "scripted" and one.task.suite == "frontend"
        assert protocol(one, 10) is None and leak(one) is None and scored(one) is None
        assert max(len(message.content) for message in one.messages[2::2]) <= 1000
    assert json.loads(Path("report.json").read_text())["success"]["value"] == 1.0


def test_the_stage_collects_pages(
    browser: None, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random model shows no page: nothing is scored, nothing is lost."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    write_task_table(Path("data/tasks/train.parquet"), generate("train", 3, 1))
    Path("models").mkdir()
    Path("models/base").symlink_to(tiny_model)
    chosen = {"tasks": 3, "attempts": 2, "batch": 4, "shard": 4}
    collect(settings(agent={"rounds": 2, "max_new_tokens": 8}, collect=chosen))
    found = list(TrajectoryStore(Path("data/trajectories")).read())
    assert len(found) == 6 and read_task_table(Path("data/tasks/train.parquet"))[0] == found[0].task
    assert all(one.reward == 0.0 and one.answer is None and one.outcome == "max_turns_reached" for one in found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"simulator": {"kind": "llm", "server": {"model": "m"}}}, "`llm` cannot see pages"),
        ({"simulator": {"kind": "vision"}}, "simulator.server: `urls` is empty"),
        ({"suite": "backend", "simulator": {"kind": "vision"}}, "`vision` looks at pages"),
        ({"similarity": {"kind": "clip", "model": "nowhere"}}, "similarity.model: nowhere"),
    ],
)
def test_what_cannot_work_is_one_sentence(changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sweetrl.browser.renderer.Renderer.__init__", lambda self, settings: setattr(self, "_open", False)
    )
    monkeypatch.setattr("sweetrl.browser.renderer.Renderer.render", lambda self, html: sketch(html))
    with pytest.raises(UserError) as raised, open_environment(settings(**changes)):
        pass
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_people_by_their_settings(tmp_path: Path) -> None:
    write_tasks(tmp_path / "pages.jsonl", TASKS)
    with page_person(settings(), sketch) as person:
        assert isinstance(person, PageUser)
    server = {"urls": "http://127.0.0.1:9/v1", "model": "eyes"}
    with page_person(settings(simulator={"kind": "vision", "server": server}), sketch) as person:
        assert isinstance(person, VisionUser) and person.reply_characters == 1000
    from sweetrl.colbench.files import write_trajectories
    from sweetrl.types import Trajectory

    said = (Message("user", TASKS[0].problem_description), Message("assistant", "Blue?"), Message("user", "Yes."))
    write_trajectories(tmp_path / "said.jsonl", [Trajectory(TASKS[0], 0, said)], 1)
    replay = {"kind": "replay", "recording": str(tmp_path / "said.jsonl")}
    with page_person(settings(simulator=replay), sketch) as person:
        assert isinstance(person, ReplaySimulator) and person.reply(TASKS[0], said[:2], 0) == "Yes."


def test_files_of_the_other_suite_are_refused(tmp_path: Path) -> None:
    write_task_table(tmp_path / "pages.parquet", TASKS)
    with pytest.raises(UserError, match="these are not tasks of the suite `backend`"):
        evaluate_alone(settings(suite="backend"), tmp_path / "pages.parquet", None, None, None, None)


class Sketches:
    """Renders by sketching."""

    def render_many(self, htmls: Any) -> Any:
        return map(sketch, htmls)


class Equal:
    name = "equal"

    def score(self, pairs: Any) -> list[float]:
        return [-0.5 if answer is None else float(answer == wanted) for answer, wanted in pairs]


def test_scores_are_named_and_within_bounds() -> None:
    items = [(TASKS[0], TASKS[0].ground_truth), (TASKS[0], TASKS[1].ground_truth), (TASKS[1], None)] * 20
    scores = PageScorer(Equal(), Sketches()).score(items)
    assert [one.reward for one in scores] == [1.0, 0.0, 0.0] * 20
    assert {(one.semantics, one.tests) for one in scores} == {("equal", ())}


def test_a_reference_that_cannot_be_rendered_is_named() -> None:
    class Bad:
        def render_many(self, htmls: Any) -> Any:
            return (Page(b"", 1, 1, (), (255, 255, 255), "timeout", (), "x") for _ in htmls)

    with pytest.raises(UserError, match=f"task {TASKS[0].id}: the reference page cannot be rendered"):
        PageScorer(Equal(), Bad()).score([(TASKS[0], None)])
    with pytest.raises(UserError, match="only frontend tasks"):
        PageScorer(Equal(), Bad()).score([(Task("b", "", ""), None)])
