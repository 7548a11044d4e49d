"""Critics with a head against the slow path: values from hidden states, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.config.settings import CriticSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import MicroBatch, PreferenceData, Row, encode
from sweetrl.lm.passes import Layout
from sweetrl.types import Trajectory
from tests.lm.slowly import (
    PAIRS,
    TOLERANCE,
    adapted_model,
    fast,
    log_sigmoid,
    same,
)


@pytest.fixture(scope="module", params=["float64", "float32"])
def headed(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    """The same with a critic's head that is not zero."""
    return adapted_model(tiny_model, request.param, head=True), TOLERANCE[request.param]


def slow_states(model: Any, row: Row) -> list[Any]:
    """The last layer's states at the tokens of every reply, by turn."""
    import torch

    states = model.get_base_model().model(input_ids=torch.tensor([row.token_ids])).last_hidden_state[0]
    return [states[start:end] for start, end in row.spans]


def slow_head(model: Any, state: Any) -> Any:
    head = model.get_base_model().score.modules_to_save["default"]
    return sum(weight * number for weight, number in zip(head.weight[0], state, strict=True)) + head.bias[0]


def test_regression_head(headed: Any, rows: tuple[Row, ...]) -> None:
    from sweetrl.sweet.head_critics import RegressionTrainer

    model, tolerance = headed
    settings = CriticSettings(beta=0.3, nll=0.2, parameterization="regression-head")
    loss, metrics = fast(RegressionTrainer, model, settings, PreferenceData(rows, PAIRS), MicroBatch(PAIRS))
    scores = {
        index: sum(slow_head(model, sum(states) / len(states)) for states in slow_states(model, rows[index]))
        for pair in PAIRS
        for index in pair
    }
    expected = -sum(log_sigmoid(0.3 * (scores[a] - scores[b])) for a, b in PAIRS) / len(PAIRS)
    head_gradients(model, loss, expected, tolerance)
    assert metrics["accuracy"] == sum(scores[a] > scores[b] for a, b in PAIRS) / len(PAIRS)


def test_value_head(headed: Any, rows: tuple[Row, ...]) -> None:
    from sweetrl.sweet.head_critics import ValueTrainer

    model, tolerance = headed
    settings = CriticSettings(parameterization="value-head")
    labels = (1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    data = PreferenceData(rows, tuple((index, index) for index in range(len(rows))), labels=labels)
    loss, metrics = fast(ValueTrainer, model, settings, data, MicroBatch(data.pairs[2:7]))
    each, right = [], []
    for row, label in zip(rows[2:7], labels[2:7], strict=True):
        values = [slow_head(model, states[-1]) for states in slow_states(model, row)]
        chances = [log_sigmoid(value if label else -value) for value in values]
        each.append(-sum(chances) / len(chances))
        right += [(value.item() > 0) == bool(label) for value in values]
    head_gradients(model, loss, sum(each) / len(each), tolerance)
    assert metrics["accuracy"] == pytest.approx(sum(right) / len(right))


def head_gradients(model: Any, loss: Any, expected: Any, tolerance: float) -> None:
    """`same`, and the head takes part in it."""
    import torch

    head = [parameter for name, parameter in model.named_parameters() if "score.modules_to_save" in name]
    assert all(gradient.abs().max() > 0 for gradient in torch.autograd.grad(loss, head[:1], retain_graph=True))
    same(model, loss, expected, tolerance)


@pytest.mark.parametrize("kind", ["regression-head", "value-head"])
def test_candidates_scored_by_a_head(headed: Any, trajectories: list[Trajectory], chat: ChatFormat, kind: str) -> None:
    from sweetrl.sweet.head_critics import HeadCritic
    from sweetrl.types import Reply

    model, tolerance = headed
    model.eval()
    view = CriticSettings(parameterization=kind, privileged=False)  # type: ignore[arg-type]
    trunk = encode(trajectories[0], chat, "Help.")
    turns = [[Reply(chat.reply(text), text) for text in ("What is the rate?", "Yes.")] for _ in trunk.spans]
    critic = HeadCritic(model, Backend(), chat, "Help.", view, Layout(None, 100))
    (advantages,) = critic.rate([(trajectories[0], turns)])
    for (start, _), replies, values in zip(trunk.spans, turns, advantages, strict=True):
        for reply, value in zip(replies, values, strict=True):
            row = Row(trunk.token_ids[:start] + reply.token_ids, ((start, start + len(reply.token_ids)),))
            (states,) = slow_states(model, row)
            pooled = states[-1] if kind == "value-head" else sum(states) / len(states)
            assert value == pytest.approx(slow_head(model, pooled).item(), abs=20 * tolerance)


def test_a_head_cuts_its_passes_where_memory_is_short(
    headed: Any, trajectories: list[Trajectory], chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from sweetrl.sweet import head_critics
    from sweetrl.types import Reply

    view = CriticSettings(parameterization="value-head", privileged=False)
    turns = [[Reply(chat.reply(text), text) for text in ("What is the rate?", "Yes.", "No.")]]
    critic = head_critics.HeadCritic(headed[0].eval(), Backend(), chat, "Help.", view, Layout(None))
    expected, compute, room = critic.rate([(trajectories[0], turns)]), head_critics.turn_values, 1

    def short(model: Any, rows: dict[str, Any], pooling: str) -> Any:
        if len(rows["tokens"]) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(model, rows, pooling)

    monkeypatch.setattr(head_critics, "turn_values", short)
    assert critic.rate([(trajectories[0], turns)])[0][0] == pytest.approx(expected[0][0], abs=1e-5)
    room = 0
    with pytest.raises(UserError, match="cannot be cut"):
        critic.rate([(trajectories[0], turns)])
