"""What a ranking is on the disk, data/preferences/, and its preference pairs as rows for training (Eq. 4).

candidates.parquet, preferences.parquet and sft_replay.parquet; beside them token_ratios.parquet, of a sample, for
people to look at. Equal rankings give equal bytes.

Or, for stage 2 as weighted likelihood, all candidates of a state, each by how good it is:

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

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweetrl.config.settings import PreferenceSettings
from sweetrl.errors import UserError
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.lm.rows import IndexPairs
from sweetrl.sweet.data import GroupedRows, all_tokens, reply_row
from sweetrl.sweet.tables import Table, write_table
from sweetrl.types import Candidate, Preference, RankedState, TokenRatios

logger = logging.getLogger("sweetrl")

CANDIDATES, PREFERENCES, SFT_REPLAY = "candidates.parquet", "preferences.parquet", "sft_replay.parquet"
TOKEN_RATIOS = "token_ratios.parquet"
HIGHEST = 20.0  # of a weight with `states: advantage`: one lucky reply does not rule a step


@dataclass(frozen=True)
class Replay:
    """A successful dialogue as the actor saw it, and where its replies are (start, and end exclusive).

    `sequences` says where those begin that the model reads (sweetrl.lm.rows.Row).
    """

    task_id: str
    attempt: int
    token_ids: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    sequences: tuple[int, ...] = (0,)

    @property
    def row(self) -> Row:
        """The dialogue as a row."""
        return Row(self.token_ids, tuple(zip(self.starts, self.ends, strict=True)), self.sequences)

    def replayed(self, final: bool) -> tuple[Row, int]:
        """What is learnt of it, all replies or the `final` one alone, and the turn of the first of these."""
        return (self.row.last(), len(self.starts) - 1) if final else (self.row, 0)


@dataclass(frozen=True)
class Ranking:
    """Candidate replies at the turns of dialogues with their advantages, pairs of them, and successful dialogues.

    Those that `rank_dialogues` returns are read from a file, item by item.
    """

    states: Sequence[RankedState]
    preferences: Sequence[Preference]
    replay: Sequence[Replay]
    metrics: dict[str, float] = field(default_factory=dict)
    token_ratios: Sequence[TokenRatios] = ()
    """What the advantages of the first dialogues are made of (`rank.token_ratios`); none with other critics."""

    def save(self, folder: str | Path) -> None:
        """Write the folder that the stage `rank` writes (data/preferences)."""
        out = Path(folder)
        write_table(out / CANDIDATES, RankedState, self.states)
        write_table(out / PREFERENCES, Preference, self.preferences)
        write_table(out / SFT_REPLAY, Replay, self.replay)
        if self.token_ratios:
            write_table(out / TOKEN_RATIOS, TokenRatios, self.token_ratios)
        else:
            (out / TOKEN_RATIOS).unlink(missing_ok=True)


@dataclass(frozen=True)
class Blocks:
    """The finished blocks of dialogues of a ranking, and which are made here.

    They lie in `folder` (None: nothing is kept), beside the replies of servers; `log` takes the output of a server that
    is started. `mine` says which blocks this process makes: others make the rest, in the same folder.
    """

    folder: Path | None = None
    log: Path = Path(".scratch/server.log")
    mine: Callable[[int], bool] | None = None

    def missing(self, number: int) -> bool:
        """Whether block `number` is to be made here."""
        finished = self.folder is not None and _block(self.folder, number).exists()
        return not finished and (self.mine is None or self.mine(number))

    def states(self, number: int, make: Callable[[], list[RankedState]]) -> Iterable[RankedState]:
        """Return the states of block `number`, made if they are missing; a process that makes a share returns none."""
        if self.folder is None:
            return make()
        path = _block(self.folder, number)
        if self.missing(number):
            write_table(path, RankedState, make())
        return Table(path, RankedState) if self.mine is None else []


def _block(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.parquet"


def preference_rows(
    preferences: Iterable[Preference], replay: Iterable[Replay], settings: PreferenceSettings
) -> PreferenceData:
    """Lay out preferences (and replay, where `settings.sft_replay` > 0) as rows; a reply in several pairs is one row.

    The rows of one dialogue are a group.
    """
    rows, turns = GroupedRows(), list[int]()
    number: dict[bytes, int] = {}  # by a digest of the row: the rows themselves would not fit in memory

    def place(row: Row, of: Preference | Replay, turn: int) -> int:
        key = hashlib.blake2b(repr(row).encode(), digest_size=16).digest()
        if key not in number:
            number[key] = rows.add(row, (of.task_id, of.attempt))
            turns.append(turn)
        return number[key]

    def pairs() -> Iterator[tuple[int, int]]:
        for pair in preferences:
            both = [reply_row(pair.prompt_ids, reply) for reply in (pair.chosen_ids, pair.rejected_ids)]
            if settings.loss_tokens == "all":
                both = [all_tokens(row) for row in both]
            chosen, rejected = (place(row, pair, pair.turn) for row in both)
            yield chosen, rejected

    indices, kept = IndexPairs(pairs()), []
    if settings.sft_replay:
        for dialogue in replay:
            row, turn = dialogue.replayed(settings.sft_replay_turns == "final")
            kept.append(place(row, dialogue, turn))
    return rows.data(indices, replay=tuple(kept), turns=tuple(turns))


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
    replay: Iterable[Replay] = (),
    final: bool = True,
) -> PreferenceData:
    """Lay out the weighted candidates of `states`: one row each, its weight as label, the rows of a dialogue a group.

    Labels are scaled to a mean of 1. The successful dialogues `replay` (their `final` replies alone, or all) follow,
    each a group of its own; as candidates they have no weight.
    """
    rows, weights, turns = GroupedRows(), list[float](), list[int]()
    for state in states:
        if not state.candidates:
            continue
        by_candidate = reply_weights(state.candidates, power, temperature, least, equal)
        for reply, weight in zip(state.candidates, by_candidate, strict=True):
            if weight:
                rows.add(reply_row(state.prompt_ids, reply.token_ids), (state.task_id, state.attempt))
                weights.append(weight)
                turns.append(state.turn)
    if not weights:
        raise UserError("candidates: there is no candidate to learn from; run the stage `rank` with more dialogues.")
    if not equal and sum(weight >= 0.999 * HIGHEST for weight in weights) > len(weights) * 2 / 3:
        logger.warning(
            "more than two thirds of the candidates have the greatest weight, so that advantages do not order them: "
            "set a higher policy.advantage_temperature, or, where a few replies of very low advantage shift the mean "
            "of the others, rank.reply_types to median_centered"
        )
    count, scale = len(weights), len(weights) / sum(weights)
    for number, dialogue in enumerate(replay):
        row, turn = dialogue.replayed(final)
        rows.add(row, number)
        turns.append(turn)
    labels = [scale * weight for weight in weights] + [0.0] * (len(turns) - count)
    pairs = ((index, index) for index in range(count))
    return rows.data(pairs, replay=tuple(range(count, len(turns))), labels=tuple(labels), turns=tuple(turns))
