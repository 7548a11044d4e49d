"""Which call unfinished work belongs to: a digest of everything that decides what the call makes.

Finished shards and checkpoints are taken up by the same call only. So the digest holds contents and not names: those of
the base model, adapter, prompt files, recording and plug-ins, and every field of the tasks or dialogues that are given.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.find import load_domain
from sweetrl.colbench.prompts import prompt_files
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.io import digest, read_json, write_json
from sweetrl.plugins import SIMULATORS, Group, is_plugin, source_of
from sweetrl.types import Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import Settings
    from sweetrl.engines.policy import Policy

# The sections of the settings that decide what dialogues are.
DECIDING = (
    "seed",
    "suite",
    "suite_options",
    "model",
    "agent",
    "engine",
    "simulator",
    "reward",
    "browser",
    "similarity",
)
CALL = "call.json"  # in a folder of `out`: which call it belongs to


def settings_of(env: Domain) -> Settings:
    """Return all settings that `env` was configured with; its own methods see those of dialogues only."""
    from sweetrl.config.settings import Settings

    assert isinstance(env.settings, Settings)
    return env.settings


def fingerprint(settings: Settings, tasks: Sequence[Task], attempts: int, adapter: Path | None, env: Any = None) -> str:
    """Return the digest of all that decides the dialogues of a call: settings, tasks, and the content of what is read.

    `env` is the domain, where it need not be the one that the settings name.
    """
    from sweetrl.engines.vllm import adapter_name

    tree = _tree(settings)
    content = [
        [task.id, task.problem_description, task.ground_truth, task.test_cases, task.hidden_information]
        for task in tasks
    ]
    what = [{name: tree[name] for name in DECIDING}, content, attempts, adapter and adapter_name(adapter)]
    # Of an engine in this process, how many rows it computes together changes the last digits of log-probabilities.
    together = settings.collect.batch if settings.engine.kind == "transformers" else None
    return digest(what, settings.collect.shard, together, _contents(settings), _code(env or load_domain(settings)))


def call_of(env: Domain, policies: Sequence[Policy], tasks: Sequence[Task], attempts: int, seed: int | None) -> str:
    """Return the fingerprint of a call with several policies."""
    settings = settings_of(env) if seed is None else settings_of(env).model_copy(update={"seed": seed})
    each = (settings.model_copy(update={"model": one.model, "engine": one.engine}) for one in policies)
    return digest(
        [fingerprint(known, tasks, attempts, one.adapter, env) for known, one in zip(each, policies, strict=True)],
        settings.evaluate.batch,
    )


def training_call(env: Domain, inputs: Iterable[Iterable[Any] | None], *code: Any) -> str:
    """Return the digest of all that decides a training: the domain and its settings, and every row of `inputs`.

    `code` are objects whose classes decide it, too.
    """
    rows = hashlib.sha256()
    for one in inputs:
        rows.update(b"\0none" if one is None else b"\0")
        for row in one or ():
            rows.update(repr(row).encode("utf-8", "surrogatepass") + b"\n")
    settings = settings_of(env)
    return digest(_tree(settings), _contents(settings), rows.hexdigest(), [_code(one) for one in (env, *code)])


def chosen(settings: Settings) -> dict[Group, str]:
    """Return what the settings choose of each group; empty where the domain's own is taken."""
    return {
        "domains": settings.suite,
        "methods": settings.method,
        "rewards": settings.reward.function,
        "simulators": "" if settings.simulator.kind in SIMULATORS else settings.simulator.kind,
    }


def named_files(settings: Settings) -> list[Path]:
    """Return the prompts of a user's own and the recording that is replayed, as far as they are there.

    A recording that replies are kept in is none: it grows as the work goes on, and says no other words for that.
    """
    simulator = settings.simulator
    recording = Path(simulator.recording) if simulator.kind == "replay" and simulator.recording else None
    return [
        *prompt_files(settings.agent, settings.judge, simulator).values(),
        *([recording] if recording is not None and recording.exists() else []),
    ]


def claim(folder: Path, call: str) -> None:
    """Make `folder` that of one call; a UserError where the dialogues of another one lie in it."""
    path = folder / CALL
    if path.exists() and read_json(path).get("call") == call:
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file; name a folder for the dialogues.")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"{folder}: here are the dialogues of another call (other tasks, policy, seed or settings); take another "
            "folder, or remove this one."
        )
    write_json(path, {"call": call})


def _tree(settings: Settings) -> dict[str, Any]:
    """The settings without where a server is, and how it is asked, which changes no dialogue."""
    tree: dict[str, Any] = settings.model_dump(mode="json", by_alias=True)
    for section in (tree["engine"], tree["simulator"]["server"]):
        for key in ("urls", "concurrency", "timeout_seconds", "attempts", "backoff_seconds", "gpus"):
            section.pop(key)
    return tree


def _contents(settings: Settings) -> list[list[str]]:
    """What lies in the files and folders that the settings name, each with its name."""
    named = [(str(path), path) for path in named_files(settings)]
    if settings.engine.kind != "openai":
        named.append((settings.model.base, Path(settings.model.base)))
    groups: tuple[Group, ...] = ("rewards", "simulators")  # a domain and a method may be objects, without a name
    plugins = ((name, group) for group, name in chosen(settings).items() if group in groups)
    named += [(name, source_of(group, name)) for name, group in plugins if is_plugin(group, name)]
    return [[name, _content(path)] for name, path in named if path.exists()]


def _content(path: Path) -> str:
    """The digest of a file, or of what is in a folder but for hidden files."""
    if not path.is_dir():
        return file_hash(path)
    inside = [(one.relative_to(path), one) for one in path.rglob("*") if one.is_file()]
    shown = sorted((name.as_posix(), one) for name, one in inside if not any(part[0] == "." for part in name.parts))
    return digest([[name, file_hash(one)] for name, one in shown])


def _code(thing: Any) -> str:
    """The hash of the file in which the class of `thing` is written; nothing of what is the project's own.

    Nor is there any of what was typed into an interpreter.
    """
    try:
        path = Path(inspect.getsourcefile(type(thing)) or "")
    except TypeError:
        return ""
    own = Path(__file__).parents[1]
    return file_hash(path) if path.is_file() and not path.resolve().is_relative_to(own.resolve()) else ""
