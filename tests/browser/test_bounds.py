"""Bounds on a page and on its browser: how long a page is looked at, and which answers a browser may give."""

from __future__ import annotations

import io
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from sweetrl.browser import Renderer, devtools, facts, ink
from sweetrl.browser.devtools import Browser, BrowserGone, CallError
from sweetrl.browser.page import Box, Element
from sweetrl.config.settings import BrowserSettings


class ScriptedBrowser(Browser):
    """A browser whose messages are what a test writes to `output`."""

    def _start(self, program: Path, memory_mib: int) -> None:
        self._in, self.output = os.pipe()
        self.input, self._out = os.pipe()
        self._process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        threading.Thread(target=self._read, daemon=True).start()


@pytest.mark.parametrize(
    "message", [b"garbage\0", b"[]\0", b"[" * 50_000 + b"\0", b"\xff{}\0", b'{"id": []}\0', b"x" * 70_000]
)
def test_a_browser_that_cannot_be_understood_is_ended(message: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devtools, "LONGEST", 60_000)
    browser = ScriptedBrowser(Path("none"), 0)
    call = browser.send("Anything")
    threading.Thread(target=os.write, args=(browser.output, message), daemon=True).start()
    with pytest.raises(BrowserGone):
        browser.wait(call, 5.0)
    assert browser._process.wait(5.0) and not browser.alive
    browser.close()


@pytest.mark.parametrize("message", ['{"id": 1}', '{"id": 1, "result": []}', '{"id": 1, "error": 7}'])
def test_a_malformed_answer_is_a_refusal(message: str):
    browser = ScriptedBrowser(Path("none"), 0)
    call = browser.send("Anything")
    os.write(browser.output, message.encode() + b"\0")
    with pytest.raises(CallError):
        browser.wait(call, 5.0)
    assert browser.alive
    call = browser.send("Anything")
    os.write(browser.output, b'{"id": 2, "result": {"a": 1}}\0')
    assert browser.wait(call, 5.0) == {"a": 1}
    browser.close()


def test_a_page_whose_facts_cannot_be_read_is_bad_and_the_next_is_not(
    browser: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    read = facts.read_facts

    def odd(snapshot: dict[str, Any], width: int, height: int) -> facts.Facts:
        if any("odd words" in text for text in snapshot["strings"]):
            del snapshot["documents"][0]["layout"]
        return read(snapshot, width, height)

    monkeypatch.setattr(facts, "read_facts", odd)
    with Renderer(BrowserSettings(cache="", tabs=1)) as renderer:
        page = renderer.render("<p>odd words")
        assert (page.status, page.elements) == ("bad", ())
        assert renderer.render("<p>even words").elements[0].text == "even words"
    assert "cannot be read (KeyError: 'layout')" in caplog.text


def test_a_machine_that_allows_namespaces_and_no_mounts_has_a_browser(
    browser: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """As containers and some distributions do; what namespaces were to do is then left to the other layers."""
    launcher = devtools._LAUNCHER.read_text()
    assert "if _libc.mount(" in launcher
    crippled = tmp_path / "launch.py"
    crippled.write_text(launcher.replace("if _libc.mount(", "if True or _libc.mount("))
    monkeypatch.setattr(devtools, "_LAUNCHER", crippled)
    with Renderer(BrowserSettings(cache="", tabs=1, seconds=6.5)) as renderer:
        assert renderer.render("<p>words").elements[0].text == "words"
        assert not renderer.isolated


def test_letters_in_front_of_each_other_are_looked_at_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    """A page of a kilobyte can ask for thousands of letters, each as large as the page."""
    monkeypatch.setattr(ink, "_MOST", 1_300_000)
    image, bare = Image.new("RGB", (400, 500), "white"), io.BytesIO()
    image.save(bare, "PNG")
    ImageDraw.Draw(image).rectangle((50, 50, 300, 300), fill="black")
    png = io.BytesIO()
    image.save(png, "PNG")
    box = Box(0, 0, 400, 500)
    element = Element("b", box, "", (0, 0, 0), None, 500, False, "left", "", 0, -1)
    lines = tuple(facts.Line(index, "x", box, box, "x", "font-size:500px", None, False) for index in range(12))
    page_facts = facts.Facts((element,) * 12, lines, (255, 255, 255), (facts.Ground(box, (), (255, 255, 255)),) * 12)
    pictures = ink.Pictures(ink.pixels(png.getvalue()), bare.getvalue(), sheet=png.getvalue())
    seen, _ = ink.visible(pictures, page_facts)
    assert [bool(element.text) for element in seen] == [True] * 2 + [False] * 10


def test_gradients_are_looked_at_up_to_a_limit(renderer: Renderer, monkeypatch: pytest.MonkeyPatch):
    """Sixty grounds of a thousand colours took five minutes to look at."""
    monkeypatch.setattr(ink, "_MOST", 2_000_000)
    stops = ",".join(f"rgb({index % 256},{index * 7 % 256},{index * 13 % 256})" for index in range(1000))
    rule = f"b{{position:absolute;inset:0;background:linear-gradient({stops})}}"
    page = renderer.render(f"<!doctype html><style>{rule}</style>" + "<b></b>" * 60)
    assert page.status == "ok" and len(page.elements) == 60
    assert 0 < sum(element.background is not None for element in page.elements) < 10


def test_selects_are_read_in_time_that_grows_with_them(renderer: Renderer):
    def seconds(tag: str) -> float:
        began = time.thread_time()
        page = renderer.render(f"<{tag}></{tag}>" * 3000 + "<select><option>A<option selected>Second</select>")
        assert page.elements[-1].text == "Second"
        return time.thread_time() - began

    spent = [(seconds("select"), seconds("progress")) for _ in range(2)]
    assert min(selects for selects, _ in spent) < 4 * min(progresses for _, progresses in spent)
