"""An adapter beside a base in half precision: it computes in that, and what is trained of it is float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import LoraSettings
from sweetrl.lm.adapters import attach_adapter, load_adapter, save_adapter
from sweetrl.lm.passes import Layout, reply_logprobs
from tests.lm.test_trees import dialogues


def base_of(dtype: str) -> Any:
    """A small frozen Llama."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, **sizes))
    return model.to(getattr(torch, dtype)).requires_grad_(False)


def adapted(dtype: str) -> Any:
    import torch

    model = attach_adapter(base_of(dtype), LoraSettings(rank=4), 0)
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    return model


@pytest.mark.parametrize("backend", ["blocks", None])
def test_what_is_sampled_from_is_what_was_trained(backend: Any, tmp_path: Path) -> None:
    import torch

    rows = Layout(backend).collate(dialogues(3).rows)
    model = adapted("bfloat16")
    computed = reply_logprobs(model, rows)
    (-computed.mean()).backward()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in trained} == {torch.float32}
    assert all(weight.grad.isfinite().all() and weight.grad.abs().sum() > 0 for weight in trained)
    save_adapter(model, tmp_path, "models/base")
    loaded = load_adapter(base_of("bfloat16"), tmp_path)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    assert torch.equal(reply_logprobs(loaded, rows), computed)


def test_its_gradient_is_that_in_float32() -> None:
    import torch

    gradients = []
    for dtype in ("bfloat16", "float32"):
        model = adapted(dtype)
        (-reply_logprobs(model, Layout("blocks").collate(dialogues(3).rows)).mean()).backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.requires_grad]))
    half, full = gradients
    assert torch.cosine_similarity(half, full, dim=0) > 0.99
    assert (half - full).norm() < 0.1 * full.norm()
