"""The command line, as a user meets it: what it prints, and what it says when something is wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.cli import main, show
from sweetrl.colbench.find import find_domain, load_domain
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings
from sweetrl.console.screen import Screen
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError, missing_extra
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory

BACKEND = find_domain("backend")
TASK = Task(
    id="t-1",
    problem_description="I want a function for the price of a ticket. def price(hours)",
    ground_truth="def price(hours):\n    return hours * 7",
    test_cases=tuple((f"test{i}", f"price({i})") for i in range(1, 4)),
    hidden_information="rate: 7",
)
TURN = AgentTurn(
    message_index=1, raw="What is the rate?", token_ids=(1, 2, 3), logprobs=(-0.5, -0.5, -0.5), finish_reason="stop"
)
TRAJECTORY = Trajectory(
    task=TASK,
    attempt=0,
    messages=(
        Message("user", TASK.problem_description),
        Message("assistant", "What is the rate?"),
        Message("user", "It is 7.\x1b[2J"),
        Message("assistant", "I WANT TO ANSWER:\n```python\ndef price(hours):\n    return hours * 7\n```"),
    ),
    turns=(TURN, AgentTurn(message_index=3, raw="", token_ids=(4,), logprobs=(0.0,), finish_reason="length")),
    answer="\n```python\ndef price(hours):\n    return hours * 7\n```",
    reward=2 / 3,
    tests=(
        TestResult("test1", True, "passed"),
        TestResult("test2", True, "passed"),
        TestResult("test3", False, "exception", "ValueError: no"),
    ),
    policy="models/base",
    simulator="scripted",
)


def sweetrl(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program itself, with the embedded store: MLflow leaves the last test's address in the environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_TRACKING")}
    return subprocess.run(
        [sys.executable, "-m", "sweetrl.cli", *arguments],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def wide() -> Screen:
    return Screen(file=StringIO(), width=160, color_system=None)


def printed(console: Screen) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trajectories"
    other = replace(TRAJECTORY, task=replace(TASK, id="t-2"), policy="models/policy", reward=1.0)
    TrajectoryStore(path).write_shard(0, [TRAJECTORY, replace(TRAJECTORY, attempt=1, reward=None, tests=()), other])
    return path


def test_run_without_the_pipelines_packages_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "prefect" else name)
    monkeypatch.setattr(os, "execv", lambda *arguments: pytest.fail("the flow was started"))
    result = CliRunner().invoke(main.app, ["run"])
    message = missing_extra(result.exception) if isinstance(result.exception, ImportError) else None
    assert str(message) == "prefect is not installed; it comes with an extra: pip install 'sweetrl[pipeline]'."


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = sweetrl("run", cwd=tmp_path, SWEETRL_DEBUG="1")
    assert "Traceback" in done.stderr


def missing(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(28, "No space left on device", "data/x"), "data/x: no space left on the disk; free some"),
        (PermissionError(13, "Permission denied", "data/x"), "data/x: permission denied"),
        (missing("mlflow.tracking"), "error: mlflow is not installed; it comes with an extra: pip install 'sweetrl[pi"),
        (missing("ray"), "pip install 'sweetrl[ray]'.\n"),
    ],
    ids=str,
)
def test_what_the_machine_refuses_or_lacks_is_one_sentence(
    error: OSError, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(**options: Any) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 1
    assert expected in capsys.readouterr().err


def test_an_import_that_no_extra_brings_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: Any) -> None:
        raise missing("sweetrl.gone")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(ModuleNotFoundError, match=r"sweetrl\.gone"):
        main.main()


def test_score_writes_the_verdicts(tmp_path: Path, write_tasks: Callable[..., Path]) -> None:
    write_tasks(tmp_path / "tasks.jsonl", [TASK, replace(TASK, id="t-2")])
    rows = [{"index": 1, "answer": TASK.ground_truth}, {"index": 0, "answer": "def price(hours):\n    return 7"}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "params.yaml").write_text("reward: {semantics: official}\n")
    words = "score --tasks tasks.jsonl --answers answers.jsonl --json out.json"
    done = sweetrl(*words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "semantics\tofficial" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    assert [row["index"] for row in written["results"]] == [1, 0]
    assert [row["score"] for row in written["results"]] == [1.0, pytest.approx(1 / 3)]


def test_sandbox_run_prints_each_call(tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_text("def f(x):\n    return [x, 1 / x]\n")
    result = CliRunner().invoke(main.app, ["sandbox", "run", str(path), "--call", "f(2)", "--call", "f(0)"])
    assert result.exit_code == 0, result.output
    assert "f(2) -> [2, 0.5]" in result.output
    assert "ZeroDivisionError" in result.output


def test_show_lists_what_there_is(folder: Path) -> None:
    console = wide()
    show.list_trajectories(console, folder, BACKEND, None, limit=2)
    assert "t-1" in printed(console)
    assert "and 1 more" in printed(console)


def test_show_prints_one_trajectory(folder: Path) -> None:
    console = wide()
    show.show_trajectory(console, show.find(folder, BACKEND, "t-1", 0), BACKEND, privileged=False)
    text = printed(console)
    for part in ("What is the rate", "3 tokens, perplexity 1.65", "cut at the limit", "ValueError: no", "0.67 (2 of"):
        assert part in text, part
    assert "rate: 7" not in text  # the training-time information is shown only on demand
    assert "\x1b" not in text  # nor do a user's or a model's words steer the terminal

    console = wide()
    show.show_trajectory(console, show.find(folder, BACKEND, "0", 1), BACKEND, privileged=True)
    assert "rate: 7" in printed(console)
    assert "not scored" in printed(console)


def test_show_finds_by_number_and_policy_and_says_what_is_missing(folder: Path) -> None:
    assert show.find(folder, BACKEND, "1", 0).task.id == "t-2"
    assert show.find(folder, BACKEND, "0", 0, policy="policy").task.id == "t-2"
    for task, attempt, expected in (("t-1", 7, "attempts 0, 1"), ("nobody", 0, "lists what there is"), ("9", 0, "'9'")):
        with pytest.raises(UserError, match=expected):
            show.find(folder, BACKEND, task, attempt)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, fake_server: Any) -> Callable[..., tuple[Trajectory, str]]:
    """A function that plays with an agent whose replies are prepared; the dialogue, and what was printed."""

    def play_it(replies: tuple[str, ...], typed: str) -> tuple[Trajectory, str]:
        monkeypatch.setattr(sys, "stdin", StringIO(typed))
        user = show.TerminalUser(wide(), BACKEND)
        remaining = iter(replies)
        with fake_server(reply=lambda body: next(remaining)) as server:
            trajectory = show.play(BACKEND, user, TASK, Policy.server(server.url, model="m"), seed=0)
        assert "folder" not in vars(user), "a program is shown in the terminal: no folder is left behind"
        return trajectory, printed(user.console)

    return play_it


def test_play_scores_what_the_agent_made_of_a_users_words(played: Any) -> None:
    answer = "I WANT TO ANSWER:\n```python\ndef price(hours):\n    return hours * 7\n```"
    trajectory, text = played(("What is the rate?", answer), "It is 7.\n")
    assert [message.content for message in trajectory.messages][1:3] == ["What is the rate?", "It is 7."]
    assert trajectory.success
    assert "reward 1.00 (3 of 3 tests): success" in text


def test_play_says_when_the_last_turn_is_the_answer(played: Any) -> None:
    turns = BACKEND.settings.agent.max_turns
    trajectory, text = played(("Well?",) * turns, "No.\n" * turns)
    assert (trajectory.outcome, trajectory.answer, trajectory.reward) == ("max_turns_reached", "Well?", 0.0)
    assert "Out of turns: the last reply is the answer." in text


def test_play_ends_when_the_user_leaves(played: Any) -> None:
    trajectory, text = played(("What is the rate?",), "")
    assert trajectory.outcome == "lost" and "you left the dialogue" in text


def test_play_talks_with_a_real_model_through_a_pipe(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task_table(tmp_path / "tasks.parquet", [TASK])
    settings = f"model: {{base: {tiny_model}}}\nagent: {{max_turns: 3, max_new_tokens: 8}}\n"
    (tmp_path / "params.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    arguments = ["play", "t-1", "--tasks", "tasks.parquet"]
    result = CliRunner().invoke(main.app, arguments, input="It is 7.\nNo.\nI do not know.\n")
    assert result.exit_code == 0, result.output
    assert "rate: 7" in result.output
    assert "reward 0.00" in result.output


def test_nobody_talks_with_a_critic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task_table(tmp_path / "tasks.parquet", [TASK])
    critic = tmp_path / "models" / "critic"
    critic.mkdir(parents=True)
    (critic / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    (critic / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main.app, ["play", "t-1", "--tasks", "tasks.parquet", "--model", "models/critic"])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith("models/critic: this is a critic, which does not talk")


def test_a_task_that_nobody_will_make_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a table of tasks they are made up to the one that is asked for."""
    monkeypatch.chdir(tmp_path)
    few = load_domain(Settings(tasks=Settings().tasks.model_copy(update={"test": 3})))
    later = load_domain(Settings(tasks=few.settings.tasks.model_copy(update={"test_first": 2})))
    assert show.find_task("0002", None, few) == show.find_task("2", None, few) == show.find_task("0", None, later)
    for number in ("3", "9" * 400, "9" * 5000, "t-1"):
        with pytest.raises(UserError, match="give a number from 0 to 2"):
            show.find_task(number, None, few)
    monkeypatch.setattr(show, "own_tasks", lambda domain, split, count: [TASK])
    with pytest.raises(UserError, match=r"no test task behind the first 2; lower `tasks\.test_first`"):
        show.find_task("0", None, later)


@pytest.mark.usefixtures("browser")
def test_browser_render_writes_the_picture(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<h1>Head</h1>")
    done = sweetrl("browser", "render", "page.html", "--out", "page.png", "--json", "page.json", cwd=tmp_path)
    assert "status\tok" in done.stdout
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "page.json").read_text())["elements"][0]["text"] == "Head"
