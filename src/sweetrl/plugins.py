"""Domains, methods, rewards and user simulators by name: those that come with the project, installed ones, your own.

A name is looked for among the built-in ones, then among the entry points of installed packages (groups
`sweetrl.domains`, `sweetrl.methods`, `sweetrl.rewards`, `sweetrl.simulators`), and a name with a colon is a dotted
path: `my_package.forms:Forms` is `Forms` of the module my_package/forms.py in the project's folder, or of an installed
one.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.errors import UserError
from sweetrl.paths import ROOT_VARIABLE

if TYPE_CHECKING:
    from sweetrl.config.settings import SourceSettings
    from sweetrl.protocols import RewardFunction

Group = Literal["domains", "methods", "rewards", "simulators"]

BUILT_IN: dict[Group, dict[str, str]] = {
    "domains": {
        "backend": "sweetrl.backend:Backend",
        "frontend": "sweetrl.frontend:Frontend",
    },
    "methods": {
        "sweet": "sweetrl.methods.sweet:Sweet",
        "multi-turn-dpo": "sweetrl.methods.baselines:MultiTurnDpo",
        "rft": "sweetrl.methods.baselines:Rft",
        "answered-turns": "sweetrl.methods.baselines:AnsweredTurns",
        "grpo": "sweetrl.methods.grpo:Grpo",
        "single-turn": "sweetrl.methods.baselines:SingleTurn",
        "zero-shot": "sweetrl.methods.baselines:ZeroShot",
    },
    "rewards": {},
    "simulators": {},
}
# User simulators that a domain or the rollout makes itself.
SIMULATORS = ("scripted", "described", "llm", "vision", "replay", "human")
# The key of params.yaml that names each, and of `sources`, which says where its code lies.
KEYS: dict[Group, tuple[str, str]] = {
    "domains": ("suite", "suite"),
    "methods": ("method", "method"),
    "rewards": ("reward.function", "reward"),
    "simulators": ("simulator.kind", "simulator"),
}


def find_reward(name: str) -> RewardFunction:
    """Return the reward called `name`, a function of (task, dialogue); a UserError where it cannot be called."""
    plugin = find("rewards", name)
    reward: Any = plugin() if inspect.isclass(plugin) else plugin
    if not callable(reward):
        raise UserError(f"params.yaml: `reward.function: {name}` is no function of (task, dialogue).")
    return reward


def find_simulator(name: str, options: dict[str, Any]) -> Any:
    """Return the user simulator called `name`, made with `options`; a UserError where it has no method `reply`."""
    plugin = find("simulators", name)
    try:
        simulator: Any = plugin(**options) if inspect.isclass(plugin) or options else plugin
    except TypeError as error:
        raise UserError(f"params.yaml: `simulator.options` do not fit {name}: {error}.") from error
    if not callable(getattr(simulator, "reply", None)):
        raise UserError(
            f"params.yaml: `simulator.kind: {name}` is no user simulator; it must be a class with a method `reply`."
        )
    if not getattr(simulator, "name", ""):
        simulator.name = name.rpartition(":")[2]
    return simulator


def is_plugin(group: Group, name: str) -> bool:
    """Whether `name` is not built in."""
    return bool(name) and name not in BUILT_IN[group]


def available(group: Group) -> list[str]:
    """Return the names that need no dotted path: built-in ones, then those of installed packages."""
    own = SIMULATORS if group == "simulators" else tuple(BUILT_IN[group])
    return list(dict.fromkeys([*own, *_entry_points(group)]))


@lru_cache
def find(group: Group, name: str) -> Any:
    """Return the object that `name` names in `group`; a UserError says what is wrong with the name."""
    where = f"params.yaml: `{KEYS[group][0]}: {name}`"
    path = _path_of(group, name)
    if path == name and ":" not in name:
        listed = ", ".join(available(group))
        names = f"known are {listed}" if listed else "none is installed"
        own = "or give the path of your own, as in my_package.my_module:MyClass."
        raise UserError(f"{where} is not known; {names}, {own}")
    module_name, _, attribute = path.partition(":")
    if not all([*module_name.split("."), *attribute.split(".")]):
        raise UserError(f"{where} is no path; write it as in my_package.my_module:MyClass.")
    project = str(project_folder())
    if project not in sys.path:
        sys.path.append(project)  # a console script does not look where it was started
    try:
        plugin: Any = importlib.import_module(module_name)
    except ImportError as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if not absent or not f"{module_name}.".startswith(f"{absent}."):
            raise UserError(f"{where}: {module_name} cannot be imported ({error}).") from error
        advice = "run from the project's folder, install its package, or correct the name."
        raise UserError(f"{where}: there is no module {module_name}; {advice}") from error
    for part in attribute.split("."):
        plugin = getattr(plugin, part, None)
        if plugin is None:
            raise UserError(f"{where}: the module {module_name} has no `{attribute}`.")
    return plugin


def project_folder() -> Path:
    """Return the project's folder: where we are, unless a stage runs in a folder of its own."""
    return Path(os.environ.get(ROOT_VARIABLE) or Path.cwd()).resolve()


def _path_of(group: Group, name: str) -> str:
    """The dotted path behind a name; a dotted path stays as it is."""
    return BUILT_IN[group].get(name) or _entry_points(group).get(name) or name


def construct(plugin: Any, group: Group, name: str) -> Any:
    """Return an object of the class `plugin`, made without arguments; anything else is returned as it is."""
    try:
        return plugin() if inspect.isclass(plugin) else plugin
    except TypeError as error:
        where = f"params.yaml: `{KEYS[group][0]}: {name}`"
        raise UserError(f"{where}: the class must be made without arguments ({error}).") from error


@lru_cache
def _entry_points(group: Group) -> dict[str, str]:
    return {entry.name: f"{entry.module}:{entry.attr}" for entry in metadata.entry_points(group=f"sweetrl.{group}")}


# Sources, for DVC and for lineage


def source_of(group: Group, name: str) -> Path:
    """Return the file that defines the class or function `name`, or the module in which another object is made.

    Raises UserError where that is no file of Python.
    """
    owner = find(group, name)
    if not (inspect.isclass(owner) or inspect.isroutine(owner)):
        owner = importlib.import_module(_path_of(group, name).partition(":")[0])
    with contextlib.suppress(TypeError):  # of what is built into Python
        if source := inspect.getsourcefile(owner):
            return Path(source).resolve()
    where = f"params.yaml: `{KEYS[group][0]}: {name}`"
    raise UserError(f"{where} is not written in Python; wrap it in a function or class of yours.")


def check_sources(chosen: Mapping[Group, str], sources: SourceSettings, root: Path | None = None) -> dict[str, Path]:
    """Return the sources of what is `chosen` of each group and not built in, by their key in `sources`.

    A source is the file or folder that `sources` names, or else the file in which the class or function is written.
    Raises UserError where `sources` does not name the file (or a folder around it) of something that lies in the
    project: DVC would not see that it has changed. `root` is a checkout of the project (default: its folder).
    """
    project, environment = project_folder(), Path(sys.prefix).resolve()  # where packages are installed, also in .venv
    root = (root or project).resolve()
    own: dict[str, Path] = {}
    for group, name in chosen.items():
        if not name:
            continue
        key, place = KEYS[group]
        source, declared = source_of(group, name), getattr(sources, place)
        inside = source.is_relative_to(project) and not source.is_relative_to(environment)
        source = root / source.relative_to(project) if inside else source
        covered = bool(declared) and source.is_relative_to((root / declared).resolve())
        if is_plugin(group, name):
            own[place] = (root / declared).resolve() if covered else source
        if covered or not declared or not inside:
            continue
        shown = source.relative_to(root)
        if not is_plugin(group, name) and shown.parent.name == name:
            shown = shown.parent
        raise UserError(
            f"params.yaml: `{key}: {name}` is written in {shown}, but `sources.{place}` is {declared}; set it to "
            f"{shown}, so that DVC sees its changes."
        )
    return own
