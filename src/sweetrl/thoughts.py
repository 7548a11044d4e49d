"""What a model thinks before it speaks, told apart from what it says: by the marks that its kind puts around thoughts.

Thoughts are never said, never searched for a marker, never the answer; neither are those that a token limit broke off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

Marks = tuple[tuple[str, str], ...]  # (opening, closing)

MARKS: Marks = (
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


def split_thoughts(text: str, marks: Marks = MARKS) -> tuple[str, str]:
    """Return (thoughts, what is said) of a model's raw reply; without thoughts the reply is said as it is.

    All that stands between two marks of a pair is a thought; so is what comes before a closing mark that nothing opened
    (the template did), and what comes after an opening one that is never closed (the reply was broken off).
    """
    pieces = _pieces(text, marks)
    if len(pieces) == 1:
        return "", text
    thoughts = [text[start:end].strip() for thought, start, end in pieces if thought]
    spoken = "".join(text[start:end] for thought, start, end in pieces if not thought)
    return "\n".join(filter(None, thoughts)), spoken.strip()


def with_thoughts(thoughts: str | None, spoken: str, marks: Marks = MARKS) -> str:
    """Return the raw reply of a model whose log tells its thoughts apart from what it said, with the first `marks`."""
    opening, closing = marks[0]
    return f"{opening}\n{thoughts.strip()}\n{closing}\n\n{spoken}" if thoughts else spoken


def assistant_message(thoughts: str, reply: str) -> dict[str, str]:
    """Return a reply as a message of a log or of a reasoning model's server: its thoughts, if any, stand apart."""
    return {"role": "assistant", "content": reply, **({"reasoning_content": thoughts} if thoughts else {})}


def thought_length(ids: Sequence[int], tokenizer: Any, marks: Marks = MARKS) -> int:
    """Return how many tokens of a reply come before the first one with a letter of what is said.

    That is 0 for a reply that does not begin with thoughts, and all of them where nothing is said.
    """

    def text(count: int) -> str:
        return str(tokenizer.decode(list(ids[:count]), clean_up_tokenization_spaces=False))

    reply, begun, start = text(len(ids)), False, 0
    for thought, first, end in _pieces(reply, marks):
        begun, start = begun or thought, end
        if not thought and (words := reply[first:end].lstrip()):
            start = end - len(words)
            break
    few, many = 0, len(ids) if begun else 0
    while few < many:  # the most tokens whose text ends before `start`
        middle = (few + many + 1) // 2
        few, many = (middle, many) if len(text(middle)) <= start else (few, middle - 1)
    return few


def _pieces(text: str, marks: Marks) -> list[tuple[bool, int, int]]:
    """What stands between the marks: whether it is a thought, where it begins and ends."""
    pieces, ends, closing, end, unopened = list[tuple[bool, int, int]](), dict(marks), "", 0, 0
    for mark in _pattern(marks).finditer(text):
        if closing and mark[0] != closing:
            continue
        opened = "" if closing else ends.get(mark[0], "")
        pieces.append((not opened, end, mark.start()))
        if not closing and not opened:  # all before it is a thought
            unopened = len(pieces)
        closing, end = opened, mark.end()
    pieces.append((bool(closing), end, len(text)))
    return [(True, start, stop) for _, start, stop in pieces[:unopened]] + pieces[unopened:]


@lru_cache
def _pattern(marks: Marks) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for pair in marks for mark in pair))
