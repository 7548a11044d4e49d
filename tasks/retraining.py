"""A retraining from its batch to the champion's alias, as one recorded sequence that any death may interrupt.

    take a batch -> worktree -> stages -> commit -> push data -> push the branch -> register -> gate -> merge -> alias

What others see comes after what it rests on: nothing is registered before data and commit are where others can get
them, and the alias moves last. Every step can be taken again, and is: who comes after a death goes through the whole
sequence in the same worktree, where what is done takes no time (stages are skipped, the adapter is registered already,
...). The journal says what cannot be seen: which batch was taken, which MLflow run is open, what the gate has said.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings, load_settings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHAMPION, Registration, Registry
from sweetrl.tracking.runs import RETRAINING_TAG, RunLog
from sweetrl.tracking.store import check_active, connect, tracking_enabled, tracking_uri
from tasks.batches import Batch, is_taken, take_batch, taken_now
from tasks.fresh import fresh_test_first
from tasks.ingestion import any_batch, batch_named, batch_parameters, next_batch, provide
from tasks.journal import DONE, Journal, journals, new_journal, one_at_a_time, promoting
from tasks.outages import outage
from tasks.promotion import GateResult, champion
from tasks.training import Outcome, Steps, run_pipeline
from tasks.workspace import (
    Busy,
    NotMerged,
    carry_accepted,
    change_parameters,
    check_parameters,
    close_worktree,
    commit_records,
    git,
    git_remote,
    head,
    merge,
    only_run,
    open_worktree,
    take_in_main,
    worktree_folder,
)

CONTINUE = "`python -m flows.retrain --continue`"
WITHDRAW = "`python -m flows.retrain --withdraw`"


class NothingNew(UserError):
    """There is no batch to train on; nothing is wrong with that."""


@dataclass(frozen=True)
class Retraining:
    """What a retraining did: its branch, its pipeline run, what was pushed, and how the branch was taken over.

    `left` says what keeps a version that has won from becoming the champion; it is "" where nothing is left to do.
    """

    branch: str
    outcome: Outcome
    pushed: tuple[str, ...] = ()
    merged: str = ""
    left: str = ""


def retrain(
    home: Path,
    steps: Steps,
    changes: Mapping[str, Any] | None = None,
    name: str = "",
    merge_promoted: bool = True,
    push: bool = True,
) -> list[Retraining]:
    """Finish the retrainings that were left unfinished; where there are none, train on the next batch.

    `changes` sets more parameters, `name` names the branch, and without `push` nothing leaves this machine.
    """
    done = go_on(home, steps, changes)
    if all(one.left for one in done):  # what waits for a person does not hold up the next batch
        try:
            journal = begin(home, changes or {}, name, merge_promoted, push)
        except NothingNew as nothing:
            steps.say(str(nothing))
            return done
        with journal:
            done.append(carry_out(journal, steps))
    return done


def go_on(home: Path, steps: Steps, changes: Mapping[str, Any] | None = None) -> list[Retraining]:
    """Finish the retrainings of `home` that were left unfinished; other `changes` than theirs are a UserError."""
    done = []
    for journal in unfinished(home):
        asked = journal.fact("taking", "changes")
        if changes and asked != dict(changes) and not journal.last("waiting"):
            raise UserError(
                f"{_branch(journal)} is unfinished and has other parameters ({_pairs(asked)}): {CONTINUE} finishes it, "
                f"{WITHDRAW} leaves its batch out."
            )
        steps.say(f"going on with {_branch(journal)}, which was left unfinished")
        done.append(carry_out(journal, steps))
    return done


def unfinished(home: Path) -> Iterator[Journal]:
    """Yield the journals of `home` that a death or an error has left, each held while it is looked at.

    A retraining whose batch was never taken is none; and what finished ones have left behind is removed. One of a
    checkout that is gone, or was moved here, is ours now.
    """
    for journal in journals(home):
        theirs = journal.fact("taking", "home")
        if theirs is None or (theirs != str(home) and (Path(theirs).exists() or journal.last(DONE))):
            continue
        if theirs != str(home):
            _adopt(journal, home)
        if not journal.last(DONE) and not journal.last("taken"):
            taking = journal.last("taking") or {}
            try:
                ours = is_taken(home, taking["remote"], taking["commit"])
            except UserError:  # the remote does not answer: it is found out another time
                continue
            if ours:
                journal.note("taken")
            else:
                journal.note(DONE, how="not taken")
        if journal.last(DONE):
            if worktree_folder(home, _branch(journal)).exists():
                close_worktree(home, _branch(journal))
        else:
            yield journal


def _adopt(journal: Journal, home: Path) -> None:
    """Make an unfinished retraining one of the checkout `home`, with its worktree, where that was moved along."""
    facts = {key: value for key, value in (journal.last("taking") or {}).items() if key not in ("step", "time")}
    journal.note("taking", **{**facts, "home": str(home)})
    git(home, "worktree", "repair", str(worktree_folder(home, _branch(journal))), check=False)


def begin(home: Path, changes: Mapping[str, Any], name: str, merge_promoted: bool, push: bool) -> Journal:
    """Take the next batch and return the journal of its retraining."""
    settings = load_settings(home / "params.yaml")
    check_parameters(home, changes)
    remote = git_remote(home) if push else ""
    fresh = fresh_tasks(settings, home) if tracking_enabled() else {}
    tasks = int(changes.get("collect.tasks", settings.collect.tasks))
    with one_at_a_time(home, "batches"):
        journal = Journal(new_journal(home), new=True)
        order = {
            "home": str(home),
            "onto": git(home, "branch", "--show-current").stdout.strip(),
            "changes": dict(changes),
            "fresh": fresh,
            "merge": merge_promoted,
            "push": push,
            "remote": remote,
            "mark": uuid.uuid4().hex,  # names of branches are not unique on a server that several projects use
        }

        def choose(taken: Sequence[Batch]) -> Batch:
            if data := _ingested(home, remote, settings, changes, taken):
                return taken_now(settings.collect.first, 0, _new_branch(home, name, taken), data)
            first = changes.get("collect.first")
            first = next_first(settings, taken) if first is None else int(first)
            return taken_now(first, tasks, _new_branch(home, name, taken))

        def before(batch: Batch, commit: str) -> None:
            facts = {"branch": batch.branch, "first": batch.first, "tasks": batch.tasks, "commit": commit}
            facts |= {"data": batch.data} if batch.data else {}
            journal.note("taking", **order, **facts, process=os.getpid())

        try:
            take_batch(home, remote, choose, before)
            journal.note("taken")
        except BaseException:
            if not journal.rows:
                journal.path.unlink()
            journal.close()
            raise
    return journal


def fresh_tasks(settings: Settings, home: Path) -> dict[str, int]:
    """Return the parameters that give a retraining the test tasks of its day; none where those of params.yaml serve."""
    first = fresh_test_first(settings, home)
    return {} if first == settings.tasks.test_first else {"tasks.test_first": first}


def _ingested(home: Path, remote: str, settings: Settings, changes: Mapping[str, Any], taken: Sequence[Batch]) -> str:
    """Return the ingested batch to take, "" where batches are numbers of tasks; NothingNew where none is left.

    A batch that `changes` name is taken, also once more. Else what is read from files comes from the branch `ingest`,
    if anything of its kind was ever ingested, and `changes` name no other files.
    """
    if named := batch_named(changes):
        return named
    for kind, key, place in (
        ("dialogues", "collect.source", "sources.trajectories"),
        ("tasks", "tasks.source", "tasks.train_file"),
    ):
        section, _, name = key.partition(".")
        source = changes.get(key, getattr(getattr(settings, section), name))
        if source == "files" and place not in changes and any_batch(home, remote, kind):
            found = next_batch(home, remote, kind, taken)
            if not found:
                raise NothingNew(
                    f"{home}: no ingested batch of {kind} is left to train on; `sweetrl ingest` brings more."
                )
            return found
    return ""


def next_first(settings: Settings, taken: Sequence[Batch]) -> int:
    """Return the first task of the next batch: behind all that were taken, and behind this checkout's own."""
    own = settings.collect.first + settings.collect.tasks
    return max([own, *(batch.first + batch.tasks for batch in taken)])


def _new_branch(home: Path, name: str, taken: Sequence[Batch]) -> str:
    """A branch that is neither here nor another machine's; a `name` that is known already is a UserError.

    So is one that git would not take, or whose worktree's folder would be another's: before a batch is taken.
    """
    fits = re.fullmatch(r"[a-zA-Z0-9_]([\w.-]{0,98}\w)?", name, re.ASCII) and ".." not in name
    if name and (not fits or name.endswith(".lock")):
        raise UserError(
            f"{name!r}: a batch's name may have up to 100 letters, digits, `_`, `-` and `.` inside; give another."
        )
    stem, number = name or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), 1
    known = {batch.branch for batch in taken}
    while True:
        branch = f"retrain/{stem}" if number == 1 else f"retrain/{stem}-{number}"
        if branch not in known and not head(home, f"refs/heads/{branch}"):
            return branch
        if name:
            raise UserError(f"{home}: there is a retraining {branch} already; give another name.")
        number += 1


def carry_out(journal: Journal, steps: Steps) -> Retraining:
    """Go through the whole sequence from where `journal` says it is; an error leaves it for the next one to finish."""
    order = journal.last("taking") or {}
    home, branch = Path(order["home"]), _branch(journal)
    settings = load_settings(home / "params.yaml")
    pushed: list[str] = []

    def hand_over(root: Path) -> None:
        commit = commit_records(root, f"Retrain on the batch of {branch.partition('/')[2]}")
        journal.note("trained", commit=commit)
        carry_accepted(root, home)
        pushed[:] = steps.push(root, branch) if order["push"] else ["nothing: --no-push"]
        journal.note("pushed", what=pushed)

    def register(settings: Settings, root: Path, parent: str | None, home: Path) -> Registration:
        registration = steps.register(settings, root, parent, home)
        journal.note("registered", version=registration.version)
        return registration

    def gate(settings: Settings, root: Path, version: str) -> GateResult:
        result = steps.gate(settings, root, version)
        _note_verdict(journal, result)
        return result

    ours = replace(
        steps,
        register=register,
        gate=gate,
        promote=lambda settings, root, result: result,  # the alias comes last, behind the merge
        settled=lambda registration: False,
        before_register=hand_over,
        opened=lambda run: journal.note("run", id=run),
        mark=order.get("mark", ""),
    )
    try:
        with recording_at(settings, home):
            if tracking_enabled():
                check_active(connect(settings.tracking, home))
            tree = prepare(journal)
            outcome = run_pipeline(tree, ours, home, journal.fact("run", "id"))
            result, merged, left = crown(journal, ours, steps, tree, outcome.gate)
    except BaseException as error:
        told = outage(error)
        with contextlib.suppress(OSError, UserError):
            journal.note("failed", why=(str(told or error) or type(error).__name__)[:500])
        steps.say(f"{branch} is unfinished: the next retraining goes on with it; {WITHDRAW} leaves its batch out")
        if told is not None:
            raise told from error
        raise
    done = Retraining(branch, replace(outcome, gate=result), tuple(pushed), merged, left)
    if not left:
        journal.note(DONE, how="promoted" if result is not None and result.promoted else "not promoted")
        close_worktree(home, branch)
    return done


def prepare(journal: Journal) -> Path:
    """Return the retraining's worktree: the one that was left, if it is whole, with its parameters set."""
    order = journal.last("taking") or {}
    home, branch = Path(order["home"]), _branch(journal)
    trained = journal.fact("trained", "commit")
    if trained and not head(home, f"refs/heads/{branch}"):  # removed by hand
        git(home, "branch", branch, trained)
    tree = open_worktree(home, branch, fresh=not journal.last("worktree"))
    if not trained:
        newest = head(home, order["onto"] or "HEAD")
        if not newest:
            raise UserError(
                f"{home}: the branch {order['onto']}, on which {branch} began, is gone; bring it back, or {WITHDRAW} "
                "leaves the batch out."
            )
        if head(tree) != newest:  # what is not trained yet is trained on the code of today
            git(tree, "reset", "-q", "--hard", newest)
        git(tree, "checkout", "-q", "HEAD", "--", "params.yaml")  # whole again, where it was being written
        batch = batch_parameters(order.get("data", ""))
        ours = {"collect.first": order["first"], **batch, **order.get("fresh", {})}
        change_parameters(tree, {**ours, **order["changes"]})
    provide(home, tree, order["remote"])
    journal.note("worktree", folder=str(tree))
    return tree


def crown(
    journal: Journal, ours: Steps, steps: Steps, tree: Path, result: GateResult | None
) -> tuple[GateResult | None, str, str]:
    """Merge the branch of a version that has won, then make it champion; return the result, the merge, what is left."""
    if result is None:
        return None, "", ""
    order, settings = journal.last("taking") or {}, load_settings(tree / "params.yaml")
    home, branch, merged = Path(order["home"]), _branch(journal), ""
    with promoting(home, steps.say):
        if result.won and champion(settings, home) != result.before:  # another one has won meanwhile
            result = ours.gate(settings, tree, result.version)
        verdict = journal.last("decided") or {}
        crowned = result.champion == result.version == verdict.get("version") and bool(verdict["promote"])
        if not result.won and not crowned:
            if journal.last("merged"):  # the alias could not be moved then, and now it is somebody else's
                merged = f"merged before version {result.champion} became champion; `git revert` takes it out of {home}"
            return result, merged, ""
        if order["merge"]:
            try:
                if take_in_main(home, tree, order["onto"]) and order["push"]:
                    steps.push(tree, branch)
                with only_run(home):
                    merged = merge(home, branch, order["onto"])
            except (NotMerged, Busy) as error:
                journal.note("waiting", why=str(error))
                why = str(error).rstrip(".")
                left = f"version {result.version} has won, and its branch is not merged: {why}; then {CONTINUE}"
                return result, "", left
            journal.note("merged", commit=head(home))
            if git_remote(home):
                merged += "; `git push` shows it to others"
        else:
            merged = f"not merged, as asked: `git merge {branch} && dvc checkout`"
        if crowned:
            result = replace(result, promoted=True, before=verdict["before"], reason=verdict["reason"])
        else:
            result = steps.promote(settings, tree, result)
        journal.note("promoted", version=result.version)
    return result, merged, ""


def _note_verdict(journal: Journal, result: GateResult) -> None:
    """Write down what the gate has said, but not that a version of ours is the champion already."""
    if result.decision is not None:
        facts = {"version": result.version, "promote": result.won, "before": result.before, "reason": result.reason}
        journal.note("decided", **facts)


def withdraw(home: Path) -> list[str]:
    """Give up the retrainings that were left unfinished; return a sentence about each. Their batches stay taken."""
    said = []
    for journal in unfinished(home):
        order, branch = journal.last("taking") or {}, _branch(journal)
        settings = load_settings(home / "params.yaml")
        version = journal.fact("registered", "version")
        with recording_at(settings, home), promoting(home, print):
            if version is not None:
                registry = Registry(settings.tracking, home)
                if journal.fact("decided", "promote") and CHAMPION in registry.aliases_of(version):
                    raise UserError(
                        f"{branch}: its version {version} is the champion already; {CONTINUE} finishes it, and "
                        "`python -m flows.rollback` goes back."
                    )
                registry.forget_challenger(version)
            mark, run = order.get("mark", ""), journal.fact("run", "id")
            log = RunLog(settings.tracking, "train", {RETRAINING_TAG: mark}, root=home, run_id=run)
            if run or (mark and log.take_over(RETRAINING_TAG)):
                log.open()
                log.finish("KILLED")
            close_worktree(home, branch)
            kept = head(home, f"refs/heads/{branch}") if journal.last("trained") else ""
            if not kept:
                git(home, "branch", "-q", "-D", branch, check=False)
            journal.note(DONE, how="withdrawn")
        rest = " (the branch keeps what was trained)" if kept else ""
        batch = {key: value for key, value in batch_parameters(order.get("data", "")).items() if "sources" in key}
        again = f"`python -m flows.retrain {_pairs(batch or {'collect.first': order['first']})}`"
        said.append(f"{branch} is withdrawn{rest}; {again} takes its batch again")
    return said


@contextlib.contextmanager
def recording_at(settings: Settings, home: Path) -> Iterator[None]:
    """Let stages in a worktree, and this process, record in the store of the main checkout."""
    if not tracking_enabled():
        yield
        return
    before = os.environ.get("MLFLOW_TRACKING_URI")
    connect(settings.tracking, home)  # the experiment's artifacts belong to the main checkout
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(settings.tracking, home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MLFLOW_TRACKING_URI"]
        else:
            os.environ["MLFLOW_TRACKING_URI"] = before


def _branch(journal: Journal) -> str:
    return str(journal.fact("taking", "branch"))


def _pairs(changes: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items()) or "none"
