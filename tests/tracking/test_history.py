"""The history of champions, in tags of the versions: the alias decides, also where a process died before it moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import TrackingSettings
from sweetrl.errors import UserError
from sweetrl.tracking import limits
from sweetrl.tracking.registry import CHAMPION, Registry
from sweetrl.tracking.store import Store
from tests.tasks.fake_project import Client

LONG = "promoted: the challenger beats the champion (mean reward +0.100), p\u0000 = 1\u202e" + "é" * 9000


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    client: Any = Client(tmp_path / "registry.json")
    client.change("versions", lambda locks: ["a lock"] * 9)
    return Registry(TrackingSettings(), store=Store(client, "a file", "0"))


def history(registry: Registry) -> list[str]:
    return [entry.version for entry in registry.history()]


def sixty_champions(registry: Registry) -> None:
    """Promote 60 versions, one after the other, go 10 back, and check that the history has it all."""
    client, name = registry.client, registry.name
    client.create_registered_model(name)
    for number in range(1, 61):
        logged = client.create_logged_model(registry.store.experiment_id, name)
        client.create_model_version(name, f"models:/{logged.model_id}", model_id=logged.model_id)
        registry.promote(str(number), f"{number} {LONG}")
    registry.note_gate("60", {"promote": True, "promoted": True, "reason": LONG})
    back = [str(number) for number in range(59, 49, -1)]
    for version in back:
        registry.promote(version, f"restored in the place of version {int(version) + 1}")
    entries = registry.history()
    assert [entry.version for entry in entries] == [str(number) for number in range(1, 61)] + back
    assert [entry.number for entry in entries] == [*range(1, 71)]
    assert all(entry.reason.startswith(f"{entry.number} promoted: ") and entry.time for entry in entries[:60])
    assert registry.aliases() == {CHAMPION: "50"}
    assert len(registry.versions("tags.`champion.70` LIKE '%version 51%'")) == 1, "found by search"
    assert registry.get("60").description.startswith("**Gate:** promoted: the challenger")


@pytest.mark.usefixtures("postgres_lengths")
def test_sixty_champions_and_ten_steps_back_fit_in_postgresqls_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, some fifteen champions filled a tag of the model, and none could be promoted any more."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    registry = Registry(TrackingSettings(), tmp_path)
    sixty_champions(registry)
    registry.client.delete_model_version(registry.name, "49")
    assert registry.history()[48].reason.startswith("not recorded: it was deleted since")
    with pytest.raises(UserError, match=r"version 50: MLflow keeps at most 65,535 bytes as `data`"):
        registry.tag("50", {"data": json.dumps("x" * 70_000)})
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError  # the fixture refuses what PostgreSQL refuses

    with pytest.raises((MlflowException, SQLAlchemyError), match="too long"):
        registry.client.update_model_version(registry.name, "50", "x" * (limits.TEXT + 1))


def test_promoting_the_champion_again_changes_nothing(registry: Registry) -> None:
    for version in ("1", "2", "2", "1", "2"):
        registry.promote(version, "by hand")
    assert history(registry) == ["1", "2", "1", "2"] and registry.aliases() == {CHAMPION: "2"}


@pytest.mark.parametrize("call", ["set_model_version_tag", "set_registered_model_alias"])
def test_a_promotion_that_died_is_as_if_it_had_not_begun_and_can_be_done_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def die(*arguments: str) -> None:
        raise KeyboardInterrupt

    registry.promote("1", "first")
    registry.promote("2", "second")
    for version in ("3", "1"):
        with monkeypatch.context() as patch:
            patch.setattr(registry.client, call, die)
            with pytest.raises(KeyboardInterrupt):
                registry.promote(version, "third")
        assert registry.aliases()[CHAMPION] == "2" and history(registry) == ["1", "2"]
    registry.promote("3", "third")
    registry.promote("4", "fourth")
    assert history(registry) == ["1", "2", "3", "4"]


def test_an_alias_that_was_moved_by_hand_is_part_of_the_history(registry: Registry) -> None:
    registry.promote("1", "first")
    registry.set_alias(CHAMPION, "7")
    assert history(registry) == ["1", "7"] and "not recorded" in registry.history()[-1].reason
    registry.promote("2", "second")
    assert history(registry) == ["1", "7", "2"]
