"""The losses of SWEET-RL and its ablations, each a short pure function of scores or log-probs with its equation.

    stage 1    -log sigmoid( sum_t beta A(o_t+, a_t+, c) - sum_t beta A(o_t-, a_t-, c) )            (Eq. 2)
    stage 2    -log sigmoid( beta' [log pi/pi_ref (a+ | o) - log pi/pi_ref (a- | o)] )              (Eq. 4)

Batches are averaged. P pairs; every score is a sum or mean of log(pi_theta / pi_ref) over reply tokens
(sweetrl.sweet.advantage). Trainers put them together (sweetrl.sweet.trainer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.sweet.advantage import segment_mean, segment_sum

if TYPE_CHECKING:
    from torch import Tensor


def critic_loss(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """-log sigmoid( sum_t beta A(o_t+, a_t+, c) - sum_t beta A(o_t-, a_t-, c) )          (Eq. 2), mean of P pairs.

    `chosen`, `rejected` [P] are the trajectories' summed advantages.
    """
    from torch.nn.functional import logsigmoid

    return -logsigmoid(beta * (chosen - rejected)).mean()


def policy_loss(chosen: Tensor, rejected: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """-log sigmoid( beta' [log pi/pi_ref (a+ | o) - log pi/pi_ref (a- | o)] )          (Eq. 4), mean of P pairs.

    `label_smoothing` e gives -(1-e) log sigmoid(beta' m) - e log sigmoid(-beta' m): conservative DPO.
    """
    from torch.nn.functional import logsigmoid

    logits = beta * (chosen - rejected)
    return -((1.0 - label_smoothing) * logsigmoid(logits) + label_smoothing * logsigmoid(-logits)).mean()


def ipo_loss(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """( m - 1 / (2 beta) )^2 with m the margin of the log-ratios (IPO, Azar et al. 2023, Eq. 17), mean of P pairs.

    The gradient vanishes at the margin 1 / (2 beta), where DPO's never does.
    """
    return ((chosen - rejected) - 1.0 / (2.0 * beta)).square().mean()


def token_nll(logprobs: Tensor, row_weight: Tensor, token_row: Tensor) -> Tensor:
    """-(1/W) sum_r w_r (1/L_r) sum_l log pi_theta(a^l): mean over each row's reply tokens, then over rows by weight.

    `logprobs` [N], `token_row` [N], `row_weight` [R] >= 0 with W = sum_r w_r; 0 where W is 0.
    """
    means = segment_mean(logprobs, token_row, row_weight.shape[0])
    return -(means * row_weight).sum() / row_weight.sum().clamp(min=1e-30)


def listwise_loss(logprobs: Tensor, row_weight: Tensor, token_row: Tensor, candidates: int) -> Tensor:
    """-(1/C) sum_r w_r sum_l log pi_theta(a_r^l): C candidates by their weights (sweetrl.sweet.preferences).

    `logprobs`, `token_row` [N], `row_weight` [R] (0 for rows that are no candidates); sums over tokens, so that the
    likelihood of a whole reply counts.
    """
    return -(segment_sum(logprobs, token_row, row_weight.shape[0]) * row_weight).sum() / candidates


def value_loss(values: Tensor, labels: Tensor, turn_row: Tensor, rows: int) -> Tensor:
    """-(1/T_r) sum_t [ y log sigmoid(V_t) + (1 - y) log sigmoid(-V_t) ] of each row r, [R]: is success to come?

    `values`, `labels`, `turn_row` [T]; y is 1 for every turn of an attempt that succeeded in the end.
    """
    from torch.nn.functional import logsigmoid

    each = labels * logsigmoid(values) + (1.0 - labels) * logsigmoid(-values)
    return -segment_mean(each, turn_row, rows)


def reference_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(pi_ref || pi_theta) per token, estimated on tokens drawn from pi_ref: mean of r - 1 - log r, r = pi/pi_ref.

    A diagnostic, not a loss: replies that were selected by advantage bias it a little.
    """
    log_ratio = logprobs - reference
    return (log_ratio.exp() - 1.0 - log_ratio).mean()
