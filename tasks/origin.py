"""A checkout's git remote: what others have pushed comes in first, what is new goes out, and nothing is ever forced."""

from __future__ import annotations

from pathlib import Path

from sweetrl.io import private_file
from tasks.journal import common_folder
from tasks.workspace import contains, git, git_error, head, merge, only_run


def remote_tip(home: Path, remote: str, ref: str) -> str:
    """Return the commit of `ref` in `remote`, which is here then; "" where there is none, or no remote."""
    tip = git(home, "ls-remote", remote, ref).stdout.partition("\t")[0] if remote else ""
    if tip and not head(home, tip):
        git(home, "fetch", "-q", "--no-write-fetch-head", remote, ref)
    return tip


def push_ref(home: Path, remote: str, ref: str, commit: str, seen: str) -> bool:
    """Move `ref` in `remote` from `seen` to `commit`; False where another one has moved it first."""
    done = git(home, "push", "-q", remote, f"{commit}:{ref}", check=False)
    if not done.returncode:
        return True
    now = remote_tip(home, remote, ref)
    if now == seen:  # it was refused
        raise git_error(home, done)
    return now == commit


def pull(home: Path, remote: str, branch: str) -> str:
    """Fast-forward `home` to its `branch` in `remote`, with its data; return the commit there, "" where there is none.

    NotMerged has git's words where a person must act, Busy is raised while a run is at work in `home`.
    """
    tip = remote_tip(home, remote, f"refs/heads/{branch}") if branch else ""
    if not tip:
        return ""
    begun = common_folder(home) / "pulling"  # left by a death: the data may not be those of the commit
    if begun.exists() or not contains(home, "HEAD", tip):
        with only_run(home):
            private_file(begun).touch()
            merge(home, tip, branch)
            begun.unlink()
    return tip


def share(home: Path, remote: str, branch: str, commit: str, tip: str) -> bool:
    """Push `commit` as `branch`, which was at `tip`; False where another one has moved it, UserError where it may not.

    A branch that `remote` does not have is not made there.
    """
    if not tip or contains(home, tip, commit):
        return True
    return push_ref(home, remote, f"refs/heads/{branch}", commit, tip)
