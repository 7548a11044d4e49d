"""What a turn of a dialogue has found out, told by the policy's own log-probs: the turn rewards of InfoPO and IGPO.

Both are computed once an iteration, with the policy that has just sampled, and hold no gradient. The rows that are
compared begin like the dialogue, so in trees they cost little more than what is new in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.errors import UserError
from sweetrl.learning.batches import Row
from sweetrl.learning.passes import Layout, model_layout
from sweetrl.learning.reference import row_logprobs
from sweetrl.models import context_limit
from sweetrl.protocols import Chat
from sweetrl.settings import GrpoSettings
from sweetrl.types import Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

Gains = list[list[float]]  # of each dialogue, for each of its turns but the last


def turn_gains(
    model: Any, dialogues: Sequence[Trajectory], rows: Sequence[Row], domain: Domain, chat: Chat, settings: GrpoSettings
) -> Gains:
    """The information gains that `settings.credit` asks for; `rows` are the dialogues as the policy saw them."""
    layout = model_layout(model, settings.layout, settings.tokens)
    if settings.credit == "infopo":
        return feedback_gains(model, dialogues, rows, chat, layout, settings.observation_placeholder)
    return reference_gains(model, dialogues, rows, domain, chat, layout, settings.info_gain_type)


def feedback_gains(
    model: Any,
    dialogues: Sequence[Trajectory],
    rows: Sequence[Row],
    chat: Chat,
    layout: Layout,
    placeholder: str,
) -> Gains:
    """I_t = (1/L) sum_l [ log pi(a_{t+1}^l | o_t, a_t, u_t, a_{t+1}^{<l}) - log pi(a_{t+1}^l | o_t, a_t, nil, ...) ].

    InfoPO (Kong et al., arXiv 2603.00656): how much the user's answer u_t to turn t changes the policy's next reply,
    KL( pi(. | u_t) || pi(. | nil) ) per token, estimated on the reply that was sampled given u_t. All else, earlier
    answers too, stays as it was. The gain belongs to the turn that brought the answer about; the last turn has none.

    Departs from the authors' code in `placeholder` (nil): it is a whole message of the user in the chat's own format,
    where they write it over the answer's tokens, cut or drawn out to as many. 0 where it makes the row too long.
    """
    limit, masked = context_limit(model), list[Row | None]()
    for dialogue, row in zip(dialogues, rows, strict=True):
        for turn, ((_, end), (start, stop)) in enumerate(pairwise(row.spans)):
            words = dialogue.messages[2 * turn + 2].content
            ended = row.token_ids[end:start] == tuple(chat.follow(True, words))
            before = (*row.token_ids[:end], *chat.follow(ended, placeholder))
            whole = Row((*before, *row.token_ids[start:stop]), ((len(before), len(before) + stop - start),))
            masked.append(whole if len(whole.token_ids) <= limit else None)
    found = row_logprobs(model, [*rows, *(one for one in masked if one is not None)], layout)
    without, room = iter(found[len(rows) :]), iter(masked)
    gains: Gains = []
    for row, own in zip(rows, found, strict=False):
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
    kind: Literal["prob_diff", "log_prob_diff"] = "prob_diff",
) -> Gains:
    """r_t = P_{t+1} - P_t, P_t = exp( (1/L) sum_j log pi(y_j | o_t, y_{<j}) ); log_prob_diff: log P_{t+1} - log P_t.

    IGPO (Wang et al., arXiv 2510.14967, Eqs. 3-4): what turn t and the user's answer to it add to the policy's
    probability of the reference y, as a geometric mean over y's tokens. y stands in place of a reply, behind what opens
    a final answer (Domain.reference_answer), which is not scored itself. The policy sees y nowhere else.

    A reference for which the model's context has no room behind the longest attempt at its task is cut, alike for all
    attempts; where not even a token has room, the gains are 0.
    """
    known: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    furthest: dict[str, int] = {}
    for dialogue, row in zip(dialogues, rows, strict=True):
        task = dialogue.task
        if task.id not in known:
            known[task.id] = _reference_ids(task, domain, chat)
        furthest[task.id] = max(furthest.get(task.id, 0), row.spans[-1][0])
    limit, probes = context_limit(model), list[Row]()
    for dialogue, row in zip(dialogues, rows, strict=True):
        opening, reference = known[dialogue.task.id]
        reference = reference[: max(0, limit - furthest[dialogue.task.id] - len(opening))]
        if reference and len(row.spans) > 1:
            for start, _ in row.spans:
                place = start + len(opening)
                ids = row.token_ids[:start] + opening + reference
                probes.append(Row(ids, ((place, place + len(reference)),)))
    found = iter([one.double().mean().item() for one in row_logprobs(model, probes, layout)] if probes else [])
    gains: Gains = []
    for dialogue, row in zip(dialogues, rows, strict=True):
        if limit - furthest[dialogue.task.id] <= len(known[dialogue.task.id][0]) or len(row.spans) < 2:
            gains.append([0.0] * (len(row.spans) - 1))
            continue
        values = [next(found) for _ in row.spans]
        if kind == "prob_diff":
            values = [math.exp(value) for value in values]
        gains.append([after - before for before, after in pairwise(values)])
    return gains


def _reference_ids(task: Task, domain: Domain, chat: Chat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of what opens a final answer, and those of the reference behind it, up to where it ends."""
    opening, reference = domain.reference_answer(task)
    if not reference:
        raise UserError(f"task {task.id}: grpo.credit `igpo` needs a reference, and it has none; take another credit.")
    whole, first = chat.reply(opening + reference)[:-1], chat.reply(opening)[:-1]
    shared = 0
    while shared < min(len(whole) - 1, len(first)) and whole[shared] == first[shared]:
        shared += 1
    return tuple(whole[:shared]), tuple(whole[shared:])
