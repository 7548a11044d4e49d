"""Stage 2 as weighted likelihood: the policy imitates all candidates of a state, each by how good it is.

    w_i  ~  n_i^a exp( A_i / t ),  sum_i w_i = 1;     loss = - sum_i w_i sum_l log pi_theta( a_i^l | o )

over the distinct candidates i of a state, n_i of which were sampled, with advantages A_i. It is the closed form of
KL-regularised policy improvement, pi(a|o) ~ pi_ref(a|o) exp(A / t) (Peters and Schaal 2007; AWR, Peng et al. 2019),
fitted on the sampled replies; n_i / N stands for pi_ref. `a` > 1 also sharpens, and t -> infinity leaves nothing else:
that is self-distillation without any reward, the control of this method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sweetrl.errors import UserError
from sweetrl.learning.batches import PreferenceData, Row
from sweetrl.types import Candidate, RankedState


def reply_weights(
    candidates: Sequence[Candidate], power: float, temperature: float | None, least: float = 0.0
) -> list[float]:
    """The weights of a state's candidates; those under `least` are 0, the others sum to 1.

    `temperature` None leaves the advantages out.
    """
    scores = [
        power * math.log(one.count) + (0.0 if temperature is None else one.advantage / temperature)
        for one in candidates
    ]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    kept = [weight / total if weight / total >= least else 0.0 for weight in weights]
    rest = sum(kept)
    return [weight / rest for weight in kept] if rest else [weight / total for weight in weights]


def listwise_rows(
    states: Sequence[RankedState], power: float, temperature: float | None, least: float, where: str = "candidates"
) -> PreferenceData:
    """Lay out the weighted candidates of `states`: one row each, its weight as label, the rows of a dialogue a group.

    Labels are scaled so that a mean over rows is a mean over states.
    """
    rows: list[Row] = []
    weights: list[float] = []
    groups: list[int] = []
    turns: list[int] = []
    dialogues: dict[tuple[str, int], int] = {}
    used = 0
    for state in states:
        if not state.candidates:
            continue
        used += 1
        start = len(state.prompt_ids)
        group = dialogues.setdefault((state.task_id, state.attempt), len(dialogues))
        for one, weight in zip(
            state.candidates, reply_weights(state.candidates, power, temperature, least), strict=True
        ):
            if weight:
                rows.append(Row(state.prompt_ids + one.token_ids, ((start, start + len(one.token_ids)),)))
                weights.append(weight)
                groups.append(group)
                turns.append(state.turn)
    if not rows:
        raise UserError(f"{where}: there is no candidate to learn from; run the stage `rank` with more dialogues.")
    scale = len(rows) / used
    data = PreferenceData(tuple(rows), tuple((index, index) for index in range(len(rows))), groups=tuple(groups))
    return replace(data, labels=tuple(scale * weight for weight in weights), turns=tuple(turns))
