"""Rules that are checked without Great Expectations' seconds."""

from __future__ import annotations

import pytest

from sweetrl.ingest import checks
from tests.ingest.made import check_plainly


@pytest.fixture
def plain_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "run_tables", check_plainly)
