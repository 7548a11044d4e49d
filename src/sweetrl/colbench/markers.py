"""How a reply is read by ColBench's official rules: what the user sees of it, and whether it answers.

- What a model thinks before it speaks (sweetrl.thoughts) is no part of what it says: the rules are about the rest.
- With an "OUTPUT:" in it, the user sees what stands after the first one, up to a second one if there is one; what
  stands before is the agent's own thought. Without one the user sees the whole reply. Nothing is stripped.
- If what the user sees holds "I WANT TO ANSWER:", the dialogue ends, and the answer is what follows the first one, up
  to a second one if there is one.
Markers are case-sensitive; one inside the thought does not count.
"""

from __future__ import annotations

from sweetrl.thoughts import MARKS, Marks, split_thoughts
from sweetrl.types import ANSWER_MARKER, OUTPUT_MARKER


def visible_reply(raw: str, marks: Marks = MARKS) -> str:
    """Return what the user sees of a raw reply: what stands between the first and the second "OUTPUT:", or all of it.

    `marks` are those around thoughts; where a domain is at hand, `Domain.visible` knows them.
    """
    _, reply = split_thoughts(raw, marks)
    parts = reply.split(OUTPUT_MARKER, 2)
    return parts[1] if len(parts) > 1 else reply


def marked_answer(visible: str) -> str | None:
    """Return what follows "I WANT TO ANSWER:" (up to a second one), or None where the reply does not answer."""
    parts = visible.split(ANSWER_MARKER, 2)
    return parts[1] if len(parts) > 1 else None
