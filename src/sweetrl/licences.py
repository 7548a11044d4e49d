"""The licence of a model: what its folder says of it, and taking that along into a folder that is made from it."""

from __future__ import annotations

import shutil
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.yaml_files import parse_yaml

LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
# What licences ask to be handed on: their text, notices, and the rules of use that some come with.
HANDED_ON = ("licen[sc]e*", "notice*", "use_policy*", "copying*")
# The bases that ship with the project, by DVC's hash: their folders state no licence, because with one more file they
# would be other bases (models/README.md).
SHIPPED = {
    "90140ceae9367577c8aae6f08c7b59b5.dir": "apache-2.0",
    "62e3bc4ab6d0c647c6560bb78cf7367d.dir": "apache-2.0",
}


def base_licence(base: Path, content: str = "") -> str:
    """Return the licence that a base's folder states: in its card's metadata, else the first line of its licence file.

    Where it states none, that of the shipped base whose hash is `content`; else nothing.
    """
    card = base / "README.md"
    if card.is_file():
        parts = card.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
        if len(parts) == 3 and not parts[0].strip():
            try:
                told = parse_yaml(parts[1], str(card))
            except UserError:  # somebody else's card; it may say it in the licence's text
                told = None
            if isinstance(told, dict) and isinstance(told.get("license"), str):
                return told["license"].strip()
    for name in LICENCES:
        if (base / name).is_file():
            lines = (base / name).read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip()[:100] for line in lines if line.strip()), "")
    return SHIPPED.get(content, "")


def copy_licence(base: Path, folder: Path) -> list[str]:
    """Copy the texts that come with the licence of the model in `base` into `folder`; return their names, sorted.

    A model that has only a hub's name has no such files here.
    """
    found = [path for path in sorted(base.glob("*")) if path.is_file()] if base.is_dir() else []
    texts = [path for path in found if any(_lower(path).match(pattern) for pattern in HANDED_ON)]
    for path in texts:
        shutil.copyfile(path, folder / path.name)
    return [path.name for path in texts]


def _lower(path: Path) -> Path:
    return Path(path.name.lower())
