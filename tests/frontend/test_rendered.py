"""The same on pages that a browser has drawn: the suite's, and edits of the real ones. Skipped where no browser is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sweetrl.browser.renderer import Renderer
from sweetrl.frontend.canvas import DRAWN
from sweetrl.frontend.differences import Difference, compare
from sweetrl.frontend.outline import Outline, outline_of, words_of
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.sketch import sketch
from tests.frontend.page_edits import edit

TASKS = list(generate("test", 12, 5))


def looks(page: Outline) -> tuple[Any, ...]:
    parts = [(one.kind, one.name, one.color, one.align, one.columns, one.boxes, one.nested) for one in page.parts]
    sizes = [(box.width, box.height) for box in page.images]
    return parts, page.ground, sizes, page.buttons, page.entries


def test_a_browser_shows_what_the_sketch_says(renderer: Renderer) -> None:
    for task, page in zip(TASKS, renderer.render_many([task.ground_truth for task in TASKS]), strict=True):
        assert page.status == "ok" and page.flags == ()
        assert looks(outline_of(page)) == looks(outline_of(sketch(task.ground_truth)))


@pytest.mark.parametrize(
    "other", ["<b>coffee</b>", "<span>coffee</span>", "<a href=#><i>coffee</i></a>", "cof<!-- -->fee"]
)
def test_no_word_is_missing_for_standing_in_an_element_of_its_own(renderer: Renderer, other: str) -> None:
    page = "<html><body><h2>Good {} every day</h2><p>We make {} all day long, and then some.</p></body></html>"
    plain, marked = (outline_of(renderer.render(page.format(word, word))) for word in ("coffee", other))
    gone = outline_of(renderer.render("<html><body><h2>Good coffee every day</h2><p>We sleep.</p></body></html>"))
    said = {"text", "extra text", "missing", "extra"}
    for agent, wanted in ((plain, marked), (marked, plain), (marked, marked)):
        assert not said & {one.kind for one in compare(agent, wanted)}
    assert "text" in {one.kind for one in compare(gone, plain)}


def test_a_picture_behind_text_is_masked_like_any_other(renderer: Renderer) -> None:
    style = "background-image: url(https://picsum.photos/id/48/1366/300); height: 300px"
    page = renderer.render(f'<html><body><header style="{style}"><h1>Hello</h1></header></body></html>')
    assert outline_of(page).parts[0].color is None
    from sweetrl.browser import placeholders

    source = Path(placeholders.__file__).read_text(encoding="utf-8")
    assert all("#{:02x}{:02x}{:02x}".format(*color) in source for color in DRAWN)


KINDS = {
    "colour": {"page color", "color", "box color"},
    "order": {"order", "text order"},
    "removal": {"missing", "images", "text"},
}


def untrue(one: Difference, agent: Outline, wanted: Outline) -> str | None:
    """What is untrue in a difference, read off the texts of the two pages."""
    name = " ".join(words_of(one.part.partition('"')[2].removesuffix('"').removesuffix(" ...")))
    mine, theirs = f" {agent.texts} ", f" {wanted.texts} "
    name = f" {name} " if name else ""
    if one.kind in ("missing", "text") and name and (name in mine or name not in theirs):
        return f"{name} is on the agent's page"
    if one.kind in ("extra", "extra text") and name and (name in theirs or name not in mine):
        return f"{name} is on the wanted page"
    if one.kind == "images" and (str(len(wanted.images)), str(len(agent.images))) != (one.wanted, one.found):
        return "the pictures are counted wrongly"
    return None


@pytest.mark.slow
def test_edits_of_real_pages_are_told_by_their_kind(renderer: Renderer, real_pages: list[str]) -> None:
    """Most visible edits are found, nothing of another kind is said of a changed colour, and equal pages are equal."""
    seen: Counter[tuple[str, str]] = Counter()
    for number, html in enumerate(real_pages):
        page = renderer.render(html)
        wanted = outline_of(page)
        assert compare(wanted, wanted) == []
        for kind, expected in KINDS.items():
            edited = edit(html, kind, number)
            drawn = renderer.render(edited) if edited else page
            if drawn.png == page.png:
                continue
            agent = outline_of(drawn)
            found = compare(agent, wanted)
            assert not [fault for one in found if (fault := untrue(one, agent, wanted))], (number, kind, found)
            hit = any(one.kind in expected for one in found[:3])
            seen[kind, "right" if hit else "other" if found else "nothing"] += 1
            if kind == "colour":  # what shows or hides with a colour is a text of that colour, or a button without one
                known = expected | {"extra", "missing", "extra text", "text", "button color"}
                assert {one.kind for one in found} <= known, (number, found)

    def share(kind: str) -> float:
        return seen[kind, "right"] / sum(count for (one, _), count in seen.items() if one == kind)

    print(seen)
    assert share("colour") > 0.85 and share("removal") > 0.9 and share("order") > 0.65, seen
    assert seen["colour", "other"] == 0 and seen["order", "other"] <= 2
