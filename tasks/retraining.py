"""A retraining from its batch to the champion's alias, as one recorded sequence that any death may interrupt.

    pull main -> take a batch -> worktree -> stages -> commit -> push data -> push the branch -> register -> gate
      -> push main -> merge -> alias

What others see comes after what it rests on: nothing is registered before data and commit are where others can get
them, main is pushed before it moves here (a refusal leaves nothing to undo), and the alias moves last. Every step can
be taken again, and is: who comes after a death goes through the whole sequence in the same worktree, where what is done
takes no time (stages are skipped, the adapter is registered already, ...), and in the same MLflow run, which has the
retraining's mark. The journal says what cannot be seen: which batch was taken, what the gate has decided.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings, load_settings, parse_settings
from sweetrl.config.yaml_files import parse_yaml
from sweetrl.errors import UserError
from sweetrl.io import write_text
from sweetrl.stages.parameters import own_sources
from sweetrl.tracking.registry import CHAMPION, Registry
from sweetrl.tracking.runs import RETRAINING_TAG, RunLog
from sweetrl.tracking.store import check_active, connect, tracking_enabled, tracking_uri
from tasks.batches import Batch, is_taken, stamp, take_batch
from tasks.ingestion import batch_named, batch_parameters, next_batch, provide
from tasks.journal import DONE, Journal, journals, new_journal, one_at_a_time, promoting
from tasks.origin import pull, share
from tasks.outages import outage, raise_outage
from tasks.promotion import GateResult, champion, fresh_test_first
from tasks.training import Outcome, Steps, run_pipeline
from tasks.workspace import (
    RECORDS,
    Busy,
    NotMerged,
    carry_accepted,
    change_parameters,
    check_committed,
    close_worktree,
    commit_records,
    contains,
    git,
    git_remote,
    head,
    merge,
    only_run,
    open_worktree,
    put_back,
    same_lock,
    take_in_main,
    with_parameters,
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
    merge_promoted: bool = True,
    push: bool = True,
    past_waiting: bool = False,
) -> list[Retraining]:
    """Finish the retrainings that were left unfinished; where there are none, train on the next batch.

    `changes` sets more parameters; without `push` nothing leaves this machine. What waits for a person holds up the
    next batch, unless `past_waiting` says that it does not.
    """
    done = go_on(home, steps, changes)
    if not done or (past_waiting and all(retraining.left for retraining in done)):
        try:
            journal = begin(home, changes or {}, merge_promoted, push)
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
        ordered = journal.order["changes"]
        if changes and ordered != dict(changes) and not journal.last("waiting"):
            raise UserError(f"{journal.branch} is unfinished ({_pairs(ordered)}): {CONTINUE}, or {WITHDRAW}.")
        steps.say(f"going on with {journal.branch}, which was left unfinished")
        if not journal.last("trained"):
            with promoting(home, steps.say):
                pull(home, journal.order["remote"], journal.order["onto"])
        done.append(carry_out(journal, steps))
    return done


def unfinished(home: Path) -> Iterator[Journal]:
    """Yield each journal of `home` that a death or an error has left, held; clean up behind finished ones."""
    for journal in journals(home):
        order = journal.order
        if order.get("home") != str(home):  # that of another worktree of this repository
            continue
        if not journal.last(DONE) and not journal.last("taken"):
            try:
                taken = is_taken(home, order["remote"], order["commit"])
            except UserError:  # the remote does not answer: it is found out another time
                continue
            journal.note("taken" if taken else DONE)
        if not journal.last(DONE):
            yield journal
        elif worktree_folder(home, journal.branch).exists():
            close_worktree(home, worktree_folder(home, journal.branch))


def begin(home: Path, changes: Mapping[str, Any], merge_promoted: bool, push: bool) -> Journal:
    """Take the next batch and return the journal of its retraining."""
    remote, onto = git_remote(home) if push else "", git(home, "branch", "--show-current").stdout.strip()
    with promoting(home):
        pull(home, remote, onto)
    settings = load_settings(home / "params.yaml")
    collect = settings.collect
    # What cannot be set, or not be trained with, takes no batch.
    check_committed(home, own_sources(_settings_with(home, changes), home).values())
    first_test = fresh_test_first(settings, home) if tracking_enabled() else settings.tasks.test_first
    fresh = {} if first_test == settings.tasks.test_first else {"tasks.test_first": first_test}
    with one_at_a_time(home, "batches"):
        journal = new_journal(home)
        order = {
            "home": str(home),
            "onto": onto,
            "changes": dict(changes),
            "merge": merge_promoted,
            "push": push,
            "remote": remote,
            "mark": uuid.uuid4().hex,  # names of branches are not unique on a server that several projects use
        }

        def choose(taken: Sequence[Batch]) -> Batch:
            branch = f"retrain/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:4]}"
            if data := _ingested(home, remote, settings, changes, taken):
                return Batch(collect.first, 0, branch, data=data, **stamp())
            # Behind all that were taken, and behind this checkout's own.
            ends = [collect.first + collect.tasks, *(batch.first + batch.tasks for batch in taken)]
            first = int(changes.get("collect.first", max(ends)))
            return Batch(first, int(changes.get("collect.tasks", collect.tasks)), branch, **stamp())

        def before(batch: Batch, commit: str) -> None:
            of_batch = batch_parameters(batch.data) or {"collect.first": batch.first}
            facts = {"branch": batch.branch, "batch": of_batch, "commit": commit}
            journal.note("taking", **order, **facts, parameters={**of_batch, **fresh, **changes})

        try:
            take_batch(home, remote, choose, before)
            journal.note("taken")
        except BaseException:
            if not journal.rows:
                journal.path.unlink()
            journal.close()
            raise
    return journal


def _ingested(home: Path, remote: str, settings: Settings, changes: Mapping[str, Any], taken: Sequence[Batch]) -> str:
    """Return the ingested batch to take (named in `changes`, or the next), "" where batches are numbers of tasks."""
    if named := batch_named(changes):
        return named
    for kind, source, key, place in (
        ("dialogues", settings.collect.source, "collect.source", "sources.trajectories"),
        ("tasks", settings.tasks.source, "tasks.source", "tasks.train_file"),
    ):
        if changes.get(key, source) == "files" and place not in changes:
            batch = next_batch(home, remote, kind, taken)
            if batch == "":
                raise NothingNew(f"{home}: no ingested batch of {kind} is left; `sweetrl ingest` brings more.")
            if batch is not None:
                return batch
    return ""


def carry_out(journal: Journal, steps: Steps) -> Retraining:
    """Go through the sequence from where `journal` says it is; an error leaves it for the next call to finish."""
    order, branch = journal.order, journal.branch
    home = Path(order["home"])
    settings = load_settings(home / "params.yaml")
    pushed, crowned = list[str](), ["", ""]

    def hand_over(root: Path) -> None:
        commit = commit_records(root, f"Retrain on the batch of {branch.partition('/')[2]}")
        journal.note("trained", commit=commit)
        carry_accepted(root, home)
        pushed[:] = steps.push(root, branch) if order["push"] else ["nothing: --no-push"]
        journal.note("pushed", what=pushed)

    def follow(result: GateResult) -> GateResult:
        result, crowned[:] = crown(journal, steps, tree, result)
        return result

    steps = replace(steps, note=journal.note, mark=order["mark"])
    try:
        with recording_at(settings, home):
            if tracking_enabled():
                check_active(connect(settings.tracking, home))
            tree = prepare(journal)
            outcome = run_pipeline(tree, steps, home, hand_over=hand_over, crown=follow)
    except BaseException as error:
        sentence = outage(error)
        with contextlib.suppress(OSError, UserError):
            journal.note("failed", why=(str(sentence or error) or type(error).__name__)[:500])
        steps.say(f"{branch} is unfinished: the next retraining goes on with it; {WITHDRAW} leaves its batch out")
        if sentence is not None:
            raise sentence from error
        raise
    done = Retraining(branch, outcome, tuple(pushed), *crowned)
    steps.announce(outcome)
    steps.say(f"branch {branch}: {done.left or done.merged or 'nothing is merged'}")
    if not done.left:
        journal.note(DONE, harm=outcome.harm)
        close_worktree(home, tree)
    return done


def prepare(journal: Journal) -> Path:
    """Return the retraining's worktree: the one that was left, if it is complete, with its parameters set."""
    order = journal.order
    home = Path(order["home"])
    tree = open_worktree(home, journal.branch, fresh=not journal.last("worktree"))
    if not journal.last("trained"):
        newest = head(home, order["onto"]) if order["onto"] else head(home)
        if newest and head(tree) != newest:  # what is not trained yet is trained on the code of today
            git(tree, "reset", "-q", "--hard", newest)
        change_parameters(tree, order["parameters"])
    provide(home, tree, order["remote"])
    journal.note("worktree", folder=str(tree))
    return tree


def crown(journal: Journal, steps: Steps, tree: Path, result: GateResult) -> tuple[GateResult, list[str]]:
    """Merge the branch of a version that has won, then make it champion; return the result, [the merge, what is left].

    Where it was merged, and another one is champion by now, the merge is taken back.
    """
    order, branch, settings = journal.order, journal.branch, load_settings(tree / "params.yaml")
    home = Path(order["home"])
    with promoting(home, steps.say):
        if result.won and champion(settings, home) != result.before:  # another one has won meanwhile
            result = steps.judge(settings, tree, result.version)
        verdict = journal.last("decided")
        crowned = result.champion == result.version == verdict.get("version") and bool(verdict["promote"])
        if not result.won and not crowned:
            return result, [undo_merge(journal, home), ""]
        merged = f"not merged, as asked: a pull request of it, or `git merge {branch} && dvc checkout dvc.yaml`"
        if order["merge"]:
            try:
                merged = merge_branch(journal, steps, tree)
            except (NotMerged, Busy) as error:
                journal.note("waiting", why=str(error))
                state = "is merged and not promoted" if contains(home, "HEAD", branch) else "has won and is not merged"
                return result, ["", f"version {result.version} {state}: {str(error).rstrip('.')}; then {CONTINUE}"]
            journal.note("merged", commit=head(home))
        if crowned:  # the alias was moved before a death
            result = replace(result, promoted=True, before=verdict["before"], reason=verdict["reason"])
        else:
            try:
                result = steps.promote(settings, tree, result)
            except UserError as error:
                if not order["merge"]:
                    raise
                state = f"version {result.version} is merged and not promoted: {str(error).rstrip('.')}"
                raise UserError(f"{state}; then {CONTINUE}, or {WITHDRAW}, which takes the merge back.") from error
        journal.note("promoted", version=result.version)
    return result, [merged, ""]


def merge_branch(journal: Journal, steps: Steps, tree: Path) -> str:
    """Merge the branch in the remote and then here; return a sentence, or raise NotMerged or Busy, which say why not.

    The remote takes it only from where it was seen: who comes second merges what the first one has brought.
    """
    order, branch = journal.order, journal.branch
    home, remote, onto = Path(order["home"]), order["remote"], order["onto"]

    def publish(commit: str) -> bool:
        if commit != head(home):
            journal.note("merging", before=head(home))
        try:
            return share(home, remote, onto, commit, tip)
        except UserError as error:
            why = str(error).rstrip(".")
            raise NotMerged(f"{why}; mend that, or merge {branch} into {onto} of {remote} (a pull request)") from error

    done = False
    while not done:
        tip = pull(home, remote, onto)
        if take_in_main(home, tree, onto) and order["push"]:
            steps.push(tree, branch)
        with only_run(home):  # with the same lock it was merged by hand, perhaps as one commit
            done = merge(home, "HEAD" if same_lock(home, "HEAD", branch) else branch, onto, publish)
    shown = f"; {onto} is pushed to {remote}" if tip else "; `git push` shows it to others" if git_remote(home) else ""
    return f"merged {branch} and checked its data out{shown}"


def undo_merge(journal: Journal, home: Path) -> str:
    """Give `home` the records back that a merge has replaced, where they are still the merged ones; return a sentence.

    "" where there is nothing to take back. The data are checked out, and the way back is a commit, which is pushed
    where the merge was.
    """
    before, branch, order = str(journal.last("merging").get("before", "")), journal.branch, journal.order
    if not before:
        return ""
    tip = pull(home, order["remote"], order["onto"])

    def records(folder: Path) -> Path:
        for name in git(home, "ls-tree", "--name-only", before, "--", *RECORDS).stdout.split():
            write_text(folder / name, git(home, "show", f"{before}:{name}").stdout)
        return folder

    if not git(home, "diff", "--quiet", branch, "HEAD", "--", *RECORDS, check=False).returncode:
        with only_run(home):
            done, _ = put_back(home, records)
            commit_records(home, f"Take back the merge of {branch}")
        journal.note("undone", how=f"its merge is taken back: {done}, and committed")
    if journal.last("undone") and not share(home, order["remote"], order["onto"], head(home), tip):
        raise UserError(f"{home}: others have pushed {order['onto']} in this moment; run the same command again.")
    return str(journal.last("undone").get("how", ""))


def withdraw(home: Path) -> list[str]:
    """Give up the retrainings that were left unfinished; return a sentence about each. Their batches stay taken."""
    sentences = []
    for journal in unfinished(home):
        order, branch = journal.order, journal.branch
        # Its run and its version lie where it has put them.
        tracked = {key: value for key, value in order["parameters"].items() if key.startswith("tracking.")}
        settings = _settings_with(home, tracked)
        version = journal.last("registered").get("version")
        with recording_at(load_settings(home / "params.yaml"), home), promoting(home, print):
            if version is not None:
                registry = Registry(settings.tracking, home)
                if journal.last("decided").get("promote") and CHAMPION in registry.aliases_of(version):
                    raise UserError(f"{branch}: version {version} is the champion already; {CONTINUE} finishes it.")
                registry.withdraw(version)
            log = RunLog(settings.tracking, "train", {RETRAINING_TAG: order["mark"]}, root=home)
            if log.take_over():
                log.finish("KILLED")
            raise_outage(log.failure)
            undone = undo_merge(journal, home)
            close_worktree(home, worktree_folder(home, branch))
            if not journal.last("trained"):
                git(home, "branch", "-q", "-D", branch, check=False)
            journal.note(DONE, how="withdrawn")
        rest = " (the branch keeps what was trained)" if journal.last("trained") else ""
        again = {key: value for key, value in order["batch"].items() if "sources" in key} or order["batch"]
        command = f"`python -m flows.retrain {_pairs(again)}`"
        sentence = "; ".join(filter(None, [f"{branch} is withdrawn{rest}", undone, f"{command} takes its batch again"]))
        sentences.append(sentence)
    return sentences


def _settings_with(home: Path, changes: Mapping[str, Any]) -> Settings:
    return parse_settings(parse_yaml(with_parameters(home, changes), "params.yaml") or {}, "params.yaml")


@contextlib.contextmanager
def recording_at(settings: Settings, home: Path) -> Iterator[None]:
    """Let stages in a worktree, and this process, record in the store of the main checkout."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    if tracking_enabled():
        connect(settings.tracking, home)  # the experiment's artifacts belong to the main checkout
        os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(settings.tracking, home)
    try:
        yield
    finally:
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before


def _pairs(changes: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items()) or "none"
