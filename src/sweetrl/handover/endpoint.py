"""`sweetrl serve`: an agent behind an OpenAI-compatible endpoint, which follows its alias in the registry.

POST /v1/chat/completions, GET /v1/models, GET /health, GET /metrics; with a recorder of dialogues POST /v1/feedback.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sweetrl.errors import UserError
from sweetrl.handover.alias import Follower
from sweetrl.handover.chat_requests import LONGEST_BODY, BadRequest, read_body, read_request
from sweetrl.handover.line import Answer, Line
from sweetrl.handover.numbers import Numbers
from sweetrl.handover.recorder import Recorder, read_feedback
from sweetrl.listening import for_this_machine_only, listening, other_site, own_name, serve_app
from sweetrl.paths import SCRATCH
from sweetrl.settings import EngineSettings, Settings
from sweetrl.types import Completion

logger = logging.getLogger("sweetrl")

Result = TypeVar("Result")

VLLM_LOG = SCRATCH / "serve.log"  # what a vLLM server of ours says
BODY_SECONDS = 25.0  # in which a request's body must arrive; the connection lasts longer, so that this can be said
RETRY_AFTER = "2"  # seconds, for clients that came when the line was full
TIDY_SECONDS = 30.0  # between two looks at files of dialogues that are to be handed on


class Endpoint:
    """The endpoint's pages over a `line`, and what they count; `follower` keeps the line at its alias.

    A `recorder` keeps the dialogues whose clients agree. `host` is the address of this machine that only this machine
    reaches: what web sites ask there through a browser is refused. None where others reach the endpoint, under names
    that it does not know.
    """

    def __init__(
        self, line: Line, follower: Follower, recorder: Recorder | None = None, host: str | None = "127.0.0.1"
    ) -> None:
        self.line, self.follower, self.recorder, self.host = line, follower, recorder, host
        self.numbers = Numbers()
        self.numbers.dialogues = recorder.counts if recorder is not None else None
        self.started = int(time.time())
        self._work: list[asyncio.Task[None]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """What a client may call the agent; the first is what /v1/models says."""
        return tuple(dict.fromkeys((self.line.speaker.handed.name, self.follower.reference)))

    def app(self) -> Starlette:
        """Return the ASGI application; its lifespan runs the line and follows the alias."""
        more = [Route("/v1/feedback", self.feedback, methods=["POST"])] if self.recorder is not None else []
        return Starlette(
            routes=[
                *more,
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
            ],
            middleware=[] if self.host is None else [Middleware(_Guard, self.host)],
            lifespan=self._lifespan,
            exception_handlers={404: _no_page, 405: _no_page},
        )

    async def chat(self, request: Request) -> Response:
        """Answer the next turn of a dialogue."""
        started = time.monotonic()
        response = await _told(self._answer, request)
        self.numbers.count(response.status_code, time.monotonic() - started)
        return response

    async def feedback(self, request: Request) -> Response:
        """Take what a dialogue came to."""
        return await _told(self._feedback, request)

    async def models(self, request: Request) -> Response:
        """Name the agent; `version` is the one that answers now."""
        handed = self.line.speaker.handed
        row = {"id": self.names[0], "object": "model", "created": self.started, "owned_by": "sweetrl"}
        row |= {"version": handed.version, "max_model_len": self.line.speaker.agent.engine.context}
        return JSONResponse({"object": "list", "data": [row]})

    async def health(self, request: Request) -> Response:
        """Say whether requests are answered: 200, or 503 where the work behind the endpoint has ended or fails."""
        if self.line.failing:
            self.line.try_again()
        works = bool(self._work) and not any(task.done() for task in self._work)
        well = works and not self.line.failing and not self.follower.ended()
        handed = self.line.speaker.handed
        state = {"status": "ok" if well else "failed", "model": handed.name, "version": handed.version}
        return JSONResponse(state, 200 if well else 503)

    async def metrics(self, request: Request) -> Response:
        """Return what was counted, for Prometheus."""
        handed, line = self.line.speaker.handed, self.line
        text = self.numbers.text(handed.name, handed.version, line.waiting, line.changes, self.follower.failures)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _answer(self, request: Request) -> Response:
        value = read_body(await _read(request))
        asking = self.line.ask(lambda config: read_request(value, config, self.names))
        answer = await _unless_gone(request, asking)
        asked = answer.request
        self.numbers.prompt_tokens += answer.prompt_tokens
        self.numbers.generated_tokens += sum(len(one.token_ids) for one in answer.completions)
        written = _written(answer, self.names[0])
        if self.recorder is not None:
            replies = [one.text for one in answer.completions]
            if (kept := self.recorder.turn(asked, replies, answer.handed.title)) is not None:
                written["sweetrl"]["dialogue"] = kept
        if not asked.stream:
            return JSONResponse(written)
        return Response(_events(written, asked.with_usage), media_type="text/event-stream")

    async def _feedback(self, request: Request) -> Response:
        assert self.recorder is not None
        given = read_feedback(await _read(request))
        return JSONResponse({"dialogue": given.dialogue, "status": self.recorder.feedback(given)})

    async def _tidy(self, recorder: Recorder) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                recorder.tidy()
            except (OSError, UserError):
                logger.exception("dialogues cannot be handed on; they are tried again")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._work = [asyncio.create_task(self.line.run())]
        if self.follower.registry is not None:
            self._work.append(asyncio.create_task(self.follower.run(self.line)))
        if self.recorder is not None:
            self._work.append(asyncio.create_task(self._tidy(self.recorder)))
        try:
            yield
        finally:
            for task in self._work:
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)
            if self.recorder is not None:
                self.recorder.close()
            await self.line.close()


class _Guard:
    """Refuses what a page of another site asks, which could hold dialogues and call them successes."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        app: ASGIApp = self.app
        if headers is not None and not own_name(headers.get("host", ""), self.host):
            app = _refusal(
                "This host name is not the endpoint's; ask at the address that it printed.", 403, "foreign_host"
            )
        elif headers is not None and other_site(headers):
            app = _refusal("Pages of other sites may not ask this endpoint.", 403, "foreign_site")
        await app(scope, receive, send)


def serve(
    reference: str,
    settings: Settings,
    host: str,
    port: int,
    seconds: float,
    engine: EngineSettings | None = None,
    dialogues: Path | None = None,
) -> None:
    """Serve the agent that `reference` names until interrupted; its alias is looked at every `seconds`.

    `engine` says who samples: transformers in this process (the default), or a vLLM server. Dialogues whose clients
    agree are kept in the folder `dialogues`, if one is given.
    """
    with listening(host, port) as listener:
        recorder = None if dialogues is None else Recorder(dialogues)
        follower = Follower(reference, settings, seconds, engine or EngineSettings())
        with follower.first(VLLM_LOG) as speaker:
            endpoint = Endpoint(Line(speaker), follower, recorder, host if for_this_machine_only(listener) else None)

            def opened(address: str) -> None:
                print(f"serving {speaker.handed.title} as {endpoint.names[0]} at {address}/v1", flush=True)

            serve_app(endpoint.app(), listener, host, opened, patience=60)


async def _told(answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """Answer a request; what goes wrong is told in a sentence."""
    try:
        return await answer(request)
    except BadRequest as error:
        return _refusal(str(error), error.status, error.code)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it; counted as others count it
    except Exception:
        logger.exception("a request failed")
        return _refusal("The agent failed on this request; the server's log says why.", 500, "server_error")


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what `work` gives; where the client goes first, cancel it and raise ClientDisconnect.

    Nobody else would notice, and clients that give up and ask again would fill the line. The body must be read already.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _read(request: Request) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > LONGEST_BODY:
                    raise BadRequest(
                        f"The body is larger than {LONGEST_BODY} bytes; send a shorter dialogue.", 413, "too_large"
                    )
                parts.append(part)
    except TimeoutError as error:
        raise BadRequest(f"The body did not arrive within {BODY_SECONDS:g} seconds.", 408, "timeout") from error
    return b"".join(parts)


def _refusal(sentence: str, status: int, code: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": sentence, "type": kind, "param": None, "code": code}
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else None
    return JSONResponse({"error": error}, status, headers)


async def _no_page(request: Request, error: Exception) -> Response:
    status = int(getattr(error, "status_code", 404))
    return _refusal("There is no such page; POST to /v1/chat/completions, or GET /v1/models.", status, "not_found")


def _written(answer: Answer, model: str) -> dict[str, Any]:
    """Return the answer as OpenAI's chat completions write it; `sweetrl` says who replied, and at which turn."""
    generated = sum(len(one.token_ids) for one in answer.completions)
    config = answer.handed.config
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"version-{answer.handed.version}" if answer.handed.version else None,
        "choices": [_choice(number, one) for number, one in enumerate(answer.completions)],
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": answer.prompt_tokens + generated,
        },
        "sweetrl": {"version": answer.handed.version, "turn": answer.request.turn, "max_turns": config.max_turns},
    }


def _choice(number: int, completion: Completion) -> dict[str, Any]:
    message = {"role": "assistant", "content": completion.text, "refusal": None}
    return {"index": number, "message": message, "finish_reason": completion.finish_reason, "logprobs": None}


def _events(written: dict[str, Any], with_usage: bool) -> str:
    """Return an answer as server-sent events: a chunk with each whole reply, one with its end, and the usage."""
    shared = {key: value for key, value in written.items() if key not in ("choices", "usage", "object")}
    shared["object"] = "chat.completion.chunk"
    chunks = []
    for choice in written["choices"]:
        delta = {"role": "assistant", "content": choice["message"]["content"]}
        for part, reason in ((delta, None), ({}, choice["finish_reason"])):
            row = {"index": choice["index"], "delta": part, "finish_reason": reason, "logprobs": None}
            chunks.append({**shared, "choices": [row]})
    if with_usage:
        chunks.append({**shared, "choices": [], "usage": written["usage"]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
