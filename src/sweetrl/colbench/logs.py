"""Dialogues from elsewhere, such as production logs: JSON Lines of chat messages and of what they came to.

Row: {"messages": [{"role", "content"}, ...], "reward" or "outcome"[, "reference", "task_id", "model", "metadata"]}

No tests are needed: the reward is the file's own. docs/own-dialogues.md says what each key means, and what is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from sweetrl.colbench.jsonl import field, kind
from sweetrl.colbench.markers import visible_reply
from sweetrl.errors import UserError
from sweetrl.types import AgentTurn, Message, Role, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

OUTCOMES = {"success": 1.0, "failure": 0.0}
SYSTEM = ("system", "developer")
METADATA = "metadata."  # what the names of a row's metadata begin with in a dialogue's notes
LAST_WORDS = "last_words"  # the note with what the user said after the last reply


def parse_log(row: dict[str, Any], where: str, domain: Domain) -> Trajectory:
    """Build a Trajectory from one logged dialogue; `where` opens every message.

    Its task has the id that the row gives it, or none (""); its attempt is 0. System messages at the start are left
    out, because training puts the agent's own prompt there; what the user says after the last reply becomes a note.
    """
    spoken = _messages(field(row, "messages", list, where), where)
    extra = {
        f"{METADATA}{name}": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        for name, value in (field(row, "metadata", dict, where, optional=True) or {}).items()
    }
    if spoken[-1].role == "user":
        extra[LAST_WORDS] = spoken.pop().content
    turns, messages = [], []
    for index, message in enumerate(spoken):
        shown = message
        if message.role == "assistant":
            turns.append(AgentTurn(index, message.content))
            shown = Message("assistant", visible_reply(message.content))
        messages.append(shown)
    reward, solved = _verdict(row, where, domain)
    identity = field(row, "task_id", str, where, optional=True)
    if identity == "":
        raise UserError(f"{where}: `task_id` is empty; give the task a name or leave the key out.")
    task = Task(
        id=identity or "",
        problem_description=messages[0].content,
        ground_truth=field(row, "reference", str, where, optional=True) or "",
        suite=domain.spec,
    )
    return Trajectory(
        task=task,
        attempt=0,
        messages=tuple(messages),
        turns=tuple(turns),
        answer=domain.final_answer(messages),
        reward=reward,
        outcome=domain.outcome(messages),
        policy=field(row, "model", str, where, optional=True) or "",
        extra=extra,
        solved=solved,
    )


def _messages(entries: Sequence[Any], where: str) -> list[Message]:
    """The words of user and agent in turn, from the first of the user's on."""
    messages: list[Message] = []
    for index, entry in enumerate(entries):
        place = f"{where}: messages[{index}]"
        if not isinstance(entry, dict):
            raise UserError(f"{place}: a message must be an object, found {kind(entry)}.")
        role = field(entry, "role", str, place)
        if role in SYSTEM and not messages:
            continue
        if role in ("tool", "function") or entry.get("tool_calls") or entry.get("function_call"):
            raise UserError(
                f"{place}: it calls a tool, or is a tool's reply; dialogues are words of user and assistant alone: "
                "write the row without, or leave it out."
            )
        expected = ("user", "assistant")[len(messages) % 2]
        if role != expected:
            raise UserError(
                f"{place}: expected the {expected}'s turn, found role {role!r}; the two alternate, and the user "
                "begins: join neighbouring messages of one side."
            )
        content = _text(entry.get("content"), place)
        if not content.strip():
            raise UserError(f"{place}: `content` is empty; leave the message or the row out.")
        messages.append(Message(cast(Role, role), content))
    if len(messages) < 2:
        raise UserError(f"{where}: `messages` needs a request of the user and a reply of the assistant; add them.")
    return messages


def _text(content: Any, place: str) -> str:
    """A message's content as text: a string, or a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{place}: `content` must be a string or a list of text parts, found {kind(content)}.")
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise UserError(f"{place}: `content` may hold parts of type `text` alone; write the others as words.")
        parts.append(part["text"])
    return "\n".join(parts)


def _verdict(row: dict[str, Any], where: str, domain: Domain) -> tuple[float, bool | None]:
    """The reward, and whether the task is solved where the reward does not say it."""
    reward = field(row, "reward", float, where, optional=True)
    outcome = field(row, "outcome", str, where, optional=True)
    if outcome is not None and outcome not in OUTCOMES:
        raise UserError(f"{where}: `outcome` is {outcome!r}; write `success` or `failure`.")
    if reward is None and outcome is None:
        raise UserError(f"{where}: the dialogue has no `reward` and no `outcome`; give it one of the two.")
    if reward is None:
        return OUTCOMES[cast(str, outcome)], None
    low, high = domain.reward_bounds
    if not low <= reward <= high:
        raise UserError(f"{where}: `reward` is {reward:g}, outside {low:g} to {high:g}; scale the rewards to this.")
    solved = None if outcome is None else outcome == "success"
    return float(reward), None if solved is (reward >= 1.0) else solved
