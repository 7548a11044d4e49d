"""What the domain of pages says about replies, and what people see of them: in pair metrics and at a terminal."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweetrl.backend import Backend
from sweetrl.cli import main, show
from sweetrl.colbench.files import read_tasks, write_trajectories
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import EvaluateSettings, PretrainSettings, Settings
from sweetrl.console.screen import Screen
from sweetrl.evaluation import checks
from sweetrl.frontend import Frontend
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import demonstrate
from sweetrl.types import ANSWER_MARKER, AgentTurn, Message, Trajectory

FRONTEND = Frontend()
PAGE = '<html>\n<body class="bg-white">Welcome</body></html>'
QUESTION, SHOWN, ANSWER = "What colour is the header?", f"Is this better?\n{PAGE}", f"{ANSWER_MARKER}\n{PAGE}"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (QUESTION, "question"),
        (SHOWN, "page"),
        (PAGE, "page"),
        (ANSWER, "answer"),
        (f"{ANSWER_MARKER} the last one", "answer"),
        (f"I will ask. {PAGE} OUTPUT: Red or blue?", "question"),
        (f"I will ask. OUTPUT: {PAGE}", "page"),
        ("<html>cut off", "question"),
    ],
)
def test_a_reply_is_a_question_a_page_or_the_answer(reply: str, kind: str) -> None:
    assert FRONTEND.reply_type(reply) == kind
    assert Backend().reply_type(reply) == ("answer" if kind == "answer" else "question")


@pytest.mark.parametrize("reward", [{"turn_cost": 0.01}, {"function": "mine:brief"}])
def test_where_the_reward_is_no_likeness_the_report_is_the_usual_one(reward: dict[str, object]) -> None:
    domain = FRONTEND.configured(Settings.model_validate({"suite": "frontend", "reward": reward}))
    assert domain.examine({}, [], None, EvaluateSettings()) == ({}, None)
    assert domain.shown_labels.reward == "Mean reward" and domain.shown_labels.success == "Equal to the reference"


def test_what_the_prompts_ask_for_in_every_page_is_no_secret() -> None:
    style = "https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css"
    link = f'Put in <link href="{style}" rel="stylesheet">'
    for task in generate("train", 5, seed=3):
        dialogue = Trajectory(task, 0, (Message("user", task.problem_description),))
        fragments = FRONTEND.hidden_fragments(task)
        for system in (*map(FRONTEND.system_prompt, ("short", "full", "single")), link):
            assert checks.leak(dialogue, fragments, system) is None
        for number, line in enumerate(task.ground_truth.splitlines(), start=1):
            if line.startswith(("<header", "<section")):
                assert (
                    checks.leak(dialogue, fragments, f"{link} {line}")
                    == f"the system prompt holds line {number} of the reference"
                )


def test_no_prompt_gives_a_real_page_away(real_frontend_tasks: Path) -> None:
    for task in read_tasks(real_frontend_tasks, FRONTEND):
        dialogue = Trajectory(task, 0, (Message("user", task.problem_description),))
        fragments = FRONTEND.hidden_fragments(task)
        assert fragments
        for name in ("short", "full", "single"):
            assert checks.leak(dialogue, fragments, FRONTEND.system_prompt(name)) is None


# At a terminal


def test_a_message_is_words_and_a_page() -> None:
    assert FRONTEND.display(SHOWN) == [("", "Is this better?"), ("html", PAGE)]
    assert FRONTEND.display(f"{PAGE}\nBetter?") == [("html", PAGE), ("", "Better?")]
    assert FRONTEND.display(QUESTION) == [("", QUESTION)]
    assert FRONTEND.file_of(SHOWN) == (".html", PAGE) and FRONTEND.file_of(QUESTION) is None


def demonstrated(quality: float, number: int) -> Trajectory:
    task = TASKS[number]
    messages = demonstrate(task, PretrainSettings(poorest=quality, best=quality, informed=0.0), 5, 3).messages
    turns = tuple(
        AgentTurn(place, message.content, (1, 2), (-0.5, -0.5))
        for place, message in enumerate(messages)
        if message.role == "assistant"
    )
    answer, outcome = FRONTEND.final_answer(messages), FRONTEND.outcome(messages)
    return Trajectory(task, 0, messages, turns, answer, 0.8125, outcome=outcome, policy="base", simulator="scripted")


TASKS = list(generate("test", 2, 3, 2))
DIALOGUES = [demonstrated(0.5, 0), demonstrated(1.0, 1)]


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the dialogues as shards and as an official file, and no params.yaml: programs are the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    TrajectoryStore(Path("data/trajectories")).write_shard(0, DIALOGUES)
    write_trajectories(Path("official.jsonl"), DIALOGUES, 1)
    return tmp_path


def sweetrl(*words: str) -> str:
    done = CliRunner().invoke(main.app, list(words))
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.output


@pytest.mark.parametrize(
    "source", [(), ("--dialogues", "official.jsonl", "--suite", "frontend")], ids=["shards", "official file"]
)
def test_show_prints_a_dialogue_about_a_page(source: tuple[str, ...], collected: Path) -> None:
    text = sweetrl("show", TASKS[1].id, *source)
    assert DIALOGUES[1].messages[2].content in text, "what the user said"
    for reply in DIALOGUES[1].messages[1::2]:
        assert all(line in text for line in reply.content.splitlines()), "words and pages of the agent"
    assert "reward 0.81: no success" in text and "hidden tests" not in text
    assert ("2 tokens, perplexity 1.65" in text) == (not source), "official files know no tokens"
    facts = (TASKS[1].hidden_information or "").splitlines()
    assert facts and not any(fact in text for fact in facts), "the training-time information is shown only on demand"
    text = sweetrl("show", "1", "--privileged", *source)
    assert all(fact in text for fact in facts) and "reference (training time only)" in text


def test_a_page_in_a_reply_cannot_steer_the_terminal(tmp_path: Path) -> None:
    hostile = replace(
        DIALOGUES[0], messages=(*DIALOGUES[0].messages[:1], Message("assistant", SHOWN.replace("Welcome", "\x1b[2J")))
    )
    TrajectoryStore(tmp_path).write_shard(0, [hostile])
    console = Screen(file=StringIO(), width=160, color_system=None)
    show.show_trajectory(console, show.find(tmp_path, FRONTEND, "0", 0), FRONTEND, privileged=False)
    assert isinstance(console.file, StringIO)
    assert "\x1b" not in console.file.getvalue() and "\ufffd[2J" in console.file.getvalue()
