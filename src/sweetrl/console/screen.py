"""The terminal, for words that somebody else has chosen: a model, a server, a file, an untrusted program.

Everything that is printed passes `Screen.render`, so nothing has to be remembered where it is printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sweetrl.text import printable


class Screen(Console):
    """A rich Console on which text is text: no markup, no emoji codes, no highlighting, only `printable` letters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Console does; rich's own control codes are kept."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
