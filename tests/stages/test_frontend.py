"""`suite: frontend` through the stages and commands, in a browser, or with sketches in its place."""

from __future__ import annotations

import json
from collections import Counter
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
from sweetrl.colbench.store import TrajectoryStore, read_task_table, write_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.evaluation.checks import leak, protocol, scored
from sweetrl.frontend import Frontend
from sweetrl.frontend.pages import find_page, last_page
from sweetrl.frontend.rewards import PageScorer
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import OracleAgent, scripted_user
from sweetrl.frontend.suite.sketch import sketch
from sweetrl.io import read_json
from sweetrl.paths import BEST_OF_N
from sweetrl.rollout.context import open_environment
from sweetrl.stages import best_of_n as stage
from sweetrl.stages.standalone import collect_standalone, evaluate_standalone
from sweetrl.stages.train_policy import train_policy
from sweetrl.types import Message, Task, Trajectory

BASE = Path(__file__).resolve().parents[2] / "models/base-frontend"
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


# Whatever else there is for programs works for pages, too: with the shipped base of pages, and sketches for a browser.


class Alike:
    """The share of the parts of both pages that both have: rewards between 0 and 1 without pictures."""

    name = "alike"

    def score(self, pairs: Any) -> list[float]:
        return [0.0 if page is None else share(page, reference) for page, reference in pairs]


def share(page: Page, reference: Page) -> float:
    first, second = ({(part.text, part.background, part.align) for part in side.elements} for side in (page, reference))
    return len(first & second) / len(first | second)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """A folder with a few pages to design, and the settings of small runs of the shipped base there."""
    if not (BASE / "config.json").exists():
        pytest.skip("models/base-frontend is missing: git pull, or make base-model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweetrl.browser.renderer.Renderer", Sketches)
    monkeypatch.setattr("sweetrl.frontend.rewards.make_reward", lambda settings: Alike())
    for split in ("train", "test"):
        write_task_table(Path(f"data/tasks/{split}.parquet"), generate(split, 4, 1))  # type: ignore[arg-type]
    model = {"base": str(BASE), "device": "cpu", "threads": 1}
    agent = {"max_turns": 4, "max_new_tokens": 128}
    return lambda **changes: settings(model=model, agent=agent, evaluate={"resamples": 100}, **changes)


def kind_counts(dialogues: Iterable[Trajectory]) -> Counter[str]:
    return Counter(FRONTEND.reply_type(turn.raw) for dialogue in dialogues for turn in dialogue.turns)


@pytest.mark.slow
def test_a_policy_of_pages_learns_from_its_own_attempts(
    small: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GRPO: attempts by the current policy, whose rewards say how much their last pages are like the reference."""
    monkeypatch.setattr("sweetrl.stages.scratch.shutil.rmtree", lambda *_, **__: None)  # to look at the scratch
    grpo = {"learning_rate": 1e-3, "iterations": 2, "tasks": 2, "group_size": 4, "batch_size": 4, "micro_batch_size": 4}
    train_policy(small(method="grpo", collect={"tasks": 4, "batch": 8, "shard": 8}, grpo=grpo | {"lora": {"rank": 4}}))
    assert "4 steps on 16 dialogues of its own" in capsys.readouterr().out
    (scratch,) = Path(".scratch").glob("train-policy-*")
    folders = [scratch / f"iteration-{iteration:04d}" for iteration in range(2)]
    collected = [list(TrajectoryStore(folder / "dialogues").read()) for folder in folders]
    tasks = read_task_table(Path("data/tasks/train.parquet"))
    for chosen, dialogues in zip((tasks[:2], tasks[2:]), collected, strict=True):
        attempts = [(task, number) for task in chosen for number in range(4)]
        for dialogue, attempt in zip(dialogues, attempts, strict=True):
            assert (dialogue.task, dialogue.attempt) == attempt and dialogue.extra["reward"] == "alike"
            assert dialogue.answer == last_page(dialogue.messages)
        assert kind_counts(dialogues)["page"] > 8, "the base shows pages before it answers"
        rewards = {dialogue.reward or 0.0 for dialogue in dialogues}
        assert len(rewards) > 2 and max(rewards) > 0.3
    weights = [folder / "adapter/adapter_model.safetensors" for folder in folders]
    weights.append(Path("models/policy/adapter_model.safetensors"))
    assert len({path.read_bytes() for path in weights}) == 3, "what the attempts are worth has changed the policy"
    run = read_json(Path("reports/runs/train-policy.json"))
    assert run["metrics"]["groups_with_signal"] > 0.0


@pytest.mark.slow
def test_the_page_that_a_critic_likes_best_is_shown(
    small: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    """Best-of-N: who knows the details picks better pages than chance does."""
    demanding = {"options": {"differences": 1}}  # who names one thing at a time leaves room for choices
    stage.best_of_n(small(simulator=demanding, best_of_n={"tasks": 4, "max_n": 4, "batch": 4}))
    results = read_json(BEST_OF_N)
    rewards = {
        name: [place["reward"]["value"] for place in places if place["n"] in (1, 4)]
        for name, places in results["curves"].items()
    }
    critics = ("random", "oracle", "privileged-ratio")
    assert set(rewards) == {f"{name}{end}" for name in critics for end in ("", " with prior")}
    assert rewards["random"][0] == rewards["oracle"][0], "with one reply nobody has a choice"
    assert rewards["oracle"][1] > max(rewards["oracle"][0], rewards["random"][1]) + 0.02
    assert len(results["points"]) == 4 * 6 * 3 and all(0.0 <= point["reward"] <= 1.0 for point in results["points"])
    assert "success at N = 4: privileged-ratio" in capsys.readouterr().out


@pytest.mark.parametrize("blind", [False, True])
def test_somebody_at_the_terminal_talks_about_pages_that_they_open_in_a_browser(
    blind: bool, fake_server: Any, small: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sweetrl play`, with an agent that listens and somebody who types what the scripted user would say."""
    task = read_task_table(Path("data/tasks/test.parquet"))[2]
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
