"""git and DVC around a run: worktrees for runs beside each other, commits of dvc.lock, data pushed before git.

Every step can be taken again: whoever comes after a process that died in the middle calls the same function.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sweetrl.config.overrides import is_known
from sweetrl.config.settings import known_keys, parse_settings
from sweetrl.config.yaml_files import parse_yaml
from sweetrl.errors import UserError, did_you_mean
from sweetrl.io import OWNER_UMASK, atomic_path, private_file, private_folder, write_text
from sweetrl.paths import BATCHES, QUALITY_HISTORY
from sweetrl.tracking.runs import git_environment
from tasks.pipeline import open_repo, unrecorded

RECORDS = ("dvc.lock", "params.yaml")  # what a finished run leaves in git
PIPELINE = "dvc.yaml"  # whose data are pushed, fetched and checked out; those of other pipelines may be nowhere
BEFORE_ROLLBACK = Path(".scratch/before-rollback")
INCOMPLETE = ("failed to transfer", "do not exist neither locally nor on remote")  # DVC's words, with status 0
ACCEPTED = Path("data/accepted.json")  # the batch that the validate stage compares the next one with; not DVC's


def git(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git in `root`; a failure is a UserError with git's own last line."""
    own = git_environment()
    done = subprocess.run(["git", *arguments], cwd=root, env=own, capture_output=True, text=True, check=False)
    if check and done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        words = arguments
        while words[:1] == ("-c",):
            words = words[2:]
        raise UserError(f"{root}: `git {' '.join(words[:2])}` failed: {lines[-1]}")
    return done


class NotMerged(UserError):
    """A branch cannot be taken over now; the message says why, and what to do."""


class Busy(UserError):
    """Another run is at work in a folder."""


def dvc(root: Path, *arguments: str) -> str:
    """Run DVC's command line in `root` and return what it printed; a failure is a UserError with its own last line.

    Data that DVC could not copy, or that are neither here nor in the remote, are a failure, too: DVC ends with 0 then.
    """
    command = [sys.executable, "-m", "dvc", *arguments]
    # What it checks out is for its owner alone.
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, umask=OWNER_UMASK)
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
    if done.returncode:
        reasons = [text for text in lines if text.startswith("ERROR: ")] or lines
        raise UserError(f"{root}: `dvc {arguments[0]}` failed: {reasons[-1].removeprefix('ERROR: ')}")
    if left := [text for text in lines if any(words in text for words in INCOMPLETE)]:
        raise UserError(f"{root}: `dvc {arguments[0]}` left data out: {left[-1].split(': ', 1)[-1]}")
    return done.stdout


@contextlib.contextmanager
def only_run(root: Path) -> Iterator[None]:
    """Hold the workspace for one run; a second one at the same time is refused in one sentence."""
    lock = root / ".scratch" / "run.lock"
    with private_file(lock).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"{root}: another run is at work in this folder; wait for it to end.") from error
        yield


def head(root: Path, name: str = "HEAD") -> str:
    """Return the commit that `name` stands for in the repository at `root`; "" where there is none."""
    return git(root, "rev-parse", "--verify", "-q", f"{name}^{{commit}}", check=False).stdout.strip()


def worktree_folder(home: Path, branch: str) -> Path:
    """Return where the worktree of `branch` lies."""
    return home / ".scratch" / "worktrees" / branch.replace("/", "-")


def open_worktree(home: Path, branch: str, fresh: bool = True) -> Path:
    """Return the folder of a second checkout on `branch` (made from HEAD if it is new), with DVC's cache in common.

    With `fresh`, what lies there is removed first; without, it is used as it is, if it is whole. Two runs in one
    folder fail on DVC's lock; two worktrees with one cache do not, and share the run cache.
    """
    if not head(home):
        raise UserError(f"{home}: this is not a git repository with a commit; a retraining needs one to branch from.")
    folder = worktree_folder(home, branch)
    here = git(folder if folder.exists() else home, "branch", "--show-current", check=False).stdout.strip()
    if fresh or here != branch:
        close_worktree(home, branch)
        start = [str(folder), branch] if head(home, f"refs/heads/{branch}") else ["-b", branch, str(folder), "HEAD"]
        git(home, "worktree", "add", "-q", *start)
        carry_accepted(home, folder)
    else:  # nobody else works in it: a lock was left by a death
        lock = git(folder, "rev-parse", "--path-format=absolute", "--git-path", "index.lock").stdout.strip()
        Path(lock).unlink(missing_ok=True)
    share_dvc_settings(home, folder)
    return folder


def close_worktree(home: Path, branch: str) -> None:
    """Remove the worktree of `branch` (not the branch), whole or half-made; it is no error if there is none."""
    folder = worktree_folder(home, branch)
    git(home, "worktree", "unlock", str(folder), check=False)  # git locks it while making it
    git(home, "worktree", "remove", "--force", str(folder), check=False)
    shutil.rmtree(folder, ignore_errors=True)
    git(home, "worktree", "prune")


def share_dvc_settings(home: Path, folder: Path) -> None:
    """Let DVC in the worktree `folder` work as it does in `home`: with its remotes and its cache.

    A worktree has the committed `.dvc/config` only: what is not committed and `.dvc/config.local` are added to the
    worktree's own `.dvc/config.local`, by DVC's reader and writer, so that relative paths stay right.
    """
    from dvc.config import Config, ConfigError, merge

    cache = cache_folder(home)
    (folder / ".dvc").mkdir(exist_ok=True)
    (folder / ".dvc" / Config.CONFIG_LOCAL).unlink(missing_ok=True)
    try:
        ours = Config(str(home / ".dvc"), validate=False)
        with Config(str(folder / ".dvc"), validate=False).edit("local") as theirs:
            merge(theirs, ours.load_one("repo"))
            merge(theirs, ours.load_one("local"))
            theirs["cache"]["dir"] = str(cache)
    except ConfigError as error:
        raise UserError(f"{home / '.dvc'}: DVC cannot read its settings ({error}); mend them.") from error


def carry_accepted(source: Path, target: Path) -> None:
    """Copy what the last accepted batches looked like from one checkout to another, if it is known."""
    for path in (ACCEPTED, QUALITY_HISTORY):
        if (source / path).exists():
            write_text(target / path, (source / path).read_text(encoding="utf-8"))


def cache_folder(root: Path) -> Path:
    """Return where DVC keeps the project's data."""
    from tasks.pipeline import open_repo

    with open_repo(root) as repo:
        return Path(repo.cache.local_cache_dir)


def change_parameters(root: Path, changes: Mapping[str, Any]) -> None:
    """Set dotted keys in params.yaml, keeping its comments and layout; the result must be valid settings.

    All of them or none: the file is written once, in one piece.
    """
    from io import StringIO

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
            if isinstance(section, dict) and part not in section and is_known(key):
                section[part] = {}
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict) or not (name in section or is_known(key)):
            meant = did_you_mean(key, known_keys())
            raise UserError(f"{path}: there is no parameter `{key}`{meant}; docs/parameters.md lists the known ones.")
        section[name] = value
    dumped = StringIO()
    yaml.dump(tree, dumped)
    # Mappings in braces that span lines are dumped in one: sections in which nothing is set stay as they are written.
    written = {part.partition(":")[0]: part for part in _sections(before)}
    changed = {key.partition(".")[0] for key in changes}
    parts = {part.partition(":")[0]: part for part in _sections(dumped.getvalue())}
    text = "".join(part if name in changed else written.get(name, part) for name, part in parts.items())
    parse_settings(parse_yaml(text, str(path)), str(path))
    write_text(path, text, shared=True)


def _sections(text: str) -> list[str]:
    """The text of a params.yaml, cut before each section; what is above the first one comes first."""
    return re.split(r"^(?=\w+:)", text, flags=re.MULTILINE)


def check_parameters(root: Path, changes: Mapping[str, Any]) -> None:
    """Raise the UserError of `change_parameters` for what cannot be set in params.yaml, without setting anything."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(root / "params.yaml", Path(name) / "params.yaml")
        try:
            change_parameters(Path(name), changes)
        except UserError as error:
            raise UserError(str(error).replace(name, str(root))) from error


def commit_records(root: Path, message: str) -> str:
    """Commit dvc.lock, params.yaml and the .dvc files of batches if they changed; return the commit that holds them."""
    present = [name for name in RECORDS if (root / name).exists()]
    present += sorted(str(path.relative_to(root)) for path in (root / BATCHES).glob("*.dvc"))
    git(root, "add", "--", *present)
    if git(root, "diff", "--cached", "--quiet", "--", *present, check=False).returncode:
        git(root, *identity(root), "commit", "-q", "-m", message, "--", *present)
    return head(root)


def identity(root: Path) -> list[str]:
    """Return git's options that name who commits, where git does not know it itself."""
    ours = {"user.name": "sweetrl", "user.email": "sweetrl@localhost"}
    unknown = [key for key in ours if git(root, "config", key, check=False).returncode]
    return [word for key in unknown for word in ("-c", f"{key}={ours[key]}")]


def push(root: Path, branch: str | None = None) -> list[str]:
    """Push data first, then `branch`; return what was pushed where, and what was not because there is no remote.

    In this order nobody ever sees a commit whose data are missing. Data that are not in the remote afterwards,
    whatever DVC said, are a UserError.
    """
    remote, done = remote_name(root), []
    if remote:
        # Other pipelines' results may never have been made here.
        said = dvc(root, "push", "--with-deps", PIPELINE).strip().splitlines()
        push_run_cache(root)
        check_pushed(root, remote)
        done.append(f"data to {remote}" + (f" ({said[-1].strip().rstrip('.').lower()})" if said else ""))
    else:
        done.append("no data: DVC has no default remote (`dvc remote add -d NAME URL`), so only this machine has them")
    if branch:
        name = git_remote(root)
        if name:
            git(root, "push", "-q", name, branch)
        done.append(f"branch {branch} to {name}" if name else "no branch: git has no remote")
    return done


def push_run_cache(root: Path) -> None:
    """Push what DVC's run cache knows of stages and the remote does not; `dvc push --run-cache` pushes all, each time.

    Remotes that cannot keep a run cache (http) are left without it: it saves time only.
    """
    from dvc.stage.cache import RunCacheNotSupported

    from tasks.pipeline import open_repo

    with open_repo(root) as repo, contextlib.suppress(RunCacheNotSupported):
        remote = repo.cloud.get_remote_odb(None, "push --run-cache", hash_name="md5-dos2unix")
        repo.stage_cache.transfer(repo.cache.legacy, remote, force=False)


def check_pushed(root: Path, remote: str) -> None:
    """Raise a UserError where data that dvc.lock names are not in `remote`: `dvc push` passes over what it lacks."""
    found = json.loads(dvc(root, "status", "--cloud", "--json", PIPELINE) or "{}")
    absent = sorted(path for path, state in found.items() if state != "deleted")  # deleted: there, and not here
    if absent:
        nowhere = any(found[path] == "missing" for path in absent)
        what = "and not in the cache either; make them again" if nowhere else "after `dvc push`; look at the remote"
        raise UserError(
            f"{root}: {len(absent)} of the data in dvc.lock (as {absent[0]}) are not in the remote {remote}, {what}."
        )


def git_remote(root: Path) -> str:
    """Return the remote that branches are pushed to: `origin`, else the first one; "" where there is none."""
    known = git(root, "remote", check=False).stdout.split()
    return "origin" if "origin" in known else known[0] if known else ""


def take_in_main(home: Path, folder: Path, onto: str = "") -> bool:
    """Merge what `home` has got since the branch of the worktree `folder` began; whether there was anything.

    `onto` is the branch that `home` must be on. dvc.lock and params.yaml stay those of the branch, which its data and
    its version belong to. Parameters that were changed in `home` meanwhile, and that the branch did not change, are a
    NotMerged: a person must say what is right.
    """
    _check_on(home, onto)
    git(folder, "merge", "--abort", check=False)  # of a process that died here
    commit = head(home)
    if _contains(folder, "HEAD", commit):
        return False
    if _contains(folder, commit, "HEAD") and _same_lock(folder, commit):  # merged already, and nobody came after
        return False
    branch = git(folder, "branch", "--show-current").stdout.strip()
    base = git(folder, "merge-base", commit, "HEAD").stdout.strip()
    before, here, there = (_parameters(folder, one) for one in (base, commit, "HEAD"))
    changed = {key for key in before | here if before.get(key) != here.get(key)} - {
        "collect.first"
    }  # every batch's own
    if only := sorted(key for key in changed if before.get(key) == there.get(key)):
        raise NotMerged(
            f"params.yaml has other values in {home} ({', '.join(only)}): `git merge {branch}` by hand there"
        )
    git(folder, *identity(folder), "merge", "-q", "--no-ff", "--no-commit", commit, check=False)
    git(folder, "checkout", "-q", "HEAD", "--", *(item for item in RECORDS if (folder / item).exists()))
    if conflicts := git(folder, "diff", "--name-only", "--diff-filter=U").stdout.split():
        git(folder, "merge", "--abort")
        raise NotMerged(f"{conflicts[0]} has changed in {home} and on {branch}: `git merge {branch}` by hand there")
    git(folder, *identity(folder), "commit", "-q", "-m", f"Merge what came while {branch} was trained")
    return True


def _contains(root: Path, commit: str, other: str) -> bool:
    """Whether `other` is `commit` or one that it rests on."""
    return not git(root, "merge-base", "--is-ancestor", other, commit, check=False).returncode


def _same_lock(root: Path, commit: str) -> bool:
    return not git(root, "diff", "--quiet", "HEAD", commit, "--", "dvc.lock", check=False).returncode


def _check_on(home: Path, onto: str) -> None:
    current = git(home, "branch", "--show-current").stdout.strip()
    if onto and current != onto:
        raise NotMerged(
            f"{home} is on {current or 'no branch'} now, and the retraining began on {onto}: `git switch {onto}`"
        )


def _parameters(root: Path, commit: str) -> dict[str, str]:
    """Dotted key -> value in the params.yaml of `commit`."""
    from sweetrl.config.yaml_files import parse_yaml
    from sweetrl.tracking.runs import flatten

    text = git(root, "show", f"{commit}:params.yaml", check=False).stdout
    return flatten(parse_yaml(text, f"params.yaml of {commit}") or {})


def merge(home: Path, branch: str, onto: str = "") -> str:
    """Take over a promoted branch: fast-forward and check its data out; returns what was done.

    `onto` is the branch that the checkout must be on. A NotMerged says why the branch cannot be taken over now.
    """
    _check_on(home, onto)
    if not _contains(home, "HEAD", branch):
        brought = git(home, "diff", "--name-only", "HEAD", branch).stdout.split()
        if edited := git(home, "status", "--porcelain", "--", *brought).stdout.splitlines():
            raise NotMerged(f"{home / edited[0][3:]} has uncommitted changes: commit or undo them")
        if git(home, "merge", "-q", "--ff-only", branch, check=False).returncode:
            raise NotMerged(f"the branch cannot be fast-forwarded: `git merge {branch} && dvc checkout` in {home}")
    try:
        dvc(home, "checkout", "-q", "--with-deps", PIPELINE)  # the batch that was learnt from, too
    except UserError as error:
        raise NotMerged(f"the branch is merged, but its data are not checked out: {error}") from error
    return f"merged {branch} and checked its data out"


def restore(root: Path, fetch: Callable[[Path], Path]) -> str:
    """Put back dvc.lock and params.yaml as `fetch` delivers them into a folder, and check out the data they name.

    The two files as they were are kept in a new folder below .scratch/before-rollback/. Data that are neither in the
    cache nor in the remote are a UserError, and then nothing has changed; so are data here that DVC has not recorded.
    """
    try:
        there = unrecorded(root)
    except UserError:  # a dvc.lock that cannot be read: it is one of the files that are put back
        there = []
    if there:
        raise UserError(
            f"{root / there[0]}: it holds what DVC has not recorded, and would be lost; keep it (`dvc commit`) or give "
            f"it up (`dvc checkout --force {there[0]}`), and run the same command again."
        )
    before = {item: (root / item).read_bytes() for item in RECORDS if (root / item).exists()}
    with tempfile.TemporaryDirectory() as name:
        found = fetch(Path(name))
        wanted = {item: (found / item).read_bytes() for item in RECORDS if (found / item).exists()}
    kept = _keep(root, before) if before != wanted else None
    for item, content in wanted.items():
        _write(root / item, content)
    try:
        if remote_name(root):
            dvc(root, "fetch", "-q", "--with-deps", PIPELINE)
        dvc(root, "checkout", "--with-deps", PIPELINE)
    except UserError as error:
        for item in RECORDS:
            if item in before:
                _write(root / item, before[item])
            else:
                (root / item).unlink(missing_ok=True)
        as_before = "dvc.lock, params.yaml, the data and the alias are as they were"
        try:
            dvc(root, "checkout", PIPELINE)  # without --force: what came into the folders meanwhile stays
        except UserError:
            as_before = "dvc.lock, params.yaml and the alias are as they were; `dvc checkout` brings their data back"
        raise UserError(f"{error} ({as_before})") from error
    where = f" (as they were: {kept.relative_to(root)})" if kept else ""
    return f"dvc.lock, params.yaml and the data are that version's{where}"


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path, shared=True) as temporary:  # dvc.lock and params.yaml are for whoever reads the repository
        temporary.write_bytes(content)


def _keep(root: Path, files: Mapping[str, bytes]) -> Path:
    """Put `files` into a folder of their own, named by the time: no rollback takes the place of an earlier one."""
    private_folder(root / BEFORE_ROLLBACK)
    name, number = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), 1
    while True:
        kept = root / BEFORE_ROLLBACK / (name if number == 1 else f"{name}-{number}")
        try:
            kept.mkdir()
        except FileExistsError:
            number += 1
            continue
        for item, content in files.items():
            _write(kept / item, content)
        return kept


def remote_name(root: Path) -> str | None:
    """Return the name of DVC's default remote, if one is set up."""

    with open_repo(root) as repo:
        return repo.config["core"].get("remote")
