from __future__ import annotations

import math

import pytest


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_equation_2_and_4_are_the_mean_negative_log_sigmoid_of_the_scaled_margin() -> None:
    import torch

    from sweetrl.sweet.losses import critic_loss, policy_loss

    chosen, rejected = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.5, 3.0], dtype=torch.float64)
    expected = -(math.log(sigmoid(0.1 * 0.5)) + math.log(sigmoid(0.1 * -5.0))) / 2
    assert critic_loss(chosen, rejected, 0.1).item() == pytest.approx(expected, abs=1e-12)
    assert policy_loss(chosen, rejected, 0.1).item() == pytest.approx(expected, abs=1e-12)


def test_label_smoothing_mixes_in_the_flipped_pair() -> None:
    import torch

    from sweetrl.sweet.losses import policy_loss

    one, other = torch.tensor([2.0], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64)
    expected = -0.8 * math.log(sigmoid(1.0)) - 0.2 * math.log(sigmoid(-1.0))
    assert policy_loss(one, other, 0.5, label_smoothing=0.2).item() == pytest.approx(expected, abs=1e-12)


def test_ipo_is_flat_where_the_margin_is_reached() -> None:
    import torch

    from sweetrl.sweet.losses import ipo_loss

    chosen = torch.tensor([0.5], requires_grad=True)
    loss = ipo_loss(chosen, torch.tensor([0.0]), beta=1.0)
    loss.backward()
    assert loss.item() == 0.0
    assert chosen.grad is not None and chosen.grad.item() == 0.0
    assert ipo_loss(torch.tensor([2.0]), torch.tensor([0.0]), beta=1.0).item() == pytest.approx(1.5**2)


def test_nll_averages_tokens_of_a_row_then_rows_by_weight() -> None:
    import torch

    from sweetrl.sweet.losses import token_nll

    logprobs, row = torch.tensor([-1.0, -3.0, -10.0, -5.0]), torch.tensor([0, 0, 1, 2])
    assert token_nll(logprobs, torch.tensor([1.0, 0.0, 3.0]), row).item() == pytest.approx((2 + 3 * 5) / 4)
    assert token_nll(logprobs, torch.zeros(3), row).item() == 0.0


def test_the_divergence_estimate_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    import torch

    from sweetrl.sweet.losses import reference_kl

    ours, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert reference_kl(ours, ours).item() == 0.0
    assert reference_kl(ours, reference).item() > 0.0


def test_attempts_are_told_apart_within_their_group() -> None:
    import torch

    from sweetrl.methods.credit import group_advantages

    returns = torch.tensor([1.0, 0.0, 0.3, 0.3, 0.6], dtype=torch.float64)
    found = group_advantages(returns, torch.tensor([0, 0, 1, 1, 2]))
    assert found.tolist() == [1.0, -1.0, 0.0, 0.0, 0.0]


def test_the_clip_takes_the_gradient_where_a_step_has_gone_far_enough_and_nowhere_else() -> None:
    import torch

    from sweetrl.methods.grpo_trainer import clipped_loss

    old = torch.zeros(4, dtype=torch.float64)
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5], dtype=torch.float64)
    logprobs = ratio.log().requires_grad_()
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0], dtype=torch.float64)
    each = clipped_loss(logprobs, old, advantage, 0.2)
    assert each.tolist() == pytest.approx([-1.2 * 2, 1.5 * 2, -0.5 * 2, 0.8 * 2])
    each.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 3.0, -1.0, 0.0])


def test_the_penalty_is_zero_and_flat_at_the_reference() -> None:
    import torch

    from sweetrl.methods.grpo_trainer import policy_kl

    reference = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    logprobs = torch.tensor([-1.0, -1.5], dtype=torch.float64, requires_grad=True)
    found = policy_kl(logprobs, reference)
    found.sum().backward()
    assert found.tolist() == pytest.approx([0.0, math.exp(-0.5) - 1 + 0.5])
    assert logprobs.grad is not None and logprobs.grad[0].item() == 0.0
