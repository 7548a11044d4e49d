"""Rows of whole dialogues: what methods learn from that do not look at single turns (Rejection Fine-Tuning, DPO)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sweetrl.colbench.scoring import unpriced
from sweetrl.errors import UserError
from sweetrl.learning.batches import PreferenceData, Row, critic_system, encode
from sweetrl.learning.pairs import TrajectoryPair, find_pairs, usable
from sweetrl.protocols import Chat
from sweetrl.settings import CriticSettings, MultiTurnSettings
from sweetrl.types import Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


def critic_row(trajectory: Trajectory, domain: Domain, chat: Chat, system: str, settings: CriticSettings) -> Row:
    """Lay out a dialogue as the critic sees it: with c at `settings.privileged_position`, if it sees c at all.

    before   c's own tokens, then the whole formatted prompt with its begin-of-text token        the official code
    """
    prefix = domain.privileged_prompt(trajectory.task) if settings.privileged else None
    if prefix is None or settings.privileged_position == "system":
        return encode(trajectory, chat, critic_system(prefix, system))
    row = encode(trajectory, chat, system)
    ids = chat.reply(prefix)[:-1]  # plain text without its end-of-turn
    return Row(ids + row.token_ids, tuple((start + len(ids), end + len(ids)) for start, end in row.spans))


def with_header(row: Row) -> Row:
    """Let every span begin one token earlier: the end of the assistant's header is scored too (the official code)."""
    return Row(row.token_ids, tuple((start - 1, end) for start, end in row.spans))


def header_length(chat: Chat) -> int:
    """How many tokens stand between the user's words and a reply: the common end of what opens and what follows."""
    first, second = chat.open(None, "x"), chat.follow(True, "y")
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return count


def all_tokens(row: Row) -> Row:
    """Take the whole row as one span; only its first token, which nothing predicts, is left out."""
    return Row(row.token_ids, ((1, row.spans[-1][1]),))


def groups_of(trajectories: Sequence[Trajectory]) -> tuple[int, ...]:
    """Number the trajectories by task: rows of one task begin alike."""
    tasks: dict[str, int] = {}
    return tuple(tasks.setdefault(one.task.id, len(tasks)) for one in trajectories)


def critic_pairs(
    pairs: Sequence[TrajectoryPair],
    trajectories: Iterable[Trajectory],
    domain: Domain,
    chat: Chat,
    system: str,
    settings: CriticSettings,
    where: str = "pairs",
) -> PreferenceData:
    """Lay out pairs of whole trajectories for the critic (Eq. 2); without c for a reference that does not see it."""
    found, indices = find_pairs(pairs, trajectories, where)
    rows = [critic_row(one, domain, chat, system, settings) for one in found]
    bare = [encode(one, chat, system) for one in found] if settings.reference == "unconditioned" else []
    if settings.token_set == "official":
        rows, bare = ([with_header(row) for row in some] for some in (rows, bare))
    return PreferenceData(tuple(rows), tuple(indices), groups=groups_of(found), reference_rows=tuple(bare))


def critic_attempts(
    trajectories: Iterable[Trajectory], domain: Domain, chat: Chat, system: str, settings: CriticSettings
) -> PreferenceData:
    """Lay out every usable attempt with its label, 1 for success, for the classifier of final success."""
    found = [one for one in trajectories if usable(one)]
    rows = tuple(critic_row(one, domain, chat, system, settings) for one in found)
    data = single_rows(rows, groups_of(found))
    return replace(data, labels=tuple(float(one.success) for one in found))


def policy_pairs(
    pairs: Sequence[TrajectoryPair],
    trajectories: Iterable[Trajectory],
    chat: Chat,
    system: str,
    settings: MultiTurnSettings,
    where: str = "pairs",
) -> PreferenceData:
    """Lay out pairs of whole trajectories as the actor saw them, without c, for multi-turn DPO.

    With `settings.sft_replay` the successful dialogues (or their final replies) are replay, as in stage 2.
    """
    everything = list(trajectories)
    found, indices = find_pairs(pairs, everything, where)
    rows = [encode(one, chat, system) for one in found]
    if settings.loss_tokens == "all":
        rows = [all_tokens(row) for row in rows]
    groups, replay = list(groups_of(found)), []
    if settings.sft_replay:
        number = {one.task.id: group for one, group in zip(found, groups, strict=True)}
        for one in everything:
            if usable(one) and one.success:
                row = encode(one, chat, system)
                replay.append(len(rows))
                rows.append(row.last() if settings.sft_replay_turns == "final" else row)
                groups.append(number.setdefault(one.task.id, len(number)))
    return PreferenceData(tuple(rows), tuple(indices), tuple(replay), tuple(groups))


def successes(trajectories: Iterable[Trajectory], chat: Chat, system: str, least: float = 1.0) -> PreferenceData:
    """Lay out every reply of every attempt of reward `least` on, for Rejection Fine-Tuning; none is a UserError.

    What counts is the reward without the price of questions (`reward.turn_cost`).
    """
    found = [one for one in trajectories if usable(one) and (unpriced(one).reward or 0.0) >= least]
    if not found:
        raise UserError(
            f"no attempt has a reward of {least:g}, so there is nothing to imitate; collect more or easier tasks, or "
            "lower rft.min_reward."
        )
    return single_rows(tuple(encode(one, chat, system) for one in found), groups_of(found))


def single_rows(rows: tuple[Row, ...], groups: tuple[int, ...]) -> PreferenceData:
    """Rows that are learnt one by one: each stands as a pair with itself, and is computed once."""
    return PreferenceData(rows, tuple((index, index) for index in range(len(rows))), groups=groups)
