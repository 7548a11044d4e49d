"""What a reply in a dialogue about a page of the suite is worth, and what went wrong in one, known from its task."""

from __future__ import annotations

from typing import Any

from sweetrl.colbench.markers import marked_answer
from sweetrl.frontend.pages import find_page
from sweetrl.frontend.suite.agents import listen
from sweetrl.frontend.suite.designs import Design, read_page
from sweetrl.frontend.suite.tasks import read_facts, read_request, wanted_design
from sweetrl.types import Task, Trajectory


def worth(task: Task, reply: str) -> float | None:
    """Return the share of the page's details that a visible reply has right, in [0, 1]; None for a foreign task.

    A question shows nothing and is worth 0; so is a page that is not of the suite's form. A page that ends the dialogue
    before everything is right is worth 1 less than one that is only shown: nothing can be put right any more.
    """
    if (known := _read(task)) is None:
        return None
    _, _, wanted = known
    page = _page(reply, wanted)
    right = 0.0
    if page is not None:
        shown = page.seen()
        names = [detail.name for detail in wanted.open_details()]
        right = sum(shown[name] == wanted[name] for name in names) / len(names)
        right *= (shown.title == wanted.title) * (set(shown.sections) == set(wanted.sections))
    return right - 1.0 if marked_answer(reply) is not None and right < 1.0 else right


def page_faults(trajectory: Trajectory, max_turns: int) -> dict[str, Any] | None:
    """Return the columns of a Result that are about details, and the topic; None for any other task.

    A detail is told when a sentence of the user, heard by who forgets nothing, sets it to its value. On the last page
    it is then right, forgotten (still plain), or mistaken (another value). Untold is one that the user has not told
    and the last page has not right either, as the look that the request names would have it. Premature is an answer
    with turns left that has not every detail of the page right, those included that nobody asked for.
    """
    if (known := _read(trajectory.task)) is None:
        return None
    facts, asked, wanted = known
    design = asked
    told: set[str] = set()
    for message in trajectory.messages[1:]:
        if message.role == "assistant":
            design = _page(message.content, asked) or design
            continue
        heard = listen(design, message.content)
        told.update(name for name in facts if heard[name] == wanted[name] != design[name])
        design = heard
    last = _page(trajectory.answer or "", asked)
    at_last = {name: last[name] if last is not None else asked[name] for name in told}
    right = {name for name in facts if last is not None and last[name] == wanted[name]}
    turns = sum(message.role == "assistant" for message in trajectory.messages)
    return {
        "topic": wanted.topic,
        "details": len(facts),
        "untold": len(facts.keys() - told - right),
        "forgotten": sum(value == asked[name] for name, value in at_last.items()),
        "mistaken": sum(value not in (asked[name], wanted[name]) for name, value in at_last.items()),
        "premature": trajectory.outcome == "answered" and turns < max_turns and (last is None or last.seen() != wanted),
    }


def _read(task: Task) -> tuple[dict[str, str], Design, Design] | None:
    """The facts of a task of the suite, the plain page that it asks for and the one that is wanted; None for others."""
    facts = read_facts(task.hidden_information)
    try:
        return (facts, read_request(task.problem_description), wanted_design(task)) if facts else None
    except ValueError:
        return None


def _page(text: str, asked: Design) -> Design | None:
    html = find_page(text)
    return read_page(html, asked.sections) if html is not None else None
