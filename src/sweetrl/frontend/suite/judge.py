"""What a reply in a dialogue about a page of the suite is worth, and what went wrong in a dialogue, by its task."""

from __future__ import annotations

from typing import Any

from sweetrl.colbench.markers import marked_answer
from sweetrl.frontend.pages import find_page
from sweetrl.frontend.suite.agents import listen
from sweetrl.frontend.suite.designs import Design, read_page
from sweetrl.frontend.suite.tasks import read_facts, read_request, reference_design
from sweetrl.types import Task, Trajectory


def worth(task: Task, reply: str) -> float | None:
    """Return the share of the page's details that a visible reply has right, in [0, 1]; None for a foreign task.

    A question shows nothing and is worth 0; so is a page that is not of the suite's form. A page that ends the dialogue
    before everything is right is worth 1 less than one that is only shown: nothing can be put right any more.
    """
    if (parsed := _read_task(task)) is None:
        return None
    _, _, reference = parsed
    page = _page(reply, reference)
    right = 0.0
    if page is not None:
        shown = page.seen()
        names = [detail.name for detail in reference.open_details()]
        right = sum(shown[name] == reference[name] for name in names) / len(names)
        right *= (shown.title == reference.title) * (set(shown.sections) == set(reference.sections))
    return right - 1.0 if marked_answer(reply) is not None and right < 1.0 else right


def page_faults(trajectory: Trajectory, max_turns: int) -> dict[str, Any] | None:
    """Return the columns of a Result that are about details, and the topic; None for any other task.

    The user reveals a detail with a sentence that sets it to its value for a listener who forgets nothing. On the last
    page it is then right, forgotten (still plain), or mistaken (another value). Untold is a detail that the user has
    not revealed, unless the last page has it right anyway, as the look in the request may settle it. Premature is an
    answer with turns left whose page has any detail wrong, be it one that nobody asked for.
    """
    if (parsed := _read_task(trajectory.task)) is None:
        return None
    facts, plain, reference = parsed
    design, revealed = plain, set[str]()
    for message in trajectory.messages[1:]:
        if message.role == "assistant":
            design = _page(message.content, plain) or design
            continue
        heard = listen(design, message.content)
        revealed.update(name for name in facts if heard[name] == reference[name] != design[name])
        design = heard
    last = _page(trajectory.answer or "", plain)
    at_last = {name: (last or plain)[name] for name in revealed}
    right = {name for name in facts if last is not None and last[name] == reference[name]}
    turns = sum(message.role == "assistant" for message in trajectory.messages)
    early = trajectory.outcome == "answered" and turns < max_turns
    return {
        "topic": reference.topic,
        "details": len(facts),
        "untold": len(facts.keys() - revealed - right),
        "forgotten": sum(value == plain[name] for name, value in at_last.items()),
        "mistaken": sum(value not in (plain[name], reference[name]) for name, value in at_last.items()),
        "premature": early and (last is None or last.seen() != reference),
    }


def _read_task(task: Task) -> tuple[dict[str, str], Design, Design] | None:
    """The facts of a task of the suite, the plain page that it asks for, and the reference; None for other tasks."""
    facts = read_facts(task.hidden_information)
    try:
        return (facts, read_request(task.problem_description), reference_design(task)) if facts else None
    except ValueError:
        return None


def _page(text: str, request: Design) -> Design | None:
    html = find_page(text)
    return read_page(html, request.sections) if html is not None else None
