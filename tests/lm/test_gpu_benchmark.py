"""benchmarks/gpu.py works the day a GPU is there: the same functions on a tiny model, on a CPU."""

from __future__ import annotations

import gc
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu")


@pytest.mark.slow
def test_the_dry_run_measures_every_kind_once(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No model is in memory while the next one is made; a step that runs out of memory is counted once."""
    import torch

    from sweetrl.sweet.trainer import PolicyTrainer

    out, made, left, short = tmp_path / "gpu.jsonl", list[Any](), list[Any](), [True]
    model_of, compute = gpu.model_of, PolicyTrainer.compute_loss

    @contextmanager
    def watched(*given: Any, **more: Any) -> Iterator[Any]:
        gc.collect()
        left.extend(reference for reference in made if reference() is not None)
        with model_of(*given, **more) as model:
            made.append(ref(model))
            yield model

    def short_at_first(*given: Any, **more: Any) -> Any:
        if short:
            short.clear()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(*given, **more)

    monkeypatch.setattr(gpu, "model_of", watched)
    monkeypatch.setattr(PolicyTrainer, "compute_loss", short_at_first)
    gpu.main(["--dry-run", "--out", str(out), "--only", "sampling,policy"])
    before = out.read_text()
    gpu.main(["--dry-run", "--out", str(out)])
    assert out.read_text().startswith(before)  # and nothing twice
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert not [line for line in lines if "failed" in line]
    names = [line["piece"] for line in lines]
    trained = 3 * ["warm-start", "critic", "policy", "full"]
    assert sorted(names) == sorted(
        ["smollm2", "colbench", "sampling", "sampling-lock-step", *trained, *(2 * ["ranking"])]
    )
    assert all(line["tokens_per_second"] > 0 for line in lines if line["piece"] not in gpu.REPRODUCTIONS)
    assert made and not left and not short
    by_layout = {line["layout"]: line["tokens"] for line in lines if line["piece"] == "policy"}
    assert by_layout["trees"] == by_layout["trees, not compiled"] < by_layout["flat"]
    capsys.readouterr()
    gpu.main(["--list"])
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all(float(minutes) <= 10 for minutes, _ in listed)
    assert {
        "sampling-8b-1024",
        "sampling-135m-64-lock-step",
        "critic-0.5b",
        "policy-135m-trl",
        "smollm2-measure-sweet",
        "colbench-variant-other-c",
    } <= {name for _, name in listed}
