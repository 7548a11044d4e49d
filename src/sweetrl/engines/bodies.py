"""What a model server sends, made ours in one place: bytes counted as they come, valid text, JSON, none of our key.

A server is not trusted more than an answer is: it may send without end, nest without end, name an encoding that does
not exist, or give back the headers that it was sent. Each costs one attempt at one reply.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sweetrl.engines.retry import TransientError
from sweetrl.errors import EngineError
from sweetrl.text import printable

if TYPE_CHECKING:
    import httpx

# Bytes that every reply may have, whatever was asked: lists of models, errors, what stands around a reply's words.
LEAST_ROOM = 2**20
# Bytes for each token that was asked for: its text as JSON writes it, its id and its log-prob.
TOKEN_ROOM = 512
# Characters of an error that are shown.
SHOWN = 300
# A shorter key is a word such as EMPTY, which servers without keys are given, and may stand in any reply.
SHORTEST_SECRET = 8


async def receive(response: httpx.Response, url: str, limit: int) -> str:
    """Return the text of a streamed `response`; EngineError if it is longer than `limit` bytes, or compressed.

    Text is UTF-8 whatever the server calls it (as JSON has to be); bytes that are not become U+FFFD.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):  # a few bytes could become any number of them
        raise EngineError(f"{url}: the reply is compressed, which was not asked for; turn that off at the server")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise EngineError(f"{url}: the reply is longer than the {limit / 2**20:.1f} MiB that it may be")
    return body.decode("utf-8", "replace")


def room(replies: int, tokens: int) -> int:
    """Return how many bytes a reply with so many choices of so many tokens may have."""
    return LEAST_ROOM + replies * tokens * TOKEN_ROOM


def without(key: str, text: str) -> str:
    """Return `text` with asterisks for the key: what a server echoes ends in messages and records."""
    if len(key) < SHORTEST_SECRET:
        return text
    for written in {key, json.dumps(key)[1:-1], key.replace("/", "\\/")}:
        text = text.replace(written, "***")
    return text


def read_object(url: str, text: str) -> dict[str, Any]:
    """Return the JSON object that `text` is; TransientError where it is something else or broken off."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TransientError(f"{url}: the reply is not JSON, or broken off") from error
    except RecursionError as error:
        raise TransientError(f"{url}: the reply is nested too deeply") from error
    if not isinstance(found, dict):
        raise TransientError(f"{url}: the reply is not a JSON object")
    return found


def error_message(text: str) -> str:
    """Return what a server says about an error, in one line of at most `SHOWN` characters that any terminal shows."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return one_line(found if isinstance(found, str) else text)


def one_line(text: str) -> str:
    """Return the first `SHOWN` characters of `text` in one line, without what steers a terminal."""
    return printable(" ".join(text[: 4 * SHOWN].split())[:SHOWN])


def clean(text: str) -> str:
    """Return `text` without halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def whole(value: Any) -> int:
    """Return `value` where it is a count, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else 0
