"""git and DVC around a run: worktrees for runs beside each other, commits of dvc.lock, data pushed before git.

Every step can be taken again: whoever comes after a process that died in the middle calls the same function.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweetrl.config.overrides import value_of, with_changes
from sweetrl.config.yaml_files import parse_yaml
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash, file_hash
from sweetrl.io import OWNER_UMASK, atomic_path, private_file, private_folder, write_text
from sweetrl.paths import ACCEPTED, BATCHES, QUALITY_HISTORY
from sweetrl.plugins import KEYS
from sweetrl.text import printable
from sweetrl.tracking.runs import flatten, git_environment
from tasks.pipeline import PIPELINE, open_repo, unrecorded

RECORDS = ("dvc.lock", "params.yaml")  # what a finished run leaves in git
BEFORE_RESTORE = Path(".scratch/before-restore")
LONGEST_WORDS = 2000  # of git's that are shown
INCOMPLETE = ("failed to transfer", "do not exist neither locally nor on remote")  # DVC's words, with status 0


class NotMerged(UserError):
    """A branch cannot be taken over now; the message says why, and what to do."""


class Busy(UserError):
    """Another run is at work in a folder."""


def git(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git in `root`; a failure is a UserError with git's own words."""
    own = git_environment()
    done = subprocess.run(["git", *arguments], cwd=root, env=own, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise git_error(root, done)
    return done


def git_error(root: Path, done: subprocess.CompletedProcess[str]) -> UserError:
    """Return the sentence for a git that has failed, with all that it says, in one line."""
    command = next(word for word in done.args[1:] if not word.startswith("-") and "=" not in word)
    why = " ".join(printable(done.stderr or done.stdout).split()) or "no message"
    return UserError(f"{root}: `git {command}` failed: {why[:LONGEST_WORDS]}")


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


def contains(root: Path, commit: str, other: str) -> bool:
    """Whether `other` is `commit` or one that it rests on."""
    return not git(root, "merge-base", "--is-ancestor", other, commit, check=False).returncode


def same_lock(root: Path, commit: str, other: str) -> bool:
    """Whether two commits have the same dvc.lock."""
    return not git(root, "diff", "--quiet", commit, other, "--", "dvc.lock", check=False).returncode


def worktree_folder(home: Path, branch: str) -> Path:
    """Return where the worktree of `branch` lies."""
    return home / ".scratch" / "worktrees" / branch.replace("/", "-")


def open_worktree(home: Path, branch: str, fresh: bool = True) -> Path:
    """Return the folder of a second checkout on `branch` (made from HEAD if it is new), with DVC's cache in common.

    With `fresh`, what lies there is removed first; without, it is used as it is, if it is complete. Two runs in one
    folder fail on DVC's lock; two worktrees with one cache do not, and share the run cache.
    """
    folder = worktree_folder(home, branch)
    here = git(folder if folder.exists() else home, "branch", "--show-current", check=False).stdout.strip()
    if fresh or here != branch:
        close_worktree(home, folder)
        start = [str(folder), branch] if head(home, f"refs/heads/{branch}") else ["-b", branch, str(folder), "HEAD"]
        git(home, "worktree", "add", "-q", *start)
        carry_accepted(home, folder)
    else:  # nobody else works in it: a lock was left by a death
        lock = git(folder, "rev-parse", "--path-format=absolute", "--git-path", "index.lock").stdout.strip()
        Path(lock).unlink(missing_ok=True)
    share_dvc_settings(home, folder)
    return folder


def close_worktree(home: Path, folder: Path) -> None:
    """Remove a worktree (not its branch), complete or not; it is no error if there is none."""
    git(home, "worktree", "unlock", str(folder), check=False)  # git locks it while making it
    git(home, "worktree", "remove", "--force", str(folder), check=False)
    shutil.rmtree(folder, ignore_errors=True)
    git(home, "worktree", "prune")


def share_dvc_settings(home: Path, folder: Path) -> None:
    """Let DVC in the worktree `folder` work as it does in `home`: with its remotes and its cache.

    A worktree has the committed `.dvc/config` only: what is not committed and `.dvc/config.local` are added to the
    worktree's own `.dvc/config.local`, by DVC's reader and writer, so that relative paths stay right.
    """
    from dvc.config import Config, merge

    local = folder / ".dvc" / Config.CONFIG_LOCAL
    local.parent.mkdir(exist_ok=True)
    local.unlink(missing_ok=True)
    with open_repo(home) as repo, Config(str(local.parent), validate=False).edit("local") as local_config:
        for level in ("repo", "local"):
            merge(local_config, Config(str(home / ".dvc"), validate=False).load_one(level))
        local_config["cache"]["dir"] = repo.cache.local_cache_dir


def carry_accepted(source: Path, target: Path) -> None:
    """Copy what the last accepted batches looked like from one checkout to another, if that is there."""
    for path in (ACCEPTED, QUALITY_HISTORY):
        if (source / path).exists():
            write_text(target / path, (source / path).read_text(encoding="utf-8"))


def with_parameters(root: Path, changes: Mapping[str, Any]) -> str:
    """Return the text of params.yaml with dotted keys set, its comments and layout kept; a UserError for wrong ones."""
    from ruamel.yaml import YAML

    path = root / "params.yaml"
    before = path.read_text(encoding="utf-8")
    checked = with_changes(parse_yaml(before, str(path)) or {}, changes, str(path))
    yaml = YAML()
    yaml.preserve_quotes = True  # DVC cannot read an unquoted sqlite:/// inside { }
    yaml.width = 4096
    tree = yaml.load(before) or {}
    for key in changes:
        *sections, name = key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value_of(checked, key)
    dumped = io.StringIO()
    yaml.dump(tree, dumped)
    # Mappings in braces that span lines are dumped in one: sections in which nothing is set stay as they are written.
    written, changed = _sections(before), {key.partition(".")[0] for key in changes}
    parts = _sections(dumped.getvalue()).items()
    return "".join(part if name in changed else written.get(name, part) for name, part in parts)


def change_parameters(root: Path, changes: Mapping[str, Any]) -> None:
    """Set dotted keys in params.yaml: all of them or none, written once, in one piece."""
    write_text(root / "params.yaml", with_parameters(root, changes), shared=True)


def _sections(text: str) -> dict[str, str]:
    """The text of a params.yaml by section; what is above the first one comes first."""
    return {part.partition(":")[0]: part for part in re.split(r"^(?=\w+:)", text, flags=re.MULTILINE)}


def commit_records(root: Path, message: str, code: Sequence[str] = ()) -> str:
    """Commit dvc.lock, params.yaml, the .dvc files of batches and `code` if they changed; return the commit with them.

    Code that git ignores stays out of it.
    """
    present = [name for name in RECORDS if (root / name).exists()]
    if code:
        shown = ("--cached", "--others", "--exclude-standard")
        present += git(root, "ls-files", "-z", *shown, "--", *code).stdout.split("\0")[:-1]
    present += sorted(str(path.relative_to(root)) for path in (root / BATCHES).glob("*.dvc"))
    git(root, "add", "--", *present)
    if git(root, "diff", "--cached", "--quiet", "--", *present, check=False).returncode:
        git(root, *identity(root), "commit", "-q", "-m", message, "--", *present)
    return head(root)


def identity(root: Path) -> list[str]:
    """Return git's options that name who commits, where git does not know it itself."""
    author = {"user.name": "sweetrl", "user.email": "sweetrl@localhost"}
    unknown = [key for key in author if git(root, "config", key, check=False).returncode]
    return [word for key in unknown for word in ("-c", f"{key}={author[key]}")]


def push(root: Path, branch: str | None = None) -> list[str]:
    """Push data first, then `branch`, so that nobody sees a commit without its data; return what was pushed where."""
    done = [push_data(root, "--with-deps", PIPELINE)]  # other pipelines' results may never have been made here
    if remote_name(root):
        _push_run_cache(root)
    if branch:
        name = git_remote(root)
        if name:
            git(root, "push", "-q", name, branch)
        done.append(f"branch {branch} to {name}" if name else "no branch: git has no remote")
    return done


def push_data(root: Path, *targets: str) -> str:
    """Push data to DVC's remote, and look whether they are there; return what was pushed where."""
    remote = remote_name(root)
    if not remote:
        return "no data: DVC has no default remote (`dvc remote add -d NAME URL`), so only this machine has them"
    output = dvc(root, "push", *targets).strip().splitlines()
    files = [target for target in targets if not target.startswith("-")]
    states = json.loads(dvc(root, "status", "--cloud", "--json", *files) or "{}")
    absent = sorted(path for path, state in states.items() if state != "deleted")  # deleted: there, and not here
    if absent:
        raise UserError(f"{root}: {remote} has no {absent[0]} ({len(absent)} files) after `dvc push`; make it again.")
    return f"data to {remote}" + (f" ({output[-1].strip().rstrip('.').lower()})" if output else "")


def _push_run_cache(root: Path) -> None:
    """Push what DVC's run cache knows and the remote does not; `dvc push --run-cache` pushes all of it each time."""
    from dvc.stage.cache import RunCacheNotSupported

    with open_repo(root) as repo, contextlib.suppress(RunCacheNotSupported):  # remotes by http keep none
        remote = repo.cloud.get_remote_odb(None, "push --run-cache", hash_name="md5-dos2unix")
        repo.stage_cache.transfer(repo.cache.legacy, remote, force=False)


def remote_name(root: Path) -> str | None:
    """Return the name of DVC's default remote, if one is set up."""
    with open_repo(root) as repo:
        return repo.config["core"].get("remote")


def git_remote(root: Path) -> str:
    """Return the remote that branches are pushed to: `origin`, else the first one; "" where there is none."""
    remotes = git(root, "remote", check=False).stdout.split()
    return "origin" if "origin" in remotes else next(iter(remotes), "")


def take_in_main(home: Path, folder: Path, onto: str = "") -> bool:
    """Merge what `home` has got since the branch of the worktree `folder` began; whether there was anything.

    `onto` is the branch that `home` must be on. dvc.lock and params.yaml stay those of the branch, which its data and
    its version belong to. Parameters that were changed in `home` meanwhile, and that the branch did not change, are a
    NotMerged: a person must say what is right.
    """
    _check_on(home, onto)
    git(folder, "merge", "--abort", check=False)  # of a process that died here
    commit = head(home)
    if contains(folder, "HEAD", commit) or same_lock(folder, "HEAD", commit):  # the latter: merged by hand
        return False
    branch = git(folder, "branch", "--show-current").stdout.strip()
    base = git(folder, "merge-base", commit, "HEAD").stdout.strip()
    before, here, there = (_parameters(folder, name) for name in (base, commit, "HEAD"))
    edited = {key for key in before | here if before.get(key) != here.get(key)} - {"collect.first"}  # each batch's own
    if only := sorted(key for key in edited if before.get(key) == there.get(key)):
        raise NotMerged(f"params.yaml differs in {home} ({', '.join(only)}): `git merge {branch}` by hand there")
    git(folder, *identity(folder), "merge", "-q", "--no-ff", "--no-commit", commit, check=False)
    git(folder, "checkout", "-q", "HEAD", "--", *(name for name in RECORDS if (folder / name).exists()))
    if conflicts := git(folder, "diff", "--name-only", "--diff-filter=U").stdout.split():
        git(folder, "merge", "--abort")
        raise NotMerged(f"{conflicts[0]} has changed in {home} and on {branch}: `git merge {branch}` by hand there")
    git(folder, *identity(folder), "commit", "-q", "-m", f"Merge what came while {branch} was trained")
    return True


def _check_on(home: Path, onto: str) -> None:
    current = git(home, "branch", "--show-current").stdout.strip()
    if onto and current != onto:
        raise NotMerged(f"{home} is on {current or 'no branch'}, the retraining began on {onto}: `git switch {onto}`")


def _parameters(root: Path, commit: str) -> dict[str, str]:
    """Dotted key -> value in the params.yaml of `commit`."""
    text = git(root, "show", f"{commit}:params.yaml", check=False).stdout
    return flatten(parse_yaml(text, f"params.yaml of {commit}") or {})


def merge(home: Path, branch: str, onto: str = "", publish: Callable[[str], bool] = lambda commit: True) -> bool:
    """Fast-forward to `branch` and check its data out, on the branch `onto`; NotMerged says why not.

    `publish` gets the commit that `home` will be at, once nothing here is in its way. Where it says False, nothing was
    done, and that is returned.
    """
    _check_on(home, onto)
    ahead = not contains(home, "HEAD", branch)
    if ahead:
        brought = git(home, "diff", "--name-only", "HEAD", branch).stdout.split()
        edited = git(home, "status", "--porcelain", "--", *brought).stdout.splitlines()
        if brought and edited:  # without a path, git's answer is about all files
            raise NotMerged(f"{home / edited[0][3:]} has uncommitted changes: commit or undo them")
    if not publish(head(home, branch if ahead else "HEAD")):
        return False
    if ahead:
        done = git(home, "merge", "-q", "--ff-only", branch, check=False)
        if done.returncode:
            by_hand = f"`git merge {branch} && dvc checkout dvc.yaml` there"
            raise NotMerged(f"{git_error(home, done)}; mend that, or {by_hand}")
    try:
        check_out(home, "--with-deps", PIPELINE)  # the batch that was learnt from, too
    except UserError as error:
        raise NotMerged(f"{branch} is merged, but its data are not checked out: {error}") from error
    return True


def check_out(root: Path, *targets: str) -> None:
    """Check out data; what DVC's cache lacks is fetched from its remote."""
    try:
        dvc(root, "checkout", *targets)
    except UserError:
        if not remote_name(root):
            raise
        dvc(root, "fetch", "-q", *targets)
        dvc(root, "checkout", *targets)


def check_committed(root: Path, paths: Iterable[Path]) -> None:
    """Refuse code in `root` that git does not have as it is here: a worktree or a clone has another, or none."""
    for path in (path.relative_to(root) for path in paths if path.is_relative_to(root)):
        listed = git(root, "ls-files", "--", str(path)).stdout
        if not listed or git(root, "status", "--porcelain", "--", str(path)).stdout:
            raise UserError(f"{path}: git does not have it as it is here, and a retraining takes git's; commit it.")


def records_in_git(root: Path, tags: Mapping[str, str], folder: Path) -> Path | None:
    """Write dvc.lock, params.yaml and own code of the version with these `tags` into `folder`, as git has them.

    None where git does not have all of that with the content that was registered.
    """
    commit, code = tags.get("git_commit", ""), json.loads(tags.get("code", "{}"))
    if tags.get("git_dirty") != "false" or not head(root, commit):
        return None
    # The first version's dvc.lock is committed after it was registered.
    for other in [commit, *git(root, "rev-list", "--all", "--", "dvc.lock").stdout.split()]:
        write_text(folder / "dvc.lock", git(root, "show", f"{other}:dvc.lock", check=False).stdout)
        if file_hash(folder / "dvc.lock") == tags.get("dvc_lock"):
            break
    else:
        return None
    parameters = parse_yaml(git(root, "show", f"{commit}:params.yaml", check=False).stdout, "params.yaml") or {}
    sources = parameters.get("sources", {})
    own = {sources.get(place, ""): code[key].split()[-1] for key, place in KEYS.values() if " " in code.get(key, "")}
    # Links become files, which have other content: nothing outside of the folder is read or written through them.
    there = ("-c", "core.symlinks=false", f"--work-tree={folder}")
    if git(root, *there, "restore", f"--source={commit}", "--", "params.yaml", *own, check=False).returncode:
        return None
    return folder if all(dvc_hash(folder / path) == content for path, content in own.items()) else None


def put_back(root: Path, fetch: Callable[[Path], Path]) -> tuple[str, list[str]]:
    """Put back dvc.lock, params.yaml and own code as `fetch` delivers them into a folder, and check out the data.

    Returns a sentence, and which files are own code. The files as they were are kept in a new folder below
    .scratch/before-restore/. DVC's remote is asked for what its cache does not have. Data that are in neither are a
    UserError, and then nothing has changed; so are data here that DVC has not recorded.
    """
    unsaved: list[str] = []
    with contextlib.suppress(UserError):  # a dvc.lock that cannot be read: it is one of the files that are put back
        unsaved = unrecorded(root)
    if unsaved:
        raise UserError(f"{root / unsaved[0]}: not recorded; `dvc commit` keeps it, `dvc checkout --force` drops it.")
    kept = ""
    with tempfile.TemporaryDirectory() as name:
        folder = fetch(Path(name))
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        records = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    before = {name: (root / name).read_bytes() for name in records if (root / name).exists()}
    if before != records:
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        folder = private_folder(root / BEFORE_RESTORE / now)
        _write_records(folder, before)
        kept = f" (as they were: {folder.relative_to(root)})"
    _write_records(root, records)
    try:
        check_out(root, "--with-deps", PIPELINE)
    except UserError as error:
        for name in set(records) - set(before):
            (root / name).unlink()
        _write_records(root, before)
        with contextlib.suppress(UserError):
            dvc(root, "checkout", PIPELINE)  # without --force: what came into the folders meanwhile stays
        raise UserError(f"{error} (dvc.lock, params.yaml, the data and the alias are as they were)") from error
    code = [name for name in records if name not in RECORDS]
    what = "params.yaml, your own code" if code else "params.yaml"
    return f"dvc.lock, {what} and the data are put back{kept}", code


def _write_records(root: Path, records: Mapping[str, bytes]) -> None:
    for name, content in records.items():  # they are for whoever reads the repository
        with atomic_path(root / name, shared=True) as temporary:
            temporary.write_bytes(content)
