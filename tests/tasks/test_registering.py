"""A registration is a sequence over several systems: where a process dies, the next one finishes it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.tracking import registry, retention
from sweetrl.tracking.comparisons import measured
from sweetrl.tracking.registry import Registry, model_id
from tasks import promotion, steps, training
from tasks.promotion import judge, take_over
from tasks.training import Steps
from tests.serve.made import write_rewards
from tests.tasks import test_promotion
from tests.tasks.fake_project import quiet
from tests.tasks.test_promotion import TASKS, Project, failing, rewards, save

# What registering changes in the store, in order, and the event behind it.
CHANGES = (
    *("create_logged_model", "log_model_artifacts", "log_model_artifact", "finalize_logged_model"),
    *("create_model_version", "set_registered_model_alias", "announce", "set_model_version_tag"),
)


class Died(BaseException):
    """The process has ended."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("project")
    (root / "data/tasks").mkdir(parents=True)
    (root / "data/tasks/test.parquet").write_bytes(b"test tasks")
    (root / "params.yaml").write_text("seed: 7\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr(registry, "_save", save)
        patch.setattr(steps, "step", lambda name, action, **options: action)
        patch.setattr(steps, "announce", lambda *event: None)
        patch.setattr(test_promotion, "register_policy", partial(steps.register, run=None, home=root))
        yield Project(root, Settings())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_registration_that_dies_is_finished_by_the_next_one(
    project: Project, monkeypatch: pytest.MonkeyPatch, change: str, after: bool
) -> None:
    """In the end there are one version, one logged model that is ready, and an event, sent when the version existed."""
    store, sent = Registry(project.settings.tracking, project.root), list[str]()

    def announce(event: str, kind: str, name: str, payload: Mapping[str, str]) -> None:
        assert store.get(payload["version"]), "what an event tells of is there"
        sent.append(payload["version"])

    def stored() -> dict[str, str]:
        models = store.client.search_logged_models([store.store.experiment_id])
        return {logged.model_id: str(logged.status) for logged in models}

    monkeypatch.setattr(steps, "announce", announce)
    before, numbers = stored(), {version.version for version in store.versions()}
    owner: Any = steps if change == "announce" else MlflowClient
    do = getattr(owner, change)

    def die(*arguments: Any, **options: Any) -> None:
        if after:
            do(*arguments, **options)
        raise Died

    name = f"{change} {after}"
    with monkeypatch.context() as patch:
        patch.setattr(owner, change, die)
        with pytest.raises(Died):
            project.train(name, rewards(0.3, 1))
    number = project.train(name, rewards(0.3, 1))
    (version,) = (version for version in store.versions() if version.version not in numbers)
    assert str(version.version) == number
    assert stored() == before | {model_id(version): "READY"}
    assert store.download(version, "artifacts/policy", project.root / f"back {name}").is_dir()
    between = (change, after) in (("announce", True), ("set_model_version_tag", False))  # rather twice than never
    assert sent == [number] * (2 if between else 1)
    assert project.train(name, rewards(0.3, 1)) == number and len(store.versions()) == len(numbers) + 1


def test_what_is_withdrawn_is_not_to_be_promoted_any_more(project: Project) -> None:
    store = Registry(project.settings.tracking, project.root)
    number = project.train("withdrawn", rewards(0.3, 1))
    store.note_gate(number, {"promote": True, "promoted": False, "against": "", "reason": "it is better"})
    store.withdraw(number)
    assert "challenger" not in store.aliases()
    assert '"promote": false' in store.get(number).tags["gate"]
    assert "**Gate:** withdrawn; it was: it is better" in store.get(number).description


def once(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a server that answers the first time alone."""
    answers = iter([call])
    return lambda *given: next(answers, failing)(*given)


@pytest.mark.parametrize(
    ("call", "rate"), [("set_model_version_tag", 0.3), ("delete_registered_model_alias", 0.9)], ids=["verdict", "alias"]
)
def test_who_dies_behind_the_alias_is_noted_as_champion_next_time(
    project: Project, monkeypatch: pytest.MonkeyPatch, call: str, rate: float
) -> None:
    """Before, it had "yet to become champion" for ever, and `sweetrl status` asked for a promotion that did nothing."""
    version, store = project.train(f"dies {call}", rewards(rate, 1)), Registry(project.settings.tracking, project.root)
    result = judge(project.settings, project.root, version, quiet)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, once(getattr(MlflowClient, call)) if call.startswith("set") else failing)
        with pytest.raises(UserError, match=f"cannot make version {version} the champion"):
            take_over(project.settings, project.root, result)
    assert store.aliases() == {"champion": version, "challenger": version}
    folders = project.root, project.root
    _, gate = training._register(project.settings, *folders, Steps(say=quiet), None, unchanged=True)
    assert gate is not None and "is the champion already" in gate.reason and result.decision is not None
    assert store.aliases() == {"champion": version} and store.history()[-1].reason == result.decision.reason
    assert json.loads(store.get(version).tags["gate"])["promoted"] is True
    assert "yet to become" not in store.get(version).description


def test_results_that_are_stored_in_part_are_taken_for_none(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails behind the first file: before, the version's tag said that all were of the tasks before."""
    first, store = project.train("in part", rewards(0.9, 1)), Registry(project.settings.tracking, project.root)
    write_rewards(project.root, {f"other-{number}": 0.0 for number in range(40)})
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_model_artifact", once(MlflowClient.log_model_artifact))
        with pytest.raises(MlflowException, match="503"):
            store.attach_evaluation(first, project.root, {"evaluation_key": "of other tasks"})
    lines: list[str] = []

    def evaluation(stage: str, command: list[str], folder: Path, *rest: object) -> None:
        write_rewards(folder, rewards(0.9, 1))

    monkeypatch.setattr(promotion, "run_command", evaluation)
    judge(project.settings, project.root, first, lines.append)
    assert lines == [f"version {first} was evaluated on other tasks or in another way: evaluating it again"]
    assert measured(store, store.get(first)).rewards.keys() == set(TASKS)


def test_a_models_name_may_have_a_dot(project: Project) -> None:
    """MLflow takes one in a registered model's name, and not in a logged one's: before, a trace ended the training."""
    other = Project(project.root, parse_settings({"tracking": {"model": "qwen2.5-agent"}}))
    version, store = other.train("dotted", rewards(0.5, 1)), Registry(other.settings.tracking, other.root)
    assert store.aliases() == {"challenger": version}
    (unused,) = retention.unused_models(store, (), time.time() + 60)
    assert unused.model_id == model_id(store.get(version)), "pruning knows it as its own"
