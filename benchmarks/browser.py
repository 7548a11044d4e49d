"""What a rendered page costs: one reused browser against a browser for each page, and against Playwright where it is
installed (`pip install playwright`); and whether memory stays flat over thousands of pages.

    python benchmarks/browser.py [--pages 60] [--soak 3000] [--file TASKS.jsonl]

Counts processor seconds (this process, every process of the browser, Playwright's driver) up to the moment before a
browser is closed: wall time says little on a busy machine. Pages come from an official frontend task file; without one,
from a few of the benchmark's own.
"""

from __future__ import annotations

import argparse
import json
import lzma
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from sweetrl.browser import Renderer, tailwind
from sweetrl.browser.binary import find_browser
from sweetrl.browser.devtools import Browser
from sweetrl.browser.placeholders import picture, size
from sweetrl.browser.prepare import prepare
from sweetrl.browser.tab import Tab, View
from sweetrl.config.settings import BrowserSettings

LINK = '<link href="https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css" rel="stylesheet">'
SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "colbench" / "frontend_150.jsonl"


def own_pages() -> list[str]:
    sections = "".join(
        f"<section class='p-8 bg-white my-4'><h2 class='text-2xl font-bold'>Part {part}</h2><p class='text-gray-600'>"
        f"{'Some words about it. ' * 12}</p><img src='https://picsum.photos/{200 + part}/150'></section>"
        for part in range(4)
    )
    return [
        f"<html>{LINK}<body class='bg-gray-100'><nav class='bg-{color}-700 text-white p-4 flex'><b>Name</b>"
        f"<a>Link</a></nav><main class='max-w-4xl mx-auto'>{sections}</main></body></html>"
        for color in ("red", "green", "blue", "yellow", "indigo", "purple", "pink", "gray")
    ]


def load(path: Path) -> list[str]:
    if not path.exists():
        return own_pages()
    return [json.loads(line)["ground_truth"] for line in path.read_text(encoding="utf-8").splitlines()]


def own_cpu() -> float:
    """Processor seconds of this process alone."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def tree_cpu(pid: int) -> float:
    """Processor seconds of a process that runs, of everything below it, and of what they have waited for."""
    total = 0.0
    leader = psutil.Process(pid)
    for process in (leader, *leader.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def service(pages: list[str], tabs: int) -> dict[str, float]:
    """The renderer, without its cache; the start of the browser counts."""
    began, wall = own_cpu(), time.monotonic()
    with Renderer(BrowserSettings(cache="", tabs=tabs)) as renderer:
        for _ in renderer.render_many(pages):
            pass
        spent = tree_cpu(renderer._service._current.browser.pid)  # type: ignore[union-attr]
    return per_page(own_cpu() - began + spent, time.monotonic() - wall, len(pages))


def browser_for_each(pages: list[str]) -> dict[str, float]:
    """A new browser, the same purged page, the same picture and facts, and the end of the browser."""
    began, wall, spent = own_cpu(), time.monotonic(), 0.0
    program = find_browser()
    for page in pages:
        browser = Browser(program, 0)
        Tab(browser, 1366, 682).render(prepare(page), View(1366, 682, False), 8000, 60.0)
        spent += tree_cpu(browser.pid)
        browser.close()
    return per_page(own_cpu() - began + spent, time.monotonic() - wall, len(pages))


def playwright(pages: list[str], each: bool) -> dict[str, float] | None:
    """Playwright itself, where it is installed: all of Tailwind routed, a fresh context or (`each`) browser a page."""
    if find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    css = lzma.decompress(files("sweetrl.browser").joinpath("vendor", tailwind._FILE).read_bytes())

    def answer(route: Any) -> None:
        address = route.request.url
        dimensions = size(address)
        if "tailwind" in address:
            route.fulfill(body=css, content_type="text/css")
        elif dimensions is not None:
            route.fulfill(body=picture(*dimensions), content_type="image/svg+xml")
        else:
            route.abort()

    began, wall, spent = own_cpu(), time.monotonic(), 0.0
    with sync_playwright() as manager:
        (driver,) = psutil.Process().children()

        def browsers_cpu() -> float:
            return sum(tree_cpu(child.pid) for child in driver.children())

        chromium = None
        for html in pages:
            chromium = chromium or manager.chromium.launch(executable_path=str(find_browser()))
            context = chromium.new_context(viewport={"width": 1366, "height": 682})
            tab = context.new_page()
            tab.route("**/*", answer)
            tab.set_content(html)
            tab.screenshot(full_page=True)
            if each:
                spent += browsers_cpu()
                chromium.close()
                chromium = None
            else:
                context.close()
        spent += browsers_cpu() + sum(driver.cpu_times()[:2])
        if chromium is not None:
            chromium.close()
    return per_page(own_cpu() - began + spent, time.monotonic() - wall, len(pages))


def soak(pages: list[str], count: int) -> list[float]:
    """Proportional memory of the browser (MiB) as pages go by; with the shipped settings."""
    samples: list[float] = []

    def endless() -> Iterator[str]:
        for at in range(count):
            yield pages[at % len(pages)]

    with Renderer(BrowserSettings(cache="")) as renderer:
        for at, _ in enumerate(renderer.render_many(endless()), 1):
            if at % 100 == 0:
                samples.append(round(memory(renderer), 1))
                print(f"  {at} pages: browser {samples[-1]} MiB, this process {own_memory():.1f} MiB", flush=True)
    return samples


def memory(renderer: Renderer) -> float:
    total = 0
    for generation in list(renderer._service._all):
        leader = psutil.Process(generation.browser.pid)
        for process in (leader, *leader.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue
    return total / 2**20


def own_memory() -> float:
    return psutil.Process().memory_info().rss / 2**20


def per_page(cpu: float, wall: float, count: int) -> dict[str, float]:
    return {"cpu_seconds": round(cpu / count, 4), "wall_seconds": round(wall / count, 4), "pages": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=60, help="pages of each measurement (rivals: a third)")
    parser.add_argument("--soak", type=int, default=3000, help="pages of the memory measurement; 0: none")
    parser.add_argument("--file", type=Path, default=SHARED, help="official frontend task file")
    options = parser.parse_args()
    tailwind.purge(())  # read once for a process, not for a page
    loaded = load(options.file)
    pages = [loaded[at % len(loaded)] for at in range(options.pages)]
    rivals = pages[: max(len(pages) // 3, 1)]
    methods: dict[str, Callable[[], dict[str, float] | None]] = {
        "renderer, 1 tab": lambda: service(pages, 1),
        "a browser for each page": lambda: browser_for_each(rivals),
        "renderer, 4 tabs": lambda: service(pages, 4),
        "Playwright, fresh context, whole CSS routed": lambda: playwright(rivals, each=False),
        "Playwright, a browser for each page, whole CSS routed": lambda: playwright(rivals, each=True),
    }
    results: dict[str, dict[str, float] | None] = {}
    for name, method in methods.items():
        results[name] = method()
        print(f"{name}: {results[name] or 'not installed, not compared'}", flush=True)
    base = min(numbers["cpu_seconds"] for name, numbers in results.items() if numbers and name.startswith("renderer"))
    for name, numbers in results.items():
        if numbers:
            print(f"{numbers['cpu_seconds'] / base:6.1f} x the processor time of a page: {name}")
    if options.soak:
        parts = soak(loaded, options.soak)
        third = max(len(parts) // 3, 1)
        print(f"memory: at most {max(parts[:third])} MiB in the first third, {max(parts[-third:])} MiB in the last")


if __name__ == "__main__":
    main()
