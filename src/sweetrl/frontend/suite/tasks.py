"""Procedural frontend tasks: a vague request, and a page whose details it does not give.

A request names what the page is for, its title, its sections and a look; colours, alignment, pictures, columns,
navigation, footer and order are hidden. The look settles many of them, for whoever heeds it. Content decides the split,
so the splits are disjoint for every seed and every count.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from sweetrl.frontend.suite.designs import (
    BY_NAME,
    DETAILS,
    HEADINGS,
    KIND_OF,
    NAMES,
    NONE,
    TOPICS,
    Design,
    unseen,
    write_page,
)
from sweetrl.frontend.suite.looks import HINTS, LOOKS, Look
from sweetrl.seeds import split_of
from sweetrl.types import Split, Task

OPENERS = (
    "I need a web page for my",
    "Please design a page for our",
    "I want a website for a",
    "Can you make a page for the",
)
_REQUEST = re.compile(r'(?:my|our|a|the) (\w+) called "([^"]+)", with the sections ([^.]*)\.')


def generate(split: Split, count: int, seed: int, difficulty: int = 3) -> Iterator[Task]:
    """Yield `count` different tasks of `split`; the same arguments give the same tasks.

    `difficulty` details of a page, one fewer or one more, are not as its look has them. All that is hidden can be seen.
    """
    rng = random.Random(f"frontend-{split}-{seed}-{difficulty}")
    seen: set[str] = set()
    while len(seen) < count:
        look = rng.choice(LOOKS)
        design = draw_design(rng, difficulty, look)
        content = f"{design.title}|{','.join(design.sections)}|{write_facts(design)}"
        if content in seen or split_of(content) != split:
            continue
        seen.add(content)
        yield Task(
            id=f"frontend-{split}-{seed}-{len(seen) - 1:05d}",
            problem_description=write_request(design, look, rng),
            ground_truth=write_page(design),
            hidden_information=write_facts(design),
            suite="frontend",
        )


def draw_design(rng: random.Random, difficulty: int, look: Look | None = None) -> Design:
    """Draw a title, sections and (where none is given) a look, and the details that are not as the look has them."""
    topic = rng.choice(tuple(TOPICS))
    kinds = tuple(rng.sample(tuple(HEADINGS), rng.choice((2, 3, 3, 3))))
    look = look or rng.choice(LOOKS)
    design = look.on(Design(topic, f"{rng.choice(NAMES)} {topic.capitalize()}", kinds))
    names = [detail.name for detail in design.open_details()]
    if "gallery" in kinds:  # else nobody could say which picture is meant
        names = [name for name in names if name != "about picture"]
    if design["navigation color"] == NONE:
        names.remove("navigation place")
    chosen = set(rng.sample(names, max(1, difficulty + rng.choice((-1, 0, 1)))))
    # A colour over the page's own must differ from it, or it could not be seen: the page comes first.
    for detail in DETAILS:
        if detail.name in chosen:
            values = [v for v in detail.values if v != design[detail.name] and v not in unseen(detail.name, design)]
            design = design.set({detail.name: rng.choice(values)})
    return design.seen().grounded()


def write_request(design: Design, look: Look, rng: random.Random) -> str:
    """Word the vague request: what for, the title, the sections, the name of a look; none of the details."""
    names = [f'"{HEADINGS[kind]}"' for kind in design.sections]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    wish = f'{rng.choice(OPENERS)} {design.topic} called "{design.title}", with the sections {listed}.'
    return f"{wish} {rng.choice(HINTS).format(rng.choice(look.words))}"


def read_request(problem_description: str) -> Design:
    """Return the plain page that a request of the suite asks for; ValueError if it is not one."""
    match = _REQUEST.search(problem_description)
    kinds = tuple(KIND_OF[name] for name in re.findall(r'"([^"]+)"', match[3]) if name in KIND_OF) if match else ()
    if match is None or match[1] not in TOPICS or not kinds:
        raise ValueError("this is not a request of the synthetic frontend suite")
    return Design(match[1], match[2], kinds)


def write_facts(design: Design) -> str:
    """The hidden information of a task: one `detail: value` line for each detail that is not plain."""
    return "\n".join(f"{name}: {value}" for name, value in design.details)


def read_facts(hidden_information: str | None) -> dict[str, str]:
    """Parse what write_facts wrote; other lines are ignored, so a foreign task has no facts."""
    lines = (line.partition(": ") for line in (hidden_information or "").splitlines())
    return {name: value for name, colon, value in lines if colon and name in BY_NAME and value in BY_NAME[name].values}


def reference_design(task: Task) -> Design:
    """Return the reference of a task of the suite, which the user has in mind; ValueError for a foreign task."""
    return read_request(task.problem_description).set(read_facts(task.hidden_information))
