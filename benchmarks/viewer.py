"""What `sweetrl view` takes of a study or a project: seconds until its page is complete, and memory.

    python benchmarks/viewer.py reproduce/small
    python benchmarks/viewer.py [FOLDER] --pictures docs/images

The command is started twice, first without the table of the dialogues, which it makes and keeps. Seconds are those from
its start until the page in Chromium has all dialogues; memory in MB is the server's and what the page's scripts
hold. With --pictures it writes the docs' pictures of the project in FOLDER instead: list, dialogue, two dialogues,
overview, data quality.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "viewer"))

from chromium import Chromium, wait_for

from sweetrl.browser.binary import find_browser
from sweetrl.config.settings import load_settings
from sweetrl.engines.vllm_server import free_port
from sweetrl.viewer.export import export
from sweetrl.viewer.run import open_viewer


def opened(folder: Path, browser: Chromium, cache: str) -> tuple[float, float, float]:
    """Start `sweetrl view`; return seconds until its page is complete, and MB of the server and of the page."""
    port, started = free_port(), time.monotonic()
    command = [sys.executable, "-m", "sweetrl.cli", "view", str(folder), "--port", str(port), "--no-browser"]
    with subprocess.Popen(command, env=os.environ | {"XDG_CACHE_HOME": cache}, stdout=subprocess.DEVNULL) as server:
        try:
            address = f"http://127.0.0.1:{port}/"
            wait_for(lambda: server.poll() is not None or answers(address), 3600.0)
            tab = browser.tab()
            tab.go(address)
            seconds = time.monotonic() - started
            page = tab.call("Runtime.getHeapUsage")["usedSize"] / 1e6
            tab.close()
            return seconds, psutil.Process(server.pid).memory_info().rss / 1e6, page
        finally:
            server.terminate()


def answers(address: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(address).is_success
    return False


def pictures(folder: Path, out: Path) -> None:
    """Write pictures of the pages of the project in `folder`, light and dark, at two widths."""
    with tempfile.TemporaryDirectory() as links, tempfile.TemporaryDirectory(dir="/tmp") as place:
        opened = open_viewer(str(folder), load_settings(folder / "params.yaml"), Path(links))
        viewer = replace(opened, target=replace(opened.target, title="the main job"))
        export(viewer, Path(place) / "out", 0)
        shutil.copy(folder / "reports" / "data-quality.html", place)
        for path in [Path(place), *Path(place).rglob("*")]:
            path.chmod(0o755)
        browser = Chromium(find_browser(), 0)
        try:
            address = f"file://{place}/out/index.html"
            tab = browser.tab()
            tab.go(address)
            ranked = tab.js(
                "(sweetrl.go('#/dialogues?needed_last=yes', true), sweetrl.list.address(sweetrl.list.rows[0]))"
            )
            pair = tab.js(
                "(sweetrl.go('#/dialogues?won=trained&lost=base', true),"
                " document.querySelector('.inner a').getAttribute('href'))"
            )
            tab.close()
            shots = (
                ("list", "#/dialogues?method=trained&success=no&sort=-questions", 1280, 800, False),
                ("list-360", "#/dialogues?method=trained&success=no&sort=-questions", 360, 740, False),
                ("dialogue", ranked, 1280, 900, False),
                ("dialogue-dark", ranked, 1280, 900, True),
                ("two", pair, 1280, 800, False),
                ("overview", "#/overview", 1280, 1100, False),
            )
            for name, fragment, width, height, dark in shots:
                tab = browser.tab(width, height, dark)
                tab.go(address + fragment)
                tab.until("document.querySelectorAll('.inner .row, .charts .card, .message').length > 0")
                tab.js(
                    "[...document.querySelectorAll('details.sampled')].slice(0, 1).forEach(one => one.open = true); 0"
                )
                time.sleep(0.3)
                out.mkdir(parents=True, exist_ok=True)
                tab.picture(out / f"viewer-{name}.png")
                tab.close()
            tab = browser.tab(1280, 900, False)
            tab.call("Page.navigate", url=f"file://{place}/data-quality.html")
            tab.until("document.readyState === 'complete' && document.querySelector('table') !== null")
            tab.picture(out / "data-quality.png")
            tab.close()
        finally:
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    if options.pictures:
        pictures(options.folder, options.pictures)
        return
    browser = Chromium(find_browser(), 0)
    try:
        with tempfile.TemporaryDirectory() as cache:
            for name in ("first call", "second call"):
                seconds, server, page = opened(options.folder, browser, cache)
                print(f"{name}: {seconds:.1f} s, server {server:.0f} MB, page {page:.0f} MB", flush=True)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
