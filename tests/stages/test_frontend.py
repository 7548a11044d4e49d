"""`suite: frontend` through the stages and commands, in a browser, or with sketches in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.browser.page import Page
from sweetrl.cli.main import app
from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.files import read_trajectories
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.evaluation.checks import leak, protocol, scored
from sweetrl.frontend import Frontend
from sweetrl.frontend.pages import find_page
from sweetrl.frontend.rewards import PageScorer
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import OracleAgent, scripted_user
from sweetrl.frontend.suite.sketch import sketch
from sweetrl.rollout.context import open_environment
from sweetrl.stages.standalone import collect_standalone, evaluate_standalone
from sweetrl.types import Message, Task, Trajectory

VALUES: dict[str, Any] = {
    "suite": "frontend",
    "model": {"base": "models/base", "device": "cpu", "threads": 1},
    "agent": {"max_turns": 10, "max_new_tokens": 600},
    "browser": {"cache": "", "tabs": 2},
    "tasks": {"train": 6, "validation": 2, "test": 4},
}
FRONTEND = Frontend()
TASKS = list(generate("test", 4, 3, 2))


def settings(**changes: Any) -> Settings:
    return parse_settings(VALUES | changes)


def listener(body: dict[str, Any]) -> str:
    """An agent that shows the page which its user has described."""
    messages = [Message(entry["role"], entry["content"]) for entry in body["messages"] if entry["role"] != "system"]
    return OracleAgent().act(TASKS[0], messages)


@pytest.mark.slow
def test_whoever_listens_gets_the_page_and_the_files_say_so(
    browser: None, fake_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tasks: Callable[..., Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tasks(Path("pages.jsonl"), TASKS)
    with fake_server(reply=listener) as server:
        config = settings(engine={"kind": "openai", "urls": server.url, "model": "listener"})
        summary = collect_standalone(config, Path("pages.jsonl"), Path("out.jsonl"), 1, None, None)
        report = evaluate_standalone(config, Path("pages.jsonl"), Path("shards"), None, None, Path("report.json"))
    assert summary["success"] == summary["reward"] == 1.0 and summary["share_lost"] == 0.0
    assert report["success"] == report["reward"] == 1.0 and report["turns"] > 1
    dialogues = list(read_trajectories(Path("out.jsonl"), FRONTEND))
    assert [dialogue.answer for dialogue in dialogues] == [task.ground_truth for task in TASKS]
    for dialogue in TrajectoryStore(Path("shards")).read():
        assert (dialogue.extra["reward"], dialogue.simulator, dialogue.task.suite) == ("layout", "scripted", "frontend")
        assert protocol(dialogue, FRONTEND, 10) is None and scored(dialogue) is None
        assert leak(dialogue, FRONTEND.hidden_fragments(dialogue.task)) is None
        assert max(len(message.content) for message in dialogue.messages[2::2]) <= 1000
    written = json.loads(Path("report.json").read_text())
    assert written == report and written["scoring"] == "layout"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"simulator": {"kind": "llm", "server": {"model": "m"}}}, "`llm` cannot see pages"),
        ({"simulator": {"kind": "vision"}}, "simulator.server: `urls` is empty"),
        ({"suite": "backend", "simulator": {"kind": "vision"}}, "`vision` looks at pages"),
        ({"similarity": {"kind": "clip", "model": "nowhere"}}, "similarity.model: nowhere"),
    ],
)
def test_what_cannot_work_is_one_sentence(changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweetrl.browser.renderer.Renderer", Sketches)
    with pytest.raises(UserError) as raised, open_environment(load_domain(settings(**changes))):
        pass
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_files_of_the_other_suite_are_refused(tmp_path: Path) -> None:
    write_task_table(tmp_path / "pages.parquet", TASKS)
    with pytest.raises(UserError, match="these are not tasks of the suite `backend`"):
        evaluate_standalone(settings(suite="backend"), tmp_path / "pages.parquet", None, None, None, None)


class Sketches:
    """In the place of the browser: draws what the sketch says."""

    def __init__(self, settings: Any = None) -> None:
        """Needs nothing."""

    def __enter__(self) -> Sketches:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to free."""

    def render(self, html: str) -> Page:
        return sketch(html)

    def render_many(self, htmls: Iterable[str]) -> Iterator[Page]:
        return map(sketch, htmls)


class Equal:
    name = "equal"

    def score(self, pairs: Any) -> list[float]:
        return [-0.5 if answer is None else float(answer == reference) for answer, reference in pairs]


def test_scores_are_named_and_within_bounds() -> None:
    items = [(TASKS[0], TASKS[0].ground_truth), (TASKS[0], TASKS[1].ground_truth), (TASKS[1], None)] * 20
    scorer = PageScorer(Equal(), Sketches())
    scores = scorer.score_answers(items)
    assert [score.reward for score in scores] == [1.0, 0.0, 0.0] * 20
    assert {(score.semantics, score.tests) for score in scores} == {("equal", ())}
    dialogues = [Trajectory(task, 0, (), answer=answer) for task, answer in items]
    assert scorer.score(dialogues) == scores


def test_a_reference_that_cannot_be_rendered_is_named() -> None:
    class Bad:
        def render_many(self, htmls: Any) -> Any:
            return (Page(b"", 1, 1, (), (255, 255, 255), "timeout", (), "x") for _ in htmls)

    with pytest.raises(UserError, match=f"task {TASKS[0].id}: the reference cannot be rendered .timeout"):
        PageScorer(Equal(), Bad()).score_answers([(TASKS[0], None)])
    with pytest.raises(UserError, match=r"task b: the reference cannot be rendered .no page"):
        PageScorer(Equal(), Bad()).score_answers([(Task("b", "", ""), None)])


@pytest.mark.parametrize("blind", [False, True])
def test_somebody_at_the_terminal_talks_about_pages_that_they_open_in_a_browser(
    blind: bool, fake_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sweetrl play`, with an agent that listens and somebody who types what the scripted user would say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweetrl.browser.renderer.Renderer", Sketches)
    monkeypatch.setattr("sweetrl.frontend.rewards.make_reward", lambda settings: Equal())
    task = TASKS[2]
    write_task_table(Path("data/tasks/test.parquet"), TASKS)
    environment = Environment(task, FRONTEND, scripted_user(), reply_characters=1000)
    while not environment.done:
        environment.step(OracleAgent().act(task, environment.messages))
    pages = [html for message in environment.messages[1::2] if (html := find_page(message.content))]
    assert len(pages) > 2 and pages[-1] == task.ground_truth
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "400")
    with fake_server(reply=listener) as server:
        engine = f"{{kind: openai, urls: {server.url}, model: listener}}"
        Path("params.yaml").write_text(f"suite: frontend\nengine: {engine}\n")
        typed = "".join(f"{message.content}\n" for message in environment.messages[2::2])
        done = CliRunner().invoke(app, ["play", "2", *(["--blind"] if blind else [])], input=typed)
    assert done.exit_code == 0, done.output
    assert "reward 1.00: success" in done.output
    (folder,) = tmp_path.glob("sweetrl-play-*")
    names = [f"turn-{turn}.html" for turn in range(1, len(pages) + 1)]
    assert [(folder / name).read_text(encoding="utf-8") for name in names] == pages
    reference = folder / "wanted.html"
    if not blind:
        assert reference.read_text(encoding="utf-8") == task.ground_truth
        names.append(reference.name)
    assert {path.name for path in folder.iterdir()} == set(names)
    assert all(str(folder / name) in done.output for name in names), "and they are told where to look"
    assert "<body" not in done.output, "a page is looked at, not read"
    facts = (task.hidden_information or "").splitlines()
    assert [fact in done.output for fact in facts] == [not blind] * len(facts)
