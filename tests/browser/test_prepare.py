"""What is changed about a page before the browser sees it, and what is flagged."""

import pytest

from sweetrl.browser import placeholders
from sweetrl.browser.prepare import prepare, stay

LINK = '<link href="https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css" rel="stylesheet">'


def test_tailwind_takes_the_place_of_its_link():
    prepared = prepare(f"<html>{LINK}<body class='p-4'>x")
    assert ".p-4{padding:1rem}" in prepared.html
    assert "<link" not in prepared.html
    assert prepared.html.index(".p-4{") < prepared.html.index("<body")
    assert prepared.flags == ()


def test_a_link_in_a_comment_does_not_take_tailwind_from_the_real_one():
    html = prepare(f"<!-- {LINK} --><html>{LINK}<body class='p-4'>x").html
    assert ".p-4{" in html.partition("-->")[2]


def test_a_page_of_links_is_not_a_page_of_style_sheets():
    assert len(prepare(LINK * 5000 + "<p class='p-4'>").html) < len(LINK) * 5000


def test_a_page_without_the_link_gets_no_tailwind():
    assert "p-4{" not in prepare("<body class='p-4'>x").html


def test_nothing_comes_before_the_doctype():
    prepared = prepare("\n<!-- a --><!DOCTYPE html><html><p>x")
    assert prepared.html.startswith("\n<!-- a --><!DOCTYPE html><style>@layer still")


@pytest.mark.parametrize(
    ("html", "flags"),
    [
        ('<script src="https://cdn.tailwindcss.com"></script>', ("tailwind-other",)),
        ('<link rel="stylesheet" href="https://unpkg.com/tailwindcss@^2/dist/tailwind.min.css">', ()),
        ('<link rel="stylesheet" href="https://unpkg.com/tailwindcss@2.x/dist/tailwind.min.css">', ()),
        ('<link rel="stylesheet" href="https://unpkg.com/tailwindcss@3.4.1/base.css">', ("tailwind-other",)),
        (LINK + '<p class="bg-slate-500">', ("tailwind-v3-class",)),
        (LINK + '<p class="mt-[3px] orange text-teal-200">', ("tailwind-v3-class",)),
        (LINK + '<p class="my-own text-teal-200">', ()),
        ('<link rel="stylesheet" href="https://fonts.googleapis.com/css?family=Inter">', ("external-stylesheet",)),
        ('<style>@import url("https://a.example/x.css")</style>', ("external-stylesheet",)),
        ('<script src="https://a.example/x.js"></script>', ("external-script",)),
        ("<script>1</script>", ("script",)),
        ("<META content='0;url=/' HTTP-EQUIV=Refresh><iframe>", ("frame", "meta-refresh")),
    ],
)
def test_flags(html: str, flags: tuple[str, ...]):
    assert prepare(html).flags == flags


def test_meta_refresh_is_gone():
    assert "refresh" not in prepare("<meta http-equiv='refresh' content='0;url=http://a.example'>x").html
    kept = prepare("<meta http-equiv='re&#102;resh' content='0'>x")
    assert "http-equiv" in kept.html  # only the browser sees it; then the page is loaded again without
    assert "http-equiv" not in stay(kept).html
    assert stay(kept).flags == ("meta-refresh",)


def test_classes_are_read_as_the_browser_reads_them():
    html = LINK + "<p CLASS = 'p-1 P-2'><p class=p-3><p class=\"p&#45;4\n p-5\">"
    css = prepare(html).html
    for number in range(1, 6):
        assert f".p-{number}{{" in css


def test_numbers_of_letters_are_read_however_long_they_are():
    zeros, nines = "0" * 5000, "9" * 5000
    css = prepare(f"{LINK}<p class='p-&#{zeros}49; p-&#{nines}; p-&#50 &#; &#x{nines};'>").html
    assert ".p-1{" in css and ".p-2{" in css
    assert prepare(f"<link rel=stylesheet href='//a.example/&#{nines};'>").flags == ("external-stylesheet",)


@pytest.mark.parametrize(
    ("address", "size"),
    [
        ("https://picsum.photos/300/200", (300, 200)),
        ("https://picsum.photos/id/48/300/200?grayscale", (300, 200)),
        ("https://picsum.photos/seed/a9/150", (150, 150)),
        ("https://via.placeholder.com/640x480.png?text=x", (640, 480)),
        ("https://images.unsplash.com/photo-1?w=300", (300, 200)),
        ("https://picsum.photos/99999/99999", (placeholders.LIMIT, placeholders.LIMIT)),
        ("https://picsum.photos/0/10", None),
        ("https://example.com/300/200", None),
        ("https://picsum.photos.example.com/300/200", None),
        ("file:///picsum.photos/300/200", None),
        ("http://[", None),
    ],
)
def test_sizes_of_placeholders(address: str, size: tuple[int, int] | None):
    assert placeholders.size(address) == size


def test_every_picture_costs_the_same():
    assert abs(len(placeholders.picture(4000, 4000)) - len(placeholders.picture(1, 1))) < 10
