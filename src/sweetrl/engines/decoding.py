"""The decoding loop of the transformers engine: prefill each distinct prompt once, then one token a step for all rows.

Rows that have ended leave the batch when an eighth of it has, and waiting prompts enter when half of it is free,
because a program is ten times as long as a question: without that most work would be done for rows long finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sweetrl.engines.cache import CacheShape, PrefixCache, RowCache, cache_view, place
from sweetrl.errors import UserError
from sweetrl.types import Prompt, Sampling

if TYPE_CHECKING:
    import numpy as np
    import torch


PREFILL_TOKENS = 32_768  # of prompts, in one forward pass


@contextmanager
def memory_for_sampling() -> Iterator[None]:
    """Turn running out of the device's memory into a UserError that says what takes less."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            "the device's memory does not hold the dialogues that are sampled together; lower `collect.batch` or "
            "`evaluate.batch`, `agent.max_new_tokens` or `rank.candidates`, or end what else runs on it."
        ) from error


@dataclass
class Reply:
    """One completion in the making."""

    prompt: tuple[int, ...]
    seed: int
    sample: int
    budget: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False
    cached: int = 0
    """Tokens of the prompt that were not computed for this reply."""
    busy: float = 0.0
    """Its share of the seconds that its batches took."""

    @property
    def open(self) -> bool:
        """Whether tokens are still to come."""
        return not self.ended and len(self.ids) < self.budget


@dataclass
class _Batch:
    """Rows being decoded; arrays have one element a row. Ended rows are computed and ignored until they are dropped."""

    cache: RowCache
    view: Any  # the cache as transformers sees it
    replies: list[Reply]
    lengths: np.ndarray  # tokens in the cache
    last: np.ndarray  # the token drawn last, not yet in the cache
    ended: np.ndarray
    after: np.ndarray  # columns written since the row ended
    uniforms: np.ndarray | None  # [rows, the longest budget]

    def alive(self) -> list[int]:
        return [row for row, ended in enumerate(self.ended.tolist()) if not ended]

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row i be what row `rows[i]` was, in everything but the cache."""
        self.replies = [self.replies[row] for row in rows]
        for name in ("lengths", "last", "ended", "after"):
            setattr(self, name, getattr(self, name)[rows])
        self.uniforms = None if self.uniforms is None else self.uniforms[rows]


class Decoder:
    """Samples from one causal language model with a row cache, `rows` decoded together; it has `context` positions."""

    def __init__(self, model: Any, shape: CacheShape, stop_ids: Sequence[int], rows: int, context: int) -> None:
        self.model, self.shape, self.stop_ids = model, shape, frozenset(stop_ids)
        self.rows, self.context = rows, context
        self._like: torch.Tensor = model.get_input_embeddings().weight  # of the type and device of keys and values
        self._device = self._like.device

    @memory_for_sampling()
    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, prefixes: PrefixCache | None
    ) -> list[list[Reply]]:
        """Return `sampling.n` finished replies for each prompt.

        `prefixes` finds keys and values computed by earlier calls and takes in those of this call.
        """
        replies = []
        for prompt in prompts:
            budget = min(sampling.max_new_tokens, self.context - len(prompt.token_ids))
            samples = range(sampling.n)
            replies.append([Reply(prompt.token_ids, prompt.seed, sample, budget) for sample in samples])
        # No row draws more numbers than its budget has tokens, and the first ones of a stream do not depend on how many
        # follow: a request for more tokens than the model can read takes no memory for them.
        longest = max((group[0].budget for group in replies if group), default=1)
        sampling = replace(sampling, max_new_tokens=longest)
        groups: dict[tuple[int, ...], list[Reply]] = {}
        for group in replies:
            if group and group[0].open and group[0].prompt:
                groups.setdefault(group[0].prompt, []).extend(group)
        waiting = deque(sorted(groups.values(), key=lambda group: (-len(group[0].prompt), group[0].prompt)))
        batch: _Batch | None = None
        while waiting or batch:
            alive = len(batch.alive()) if batch else 0
            if batch and alive <= 0.875 * len(batch.replies):
                batch = self._compact(batch, prefixes if sampling.n == 1 else None)
            if waiting and alive <= self.rows // 2:
                while waiting and (not alive or alive + len(waiting[0]) <= self.rows):
                    chunk = self._next_chunk(waiting, self.rows - alive)
                    entered = self._enter(chunk, sampling, prefixes)
                    # Where rows are kept for later calls, nothing may take their place.
                    batch = entered if batch is None else _merge(batch, entered, in_place=prefixes is None)
                    alive += sum(len(group) for group in chunk)
            if batch and batch.alive():
                self._step(batch, sampling)
        if prefixes is not None:
            prefixes.turn_over()
        return replies

    def _next_chunk(self, waiting: deque[list[Reply]], rows: int) -> list[list[Reply]]:
        """Take as many groups as fit in one prefill; at least one."""
        chunk: list[list[Reply]] = []
        longest = taken = 0
        while waiting:
            group = waiting[0]
            longest = max(longest, len(group[0].prompt))
            taken += len(group)
            if chunk and (taken > rows or longest * (len(chunk) + 1) > PREFILL_TOKENS):
                break
            chunk.append(waiting.popleft())
        return chunk

    def _enter(self, chunk: list[list[Reply]], sampling: Sampling, prefixes: PrefixCache | None) -> _Batch:
        """Compute the prompts of `chunk`, one row each, spread them to their replies and draw the first tokens."""
        import numpy as np
        import torch

        prompts = [group[0].prompt for group in chunk]
        lengths = np.array([len(prompt) for prompt in prompts])
        width = int(lengths.max())
        prefixes_kept = [prefixes.longest(prompt) if prefixes else (0, None) for prompt in prompts]
        new = int(max(len(prompt) - cached for prompt, (cached, _) in zip(prompts, prefixes_kept, strict=True)))
        spare = prefixes.spare() if prefixes is not None else None
        cache = RowCache(self.shape, len(prompts), width, self._like, spare=spare)
        # A known prefix is put at its place; the last `new` tokens of every prompt are computed, so that all rows share
        # one forward pass. Where that overlaps with a known prefix, it computes the same again.
        ids = np.zeros((len(prompts), new), dtype=np.int64)
        for row, (prompt, (cached, kept)) in enumerate(zip(prompts, prefixes_kept, strict=True)):
            # Equal prompts in one call are computed once.
            for number, reply in enumerate(chunk[row][:: sampling.n]):
                reply.cached = len(prompt) if number else cached
            if kept is not None:
                place(cache, row, width - len(prompt) + cached, kept, cached)
            tail = prompt[-new:]
            ids[row, new - len(tail) :] = tail
        columns = np.arange(width - new, width)
        positions = columns[None, :] - (width - lengths)[:, None]
        cache.start = width - new
        if (positions < 0).any():
            cache.fresh = torch.from_numpy(positions >= 0)[:, None, :, None].to(self._device)
        view = cache_view(cache)
        logits = self._forward(view, ids, np.maximum(positions, 0), _mask(lengths, width))
        cache.fresh = None
        if prefixes is not None and sampling.n > 1:
            prefixes.add(cache.store, range(len(prompts)), prompts, [width] * len(prompts))
        spread = [row for row, group in enumerate(chunk) for _ in group]
        replies = [reply for group in chunk for reply in group]
        if len(spread) > len(prompts):
            cache.spread(spread)
            logits = logits[torch.as_tensor(spread, device=logits.device)]
        stream = None
        if sampling.temperature > 0.0:
            stream = np.stack([uniforms(reply.seed, reply.sample, sampling.max_new_tokens) for reply in replies])
        none = np.zeros(len(replies), dtype=np.int64)
        batch = _Batch(cache, view, replies, lengths[spread], none, none.astype(bool), none, stream)
        self._draw(batch, logits, sampling)
        return batch

    def _step(self, batch: _Batch, sampling: Sampling) -> None:
        """Feed every row its last token and draw the next."""
        batch.cache.extend()
        batch.cache.start = batch.cache.stop - 1
        batch.after = batch.after + batch.ended
        positions = batch.lengths[:, None]
        batch.lengths = batch.lengths + 1
        mask = _mask(batch.lengths, batch.cache.width)
        self._draw(batch, self._forward(batch.view, batch.last[:, None], positions, mask), sampling)

    def _draw(self, batch: _Batch, logits: torch.Tensor, sampling: Sampling) -> None:
        import numpy as np
        import torch

        uniform = None
        if batch.uniforms is not None:
            drawn = [min(len(reply.ids), sampling.max_new_tokens - 1) for reply in batch.replies]
            uniform = torch.from_numpy(batch.uniforms[np.arange(len(drawn)), drawn]).to(logits.device)
        ids, logprobs = draw(logits, uniform, sampling)
        batch.last = ids.cpu().numpy()
        ended = batch.ended.tolist()
        for row, (token, logprob) in enumerate(zip(batch.last.tolist(), logprobs.tolist(), strict=True)):
            if ended[row]:
                continue
            reply = batch.replies[row]
            reply.ids.append(token)
            reply.logprobs.append(logprob)
            reply.ended = token in self.stop_ids or token in sampling.stop_ids
            ended[row] = not reply.open
        batch.ended = np.array(ended)

    def _compact(self, batch: _Batch, prefixes: PrefixCache | None) -> _Batch | None:
        """Drop the ended rows (found again through `prefixes` if given); None if no row is left."""
        alive = batch.alive()
        order = batch.cache.drop(alive, batch.lengths[alive].tolist() if alive else [0])
        if prefixes is not None:
            ended = order[len(alive) :]
            # The last token was drawn but never fed back, so the cache does not hold it.
            tokens = [(*batch.replies[row].prompt, *batch.replies[row].ids[:-1]) for row in ended]
            stops = (batch.cache.stop - batch.after[ended]).tolist()
            prefixes.add(batch.cache.store, range(len(alive), len(order)), tokens, stops)
        if not alive:
            return None
        batch.reorder(order[: len(alive)])
        return batch

    def _forward(self, view: Any, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> torch.Tensor:
        """Return the logits [rows, vocabulary] after the last column."""
        import torch

        output = self.model(
            input_ids=torch.from_numpy(ids).to(self._device),
            position_ids=torch.from_numpy(positions).to(self._device),
            attention_mask=torch.from_numpy(mask).to(self._device),
            past_key_values=view,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


def _mask(lengths: np.ndarray, width: int) -> np.ndarray:
    """True where a row has a token: its last `lengths[row]` columns."""
    import numpy as np

    return np.arange(width)[None, :] >= (width - lengths)[:, None]


def _merge(batch: _Batch, entered: _Batch, in_place: bool) -> _Batch:
    """Put the rows of `entered` after those of `batch`."""
    import numpy as np

    batch.cache.append(entered.cache, in_place)
    batch.replies = [*batch.replies, *entered.replies]
    for name in ("lengths", "last", "ended", "after", "uniforms"):
        parts = (getattr(batch, name), getattr(entered, name))
        setattr(batch, name, None if parts[0] is None else np.concatenate(parts))
    return batch


# How a token is drawn: from the row's own stream of uniform numbers, so it depends on nothing else in the batch


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
