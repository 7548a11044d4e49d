"""Batches are taken one after the other, by whoever comes first, and never twice.

What was taken is a chain of commits under a ref of its own, each with one batch as JSON in its message: `git log
refs/sweetrl/batches`. Git moves a ref only from the value that was seen, here and on a server alike, so that of two who
take a batch at once the second has to look again. Where there is a remote, a batch is taken there.
"""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweetrl.tracking.registry import utc_now
from tasks.origin import push_ref, remote_tip
from tasks.workspace import contains, git, head, identity

REF = "refs/sweetrl/batches"


@dataclass(frozen=True)
class Batch:
    """`tasks` training tasks from number `first` on, or what was ingested as `data`: taken for the branch `branch`."""

    first: int
    tasks: int
    branch: str
    host: str = ""
    time: str = ""
    id: str = ""  # without it, two who take the same batch in the same second would write the same commit
    data: str = ""


def stamp() -> dict[str, str]:
    """Return what makes a commit of a chain this machine's and this moment's."""
    return {"host": socket.gethostname(), "time": utc_now(), "id": uuid.uuid4().hex}


def take_batch(
    home: Path, remote: str, choose: Callable[[Sequence[Batch]], Batch], before: Callable[[Batch, str], object]
) -> Batch:
    """Take the batch that `choose` names, given all that are taken, here and (unless it is "") in the git `remote`.

    `before` gets the batch and the commit that will stand for it before it is taken, so that `is_taken` can tell later
    whether it was. Only one process of a machine at a time may call this. A remote that does not answer, or refuses,
    is a UserError.
    """
    while True:
        shared, own = remote_tip(home, remote, REF), head(home, REF)
        tips = [tip for tip in dict.fromkeys((shared, own)) if tip]
        batch = choose(batches_of(home, tips))
        parents = [word for tip in tips for word in ("-p", tip)]
        message = json.dumps(asdict(batch))
        commit = git(home, *identity(home), "commit-tree", empty_tree(home), *parents, "-m", message).stdout.strip()
        before(batch, commit)
        if remote and not push_ref(home, remote, REF, commit, shared):
            continue
        git(home, "update-ref", REF, commit, own or "0" * len(commit))
        return batch


def is_taken(home: Path, remote: str, commit: str) -> bool:
    """Whether the batch for which `commit` stands was taken."""
    tip = remote_tip(home, remote, REF) if remote else head(home, REF)
    return bool(tip) and contains(home, tip, commit)


def batches_of(home: Path, tips: Sequence[str]) -> list[Batch]:
    """Return the batches of the chains that end at `tips`, newest first."""
    return [Batch(**facts) for facts in facts_of(home, tips)]


def facts_of(home: Path, tips: Sequence[str]) -> list[dict[str, Any]]:
    """Return the JSON that ends the messages of the chains up to `tips`, newest first; other commits are left out."""
    rows = []
    for text in git(home, "log", "--format=%B%x00", *tips).stdout.split("\0") if tips else ():
        with contextlib.suppress(ValueError, RecursionError):
            rows.append(json.loads((text.strip().splitlines() or [""])[-1]))
    return [row for row in rows if isinstance(row, dict)]


def empty_tree(home: Path) -> str:
    """Return the tree without files; a repository that names by SHA-256 has another one."""
    return git(home, "hash-object", "-t", "tree", "-w", "/dev/null").stdout.strip()
