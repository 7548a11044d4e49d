"""Batches are taken one after the other, by whoever comes first, and never twice.

What was taken is a chain of commits under a ref of its own, each with one batch as JSON in its message: `git log
refs/sweetrl/batches`. Git moves a ref only from the value that was seen, here and on a server alike, so that of two who
take a batch at once the second has to look again. Where there is a remote, a batch is taken there.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from tasks.chains import Chain
from tasks.workspace import git, head, identity

REF = "refs/sweetrl/batches"
CHAIN = Chain(REF, "a batch cannot be taken", "retrain")
TRIES = 50


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


def taken_now(first: int, tasks: int, branch: str, data: str = "") -> Batch:
    """Return the batch as this machine takes it now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Batch(first, tasks, branch, socket.gethostname(), now, uuid.uuid4().hex, data)


def take_batch(
    home: Path, remote: str, choose: Callable[[Sequence[Batch]], Batch], before: Callable[[Batch, str], object]
) -> Batch:
    """Take the batch that `choose` wants, given all that are taken, here and (unless it is "") in the git `remote`.

    `before` gets the batch and the commit that will stand for it before it is taken, so that `is_taken` can tell later
    whether it was. Only one process of a machine at a time may call this. A remote that does not answer, or refuses,
    is a UserError.
    """
    for _ in range(TRIES):
        shared, own = CHAIN.shared(home, remote), head(home, REF)
        tips = [tip for tip in dict.fromkeys((shared, own)) if tip]
        batch = choose(known(home, tips))
        parents = [word for tip in tips for word in ("-p", tip)]
        message = json.dumps(asdict(batch))
        commit = git(home, *identity(home), "commit-tree", _empty_tree(home), *parents, "-m", message).stdout.strip()
        before(batch, commit)
        if remote and not CHAIN.pushed(home, remote, commit, shared):
            continue
        git(home, "update-ref", REF, commit, own or "0" * len(commit))
        return batch
    raise UserError(f"{home}: others took a batch at the same moment {TRIES} times; try again when they have ended.")


def is_taken(home: Path, remote: str, commit: str) -> bool:
    """Whether the batch for which `commit` stands was taken."""
    tip = CHAIN.shared(home, remote) if remote else head(home, REF)
    return bool(tip) and not git(home, "merge-base", "--is-ancestor", commit, tip, check=False).returncode


def known(home: Path, tips: Sequence[str]) -> list[Batch]:
    """Return the batches of the chains that end at `tips`."""
    if not tips:
        return []
    return [Batch(**facts) for facts in facts_of(home, tips, Batch)]


def facts_of(home: Path, tips: Sequence[str], kind: type) -> list[dict[str, Any]]:
    """Return what the commits of the chains that end at `tips` say in their messages' last lines, newest first.

    Only the fields of the dataclass `kind` are kept, so that another version of sweetrl may write more. A commit that
    says something else is no link of a chain, but somebody's own.
    """
    found, known = [], {one.name for one in fields(kind)}
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    for text in git(home, "log", "--format=%B%x00", *tips).stdout.split("\0"):
        with contextlib.suppress(ValueError, RecursionError):
            facts = json.loads((text.strip().splitlines() or [""])[-1])
            if isinstance(facts, dict) and needed <= facts.keys():
                found.append({key: value for key, value in facts.items() if key in known})
    return found


def _empty_tree(home: Path) -> str:
    """The tree without files; a repository that names by SHA-256 has another one."""
    return git(home, "hash-object", "-t", "tree", "-w", "/dev/null").stdout.strip()
