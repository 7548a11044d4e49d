"""The fast path against a slow, obviously right one: one sequence, one turn, one token at a time, float64."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

from sweetrl.colbench.types import Trajectory
from sweetrl.engines.chat import ChatFormat
from sweetrl.learning.batches import MicroBatch, PreferenceData, Row, collate, collate_pairs, encode
from sweetrl.learning.passes import Layout
from sweetrl.settings import CriticSettings, LoraSettings, PolicySettings

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


@pytest.fixture(scope="module", params=["float64", "float32"])
def adapted(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    """The tiny model with an adapter that differs from its start, in the precision of the test."""
    import torch
    from transformers import AutoModelForCausalLM

    from sweetrl.learning.adapters import attach_adapter

    dtype = getattr(torch, request.param)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=dtype).requires_grad_(False)
    model = attach_adapter(base, LoraSettings(rank=4, alpha=8), seed=1).to(dtype)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            # transformers' own goes through float32, which would be all that a float64 comparison sees
            module.forward = MethodType(rms_norm, module)
    return model, TOLERANCE[request.param]


def rms_norm(self: Any, hidden: Any) -> Any:
    import torch

    return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon)


@pytest.fixture(scope="module")
def rows(trajectories: list[Trajectory], chat: ChatFormat) -> tuple[Row, ...]:
    return tuple(encode(one, chat, "You help a person.") for one in trajectories[:9])


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
    ours, reference = slow_both(model, row)
    ratios = [[a - b for a, b in zip(*turn, strict=True)] for turn in zip(ours, reference, strict=True)]
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
    from sweetrl.learning.logprobs import reply_logprobs
    from sweetrl.learning.reference import reference_logprobs

    made = trainer.__new__(trainer)
    made.settings = settings
    reference = reference_logprobs(model, data.rows, Layout(None, tokens=500))
    tensors = collate_pairs(data, batch, reference)
    return made.pair_loss(reply_logprobs(model, tensors["rows"]), tensors)


def same(model: Any, ours: Any, expected: Any, tolerance: float) -> None:
    assert ours.item() == pytest.approx(expected.item(), abs=tolerance, rel=tolerance)
    for mine, theirs in zip(gradients(model, ours), gradients(model, expected), strict=True):
        assert (mine - theirs).abs().max().item() <= tolerance * max(1.0, theirs.abs().max().item())


PAIRS = ((0, 1), (0, 2), (3, 5), (6, 7))


def test_log_probs(adapted: Any, rows: tuple[Row, ...]) -> None:
    import torch

    from sweetrl.learning.logprobs import reply_logprobs
    from sweetrl.learning.reference import reference_logprobs

    model, tolerance = adapted
    found = reply_logprobs(model, collate(rows)).tolist()
    ours, reference = zip(*(slow_both(model, row) for row in rows), strict=True)
    flat = [token.item() for one in ours for turn in one for token in turn]
    assert found == pytest.approx(flat, abs=tolerance)
    for row, one, pieces in zip(
        rows, reference, reference_logprobs(model, rows, Layout(None, tokens=300)), strict=True
    ):
        assert pieces.shape == (row.reply_tokens,)
        expected = torch.stack([token for turn in one for token in turn])
        assert (pieces - expected).abs().max().item() <= tolerance


def test_chunks_of_the_head_change_nothing(
    adapted: Any, rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.learning import logprobs

    model, tolerance = adapted
    batch = collate(rows[:3])
    whole = logprobs.reply_logprobs(model, batch).sum()
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 7 * 512)
    same(model, logprobs.reply_logprobs(model, batch).sum(), whole, tolerance)


@pytest.mark.parametrize("normalization", ["turn", "trajectory", "none"])
def test_critic(adapted: Any, rows: tuple[Row, ...], normalization: str) -> None:
    from sweetrl.learning.trainers import CriticTrainer

    model, tolerance = adapted
    settings = CriticSettings(beta=0.3, nll=0.2, normalization=normalization)  # type: ignore[arg-type]
    data = PreferenceData(rows, PAIRS)
    loss, metrics = fast(CriticTrainer, model, settings, data, MicroBatch(PAIRS))
    scores = {index: slow_score(model, rows[index], normalization) for pair in PAIRS for index in pair}
    preference = -sum(log_sigmoid(0.3 * (scores[a] - scores[b])) for a, b in PAIRS) / len(PAIRS)
    expected = preference + 0.2 * sum(slow_nll(model, rows[a]) for a, _ in PAIRS) / len(PAIRS)
    same(model, loss, expected, tolerance)
    margin = sum((scores[a] - scores[b]).item() for a, b in PAIRS) / len(PAIRS)
    assert metrics["reward/margin"] == pytest.approx(0.3 * margin, abs=1e-5)
    assert metrics["accuracy"] == sum(scores[a] > scores[b] for a, b in PAIRS) / len(PAIRS)
    lengths = [end - start for index in {1, 2, 5, 7} for start, end in rows[index].spans]
    assert metrics["reply_length/rejected"] == pytest.approx(sum(lengths) / len(lengths))


@pytest.mark.parametrize("loss_name", ["sigmoid", "ipo"])
@pytest.mark.parametrize("normalization", ["none", "token"])
def test_policy(adapted: Any, rows: tuple[Row, ...], normalization: str, loss_name: str) -> None:
    from sweetrl.learning.trainers import PolicyTrainer

    model, tolerance = adapted
    settings = PolicySettings(
        beta=0.4, nll=0.1, normalization=normalization, loss=loss_name, label_smoothing=0.1, anchors=0.5, nll_anchor=0.7
    )  # type: ignore[arg-type]
    # One reply a row: the last one of each dialogue.
    single = tuple(Row(row.token_ids[: row.spans[-1][1]], row.spans[-1:]) for row in rows)
    anchors = (8, 0)
    loss, metrics = fast(
        PolicyTrainer, model, settings, PreferenceData(single, PAIRS, anchors), MicroBatch(PAIRS, anchors)
    )
    name = {"none": "none", "token": "trajectory"}[normalization]
    scores = {index: slow_score(model, single[index], name) for pair in PAIRS for index in pair}
    margins = [scores[a] - scores[b] for a, b in PAIRS]
    if loss_name == "ipo":
        preference = sum((margin - 1 / 0.8) ** 2 for margin in margins) / len(PAIRS)
    else:
        parts = [0.9 * log_sigmoid(0.4 * margin) + 0.1 * log_sigmoid(-0.4 * margin) for margin in margins]
        preference = -sum(parts) / len(PAIRS)
    expected = preference + 0.1 * sum(slow_nll(model, single[a]) for a, _ in PAIRS) / len(PAIRS)
    expected = expected + 0.7 * sum(slow_nll(model, single[index]) for index in anchors) / len(anchors)
    same(model, loss, expected, tolerance)
    assert metrics["log_ratio/chosen"] == pytest.approx(sum(scores[a].item() for a, _ in PAIRS) / len(PAIRS), abs=1e-5)


@pytest.mark.parametrize("layout", [Layout("blocks"), Layout("dense"), Layout("blocks", tokens=90), Layout(None, 500)])
def test_candidates_scored_on_a_shared_prefix(adapted: Any, rows: tuple[Row, ...], layout: Layout) -> None:
    """Every candidate as a dialogue of its own, against trees (whole, and split under a budget) and padded rows."""
    from sweetrl.learning.scoring import branch_advantages

    model, tolerance = adapted
    model.eval()
    chance = random.Random(0)
    for trunk, other in zip(rows[:4], rows[4:8], strict=True):
        branches = [
            [tuple(chance.randrange(10, 500) for _ in range(length)) for length in chance.sample(range(1, 20), 4)]
            for _ in trunk.spans
        ]
        for mean in (True, False):
            found = branch_advantages(model, trunk, branches, layout, mean=mean)
            for (start, _), replies, values in zip(trunk.spans, branches, found, strict=True):
                for reply, value in zip(replies, values, strict=True):
                    alone = Row(trunk.token_ids[:start] + reply, ((start, start + len(reply)),))
                    expected = slow_score(model, alone, "turn" if mean else "none").item()
                    assert value == pytest.approx(expected, abs=tolerance * 20, rel=tolerance)
        # The official code's reference is given another context, without c.
        turns = min(len(trunk.spans), len(other.spans))
        found = branch_advantages(model, trunk, branches[:turns], layout, reference_trunk=other)
        (start, _), (elsewhere, _) = trunk.spans[0], other.spans[0]
        reply = branches[0][0]
        ours, _ = slow_both(model, Row(trunk.token_ids[:start] + reply, ((start, start + len(reply)),)))
        _, theirs = slow_both(model, Row(other.token_ids[:elsewhere] + reply, ((elsewhere, elsewhere + len(reply)),)))
        expected = sum(a.item() - b.item() for a, b in zip(ours[0], theirs[0], strict=True)) / len(reply)
        assert math.isclose(found[0][0], expected, abs_tol=tolerance * 20)
