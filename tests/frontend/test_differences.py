"""What is said of two pages is true of them, by construction: edits of the suite's pages, and pages made by hand."""

from __future__ import annotations

import io
import random
from dataclasses import replace
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


def differences(agent: Design, wanted: Design) -> list[Difference]:
    return compare(outline_of(sketch_design(agent)), outline_of(sketch_design(wanted)))


def test_every_edit_of_one_detail_is_found_first_and_is_true() -> None:
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
            found = differences(base, other)
            if detail.name == "page color" and not found:
                continue  # hidden below coloured sections
            assert found and true_of(found[0], base, other), (detail.name, base, other, found)
            seen.add(detail.name)
    assert seen == {detail.name for detail in DETAILS}


def true_of(one: Difference, agent: Design, wanted: Design) -> bool:
    """Whether a difference is one of the two designs, judged by how they were made and not by how they look."""
    quoted = one.part.partition('"')[2].rstrip('"')
    section = KIND_OF.get(quoted, "")
    bar = {"the header": "header", "the navigation bar": "navigation", "the footer": "footer"}.get(one.part, section)

    def shown(design: Design, name: str) -> str:
        value = design[name]
        return design["page color"] if value == NONE and BY_NAME[name].section and name.endswith(" color") else value

    if one.kind in ("page color", "color"):
        name = "page color" if one.kind == "page color" else f"{bar} color"
        return (shown(wanted, name), shown(agent, name)) == (one.wanted, one.found)
    if one.kind in ("missing", "extra") and bar in ("navigation", "footer"):
        has = agent[f"{bar} color"] != NONE, wanted[f"{bar} color"] != NONE
        return has == ((False, True) if one.kind == "missing" else (True, False))
    if one.kind in ("missing", "extra"):
        kind = {"the form": "contact", "the list": "hours", "a button": "contact"}.get(one.part, section)
        has = kind in agent.sections, kind in wanted.sections
        return has == ((False, True) if one.kind == "missing" else (True, False))
    if one.kind == "images":
        return (str(pictures(wanted)[0]), str(pictures(agent)[0])) == (one.wanted, one.found)
    if one.kind == "image size":
        number = 0 if one.part == "the picture" else int(one.part.split()[1]) - 1
        return (pictures(wanted)[1][number], pictures(agent)[1][number]) == (one.wanted, one.found)
    if one.kind == "columns":
        return (wanted["offers columns"], agent["offers columns"]) == (one.wanted, one.found) and section == "offers"
    if one.kind == "box color":
        return (wanted["offers boxes"], agent["offers boxes"]) == (one.wanted, one.found) and section == "offers"
    if one.kind == "button color":
        return (wanted["contact button"], agent["contact button"]) == (one.wanted, one.found)
    if one.kind == "align":
        name = f"{bar} align"
        sides = [design[name] if name in BY_NAME else "left" for design in (wanted, agent)]
        return sides == [one.wanted, one.found]
    if one.kind == "order":
        upper, lower = (KIND_OF.get(part.partition('"')[2].rstrip('"'), part) for part in (one.part, one.other))
        places = [[stack(design).index(part) for part in (upper, lower)] for design in (wanted, agent)]
        return places[0][0] < places[0][1] and places[1][0] > places[1][1]
    if one.kind in ("text", "extra text"):
        text = one.part.partition('"')[2].rstrip('"')
        has = text in write_page(agent), text in write_page(wanted)
        return has == ((False, True) if one.kind == "text" else (True, False))
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
def test_everything_said_of_two_pages_of_the_suite_is_true(seed: int, same_task: bool) -> None:
    rng = random.Random(seed)
    wanted, agent = draw_design(rng, rng.randint(1, 6)), draw_design(rng, rng.randint(1, 6))
    if same_task:  # the agent knows topic, title and sections
        agent = replace(wanted, details=()).set(
            {k: v for k, v in agent.details if BY_NAME[k].section in ("", *wanted.sections)}
        )
    for one in differences(agent, wanted):
        assert true_of(one, agent, wanted), (one, agent, wanted)


@given(st.integers(0, 10**9))
def test_equal_pages_have_no_differences(seed: int) -> None:
    design = draw_design(random.Random(seed), 4)
    assert differences(design, design) == []
    assert say([], random.Random(seed), 3) in FINE


def test_the_greatest_difference_comes_first() -> None:
    wanted = Design("gym", "Star Gym", ("offers", "contact")).set(
        {
            "page color": "light blue",
            "header align": "center",
            "offers columns": "2",
            "navigation color": "red",
            "order": "swapped",
        }
    )
    found = differences(Design("gym", "Star Gym", ("offers", "contact")), wanted)
    assert [one.kind for one in found] == ["page color", "missing", "columns", "align", "order", "extra text"]
    assert [one.salience for one in found] == sorted((one.salience for one in found), reverse=True)


def test_sentences() -> None:
    wanted = Design("gym", "Star Gym", ("offers", "contact")).set(
        {"page color": "light blue", "footer color": "red", "offers columns": "2"}
    )
    text = say(differences(Design("gym", "Star Gym", ("offers", "contact")), wanted), random.Random(1), 3)
    assert text == (
        "The background of the page should be light blue, yours is white. The footer is missing. "
        'The section "Our offers" should have 2 columns, yours has 3.'
    ), text
    for kind in SALIENCE:
        said = sentence(Difference(kind, "the header", "2", "3", "the footer"), RNG)
        assert said[0].isupper() and said.endswith(".") and "{" not in said


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


def found(agent: Page, wanted: Page) -> list[tuple[str, str, str, str]]:
    return [(one.kind, one.part, one.wanted, one.found) for one in compare(outline_of(agent), outline_of(wanted))]


def test_the_screenshot_decides_over_the_dom() -> None:
    """A header whose colour comes from somewhere that the DOM does not tell."""
    header = element("header", (0, 0, 1366, 200), "Hello there", "header")
    seen = page(header, png=picture(((0, 0, 1366, 200), BLUE)))
    assert found(page(header, png=picture(((0, 0, 1366, 200), RED))), seen) == [("color", "the header", "blue", "red")]
    assert outline_of(seen).parts[0].color == BLUE


def test_pictures_are_masked_before_colours_are_read() -> None:
    header = element("header", (0, 0, 1366, 400), "Hello there", "header")
    photo = element("img", (0, 0, 1366, 300), "", "image", 0)
    png = picture(((0, 0, 1366, 300), RED), ((0, 301, 1366, 400), BLUE))
    assert outline_of(page(header, photo, png=png)).parts[0].color == BLUE
    covered = replace(photo, box=Box(0, 0, 1366, 400))
    assert outline_of(page(header, covered, png=png)).parts[0].color is None


def test_of_a_mottled_part_no_colour_is_told() -> None:
    stripes = tuple(((x, 0, x + 7, 200), (x % 256, 40, 200)) for x in range(0, 1366, 8))
    header = element("header", (0, 0, 1366, 200), "Hello there", "header")
    assert Canvas(page(header, png=picture(*stripes))).color(header.box) is None
    assert found(page(header, png=picture(*stripes)), page(header, background=WHITE, png=picture())) == []


def test_a_bar_at_the_side_is_no_bar_across() -> None:
    links = [element("a", (10, 20 + 30 * n, 60, 24), f"link {n}", "", 0) for n in range(3)]
    side = page(element("nav", (0, 0, 200, 700), "", "nav"), *links)
    row = [element("a", (10 + 80 * n, 20, 60, 24), f"link {n}", "", 0) for n in range(3)]
    across = page(element("nav", (0, 0, 1366, 60), "", "nav"), *row)
    assert found(across, side) == [("place", "the navigation bar", "left", "across")]
    assert found(side, across) == [("place", "the navigation bar", "across", "left")]
    said = say(compare(outline_of(across), outline_of(side)), RNG, 3)
    assert said == "The navigation bar should be a column on the left side, not a bar across the page."


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
    assert found(plain, marked) == [] == found(marked, plain)
    other = page(element("p", (0, 0, 1366, 60), "Welcome home"))
    assert ("missing", "the navigation bar", "", "") in found(other, marked)
    assert ("extra", "the navigation bar", "", "") in found(marked, other)


def test_a_heading_that_can_be_read_elsewhere_is_not_missing() -> None:
    section = element("section", (0, 0, 1366, 300), "", "section")
    wanted = page(section, element("h2", (32, 32, 1302, 32), "Our Menu", "heading", 0))
    agent = page(element("p", (32, 32, 1302, 32), "See our menu here"))
    assert not [one for one in found(agent, wanted) if one[0] in ("missing", "text")]
    other = page(element("p", (32, 32, 1302, 32), "See here"))
    assert [one for one in found(other, wanted) if one[0] == "missing"] == [
        ("missing", 'the section "Our Menu"', "", "")
    ]


def test_a_text_is_missing_only_if_what_is_quoted_of_it_is() -> None:
    long = "One two three four five six seven eight"
    wanted = page(element("p", (0, 0, 1366, 24), long))
    similar = page(element("p", (0, 0, 1366, 24), "One two three four five six and more"))
    assert found(similar, wanted) == []
    other = found(page(element("p", (0, 0, 1366, 24), "One two")), wanted)
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
    assert found(cards(4, 330, 340), cards(2, 660, 680)) == [
        ("columns", 'the section "Menu"', "2", "4"),
        ("extra text", 'the text "card 2"', "", ""),
    ]


def test_an_empty_page_is_called_empty() -> None:
    text = page(element("p", (0, 0, 1366, 24), "Hello"))
    assert found(page(), text) == [("empty", "the page", "", "")]
    assert found(page(), page()) == []
    assert found(text, page(background=BLUE))[0] == ("page color", "the page", "blue", "white")
