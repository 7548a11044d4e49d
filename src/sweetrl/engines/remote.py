"""What all engines behind HTTP share: limits on what is under way, retries, time-outs, balancing, accounting.

A server is not trusted more than an answer is: it may send without end, nest without end, name an encoding that does
not exist, or give back the headers that it was sent. Each costs one attempt at one reply.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sweetrl.engines.background import in_background, wait
from sweetrl.engines.retry import (
    PACED,
    RETRIED,
    Budget,
    Pool,
    RetryPolicy,
    Server,
    TransientError,
    retry,
    retry_after,
)
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.text import printable
from sweetrl.types import Completion, Prompt, Sampling, Usage

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
# An empty reply is asked for again; the same answer this many times is what the model says.
EMPTIES = 3
# What servers say when a prompt does not fit.
_FULL = ("maximum context length", "context_length_exceeded", "context length", "max_model_len", "prompt is too long")

# A proxy that the environment names does not stand between us and our own machine.
_HERE = ("all://localhost", "all://127.0.0.1", "all://[::1]")


@dataclass(frozen=True)
class Access:
    """Where servers are and how they may be used: base addresses (".../v1"), the model's name there, a key, limits.

    `key_variable` names the environment variable that holds the key, for messages; `key` is its value. `gpus` work
    behind all the servers together, as far as it is known.
    """

    urls: tuple[str, ...]
    model: str
    key: str = ""
    key_variable: str = ""
    concurrency: int = 64
    retry_policy: RetryPolicy = RetryPolicy()  # noqa: RUF009  frozen
    gpus: int = 0


class FewerReplies(TransientError):
    """A reply with some choices, and not as many as were asked for."""


class EmptyReply(TransientError):
    """A reply without words, which may be a fault or may be meant."""

    def __init__(self, url: str, completions: list[Completion]) -> None:
        super().__init__(f"{url}: the reply is empty")
        self.completions = completions


class Busy:
    """How long something was under way, and the share of each that was: n at a time get an n-th of a second a second.

    The shares add up to `seconds`. Changed from one event loop, read from anywhere.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now = 0.0
        self._count = 0
        self._share = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """The seconds in which at least one was under way, up to now."""
        return self._seconds + (self._clock() - self._now if self._count else 0.0)

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
        now = self._clock()
        if self._count:
            self._seconds += now - self._now
            self._share += (now - self._now) / self._count
        self._now = now


def no_room(text: str) -> bool:
    """Whether a server's refusal says that the prompt, or the prompt and its reply, do not fit."""
    return any(word in text.lower() for word in _FULL)


class RemoteEngine:
    """An AsyncEngine (and an Engine) over HTTP; subclasses say in `_request` what is sent and how a reply is read.

    At most `access.concurrency` requests are under way; who waits to ask (again) does not count. A server that says
    when it may be asked again gets no request of anybody before. Thread-safe: all happens in the background loop.
    """

    speaks_tokens = False

    def __init__(self, access: Access) -> None:
        check_access(access)
        self.access = access
        self.name = access.model
        self._pool = Pool(access.urls)
        self._slots = asyncio.Semaphore(access.concurrency)
        self._usage = Usage(devices=access.gpus)
        self._busy = Busy()
        self._http: httpx.AsyncClient | None = None
        importlib.import_module("httpx")  # here, where nothing waits for the event loop yet

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return `sampling.n` completions of one prompt, or those that are not withheld; EngineError where none is."""
        return await in_background(self._ask(prompt, sampling))

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """Return `sampling.n` completions for each prompt, in order; EngineError where one cannot be had."""
        return wait(self._ask_all(prompts, sampling))

    def session(self) -> RemoteEngine:
        """Return the engine: servers keep what they computed on their own."""
        return self

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
            return await self._asked(prompt, sampling)
        (one,) = await self._asked(prompt, replace(sampling, n=1))
        free = replace(one, prompt_tokens=0, generated_tokens=0, cached_tokens=0, busy=0.0)
        return [one, *[free] * (sampling.n - 1)]

    async def _asked(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return the completions of one request, which is repeated after faults."""
        empties, busy = 0, 0.0
        budget = Budget(self.access.retry_policy.budget)

        async def attempt() -> list[Completion]:
            nonlocal empties, busy
            async with self._slot(budget):
                begun = self._busy.enter()
                try:
                    return await self._attempt(prompt, sampling)
                except EmptyReply as empty:
                    empties += 1
                    if empties < EMPTIES:
                        raise
                    return empty.completions
                finally:
                    busy += self._busy.leave(begun)

        try:
            completions = await retry(attempt, self.access.retry_policy, lambda fault: self._spend(retries=1), budget)
        except EngineError:
            self._spend(failures=1)
            raise
        return [replace(one, busy=busy / len(completions)) for one in completions]

    async def _ask_all(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        async def one(prompt: Prompt) -> list[Completion]:
            try:
                return await self._ask(prompt, sampling)
            except NoRoom:
                return [Completion((), (), "", "length")] * sampling.n

        tasks = [asyncio.ensure_future(one(prompt)) for prompt in prompts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    @asynccontextmanager
    async def _slot(self, budget: Budget) -> AsyncIterator[None]:
        """Wait for a slot, for nothing, and until a server wants to be asked; EngineError if `budget` is less."""
        while True:
            while (seconds := self._pool.held()) > 0.0:
                # Not all at the same moment: the server has just had more than it could take.
                seconds += random.SystemRandom().uniform(0.0, self.access.retry_policy.backoff)
                if seconds > budget.left:
                    raise EngineError(
                        f"{' '.join(self.access.urls)}: the server wants no request for {seconds:.0f} s (Retry-After), "
                        "which is longer than may be waited"
                    )
                await asyncio.sleep(seconds)
            with budget.untouched():
                await self._slots.acquire()
            try:
                if not self._pool.held():
                    yield
                    return
            finally:
                self._slots.release()

    async def _attempt(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        with self._pool.lease(prompt.group) as server:
            self._spend(requests=1)
            seconds = self.access.retry_policy.timeout
            try:
                # Around everything: a server that sends a byte now and then never runs into a time-out of reading.
                async with asyncio.timeout(seconds):
                    return await self._request(server, prompt, sampling)
            except TimeoutError as error:
                self._pool.failed(server)
                raise TransientError(f"{server.url}: no reply within {seconds:g} s", server=True) from error
            except TransientError as fault:
                if fault.server:
                    self._pool.failed(server)
                raise

    def _spend(self, **more: int) -> None:
        self._usage = replace(self._usage, **{name: getattr(self._usage, name) + value for name, value in more.items()})

    async def _exchange(
        self, method: str, server: Server, path: str, body: Any = None, limit: int = LEAST_ROOM
    ) -> tuple[int, str, Any]:
        """Send one request; return status, text and headers of the reply.

        TransientError if it is cut off, EngineError if it has more than `limit` bytes.
        """
        import httpx

        try:
            async with self._client().stream(method, server.url + path, json=body) as response:
                text = await receive(response, server.url, limit)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UserError(
                f"{server.url}: this is no address of a server; it begins with http:// and ends with /v1."
            ) from error
        except httpx.TimeoutException as error:
            raise TransientError(f"{server.url}: no connection in time", server=True) from error
        except httpx.TransportError as error:
            detail = one_line(hide_key(self.access.key, str(error))) or type(error).__name__
            raise TransientError(f"{server.url}: the connection failed ({detail})", server=True) from None
        return response.status_code, hide_key(self.access.key, text), response.headers

    def _client(self) -> httpx.AsyncClient:
        import httpx

        if self._http is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.access.concurrency)
            key = self.access.key
            self._http = httpx.AsyncClient(
                timeout=httpx.Timeout(
                    self.access.retry_policy.timeout, connect=min(15.0, self.access.retry_policy.timeout)
                ),
                limits=limits,
                headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
                mounts=dict.fromkeys(_HERE),
            )
        return self._http

    async def _json(self, server: Server, path: str, body: Any, sampling: Sampling) -> dict[str, Any]:
        """POST `body`, return the reply's JSON object; every other kind of reply is the exception that fits it."""
        limit = reply_limit(sampling.n, sampling.max_new_tokens)
        status, text, headers = await self._exchange("POST", server, path, body, limit)
        if status >= 400:
            self._refuse(server, status, text, headers)
        return read_object(server.url, text)

    def _refuse(self, server: Server, status: int, text: str, headers: Any) -> None:
        """Raise what an error status means."""
        message = error_message(text)
        where = f"{server.url}: status {status}" + (f" ({message})" if message else "")
        if status in RETRIED:
            pause = retry_after(headers)
            if pause and status in PACED:
                self._pool.hold(server, pause)
                pause = self._pool.held()  # another server may be asked at once
            raise TransientError(where, pause, server=status >= 500)
        if status in (401, 403):
            variable = self.access.key_variable or "the key's environment variable"
            raise UserError(f"{where}: the server does not let us in; put a valid key into {variable}.")
        if status == 404:
            raise UserError(
                f"{where}: there is no such model or address; name a served model in `model` and an address that ends "
                "with /v1 in `urls`."
            )
        if no_room(text):
            raise NoRoom(f"{server.url}: the dialogue leaves no room for a reply in the model's context ({message})")
        raise EngineError(where)

    def _count(self, usage: Any, completions: list[Completion]) -> list[Completion]:
        """Add a reply's own account to ours and to its completions."""
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        prompt, generated = (count_of(usage.get(key)) for key in ("prompt_tokens", "completion_tokens"))
        cached = count_of(details.get("cached_tokens")) if isinstance(details, dict) else 0
        self._spend(prompt_tokens=prompt, cached_tokens=cached, generated_tokens=generated)
        only = len(completions) == 1
        return [
            replace(
                one,
                prompt_tokens=prompt if index == 0 else 0,
                generated_tokens=len(one.token_ids) or (generated if only else 0),
                cached_tokens=cached if index == 0 else 0,
            )
            for index, one in enumerate(completions)
        ]


def check_access(access: Access) -> None:
    """UserError where an address would carry a password into messages, or the key fits in no header."""
    for url in access.urls:
        try:
            named = "@" in urlsplit(url).netloc
        except ValueError as error:
            raise UserError(f"`urls`: one of the addresses cannot be read ({error}); fix it.") from error
        if named:
            where = urlsplit(url).netloc.rpartition("@")[2]
            raise UserError(
                f"`urls`: the address of {where} holds a name or a password; put the key into the environment variable "
                "that `key_variable` names."
            )
    if not (access.key.isascii() and access.key.isprintable()):
        variable = access.key_variable or "The key's environment variable"
        raise UserError(f"{variable} holds characters that no key has; set it again, without quotes or line ends.")


def choices_of(url: str, reply: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the reply's choices in order; TransientError where there are not `count` of them."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(one, dict) for one in choices):
        raise TransientError(f"{url}: the reply has no {'choices' if count > 1 else 'choice'}")
    if len(choices) != count:
        raise FewerReplies(f"{url}: the reply has {len(choices)} of {count} choices")
    return sorted(choices, key=lambda one: count_of(one.get("index")))


# What a server sends, made ours: bytes counted as they come, valid text, JSON, none of our key


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
    except ValueError as error:
        raise TransientError(f"{url}: the reply is not JSON, or broken off") from error
    except RecursionError as error:
        raise TransientError(f"{url}: the reply is nested too deeply") from error
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
