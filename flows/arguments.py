"""The small command lines of the flows: `python -m flows.<name> ...`."""

from __future__ import annotations

import argparse

import yaml

from sweetrl.errors import UserError


def parser(module: str, what: str) -> argparse.ArgumentParser:
    """Return a parser for `python -m flows.<module>`."""
    return argparse.ArgumentParser(prog=f"python -m flows.{module}", description=what)


def parameter_changes(pairs: list[str]) -> dict[str, object]:
    """Turn ["collect.tasks=800", ...] into {"collect.tasks": 800}; values are read as YAML."""
    changes: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{pair}: this is no parameter; write KEY=VALUE, for example collect.tasks=800.")
        changes[key] = yaml.safe_load(value)
    return changes
