"""What the viewer's page costs: the first paint of a list of 10,000 dialogues and its filters, beside a bare page.

    python benchmarks/viewer.py [--dialogues 10000] [--rounds 5] [--json OUT]
    python benchmarks/viewer.py --pictures docs/images [--folder .]

Dialogues are made by script, exported with `sweetrl view --export`, and opened from the disk in Chromium. First paint
is the time from the beginning of the navigation to the frame after the list's first row is in the page; a filter's is
the time from the change of the address to the second frame after it. The bare page has one paragraph: its first paint,
and two frames after a change of one word. Both are measured in the same browser, in turn. Medians over rounds.

--pictures writes the docs' pictures of the project in --folder: list, dialogue, two dialogues, overview, data quality.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "viewer"))

from chromium import Chromium
from made import evaluated

from sweetrl.backend.suite import generate
from sweetrl.browser.binary import find_browser
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings, load_settings
from sweetrl.viewer.export import export
from sweetrl.viewer.run import open_viewer

FILTERS = (
    "success=no",
    "fault=premature&success=no&sort=-questions",
    "topic=gym&turns=3..",
    "won=trained&lost=base",
    "method=trained&first_fault=repeated",
    "sort=-turns",
    "reward=..0.99&questions=3..",
)
BARE = "<!doctype html><title>bare</title><p>bare</p>"
# Notes when what is waited for has been painted: the frame after the one in which it is in the page.
WATCH = """new MutationObserver((_, watcher) => {
  if (!document.querySelector('.inner .row, p:only-child')) return;
  watcher.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = performance.now(); }));
}).observe(document, {childList: true, subtree: true});"""
FRAMES = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"


def make(folder: Path, count: int) -> None:
    """Write `count` dialogues of two policies."""
    for policy in ("base", "trained"):
        store = TrajectoryStore(folder / "data/evaluation" / policy)
        tasks = islice(generate("test", count // 2, 7, 3), count // 2)
        dialogues = [evaluated(number, task, policy) for number, task in enumerate(tasks)]
        for shard, start in enumerate(range(0, len(dialogues), 256)):
            store.write_shard(shard, dialogues[start : start + 256])


def first_paint(browser: Chromium, address: str) -> float:
    """Milliseconds from the navigation to the frame in which the page shows something."""
    tab = browser.tab()
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    tab.call("Page.navigate", url=address)
    tab.until("window.painted > 0")
    painted = tab.js("window.painted")
    tab.close()
    return float(painted)


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the exported page in `folder` beside a bare one."""
    (folder / "bare.html").write_text(BARE)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    pages = {"bare": f"file://{folder}/bare.html", "list": f"file://{folder}/index.html"}
    browser = Chromium(find_browser(), 0)
    try:
        paints: dict[str, list[float]] = {"bare": [], "list": []}
        for number in range(rounds + 1):
            for name, address in pages.items():
                milliseconds = first_paint(browser, address)
                if number:  # the first one warms the browser
                    paints[name].append(milliseconds)
        bare = browser.tab()
        bare.call("Page.navigate", url=pages["bare"])
        bare.until("!!document.querySelector('p')")
        tab = browser.tab()
        tab.go(pages["list"])
        spent: dict[str, list[float]] = {"bare": [], **{query: [] for query in FILTERS}}
        for _ in range(rounds):
            change = "document.querySelector('p').textContent = String(Math.random());"
            spent["bare"].append(timed(bare, change))
            for query in FILTERS:
                spent[query].append(timed(tab, f"sweetrl.go('#/dialogues?{query}', true);"))
        rows = {
            query: tab.js(f"(sweetrl.go('#/dialogues?{query}', true), sweetrl.list.rows.length)") for query in FILTERS
        }
    finally:
        browser.close()
    return {
        "first_paint": {name: statistics.median(some) for name, some in paints.items()},
        "filters": {name: statistics.median(some) for name, some in spent.items()},
        "rows": rows,
    }


def timed(tab: Any, change: str) -> float:
    """Milliseconds from a change to the second frame after it."""
    program = (
        f"(async () => {{ const start = performance.now(); {change} {FRAMES} return performance.now() - start; }})()"
    )
    return float(tab.js(program))


def pictures(folder: Path, out: Path) -> None:
    """Write pictures of the pages of the project in `folder`, light and dark, at three widths."""
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
                ("list-2560", "#/dialogues", 2560, 1300, False),
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
    parser.add_argument("--dialogues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    options.json = options.json and options.json.absolute()
    if options.pictures:
        pictures(options.folder, options.pictures)
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        root = Path(place)
        os.environ["XDG_CACHE_HOME"] = str(root)  # and outside of a project: the table is made, not found
        os.chdir(root)
        make(root / "project", options.dialogues)
        started = time.monotonic()
        viewer = open_viewer(str(root / "project"), Settings(), root / "links")
        indexed = time.monotonic() - started
        export(viewer, root / "out", 0)
        written = time.monotonic() - started - indexed
        root.chmod(0o755)
        numbers = measure(root / "out", options.rounds)
        numbers |= {"dialogues": viewer.dialogues.catalogue.count, "index_seconds": indexed, "export_seconds": written}
        numbers["bytes"] = sum(path.stat().st_size for path in (root / "out").rglob("*") if path.is_file())
    for what, unit in (("first_paint", "first paint"), ("filters", "filter")):
        bare = numbers[what]["bare"]
        for name, value in numbers[what].items():
            print(f"{unit:12} {name:44} {value:8.1f} ms  {value / bare:6.2f} times the bare page")
    cost = f"indexed in {indexed:.1f} s, exported in {written:.1f} s, {numbers['bytes'] / 1e6:.0f} MB"
    print(f"{numbers['dialogues']:,} dialogues: {cost}")
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
