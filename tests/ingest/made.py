"""Dialogues as a production log has them, and rules that are checked without Great Expectations' seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweetrl.validation.suites import Table, Verdict


def chat(number: int = 0, **values: Any) -> dict[str, Any]:
    """A logged dialogue with consent; every number is another one."""
    messages = [
        {"role": "user", "content": f"I want a function that adds {number} to x."},
        {"role": "assistant", "content": f"I WANT TO ANSWER:\ndef add(x): return x + {number}"},
    ]
    return {"messages": messages, "reward": 1.0, "consent": True} | values


def write(path: Path, *rows: Any) -> Path:
    """Write rows as a file; bytes and texts go there as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def check_plainly(tables: Sequence[Table], docs: Path) -> list[Verdict]:
    """Rules about columns that must be empty, bounds and counts, which are those that these tests break."""
    verdicts = []
    for table in tables:
        for rule in table.rules:
            rows: list[str] = []
            success = True
            if rule.kind == "ExpectColumnValuesToBeNull":
                rows = [row["row"] for row in table.rows if row[rule.column] is not None]
                success = len(rows) <= (1.0 - rule.arguments["mostly"]) * len(table.rows)
            elif rule.kind == "ExpectTableRowCountToBeBetween":
                success = len(table.rows) >= rule.arguments["min_value"]
            sentence = "" if success else f"{table.name}: {rule.says}; {rule.fix}."
            broken = tuple(({"row": row}, "") for row in rows)
            counts = len(table.rows), len(rows)
            verdicts.append(Verdict(table.name, rule.name, success, *counts, sentence, broken=broken))
    return verdicts
