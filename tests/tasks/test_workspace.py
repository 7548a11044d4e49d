"""git and DVC around a run, in real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.errors import UserError
from tasks import workspace
from tasks.pipeline import execute_stage, open_repo
from tasks.training import Steps, run_pipeline
from tests.tasks.fake_project import git, hook, quiet


def test_parameters_are_changed_in_place_and_checked(toy) -> None:
    path = toy.root / "params.yaml"
    workspace.change_parameters(toy.root, {"collect.first": 400, "seed": 8})
    assert path.read_text().startswith(
        "# the toy's\nseed: 8\ncollect: {tasks: 4, first: 400}\ntracking: {uri: 'sqlite:"
    )
    for changes, sentence in [
        ({"collect.last": 1}, "unknown parameter `collect.last`"),
        ({"seed.deep": 1}, "unknown parameter `seed.deep`"),
        ({"collect.tasks": 0}, r"parameter `collect\.tasks` = 0"),
    ]:
        with pytest.raises(UserError, match=sentence):
            workspace.change_parameters(toy.root, changes)
        assert "first: 400" in path.read_text() and "tasks: 4," in path.read_text()


def test_sections_in_which_nothing_is_set_keep_their_lines(tmp_path: Path) -> None:
    before = (Path(__file__).resolve().parents[2] / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(before, encoding="utf-8")
    workspace.change_parameters(tmp_path, {"collect.first": 7, "sources.tasks": "mine"})
    after = (tmp_path / "params.yaml").read_text(encoding="utf-8")
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    assert [new.partition(":")[0] for old, new in pairs if old != new] == ["  tasks", "collect"]


@pytest.mark.slow
def test_a_worktree_runs_beside_the_checkout_shares_its_cache_and_is_merged(toy, tmp_path: Path) -> None:
    """The remote is set up as in the guide and not committed, and config.local names the cache's folder."""
    home = toy.root
    remote, bare = tmp_path / "remote", tmp_path / "bare.git"
    workspace.dvc(home, "remote", "add", "-q", "-d", "store", "../remote")
    workspace.dvc(home, "cache", "dir", "-q", "--local", str(tmp_path / "cache"))
    workspace.dvc(home, "remote", "modify", "-q", "--local", "store", "jobs", "3")
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    git(home, "remote", "add", "origin", str(bare))
    (home / "data").mkdir()
    (home / "data/accepted.json").write_text("first batch")
    tree = workspace.open_worktree(home, "retrain/1")
    with open_repo(tree) as repo:
        assert repo.cache.local_cache_dir == str(tmp_path / "cache")
    assert workspace.remote_name(tree) == "store"
    assert "jobs = 3" in (tree / ".dvc/config.local").read_text()
    workspace.change_parameters(tree, {"collect.first": 4})
    assert workspace.open_worktree(home, "retrain/1", fresh=False) == tree
    assert "first: 4" in (tree / "params.yaml").read_text(), "what lies there is gone on with"
    outcome = run_pipeline(tree, Steps(say=quiet), home)
    workspace.commit_records(tree, "Retrain")
    assert (tree / "data/accepted.json").read_text() == "first batch"
    assert [result.status for result in outcome.stages] == ["ran", "ran", "ran"]
    assert git(tree, "status", "--porcelain") == "", "nothing of DVC's settings is to be committed"
    pushed = workspace.push(tree, "retrain/1")
    assert pushed[1:] == ["branch retrain/1 to origin"]
    assert pushed[0].startswith("data to store (") and "pushed" in pushed[0]
    assert workspace.push(tree, "retrain/1")[0] == "data to store (everything is up to date)"
    workspace.close_worktree(home, tree)
    assert not tree.exists() and git(home, "worktree", "list").count("\n") == 0
    assert not (home / "data/first.txt").exists(), "nothing has happened in the main checkout yet"
    assert "collect: {tasks: 4, first: 4}" in git(home, "show", "retrain/1:params.yaml")
    assert any(path.is_file() for path in remote.rglob("*"))

    (home / "params.yaml").write_text((home / "params.yaml").read_text() + "# edited\n")
    with pytest.raises(workspace.NotMerged, match=r"params\.yaml has uncommitted changes: commit or undo them"):
        workspace.merge(home, "retrain/1")
    git(home, "checkout", "-q", "params.yaml")
    assert workspace.merge(home, "retrain/1", "main")
    assert (home / "data/third.txt").read_text() == "third a"
    assert run_pipeline(home, Steps(say=quiet)).unchanged, "the merged branch brings its results along"


def test_a_push_without_remotes_says_so(toy) -> None:
    home = toy.root
    execute_stage(home, "first", {}, quiet)
    assert workspace.push(home, "main") == [
        "no data: DVC has no default remote (`dvc remote add -d NAME URL`), so only this machine has them",
        "no branch: git has no remote",
    ]


def run_twice(toy, folder: Path) -> tuple[Path, bytes]:
    """Run the toy with two values; return the folder that keeps the first run's records, and the newer lock."""
    kept = folder / "kept"
    run_pipeline(toy.root, Steps(say=quiet))
    kept.mkdir()
    for name in workspace.RECORDS:
        (kept / name).write_bytes((toy.root / name).read_bytes())
    toy.set(third="b")
    run_pipeline(toy.root, Steps(say=quiet))
    return kept, (toy.root / "dvc.lock").read_bytes()


@pytest.mark.slow
def test_restoring_brings_back_lock_parameters_and_data_or_changes_nothing(
    toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, newer = run_twice(toy, tmp_path)
    home, run, commands = toy.root, workspace.dvc, list[str]()
    monkeypatch.setattr(workspace, "remote_name", lambda root: "a bucket that is gone")
    monkeypatch.setattr(workspace, "dvc", lambda *given: (commands.append(given[1]), run(*given))[1])
    assert (home / "data/third.txt").read_text() == "third b"

    workspace.put_back(home, lambda folder: kept)
    assert commands == ["checkout"], "all is in the cache: no remote is needed"
    assert (home / "dvc.lock").read_bytes() == (kept / "dvc.lock").read_bytes()
    assert (home / "data/third.txt").read_text() == "third a"
    (generation,) = (home / ".scratch/before-restore").iterdir()
    assert (generation / "dvc.lock").read_bytes() == newer
    assert "as they were" not in workspace.put_back(home, lambda folder: kept)[0]

    (kept / "mine").mkdir()
    (kept / "mine/forms.py").write_text("the version's")
    done, code = workspace.put_back(home, lambda folder: kept)
    assert (home / "mine/forms.py").read_text() == "the version's" and "your own code" in done
    workspace.commit_records(home, "Restore", code)
    workspace.check_committed(home, [home / "mine"])
    for path in ("mine/forms.py", "mine/other.py"):
        (home / path).write_text("edited")
        with pytest.raises(UserError, match=r"^mine: git does not have it as it is here"):
            workspace.check_committed(home, [home / "mine"])
        workspace.git(home, "checkout", "-q", "mine")

    broken = tmp_path / "broken"
    broken.mkdir()
    lock = (kept / "dvc.lock").read_text()
    digest = next(line.split()[-1] for line in lock.splitlines() if "md5:" in line)
    (broken / "dvc.lock").write_text(lock.replace(digest, "0" * 32))
    before = (home / "dvc.lock").read_bytes()
    with pytest.raises(UserError, match="are as they were"):
        workspace.put_back(home, lambda folder: broken)
    assert (home / "dvc.lock").read_bytes() == before
    assert (home / "data/third.txt").read_text() == "third a"


def test_restoring_never_takes_what_dvc_has_not_recorded(toy, tmp_path: Path) -> None:
    kept, newer = run_twice(toy, tmp_path)
    home = toy.root
    (home / "data/third.txt").unlink()  # a link into the cache, or a copy
    (home / "data/third.txt").write_text("hours of work by hand")
    with pytest.raises(UserError, match=r"data/third\.txt: not recorded; `dvc commit`"):
        workspace.put_back(home, lambda folder: kept)
    assert (home / "data/third.txt").read_text() == "hours of work by hand"
    assert (home / "dvc.lock").read_bytes() == newer and not (home / ".scratch/before-restore").exists()


@pytest.mark.parametrize("configured", [(), ("user.name",), ("user.email",), ("user.name", "user.email")])
def test_commits_need_neither_name_nor_address_of_a_user(
    configured: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container a worker's user has neither, or only the setting that somebody has made."""
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    workspace.git(tmp_path, "init", "-q")
    workspace.git(tmp_path, "config", "user.useConfigOnly", "true")  # as where the system has no name
    for key in configured:
        workspace.git(tmp_path, "config", key, "robot")
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    assert workspace.commit_records(tmp_path, "Records")
    author = workspace.git(tmp_path, "log", "--format=%an %ae").stdout.split()
    defaults = {"user.name": "sweetrl", "user.email": "sweetrl@localhost"}
    assert author == ["robot" if key in configured else value for key, value in defaults.items()]
    hook(tmp_path / ".git/hooks", "pre-commit", "echo no commits today >&2\nexit 1")
    (tmp_path / "params.yaml").write_text("seed: 8\n")
    with pytest.raises(UserError, match=r": `git commit` failed: no commits today$"):
        workspace.commit_records(tmp_path, "More")


def test_a_commit_without_files_is_taken_over_whatever_lies_beside_it(toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such commits start a server's checks anew; before, any file that git does not have kept them out."""
    monkeypatch.setattr(workspace, "dvc", lambda root, *arguments: "")
    git(toy.root, "switch", "-qc", "theirs")
    git(toy.root, "commit", "-q", "--allow-empty", "-m", "Check again")
    git(toy.root, "switch", "-q", "main")
    (toy.root / "notes.txt").write_text("mine")
    assert workspace.merge(toy.root, "theirs", "main")
    assert git(toy.root, "log", "-1", "--format=%s") == "Check again"
