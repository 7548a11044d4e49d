"""benchmarks/gpu.py works the day a GPU is there: the same functions on a tiny model, on a CPU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_dry_run_measures_every_kind_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    gpu, out = importlib.import_module("gpu"), tmp_path / "gpu.jsonl"
    gpu.main(["--dry-run", "--out", str(out), "--only", "sampling,policy"])
    before = out.read_text()
    gpu.main(["--dry-run", "--out", str(out)])
    assert out.read_text().startswith(before)  # and nothing twice
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert not [line for line in lines if "failed" in line]
    names = [line["piece"] for line in lines]
    trained = 3 * ["warm-start", "critic", "policy", "full"]
    assert sorted(names) == sorted(["quarter", "sampling", "sampling-lock-step", *trained, *(2 * ["ranking"])])
    assert all(line["tokens_per_second"] > 0 for line in lines if line["piece"] != "quarter")
    by_layout = {line["layout"]: line["tokens"] for line in lines if line["piece"] == "policy"}
    assert by_layout["trees"] < by_layout["flat"]
    capsys.readouterr()
    gpu.main(["--list"])
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all(float(minutes) <= 10 for minutes, _ in listed)
    assert {
        "sampling-8b-1024",
        "sampling-135m-64-lock-step",
        "critic-0.5b",
        "policy-135m-trl",
        "quarter-measure-sweet",
    } <= {name for _, name in listed}
