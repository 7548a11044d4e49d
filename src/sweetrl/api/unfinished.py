"""Where a training from Python keeps its checkpoints: the call that is repeated goes on, any other begins anew."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sweetrl.api.rollouts import CALL
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.file_hashes import file_hash, identity
from sweetrl.io import digest, read_json, write_json
from sweetrl.settings import Settings


def unfinished(out: Path, settings: Settings, method: str, *given: Iterable[Any] | None) -> Path:
    """Return the folder beside `out` for the unfinished work of a training by `method` on what was `given`.

    What a call with other settings, data or another base has left there is removed: its checkpoints would be taken for
    this one's.
    """
    folder = out.with_name(f".{out.name}.scratch")
    call = {"call": _call(settings, method, given)}
    if not (folder / CALL).is_file() or read_json(folder / CALL) != call:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(folder / CALL, call)
    return folder


def _call(settings: Settings, method: str, given: Iterable[Iterable[Any] | None]) -> str:
    base = Path(settings.model.base)
    files = sorted(path for path in base.iterdir() if path.is_file()) if base.is_dir() else []
    known = [(path.name, identity(path)) for path in files]
    hashed = hashlib.sha256(digest(settings.model_dump(mode="json", by_alias=True), method, known).encode())
    for data in given:
        hashed.update(b"\0none" if data is None else b"\0some")
        if isinstance(data, TrajectoryStore):
            data = [(number, file_hash(path)) for number, path in data.shards().items()]
        for one in data or ():
            hashed.update(repr(one).encode(errors="surrogatepass"))
    return hashed.hexdigest()[:16]
