"""On-policy training: the policy that is asked is the one of the moment, it gets better, and it resumes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sweetrl.config.settings import GrpoSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.lm.data import Row
from sweetrl.methods.credit import Attempts
from sweetrl.methods.grpo_trainer import GroupTrainer
from tests.lm.slowly import killed_at, move, plain_model, slow_logprobs
from tests.sweet.test_trainer import LORA, fresh

SETTINGS = GrpoSettings(
    learning_rate=1e-2,
    iterations=4,
    tasks=2,
    group_size=2,
    batch_size=2,
    micro_batch_size=2,
    warmup_ratio=0,
    checkpoints=4,
    lora=LORA,
)


def sampler(chat: ChatFormat, notes: list[tuple[int, float]]) -> Any:
    """Two tasks, each with a good and a bad reply; notes how likely the good one is for the model."""
    from sweetrl.lm.passes import Layout
    from sweetrl.lm.reference import row_logprobs

    replies = [chat.reply("What is the rate per hour?"), chat.reply("I do not know.")]
    rows = []
    for request in ("I want a function.", "I want the price of a ticket."):
        start = chat.open("Help.", request)
        rows += [Row(start + reply, ((len(start), len(start) + len(reply)),)) for reply in replies]

    def sample(iteration: int, model: Any) -> Attempts:
        good = sum(row_logprobs(model, rows[:1], Layout(None))[0]).item()  # type: ignore[arg-type]
        notes.append((iteration, good))
        return Attempts(tuple(rows), ((1.0,), (-1.0,)) * 2, (0, 0, 1, 1), {"return": 0.5, "success": 0.5})

    return sample


def test_iterations_ask_the_policy_of_the_moment_and_raise_what_is_better(
    tiny_model: Path, chat: ChatFormat, tmp_path: Path
) -> None:
    notes: list[tuple[int, float]] = []
    trainer = GroupTrainer(fresh(tiny_model), sampler(chat, notes), SETTINGS, tmp_path, 0)
    history = trainer.fit()
    assert [iteration for iteration, _ in notes] == [0, 1, 2, 3]
    likely = [good for _, good in notes]
    assert likely == sorted(likely) and likely[-1] > likely[0] + 0.5, "each iteration sees what the one before learnt"
    assert len(history) == 8
    first, second = history[0], history[1]
    # At the first step of an iteration the policy is the one that sampled.
    assert first["ratio"] == pytest.approx(1.0, abs=1e-5) and first["clip_share"] == 0.0
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["ratio"] != pytest.approx(1.0, abs=1e-5)
    assert history[-1]["kl"] > 0.0
    for name in ("loss", "grad_norm", "tokens_per_second", "return", "success", "seconds_sampling"):
        assert name in first, name


def test_the_ratio_is_to_the_log_probs_that_were_recorded(tiny_model: Path, chat: ChatFormat, tmp_path: Path) -> None:
    from sweetrl.lm.reference import row_logprobs

    sample = sampler(chat, [])

    def recorded(iteration: int, model: Any) -> Attempts:
        made = sample(iteration, model)
        return replace(made, recorded=tuple((-1.5,) * row.reply_tokens for row in made.rows))

    settings = SETTINGS.model_copy(update={"iterations": 1, "batch_size": 4, "micro_batch_size": 4, "kl_coef": 0.0})
    trainer = GroupTrainer(fresh(tiny_model), recorded, settings, tmp_path, 0)
    rows = recorded(0, trainer.model).rows
    ratios = [(own + 1.5).exp() for own in row_logprobs(trainer.model, rows, trainer.layout)]
    (step,) = trainer.fit()
    assert step["ratio"] == pytest.approx(torch.cat(ratios).mean().item(), rel=1e-5)
    assert step["ratio"] != pytest.approx(1.0, abs=0.1)
    losses = [
        -torch.minimum(sign * ratio, sign * ratio.clamp(0.8, 1.2)).mean()
        for ratio, sign in zip(ratios, (1.0, -1.0, 1.0, -1.0), strict=True)
    ]
    assert step["loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


@pytest.mark.parametrize("step", [3, 4])
def test_a_killed_run_goes_on_from_an_iterations_end_with_the_same_bytes(
    tiny_model: Path, chat: ChatFormat, tmp_path: Path, step: int
) -> None:
    from sweetrl.lm.adapters import save_adapter

    weights, lora = [], LORA.model_copy(update={"dropout": 0.1})
    for name in ("undisturbed", "killed"):
        notes: list[tuple[int, float]] = []
        if name == "killed":
            with killed_at(GroupTrainer, step):
                GroupTrainer(fresh(tiny_model, lora), sampler(chat, notes), SETTINGS, tmp_path / name, 0).fit()
        trainer = GroupTrainer(fresh(tiny_model, lora), sampler(chat, notes), SETTINGS, tmp_path / name, 0)
        assert len(trainer.fit()) == 8
        save_adapter(trainer.model, tmp_path / name / "adapter", "base")
        weights.append((tmp_path / name / "adapter/adapter_model.safetensors").read_bytes())
    assert [iteration for iteration, _ in notes] == [0, 1, 1, 2, 3]
    assert weights[0] == weights[1]


def test_checkpoints_of_a_long_training_lie_between_its_entries_of_metrics(tiny_model: Path, tmp_path: Path) -> None:
    """2,100 steps are logged two by two; 3 an iteration, 35 iterations a checkpoint, would cut an entry in two."""
    long = SETTINGS.model_copy(update={"iterations": 700, "epochs": 1.5, "checkpoints": 20})
    arguments = GroupTrainer(fresh(tiny_model), lambda *_: None, long, tmp_path, 0).args  # type: ignore[arg-type,return-value]
    assert (arguments.logging_steps, arguments.save_steps) == (2, 108)


def informed_sampler(chat: ChatFormat) -> Any:
    """As `sampler`, without rewards, and with the rows that the teacher reads, with c."""
    plain = sampler(chat, [])
    requests = ("I want a function.", "I want the price of a ticket.")

    def sample(iteration: int, model: Any) -> Attempts:
        attempts = plain(iteration, model)
        informed = []
        for number, row in enumerate(attempts.rows):
            reply = row.token_ids[slice(*row.spans[0])]
            start = chat.open("The rate is 7. Help.", requests[number // 2])
            informed.append(Row(start + reply, ((len(start), len(start) + len(reply)),)))
        return replace(attempts, advantages=((0.0,),) * 4, informed=tuple(informed))

    return sample


def test_self_distillation_compares_with_the_base_that_sees_c(
    tiny_model: Path, chat: ChatFormat, tmp_path: Path
) -> None:
    """credit: privileged, against slow sums: log pi_ref(a | o, c) - log pi_old(a | o), and no reward."""
    trainer = GroupTrainer(fresh(tiny_model), informed_sampler(chat), SETTINGS, tmp_path, 0)
    move(trainer.model)
    trainer.begin(0)
    base = plain_model(tiny_model, "float32").eval()
    assert trainer.reference is not None
    with torch.no_grad():
        for row, informed, values in zip(
            trainer.attempts.rows, trainer.attempts.informed, trainer.reference, strict=True
        ):
            (old,), (reference,), (teacher,) = (
                slow_logprobs(*each) for each in ((trainer.model.eval(), row), (base, row), (base, informed))
            )
            expected = [
                [a.item(), b.item(), c.item() - a.item()] for a, b, c in zip(old, reference, teacher, strict=True)
            ]
            assert values.numpy() == pytest.approx(np.array(expected), abs=1e-4)
            assert abs(values[:, 2]).max() > 1e-2
    history = trainer.fit()
    assert all(math.isfinite(entry["loss"]) for entry in history)


@pytest.mark.parametrize("layout", ["trees", "flat"])
def test_distillation_descends_the_divergence_over_the_whole_vocabulary(
    tiny_model: Path, chat: ChatFormat, tmp_path: Path, layout: str
) -> None:
    """credit: distillation, against sums over all tokens, reply by reply: value and gradient; training lowers it."""
    changes = {"credit": "distillation", "layout": layout, "batch_size": 4, "micro_batch_size": 4, "kl_coef": 0.0}
    settings = SETTINGS.model_copy(update=changes)
    trainer = GroupTrainer(fresh(tiny_model), informed_sampler(chat), settings, tmp_path, 0)
    model: Any = trainer.model
    move(model)
    trainer.begin(0)
    (batch,) = trainer.make_micro_batches(trainer.plan[0])
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    gradients = {name: value.grad.clone() for name, value in trained.items()}
    model.zero_grad()

    def distributions(row: Row) -> torch.Tensor:
        (start, end), ids = row.spans[0], torch.tensor([row.token_ids])
        return model(input_ids=ids).logits[0, start - 1 : end - 1].log_softmax(-1)

    each = []
    for row, informed in zip(trainer.attempts.rows, trainer.attempts.informed, strict=True):
        with torch.no_grad(), model.disable_adapter():
            teacher = distributions(informed)
        own = distributions(row)
        each.append((own.exp() * (own - teacher)).sum(-1).mean())
    slow = torch.stack(each).mean()
    slow.backward()
    assert loss.item() == pytest.approx(slow.item(), rel=1e-4) and slow.item() > 0.01
    for name, value in trained.items():
        assert torch.allclose(gradients[name], value.grad, atol=1e-5, rtol=1e-3), name

    history = GroupTrainer(fresh(tiny_model), informed_sampler(chat), settings, tmp_path / "run", 0).fit()
    assert history[-1]["teacher_kl"] < 0.7 * history[0]["teacher_kl"]
