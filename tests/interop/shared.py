"""What the tests of several adapters share: an agent for Forms, the same dialogues by sweetrl alone, a server."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from typing import Any

import sweetrl
from sweetrl.types import Message, Task, Trajectory

FORMS = "examples.forms:Forms"
Agent = Callable[[Task, tuple[Message, ...]], str]


def clerk(task: Task, messages: tuple[Message, ...]) -> str:
    """An agent for Forms that reads the answer in the task: asks twice (once for nothing), then fills the form."""
    turn = sum(message.role == "assistant" for message in messages)
    return ["Which day?", "Under which name?", f"I WANT TO ANSWER:\n{task.ground_truth}"][turn]


def by_sweetrl(domain: sweetrl.Domain, task: Task, seed: int, agent: Agent) -> Trajectory:
    with sweetrl.opened(domain) as world:
        talk = world.begin(task, seed)
        while not talk.done:
            talk.say(agent(task, talk.messages))
        return talk.score()


def tasks_of(domain: sweetrl.Domain, split: Any, count: int, seed: int) -> list[Task]:
    return list(domain.tasks(split, count, seed, domain.settings.tasks.difficulty))


def check_hidden(tasks: list[Task], text: str) -> None:
    """The JSON `text` holds the tasks' requests, and nothing of what the agent may not know."""
    for task in tasks:
        assert json.dumps(task.problem_description) in text
        for secret in (task.ground_truth, task.hidden_information or "-", *(call for _, call in task.test_cases)):
            assert json.dumps(secret)[1:-1] not in text


def example(module: Any, words: str, changes: dict[str, str]) -> str:
    """The code block with `words` in a module's docstring, with `changes` that make it smaller."""
    blocks = re.findall(r"(?:^(?:    .*)?\n)+", module.__doc__ or "", re.M)
    (text,) = (textwrap.dedent(block) for block in blocks if words in block)
    for long, short in changes.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    return text


def complete_server(fake_server: Any) -> Any:
    """FakeServer with all the keys of a chat completion, without which verifiers and Inspect read none."""

    class CompleteServer(fake_server):
        def _chat(self, body: dict[str, Any]) -> tuple[int, Any]:
            status, reply = super()._chat(body)
            usage = reply["usage"]
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
            return status, {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], **reply}

    return CompleteServer
