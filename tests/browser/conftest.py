"""A renderer for the tests, where the machine has a browser; and the real pages, where they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweetrl.browser import Renderer
from sweetrl.config.settings import BrowserSettings


@pytest.fixture(scope="session")
def renderer(browser: None) -> Iterator[Renderer]:
    """A renderer without a cache."""
    with Renderer(BrowserSettings(cache="", tabs=2)) as renderer:
        yield renderer


@pytest.fixture(scope="session")
def real_pages(real_frontend_tasks: Path) -> list[str]:
    """The pages of the real ColBench frontend tasks."""
    lines = real_frontend_tasks.read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["ground_truth"] for line in lines if line]
