"""What all engines behind HTTP share: limits on what is under way, retries, time-outs, balancing, accounting.

A server is not trusted: it may send without end, nest without end, name an encoding that does not exist, or give back
the headers that it was sent. Each costs one attempt at one reply.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from sweetrl.config.settings import ServerSettings
from sweetrl.engines.background import in_background, wait
from sweetrl.engines.retry import RETRIED, Pool, Server, TransientError, retry, retry_after
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.text import printable
from sweetrl.types import Completion, Prompt, Sampling, Usage

if TYPE_CHECKING:
    import httpx

# Bytes that every reply may have, whatever was requested: lists of models, errors, what stands around a reply's words.
LEAST_ROOM = 2**20
# Bytes for each token that was requested: its text as JSON writes it, its id and its log-prob.
TOKEN_ROOM = 512
# Characters of an error that are shown.
SHOWN = 300
# A shorter key is a word such as EMPTY, which servers without keys are given, and may stand in any reply.
SHORTEST_SECRET = 8
# Every server words a full context in its own way; all say that what was sent has a size, and that this is too large.
# Where the sentence names the limit of the reply, the word "context" does not stand for what was sent.
_SENT = re.compile("prompt|input|message|conversation|dialog|history")
_SENT_OR_CONTEXT = re.compile(
    rf"{_SENT.pattern}|context|n_ctx|total tokens|sequence length|(seq|session|model)_len|\brequest\b"
)
_SIZE = re.compile(r"token(?!i)|length|_len\b|\blong|window|context|character")
_EXCESS = re.compile(
    r"too (long|large|many|big)|exceed|surpass|beyond|(long|larg|great|bigg)er|maxim|\bmax|limit|at most|up to|be <|"
    r"(less|fewer|smaller) than|overflow|reduce|shorte[rn]|\bfits?\b|range of|no room|not enough"
)
_REPLY_LIMIT = re.compile("max_?(new|output|completion)?_?tokens")
# Some servers subtract the prompt from the limit, and report a negative number of tokens.
_LESS_THAN_NOTHING = re.compile(r"tokens must be .{1,30}got -\d")
# What is exceeded may be another thing: a rate, an account, a time, the number of tokens that there are.
_OTHER_LIMITS = re.compile(
    r"per.(sec|min|hour|day|month)|(hour|dai|month)ly|rate.?limit|quota|credit|billing|afford|\btime|took|deadline|vocab"
)
# Why a reply ends, in servers' words. Tool calls, filters and what is not here are no replies.
_STOPPED = re.compile("stop(_sequence|_token|_criteria_met)?|eos(_token)?|end_(of_)?turn|endoftext|completed?|finished")
_CUT = re.compile(
    "((max|model|context)_)?length|max_(new_|output_|completion_)?tokens|error_limit|(model_)?context_window_exceeded"
)
_BROKEN = re.compile(
    "|(network_)?error|abort(ed)?|(user_)?cancel(l?ed)?|time_?out|not_finished|insufficient_system_resource"
)

# A proxy that the environment names does not stand between us and our own machine.
_HERE = ("all://localhost", "all://127.0.0.1", "all://[::1]")


class Busy:
    """How long requests were under way, and the share of each: of n at the same time each gets 1/n second per second.

    The shares add up to `seconds`. Changed from one event loop, read from anywhere.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._count = 0
        self._share = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """The seconds in which at least one was under way, up to now."""
        return self._seconds + (time.monotonic() - self._now if self._count else 0.0)

    def enter(self) -> float:
        """One more is under way; the result belongs to it."""
        self._tick()
        self._count += 1
        return self._share

    def leave(self, entered: float) -> float:
        """One has ended; return its share in seconds."""
        self._tick()
        self._count -= 1
        return self._share - entered

    def _tick(self) -> None:
        now = time.monotonic()
        if self._count:
            self._seconds += now - self._now
            self._share += (now - self._now) / self._count
        self._now = now


def no_room(text: str) -> bool:
    """Whether a server's refusal says that the prompt, or the prompt and its reply, do not fit."""
    return any(map(_says_full, text.lower().split('"')))  # each string of a JSON by itself


def _says_full(sentence: str) -> bool:
    rest = _REPLY_LIMIT.sub("", sentence)
    if _OTHER_LIMITS.search(rest):
        return False
    sent = _SENT_OR_CONTEXT if rest == sentence else _SENT
    meant = all(part.search(rest) for part in (sent, _SIZE, _EXCESS))
    return meant or _LESS_THAN_NOTHING.search(sentence) is not None


class RemoteEngine:
    """An AsyncEngine over HTTP; subclasses say in `_request` what is sent and how a reply is read.

    At most `concurrency` requests are under way or wait to be repeated, so that a server that is asked too much
    is asked less. Thread-safe: all happens in the background loop.
    """

    speaks_tokens = False

    def __init__(self, settings: ServerSettings) -> None:
        self.settings, self.name = settings, settings.model
        self.key = os.environ.get(settings.key_variable, "").strip()
        check_access(settings.addresses, self.key, settings.key_variable)
        self._pool = Pool(settings.addresses)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._usage = Usage(devices=settings.gpus)
        self._busy = Busy()
        self._http: httpx.AsyncClient | None = None
        importlib.import_module("httpx")  # here, where nothing waits for the event loop yet

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return `sampling.n` completions of one prompt, in order; EngineError where they cannot be had."""
        return await in_background(self._ask(prompt, sampling))

    def usage(self) -> Usage:
        """What this engine has spent since it was made."""
        return replace(self._usage, seconds=self._busy.seconds)

    def close(self) -> None:
        """Close the connections."""
        wait(self._close())

    async def _close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _request(self, server: Server, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        raise NotImplementedError

    async def _ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return `sampling.n` completions; greedy ones are all the same, and some servers refuse to repeat them."""
        if sampling.temperature != 0.0 or sampling.n == 1:
            return await self._ask_patiently(prompt, sampling)
        (greedy,) = await self._ask_patiently(prompt, replace(sampling, n=1))
        free = replace(greedy, prompt_tokens=0, generated_tokens=0, cached_tokens=0, busy=0.0)
        return [greedy, *[free] * (sampling.n - 1)]

    async def _ask_patiently(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return the completions of one request, which is repeated after faults."""
        seconds, busy = self.settings.timeout_seconds, 0.0

        async def attempt() -> list[Completion]:
            nonlocal busy
            begun = self._busy.enter()
            try:
                with self._pool.lease(prompt.group) as server:
                    self._spend(requests=1)
                    try:
                        # Around everything: a byte now and then never runs into a time-out of reading.
                        async with asyncio.timeout(seconds):
                            return await self._request(server, prompt, sampling)
                    except TimeoutError as error:
                        raise TransientError(f"{server.url}: no reply within {seconds:g} s") from error
            finally:
                busy += self._busy.leave(begun)

        async with self._slots:
            try:
                completions = await retry(attempt, self.settings, lambda: self._spend(retries=1))
            except EngineError:
                self._spend(failures=1)
                raise
        return [replace(completion, busy=busy / len(completions)) for completion in completions]

    def _spend(self, **more: int) -> None:
        self._usage = replace(self._usage, **{name: getattr(self._usage, name) + value for name, value in more.items()})

    async def _exchange(
        self, method: str, server: Server, path: str, body: Any = None, limit: int = LEAST_ROOM
    ) -> tuple[int, str, Any]:
        """Send one request; return status, text and headers of the reply.

        Text is UTF-8 whatever the server calls it (as JSON has to be); bytes that are not become U+FFFD.
        TransientError if the reply is cut off, EngineError if it has more than `limit` bytes or is compressed,
        UserError where the server has moved: the key goes to no address that nobody has named.
        """
        import httpx

        content = bytearray()
        try:
            async with self._client().stream(method, server.url + path, json=body) as response:
                if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                    # A few bytes could become any number of them.
                    raise EngineError(f"{server.url}: the reply is compressed, which was not asked for")
                if response.has_redirect_location:
                    target = one_line(hide_key(self.key, response.headers["location"]))
                    raise UserError(
                        f"{server.url}: the server sends requests on to {target}; name that server in `urls`."
                    )
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > limit:
                        most = f"{limit / 2**20:.1f} MiB"
                        raise EngineError(f"{server.url}: the reply is longer than the {most} that it may be")
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UserError(
                f"{server.url}: this is no address of a server; it begins with http:// and ends with /v1."
            ) from error
        except httpx.TransportError as error:
            detail = one_line(hide_key(self.key, str(error))) or type(error).__name__
            raise TransientError(f"{server.url}: the connection failed ({detail})") from None
        text = content.decode("utf-8", "replace")
        return response.status_code, hide_key(self.key, text), response.headers

    def _client(self) -> httpx.AsyncClient:
        import httpx

        if self._http is None:
            key, timeout = self.key, self.settings.timeout_seconds
            try:
                self._http = httpx.AsyncClient(
                    timeout=httpx.Timeout(timeout, connect=min(15.0, timeout)),
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=self.settings.concurrency),
                    headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
                    mounts=dict.fromkeys(_HERE),
                )
            except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
                raise UserError(
                    f"a proxy or the certificates that the environment names cannot be used ({one_line(str(error))}); "
                    "set ALL_PROXY, HTTP_PROXY, HTTPS_PROXY and SSL_CERT_FILE to what httpx takes, or unset them."
                ) from error
        return self._http

    async def _json(self, server: Server, path: str, body: Any, sampling: Sampling) -> dict[str, Any]:
        """POST `body`, return the reply's JSON object; every other kind of reply is the exception that fits it."""
        limit = reply_limit(sampling.n, sampling.max_new_tokens)
        status, text, headers = await self._exchange("POST", server, path, body, limit)
        if status >= 400:
            self._refuse(server, status, text, headers)
        reply = read_object(server.url, text)
        if (error := reply.get("error")) or not isinstance(reply.get("choices"), list):
            code = count_of((error if isinstance(error, dict) else reply).get("code"))
            self._refuse(server, code if 400 <= code < 600 else status, text, headers)
        return reply

    def _refuse(self, server: Server, status: int, text: str, headers: Any) -> None:
        """Raise what an error means; one with the status of a reply may pass."""
        message = error_message(text)
        where = f"{server.url}: status {status}" + (f" ({message})" if message else "")
        if status in (401, 403):
            variable = self.settings.key_variable
            raise UserError(f"{where}: the server does not let us in; put a valid key into {variable}.")
        if status == 404:
            raise UserError(
                f"{where}: there is no such model or address; name a served model in `model` and an address that ends "
                "with /v1 in `urls`."
            )
        if status != 429 and no_room(text):
            raise NoRoom(f"{server.url}: the dialogue leaves no room for a reply in the model's context ({message})")
        if status in RETRIED or status < 400:
            raise TransientError(where, retry_after(headers))
        raise EngineError(where)

    def _count(self, usage: Any, completions: list[Completion]) -> list[Completion]:
        """Add the usage that a reply reports to the engine's, and to its completions."""
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        prompt, generated = (count_of(usage.get(key)) for key in ("prompt_tokens", "completion_tokens"))
        cached = count_of(details.get("cached_tokens")) if isinstance(details, dict) else 0
        self._spend(prompt_tokens=prompt, cached_tokens=cached, generated_tokens=generated)
        first = replace(completions[0], prompt_tokens=prompt, cached_tokens=cached)
        if len(completions) == 1 and not first.token_ids:
            return [replace(first, generated_tokens=generated)]
        return [replace(each, generated_tokens=len(each.token_ids)) for each in (first, *completions[1:])]


def check_access(urls: Sequence[str], key: str, variable: str) -> None:
    """UserError where an address would carry a password into messages, or the key fits in no header."""
    for url in urls:
        try:
            _, at, host = urlsplit(url).netloc.rpartition("@")
            _ = urlsplit(url).port  # ValueError beyond 65535
        except ValueError as error:
            raise UserError(f"`urls`: one of the addresses cannot be read ({error}); fix it.") from error
        if at:
            raise UserError(
                f"`urls`: the address of {host} holds a name or a password; put the key into the environment variable "
                "that `key_variable` names."
            )
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{variable} holds characters that no key has; set it again, without quotes or line ends.")


class FewerChoices(TransientError):
    """A reply has fewer choices than were asked for."""


def choices_of(url: str, reply: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the reply's choices in order; TransientError where there are not `count` of them."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise TransientError(f"{url}: the reply has no choices")
    if len(choices) != count:
        raise FewerChoices(f"{url}: the reply has {len(choices)} of {count} choices")
    return sorted(choices, key=lambda choice: count_of(choice.get("index")))


def finish_of(url: str, choice: dict[str, Any]) -> Literal["stop", "length"]:
    """Return how a reply ends; TransientError where it is broken off, EngineError where it is another thing."""
    reason = choice.get("finish_reason")
    word, named = str(reason or "").lower(), f"finish reason {one_line(str(reason))}"
    if _STOPPED.fullmatch(word):
        return "stop"
    if _CUT.fullmatch(word):
        return "length"
    if _BROKEN.fullmatch(word):
        words = f": {error_message(json.dumps(choice))}" if choice.get("error") else ""
        raise TransientError(f"{url}: the reply is broken off ({named}{words})")
    raise EngineError(f"{url}: the model gave no reply ({named})")


def reply_limit(replies: int, tokens: int) -> int:
    """Return how many bytes a reply with so many choices of so many tokens may have."""
    return LEAST_ROOM + replies * tokens * TOKEN_ROOM


def hide_key(key: str, text: str) -> str:
    """Return `text` with asterisks for the key: what a server echoes ends in messages and records."""
    if len(key) < SHORTEST_SECRET:
        return text
    for written in {key, json.dumps(key)[1:-1], key.replace("/", "\\/")}:
        text = text.replace(written, "***")
    return text


def read_object(url: str, text: str) -> dict[str, Any]:
    """Return the JSON object that `text` is; TransientError where it is something else or broken off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TransientError(f"{url}: the reply is not JSON, broken off, or nested too deeply") from error
    if not isinstance(value, dict):
        raise TransientError(f"{url}: the reply is not a JSON object")
    return value


def error_message(text: str) -> str:
    """Return what a server says about an error, in one line of at most `SHOWN` characters that any terminal shows."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return one_line(value if isinstance(value, str) else text)


def one_line(text: str) -> str:
    """Return the first `SHOWN` characters of `text` in one line, without what steers a terminal."""
    return printable(" ".join(text[: 4 * SHOWN].split())[:SHOWN])


def clean(text: str) -> str:
    """Return `text` without halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def count_of(value: Any) -> int:
    """Return `value` where it is a count, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else 0
