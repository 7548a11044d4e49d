"""Pruning a project of thirty-odd versions, with real git, DVC and MLflow: what is in use stays, and restores."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from flows import restore
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.tracking.registry import CHALLENGER, Registry
from tasks.journal import DONE, Journal, new_journal
from tasks.objects import hashes_in
from tasks.pruning import Plan, Pruning, prune
from tests.tasks.fake_project import commit, git, quiet, start_dvc

PIPELINE = "stages:\n  train:\n    cmd: echo\n    outs: [models/policy, reports/evaluation.json]\n"
COUNT, KEEP = 34, 4


class Team:
    """A project in which version 2, 4, 6, ... became champion, each trained on a branch of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.cache = home, home / ".dvc/cache/files/md5"
        home.mkdir()
        (home / "dvc.yaml").write_text(PIPELINE)
        (home / "params.yaml").write_text("seed: 7\ncollect: {tasks: 4, first: 0}\n")
        (home / ".gitignore").write_text("/models/\n/reports/\n/.scratch/\n/mlflow.db*\n/mlartifacts/\n/data/\n")
        git(home, "init", "-q", "-b", "main")
        start_dvc(home)
        git(home, "add", ".")
        git(home, "commit", "-qm", "The project")
        self.registry = Registry(load_settings(home / "params.yaml").tracking, home)
        self.registry.client.create_registered_model(self.registry.name)
        self.locks, self.commits = dict[int, str](), dict[int, str]()
        for number in range(1, COUNT + 1):
            self.train(number)

    def store(self, content: str, suffix: str = "") -> str:
        """Put an object into DVC's cache, and return its hash."""
        name = hashlib.md5(content.encode()).hexdigest()
        path = self.cache / name[:2] / (name[2:] + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return name + suffix

    def lock(self, number: int) -> str:
        """Return the dvc.lock of a version, whose data lie in the cache."""
        weights = self.store(f"weights {number}" * 100)
        folder = self.store(json.dumps([{"md5": weights, "relpath": "adapter"}]), ".dir")
        result = self.store(json.dumps({"success_after": number}))
        outs = [
            {"path": "models/policy", "hash": "md5", "md5": folder, "size": 1, "nfiles": 1},
            {"path": "reports/evaluation.json", "hash": "md5", "md5": result, "size": 1},
        ]
        stages = {"train": {"cmd": "echo", "outs": outs}}
        self.locks[number] = yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False)
        return self.locks[number]

    def branch(self, name: str, number: int, message: str = "Retrain on the batch of a night") -> str:
        """Commit the dvc.lock of `number` on a new branch, and return the commit."""
        git(self.home, "switch", "-q", "-c", name)
        commit(self.home, {"dvc.lock": self.lock(number)}, message)
        made = git(self.home, "rev-parse", "HEAD")
        git(self.home, "switch", "-q", "main")
        return made

    def train(self, number: int) -> None:
        registry, client = self.registry, self.registry.client
        commit = self.commits[number] = self.branch(f"retrain/night-{number}", number)
        experiment = registry.store.experiment_id
        parent = client.create_run(experiment).info.run_id
        client.log_param(parent, "tracking.model", registry.name)
        stage = client.create_run(experiment, tags={"mlflow.parentRunId": parent}).info.run_id
        client.log_text(stage, "a curve", "curve.txt")
        for run in (stage, parent):
            client.set_terminated(run)
        logged = client.create_logged_model(experiment, registry.name, source_run_id=stage)
        folder = self.home.parent / "lineage"
        folder.mkdir(exist_ok=True)
        (folder / "dvc.lock").write_text(self.locks[number])
        client.log_model_artifacts(logged.model_id, str(folder), "lineage")
        tags = {"git_commit": commit, "git_dirty": "false", "dvc_lock": file_hash(folder / "dvc.lock"), "code": "{}"}
        tags |= {"parent_run": parent, "stage_runs": json.dumps({"train-policy": stage}), "data": "{}"}
        tags["adapter_hash"] = yaml.safe_load(self.locks[number])["stages"]["train"]["outs"][0]["md5"]
        client.finalize_logged_model(logged.model_id, "READY")
        source = f"models:/{logged.model_id}"
        client.create_model_version(registry.name, source, run_id=stage, tags=tags, model_id=logged.model_id)
        wins = number % 2 == 0
        registry.note_gate(str(number), {"promote": wins, "promoted": wins, "reason": "as it was"})
        if wins:
            git(self.home, "merge", "-q", "--ff-only", f"retrain/night-{number}")
            registry.promote(str(number), "promoted")

    def numbers(self) -> list[int]:
        return [int(version.version) for version in self.registry.versions()]

    def objects(self) -> set[str]:
        return {path.parent.name + path.name for path in self.cache.glob("*/*")}

    def hashes(self, number: int) -> set[str]:
        """All objects of a version."""
        before = self.objects()
        outs = yaml.safe_load(self.locks[number])["stages"]["train"]["outs"]
        inside = hashlib.md5((f"weights {number}" * 100).encode()).hexdigest()
        assert before == self.objects()
        return {*(out["md5"] for out in outs), inside}

    def branches(self) -> set[str]:
        return set(git(self.home, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    def runs(self) -> set[str]:
        return {run.info.run_id for run in self.registry.client.search_runs([self.registry.store.experiment_id])}

    def models(self) -> set[str]:
        models = self.registry.client.search_logged_models([self.registry.store.experiment_id])
        return {model.model_id for model in models}

    def prune(self, say: Callable[[str], object] = quiet, **options: Any) -> Plan:
        return prune(self.home, **{"keep": KEEP, "days": 0, "say": say} | options)

    def check(self) -> None:
        """Each version has its model and its runs, and each version that stays has its data."""
        client = self.registry.client
        for version in self.registry.versions():
            model = client.get_logged_model(str(version.source).removeprefix("models:/"))
            assert (Path(model.artifact_location.removeprefix("file://")) / "lineage/dvc.lock").exists()
            for run in (version.run_id, version.tags["parent_run"]):
                assert client.get_run(run).info.lifecycle_stage == "active"
        for number in STAYS:
            assert self.hashes(number) <= self.objects(), number
            assert git(self.home, "show", f"{self.commits[number]}:dvc.lock")


LAST = [COUNT - 2 * back for back in range(KEEP)]
STAYS = {*LAST, 3, 7, 9, 11, 31, 33, 29}


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Thirty-four versions, and a reason of each kind why some of them stay."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "t")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "t@example.org")
    made = Team(tmp_path / "home")
    registry, home = made.registry, made.home
    registry.set_alias("demo", "3")
    git(home, "tag", "v1", made.commits[7])
    git(home, "branch", "somebodys", made.commits[9])
    registry.client.create_registered_model("elsewhere")
    registry.client.copy_model_version(f"models:/{registry.name}/11", "elsewhere")
    registry.note_gate("31", {"promote": True, "promoted": False, "reason": "won"})
    registry.set_alias(CHALLENGER, "33")
    with new_journal(home) as journal:  # half-way
        journal.note("taking", branch="retrain/night-29", home=str(home))
        journal.note("registered", version="29")
    return made


def old_journal(team: Team) -> Path:
    with new_journal(team.home) as journal:
        journal.note("taking", branch="retrain/night-1", home=str(team.home))
        journal.note(DONE)
    older = journal.path.with_name("20200101T000000.000000Z-0.jsonl")
    return journal.path.rename(older)


def test_what_is_in_use_stays_and_restores_and_all_else_goes(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, home, client = team.registry, team.home, team.registry.client
    pending = client.create_logged_model(registry.store.experiment_id, registry.name).model_id
    other = client.create_logged_model(registry.store.experiment_id, "a_users_own").model_id
    own_run, foreign_run = (client.create_run(registry.store.experiment_id).info.run_id for _ in range(2))
    client.log_param(foreign_run, "tracking.model", "another-project")
    for run in (own_run, foreign_run):
        client.set_terminated(run)
    shared = registry.versions(f"tags.git_commit = '{team.commits[13]}'")[0]
    client.create_registered_model("another-project")
    client.create_model_version(
        "another-project", "models:/elsewhere/1", tags={"stage_runs": shared.tags["stage_runs"]}
    )
    team.branch("retrain/no-version", 100)
    git(home, "switch", "-q", "retrain/night-13")  # somebody has gone on there
    commit(home, {"notes": "mine"}, "My notes")
    git(home, "switch", "-q", "main")
    (home / "data").mkdir(exist_ok=True)
    added = []
    for text in ("dialogues of people", "more dialogues of people"):  # `dvc add`: what was there before, too
        added.append(team.store(text))
        commit(home, {"data/own.dvc": f"outs:\n- md5: {added[-1]}\n  path: own\n"})
    dead = home / ".scratch/worktrees/retrain-night-1"
    git(home, "worktree", "add", "-q", str(dead), "retrain/night-1")
    gone = home / ".scratch/worktrees/retrain-night-5"
    git(home, "worktree", "add", "-q", str(gone), "retrain/night-5")
    for path in sorted(gone.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    gone.rmdir()
    scratch = home / ".scratch/collect-0123456789abcdef"
    scratch.mkdir()
    put_aside = home / ".scratch/before-restore/lately/dvc.lock"
    put_aside.parent.mkdir(parents=True)
    put_aside.write_text(team.lock(101))
    os.utime(put_aside, (time.time() + 900,) * 2)
    for number in (102, 103):
        (home / "dvc.lock").write_text(team.lock(number))
        git(home, "stash", "-q")
    journal, junk, young = old_journal(team), team.store("of no lock"), team.store("made now")
    os.utime(team.cache / young[:2] / young[2:], (time.time() + 900,) * 2)
    before = team.branches(), team.runs(), team.objects(), team.numbers()

    planned = team.prune(dry_run=True)
    assert (team.branches(), team.runs(), team.objects(), team.numbers()) == before
    assert not team.prune(days=1, dry_run=True).items[1:], "all but the journal is young"
    lines: list[str] = []
    done = team.prune(lines.append)
    assert [(item.kind, item.name, item.size) for item in done.items] == [
        (item.kind, item.name, item.size) for item in planned.items
    ]
    assert len(lines) == len(done.items) and done.size > 20 * 1000
    assert set(team.numbers()) == STAYS
    assert dict(done.stays) == {
        **{f"version {number}": f"is one of the last {KEEP} champions" for number in LAST[1:]},
        f"version {COUNT}": "is @champion",
        "version 3": "is @demo",
        "version 7": "is the policy of tags/v1",
        "version 9": "is the policy of heads/somebodys",
        "version 11": "elsewhere version 1 is a copy of it",
        "version 29": "its retraining is unfinished",
        "version 31": "has won, and waits",
        "version 33": "is @challenger",
        "retrain/night-13": "holds a commit that is no retraining's: My notes",
    }
    models = {str(version.source).removeprefix("models:/") for version in registry.versions()}
    assert team.models() == models | {other} and pending not in team.models()
    stored = {path.name for path in (home / "mlartifacts/models").iterdir() if list(path.rglob("*.lock"))}
    assert stored == models, "bytes are freed"
    assert len(team.runs()) == 2 * len(STAYS) + 4 and {own_run, foreign_run, shared.run_id} <= team.runs()
    kept = {f"retrain/night-{number}" for number in (3, 11, 29, 31, 33, 13)}
    assert team.branches() == {"main", "somebodys"} | kept
    assert not any(path.exists() for path in (dead, journal, scratch)) and (home / ".scratch/before-restore").exists()
    assert "night-5" not in git(home, "worktree", "list")
    expected = {*added, young}.union(*(team.hashes(number) for number in (*STAYS, 13, 101, 102, 103)))
    assert team.objects() == expected and junk not in expected
    team.check()
    assert team.prune().items == (), "a second run has nothing to do"

    monkeypatch.setattr(restore, "announce", lambda *given: None)
    monkeypatch.setattr(restore, "get_run_logger", lambda: SimpleNamespace(info=quiet))
    for number in (*LAST[1:], 3, COUNT):
        restore.restore.fn(str(number), root=str(home))
        assert json.loads((home / "reports/evaluation.json").read_text()) == {"success_after": number}
        assert (home / "models/policy/adapter").read_text().startswith(f"weights {number}weights")
    assert [entry.version for entry in registry.history()][-5:] == [str(n) for n in (*LAST[1:], 3, COUNT)]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["delete_model_version", "delete_logged_model", "delete_run"])
def test_whoever_dies_leaves_what_the_next_one_finishes(team: Team, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    goal = [(item.kind, item.name) for item in team.prune(dry_run=True).items]
    calls = 0

    def die(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        delete(*given)

    with monkeypatch.context() as patch:
        delete = getattr(team.registry.client, call)
        patch.setattr(f"mlflow.MlflowClient.{call}", lambda client, *given: die(*given))
        with pytest.raises(KeyboardInterrupt):
            team.prune()
    team.check()
    kinds = [kind for kind, _ in goal]
    for kind in dict.fromkeys(kinds):  # and behind the first of each kind

        def stop(line: str, kind: str = kind) -> None:
            if line.startswith(f"{kind} "):
                raise KeyboardInterrupt

        if any(item.kind == kind for item in team.prune(dry_run=True).items):
            with pytest.raises(KeyboardInterrupt):
                team.prune(stop)
        team.check()
    team.prune()
    assert set(team.numbers()) == STAYS and not team.prune().items
    assert team.objects() == set().union(*(team.hashes(number) for number in STAYS))


def test_a_version_that_gets_an_alias_meanwhile_keeps_its_model(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Pruning.plan

    def planning(pruning: Pruning) -> Plan:
        made = plan(pruning)
        team.registry.set_alias("champion", "1")  # another machine restores it
        return made

    monkeypatch.setattr(Pruning, "plan", planning)
    with pytest.raises(UserError, match="version 1 has become @champion meanwhile"):
        team.prune()
    team.check()
    assert len(team.numbers()) == COUNT


def test_the_cache_stays_while_a_retraining_is_at_work_or_others_share_it(team: Team) -> None:
    (path,) = (team.home / ".git/sweetrl/retrain").glob("*.jsonl")
    with Journal(path):
        plan = team.prune(dry_run=True)
    assert ("DVC's cache", "retrain/night-29 is at work") in plan.stays
    (team.home / ".dvc/config.local").write_text(f"[cache]\n    dir = {team.home.parent / 'shared'}\n")
    plan = team.prune(dry_run=True)
    assert ("DVC's cache", f"{team.home.parent / 'shared'} may be shared with others") in plan.stays
    assert not any("DVC" in item.kind for item in plan.items)
    (team.home / ".dvc/config.local").unlink()
    (team.home / ".dvc/cache").rename(team.home.parent / "shared")
    (team.home / ".dvc/cache").symlink_to(team.home.parent / "shared")
    assert not any("DVC" in item.kind for item in team.prune(dry_run=True).items)


def test_a_hash_of_digits_is_one_though_yaml_quotes_it() -> None:
    names = "12345678901234567890123456789012", "123456789012345678901e3456789012"
    assert hashes_in(yaml.safe_dump([{"md5": name} for name in names])) == set(names)


def test_remotes_are_pruned_where_asked_for(team: Team) -> None:
    """Other clones' branches are fetched from git's remote first, though this clone is of one branch."""
    home, origin, store = team.home, team.home.parent / "origin.git", team.home.parent / "store"
    git(home.parent, "init", "-q", "--bare", "-b", "main", str(origin))
    git(home, "remote", "add", "origin", str(origin))
    git(home, "push", "-q", "--all", "origin")
    (home / ".dvc/config").write_text(f"[core]\n    remote = store\n['remote \"store\"']\n    url = {store}\n")
    git(home, "config", "remote.origin.fetch", "+refs/heads/main:refs/remotes/origin/main")
    names = {place: team.store(f"{place} of a clone") for place in ("refs/heads/theirs", "refs/tags/x", "refs/exps/x")}
    (home / ".dvc/cache").rename(store)
    clone = home.parent / "clone"
    git(home.parent, "clone", "-q", str(origin), str(clone))
    for place, name in names.items():
        git(clone, "switch", "-q", "--detach", "origin/main")
        commit(clone, {"own.dvc": f"outs:\n- md5: {name}\n  path: own\n"})
        git(clone, "push", "-q", "origin", f"HEAD:{place}")
    team.prune()
    stored = {path.parent.name + path.name for path in (store / "files/md5").glob("*/*")}
    assert team.hashes(1) <= stored and "retrain/night-1" in git(origin, "branch")
    assert team.prune(remote=True).items
    stored = {path.parent.name + path.name for path in (store / "files/md5").glob("*/*")}
    assert stored == set(names.values()).union(*(team.hashes(number) for number in STAYS))
    kept = {"main", "theirs", "somebodys", *(f"retrain/night-{number}" for number in (3, 11, 29, 31, 33))}
    assert set(git(origin, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()) == kept
    assert not team.prune(remote=True).items
