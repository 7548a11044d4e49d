"""What commands print: a table for people at a terminal, tab-separated lines for other programs, or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sweetrl.console.logs import quiet
from sweetrl.text import printable


def print_json(value: Any) -> None:
    """Print `value` as JSON to stdout, in ASCII where that is a terminal or does not take every letter."""
    every_letter = (sys.stdout.encoding or "").lower().startswith("utf") and not sys.stdout.isatty()
    print(json.dumps(value, indent=2, ensure_ascii=not every_letter, default=str))


def note(text: str) -> None:
    """Tell whoever waits something that is no result, on stderr; nothing with --quiet."""
    if not quiet():
        from sweetrl.console.screen import Screen

        Screen(stderr=True, soft_wrap=True).print(text, style="dim")


def print_facts(title: str, rows: Sequence[tuple[str, str]], value: Mapping[str, Any] | None = None) -> None:
    """Print (what, value) rows; where a `value` is given, that instead of them, as JSON."""
    if value is not None:
        print_json(value)
    else:
        print_table(title, (), rows)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], red: int = 0) -> None:
    """Print rows below a `header`, or each with its name in front; so many of the first rows are `red`."""
    from rich.table import Table

    from sweetrl.console.screen import Screen

    console = Screen()
    if not console.is_terminal:
        for row in (header, *rows) if header else rows:
            print(printable("\t".join(re.sub(r"\s*[\n\t]\s*", " ", cell.strip()) for cell in row)))
        return
    table = Table(title=title, title_justify="left", show_header=bool(header), box=None, padding=(0, 2, 0, 0))
    for name in header:
        table.add_column(name, header_style="bold cyan", overflow="fold")
    if not header:
        table.add_column(style="bold cyan", no_wrap=True)
        table.add_column(overflow="fold")
    for place, row in enumerate(rows):
        table.add_row(*row, style="bold red" if place < red else None)
    console.print(table)


def in_words(value: object) -> str:
    """Return a value of a summary as people read it: an estimate as a rate with its interval, nothing as a dash."""
    if value is None or value == {}:
        return "-"
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        return f"{value['value']:.1%} ({value['low']:.1%} to {value['high']:.1%})"
    if isinstance(value, dict):
        return ", ".join(f"{name} {in_words(inner)}" for name, inner in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
