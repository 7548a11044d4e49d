"""Trees against one sequence at a time: log-probs, gradients, passes and whole training runs."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweetrl.config.settings import LoraSettings, PolicySettings
from sweetrl.lm.data import MicroBatch, PreferenceData, Row, collate_pairs
from sweetrl.lm.forest import forest_tokens, layout_order
from sweetrl.lm.passes import Layout, cut_step, model_layout, share_of_step
from tests.lm.slowly import rms_norm, slow_logprobs

VOCABULARY = 24  # what the probe of a model needs


def tiny(family: str, dtype: str = "float64", lora: bool = True, seed: int = 0, moved: bool = True) -> Any:
    """A random model of two layers with grouped-query attention, with an adapter that has moved."""
    import torch
    import transformers

    from sweetrl.lm.adapters import attach_adapter

    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        sliding_window=5 if family == "Mistral" else None,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(getattr(torch, dtype)).eval()
    if lora:
        model = attach_adapter(model.requires_grad_(False), LoraSettings(rank=2, alpha=4), seed=1).to(model.dtype)
        for name, parameter in model.named_parameters():
            if "lora_B" in name and moved:
                parameter.data = 0.3 * torch.randn(parameter.shape, dtype=parameter.dtype)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and dtype == "float64":
            module.forward = MethodType(rms_norm, module)  # transformers' own goes through float32
    return model


@pytest.fixture(scope="module")
def models() -> dict[tuple[str, str, bool], Any]:
    return {
        (family, dtype, lora): tiny(family, dtype, lora)
        for family in ("Llama", "Mistral")
        for dtype in ("float64", "float32")
        for lora in (True, False)
    }


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of logits so small that short rows have several."""
    from sweetrl.lm import head as logprobs

    monkeypatch.setattr(logprobs, "CHUNK_ROWS", 3)
    yield


def alone(model: Any, rows: Sequence[Row]) -> Any:
    """Log-probs of the reply tokens, a sequence at a time, with nothing of ours."""
    import torch

    sequences = (sequence for row in rows for sequence in row.sequences)
    return torch.stack([token for row in sequences for turn in slow_logprobs(model, row) for token in turn])


def gradients(model: Any, values: Any) -> list[Any]:
    import torch

    weights = torch.linspace(-1.0, 2.0, len(values), dtype=values.dtype, device=values.device)
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad((values * weights).sum(), used))


def compare(model: Any, rows: Sequence[Row], backend: Any, expected: Any, tolerance: float) -> None:
    from sweetrl.lm.passes import reply_logprobs

    values = reply_logprobs(model, Layout(backend).collate(rows))
    exact, exact_gradients = expected
    assert (values - exact).abs().max().item() <= tolerance * max(1.0, exact.abs().max().item())
    largest = max(gradient.abs().max().item() for gradient in exact_gradients)
    for gradient, exact_gradient in zip(gradients(model, values), exact_gradients, strict=True):
        assert (gradient - exact_gradient).abs().max().item() <= tolerance * max(1.0, largest)


def random_rows(seed: int) -> list[Row]:
    """Rows over few tokens, so that they begin alike by chance; some continue or repeat others or are two."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for _ in range(chance.randint(1, 7)):
        ids = [chance.randrange(3) for _ in range(chance.randint(2, 12))]
        if rows and chance.random() < 0.5:
            ids = [*chance.choice(rows).sequences[0].token_ids, *ids]
        cuts = sorted(chance.sample(range(1, len(ids) + 1), 2 * chance.randint(1, len(ids) // 2)))
        row = Row(tuple(ids), tuple(zip(cuts[::2], cuts[1::2], strict=True)))
        if rows and len(rows[-1].starts) == 1 and chance.random() < 0.3:
            first = rows.pop()
            begin = len(first.token_ids)
            spans = tuple((start + begin, end + begin) for start, end in row.spans)
            row = Row(first.token_ids + row.token_ids, first.spans + spans, (0, begin))
        rows.append(row)
    return rows


@pytest.fixture
def eager_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention as plain tensor operations on a CPU; torch has their gradients but refuses to compute them."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9))
@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_trees_are_exact(models: dict[tuple[str, str, bool], Any], eager_flex: None, family: str, seed: int) -> None:
    """1e-9 in float64, 1e-4 in float32; all backends, LoRA on and off, with and without checkpointing."""
    rows = random_rows(seed)
    for lora in (True, False):
        model = models[family, "float64", lora]
        values = alone(model, rows)
        expected = values.detach(), gradients(model, values)
        for backend in ("blocks", "flex"):
            compare(model, rows, backend, expected, 1e-9)
        single = models[family, "float32", lora]
        single.load_state_dict(model.state_dict())
        compare(single, rows, "blocks", expected, 1e-4)
        base = model.get_base_model() if lora else model
        model.train()
        base.gradient_checkpointing_enable({"use_reentrant": False})
        try:
            for backend in ("blocks", "flex"):
                compare(model, rows, backend, expected, 1e-9)
        finally:
            base.gradient_checkpointing_disable()
            model.eval()


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_bfloat16_is_as_near_in_trees_as_alone(family: str) -> None:
    """Against the same weights in float64: what rounding costs a tree is what it costs a sequence."""
    import torch

    from sweetrl.lm.passes import reply_logprobs, usable_backend

    rows = dialogues().rows
    model = tiny(family, "bfloat16")
    assert usable_backend(model) == ("blocks", "")
    exact = tiny(family, "float64")
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = alone(exact, rows)
        trees, flat = reply_logprobs(model, Layout("blocks").collate(rows)), alone(model, rows).float()
        errors = [(values.double() - expected).square().mean().sqrt().item() for values in (trees, flat)]
    assert trees.dtype == torch.float32
    assert errors[0] < 1.5 * errors[1] < 0.2
    values = reply_logprobs(model, Layout("blocks").collate(rows))
    exact_gradients = gradients(exact, alone(exact, rows))
    for gradient, exact_gradient in zip(gradients(model, values), exact_gradients, strict=True):
        assert (gradient.double() - exact_gradient).norm().item() < 0.1 * exact_gradient.norm().item()


@pytest.mark.parametrize("vocabulary", [40, 64, 700, 49_152])
def test_a_model_is_tried_on_ordinary_tokens(vocabulary: int) -> None:
    """Not on the first or last ones, which are special: in bfloat16 rounding alone decides their log-probs."""
    from sweetrl.lm.passes import PROBE, probe_rows

    ids = [token for row in probe_rows(vocabulary) for token in row.token_ids]
    assert min(ids) >= 0 and max(ids) < vocabulary
    assert vocabulary < 700 or (min(ids) >= vocabulary // 2 and max(ids) < vocabulary - 256)
    assert [row.spans for row in probe_rows(vocabulary)] == [row.spans for row in PROBE]


def dialogues(seed: int = 0, tasks: int = 4, attempts: int = 3) -> PreferenceData:
    """Attempts at tasks: two of each open alike; every two attempts are a pair; the first ones are replayed."""
    chance = random.Random(seed)

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(low, high)))

    rows, groups, pairs = [], [], []
    for task in range(tasks):
        request, opening = some(8, 16), some(4, 4)
        for attempt in range(attempts):
            ids, spans = list(request), []
            for turn in range(chance.randint(1, 3)):
                reply = opening if turn == 0 and attempt < 2 else some(2, 7)
                spans.append((len(ids), len(ids) + len(reply)))
                ids += [*reply, 3, 4]
            rows.append(Row(tuple(ids), tuple(spans)))
            groups.append(task)
        last = len(rows)
        pairs += [(i, j) for i in range(last - attempts, last) for j in range(i + 1, last)]
    return PreferenceData(tuple(rows), tuple(pairs), tuple(range(0, len(rows), attempts)), tuple(groups))


def test_flex_attention_agrees(models: dict[tuple[str, str, bool], Any]) -> None:
    """As torch runs it on a CPU, forward only; several blocks, and the padding to whole ones."""
    import torch

    from sweetrl.lm.passes import reply_logprobs

    rows = dialogues().rows
    for family in ("Llama", "Mistral"):
        model = models[family, "float64", True]
        with torch.no_grad():
            logprobs = reply_logprobs(model, Layout("flex").collate(rows))
            assert (logprobs - alone(model, rows)).abs().max().item() < 1e-9


def test_without_a_tree_the_model_is_as_before(models: dict[tuple[str, str, bool], Any]) -> None:
    import torch

    from sweetrl.lm.tree_attention import install

    model = tiny("Llama", "float32")
    ids = torch.arange(20)[None] % VOCABULARY
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    with torch.no_grad():
        before = [model(input_ids=ids).logits, model(input_ids=ids, attention_mask=mask).logits]
        sampled = model.generate(ids[:, :5], max_new_tokens=6, do_sample=False)
        install(model)
        assert torch.equal(model(input_ids=ids).logits, before[0])
        assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before[1])
        assert torch.equal(model.generate(ids[:, :5], max_new_tokens=6, do_sample=False), sampled)


def test_models_that_cannot_be_masked_fall_back_with_a_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from torch.nn.attention import flex_attention

    from sweetrl.lm import passes
    from sweetrl.lm.passes import usable_backend

    model = tiny("Llama", "float32")
    assert usable_backend(model) == ("blocks", "")
    assert model_layout(model, "flat").backend is None
    with monkeypatch.context() as patch:  # a CUDA device whose FlexAttention cannot be compiled
        patch.setattr(passes, "choose_backend", lambda device: "flex")
        patch.setattr(flex_attention, "flex_attention", lambda *given, **more: 1 / 0)
        backend, reason = usable_backend(model)
        assert backend is None and "division by zero" in reason
    base = model.get_base_model()
    computed = base.model.forward
    # A model that ignores masks and tree alike: what it says of itself would not tell.
    base.model.forward = lambda input_ids, use_cache, **other: computed(input_ids=input_ids, use_cache=False)
    with caplog.at_level(logging.WARNING, logger="sweetrl"):
        assert model_layout(model, "trees").backend is None
    assert "flat batches instead of trees: llama " in caplog.text
    assert torch.is_grad_enabled()


def test_a_trained_head_gets_its_gradient_and_a_frozen_one_costs_no_recomputation() -> None:
    import torch

    from sweetrl.lm.head import slot_logprobs

    torch.manual_seed(0)
    hidden = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    slot, target = torch.tensor([0, 0, 0, 2, 3, 6, 6]), torch.tensor([1, 5, 5, 2, 0, 23, 7])
    weights = torch.randn(7, dtype=torch.float64)
    for bias in (True, False):
        for trained in (True, False):
            head = torch.nn.Linear(6, VOCABULARY, bias=bias, dtype=torch.float64).requires_grad_(trained)
            inputs = [hidden, *(head.parameters() if trained else ())]
            expected = head(hidden).log_softmax(1)[slot, target]
            logprobs = slot_logprobs(head, hidden, slot, target)
            assert (logprobs - expected).abs().max().item() < 1e-12
            for gradient, exact in zip(
                torch.autograd.grad((logprobs * weights).sum(), inputs),
                torch.autograd.grad((expected * weights).sum(), inputs),
                strict=True,
            ):
                assert (gradient - exact).abs().max().item() < 1e-12


# --- steps and training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout("blocks", 60), Layout("blocks"), Layout(None, 100)])
def test_a_step_is_the_same_however_it_is_cut(models: dict[tuple[str, str, bool], Any], layout: Layout) -> None:
    """Loss and gradient of a whole step against its passes, in one process and in the shares of three."""
    import torch

    from sweetrl.lm.passes import reply_logprobs
    from sweetrl.lm.reference import reference_logprobs
    from sweetrl.sweet.trainer import PolicyTrainer

    model, data = models["Llama", "float64", True], dialogues(tasks=3)
    step = MicroBatch(data.pairs[:8], data.replay)
    reference = reference_logprobs(model, data.rows, layout)
    trainer = PolicyTrainer.__new__(PolicyTrainer)
    trainer.settings = PolicySettings(beta=0.3, nll=0.2, sft_replay_nll=0.5)
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def loss_of(part: MicroBatch, how: Layout) -> Any:
        batch = collate_pairs(data, part, reference, lay_out=how.collate)
        batch["share"] = len(part.pairs) / len(step.pairs), len(part.replay) / len(step.replay)
        return trainer.pair_loss(reply_logprobs(model, batch["rows"]), batch)[0]

    loss = loss_of(step, Layout(None))
    expected = torch.autograd.grad(loss, used)
    for ranks in (1, 3):
        passes = [
            part
            for rank in range(ranks)
            for part in cut_step(data, share_of_step(data, step, layout, rank, ranks), layout, most_pairs=3)
        ]
        assert sorted(pair for part in passes for pair in part.pairs) == sorted(step.pairs)
        assert sorted(replay_row for part in passes for replay_row in part.replay) == sorted(step.replay)
        assert all(1 <= len(part.pairs) <= 3 for part in passes)
        total = sum(loss_of(part, layout) for part in passes)
        assert total.item() == pytest.approx(loss.item(), abs=1e-9)
        for gradient, exact in zip(torch.autograd.grad(total, used), expected, strict=True):
            assert (gradient - exact).abs().max().item() < 1e-9


def test_passes_keep_to_the_budget_and_neighbours_together() -> None:
    data = dialogues(tasks=4)
    step = MicroBatch(tuple(random.Random(0).sample(data.pairs, 12)))
    layout = Layout("blocks", 70)
    for part in cut_step(data, step, layout, most_pairs=12):
        rows = [data.rows[index] for pair in part.pairs for index in pair]
        assert len(part.pairs) == 1 or forest_tokens(rows) <= 70
    order = [data.groups[index] for index in layout_order(data.rows)]
    assert len([1 for a, b in pairwise(order) if a != b]) == 3


def test_reference_log_probs_are_kept_by_weights_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweetrl.lm import reference

    model, rows = tiny("Llama", "float32"), dialogues().rows
    first = reference.reference_logprobs(model, rows, Layout("blocks"), tmp_path)
    with torch.no_grad(), model.disable_adapter():
        assert (torch.cat(list(first)) - alone(model, rows)).abs().max().item() < 1e-4
    assert len(list(tmp_path.iterdir())) == 1
    computed: list[int] = []
    true = reference._computed
    monkeypatch.setattr(reference, "_computed", lambda *given: computed.append(1) or true(*given))
    again = reference.reference_logprobs(model, rows, Layout("blocks"), tmp_path)
    assert not computed and all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    # Other rows, another layout or other base weights are another file; another adapter is not.
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data += 1.0
    reference.reference_logprobs(model, rows, Layout("blocks"), tmp_path)
    assert len(computed) == 0
    reference.reference_logprobs(model, rows[:-1], Layout("blocks"), tmp_path)
    reference.reference_logprobs(model, rows, Layout(None), tmp_path)
    model.get_base_model().lm_head.weight.data[0, 0] += 1.0
    reference.reference_logprobs(model, rows, Layout("blocks"), tmp_path)
    assert len(computed) == 3 and len(list(tmp_path.iterdir())) == 4
