"""`sweetrl gate`: what the next comparison could see; with comparisons behind it in tests/tasks/test_promotion.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.config.settings import GateSettings, TrackingSettings, parse_settings
from sweetrl.errors import UserError
from sweetrl.tracking.comparisons import plan


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SWEETRL_TRACKING", "on")
    return tmp_path


def test_a_new_project_has_a_plan_and_no_store_is_made_for_it(root: Path) -> None:
    settings = parse_settings({"gate": {"spending": "none"}})
    found = plan(settings.gate, settings.tracking, 0.95, 1000, root)
    assert (found.champion, found.tasks, found.number, found.alpha) == (None, 1000, 1, pytest.approx(0.05))
    assert (found.discordance, found.seen, found.needed, found.slice_needed) == (0.2, 0, 626, 157)
    assert found.detectable == pytest.approx(0.0396, abs=1e-3)
    rows = dict(found.rows())
    assert rows["0.05 needs"] == "about 626 tasks, with a chance of 80 %"
    assert "assumed: gate.discordance" in rows["versions differ"]
    assert list(root.iterdir()) == []
    few = plan(settings.gate, settings.tracking, 0.95, 3, root, difference=0.1, discordance=0.4)
    assert (few.wanted, few.detectable, few.discordance) == (0.1, None, 0.4)
    assert dict(few.rows())["these tasks show"] == "nothing"


@pytest.mark.parametrize("values", [{"difference": 0.0}, {"difference": 2.0}, {"discordance": -1.0}])
def test_what_cannot_be_is_one_sentence(root: Path, values: dict[str, float]) -> None:
    (name,) = values
    with pytest.raises(UserError, match=f"--{name}: .* cannot be; give a number above 0"):
        plan(GateSettings(), TrackingSettings(), 0.95, 1000, root, **values)  # type: ignore[arg-type]
