"""Direct questions are answered truthfully from the page in mind, or not at all."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from sweetrl.browser.page import Box, Element, Page
from sweetrl.frontend.outline import outline_of
from sweetrl.frontend.phrases import UNKNOWN, answer, true_answer
from sweetrl.frontend.suite.agents import QUESTIONS, listen
from sweetrl.frontend.suite.designs import NONE, Design
from sweetrl.frontend.suite.sketch import sketch_design
from sweetrl.frontend.suite.tasks import draw_design

DESIGN = Design("gym", "Star Gym", ("offers", "gallery", "contact")).set({
    "page color": "light blue", "header color": "dark green", "header align": "center", "navigation color": "red",
    "offers columns": "4", "offers boxes": "light pink", "contact button": "pink", "gallery pictures": "3",
    "order": "swapped",
})  # fmt: skip
PLAIN = Design("gym", "Star Gym", ("about", "hours"))


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What colour is the header?", "The header is dark green."),
        ("Is there a footer?", "There is no footer."),
        ("Should the title be centred?", "The text in the header is in the centre."),
        ("How many columns are in Our offers?", 'The section "Our offers" has 4 columns.'),
        ("How large is the picture?", "The first picture is about 300 by 200 pixels."),
        (
            "In which order do you want it?",
            'From top to bottom: the header, the navigation bar, the section "Gallery", the section "Our offers", '
            'the section "Contact us".',
        ),
        ("Is there a form? What colour is the footer?", "Yes, there is a form. There is no footer."),
        ("Does it look right?", None),
        ("What colour?", None),
        # Of something else in a part, the part says nothing.
        ("Is there a picture in the header?", None),
        ("What colour is the button in the header?", None),
        ("What colour are the links?", None),
        ("Do you want the header to be larger?", None),
        ("Is there a header with a shadow?", None),
        ("Should there be no header?", None),
        # The words beside the question do not count.
        ("Do you want a blue header?", "The header is dark green."),
        ("I made the header blue. Is there a navigation bar at the top?", "Yes, there is a navigation bar."),
        ("About the header: what colour (e.g. red) should it have?", "The header is dark green."),
        ("Should there be a section called Gallery?", 'Yes, there is a section "Gallery".'),
        ("Here it is:\nis there a form?", "Yes, there is a form."),
    ],
)
def test_answers(question: str, expected: str | None) -> None:
    page = outline_of(sketch_design(DESIGN))
    assert true_answer(question, page) == expected
    assert answer(question, page, random.Random(0)) in ([expected] if expected else UNKNOWN)


def test_what_is_not_there_is_denied() -> None:
    page = outline_of(sketch_design(PLAIN))
    assert true_answer("Are there any pictures?", page) == "There are no pictures."
    assert true_answer("What colour is the button?", page) == "There are no buttons."
    assert true_answer("How many columns are in About us?", page) == 'The section "About us" has no columns.'


def test_what_may_be_there_in_another_form_is_not_denied() -> None:
    bare = Page(b"", 1366, 682, (), (255, 255, 255), "ok", (), "by hand")
    words: dict[str, Any] = {"color": (0, 0, 0), "background": None, "font_size": 16.0, "bold": False, "align": "left"}
    words |= {"role": "", "depth": 1, "parent": -1}
    texts = ("Home", "Shop", "All rights reserved")
    elements = tuple(Element("a", Box(90 * n, 0, 80, 24), text, **words) for n, text in enumerate(texts))
    full = replace(bare, elements=elements)
    for question in ("Is there a header?", "Is there a navigation bar?", "Is there a footer?"):
        assert true_answer(question, outline_of(full)) is None
    assert true_answer("Is there a header?", outline_of(bare)) is None
    assert true_answer("Is there a footer?", outline_of(bare)) == "There is no footer."


def test_cards_with_headings_of_their_own_are_not_denied() -> None:
    ink, paper = (0, 0, 0), (255, 255, 255)
    elements: list[Element] = []
    for at in range(3):
        box = Box(20 + 440 * at, 20, 420, 200)
        elements.append(Element("div", box, "", ink, (200, 220, 255), 16, False, "left", "", 1, -1))
        title = Box(box.x + 10, 30, 400, 30)
        elements.append(Element("h2", title, f"Card {at}", ink, None, 24, True, "left", "heading", 2, 2 * at))
    page = Page(b"", 1366, 682, tuple(elements), paper, "ok", (), "sketch")
    assert true_answer("How many cards are there?", outline_of(page)) is None
    assert true_answer("How many cards are there?", outline_of(replace(page, elements=page.elements[:2])))


def test_an_agent_that_asks_everything_learns_the_truth() -> None:
    rng = random.Random(5)
    learnt = 0
    for _ in range(60):
        design = draw_design(rng, 3)
        page = outline_of(sketch_design(design))
        plain = Design(design.topic, design.title, design.sections)
        for name, question in QUESTIONS.items():
            heard = listen(plain, true_answer(question, page) or "")
            for settled, value in heard.details:
                assert design[settled] == value or (settled == "about picture" and design[settled] != NONE), (
                    question,
                    design,
                )
                learnt += settled == name
    assert learnt > 100
