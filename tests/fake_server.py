"""A server that speaks chat completions and vLLM's protocol, and misbehaves on demand.

Its replies are a function of the request alone, so whatever it does to some requests, patience must end with the same.
With an `upstream` it is a proxy: the replies are those of the server behind it, and only the faults are its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweetrl.engines.background import wait
from sweetrl.types import Completion, Prompt, Sampling

FAULTS = ("429", "500", "503", "drop", "cut", "stuck", "empty", "not-json", "no-choices", "no-finish", "restart")
Reply = Callable[[dict[str, Any]], str]


def questions(body: dict[str, Any]) -> str:
    """Ask two or three times, then answer: a function of the messages (or ids) and the seed."""
    context = json.dumps([body.get("messages") or body.get("prompt"), body.get("seed")])
    number = int(hashlib.sha256(context.encode()).hexdigest(), 16)
    turns = sum(message["role"] == "assistant" for message in body.get("messages", []))
    if turns >= 2 + number % 2:
        return f"I WANT TO ANSWER:\n```python\ndef f(x):\n    return x + {number % 97}\n```"
    return f"Question {number % 1000}: what is the rate?"


@dataclass
class FakeServer:
    """Runs in a thread. `share` of the requests (by their number, spread evenly at random) meet one of `faults`.

    `tokenizer` makes it a vLLM server, too: `reply` gives its texts, ids follow. `latency` is waited before each reply.
    `upstream` is the address (".../v1") of the server that a proxy stands before.
    """

    reply: Reply = questions
    share: float = 0.0
    faults: Sequence[str] = FAULTS
    tokenizer: Any = None
    upstream: str = ""
    context: int = 2048
    latency: Callable[[dict[str, Any]], float] = lambda body: 0.0
    stuck: float = 30.0
    pause: str = "0.02"
    adapters: dict[str, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    scripted: list[str] = field(default_factory=list)
    """Faults for the next requests, one each ("" is none); then `share` decides."""
    port: int = 0
    active: int = 0
    most_active: int = 0
    gone: int = 0

    def __enter__(self) -> FakeServer:
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
            self.port = self.server.sockets[0].getsockname()[1]
            ready.set()
            self.loop.run_forever()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        assert ready.wait(120)
        return self

    def __exit__(self, *error: object) -> None:
        async def stop() -> None:
            self.server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(120)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> int:
        return len(self.bodies)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; False ends the connection."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"null")
        method, path, _ = first.split(" ")
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            if method == "GET":
                return await self._send(writer, *(await self._far("GET", path) or (200, self._look(path))))
            if "lora_adapter" in path:
                far = await self._far("POST", path, body)
                near = self._adapter(path, body)
                return await self._send(writer, *(far or near))
            self.bodies.append(body)
            self.headers.append(headers)
            return await self._complete(reader, writer, path, body, self._fault())
        finally:
            self.active -= 1

    def _fault(self) -> str:
        if self.scripted:
            return self.scripted.pop(0)
        number = int(hashlib.sha256(f"fault {len(self.bodies)}".encode()).hexdigest(), 16)
        if number % 10_000 >= self.share * 10_000:
            return ""
        return self.faults[number // 10_000 % len(self.faults)]

    async def _patient(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        """Whether the client waits so long; one that hangs up is counted, as vLLM ends its requests."""
        incoming = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait({incoming}, timeout=seconds)
        if done:
            self.gone += 1
            return False
        incoming.cancel()
        await asyncio.gather(incoming, return_exceptions=True)
        return True

    async def _complete(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: dict[str, Any], fault: str
    ) -> bool:
        self.seen[fault] += 1
        if fault == "drop":
            return False
        if fault == "stuck":
            await asyncio.sleep(self.stuck)
            return False
        if fault == "restart":
            for name in list(self.adapters):
                del self.adapters[name]
                await self._far("POST", "/v1/unload_lora_adapter", {"lora_name": name})
            return False
        if fault in ("429", "500", "503"):
            return await self._send(writer, int(fault), {"error": {"message": "busy"}}, {"Retry-After": self.pause})
        if (seconds := self.latency(body)) and not await self._patient(reader, seconds):
            return False
        if fault == "not-json":
            return await self._send(writer, 200, "<html>Bad gateway</html>")
        near = self._chat if path.endswith("/chat/completions") else self._completions
        status, reply = await self._far("POST", path, body) or near(body)
        if status == 200 and fault == "no-choices":
            reply["choices"] = []
        if status == 200 and fault == "no-finish":
            reply["choices"][0]["finish_reason"] = None
        if status == 200 and fault == "empty":
            reply["choices"][0] |= {"message": {"role": "assistant", "content": ""}, "token_ids": []}
        return await self._send(writer, status, reply, cut=fault == "cut")

    async def _far(self, method: str, path: str, body: Any = None) -> tuple[int, Any] | None:
        """The answer of the server behind a proxy; None without such a server."""
        if not self.upstream:
            return None
        import httpx

        async with httpx.AsyncClient(timeout=600.0, trust_env=False) as client:
            response = await client.request(method, self.upstream.removesuffix("/v1") + path, json=body)
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, response.text

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        reply: Any,
        headers: dict[str, str] | None = None,
        cut: bool = False,
    ) -> bool:
        text = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(text)}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (text[: len(text) // 2] if cut else text))
        await writer.drain()
        return not cut

    def _look(self, path: str) -> Any:
        models = ["base", *self.adapters]
        return {"object": "list", "data": [{"id": name, "max_model_len": self.context} for name in models]}

    def _adapter(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["lora_name"]
        self.seen[path.rpartition("/")[2]] += 1
        if "unload" in path:
            adapter = self.adapters.pop(name, None)
            missing = {"error": {"message": f"The lora adapter '{name}' cannot be found."}}
            return (200, "ok") if adapter else (404, missing)
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        self.adapters[name] = body["lora_path"]
        return 200, "ok"

    def _chat(self, body: dict[str, Any]) -> tuple[int, Any]:
        count = body.get("n", 1)
        choices = [
            {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for index, text in enumerate(self.reply(body | {"seed": body.get("seed", 0) + n}) for n in range(count))
        ]
        words = sum(len(str(message["content"]).split()) for message in body["messages"])
        spoken = sum(len(choice["message"]["content"].split()) for choice in choices)
        usage = {"prompt_tokens": words, "completion_tokens": spoken, "prompt_tokens_details": {"cached_tokens": 1}}
        return 200, {"choices": choices, "usage": usage}

    def _completions(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["model"] not in ("base", *self.adapters):
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}
        if len(body["prompt"]) + body["max_tokens"] > self.context:
            return 400, {"error": {"message": f"This model's maximum context length is {self.context} tokens."}}
        # The adapter's name (without the digest) is part of what is said, as an adapter changes what a model says.
        policy = body["model"].partition("-")[0]
        texts = [self.reply(body | {"seed": body["seed"] + n, "policy": policy}) for n in range(body["n"])]
        choices = []
        for index, text in enumerate(texts):
            ids = self.tokenizer.encode(text, add_special_tokens=False) + body["stop_token_ids"][:1]
            reason = "stop" if len(ids) <= body["max_tokens"] else "length"
            ids = ids[: body["max_tokens"]]
            logprobs = [-((token * 7919 + body["seed"]) % 1000) / 1000 - 0.001 for token in ids]
            choices.append(
                {"index": index, "text": text, "token_ids": ids, "logprobs": {"token_logprobs": logprobs}}
                | {"finish_reason": reason}
            )
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": sum(len(choice["token_ids"]) for choice in choices),
        }
        return 200, {"choices": choices, "usage": usage}


def sample(engine: Any, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
    """What an engine behind a server says to `prompts`, asked side by side."""

    async def everything() -> list[list[Completion]]:
        return list(await asyncio.gather(*(engine.ask(prompt, sampling) for prompt in prompts)))

    return wait(everything())
