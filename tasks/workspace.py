"""git and DVC around a run: worktrees for runs beside each other, commits of dvc.lock, data pushed before git."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.io import write_text
from sweetrl.settings import load_settings

RECORDS = ("dvc.lock", "params.yaml")  # what a finished run leaves in git
ACCEPTED = Path("data/accepted.json")  # the batch that the validate stage compares the next one with; not DVC's


def git(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git in `root`; a failure is a UserError with git's own last line."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if check and done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise UserError(f"{root}: `git {' '.join(arguments[:2])}` failed: {lines[-1]}")
    return done


def dvc(root: Path, *arguments: str) -> None:
    """Run DVC's command line in `root`; a failure is a UserError with DVC's own last line."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        reasons = [text for text in lines if text.startswith("ERROR: ")] or lines
        raise UserError(f"{root}: `dvc {arguments[0]}` failed: {reasons[-1].removeprefix('ERROR: ')}")


@contextlib.contextmanager
def only_run(root: Path) -> Iterator[None]:
    """Hold the workspace for one run; a second one at the same time is refused in one sentence."""
    lock = root / ".scratch" / "run.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{root}: another run is at work in this folder; wait for it to end.") from error
        yield


@dataclass(frozen=True)
class Worktree:
    """A second checkout of the project on a branch of its own; it shares DVC's cache with the first."""

    root: Path
    branch: str
    home: Path


@contextlib.contextmanager
def worktree(home: Path, branch: str) -> Iterator[Worktree]:
    """Check out a new `branch` from HEAD in its own folder, and remove the folder (not the branch) at the end.

    Two runs in one folder fail on DVC's lock; two worktrees with one cache do not, and share the run cache.
    """
    if git(home, "rev-parse", "--verify", "-q", "HEAD", check=False).returncode:
        raise UserError(f"{home}: this is not a git repository with a commit; a retraining needs one to branch from.")
    folder = home / ".scratch" / "worktrees" / branch.replace("/", "-")
    git(home, "worktree", "prune")
    git(home, "worktree", "add", "-q", "-b", branch, str(folder), "HEAD")
    try:
        cache = cache_folder(home)
        (folder / ".dvc").mkdir(exist_ok=True)
        local = (home / ".dvc" / "config.local").read_text() if (home / ".dvc" / "config.local").exists() else ""
        (folder / ".dvc" / "config.local").write_text(f"{local}\n[cache]\n    dir = {cache}\n")
        carry_accepted(home, folder)
        yield Worktree(folder, branch, home)
        carry_accepted(folder, home)
    finally:
        git(home, "worktree", "remove", "--force", str(folder), check=False)


def carry_accepted(source: Path, target: Path) -> None:
    """Copy what the last accepted batch looked like from one checkout to another, if it is known."""
    if (source / ACCEPTED).exists():
        (target / ACCEPTED).parent.mkdir(parents=True, exist_ok=True)
        write_text(target / ACCEPTED, (source / ACCEPTED).read_text(encoding="utf-8"))


def cache_folder(root: Path) -> Path:
    """Return where DVC keeps the project's data."""
    from tasks.pipeline import open_repo

    with open_repo(root) as repo:
        return Path(repo.cache.local_cache_dir)


def change_parameters(root: Path, changes: Mapping[str, Any]) -> None:
    """Set dotted keys in params.yaml, keeping its comments and layout; the result must be valid settings."""
    from ruamel.yaml import YAML

    path = root / "params.yaml"
    before = path.read_text(encoding="utf-8")
    yaml = YAML()
    yaml.preserve_quotes = True  # DVC cannot read an unquoted sqlite:/// inside { }
    yaml.width = 4096
    tree = yaml.load(before)
    for key, value in changes.items():
        *sections, name = key.split(".")
        section = tree
        for part in sections:
            if not isinstance(section, dict) or part not in section:
                raise UserError(f"{path}: there is no parameter `{key}`; docs/parameters.md lists the known ones.")
            section = section[part]
        if not isinstance(section, dict) or name not in section:
            raise UserError(f"{path}: there is no parameter `{key}`; docs/parameters.md lists the known ones.")
        section[name] = value
    with path.open("w", encoding="utf-8") as stream:
        yaml.dump(tree, stream)
    try:
        load_settings(path)
    except UserError:
        path.write_text(before, encoding="utf-8")
        raise


def commit_records(root: Path, message: str) -> str:
    """Commit dvc.lock and params.yaml if they changed; return the commit that holds them."""
    present = [name for name in RECORDS if (root / name).exists()]
    git(root, "add", "--", *present)
    if git(root, "diff", "--cached", "--quiet", check=False).returncode:
        identity = []
        if git(root, "config", "user.email", check=False).returncode:
            identity = ["-c", "user.name=sweetrl", "-c", "user.email=sweetrl@localhost"]
        git(root, *identity, "commit", "-q", "-m", message, "--", *present)
    return git(root, "rev-parse", "HEAD").stdout.strip()


def push(root: Path, branch: str | None = None) -> list[str]:
    """Push data first, then `branch`, each where a remote is set up; return what was pushed.

    In this order nobody ever sees a commit whose data are missing.
    """
    done = []
    remote = remote_name(root)
    if remote:
        dvc(root, "push", "--run-cache")
        done.append(f"data to {remote}")
    if branch and git(root, "remote", check=False).stdout.strip():
        name = git(root, "remote").stdout.split()[0]
        git(root, "push", "-q", name, branch)
        done.append(f"branch {branch} to {name}")
    return done


def merge(home: Path, branch: str) -> str:
    """Take over a promoted branch: fast-forward and check its data out; returns what was done or what is left to do."""
    changed = git(home, "status", "--porcelain", "--untracked-files=no").stdout.strip()
    if changed:
        return f"files here have uncommitted changes: when they are committed, `git merge {branch} && dvc checkout`"
    if git(home, "merge", "-q", "--ff-only", branch, check=False).returncode:
        return f"the branch cannot be fast-forwarded: `git merge {branch} && dvc checkout`"
    dvc(home, "checkout", "-q")
    return f"merged {branch} and checked its data out"


def restore(root: Path, fetch: Callable[[Path], Path]) -> str:
    """Put back dvc.lock and params.yaml as `fetch` delivers them into a folder, and check out the data they name.

    The two files as they were are kept in .scratch/before-rollback/. Data that are neither in the cache nor in the
    remote are a UserError, and then nothing has changed.
    """
    kept = root / ".scratch" / "before-rollback"
    kept.mkdir(parents=True, exist_ok=True)
    before = {item: (root / item).read_bytes() for item in RECORDS if (root / item).exists()}
    for item, content in before.items():
        (kept / item).write_bytes(content)
    with tempfile.TemporaryDirectory() as name:
        found = fetch(Path(name))
        for item in RECORDS:
            if (found / item).exists():
                (root / item).write_bytes((found / item).read_bytes())
    try:
        if remote_name(root):
            dvc(root, "fetch", "-q", "--run-cache")
        dvc(root, "checkout", "-q")
    except UserError as error:
        for item, content in before.items():
            (root / item).write_bytes(content)
        dvc(root, "checkout", "-q", "--force")
        raise UserError(f"{error} (dvc.lock, params.yaml, the data and the alias are as they were)") from error
    return "dvc.lock, params.yaml and the data are that version's; look at `git diff`, then commit"


def remote_name(root: Path) -> str | None:
    """Return the name of DVC's default remote, if one is set up."""
    from tasks.pipeline import open_repo

    with open_repo(root) as repo:
        return repo.config["core"].get("remote")
