"""The engine `vllm`: a running vLLM server, token ids in and token ids out, with adapters loaded while it runs.

Prompts go to /v1/completions as ids and replies come back as ids with the log-probs that vLLM keeps at temperature 1
(its default `--logprobs-mode raw_logprobs`); text is decoded here, as the transformers engine does. An adapter has the
name of its content: a server that was started again, and has forgotten it, is given it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import ServerSettings
from sweetrl.engines.background import wait
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.remote import RemoteEngine, choices_of, count_of, error_message, finish_of, one_line, read_object
from sweetrl.engines.retry import Server, TransientError, retry
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.models.check import check_adapter
from sweetrl.types import Completion, Prompt, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("sweetrl")

_RUNTIME = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank"

# No log-prob is farther from 0: the largest of 32 bits, which a float holds.
FARTHEST = 3.4e38


class VllmEngine(RemoteEngine):
    """Replies of a vLLM server (0.10.2 or later) by token ids.

    `tokenizer` is that of the served model, which has `vocabulary` token ids; `adapter` is a peft folder at a path that
    the servers see, too. Without a model's name in `settings` the first that a server names is taken.
    """

    speaks_tokens = True

    def __init__(
        self,
        settings: ServerSettings,
        tokenizer: PreTrainedTokenizerBase,
        adapter: Path | None = None,
        vocabulary: int = 2**31,
        chat_options: Mapping[str, Any] = {},
    ) -> None:
        if not settings.addresses:
            raise UserError("engine vllm: `urls` is empty; name the server, as in http://localhost:8000/v1.")
        super().__init__(settings)
        self.tokenizer = tokenizer
        self.chat = ChatFormat(tokenizer, **chat_options)
        self.adapter, self.vocabulary = adapter, vocabulary
        self._served = settings.model
        self._adapter_name = None if adapter is None else adapter_name(adapter)
        self._loaded: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        ends = {self.chat.end_of_turn, tokenizer.eos_token_id}
        self._ends = sorted(id_ for id_ in ends if isinstance(id_, int))
        self.context = wait(self._look())
        """Positions of the model: prompt and reply together are never longer."""
        self.name = self._served if adapter is None else f"{self._served}+{adapter}"

    def load_adapter(self) -> None:
        """Give all servers the adapter now and not with the first request; UserError where one refuses it."""

        async def everywhere() -> None:
            for server in self._pool.servers:
                await self._load(server)

        if self.adapter is not None:
            try:
                wait(retry(everywhere, self.settings))
            except EngineError as error:
                raise UserError(f"{error}; the adapter {self.adapter} could not be loaded there.") from error

    async def _look(self) -> int:
        """Return the shortest context of the servers that answer; waits where none does yet."""

        async def attempt() -> int:
            looks = await asyncio.gather(*map(self._look_at, self._pool.servers), return_exceptions=True)
            faults = [look for look in looks if isinstance(look, BaseException)]
            contexts = [look for look in looks if isinstance(look, int)]
            for fault in faults:
                if not contexts or not isinstance(fault, TransientError):
                    raise fault
            return min(contexts)

        try:
            return await retry(attempt, self.settings)
        except EngineError as error:
            raise UserError(f"{error}; start the server or fix its address in `urls`.") from error

    async def _look_at(self, server: Server) -> int:
        """Return the length of the served model's context at one server."""
        status, text, headers = await self._exchange("GET", server, "/models")
        if status >= 400:
            self._refuse(server, status, text, headers)
        data = read_object(server.url, text).get("data")
        entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
        models = {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}
        if not models:
            raise TransientError(f"{server.url}: the server names no models")
        if self._served and self._served not in models:
            served = one_line(", ".join(models))
            raise UserError(f"{server.url}: there is no model {self._served!r}; the server has {served}.")
        self._served = self._served or next(iter(models))
        return count_of(models[self._served].get("max_model_len")) or 2**31

    async def _request(self, server: Server, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        room = min(sampling.max_new_tokens, self.context - len(prompt.token_ids))
        if room < 1:
            raise NoRoom(f"the dialogue's {len(prompt.token_ids)} tokens leave no room in the model's context")
        if self._adapter_name:
            await self._load(server)
        body = self._body(self._adapter_name or self._served, prompt, sampling, room)
        reply = await self._json(server, "/completions", body, sampling)
        completions = [self._read(server.url, choice) for choice in choices_of(server.url, reply, sampling.n)]
        return self._count(reply.get("usage"), completions)

    def _body(self, model: str, prompt: Prompt, sampling: Sampling, room: int) -> dict[str, Any]:
        # Everything that the model's generation_config.json could change is set here.
        return {
            "model": model,
            "prompt": list(prompt.token_ids),
            "max_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "n": sampling.n,
            "seed": prompt.seed % 2**63,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted({*self._ends, *sampling.stop_ids}),
            "add_special_tokens": False,
        }

    def _read(self, url: str, choice: dict[str, Any]) -> Completion:
        ids, logprobs, reason = choice.get("token_ids"), choice.get("logprobs"), finish_of(url, choice)
        if not isinstance(ids, list) or not ids or not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise TransientError(f"{url}: the reply has no token ids (a vLLM before 0.10.2 has none)")
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if (
            not isinstance(values, list)
            or len(values) != len(ids)
            or not all(type(value) in (int, float) and -FARTHEST <= value <= FARTHEST for value in values)
        ):
            raise TransientError(f"{url}: the reply has no log-prob for each of its tokens")
        if max(ids) >= self.vocabulary:
            raise UserError(
                f"{url}: a reply has the token id {max(ids)}, and model.base has only {self.vocabulary}: another model "
                "is served there; start the server with model.base, or name that in `model`."
            )
        spoken = ids[:-1] if reason == "stop" else ids
        (text,) = self.chat.decode([spoken])
        return Completion(tuple(ids), tuple(map(float, values)), text, reason)

    def _refuse(self, server: Server, status: int, text: str, headers: Any) -> None:
        if status == 404 and "does not exist" in text:
            # Started again since: the adapter is given to it once more with the next attempt.
            self._loaded.discard(server.url)
            raise TransientError(f"{server.url}: the server does not have the model (yet)")
        super()._refuse(server, status, text, headers)

    async def _load(self, server: Server) -> None:
        """Make sure that `server` has the adapter; only one request for it is under way."""
        if server.url in self._loaded:
            return
        async with self._locks.setdefault(server.url, asyncio.Lock()):
            if server.url in self._loaded:
                return
            assert self.adapter is not None
            body = {"lora_name": self._adapter_name, "lora_path": str(Path(self.adapter).resolve())}
            status, text, headers = await self._exchange("POST", server, "/load_lora_adapter", body)
            if status == 404 and "does not exist" not in text.lower() and "no adapter" not in text.lower():
                raise UserError(f"{server.url}: the server loads no adapters; {_RUNTIME}.")
            # An adapter that does not fit (its rank, its layers) is a 500 that speaks of LoRA; others may pass.
            if (status >= 500 and "lora" not in text.lower()) or status == 429:
                super()._refuse(server, status, text, headers)
            if status >= 400 and "already" not in text:
                raise UserError(
                    f"{server.url}: the adapter {self.adapter} was refused ({error_message(text)}); it must lie where "
                    f"the server sees it and fit its limits: {_RUNTIME}."
                )
            self._loaded.add(server.url)
            logger.info("%s: adapter %s is loaded as %s", server.url, self.adapter, self._adapter_name)

    async def _close(self) -> None:
        for server in self._pool.servers:
            if server.url in self._loaded:
                # What cannot be unloaded (the server has gone) needs no unloading.
                with contextlib.suppress(TransientError, TimeoutError):
                    async with asyncio.timeout(10):
                        await self._exchange("POST", server, "/unload_lora_adapter", {"lora_name": self._adapter_name})
        await super()._close()


def adapter_name(folder: Path) -> str:
    """Return the name under which a peft folder is served, which says what is in it; UserError where there is none."""
    folder = Path(folder)
    check_adapter(folder)
    content = hashlib.sha256()
    for path in sorted(folder.glob("adapter_*")):
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{folder.name}-{content.hexdigest()[:12]}"
