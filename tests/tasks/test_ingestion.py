"""Ingests in real git repositories: no death loses or doubles a row; retrainings take each batch once."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.ingest import checks
from sweetrl.ingest.batches import Made, digest_of
from sweetrl.ingest.sources import Folder
from tasks import batches, ingestion, retraining, workspace
from tasks.batches import REF as TAKEN
from tasks.batches import Batch, batches_of
from tasks.ingestion import REF, Ingested, ingest, ingests, next_batch
from tasks.pipeline import open_repo
from tests.ingest.made import chat, check_plainly, write
from tests.tasks.fake_project import Project, git, in_child, light, quiet, start_checkout

ROOT = Path(__file__).resolve().parents[2]
PARAMS = """seed: 7
method: rft
collect: {tasks: 4, first: 0, source: files}
sources: {trajectories: notes.txt}
tracking: {uri: 'sqlite:///mlflow.db'}
# What git merges line by line needs lines between.
evaluate: {tasks: 8}
policy: {epochs: 1}
ingest: {source: in}
"""
IGNORED = "/.scratch/\n/in/\n/reports/\n/data/?*\n!/data/batches/\n/data/batches/?*\n!/data/batches/*.dvc\n"


class Store:
    """As much of DVC as an ingest needs: a cache and a remote by the hash of a folder's files."""

    def __init__(self, root: Path) -> None:
        self.cache, self.remote = root / "cache", root / "remote"

    def __call__(self, tree: Path, *words: str) -> str:
        command, paths = words[0], [Path(word.removesuffix(".dvc")) for word in words[1:] if not word.startswith("-")]
        for path in paths:
            if command == "add":
                files = sorted((tree / path).rglob("*"))
                name = digest_of(b"".join(file.read_bytes() for file in files if file.is_file()))
                shutil.copytree(tree / path, self.cache / name, dirs_exist_ok=True)
                (tree / f"{path}.dvc").write_text(name)
            elif command == "push":
                name = (tree / f"{path}.dvc").read_text()
                shutil.copytree(self.cache / name, self.remote / name, dirs_exist_ok=True)
            elif command in ("checkout", "fetch") and (tree / f"{path}.dvc").exists():
                name = (tree / f"{path}.dvc").read_text()
                store, place = (self.cache, tree / path) if command == "checkout" else (self.remote, self.cache / name)
                if not (store / name).exists():
                    raise UserError(f"{name} is not there")
                shutil.copytree(store / name, place, dirs_exist_ok=True)
        return "{}" if command == "status" else ""


def rows_of(project: Project, batch: str = "") -> list[Any]:
    """The rows of the batch that the next retraining takes, repeated rows included."""
    batch = batch or next_batch(project.home, "origin", "dialogues")
    name = git(project.origin, "show", f"ingest:data/batches/{batch}.dvc")
    files = sorted((project.root / "remote" / name).glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def take(project: Project, **options: Any) -> Ingested:
    return ingest(project.home, say=quiet, **options)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A checkout with an origin and three new dialogues, without DVC's and Great Expectations' seconds."""
    made = Project.make(tmp_path)
    light(monkeypatch, made)
    (made.home / "params.yaml").write_text(PARAMS)
    (made.home / ".gitignore").write_text(IGNORED)
    (made.home / "notes.txt").write_text("any file\n")
    git(made.home, "add", ".")
    git(made.home, "commit", "-qm", "Dialogues from outside")
    git(made.home, "push", "-q", "origin", "main")
    write(made.home / "in/a.jsonl", chat(1), chat(2))
    write(made.home / "in/b.jsonl", chat(3), "bad")
    monkeypatch.setattr(workspace, "dvc", Store(tmp_path))
    monkeypatch.setattr(workspace, "remote_name", lambda root: "store")
    monkeypatch.setattr(checks, "run_tables", check_plainly)
    return made


def clone(project: Project, name: str) -> Project:
    other = project.clone(name)
    for path in sorted((project.home / "in").iterdir()):
        write(other.home / "in" / path.name, path.read_text().rstrip())
    return other


def test_an_ingest_is_a_commit_of_its_own_branch_and_touches_nothing_else(project: Project) -> None:
    head = git(project.home, "rev-parse", "HEAD")
    done = take(project)
    assert done.made is not None and (done.made.rows, done.made.bad) == (3, 1)
    assert (done.waiting, done.pushed) == ("dialogues-000001", ("data to store", "branch ingest to origin"))
    assert git(project.home, "status", "--porcelain") == "" and git(project.home, "rev-parse", "HEAD") == head
    listed = git(project.origin, "ls-tree", "-r", "--name-only", "ingest").split()
    assert listed == ["data/batches/dialogues-000001.dvc", "data/ingest.dvc"]
    assert rows_of(project) == [chat(1), chat(2), chat(3)]
    (aside,) = (project.home / "data/ingest/quarantine").iterdir()
    assert json.loads(aside.read_text())["file"] == "b.jsonl"
    assert not (project.home / ".scratch/ingest").exists()
    assert take(project).made is None, "nothing is new"
    assert len(ingests(project.home, REF)) == 1


def test_another_machine_goes_on_from_the_origin(project: Project) -> None:
    take(project)
    other = clone(project, "other")
    write(other.home / "in/c.jsonl", chat(3), chat(4))
    shutil.rmtree(project.root / "cache")
    done = take(other)
    assert done.made is not None and (done.made.number, done.made.rows, done.made.repeated) == ("000002", 1, 1)
    assert done.made.files == 1, "what the other machine has seen is not read again"
    assert rows_of(other) == [chat(1), chat(2), chat(3), chat(4)]
    write(project.home / "in/d.jsonl", chat(5))
    assert len(rows_of(project)) == 4, "the origin knows more than we do"
    take(project)
    assert [row["reward"] for row in rows_of(project)] == [1.0] * 5


class Dying:
    """Ends the process right after the `number`th step that reaches the disk or a server."""

    def __init__(self, number: int) -> None:
        self.number = number

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = step(*arguments, **options)
            self.number -= 1
            if self.number == 0:
                os._exit(9)
            return result

        return wrapped


def test_whoever_dies_when_nothing_is_lost_or_doubled(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 100):
        shutil.rmtree(project.root / "try", ignore_errors=True)
        copy = Project(project.root / "try")
        copy.root.mkdir()
        for name in ("home", "origin.git"):
            shutil.copytree(project.root / name, copy.root / name)
        git(copy.home, "remote", "set-url", "origin", str(copy.origin))
        monkeypatch.setattr(workspace, "dvc", Store(copy.root))

        def die(number: int = number, copy: Project = copy) -> None:
            dying = Dying(number)
            for module in (ingestion, batches):
                module.git = dying.around(module.git)  # type: ignore[attr-defined]
            workspace.dvc = dying.around(workspace.dvc)  # type: ignore[assignment]
            ingestion.publish = dying.around(ingestion.publish)  # type: ignore[attr-defined]
            take(copy)

        code = in_child(die)
        take(copy)
        assert Counter(map(json.dumps, rows_of(copy))) == Counter(map(json.dumps, [chat(1), chat(2), chat(3)]))
        assert len(ingests(copy.home, REF)) == 1 and git(copy.home, "status", "--porcelain") == ""
        assert next_batch(copy.home, "origin", "dialogues") == "dialogues-000001"
        if code == 0:
            break
        assert code == 9
    assert number > 10, "every step was a place to die at"


def test_two_machines_at_once_take_every_row_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is faster while this one reads: it looks again, and nothing is new."""
    other = clone(project, "other")
    push_ref, faster = ingestion.push_ref, list[Ingested]()

    def late(*arguments: Any) -> bool:
        if not faster:
            faster.append(Ingested(None))
            faster.append(take(other))
        return push_ref(*arguments)

    monkeypatch.setattr(ingestion, "push_ref", late)
    done = take(project)
    assert faster[1].made is not None and done.made is None and done.waiting == "dialogues-000001"
    assert rows_of(project) == [chat(1), chat(2), chat(3)]
    assert len(ingests(project.home, git(project.home, "ls-remote", "origin", REF).split()[0])) == 1


def test_two_processes_at_once_take_turns(project: Project) -> None:
    fork = multiprocessing.get_context("fork")
    working = [fork.Process(target=take, args=(project,)) for _ in range(3)]
    for process in working:
        process.start()
    for process in working:
        process.join()
        assert process.exitcode == 0
    assert len(ingests(project.home, REF)) == 1 and len(rows_of(project)) == 3


def test_a_source_or_store_that_refuses_changes_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, dvc = Folder.fetch, workspace.dvc

    def refuse(self: Folder, entry: Any, target: Path, limit: int) -> None:
        if entry.name == "b.jsonl":
            raise UserError("the store refuses 'b.jsonl'.")
        fetch(self, entry, target, limit)

    def full(tree: Path, *words: str) -> str:
        if words[0] == "push":
            raise UserError("`dvc push` failed.")
        return dvc(tree, *words)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "fetch", refuse)
        with pytest.raises(UserError, match="refuses"):
            take(project)
    with monkeypatch.context() as patch:
        patch.setattr(workspace, "dvc", full)
        with pytest.raises(UserError, match="`dvc push` failed"):
            take(project)
    git(project.home, "remote", "set-url", "origin", str(project.root / "gone.git"))
    with pytest.raises(UserError, match=r"`git ls-remote` failed: fatal: "):
        take(project)
    git(project.home, "remote", "set-url", "origin", str(project.origin))
    assert workspace.head(project.home, REF) == "" and not (project.home / "data/ingest").exists()
    assert take(project).made is not None and len(rows_of(project)) == 3


def test_what_was_kept_here_goes_along_with_the_next_push(project: Project) -> None:
    done = take(project, push=False)
    assert done.pushed == ("nothing: --no-push",) and not (project.root / "remote").exists()
    write(project.home / "in/c.jsonl", chat(4))
    take(project)
    assert rows_of(project, "dialogues-000001") == [chat(1), chat(2), chat(3)]
    assert git(project.origin, "rev-parse", "ingest") == git(project.home, "rev-parse", "ingest")


def test_where_branches_have_parted_the_remotes_is_gone_on_with(project: Project) -> None:
    take(project, push=False)
    other = clone(project, "other")
    (other.home / "in/b.jsonl").unlink()
    take(other)
    assert take(project).made is not None
    assert rows_of(project) == [chat(1), chat(2), chat(3)], "what only this machine had taken is read again"


def made_of(number: int, holds: range, lacks: str = "") -> Made:
    names = tuple(f"dialogues-{batch:06d}" for batch in holds)
    return Made(f"{number:06d}", "s", "dialogues", f"dialogues-{number:06d}", holds=names, lacks=lacks)


@pytest.mark.parametrize(
    ("made", "taken", "expected"),
    [
        ([], [], None),
        ([made_of(1, range(1, 2))], [], "dialogues-000001"),
        ([made_of(1, range(1, 2))], ["dialogues-000001"], ""),
        ([made_of(1, range(1, 2)), made_of(2, range(1, 3))], [], "dialogues-000002"),
        ([made_of(1, range(1, 2)), made_of(2, range(1, 3))], ["dialogues-000002"], ""),
        ([made_of(1, range(1, 2)), made_of(2, range(2, 3)), made_of(3, range(3, 4))], [], "dialogues-000001"),
        ([made_of(1, range(1, 2)), made_of(2, range(1, 3)), made_of(3, range(2, 4))], [], "dialogues-000002"),
        ([made_of(1, range(1, 2), "few"), made_of(2, range(1, 3))], [], "dialogues-000002"),
        ([made_of(1, range(1, 2), "few")], [], ""),
        ([made_of(1, range(1, 2)), made_of(2, range(2, 3), "few")], ["dialogues-000001"], ""),
    ],
)
def test_the_next_batch_has_all_rows_that_nobody_learnt_from(
    made: list[Made], taken: list[str], expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ingestion, "ingests", lambda home, tip: made[::-1])
    monkeypatch.setattr(ingestion, "_newest", lambda *arguments: "tip")
    batch = next_batch(tmp_path, "", "dialogues", [Batch(0, 0, "retrain/x", data=data) for data in taken])
    assert batch == expected


def test_a_retraining_takes_each_batch_once_and_its_data_along(project: Project) -> None:
    take(project)
    (done,) = project.retrain()
    assert [batch.data for batch in batches_of(project.origin, [TAKEN])] == ["dialogues-000001"]
    assert project.champion() == "2", done
    parameters = (project.home / "params.yaml").read_text()
    assert "sources: {trajectories: data/batches/dialogues-000001}" in parameters
    assert "data/batches/dialogues-000001.dvc" in git(project.home, "ls-files").split()
    assert git(project.home, "status", "--porcelain") == ""
    lines = list[str]()
    assert retraining.retrain(project.home, replace(project.steps(), say=lines.append)) == []
    assert lines[0].endswith("no ingested batch of dialogues is left; `sweetrl ingest` brings more.")
    write(project.home / "in/c.jsonl", chat(4))
    assert take(project).waiting == "dialogues-000002"
    project.retrain()
    assert batches_of(project.origin, [TAKEN])[0].data == "dialogues-000002"
    assert "data/batches/dialogues-000002" in (project.home / "params.yaml").read_text()
    assert project.champion() == "3"


def test_a_retraining_that_died_goes_on_with_its_batch(project: Project) -> None:
    take(project)
    project.failing = {"stage"}
    with pytest.raises(UserError, match="stage does not answer"):
        project.retrain()
    write(project.home / "in/c.jsonl", chat(4))
    take(project)
    project.failing = set()
    project.retrain()
    assert [batch.data for batch in batches_of(project.origin, [TAKEN])] == ["dialogues-000001"]
    project.failing = {"stage"}
    with pytest.raises(UserError):
        project.retrain()
    (line,) = retraining.withdraw(project.home)
    assert "`python -m flows.retrain sources.trajectories=data/batches/dialogues-000002` takes its batch again" in line
    project.failing = set()
    (done,) = project.retrain(changes={"sources.trajectories": "data/batches/dialogues-000002"})
    assert "dialogues-000002" in git(project.home, "show", f"{done.branch}:params.yaml")


def test_batches_that_are_numbers_of_tasks_go_on_as_before(project: Project) -> None:
    take(project)
    project.retrain(changes={"collect.source": "sampled"})
    (batch,) = batches_of(project.origin, [TAKEN])
    assert (batch.first, batch.tasks, batch.data) == (4, 4, "")
    project.retrain(changes={"sources.trajectories": "notes.txt"})
    assert batches_of(project.origin, [TAKEN])[0].data == ""


def test_dvc_looks_where_the_batches_are() -> None:
    """What DVC takes for ignored by git is not quite what git ignores."""
    with open_repo(ROOT) as repo:
        ignored = [path for path in ("data/", "data/batches/") if repo.scm.is_ignored(f"{ROOT}/{path}")]
        assert not ignored and repo.scm.is_ignored(f"{ROOT}/data/batches/dialogues-000001/")


@pytest.mark.slow
def test_with_dvc_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real DVC: what an ingest pushes is what a worktree of another clone checks out."""
    monkeypatch.setattr(checks, "run_tables", check_plainly)
    home = tmp_path / "home"
    write(home / "in/a.jsonl", chat(1))
    (home / "params.yaml").write_text(PARAMS)
    (home / ".gitignore").write_text(IGNORED)
    start_checkout(home, str(tmp_path / "store"))
    git(home, "push", "-q", "origin", "main")
    done = ingest(home, say=quiet)
    assert done.waiting == "dialogues-000001" and done.pushed[0].startswith("data to store (")
    assert git(home, "status", "--porcelain") == ""

    git(tmp_path, "clone", "-q", str(tmp_path / "origin.git"), "other")
    other = tmp_path / "other"
    write(other / "in/a.jsonl", chat(1), chat(2))
    done = ingest(other, say=quiet)
    assert done.made is not None and (done.made.rows, done.made.repeated, len(done.made.holds)) == (1, 1, 2)
    tree = workspace.open_worktree(other, "retrain/x")
    workspace.change_parameters(tree, ingestion.batch_parameters(done.waiting))
    ingestion.provide(other, tree, "origin")
    files = sorted((tree / "data/batches/dialogues-000002").iterdir())
    assert [json.loads(path.read_text()) for path in files] == [chat(1), chat(2)]
    commit = workspace.commit_records(tree, "Retrain")
    assert "data/batches/dialogues-000002.dvc" in git(tree, "show", "--name-only", "--format=", commit).split()
    assert git(tree, "status", "--porcelain") == ""
    shutil.rmtree(tree / "data/batches/dialogues-000002")
    pipeline = "stages:\n  c:\n    cmd: echo\n    deps:\n      - ${sources.trajectories}\n"
    (tree / "dvc.yaml").write_text(pipeline)
    workspace.dvc(tree, "checkout", "-q", "--with-deps", "dvc.yaml")  # as merges do
    assert (tree / "data/batches/dialogues-000002").is_dir()
