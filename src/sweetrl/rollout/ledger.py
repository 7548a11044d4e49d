"""What each dialogue has cost: one line each, written as it ends, beside the dialogues and no part of them.

Dialogues are a function of their seeds and come out the same every time; what they cost does not. A dialogue that was
made twice (a kill took its shard, or it was lost and tried again) has two lines: both were paid for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low

from sweetrl.io import append_row
from sweetrl.types import Usage

# What a metric of costs is called: it differs between equal runs.
COST = re.compile(
    r"(simulator|dialogue)/|((prompt|cached|generated)_tokens|(failed_)?requests|retries)\b|.*(seconds|per_second)"
)


@dataclass(frozen=True)
class DialogueCost:
    """One dialogue's agent: tokens read (`cached_tokens` of them not computed again) and written, and time in seconds.

    `seconds` is the wall time from the first prompt to the end, waiting for the user included; `busy_seconds` its
    share of the engine's time (dialogues under way together share it), `gpu_seconds` that times the GPUs at work.
    """

    task: str
    attempt: int
    policy: str
    lost: bool
    turns: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float
    busy_seconds: float
    gpu_seconds: float


class Ledger:
    """A file of costs, a JSON object a line, which only grows."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def add(self, costs: Sequence[DialogueCost]) -> None:
        """Append `costs`; UserError where the disk is full."""
        for cost in costs:
            append_row(self.path, asdict(cost))

    def read(self) -> list[DialogueCost]:
        """Return what is written so far, without a line that a kill broke off."""
        costs = []
        for line in self.path.read_bytes().splitlines() if self.path.exists() else []:
            with suppress(ValueError, TypeError):
                costs.append(DialogueCost(**json.loads(line)))
        return costs


def cost_totals(costs: Sequence[DialogueCost]) -> dict[str, float]:
    """Return what the agent has cost in all of `costs`: tokens and GPU-seconds; {} for none."""
    names = ("prompt_tokens", "cached_tokens", "generated_tokens", "gpu_seconds")
    return {name: float(sum(getattr(each, name) for each in costs)) for name in names} if costs else {}


def cost_metrics(costs: Sequence[DialogueCost]) -> dict[str, float]:
    """Return what a dialogue costs: mean, median and 95th percentile of the times, means of the tokens; {} for none."""
    if not costs:
        return {}
    metrics: dict[str, float] = {}
    for name in ("seconds", "busy_seconds", "gpu_seconds"):
        values = sorted(float(getattr(each, name)) for each in costs)
        metrics[f"dialogue/{name}"] = sum(values) / len(values)
        metrics[f"dialogue/{name}_median"] = median_low(values)
        metrics[f"dialogue/{name}_p95"] = values[int(0.95 * len(values))]
    for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
        metrics[f"dialogue/{name}"] = sum(getattr(each, name) for each in costs) / len(costs)
    return metrics


def cost(usage: Usage | None, prefix: str = "") -> dict[str, float]:
    """Return the metrics of what an engine has spent; nothing where nobody counts."""
    if usage is None:
        return {}
    metrics: dict[str, float] = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "seconds_sampling": usage.seconds,
        "gpu_seconds": usage.gpu_seconds,
        "tokens_per_second": usage.generated_tokens / max(usage.seconds, 1e-9),
    }
    if usage.requests:
        metrics |= {"requests": usage.requests, "retries": usage.retries, "failed_requests": usage.failures}
    return {f"{prefix}{name}": float(value) for name, value in metrics.items()}
