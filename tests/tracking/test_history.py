"""Who was champion when: the alias is the truth, whoever died between writing it and writing the history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import TrackingSettings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHAMPION, Registry
from sweetrl.tracking.store import Store
from tests.tasks.fake_project import Client


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    client: Any = Client(tmp_path / "registry.json")
    client.change("versions", lambda known: ["a lock"] * 9)
    return Registry(TrackingSettings(), store=Store(client, "a file", "0"))


def history(registry: Registry) -> list[str]:
    return [entry.version for entry in registry.history()]


def dies(registry: Registry, monkeypatch: pytest.MonkeyPatch, call: str, action: Callable[[], object]) -> None:
    """Do `action`, and die where it calls `call` of the client."""

    def die(*arguments: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(registry.client, call, die)
        with pytest.raises(KeyboardInterrupt):
            action()


def test_rolling_back_again_and_again_leads_to_the_first_champion(registry: Registry) -> None:
    for version in ("1", "2", "3"):
        registry.promote(version, f"reason of {version}")
    assert [registry.step_back()[1].version for _ in range(2)] == ["2", "1"]
    assert registry.aliases() == {CHAMPION: "1"} and history(registry) == ["1"]
    with pytest.raises(UserError, match="there is no earlier champion to return to"):
        registry.step_back()


def test_promoting_the_champion_again_changes_nothing(registry: Registry) -> None:
    for version in ("1", "2", "2"):
        registry.promote(version, "by hand")
    assert history(registry) == ["1", "2"]
    assert registry.step_back()[1].version == "1"
    registry.promote("1", "by hand")
    assert history(registry) == ["1"]


@pytest.mark.parametrize("call", ["set_registered_model_tag", "set_registered_model_alias"])
def test_a_promotion_that_died_is_as_if_it_had_not_begun_and_can_be_done_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    registry.promote("1", "first")
    registry.promote("2", "second")
    dies(registry, monkeypatch, call, lambda: registry.promote("3", "third"))
    assert registry.aliases()[CHAMPION] == "2" and history(registry) == ["1", "2"]
    assert registry.champion_before().version == "1"
    registry.promote("3", "third")
    assert history(registry) == ["1", "2", "3"]
    assert registry.step_back()[1].version == "2"


@pytest.mark.parametrize(("call", "reached"), [("set_registered_model_alias", "2"), ("set_registered_model_tag", "1")])
def test_a_step_back_that_died_leaves_a_history_that_fits_the_alias(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, call: str, reached: str
) -> None:
    for version in ("1", "2"):
        registry.promote(version, "reason")
    dies(registry, monkeypatch, call, registry.step_back)
    assert registry.aliases()[CHAMPION] == reached == history(registry)[-1]
    registry.promote("3", "third")
    assert registry.step_back()[1].version == reached


def test_an_alias_that_was_moved_by_hand_is_part_of_the_history(registry: Registry) -> None:
    registry.promote("1", "first")
    registry.set_alias(CHAMPION, "7")
    assert history(registry) == ["1", "7"]
    assert registry.step_back()[1].version == "1"
