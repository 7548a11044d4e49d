"""The formulas of benchmarks/trees.py, against a model's weights and against its own sweep."""

from __future__ import annotations

import sys
from pathlib import Path

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
