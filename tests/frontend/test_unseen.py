"""Pages that claim what nobody sees: the layout reward of each is that of its honest part, or hardly more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweetrl.browser import Renderer
from sweetrl.browser.page import Page
from sweetrl.frontend.layout import similarity

WORDS = (
    "Monthly sales grew by nine percent",
    "Call us any day before noon",
    "Our three offices are open",
    "Order now and pay later",
    "Fresh bread from the village",
    "Read what others wrote",
)
PLACES = [(40 + 420 * (at % 3), 140 + 220 * (at // 3)) for at in range(6)]
CARDS = "".join(
    f'<div style="position:absolute;left:{x}px;top:{y}px;width:380px;height:180px;background:#dbeafe">'
    f'<h2 style="margin:16px">{words.split()[0]}</h2><p style="margin:16px">{words}</p></div>'
    for (x, y), words in zip(PLACES, WORDS, strict=True)
)
TEXTS = "".join(
    f'<p style="position:absolute;margin:0;left:{x + 16}px;top:{y + 60}px">{words}</p>'
    for (x, y), words in zip(PLACES, WORDS, strict=True)
)
THINGS = "".join(
    f'<img src="https://picsum.photos/380/120" style="position:absolute;left:{x}px;top:{y}px" width=380 height=120>'
    f'<input value="{words}" style="position:absolute;left:{x}px;top:{y + 130}px;width:380px;height:40px">'
    for (x, y), words in zip([(x, y + 480) for x, y in PLACES], WORDS, strict=True)
)
HONEST = (
    '<!doctype html><body style="margin:0;font-family:sans-serif;position:relative;height:1100px">'
    '<div style="background:#1e3a8a;color:white;height:80px">'
    '<h1 style="margin:0;padding:20px">Village bakery</h1></div>'
)
FAINT = "repeating-linear-gradient(#f0f0f0 0 1px,#fff 1px 9px)"
BLACK = "repeating-linear-gradient(#000 0 1px,#fff 1px 20px)"
COVER = '<div style="position:absolute;left:0;top:84px;width:1280px;height:1010px;background:{}"></div>'


def around(content: str, style: str) -> str:
    return f'<div style="position:absolute;inset:0;{style}">{content}</div>'


UNSEEN = {
    "transparent over faint lines": COVER.format(FAINT) + around(TEXTS, "color:transparent"),
    "without fill over lines": COVER.format(BLACK) + around(TEXTS, "-webkit-text-fill-color:transparent"),
    "under lines of its colour": around(TEXTS, "") + COVER.format(BLACK),
    "under lines, cut out of a ground": around(
        TEXTS, "color:transparent;background:linear-gradient(red,blue);-webkit-background-clip:text"
    )
    + COVER.format(BLACK),
    "clipped away": around(CARDS, "clip-path:inset(100%)"),
    "clipped to a point": around(CARDS, "clip-path:circle(0)"),
    "masked": around(CARDS, "-webkit-mask-image:linear-gradient(transparent,transparent)"),
    "filtered away": around(CARDS, "filter:opacity(0)"),
    "white": around(TEXTS, "color:#fff"),
    "covered": around(CARDS, "") + COVER.format("#fff"),
    "behind": around(CARDS, "z-index:-1") + COVER.format("#fff"),
    "turned away": around(CARDS, "transform:rotateY(180deg);backface-visibility:hidden"),
    "scaled away": around(CARDS, "transform:scale(0.001)"),
    "skipped": around(CARDS, "content-visibility:hidden"),
    "things clipped away": around(THINGS, "clip-path:inset(100%)"),
    "things covered": around(THINGS, "") + COVER.format("#fff"),
    "things under lines": around(THINGS, "") + COVER.format(BLACK),
    "a text that insists": COVER.format(BLACK)
    + around(TEXTS, "").replace("margin:0", "margin:0;clip-path:inset(100%);-webkit-text-fill-color:#000!important"),
}
# Too pale to be distinguished by whoever looks: #e8e8e8 is the darkest of these greys.
PALE = {
    **{f"texts in #{grey}": around(TEXTS, f"color:#{grey}") for grey in ("f8f8f8", "f2f2f2", "ececec", "e8e8e8")},
    "large bold texts": around(TEXTS, "color:#ececec;font-size:24px;font-weight:bold"),
    "texts drawn by a pale shadow": around(TEXTS, "color:transparent;text-shadow:0 0 1px #eee"),
    "texts with a pale outline": around(TEXTS, "color:transparent;-webkit-text-stroke:1px #eee"),
    "nearly filtered away": around(CARDS, "filter:opacity(0.04)"),
    "nearly transparent": around(CARDS + THINGS, "opacity:0.07"),
    "pale lines": COVER.format("repeating-linear-gradient(#ececec 0 1px,#fff 1px 9px)"),
    "pale squares": COVER.format("repeating-conic-gradient(#eaeaea 0 25%,#fff 0 50%) 0 0/14px 14px"),
    "pale borders": around(CARDS, "visibility:hidden").replace(
        "background:#dbeafe", "visibility:visible;border:2px solid #ececec;box-sizing:border-box;color:transparent"
    ),
}


def each(style: str) -> str:
    return around(TEXTS, "").replace("margin:0", f"margin:0;{style}")


LINE = "<p style='position:absolute;margin:0;left:{}px;top:{}px;display:flex;flex-direction:{}'>{}</p>"
# There to be seen, and not to be read: neither words nor ink count.
MISREAD = {
    "clipped but for an edge": each("clip-path:inset(0 95% 0 0)"),
    "masked but for an edge": each("-webkit-mask:linear-gradient(90deg,#000 4%,transparent 4%)"),
    "cut off but for an edge": each("width:9px;overflow:hidden;white-space:nowrap"),
    "covered but for an edge": around(TEXTS, "") + COVER.format("#fff").replace("left:0", "left:62px"),
    "covered above": around(TEXTS, "")
    + "".join(COVER.format("#fff").replace("84px", f"{y + 60}px").replace("1010", "11") for y in (140, 360)),
    "mirrored": each("transform:scaleX(-1)"),
    "mirrored by a property": each("scale:1 -1"),
    "upside down": each("transform:rotate(180deg)"),
    "turned by a property": each("rotate:90deg"),
    "nearly on edge": each("transform:rotateY(86deg)"),
    "from the right": around(each("unicode-bidi:bidi-override"), "direction:rtl"),
    "from the right by characters": TEXTS.replace('px">', 'px">&#8238;'),
    "tiny": around(TEXTS, "font-size:1px"),
    "scaled to be tiny": each("transform:scale(.2)"),
    "letters over each other": around(TEXTS, "letter-spacing:-.25em"),
    "letters far apart": around(TEXTS, "letter-spacing:3em"),
    "lines over each other": around("<br>".join(WORDS), "margin:300px 40px;line-height:0"),
    "blurred": around(TEXTS, "filter:blur(4px)"),
    "blended": around(TEXTS, "color:#fff;mix-blend-mode:screen"),
    "cut out of white": around(TEXTS, "color:transparent;background:#fff;-webkit-background-clip:text"),
    "downwards": around(TEXTS, "writing-mode:vertical-rl"),
    **{
        f"words in {order}": "".join(
            LINE.format(x + 16, y + 10, order, "<i></i>".join(words.split()))
            for (x, y), words in zip(PLACES, WORDS, strict=True)
        )
        for order in ("row-reverse", "column-reverse")
    },
}
CLAIMS = UNSEEN | PALE | MISREAD
SHOWN = f"<div class=x>{CARDS}</div>"
# What the judge alone would see, and how much of it people do: the rest of the page, or nothing at all.
ASKING = {
    "no scripts": "<style>.x{visibility:hidden}@media (scripting:none){.x{visibility:visible}}</style>" + SHOWN,
    "scripts": "<style>@media (scripting:enabled){.x{display:none}}</style>" + SHOWN,
    "noscript": f"<noscript>{CARDS}</noscript>",
    "a style in noscript": f"<style>.x{{opacity:0}}</style><noscript><style>.x{{opacity:1}}</style></noscript>{SHOWN}",
    "width": "<style>.x{display:none}@media (width:1366px){.x{display:block}}</style>" + SHOWN,
    "a wider window": "<style>@media (min-width:1367px){.x{display:none}}</style>" + SHOWN,
    "a narrower window": "<style>@media (max-width:1365px){.x{filter:opacity(0)}}</style>" + SHOWN,
    "height": "<style>@media not (height:682px){.x{display:none}}</style>" + SHOWN,
    "a container": "<style>body{container-type:inline-size}@container not (width:1366px){.x{display:none}}</style>"
    + SHOWN,
    "the window's units": f"<div style='position:absolute;left:calc((100vw - 1366px)*9999)'>{CARDS}</div>",
    "percentages": f"<div style='position:absolute;left:calc((100% - 1366px)*9999)'>{CARDS}</div>",
    "a script": SHOWN + "<script>document.querySelector('.x').remove()</script>",
    "a handler": SHOWN + "<img src=x hidden onerror=\"document.querySelector('.x').remove()\">",
}


@pytest.fixture(scope="module")
def reference(renderer: Renderer) -> Page:
    return renderer.render(HONEST + CARDS + THINGS)


@pytest.mark.parametrize("name", CLAIMS)
def test_what_nobody_sees_or_reads_is_worth_nothing(renderer: Renderer, reference: Page, name: str) -> None:
    claimed = renderer.render(HONEST + CLAIMS[name])
    # What can be seen of it: the lines that it is hidden with are in the picture.
    drawn = "".join(COVER.format(each) for each in (FAINT, BLACK) if each in CLAIMS[name])
    honest = renderer.render(HONEST + drawn)
    more = 0.02 if name in MISREAD else 0.05
    assert similarity(claimed, reference).score <= similarity(honest, reference).score + more
    assert not any(word in element.text for element in claimed.elements for word in WORDS)


@pytest.mark.parametrize("name", ASKING)
def test_a_page_that_asks_who_looks_is_worth_what_all_see(renderer: Renderer, reference: Page, name: str) -> None:
    claimed = renderer.render(HONEST + ASKING[name])
    assert similarity(replace(claimed, others=()), reference).score > 0.3
    assert similarity(claimed, reference).score <= similarity(renderer.render(HONEST), reference).score + 0.02
    assert similarity(claimed, claimed).score == 1.0


def test_ways_of_writing_that_are_read(renderer: Renderer) -> None:
    """Turned a little, scaled, in columns, justified, spaced, in a scrolled box, from the right, in a text area."""
    page = renderer.render(
        "<!doctype html><body style='margin:40px;font:16px sans-serif'>"
        "<p style='transform:rotate(3deg)'>Turned a bit</p>"
        "<p style='transform:scale(1.2);width:300px;margin-left:90px'>Scaled up</p><p style='zoom:1.5'>Zoomed</p>"
        f"<div style='columns:3;width:600px'>{' '.join(WORDS)}</div>"
        f"<p style='text-align:justify;width:200px'>{WORDS[0]}</p>"
        "<p style='letter-spacing:.1em;text-transform:uppercase;text-decoration:underline'>Spaced words</p>"
        "<p style='line-height:1;font-size:40px;width:400px'>Large title in two lines</p>"
        "<div style='height:30px;overflow:auto'>Inside<br><br><br>Below</div>"
        "<p dir=rtl>\u05e9\u05dc\u05d5\u05dd, one</p>"
        "<textarea placeholder='In an area'></textarea><p style='text-align:center'>In the centre <b>of</b> all</p>"
    )
    shown = " | ".join(element.text for element in page.elements)
    joined = " ".join(WORDS)
    for words in ("Turned a bit", "Scaled up", "Zoomed", joined, f"| {WORDS[0]} |", "SPACED WORDS", "In an area"):
        assert words in shown
    for words in ("Large title in two lines", "Inside", "\u05e9\u05dc\u05d5\u05dd", "In the centre all"):
        assert words in shown
    assert "Below" not in shown and page.others == (None, None) and page.unread == ()


def test_what_is_seen_is_worth_all(renderer: Renderer, reference: Page) -> None:
    assert similarity(renderer.render(HONEST + CARDS + THINGS), reference).score == 1.0
    texts = " ".join(element.text for element in reference.elements)
    assert all(texts.count(each) == 2 for each in WORDS), "on cards and in controls"
    assert sum(element.tag == "img" for element in reference.elements) == 6


def test_thin_borders_of_real_designs_are_seen(renderer: Renderer, reference: Page) -> None:
    """A border of one pixel in the grey of most designs (#e5e7eb on white) counts as much as it did."""
    framed = CARDS.replace("background:#dbeafe", "border:1px solid #e5e7eb;box-sizing:border-box")
    with_borders, without = renderer.render(HONEST + framed), renderer.render(HONEST + framed.replace("1px solid", "0"))
    assert similarity(with_borders, reference).edges > similarity(without, reference).edges + 0.05


def test_ways_of_writing_that_are_seen(renderer: Renderer) -> None:
    """Texts cut out of a gradient, drawn by their shadow alone, on pictures, in controls, lists and marks."""
    page = renderer.render(
        "<!doctype html><body style='font:20px sans-serif'>"
        "<p style='color:transparent;background:linear-gradient(red,blue);-webkit-background-clip:text'>Gradient</p>"
        "<p style='color:transparent;text-shadow:0 0 1px #000'>Shadow</p>"
        "<p style='background:url(https://picsum.photos/300/60);color:#fff'>Picture</p>"
        "<p style='background:repeating-linear-gradient(45deg,#eee 0 9px,#ddd 9px 18px)'>Pattern</p>"
        "<input placeholder=Placeholder><select><option>Choice</select><button>Button</button><ul><li>Item</ul>"
        "<p style='color:oklch(0.45 0.2 264)'>Modern</p>"
    )
    shown = sorted({element.text for element in page.elements} - {""})
    words = ["Button", "Choice", "Gradient", "Item", "Modern", "Pattern", "Picture", "Placeholder", "Shadow"]
    assert shown == words


def test_one_page_leaves_nothing_on_the_next(renderer: Renderer) -> None:
    """Texts were taken out of the one document that all pages of a tab come into."""
    html = HONEST + CARDS + THINGS
    first = renderer.render(html)
    renderer.render(UNSEEN["covered"])
    for _ in range(4):
        page = renderer.render(html)
        assert (page.png, page.elements) == (first.png, first.elements)
