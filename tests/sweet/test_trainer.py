from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.config.settings import CriticSettings, LoraSettings, ModelSettings, PolicySettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import PreferenceData, Row, encode
from sweetrl.sweet.pairs import index_pairs, trajectory_pairs
from sweetrl.types import Trajectory

LORA = LoraSettings(rank=4, alpha=8)


def fresh(tiny_model: Path, lora: LoraSettings = LORA) -> Any:
    from sweetrl.lm.adapters import attach_adapter, load_base

    return attach_adapter(load_base(ModelSettings(base=str(tiny_model), device="cpu"))[0], lora, seed=0)


@pytest.fixture(scope="module")
def critic_data(trajectories: list[Trajectory], chat: ChatFormat) -> PreferenceData:
    pairs, _ = trajectory_pairs(trajectories)
    dialogues: list[Trajectory] = []
    indices = index_pairs(pairs, trajectories, dialogues.append)
    rows = tuple(encode(dialogue, chat, Backend().privileged_prompt(dialogue.task) + "Help.") for dialogue in dialogues)
    return PreferenceData(rows, tuple(indices))


def test_the_critic_learns_its_pairs_and_says_how(
    tiny_model: Path, critic_data: PreferenceData, tmp_path: Path
) -> None:
    from sweetrl.sweet.trainer import CriticTrainer

    seen: list[tuple[int, int]] = []
    settings = CriticSettings(
        learning_rate=1e-2,
        epochs=6,
        batch_size=4,
        micro_batch_size=2,
        beta=1.0,
        lora=LORA,
        warmup_ratio=0.2,
        min_lr_ratio=0.1,
    )
    trainer = CriticTrainer(
        fresh(tiny_model), critic_data, settings, tmp_path, 0, report=lambda step, steps, _: seen.append((step, steps))
    )
    history = trainer.fit()
    steps = round(6 * len(critic_data.pairs) / 4)
    assert seen == [(step, steps) for step in range(1, steps + 1)]
    first, last = history[0], history[-1]
    # An adapter starts as the reference: no margin, chance loss.
    assert first["loss/preference"] == pytest.approx(0.6931, abs=1e-3)
    assert first["reward/margin"] == pytest.approx(0.0, abs=1e-4)
    assert first["reference_kl"] == pytest.approx(0.0, abs=1e-4)
    assert last["reference_kl"] > 0.0 and last["loss/preference"] < 0.5 and last["accuracy"] > 0.7
    for name in (
        *("loss", "grad_norm", "learning_rate", "tokens_per_second", "accuracy", "reward/margin", "loss/nll"),
        *("advantage/chosen", "advantage/rejected", "advantage/chosen/turn_01", "reply_length/chosen"),
    ):
        assert name in last, name
    # Warm-up to the peak, cosine to a tenth of it.
    rates = [entry["learning_rate"] for entry in history]
    assert rates[0] < max(rates) <= 1e-2
    assert rates[-1] < 2.5e-3
    assert trainer.optimizer is not None
    assert trainer.optimizer.param_groups[0]["betas"] == (0.9, 0.95)
    assert (tmp_path / f"checkpoint-{steps}" / "complete").exists()


def test_a_turn_that_no_reply_of_a_batch_is_at_has_no_mean() -> None:
    """Stage 2: two replies to the state at the third turn say nothing of the first and the second."""
    import torch

    from sweetrl.lm.data import MicroBatch, collate_pairs
    from sweetrl.sweet.trainer import PreferenceTrainer

    rows = [Row((1, 2, 3, token), ((3, 4),)) for token in (4, 5)]
    batch = collate_pairs(PreferenceData(rows, [(0, 1)], turns=(2, 2)), MicroBatch(((0, 1),)), None)
    trainer: Any = None
    metrics = PreferenceTrainer.value_metrics(trainer, torch.tensor([0.5, -0.25]), batch)
    by_turn = {name: float(value) for name, value in metrics.items() if "/turn_" in name}
    assert by_turn == {"advantage/chosen/turn_03": 0.5, "advantage/rejected/turn_03": -0.25}


def test_a_long_training_keeps_means_over_a_few_steps(
    tiny_model: Path, critic_data: PreferenceData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.sweet.trainer import CriticTrainer

    def trained(folder: str) -> tuple[list[dict[str, float]], int]:
        settings = CriticSettings(learning_rate=1e-2, epochs=2, batch_size=2, micro_batch_size=2, beta=1.0, lora=LORA)
        trainer = CriticTrainer(fresh(tiny_model), critic_data, settings, tmp_path / folder, 0)
        return trainer.fit(), int(trainer.args.save_steps)

    each, _ = trained("each")
    monkeypatch.setattr("sweetrl.sweet.arguments.MOST_LOGGED", 5)
    means, saved = trained("few")
    every = math.ceil(len(each) / 5)
    assert every > 1 and [entry["step"] for entry in means] == list(range(every, len(each) + 1, every))
    assert saved % every == 0, "a killed training's entries would be incomplete"
    for number, entry in enumerate(means):
        steps = each[number * every : (number + 1) * every]
        for name in ("loss", "accuracy", "advantage/chosen"):
            assert entry[name] == pytest.approx(sum(step[name] for step in steps) / every, abs=1e-3), name
        assert entry["learning_rate"] == steps[-1]["learning_rate"]


def test_weights_that_a_last_step_has_broken_are_not_written(
    tiny_model: Path, critic_data: PreferenceData, tmp_path: Path
) -> None:
    """Its loss is finite, its gradient (in half precision, say) is not; no later loss would tell."""
    from sweetrl.sweet.trainer import CriticTrainer
    from sweetrl.sweet.training import run_trainer

    model = fresh(tiny_model)
    settings = CriticSettings(epochs=0.1, batch_size=4, micro_batch_size=4, warmup_ratio=0.0, lora=LORA)
    trainer = CriticTrainer(model, critic_data, settings, tmp_path, 0)
    moved = next(value for name, value in model.named_parameters() if "lora_B" in name)
    moved.register_hook(lambda gradient: gradient / 0.0)
    with pytest.raises(UserError, match=r"adapter: the trained weights are not finite .* lower the learning rate"):
        run_trainer(trainer, tmp_path, "base")
    assert not list((tmp_path / "adapter").glob("*"))


@pytest.mark.parametrize("batch", [8, 1024])  # with one step there is no warm-up: its learning rate would be 0
def test_only_the_adapter_moves(tiny_model: Path, critic_data: PreferenceData, tmp_path: Path, batch: int) -> None:
    from sweetrl.sweet.trainer import CriticTrainer

    model = fresh(tiny_model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = CriticSettings(learning_rate=1e-2, epochs=1, batch_size=batch, lora=LORA)
    CriticTrainer(model, critic_data, settings, tmp_path, 0).fit()
    moved = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert moved and all("lora_" in name for name in moved)


def test_the_policy_learns_pairs_and_replay(
    tiny_model: Path, trajectories: list[Trajectory], chat: ChatFormat, tmp_path: Path
) -> None:
    from sweetrl.sweet.trainer import PolicyTrainer

    prompts = [encode(dialogue, chat, "Help.") for dialogue in trajectories]
    good, bad = chat.reply("What is the rate per hour?"), chat.reply("I do not know.")
    rows = []
    for row in prompts[:8]:
        start = row.spans[0][0]
        rows += [Row(row.token_ids[:start] + reply, ((start, start + len(reply)),)) for reply in (good, bad)]
    rows += [Row(row.token_ids[: row.spans[-1][1]], row.spans[-1:]) for row in prompts[8:12]]
    data = PreferenceData(tuple(rows), tuple((2 * i, 2 * i + 1) for i in range(8)), tuple(range(16, 20)))
    settings = PolicySettings(
        learning_rate=1e-2, epochs=8, batch_size=4, micro_batch_size=4, beta=0.5, loss="ipo", sft_replay=0.5, lora=LORA
    )
    history = PolicyTrainer(fresh(tiny_model), data, settings, tmp_path, 0, replay=settings.sft_replay).fit()
    assert history[-1]["accuracy"] == 1.0
    assert history[-1]["log_ratio/chosen"] > history[-1]["log_ratio/rejected"]
    assert history[-1]["loss/sft_replay"] < history[0]["loss/sft_replay"]


def test_an_unfinished_checkpoint_is_never_continued_from(tmp_path: Path) -> None:
    from sweetrl.sweet.arguments import COMPLETE, last_checkpoint

    for step in (2, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / COMPLETE).touch()
    (tmp_path / "checkpoint-12").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert not (tmp_path / "checkpoint-12").exists()
    assert last_checkpoint(tmp_path / "nothing") is None


@pytest.mark.parametrize("seed", [-1, 20_261_126_120_000])
def test_any_seed_will_do(tiny_model: Path, critic_data: PreferenceData, tmp_path: Path, seed: int) -> None:
    """NumPy takes seeds from 0 to 2**32 - 1; a refusal would come only after days of collecting."""
    from sweetrl.sweet.trainer import CriticTrainer

    settings = CriticSettings(epochs=0.1, batch_size=4, micro_batch_size=4, lora=LORA)
    assert len(CriticTrainer(fresh(tiny_model), critic_data, settings, tmp_path, seed).fit()) == 1


def test_saved_adapters_name_the_base_as_params_do_and_load_back(tiny_model: Path, tmp_path: Path) -> None:
    import torch

    from sweetrl.lm.adapters import load_adapter, load_base, save_adapter

    model = fresh(tiny_model)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.ones_like(parameter)
    for folder in ("one", "two/deeper"):
        save_adapter(model, tmp_path / folder, "models/base")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two/deeper" / name).read_bytes()
    config = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "models/base"
    assert str(tmp_path) not in json.dumps(config) and str(tiny_model) not in json.dumps(config)
    ids = torch.arange(5, 25)[None]
    loaded = load_adapter(load_base(ModelSettings(base=str(tiny_model), device="cpu"))[0], tmp_path / "one")
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    with pytest.raises(UserError, match="none: there is no peft adapter here"):
        load_adapter(loaded, tmp_path / "none")
