"""The command `sweetrl view`: find what is looked at, make the table, and serve the page or write it as a folder."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.paths import CRITIC
from sweetrl.viewer.dialogue import Dialogues
from sweetrl.viewer.heat import Heat
from sweetrl.viewer.index import open_catalogue
from sweetrl.viewer.labels import Labels
from sweetrl.viewer.overview import TrackedRuns
from sweetrl.viewer.rows import Domains
from sweetrl.viewer.sources import find_sources, find_target

if TYPE_CHECKING:
    from sweetrl.config.settings import Settings
    from sweetrl.viewer.server import Viewer


def open_viewer(name: str, settings: Settings, scratch: Path) -> Viewer:
    """Return the viewer of what `name` means (sources.find_target); the table is made if it is not in the cache."""
    from sweetrl.viewer.server import Viewer

    target, domains = find_target(name, settings, scratch), Domains(settings)
    dialogues = Dialogues(open_catalogue(find_sources(target.folder), domains), TrackedRuns(settings, target))
    return Viewer(target, dialogues, Heat(domains, target.folder / CRITIC), Labels(settings.suite))


def open_browser(address: str) -> None:
    """Open `address` in the reader's browser, if there is one with windows; one in the terminal would take it over."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    if sys.stdout.isatty() and type(browser) is not webbrowser.GenericBrowser:
        browser.open(address)


def view(
    name: str,
    settings: Settings,
    *,
    host: str,
    port: int,
    out: Path | None,
    sample: int,
    browser: bool,
    say: Callable[[dict[str, object]], None],
) -> None:
    """Serve the viewer until interrupted, or write it into the folder `out`; `say` is called with where it is."""
    with tempfile.TemporaryDirectory(prefix="sweetrl-view-") as scratch:
        viewer = open_viewer(name, settings, Path(scratch))
        count = viewer.dialogues.catalogue.count
        if out is not None:
            from sweetrl.viewer.export import export

            export(viewer, out, sample)
            say({"of": viewer.target.title, "dialogues": count, "written": str(out / "index.html")})
            return
        from sweetrl.viewer.server import serve

        def opened(address: str) -> None:
            say({"of": viewer.target.title, "dialogues": count, "address": address})
            sys.stdout.flush()  # whoever reads it from a pipe waits for the address
            if browser:
                open_browser(address)

        serve(viewer, host, port, opened)
