"""What a reproduction's report is made of: drawings and tables under titles, and how numbers are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweetrl.evaluation.report import percent, points

Results = Mapping[str, Any]
Row = Mapping[str, Any]
NONE = ""


@dataclass(frozen=True)
class Table:
    """Cells in rows under a head; `note` stands below."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing, made when it is asked for."""

    name: str
    says: str
    draw: Callable[[], str]


@dataclass(frozen=True)
class Part:
    """Drawings and tables under a title."""

    title: str
    figures: Sequence[Figure]
    tables: Sequence[Table]


def number(value: float) -> str:
    """A mean with one decimal."""
    return f"{value:.1f}"


def interval(estimate: Mapping[str, float]) -> str:
    """A share with its interval."""
    return f"{percent(estimate['value'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"


def gap(estimate: Mapping[str, float]) -> str:
    """A difference of shares with its interval, in points."""
    return f"{points(estimate['value'])} [{points(estimate['low'])}, {points(estimate['high'])}]"


def at(temperature: str) -> str:
    """A temperature in a head."""
    return "chosen T" if temperature == "chosen" else f"T = {temperature}"


def heads(titles: Sequence[str], temperatures: Sequence[str]) -> list[str]:
    """The heads of columns: each title at each temperature."""
    return [f"{title}, {at(name)}" for title in titles for name in temperatures]


def cells(
    found: Mapping[str, Mapping[str, Any]], temperatures: Sequence[str], *forms: tuple[str, Callable[[Any], str]]
) -> list[str]:
    """What a row says under such heads: of what was `found` at each temperature a key in a form, for each form."""
    return [cell(found.get(name), key, form) for key, form in forms for name in temperatures]


def differences(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """What differences are known, by temperature."""
    return {name: one["difference"] for name, one in found.items() if "difference" in one}


def slug(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def cell(found: Mapping[str, Any] | None, key: str, form: Callable[[Any], str]) -> str:
    """What a cell of a table says; empty where nothing is known."""
    return form(found[key]) if found and found.get(key) is not None else NONE
