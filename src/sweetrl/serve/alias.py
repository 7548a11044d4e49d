"""Who answers at the endpoint: an agent, and whoever takes over when its alias in the registry moves.

A request is answered by the agent that it came to, to its end, so that none is lost when a new version takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sweetrl.config.settings import EngineSettings, ModelSettings, Settings, section
from sweetrl.engines.background import in_thread
from sweetrl.engines.policy import adapter_lora_rank, watched
from sweetrl.errors import NoRoom, UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.models.check import is_full, is_trained
from sweetrl.protocols import AsyncEngine
from sweetrl.serve.chat_requests import BadRequest, ChatRequest
from sweetrl.serve.source import Handed, fetch, from_registry
from sweetrl.tracking.chat_agent import ChatAgent
from sweetrl.tracking.registry import Registry, split_reference
from sweetrl.types import Completion, Prompt

logger = logging.getLogger("sweetrl")

LOOK_SECONDS = 10.0  # between two looks at the alias
CHARACTERS = 8  # for each token of the context: a longer prompt is looked at piece by piece

Result = TypeVar("Result")
Folder = tempfile.TemporaryDirectory[str]


class Speaker:
    """A loaded agent. One in this process answers one request after the other, one behind a vLLM server many at a time.

    `folder` holds its adapter where a server may read it again.
    """

    def __init__(self, handed: Handed, agent: ChatAgent, folder: Folder | None = None) -> None:
        self.handed, self.agent, self._folder = handed, agent, folder
        self._thread = ThreadPoolExecutor(1, "sweetrl-speaker")
        self.under_way = 0  # requests that are not answered yet

    async def answer(self, request: ChatRequest) -> tuple[list[Completion], int]:
        """Return the replies to a request, and its prompt's length in tokens; BadRequest where it does not fit.

        Who cancels this cancels the request to a server, or gives its place in this process back.
        """
        engine = self.agent.engine
        self.under_way += 1
        try:
            prompt = Prompt(await self._in_turn(self._prompt_ids, request.messages), request.seed)
            if isinstance(engine, AsyncEngine):
                replies = await engine.ask(prompt, request.sampling)
            else:
                (replies,) = await self._in_turn(engine.sample, [prompt], request.sampling)
        except NoRoom as error:
            raise BadRequest(
                "The dialogue leaves no room for a reply in the model's context; begin a new one.",
                code="context_length_exceeded",
            ) from error
        finally:
            self.under_way -= 1
        return replies, len(prompt.token_ids)

    async def close(self) -> None:
        """Free the model, once what it has begun is answered."""
        while self.under_way:
            await asyncio.sleep(0.1)
        try:
            await self._in_turn(self.agent.close)
        except Exception:  # a server that has gone, too
            logger.exception("%s could not be freed", self.handed.title)
        finally:
            self._thread.shutdown(wait=False)
            if self._folder is not None:
                self._folder.cleanup()

    async def _in_turn(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        words, most = "".join(message["content"] for message in messages), self.agent.engine.context
        cut = CHARACTERS * most
        while cut < len(words):  # all of a long prompt would hold the others up: its beginning may be too long already
            if len(self.agent.engine.chat.tokenizer.encode(words[:cut], add_special_tokens=False)) > 2 * most:
                raise NoRoom(f"more than {2 * most} tokens")
            cut *= 4
        try:
            ids = self.agent.prompt_ids(messages)
        except UserError as error:  # the chat template does not take these words
            raise BadRequest(str(error)) from error
        if len(ids) >= self.agent.engine.context:
            raise NoRoom(f"{len(ids)} tokens")
        return ids


def sampler(settings: EngineSettings, kind: str | None = None, url: str = "") -> EngineSettings:
    """Return who samples a served agent: `kind`, else vllm where there is a `url`, else what `settings` say.

    The engine `openai` has no adapters: named here it is a UserError, in `settings` transformers takes its place.
    """
    if kind == "openai":
        raise UserError("--engine openai: chat completions load no adapters; choose transformers or vllm.")
    if kind == "transformers" and url:
        raise UserError(f"--url {url}: the engine transformers samples in this process; leave --engine or --url out.")
    kind = kind or ("vllm" if url or settings.kind == "vllm" else "transformers")
    named = {"urls": url, "model": ""} if url or kind == "transformers" else {}
    return settings.model_copy(update={"kind": kind, **named})


def load_speaker(handed: Handed, engine: EngineSettings, folder: Folder | None = None) -> Speaker:
    """Load an agent here, or into the vLLM server of `engine`, which may read the adapter in `folder` again later."""
    if engine.kind != "vllm":
        return Speaker(handed, ChatAgent.load(handed.base, handed.adapter, handed.config), folder)
    from sweetrl.engines.vllm import VllmEngine
    from sweetrl.models.load import load_tokenizer, vocabulary_of

    adapter = None if is_full(handed.adapter) else handed.adapter  # full weights are the server's own model
    tokenizer, vocabulary = load_tokenizer(handed.base), vocabulary_of(handed.base)
    remote = VllmEngine(engine, tokenizer, adapter, vocabulary, handed.config.chat_options)
    try:
        remote.load_adapter()
    except BaseException:
        remote.close()
        raise
    return Speaker(handed, ChatAgent(remote, handed.config), folder)


def _new_folder() -> Folder:
    return tempfile.TemporaryDirectory(prefix="sweetrl-serve-", ignore_cleanup_errors=True)


def _base_of(handed: Handed) -> tuple[str, str]:
    """Return which base an adapter is on: its hash, or the hub's name and revision; full weights are their own."""
    if is_full(handed.adapter):
        return dvc_hash(handed.adapter), ""
    return handed.config.base_hash or handed.config.base, handed.config.base_revision


@dataclass
class Follower:
    """Keeps `speaker` at the version that the alias in `reference` points to; a folder's adapter stays as it is.

    A version is fetched into a folder of its own. `engine` is who samples: `transformers` in this process, or `vllm`.
    """

    reference: str
    settings: Settings
    seconds: float = LOOK_SECONDS
    engine: EngineSettings = field(default_factory=EngineSettings)
    registry: Registry | None = None
    base: tuple[str, str] | None = None
    """The base that a vLLM server serves, ours or not (`_base_of`); a version on another one cannot take over."""
    ended: Callable[[], bool] = lambda: False
    """Whether a server of our own has ended for good."""
    speaker: Speaker = field(init=False)

    @contextlib.contextmanager
    def started(self, log: Path) -> Iterator[None]:
        """Load what `reference` names now.

        Engine `vllm` without `urls`: a server of the agent's base runs for as long as this lasts, with its output in
        the file `log`.
        """
        if not is_trained(self.reference):
            name, _ = split_reference(self.reference, self.settings.tracking.model)
            self.registry = Registry(self.settings.tracking.model_copy(update={"model": name}))
        folder = _new_folder()
        handed = fetch(self.reference, self.settings, Path(folder.name))
        if self.engine.kind != "vllm":
            self.speaker = load_speaker(handed, self.engine, folder)
            yield
            return
        self.base = _base_of(handed)
        how = {"dtype": handed.config.dtype, "quantization": handed.config.quantization}
        base = section(ModelSettings, {"base": handed.base, **how}, handed.title)
        # Later versions may have another rank; the largest that params.yaml asks for fits, too.
        rank = max(adapter_lora_rank(handed.adapter), self.settings.policy.lora.rank)
        # A server of ours that dies is started again from the base in the folder, whichever version answers by then.
        with folder, watched(self.engine, base, log, rank) as (self.engine, self.ended):
            self.speaker = load_speaker(handed, self.engine)
            yield

    async def run(self) -> None:
        """Look every `seconds` whether the alias has moved, and let the new version take over; until cancelled."""
        left: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(self.seconds)
                if (before := await self.look()) is not None:
                    left.add(closing := asyncio.create_task(before.close()))
                    closing.add_done_callback(left.discard)
        finally:
            await asyncio.gather(*left)

    async def look(self) -> Speaker | None:
        """Look once; return the agent before if another version has taken over. What fails is tried again later."""
        before = self.speaker
        try:
            speaker = await in_thread(self._news, before.handed.version)
        except Exception as error:  # a registry, a download or a model can fail in many ways: the old one goes on
            logger.warning("%s: %s still answers: %r", self.reference, before.handed.title, error)
            return None
        if speaker is None:
            return None
        self.speaker = speaker
        logger.warning("%s: %s answers now, after %s", self.reference, speaker.handed.title, before.handed.title)
        return before

    def _news(self, served: str) -> Speaker | None:
        """Return the version that the alias points to, loaded, if it is not the one that is `served`."""
        assert self.registry is not None
        _, alias = split_reference(self.reference, self.settings.tracking.model)
        number = self.registry.aliases().get(alias, served)  # a version by its number never moves
        if number == served:
            return None
        folder = _new_folder()
        handed = from_registry(self.registry, number, Path(folder.name))
        if self.base is not None and _base_of(handed) != self.base:
            raise UserError(f"{handed.title} is on another base than the server's; start `sweetrl serve` anew.")
        return load_speaker(handed, self.engine, folder)
