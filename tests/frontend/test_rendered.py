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
    parts = [(p.kind, p.name, p.color, p.align, p.columns, p.boxes, p.nested) for p in page.parts]
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
    untrue_kinds = {"text", "extra text", "missing", "extra"}
    for agent, reference in ((plain, marked), (marked, plain), (marked, marked)):
        assert not untrue_kinds & {difference.kind for difference in compare(agent, reference)}
    assert "text" in {difference.kind for difference in compare(gone, plain)}


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


def untrue(difference: Difference, agent: Outline, reference: Outline) -> str | None:
    """What is untrue in a difference, read off the texts of the two pages."""
    kind, values = difference.kind, (difference.expected, difference.actual)
    name = " ".join(words_of(difference.part.partition('"')[2].removesuffix('"').removesuffix(" ...")))
    name = f" {name} " if name else ""
    in_agent, in_reference = name in f" {agent.texts} ", name in f" {reference.texts} "
    if kind in ("missing", "text") and name and (in_agent or not in_reference):
        return f"{name} is on the agent's page"
    if kind in ("extra", "extra text") and name and (in_reference or not in_agent):
        return f"{name} is on the reference"
    if kind == "images" and (str(len(reference.images)), str(len(agent.images))) != values:
        return "the pictures are counted wrongly"
    return None


@pytest.mark.slow
def test_edits_of_real_pages_are_reported_by_their_kind(renderer: Renderer, real_pages: list[str]) -> None:
    """Most visible edits are reported, a changed colour as no other kind of difference, and equal pages are equal."""
    seen: Counter[tuple[str, str]] = Counter()
    for number, html in enumerate(real_pages):
        page = renderer.render(html)
        reference = outline_of(page)
        assert compare(reference, reference) == []
        for edited_kind, expected in KINDS.items():
            edited = edit(html, edited_kind, number)
            drawn = renderer.render(edited) if edited else page
            if drawn.png == page.png:
                continue
            agent = outline_of(drawn)
            differences = compare(agent, reference)
            faults = [fault for difference in differences if (fault := untrue(difference, agent, reference))]
            assert not faults, (number, edited_kind, differences)
            kinds = [difference.kind for difference in differences]
            hit = not expected.isdisjoint(kinds[:3])
            seen[edited_kind, "right" if hit else "other" if kinds else "nothing"] += 1
            if edited_kind == "colour":  # what a colour shows or hides is a text, or a button without a text
                allowed = expected | {"extra", "missing", "extra text", "text", "button color"}
                assert allowed.issuperset(kinds), (number, differences)

    def share(kind: str) -> float:
        return seen[kind, "right"] / sum(count for (name, _), count in seen.items() if name == kind)

    print(seen)
    assert share("colour") > 0.85 and share("removal") > 0.9 and share("order") > 0.65, seen
    assert seen["colour", "other"] == 0 and seen["order", "other"] <= 2
