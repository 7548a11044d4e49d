"""All weights trained (`model.train: full`): every one moves, the reference is the base, and the folder is a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sweetrl.config.settings import (
    CriticSettings,
    LoraSettings,
    ModelSettings,
    parse_settings,
)
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.policy import Policy
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.errors import UserError
from sweetrl.lm.adapters import load_base, load_trained, save_trained, stack_adapters, trainable
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.lm.full import train_all
from sweetrl.lm.memory import Shape
from sweetrl.lm.passes import Layout
from sweetrl.lm.reference import _key, row_logprobs
from sweetrl.models.check import is_full
from sweetrl.models.load import load_weights
from sweetrl.sweet.trainer import CriticTrainer
from sweetrl.types import Prompt, Sampling
from tests.lm.slowly import killed_at
from tests.lm.test_memory import kept_of_a_token

HOW: dict[str, Any] = {"learning_rate": 1e-3, "batch_size": 2, "micro_batch_size": 2, "checkpoints": 4}


def model_settings(tiny_model: Path, dtype: Any = "float32") -> ModelSettings:
    return ModelSettings(base=str(tiny_model), device="cpu", threads=1, train="full", dtype=dtype)


def trainer_of(tiny_model: Path, rows: Sequence[Row], scratch: Path, dtype: str = "float32") -> CriticTrainer:
    settings = model_settings(tiny_model, dtype)
    model = trainable(load_base(settings)[0], settings, LoraSettings(), 0)
    pairs = [(n, n + 1) for n in range(0, 8, 2)]
    return CriticTrainer(model, PreferenceData(rows, pairs), CriticSettings(epochs=2, **HOW), scratch, 0)


@pytest.fixture
def trained(tiny_model: Path, rows: tuple[Row, ...], tmp_path: Path) -> Path:
    trainer = trainer_of(tiny_model, rows, tmp_path / "scratch")
    trainer.fit()
    save_trained(trainer.model, tmp_path / "trained", str(tiny_model))
    return tmp_path / "trained"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_weight_moves_and_the_reference_is_the_base(
    tiny_model: Path, rows: tuple[Row, ...], tmp_path: Path, dtype: str
) -> None:
    trainer = trainer_of(tiny_model, rows, tmp_path, dtype)
    base, _ = load_base(model_settings(tiny_model, dtype))
    expected, apart = row_logprobs(base, rows, trainer.layout), 1e-5 if dtype == "float32" else 0.05
    for computed, exact in zip(trainer.reference or (), expected, strict=True):
        assert torch.allclose(computed, exact, atol=apart)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    assert {weight.dtype for weight in before.values()} == {torch.float32}, "small steps need all of their digits"
    history = trainer.fit()
    assert history[0]["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert history[-1]["reference_kl"] > 1e-4
    still = [name for name, weight in trainer.model.named_parameters() if bool((weight == before[name]).all())]
    assert not still
    folder = tmp_path / "trained"
    save_trained(trainer.model, folder, str(tiny_model))
    after, _ = load_base(model_settings(folder, dtype))
    assert after.dtype is after.config.dtype is getattr(torch, dtype)
    for computed, exact in zip(
        row_logprobs(after, rows, trainer.layout), row_logprobs(trainer.model, rows, trainer.layout), strict=True
    ):
        assert torch.allclose(computed, exact, atol=apart)


def test_the_folder_is_the_agent_and_the_critic_wherever_an_adapter_is(
    tiny_model: Path, trained: Path, rows: tuple[Row, ...], chat: ChatFormat, tmp_path: Path
) -> None:
    assert is_full(trained)
    prompt = Prompt(chat.open("Help.", "I want a function."), 3)
    replies = []
    for engine in (
        TransformersEngine(tiny_model, trained, device="cpu", threads=1),
        TransformersEngine(trained, device="cpu", threads=1),  # with its own tokenizer
        Policy(model_settings(tiny_model)).adapted(trained).open(1).engine,
        TransformersEngine(tiny_model, device="cpu", threads=1),
    ):
        replies.append(engine.sample([prompt], Sampling(8, 1.0, 1.0, 1)))  # type: ignore[union-attr]
    assert replies[0] == replies[1] == replies[2] != replies[3]
    base, _ = load_base(model_settings(tiny_model))
    expected = row_logprobs(base, rows[:2], Layout(None))
    critic: Any = load_trained(base, trained)
    own = row_logprobs(critic, rows[:2], Layout(None))
    alone, _ = load_base(model_settings(trained))
    assert all(map(torch.equal, own, row_logprobs(alone, rows[:2], Layout(None))))
    with critic.disable_adapter():
        assert all(map(torch.equal, expected, row_logprobs(critic, rows[:2], Layout(None))))
    assert all(map(torch.equal, own, row_logprobs(critic, rows[:2], Layout(None))))
    stack_adapters([tiny_model, trained], tmp_path / "last", "models/base")
    weights = (folder / "model.safetensors" for folder in (trained, tmp_path / "last"))
    assert len({path.read_bytes() for path in weights}) == 1


def test_a_killed_run_ends_with_the_same_bytes(
    tiny_model: Path, trained: Path, rows: tuple[Row, ...], tmp_path: Path
) -> None:
    with killed_at(CriticTrainer, 3):
        trainer_of(tiny_model, rows, tmp_path / "killed").fit()
    trainer = trainer_of(tiny_model, rows, tmp_path / "killed")
    trainer.fit()
    save_trained(trainer.model, tmp_path / "again", str(tiny_model))
    names = sorted(path.name for path in trained.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (trained / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_a_server_has_full_weights_as_its_own_model(
    tiny_model: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.api.rollouts import serving

    served: list[str] = []

    def command(*given: Any) -> list[str]:
        served.append(given[2])
        raise UserError("enough")

    monkeypatch.setattr("sweetrl.engines.vllm_server.vllm_command", command)
    before = Policy.load(tiny_model)
    before = Policy(before.model, before.engine.model_copy(update={"kind": "vllm"}))
    with pytest.raises(UserError, match="enough"), serving([before.adapted(trained)], tmp_path / "log"):
        pass
    assert served == [str(trained.resolve())]
    running = Policy.server("http://localhost:1/v1", kind="vllm", adapter=trained)
    with pytest.raises(UserError, match=r"engine\.urls: a running server cannot load the full weights in "):
        running.serving(tmp_path / "log").__enter__()


@pytest.mark.parametrize(
    ("change", "advice"),
    [({"dtype": "float16"}, "take bfloat16"), ({"device": "cuda:1"}, "with CUDA_VISIBLE_DEVICES=1")],
)
def test_what_would_be_trained_wrongly_is_not(tiny_model: Path, change: dict[str, Any], advice: str) -> None:
    """Nothing scales a loss in float16; and transformers.Trainer moves a model to the first GPU."""
    settings = ModelSettings(base=str(tiny_model), **change)
    with pytest.raises(UserError, match=advice):
        trainable(load_base(settings.model_copy(update={"device": "cpu"}))[0], settings, LoraSettings(), 0)
    if "device" in change:  # before anything is collected
        with pytest.raises(UserError, match=advice):
            parse_settings({"model": change})


def test_what_cannot_be_is_one_sentence(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="computes in float32 or bfloat16; set `dtype`"):
        parse_settings({"model": {"train": "full", "dtype": "float16"}})
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = model_settings(tiny_model)
    with pytest.raises(UserError, match="only a frozen base is sharded"):
        trainable(load_base(settings)[0], settings, LoraSettings(), 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_plan_is_what_autograd_keeps(tiny_model: Path, dtype: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from sweetrl.lm.full import train_all

    counted = []
    for layers in (1, 2):
        sizes = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 2}
        model: Any = train_all(LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=layers, **sizes)), dtype)
        counted.append(kept_of_a_token(model, "blocks"))
    shape = Shape.of(model)
    assert (shape.weights, shape.rank) == (0, 0)
    assert counted[1] - counted[0] == pytest.approx(shape.kept, rel=0.05)
    assert shape == Shape.planned(model, shape.size, 0)
    assert "trained" in shape.plan(10.0, 8, 100)


def test_log_probs_of_another_precision_are_others(tiny_model: Path, rows: tuple[Row, ...]) -> None:
    """A base that is stored in half precision begins with equal float32 weights, whatever its layers compute in."""
    keys = {
        _key(train_all(load_weights(tiny_model, "bfloat16"), dtype), rows, Layout(None), False)
        for dtype in ("float32", "bfloat16")
    }
    assert len(keys) == 2, "the kept log-probs of one would be taken for the other's"
