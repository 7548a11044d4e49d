"""Domains as environments of TRL: the real GRPOTrainer, and dialogues by tools that are those of sweetrl."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs TRL: pip install 'sweetrl[trl]'")
pytest.importorskip("datasets", reason="needs datasets: pip install 'sweetrl[trl]'")

import sweetrl
from sweetrl.backend.suite.agents import OracleAgent
from sweetrl.colbench.markers import marked_answer
from sweetrl.errors import UserError
from sweetrl.frontend.suite.agents import OracleAgent as OraclePageAgent
from sweetrl.interop import trl as adapter
from sweetrl.interop.trl import DialogueEnvironment, dataset, environment_factory, reward
from sweetrl.types import Message, Task
from tests.interop.shared import FORMS, Agent, by_sweetrl, check_hidden, clerk, example, tasks_of

BEGIN, END = "<|im_start|>", "<|im_end|>"


def called(reply: str) -> tuple[str, dict[str, str]]:
    """The tool call with the content of `reply`."""
    answer = marked_answer(reply)
    return ("say", {"message": reply}) if answer is None else ("submit", {"answer": answer.removeprefix("\n")})


def by_tools(environment: DialogueEnvironment, row: dict[str, Any], task: Task, agent: Agent) -> tuple[Message, ...]:
    """Let `agent` call the environment's tools until the dialogue ends; the dialogue as the agent knows it."""
    environment.reset(**row)
    messages = [Message("user", row["prompt"][-1]["content"])]
    for _ in range(20):
        messages.append(Message("assistant", agent(task, tuple(messages))))
        tool, arguments = called(messages[-1].content)
        words = getattr(environment, tool)(**arguments)
        if words == "The dialogue has ended.":
            return tuple(messages)
        messages.append(Message("user", words))
    raise AssertionError("the dialogue does not end")


@pytest.mark.parametrize(("name", "agent"), [("backend", OracleAgent().act), (FORMS, clerk)])
def test_the_same_dialogue_and_reward(name: str, agent: Agent) -> None:
    domain = sweetrl.domain(name)
    tasks = tasks_of(domain, "test", 3, 11)
    make = environment_factory(name)
    environments = [make() for _ in tasks]
    rows = list(dataset(name, "test", 3, 11))
    spoken = [by_sweetrl(domain, task, 11, agent) for task in tasks]
    for _ in range(2):  # environments are used again
        for environment, row, task, trajectory in zip(environments, rows, tasks, spoken, strict=True):
            assert by_tools(environment, row, task, agent) == trajectory.messages
        assert reward(environments) == [trajectory.reward for trajectory in spoken]
    assert all(trajectory.reward for trajectory in spoken)


@pytest.mark.usefixtures("browser")
def test_pages() -> None:
    domain = sweetrl.domain("frontend")
    (task,), (row,) = tasks_of(domain, "train", 1, 5), dataset("frontend", count=1, seed=5)
    good, bad = (environment_factory(domain)() for _ in range(2))
    agent = OraclePageAgent().act
    spoken = by_sweetrl(domain, task, 5, agent)
    assert by_tools(good, row, task, agent) == spoken.messages
    bad.reset(**row)
    bad.submit("<html><body>Nothing</body></html>")
    right, wrong = reward([good, bad])
    assert right == spoken.reward == 1.0
    assert wrong is not None and wrong < 0.9


def test_what_ends_a_dialogue_and_what_it_is_worth() -> None:
    options: dict[str, Any] = {"agent": {"max_turns": 3}}
    domain = sweetrl.domain("backend", **options)
    (task,), (row,) = tasks_of(domain, "train", 1, 2), dataset("backend", count=1, seed=2, **options)
    make = environment_factory("backend", **options)
    code = task.ground_truth

    def play(*calls: tuple[str, str]) -> DialogueEnvironment:
        environment = make()
        environment.reset(**row)
        for tool, text in calls:
            last = getattr(environment, tool)(text)
        if len(calls) > 1 or calls[0][0] == "submit":
            assert last == "The dialogue has ended."
            with pytest.raises(UserError, match="has ended"):
                environment.say("Hello?")
        return environment

    right = play(("submit", code))
    marked = play(("submit", f"I WANT TO ANSWER:\n{code}"))
    spoken = play(("say", "Is there a limit?"), ("say", f"I WANT TO ANSWER:\n{code}"))
    wrong = play(("submit", "def f():\n    return 'rubbish'"))
    late = play(("say", "Hm?"), ("say", "Hm?"), ("say", code))
    left = play(("say", "Is there a limit?"))
    logged: dict[str, Any] = {}
    rewards = reward([right, marked, spoken, wrong, late, left, object()], logged.__setitem__, logged.__setitem__)
    assert rewards == [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, None]
    assert logged["dialogues/success"] == pytest.approx(4 / 6)
    assert logged["dialogues/answered"] == pytest.approx(4 / 6)
    assert logged["outcome"] == ["answered"] * 4 + ["max_turns_reached"] * 2 + [""]


def test_an_answer_may_hold_the_other_marker() -> None:
    (row,) = dataset("backend", count=1, seed=2)
    environment = environment_factory("backend")()
    environment.reset(**row)
    assert environment.submit("def f():\n    return 'OUTPUT:'") == "The dialogue has ended."
    assert reward([environment]) == [0.0]


def test_rows_hold_nothing_that_is_hidden() -> None:
    domain = sweetrl.domain("backend", agent={"prompt": "full"})
    rows = dataset(domain, "test", 3, 11)
    assert rows.column_names == ["prompt", "task", "split", "place", "count", "seed"]
    tasks = tasks_of(domain, "test", 3, 11)
    check_hidden(tasks, json.dumps(list(rows)))
    for task, row in zip(tasks, rows, strict=True):
        assert row["prompt"][0]["content"].startswith(domain.system_prompt("full"))
        assert "`submit`" in row["prompt"][0]["content"]
        assert row["prompt"][1]["content"] == task.problem_description


def test_bad_input_is_one_sentence() -> None:
    (row,) = dataset(FORMS, count=1, seed=3)
    environment = environment_factory(FORMS)()
    with pytest.raises(UserError, match="no dialogue has begun"):
        environment.say("Which day?")
    with pytest.raises(UserError, match="no dialogue to score"):
        reward([environment])
    with pytest.raises(UserError, match=r"no `task` of type str; train on rows of sweetrl\.interop\.trl\.dataset"):
        environment.reset(prompt=row["prompt"])
    for other in ({"task": "x"}, {"prompt": [{"role": "user", "content": "Something else."}]}):
        with pytest.raises(UserError, match="another one at place 0; take the same domain"):
            environment.reset(**row | other)
    with pytest.raises(UserError, match="there is no train task 7"):
        environment.reset(**row | {"place": 7})
    environment.reset(**row)
    with pytest.raises(UserError, match="`message` must be text"):
        environment.say(["a"])  # type: ignore[arg-type]
    assert environment.say("Which day? \ud800").strip()
    with pytest.raises(UserError, match=r"environment_factory: `agent` goes into sweetrl\.domain"):
        environment_factory(sweetrl.domain(FORMS), agent={"max_turns": 2})


def test_a_user_who_does_not_work_stops_the_training(own_code: Any, tmp_path: Path) -> None:
    own_code(
        tmp_path,
        "from sweetrl.errors import SimulatorError\n"
        "class Broken:\n    name = 'broken'\n"
        "    def reply(self, task, messages, seed):\n"
        "        raise SimulatorError('gone') if 'day' in messages[-1].content else KeyError('bug')\n",
    )
    options: dict[str, Any] = {"simulator": {"kind": "mine:Broken"}}
    (row,) = dataset(FORMS, count=1, seed=3, **options)
    environment = environment_factory(FORMS, **options)()
    environment.reset(**row)
    assert environment.say("Which day?") == "The dialogue has ended."
    assert reward([environment]) == [None], "a lost dialogue is nobody's fault"
    environment.reset(**row)
    with pytest.raises(KeyError):
        environment.say("Hello?")
    with pytest.raises(UserError, match=r"the user does not work: 'bug'"):
        reward([environment])


# The real trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random Llama, and a tokenizer with a chat template that knows tools."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl.chat_template_utils import qwen3_instruct_2507_chat_template

    from sweetrl.base_agent.tokenizer import build_tokenizer

    texts = [json.dumps(row["prompt"]) for row in dataset("backend", count=20, seed=1)]
    tokenizer = build_tokenizer([*texts, qwen3_instruct_2507_chat_template], 1000, 100)
    tokenizer.add_special_tokens({"eos_token": END, "additional_special_tokens": [BEGIN]})
    tokenizer.chat_template = qwen3_instruct_2507_chat_template
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = tmp_path_factory.mktemp("calls-tools")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained(model: Path, folder: Path, reply: Callable[[str], str]) -> Any:
    """Two steps of GRPO on backend programming; `reply` maps the model's prompt to its completion."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def generate(input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        replies = []
        for ids, mask in zip(input_ids, attention_mask, strict=True):
            text = reply(tokenizer.decode(ids[mask.bool()]))
            replies.append(torch.tensor(tokenizer(text)["input_ids"]))
        padded = torch.nn.utils.rnn.pad_sequence(replies, batch_first=True, padding_value=tokenizer.pad_token_id)
        return torch.cat([input_ids, padded], dim=1)

    policy.generate = generate
    with pytest.warns(UserWarning, match="environment_factory"):
        trainer = GRPOTrainer(
            model=policy,
            processing_class=tokenizer,
            args=GRPOConfig(
                output_dir=str(folder),
                per_device_train_batch_size=4,
                num_generations=2,
                max_completion_length=4000,
                max_steps=2,
                logging_steps=1,
                learning_rate=1e-3,
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                shuffle_dataset=False,
                seed=3,
            ),
            train_dataset=dataset("backend", count=4, seed=3),
            environment_factory=environment_factory("backend"),
            reward_funcs=reward,
        )
    trainer.train()
    return trainer


def test_grpo_trainer_trains_on_dialogues(model: Path, tmp_path: Path) -> None:
    domain = sweetrl.domain("backend")
    tasks = {task.problem_description: task for task in tasks_of(domain, "train", 4, 3)}
    attempts: dict[str, int] = {}

    def reply(text: str) -> str:
        """Of each task's two attempts the first asks and is right, the other is wrong at once."""
        turns = text.split(BEGIN)[1:]
        request = turns[1].removeprefix("user\n").partition(END)[0]
        task, last = tasks[request], turns[-2]
        if "<tool_response>" not in last:
            attempts[task.id] = attempts.get(task.id, 0) + 1
            right = attempts[task.id] % 2 == 1
            tool = called("Is there a limit?") if right else ("submit", {"answer": "def f():\n    return 'rubbish'"})
        elif "The dialogue has ended." in last:
            return f"Good bye.{END}"
        else:
            assert "error" not in last
            tool = ("submit", {"answer": task.ground_truth})
        call = json.dumps({"name": tool[0], "arguments": tool[1]})
        return f"<tool_call>\n{call}\n</tool_call>{END}"

    trainer = trained(model, tmp_path, reply)
    logs = [log for log in trainer.state.log_history if "rewards/reward/mean" in log]
    assert len(logs) == 2
    for log in logs:
        assert log["rewards/reward/mean"] == 0.5
        assert log["dialogues/success"] == 0.5 and log["dialogues/answered"] == 1.0
        assert log["tools/call_frequency"] == 1.5 and log["tools/failure_frequency"] == 0.0
        assert math.isfinite(log["loss"]) and log["grad_norm"] > 0.0
    # The last batch's environments hold the dialogues as sweetrl would have them.
    right = trainer.environments[0]._score()
    agent: Agent = lambda task, messages: (  # noqa: E731
        "Is there a limit?" if len(messages) == 1 else f"I WANT TO ANSWER:\n{task.ground_truth}"
    )
    assert right.messages == by_sweetrl(domain, right.task, 3, agent).messages and right.reward == 1.0


def test_the_modules_example(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's example, with a model of this machine and one short step."""
    smaller = "max_completion_length=16, max_steps=1, num_generations=2, per_device_train_batch_size=2, "
    smaller += "report_to='none', use_cpu=True, bf16=False, disable_tqdm=True"
    changes = {'"Qwen/Qwen3-0.6B"': repr(str(model)), "max_completion_length=4096": smaller, "count=200": "count=2"}
    text = example(adapter, "GRPOTrainer(", changes)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["trainer"].state.global_step == 1
    assert "rewards/reward/mean" in names["trainer"].state.log_history[0]
