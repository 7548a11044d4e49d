"""What test_reference*.py compare with: one sequence, one turn, one token at a time, in the precision of the test.

And what tests of trainings share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

from sweetrl.config.settings import LoraSettings
from sweetrl.lm.data import MicroBatch, PreferenceData, Row, collate_pairs
from sweetrl.lm.passes import Layout

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
PAIRS = ((0, 1), (0, 2), (3, 5), (6, 7))


def adapted_model(tiny_model: Path, precision: str, head: bool) -> Any:
    import torch

    from sweetrl.lm.adapters import attach_adapter

    dtype = getattr(torch, precision)
    model = attach_adapter(plain_model(tiny_model, precision), LoraSettings(rank=4, alpha=8), seed=1, head=head)
    move(model.to(dtype))
    return model


def plain_model(tiny_model: Path, precision: str) -> Any:
    """The base without an adapter, exact in `precision`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=getattr(torch, precision)).requires_grad_(False)
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            # transformers' own goes through float32, which would be all that a float64 comparison sees
            module.forward = MethodType(rms_norm, module)
    return model


def move(model: Any) -> None:
    """Give an adapter (and a head) weights that differ from their start."""
    import torch

    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "score.modules_to_save" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def rms_norm(self: Any, hidden: Any) -> Any:
    import torch

    return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon)


def slow_logprobs(model: Any, row: Row) -> list[list[Any]]:
    """log pi(token | everything before it) of every reply token, by turn; tensors, so that gradients flow."""
    import torch

    logits = model(input_ids=torch.tensor([row.token_ids])).logits[0]
    return [
        [torch.log_softmax(logits[index - 1], 0)[row.token_ids[index]] for index in range(start, end)]
        for start, end in row.spans
    ]


def slow_both(model: Any, row: Row) -> tuple[list[list[Any]], list[list[Any]]]:
    import torch

    with torch.no_grad(), model.disable_adapter():
        reference = slow_logprobs(model, row)
    return slow_logprobs(model, row), reference


def slow_score(model: Any, row: Row, normalization: str) -> Any:
    policy, reference = slow_both(model, row)
    ratios = [[a - b for a, b in zip(*turn, strict=True)] for turn in zip(policy, reference, strict=True)]
    if normalization == "turn":
        return sum(sum(turn) / len(turn) for turn in ratios)
    total = sum(sum(turn) for turn in ratios)
    return total / sum(len(turn) for turn in ratios) if normalization == "trajectory" else total


def slow_nll(model: Any, row: Row) -> Any:
    tokens = [token for turn in slow_logprobs(model, row) for token in turn]
    return -sum(tokens) / len(tokens)


def log_sigmoid(x: Any) -> Any:
    import torch

    return torch.log(1 / (1 + torch.exp(-x)))


def gradients(model: Any, loss: Any) -> list[Any]:
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(loss, parameters))


def fast(trainer: type, model: Any, settings: Any, data: PreferenceData, batch: MicroBatch) -> Any:
    """The trainer's own objective on a micro-batch, without its Trainer."""
    from sweetrl.lm.reference import reference_logprobs

    made = trainer.__new__(trainer)
    made.settings, made.model = settings, model
    reference = reference_logprobs(model, data.rows, Layout(None, tokens=500))
    tensors = collate_pairs(data, batch, reference)
    return made.pair_loss(made.outputs(tensors["rows"]), tensors)


def same(model: Any, loss: Any, expected: Any, tolerance: float) -> None:
    assert loss.item() == pytest.approx(expected.item(), abs=tolerance, rel=tolerance)
    for gradient, slow in zip(gradients(model, loss), gradients(model, expected), strict=True):
        assert (gradient - slow).abs().max().item() <= tolerance * max(1.0, slow.abs().max().item())


@contextmanager
def killed_at(trainer: Any, step: int) -> Iterator[None]:
    """Interrupt a training by this kind of trainer once it has logged `step`."""
    log = trainer.log

    def dies(self: Any, logs: Any, *more: Any) -> None:
        log(self, logs, *more)
        if self.state.global_step == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer, "log", dies)
        yield
