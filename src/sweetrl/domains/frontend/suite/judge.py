"""What a reply in a dialogue about a page of the suite is worth, known from how the task was made."""

from __future__ import annotations

from sweetrl.colbench.markers import marked_answer, visible_reply
from sweetrl.domains.frontend.pages import find_page
from sweetrl.domains.frontend.suite.designs import DETAILS, read_page
from sweetrl.domains.frontend.suite.tasks import read_facts, wanted_design
from sweetrl.types import Task


def worth(task: Task, reply: str) -> float | None:
    """Return the share of the page's details that the reply's page has right, in [0, 1]; None for a foreign task.

    A question shows nothing and is worth 0; so is a page that is not of the suite's form. A page that ends the dialogue
    before everything is right is worth 1 less than one that is only shown: nothing can be put right any more.
    """
    if not read_facts(task.hidden_information):
        return None
    try:
        wanted = wanted_design(task)
    except ValueError:
        return None
    said = visible_reply(reply)
    html = find_page(said)
    page = read_page(html, wanted.sections) if html is not None else None
    right = 0.0
    if page is not None:
        shown = page.seen()
        details = [one.name for one in DETAILS if one.section in ("", *wanted.sections)]
        right = sum(shown[name] == wanted[name] for name in details) / len(details)
        right *= (shown.title == wanted.title) * (set(shown.sections) == set(wanted.sections))
    return right - 1.0 if marked_answer(said) is not None and right < 1.0 else right
