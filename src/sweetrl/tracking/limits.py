"""What MLflow takes: the signs of a key, and the longest text of each column as PostgreSQL has them.

An embedded store in sqlite takes any length, and so hides what a team's server refuses. All that is written passes
here: a key or a text becomes one that is taken, and facts that may not be cut are a UserError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sweetrl.errors import UserError
from sweetrl.io import digest
from sweetrl.text import printable

KEY = 250  # a parameter's, metric's or tag's, and the name of a run
PARAM = 6000
TEXT = 5000  # a description, or a run's tag
DATA_SET = 500  # its name, and what is noted about it
REASON = 1000  # why a version became champion; ours
FACTS = 65_535  # a version's tag, in bytes: MySQL's TEXT


def key(name: str) -> str:
    """Return `name` with underscores for signs that MLflow does not take, as a path without empty parts and dots.

    What had to be changed ends with a digest of what it was, so that two names never become one.
    """
    parts = (part for part in re.sub(r"[^/\w.\- :]", "_", name).split("/") if part.strip("."))
    taken = "/".join(parts)
    if name and taken == name and len(name) <= KEY and not name.startswith(".."):
        return name
    return f"{taken.lstrip('.')[: KEY - 9]}-{digest(name)[:8]}"


def text(value: str, most: int = TEXT) -> str:
    """Return `value` in at most so many characters, without those that steer a terminal or that PostgreSQL refuses."""
    value = printable(value)
    return value if len(value) <= most else f"{value[: most - 1]}…"


def tags(values: Mapping[str, str]) -> dict[str, str]:
    """Return a run's tags as MLflow takes them."""
    return {key(name): text(value) for name, value in values.items()}


def facts(values: Mapping[str, str], what: str) -> dict[str, str]:
    """Return the tags of a version, which are read again; one that is too long for `what` is a UserError."""
    for name, value in values.items():
        if (size := len(value.encode())) > FACTS:
            raise UserError(f"{what}: MLflow keeps at most {FACTS:,} bytes as `{name}`, and these are {size:,}.")
    return {key(name): value for name, value in values.items()}
