"""What a stage's dialogues have cost, from their ledgers to the stage's run."""

from __future__ import annotations

from pathlib import Path

from sweetrl.running.stage import StageRun


def log_costs(run: StageRun, folder: Path, pattern: str, suffix: str = "") -> None:
    """Log what the dialogues in the ledgers `pattern` cost: sums, means and percentiles, and a line for each in a file.

    The sums take the place of what this process alone has spent: others may have made shares, or been killed before.
    """
    from sweetrl.rollout.ledger import Ledger, cost_metrics, cost_totals

    paths = sorted(folder.glob(pattern))
    costs = [one for path in paths for one in Ledger(path).read()]
    metrics = cost_totals(costs) | cost_metrics(costs)
    run.log_metrics({f"{name}{suffix}": value for name, value in metrics.items()})
    for path in paths:
        run.log_artifact(path, "costs")
