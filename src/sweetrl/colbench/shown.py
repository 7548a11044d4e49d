"""What people are shown of a domain's dialogues, at a terminal and in a browser: words, files, pictures, test runs."""

from __future__ import annotations

from sweetrl.types import Task, TestRun


class Shown:
    """The part of a domain that is for people; `syntax` is the language of references and answers, for highlighting."""

    syntax: str = "text"

    def display(self, text: str) -> list[tuple[str, str]]:
        """Return a message in pieces (language, text) for highlighting; plain words have no language."""
        before, fence, rest = text.partition(f"```{self.syntax}\n")
        if not fence:
            return [("", text)]
        code, _, after = rest.partition("```")
        pieces = [("", before.rstrip()), (self.syntax, code.rstrip()), ("", after.strip())]
        return [(language, piece) for language, piece in pieces if piece.strip()]

    def file_of(self, text: str) -> tuple[str, str] | None:
        """Return (ending, content) of what a reply hands over that people look at with another program, or None."""
        return None

    def picture(self, content: str) -> bytes | None:
        """Return what `file_of` hands over as people see it, as PNG; None where it is nothing to be seen."""
        return None

    def run_tests(self, task: Task, answer: str) -> list[TestRun]:
        """Run the hidden tests of `task` on `answer` once more, with all values; nothing where there are no tests."""
        return []
