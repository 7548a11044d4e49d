"""`sweetrl serve`: an agent behind an OpenAI-compatible endpoint, which follows its alias in the registry.

POST /v1/chat/completions, GET /v1/models, GET /health; with a recorder of dialogues POST /v1/feedback, with a vLLM
server GET /metrics, which are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sweetrl.config.settings import EngineSettings, Settings
from sweetrl.errors import UserError
from sweetrl.listening import Guard, for_this_machine_only, listening, serve_app
from sweetrl.paths import SCRATCH
from sweetrl.serve.alias import Follower
from sweetrl.serve.chat_requests import BadRequest, ChatRequest, Feedback, read_body, read_request
from sweetrl.serve.recorder import Recorder
from sweetrl.serve.source import Handed
from sweetrl.thoughts import assistant_message
from sweetrl.types import Completion

logger = logging.getLogger("sweetrl")

Result = TypeVar("Result")

VLLM_LOG = SCRATCH / "serve.log"  # the output of a vLLM server of ours
TIDY_SECONDS = 30.0  # between two looks at files of dialogues that are to be handed on


class Endpoint:
    """The endpoint's pages before the agent of `follower`, which keeps it at its alias.

    A `recorder` keeps the dialogues whose clients agree. `host` is the address of this machine that only this machine
    reaches: what web sites ask there through a browser is refused. None where others reach the endpoint.
    """

    def __init__(self, follower: Follower, recorder: Recorder | None = None, host: str | None = "127.0.0.1") -> None:
        self.follower, self.recorder, self.host = follower, recorder, host

    @property
    def names(self) -> tuple[str, ...]:
        """What a client may call the agent; the first is what /v1/models says."""
        return tuple(dict.fromkeys((self.follower.speaker.handed.name, self.follower.reference)))

    def app(self) -> Starlette:
        """Return the ASGI application; its lifespan follows the alias."""
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
        ]
        if self.recorder is not None:
            routes.append(Route("/v1/feedback", self.feedback, methods=["POST"]))
        if self.follower.engine.kind == "vllm":
            routes.append(Route("/metrics", self.metrics))
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guard, self.host)],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _refused, ClientDisconnect: _nobody},
        )

    async def chat(self, request: Request) -> Response:
        """Answer the next turn of a dialogue."""
        body = await request.body()
        speaker = self.follower.speaker
        chat_request = read_request(body, speaker.handed.config, self.names)
        try:
            completions, prompt_tokens = await _unless_gone(request, speaker.answer(chat_request))
        except (BadRequest, ClientDisconnect):
            raise
        except Exception as error:  # not for Starlette: uvicorn then closes the connection behind the answer
            logger.exception("a request failed")
            sentence = "The agent failed on this request; the server's log says why."
            raise BadRequest(sentence, 500, "server_error") from error
        written = _written(chat_request, completions, prompt_tokens, speaker.handed)
        if self.recorder is not None:
            replies = [completion.text for completion in completions]
            if kept := self.recorder.turn(chat_request, replies, speaker.handed.title, speaker.handed.config.split):
                written["sweetrl"]["dialogue"] = kept
        if not chat_request.stream:
            return JSONResponse(written)
        return Response(_events(written, chat_request.with_usage), media_type="text/event-stream")

    async def feedback(self, request: Request) -> Response:
        """Take what a dialogue came to."""
        assert self.recorder is not None
        given = read_body(Feedback, await request.body())
        return JSONResponse({"dialogue": given.dialogue, "status": self.recorder.feedback(given)})

    async def models(self, request: Request) -> Response:
        """Name the agent; `version` is the one that answers now."""
        speaker = self.follower.speaker
        row = {"id": self.names[0], "object": "model", "created": int(time.time()), "owned_by": "sweetrl"}
        row |= {"version": speaker.handed.version, "max_model_len": speaker.agent.engine.context}
        return JSONResponse({"object": "list", "data": [row]})

    async def health(self, request: Request) -> Response:
        """Say which version answers: with 200, or 503 where the vLLM server behind the endpoint does not work."""
        remote = self.follower.engine.kind == "vllm"
        well = not self.follower.ended() and (not remote or (await self._at_server("health")).status_code == 200)
        handed = self.follower.speaker.handed
        state = {"status": "ok" if well else "failed", "model": handed.name, "version": handed.version}
        return JSONResponse(state, 200 if well else 503)

    async def metrics(self, request: Request) -> Response:
        """Return what the vLLM server counts, for Prometheus."""
        return await self._at_server("metrics")

    async def _at_server(self, page: str) -> Response:
        """Return a page of the vLLM server (the first, of several): 503 where it does not answer."""
        url = self.follower.engine.addresses[0].removesuffix("/v1")
        try:
            async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
                answer = await client.get(f"{url}/{page}")
        except httpx.HTTPError:
            return Response(status_code=503)
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        work = [asyncio.create_task(self.follower.run())] if self.follower.registry is not None else []
        if self.recorder is not None:
            work.append(asyncio.create_task(_tidy(self.recorder)))
        try:
            yield
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            if self.recorder is not None:
                self.recorder.close()
            await self.follower.speaker.close()


def serve(
    reference: str, settings: Settings, host: str, port: int, engine: EngineSettings, dialogues: Path | None
) -> None:
    """Serve the agent that `reference` names until interrupted.

    `engine` says who samples: transformers in this process, or a vLLM server. Dialogues whose clients agree are kept in
    the folder `dialogues`, if one is given.
    """
    with listening(host, port) as listener:
        recorder = None if dialogues is None else Recorder(dialogues)
        follower = Follower(reference, settings, engine=engine)
        with follower.started(VLLM_LOG):
            endpoint = Endpoint(follower, recorder, host if for_this_machine_only(listener) else None)

            def opened(address: str) -> None:
                title = follower.speaker.handed.title
                print(f"serving {title} as {endpoint.names[0]} at {address}/v1", flush=True)

            serve_app(endpoint.app(), listener, host, opened, patience=60)


async def _tidy(recorder: Recorder) -> None:
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        try:
            recorder.tidy()
        except (OSError, UserError):
            logger.exception("dialogues cannot be handed on; they are tried again")


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what `work` gives; cancel it where the client goes first (ClientDisconnect). The body must be read."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, sentence, code = error.status_code, error.detail, getattr(error, "code", "invalid_request")
    if status in (404, 405) and not isinstance(error, BadRequest):
        code, sentence = "not_found", "There is no such page; POST to /v1/chat/completions, or GET /v1/models."
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": sentence, "type": kind, "param": None, "code": code}}, status)


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


def _written(
    request: ChatRequest, completions: Sequence[Completion], prompt_tokens: int, handed: Handed
) -> dict[str, Any]:
    """Return replies as OpenAI's chat completions, thoughts apart; `sweetrl` says who replied, and at which turn."""
    generated = sum(len(completion.token_ids) for completion in completions)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": handed.name,
        "system_fingerprint": f"version-{handed.version}" if handed.version else None,
        "choices": [
            {
                "index": number,
                "message": {**assistant_message(*handed.config.split(completion.text)), "refusal": None},
                "finish_reason": completion.finish_reason,
                "logprobs": None,
            }
            for number, completion in enumerate(completions)
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": prompt_tokens + generated,
        },
        "sweetrl": {"version": handed.version, "turn": request.turn, "max_turns": handed.config.max_turns},
    }


def _events(written: dict[str, Any], with_usage: bool) -> str:
    """Return an answer as server-sent events: a chunk with each reply and its end, and the usage."""
    shared = {**written, "object": "chat.completion.chunk", "choices": []}
    usage = shared.pop("usage")
    chunks = []
    for choice in written["choices"]:
        message, row = choice["message"], {key: value for key, value in choice.items() if key != "message"}
        chunks.append({**shared, "choices": [row | {"delta": message}]})
    chunks += [{**shared, "usage": usage}] if with_usage else []
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
