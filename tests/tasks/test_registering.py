"""A registration is a sequence over several systems: where a process dies, the next one finishes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from mlflow import MlflowClient

from sweetrl.config.settings import Settings
from sweetrl.tracking import registry
from sweetrl.tracking.registry import Registry, model_id
from tasks import steps
from tests.tasks import test_promotion
from tests.tasks.test_promotion import Project, rewards, save

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
