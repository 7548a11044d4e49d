"""What c changes for the base: the critic without training, and training that starts from it; against slow sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.config.settings import CriticSettings, LoraSettings, parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import MicroBatch, Row, collate_pairs, encode
from sweetrl.lm.passes import Layout
from sweetrl.methods.critics import make_critic
from sweetrl.sweet.critic import LogRatioCritic
from sweetrl.sweet.data import critic_pairs
from sweetrl.sweet.pairs import trajectory_pairs
from sweetrl.types import Reply, Trajectory
from tests.lm.slowly import (
    TOLERANCE,
    log_sigmoid,
    move,
    plain_model,
    same,
    slow_logprobs,
    slow_nll,
)

BACKEND = Backend()
SYSTEM = "You help a user."
TEXTS = ("What is the rate?", "Yes.", "I WANT TO ANSWER:\n```python\ndef price(hours):\n    return 7\n```")


def prefixed(dialogue: Trajectory, chat: ChatFormat) -> Row:
    """The dialogue with c at the head of the system message, written down."""
    return encode(dialogue, chat, BACKEND.privileged_prompt(dialogue.task) + SYSTEM)


def slow_ratio(model: Any, dialogue: Trajectory, chat: ChatFormat, turn: int, reply: tuple[int, ...]) -> list[float]:
    """log pi(token | o, c) - log pi(token | o) of every token of a reply at a turn."""
    import torch

    logprobs = []
    for row in (prefixed(dialogue, chat), encode(dialogue, chat, SYSTEM)):
        start = row.spans[turn][0]
        with torch.no_grad():
            (values,) = slow_logprobs(model, Row(row.token_ids[:start] + reply, ((start, start + len(reply)),)))
        logprobs.append([value.item() for value in values])
    return [with_c - without for with_c, without in zip(*logprobs, strict=True)]


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_privileged_ratio(
    tiny_model: Path, precision: str, trajectories: list[Trajectory], chat: ChatFormat
) -> None:
    model, tolerance = plain_model(tiny_model, precision).eval(), TOLERANCE[precision]
    dialogue, imported = trajectories[0], trajectories[4]
    for talk in (dialogue, imported):
        turns = [[Reply(chat.reply(text), text) for text in TEXTS] for _ in encode(talk, chat, SYSTEM).spans]
        expected = [
            [slow_ratio(model, talk, chat, turn, reply.token_ids) for reply in some] for turn, some in enumerate(turns)
        ]
        for normalization in ("turn", "none"):
            view = CriticSettings(normalization=normalization)  # type: ignore[arg-type]
            for layout in (Layout("blocks"), Layout("blocks", tokens=90), Layout(None, 500)):
                critic = LogRatioCritic(model, BACKEND, chat, SYSTEM, view, layout, conditioned_reference=False)
                (advantages,) = critic.rate([(talk, turns)])
                for values, ratios in zip(advantages, expected, strict=True):
                    for value, tokens in zip(values, ratios, strict=True):
                        total = sum(tokens) / (len(tokens) if normalization == "turn" else 1)
                        assert value == pytest.approx(total, abs=tolerance * 50, rel=tolerance)
                        assert abs(value) > 1e-4, "c changes what the base thinks of the reply"


def settings_of(tiny_model: Path, **changes: Any) -> Any:
    return parse_settings({"seed": 5, "model": {"base": str(tiny_model), "device": "cpu", "threads": 1}, **changes})


def test_the_base_is_the_critic_whatever_a_trained_one_would_be(
    tiny_model: Path, trajectories: list[Trajectory], chat: ChatFormat
) -> None:
    turns = [[Reply(chat.reply(text), text) for text in TEXTS]]
    advantages = []
    for changes in (
        {"layout": "flat"},
        {"layout": "trees"},
        {"reference": "conditioned"},  # which is a trained critic's
    ):
        for parameterization in ("log-ratio", "value-head"):
            settings = settings_of(
                tiny_model,
                critic={"parameterization": parameterization},
                rank={"critic": "privileged-ratio", **changes},
            )
            critic: Any = make_critic(BACKEND.configured(settings), settings, None)
            assert isinstance(critic, LogRatioCritic) and not critic.conditioned_reference
            assert not hasattr(critic.model, "disable_adapter"), "there is no adapter to switch off"
            advantages.append(critic.rate([(trajectories[0], turns)])[0][0])
    for other in advantages[1:]:
        assert other == pytest.approx(advantages[0], abs=1e-5)


def test_without_c_there_is_no_ratio(tiny_model: Path) -> None:
    settings = settings_of(tiny_model, critic={"privileged": False}, rank={"critic": "privileged-ratio"})
    with pytest.raises(UserError, match=r"`critic\.privileged: false` nobody sees c; set it to true"):
        make_critic(BACKEND.configured(settings), settings, None)


@pytest.mark.parametrize("token_set", ["replies", "official"])
@pytest.mark.parametrize("position", ["system", "before"])
def test_training_starts_from_the_privileged_ratio_and_goes_on_from_there(
    tiny_model: Path, trajectories: list[Trajectory], chat: ChatFormat, tmp_path: Path, position: str, token_set: str
) -> None:
    """critic.reference: unconditioned, token by token: pi_theta sees c, pi_ref does not, from the first step on."""
    import torch

    from sweetrl.lm.adapters import attach_adapter
    from sweetrl.sweet.trainer import CriticTrainer

    some = trajectories[:6]
    pairs = trajectory_pairs(some, "all", 0.1)[0]
    view: dict[str, Any] = {"reference": "unconditioned", "privileged_position": position, "token_set": token_set}
    settings = CriticSettings(beta=0.3, nll=0.2, batch_size=2, micro_batch_size=2, lora=LoraSettings(rank=4), **view)
    data = critic_pairs(pairs, some, BACKEND, chat, SYSTEM, settings)
    rows, bare = list(data.rows), [encode(dialogue, chat, SYSTEM) for dialogue in some]
    header = token_set == "official"
    if header:  # the last token of the header is scored, too
        bare = [Row(row.token_ids, tuple((start - 1, end) for start, end in row.spans)) for row in bare]
    assert list(data.reference_rows) == bare
    for row, other in zip(rows, bare, strict=True):
        assert [row.token_ids[slice(*span)] for span in row.spans] == [
            other.token_ids[slice(*span)] for span in other.spans
        ]
    base = plain_model(tiny_model, "float64")
    with torch.no_grad():
        reference = [slow_logprobs(base, row) for row in bare]
        informed = [slow_logprobs(base, row) for row in rows]
    model = attach_adapter(base, settings.lora, seed=1).to(torch.float64)
    trainer = CriticTrainer(model, data, settings, tmp_path, 0, cache=tmp_path / "cache")
    assert trainer.reference is not None
    for values, turns in zip(trainer.reference, reference, strict=True):
        assert values.tolist() == pytest.approx([token.item() for turn in turns for token in turn], abs=1e-9)

    pair = MicroBatch(data.pairs[:3])
    tensors = collate_pairs(data, pair, trainer.reference)
    _, metrics = trainer.pair_loss(trainer.outputs(tensors["rows"]), tensors)
    chosen = sorted({good for good, _ in pair.pairs})
    starts = [
        sum(a.item() - b.item() for a, b in zip(*both, strict=True)) / len(both[0])
        for index in chosen
        for both in zip(informed[index], reference[index], strict=True)
    ]
    assert metrics["advantage/chosen"] == pytest.approx(sum(starts) / len(starts), abs=1e-9)
    assert abs(metrics["advantage/chosen"]) > 1e-4, "not from 0"

    move(model)
    tensors = collate_pairs(data, pair, trainer.reference)
    loss, _ = trainer.pair_loss(trainer.outputs(tensors["rows"]), tensors)
    policy = [slow_logprobs(model, row) for row in rows]
    scores = [
        sum(
            sum(a - b for a, b in zip(*both, strict=True)) / len(both[0])
            for both in zip(policy[index], reference[index], strict=True)
        )
        for index in range(len(rows))
    ]
    count = len(pair.pairs)
    expected = -sum(log_sigmoid(0.3 * (scores[a] - scores[b])) for a, b in pair.pairs) / count
    expected = expected + 0.2 * sum(slow_nll(model, rows[a]) for a, _ in pair.pairs) / count
    same(model, loss, expected, 1e-9)


def test_without_c_both_references_are_the_same(trajectories: list[Trajectory], chat: ChatFormat) -> None:
    settings = CriticSettings(reference="unconditioned", privileged=False)
    some = trajectories[:3]
    data = critic_pairs(trajectory_pairs(some)[0], some, BACKEND, chat, SYSTEM, settings)
    assert data.reference_rows == data.rows
    conditioned = critic_pairs(trajectory_pairs(some)[0], some, BACKEND, chat, SYSTEM, CriticSettings())
    assert conditioned.reference_rows == ()
