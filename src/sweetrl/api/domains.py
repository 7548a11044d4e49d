"""A domain by name, with settings of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.plugins import load_domain
from sweetrl.settings import load_settings, parse_settings
from sweetrl.yaml_files import read_yaml

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


def domain(name: str = "", params: str | Path | None = None, **changes: Any) -> Domain:
    """Return a domain: `backend`, `frontend`, an installed one, or one by its path, `my_package.forms:Forms`.

        env = sweetrl.domain("backend", agent={"max_turns": 6}, reward={"semantics": "official"})
        env = sweetrl.domain(params="params.yaml")          # what a project's pipeline works with

    `changes` are settings by section (docs/parameters.md), over those of `params` or over the defaults.
    """
    tree: dict[str, Any] = {}
    if params is not None:
        load_settings(params)  # says what is wrong in the file
        tree = read_yaml(Path(params)) or {}
    for key, value in changes.items():
        known = tree.get(key)
        tree[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    if name:
        tree["suite"] = name
    return load_domain(parse_settings(tree, "sweetrl.domain"))
