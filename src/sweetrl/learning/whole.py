"""Rows of whole dialogues: what methods learn from that do not look at single turns (Rejection Fine-Tuning, DPO)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sweetrl.colbench.scoring import unpriced
from sweetrl.errors import UserError
from sweetrl.learning.batches import PreferenceData, Row, critic_system, encode
from sweetrl.learning.pairs import read_pairs_of, usable
from sweetrl.learning.rows import IndexPairs, RowFile
from sweetrl.protocols import Chat
from sweetrl.settings import CriticSettings, MultiTurnSettings
from sweetrl.types import Trajectory, TrajectoryPair

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


class TaskNumbers:
    """Numbers trajectories by task, in the order in which tasks come: rows of one task begin alike."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = {}
        self.each: list[int] = []
        """The number of every trajectory's task."""

    def add(self, one: Trajectory) -> None:
        """Number one more trajectory."""
        self.each.append(self._tasks.setdefault(one.task.id, len(self._tasks)))


def groups_of(trajectories: Iterable[Trajectory]) -> tuple[int, ...]:
    """Number the trajectories by task."""
    tasks = TaskNumbers()
    for one in trajectories:
        tasks.add(one)
    return tuple(tasks.each)


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
    rows, bare, tasks = RowFile(), RowFile(), TaskNumbers()
    scored = with_header if settings.token_set == "official" else _as_it_is

    def take(one: Trajectory) -> None:
        rows.append(scored(critic_row(one, domain, chat, system, settings)))
        if settings.reference == "unconditioned":
            bare.append(scored(encode(one, chat, system)))
        tasks.add(one)

    indices = read_pairs_of(pairs, trajectories, take, where)
    return PreferenceData(rows, IndexPairs(indices), groups=tuple(tasks.each), reference_rows=bare)


def critic_attempts(
    trajectories: Iterable[Trajectory], domain: Domain, chat: Chat, system: str, settings: CriticSettings
) -> PreferenceData:
    """Lay out every usable attempt with its label, 1 for success, for the classifier of final success."""
    labels: list[float] = []

    def row(one: Trajectory) -> Row:
        labels.append(float(one.success))
        return critic_row(one, domain, chat, system, settings)

    data = rows_of((one for one in trajectories if usable(one)), row)
    return replace(data, labels=tuple(labels))


def policy_pairs(
    pairs: Sequence[TrajectoryPair],
    trajectories: Iterable[Trajectory],
    chat: Chat,
    system: str,
    settings: MultiTurnSettings,
    where: str = "pairs",
) -> PreferenceData:
    """Lay out pairs of whole trajectories as the actor saw them, without c, for multi-turn DPO.

    With `settings.sft_replay` the successful dialogues (or their final replies) are replay, as in stage 2; then
    `trajectories` are read twice.
    """
    rows, tasks, replay = RowFile(), TaskNumbers(), list[int]()
    learnt = all_tokens if settings.loss_tokens == "all" else _as_it_is

    def take(one: Trajectory) -> None:
        rows.append(learnt(encode(one, chat, system)))
        tasks.add(one)

    indices = read_pairs_of(pairs, trajectories, take, where)
    if settings.sft_replay:
        for one in trajectories:
            if usable(one) and one.success:
                row = encode(one, chat, system)
                replay.append(len(rows))
                rows.append(row.last() if settings.sft_replay_turns == "final" else row)
                tasks.add(one)
    return PreferenceData(rows, IndexPairs(indices), tuple(replay), tuple(tasks.each))


def successes(trajectories: Iterable[Trajectory], chat: Chat, system: str, least: float = 1.0) -> PreferenceData:
    """Lay out every reply of every attempt of reward `least` on, for Rejection Fine-Tuning; none is a UserError.

    What counts is the reward without the price of questions (`reward.turn_cost`).
    """
    found = (one for one in trajectories if usable(one) and (unpriced(one).reward or 0.0) >= least)
    data = rows_of(found, lambda one: encode(one, chat, system))
    if not data.rows:
        raise UserError(
            f"no attempt has a reward of {least:g}, so there is nothing to imitate; collect more or easier tasks, or "
            "lower rft.min_reward."
        )
    return data


def rows_of(trajectories: Iterable[Trajectory], row: Callable[[Trajectory], Row]) -> PreferenceData:
    """Lay out trajectories one after the other by `row`, each learnt on its own, those at one task a group."""
    rows, tasks = RowFile(), TaskNumbers()
    for one in trajectories:
        rows.append(row(one))
        tasks.add(one)
    return single_rows(rows, tuple(tasks.each))


def single_rows(rows: Sequence[Row], groups: Sequence[int]) -> PreferenceData:
    """Rows that are learnt one by one: each stands as a pair with itself, and is computed once."""
    return PreferenceData(rows, IndexPairs((index, index) for index in range(len(rows))), groups=groups)


def _as_it_is(row: Row) -> Row:
    return row
