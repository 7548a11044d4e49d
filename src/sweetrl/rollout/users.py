"""From settings to users: who answers the agent, and the servers and files that they need for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_args

from sweetrl.colbench.described import DescribedUser, no_facts
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.personas import WithPersona
from sweetrl.colbench.prompts import load_prompt
from sweetrl.colbench.users import ATTEMPTS, ConsoleUser, Recording, ReplaySimulator, is_recording
from sweetrl.config.sections import DESCRIBED, Persona
from sweetrl.config.settings import ModelSettings, UserServerSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.errors import EngineError, SimulatorError, UserError
from sweetrl.io import digest
from sweetrl.plugins import find_simulator
from sweetrl.protocols import AsyncEngine, Tools, UserSimulator
from sweetrl.types import Content, Prompt, Sampling, Usage


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
            raise SimulatorError(f"the user's model: {error}") from error
        return completion.text


@contextmanager
def open_user(domain: Domain, tools: Tools) -> Iterator[UserSimulator]:
    """Yield the user that the domain's settings ask for; `tools` is what the domain's `open` yields."""
    settings, model = domain.settings.simulator, domain.settings.model
    cut, persona = settings.reply_characters or domain.reply_characters, settings.persona
    if persona not in get_args(Persona):
        raise UserError(f"simulator.persona: there is no `{persona}`; take one of {', '.join(get_args(Persona))}.")
    if persona != "plain" and settings.kind not in ("scripted", "described", "llm", "vision"):
        raise UserError(f"simulator.persona: a user of kind `{settings.kind}` has no persona; set it to `plain`.")

    def in_manner(user: UserSimulator) -> UserSimulator:
        return user if persona in ("plain", *getattr(user, "personas", ())) else WithPersona(user, persona)

    if settings.kind == "scripted":
        yield in_manner(domain.scripted_user(tools))
    elif settings.kind == "described":
        if type(domain).facts is Domain.facts:
            raise no_facts(domain.spec)
        yield in_manner(DescribedUser(domain.facts, cut))
    elif settings.kind == "human":
        yield ConsoleUser()
    elif settings.kind == "replay":
        yield replay(settings.recording, domain)
    elif settings.kind in ("llm", "vision"):
        with ExitStack() as stack:

            def speaker() -> EngineSpeaker:
                made = make_speaker(settings.server, model)
                stack.callback(made.engine.close)
                return made

            yield domain.model_user(
                settings.kind,
                speaker,
                tools,
                template=settings.prompt,
                reply_characters=cut,
                leaks=settings.leaks,
                persona=persona,
                recording=Recording(Path(settings.recording)) if settings.recording else None,
                identity=identity_of(domain),
            )
    else:
        yield find_simulator(settings.kind, settings.options)


def make_speaker(server: UserServerSettings, model: ModelSettings) -> EngineSpeaker:
    """Return the speaker of the user's model: at a server, or without `urls` in this process."""
    sampling = Sampling(server.max_new_tokens, server.temperature)
    if server.addresses:
        return EngineSpeaker(OpenAIEngine(server), sampling)
    if not server.model:
        raise UserError(
            "simulator.server: `urls` and `model` are empty; name a server and the model there, or a model's folder to "
            "run in this process, or set `simulator.kind` to another user."
        )
    from sweetrl.engines.stream import Stream
    from sweetrl.engines.transformers import TransformersEngine

    local = TransformersEngine(server.model, None, model.dtype, model.device, model.threads)
    return EngineSpeaker(Stream(local), sampling, local.chat)


def identity_of(domain: Domain) -> str:
    """Return what tells recorded answers of one speaker from those of others: model, instruction, sampling, cut."""
    settings, server = domain.settings.simulator, domain.settings.simulator.server
    prompt = load_prompt(settings.prompt or domain.simulator_template)
    sampled = [server.model, prompt, server.max_new_tokens, server.temperature]
    cut = settings.reply_characters or domain.reply_characters
    rules: list[object] = [cut, settings.leaks, ATTEMPTS if settings.leaks == "refuse" else 1]
    rules += [settings.persona] if settings.persona != "plain" else []
    return f"{server.model}@{digest(sampled, rules)}"


def user_name(domain: Domain) -> str:
    """Return who answers, with what decides their words, to stand beside numbers: `llm:MODEL@PROMPT`, `scripted:terse`.

    The version of `described` and the digest of a model's instruction and sampling are part of it.
    """
    settings = domain.settings.simulator
    name = DESCRIBED if settings.kind == "described" else settings.kind
    if settings.kind in ("llm", "vision"):
        name = f"{name}:{identity_of(domain)}"
    return name if settings.persona == "plain" else f"{name}:{settings.persona}"


def replay(recording: str, domain: Domain) -> UserSimulator:
    """Return a user who says what is recorded in a folder of shards, a recording or an official trajectory file."""
    if not recording:
        raise UserError("simulator: `recording` is empty; name what the user of kind `replay` shall repeat.")
    path = Path(recording)
    if not path.exists():
        raise UserError(f"{path}: there is no such recording; fix `simulator.recording`.")
    if path.is_dir():
        from sweetrl.colbench.store import TrajectoryStore

        return ReplaySimulator(Recording.of(TrajectoryStore(path).read()))
    if is_recording(path):
        return ReplaySimulator(Recording(path))
    from sweetrl.colbench.files import read_trajectories

    return ReplaySimulator(Recording.of(read_trajectories(path, domain)))


def usage_of(simulator: object) -> Usage | None:
    """What the user's model has spent; None where nobody counts (a script, a recording, you)."""
    speaker = getattr(simulator, "speaker", None)
    return speaker.engine.usage() if isinstance(speaker, EngineSpeaker) else None
