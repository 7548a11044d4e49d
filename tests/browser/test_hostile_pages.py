"""Pages that attack: nothing is reached, every page comes back in time, and the next page is right."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweetrl.browser import Renderer, devtools
from sweetrl.browser.page import Page
from sweetrl.config.settings import BrowserSettings
from tests.browser.hostile_pages import BOMBS, ODD, REACHES, SCRIPTED

SECRET = "canary-7261"
GOOD = (
    '<link href="https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css" rel="stylesheet">'
    '<body class="bg-gray-100"><nav class="bg-blue-700 text-white p-4 flex"><b>Name</b><a>Link</a></nav>'
    '<img src="https://picsum.photos/300/200"><p class="animate-bounce text-xl">Some text</p></body>'
)
# Colours that a document itself gives to its parts, which Tailwind's style sheet would hide.
PLAIN = "<p>Some <a href='#'>linked</a> text</p><input value=words><ul><li>item</ul>"


class Canary:
    """A server that counts who connects."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.hits = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.hits += 1
            connection.close()


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    server = Canary()
    with socket.create_connection(("127.0.0.1", server.port)):
        pass
    deadline = time.monotonic() + 60
    while server.hits == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.hits == 1, "the canary itself does not sing"
    server.hits = 0
    yield server
    server.socket.close()


@pytest.fixture(scope="module")
def secret() -> Iterator[Path]:
    """A file that everybody may read, like /etc/passwd."""
    path = Path(tempfile.mkdtemp(prefix="sweetrl-canary-")) / f"{SECRET}.html"
    path.parent.chmod(0o755)
    path.write_text(f"<body style='background:red'>{SECRET}")
    path.chmod(0o644)
    yield path
    shutil.rmtree(path.parent)


@pytest.fixture(scope="module")
def strict(browser: None) -> Iterator[Renderer]:
    """A renderer that has little patience with bombs."""
    with Renderer(BrowserSettings(cache="", tabs=2, seconds=1.0)) as renderer:
        yield renderer


@pytest.fixture(scope="module")
def good(renderer: Renderer) -> Page:
    return renderer.render(GOOD)


@pytest.fixture(scope="module")
def plain(renderer: Renderer) -> Page:
    return renderer.render(PLAIN)


def filled(html: str, canary: Canary, secret: Path) -> str:
    return html.replace("PORT", str(canary.port)).replace("FILE", str(secret))


def same(a: Page, b: Page) -> bool:
    return (a.png, a.elements, a.status) == (b.png, b.elements, b.status)


@pytest.mark.parametrize("name", REACHES)
def test_nothing_is_reached(name: str, renderer: Renderer, good: Page, canary: Canary, secret: Path):
    page = renderer.render(filled(REACHES[name], canary, secret))
    assert page.status == "ok"
    assert canary.hits == 0
    assert not any(SECRET in element.text for element in page.elements)
    if "FILE" in REACHES[name]:
        nowhere = renderer.render(filled(REACHES[name], canary, secret.with_name(SECRET)))
        assert page.png == nowhere.png, "the picture shows what is in the file"
    assert same(renderer.render(GOOD), good)


@pytest.mark.parametrize("name", ODD)
def test_odd_pages_come_back_and_leave_nothing(name: str, renderer: Renderer, good: Page, plain: Page):
    page = renderer.render(ODD[name])
    assert page.status == ("truncated" if name == "tall" else "ok")
    assert (page.width, page.height) == (1366, 8000 if name == "tall" else 682)
    assert same(renderer.render(GOOD), good)
    assert same(renderer.render(ODD[name]), page)
    assert same(renderer.render(PLAIN), plain)


def check_bomb(name: str, strict: Renderer, good: Page) -> None:
    page = strict.render(BOMBS[name])
    assert page.status in ("ok", "truncated", "timeout", "bad")
    assert not (page.status in ("timeout", "bad") and page.elements)
    assert page.height <= 8000
    assert same(strict.render(GOOD), good)


def test_a_bomb_is_given_up_and_the_next_page_is_right(strict: Renderer, good: Page):
    check_bomb("entity tree", strict, good)
    page = strict.render(BOMBS["entity tree"])
    assert (page.status, page.elements, page.width, page.height) == ("timeout", (), 1366, 682)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_given_up(name: str, strict: Renderer, good: Page):
    check_bomb(name, strict, good)


def test_a_bomb_does_not_spoil_pages_beside_it(strict: Renderer, good: Page):
    pages = list(strict.render_many([GOOD, BOMBS["entity tree"], GOOD, GOOD]))
    assert [page.status for page in pages] == ["ok", "timeout", "ok", "ok"]
    assert all(same(pages[at], good) for at in (0, 2, 3))


def test_nothing_hung_stays_behind(strict: Renderer):
    strict.render(BOMBS["entity tree"])
    strict.render(GOOD)
    browser = strict._service._current.browser  # type: ignore[union-attr]
    time.sleep(0.5)
    before = browser.cpu_seconds()
    time.sleep(1.0)
    assert browser.cpu_seconds() - before < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTED)
def test_scripts_do_no_harm_where_they_are_allowed(name: str, browser: None, canary: Canary, secret: Path):
    settings = BrowserSettings(cache="", tabs=1, seconds=1.0, javascript=True)
    with Renderer(settings) as scripted:
        before = scripted.render(GOOD)
        page = scripted.render(filled(SCRIPTED[name], canary, secret))
        assert page.status in ("ok", "truncated", "timeout", "bad")
        assert same(scripted.render(GOOD), before)
    assert canary.hits == 0


@pytest.mark.slow
def test_without_namespaces_the_browser_still_reaches_nothing(
    browser: None, canary: Canary, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where the machine allows no namespaces, interception and the browser's own rules remain."""
    launcher = devtools._LAUNCHER.read_text()
    assert "if _libc.unshare(" in launcher
    crippled = tmp_path / "launch.py"
    crippled.write_text(launcher.replace("if _libc.unshare(", "if True or _libc.unshare("))
    monkeypatch.setattr(devtools, "_LAUNCHER", crippled)
    with Renderer(BrowserSettings(cache="", tabs=1, seconds=6.0)) as bare:
        for name, html in REACHES.items():
            page = bare.render(filled(html, canary, secret))
            assert page.status == "ok", name
            assert canary.hits == 0, name
        assert not bare.isolated
        reached = bare.render(filled(REACHES["files"], canary, secret))
        nowhere = bare.render(filled(REACHES["files"], canary, secret.with_name(SECRET)))
        assert reached.png == nowhere.png
