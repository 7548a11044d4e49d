"""Follows an alias of the registry: when it moves, the new version is loaded beside the old one and takes over."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sweetrl.engines.background import in_thread
from sweetrl.errors import UserError
from sweetrl.handover.line import Line, Speaker
from sweetrl.handover.source import Handed, fetch, from_registry, is_folder
from sweetrl.settings import Settings
from sweetrl.tracking.chat_agent import ChatAgent
from sweetrl.tracking.lineage import split_reference
from sweetrl.tracking.registry import Registry

logger = logging.getLogger("sweetrl")


def load_speaker(handed: Handed) -> Speaker:
    """Load an agent that is on this disk."""
    return Speaker(handed, ChatAgent(handed.base, handed.adapter, handed.config))


@dataclass
class Follower:
    """Keeps `line` at the version that the alias in `reference` points to; an adapter's folder is never asked again.

    A version is fetched into a folder of its own, which is removed once it is loaded.
    """

    reference: str
    settings: Settings
    seconds: float
    registry: Registry | None = None
    failures: int = 0
    """How often the registry or a new version could not be had; the agent before goes on answering."""

    def first(self) -> Speaker:
        """Load what `reference` names now."""
        if not is_folder(self.reference):
            self.registry = self.open()
        with tempfile.TemporaryDirectory(prefix="sweetrl-serve-") as folder:
            return load_speaker(fetch(self.reference, self.settings, Path(folder)))

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
        with tempfile.TemporaryDirectory(prefix="sweetrl-serve-") as folder:
            return load_speaker(from_registry(self.registry, number, Path(folder)))
