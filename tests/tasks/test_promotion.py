"""The gate on a real embedded registry: who becomes champion, and what is compared with what."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.io import write_json
from sweetrl.settings import Settings, parse_settings
from sweetrl.tracking.registry import Registration, Registry, register_policy
from tasks import promotion, training
from tasks.pipeline import StageResult
from tasks.promotion import decide, judge, settled, take_over
from tasks.training import Steps

TASKS = [f"task-{number:03d}" for number in range(60)]


class Project:
    """A project whose policy is a file of bytes: registering and comparing need no model."""

    def __init__(self, root: Path, settings: Settings):
        self.root, self.settings = root, settings

    def train(self, name: str, rewards: Mapping[str, float | None]) -> str:
        """Write a policy with its results and register it; return the version."""
        (self.root / "models/policy").mkdir(parents=True, exist_ok=True)
        (self.root / "models/policy/adapter_config.json").write_text(name)
        write_results(self.root, rewards)
        return register_policy(self.settings, self.root).version


def write_results(root: Path, rewards: Mapping[str, float | None]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"task_id": task, "policy": "trained", "reward": value} for task, value in rewards.items()]
    rows += [{"task_id": task, "policy": "base", "reward": 0.0} for task in rewards]
    (root / "reports").mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), root / "reports/results.parquet")
    scored = [value for value in rewards.values() if value is not None]
    write_json(root / "reports/evaluation.json", {"mean": sum(scored) / len(scored)})


def rewards(rate: float, seed: int) -> dict[str, float | None]:
    generator = random.Random(seed)
    return {task: float(generator.random() < rate) for task in TASKS}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "data/tasks").mkdir(parents=True)
    (tmp_path / "data/tasks/test.parquet").write_bytes(b"the first test tasks")
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    return Project(tmp_path, parse_settings({"evaluate": {"resamples": 2000}}))


def no_words(text: str) -> None:
    """Say nothing."""


def test_a_better_challenger_becomes_champion_and_a_lucky_one_does_not(project: Project) -> None:
    first = project.train("first", rewards(0.3, 1))
    result = decide(project.settings, project.root, first)
    assert result.promoted and result.before is None and "there is no champion yet" in result.reason
    registry = Registry(project.settings.tracking, project.root)
    assert registry.aliases() == {"champion": first}
    again = decide(project.settings, project.root, first)
    assert not again.promoted and "is the champion already" in again.reason

    lucky = dict(rewards(0.3, 1)) | {TASKS[0]: 1.0, TASKS[1]: 1.0}
    second = project.train("second", lucky)
    result = decide(project.settings, project.root, second)
    assert not result.promoted and result.champion == first
    assert "not shown to be better" in result.reason
    assert registry.aliases() == {"champion": first, "challenger": second}

    third = project.train("third", rewards(0.9, 2) | {TASKS[5]: None})
    result = decide(project.settings, project.root, third)
    assert result.promoted and result.before == first
    assert result.decision is not None and result.decision.n == len(TASKS) - 1, "a lost dialogue's task is left out"
    assert registry.aliases()["champion"] == third
    assert [entry.version for entry in registry.history()] == [first, third]


def test_a_champion_measured_on_other_tasks_is_measured_again_first(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project.train("first", rewards(0.9, 1))
    decide(project.settings, project.root, first)
    (project.root / "data/tasks/test.parquet").write_bytes(b"other test tasks")
    second = project.train("second", {f"other-{number}": 1.0 for number in range(40)})
    measured: list[str] = []

    def evaluation(folder: Path, version, line) -> None:
        measured.append((folder / "models/policy/adapter_config.json").read_text())
        assert (folder / "data/tasks/test.parquet").read_bytes() == b"other test tasks"
        assert (folder / ".cache/hashes").resolve() == (project.root / ".cache/hashes").resolve()
        write_results(folder, {f"other-{number}": 0.0 for number in range(40)})

    monkeypatch.setattr(promotion, "_run_evaluation", evaluation)
    result = decide(project.settings, project.root, second, no_words)
    assert measured == ["first"], "the old champion's own adapter was evaluated"
    assert result.promoted and result.champion == second
    registry = Registry(project.settings.tracking, project.root)
    assert set(registry.rewards(registry.get(first)).values()) == {0.0}


def test_a_version_whose_gate_died_stands_before_it_next_time(project: Project) -> None:
    """Nothing has run since, and the version is registered already: only its tag says whether it was decided."""
    version = project.train("first", rewards(0.5, 1))
    parent: Any = SimpleNamespace(run_id=None)
    at_rest = [StageResult("evaluate", "skipped")]
    settings = (project.settings, project.root, project.root)
    registration, gate = training._register(*settings, Steps(), parent, at_rest)
    assert registration is not None and not registration.created and registration.version == version
    assert gate is not None and gate.promoted
    registry = Registry(project.settings.tracking, project.root)
    assert json.loads(registry.get(version).tags["gate"])["promoted"] is True
    assert training._register(*settings, Steps(), parent, at_rest)[1] is None


def test_a_version_is_settled_when_the_gate_has_nothing_left_to_do() -> None:
    def told(aliases: tuple[str, ...] = (), **verdict: bool) -> bool:
        tags = {"gate": json.dumps(verdict)} if verdict else {}
        return settled(Registration("agent", "2", False, aliases, tags))

    assert not told() and not told(("challenger",))
    assert told(("champion",)) and told(("champion",), promote=True, promoted=False)
    assert told(promote=False, promoted=False)
    assert not told(promote=True, promoted=False), "it has won, and died before the alias"
    assert told(promote=True, promoted=True), "a rollback has left it: it does not come back by itself"


def test_a_champion_that_changed_while_a_version_was_judged_is_told(project: Project) -> None:
    first = project.train("first", rewards(0.5, 1))
    result = judge(project.settings, project.root, first, no_words)
    assert result.won and not result.promoted
    second = project.train("second", rewards(0.9, 1))
    decide(project.settings, project.root, second, no_words)
    with pytest.raises(
        UserError, match="version 2 has become champion while version 1 was compared with none; run the"
    ):
        take_over(project.settings, project.root, result)


def test_evaluating_a_version_needs_the_tasks(project: Project) -> None:
    version = project.train("first", rewards(0.5, 1))
    (project.root / "data/tasks/test.parquet").unlink()
    registry = Registry(project.settings.tracking, project.root)
    with pytest.raises(UserError, match="run the pipeline first"):
        promotion.evaluate_version(project.settings, project.root, registry, registry.get(version))


def test_a_registry_that_fails_is_not_a_registry_without_a_champion(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the gate's questions fails, and however often: the loser is not promoted."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    best = project.train("best", rewards(0.9, 1))
    decide(project.settings, project.root, best)
    loser = project.train("loser", rewards(0.1, 1))
    asked = MlflowClient.get_registered_model
    failing: set[int] = set()
    calls = 0

    def get_registered_model(client: MlflowClient, name: str) -> object:
        nonlocal calls
        calls += 1
        if calls in failing:
            raise MlflowException("API request failed with error code 503")
        return asked(client, name)

    monkeypatch.setattr(MlflowClient, "get_registered_model", get_registered_model)
    for failing in ({1}, {1, 2}, {2}, {3}, set(range(1, 99))):
        calls = 0
        try:
            assert not decide(project.settings, project.root, loser, no_words).promoted
        except UserError as error:
            assert "nothing was changed, so try again" in str(error)
        failing = set()
        assert Registry(project.settings.tracking, project.root).aliases()["champion"] == best
