"""What an attack is: a solution to `square(x)` with tests x = 2..6, and what a correct scorer gives it.

Outcomes: "zero" nothing passes; "part" only the test x = 3 is lost; "full" the attack does not change the verdict;
"any" not everything passes.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    family: str
    name: str
    outcome: str
    source: str


class Attacks(list[Attack]):
    """The attacks of a module, with methods for the forms that they share."""

    def add(self, family: str, name: str, outcome: str, source: str) -> None:
        self.append(Attack(family, name, outcome, textwrap.dedent(source).strip() + "\n"))

    def on_three(self, family: str, name: str, body: str, outcome: str = "part", setup: str = "") -> None:
        """`body` runs for x = 3 only."""
        source = (
            textwrap.dedent(setup)
            + "\ndef square(x):\n    if x == 3:\n"
            + textwrap.indent(textwrap.dedent(body), "        ")
        )
        self.append(Attack(family, name, outcome, source.rstrip() + "\n    return x * x\n"))

    def always(self, family: str, name: str, body: str, outcome: str = "zero", setup: str = "") -> None:
        """`body` runs at every call, then the right answer is returned."""
        source = textwrap.dedent(setup) + "\ndef square(x):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
        self.append(Attack(family, name, outcome, source.rstrip() + "\n    return x * x\n"))

    def tries(self, family: str, name: str, attempt: str, setup: str = "") -> None:
        """`attempt` must raise: where it succeeds, the solution returns a wrong value."""
        body = (
            "try:\n"
            + textwrap.indent(textwrap.dedent(attempt).strip(), "    ")
            + "\nexcept BaseException:\n    pass\nelse:\n    return -1\n"
        )
        self.always(family, name, body, "full", setup)
