"""The differences of two pages are true, by construction: edits of the suite's pages, and pages made by hand."""

from __future__ import annotations

import io
import random
from dataclasses import astuple, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.browser.page import Align, Box, Element, Page, Rgb, Role
from sweetrl.frontend.canvas import Canvas
from sweetrl.frontend.differences import SALIENCE, Difference, compare
from sweetrl.frontend.outline import outline_of
from sweetrl.frontend.phrases import FINE, say, sentence
from sweetrl.frontend.suite.designs import BY_NAME, DETAILS, KIND_OF, NONE, Design, write_page
from sweetrl.frontend.suite.sketch import sketch_design
from sweetrl.frontend.suite.tasks import draw_design

RNG = random.Random(0)
WHITE, BLACK, BLUE, RED = (255, 255, 255), (0, 0, 0), (37, 99, 235), (220, 38, 38)


def differences_of(agent: Design, reference: Design) -> list[Difference]:
    return compare(outline_of(sketch_design(agent)), outline_of(sketch_design(reference)))


def test_every_edit_of_one_detail_comes_first_and_is_true() -> None:
    rng = random.Random(3)
    seen: set[str] = set()
    for _ in range(200):
        base = draw_design(rng, 3)
        for detail in DETAILS:
            if detail.section not in ("", *base.sections) or (
                detail.name == "about picture" and "gallery" in base.sections
            ):
                continue
            if detail.name == "navigation place" and base["navigation color"] == NONE:
                continue
            other = base.set({detail.name: rng.choice([v for v in detail.values if v != base[detail.name]])})
            if (
                detail.name.endswith(" color")
                and detail.section
                and base["page color"] in (other[detail.name], base[detail.name])
            ):
                continue  # a section in the page's own colour
            differences = differences_of(base, other)
            if detail.name == "page color" and not differences:
                continue  # hidden below coloured sections
            assert differences and true_of(differences[0], base, other), (detail.name, base, other, differences)
            seen.add(detail.name)
    assert seen == {detail.name for detail in DETAILS}


def true_of(difference: Difference, agent: Design, reference: Design) -> bool:
    """Whether the two designs differ so, judged by how they were made and not by how they look."""
    kind, part, values = difference.kind, difference.part, (difference.expected, difference.actual)
    quoted = part.partition('"')[2].rstrip('"')
    section = KIND_OF.get(quoted, "")
    bar = {"the header": "header", "the navigation bar": "navigation", "the footer": "footer"}.get(part, section)

    def shown(design: Design, name: str) -> str:
        value = design[name]
        return design["page color"] if value == NONE and BY_NAME[name].section and name.endswith(" color") else value

    if kind in ("page color", "color"):
        name = "page color" if kind == "page color" else f"{bar} color"
        return (shown(reference, name), shown(agent, name)) == values
    if kind in ("missing", "extra") and bar in ("navigation", "footer"):
        has = agent[f"{bar} color"] != NONE, reference[f"{bar} color"] != NONE
        return has == ((False, True) if kind == "missing" else (True, False))
    if kind in ("missing", "extra"):
        owner = {"the form": "contact", "the list": "hours", "a button": "contact"}.get(part, section)
        has = owner in agent.sections, owner in reference.sections
        return has == ((False, True) if kind == "missing" else (True, False))
    if kind == "images":
        return (str(pictures(reference)[0]), str(pictures(agent)[0])) == values
    if kind == "image size":
        number = 0 if part == "the picture" else int(part.split()[1]) - 1
        return (pictures(reference)[1][number], pictures(agent)[1][number]) == values
    if kind == "columns":
        return (reference["offers columns"], agent["offers columns"]) == values and section == "offers"
    if kind == "box color":
        return (reference["offers boxes"], agent["offers boxes"]) == values and section == "offers"
    if kind == "button color":
        return (reference["contact button"], agent["contact button"]) == values
    if kind == "align":
        name = f"{bar} align"
        sides = [design[name] if name in BY_NAME else "left" for design in (reference, agent)]
        return sides == list(values)
    if kind == "order":
        upper, lower = (KIND_OF.get(name.partition('"')[2].rstrip('"'), name) for name in (part, difference.other))
        places = [[stack(design).index(name) for name in (upper, lower)] for design in (reference, agent)]
        return places[0][0] < places[0][1] and places[1][0] > places[1][1]
    if kind in ("text", "extra text"):
        has = quoted in write_page(agent), quoted in write_page(reference)
        return has == ((False, True) if kind == "text" else (True, False))
    return False


def stack(design: Design) -> list[str]:
    blocks = ["the header", *design.stacked(), "the footer"]
    blocks.insert(0 if design["navigation place"] == "above" else 1, "the navigation bar")
    return blocks


def pictures(design: Design) -> tuple[int, list[str]]:
    sizes: list[str] = []
    for kind in design.stacked():
        if kind == "about" and design["about picture"] != NONE:
            sizes.append(design["about picture"])
        if kind == "gallery":
            sizes += [design["gallery picture"]] * int(design["gallery pictures"])
    return len(sizes), sizes


@given(st.integers(0, 10**9), st.booleans())
def test_every_difference_of_two_pages_of_the_suite_is_true(seed: int, same_task: bool) -> None:
    rng = random.Random(seed)
    reference, agent = draw_design(rng, rng.randint(1, 6)), draw_design(rng, rng.randint(1, 6))
    if same_task:  # the agent knows topic, title and sections
        agent = replace(reference, details=()).set(
            {k: v for k, v in agent.details if BY_NAME[k].section in ("", *reference.sections)}
        )
    for difference in differences_of(agent, reference):
        assert true_of(difference, agent, reference), (difference, agent, reference)


@given(st.integers(0, 10**9))
def test_equal_pages_have_no_differences(seed: int) -> None:
    design = draw_design(random.Random(seed), 4)
    assert differences_of(design, design) == []
    assert say([], random.Random(seed), 3) in FINE


def test_the_greatest_difference_comes_first() -> None:
    reference = Design("gym", "Star Gym", ("offers", "contact")).set(
        {
            "page color": "light blue",
            "header align": "center",
            "offers columns": "2",
            "navigation color": "red",
            "order": "swapped",
        }
    )
    differences = differences_of(Design("gym", "Star Gym", ("offers", "contact")), reference)
    kinds, saliences = zip(*((difference.kind, difference.salience) for difference in differences), strict=True)
    assert kinds == ("page color", "missing", "columns", "align", "order", "extra text")
    assert list(saliences) == sorted(saliences, reverse=True)


def test_sentences() -> None:
    for kind in SALIENCE:
        text = sentence(Difference(kind, "the header", "2", "3", "the footer"), RNG)
        assert text[0].isupper() and text.endswith(".") and "{" not in text


# Pages made by hand


def element(
    tag: str, box: tuple[float, ...], text: str = "", role: Role = "", parent: int = -1, **looks: Any
) -> Element:
    defaults: dict[str, Any] = {"color": BLACK, "background": None, "font_size": 16.0, "bold": False, "align": "left"}
    return Element(tag, Box(*box), text, role=role, depth=1, parent=parent, **(defaults | looks))


def page(*elements: Element, background: Rgb = WHITE, png: bytes = b"", height: int = 768) -> Page:
    return Page(png, 1366, height, elements, background, "ok", (), "by hand")


def picture(*boxes: tuple[tuple[int, int, int, int], Rgb], ground: Rgb = WHITE) -> bytes:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (1366, 768), ground)
    for box, color in boxes:
        ImageDraw.Draw(image).rectangle(box, fill=color)
    target = io.BytesIO()
    image.save(target, "png")
    return target.getvalue()


def rows(agent: Page, reference: Page) -> list[tuple[str, str, str, str]]:
    """(kind, part, expected, actual) of each difference."""
    return [astuple(difference)[:4] for difference in compare(outline_of(agent), outline_of(reference))]


def test_the_screenshot_decides_over_the_dom() -> None:
    """A header whose colour comes from somewhere that the DOM does not show."""
    header = element("header", (0, 0, 1366, 200), "Hello there", "header")
    seen = page(header, png=picture(((0, 0, 1366, 200), BLUE)))
    assert rows(page(header, png=picture(((0, 0, 1366, 200), RED))), seen) == [("color", "the header", "blue", "red")]
    assert outline_of(seen).parts[0].color == BLUE


def test_pictures_are_masked_before_colours_are_read() -> None:
    header = element("header", (0, 0, 1366, 400), "Hello there", "header")
    photo = element("img", (0, 0, 1366, 300), "", "image", 0)
    png = picture(((0, 0, 1366, 300), RED), ((0, 301, 1366, 400), BLUE))
    assert outline_of(page(header, photo, png=png)).parts[0].color == BLUE
    covered = replace(photo, box=Box(0, 0, 1366, 400))
    assert outline_of(page(header, covered, png=png)).parts[0].color is None


def test_a_mottled_part_has_no_colour() -> None:
    stripes = tuple(((x, 0, x + 7, 200), (x % 256, 40, 200)) for x in range(0, 1366, 8))
    header = element("header", (0, 0, 1366, 200), "Hello there", "header")
    assert Canvas(page(header, png=picture(*stripes))).color(header.box) is None
    assert rows(page(header, png=picture(*stripes)), page(header, background=WHITE, png=picture())) == []


def test_a_bar_at_the_side_is_no_bar_across() -> None:
    links = [element("a", (10, 20 + 30 * n, 60, 24), f"link {n}", "", 0) for n in range(3)]
    side = page(element("nav", (0, 0, 200, 700), "", "nav"), *links)
    row = [element("a", (10 + 80 * n, 20, 60, 24), f"link {n}", "", 0) for n in range(3)]
    across = page(element("nav", (0, 0, 1366, 60), "", "nav"), *row)
    assert rows(across, side) == [("place", "the navigation bar", "left", "across")]
    assert rows(side, across) == [("place", "the navigation bar", "across", "left")]
    text = say(compare(outline_of(across), outline_of(side)), RNG, 3)
    assert text == "The navigation bar should be a column on the left side, not a bar across the page."


@pytest.mark.parametrize(
    ("x", "width", "align", "side"),
    [
        (32, 1302, "center", "center"),
        (600, 166, "left", "center"),
        (32, 200, "left", "left"),
        (1134, 200, "left", "right"),
        (400, 200, "left", None),
    ],
)
def test_where_text_stands_is_seen_not_read(x: float, width: float, align: Align, side: str | None) -> None:
    header = element("header", (0, 0, 1366, 100), "", "header")
    text = element("p", (x, 20, width, 40), "Hello there", "", 0, align=align)
    assert outline_of(page(header, text)).parts[0].align == side


def test_the_same_words_without_the_tag_are_no_missing_part() -> None:
    links = [element("a", (10 + 80 * n, 20, 60, 24), name, "", 0) for n, name in enumerate(("Home", "Shop", "Help"))]
    marked = page(element("nav", (0, 0, 1366, 60), "", "nav"), *links)
    plain = page(element("div", (0, 0, 1366, 60)), *links)
    assert rows(plain, marked) == [] == rows(marked, plain)
    other = page(element("p", (0, 0, 1366, 60), "Welcome home"))
    assert ("missing", "the navigation bar", "", "") in rows(other, marked)
    assert ("extra", "the navigation bar", "", "") in rows(marked, other)


def test_a_heading_that_can_be_read_elsewhere_is_not_missing() -> None:
    section = element("section", (0, 0, 1366, 300), "", "section")
    reference = page(section, element("h2", (32, 32, 1302, 32), "Our Menu", "heading", 0))
    agent = page(element("p", (32, 32, 1302, 32), "See our menu here"))
    assert not [row for row in rows(agent, reference) if row[0] in ("missing", "text")]
    other = page(element("p", (32, 32, 1302, 32), "See here"))
    assert [row for row in rows(other, reference) if row[0] == "missing"] == [
        ("missing", 'the section "Our Menu"', "", "")
    ]


def test_a_text_is_missing_only_if_what_is_quoted_of_it_is() -> None:
    long = "One two three four five six seven eight"
    reference = page(element("p", (0, 0, 1366, 24), long))
    similar = page(element("p", (0, 0, 1366, 24), "One two three four five six and more"))
    assert rows(similar, reference) == []
    other = rows(page(element("p", (0, 0, 1366, 24), "One two")), reference)
    assert other == [("text", 'the text "One two three four five six ..."', "", "")]


def test_columns_are_boxes_of_one_width_side_by_side() -> None:
    def cards(count: int, width: float, step: float) -> Page:
        boxes = [element("div", (step * n, 60, width, 100), f"card {n}", "", 2) for n in range(count)]
        grid = element("div", (0, 60, 1366, 100), "", "", 0)
        return page(
            element("section", (0, 0, 1366, 200), "", "section"),
            element("h2", (0, 0, 1366, 32), "Menu", "heading", 0),
            grid,
            *boxes,
        )

    assert outline_of(cards(3, 440, 450)).sections()[0].columns == 3
    assert outline_of(cards(3, 440, 100)).sections()[0].columns == 1  # they lie over one another
    assert rows(cards(4, 330, 340), cards(2, 660, 680)) == [
        ("columns", 'the section "Menu"', "2", "4"),
        ("extra text", 'the text "card 2"', "", ""),
    ]


def test_an_empty_page_is_called_empty() -> None:
    text = page(element("p", (0, 0, 1366, 24), "Hello"))
    assert rows(page(), text) == [("empty", "the page", "", "")]
    assert rows(page(), page()) == []
    assert rows(text, page(background=BLUE))[0] == ("page color", "the page", "blue", "white")
