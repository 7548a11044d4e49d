"""The page in an agent's reply, by the official frontend protocol. Pure functions on text; nothing is rendered here.

The official rules, to the letter: what the user sees (after "OUTPUT:", see sweetrl.colbench.markers) is searched
for the first "<html ...>...</html>", and only without one for the first "<body ...>...</body>"; capital tags and
unclosed ones are no page. Where the reply is quoted, "[SEE RENDERED HTML]" stands for the page. The dialogue's answer
is the last page that any reply held, whatever the last reply says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sweetrl.colbench.markers import visible_reply
from sweetrl.types import ANSWER_MARKER, Message

PLACEHOLDER = "[SEE RENDERED HTML]"
# A page that has no end asks nothing, whatever its addresses and texts hold.
_PAGE = re.compile(r"<(?:!doctype|html|body)\b.*", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*(?:>|$)")


@dataclass(frozen=True)
class PageReply:
    """What a raw reply says: `words` (the page replaced by the placeholder) and `html` (its page or None)."""

    words: str
    html: str | None

    @property
    def question(self) -> str | None:
        """The words without marker and markup where they hold a question, else None."""
        text = self.words.replace(PLACEHOLDER, " ").replace(ANSWER_MARKER, " ")
        text = _TAG.sub(" ", _PAGE.sub(" ", text)).strip()
        return text if "?" in text else None


def find_page(text: str) -> str | None:
    """Return the first complete page in `text`, else the first body, else None."""
    html = _element(text, "html")
    return html if html is not None else _element(text, "body")


def _element(text: str, tag: str) -> str | None:
    """The first <tag ...>...</tag>, ended by the first end tag behind it; linear in the length of the text."""
    start = text.find(f"<{tag}")
    opened = text.find(">", start) if start >= 0 else -1
    closed = text.find(f"</{tag}>", opened + 1) if opened >= 0 else -1
    return text[start : closed + len(tag) + 3] if closed >= 0 else None


def read_reply(raw: str) -> PageReply:
    """Read a raw reply of an agent that designs a page."""
    visible = visible_reply(raw)
    return PageReply(without_pages(visible), find_page(visible))


def pages_of(messages: Sequence[Message]) -> list[str]:
    """Return the pages that the agent has shown, in order."""
    return [html for message in messages if message.role == "assistant" and (html := find_page(message.content))]


def last_page(messages: Sequence[Message]) -> str | None:
    """Return the page of the last agent message that holds one: what is scored; None where none does."""
    return next(reversed(pages_of(messages)), None)


def without_pages(text: str) -> str:
    """Return `text` with the placeholder for its page, for those who see the rendered page beside it."""
    html = find_page(text)
    return text if html is None else text.replace(html, PLACEHOLDER)
