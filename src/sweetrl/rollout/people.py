"""From settings to people: who answers the agent, and the servers and files that they need for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sweetrl.colbench.prompts import load_prompt
from sweetrl.colbench.recording import RecordedSimulator, Recording, is_recording
from sweetrl.colbench.simulators import (
    ConsolePerson,
    LlmSimulator,
    ReplaySimulator,
    Simulator,
    SimulatorError,
)
from sweetrl.colbench.types import Suite
from sweetrl.engines.base import AsyncEngine, Content, EngineError, Prompt, Sampling, Usage
from sweetrl.engines.bridge import Bridge
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.make import access
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.errors import UserError
from sweetrl.io import digest
from sweetrl.settings import ModelSettings, PersonServerSettings, SimulatorSettings


class EngineSpeaker:
    """A Speaker over any engine: the instruction is the request of a dialogue of one turn."""

    def __init__(self, engine: AsyncEngine, sampling: Sampling, chat: ChatFormat | None = None) -> None:
        self.engine, self.sampling, self.chat = engine, sampling, chat
        self.name = engine.name

    async def say(self, instruction: Content, seed: int) -> str:
        """Return the model's words; SimulatorError where the engine has none."""
        if self.chat is not None and not isinstance(instruction, str):
            raise UserError("simulator.server: a model in this process sees no pictures; name a server in `urls`.")
        ids = () if self.chat is None else self.chat.open(None, str(instruction))
        prompt = Prompt(ids, seed, (("user", instruction),))
        try:
            (completion,) = await self.engine.ask(prompt, self.sampling)
        except EngineError as error:
            raise SimulatorError(f"the person's model: {error}") from error
        return completion.text


@contextmanager
def person(settings: SimulatorSettings, model: ModelSettings, suite: Suite = "backend") -> Iterator[Simulator]:
    """Yield the person that the settings ask for; `model` says how a model of the person runs in this process."""
    if settings.kind == "scripted":
        from sweetrl.colbench.synthetic import ScriptedSimulator

        yield ScriptedSimulator()
    elif settings.kind == "person":
        yield ConsolePerson()
    elif settings.kind == "replay":
        yield replay(settings.recording, suite)
    else:
        engine, speaker = make_speaker(settings.server, model)
        try:
            yield LlmSimulator(
                speaker,
                settings.prompt,
                settings.reply_characters,
                settings.leaks,
                settings.leak_attempts,
                Recording(Path(settings.recording)) if settings.recording else None,
                identity_of(settings),
            )
        finally:
            engine.close()


def make_speaker(server: PersonServerSettings, model: ModelSettings) -> tuple[AsyncEngine, EngineSpeaker]:
    """Return the engine and the speaker of the person's model: at a server, or without `urls` in this process."""
    sampling = Sampling(server.max_new_tokens, server.temperature)
    if server.urls.strip():
        remote = OpenAIEngine(access(server))
        return remote, EngineSpeaker(remote, sampling)
    if not server.model:
        raise UserError(
            "simulator.server: `urls` and `model` are empty; name a server and the model there, or a model's folder to "
            "run in this process, or set `simulator.kind` to another person."
        )
    from sweetrl.engines.transformers import TransformersEngine

    local = TransformersEngine(server.model, None, model.dtype, model.device, model.threads)
    bridge = Bridge(local)
    return bridge, EngineSpeaker(bridge, sampling, local.chat)


def identity_of(settings: SimulatorSettings) -> str:
    """Return what tells recorded answers of one speaker from those of others: model, instruction, sampling, cut."""
    server = settings.server
    vision = settings.kind == "vision"
    prompt = settings.vision_prompt if vision else settings.prompt
    what = [server.model, load_prompt(prompt), server.max_new_tokens, server.temperature]
    how = [
        settings.page_characters if vision else settings.reply_characters,
        settings.leaks,
        settings.leak_attempts if settings.leaks == "refuse" else 1,
    ]
    return f"{server.model}@{digest(what, how)}"


def replay(recording: str, suite: Suite = "backend") -> Simulator:
    """Return a person who says what is recorded in a folder of shards, a recording or an official trajectory file."""
    if not recording:
        raise UserError("simulator: `recording` is empty; name what the person of kind `replay` shall repeat.")
    path = Path(recording)
    if not path.exists():
        raise UserError(f"{path}: there is no such recording; mend `simulator.recording`.")
    if path.is_dir():
        from sweetrl.colbench.store import TrajectoryStore

        return ReplaySimulator(TrajectoryStore(path).read())
    if is_recording(path):
        return RecordedSimulator(Recording(path))
    from sweetrl.colbench.files import read_trajectories

    return ReplaySimulator(read_trajectories(path, suite=suite))


def usage_of(simulator: object) -> Usage | None:
    """What the person's model has spent; None where nobody counts (a script, a recording, you)."""
    speaker = getattr(simulator, "speaker", None)
    return speaker.engine.usage() if isinstance(speaker, EngineSpeaker) else None
