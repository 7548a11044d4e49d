"""Training the log-ratio critic (Eq. 2) against a reference that sees c, or one that does not.

Import this module where training happens: it loads transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweetrl.learning.batches import PreferenceData
from sweetrl.learning.reference import reference_logprobs, starts_trained
from sweetrl.learning.trainers import CriticTrainer, Report
from sweetrl.settings import CriticSettings


class LogRatioTrainer(CriticTrainer):
    """Stage 1 with log pi_ref(a|o,c), or with log pi_ref(a|o) where the data have `reference_rows`.

    With the latter the advantages begin as the privileged ratio, log pi_ref(a|o,c) - log pi_ref(a|o), not as 0: pairs
    that c tells apart have little left to teach. `reference_kl` then counts what c does, too.
    """

    def __init__(
        self,
        model: Any,
        data: PreferenceData,
        settings: CriticSettings,
        scratch: Path,
        seed: int,
        pad_id: int = 0,
        report: Report | None = None,
        replay: float = 0.0,
        cache: Path | None = None,
    ):
        self.compares = not data.reference_rows  # else what is compared with comes from other rows
        super().__init__(model, data, settings, scratch, seed, pad_id, report, replay, cache)
        if data.reference_rows:
            trained = starts_trained(model)
            self.reference = reference_logprobs(model, data.reference_rows, self.layout, cache, adapter=trained)
