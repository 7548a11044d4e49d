"""YAML that people write: read with the line of whatever is wrong, also where a reader of YAML is content.

A key that is there twice is refused: of two sections `rank:` readers would take one and forget the other.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from sweetrl.errors import UserError


class _Twice(yaml.MarkedYAMLError):
    """A mapping has a key twice."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which takes no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping of `node`; raises _Twice with the places of both keys."""
        lines: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            name = (key.tag, key.value)
            if name in lines:
                raise _Twice(key.value, lines[name], "twice", key.start_mark)
            lines[name] = key.start_mark
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Return what the YAML file `path` holds; what is no YAML, or a key that is there twice, is a UserError.

    A file that is not there is a FileNotFoundError.
    """
    try:
        return parse_yaml(path.read_bytes().decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: this is not YAML (no UTF-8 at byte {error.start}); fix it and run again.") from error


def parse_yaml(text: str, where: str) -> Any:
    """Return what the YAML in `text` says; a UserError names `where` and the line."""
    try:
        return yaml.load(text, _Loader)
    except _Twice as error:
        assert error.context_mark is not None and error.problem_mark is not None
        first, second = error.context_mark.line + 1, error.problem_mark.line + 1
        lines = f"line {first}" if first == second else f"lines {first} and {second}"
        raise UserError(
            f"{where}: `{error.context}` is there twice, in {lines}; leave one, and put into it what both say."
        ) from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:  # as impossible dates
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UserError(f"{where}:{line} this is not YAML; fix it and run again.") from error
