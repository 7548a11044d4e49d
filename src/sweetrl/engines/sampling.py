"""How a token is drawn: from the row's own stream of uniform numbers, so it depends on nothing else in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

    from sweetrl.types import Sampling


def uniforms(seed: int, sample: int, count: int) -> np.ndarray:
    """Return the `count` uniform numbers of completion `sample` of a prompt with `seed`; number t decides token t.

    Philox is counter-based: the stream is a function of (seed, sample) alone.
    """
    import numpy as np

    key = np.array([seed % 2**64, sample], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def draw(logits: torch.Tensor, uniform: torch.Tensor | None, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token for each row of `logits` [rows, vocabulary]; return ids and their log-probs at temperature 1.

    `uniform` [rows] decides by inversion of the distribution function (of the tokens by id, or with top_p < 1 by
    falling probability). temperature 0 takes the likeliest token and ignores it.
    """
    import torch

    logits = logits.float()
    if sampling.temperature == 0.0 or uniform is None:
        ids = logits.argmax(-1)
    else:
        probabilities = torch.softmax(logits / sampling.temperature, -1)
        order = None
        if sampling.top_p < 1.0:
            probabilities, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
            before = probabilities.cumsum(-1) - probabilities
            # The likeliest token always stays, whatever top_p.
            outside = before >= sampling.top_p
            outside[:, 0] = False
            probabilities = probabilities.masked_fill(outside, 0.0)
        cumulative = probabilities.double().cumsum(-1)
        target = uniform.to(cumulative)[:, None] * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the target; one of probability 0 can never be it.
        picked = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
        ids = (picked if order is None else order.gather(-1, picked))[:, 0]
    chosen = logits.gather(-1, ids[:, None])[:, 0] - logits.logsumexp(-1)
    return ids, chosen
