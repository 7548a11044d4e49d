"""What a page is: places, texts, colours, roles; what cannot be seen is not listed; crashes lose nothing."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image

from sweetrl.browser import Element, Page, Renderer
from sweetrl.browser.binary import find_browser
from sweetrl.browser.cache import PageCache
from sweetrl.config.settings import BrowserSettings
from sweetrl.errors import UserError
from tests.signals import ended, until

LINK = '<link href="https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css" rel="stylesheet">'
PAGE = (
    f"<html>{LINK}<body class='bg-gray-100'><nav class='bg-blue-700 text-white p-4 flex justify-between'>"
    "<b class='text-xl font-bold'>The  Name</b><ul class='flex space-x-4'><li><a href='#'>One</a></li></ul></nav>"
    "<main class='p-8 text-center'><h1 class='text-3xl'>Head <em>and</em> tail</h1>"
    "<img src='https://picsum.photos/300/200' class='mx-auto'><a class='bg-red-500 px-4 py-2 text-white'>Buy</a>"
    "<form><input placeholder='Your name'><select><option>A<option selected>Second</select><button>Send</button></form>"
    "</main><footer class='h-24 bg-gradient-to-r from-black to-black text-right'>End</footer></body></html>"
)

MOTION = "<style>@keyframes k{to{margin-left:900px;color:red}}"
TALL = "<div style='height:900px'></div>"  # whose picture takes several frames


def only(page: Page, tag: str) -> Element:
    (element,) = (element for element in page.elements if element.tag == tag)
    return element


def texts(page: Page) -> list[str]:
    return [element.text for element in page.elements if element.text]


@pytest.fixture(scope="module")
def page(renderer: Renderer) -> Page:
    return renderer.render(PAGE)


def test_the_picture(page: Page):
    with Image.open(io.BytesIO(page.png)) as image:
        assert image.size == (page.width, page.height) == (1366, 682)
        assert image.convert("RGB").getpixel((683, 10)) == (29, 78, 216)
        assert image.convert("RGB").getpixel((5, 670)) == (243, 244, 246)
    assert page.status == "ok"
    assert page.background == (243, 244, 246)
    assert "Chrome" in page.renderer and "fonts" in page.renderer


def test_the_elements(page: Page):
    nav = only(page, "nav")
    assert (nav.role, nav.background, nav.box.x, nav.box.y, nav.box.width, nav.parent, nav.depth) == (
        "nav", (29, 78, 216), 0, 0, 1366, -1, 0,
    )  # fmt: skip
    name = only(page, "b")
    assert (name.text, name.bold, name.font_size, name.color) == ("The Name", True, 20, (255, 255, 255))
    assert page.elements[name.parent] is nav
    assert (only(page, "h1").text, only(page, "em").text) == ("Head tail", "and")
    assert only(page, "h1").role == "heading" and only(page, "h1").align == "center"
    image = only(page, "img")
    assert (image.role, image.box.width, image.box.height, image.box.x) == ("image", 300, 200, 533)
    buy = next(element for element in page.elements if element.text == "Buy")
    assert (buy.role, buy.background, buy.color) == ("button", (239, 68, 68), (255, 255, 255))
    assert only(page, "ul").role == "list" and only(page, "form").role == "form"
    assert (only(page, "input").text, only(page, "select").text) == ("Your name", "Second")
    assert only(page, "button").role == "button"
    foot = only(page, "footer")
    assert (foot.role, foot.background, foot.align) == ("footer", (0, 0, 0), "right")
    parents = [element.parent for element in page.elements]
    assert all(parent < at for at, parent in enumerate(parents))


@pytest.mark.parametrize(
    "hidden",
    [
        "display:none",
        "visibility:hidden",
        "opacity:0",
        "opacity:.01",
        "color:#fefefe",
        "font-size:1px",
        "position:absolute;left:-999px",
        "position:absolute;top:-99px",
        "text-indent:-9999px",
        "height:0;overflow:hidden",
        "position:absolute;width:1px;height:1px;overflow:hidden;clip:rect(0,0,0,0)",
    ],
)
def test_what_cannot_be_seen_is_not_listed(hidden: str, renderer: Renderer):
    """tests/frontend/test_unseen.py has more ways, and what they are worth."""
    html = f"<body><p>Shown</p><div style='background:#fff;height:60px'><p style='{hidden}'>Concealed words</p></div>"
    assert texts(renderer.render(html)) == ["Shown"]
    shown = html.replace(hidden, "color:#555")
    assert texts(renderer.render(shown)) == ["Shown", "Concealed words"]


def test_long_pages_are_complete_up_to_the_limit(renderer: Renderer):
    page = renderer.render(
        "<body style='margin:0'><div style='height:100vh;background:red'></div><p style='height:2000px'>x"
    )
    assert page.status == "ok" and page.height > 2682
    assert page.elements[0].box.height == 682  # the viewport stays what it is while the picture is taken
    cut = renderer.render("<div style='height:20000px'>x</div><p>below")
    assert (cut.status, cut.height) == ("truncated", 8000)
    assert texts(cut) == ["x"]


def test_pictures_that_wait_for_a_scroll_are_drawn_where_scripts_are_allowed(renderer: Renderer):
    """Without scripts, browsers load all at once."""
    lazy = "<img loading=lazy src='https://picsum.photos/300/200'><div style='height:5000px'></div>"
    page = f"<!doctype html><body>{lazy}{lazy}<p style='background:url(data:,)'>words"
    with Renderer(BrowserSettings(cache="", tabs=1, javascript=True)) as scripted:
        rendered = scripted.render(page)
    assert (rendered.status, [element.tag for element in rendered.elements].count("img")) == ("truncated", 2)
    assert rendered.png == renderer.render(page).png


SCROLLED = "<p style='margin-left:4000px;width:200px;scroll-snap-align:start;scroll-initial-target:nearest'>Far</p>"


@pytest.mark.parametrize("insists", [False, True])
def test_a_page_that_scrolls_itself_is_seen_from_its_beginning_and_leaves_the_next_there(browser: None, insists: bool):
    rule = "scroll-snap-type:x mandatory"
    style = f"@layer still{{html#a{{{rule}!important}}}}" if insists else f"html{{{rule}}}"
    scrolled = f"<!doctype html><style>{style}</style><html id=a><body><p>Near</p><div style='width:6000px'>{SCROLLED}"
    wide = "<!doctype html><body><p>Near</p><div style='width:5000px;background:linear-gradient(90deg,red,blue)'>x"
    with Renderer(BrowserSettings(cache="", tabs=1)) as renderer:
        first = renderer.render(wide)
        page = renderer.render(scrolled)
        assert insists or texts(page) == ["Near"]
        after = renderer.render(wide)
        assert (after.png, after.elements) == (first.png, first.elements) and "Near" in texts(after)


@pytest.mark.parametrize("height", [300, 1500])
def test_pages_read_from_the_right_begin_there(renderer: Renderer, height: int):
    page = renderer.render(
        f"<!doctype html><html dir=rtl><body><div style='width:3000px;height:{height}px'><p>Right words"
    )
    assert texts(page) == ["Right words"] and page.width == 1366


def test_pages_come_in_order_and_equal_from_any_thread(renderer: Renderer):
    htmls = [f"<h1>Page {number % 7}</h1>" for number in range(21)]
    pages = list(renderer.render_many(htmls))
    assert [page.elements[0].text for page in pages] == [f"Page {number % 7}" for number in range(21)]
    assert pages[0] == pages[7] == renderer.render(htmls[0])


@pytest.mark.parametrize(
    "moving",
    [
        "<svg width=400 height=99><rect width=50 height=50><animate attributeName=x to=300 dur=1s /></rect></svg>",
        "<marquee>words that run</marquee>",
        "<progress></progress>",
        "<style>@keyframes k{to{margin-left:900px}}p{animation:k 1s infinite}</style><p>words</p>",
        f"<p><template shadowrootmode=open>{MOTION}b{{animation:k 1s infinite}}</style><b>words</template></p>{TALL}",
        f"{MOTION}::placeholder{{animation:k 1s infinite}}</style><input placeholder=words>{TALL}",
        f"<iframe srcdoc='{MOTION}p{{animation:k 1s infinite}}</style><p>words'></iframe>{TALL}",
    ],
)
def test_what_moves_stands_still(moving: str, renderer: Renderer):
    shots = set()
    for pause in (0.0, 0.03, 0.06):
        time.sleep(pause)
        shots.add(renderer.render(moving).png)
    assert len(shots) == 1


def test_a_browser_that_draws_unasked_is_as_good(browser: None):
    """A desktop Chromium does not draw frames on request; the facts of its pages are those of the headless shell."""
    desktop = Path("/usr/lib/chromium/chromium")
    if not desktop.exists() or desktop == find_browser():
        pytest.skip("needs Chromium beside its headless shell")
    pages = [PAGE, "<div style='height:1500px'>long<div style='position:absolute;top:1400px'>end</div></div>"]
    facts = []
    for path in ("", str(desktop)):
        with Renderer(BrowserSettings(cache="", tabs=1, path=path)) as renderer:
            facts.append(
                [(page.status, page.height, [e.text for e in page.elements]) for page in map(renderer.render, pages)]
            )
    assert facts[0] == facts[1]


def test_a_killed_browser_loses_no_request(browser: None):
    with Renderer(BrowserSettings(cache="", tabs=2, seconds=4.0)) as renderer:
        before = renderer.render(PAGE)
        killed = threading.Event()

        def kill() -> None:
            for _ in range(2):
                time.sleep(0.3)
                current = renderer._service._current
                if current is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(current.browser.pid, signal.SIGKILL)
            killed.set()

        threading.Thread(target=kill).start()
        pages = list(renderer.render_many([PAGE] * 12))
        killed.wait(120)
        pages.append(renderer.render(PAGE))
        assert all(page == before for page in pages)
        assert renderer._service.restarts >= 2


def test_tabs_and_browsers_are_replaced(browser: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sweetrl.browser.service.RECYCLE", 2)
    monkeypatch.setattr("sweetrl.browser.service.RESTART", 5)
    with Renderer(BrowserSettings(cache="", tabs=1)) as renderer:
        pages = [renderer.render(PAGE) for _ in range(11)]
        assert all(page == pages[0] for page in pages)
        assert renderer._service.restarts == 7, "three views of each page, and five in a browser"


def test_equal_settings_share_one_browser(renderer: Renderer):
    with Renderer(renderer.settings) as other:
        assert other._service is renderer._service
    assert renderer.render("<p>still here").status == "ok"


def test_closing_ends_every_process(browser: None):
    renderer = Renderer(BrowserSettings(cache="", tabs=1, seconds=7.0))
    renderer.render(PAGE)
    leader = psutil.Process(renderer._service._current.browser.pid)  # type: ignore[union-attr]
    processes = [leader, *leader.children(recursive=True)]
    renderer.close()
    until(lambda: all(map(ended, processes)))
    with pytest.raises(UserError, match="closed"):
        renderer.render(PAGE)


def test_the_cache_answers_without_a_tab(browser: None, tmp_path: Path):
    settings = BrowserSettings(cache=str(tmp_path), tabs=1)
    with Renderer(settings) as renderer:
        first = renderer.render(PAGE)
        started = renderer._service._current.pages  # type: ignore[union-attr]
        assert renderer.render(PAGE) == first
        assert renderer._service._current.pages == started  # type: ignore[union-attr]
        kept = next(tmp_path.rglob("*.page"))
        kept.write_bytes(kept.read_bytes()[:-5])
        assert renderer.render(PAGE) == first, "a damaged file is rendered again"
        for damage in (b"5\n", b"\0" * 500, b"[" * 100_000 + b"\n", b'{"bytes": 0, "elements": [5]}\n'):
            kept.write_bytes(damage)
            assert PageCache(tmp_path).get(PAGE, first.renderer) is None
    assert PageCache(tmp_path).get(PAGE, first.renderer + "x") is None


def test_no_browser_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with pytest.raises(UserError, match="apt-get install chromium-headless-shell"):
        find_browser(str(tmp_path / "none"))
    monkeypatch.setattr("sweetrl.browser.binary._PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(UserError, match="no browser was found"):
        Renderer(BrowserSettings(path=""))


def test_a_program_that_is_no_browser_is_named(tmp_path: Path):
    program = tmp_path / "browser"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    with (
        Renderer(BrowserSettings(path=str(program), cache="")) as renderer,
        pytest.raises(UserError, match="does not start"),
    ):
        renderer.render(PAGE)


def test_words_right_in_the_body_are_listed(renderer: Renderer):
    page = renderer.render("<body>Bare words<p>In a paragraph</p></body>")
    assert [(element.tag, element.text, element.parent) for element in page.elements] == [
        ("#text", "Bare words", -1),
        ("p", "In a paragraph", -1),
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("<p style='width:60px;overflow-wrap:anywhere'>Steamshippingcompany sails", "Steamshippingcompany sails"),
        ("<p style='width:90px'>words-in-a-long-line of text", "words-in-a-long-line of text"),
        ("<p>Cof<!-- c -->fee and te<wbr>a, su&shy;gar", "Coffee and tea, sugar"),
        ("<p>Coffee<br>and<!-- c --> tea", "Coffee and tea"),
    ],
)
def test_words_are_complete_wherever_they_are_broken(renderer: Renderer, written: str, read: str):
    assert texts(renderer.render(f"<!doctype html><body>{written}")) == [read]
