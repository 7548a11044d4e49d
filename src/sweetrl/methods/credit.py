"""Attempts laid out for GRPO, and the advantage of each of their turns (or tokens), by `grpo.credit`.

trajectory   the return, normalised in its group (GRPO, Shao et al. 2024)
turn         the discounted return of a turn, normalised among the attempts of the group that have such a turn
infopo       as trajectory, and what the user's answer to a turn changes in the policy's next reply
igpo         what a turn adds to the policy's probability of the reference, and the reward for the last turn
privileged   how much likelier a token is for the base that sees c; no reward
distillation the divergence from the base that sees c over the whole vocabulary; no reward (grpo_trainer)

Shapes: n attempts with T turns in all, row after row. `turn_row` [T] says which attempt a turn belongs to, `group` [n]
which group (of attempts at one task, numbered from 0) an attempt belongs to. Information gains are computed once an
iteration, with the policy that has just sampled, and hold no gradient. The rows that are compared begin like the
dialogue, so in trees they cost little more than what is new in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import GrpoSettings
from sweetrl.engines.cache import common_prefix
from sweetrl.errors import UserError
from sweetrl.lm.data import Row, encode
from sweetrl.lm.passes import Layout, model_layout
from sweetrl.lm.reference import row_logprobs
from sweetrl.models.load import context_limit
from sweetrl.protocols import Chat
from sweetrl.sweet.advantage import segment_mean
from sweetrl.sweet.pairs import usable
from sweetrl.types import Task, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from sweetrl.colbench.domain import Domain

Gains = list[list[float]]  # of each dialogue, for each of its turns but the last
PRIVILEGED = ("privileged", "distillation")  # the kinds of credit whose teacher is the base that sees c
PLACEHOLDER = "No information found."  # infopo: what the user says in place of an answer, for comparison
INFORMED = ("infopo", "igpo")  # the kinds of credit that use information gains
# The information gains of the turns of dialogues, given with their rows (`turn_gains`).
InformationGains = Callable[[Sequence[Trajectory], Sequence[Row]], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Attempts:
    """The attempts of one iteration: `advantages` [turns] for each row, `groups` the number of each row's task.

    `metrics` are means over the iteration's dialogues, for the curves. `informed` are the rows with c that the teacher
    reads, for the kinds of credit in PRIVILEGED; then what tokens are worth comes from them, and `advantages` are 0.
    `recorded` are the log-probs of the rows' reply tokens by the policy that sampled them, where that is not the one
    that learns from them (`grpo.staleness`).
    """

    rows: tuple[Row, ...]
    advantages: tuple[tuple[float, ...], ...]
    groups: tuple[int, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    informed: tuple[Row, ...] = ()
    recorded: tuple[tuple[float, ...], ...] = ()


def lay_out(
    trajectories: Sequence[Trajectory],
    chat: Chat,
    system: str,
    settings: GrpoSettings,
    information_gains: InformationGains | None = None,
    privileged: Callable[[Trajectory], Row] | None = None,
) -> Attempts:
    """Lay out the scored attempts (lost ones are left out) and compare them within their groups.

    The return of an attempt is its reward. With `credit: turn` that of turn t of T is discount^(T-1-t) times the
    reward, and is compared with the attempts of the group that have a turn t. `credit: infopo` and `igpo` also use
    the turns' information gains, which `information_gains` computes. The kinds in PRIVILEGED look at no reward:
    `privileged` lays dialogues out with c.
    """
    dialogues = list(filter(usable, trajectories))
    if not dialogues:
        raise UserError("no dialogue of this iteration could be scored, so there is nothing to learn from.")
    rows = tuple(encode(dialogue, chat, system) for dialogue in dialogues)
    tasks = list(dict.fromkeys(dialogue.task.id for dialogue in dialogues))
    groups = tuple(tasks.index(dialogue.task.id) for dialogue in dialogues)
    rewards = [dialogue.reward or 0.0 for dialogue in dialogues]
    lengths = [len(row.spans) for row in rows]
    gains = information_gains(dialogues, rows) if information_gains else []
    informed = tuple(map(privileged, dialogues)) if privileged else ()
    advantages = turn_credits(rewards, lengths, groups, settings, gains)
    turns = sum(lengths)
    metrics = {
        "return": sum(rewards) / len(dialogues),
        "success": sum(dialogue.success for dialogue in dialogues) / len(dialogues),
        "turns": turns / len(dialogues),
        "reply_length": sum(row.reply_tokens for row in rows) / turns,
        "generated_tokens": sum(row.reply_tokens for row in rows),
    }
    if settings.credit not in PRIVILEGED:  # its tokens' worth is not known yet
        with_signal = {group for group, values in zip(groups, advantages, strict=True) if any(values)}
        metrics["groups_with_signal"] = len(with_signal) / len(set(groups))
    if gains:
        metrics["info_gain"] = sum(map(sum, gains)) / max(1, sum(map(len, gains)))
    return Attempts(rows, advantages, groups, metrics, informed)


def turn_credits(
    rewards: Sequence[float],
    lengths: Sequence[int],
    groups: Sequence[int],
    settings: GrpoSettings,
    gains: Sequence[Sequence[float]] = (),
) -> tuple[tuple[float, ...], ...]:
    """The advantage of every turn of every attempt, by `settings.credit`; `lengths` are the attempts' turns.

    `gains` are the information gains of all turns of an attempt but the last, for the kinds of credit that use them.
    """
    import torch

    outcome, group = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)
    turn_row = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    later = [left for length in lengths for left in range(length - 1, -1, -1)]  # turns after this one
    if settings.credit in PRIVILEGED:
        each = torch.zeros(len(turn_row))
    elif settings.credit == "trajectory":
        each = group_advantages(outcome, group)[turn_row]
    elif settings.credit == "turn":
        discounts = torch.tensor([settings.discount**left for left in later], dtype=torch.float64)
        number = torch.cat([torch.arange(length) for length in lengths])
        each = group_advantages(discounts * outcome[turn_row], group[turn_row] * max(lengths) + number)
    else:
        flat_gains = torch.tensor([gain for own in gains for gain in (*own, 0.0)], dtype=torch.float64)
        turns = outcome, flat_gains, torch.tensor(later) > 0, turn_row, group
        if settings.credit == "infopo":
            each = infopo_advantages(*turns, settings.intrinsic_weight, settings.intrinsic_gate_temperature)
        else:
            each = igpo_advantages(*turns, settings.discount)
    return tuple(tuple(values.tolist()) for values in each.split(list(lengths)))


def group_advantages(returns: Tensor, group: Tensor) -> Tensor:
    """A_i = ( R_i - mean_g R ) / std_g R of each attempt within its group g (GRPO, Shao et al. 2024), [n].

    `returns`, `group` [n]; groups are numbered from 0, std is the population's. Where all of a group have one return,
    nothing tells them apart: their A is 0.
    """
    centred, deviations = _spread(returns, group)
    deviation = deviations[group]
    differ = deviation > 1e-6
    return (centred / deviation.where(differ, deviation.new_ones(()))).where(differ, centred.new_zeros(()))


def _spread(values: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Values less the mean of their group [n], and the population's deviation in each group [groups]."""
    groups = int(group.max()) + 1
    centred = values - segment_mean(values, group, groups)[group]
    return centred, segment_mean(centred.square(), group, groups).sqrt()


def infopo_advantages(
    rewards: Tensor,
    gains: Tensor,
    informed: Tensor,
    turn_row: Tensor,
    group: Tensor,
    weight: float = 0.5,
    temperature: float = 0.05,
) -> Tensor:
    """A_t = A_out + w sigmoid(-d_g / T) A_info(t), [T]: gains count most where a group's rewards differ least.

    InfoPO (arXiv 2603.00656). A_out is the attempt's reward normalised in its group g, d_g the deviation of the rewards
    there, A_info(t) the turn's gain normalised among all gains of the group; 0 for a turn that is not `informed` [T]
    (the last one, which nobody answered). `rewards` [n], `gains` [T], w `weight`, T `temperature`.

    Departs from the authors' code: they spread a gain over the turn's own tokens and normalise tokens, so that longer
    replies count less and more often; here every turn counts once, and all its tokens get A_t. Deviations are the
    population's. Their bound on the scale of A_info (to that of A_out, at least 1) never binds for normalised gains.
    """
    import torch

    outcome = group_advantages(rewards, group)
    turn_group = group[turn_row]
    info = torch.zeros_like(gains)
    if bool(informed.any()):
        info[informed] = group_advantages(gains[informed], turn_group[informed])
    _, deviation = _spread(rewards, group)
    gate = torch.sigmoid(-deviation / temperature)
    return outcome[turn_row] + weight * gate[turn_group] * info


def igpo_advantages(
    rewards: Tensor,
    gains: Tensor,
    informed: Tensor,
    turn_row: Tensor,
    group: Tensor,
    discount: float = 1.0,
) -> Tensor:
    """A_t = sum_{k >= t} discount^(k-t) (r_k - mean_g r) / std_g r of every turn, [T].

    IGPO (arXiv 2510.14967, Eqs. 5-7): a turn's reward r_t is its gain, the last turn's (the one that is not `informed`
    [T]) the attempt's reward; all of a group are normalised together, then summed from the turn on. `rewards` [n],
    `gains` [T].

    Departs in the outcome, which is the domain's reward in place of an F1 score with a penalty for bad format, and
    where all of a group are equal: those normalise to 0 here.
    """
    values = group_advantages(gains.where(informed, rewards[turn_row]), group[turn_row])
    later, row = values.new_zeros(()), -1
    advantages = values.clone()
    for turn in range(len(values) - 1, -1, -1):
        if int(turn_row[turn]) != row:
            later, row = values.new_zeros(()), int(turn_row[turn])
        later = values[turn] + discount * later
        advantages[turn] = later
    return advantages


def privileged_advantages(teacher: Tensor, old: Tensor) -> Tensor:
    """A_l = log pi_ref(a^l | o, c, a^{<l}) - log pi_old(a^l | o, a^{<l}) of every token, [N]; no reward.

    On-policy self-distillation: the teacher is the base that sees c (OPSD, Zhao et al. 2026), and the policy gradient
    with this A descends KL( pi_theta(. | o) || pi_ref(. | o, c) ) on the policy's own dialogues, estimated on the token
    that was sampled. `teacher`, `old` [N] are log-probs of the same tokens.

    Departs from the authors' code, which takes the divergence over the whole vocabulary and bounds it for each token;
    here the clipped ratio bounds the step.
    """
    return teacher - old


def turn_gains(
    model: Any, dialogues: Sequence[Trajectory], rows: Sequence[Row], domain: Domain, chat: Chat, settings: GrpoSettings
) -> Gains:
    """The information gains that `settings.credit` asks for; `rows` are the dialogues as the policy saw them."""
    layout = model_layout(model, settings.layout, settings.tokens)
    if settings.credit == "infopo":
        return feedback_gains(model, dialogues, rows, chat, layout)
    return reference_gains(model, dialogues, rows, domain, chat, layout)


def feedback_gains(
    model: Any,
    dialogues: Sequence[Trajectory],
    rows: Sequence[Row],
    chat: Chat,
    layout: Layout,
) -> Gains:
    """I_t = (1/L) sum_l [ log pi(a_{t+1}^l | o_t, a_t, u_t, a_{t+1}^{<l}) - log pi(a_{t+1}^l | o_t, a_t, nil, ...) ].

    InfoPO (Kong et al., arXiv 2603.00656): how much the user's answer u_t to turn t changes the policy's next reply,
    KL( pi(. | u_t) || pi(. | nil) ) per token, estimated on the reply that was sampled given u_t. All else, earlier
    answers too, stays as it was. The gain belongs to the turn that brought the answer about; the last turn has none.

    Departs from the authors' code in nil, PLACEHOLDER: it is a whole message of the user in the chat's own format,
    where they write it over the answer's tokens, cut or drawn out to as many. 0 where it makes the row too long.
    """
    limit, masked = context_limit(model), list[Row | None]()
    for dialogue, row in zip(dialogues, rows, strict=True):
        if len(row.starts) > 1:
            raise UserError(
                "grpo.credit: `infopo` leaves out one answer of the user in the next prompt, and this model's chat "
                "template writes earlier messages anew in each; take another credit."
            )
        for turn, ((_, end), (start, stop)) in enumerate(pairwise(row.spans)):
            words = dialogue.messages[2 * turn + 2].content
            ended = row.token_ids[end:start] == tuple(chat.follow(True, words))
            before = (*row.token_ids[:end], *chat.follow(ended, PLACEHOLDER))
            blind = Row((*before, *row.token_ids[start:stop]), ((len(before), len(before) + stop - start),))
            masked.append(blind if len(blind.token_ids) <= limit else None)
    logprobs = row_logprobs(model, [*rows, *(blind for blind in masked if blind is not None)], layout)
    without, room = iter(logprobs[len(rows) :]), iter(masked)
    gains: Gains = []
    for row, own in zip(rows, logprobs, strict=False):
        replies = own.double().split([end - start for start, end in row.spans])[1:]
        gains.append(
            [(reply - next(without).double()).mean().item() if next(room) is not None else 0.0 for reply in replies]
        )
    return gains


def reference_gains(
    model: Any,
    dialogues: Sequence[Trajectory],
    rows: Sequence[Row],
    domain: Domain,
    chat: Chat,
    layout: Layout,
) -> Gains:
    """r_t = P_{t+1} - P_t, P_t = exp( (1/L) sum_j log pi(y_j | o_t, y_{<j}) ).

    IGPO (Wang et al., arXiv 2510.14967, Eqs. 3-4): what turn t and the user's answer to it add to the policy's
    probability of the reference y, as a geometric mean over y's tokens. y stands in place of a reply, behind what opens
    a final answer (Domain.reference_answer), which is not scored itself. The policy sees y nowhere else.

    A reference for which the model's context has no room behind the longest attempt at its task is cut, alike for all
    attempts; where not even a token has room, the gains are 0.
    """
    tasks = {dialogue.task.id: dialogue.task for dialogue in dialogues}
    references = {name: _reference_ids(task, domain, chat) for name, task in tasks.items()}
    furthest = dict.fromkeys(tasks, 0)
    for dialogue, row in zip(dialogues, rows, strict=True):
        furthest[dialogue.task.id] = max(furthest[dialogue.task.id], len(row.prompt(len(row.spans) - 1)))
    limit, probes, counts = context_limit(model), list[Row](), list[int]()
    for dialogue, row in zip(dialogues, rows, strict=True):
        opening, reference = references[dialogue.task.id]
        reference = reference[: max(0, limit - furthest[dialogue.task.id] - len(opening))]
        turns = len(row.spans) if reference and len(row.spans) > 1 else 0
        counts.append(turns)
        for turn in range(turns):
            ids = row.prompt(turn) + opening + reference
            probes.append(Row(ids, ((len(ids) - len(reference), len(ids)),)))
    means = iter([tokens.double().mean().item() for tokens in row_logprobs(model, probes, layout)] if probes else [])
    gains: Gains = []
    for row, count in zip(rows, counts, strict=True):
        values = [math.exp(next(means)) for _ in range(count)]
        gains.append([after - before for before, after in pairwise(values)] or [0.0] * (len(row.spans) - 1))
    return gains


def _reference_ids(task: Task, domain: Domain, chat: Chat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of what opens a final answer, and those of the reference behind it, up to where it ends."""
    opening, reference = domain.reference_answer(task)
    if not reference:
        raise UserError(f"task {task.id}: grpo.credit `igpo` needs a reference, and it has none; take another credit.")
    both, first = chat.reply(opening + reference)[:-1], chat.reply(opening)[:-1]
    shared = common_prefix(both[:-1], first)
    return tuple(both[:shared]), tuple(both[shared:])
