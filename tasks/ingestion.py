"""New data, made known all at once: a commit of the branch `ingest` names a batch, and what has been seen by then.

    list -> read and validate -> dvc add -> push the data -> move the branch, on the remote first -> tell retrainings

The branch has a history of its own: the `.dvc` files of the batches and of the state, and nothing else of the project.
Until git moves it nothing has happened, and whoever comes after a death or a refusal begins again with the same
files. A retraining takes the `.dvc` file of its batch onto its own branch.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings, load_settings
from sweetrl.errors import UserError
from sweetrl.ingest.batches import Made, State, checks_of, kind_of, make_batch
from sweetrl.ingest.sources import open_source
from sweetrl.io import private_folder, publish, write_text
from sweetrl.paths import BATCHES, INGEST, SCRATCH
from sweetrl.tracking.runs import git_environment
from tasks import batches, workspace
from tasks.chains import Chain
from tasks.journal import one_at_a_time
from tasks.workspace import git, git_remote, head, identity, remote_name

REF = "refs/heads/ingest"
CHAIN = Chain(REF, "what was ingested cannot be put", "ingest")
TRIES = 20
FROM_HEAD = (".dvc/config", ".dvcignore", ".gitignore")  # so that the branch can be checked out by itself
DOCS = Path("reports/ingest-docs")


@dataclass(frozen=True)
class Ingested:
    """What an ingest did. `made` is None where nothing was new, `waiting` the batch that the next retraining takes."""

    made: Made | None
    waiting: str = ""
    pushed: tuple[str, ...] = ()


def ingest(
    home: Path,
    source: str = "",
    kind: str = "",
    again: bool = False,
    push: bool = True,
    say: Callable[[str], None] = print,
) -> Ingested:
    """Take what is new in `source` (default: `ingest.source`) as the next batch; nothing has changed where that fails.

    Without `push` nothing leaves this machine. With `again`, files in which something was bad are looked at once more.
    """
    settings = asked(home, source, kind)
    found = open_source(settings.ingest.source, home)
    if not head(home):
        raise UserError(f"{home}: this is not a git repository with a commit; what is ingested is kept in one.")
    remote = git_remote(home) if push else ""
    made, pushed = None, list[str]()
    with one_at_a_time(home, "ingest"):
        for _ in range(TRIES):
            shared, own = CHAIN.shared(home, remote), head(home, REF)
            tip = _newest(home, shared, own)
            if tip != own:  # others', or ours of a process that died here
                git(home, "update-ref", REF, tip, own or "0" * len(tip))
            with _workplace(home) as tree:
                state, number = State(tree / INGEST), f"{_length(home, tip) + 1:06d}"
                if tip:
                    check_out(home, tree, tip, INGEST)
                out = tree / BATCHES / f"{settings.ingest.kind}-{number}"
                made = make_batch(
                    settings,
                    found,
                    state,
                    number,
                    out,
                    lambda: checks_of(settings, home, home / DOCS),
                    lambda tip=tip, tree=tree: _earlier(home, tree, tip, settings.ingest.kind),  # type: ignore[misc]
                    again,
                )
                if made is None:
                    _show(home, tree)
                    break
                say(in_a_line(made))
                added = [INGEST, *([BATCHES / made.batch] if made.batch else [])]
                workspace.dvc(tree, "add", "-q", *map(str, added))
                pushed = _push_data(home, tree, added, shared, tip) if push else ["nothing: --no-push"]
                commit = _commit(home, tree, tip, made, added)
                if remote and not CHAIN.pushed(home, remote, commit, shared):
                    say("another machine was faster; looking again")
                    continue
                git(home, "update-ref", REF, commit, tip or "0" * len(commit))
                _show(home, tree)
                if remote:
                    pushed.append(f"branch ingest to {remote}")
                break
        else:
            raise UserError(
                f"{home}: others ingested at the same moment {TRIES} times; try again when they have ended."
            )
    return Ingested(made, next_batch(home, remote, settings.ingest.kind), tuple(pushed))


def asked(home: Path, source: str, kind: str) -> Settings:
    """Return the settings of the project at `home` with what the caller asks for; no source is a UserError."""
    settings = load_settings(home / "params.yaml")
    if kind not in ("", "dialogues", "tasks"):
        raise UserError(f"{kind}: files hold `dialogues` or `tasks`; name one of them.")
    given = {key: value for key, value in (("source", source), ("kind", kind)) if value}
    if not given.get("source", settings.ingest.source):
        raise UserError("params.yaml: `ingest.source` is empty; name a folder or s3://BUCKET/PREFIX there.")
    return settings.model_copy(update={"ingest": settings.ingest.model_copy(update=given)})


def in_a_line(made: Made) -> str:
    """Say what an ingest came to."""
    parts = [f"{made.rows} rows of {made.files} new files"]
    parts += [f"{made.bad} put aside ({INGEST}/quarantine/{made.number}.jsonl)"] if made.bad else []
    parts += [f"{made.repeated} taken before"] if made.repeated else []
    parts += [f"{made.without_consent} without consent"] if made.without_consent else []
    parts += [f"{made.later} files left for the next run"] if made.later else []
    said = f"{made.batch or 'no batch'}: {', '.join(parts)}"
    return said + (f"; not enough to train on yet: {made.lacks}" if made.lacks else "")


def ingests(home: Path, tip: str) -> list[Made]:
    """Return what the ingests came to whose chain ends at `tip`, newest first."""
    if not tip:
        return []
    return [Made(**{**facts, "holds": tuple(facts.get("holds", ()))}) for facts in batches.facts_of(home, [tip], Made)]


def next_batch(home: Path, remote: str, kind: str, taken: Sequence[batches.Batch] | None = None) -> str:
    """Return the ingested batch that the next retraining takes; "" where none is left that can be trained on.

    That is the newest one that has all rows which no retraining has learnt from; of batches whose window is too small
    for that, the oldest.
    """
    tip = _newest(home, CHAIN.shared(home, remote), head(home, REF))
    made = [one for one in ingests(home, tip) if one.batch and one.kind == kind]
    if taken is None:
        tips = (batches.CHAIN.shared(home, remote), head(home, batches.REF))
        taken = batches.known(home, [found for found in tips if found])
    used = {one.data for one in taken}
    learnt = {name for one in made if one.batch in used for name in one.holds}
    fresh = [one.batch for one in made if one.batch not in learnt]
    fit = [one for one in made if one.batch in fresh and not one.lacks]
    return next((one.batch for one in fit if fresh[-1] in one.holds), fit[-1].batch if fit else "")


def any_batch(home: Path, remote: str, kind: str) -> bool:
    """Whether a batch of `kind` was ever ingested."""
    tip = _newest(home, CHAIN.shared(home, remote), head(home, REF))
    return any(one.batch and one.kind == kind for one in ingests(home, tip))


def batch_parameters(batch: str) -> dict[str, Any]:
    """Return the parameters that let a retraining learn from an ingested batch; none for ""."""
    if not batch:
        return {}
    folder = str(BATCHES / batch)
    if kind_of(batch) == "dialogues":
        return {"sources.trajectories": folder}
    files = {"tasks.train_file": f"{folder}/train.jsonl", "tasks.test_file": f"{folder}/test.jsonl"}
    return {**files, "sources.tasks": folder, "collect.first": 0}


def batch_named(values: Mapping[str, Any]) -> str:
    """Return the ingested batch that the dotted parameters `values` name; "" where they name none."""
    for key in ("sources.trajectories", "sources.tasks"):
        path = Path(str(values.get(key) or ""))
        if path.parent == BATCHES:
            return path.name
    return ""


def provide(home: Path, tree: Path, remote: str) -> None:
    """Check out in the worktree `tree` the ingested batches that its params.yaml names; others may have made them."""
    sources = load_settings(tree / "params.yaml").sources
    for place in (sources.trajectories, sources.tasks):
        batch = batch_named({"sources.trajectories": place})
        if batch and not (tree / BATCHES / batch).exists():
            inside = (tree / BATCHES / f"{batch}.dvc").exists()
            tip = "" if inside else _newest(home, CHAIN.shared(home, remote), head(home, REF))
            check_out(home, tree, tip, BATCHES / batch)


def check_out(home: Path, tree: Path, tip: str, path: Path) -> None:
    """Put the data `path` into `tree`, as the commit `tip` has them (with "", as the .dvc file there says)."""
    file = f"{path}.dvc"
    if tip:
        found = git(home, "show", f"{tip}:{file}", check=False)
        if found.returncode:
            raise UserError(f"{home}: {file} is not on the branch ingest; `git fetch` it, or ingest again.")
        write_text(tree / file, found.stdout, shared=True)
    try:
        workspace.dvc(tree, "checkout", "-q", file)
    except UserError:
        if not remote_name(tree):
            raise
        workspace.dvc(tree, "pull", "-q", file)


def _newest(home: Path, shared: str, own: str) -> str:
    """The end of the chain, here or on the remote; a UserError where each has what the other lacks."""
    if not own or not shared:
        return own or shared
    for older, newer in ((own, shared), (shared, own)):
        if not git(home, "merge-base", "--is-ancestor", older, newer, check=False).returncode:
            return newer
    raise UserError(
        f"{home}: the branch ingest here and the remote's have each what the other lacks; `git branch -f ingest "
        f"{shared[:12]}` takes the remote's, and the files that only this machine has taken are read again."
    )


def _length(home: Path, tip: str) -> int:
    return int(git(home, "rev-list", "--count", tip).stdout) if tip else 0


@contextlib.contextmanager
def _workplace(home: Path) -> Iterator[Path]:
    """Yield an empty folder in which DVC works as at home, without git; what a killed ingest has left is removed."""
    place = home / SCRATCH / "ingest"
    shutil.rmtree(place, ignore_errors=True)
    tree = private_folder(place / "tree")
    private_folder(tree / ".dvc")
    workspace.share_dvc_settings(home, tree)
    from dvc.config import Config

    with Config(str(tree / ".dvc"), validate=False).edit("local") as settings:
        settings.setdefault("core", {})["no_scm"] = True
    try:
        yield tree
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _earlier(home: Path, tree: Path, tip: str, kind: str) -> list[Path]:
    """The files of the newest batch of `kind`, oldest first."""
    last = next((one for one in ingests(home, tip) if one.batch and one.kind == kind), None)
    if last is None:
        return []
    check_out(home, tree, tip, BATCHES / last.batch)
    files = [tree / BATCHES / last.batch / f"{name}.jsonl" for name in last.holds]
    return [path for path in files if path.exists()]


def _show(home: Path, tree: Path) -> None:
    """Put what was seen and put aside where people look for it; it is no part of their checkout."""
    if (tree / INGEST).exists():
        publish(tree / INGEST, home / INGEST)


def _push_data(home: Path, tree: Path, added: Sequence[Path], shared: str, tip: str) -> list[str]:
    """Push what was added, and what earlier ingests have kept here alone; data that are not there then are an error."""
    remote = remote_name(tree)
    if not remote:
        return ["no data: DVC has no default remote (`dvc remote add -d NAME URL`), so only this machine has them"]
    kept: list[str] = []
    if tip and tip != shared:
        since = f"{shared}..{tip}" if shared else tip
        kept = git(home, "log", "--format=", "--name-only", "--diff-filter=A", since, "--", str(BATCHES)).stdout.split()
    for file in kept:
        write_text(tree / file, git(home, "show", f"{tip}:{file}").stdout, shared=True)
    targets = [*(f"{path}.dvc" for path in added), *kept]
    workspace.dvc(tree, "push", *targets)
    found = json.loads(workspace.dvc(tree, "status", "--cloud", "--json", *targets) or "{}")
    absent = sorted(path for path, state in found.items() if state != "deleted")  # deleted: there, and not here
    if absent:
        raise UserError(
            f"{home}: {absent[0]} is not in the remote {remote} after `dvc push`; look at the remote and ingest again."
        )
    return [f"data to {remote}"]


def _commit(home: Path, tree: Path, tip: str, made: Made, added: Sequence[Path]) -> str:
    """Return a commit on top of `tip` with the .dvc files of what was added; nothing points to it yet."""

    def plumb(*arguments: str) -> str:
        index = {**git_environment(), "GIT_INDEX_FILE": str(tree / "index")}
        done = subprocess.run(["git", *arguments], cwd=home, env=index, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"{home}: `git {arguments[0]}` failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        return done.stdout.strip()

    plumb("read-tree", tip or "--empty")
    for line in plumb("ls-tree", "HEAD", "--", *FROM_HEAD).splitlines():
        entry, _, name = line.partition("\t")
        mode, _, blob = entry.split()
        plumb("update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}")
    for path in added:
        blob = plumb("hash-object", "-w", "--no-filters", str(tree / f"{path}.dvc"))
        plumb("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}.dvc")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    # Without an id, two machines that read the same files in the same second would write the same commit.
    facts = {**asdict(made), "time": now, "host": socket.gethostname(), "id": uuid.uuid4().hex}
    message = f"{in_a_line(made)}\n\n{json.dumps(facts)}"
    parents = ["-p", tip] if tip else []
    return plumb(*identity(home), "commit-tree", plumb("write-tree"), *parents, "-m", message)
