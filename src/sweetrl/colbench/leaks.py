"""Training-time information where it must not be: pieces of the hidden reference, and who quotes them.

A leak is a piece of c that nobody says by chance: what a task's domain finds in a user's words (`Domain.find_leak`),
and, when a batch is validated, any of `hidden_fragments` in something that the actor sees. A user who tells a value
("the rate is 7") leaks nothing; that is what asking is for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from sweetrl.types import Leak, Message, Task

SHORTEST = 12  # characters of the shortest piece of a reference that counts
# A quotation is a run of RUN tokens, of which at least MARKS are neither words nor numbers.
RUN, MARKS = 8, 4
# Words, numbers, operators; a text in quotes is one mark, so that telling a message's wording is no quote. It has an
# end: else each quote in it would be read to the end of what is said.
_TOKEN = re.compile(
    r"\"\"\".*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n]){0,1000}\"|'(?:\\.|[^'\\\n]){0,1000}'|#[^\n]*|[A-Za-z_]\w*|\d+(?:\.\d+)?|\*\*|//|[-+*/%<>=!]=|->|\S",
    re.DOTALL,
)


@dataclass(frozen=True)
class Fragment:
    """A piece of training-time information without its blanks, and what to call it."""

    name: str
    text: str


def squeeze(text: str) -> str:
    """`text` without blanks and line breaks, so that reformatted code is the same code."""
    return "".join(text.split())


def hidden_fragments(task: Task, telling: Callable[[str, int], bool], opening: str) -> tuple[Fragment, ...]:
    """Everything of the task's training-time information that nobody may say to the actor word for word.

    `telling` (text, lines) says whether a piece of the reference could not be said by chance; `opening` is what puts c
    in front of the critic's prompt.
    """
    fragments: dict[str, str] = {}
    for name, text in (("the reference", task.ground_truth), ("the hidden information", task.hidden_information or "")):
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        lines = [(number, line) for number, line in lines if not line.startswith("def ")]
        for number, line in lines:
            if len(line) >= SHORTEST and telling(line, 1):
                fragments.setdefault(squeeze(line), f"line {number} of {name}")
        for (first, line), (_, after) in pairwise(lines):
            squeezed = squeeze(line + after)
            if len(squeezed) >= SHORTEST and telling(squeezed, 2):
                fragments.setdefault(squeezed, f"lines {first} and following of {name}")
    for name, call in task.test_cases:
        squeezed = squeeze(call)
        if not squeezed.endswith("()"):
            fragments.setdefault(squeezed, f"the call of hidden test {name}")
    squeezed = squeeze(opening)
    if len(squeezed) >= SHORTEST:
        fragments.setdefault(squeezed, "the critic's privileged prefix")
    return tuple(Fragment(name, text) for text, name in fragments.items())


def leaked_fragment(fragments: Sequence[Fragment], words: str, earlier: Sequence[str]) -> Fragment | None:
    """Return the first of `fragments` in `words` that stood in none of the `earlier` texts, or None.

    What the request or the agent itself has brought up is no secret any more. All texts are squeezed.
    """
    quoted = (fragment for fragment in fragments if fragment.text in words)
    return next((fragment for fragment in quoted if not any(fragment.text in text for text in earlier)), None)


def leaks_of(
    task: Task, messages: Sequence[Message], find_leak: Callable[[Task, str], Leak | None]
) -> list[tuple[int, Leak]]:
    """Return the leaks in what the user said after the request, with the messages' indices."""
    return [
        (index, leak)
        for index, message in enumerate(messages)
        if index > 0 and message.role == "user" and (leak := find_leak(task, message.content)) is not None
    ]


def find_quote(task: Task, words: str) -> Leak | None:
    """Return a quotation of the reference in `words`, with so many marks that nobody says it by chance, or None."""
    allowed = frozenset[tuple[str, ...]]().union(*map(_runs, _readings(task.problem_description)))
    runs = _runs(task.ground_truth or task.hidden_information or "") - allowed
    for tokens in map(_tokens, _readings(words)):
        for start in range(len(tokens) - RUN + 1):
            run = tokens[start : start + RUN]
            if sum(not token[0].isalnum() for token in run) >= MARKS and run in runs:
                return Leak("quote", " ".join(run))
    return None


def _readings(text: str) -> list[str]:
    """A text as it stands, and without signs that may hide code in it: quotes around it, apostrophes, "#1"."""
    return list(dict.fromkeys([text, *(re.sub(f"[{signs}]", " ", text) for signs in ('"', "'#", "\"'#"))]))


@lru_cache(maxsize=256)
def _runs(text: str) -> frozenset[tuple[str, ...]]:
    tokens = _tokens(text)
    return frozenset(tokens[start : start + RUN] for start in range(len(tokens) - RUN + 1))


def _tokens(text: str) -> tuple[str, ...]:
    """The tokens of code or of a reply; comments are left out, quoted texts are one and the same mark."""
    tokens = (match[0] for match in _TOKEN.finditer(text.replace("`", " ")))
    return tuple("''" if token[0] in "\"'" else token for token in tokens if not token.startswith("#"))
