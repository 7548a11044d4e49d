"""From dialogues to data: the critic's rows, with c (stage 1), and the rows of methods that learn whole dialogues.

Here c enters, and nowhere else: A(o_t, a_t, c) of Eq. 3 is read off a row in which c stands in front of the dialogue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.scoring import unpriced
from sweetrl.config.settings import CriticSettings, MultiTurnSettings
from sweetrl.engines.cache import common_prefix
from sweetrl.errors import UserError
from sweetrl.lm.data import PreferenceData, Row, encode, rewrite
from sweetrl.lm.rows import IndexPairs, RowFile
from sweetrl.protocols import Chat, Replies
from sweetrl.sweet.pairs import index_pairs, usable
from sweetrl.types import Trajectory, TrajectoryPair

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


def critic_row(trajectory: Trajectory, domain: Domain, chat: Chat, system: str, settings: CriticSettings) -> Row:
    """Lay out a dialogue as the critic sees it: with c at `settings.privileged_position`, if it sees c at all.

    before   c's own tokens, then the whole formatted prompt with its begin-of-text token        the official code
    """
    prefix = domain.privileged_prompt(trajectory.task) if settings.privileged else None
    if prefix is None or settings.privileged_position == "system":
        return rewrite(trajectory, chat, prefix + system) if prefix else encode(trajectory, chat, system)
    row, ids = encode(trajectory, chat, system), chat.plain(prefix)
    replies = (row.token_ids[start:end] for start, end in row.spans)
    return Row.of_turns((ids + row.prompt(turn), reply) for turn, reply in enumerate(replies))


def header_length(chat: Chat) -> int:
    """How many tokens stand between the user's words and a reply: the common end of what opens and what follows."""
    return common_prefix(chat.open(None, "x")[::-1], chat.follow(True, "y")[::-1])


@dataclass(frozen=True)
class ScoredTokens:
    """Which tokens of a candidate are scored: its own, with `header` tokens before it, without the last if it is `end`.

    The default is the paper's; the official code scores the assistant's header and leaves the end of the turn out.
    """

    header: int = 0
    end: int | None = None


REPLY = ScoredTokens()


def branch_rows(trunk: Row, turns: Replies, scored: ScoredTokens = REPLY) -> list[Row]:
    """Every candidate of every turn as a row: the trunk up to that turn and the candidate in the reply's place."""
    return [
        reply_row(trunk.prompt(turn), reply.token_ids, scored)
        for turn, (_, replies) in enumerate(zip(trunk.spans, turns, strict=False))
        for reply in replies
    ]


def all_tokens(row: Row) -> Row:
    """Take all of a row as spans; only first tokens, which nothing predicts, and what was read before are left out."""
    spans, before = list[tuple[int, int]](), tuple[int, ...]()
    for start, sequence in zip(row.starts, row.sequences, strict=True):
        first = max(1, common_prefix(before, sequence.token_ids))
        spans.append((start + first, start + sequence.spans[-1][1]))
        before = sequence.token_ids
    return Row(row.token_ids, tuple(spans), row.starts)


def reply_row(prompt_ids: tuple[int, ...], reply: tuple[int, ...], scored: ScoredTokens = REPLY) -> Row:
    """A prompt and one reply to it as a row."""
    start, ended = len(prompt_ids), scored.end is not None and reply[-1] == scored.end
    return Row(prompt_ids + reply, ((start - scored.header, start + len(reply) - ended),))


class GroupedRows:
    """Rows in a file as they are laid out, those of one key (a task, a dialogue) a group: they begin alike."""

    def __init__(self) -> None:
        self.rows, self.groups, self._numbers = RowFile(), list[int](), defaultdict[Hashable, int](count().__next__)

    def add(self, row: Row, key: Hashable) -> int:
        """Append a row, and return its number."""
        self.rows.append(row)
        self.groups.append(self._numbers[key])
        return len(self.rows) - 1

    def data(self, pairs: Iterable[tuple[int, int]] | None = None, **more: Any) -> PreferenceData:
        """Return them with `pairs`; without, each is a pair with itself, learnt on its own and computed once."""
        every = ((index, index) for index in range(len(self.rows))) if pairs is None else pairs
        return PreferenceData(self.rows, IndexPairs(every), groups=tuple(self.groups), **more)


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
    rows, bare = GroupedRows(), RowFile()
    header = settings.token_set == "official"  # the end of the assistant's header is scored, too

    def scored(row: Row) -> Row:
        return replace(row, spans=tuple((start - header, end) for start, end in row.spans))

    def take(trajectory: Trajectory) -> None:
        rows.add(scored(critic_row(trajectory, domain, chat, system, settings)), trajectory.task.id)
        if settings.reference == "unconditioned":
            bare.append(scored(encode(trajectory, chat, system)))

    return rows.data(index_pairs(pairs, trajectories, take, where), reference_rows=bare)


def critic_attempts(
    trajectories: Iterable[Trajectory], domain: Domain, chat: Chat, system: str, settings: CriticSettings
) -> PreferenceData:
    """Lay out every usable attempt with its label, 1 for success, for the classifier of final success."""
    rows, labels = GroupedRows(), list[float]()
    for trajectory in filter(usable, trajectories):
        rows.add(critic_row(trajectory, domain, chat, system, settings), trajectory.task.id)
        labels.append(float(trajectory.success))
    return rows.data(labels=tuple(labels))


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
    rows, replay = GroupedRows(), list[int]()

    def take(trajectory: Trajectory) -> None:
        row = encode(trajectory, chat, system)
        rows.add(all_tokens(row) if settings.loss_tokens == "all" else row, trajectory.task.id)

    indices = index_pairs(pairs, trajectories, take, where)
    if settings.sft_replay:
        for trajectory in trajectories:
            if usable(trajectory) and trajectory.success:
                row = encode(trajectory, chat, system)
                row = row.last() if settings.sft_replay_turns == "final" else row
                replay.append(rows.add(row, trajectory.task.id))
    return rows.data(indices, replay=tuple(replay))


def successes(trajectories: Iterable[Trajectory], chat: Chat, system: str, least: float = 1.0) -> PreferenceData:
    """Lay out every reply of every attempt of reward `least` on, for Rejection Fine-Tuning; none is a UserError.

    What counts is the reward without the price of questions (`reward.turn_cost`).
    """
    imitable = (each for each in trajectories if usable(each) and (unpriced(each).reward or 0.0) >= least)
    data = rows_of(imitable, lambda trajectory: encode(trajectory, chat, system))
    if not data.rows:
        raise UserError(
            f"no attempt has a reward of {least:g}, so there is nothing to imitate; collect more or easier tasks, or "
            "lower rft.min_reward."
        )
    return data


def rows_of(trajectories: Iterable[Trajectory], row: Callable[[Trajectory], Row]) -> PreferenceData:
    """Lay out trajectories one after the other by `row`, each learnt on its own, those at one task a group."""
    rows = GroupedRows()
    for trajectory in trajectories:
        rows.add(row(trajectory), trajectory.task.id)
    return rows.data()
