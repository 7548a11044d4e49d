"""What engines have spent, as metrics."""

from __future__ import annotations

from typing import Any

from sweetrl.types import Usage


def cost(usage: Usage | None, prefix: str = "") -> dict[str, float]:
    """Return the metrics of what an engine has spent; nothing where nobody counts."""
    if usage is None:
        return {}
    metrics: dict[str, Any] = {
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
