"""What a GPU computes, against the CPU and against one row at a time. Skipped where there is no CUDA device."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import CriticSettings, LoraSettings, PolicySettings
from sweetrl.lm.data import PreferenceData, Row, collate
from sweetrl.lm.passes import Layout, reply_logprobs
from sweetrl.types import Prompt, Sampling
from tests.lm.test_trees import gradients

VOCABULARY = 300


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Products of float32 in float32: TF32 keeps ten bits of a fraction."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def model_on(device: str, dtype: str = "float32", moved: bool = True, window: int | None = None) -> Any:
    """A random Mistral of two layers, heads of 32, with an adapter; equal weights on every device."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    from sweetrl.lm.adapters import attach_adapter

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
        max_position_embeddings=4096,
        sliding_window=window,
    )
    model = MistralForCausalLM(config).to(getattr(torch, dtype)).eval().requires_grad_(False)
    model = attach_adapter(model, LoraSettings(rank=4, alpha=8), seed=1)
    if moved:
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data = 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype)
    return model.to(device)


def attempts(seed: int = 0, tasks: int = 4) -> PreferenceData:
    """Three attempts at each task that open alike; every two are a pair, the first is replayed."""
    chance = random.Random(seed)

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(chance.randrange(10, VOCABULARY) for _ in range(chance.randint(low, high)))

    rows, groups, pairs = [], [], []
    for task in range(tasks):
        request = some(20, 200)
        for _ in range(3):
            ids, spans = list(request), []
            for _ in range(chance.randint(1, 4)):
                reply = some(3, 60)
                spans.append((len(ids), len(ids) + len(reply)))
                ids += [*reply, *some(5, 30)]
            rows.append(Row(tuple(ids), tuple(spans)))
            groups.append(task)
        last = len(rows)
        pairs += [(i, j) for i in range(last - 3, last) for j in range(i + 1, last)]
    return PreferenceData(tuple(rows), tuple(pairs), tuple(range(0, len(rows), 3)), tuple(groups))


def on(device: str, batch: dict[str, Any]) -> dict[str, Any]:
    from sweetrl.lm.passes import to_device

    return to_device(batch, device)


def alone(model: Any, rows: Sequence[Row], device: str) -> Any:
    import torch

    return torch.cat([reply_logprobs(model, on(device, collate([row]))) for row in rows])


@pytest.mark.parametrize(("seed", "window"), [(0, None), (1, 40), (2, 150)])
def test_trees_by_flex_attention_are_exact(seed: int, window: int | None) -> None:
    """Log-probs and gradients of float32 trees are those of the rows, on the GPU and on the CPU."""
    from sweetrl.lm.passes import usable_backend

    rows = attempts(seed, tasks=2 + seed).rows
    model = model_on("cuda", window=window)
    assert usable_backend(model) == ("flex", "")
    for device in ("cuda", "cpu"):
        logprobs = reply_logprobs(model, on("cuda", Layout("flex").collate(rows)))
        other = model_on(device, window=window)
        expected = alone(other, rows, device)
        assert (logprobs.cpu() - expected.cpu()).abs().max().item() < 1e-3
        largest = 0.0
        for gradient, exact in zip(gradients(model, logprobs), gradients(other, expected), strict=True):
            largest = max(largest, exact.abs().max().item())
            assert (gradient.cpu() - exact.cpu()).abs().max().item() < 1e-3 * max(1.0, largest)


def test_bfloat16_is_as_near_in_trees_as_alone() -> None:
    """Against float32 the tree's rounding is at most twice that of the rows one by one."""
    import torch

    rows = attempts().rows
    half, full = model_on("cuda", "bfloat16"), model_on("cuda")
    with torch.no_grad():
        exact = alone(full, rows, "cuda")
        trees = reply_logprobs(half, on("cuda", Layout("flex").collate(rows)))
        errors = [(logprobs - exact).abs().mean().item() for logprobs in (trees, alone(half, rows, "cuda"))]
    assert 0 < errors[0] < 2 * errors[1]


def test_attention_is_compiled_for_all_lengths_at_once() -> None:
    """Forests of twelve lengths need a handful of compilations, not one each: torch stops compiling after eight."""
    import torch
    from torch._dynamo.utils import counters

    model = model_on("cuda")
    lengths = set()
    before = counters["stats"]["unique_graphs"]
    for seed in range(12):
        batch = on("cuda", Layout("flex").collate(attempts(seed, tasks=1 + seed % 5).rows))
        lengths.add(batch["input_ids"].shape[1])
        gradients(model, reply_logprobs(model, batch))
        with torch.no_grad():
            reply_logprobs(model, batch)
    assert len(lengths) > 8
    assert counters["stats"]["unique_graphs"] - before <= 6


def test_layers_are_compiled_for_few_lengths_and_compute_the_same() -> None:
    """FlexAttention and the adapters within one graph: log-probs and gradients of a model with a window."""
    import torch
    from torch._dynamo.utils import counters

    from sweetrl.lm.compiled import compile_layers

    plain, model = model_on("cuda", window=40), model_on("cuda", window=40)
    lengths, graphs = compile_layers(model, 2048), counters["stats"]["unique_graphs"]
    for seed in range(8):
        batch = on("cuda", Layout("flex", 2048, lengths=lengths).collate(attempts(seed, tasks=1 + seed % 4).rows))
        assert batch["input_ids"].shape[1] in lengths
        logprobs = reply_logprobs(model, batch)
        computed = gradients(model, logprobs)
        made = counters["stats"]["unique_graphs"] - graphs
        expected = reply_logprobs(plain, batch)
        graphs = counters["stats"]["unique_graphs"] - made
        assert (logprobs - expected).abs().max().item() < 1e-3
        for gradient, exact in zip(computed, gradients(plain, expected), strict=True):
            assert (gradient - exact).abs().max().item() < 1e-3 * max(1.0, exact.abs().max().item())
    assert 1 < made <= 5
    with torch.no_grad():  # as it is
        assert (reply_logprobs(model, batch) - expected).abs().max().item() < 1e-3


def test_nothing_is_waited_for_between_the_passes_of_a_step(tmp_path: Path) -> None:
    import torch

    from sweetrl.sweet.trainer import CriticTrainer

    class Strict(CriticTrainer):
        compiled_from = 0

        def _passes(self, *given: Any) -> Any:
            torch.cuda.set_sync_debug_mode("error" if self.state.global_step > 3 else "default")
            try:
                return super()._passes(*given)
            finally:
                torch.cuda.set_sync_debug_mode("default")

    settings = CriticSettings(epochs=4.0, batch_size=4, micro_batch_size=2, tokens=16_384, checkpoints=1)
    Strict(model_on("cuda", moved=False), attempts(), settings, tmp_path, 0).fit()


@pytest.mark.parametrize("kind", ["critic", "policy"])
def test_twenty_steps_end_with_the_weights_of_the_cpu(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.sweet import trainer as trainers

    data = attempts()
    common: dict[str, Any] = {"learning_rate": 1e-3, "epochs": 20 * 4 / len(data.pairs), "checkpoints": 1}
    common |= {"batch_size": 4, "micro_batch_size": 4}
    weights, losses = {}, {}
    monkeypatch.setattr(trainers.PreferenceTrainer, "compiled_from", 0)
    for device, layout in (("cpu", "trees"), ("cuda", "trees"), ("cuda", "flat")):
        model, folder, name = model_on(device, moved=False), tmp_path / f"{device}-{layout}", f"{device} {layout}"
        more = common | {"layout": layout}
        if kind == "critic":
            trainer: Any = trainers.CriticTrainer(model, data, CriticSettings(beta=0.5, **more), folder, 0)
        else:
            trainer = trainers.PolicyTrainer(
                model, data, PolicySettings(beta=0.5, sft_replay=0.5, **more), folder, 0, replay=0.5
            )
        assert trainer.layout.backend == {"cpu trees": "blocks", "cuda trees": "flex", "cuda flat": None}[name]
        losses[name] = [entry["loss"] for entry in trainer.fit()]
        weights[name] = {key: value.cpu() for key, value in model.state_dict().items() if "lora_" in key}
    start = {key: value for key, value in model_on("cpu", moved=False).state_dict().items() if "lora_" in key}
    moved = max((start[key] - value).abs().max().item() for key, value in weights["cpu trees"].items())
    for name in ("cuda trees", "cuda flat"):
        assert losses[name] == pytest.approx(losses["cpu trees"], abs=1e-3)
        apart = [(weights[name][key] - value).abs().mean().item() for key, value in weights["cpu trees"].items()]
        assert max(apart) < 0.05 * moved


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Weights and optimiser are on the GPU again: interrupted and not, the end is the same."""
    from sweetrl.sweet import trainer as trainers

    data = attempts()
    settings = CriticSettings(epochs=4.0, batch_size=4, micro_batch_size=4, checkpoints=4, learning_rate=1e-3)
    undisturbed = trainers.CriticTrainer(model_on("cuda", moved=False), data, settings, tmp_path / "whole", 0)
    expected = undisturbed.fit()

    class Stopped(Exception):
        pass

    def stop(step: int, steps: int, metrics: dict[str, float]) -> None:
        if step > steps // 2:
            raise Stopped

    model = model_on("cuda", moved=False)
    with pytest.raises(Stopped):
        trainers.CriticTrainer(model, data, settings, tmp_path / "cut", 0, report=stop).fit()
    again = trainers.CriticTrainer(model_on("cuda", moved=False), data, settings, tmp_path / "cut", 0)
    history = again.fit()
    assert [entry["loss"] for entry in history] == pytest.approx([entry["loss"] for entry in expected], abs=1e-4)


def test_the_engine_says_on_the_gpu_what_it_says_on_the_cpu(tiny_model: Path) -> None:
    """Greedy replies and their log-probs over two turns, the second with what the first has left; there by graphs."""
    from sweetrl.engines.transformers import TransformersEngine

    sampled: dict[str, list[list[Any]]] = {}
    for device in ("cpu", "cuda"):
        engine = TransformersEngine(tiny_model, device=device)
        assert engine.device == device
        session: Any = engine.session()
        sampling = Sampling(24, temperature=0.0)
        ids = [engine.chat.open(system, "What does a parking ticket cost?") for system in ("Ask first.", "Be short.")]
        sampled[device] = []
        for turn in range(2):
            replies = session.sample([Prompt(prompt_ids, turn) for prompt_ids in ids], sampling)
            sampled[device].append([reply[0] for reply in replies])
            ended = [reply[0].finish_reason == "stop" for reply in replies]
            follow = [engine.chat.follow(end, "The rate is 7.") for end in ended]
            ids = [before + reply[0].token_ids + more for before, reply, more in zip(ids, replies, follow, strict=True)]
        if device == "cuda":
            assert engine.slotted and session.kept._graphed and any(session.kept._graphs.values())
    for here, there in zip(sampled["cpu"], sampled["cuda"], strict=True):
        assert [reply.token_ids for reply in here] == [reply.token_ids for reply in there]
        for reply, other in zip(here, there, strict=True):
            assert reply.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.parametrize("backend", ["flex", None])
def test_all_weights_are_trained_in_half_precision_as_in_float32(backend: Any) -> None:
    """Under autocast the gradients are those of float32, rounded; both kinds of layer are met."""
    import torch

    from sweetrl.lm.full import train_all

    gradients = []
    rows = attempts().rows[:3]
    for dtype in ("float32", "bfloat16"):
        model: Any = train_all(model_on("cuda", moved=False).unload().to("cuda"), dtype)
        loss = -reply_logprobs(model, on("cuda", Layout(backend).collate(rows))).mean()
        loss.backward()
        assert all(weight.grad is not None and weight.dtype == torch.float32 for weight in model.parameters())
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    apart = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    assert apart < 0.05


def test_a_base_of_four_bits_samples_what_it_is_trained_on(shipped_base: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from sweetrl.config.settings import ModelSettings
    from sweetrl.engines.policy import Policy
    from sweetrl.lm.adapters import load_base, save_trained, trainable
    from sweetrl.lm.reference import row_logprobs
    from sweetrl.sweet.trainer import CriticTrainer

    settings = ModelSettings(base=str(shipped_base), dtype="bfloat16", quantization="nf4", threads=1)
    model = trainable(load_base(settings)[0], settings, LoraSettings(rank=4), 0)
    data = PreferenceData(attempts().rows[:4], [(0, 1), (2, 3)])
    how = CriticSettings(epochs=2, learning_rate=1e-3, batch_size=2, micro_batch_size=2)
    trainer = CriticTrainer(model, data, how, tmp_path / "scratch", 0)
    assert trainer.fit()[-1]["reference_kl"] > 0
    save_trained(trainer.model, tmp_path / "adapter", str(shipped_base))
    engine: Any = Policy(settings, adapter=tmp_path / "adapter").open(2).engine
    ids = tuple(range(20, 40))
    ((reply,),) = engine.sample([Prompt(ids, 1)], Sampling(8, 1.0, 1.0, 1))
    row = Row((*ids, *reply.token_ids), ((len(ids), len(ids) + len(reply.token_ids)),))
    (logprobs,) = row_logprobs(trainer.model, [row], Layout(None))
    assert logprobs.tolist() == pytest.approx(reply.logprobs, abs=0.1)
