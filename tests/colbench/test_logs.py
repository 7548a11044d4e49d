"""Rows of logs: what is taken over, what becomes a note, and how a bad row is reported."""

from __future__ import annotations

from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.logs import parse_log
from sweetrl.errors import UserError
from sweetrl.types import AgentTurn, Message, Task

USER, ASSISTANT = {"role": "user", "content": "Help me."}, {"role": "assistant", "content": "Is it on?"}


def row(*messages: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"messages": list(messages or (USER, ASSISTANT)), "reward": 0.5} | values


def test_a_row_becomes_a_dialogue() -> None:
    system = {"role": "system", "content": "You help."}
    parts = {"role": "assistant", "content": [{"type": "text", "text": "It is"}, {"type": "text", "text": "on."}]}
    thanks = {"role": "user", "content": "Thanks!"}
    values = {"task_id": "a", "reference": "Yes.", "model": "m-1", "metadata": {"shop": "x", "n": 3, "tags": ["b"]}}
    dialogue = parse_log(row(system, USER, ASSISTANT, USER, parts, thanks, **values), "f: line 1", Backend())
    assert dialogue.task == Task("a", "Help me.", "Yes.", suite="backend") and dialogue.policy == "m-1"
    texts = ("Help me.", "Is it on?", "Help me.", "It is\non.")
    assert dialogue.messages == tuple(Message("assistant" if at % 2 else "user", text) for at, text in enumerate(texts))
    assert dialogue.turns == (AgentTurn(1, texts[1]), AgentTurn(3, texts[3]))
    assert (dialogue.answer, dialogue.reward, dialogue.solved) == (texts[3], 0.5, None)
    assert dialogue.extra == {
        "metadata.shop": "x", "metadata.n": "3", "metadata.tags": '["b"]', "last_words": "Thanks!"
    }  # fmt: skip


def test_a_thought_is_not_shown() -> None:
    dialogue = parse_log(row(USER, {"role": "assistant", "content": "hm OUTPUT: Hello."}), "f: line 1", Backend())
    assert (dialogue.messages[1].content, dialogue.turns[0].raw) == (" Hello.", "hm OUTPUT: Hello.")


@pytest.mark.parametrize(
    ("values", "reward", "solved", "success"),
    [
        ({"reward": 1}, 1.0, None, True),
        ({"reward": None, "outcome": "success"}, 1.0, None, True),
        ({"reward": None, "outcome": "failure"}, 0.0, None, False),
        ({"reward": 0.7, "outcome": "success"}, 0.7, True, True),
        ({"reward": 0.7, "outcome": "failure"}, 0.7, None, False),
    ],
)
def test_what_a_dialogue_came_to(values: dict[str, Any], reward: float, solved: bool | None, success: bool) -> None:
    dialogue = parse_log(row(**values), "f: line 1", Backend())
    assert (dialogue.reward, dialogue.solved, dialogue.success) == (reward, solved, success)


TOOL = {"role": "tool", "content": "42"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({}, "the key `messages` is missing"),
        (row(USER), "needs a request of the user and a reply of the assistant"),
        (row(ASSISTANT, USER), r"messages\[0\]: expected the user's turn, found role 'assistant'"),
        (row(USER, USER), r"messages\[1\]: expected the assistant's turn, found role 'user'.*join neighbouring"),
        (row(USER, CALLS, TOOL), r"messages\[1\]: it calls a tool"),
        (row(PICTURE, ASSISTANT), "may hold parts of type `text` alone"),
        (row(USER, {"role": "assistant", "content": " "}), r"messages\[1\]: `content` is empty"),
        (row(reward=None), "has no `reward` and no `outcome`"),
        (row(reward=5), r"`reward` is 5, outside 0 to 1 .tests passed.; scale"),
        (row(outcome="fine"), "`outcome` must be 'success' or 'failure'"),
    ],
)
def test_a_bad_row_is_one_sentence(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        parse_log(bad, "logs.jsonl: line 3", Backend())
    assert str(error.value).startswith("logs.jsonl: line 3:")
