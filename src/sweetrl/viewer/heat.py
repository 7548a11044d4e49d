"""What a log-ratio critic's advantage is made of: for every token of a reply, log pi_theta - log pi_ref (Eq. 3).

The stage `rank` stores them for a sample (sweetrl.viewer.ranked). Those of others are computed when they are asked for,
where the critic and its base are at hand, and kept in the cache by the weights and the dialogue.
"""

from __future__ import annotations

import math
import threading
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.io import digest, read_json, write_json
from sweetrl.types import ReplyRatios, Trajectory
from sweetrl.viewer.index import cache_folder

if TYPE_CHECKING:
    from sweetrl.sweet.critic import LogRatioCritic
    from sweetrl.viewer.rows import Domains

# The sections of the settings that decide, beside weights and dialogue, what the ratios are.
DECIDING = ("suite", "suite_options", "preset", "agent", "critic", "rank")


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
        return kind and (self.folder / "adapter_config.json").exists() and Path(settings.model.base).exists()

    def ratios(self, one: Trajectory) -> list[list[list[Any]]]:
        """Return for each agent turn its tokens as [text, log-ratio]; UserError where there is no critic."""
        from sweetrl.sweet.critic import own_replies
        from sweetrl.sweet.rank import token_ratios

        if not self.there:
            raise UserError(f"{self.folder}: there is no trained log-ratio critic and its base here; train one first.")
        with self._lock:
            critic, weights = self._critic
            settings = self.domains.settings.model_dump(mode="json", by_alias=True)
            ids = [list(turn.token_ids) for turn in one.turns]
            words = [message.content for message in one.messages]
            key = digest(weights, [settings[name] for name in DECIDING], asdict(one.task), one.attempt, ids, words)
            path = cache_folder() / "heat" / f"{key}.json"
            if not path.exists():
                _, by_turn = token_ratios(critic, one, own_replies(one, critic.chat))
                write_json(path, [shown_tokens(reply) for turn in by_turn for reply in turn.replies])
            ratios: list[list[list[Any]]] = read_json(path)
            return ratios

    @cached_property
    def _critic(self) -> tuple[LogRatioCritic, str]:
        """The critic, and the hashes of its weights."""
        from sweetrl.file_hashes import dvc_hash
        from sweetrl.methods.critics import make_critic
        from sweetrl.sweet.critic import LogRatioCritic

        settings = self.domains.settings
        weights = dvc_hash(self.folder) + dvc_hash(Path(settings.model.base))
        trained = settings.model_copy(update={"rank": settings.rank.model_copy(update={"critic": "trained"})})
        critic = make_critic(self.domains.of(settings.suite).configured(trained), trained, self.folder)
        assert isinstance(critic, LogRatioCritic)
        return critic, weights


def shown_tokens(reply: ReplyRatios) -> list[list[Any]]:
    """The tokens of a reply with their log-ratios as the page takes them; a ratio that is no number is None."""
    values = [round(ratio, 5) if math.isfinite(ratio) else None for ratio in reply.ratios]
    return [[text, value] for text, value in zip(reply.tokens, values, strict=True)]
