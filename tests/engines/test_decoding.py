"""Draws depend on the row's seed alone, follow the distribution, and carry log-probs at temperature 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sweetrl.engines.decoding import draw, uniforms
from sweetrl.types import Sampling


def test_streams_are_functions_of_seed_and_sample() -> None:
    assert np.array_equal(uniforms(5, 0, 8), uniforms(5, 0, 8))
    assert np.array_equal(uniforms(5, 0, 8), uniforms(5, 0, 20)[:8])
    seen = [uniforms(seed, sample, 4).tolist() for seed in (0, 1, -1, 2**63) for sample in (0, 1, 2)]
    assert len({tuple(values) for values in seen}) == len(seen)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_distribution(temperature: float) -> None:
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0])
    count = 40_000
    uniform = torch.from_numpy(uniforms(1, 0, count))
    ids, logprobs = draw(logits.expand(count, -1), uniform, Sampling(1, temperature=temperature))
    shares = torch.bincount(ids, minlength=4) / count
    assert torch.allclose(shares, torch.softmax(logits / temperature, -1), atol=0.01)
    assert torch.allclose(logprobs, torch.log_softmax(logits, -1)[ids])  # whatever the temperature


def test_top_p_keeps_the_nucleus_and_always_one_token() -> None:
    logits = torch.log(torch.tensor([0.15, 0.5, 0.05, 0.3])).expand(2000, -1)
    uniform = torch.from_numpy(uniforms(2, 0, 2000))
    ids, _ = draw(logits, uniform, Sampling(1, top_p=0.75))
    assert set(ids.tolist()) == {1, 3}
    assert abs((ids == 1).float().mean().item() - 0.5 / 0.8) < 0.03
    ids, _ = draw(logits, uniform, Sampling(1, top_p=0.0))
    assert set(ids.tolist()) == {1}


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(3, -1)
    ids, _ = draw(logits, torch.tensor([0.0, 0.5, 1.0 - 2**-53], dtype=torch.float64), Sampling(1))
    assert ids.tolist() == [1, 3, 3]
