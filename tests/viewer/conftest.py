"""A small project, the viewer of it at an address and as a folder, and a Chromium that looks at both."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweetrl.browser.binary import find_browser
from sweetrl.config.settings import Settings, load_settings

sys.path.insert(0, str(Path(__file__).resolve().parent))  # tests are no package

from chromium import Chromium, serving
from made import make_project

from sweetrl.viewer.export import export
from sweetrl.viewer.rows import KINDS
from sweetrl.viewer.run import open_viewer
from sweetrl.viewer.server import Viewer


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the project's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sweetrl.viewer.index.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def other(project: Path, tmp_path: Path) -> Path:
    """A copy of the project, to be changed."""
    return Path(shutil.copytree(project, tmp_path / "project"))


@pytest.fixture(scope="session")
def settings(project: Path) -> Settings:
    return load_settings(project / "params.yaml")


@pytest.fixture(scope="session")
def viewer(project: Path, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Viewer:
    return open_viewer(str(project), settings, tmp_path_factory.mktemp("links"))


@pytest.fixture(scope="session")
def rows(viewer: Viewer) -> list[dict[str, Any]]:
    """All rows of the table with their words and their numbers."""
    catalogue = viewer.dialogues.catalogue
    columns = catalogue.rows(0)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for number, row in enumerate(rows):
        row |= {name: catalogue.names[name][row[name]] for name, kind in KINDS.items() if kind == "word"}
        row["row"] = number
    return rows


@pytest.fixture(scope="session")
def address(viewer: Viewer) -> Iterator[str]:
    with serving(viewer) as served:
        yield served


@pytest.fixture(scope="session")
def folder(viewer: Viewer) -> Iterator[Path]:
    """The exported viewer, where a browser of another user can read it."""
    with tempfile.TemporaryDirectory(prefix="sweetrl-viewer-") as place:
        out = Path(place) / "out"
        export(viewer, out, 3)
        for path in (out.parent, out, *out.rglob("*")):
            path.chmod(0o755)
        yield out


@pytest.fixture(scope="session")
def chromium(browser: None) -> Iterator[Chromium]:
    running = Chromium(find_browser(), 0)
    yield running
    running.close()
