"""The fast path against a slow, obviously right one: one sequence, one turn, one token at a time, float64."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.scoring import PRICE
from sweetrl.config.settings import (
    CriticSettings,
    GrpoSettings,
    MultiTurnSettings,
    PolicySettings,
    RftSettings,
    parse_settings,
)
from sweetrl.engines.chat import ChatFormat
from sweetrl.lm.data import MicroBatch, PreferenceData, Row, collate, collate_pairs, encode
from sweetrl.lm.passes import Layout
from sweetrl.sweet.data import critic_pairs, header_length, policy_pairs, successes
from sweetrl.sweet.pairs import trajectory_pairs
from sweetrl.types import Trajectory
from tests.lm.slowly import (
    PAIRS,
    TOLERANCE,
    adapted_model,
    fast,
    log_sigmoid,
    same,
    slow_both,
    slow_logprobs,
    slow_nll,
    slow_score,
)

BACKEND = Backend()


@pytest.fixture(scope="module", params=["float64", "float32"])
def adapted(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    """The tiny model with an adapter that differs from its start, in the precision of the test."""
    return adapted_model(tiny_model, request.param, head=False), TOLERANCE[request.param]


def test_log_probs(adapted: Any, rows: tuple[Row, ...]) -> None:
    import torch

    from sweetrl.lm.passes import reply_logprobs
    from sweetrl.lm.reference import reference_logprobs

    model, tolerance = adapted
    logprobs = reply_logprobs(model, collate(rows)).tolist()
    policy, reference = zip(*(slow_both(model, row) for row in rows), strict=True)
    flat = [token.item() for turns in policy for turn in turns for token in turn]
    assert logprobs == pytest.approx(flat, abs=tolerance)
    for row, turns, pieces in zip(
        rows, reference, reference_logprobs(model, rows, Layout(None, tokens=300)), strict=True
    ):
        assert pieces.shape == (row.reply_tokens,)
        expected = torch.stack([token for turn in turns for token in turn])
        assert (pieces - expected).abs().max().item() <= tolerance


def test_long_passes_of_the_reference_say_how_far_they_are_and_short_ones_nothing(
    adapted: Any, rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sweetrl.console import progress
    from sweetrl.lm.reference import reference_logprobs

    caplog.set_level("INFO", logger="sweetrl")
    reference_logprobs(adapted[0], rows, Layout(None, tokens=300))
    assert not caplog.messages
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    reference_logprobs(adapted[0], rows, Layout(None, tokens=300))
    assert len(caplog.messages) == len(rows) - 1
    assert caplog.messages[-1].startswith(f"reference log-probs: {len(rows) - 1} of {len(rows)} sequences")


@pytest.mark.parametrize("normalization", ["turn", "trajectory", "none"])
def test_critic(adapted: Any, rows: tuple[Row, ...], normalization: str) -> None:
    from sweetrl.sweet.trainer import CriticTrainer

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
    from sweetrl.sweet.trainer import PolicyTrainer

    model, tolerance = adapted
    settings = PolicySettings(
        beta=0.4,
        nll=0.1,
        normalization=normalization,
        loss=loss_name,
        label_smoothing=0.1,
        sft_replay=0.5,
        sft_replay_nll=0.7,
    )  # type: ignore[arg-type]
    # One reply a row: the last one of each dialogue.
    single = tuple(Row(row.token_ids[: row.spans[-1][1]], row.spans[-1:]) for row in rows)
    replay = (8, 0)
    loss, metrics = fast(
        PolicyTrainer, model, settings, PreferenceData(single, PAIRS, replay), MicroBatch(PAIRS, replay)
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
    expected = expected + 0.7 * sum(slow_nll(model, single[index]) for index in replay) / len(replay)
    same(model, loss, expected, tolerance)
    assert metrics["log_ratio/chosen"] == pytest.approx(sum(scores[a].item() for a, _ in PAIRS) / len(PAIRS), abs=1e-5)


@pytest.mark.parametrize("layout", [Layout("blocks"), Layout("blocks", tokens=90), Layout(None, 500)])
@pytest.mark.parametrize("normalization", ["turn", "none"])
def test_candidates_scored_on_a_shared_prefix(
    adapted: Any, trajectories: list[Trajectory], chat: ChatFormat, layout: Layout, normalization: str
) -> None:
    """Every candidate as a dialogue of its own, against trees (whole, and split under a budget) and padded rows."""
    from sweetrl.sweet.critic import LogRatioCritic
    from sweetrl.types import Reply

    model, tolerance = adapted
    model.eval()
    view = CriticSettings(normalization=normalization, privileged=False)  # type: ignore[arg-type]
    critic, chance = LogRatioCritic(model, BACKEND, chat, "Help.", view, layout), random.Random(0)
    for dialogue in trajectories[:4]:
        trunk = encode(dialogue, chat, "Help.")
        turns = [
            [Reply(tuple(chance.choices(range(10, 500), k=length)), "") for length in chance.sample(range(1, 20), 4)]
            for _ in trunk.spans
        ]
        (advantages,) = critic.rate([(dialogue, turns)])
        for (start, _), replies, values in zip(trunk.spans, turns, advantages, strict=True):
            for reply, value in zip(replies, values, strict=True):
                ids = reply.token_ids
                alone = Row(trunk.token_ids[:start] + ids, ((start, start + len(ids)),))
                expected = slow_score(model, alone, normalization).item()
                assert value == pytest.approx(expected, abs=tolerance * 20, rel=tolerance)


def test_rejection_fine_tuning(adapted: Any, trajectories: list[Trajectory], chat: ChatFormat) -> None:
    from sweetrl.sweet.trainer import ImitationTrainer

    model, tolerance = adapted
    data = successes(trajectories[:12], chat, "Help.")
    expected_rows = [encode(talk, chat, "Help.") for talk in trajectories[:12] if talk.success]
    assert list(data.rows) == expected_rows and len(expected_rows) == 4
    paid = [
        replace(talk, reward=(talk.reward or 0) - 0.1, parts={"task": talk.reward or 0, PRICE: -0.1})
        for talk in trajectories[:12]
    ]
    assert successes(paid, chat, "Help.") == data, "what questions cost does not count"
    wider = successes(trajectories[:12], chat, "Help.", 0.5)
    assert list(wider.rows) == [encode(talk, chat, "Help.") for talk in trajectories[:12] if (talk.reward or 0) >= 0.5]
    loss, metrics = fast(ImitationTrainer, model, RftSettings(), data, MicroBatch(data.pairs))
    expected = sum(slow_nll(model, row) for row in expected_rows) / len(expected_rows)
    same(model, loss, expected, tolerance)
    assert metrics["loss/nll"] == pytest.approx(loss.item())
    turns = [end - start for row in expected_rows for start, end in row.spans]
    assert metrics["reply_length/chosen"] == pytest.approx(sum(turns) / len(turns))


@pytest.mark.parametrize("credit", ["trajectory", "turn"])
def test_group_policy(
    adapted: Any, trajectories: list[Trajectory], chat: ChatFormat, tmp_path: Path, credit: str
) -> None:
    """GRPO: token by token, with pi_old another adapter than pi_theta, and one attempt twice in the step."""
    import torch

    from sweetrl.methods.credit import lay_out
    from sweetrl.methods.grpo_trainer import GroupTrainer

    model, tolerance = adapted
    settings = GrpoSettings(kl_coef=0.3, clip_ratio=0.02, credit=credit, discount=0.8)  # type: ignore[arg-type]
    given = trajectories[:6]
    attempts = lay_out(given, chat, "Help.", settings)
    rows = [encode(dialogue, chat, "Help.") for dialogue in given]
    moved = [parameter for name, parameter in model.named_parameters() if "lora_B" in name]
    before = [parameter.data for parameter in moved]
    for parameter in moved:
        parameter.data = 0.3 * parameter.data
    made = GroupTrainer.__new__(GroupTrainer)
    made.model, made.settings, made.seed, made.steps_each, made.layout = model, settings, 0, 1, Layout(None, tokens=500)
    made.sample = lambda iteration, model: attempts
    made.accelerator = type("Alone", (), {"unwrap_model": staticmethod(lambda model: model)})()
    made.begin(0)
    with torch.no_grad():
        old = [[[token.item() for token in turn] for turn in slow_logprobs(model, row)] for row in rows]
    for parameter, data in zip(moved, before, strict=True):
        parameter.data = data
    pairs = tuple((n, n) for n in (0, 1, 2, 3, 4, 5, 0))
    tensors = collate_pairs(made.data, MicroBatch(pairs), made.reference)
    loss, metrics = made.pair_loss(made.outputs(tensors["rows"]), tensors)

    each, clipped, tokens = [], 0, 0
    for number, row in enumerate(rows):
        policy, reference = slow_both(model, row)
        parts = []
        for turn, (own, base) in enumerate(zip(policy, reference, strict=True)):
            advantage = slow_advantage(given, number, turn, credit)
            for place, (token, base_token) in enumerate(zip(own, base, strict=True)):
                ratio = torch.exp(token - old[number][turn][place])
                bounded = min(max(ratio.item(), 0.98), 1.02)
                outside = (ratio.item() > 1.02 and advantage > 0) or (ratio.item() < 0.98 and advantage < 0)
                clipped += outside
                tokens += 1
                gain = bounded * advantage + 0.0 * token if outside else ratio * advantage
                parts.append(-gain + 0.3 * (torch.exp(base_token - token) - 1 - (base_token - token)))
        each.append(sum(parts) / len(parts))
    expected = (sum(each) + each[0]) / 7
    same(model, loss, expected, tolerance)
    assert metrics["clip_share"] == pytest.approx(clipped / tokens)
    assert 0 < clipped < tokens


def slow_advantage(given: list[Trajectory], number: int, turn: int, credit: str) -> float:
    """The advantage of one turn, from the attempts at its task."""
    attempt = given[number]
    group = [other for other in given if other.task.id == attempt.task.id]

    def turns(other: Trajectory) -> int:
        return sum(message.role == "assistant" for message in other.messages)

    def value(other: Trajectory) -> float:
        return (other.reward or 0.0) * (0.8 ** (turns(other) - 1 - turn) if credit == "turn" else 1.0)

    values = [value(other) for other in group if credit == "trajectory" or turns(other) > turn]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((other - mean) ** 2 for other in values) / len(values))
    return (value(attempt) - mean) / deviation if deviation > 1e-6 else 0.0


@pytest.mark.parametrize("loss_tokens", ["replies", "all"])
@pytest.mark.parametrize("normalization", ["none", "token"])
def test_multi_turn_dpo(
    adapted: Any, trajectories: list[Trajectory], chat: ChatFormat, normalization: str, loss_tokens: str
) -> None:
    from sweetrl.sweet.trainer import PolicyTrainer

    model, tolerance = adapted
    settings = MultiTurnSettings(
        beta=0.2, nll=0.3, normalization=normalization, sft_replay=0.5, sft_replay_nll=0.4, loss_tokens=loss_tokens
    )  # type: ignore[arg-type]
    pairs = trajectory_pairs(trajectories[:6], "all", 0.1)[0]
    data = policy_pairs(pairs, trajectories[:6], chat, "Help.", settings)
    loss, _ = fast(PolicyTrainer, model, settings, data, MicroBatch(data.pairs, data.replay))
    by_attempt = {(talk.task.id, talk.attempt): encode(talk, chat, "Help.") for talk in trajectories[:6]}
    learnt = {
        key: Row(row.token_ids, ((1, row.spans[-1][1]),)) if loss_tokens == "all" else row
        for key, row in by_attempt.items()
    }
    name = "none" if normalization == "none" else "trajectory"
    scores = {key: slow_score(model, row, name) for key, row in learnt.items()}
    compared = [((p.task_id, p.chosen_attempt), (p.task_id, p.rejected_attempt)) for p in pairs]
    assert len(compared) == 6
    expected = -sum(log_sigmoid(0.2 * (scores[good] - scores[bad])) for good, bad in compared) / len(compared)
    expected = expected + 0.3 * sum(slow_nll(model, learnt[good]) for good, _ in compared) / len(compared)
    finals = [Row(row.token_ids, row.spans[-1:]) for (_, attempt), row in by_attempt.items() if attempt == 0]
    expected = expected + 0.4 * sum(slow_nll(model, row) for row in finals) / len(finals)
    same(model, loss, expected, tolerance)


def test_the_official_critic(adapted: Any, trajectories: list[Trajectory], chat: ChatFormat, tokenizer: Any) -> None:
    """c before the begin-of-text token, the end of the header in every span, all tokens of a trajectory as one mean."""
    from sweetrl.sweet.trainer import CriticTrainer

    model, tolerance = adapted
    settings = parse_settings({"preset": "official", "critic": {"beta": 0.3, "nll": 0.0}}).critic
    some = [dialogue for dialogue in trajectories[:3] if dialogue.turns]
    pairs = trajectory_pairs(some)[0]
    data = critic_pairs(pairs, some, BACKEND, chat, "Help.", settings)
    expected_rows = []
    for dialogue in some:
        seen, prefix = encode(dialogue, chat, "Help."), chat.reply(BACKEND.privileged_prompt(dialogue.task))[:-1]
        spans = tuple((len(prefix) + start - 1, len(prefix) + end) for start, end in seen.spans)
        expected_rows.append(Row((*prefix, *seen.token_ids), spans))
        assert tokenizer.decode(prefix).strip() == BACKEND.privileged_prompt(dialogue.task).strip()
    assert list(data.rows) == expected_rows
    loss, _ = fast(CriticTrainer, model, settings, data, MicroBatch(data.pairs))
    scores = [slow_score(model, row, "trajectory") for row in expected_rows]
    expected = -sum(log_sigmoid(0.3 * (scores[a] - scores[b])) for a, b in data.pairs) / len(data.pairs)
    same(model, loss, expected, tolerance)


def test_the_official_ranking(adapted: Any, trajectories: list[Trajectory], chat: ChatFormat) -> None:
    """Header and reply without its end against the reference's reply with it, which does not know c."""
    from sweetrl.sweet.critic import LogRatioCritic
    from sweetrl.types import Reply

    model, tolerance = adapted
    model.eval()
    official = parse_settings({"preset": "official"})
    assert official.rank.reference == "unconditioned"
    dialogue = trajectories[0]
    texts = ("What is the rate?", "Yes.")
    seen = encode(dialogue, chat, "Help.")
    turns = [[Reply(chat.reply(text), text) for text in texts] for _ in seen.spans]
    critic = LogRatioCritic(
        model, BACKEND, chat, "Help.", official.critic, Layout(None, 400), conditioned_reference=False
    )
    (advantages,) = critic.rate([(dialogue, turns)])
    prefix = chat.reply(BACKEND.privileged_prompt(dialogue.task))[:-1]
    header = header_length(chat)
    assert header >= 2 and chat.follow(True, "Seven.")[-header:] == chat.open("Help.", "Hm.")[-header:]
    for (start, _), replies, values in zip(seen.spans, turns, advantages, strict=True):
        for reply, value in zip(replies, values, strict=True):
            ids = reply.token_ids
            place = len(prefix) + start
            above = Row((*prefix, *seen.token_ids[:start], *ids), ((place - header, place + len(ids) - 1),))
            below = Row((*seen.token_ids[:start], *ids), ((start, start + len(ids)),))
            (policy,), _ = slow_both(model, above)
            _, (base,) = slow_both(model, below)
            assert len(policy) == header + len(ids) - 1 and len(base) == len(ids)
            expected = sum(token.item() for token in policy) / len(policy)
            expected -= sum(token.item() for token in base) / len(base)
            assert value == pytest.approx(expected, abs=20 * tolerance)


def test_equal_weights_of_another_configuration_are_another_model(tiny_model: Path, tmp_path: Path) -> None:
    import hashlib
    import shutil

    from sweetrl.config.settings import LoraSettings
    from sweetrl.lm.adapters import attach_adapter
    from sweetrl.lm.reference import digest_weights
    from sweetrl.models.load import load_weights

    def key(model: Any, adapter: bool = False) -> str:
        digest = hashlib.sha256()
        digest_weights(digest, model, adapter)
        return digest.hexdigest()

    other, moved = tmp_path / "other", tmp_path / "moved"
    for folder in (other, moved):
        shutil.copytree(tiny_model, folder)
    text = (other / "config.json").read_text()
    assert '"rms_norm_eps": 1e-06' in text
    (other / "config.json").write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert key(load_weights(tiny_model, "float32")) == key(load_weights(moved, "float32"))
    assert key(load_weights(tiny_model, "float32")) != key(load_weights(other, "float32"))
    # An adapter's alpha is no weight, and changes what the model says.
    plain, louder = (
        attach_adapter(load_weights(tiny_model, "float32"), LoraSettings(rank=2, alpha=alpha), 0)
        for alpha in (2.0, 8.0)
    )
    assert key(plain) == key(louder) and key(plain, adapter=True) != key(louder, adapter=True)


def test_log_probs_of_another_kind_of_device_are_others() -> None:
    """A CPU and a GPU round differently, and the layout of padded rows does not name the device."""
    from types import SimpleNamespace

    from sweetrl.lm.reference import _key

    def on(kind: str) -> Any:
        place = SimpleNamespace(device=SimpleNamespace(type=kind))
        return SimpleNamespace(parameters=lambda: iter([place]), named_parameters=lambda **_: (), state_dict=dict)

    rows = [Row((1, 2, 3), ((1, 3),))]
    assert len({_key(on(kind), rows, Layout(None), False) for kind in ("cpu", "cuda", "cpu")}) == 2
