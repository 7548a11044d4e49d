"""The waiting line in front of the agent: requests are answered in batches, and agents change between batches.

A batch is answered whole by the agent that began it, so that no request is lost when a new one takes over. An agent in
this process answers one batch after the other; one behind a server answers many requests at a time, each by itself,
because the server makes batches of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweetrl.engines.background import in_thread
from sweetrl.errors import NoRoom, UserError
from sweetrl.handover.chat_requests import BadRequest, ChatRequest
from sweetrl.handover.source import Handed
from sweetrl.protocols import AsyncEngine
from sweetrl.tracking.chat_agent import AgentConfig, ChatAgent
from sweetrl.types import Completion, Prompt, Sampling

logger = logging.getLogger("sweetrl")

WAITING = 256  # requests; more are told to come again
BATCH = 32  # requests that are answered together
FAILURES = 3  # of the engine in a row, after which the line counts as failing


@dataclass(frozen=True)
class Speaker:
    """An agent that is loaded, and what it is.

    It answers up to `batch` requests together, and `at_once` such batches at a time. `folder` holds its adapter where a
    server may read it again.
    """

    handed: Handed
    agent: ChatAgent
    batch: int = BATCH
    at_once: int = 1
    folder: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Free the model."""
        try:
            self.agent.close()
        finally:
            if self.folder is not None:
                self.folder.cleanup()


Read = Callable[[AgentConfig], ChatRequest]
"""Makes a request to the agent of a config; a BadRequest where that agent refuses it."""


@dataclass(frozen=True)
class Answer:
    """The replies to a request, the length of its prompt in tokens, and who replied."""

    request: ChatRequest
    completions: list[Completion]
    prompt_tokens: int
    handed: Handed


@dataclass
class _Waiting:
    read: Read
    request: ChatRequest
    answer: asyncio.Future[Answer]


class Line:
    """Requests that wait for the agent `speaker`; `run` answers them, `change` puts another agent in its place."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.changes = 0
        self._waiting: list[_Waiting] = []
        self._news = asyncio.Event()
        self._under_way: Counter[int] = Counter()  # batches, by the identity of who answers them
        self._left: list[Speaker] = []
        self._failures = 0  # of the engine, since it has last answered
        self._trial: asyncio.Task[None] | None = None

    @property
    def failing(self) -> bool:
        """Whether the engine has failed again and again, and answered nothing since."""
        return self._failures >= FAILURES

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def ask(self, read: Read) -> Answer:
        """Return the answer to the request that `read` makes for whoever answers it.

        A BadRequest where that one refuses it, where the line is too long, and where the dialogue does not fit.
        """
        request = read(self.speaker.handed.config)
        if len(self._waiting) >= WAITING:
            raise BadRequest(f"{WAITING} requests are waiting already; come again in a moment.", 503, "overloaded")
        one = _Waiting(read, request, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._news.set()
        try:
            return await one.answer
        finally:
            if one in self._waiting:  # the client has gone before its turn came
                self._waiting.remove(one)

    def try_again(self) -> None:
        """Ask for one token, unless that is being done: where a failing endpoint gets no requests, it would stay so."""
        if self._trial is None or self._trial.done():
            self._trial = asyncio.create_task(self._try())

    async def _try(self) -> None:
        with contextlib.suppress(Exception):  # logged where it happens
            hello = ChatRequest(({"role": "user", "content": "Hello"},), Sampling(1, 0.0), 0, False, False, 1)
            await self.ask(lambda config: hello)

    def change(self, speaker: Speaker) -> None:
        """Let `speaker` answer from the next batch on; the one before is freed once its batches are done.

        What waits is read again: the new one has limits, a system prompt and sampling of its own.
        """
        self._left.append(self.speaker)
        self.speaker = speaker
        self.changes += 1
        for one in self._waiting:
            try:
                one.request = one.read(speaker.handed.config)
            except BadRequest as error:
                if not one.answer.done():
                    one.answer.set_exception(error)
        self._news.set()
        self._free()

    async def close(self) -> None:
        """Free the agent that answers now."""
        await in_thread(_close, self.speaker)

    async def run(self) -> None:
        """Answer requests, batch after batch, until cancelled."""
        batches: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while batch := self._next_batch():
                    self._under_way[id(self.speaker)] += 1
                    task = asyncio.create_task(self._answer(self.speaker, batch))
                    batches.add(task)
                    task.add_done_callback(batches.discard)
        finally:
            for task in (*batches, *([self._trial] if self._trial else [])):
                task.cancel()

    async def _answer(self, speaker: Speaker, batch: Sequence[_Waiting]) -> None:
        """Let `speaker` answer a batch, and make room for the next one."""
        started = time.monotonic()
        answers: Sequence[Answer | BaseException]
        work = asyncio.ensure_future(_replies(speaker, [one.request for one in batch]))

        def cancel(answer: asyncio.Future[Answer]) -> None:
            if all(one.answer.done() for one in batch):
                work.cancel()

        if isinstance(speaker.agent.engine, AsyncEngine):  # a server need not compute what nobody waits for any more
            for one in batch:
                one.answer.add_done_callback(cancel)
        try:
            answers = await work
        except asyncio.CancelledError:
            if not all(one.answer.done() for one in batch):  # not the clients have gone, but the line ends
                raise
            return
        except Exception as error:
            logger.exception("a batch of %d requests failed", len(batch))
            answers = [error] * len(batch)
            self._failures += 1
        finally:
            self._under_way[id(speaker)] -= 1
            self._free()
            self._news.set()
        if any(isinstance(answer, Answer) for answer in answers):
            self._failures = 0
        logger.debug("%d requests in %.2f s", len(batch), time.monotonic() - started)
        for one, answer in zip(batch, answers, strict=True):
            if one.answer.done():
                continue
            if isinstance(answer, BaseException):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)

    def _next_batch(self) -> list[_Waiting]:
        """Take the first request and those behind it that are sampled alike; none while the agent has enough to do."""
        self._waiting = [one for one in self._waiting if not one.answer.done()]
        if not self._waiting or self._under_way[id(self.speaker)] >= self.speaker.at_once:
            return []
        how = self._waiting[0].request.sampling
        batch = [one for one in self._waiting if one.request.sampling == how][: self.speaker.batch]
        self._waiting = [one for one in self._waiting if one not in batch]
        return batch

    def _free(self) -> None:
        """Free the agents that others have taken the place of, and that answer nothing any more."""
        for speaker in [one for one in self._left if not self._under_way[id(one)]]:
            self._left.remove(speaker)
            del self._under_way[id(speaker)]
            threading.Thread(target=_close, args=(speaker,), daemon=True).start()  # a server is asked to unload it


def _close(speaker: Speaker) -> None:
    try:
        speaker.close()
    except Exception:
        logger.exception("%s could not be freed", speaker.handed.title)


async def _replies(speaker: Speaker, requests: Sequence[ChatRequest]) -> list[Answer | BaseException]:
    """Answer `requests`, which are sampled alike; one whose dialogue does not fit gets its sentence."""
    engine, sampling = speaker.agent.engine, requests[0].sampling
    prompts = await in_thread(_prompts, speaker.agent, requests)
    fit = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
    replies: Iterator[list[Completion] | BadRequest]
    if isinstance(engine, AsyncEngine):  # who cancels this, cancels what the server is asked
        replies = iter(await asyncio.gather(*(_asked(engine, prompt, sampling) for prompt in fit)))
    else:
        replies = iter(await in_thread(engine.sample, fit, sampling) if fit else [])
    answers: list[Answer | BaseException] = []
    for request, prompt in zip(requests, prompts, strict=True):
        if isinstance(prompt, BadRequest):
            answers.append(prompt)
        elif isinstance(reply := next(replies), BadRequest):
            answers.append(reply)
        else:
            answers.append(Answer(request, reply, len(prompt.token_ids), speaker.handed))
    return answers


async def _asked(engine: AsyncEngine, prompt: Prompt, sampling: Sampling) -> list[Completion] | BadRequest:
    try:
        return await engine.ask(prompt, sampling)
    except NoRoom:
        return _no_room(prompt.token_ids, "")


def _prompts(agent: ChatAgent, requests: Sequence[ChatRequest]) -> list[Prompt | BadRequest]:
    found: list[Prompt | BadRequest] = []
    for request in requests:
        try:
            ids = agent.prompt_ids(_plain(request.messages))
        except UserError as error:
            found.append(BadRequest(str(error)))
            continue
        fits = len(ids) < agent.engine.context
        found.append(Prompt(ids, request.seed) if fits else _no_room(ids, f" of {agent.engine.context}"))
    return found


def _no_room(ids: Sequence[int], context: str) -> BadRequest:
    return BadRequest(
        f"The dialogue's {len(ids)} tokens leave no room for a reply in the model's context{context}; begin a new one.",
        code="context_length_exceeded",
    )


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{"role": str(one["role"]), "content": str(one["content"])} for one in messages]
