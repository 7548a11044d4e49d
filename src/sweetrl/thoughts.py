"""What a model thinks before it speaks, told apart from what it says: by the marks that its kind puts around thoughts.

Thoughts are never said, never searched for a marker, never the answer; neither are those that a token limit broke off.
"""

from __future__ import annotations

import re
from functools import lru_cache

MARKS = (
    ("<think>", "</think>"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # harmony, with what ends a message between them
)


def split_thoughts(text: str, marks: tuple[tuple[str, str], ...] = MARKS) -> tuple[str, str]:
    """Return (thoughts, what is said) of a model's raw reply; without thoughts the reply is said as it is.

    All that stands between two marks of a pair is a thought; so is what comes before a closing mark that nothing opened
    (the template did), and what comes after an opening one that is never closed (the reply was broken off).
    """
    thoughts, said, closing, end = list[str](), list[str](), "", 0
    for mark in _pattern(marks).finditer(text):
        opens = dict(marks).get(mark[0])
        if closing and mark[0] != closing:
            continue
        piece = text[end : mark.start()]
        if closing:
            thoughts.append(piece)
            closing = ""
        elif opens is None:
            thoughts += [*said, piece]
            said = []
        else:
            said.append(piece)
            closing = opens
        end = mark.end()
    if not end:
        return "", text
    (thoughts if closing else said).append(text[end:])
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(said).strip()


@lru_cache
def _pattern(marks: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for pair in marks for mark in pair))
