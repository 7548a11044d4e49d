"""A renderer for the tests, where the machine has a browser; and the real pages, where they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweetrl.browser import Renderer
from sweetrl.browser.binary import find_browser
from sweetrl.config.settings import BrowserSettings
from sweetrl.errors import UserError

sys.path.insert(0, str(Path(__file__).resolve().parent))  # tests are no package


@pytest.fixture(scope="session")
def browser_program() -> Path:
    """The browser; skips where there is none."""
    try:
        return find_browser()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def renderer(browser_program: Path) -> Iterator[Renderer]:
    """A renderer without a cache."""
    with Renderer(BrowserSettings(cache="", tabs=2)) as made:
        yield made


@pytest.fixture(scope="session")
def real_pages(real_frontend_tasks: Path) -> list[dict[str, str]]:
    """The rows of the real ColBench frontend tasks."""
    return [json.loads(line) for line in real_frontend_tasks.read_text(encoding="utf-8").splitlines()]
