"""Patterns in an adapter's configuration, tried where they can do no harm: some need years for the name of one layer.

Run as a program, this module is the process with limits: it matches the patterns with the names that it reads from
stdin, as peft does.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweetrl.bounded import apart, limit
from sweetrl.errors import UserError

CPU_SECONDS = 5
KEYS = ("target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "rank_pattern", "alpha_pattern")
NAMED = ("target_modules", "exclude_modules")  # which hold names where they are lists, else a pattern of a whole name
PARTS = (r"(.*\.)?({})$", r"(?:^|.*?\.){}\.\d+\.", r"(^|.*\.){}($|\..*)")  # as peft puts the others into its own


def try_patterns(adapter: Path | str, config: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise UserError where patterns in `config`, the configuration of `adapter`, are none, or take too long.

    `names` are those of the model's layers.
    """
    values = {key: config[key] for key in KEYS if config.get(key) and config[key] != "all-linear"}
    kept = {key: value for key, value in values.items() if isinstance(value, str) or key not in NAMED}
    patterns = [
        (text, ("{}",) if key in NAMED else PARTS)
        for key, value in kept.items()
        for text in (value if isinstance(value, list | dict) else [value])
    ]
    if not patterns:
        return
    try:
        apart(__name__, request=json.dumps([patterns, names]).encode())
    except UserError as error:
        raise UserError(
            f"{adapter}: adapter_config.json: a pattern in {', '.join(kept)} cannot be used: {error}; name the layers "
            "one by one."
        ) from error


def main() -> None:
    """Match each pattern with each name; a fault is the exit status."""
    patterns, names = json.loads(sys.stdin.buffer.read())
    limit(CPU_SECONDS)
    try:
        for pattern, forms in patterns:
            for form in forms:
                compiled = re.compile(form.replace("{}", str(pattern)))
                for name in names:
                    compiled.fullmatch(name) if form == "{}" else compiled.match(name)
    except (re.error, OverflowError, RecursionError) as error:
        sys.exit(f"it is no pattern ({error})")


if __name__ == "__main__":
    main()
