"""Stages on their own: they write their run files, and nothing into a store of MLflow unless a test wants that."""

import pytest


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
