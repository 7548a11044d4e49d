"""Compiled layers: the losses and weights of uncompiled ones, few graphs, few Python calls. On a CPU without inductor.

FlexAttention runs as plain tensor operations here; what torch's compiler makes of a layer on a GPU is in
tests/lm/test_cuda.py.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import CriticSettings, LoraSettings, PolicySettings
from sweetrl.lm import compiled, passes
from sweetrl.lm.data import PreferenceData, Row
from tests.lm.test_memory import model_of
from tests.sweet.test_overhead import waiting

TOKENS = 640


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)  # it has gradients on a CPU, too
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(passes, "choose_backend", lambda device: "flex")


def states(count: int, longest: int = 450) -> PreferenceData:
    """Two replies to each of some prompts of many lengths, a pair each."""
    chance, rows = random.Random(0), []
    for number in range(count):
        prompt = tuple(chance.randrange(60) for _ in range(20 + number * longest // count))
        for reply in ((1, 2, 3, number % 60), (4, 5, 6)):
            rows.append(Row(prompt + reply, ((len(prompt), len(prompt + reply)),)))
    pairs = tuple((row, row + 1) for row in range(0, len(rows), 2))
    return PreferenceData(tuple(rows), pairs, groups=tuple(row // 2 for row in range(len(rows))))


def train(
    kind: str, folder: Path, data: PreferenceData, backend: str, layers: int = 2, counted_from: int = 99, **more: Any
) -> tuple[Any, list[int], int, list[int]]:
    """Train, compiled by `backend` if there is one: the trainer, passes' lengths, graphs, calls of late steps."""
    from torch._dynamo.utils import counters

    from sweetrl.sweet import trainer as trainers

    settings: Any = {"batch_size": 4, "micro_batch_size": 4, "epochs": 1, "lora": LoraSettings(rank=4)}
    settings |= {"tokens": TOKENS, "learning_rate": 1e-2} | more
    lengths, calls = list[int](), list[int]()

    class Counted(getattr(trainers, kind)):  # type: ignore[misc]
        compiled_from = 0 if backend else sys.maxsize

        def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> Any:
            lengths.append(inputs["rows"]["input_ids"].shape[1])
            return super().compute_loss(model, inputs, *given, **more)

        def training_step(self, *given: Any, **more: Any) -> Any:
            if self.state.global_step >= counted_from:
                calls.append(0)
                sys.setprofile(see)
            try:
                return super().training_step(*given, **more)
            finally:
                sys.setprofile(None)

    def see(frame: Any, event: str, argument: Any) -> None:
        calls[-1] += event == "call"

    type_ = CriticSettings if kind == "CriticTrainer" else PolicySettings
    model, before = model_of(layers, "float32", 4), counters["stats"]["unique_graphs"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainers, "compile_layers", partial(compiled.compile_layers, backend=backend))
        trainer = Counted(model, data, type_(**settings), folder, seed=0)
    assert trainer.layout.backend == "flex"
    trainer.args.save_strategy = "no"
    trainer.fit()
    return trainer, lengths, counters["stats"]["unique_graphs"] - before, calls


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "checkpointing"), [("CriticTrainer", False), ("PolicyTrainer", True)])
def test_compiled_layers_train_alike_with_few_graphs(kind: str, checkpointing: bool, tmp_path: Path) -> None:
    """Metrics and gradient norms of every step, and the weights after it; a graph for each of at most five lengths."""
    data, more = states(20), {"gradient_checkpointing": checkpointing}
    plain, lengths, none, _ = train(kind, tmp_path / "plain", data, "", **more)
    trained, padded, graphs, _ = train(kind, tmp_path / "compiled", data, "aot_eager", **more)
    assert len(set(lengths)) >= 5 and none == 0
    assert set(padded) <= set(trained.layout.lengths) and 3 <= graphs == len(set(padded)) <= 5
    for entry, eager in zip(trained.state.log_history, plain.state.log_history, strict=True):
        for name in eager.keys() - {"computed", "tokens_per_second"} if "loss" in eager else ():
            assert entry[name] == pytest.approx(eager[name], rel=1e-3, abs=1e-5), name
    expected = plain.model.state_dict()
    for name, value in trained.model.state_dict().items():
        assert (value - expected[name]).abs().max().item() < 1e-4, name


def test_a_compiled_pass_takes_few_python_calls_and_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer's calls a step without compilation, and with it once its graph is there; attention is one call here."""
    from torch.nn import attention
    from torch.nn.functional import scaled_dot_product_attention

    from sweetrl.sweet import trainer as trainers

    def attend(query: Any, key: Any, value: Any, block_mask: Any, **more: Any) -> Any:
        return scaled_dot_product_attention(query, key, value, is_causal=True, **more)

    monkeypatch.setattr(attention.flex_attention, "flex_attention", attend)
    monkeypatch.setattr(trainers, "model_layout", lambda *_, **more: passes.Layout("flex"))  # which would see it
    data, each = states(16, 20), {}
    for backend in ("eager", ""):
        two, four = (train("PolicyTrainer", tmp_path / backend, data, backend, layers, 2) for layers in (2, 4))
        each[backend] = (min(four[3]) - min(two[3])) / 2
    assert each["eager"] < each[""] / 3, each
    waits, trainer = list[str](), four[0]  # not compiled: a graph cannot wait, and would not be seen
    for batch in trainer.make_micro_batches(trainer.train_dataset[0]):
        with waiting(waits.append):
            trainer.compute_loss(trainer.model, batch)
    assert not waits


def test_layers_that_are_no_single_graph_are_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """Adapters on Mixtral's experts are such layers."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    from sweetrl.lm.adapters import attach_adapter

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    base = MixtralForCausalLM(MixtralConfig(vocab_size=64, num_hidden_layers=2, **sizes))
    model = attach_adapter(base.requires_grad_(False), LoraSettings(rank=4), 0)
    rows = states(3).rows
    expected = passes.reply_logprobs(model, passes.Layout("flex", TOKENS).collate(rows))
    lengths = compiled.compile_layers(model, TOKENS, "eager")
    computed = passes.reply_logprobs(model, passes.Layout("flex", TOKENS, lengths=lengths).collate(rows))
    assert caplog.text.count("mixtral: layers are not compiled: ") == 1
    assert (computed - expected).abs().max().item() < 1e-5


def test_sequences_are_padded_within_the_limit() -> None:
    """The limit may have shrunk since graphs were planned; a single row may be longer than it."""
    layout = passes.Layout("flex", 300, lengths=(256, 512))
    for tokens, padded in ((100, 256), (260, 384), (400, 512)):
        assert layout.collate([Row((1,) * (tokens + 1), ((tokens, tokens + 1),))])["input_ids"].shape == (1, padded)


def test_where_memory_decides_all_pairs_of_a_step_are_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweetrl.sweet import trainer as trainers

    settings = PolicySettings(batch_size=8, micro_batch_size=3)
    trainer = trainers.PolicyTrainer(model_of(1, "float32"), states(8), settings, tmp_path, seed=0)
    step = trainer.train_dataset[0]
    assert len(trainer.make_micro_batches(step)) == 3
    monkeypatch.setattr(trainers, "pass_tokens", lambda *_: (32_768, False))
    trainer._fit_passes(trainer.model, torch.device("cuda"))
    assert len(trainer.make_micro_batches(step)) == 1
