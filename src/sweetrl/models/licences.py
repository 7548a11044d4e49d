"""The licence of a model: what its folder says of it, and taking that along into a folder that is made from it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sweetrl.config.yaml_files import parse_yaml
from sweetrl.errors import UserError

LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
# What licences ask to be handed on: their text, notices, and the rules of use that some come with.
HANDED_ON = re.compile("licen[sc]e|notice|use_policy|copying", re.IGNORECASE)
LARGEST = 2**20  # bytes of such a text
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
    parts = _text(base / "README.md").split("---\n", 2)
    metadata = parts[1] if len(parts) == 3 and not parts[0].strip() else ""
    lines = re.findall(r"^license:.{,200}", metadata, re.MULTILINE)
    if len(lines) == 1:
        try:  # this line alone: a few lines of YAML can stand for gigabytes
            card = parse_yaml(lines[0], str(base / "README.md"))
        except UserError:  # somebody else's card; it may say it in the licence's text
            card = None
        if isinstance(card, dict) and isinstance(card.get("license"), str):
            return card["license"].strip()[:100]
    for name in LICENCES:
        if text := _text(base / name).strip():
            return text.split("\n")[0].strip()[:100]
    return SHIPPED.get(content, "")


def copy_licence(base: Path, folder: Path) -> list[str]:
    """Copy the texts that come with the licence of the model in `base` into `folder`; return their names, sorted.

    A model that has only a hub's name has no such files here. One of more than 1 MiB is no licence and is left out.
    """
    texts = [path for path in sorted(base.glob("*")) if HANDED_ON.match(path.name) and is_own(path)]
    for path in texts:
        shutil.copyfile(path, folder / path.name)
    return [path.name for path in texts]


def _text(path: Path) -> str:
    """What a file of a model's folder says; nothing where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if is_own(path) else ""


def is_own(path: Path) -> bool:
    """Whether `path` is a text of the folder that it lies in, and no link to a file elsewhere on this machine.

    The folders of a hub's cache hold links to the files beside them, in `blobs`; those of DVC may hold links into its
    cache (`cache.type symlink`).
    """
    if not path.is_file() or path.stat().st_size > LARGEST:
        return False
    folder, real = path.parent.resolve(), path.resolve()
    of_hub = folder.parent.name == "snapshots" and real.parent == folder.parent.parent / "blobs"
    of_dvc = re.search(r"/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$", real.as_posix()) is not None
    return real.is_relative_to(folder) or of_hub or of_dvc
