"""What dvc.lock says of a project's data."""

from __future__ import annotations

from pathlib import Path

from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.paths import RUNS


def data_hashes(root: Path) -> dict[str, str]:
    """Return path -> DVC hash of every stage's data; sources and run files are left out.

    Nothing where there is no dvc.lock; a broken one is a UserError.
    """
    path = root / "dvc.lock"
    if not path.exists():
        return {}
    hashes: dict[str, str] = {}
    try:
        for stage in (read_yaml(path) or {}).get("stages", {}).values():
            for item in [*stage.get("deps", []), *stage.get("outs", [])]:
                if "md5" in item and not item["path"].startswith(("src/", RUNS.as_posix())):
                    hashes[item["path"]] = item["md5"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: this is not what DVC writes; `git checkout dvc.lock` brings it back.") from error
    return dict(sorted(hashes.items()))
