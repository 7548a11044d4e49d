"""The formulas of benchmarks/trees.py, against a model's weights and against its own sweep."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])  # as for a script that is run from there


def test_multiply_adds_are_those_of_the_weights() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from trees_data import SHAPES, multiply_adds

    for shape in ("tiny", "small"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPES[shape]))
        layers = sum(value.numel() for value in model.model.layers.parameters() if value.dim() == 2)
        assert multiply_adds(shape, [1, 0, 0]) == layers
        assert multiply_adds(shape, [0, 0, 1]) == model.lm_head.weight.numel()
        # A query meets a key in every head: a product for the score and one for the value.
        assert multiply_adds(shape, [0, 1, 0]) == SHAPES[shape]["num_hidden_layers"] * 2 * SHAPES[shape]["hidden_size"]


def test_operations_of_training_are_those_that_torch_counts() -> None:
    """A forward and a backward pass through frozen weights; without a mask, so every position sees every one."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaConfig, LlamaForCausalLM
    from trees_data import SHAPES, multiply_adds, training_multiply_adds

    tokens = 50
    model = LlamaForCausalLM(LlamaConfig(**SHAPES["tiny"], attn_implementation="eager")).requires_grad_(False)
    embedded = torch.randn(1, tokens, SHAPES["tiny"]["hidden_size"], requires_grad=True)
    counts = [tokens, tokens * tokens, tokens]
    with FlopCounterMode(display=False) as counter:
        loss = model(inputs_embeds=embedded, use_cache=False).logits.square().mean()
    assert counter.get_total_flops() == pytest.approx(2 * multiply_adds("tiny", counts), rel=1e-3)
    with counter:
        loss.backward()
    backward = training_multiply_adds("tiny", counts) - multiply_adds("tiny", counts)
    assert counter.get_total_flops() == pytest.approx(2 * backward, rel=1e-3)


def test_the_sweep_finds_the_constants_of_its_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trees_sweep
    from trees_data import sizes

    monkeypatch.setattr(trees_sweep, "TURNS", (2, 3))
    monkeypatch.setattr(trees_sweep, "COUNTS", (2, 4))
    monkeypatch.setattr(trees_sweep, "PREFIXES", (1000, 2000))
    true = np.array([4e-4, 1e-7, 1.5e-4])

    def measure(rows: Any, how: str) -> dict[str, float]:
        return {"cost": float(np.dot(true, sizes(rows, how == "trees")))}

    points = trees_sweep.sweep(argparse.Namespace(shape="tiny", seed=0), measure)
    assert len(points) == 6
    assert trees_sweep.fit(points) == pytest.approx(true, rel=1e-6)
    assert all(point["alone_cost"] > point["tree_cost"] for point in points)
    trees_sweep.plot(points, tmp_path / "deep" / "sweep.png", "made up")
    assert (tmp_path / "deep" / "sweep.png").stat().st_size > 10_000


def test_dialogues_are_as_long_for_every_vocabulary() -> None:
    from trees_data import candidates, dialogue

    lengths = []
    for vocabulary in (100, 50_000):
        chance = random.Random(3)
        rows = candidates(chance, dialogue(chance, vocabulary), vocabulary)
        lengths.append([len(row.token_ids) for row in rows])
    assert lengths[0] == lengths[1]
