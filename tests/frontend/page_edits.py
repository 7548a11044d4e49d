"""Edits of real pages, of known kinds: what a reward must put in order. Seeded; nothing of the pages is kept here."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from bs4 import BeautifulSoup, NavigableString, Tag

KINDS = ("minor", "colour", "order", "wording", "removal")
BLANK = "<html><body></body></html>"
COLOURS = ("red", "green", "blue", "yellow", "indigo", "purple", "pink")
WORDS = [
    "harbour", "lantern", "velvet", "copper", "meadow", "signal", "orchard", "granite", "willow", "compass", "ember",
    "thistle", "quarry", "saddle", "ribbon", "falcon", "marble", "timber", "canyon", "violet", "anchor", "beacon",
    "cotton", "drizzle", "feather",
]  # fmt: skip


def edit(html: str, kind: str, seed: int) -> str | None:
    """Return the page with one edit of this kind, or None where the page has nothing to edit so."""
    choices = random.Random(f"{kind}{seed}")
    soup = BeautifulSoup(html, "html.parser")
    changed = EDITS[kind](soup, choices)
    return str(soup) if changed else None


def blocks(soup: BeautifulSoup) -> list[Tag]:
    """The siblings that a page's main part is made of: the container with the most sections, else of the body."""
    best: list[Tag] = []
    for parent in soup.find_all(["main", "body", "div"]):
        children = [
            child
            for child in parent.find_all(["section", "article", "div"], recursive=False)
            if len(child.get_text(strip=True)) > 10
        ]
        sections = [child for child in children if child.name == "section"]
        best = max(best, sections if len(sections) >= 2 else children, key=len)
    return best


def minor(soup: BeautifulSoup, choices: random.Random) -> bool:
    """A word of a text is replaced by another."""
    texts = [text for text in visible(soup) if len(text.split()) >= 4]
    if not texts:
        return False
    text = choices.choice(texts)
    words = text.split()
    words[choices.randrange(len(words))] = choices.choice(WORDS)
    text.replace_with(NavigableString(" ".join(words)))
    return True


def colour(soup: BeautifulSoup, choices: random.Random) -> bool:
    """The header, footer, page or a section has another background."""
    places = [tag for tag in soup.find_all(["body", "nav", "header", "footer", "section"]) if isinstance(tag, Tag)]
    if not places:
        return False
    place = choices.choice(places)
    kept = [name for name in place.get("class") or [] if not re.fullmatch(r"bg-[a-z]+(-\d+)?", name)]
    place["class"] = [*kept, f"bg-{choices.choice(COLOURS)}-{choices.choice((200, 400, 600))}"]
    return True


def order(soup: BeautifulSoup, choices: random.Random) -> bool:
    """Two sections have changed places."""
    siblings = blocks(soup)
    if len(siblings) < 2:
        return False
    first, second = choices.sample(siblings, 2)
    if first.get_text(strip=True) == second.get_text(strip=True):
        return False
    marker = NavigableString("")
    first.replace_with(marker)
    second.replace_with(first)
    marker.replace_with(second)
    return True


def wording(soup: BeautifulSoup, choices: random.Random) -> bool:
    """Every text says something else at the same length."""
    texts = visible(soup)
    for text in texts:
        text.replace_with(NavigableString(" ".join(choices.choice(WORDS) for _ in text.split())))
    return bool(texts)


def removal(soup: BeautifulSoup, choices: random.Random) -> bool:
    """A section is missing."""
    siblings = blocks(soup)
    if len(siblings) < 2:
        return False
    choices.choice(siblings).decompose()
    return True


def visible(soup: BeautifulSoup) -> list[NavigableString]:
    return [
        text
        for text in soup.find_all(string=True)
        if type(text) is NavigableString and text.strip() and text.parent.name not in ("style", "script", "title")
    ]


EDITS: dict[str, Callable[[BeautifulSoup, random.Random], bool]] = {
    "minor": minor,
    "colour": colour,
    "order": order,
    "wording": wording,
    "removal": removal,
}
