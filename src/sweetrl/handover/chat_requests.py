"""What a client of the endpoint says, read in one place: bytes in, a checked request out, or a sentence why not."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweetrl.engines.bodies import clean
from sweetrl.errors import UserError
from sweetrl.text import excess
from sweetrl.tracking.chat_agent import AgentConfig, check_turns
from sweetrl.types import Sampling

LONGEST_BODY = 2**20  # bytes
LEVELS = 16  # of nested JSON
VALUES = 20_000  # numbers, texts, lists and mappings in a body
REPLIES = 16  # that one request may ask for
SEEDS = 2**31

# Keys that change nothing with these values (None is "not given"); with others they would be promises not kept.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "modalities": (["text"],),
}
# Keys that are about the client, not about the reply.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
KNOWN = {"model", "messages", "temperature", "top_p", "n", "seed", "max_tokens", "max_completion_tokens", "stream"}
OPTIONS = {"stream_options"}


class BadRequest(Exception):
    """The request is refused with `status`; the message is one sentence, `code` is for programs."""

    def __init__(self, sentence: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(sentence)
        self.status, self.code = status, code


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


def read_body(body: bytes) -> dict[str, Any]:
    """Return the object in a request's body; anything else is a BadRequest."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadRequest("The body is not JSON; send one object as OpenAI's chat completions do.") from error
    if not isinstance(value, dict):
        raise BadRequest("The body is not a JSON object; send one as OpenAI's chat completions do.")
    _check_size(value)
    return value


def read_request(value: Mapping[str, Any], config: AgentConfig, names: tuple[str, ...]) -> ChatRequest:
    """Return the request in a body's `value` to the agent of `config`, which is called by one of `names`."""
    model = value.get("model")
    if not isinstance(model, str) or model not in names:
        raise BadRequest(f"There is no model {_shown(model)} here; set `model` to {names[0]}.", 404, "model_not_found")
    _check_keys(value)
    messages = _messages(value.get("messages"), config)
    turn = len(messages) // 2 + 1
    if turn > config.max_turns:
        raise BadRequest(
            f"The agent has had all of its {config.max_turns} turns in this dialogue; begin a new one.",
            code="turn_limit",
        )
    temperature = _number(value, "temperature", config.temperature, 0.0, 2.0)
    top_p = _number(value, "top_p", config.top_p, 0.0, 1.0)
    limits = [_whole(value, key, config.max_new_tokens, 1, 2**31) for key in ("max_tokens", "max_completion_tokens")]
    tokens = min(*limits, config.max_new_tokens)
    n = _whole(value, "n", 1, 1, REPLIES)
    seed = _whole(value, "seed", secrets.randbelow(SEEDS), -(2**63), 2**64)
    notes = value.get("metadata")
    notes = notes if isinstance(notes, dict) else {}
    options = value.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest('`stream_options` is not an object; leave it out, or send {"include_usage": true}.')
    return ChatRequest(
        messages,
        Sampling(tokens, temperature, top_p, n),
        seed % SEEDS,
        _flag(value, "stream"),
        _flag(options or {}, "include_usage"),
        turn,
        notes.get("consent") in (True, "true"),  # OpenAI's metadata are texts
        str(notes.get("dialogue") or ""),
    )


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _check_size(value: Any) -> None:
    found = excess(value, LEVELS, VALUES)
    if found == "values":
        raise BadRequest(f"The body has more than {VALUES} values; send a shorter dialogue.", 413, "too_large")
    if found == "levels":
        raise BadRequest(f"The body is nested more than {LEVELS} levels deep; send plain messages.")


def _check_keys(value: Mapping[str, Any]) -> None:
    for key, given in value.items():
        if key in KNOWN or key in OPTIONS or key in IGNORED or given is None:
            continue
        if key not in NEUTRAL:
            raise BadRequest(f"`{_shown(key)}` is not known here; leave it out.", code="unknown_parameter")
        if given not in NEUTRAL[key]:
            raise BadRequest(f"`{key}` is not supported by this agent; leave it out.", code="unsupported_parameter")


def _messages(value: Any, config: AgentConfig) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise BadRequest('`messages` is empty; send at least [{"role": "user", "content": "..."}].')
    found = [_message(number, one) for number, one in enumerate(value)]
    if found[0]["role"] == "system":
        if found[0]["content"].strip() != config.system_prompt.strip():
            raise BadRequest(
                "The agent has a system prompt of its own, with which it was trained; leave out the system message.",
                code="system_prompt",
            )
        found = found[1:]
    try:
        check_turns(found)
    except UserError as error:
        sentence = str(error)
        raise BadRequest(sentence[0].upper() + sentence[1:]) from error
    return tuple(found)


def _message(number: int, value: Any) -> dict[str, str]:
    role, content = (value.get("role"), value.get("content")) if isinstance(value, dict) else (None, None)
    if role == "developer":  # newer clients' word
        role = "system"
    if role not in ("system", "user", "assistant"):
        raise BadRequest(f"Message {number} has the role {_shown(role)}; it must be user or assistant.")
    if isinstance(content, list):
        parts = [one.get("text") if isinstance(one, dict) and one.get("type") == "text" else None for one in content]
        if not parts or not all(isinstance(part, str) for part in parts):
            raise BadRequest(f"Message {number} has parts that are no text; this agent reads text only.")
        content = "".join(str(part) for part in parts)
    if not isinstance(content, str) or (role == "user" and not content.strip()):
        raise BadRequest(f"Message {number} has no text; put it into `content`.")
    return {"role": role, "content": clean(content)}


def _number(value: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    given = value.get(key)
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int | float) or not low <= given <= high:
        raise BadRequest(f"`{key}` is {_shown(given)}; it must be a number from {low:g} to {high:g}.")
    if key == "top_p" and given == 0:
        raise BadRequest("`top_p` is 0, which leaves no token; for greedy replies set `temperature` to 0.")
    return float(given)


def _whole(value: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
    given = value.get(key)
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise BadRequest(f"`{key}` is {_shown(given)}; it must be a whole number from {low} to {high}.")
    return given


def _flag(value: Mapping[str, Any], key: str) -> bool:
    given = value.get(key)
    if given is not None and not isinstance(given, bool):
        raise BadRequest(f"`{key}` is {_shown(given)}; it must be true or false.")
    return bool(given)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    return clean(str(value))[:60] if value is not None else "nothing"
