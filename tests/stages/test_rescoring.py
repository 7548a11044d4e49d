"""A changed reward scores recorded dialogues again: the bytes of a fresh run, without a word said; with DVC's cache."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweetrl import plugins
from sweetrl.backend.suite import generate
from sweetrl.colbench.store import write_task_table
from sweetrl.config.settings import load_settings
from sweetrl.paths import EVALUATION_DIALOGUES, POLICY, RUNS, TEST_TASKS, TRAIN_TASKS, TRAJECTORIES
from sweetrl.stages.collect import collect
from sweetrl.stages.evaluate import evaluate
from sweetrl.stages.scratch import remove_recorded
from tests.stages.conftest import kill_at
from tests.tasks.fake_project import start_dvc

PIPELINE = Path(__file__).resolve().parents[2] / "dvc.yaml"
OWN = """
def mine(task, dialogue):
    return {{"long": {0} * len(dialogue.answer or ""), "own": dialogue.reward, "notes": len(dialogue.extra)}}
"""
VALUES: dict[str, Any] = {
    "model": {"base": "base", "device": "cpu", "threads": 1},
    "agent": {"max_turns": 3, "max_new_tokens": 12, "temperature": 1.0},
    "collect": {"tasks": 3, "attempts": 2, "batch": 4, "shard": 4},
    "evaluate": {"tasks": 3, "batch": 2, "resamples": 20},
    "reward": {"function": "mine:mine", "turn_cost": 0.0},
    "sources": {"suite": "suite", "method": "suite", "simulator": "suite", "reward": "mine.py", "base": "base"},
}


class Project:
    """A project with DVC's definitions of the two stages, but for the package's own code as inputs."""

    def __init__(self, own_code: Callable[[Path, str], Path]) -> None:
        self.own_code, self.played = own_code, set[str]()

    def change(self, **changes: Any) -> None:
        values = {name: {**VALUES.get(name, {}), **change} for name, change in changes.items()}
        tree = load_settings(_written(VALUES | values)).model_dump(mode="json", by_alias=True)
        _written(tree)

    def reward(self, factor: str) -> None:
        self.own_code(Path.cwd(), OWN.format(factor))
        plugins.find.cache_clear()
        sys.modules.pop("mine", None)

    def run(self, stage: Callable[..., None], out: Path) -> dict[str, bytes]:
        """What the stage makes, as under DVC: without its outputs; `played` is then who has spoken in new dialogues."""
        self.played.clear()
        remove_recorded(Path())
        shutil.rmtree(out, ignore_errors=True)
        stage(load_settings())
        return {str(path): path.read_bytes() for path in sorted(out.rglob("*.parquet"))}

    def record(self, stage: str) -> None:
        from dvc.repo import Repo

        with Repo(os.curdir) as repo:
            repo.commit(stage, force=True)


def _written(tree: dict[str, Any]) -> Path:
    path = Path("params.yaml")
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def project(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_code: Any, long_answers_win: None
) -> Project:
    from sweetrl.rollout import run

    monkeypatch.chdir(tmp_path)
    write_task_table(TRAIN_TASKS, generate("train", 4, seed=1))
    write_task_table(TEST_TASKS, generate("test", 4, seed=1))
    shutil.copy(TEST_TASKS, TRAIN_TASKS.with_name("validation.parquet"))
    shutil.copytree(tiny_model, "base")
    Path("suite").write_text("as it is")
    stages = {name: yaml.safe_load(PIPELINE.read_text())["stages"][name] for name in ("collect", "evaluate")}
    for stage in stages.values():
        places = [place for place in stage["deps"] if not place.startswith("src/") and "trajectories}" not in place]
        stage["deps"] = [place for place in places if Path(place).exists() or place.startswith(("$", "models"))]
        stage["outs"] = [out for out in stage["outs"] if out.startswith(("data/", "reports/runs/"))]
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    start_dvc(tmp_path, no_scm=True)
    made, play = Project(own_code), run.rollout

    def playing(*arguments: Any, policy_name: str, **options: Any) -> Any:
        made.played.add(policy_name)
        return play(*arguments, policy_name=policy_name, **options)

    monkeypatch.setattr(run, "rollout", playing)
    made.change()
    made.reward("0.01")
    return made


@pytest.mark.parametrize("what", ["reward.turn_cost", "reward.function", "the own reward's file"])
def test_another_reward_has_the_bytes_of_a_fresh_collection_and_none_is_played(
    what: str, project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed() -> None:
        if what == "reward.turn_cost":
            project.change(reward={"turn_cost": 0.05})
        elif what == "reward.function":
            project.change(reward={"function": ""}, sources={"reward": "suite"})
        else:
            project.reward("0.0125")

    changed()
    fresh, run_file = project.run(collect, TRAJECTORIES), (RUNS / "collect.json").read_bytes()
    assert len(fresh) == 2 and project.played
    project.change()
    project.reward("0.01")
    assert project.run(collect, TRAJECTORIES) != fresh and project.played, "the reward matters"
    project.record("collect")
    changed()
    written = kill_at(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        project.run(collect, TRAJECTORIES)
    assert project.run(collect, TRAJECTORIES) == fresh and not project.played and written == [0, 1]
    assert (RUNS / "collect.json").read_bytes() == run_file
    assert "collect: 6 dialogues scored again, none played\n" in capsys.readouterr().out


def nothing(project: Project) -> None:
    """Asked for again with --force, it is played again."""
    project.change()


def a_damaged_cache(project: Project) -> None:
    for path in Path(".dvc/cache/files").rglob("*"):
        if path.is_file() and path.suffix != ".dir" and path.read_bytes()[:4] == b"PAR1":
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1])
            path.chmod(0o444)


def an_empty_cache(project: Project) -> None:
    shutil.rmtree(".dvc/cache/files")


def another_domain(project: Project) -> None:
    Path("suite").write_text("another")


def code_of_the_domain_beside_the_reward(project: Project) -> None:
    project.change(reward={"turn_cost": 0.05}, sources={"suite": "mine.py"})
    project.reward("0.0125")


def temperature(project: Project) -> None:
    project.change(reward={"turn_cost": 0.05}, agent={"temperature": 0.5})


@pytest.mark.parametrize(
    "change",
    [nothing, a_damaged_cache, an_empty_cache, another_domain, code_of_the_domain_beside_the_reward, temperature],
)
def test_all_is_played_where_anything_else_has_changed_or_the_dialogues_are_gone(
    change: Callable[[Project], None], project: Project
) -> None:
    project.run(collect, TRAJECTORIES)
    project.record("collect")
    project.change(reward={"turn_cost": 0.05})
    change(project)
    again = project.run(collect, TRAJECTORIES)
    assert project.played
    Path("dvc.lock").unlink()
    assert project.run(collect, TRAJECTORIES) == again


def test_an_evaluation_of_another_policy_plays_the_policy_alone(
    project: Project, tiny_model: Path, write_adapter: Any
) -> None:
    for folder in (TRAJECTORIES, Path("data/preferences")):
        folder.mkdir()
    for scale in (0.5, 0.25):
        shutil.rmtree(POLICY, ignore_errors=True)
        write_adapter(tiny_model, POLICY, scale, name="base")
        made = project.run(evaluate, EVALUATION_DIALOGUES)
        assert project.played == ({"base", "trained"} if scale == 0.5 else {"trained"})
        project.record("evaluate")
    Path("dvc.lock").unlink()
    assert project.run(evaluate, EVALUATION_DIALOGUES) == made
