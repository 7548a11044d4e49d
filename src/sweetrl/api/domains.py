"""A domain by name, with settings of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.plugins import load_domain
from sweetrl.settings import Settings, load_settings, parse_settings

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


def domain(name: str = "", params: str | Path | None = None, **changes: Any) -> Domain:
    """Return a domain: `backend`, `frontend`, an installed one, or one by its path, `my_package.forms:Forms`.

        env = sweetrl.domain("backend", agent={"max_turns": 6}, reward={"semantics": "official"})
        env = sweetrl.domain(params="params.yaml")          # what a project's pipeline works with

    `changes` are settings by section (docs/parameters.md), over those of `params` or over the defaults.
    """
    base = Settings() if params is None else load_settings(params)
    tree = base.model_dump(mode="json", by_alias=True)
    for key, value in changes.items():
        known = tree.get(key)
        tree[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    tree["suite"] = name or tree["suite"]
    return load_domain(parse_settings(tree, "sweetrl.domain"))
