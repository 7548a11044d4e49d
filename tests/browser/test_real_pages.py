"""The real pages: none fails, and pixels and facts do not depend on process, order or pages beside them."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from sweetrl.browser import Page, Renderer, prepare, tailwind

ROOT = Path(__file__).resolve().parents[2]
IN_A_PROCESS = """
import hashlib, json, random, sys
from sweetrl.browser import Renderer
from sweetrl.config.settings import BrowserSettings
path, tabs, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pages = [json.loads(line) for line in open(path)]
order = random.Random(seed).sample(range(len(pages)), len(pages))
with Renderer(BrowserSettings(cache="", tabs=tabs)) as renderer:
    made = dict(zip(order, renderer.render_many(pages[at] for at in order)))
marks = {at: hashlib.sha256(page.png + repr(page.elements).encode()).hexdigest() for at, page in made.items()}
out = {at: [page.status, marks[at]] for at, page in made.items()}
print(json.dumps(out))
"""


def fingerprint(page: Page) -> list[str]:
    return [page.status, hashlib.sha256(page.png + repr(page.elements).encode()).hexdigest()]


def test_the_first_pages(renderer: Renderer, real_pages: list[str]):
    htmls = real_pages[:12]
    pages = list(renderer.render_many(htmls))
    backwards = list(renderer.render_many(reversed(htmls)))[::-1]
    assert [fingerprint(page) for page in pages] == [fingerprint(page) for page in backwards]
    for page in pages:
        assert page.status == "ok"
        assert len(page.elements) >= 5 and any(element.text for element in page.elements)


@pytest.mark.slow
def test_all_are_equal_across_processes_and_concurrency(browser: None, real_pages: list[str], tmp_path: Path):
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(json.dumps(page) + "\n" for page in real_pages), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    marks = []
    for tabs, seed in ((1, 0), (4, 1)):
        command = [sys.executable, "-c", IN_A_PROCESS, str(path), str(tabs), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        marks.append(json.loads(done.stdout))
    assert marks[0] == marks[1]
    assert len(marks[0]) == len(real_pages)
    assert {status for status, _ in marks[0].values()} == {"ok"}


@pytest.mark.slow
def test_purged_and_full_style_sheets_give_equal_pixels(
    renderer: Renderer, real_pages: list[str], monkeypatch: pytest.MonkeyPatch
):
    htmls = real_pages[:20]
    purged = [fingerprint(page) for page in renderer.render_many(htmls)]
    full = lzma.decompress(files("sweetrl.browser").joinpath("vendor", tailwind._FILE).read_bytes()).decode()
    monkeypatch.setattr(prepare.tailwind, "purge", lambda classes: full)
    assert [fingerprint(page) for page in renderer.render_many(htmls)] == purged
