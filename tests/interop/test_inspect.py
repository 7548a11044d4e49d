"""Domains as tasks of inspect_ai: real evaluations of scripted models, whose dialogues are those of sweetrl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="needs inspect_ai: pip install 'sweetrl[inspect]'")

import inspect_ai
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessageAssistant, ModelOutput, ModelUsage, get_model

import sweetrl
from sweetrl.backend.suite.agents import OracleAgent
from sweetrl.errors import UserError
from sweetrl.interop import inspect as adapter
from sweetrl.interop.inspect import colbench, colbench_reward
from sweetrl.types import Message, Task, Trajectory
from tests.interop.shared import FORMS, Agent, check_hidden, example, tasks_of


def clerk(task: Task, messages: tuple[Message, ...]) -> str:
    """An agent for Forms that reads the answer in the task: asks twice (once for nothing), then fills the form."""
    turn = sum(message.role == "assistant" for message in messages)
    return ["I wonder. OUTPUT:Which day?", "Under which name?", f"I WANT TO ANSWER:\n{task.ground_truth}"][turn]


def wrong(task: Task, messages: tuple[Message, ...]) -> str:
    return "I WANT TO ANSWER:\ndef f():\n    return 'rubbish'"


def mock(tasks: list[Task], agent: Agent) -> Any:
    """Inspect's own mock model, which says what `agent` says."""
    task_of = {task.problem_description: task for task in tasks}
    assert len(task_of) == len(tasks), "take another seed: two requests are alike"

    def output(messages: list[Any], *_: Any) -> ModelOutput:
        heard = tuple(Message(message.role, message.text) for message in messages if message.role != "system")
        completion = ModelOutput.from_content("mockllm/model", agent(task_of[heard[0].content], heard))
        completion.usage = ModelUsage(output_tokens=1)  # else it counts tokens, by a file from the internet
        return completion

    return get_model("mockllm/model", custom_outputs=output)


def evaluated(tmp_path: Path, task: Any, model: Any, **more: Any) -> EvalLog:
    """Evaluate, and return the log as it is in its file."""
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", **more)
    return inspect_ai.log.read_eval_log(log.location)


def by_sweetrl(world: Any, task: Task, seed: int, agent: Agent, attempt: int = 0) -> Trajectory:
    talk = world.begin(task, seed, attempt)
    messages = [Message("user", talk.request)]  # with the agent's thoughts, which the user does not see
    while not talk.done:
        messages.append(Message("assistant", agent(task, tuple(messages))))
        words = talk.say(messages[-1].content)
        messages.append(Message("user", words or ""))
    return talk.score()


def same(sample: Any, spoken: Trajectory) -> None:
    """The sample holds the dialogue (the agent's raw words, the user's as they are) and its score."""
    raw = {turn.message_index: turn.raw for turn in spoken.turns}
    expected = [(message.role, raw.get(index, message.content)) for index, message in enumerate(spoken.messages)]
    assert [(message.role, message.text) for message in sample.messages[1:]] == expected
    (score,) = sample.scores.values()
    assert score.value == {"reward": spoken.reward, "success": float(spoken.success)}
    assert score.answer == spoken.answer
    assert score.metadata == {"outcome": spoken.outcome, "turns": len(spoken.turns), "parts": spoken.parts}


def means(log: EvalLog) -> dict[str, float]:
    assert log.results is not None
    return {score.name: score.metrics["mean"].value for score in log.results.scores}


@pytest.mark.parametrize(("name", "agent"), [("backend", OracleAgent().act), ("backend", wrong), (FORMS, clerk)])
def test_dialogues_are_those_of_sweetrl(name: str, agent: Agent, tmp_path: Path) -> None:
    domain = sweetrl.domain(name, agent={"prompt": "full"})
    tasks = tasks_of(domain, "test", 3, 12)
    log = evaluated(tmp_path, colbench(name, count=3, seed=12), mock(tasks, agent), epochs=2)
    assert log.status == "success" and log.samples is not None and len(log.samples) == 6
    rewards = []
    with sweetrl.opened(domain) as world:
        for sample in log.samples:
            task = next(candidate for candidate in tasks if candidate.id == sample.id)
            spoken = by_sweetrl(world, task, 12, agent, sample.epoch - 1)
            same(sample, spoken)
            assert sample.messages[0].text == domain.system_prompt("full")
            rewards.append((spoken.reward, spoken.success))
    expected = [sum(column) / 6 for column in zip(*rewards, strict=True)]
    assert [means(log)["reward"], means(log)["success"]] == pytest.approx(expected)
    assert (expected[0] == 0.0) == (agent is wrong)
    assert log.results is not None
    assert all({"mean", "stderr"} == set(score.metrics) for score in log.results.scores)


def test_logs_hold_nothing_that_is_hidden(tmp_path: Path) -> None:
    tasks = tasks_of(sweetrl.domain("backend"), "test", 2, 11)
    log = evaluated(tmp_path, colbench("backend", count=2, seed=11), mock(tasks, wrong))
    check_hidden(tasks, log.model_dump_json())
    assert log.samples is not None
    assert [sample.metadata["sweetrl"]["place"] for sample in log.samples] == [0, 1]


def test_settings_and_a_parameter_file(tmp_path: Path) -> None:
    params = tmp_path / "mine.yaml"
    params.write_text("agent: {max_turns: 2}\nseed: 4\n", encoding="utf-8")
    domain = sweetrl.domain("backend", params)
    tasks = tasks_of(domain, "train", 1, 4)
    settings = {"agent": {"prompt": "single"}}
    task = colbench("backend", "train", 1, params=str(params), settings=settings)
    log = evaluated(tmp_path, task, mock(tasks, lambda task, messages: "Is there a limit?"))
    assert log.samples is not None
    (sample,) = log.samples
    assert sample.messages[0].text == domain.system_prompt("single")
    (score,) = sample.scores.values()
    assert score.value == {"reward": 0.0, "success": 0.0}
    assert score.metadata == {"outcome": "max_turns_reached", "turns": 2, "parts": {}}


def test_a_log_can_be_scored_again(tmp_path: Path) -> None:
    tasks = tasks_of(sweetrl.domain(FORMS), "test", 2, 3)
    log = evaluated(tmp_path, colbench(FORMS, count=2, seed=3), mock(tasks, clerk))
    again = inspect_ai.score(log, colbench_reward(FORMS), action="overwrite", display="none")
    assert means(again) == means(log) and means(log)["reward"] > 0
    assert log.samples is not None
    answer = next(message for message in reversed(log.samples[0].messages) if isinstance(message, ChatMessageAssistant))
    answer.content = "I WANT TO ANSWER:\nday: never"
    again = inspect_ai.score(log, colbench_reward(FORMS), action="overwrite", display="none")
    (left,) = (score.value["reward"] for score in log.samples[1].scores.values())
    assert means(again)["reward"] == left / 2
    with pytest.raises(UserError, match="there is another one at place"):
        inspect_ai.score(log, colbench_reward("backend"), action="overwrite", display="none")


def test_a_dialogue_that_a_limit_breaks_off_has_no_answer(tmp_path: Path) -> None:
    tasks = tasks_of(sweetrl.domain(FORMS), "test", 1, 3)
    log = evaluated(tmp_path, colbench(FORMS, count=1, seed=3, prompt="short"), mock(tasks, clerk), message_limit=4)
    assert log.samples is not None
    (sample,) = log.samples
    assert sample.limit is not None and sample.limit.type == "message"
    assert sample.messages[0].text == sweetrl.domain(FORMS).system_prompt("short")
    (score,) = sample.scores.values()
    assert score.value == {"reward": 0.0, "success": 0.0} and score.answer is None
    assert score.metadata is not None and score.metadata["outcome"] == "broken_off"
    # A last reply that nobody has heard is no answer either.
    sample.messages.append(ChatMessageAssistant(content=f"I WANT TO ANSWER:\n{tasks[0].ground_truth}"))
    again = inspect_ai.score(log, colbench_reward(FORMS), action="overwrite", display="none")
    assert means(again)["reward"] == 0.0


def test_users_who_leave_and_users_who_do_not_work(own_code: Any, tmp_path: Path) -> None:
    own_code(
        tmp_path,
        "from sweetrl.errors import SimulatorError, UserLeft\n"
        "class Odd:\n    name = 'odd'\n"
        "    def reply(self, task, messages, seed):\n"
        "        raise SimulatorError('gone') if 'name' in messages[-1].content else UserLeft()\n",
    )
    settings = {"simulator": {"kind": "mine:Odd"}}
    tasks = tasks_of(sweetrl.domain(FORMS), "test", 1, 3)
    task = colbench(FORMS, count=1, seed=3, settings=settings)
    left = evaluated(tmp_path, task, mock(tasks, lambda task, messages: "Which day?"))
    assert left.samples is not None and left.samples[0].scores is not None
    (score,) = left.samples[0].scores.values()
    assert score.metadata == {"outcome": "user_left", "turns": 1, "parts": {"right": 0.0, "brief": 0.0}}
    assert score.answer == "Which day?"
    lost = evaluated(tmp_path, task, mock(tasks, lambda task, messages: "Under which name?"))
    assert lost.status == "error" and lost.error is not None
    assert "the dialogue is lost: gone" in lost.error.message


def test_bad_input_is_one_sentence() -> None:
    for arguments, sentence in (
        ({"split": "both"}, "split: `both` is not known; take train or test"),
        ({"count": 0}, "count: 0 tasks are none"),
        ({"settings": {"params": "x"}}, "there is no section `params`"),
    ):
        with pytest.raises(UserError, match=sentence):
            colbench(**{"domain": FORMS, "count": 1} | arguments)  # type: ignore[arg-type]


def test_the_modules_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The module's example, with two tasks and a model of this machine."""
    text = example(adapter, "import inspect_ai", {"count=50": "count=2", '"openai/gpt-4o-mini"': "model"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    exec(text, {"model": mock(tasks_of(sweetrl.domain("backend"), "test", 2, 7), OracleAgent().act)})
    assert capsys.readouterr().out.splitlines()[-2:] == ["reward 1.0 0.0", "success 1.0 0.0"]
