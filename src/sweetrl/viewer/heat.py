"""What a log-ratio critic's advantage is made of: for every token of a reply, log pi_theta - log pi_ref (Eq. 3).

The stage `rank` stores them for a sample (sweetrl.viewer.ranked). Those of others are computed on request, where the
critic and its base are at hand; so are prompts as texts, by the base's tokenizer.
"""

from __future__ import annotations

import math
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.models.check import is_trained
from sweetrl.types import ReplyRatios, Trajectory

if TYPE_CHECKING:
    from sweetrl.sweet.critic import LogRatioCritic
    from sweetrl.viewer.rows import Domains


class Heat:
    """The critic in `folder`, loaded at the first question; one question at a time."""

    def __init__(self, domains: Domains, folder: Path) -> None:
        self.domains, self.folder = domains, folder
        self._lock = threading.Lock()

    @property
    def there(self) -> bool:
        """Whether there is a trained critic of the kind that has ratios, and the base it was trained on."""
        settings = self.domains.settings
        kind = settings.critic.parameterization == "log-ratio"
        return kind and is_trained(self.folder) and self.base_there

    @property
    def base_there(self) -> bool:
        """Whether the base is a folder here."""
        return Path(self.domains.settings.model.base).exists()

    def ratios(self, dialogue: Trajectory) -> list[list[list[Any]]]:
        """Return for each agent turn its tokens as [text, log-ratio]; UserError where there is no critic."""
        from sweetrl.sweet.critic import own_replies
        from sweetrl.sweet.rank import token_ratios

        if not self.there:
            raise UserError(f"{self.folder}: there is no trained log-ratio critic and its base here; train one first.")
        with self._lock:
            _, by_turn = token_ratios(self._critic, dialogue, own_replies(dialogue, self._critic.chat))
        return [shown_tokens(reply) for turn in by_turn for reply in turn.replies]

    def prompts(self, dialogue: Trajectory) -> list[str]:
        """Return for each agent turn what its prompt had more than was read before; UserError without a base."""
        return [self._tokenizer.decode(list(turn.prompt_ids)) for turn in dialogue.turns]

    @cached_property
    def _tokenizer(self) -> Any:
        from sweetrl.models.load import load_tokenizer

        return load_tokenizer(self.domains.settings.model.base)

    @cached_property
    def _critic(self) -> LogRatioCritic:
        from sweetrl.api.learning import TrainedCritic
        from sweetrl.sweet.critic import LogRatioCritic

        critic = TrainedCritic.load(self.domains.of(self.domains.settings.suite), self.folder).critic
        assert isinstance(critic, LogRatioCritic)
        return critic


def shown_tokens(reply: ReplyRatios) -> list[list[Any]]:
    """The tokens of a reply with their log-ratios as the page takes them; a ratio that is no number is None."""
    values = [round(ratio, 5) if math.isfinite(ratio) else None for ratio in reply.ratios]
    return [[text, value] for text, value in zip(reply.tokens, values, strict=True)]
