"""Procedural ColBench tasks: a vague request and a signature, a reference with hidden details, ten hidden tests.

Content decides the split: a hash of which kinds of detail a task hides sends it to train or to test, and some domains
are in the test split only. So the splits are disjoint for every seed and every count, and no test program equals a
training program up to numbers and names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweetrl.backend.suite.details import BY_NAME, CURRENCIES, KINDS
from sweetrl.backend.suite.topics import (
    ASIDES,
    CELL_OF,
    CLOSERS,
    DOMAINS,
    GRID,
    OPENERS,
    PLACES,
    Domain,
    Hints,
    named_kinds,
    word_cell,
)
from sweetrl.seeds import split_of
from sweetrl.types import Split, Task

Value = int | str
Details = Mapping[str, tuple[Value, ...]]

FALSE_HINT = 0.25  # chance that a request also names a cell in which nothing is hidden, where there are turns for it
ASIDE = 0.5  # chance of a sentence that tells nothing


@dataclass(frozen=True)
class Spec:
    """Everything a synthetic task is made from; `details` are (name of a kind, its values) in program order."""

    domain: Domain
    function: str
    argument: str
    details: tuple[tuple[str, tuple[Value, ...]], ...]


def write_program(function: str, argument: str, details: Details) -> str:
    """Write the program that has exactly these details, steps in the suite's order."""
    lines = [f"def {function}({argument}):"]
    counted = False  # whether `total` has been set from the argument
    for kind in KINDS:
        if kind.name in details:
            if not counted and any("total" in line for line in kind.code) and kind.name != "rate":
                lines.append(f"    total = {argument}")
                counted = True
            counted = counted or kind.name == "rate"
            lines += [f"    {line.format(*details[kind.name], x=argument)}" for line in kind.code]
    if not counted:
        lines.append(f"    total = {argument}")
    lines.append("    return total")
    return "\n".join(lines)


def write_facts(details: Details) -> str:
    """The hidden information of a task: one `kind: values` line for each detail."""
    return "\n".join(f"{name}: {', '.join(map(str, values))}" for name, values in details.items())


def read_facts(hidden_information: str | None) -> dict[str, tuple[str, ...]]:
    """Parse what write_facts wrote; no facts at all if any line has another form.

    Such a task is not of the suite, and a user who knew a part of its facts would deny the rest.
    """
    facts: dict[str, tuple[str, ...]] = {}
    for line in filter(str.strip, (hidden_information or "").splitlines()):
        name, colon, listed = line.partition(": ")
        values = tuple(value.strip() for value in listed.split(","))
        if not colon or name not in BY_NAME or not _fit(values, len(BY_NAME[name].values)):
            return {}
        facts[name] = values
    return facts


def _fit(values: Sequence[str], numbers: int) -> bool:
    if not numbers:
        return len(values) == 1 and values[0] in CURRENCIES
    return len(values) == numbers and all(value.isdecimal() for value in values)


def generate(
    split: Split,
    count: int,
    seed: int,
    difficulty: int = 3,
    domains: Sequence[Domain] | None = None,
    hints: Hints = "grid",
) -> Iterator[Task]:
    """Yield `count` different tasks of `split`; the same arguments give the same tasks.

    A task hides `difficulty` details, one fewer or one more (at least one). Every detail shows in at least one test: a
    program without it, or with a number of it increased by one, fails. `domains` are those of the split by default,
    `hints` says how requests are worded.
    """
    rng = random.Random(f"{split}-{seed}-{difficulty}")
    domains = domains or [domain for domain in DOMAINS if split == "test" or not domain.held_out]
    max_questions = 2 * max(1, difficulty)  # to bring out everything after reading the request: two for each detail
    seen: set[Spec] = set()
    while len(seen) < count:
        spec = draw_spec(rng, difficulty, domains)
        steps = " ".join(name for name, _ in spec.details)
        if spec in seen or split_of(steps) != split:
            continue
        hint = draw_hint(spec, rng, max_questions)
        tests = draw_tests(spec, rng) if hint is not None else None
        if hint is None or tests is None:
            continue
        seen.add(spec)
        details = dict(spec.details)
        yield Task(
            id=f"synthetic-{split}-{seed}-{len(seen) - 1:05d}",
            problem_description=draw_request(spec, hint, rng, hints),
            ground_truth=write_program(spec.function, spec.argument, details),
            test_cases=tuple((f"test{i + 1}", call) for i, call in enumerate(tests)),
            hidden_information=write_facts(details),
        )


def draw_spec(rng: random.Random, difficulty: int, domains: Sequence[Domain] = DOMAINS) -> Spec:
    """Draw a domain, names, and the hidden details with their values."""
    domain = rng.choice(domains)
    count = min(max(1, difficulty + rng.choice((-1, 0, 1))), len(domain.relevant))
    names = set(rng.sample(domain.relevant, count))
    details = tuple(
        (kind.name, tuple(rng.randint(*ends) for ends in kind.values) or (rng.choice(CURRENCIES),))
        for kind in KINDS
        if kind.name in names
    )
    return Spec(domain, rng.choice(domain.functions), rng.choice(domain.arguments), details)


def draw_hint(spec: Spec, rng: random.Random, max_questions: int) -> tuple[tuple[str, str], ...] | None:
    """Draw the cells that the request names: those of the details, and now and then one in which nothing is hidden.

    None if asking for what is plausible in them, follow-ups included, takes more than `max_questions`.
    """
    plausible = set(spec.domain.relevant)
    cells = list(dict.fromkeys(CELL_OF[name] for name, _ in spec.details))

    def needed(named: Sequence[tuple[str, str]]) -> int:
        questions = sum(len(plausible & set(GRID[cell])) for cell in named)
        return questions + sum(BY_NAME[name].parts - 1 for name, _ in spec.details)

    if needed(cells) > max_questions:
        return None
    others = [cell for cell in GRID if cell not in cells and plausible & set(GRID[cell])]
    if others and rng.random() < FALSE_HINT:
        more = [*cells, rng.choice(others)]
        cells = more if needed(more) <= max_questions else cells
    rng.shuffle(cells)
    return tuple(cells)


def draw_request(spec: Spec, hint: Sequence[tuple[str, str]], rng: random.Random, hints: Hints = "grid") -> str:
    """Word the vague request: the domain, the cells of `hint` and the signature, and none of the details."""
    *others, last = [word_cell(cell, rng, hints) for cell in hint]
    listed = f"{', '.join(others)} and {last}" if others else last
    sentences = [
        f"{rng.choice(OPENERS)} {rng.choice(spec.domain.phrases)} {rng.choice(PLACES)}.",
        rng.choice(CLOSERS).format(listed),
    ]
    if rng.random() < ASIDE:
        sentences.insert(rng.choice((1, 2)), rng.choice(ASIDES))
    request = f"{' '.join(sentences)} The signature of the function is: def {spec.function}({spec.argument})"
    assert named_kinds(request) == {kind for cell in hint for kind in GRID[cell]}, request
    return request


def draw_tests(spec: Spec, rng: random.Random) -> list[str] | None:
    """Draw ten calls under which every detail and every value shows; None if these details hide one another."""
    details = dict(spec.details)
    interesting = {-1, 0, 1}
    for _, values in spec.details:
        for value in values:
            if isinstance(value, int):
                interesting |= {value - 1, value, value + 1}
    pool = [n for n in sorted(interesting) if n <= 60] + rng.sample(range(2, 80), 20)
    reference = outputs(details, pool)
    rivals = [outputs(changed, pool) for changed in _near_misses(details)]
    chosen: list[int] = []
    unseen = list(range(len(rivals)))
    while unseen:  # greedy cover: each call is the one that exposes most of the rivals that still pass
        best = max(range(len(pool)), key=lambda i: (sum(rivals[r][i] != reference[i] for r in unseen), -abs(pool[i])))
        exposed = [r for r in unseen if rivals[r][best] != reference[best]]
        if not exposed:
            return None
        chosen.append(best)
        unseen = [r for r in unseen if r not in exposed]
    rest = [i for i in range(len(pool)) if i not in chosen and pool[i] not in {pool[j] for j in chosen}]
    rng.shuffle(rest)
    for i in rest:
        if len(chosen) >= 10:
            break
        if pool[i] not in {pool[j] for j in chosen}:
            chosen.append(i)
    if len(chosen) != 10:
        return None
    rng.shuffle(chosen)
    return [f"{spec.function}({pool[i]})" for i in chosen]


def _near_misses(details: Details) -> list[dict[str, tuple[Value, ...]]]:
    """The details with one fault each: a detail is missing, or a value is off by one (or another currency)."""
    misses: list[dict[str, tuple[Value, ...]]] = []
    for name, values in details.items():
        misses.append({other: v for other, v in details.items() if other != name})
        for i, value in enumerate(values):
            other_value = value + 1 if isinstance(value, int) else next(c for c in CURRENCIES if c != value)
            misses.append({**details, name: (*values[:i], other_value, *values[i + 1 :])})
    return misses


def outputs(details: Details, inputs: Sequence[int]) -> list[Any]:
    """What the program with these details returns for each input; run here, because its text is the suite's own."""
    space: dict[str, Any] = {}
    exec(write_program("f", "x", details), space)
    return [space["f"](x) for x in inputs]
