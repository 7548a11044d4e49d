"""Stage 2 as weighted likelihood: the policy imitates the candidates of a state, each by how good it is.

    w_i = (n_i / N)^a exp( A_i / t ) / Z;     loss = - sum_i w_i sum_l log pi_theta( a_i^l | o )

over the distinct candidates i of a state, n_i of N samples, with advantages A_i. It is the closed form of policy
improvement under a KL penalty, pi(a|o) ~ pi_ref(a|o) exp(A / t), fitted on the sampled replies (Peters and Schaal 2007;
AWR, Peng et al. 2019); n_i / N stands for pi_ref. `a` > 1 also sharpens, and t -> infinity leaves nothing else: that is
self-distillation without any reward, the control of this method.

Z is the sum over the state's candidates (`states: equal`), or 1 (`states: advantage`, as AWR does): an advantage says
how much better than usual a reply is, so a state whose candidates are all poor counts little. Without a sum to share, a
weight is at most 20. (AWR bounds exp(A / t) instead: there a bounded weight still goes by n_i / N, here it does not.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sweetrl.errors import UserError
from sweetrl.lm.data import PreferenceData
from sweetrl.lm.rows import RowFile
from sweetrl.sweet.data import numbering, reply_row, single_rows
from sweetrl.types import Candidate, RankedState

if TYPE_CHECKING:
    from sweetrl.sweet.preferences import Replay

HIGHEST = 20.0  # of a weight with `states: advantage`: one lucky reply does not rule a step


def reply_weights(
    candidates: Sequence[Candidate],
    power: float,
    temperature: float | None,
    least: float = 0.0,
    equal: bool = True,
) -> list[float]:
    """The weights of a state's candidates, those under `least` 0; with `equal` the others sum to 1.

    `temperature` None leaves the advantages out.
    """
    total = sum(reply.count for reply in candidates)
    scores = [
        power * math.log(reply.count / total) + (0.0 if temperature is None else reply.advantage / temperature)
        for reply in candidates
    ]
    if not equal:
        highest = math.log(HIGHEST)
        weights = [math.exp(min(score, highest)) for score in scores]
        return [weight if weight >= least else 0.0 for weight in weights]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    mass = sum(weights)
    kept = [weight / mass if weight / mass >= least else 0.0 for weight in weights]
    rest = sum(kept)
    return [weight / rest for weight in kept] if rest else [weight / mass for weight in weights]


def listwise_rows(
    states: Iterable[RankedState],
    power: float,
    temperature: float | None,
    least: float,
    equal: bool = True,
    where: str = "candidates",
) -> PreferenceData:
    """Lay out the weighted candidates of `states`: one row each, its weight as label, the rows of a dialogue a group.

    Labels are scaled to a mean of 1.
    """
    rows, dialogues = RowFile(), numbering()
    weights, groups, turns = list[float](), list[int](), list[int]()
    for state in states:
        if not state.candidates:
            continue
        group = dialogues[state.task_id, state.attempt]
        by_candidate = reply_weights(state.candidates, power, temperature, least, equal)
        for reply, weight in zip(state.candidates, by_candidate, strict=True):
            if weight:
                rows.append(reply_row(state.prompt_ids, reply.token_ids))
                weights.append(weight)
                groups.append(group)
                turns.append(state.turn)
    if not rows:
        raise UserError(f"{where}: there is no candidate to learn from; run the stage `rank` with more dialogues.")
    scale = len(rows) / sum(weights)
    data = single_rows(rows, tuple(groups))
    return replace(data, labels=tuple(scale * weight for weight in weights), turns=tuple(turns))


def with_replay(data: PreferenceData, replay: Iterable[Replay], final: bool) -> PreferenceData:
    """Put successful dialogues (their final replies, if `final`) beside the candidates; they have no weight there."""
    rows = data.rows.choose(range(len(data.rows))) if isinstance(data.rows, RowFile) else RowFile(data.rows)
    first, group = len(rows), max(data.groups, default=-1) + 1
    turns = list(data.turns)
    for dialogue in replay:
        row, turn = dialogue.replayed(final)
        rows.append(row)
        turns.append(turn)
    added = len(rows) - first
    return replace(
        data,
        rows=rows,
        replay=tuple(range(first, len(rows))),
        groups=(*data.groups, *range(group, group + added)),
        labels=(*data.labels, *(0.0,) * added),
        turns=tuple(turns),
    )
