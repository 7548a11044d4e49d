"""More uses of the page: columns, files, turns, messages as written, colours."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, Tab, wait_for
from made import HOSTILE, TESTS
from test_page import Row, listed, tab

from sweetrl.viewer.rows import KINDS
from sweetrl.viewer.server import Viewer

__all__ = ["tab"]  # a fixture of the other module
DIALOGUE = f"#/dialogue/data%2Fevaluation%2Ftrained/{TESTS[3].id}/0"


@pytest.fixture
def downloads(chromium: Chromium) -> Iterator[Path]:
    """Where the browser, which may be another user, puts files."""
    with tempfile.TemporaryDirectory(prefix="sweetrl-downloads-") as place:
        Path(place).chmod(0o777)
        chromium.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=place)
        yield Path(place)


def taken(folder: Path, name: str) -> str:
    """The text of a file once it has been written."""
    path = folder / name
    wait_for(lambda: path.exists() and not list(folder.glob("*.crdownload")))
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def test_columns_can_be_chosen(tab: Tab, rows: list[Row]) -> None:
    def heads() -> list[str]:
        titles: list[str] = tab.js("[...document.querySelectorAll('.head .cell')].map(el => el.textContent)")
        return titles

    tab.size(1280, 900)
    listed(tab, "#/dialogues?method=trained")
    usual = heads()
    assert usual[0] == "Task" and "Tokens" not in usual
    tab.click(".listbar .menu summary")
    for key in ("tokens", "request", "answer", "topic"):
        tab.click(f'[data-column="{key}"]')
        assert tab.js("document.activeElement === document.body || !!document.querySelector('.menu[open]')")
    assert "Tokens" in heads() and "Request" in heads() and "Domain" not in heads()
    assert "columns=" in tab.js("location.hash") and "method=trained" in tab.js("location.hash")
    first = tab.js("sweetrl.list.rows[0]")
    assert tab.text(".inner .row .tokens") == str(rows[first]["tokens"])
    tab.until("document.querySelector('.inner .its-request').textContent.length > 20")
    assert tab.text(".inner .row .its-request").startswith(TESTS[0].problem_description[:20])
    tab.until("document.querySelector('.inner .its-answer').textContent.includes('def ')")
    for key in ("tokens", "request", "answer", "topic"):
        tab.click(f'[data-column="{key}"]')
    assert heads() == usual and "columns=" not in tab.js("location.hash")
    tab.key("Escape")


def test_names_of_tasks_are_not_cut_and_a_narrow_page_keeps_its_columns(tab: Tab) -> None:
    for width in (1280, 1241, 390):
        tab.size(width, 900)
        listed(tab, "#/dialogues?method=trained&columns=request,tokens" if width == 390 else "#/dialogues")
        cut = "[...document.querySelectorAll('.inner .cell.task a')].filter(el => el.scrollWidth > el.clientWidth)"
        assert tab.js(f"{cut}.length") == 0, width
    assert "/10" in tab.text(".inner .row .passed") and "trained" in tab.text(".inner .row .method")
    tab.size(1280, 900)


def test_the_list_is_written_as_a_table(tab: Tab, rows: list[Row], downloads: Path) -> None:
    numbers = listed(tab, "#/dialogues?method=base&sort=-turns")
    tab.press("Numbers (CSV)")
    written = list(csv.DictReader(io.StringIO(taken(downloads, "dialogues.csv"))))
    assert list(written[0]) == list(KINDS) and len(written) == len(numbers)
    for line, number in zip(written, numbers, strict=True):
        row = rows[number]
        assert line["task"] == row["task"] and line["method"] == "base"
        assert line["success"] == str(bool(row["success"])).lower()
        assert line["advantage"] == "" and float(line["reward"]) == pytest.approx(row["reward"], abs=1e-6)
    assert tab.js("sweetrl.files.csv([]).split('\\r\\n').length") == 2
    tab.js("sweetrl.data.tasks[0] = '=1+\"x\"'; 0")
    assert tab.js("sweetrl.files.csv([0]).split('\\r\\n')[1]").startswith('"\'=1+""x""",')
    tab.js(f"sweetrl.data.tasks[0] = {json.dumps(rows[0]['task'])}; 0")
    tab.js("sweetrl.data.meta.kinds['part of a, b'] = 'number'; 0")
    assert tab.js("sweetrl.files.csv([]).split('\\r\\n')[0]").endswith(',"part of a, b"')
    tab.js("delete sweetrl.data.meta.kinds['part of a, b']; 0")


def test_dialogues_are_written_in_full(tab: Tab, viewer: Viewer, downloads: Path) -> None:
    numbers = listed(tab, "#/dialogues?outcome=lost&columns=task,tokens")
    tab.press("Dialogues (JSON Lines)")
    (line,) = taken(downloads, "dialogues.jsonl").splitlines()
    expected = viewer.dialogues.describe(numbers[0])
    del expected["row"]
    assert json.loads(line) == json.loads(json.dumps(expected))
    tab.to(DIALOGUE)
    tab.until("document.querySelectorAll('.message').length > 2")
    for word, name in (("JSON", "json"), ("Text", "txt")):
        tab.js(
            "[...document.querySelectorAll('.about .menu')].find(el => el.innerText.startsWith('Download'))"
            f".querySelectorAll('button')[{0 if word == 'JSON' else 1}].click(); 0"
        )
        text = taken(downloads, f"data-evaluation-trained-{TESTS[3].id}-0.{name}".replace("-0.", "."))
        if name == "json":
            assert json.loads(text)["messages"][2]["pieces"][0][1] == HOSTILE
        else:
            assert f"User: {HOSTILE}" in text and "Agent: I WANT TO ANSWER:\n```python" in text


def test_turns_are_links(tab: Tab) -> None:
    tab.to("#/dialogues")
    tab.to(f"{DIALOGUE}?turn=2")
    tab.until("!!document.activeElement.closest('.message.assistant')")
    assert "turn 2" in tab.js("document.activeElement.innerText")
    turns = tab.js("document.querySelectorAll('.outline a').length")
    assert turns == tab.js("document.querySelectorAll('.message.assistant').length")
    tab.js("window.same = document.querySelector('.message'); 0")
    tab.click(".outline a:last-child")
    assert tab.js("location.hash").endswith(f"turn={turns}")
    assert f"turn {turns}" in tab.js("document.activeElement.innerText")
    assert tab.js("window.same.isConnected"), "the page is not drawn again"
    assert "needed" in tab.js("document.querySelector('.outline a').getAttribute('aria-label')")


def test_messages_as_written_and_one_of_them_copied(tab: Tab) -> None:
    tab.to(DIALOGUE)
    tab.until("document.querySelectorAll('.message').length > 2")
    assert tab.js("!!document.querySelector('.message .code')")
    tab.press("As written")
    shown = tab.js("[...document.querySelectorAll('.message.assistant .written')].pop().textContent")
    assert shown.startswith("I WANT TO ANSWER:\n```python\n") and not tab.js(
        "!!document.querySelector('.message .code')"
    )
    tab.press("As written")
    assert tab.js("!!document.querySelector('.message .code')")
    tab.js("window.copied = []; sweetrl.copy = (text, what) => window.copied.push([what, text]); 0")
    tab.js("[...document.querySelectorAll('.message.assistant .copyone')].pop().click(); 0")
    assert tab.js("window.copied") == [["Message", shown]]


GROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(244, 246, 248)", "rgb(12, 18, 27)"


def test_light_and_dark_by_system_and_by_choice(tab: Tab) -> None:
    def system(value: str) -> None:
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    tab.to("#/dialogues")
    tab.js("document.activeElement.blur(); 0")
    system("light")
    assert tab.js(GROUND) == LIGHT
    system("dark")
    assert tab.js(GROUND) == DARK
    tab.key("t")
    assert tab.js(GROUND) == LIGHT and tab.js("document.documentElement.dataset.theme") == "light"
    system("light")
    assert tab.js(GROUND) == LIGHT
    tab.key("t")
    system("dark")
    assert tab.js(GROUND) == DARK and tab.js("document.documentElement.dataset.theme") == "dark"
    system("light")
    assert tab.js(GROUND) == DARK
    tab.key("t")
    assert tab.js(GROUND) == LIGHT and tab.js("document.documentElement.dataset.theme") is None, "the system's again"
    system("dark")
    assert tab.js(GROUND) == DARK
    tab.call("Emulation.setEmulatedMedia", features=[])
