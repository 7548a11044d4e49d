"""The fenced blocks of a page, in order, with what a comment before them says: what the tests of the docs run.

<!-- not run: needs a GPU -->
```console
vllm serve MODEL
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL = ("console", "bash", "sh")
SHOWN = ("text", "mermaid", "toml", "bibtex", "math")  # to be read, not to be run
COMMENTS = ("not run", "typed", "server")
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)(?P<rest>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.S | re.M)
COMMENT = re.compile(r"<!-- ([a-z ]+): (.*?) -->\s*\Z", re.S)
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text and line, the file that its title names, and the comments right before it."""

    language: str
    text: str
    line: int
    title: str = ""
    comments: dict[str, str] = field(default_factory=dict)

    @property
    def skipped(self) -> str:
        """Why the block is not run; empty if it is."""
        return self.comments.get("not run", "")

    def commands(self) -> list[str]:
        """Return the commands of a shell's block: lines, joined where a backslash or an open quote says so."""
        found: list[str] = []
        pending = ""
        for line in self.text.splitlines():
            pending += line + "\n"
            if not pending.rstrip("\n").endswith("\\") and not is_open(pending):
                found.append(pending.strip())
                pending = ""
        if pending.strip():
            raise ValueError(f"line {self.line}: a command does not end: {pending.strip()[:60]!r}")
        return [one for one in found if one and not one.startswith("#")]


def is_open(text: str) -> bool:
    """Say whether a quote of the shell is still open at the end of `text`."""
    quote = ""
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1].isspace()):
            at = text.find("\n", at)
        at += 1
    return bool(quote)


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page; a ValueError names a comment, a language or a command that is of no known form."""
    text = page.read_text(encoding="utf-8")
    end = 0
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        comments = {}
        before = text[end : found.start()]
        while comment := COMMENT.search(before):
            if comment[1] not in COMMENTS or not comment[2].strip():
                raise ValueError(
                    f"{page.name}, line {line}: a comment {comment[1]!r} is not one of {', '.join(COMMENTS)}"
                )
            comments[comment[1]] = " ".join(comment[2].split())
            before = before[: comment.start()]
        end = found.end()
        if found["language"] not in (*SHELL, *SHOWN, "python", "yaml", "json", ""):
            raise ValueError(f"{page.name}, line {line}: nobody knows what to do with a block of {found['language']!r}")
        title = TITLE.search(found["rest"])
        yield Block(found["language"], found["text"], line, title[1] if title else "", comments)


def pages() -> list[Path]:
    """Return the pages whose blocks count: the README, the docs, and what stands beside the README."""
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*beside, *sorted((ROOT / "docs").rglob("*.md"))]
