"""benchmarks/headroom.py in small: every row that the guide shows, and a scripted reader who solves its tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_row_is_measured_on_the_same_tasks(tmp_path: Path) -> None:
    words = [
        "--tasks",
        "5",
        "--dialogues",
        "4",
        "--temperatures",
        "0",
        "0.5",
        "--attempts",
        "2",
        "--json",
        str(tmp_path / "found.json"),
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/headroom.py"), *words],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {row["name"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    scripted = [f"scripted: {name}" for name in ("hints", "usual", "random", "oracle")]
    assert list(rows) == [
        "base, T = 0",
        "base, T = 0.5",
        "base, one of 2",
        *scripted,
        "imitation, T = 0",
        "imitation, T = 1",
    ]
    assert all(row["tasks"] == 5 and row["low"] <= row["solved"] / 5 <= row["high"] for row in rows.values())
    assert rows["scripted: hints"]["solved"] == rows["scripted: oracle"]["solved"] == 5
    assert "4 of 4 dialogues to imitate are successful" in done.stdout
