"""Groups of attempts at the same tasks, laid out for on-policy learning (GRPO): rows, and each turn's advantage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sweetrl.errors import UserError
from sweetrl.learning.batches import Row, encode
from sweetrl.learning.pairs import usable
from sweetrl.learning.whole import groups_of
from sweetrl.protocols import Chat
from sweetrl.settings import GrpoSettings
from sweetrl.types import Trajectory

# What the turns of dialogues, given with their rows, have found out (learning.information.turn_gains).
Informs = Callable[[Sequence[Trajectory], Sequence[Row]], Sequence[Sequence[float]]]
INFORMED = ("infopo", "igpo")  # the kinds of credit that ask for it


@dataclass(frozen=True)
class Attempts:
    """The attempts of one iteration: `advantages` [turns] for each row, `groups` the number of each row's task.

    `metrics` are means over the iteration's dialogues, for the curves. `informed` are the rows as one who sees c reads
    them, for `credit: privileged`; then what tokens are worth comes from them, and `advantages` are 0.
    """

    rows: tuple[Row, ...]
    advantages: tuple[tuple[float, ...], ...]
    groups: tuple[int, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    informed: tuple[Row, ...] = ()


def lay_out(
    trajectories: Sequence[Trajectory],
    chat: Chat,
    system: str,
    settings: GrpoSettings,
    informs: Informs | None = None,
    privileged: Callable[[Trajectory], Row] | None = None,
) -> Attempts:
    """Lay out the scored attempts (lost ones are left out) and tell them apart within their groups.

    The return of an attempt is its reward. With `credit: turn` that of turn t of T is discount^(T-1-t) times the
    reward, and is compared with the attempts of the group that have a turn t. `credit: infopo` and `igpo` look at what
    turns have found out, too, which `informs` says. `credit: privileged` looks at no reward: `privileged` lays
    dialogues out with c.
    """
    found = [one for one in trajectories if usable(one)]
    if not found:
        raise UserError("no dialogue of this iteration could be scored, so there is nothing to learn from.")
    rows = tuple(encode(one, chat, system) for one in found)
    groups = groups_of(found)
    rewards = [one.reward or 0.0 for one in found]
    lengths = [len(row.spans) for row in rows]
    gains: Sequence[Sequence[float]] = []
    if settings.credit in INFORMED:
        if informs is None:
            raise ValueError(f"credit {settings.credit} needs to know what turns have found out")
        gains = informs(found, rows)
    informed: tuple[Row, ...] = ()
    if settings.credit == "privileged":
        if privileged is None:
            raise ValueError("credit privileged needs to know how one who sees c reads a dialogue")
        informed = tuple(privileged(one) for one in found)
    advantages = turn_credits(rewards, lengths, groups, settings, gains)
    metrics = {}
    if settings.credit != "privileged":  # its tokens' worth is not known yet
        apart = {group for group, values in zip(groups, advantages, strict=True) if any(values)}
        metrics["groups_with_signal"] = len(apart) / len(set(groups))
    if gains:
        metrics["info_gain"] = sum(map(sum, gains)) / max(1, sum(map(len, gains)))
    turns = sum(lengths)
    return Attempts(
        rows,
        advantages,
        groups,
        {
            "return": sum(rewards) / len(found),
            "success": sum(one.success for one in found) / len(found),
            "turns": turns / len(found),
            "reply_length": sum(row.reply_tokens for row in rows) / turns,
            "generated_tokens": sum(row.reply_tokens for row in rows),
        }
        | metrics,
        informed,
    )


def turn_credits(
    rewards: Sequence[float],
    lengths: Sequence[int],
    groups: Sequence[int],
    settings: GrpoSettings,
    gains: Sequence[Sequence[float]] = (),
) -> tuple[tuple[float, ...], ...]:
    """The advantage of every turn of every attempt, by `settings.credit`; `lengths` are the attempts' turns.

    `gains` are what all turns of an attempt but the last have found out, for the kinds of credit that look at it.
    """
    import torch

    from sweetrl.learning.objectives import group_advantages

    if settings.credit in INFORMED:
        from sweetrl.learning.credits import igpo_advantages, infopo_advantages

        known = (
            torch.tensor(rewards, dtype=torch.float64),
            torch.tensor([gain for some in gains for gain in (*some, 0.0)], dtype=torch.float64),
            torch.tensor([turn < length - 1 for length in lengths for turn in range(length)]),
            torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
            torch.tensor(groups),
        )
        if settings.credit == "infopo":
            each = infopo_advantages(*known, settings.intrinsic_weight, settings.intrinsic_gate_temperature)
        else:
            each = igpo_advantages(*known, settings.discount, settings.info_gain_norm_mode)
        return tuple(tuple(one.tolist()) for one in each.split(list(lengths)))
    if settings.credit == "privileged":
        return tuple((0.0,) * length for length in lengths)
    if settings.credit == "trajectory":
        values = torch.tensor(rewards, dtype=torch.float64)
        found = group_advantages(values, torch.tensor(groups)).tolist()
        return tuple((value,) * length for value, length in zip(found, lengths, strict=True))
    returns: list[float] = []
    segment: list[int] = []
    numbers: dict[tuple[int, int], int] = {}
    for reward, length, group in zip(rewards, lengths, groups, strict=True):
        for turn in range(length):
            returns.append(settings.discount ** (length - 1 - turn) * reward)
            segment.append(numbers.setdefault((group, turn), len(numbers)))
    flat = iter(group_advantages(torch.tensor(returns, dtype=torch.float64), torch.tensor(segment)).tolist())
    return tuple(tuple(next(flat) for _ in range(length)) for length in lengths)
