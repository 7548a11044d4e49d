"""The engine `openai`: any server of chat completions, hosted or your own. It knows text only.

What it therefore cannot do: give token ids or log-probs (its dialogues can be scored, shown and exported; training
tokenises them again, as it does with imported ones), stop at token ids, and load adapters (serve the model you want; or
use vllm).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sweetrl.config.settings import ServerSettings
from sweetrl.engines.remote import (
    FewerChoices,
    RemoteEngine,
    choices_of,
    clean,
    error_message,
    finish_of,
    no_room,
    one_line,
)
from sweetrl.engines.retry import Server, TransientError
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.thoughts import MARKS
from sweetrl.types import Completion, Content, Prompt, Sampling

# Servers keep seeds in numbers of different sizes; this one fits all.
SEEDS = 2**31


def written(content: Content) -> str | list[dict[str, Any]]:
    """Return a message's content as the protocol writes it; pictures are PNG in data addresses."""
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(part).decode()}"}}
        for part in content
    ]


class _OneReply(EngineError):
    """The server gives one reply to a request, however many are asked for."""


class OpenAIEngine(RemoteEngine):
    """Replies of `POST /chat/completions`. Prompts need `messages`; completions have text and a finish reason.

    Several replies to a prompt are one request. Where a server refuses that, or gives fewer, each is asked for by
    itself from then on, with the prompt's seed counted up, as servers of several replies do. `template_options` go to
    the server's chat template, as vLLM, SGLang and llama.cpp take them; others may refuse or ignore them.
    """

    def __init__(self, settings: ServerSettings, template_options: Mapping[str, Any] = {}) -> None:
        if not settings.addresses:
            raise UserError("engine openai: `urls` is empty; name the server, as in http://localhost:8000/v1.")
        if not settings.model:
            raise UserError("engine openai: `model` is empty; give the name under which the server serves the model.")
        super().__init__(settings)
        self._refused: set[str] = set()  # what the server does not take in a request
        self._together = True
        self._template_options = dict(template_options)

    async def _ask_patiently(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        if sampling.n == 1 or self._together:
            try:
                return await super()._ask_patiently(prompt, sampling)
            except _OneReply:
                self._together = False
        completions = list[Completion]()
        for index in range(sampling.n):  # one after the other: many prompts are under way beside this one
            again = replace(prompt, seed=prompt.seed + index)
            completions += await super()._ask_patiently(again, replace(sampling, n=1))
        return completions

    async def _request(self, server: Server, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        try:
            reply = await self._json(server, "/chat/completions", self._body(prompt, sampling), sampling)
            choices = choices_of(server.url, reply, sampling.n)
        except NoRoom:
            raise
        except (EngineError, FewerChoices) as error:
            if sampling.n > 1:  # servers say in many words that they give one only
                raise _OneReply(str(error)) from error
            raise
        return self._count(reply.get("usage"), [read_choice(server.url, choice) for choice in choices])

    def _body(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        if not prompt.messages:
            raise ValueError("a chat-completions server needs the prompt's messages")
        if sampling.stop_ids:
            raise UserError("engine openai: chat completions know no token ids to stop at; set `engine.kind: vllm`.")
        limit = "max_completion_tokens" if "max_tokens" in self._refused else "max_tokens"
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [{"role": role, "content": written(content)} for role, content in prompt.messages],
            limit: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": prompt.seed % SEEDS,
        }
        # Sent even where it is 1: else a vLLM takes what the model's generation_config.json suggests.
        if "top_p" not in self._refused or sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.n != 1:
            body["n"] = sampling.n
        if self._template_options:  # no key of OpenAI's own API, which refuses it
            body["chat_template_kwargs"] = self._template_options
        return body

    def _refuse(self, server: Server, status: int, text: str, headers: Any) -> None:
        # The limit's name has changed over the years, and some servers refuse the old one; some take no top_p.
        # (A refusal of a prompt that does not fit names the limits, too.)
        for key, word in (("max_tokens", "max_completion_tokens"), ("top_p", "top_p")):
            if status == 400 and word in text and not no_room(text):
                self._refused.add(key)
                raise TransientError(f"{server.url}: status 400 ({error_message(text)})")
        super()._refuse(server, status, text, headers)


def read_choice(url: str, choice: dict[str, Any]) -> Completion:
    """Return one choice as a completion; thoughts that the server gives apart stand in marks before the words.

    TransientError if it is broken off or says nothing, EngineError if it is kept back, calls a tool, or is no text.
    """
    reason, message = finish_of(url, choice), choice.get("message")
    if not isinstance(message, dict):
        raise TransientError(f"{url}: the reply is broken off (no message)")
    if calls := message.get("tool_calls") or message.get("function_call"):
        raise EngineError(f"{url}: the model calls a tool, and was given none ({one_line(json.dumps(calls))})")
    content = message.get("content") or message.get("refusal") or ""
    thoughts, words = read_parts(url, content if isinstance(content, list) else [{"type": "text", "text": content}])
    apart = message.get("reasoning_content") or message.get("reasoning")
    thoughts = (thoughts or (apart if isinstance(apart, str) else "")).strip()
    words = words.lstrip() if thoughts else words
    if not words and reason == "stop":
        why = "all of it is reasoning; does the server's reasoning parser fit the model?" if thoughts else "no words"
        raise TransientError(f"{url}: the reply is empty ({why})")
    if thoughts:
        opening, closing = MARKS[0]
        words = f"{opening}\n{thoughts}" + (f"\n{closing}\n\n{words}" if words else "")
    return Completion((), (), clean(words), reason)


def read_parts(url: str, parts: list[Any]) -> tuple[str, str]:
    """Return the thoughts and the words of a content in parts; EngineError where one of them is no text."""
    thoughts, words = list[str](), list[str]()
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(kind, part.get("text")) if isinstance(kind, str) else None
        if isinstance(text, list):  # thoughts in parts of their own
            text = "".join(str(inner.get("text", "")) for inner in text if isinstance(inner, dict))
        if kind not in ("text", "output_text", "refusal", "thinking", "reasoning") or not isinstance(text, str):
            raise EngineError(f"{url}: a part of the reply is no text ({one_line(str(kind))})")
        (thoughts if kind in ("thinking", "reasoning") else words).append(text)
    return "".join(thoughts), "".join(words)
