"""YAML that people write: read with the line of whatever is wrong, also where a reader of YAML is content.

A key that is there twice is refused: of two sections `rank:` readers would take one and forget the other.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from sweetrl.errors import UserError


class _Twice(yaml.YAMLError):
    """A mapping has a key twice; the message says which, and where."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which takes no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping of `node`."""
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    where = f"line {line}" if line == lines[name] else f"lines {lines[name]} and {line}"
                    raise _Twice(f"`{key.value}` is there twice, in {where}; leave one, and put into it what both say.")
                lines[name] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Return what the YAML file `path` holds; what is no YAML, or a key that is there twice, is a UserError.

    A file that is not there is a FileNotFoundError.
    """
    return parse_yaml(path.read_bytes(), str(path))


def parse_yaml(text: str | bytes, where: str) -> Any:
    """Return what the YAML in `text` says; a UserError names `where` and the line."""
    try:
        return yaml.load(text, _Loader)
    except _Twice as error:
        raise UserError(f"{where}: {error}") from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:  # as impossible dates
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UserError(f"{where}:{line} this is not YAML; fix it and run again.") from error
