"""The plan of a device's memory, and what becomes of a step whose passes do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.config.settings import CriticSettings, LoraSettings, PolicySettings
from sweetrl.errors import UserError
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.lm.memory import CARDS, CONTEXT, GIB, Shape, pass_tokens
from sweetrl.lm.passes import Layout, reply_logprobs
from tests.lm.test_trees import dialogues

LLAMA_8B = Shape(32, 4096, 14336, 4096, 1024, 128_256, 8_030_000_000, 2, 42_000_000, 16)


def model_of(layers: int, dtype: str, rank: int = 8) -> Any:
    """A narrow Llama with an adapter."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sweetrl.lm.adapters import attach_adapter

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=layers, **sizes)).to(getattr(torch, dtype))
    return attach_adapter(model.requires_grad_(False), LoraSettings(rank=rank), 0)


def test_the_defaults_fit() -> None:
    """8B: on 80 GB without gradient checkpointing, on 22 GB with it."""
    left = CARDS["h100-80"] * GIB - CONTEXT - LLAMA_8B.steady
    assert LLAMA_8B.fitting(left) == 8192 and LLAMA_8B.fitting(left, checkpointing=True) == 32_768
    assert "512 tokens in a pass, 5.81 MiB each; 8,192 with checkpointing" in LLAMA_8B.plan(
        CARDS["a10-24"] + 1.5, 256, 2000
    )
    assert "nothing is left for a pass" in LLAMA_8B.plan(CARDS["t4-16"], 256, 2000)
    assert LLAMA_8B.cached == 128 * 1024


def kept_of_a_token(model: Any, backend: Any) -> float:
    """Bytes that autograd keeps of a token in a pass, beside weights and copies of them."""
    import torch

    own, kept, tokens = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, dict[int, Any](), 1000
    but = {tuple(weight.shape[::step]) for weight in model.parameters() for step in (1, -1)}

    def keep(tensor: Any) -> Any:
        if (place := tensor.untyped_storage().data_ptr()) not in own and tuple(tensor.shape) not in but:
            kept[place] = tensor.untyped_storage()  # held, so that no other takes its place
        return tensor

    row = Row(tuple(number % 60 for number in range(tokens + 1)), ((tokens - 10, tokens + 1),))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        reply_logprobs(model, Layout(backend).collate([row]))
    return sum(storage.nbytes() for storage in kept.values()) / tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("backend", ["blocks", None])
def test_the_plan_is_what_autograd_keeps(dtype: str, backend: Any) -> None:
    model = model_of(3, dtype)
    counted, shape = kept_of_a_token(model, backend), Shape.of(model)
    assert (shape.rank, shape.layers) == (8, 3)
    assert counted == pytest.approx(3 * shape.kept, rel=0.05)
    assert Shape.planned(model_of(3, dtype).get_base_model(), shape.size, 8).kept == shape.kept


def test_a_plan_needs_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig

    from sweetrl.cli.main import app
    from sweetrl.models.load import without_weights

    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    LlamaConfig(vocab_size=128_256, num_hidden_layers=32, **sizes).save_pretrained(tmp_path / "8b")
    shape = Shape.planned(without_weights(tmp_path / "8b"), 2, 16)
    assert shape.weights == pytest.approx(LLAMA_8B.weights, rel=0.01)
    assert shape.adapter == pytest.approx(LLAMA_8B.adapter, rel=0.01)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("model: {base: 8b, dtype: bfloat16}\n")
    result = CliRunner().invoke(app, ["doctor", "--gpu", "h100-80", "--json"])
    assert result.exit_code == 0 and "weights 14.96" in result.stdout and "8,192 tokens in a pass" in result.stdout
    result = CliRunner().invoke(app, ["doctor", "--gpu", "abacus", "--json"])
    assert result.exit_code == 1 and "h100-80" in result.stdout


def test_on_a_cpu_auto_is_a_number(tmp_path: Path) -> None:
    assert CriticSettings().tokens == "auto"
    assert pass_tokens(model_of(1, "float32"), "auto") == (16_384, False)
    assert pass_tokens(model_of(1, "float32"), 100) == (100, False)


def train(data: PreferenceData, folder: Path, tokens: int, failing: int = -1) -> tuple[Any, Any]:
    """Two steps of a listwise policy; pass number `failing` runs out of memory. Returns the trainer and its weights."""
    import torch

    from sweetrl.sweet.trainer import ListwiseTrainer

    class Short(ListwiseTrainer):
        passes = 0

        def outputs(self, rows: dict[str, Any]) -> Any:
            outputs = super().outputs(rows)
            Short.passes += 1
            if Short.passes == failing + 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return outputs

    settings = PolicySettings(
        objective="listwise", learning_rate=1e-2, batch_size=8, micro_batch_size=8, tokens=tokens, epochs=1,
        lora=LoraSettings(rank=4, dropout=0.1), max_pairs_per_group=8,
    )  # fmt: skip
    model = model_of(2, "float32", rank=4)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    data = PreferenceData(data.rows, data.pairs[:16], groups=data.groups, labels=tuple(0.1 for _ in data.rows))
    trainer = Short(model, data, settings, folder, seed=0)
    trainer.fit()
    return trainer, {name: value for name, value in model.state_dict().items() if "lora" in name}


@pytest.mark.parametrize("failing", [0, 1])
def test_a_step_that_runs_out_of_memory_is_done_again(
    tmp_path: Path, failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The first or the second pass of the first step: gradients, dropout and metrics are those of half the size."""
    data = dialogues(tasks=8)
    trainer, weights = train(data, tmp_path / "short", 70, failing)
    assert 1 < trainer.layout.tokens <= 35
    assert caplog.text.count("memory is short") == 1
    again, expected = train(data, tmp_path / "undisturbed", trainer.layout.tokens)
    assert all(bool((weights[name] == expected[name]).all()) for name in expected)
    left_out = ("tokens_per_second", "train_runtime")
    for entry, undisturbed in zip(trainer.state.log_history, again.state.log_history, strict=True):
        for name in undisturbed.keys() - set(left_out) if "loss" in undisturbed else ():
            assert entry[name] == pytest.approx(undisturbed[name], rel=1e-3), name


def test_a_pair_that_does_not_fit_takes_checkpointing_and_then_gives_up(tmp_path: Path) -> None:
    import torch

    from sweetrl.sweet.trainer import ListwiseTrainer

    class Never(ListwiseTrainer):
        def outputs(self, rows: dict[str, Any]) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

    data, model = dialogues(tasks=1), model_of(1, "float32")
    trainer = Never(model, data, PolicySettings(objective="listwise", batch_size=8), tmp_path, seed=0)
    with pytest.raises(UserError, match=r"does not hold a pass of .* tokens, which cannot be cut"):
        trainer.fit()
    assert all(layer.gradient_checkpointing for layer in model.get_base_model().model.layers)


def test_an_optimiser_that_does_not_fit_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweetrl.sweet.trainer import ListwiseTrainer

    def short(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    data = dialogues(tasks=1)
    data = PreferenceData(data.rows, data.pairs, groups=data.groups, labels=tuple(0.1 for _ in data.rows))
    trainer = ListwiseTrainer(model_of(1, "float32"), data, PolicySettings(objective="listwise"), tmp_path, seed=0)
    monkeypatch.setattr(torch.optim.AdamW, "step", short)
    with pytest.raises(UserError, match=r"the optimiser's state; lower `tokens` or `lora\.rank`"):
        trainer.fit()


def test_scoring_cuts_its_passes_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweetrl.lm import reference

    data, model = dialogues(tasks=2), model_of(1, "float32").eval()
    expected = reference.row_logprobs(model, data.rows, Layout(None))
    passes = list[int]()

    def short(model: Any, rows: dict[str, Any]) -> Any:
        passes.append(len(rows["tokens"]))
        if passes[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return reply_logprobs(model, rows)

    monkeypatch.setattr(reference, "reply_logprobs", short)
    logprobs = reference.row_logprobs(model, data.rows, Layout(None))
    assert max(passes) > 3 and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(logprobs, expected, strict=True))
    monkeypatch.setattr(reference, "reply_logprobs", lambda model, rows: short(model, {"tokens": range(4)}))
    with pytest.raises(UserError, match="cannot be cut"):
        reference.row_logprobs(model, data.rows, Layout(None))


def test_of_what_is_sharded_no_process_cuts_its_passes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes gather layers together: the others would wait for as many passes as it makes."""
    import torch

    from sweetrl.lm import reference

    passes = list[int]()

    def short(model: Any, rows: dict[str, Any]) -> Any:
        passes.append(len(rows["tokens"]))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(reference, "reply_logprobs", short)
    monkeypatch.setattr(reference, "is_sharded", lambda model: True)
    with pytest.raises(UserError, match="cannot be cut"):
        reference.row_logprobs(model_of(1, "float32").eval(), dialogues(tasks=2).rows, Layout(None))
    assert len(passes) == 1


def test_what_is_sharded_is_planned_for_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before sharding the base is on the CPU, whose memory is not planned."""
    from types import SimpleNamespace

    import torch

    from sweetrl.sweet import trainer as trainers

    class Planned(Exception):
        pass

    class Stopped(trainers.PolicyTrainer):
        def _fit_passes(self, model: Any, device: torch.device) -> bool:
            raise Planned(device.type)

    monkeypatch.setattr(trainers, "wants_shards", lambda: True)
    monkeypatch.setattr(trainers, "shard_layers", lambda model, device: None)
    monkeypatch.setattr(trainers, "training_arguments", lambda *_: SimpleNamespace(device=torch.device("cuda")))
    with pytest.raises(Planned, match="cuda"):
        Stopped(model_of(1, "float32"), dialogues(tasks=1), PolicySettings(), tmp_path, 0)
