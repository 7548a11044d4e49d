"""The command line, as a person meets it: what it prints, and what it says when something is wrong."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sweetrl import __version__, cli, doctor, play, show
from sweetrl.colbench.files import write_tasks, write_trajectories
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.errors import UserError
from sweetrl.settings import Settings
from sweetrl.types import AgentTurn, Completion, Message, Task, TestResult, Trajectory

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


def wide() -> Console:
    return Console(file=StringIO(), width=160, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trajectories"
    other = replace(TRAJECTORY, task=replace(TASK, id="t-2"), policy="models/policy", reward=1.0)
    TrajectoryStore(path).write_shard(0, [TRAJECTORY, replace(TRAJECTORY, attempt=1, reward=None, tests=()), other])
    return path


def test_help_names_every_command():
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    for name in ("run", "score", "sandbox", "browser", "play", "show", "lineage", "doctor", "version"):
        assert name in result.output


@pytest.mark.parametrize(
    "command", ["run", "score", "play", "show", "lineage", "doctor", "version", "sandbox run", "browser render"]
)
def test_every_command_explains_itself(command: str):
    result = CliRunner().invoke(cli.app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_version():
    assert CliRunner().invoke(cli.app, ["version"]).output.strip() == f"sweetrl {__version__}"


def test_run_outside_of_a_project_is_one_sentence(tmp_path: Path):
    done = sweetrl("run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "run from the project's root" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_becomes_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").touch()
    monkeypatch.chdir(tmp_path)
    called: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *arguments: called.append(arguments))
    assert CliRunner().invoke(cli.app, ["run"]).exit_code == 0
    assert called == [(sys.executable, [sys.executable, "-m", "flows.train"])]


def test_debug_shows_the_traceback(tmp_path: Path):
    done = sweetrl("run", cwd=tmp_path, SWEETRL_DEBUG="1")
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "data/x"), "data/x: no space left on device"),
        (PermissionError(13, "Permission denied", "data/x"), "data/x: permission denied"),
    ],
)
def test_the_systems_refusals_are_one_sentence(error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    assert said in capsys.readouterr().err


def test_score_writes_the_verdicts(tmp_path: Path):
    tasks, answers, out = tmp_path / "tasks.jsonl", tmp_path / "answers.jsonl", tmp_path / "out.json"
    write_tasks(tasks, [TASK, replace(TASK, id="t-2")])
    rows = [{"index": 1, "answer": TASK.ground_truth}, {"index": 0, "answer": "def price(hours):\n    return 7"}]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = sweetrl(
        "score",
        "--tasks",
        str(tasks),
        "--answers",
        str(answers),
        "--semantics",
        "official",
        "--json",
        str(out),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "semantics\tofficial" in done.stdout
    written = json.loads(out.read_text())
    assert [row["index"] for row in written["results"]] == [1, 0]
    assert [row["score"] for row in written["results"]] == [1.0, pytest.approx(1 / 3)]


def test_score_names_the_broken_line(tmp_path: Path):
    tasks, answers = tmp_path / "tasks.jsonl", tmp_path / "answers.jsonl"
    write_tasks(tasks, [TASK])
    answers.write_text('{"index": 0, "answer": "x"}\n{"index": 0, "ans\n')
    done = sweetrl("score", "--tasks", str(tasks), "--answers", str(answers), cwd=tmp_path)
    assert done.returncode == 1
    assert "answers.jsonl: line 2" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_parameter_is_named(tmp_path: Path):
    (tmp_path / "params.yaml").write_text("colect: {tasks: 1}\n")
    done = sweetrl("lineage", cwd=tmp_path)
    assert done.returncode == 1
    assert "unknown parameter `colect`" in done.stderr


def test_sandbox_run_prints_each_call(tmp_path: Path):
    path = tmp_path / "f.py"
    path.write_text("def f(x):\n    return [x, 1 / x]\n")
    result = CliRunner().invoke(cli.app, ["sandbox", "run", str(path), "--call", "f(2)", "--call", "f(0)"])
    assert result.exit_code == 0, result.output
    assert "f(2) -> [2, 0.5]" in result.output
    assert "ZeroDivisionError" in result.output


def test_show_lists_what_there_is(folder: Path):
    console = wide()
    show.list_trajectories(console, folder, None, limit=2)
    assert "t-1" in printed(console)
    assert "and 1 more" in printed(console)


def test_show_prints_one_trajectory(folder: Path):
    console = wide()
    show.show_trajectory(console, folder, "t-1", 0, None, privileged=False)
    text = printed(console)
    for part in (
        "What is the rate?",
        "3 tokens, perplexity 1.65",
        "cut at the limit",
        "ValueError: no",
        "reward 0.67 (2 of 3 tests)",
    ):
        assert part in text, part
    assert "rate: 7" not in text  # the training-time information is shown only on demand
    assert "\x1b" not in text  # nor do a person's or a model's words steer the terminal


def test_show_privileged_prints_the_reference(folder: Path):
    console = wide()
    show.show_trajectory(console, folder, "0", 1, None, privileged=True)
    assert "rate: 7" in printed(console)
    assert "not scored" in printed(console)


def test_show_finds_by_number_and_policy(folder: Path):
    assert show.find(folder, "1", 0).task.id == "t-2"
    assert show.find(folder, "0", 0, policy="policy").task.id == "t-2"


@pytest.mark.parametrize(
    ("task", "attempt", "said"), [("t-1", 7, "attempts 0, 1"), ("nobody", 0, "lists what there is"), ("9", 0, "'9'")]
)
def test_show_says_what_is_missing(folder: Path, task: str, attempt: int, said: str):
    with pytest.raises(UserError, match=said):
        show.find(folder, task, attempt)


def test_show_reads_official_files(tmp_path: Path):
    path = tmp_path / "official.jsonl"
    write_trajectories(path, [TRAJECTORY, replace(TRAJECTORY, attempt=1)], attempts=2)
    assert show.find(path, "0", 1).messages == TRAJECTORY.messages


def test_show_without_a_pipeline_says_what_to_do(tmp_path: Path):
    done = sweetrl("show", "t-1", cwd=tmp_path)
    assert done.returncode == 1
    assert "sweetrl run" in done.stderr


class SpeakingEngine:
    """An agent that says prepared replies."""

    name = "prepared"

    def __init__(self, *replies: str):
        self.replies = list(replies)

    def session(self) -> "SpeakingEngine":
        return self

    def sample(self, prompts: Any, sampling: Any) -> list[list[Completion]]:
        return [[Completion((1,), (0.0,), self.replies.pop(0), "stop")] for _ in prompts]

    def close(self) -> None:
        pass


class SilentChat:
    def open(self, system: str | None, request: str) -> tuple[int, ...]:
        return (1,)

    def follow(self, ended: bool, person: str) -> tuple[int, ...]:
        return (1,)


def played(engine: Any, typed: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Trajectory, str]:
    monkeypatch.setattr(sys, "stdin", StringIO(typed))
    console = wide()
    chat: Any = SilentChat()
    trajectory = play.play(Settings(), console, TASK, engine, chat, "prepared", seed=0)
    return trajectory, printed(console)


def test_play_scores_what_the_agent_made_of_a_persons_words(monkeypatch: pytest.MonkeyPatch):
    answer = "I WANT TO ANSWER:\n```python\ndef price(hours):\n    return hours * 7\n```"
    trajectory, text = played(SpeakingEngine("What is the rate?", answer), "It is 7.\n", monkeypatch)
    assert [message.content for message in trajectory.messages][1:3] == ["What is the rate?", "It is 7."]
    assert trajectory.success
    assert "reward 1.00 (3 of 3 tests): success" in text


def test_play_ends_when_the_person_leaves(monkeypatch: pytest.MonkeyPatch):
    trajectory, text = played(SpeakingEngine("What is the rate?"), "", monkeypatch)
    assert trajectory.outcome == "lost"
    assert "you left the dialogue" in text


def test_play_talks_with_a_real_model_through_a_pipe(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    write_task_table(tmp_path / "tasks.parquet", [TASK])
    settings = f"model: {{base: {tiny_model}}}\nagent: {{rounds: 3, max_new_tokens: 8}}\n"
    (tmp_path / "params.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    arguments = ["play", "t-1", "--tasks", "tasks.parquet"]
    result = CliRunner().invoke(cli.app, arguments, input="It is 7.\nNo.\nI do not know.\n")
    assert result.exit_code == 0, result.output
    assert "rate: 7" in result.output
    assert "reward 0.00" in result.output


def test_play_without_a_run_makes_tasks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    task = play.find_task("1", None, Settings())
    assert task == play.find_task("1", None, Settings())
    with pytest.raises(UserError, match="give a number"):
        play.find_task("t-1", None, Settings())


def test_play_names_the_tasks_there_are(tmp_path: Path):
    write_tasks(tmp_path / "tasks.jsonl", [TASK])
    assert play.find_task("t-1", tmp_path / "tasks.jsonl", Settings()) == play.find_task(
        "0", tmp_path / "tasks.jsonl", Settings()
    )
    with pytest.raises(UserError, match="the first is 't-1'"):
        play.find_task("t-9", tmp_path / "tasks.jsonl", Settings())


def test_lineage_of_an_empty_registry_says_what_to_do(tmp_path: Path):
    done = sweetrl("lineage", cwd=tmp_path)
    assert done.returncode == 1
    assert "no version is registered yet" in done.stderr


def findings(*looks: Any) -> dict[str, doctor.Check]:
    return {check.name: check for look in looks for check in look()}


def test_doctor_finds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("model: {base: models/base}\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "requirements.lock").write_text("no-such-package-here==1.0\npydantic==0.1\n")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    found = findings(doctor.packages, doctor.project, doctor.services, doctor.git)
    assert found["packages"].status == "fail"
    assert "no-such-package-here missing (locked 1.0)" in found["packages"].seen
    assert found["base model"].status == "fail"
    assert "make base-model" in found["base model"].advice
    assert found["mlflow server"].status == "fail"
    assert found["prefect server"].status == "ok"
    assert found["git"].status == "warn"
    assert all(check.advice for check in found.values() if check.status != "ok")


def test_doctor_is_content_here():
    found = findings(doctor.python, doctor.tools, doctor.memory, doctor.isolation, doctor.torch, doctor.browser)
    assert {check.status for check in found.values()} <= {"ok", "warn"}, found


def test_doctor_names_bad_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("sed: 1\n")
    assert "unknown parameter `sed`" in findings(doctor.project)["params.yaml"].seen


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    def broken() -> Any:
        raise RuntimeError("boom")

    for name in (
        "python",
        "packages",
        "tools",
        "git",
        "memory",
        "disk",
        "torch",
        "isolation",
        "project",
        "browser",
        "services",
    ):
        monkeypatch.setattr(doctor, name, broken)
    found = doctor.examine()
    assert {check.status for check in found} == {"fail"}
    assert "RuntimeError: boom" in found[0].seen


def test_doctor_fails_loudly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Check("base model", "fail", "gone", "`make base-model`")])
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 1
    assert "make base-model" in result.output
    result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert json.loads(result.output)[0]["status"] == "fail"


def test_browser_render_writes_the_picture(tmp_path: Path):
    from sweetrl.browser.binary import find_browser
    from sweetrl.errors import UserError

    try:
        find_browser()
    except UserError as error:
        pytest.skip(str(error))
    (tmp_path / "page.html").write_text("<h1>Head</h1>")
    done = sweetrl("browser", "render", "page.html", "--out", "page.png", "--json", "page.json", cwd=tmp_path)
    assert "status\tok" in done.stdout
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "page.json").read_text())["elements"][0]["text"] == "Head"


def test_browser_render_names_a_missing_file(tmp_path: Path):
    done = sweetrl("browser", "render", "none.html", "--out", "page.png", cwd=tmp_path)
    assert done.returncode == 1
    assert "none.html: there is no such file" in done.stderr
