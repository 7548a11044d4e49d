"""Parameters named one by one: `--set rank.candidates=16` on a command line, and the settings of a profile.

Everything is checked against the settings before anything is written, and before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from sweetrl.config.sections import is_section
from sweetrl.config.settings import Settings, section, setting_keys
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
    profiles = sorted(profile.parent.name for profile in (root / PROFILES).glob("*/params.yaml"))
    if name not in profiles:
        raise UserError(
            f"--profile {name[:100]}: there is no {PROFILES}/{name[:100]}/params.yaml{did_you_mean(name, profiles)}; "
            f"known are {', '.join(profiles) or 'none'}."
        )
    settings = value_of(read_yaml(path), "settings")
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise UserError(f"{path}: expected a mapping `settings` of dotted parameters; add it.")
    changes = {key: value for key, value in settings.items() if not key.startswith("tracking.")}
    if "model.base" in changes:
        changes.setdefault("sources.base", changes["model.base"])
    return changes


def with_changes(tree: Mapping[str, Any], changes: Mapping[str, Any], where: str = "--set") -> dict[str, Any]:
    """Return the tree of params.yaml with `changes` (dotted key -> value) in it; values are as the settings read them.

    A key that is not known, a whole section, and a value that is not allowed are a UserError that names `where`.
    """
    changed = deepcopy(dict(tree))
    for key, value in changes.items():
        if is_section(kind := type_of(key)):
            first = setting_keys(kind)[0]
            raise UserError(f"{where}: `{key}` is a section; set one of its keys, for example {key}.{first}=VALUE.")
        if longer := next((other for other in changes if other.startswith(f"{key}.")), None):
            raise UserError(f"{where}: `{key}` and `{longer}` cannot both be set; leave one of them.")
        set_key(changed, key, value, where)
    settings = section(Settings, changed, where)
    read = settings.model_dump(mode="json", by_alias=True)  # 1e-3 is a text for YAML
    read["trainer"] = settings.trainer.model_dump(mode="json")
    for key in changes:
        set_key(changed, key, value_of(read, key), where)
    return changed


def set_key(tree: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set the dotted `key` in a tree of parameters; one that is not known is a UserError that names `where`."""
    if type_of(key) is None:
        meant = did_you_mean(key, setting_keys())
        raise UserError(f"{where}: unknown parameter `{key}`{meant}; docs/parameters.md lists all.")
    *sections, name = key.split(".")
    for part in sections:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise UserError(f"{where}: `{key}` cannot be set, because `{part}` is no section in params.yaml.")
    tree[name] = value


def value_of(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of the dotted `key` in a tree of parameters, None where there is none."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, value before, value after) of all that differs between two trees; None where there is none."""
    for name in [*before, *(name for name in after if name not in before)]:
        old, new, key = before.get(name), after.get(name), f"{prefix}{name}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{key}.")
        elif old != new:
            yield key, old, new


def type_of(key: str) -> Any:
    """Return the type of what the dotted `key` of params.yaml takes, a section's class or a value's; None: no key.

    Below options of one's own domain, method or user anything may stand.
    """
    kind: Any = Settings
    for part in key.split("."):
        if kind == dict[str, Any]:
            return Any
        fields = {field.alias or name: field for name, field in kind.model_fields.items()} if is_section(kind) else {}
        if part not in fields:
            return None
        kind = fields[part].annotation
    return kind
