"""What dvc.lock says of how a result was made: the stages behind it, with data and parameters as they saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.paths import RUNS


@dataclass(frozen=True)
class LockedStage:
    """A stage as dvc.lock has it: path -> DVC hash of what it read and wrote, and the parameters that it saw.

    `params` are nested as in params.yaml, or have dotted names.
    """

    deps: Mapping[str, str] = field(default_factory=dict)
    outs: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, str]:
        """What it read and wrote, without sources and run files."""
        files = {**self.deps, **self.outs}.items()
        return {path: content for path, content in files if not path.startswith(("src/", RUNS.as_posix()))}


def locked_stages(root: Path) -> list[LockedStage]:
    """Return the stages of the project's dvc.lock, none where there is no such file; a broken one is a UserError."""
    path = root / "dvc.lock"
    if not path.exists():
        return []
    try:
        return [_stage(values) for values in (read_yaml(path) or {}).get("stages", {}).values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: this is not what DVC writes; `git checkout dvc.lock` brings it back.") from error


def _stage(values: Mapping[str, Any]) -> LockedStage:
    deps, outs = (
        {item["path"]: item["md5"] for item in values.get(part, ()) if "md5" in item} for part in ("deps", "outs")
    )
    params = {key: value for file in values.get("params", {}).values() for key, value in file.items()}
    return LockedStage(deps, outs, params)


def data_hashes(root: Path) -> dict[str, str]:
    """Return path -> DVC hash of every stage's data, as dvc.lock has them; sources and run files are left out."""
    hashes = {path: content for stage in locked_stages(root) for path, content in stage.data.items()}
    return dict(sorted(hashes.items()))


def stages_behind(stages: list[LockedStage], path: Path, content: str) -> list[LockedStage]:
    """Return the stages that made the result with the hash `content` at `path`: its own first, then those before it.

    A stage that has run again since, with another result, is not among them. None made it: the list is empty.
    """
    results, behind = [(path.as_posix(), content)], list[LockedStage]()
    for place, hashed in results:  # it grows on the way
        for stage in stages:
            if stage.outs.get(place) == hashed and stage not in behind:
                behind.append(stage)
                results.extend(stage.deps.items())
    return behind
