"""Parameters named one by one: `--set rank.candidates=16` on a command line, and the settings of a profile.

Everything is checked against the settings before anything is written, and before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sweetrl.config.settings import Settings, known_keys, parse_settings
from sweetrl.config.yaml_files import parse_yaml, read_yaml
from sweetrl.errors import UserError, did_you_mean

PROFILES = Path("reproduce")


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn ["collect.tasks=800", ...] into {"collect.tasks": 800}; values are read as YAML."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{pair}: this is no parameter; write KEY=VALUE, for example collect.tasks=800.")
        if key in changes:
            raise UserError(f"{pair}: `{key}` is set twice; leave one of them.")
        changes[key] = parse_yaml(value, pair)
    return changes


def profile_changes(name: str, root: Path = Path()) -> dict[str, Any]:
    """Return what the profile `reproduce/NAME` sets, by dotted key.

    What it says of tracking is left out: that is about the records of `make reproduce`. Where it names another base,
    `sources.base` goes with it.
    """
    path = root / PROFILES / name / "params.yaml"
    known = sorted(one.parent.name for one in (root / PROFILES).glob("*/params.yaml"))
    if name not in known:
        raise UserError(
            f"--profile {name[:100]}: there is no {PROFILES}/{name[:100]}/params.yaml{did_you_mean(name, known)}; "
            f"known are {', '.join(known) or 'none'}."
        )
    read = read_yaml(path)
    found = read.get("settings") if isinstance(read, dict) else None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UserError(f"{path}: expected a mapping `settings` of dotted parameters; add it.")
    changes = {key: value for key, value in found.items() if not key.startswith("tracking.")}
    if "model.base" in changes:
        changes.setdefault("sources.base", changes["model.base"])
    return changes


def with_changes(tree: Mapping[str, Any], changes: Mapping[str, Any], where: str = "--set") -> dict[str, Any]:
    """Return the tree of params.yaml with `changes` (dotted key -> value) in it; values are as the settings read them.

    A key that is not known, a whole section, and a value that is not allowed are a UserError that names `where`.
    """
    changed = deepcopy(dict(tree))
    for key, value in changes.items():
        _check_known(key, where)
        if longer := next((other for other in changes if other.startswith(f"{key}.")), None):
            raise UserError(f"{where}: `{key}` and `{longer}` cannot both be set; leave one of them.")
        *sections, name = key.split(".")
        inner: Any = changed
        for part in sections:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UserError(f"{where}: `{key}` cannot be set, because `{part}` is no section in params.yaml.")
        inner[name] = value
    parse_settings(changed, where)  # the first thing wrong is said
    settings = Settings.model_validate(changed)
    read = settings.model_dump(mode="json", by_alias=True)  # 1e-3 is a text for YAML
    read["trainer"] = settings.trainer.model_dump(mode="json")
    for key in changes:
        *sections, name = key.split(".")
        inner, found = changed, read
        for part in sections:
            inner, found = inner[part], found[part]
        inner[name] = found[name]
    return changed


def value_of(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of the dotted `key` in a tree of parameters, None where there is none."""
    found: Any = tree
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, value before, value after) of all that differs between two trees; None where there is none."""
    for name in [*before, *(name for name in after if name not in before)]:
        one, other, key = before.get(name), after.get(name), f"{prefix}{name}"
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differences(one, other, f"{key}.")
        elif one != other:
            yield key, one, other


def _check_known(key: str, where: str) -> None:
    known = known_keys()
    if key in known:
        if any(one.startswith(f"{key}.") for one in known):
            first = next(one for one in known if one.startswith(f"{key}."))
            raise UserError(f"{where}: `{key}` is a section; set one of its keys, for example {first}=VALUE.")
        return
    if not is_known(key):
        raise UserError(f"{where}: unknown parameter `{key}`{did_you_mean(key, known)}; docs/parameters.md lists all.")


def is_known(key: str) -> bool:
    """Whether the dotted `key` may stand in params.yaml."""
    return key in known_keys() or any(key.startswith(f"{free}.") for free in _free_keys(Settings))


def _free_keys(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the keys below which anything may stand: options of one's own domain, method or user."""
    for name, field in kind.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _free_keys(field.annotation, f"{key}.")
        elif field.annotation == dict[str, Any]:
            yield key
