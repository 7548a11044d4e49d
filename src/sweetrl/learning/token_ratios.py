"""What advantages are made of: for every token of a reply, log pi_theta - log pi_ref (Eq. 3).

Ranking keeps them for its first dialogues (`rank.token_ratios`), from the passes that give the advantages; the viewer
asks for others when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sweetrl.learning.critics import LogRatioCritic
from sweetrl.learning.preferences import read_token_ratios, write_token_ratios
from sweetrl.protocols import Critic, Replies, Work
from sweetrl.settings import RankSettings
from sweetrl.types import RankedState, TokenRatios, Trajectory


def token_ratios(
    critic: LogRatioCritic, dialogue: Trajectory, turns: Replies
) -> tuple[list[list[float]], list[TokenRatios]]:
    """Return the advantages of candidates at every turn of `dialogue`, and the log-ratios of their tokens by turn."""
    advantages, ratios = critic.rate_tokens(dialogue, turns)
    tokenizer = getattr(critic.chat, "tokenizer", None)
    known = {token for replies in turns for reply in replies for token in reply.token_ids}
    texts = {token: str(token) if tokenizer is None else tokenizer.decode([token]) for token in known}
    found = []
    for turn, (replies, values) in enumerate(zip(turns, ratios, strict=True)):
        tokens = tuple(
            tuple(zip((texts[token] for token in reply.token_ids), value, strict=True))
            for reply, value in zip(replies, values, strict=True)
        )
        found.append(TokenRatios(dialogue.task.id, dialogue.attempt, turn, tokens))
    return advantages, found


class RatioSample:
    """The token log-ratios of the first `settings.token_ratios` of a ranking's dialogues, in their order.

    They lie in `folder`, a file for each block of dialogues that has some. Only critics of log-ratios have any.
    """

    def __init__(self, critic: Critic, settings: RankSettings, dialogues: int, folder: Path) -> None:
        self.critic, self.block, self.folder = critic, settings.block, folder
        self.count = min(settings.token_ratios, dialogues) if isinstance(critic, LogRatioCritic) else 0

    def rank(self, number: int, rank: Callable[[Critic], list[RankedState]]) -> list[RankedState]:
        """Return what `rank` makes of block `number` with the critic, and keep the block's part of the sample.

        It is written before the states are: a block whose states are there has its part.
        """
        wanted = self.count - number * self.block
        if wanted <= 0 or not isinstance(self.critic, LogRatioCritic):
            return rank(self.critic)
        explained = Explained(self.critic, wanted)
        states = rank(explained)
        write_token_ratios(self._path(number), explained.found)
        return states

    def __iter__(self) -> Iterator[TokenRatios]:
        """Read the parts of all blocks, which have been made."""
        for number in range(-(-self.count // self.block)):
            yield from read_token_ratios(self._path(number))

    def _path(self, number: int) -> Path:
        return self.folder / f"ratios-{number:06d}.parquet"


class Explained:
    """A critic of log-ratios that keeps those of the first `count` dialogues that it rates, in `found`."""

    def __init__(self, critic: LogRatioCritic, count: int) -> None:
        self.critic, self.model, self.count = critic, critic.model, count
        self.found: list[TokenRatios] = []

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """As the critic does (sweetrl.protocols.Critic)."""
        rated = []
        for dialogue, turns in work[: self.count]:
            advantages, ratios = token_ratios(self.critic, dialogue, turns)
            rated.append(advantages)
            self.found += ratios
        rest = work[self.count :]
        self.count -= len(rated)
        return rated + self.critic.rate(rest)
