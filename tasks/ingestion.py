"""New data, made known all at once: a commit of the branch `ingest` names a batch, and what has been seen by then.

    list -> read and validate -> dvc add -> push the data -> move the branch, on the remote first -> tell retrainings

The branch has a history of its own: the `.dvc` files of the batches and of the state, and nothing else of the project.
Until git moves it nothing has happened, and whoever comes after a death or a refusal begins again with the same
files. A retraining takes the `.dvc` file of its batch onto its own branch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings, load_settings
from sweetrl.errors import UserError
from sweetrl.ingest.batches import Made, State, checks_of, kind_of, make_batch
from sweetrl.ingest.sources import open_source
from sweetrl.io import publish
from sweetrl.paths import BATCHES, INGEST, SCRATCH
from tasks import batches, workspace
from tasks.batches import Batch, empty_tree, facts_of, stamp
from tasks.journal import one_at_a_time
from tasks.origin import push_ref, remote_tip
from tasks.workspace import contains, git, git_remote, head, identity

REF = "refs/heads/ingest"
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
    settings = settings_for(home, source, kind)
    files, remote = open_source(settings.ingest.source, home), git_remote(home) if push else ""
    pushed: list[str] = []
    with one_at_a_time(home, "ingest"):
        while True:
            shared = remote_tip(home, remote, REF)
            tip = _newest(home, shared)
            if tip:  # others', or ours of a process that died here
                git(home, "update-ref", REF, tip)
            with _workplace(home, tip) as tree:
                number = f"{len(ingests(home, tip)) + 1:06d}"
                if tip:
                    check_out(tree, INGEST)
                made = make_batch(
                    settings,
                    files,
                    State(tree / INGEST),
                    number,
                    tree / BATCHES / f"{settings.ingest.kind}-{number}",
                    partial(checks_of, settings, home, home / DOCS),
                    partial(_earlier, tree, tip, settings.ingest.kind),
                    again,
                )
                if made is not None:
                    say(in_a_line(made))
                    commit = _commit(tree, made)
                    pushed = [_push_data(tree, shared)] if push else ["nothing: --no-push"]
                    if remote and not push_ref(home, remote, REF, commit, shared):
                        say("another machine was faster; looking again")
                        continue
                    git(home, "update-ref", REF, commit)
                    pushed += [f"branch ingest to {remote}"] if remote else []
                if (tree / INGEST).exists():  # where people look for it; it is no part of their checkout
                    publish(tree / INGEST, home / INGEST)
                return Ingested(made, next_batch(home, remote, settings.ingest.kind) or "", tuple(pushed))


def settings_for(home: Path, source: str, kind: str) -> Settings:
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
    line = f"{made.batch or 'no batch'}: {', '.join(parts)}"
    return line + (f"; not enough to train on yet: {made.lacks}" if made.lacks else "")


def ingests(home: Path, tip: str) -> list[Made]:
    """Return what the ingests came to whose chain ends at `tip`, newest first."""
    rows = facts_of(home, [tip] if tip else [])
    made = [Made(**{field.name: row[field.name] for field in fields(Made)}) for row in rows]
    return [replace(row, holds=tuple(row.holds)) for row in made]


def next_batch(home: Path, remote: str, kind: str, taken: Sequence[Batch] | None = None) -> str | None:
    """Return the ingested batch that the next retraining takes, given those that are `taken` (default: as git knows).

    That is the newest one that has all rows which no retraining has learnt from; of batches whose window is too small
    for that, the oldest. "" where none is left that can be trained on, None where none of `kind` was ever made.
    """
    tip = _newest(home, remote_tip(home, remote, REF))
    made = [row for row in ingests(home, tip) if row.batch and row.kind == kind]
    if not made:
        return None
    if taken is None:
        tips = (remote_tip(home, remote, batches.REF), head(home, batches.REF))
        taken = batches.batches_of(home, [end for end in tips if end])
    used = {batch.data for batch in taken}
    learnt = {name for row in made if row.batch in used for name in row.holds}
    fresh = [row for row in made if row.batch not in learnt]
    fit = [row for row in fresh if not row.lacks]
    return next((row.batch for row in fit if fresh[-1].batch in row.holds), fit[-1].batch if fit else "")


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
    places = [Path(str(values.get(key) or "")) for key in ("sources.trajectories", "sources.tasks")]
    return next((place.name for place in places if place.parent == BATCHES), "")


def provide(home: Path, tree: Path, remote: str) -> None:
    """Check out in the worktree `tree` the ingested batches that its params.yaml names; others may have made them."""
    sources = load_settings(tree / "params.yaml").sources
    for place in map(Path, (sources.trajectories, sources.tasks)):
        if place.parent == BATCHES and not (tree / place).exists():
            inside = (tree / f"{place}.dvc").exists()
            check_out(tree, place, "" if inside else _newest(home, remote_tip(home, remote, REF)))


def check_out(tree: Path, path: Path, tip: str = "") -> None:
    """Put the data `path` into the worktree `tree`, as its .dvc file (that of the commit `tip`) says."""
    file = f"{path}.dvc"
    if tip:
        git(tree, "checkout", "-q", tip, "--", file)
    workspace.check_out(tree, file)


def _newest(home: Path, shared: str) -> str:
    """The end of the chain, here or on the remote. Where each has what the other lacks, it is the remote's.

    What only this machine has taken is read again then.
    """
    own = head(home, REF)
    return own if own and (not shared or contains(home, own, shared)) else shared


@contextlib.contextmanager
def _workplace(home: Path, tip: str) -> Iterator[Path]:
    """Yield a worktree at `tip` (at an empty commit, if there is none), for this ingest alone."""
    tree = home / SCRATCH / "ingest"
    workspace.close_worktree(home, tree)  # of an ingest that was killed
    message = ("-m", "Ingested batches, and what was seen")
    root = tip or git(home, *identity(home), "commit-tree", empty_tree(home), *message).stdout.strip()
    git(home, "worktree", "add", "-q", "--detach", str(tree), root)
    try:
        workspace.share_dvc_settings(home, tree)
        yield tree
    finally:
        workspace.close_worktree(home, tree)


def _earlier(tree: Path, tip: str, kind: str) -> list[Path]:
    """The files of the newest batch of `kind`, oldest first."""
    last = next((row for row in ingests(tree, tip) if row.batch and row.kind == kind), None)
    if last is None:
        return []
    check_out(tree, BATCHES / last.batch)
    files = [tree / BATCHES / last.batch / f"{name}.jsonl" for name in last.holds]
    return [path for path in files if path.exists()]


def _commit(tree: Path, made: Made) -> str:
    """Put what was made under DVC, and return the commit with its .dvc files; no branch has it yet."""
    paths = [str(INGEST), *([str(BATCHES / made.batch)] if made.batch else [])]
    workspace.dvc(tree, "add", "-q", *paths)
    git(tree, "add", "-f", "--", *(f"{path}.dvc" for path in paths))
    message = f"{in_a_line(made)}\n\n{json.dumps({**asdict(made), **stamp()})}"
    git(tree, *identity(tree), "commit", "-q", "--no-verify", "-m", message)
    return head(tree)


def _push_data(tree: Path, shared: str) -> str:
    """Push what was added since `shared`: by this ingest, and by earlier ones that have kept it here alone."""
    added = git(tree, "diff", "--name-only", shared or empty_tree(tree), "HEAD").stdout.split()
    return workspace.push_data(tree, *added)
