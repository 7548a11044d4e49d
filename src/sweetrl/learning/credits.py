"""Which turn (or token) of an attempt gets what, from its return and what its turns found out: functions of tensors.

n attempts with T turns in all, row after row. `turn_row` [T] says which attempt a turn belongs to, `group` [n] which
group (of attempts at one task, numbered from 0) an attempt belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


def infopo_advantages(
    rewards: Tensor,
    gains: Tensor,
    informed: Tensor,
    turn_row: Tensor,
    group: Tensor,
    weight: float = 0.5,
    temperature: float = 0.05,
) -> Tensor:
    """A_t = A_out + w sigmoid(-d_g / T) A_info(t), [T]: the gate opens where the rewards tell the attempts not apart.

    InfoPO (arXiv 2603.00656). A_out is the attempt's reward normalised in its group g, d_g the deviation of the rewards
    there, A_info(t) the turn's gain normalised among all gains of the group; 0 for a turn that is not `informed` [T]
    (the last one, which nobody answered). `rewards` [n], `gains` [T], w `weight`, T `temperature`.

    Departs from the authors' code: they spread a gain over the turn's own tokens and normalise tokens, so that longer
    replies count less and more often; here every turn counts once, and all its tokens get A_t. Deviations are the
    population's. Their bound on the scale of A_info (to that of A_out, at least 1) never binds for normalised gains.
    """
    import torch

    from sweetrl.learning.advantage import segment_mean
    from sweetrl.learning.objectives import group_advantages

    outcome = group_advantages(rewards, group)
    turn_group = group[turn_row]
    info = torch.zeros_like(gains)
    if bool(informed.any()):
        info[informed] = group_advantages(gains[informed], turn_group[informed])
    groups = int(group.max()) + 1
    centred = rewards - segment_mean(rewards, group, groups)[group]
    deviation = segment_mean(centred.square(), group, groups).sqrt()
    gate = torch.sigmoid(-deviation / temperature)
    return outcome[turn_row] + weight * gate[turn_group] * info


def igpo_advantages(
    rewards: Tensor,
    gains: Tensor,
    informed: Tensor,
    turn_row: Tensor,
    group: Tensor,
    discount: float = 1.0,
    norm_mode: Literal["joint", "separate"] = "joint",
) -> Tensor:
    """A_t = sum_{k >= t} discount^(k-t) (r_k - mean_g r) / std_g r of every turn, [T].

    IGPO (arXiv 2510.14967, Eqs. 5-7): a turn's reward r_t is its gain, the last turn's (the one that is not `informed`
    [T]) the attempt's reward; all of a group are normalised together, then summed from the turn on. `separate`
    normalises gains and outcomes each among themselves (an option of the authors' code). `rewards` [n], `gains` [T].

    Departs in the outcome, which is the domain's reward in place of an F1 score with a penalty for bad format, and
    where all of a group are equal: those normalise to 0 here.
    """
    from sweetrl.learning.objectives import group_advantages

    each = gains.where(informed, rewards[turn_row])
    segment = group[turn_row]
    if norm_mode == "separate":
        segment = 2 * segment + informed.to(segment.dtype)
    values = group_advantages(each, segment)
    later, row = values.new_zeros(()), -1
    found = values.clone()
    for turn in range(len(values) - 1, -1, -1):
        if int(turn_row[turn]) != row:
            later, row = values.new_zeros(()), int(turn_row[turn])
        later = values[turn] + discount * later
        found[turn] = later
    return found


def privileged_advantages(teacher: Tensor, old: Tensor) -> Tensor:
    """A_l = log pi_ref(a^l | o, c, a^{<l}) - log pi_old(a^l | o, a^{<l}) of every token, [N]; no reward.

    On-policy self-distillation: the teacher is the base that sees c (OPSD, Zhao et al. 2026), and the policy gradient
    with this A descends KL( pi_theta(. | o) || pi_ref(. | o, c) ) on the policy's own dialogues, estimated on the token
    that was sampled. `teacher`, `old` [N] are log-probs of the same tokens.

    Departs from the authors' code, which takes the divergence over the whole vocabulary and bounds it for each token;
    here the clipped ratio bounds the step.
    """
    return teacher - old
