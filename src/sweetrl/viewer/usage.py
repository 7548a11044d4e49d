"""The runs behind a project's dialogues, and what each dialogue has cost: as far as the tracking store knows.

Costs are no part of dialogues (equal runs give equal files): the stages write them down as an artifact of their run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.types import Trajectory
from sweetrl.viewer.sources import Source

if TYPE_CHECKING:
    from sweetrl.rollout.ledger import DialogueCost
    from sweetrl.settings import Settings
    from sweetrl.tracking.lineage import RunFacts

OWN = "data/"  # where the sources lie that the runs of a project's stages have made
SHOWN = ("prompt_tokens", "cached_tokens", "generated_tokens", "seconds", "busy_seconds")


class Usage:
    """What the runs `runs` (by stage) were and cost; the store is asked when it is needed, and once."""

    def __init__(self, settings: Settings, runs: Mapping[str, str]) -> None:
        self.settings, self._ids = settings, {stage: run_id for stage, run_id in runs.items() if run_id}

    def of(self, source: Source, one: Trajectory) -> dict[str, Any] | None:
        """Return tokens and seconds of one dialogue; None where nobody has noted them."""
        if not source.name.startswith(OWN):
            return None
        found = self._costs.get((source.stage, source.method, one.task.id, one.attempt))
        return None if found is None else {name: getattr(found, name) for name in SHOWN}

    def totals(self) -> list[dict[str, Any]]:
        """Return tokens and seconds by stage and method, with the number of dialogues."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for (stage, method, *_), cost in self._costs.items():
            empty: dict[str, Any] = {"stage": stage, "method": method, "dialogues": 0, **dict.fromkeys(SHOWN, 0)}
            sums = found.setdefault((stage, method), empty)
            sums["dialogues"] += 1
            for name in SHOWN:
                sums[name] += getattr(cost, name)
        return list(found.values())

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs: stage, id, status, commit, seconds."""
        return [
            {"stage": stage} | {name: asdict(facts)[name] for name in ("run_id", "status", "commit", "seconds")}
            for stage, facts in self._facts.items()
        ]

    def parameters(self) -> dict[str, str]:
        """Return the parameters of all runs together."""
        return {name: value for facts in self._facts.values() for name, value in facts.params.items()}

    @cached_property
    def _facts(self) -> dict[str, RunFacts]:
        from sweetrl.tracking.lineage import Records

        if not self._ids:
            return {}
        try:
            records = Records(self.settings.tracking)
            found = {stage: records.run(run_id) for stage, run_id in self._ids.items()}
        except (UserError, ImportError):
            return {}
        return {stage: one.facts for stage, one in found.items() if one is not None}

    @cached_property
    def _costs(self) -> dict[tuple[str, str, str, int], DialogueCost]:
        """The costs by stage, method (of an evaluation), task and attempt; of a dialogue made twice the last one's."""
        from sweetrl.rollout.ledger import Ledger
        from sweetrl.tracking.lineage import Records

        found: dict[tuple[str, str, str, int], DialogueCost] = {}
        for stage in ("collect", "evaluate"):
            if stage not in self._ids:
                continue
            with tempfile.TemporaryDirectory(prefix="sweetrl-costs-") as scratch:
                try:
                    files = Records(self.settings.tracking).files(self._ids[stage], "costs", Path(scratch))
                except (UserError, ImportError):
                    continue
                for path in files:  # costs.jsonl, or costs-METHOD.jsonl; shares of a stage have a number behind it
                    parts = path.stem.split("-")
                    method = parts[1] if stage == "evaluate" and len(parts) > 1 else ""
                    for cost in Ledger(path).read():
                        found[stage, method, cost.task, cost.attempt] = cost
        return found
