"""Which call unfinished work belongs to: a digest of everything that decides what the call makes.

Finished shards and checkpoints are taken up by the same call only. So the digest holds contents and not names: those of
the base model, adapter, prompt files, recording and plug-ins, and every field of the tasks or dialogues that are given.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import inspect
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.prompts import prompt_files
from sweetrl.config.settings import Settings
from sweetrl.engines.policy import Policy
from sweetrl.engines.vllm import adapter_name
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash, file_hash
from sweetrl.io import digest, private_folder, read_json, write_json
from sweetrl.methods.base import find_method
from sweetrl.plugins import SIMULATORS, Group, is_plugin, source_of
from sweetrl.types import Task

# The sections of the settings that decide what dialogues are.
DECIDING = (
    *("seed", "suite", "suite_options", "model", "agent"),
    *("engine", "simulator", "reward", "browser", "similarity"),
)
CALL = "call.json"  # in a folder of `out`: which call it belongs to


def settings_of(env: Domain) -> Settings:
    """Return all settings that `env` was configured with; its own methods see those of dialogues only."""
    assert isinstance(env.settings, Settings)
    return env.settings


def evaluated(settings: Settings) -> Settings:
    """Return `settings` with the agent as it talks in evaluations: what `evaluate` and the method say of it."""
    agent = find_method(settings.method).at_evaluation(settings.evaluated_agent)
    return settings.model_copy(update={"agent": agent})


def dialogues_call(
    env: Domain, policies: Sequence[Policy], tasks: Sequence[Task], attempts: int, batch: int, shard: int
) -> str:
    """Return the digest of all that decides the dialogues of a call: settings, tasks, and the content of what is read.

    `batch` dialogues are under way together, `shard` lie in a file.
    """
    agents = []
    for policy in policies:
        settings = settings_of(env).model_copy(update={"model": policy.model, "engine": policy.engine})
        tree = _tree(settings)
        adapter = policy.adapter and (dvc_hash(policy.adapter) if policy.full else adapter_name(policy.adapter))
        # Of an engine in this process, how many rows it computes together changes the last digits of log-probabilities.
        together = batch if policy.engine.kind == "transformers" else None
        agents.append([{name: tree[name] for name in DECIDING}, adapter, together, _contents(settings)])
    return digest(agents, [vars(task) for task in tasks], attempts, shard, _code(env))


def training_call(env: Domain, inputs: Iterable[Iterable[Any] | None], *code: Any) -> str:
    """Return the digest of all that decides a training: settings, every row of `inputs`, the classes of `code`."""
    rows = hashlib.sha256()
    for given in inputs:
        rows.update(b"\0none" if given is None else b"\0")
        for row in given or ():
            rows.update(repr(row).encode("utf-8", "surrogatepass") + b"\n")
    settings = settings_of(env)
    return digest(_tree(settings), _contents(settings), rows.hexdigest(), [_code(part) for part in (env, *code)])


def chosen(settings: Settings) -> dict[Group, str]:
    """Return what the settings choose of each group; empty where the domain's own is taken."""
    return {
        "domains": settings.suite,
        "methods": settings.method,
        "rewards": settings.reward.function,
        "simulators": "" if settings.simulator.kind in SIMULATORS else settings.simulator.kind,
    }


def named_files(settings: Settings) -> list[Path]:
    """Return your own prompt files and the recording that is replayed, as far as they exist.

    A recording that is being written is left out: it grows during the work, and that changes no reply.
    """
    simulator = settings.simulator
    replayed = [Path(simulator.recording)] if simulator.kind == "replay" else []
    prompts = prompt_files(settings.agent, settings.judge, simulator).values()
    return [*prompts, *(path for path in replayed if path.is_file())]


def claim(folder: Path, call: str) -> None:
    """Reserve `folder` for one call; a UserError where it holds the dialogues of another call."""
    path = folder / CALL
    if path.exists() and read_json(path).get("call") == call:
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder}: the dialogues of another call are here; take another folder, or remove this one.")
    write_json(path, {"call": call})


@contextmanager
def unfinished(out: Path, call: str) -> Iterator[Path]:
    """Yield the folder of a call's unfinished work, beside its result `out`: a killed call, made again, goes on there.

    It is removed when all went well, with what other calls have left there for `out`. UserError where another process
    is at the same call: the two would take finished parts away from each other.
    """
    folder = out.with_name(f".{out.name}.{call}")
    handle = os.open(private_folder(folder), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(f"{folder}: another process is at this very work; wait for it, or end it.") from error
    except OSError:  # a file system without locks
        pass
    try:
        yield folder
        for leftover in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 16}"):
            shutil.rmtree(leftover, ignore_errors=True)
    finally:
        os.close(handle)
        with suppress(OSError):
            folder.rmdir()  # unless something is finished


def _tree(settings: Settings) -> dict[str, Any]:
    """The settings without addresses and limits of servers, which change no dialogue."""
    tree: dict[str, Any] = settings.model_dump(mode="json", by_alias=True)
    for section in (tree["engine"], tree["simulator"]["server"]):
        for key in ("urls", "concurrency", "timeout_seconds", "attempts", "backoff_seconds", "gpus"):
            section.pop(key)
    return tree


def _contents(settings: Settings) -> dict[str, str]:
    """The hash of each file and folder that the settings name, by its name."""
    named = {str(path): path for path in named_files(settings)}
    if settings.engine.kind != "openai":
        named[settings.model.base] = Path(settings.model.base)
    for group, name in chosen(settings).items():
        if group in ("rewards", "simulators") and is_plugin(group, name):  # domain and method may be objects: see _code
            named[name] = source_of(group, name)
    return {name: dvc_hash(path) for name, path in named.items() if path.exists()}


def _code(thing: Any) -> str:
    """The hash of the file that defines the class of `thing`; "" for the project's own classes, or without a file."""
    try:
        path = Path(inspect.getsourcefile(type(thing)) or "").resolve()
    except TypeError:  # typed into an interpreter
        return ""
    own = path.is_relative_to(Path(__file__).resolve().parents[1])
    return file_hash(path) if path.is_file() and not own else ""
