"""Batches are taken one after the other, by whoever comes first, and never twice.

What was taken is a chain of commits under a ref of its own, each with one batch as JSON in its message: `git log
refs/sweetrl/batches`. Git moves a ref only from the value that was seen, here and on a server alike, so that of two who
take a batch at once the second has to look again. Where there is a remote, a batch is taken there.
"""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sweetrl.errors import UserError
from tasks.workspace import git, head, identity

REF = "refs/sweetrl/batches"
TRIES = 50
# A server that is being restarted answers again soon.
patiently = Retrying(
    stop=stop_after_attempt(3), wait=wait_exponential(1, max=4), retry=retry_if_exception_type(UserError), reraise=True
)


@dataclass(frozen=True)
class Batch:
    """`tasks` training tasks from number `first` on, taken for the retraining `branch`."""

    first: int
    tasks: int
    branch: str
    host: str = ""
    time: str = ""
    id: str = ""  # without it, two who take the same batch in the same second would write the same commit


def taken_now(first: int, tasks: int, branch: str) -> Batch:
    """Return the batch as this machine takes it now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Batch(first, tasks, branch, socket.gethostname(), now, uuid.uuid4().hex)


def take_batch(
    home: Path, remote: str, choose: Callable[[Sequence[Batch]], Batch], before: Callable[[Batch, str], object]
) -> Batch:
    """Take the batch that `choose` wants, given all that are taken, here and (unless it is "") in the git `remote`.

    `before` gets the batch and the commit that will stand for it before it is taken, so that `is_taken` can tell later
    whether it was. Only one process of a machine at a time may call this. A remote that does not answer, or refuses,
    is a UserError.
    """
    for _ in range(TRIES):
        shared, own = _shared(home, remote), head(home, REF)
        tips = [tip for tip in dict.fromkeys((shared, own)) if tip]
        batch = choose(known(home, tips))
        parents = [word for tip in tips for word in ("-p", tip)]
        message = json.dumps(asdict(batch))
        commit = git(home, *identity(home), "commit-tree", _empty_tree(home), *parents, "-m", message).stdout.strip()
        before(batch, commit)
        if remote and not _pushed(home, remote, commit, shared):
            continue
        git(home, "update-ref", REF, commit, own or "0" * len(commit))
        return batch
    raise UserError(f"{home}: others took a batch at the same moment {TRIES} times; try again when they have ended.")


def is_taken(home: Path, remote: str, commit: str) -> bool:
    """Whether the batch for which `commit` stands was taken."""
    tip = _shared(home, remote) if remote else head(home, REF)
    return bool(tip) and not git(home, "merge-base", "--is-ancestor", commit, tip, check=False).returncode


def known(home: Path, tips: Sequence[str]) -> list[Batch]:
    """Return the batches of the chains that end at `tips`."""
    if not tips:
        return []
    said = git(home, "log", "--format=%B%x00", *tips).stdout.split("\0")
    return [Batch(**json.loads(text)) for text in said if text.strip()]


def _shared(home: Path, remote: str) -> str:
    """The remote's end of the chain, whose commits are here afterwards; "" where there is none yet, or no remote."""
    if not remote:
        return ""
    listed: str = patiently(_ask, home, remote, "ls-remote", remote, REF)
    tip = listed.partition("\t")[0]
    if tip and not head(home, tip):
        patiently(_ask, home, remote, "fetch", "-q", "--no-write-fetch-head", remote, REF)
    return tip


def _ask(home: Path, remote: str, *arguments: str) -> str:
    done = git(home, *arguments, check=False)
    if done.returncode:
        raise UserError(_refusal(home, remote, done.stderr))
    return done.stdout


def _refusal(home: Path, remote: str, said: str) -> str:
    lines = said.strip().splitlines() or ["no message"]
    reason = next((line for line in lines if line.startswith(("fatal: ", "error: ", "remote: "))), lines[-1])
    return (
        f"{home}: a batch cannot be taken where others see it: git's remote {remote} says: {reason}; try again when it "
        "answers, or retrain with --no-push, for this machine alone."
    )


def _pushed(home: Path, remote: str, commit: str, seen: str) -> bool:
    """Move the remote's ref from `seen` to `commit`; False where another one has moved it first."""
    done = git(home, "push", "-q", remote, f"{commit}:{REF}", check=False)
    if not done.returncode:
        return True
    now = _shared(home, remote)
    if now == seen:
        raise UserError(_refusal(home, remote, done.stderr))
    return now == commit


def _empty_tree(home: Path) -> str:
    """The tree without files; a repository that names by SHA-256 has another one."""
    return git(home, "hash-object", "-t", "tree", "-w", "/dev/null").stdout.strip()
