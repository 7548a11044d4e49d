"""From dialogues to data: the critic's rows, with c (stage 1), and the rows of methods that learn whole dialogues.

Here c enters, and nowhere else: A(o_t, a_t, c) of Eq. 3 is read off a row in which c stands in front of the dialogue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING

from sweetrl.colbench.scoring import unpriced
from sweetrl.config.settings import CriticSettings, MultiTurnSettings
from sweetrl.errors import UserError
from sweetrl.lm.data import PreferenceData, Row, critic_system, encode
from sweetrl.lm.rows import IndexPairs, RowFile
from sweetrl.protocols import Chat, Replies
from sweetrl.sweet.pairs import index_pairs, usable
from sweetrl.types import Trajectory, TrajectoryPair

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

Branches = Sequence[Sequence[tuple[int, ...]]]  # for each turn of a dialogue its candidate replies, as token ids


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


def header_length(chat: Chat) -> int:
    """How many tokens stand between the user's words and a reply: the common end of what opens and what follows."""
    ends = zip(reversed(chat.open(None, "x")), reversed(chat.follow(True, "y")), strict=False)
    return sum(1 for _ in takewhile(lambda tokens: tokens[0] == tokens[1], ends))


@dataclass(frozen=True)
class ScoredTokens:
    """Which tokens of a candidate are scored: its own, with `header` tokens before it, without the last if it is `end`.

    The default is the paper's; the official code scores the assistant's header and leaves the end of the turn out.
    """

    header: int = 0
    end: int | None = None


REPLY = ScoredTokens()


def branch_rows(trunk: Row, branches: Branches, scored: ScoredTokens = REPLY) -> list[Row]:
    """Every candidate of every turn as a row: the trunk up to that turn and the candidate in the reply's place."""
    return [
        Row(
            trunk.token_ids[:start] + reply,
            ((start - scored.header, start + len(reply) - (scored.end is not None and reply[-1] == scored.end)),),
        )
        for (start, _), replies in zip(trunk.spans, branches, strict=False)
        for reply in replies
    ]


def branches_of(turns: Replies) -> list[list[tuple[int, ...]]]:
    """Return the token ids of the candidate replies at each turn."""
    return [[reply.token_ids for reply in replies] for replies in turns]


def all_tokens(row: Row) -> Row:
    """Take the whole row as one span; only its first token, which nothing predicts, is left out."""
    return Row(row.token_ids, ((1, row.spans[-1][1]),))


def reply_row(prompt_ids: tuple[int, ...], reply: tuple[int, ...]) -> Row:
    """A prompt and one reply to it as a row."""
    return Row(prompt_ids + reply, ((len(prompt_ids), len(prompt_ids) + len(reply)),))


def numbering() -> defaultdict[Hashable, int]:
    """Numbers from 0 in the order in which keys come: rows of one task, or of one dialogue, begin alike."""
    return defaultdict(count().__next__)


def task_numbers(trajectories: Iterable[Trajectory]) -> tuple[int, ...]:
    """Number the trajectories by task."""
    tasks = numbering()
    return tuple(tasks[trajectory.task.id] for trajectory in trajectories)


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
    rows, bare, tasks, groups = RowFile(), RowFile(), numbering(), list[int]()
    header = settings.token_set == "official"  # the end of the assistant's header is scored, too

    def scored(row: Row) -> Row:
        return Row(row.token_ids, tuple((start - header, end) for start, end in row.spans))

    def take(trajectory: Trajectory) -> None:
        rows.append(scored(critic_row(trajectory, domain, chat, system, settings)))
        if settings.reference == "unconditioned":
            bare.append(scored(encode(trajectory, chat, system)))
        groups.append(tasks[trajectory.task.id])

    indices = index_pairs(pairs, trajectories, take, where)
    return PreferenceData(rows, IndexPairs(indices), groups=tuple(groups), reference_rows=bare)


def critic_attempts(
    trajectories: Iterable[Trajectory], domain: Domain, chat: Chat, system: str, settings: CriticSettings
) -> PreferenceData:
    """Lay out every usable attempt with its label, 1 for success, for the classifier of final success."""
    labels: list[float] = []

    def row(trajectory: Trajectory) -> Row:
        labels.append(float(trajectory.success))
        return critic_row(trajectory, domain, chat, system, settings)

    data = rows_of(filter(usable, trajectories), row)
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
    rows, tasks, groups, replay = RowFile(), numbering(), list[int](), list[int]()

    def place(row: Row, trajectory: Trajectory) -> None:
        rows.append(row)
        groups.append(tasks[trajectory.task.id])

    def take(trajectory: Trajectory) -> None:
        row = encode(trajectory, chat, system)
        place(all_tokens(row) if settings.loss_tokens == "all" else row, trajectory)

    indices = index_pairs(pairs, trajectories, take, where)
    if settings.sft_replay:
        for trajectory in trajectories:
            if usable(trajectory) and trajectory.success:
                row = encode(trajectory, chat, system)
                replay.append(len(rows))
                place(row.last() if settings.sft_replay_turns == "final" else row, trajectory)
    return PreferenceData(rows, IndexPairs(indices), tuple(replay), tuple(groups))


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
    rows, tasks, groups = RowFile(), numbering(), list[int]()
    for trajectory in trajectories:
        rows.append(row(trajectory))
        groups.append(tasks[trajectory.task.id])
    return single_rows(rows, tuple(groups))


def single_rows(rows: Sequence[Row], groups: Sequence[int]) -> PreferenceData:
    """Rows that are learnt one by one: each stands as a pair with itself, and is computed once."""
    return PreferenceData(rows, IndexPairs((index, index) for index in range(len(rows))), groups=groups)
