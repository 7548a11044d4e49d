"""Dialogues from elsewhere, such as production logs: JSON Lines of chat messages and of what they came to.

Row: {"messages": [{"role", "content"}, ...], "reward" or "outcome"[, "reference", "task_id", "model", "metadata"]}

No tests are needed: the reward is the file's own. docs/own-dialogues.md says what each key means, and what is left out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from sweetrl.colbench.files import speaker, within_bounds
from sweetrl.colbench.jsonl import Row, read_as
from sweetrl.errors import UserError
from sweetrl.thoughts import Marks, with_thoughts
from sweetrl.types import AgentTurn, Message, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

METADATA = "metadata."  # what the names of a row's metadata begin with in a dialogue's notes
LAST_WORDS = "last_words"  # the note with what the user said after the last reply


class ChatRow(Row):
    """A chat message: `content` is a text, or a list of text parts; thoughts may stand apart, as servers give them."""

    role: str
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None
    function_call: Any = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(part, str) for part in parts):
            raise ValueError("may hold parts of type `text` alone: write the others as words")
        return "\n".join(map(str, parts))


class LogRow(Row):
    """A logged dialogue and what it came to."""

    messages: list[ChatRow]
    reward: float | None = None
    outcome: Literal["success", "failure"] | None = None
    reference: str | None = None
    task_id: str | None = Field(None, min_length=1)
    model: str | None = None
    metadata: dict[str, Any] | None = None


def parse_log(row: dict[str, Any], where: str, domain: Domain) -> Trajectory:
    """Build a Trajectory from one logged dialogue; `where` opens every message.

    Its task has the id that the row gives it, or none (""); its attempt is 0. System messages at the start are left
    out, because training puts the agent's own prompt there; what the user says after the last reply becomes a note.
    """
    read = read_as(LogRow, row, where)
    spoken = _messages(read, where, domain.settings.model.marks)
    extra = {
        f"{METADATA}{name}": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        for name, value in (read.metadata or {}).items()
    }
    if spoken[-1].role == "user":
        extra[LAST_WORDS] = spoken.pop().content
    turns = [AgentTurn(index, message.content) for index, message in enumerate(spoken) if message.role == "assistant"]
    messages = list(spoken)
    for turn in turns:
        messages[turn.message_index] = Message("assistant", domain.visible(turn.raw))
    reward, solved = _verdict(read, where, domain)
    return Trajectory(
        task=Task(read.task_id or "", messages[0].content, read.reference or "", suite=domain.spec),
        attempt=0,
        messages=tuple(messages),
        turns=tuple(turns),
        answer=domain.final_answer(messages),
        reward=reward,
        outcome=domain.outcome(messages),
        policy=read.model or "",
        extra=extra,
        solved=solved,
    )


def _messages(read: LogRow, where: str, marks: Marks) -> list[Message]:
    """The words of user and agent in turn, from the first of the user's on."""
    messages: list[Message] = []
    for index, entry in enumerate(read.messages):
        place = f"{where}: messages[{index}]"
        if entry.role in ("system", "developer") and not messages:
            continue
        if entry.role in ("tool", "function") or entry.tool_calls or entry.function_call:
            raise UserError(
                f"{place}: it calls a tool, or is a tool's reply; dialogues are words of user and assistant alone: "
                "write the row without, or leave it out."
            )
        role = speaker(entry.role, len(messages), place)
        if not (entry.content or "").strip():
            raise UserError(f"{place}: `content` is empty; leave the message or the row out.")
        thoughts = entry.reasoning_content if role == "assistant" else None
        messages.append(Message(role, with_thoughts(thoughts, entry.content or "", marks)))
    if len(messages) < 2:
        raise UserError(f"{where}: `messages` needs a request of the user and a reply of the assistant; add them.")
    return messages


def _verdict(read: LogRow, where: str, domain: Domain) -> tuple[float, bool | None]:
    """The reward, and whether the task is solved where the reward does not say it."""
    if read.reward is None and read.outcome is None:
        raise UserError(f"{where}: the dialogue has no `reward` and no `outcome`; give it one of the two.")
    success = None if read.outcome is None else read.outcome == "success"
    if read.reward is None:
        return float(bool(success)), None
    return within_bounds(read.reward, domain, where), None if success is (read.reward >= 1.0) else success
