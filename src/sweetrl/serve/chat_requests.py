"""What a client of the endpoint sends: bytes in, a checked request out, or a sentence why not."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from sweetrl.engines.remote import one_line
from sweetrl.errors import UserError
from sweetrl.tracking.chat_agent import AgentConfig, check_turns
from sweetrl.types import Sampling

REPLIES = 16  # at most, to one request
SEEDS = 2**31
# Keys of OpenAI's chat completions that change no reply of this agent. Others must be empty: they would be promises.
IGNORED = {"user", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
IGNORED |= {"parallel_tool_calls", "tool_choice"}  # nothing without `tools`

Body = TypeVar("Body", bound=BaseModel)


class BadRequest(HTTPException):
    """The request is refused: `detail` is one sentence, `code` is for programs."""

    def __init__(self, sentence: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(status, sentence)
        self.code = code


@dataclass(frozen=True)
class ChatRequest:
    """A request that may be answered: `messages` without the system prompt, `turn` of the agent from 1 on.

    `consent` and `dialogue` are what its `metadata` says: whether the dialogue may be kept, and its id.
    """

    messages: tuple[dict[str, str], ...]
    sampling: Sampling
    seed: int
    stream: bool
    with_usage: bool
    turn: int
    consent: bool = False
    dialogue: str = ""


class _TextPart(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart]

    def plain(self) -> dict[str, str]:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class _ChatBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=REPLIES)
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class Feedback(BaseModel):
    """What a client says of a dialogue: what it came to, or that it no longer agrees (`consent`)."""

    model_config = ConfigDict(strict=True, extra="forbid")

    dialogue: str
    consent: bool = True
    outcome: Literal["success", "failure"] | None = None
    reward: float | None = Field(None, allow_inf_nan=False)
    reference: str | None = Field(None, min_length=1, max_length=2**16)
    task_id: str | None = Field(None, min_length=1, max_length=200)

    @model_validator(mode="after")
    def _has_an_end(self) -> Feedback:
        if self.consent and self.outcome is None and self.reward is None:
            raise ValueError("give the dialogue's `outcome` or its `reward`")
        return self

    @property
    def facts(self) -> dict[str, Any]:
        """What the dialogue came to, as its row has it."""
        return self.model_dump(exclude={"dialogue", "consent"}, exclude_none=True)


def read_request(body: bytes, config: AgentConfig, names: tuple[str, ...]) -> ChatRequest:
    """Return the request in `body` to the agent of `config`, called by one of `names`; BadRequest if it is wrong."""
    given = read_body(_ChatBody, body)
    if given.model not in names:
        raise BadRequest(
            f"There is no model {one_line(given.model)[:60]} here; set `model` to {names[0]}.", 404, "model_not_found"
        )
    for key, value in (given.model_extra or {}).items():
        if value and key not in IGNORED:
            raise BadRequest(f"`{one_line(key)[:60]}` is not supported; leave it out.", code="unsupported_parameter")
    messages = _messages(given.messages, config)
    turn = len(messages) // 2 + 1
    if turn > config.max_turns:
        raise BadRequest(
            f"The agent has had all of its {config.max_turns} turns in this dialogue; begin a new one.",
            code="turn_limit",
        )
    limits = [limit for limit in (given.max_tokens, given.max_completion_tokens) if limit is not None]
    sampling = Sampling(
        min([*limits, config.max_new_tokens]),
        config.temperature if given.temperature is None else given.temperature,
        config.top_p if given.top_p is None else given.top_p,
        given.n or 1,
    )
    notes, options = given.metadata or {}, given.stream_options
    return ChatRequest(
        messages,
        sampling,
        (secrets.randbelow(SEEDS) if given.seed is None else given.seed) % SEEDS,
        bool(given.stream),
        bool(options and options.get("include_usage")),
        turn,
        notes.get("consent") in (True, "true"),  # OpenAI's metadata are texts
        str(notes.get("dialogue") or ""),
    )


def read_body(kind: type[Body], body: bytes) -> Body:
    """Return what the JSON in `body` says as a `kind`; anything odd in it is a BadRequest that names the place."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = one_line(".".join(str(part) for part in first["loc"]))[:60]
        reason = first["msg"].removeprefix("Value error, ")
        raise BadRequest(f"`{place}`: {reason}." if place else f"The body: {reason}.") from error


def _messages(given: list[_Message], config: AgentConfig) -> tuple[dict[str, str], ...]:
    """Return the messages as plain texts, without the agent's own system prompt in front."""
    messages = [message.plain() for message in given]
    if messages[0]["role"] == "system":
        if messages[0]["content"].strip() != config.system_prompt.strip():
            raise BadRequest(
                "The agent has a system prompt of its own, with which it was trained; leave out the system message.",
                code="system_prompt",
            )
        messages = messages[1:]
    try:
        check_turns(messages)
    except UserError as error:
        sentence = str(error)
        raise BadRequest(sentence[0].upper() + sentence[1:]) from error
    if not all(message["content"].strip() for message in messages if message["role"] == "user"):
        raise BadRequest("A message of the user has no text; put it into `content`.")
    return tuple(messages)
