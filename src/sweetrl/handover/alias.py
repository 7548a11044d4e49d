"""Follows an alias of the registry: when it moves, the new version is loaded beside the old one and takes over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sweetrl.engines.background import in_thread
from sweetrl.engines.make import access, adapter_lora_rank, watched
from sweetrl.errors import UserError
from sweetrl.handover.line import Line, Speaker
from sweetrl.handover.source import Handed, fetch, from_registry, is_folder
from sweetrl.settings import EngineSettings, ModelSettings, Settings
from sweetrl.tracking.chat_agent import ChatAgent
from sweetrl.tracking.lineage import split_reference
from sweetrl.tracking.registry import Registry

logger = logging.getLogger("sweetrl")


Folder = tempfile.TemporaryDirectory[str]


def sampler(settings: EngineSettings, kind: str | None = None, url: str = "") -> EngineSettings:
    """Return who samples a served agent: `kind`, else vllm where there is a `url`, else what `settings` say.

    The engine `openai` has no adapters: named here it is a UserError, in `settings` transformers takes its place.
    """
    if kind == "openai":
        raise UserError("--engine openai: chat completions load no adapters; choose transformers or vllm.")
    if kind == "transformers" and url:
        raise UserError(f"--url {url}: the engine transformers samples in this process; leave --engine or --url out.")
    if kind == "vllm" or url or (kind is None and settings.kind == "vllm"):
        named = {"urls": url, "model": ""} if url else {}
        return settings.model_copy(update={"kind": "vllm", **named})
    return settings.model_copy(update={"kind": "transformers", "urls": "", "model": ""})


def load_speaker(handed: Handed, engine: EngineSettings, folder: Folder | None = None) -> Speaker:
    """Load an agent whose adapter may lie in `folder`: into this process, or into the vLLM server of `engine`.

    The folder is removed when nobody reads it any more: a server that was started again reads the adapter again.
    Without a `folder` the caller keeps what the agent lies in.
    """
    if engine.kind != "vllm":
        with folder or contextlib.nullcontext():
            return Speaker(handed, ChatAgent.load(handed.base, handed.adapter, handed.config))
    from sweetrl.engines.vllm import VllmEngine
    from sweetrl.models import load_tokenizer, vocabulary_of

    try:
        remote = VllmEngine(access(engine), load_tokenizer(handed.base), handed.adapter, vocabulary_of(handed.base))
        try:
            remote.load_adapter()
        except BaseException:
            remote.close()
            raise
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise
    return Speaker(handed, ChatAgent(remote, handed.config), batch=1, at_once=engine.concurrency, folder=folder)


def _new_folder() -> Folder:
    return tempfile.TemporaryDirectory(prefix="sweetrl-serve-", ignore_cleanup_errors=True)


def _base_of(handed: Handed) -> tuple[str, str]:
    """Return what says which base an adapter is on: the hash of its folder, or the hub's name and revision."""
    return handed.config.base_hash or handed.config.base, handed.config.base_revision


@dataclass
class Follower:
    """Keeps `line` at the version that the alias in `reference` points to; an adapter's folder is never asked again.

    A version is fetched into a folder of its own. `engine` is who samples: `transformers` in this process, or `vllm`.
    """

    reference: str
    settings: Settings
    seconds: float
    engine: EngineSettings = field(default_factory=EngineSettings)
    registry: Registry | None = None
    base: tuple[str, str] | None = None
    """The base that a vLLM server serves, ours or not (`_base_of`); a version on another one cannot take over."""
    failures: int = 0
    """How often the registry or a new version could not be had; the agent before goes on answering."""
    ended: Callable[[], bool] = lambda: False
    """Whether a server of our own has ended for good."""

    @contextlib.contextmanager
    def first(self, log: Path) -> Iterator[Speaker]:
        """Yield what `reference` names now, loaded.

        Engine `vllm` without `urls`: a server of the agent's base runs for as long as this lasts, with its output in
        the file `log`.
        """
        if not is_folder(self.reference):
            self.registry = self.open()
        folder = _new_folder()
        handed = fetch(self.reference, self.settings, Path(folder.name))
        if self.engine.kind != "vllm":
            yield load_speaker(handed, self.engine, folder)
            return
        self.base = _base_of(handed)
        base = ModelSettings(base=handed.base, dtype=handed.config.dtype)
        # Later versions may have another rank; the largest that params.yaml asks for fits, too.
        rank = max(adapter_lora_rank(handed.adapter), self.settings.policy.lora.rank)
        # A server of ours that dies is started again from the base in the folder, whichever version answers by then.
        with folder, watched(self.engine, base, log, rank) as (self.engine, self.ended):
            yield load_speaker(handed, self.engine)

    def open(self) -> Registry:
        """Return the registry that `reference` names a model of."""
        name, _ = split_reference(self.reference, self.settings.tracking.model)
        return Registry(self.settings.tracking.model_copy(update={"model": name}))

    async def run(self, line: Line) -> None:
        """Look every `seconds` whether the alias has moved, and let the new version take over; until cancelled."""
        if self.registry is None:
            return
        while True:
            await asyncio.sleep(self.seconds)
            await self.look(line)

    async def look(self, line: Line) -> bool:
        """Look once; return whether another version has taken over. What fails is logged, and tried again later."""
        try:
            speaker = await in_thread(self._news, line.speaker.handed.version)
        except Exception as error:  # a registry, a download or a model can fail in many ways: the old one goes on
            self.failures += 1
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            logger.warning("%s: %s still answers: %s", self.reference, line.speaker.handed.title, reason)
            return False
        if speaker is None:
            return False
        before = line.speaker.handed
        line.change(speaker)
        logger.warning("%s: %s answers from now on, in place of %s", self.reference, speaker.handed.title, before.title)
        return True

    def _news(self, served: str) -> Speaker | None:
        """Return the version that the alias points to, loaded, if it is not the one that is `served`."""
        assert self.registry is not None
        _, alias = split_reference(self.reference, self.settings.tracking.model)
        number = self.registry.aliases().get(alias)
        if number is None:
            if alias.isdecimal():  # a version by its number never moves
                return None
            raise UserError(f"{self.registry.name}@{alias}: the alias is gone.")
        if number == served:
            return None
        folder = _new_folder()
        handed = from_registry(self.registry, number, Path(folder.name))
        if self.base is not None and _base_of(handed) != self.base:
            raise UserError(
                f"{handed.title} is an adapter on another base than the server's; start `sweetrl serve` anew."
            )
        return load_speaker(handed, self.engine, folder)
