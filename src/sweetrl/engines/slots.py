"""The decoding loop of the transformers engine on a GPU: a fixed number of slots, and a step as one CUDA graph.

A slot holds one reply's keys and values, token t in column t. Shapes and addresses stay, so a step of all slots, and a
pass over what users said, is recorded once for each width of the attention and replayed: without that the card waits
for the core, which starts a thousand kernels one by one. A reply that ends leaves its slot, and prompts enter while
others go on. What a slot held stays until another reply takes it: there the next turn of a dialogue finds its own
beginning.

transformers' continuous batching draws all rows from one generator; here each has a stream of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice, takewhile
from math import prod
from typing import TYPE_CHECKING, Any

from sweetrl.engines.cache import CacheShape, cache_view, nearest
from sweetrl.engines.decoding import PREFILL_TOKENS, Reply, draw, memory_for_sampling, uniforms
from sweetrl.types import Prompt, Sampling

if TYPE_CHECKING:
    import numpy as np
    import torch

logger = logging.getLogger("sweetrl")

COLUMNS = 256  # attention reads so many columns, or a multiple of them
SHORT = 64  # prompts with at most so many tokens to be computed are computed in passes of few shapes
_DEVICE = threading.Lock()  # engines take turns: only one graph may be recorded at a time in a process


@contextmanager
def written_by_index() -> Iterator[None]:
    """Let torch write by index without its deterministic kernels, which would copy the cache and wait for the device.

    No place that is read is written twice, so results are the same. The setting is one of the whole process: threads
    that compute beside a sampler must be within it from beginning to end.
    """
    import torch

    before, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)


@dataclass
class SlotReply(Reply):
    """A reply in a slot, or on its way to one."""

    sampling: Sampling = field(kw_only=True)
    uniforms: np.ndarray | None = None

    @property
    def room(self) -> int:
        """The columns that it may need."""
        return len(self.prompt) + self.budget

    @property
    def kind(self) -> tuple[float, float]:
        """What all replies of a step have in common."""
        return self.sampling.temperature, self.sampling.top_p

    @property
    def uniform(self) -> float:
        """The number that decides its next token."""
        return 0.0 if self.uniforms is None else float(self.uniforms[len(self.ids)])


@dataclass(frozen=True)
class _Content:
    """The tokens whose keys and values are in a slot."""

    tokens: tuple[int, ...]
    slot: int


class SlotCache:
    """Keys and values in `store` [layers, 2, slots, heads, columns + 1, size].

    What belongs nowhere (padding, slots without a reply) is written to the last column, which is never read.
    """

    start = left = 0  # for transformers; the model gets its positions and masks from us

    def __init__(self, shape: CacheShape, slots: int, columns: int, like: torch.Tensor) -> None:
        self.shape, self.columns = shape, columns
        self.store = like.new_zeros((shape.layers, 2, slots, shape.heads, columns + 1, shape.size))
        self.rows: torch.Tensor | None = None  # [rows] the slots of the running pass; None: all
        self.places = like.new_zeros((slots, 1)).long()  # [rows, new] the columns that it writes
        self.width = 0  # how many columns it reads

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values [rows, heads, new, size]; return those of the columns that are read."""
        import torch

        store = self.store[layer]
        rows = torch.arange(store.shape[1], device=store.device) if self.rows is None else self.rows
        for part, new in zip(store, (keys, values), strict=True):
            part[rows[:, None], :, self.places] = new.transpose(1, 2)
        read = store[..., : self.width, :] if self.rows is None else store[:, rows, :, : self.width]
        return read[0], read[1]

    def copy(self, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """Copy the first `length` columns from slot to slot, all pairs at once: a target may be a source, too."""
        import torch

        source, target = torch.tensor(pairs, device=self.store.device).T
        for layer in self.store:
            layer[:, target, :, :length] = layer[:, source, :, :length]


class Slots:
    """Samples from one causal language model with at most `rows` replies at a time; it has `context` positions.

    On a GPU keys and values take at most half of what is free. It is for one thread.
    """

    def __init__(self, model: Any, shape: CacheShape, stop_ids: Sequence[int], rows: int, context: int) -> None:
        self.model, self.shape, self.stop_ids = model, shape, frozenset(stop_ids)
        self.rows, self.context = rows, context
        self._like: torch.Tensor = model.get_input_embeddings().weight  # of the type and device of keys and values
        self._device = self._like.device
        self._waiting: deque[SlotReply] = deque()
        self._slots: list[SlotReply | None] = []
        self._free: list[int] = []  # the slot first that has been free for longest
        self._limit = rows  # how many slots fit into memory
        self._cache: SlotCache | None = None
        self._graphs: dict[tuple[float, ...], Any] = {}
        self._graphed = self._device.type == "cuda"  # whether what comes again becomes a graph

    @property
    def busy(self) -> bool:
        """Whether a reply is under way or waits."""
        return bool(self._waiting) or len(self._free) < len(self._slots)

    def add(self, prompt: Prompt, sampling: Sampling) -> list[SlotReply]:
        """Let a prompt's `sampling.n` replies wait for slots; each grows with the steps as long as it is `open`."""
        ids = prompt.token_ids
        budget = min(sampling.max_new_tokens, self.context - len(ids)) if ids else 0
        replies = [SlotReply(ids, prompt.seed, sample, budget, sampling=sampling) for sample in range(sampling.n)]
        self._waiting.extend(reply for reply in replies if reply.open)
        return replies

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[SlotReply]]:
        """Return `sampling.n` finished replies for each prompt."""
        replies = [self.add(prompt, sampling) for prompt in prompts]
        self._waiting = deque(sorted(self._waiting, key=lambda reply: -len(reply.prompt)))  # one pass has like lengths
        while self.busy:
            self.step()
        return replies

    @memory_for_sampling()
    def step(self) -> None:
        """Let waiting replies enter when it is time, and draw one more token for each reply under way."""
        import torch

        started = time.perf_counter()
        on_device = torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        with _DEVICE, torch.no_grad(), on_device:
            entering = self._admitted()
            while entering:
                entering = self._prefill(entering)
            if under_way := self._under_way():
                self._decode(under_way)
        share = (time.perf_counter() - started) / max(len(under_way), 1)
        for _, reply in under_way:
            reply.busy += share

    def _under_way(self) -> list[tuple[int, SlotReply]]:
        return [(slot, reply) for slot, reply in enumerate(self._slots) if reply is not None and reply.open]

    def _admitted(self) -> list[SlotReply]:
        """Take the replies that enter now, if they are at least a quarter of those under way: a pass over prompts takes
        as long as several steps.

        A reply that is drawn in another way than those, or needs more or larger slots, waits until they are over, and
        so do all behind it. (There are no more slots than needed: each step computes and reads all of them.)
        """
        active = len(self._slots) - len(self._free)
        if not active and self._waiting:
            self._make_room()
        if self._cache is None or min(self._limit, active + len(self._waiting)) > len(self._slots):
            return []
        columns, alike = self._cache.columns, [reply for _, reply in self._under_way()] or self._waiting
        fitting = takewhile(lambda reply: reply.kind == alike[0].kind and reply.room <= columns, self._waiting)
        entering = list(islice(fitting, len(self._free)))
        if 4 * len(entering) < active:
            return []
        for _ in entering:
            self._waiting.popleft()
        return entering

    def _make_room(self) -> None:
        """Make enough slots, and large enough, for the replies that wait; what the old slots held is lost."""
        import torch

        columns = max(reply.room for reply in self._waiting)
        if self._cache is not None:
            if columns <= self._cache.columns and min(self._limit, len(self._waiting)) <= len(self._slots):
                return
            columns = max(columns, self._cache.columns)
        columns = min(self.context, max(4 * COLUMNS, 2 ** (columns - 1).bit_length()))
        self._cache, self._view = None, None
        self._graphs.clear()
        self._limit = self.rows
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            slot = 2 * prod((self.shape.layers, self.shape.heads, columns + 1, self.shape.size))
            fit = torch.cuda.mem_get_info(self._device)[0] // 2 // (slot * self._like.element_size())
            self._limit = max(1, min(self.rows, fit))
        waiting, before = len(self._waiting), len(self._slots)
        count = min(self._limit, max(waiting, 2 * before if waiting > before else before))
        self._cache = SlotCache(self.shape, count, columns, self._like)
        self._view = cache_view(self._cache)
        self._slots, self._free = [None] * count, list(range(count))

    def _width(self, longest: int) -> int:
        assert self._cache is not None
        return min(self._cache.columns, -(-longest // COLUMNS) * COLUMNS)

    @written_by_index()
    def _prefill(self, entering: list[SlotReply]) -> list[SlotReply]:
        """Compute prompts of `entering`, draw their replies' first tokens, and return those that did not fit."""
        import numpy as np
        import torch

        assert self._cache is not None
        groups: dict[tuple[int, ...], list[SlotReply]] = {}
        for reply in entering:
            groups.setdefault(reply.prompt, []).append(reply)
        filled = [(slot, reply) for slot, reply in enumerate(self._slots) if reply is not None]
        # The last token of a reply was drawn and never computed.
        held = [_Content((*reply.prompt, *reply.ids[:-1]), slot) for slot, reply in filled]
        held.sort(key=lambda content: content.tokens)
        cached = {prompt: nearest(held, prompt) for prompt in groups}
        new = {prompt: len(prompt) - shared for prompt, (shared, _) in cached.items()}
        width = self._width(max(map(len, groups)))
        prompts, longest = sorted(groups, key=lambda prompt: -new[prompt]), max(new.values())
        # A dialogue that goes on comes first: later its slot might be taken.
        if short := min(new.values()) <= SHORT:
            prompts = [prompt for prompt in prompts if new[prompt] <= SHORT][:SHORT]
        else:
            prompts = prompts[: max(1, PREFILL_TOKENS // max(longest, width // 4))]
        slots = self._settle([cached[prompt] for prompt in prompts])
        # Rows without a prompt are padding, as what stands left of the others.
        shape = (2 ** (len(prompts) - 1).bit_length(), SHORT) if short else (len(prompts), longest)
        inputs, rows = np.zeros((3, *shape), dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
        rows[: len(slots)] = slots
        inputs[2] = self._cache.columns
        for row, prompt in enumerate(prompts):
            inputs[0, row, -new[prompt] :] = prompt[-new[prompt] :]
            inputs[1:, row, -new[prompt] :] = range(len(prompt) - new[prompt], len(prompt))
        forward = partial(self._forward, width)
        logits = self._run((width, shape[0]), forward, inputs, rows) if short else forward(*self._moved(inputs, rows))
        begun, spread, copies = list[tuple[int, SlotReply]](), list[int](), list[tuple[int, int]]()
        for row, (first, prompt) in enumerate(zip(slots, prompts, strict=True)):
            for number, reply in enumerate(groups[prompt]):  # equal prompts are computed once
                slot = self._free.pop(0) if number else first
                copies += [(first, slot)] if number else []
                reply.cached = len(prompt) if number else cached[prompt][0]
                if reply.sampling.temperature > 0.0:
                    reply.uniforms = uniforms(reply.seed, reply.sample, reply.budget)
                self._slots[slot] = reply
                begun.append((slot, reply))
                spread.append(row)
        if copies:
            self._cache.copy(copies, width)
        uniform = torch.tensor([reply.uniform for _, reply in begun], dtype=torch.float64, device=self._device)
        tokens, logprobs = draw(logits[torch.tensor(spread, device=self._device)], uniform, begun[0][1].sampling)
        self._take(begun, tokens.tolist(), logprobs.tolist())
        return [reply for reply in entering if not reply.ids]

    def _settle(self, prompts: Sequence[tuple[int, _Content | None]]) -> list[int]:
        """Take a slot for each prompt, and copy into it what another slot already holds of the prompt.

        A dialogue that goes on takes the slot that it had, all others one that has been free for long.
        """
        assert self._cache is not None
        slots: dict[int, int] = {}
        for number, (shared, content) in enumerate(prompts):
            if content is not None and content.slot in self._free and 2 * shared >= len(content.tokens):
                self._free.remove(content.slot)
                slots[number] = content.slot
        for number in range(len(prompts)):
            if number not in slots:
                slots[number] = self._free.pop(0)
        copies = [
            (content.slot, slots[number])
            for number, (_, content) in enumerate(prompts)
            if content is not None and content.slot != slots[number]
        ]
        if copies:
            self._cache.copy(copies, max(shared for shared, _ in prompts))
        return [slots[number] for number in range(len(prompts))]

    def _decode(self, under_way: list[tuple[int, SlotReply]]) -> None:
        """Feed every reply its last token and draw the next."""
        import numpy as np

        assert self._cache is not None
        inputs, numbers = np.zeros((3, len(self._slots), 1), dtype=np.int64), np.zeros(len(self._slots))
        inputs[2] = self._cache.columns
        slots, replies = [slot for slot, _ in under_way], [reply for _, reply in under_way]
        places = [len(reply.prompt) + len(reply.ids) - 1 for reply in replies]
        inputs[:, slots, 0] = [reply.ids[-1] for reply in replies], places, places
        numbers[slots] = [reply.uniform for reply in replies]
        width, sampling = self._width(1 + max(places)), replies[0].sampling
        drawn = self._run((width, *replies[0].kind), partial(self._compute, width, sampling), inputs, numbers)
        tokens, logprobs = drawn.tolist()
        self._take(under_way, [int(tokens[slot]) for slot in slots], [logprobs[slot] for slot in slots])

    def _take(self, replies: Sequence[tuple[int, SlotReply]], tokens: list[int], logprobs: list[float]) -> None:
        """Add the tokens drawn; finished replies free their slots."""
        for (slot, reply), token, logprob in zip(replies, tokens, logprobs, strict=True):
            reply.ids.append(token)
            reply.logprobs.append(logprob)
            reply.ended = token in self.stop_ids or token in reply.sampling.stop_ids
            if not reply.open:
                self._free.append(slot)

    @written_by_index()
    def _forward(self, width: int, inputs: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits [rows, vocabulary] after the last of the new tokens.

        `inputs` are tokens, positions and places [3, rows, new], `rows` the slots (None: all) of which `width` columns
        are read.
        """
        import torch

        assert self._cache is not None
        ids, positions, places = inputs
        self._cache.rows, self._cache.places, self._cache.width = rows, places, width
        later = torch.arange(width, device=self._device) > positions[:, None, :, None]
        mask = torch.zeros(later.shape, dtype=self._like.dtype, device=self._device)
        mask.masked_fill_(later, torch.finfo(mask.dtype).min)
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._view,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _compute(self, width: int, sampling: Sampling, inputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the next token of each slot and its log-prob [2, slots]."""
        import torch

        return torch.stack([part.double() for part in draw(self._forward(width, inputs), numbers, sampling)])

    def _moved(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        import torch

        return [torch.from_numpy(array).to(self._device) for array in arrays]

    # What is computed again and again, as CUDA graphs

    def _run(self, key: tuple[float, ...], compute: Callable[..., torch.Tensor], *arrays: np.ndarray) -> torch.Tensor:
        """Return `compute(*arrays)`; from the second time on by a graph, if `key` says all but the arrays' content."""
        given = self._moved(*arrays)
        if not self._graphed:
            return compute(*given)
        if key not in self._graphs:
            self._graphs[key] = None
            with _waits()() as waits:  # libraries take their memory in it
                result = compute(*given)
            if waits.seen:
                logger.info("sampling: no CUDA graphs, because this model waits for %s", ", ".join(waits.seen))
                self._graphed = False
            return result
        if self._graphs[key] is None:
            self._graphs[key] = (*self._capture(partial(compute, *given)), given)
        graph, result, held = self._graphs[key]
        for old, new in zip(held, given, strict=True):
            old.copy_(new)
        graph.replay()
        return result

    def _capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
        """Return a CUDA graph of `compute`, and where it puts the result."""
        import torch

        graph, stream = torch.cuda.CUDAGraph(), _recording_stream(self._device)
        pool = next((recorded[0].pool() for recorded in self._graphs.values() if recorded), None)
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            result = compute()
        return graph, result


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs of a device are recorded; torch's own is on the device that was first to have one."""
    import torch

    return torch.cuda.Stream(device)


@cache
def _waits() -> Any:
    """A context that notes the operations for whose result the host waits; none of them can be in a graph.

    Experts' products wait inside, where they are no single kernel: it takes bfloat16, on a Hopper or a Blackwell.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def waits(name: str, given: Any, out: Any) -> bool:
        if name == "_grouped_mm":
            kernel = out.device.type == "cuda" and torch.cuda.get_device_capability(out.device)[0] in (9, 10)
            return not kernel or out.dtype != torch.bfloat16
        if name in ("_to_copy", "copy_"):
            return any(isinstance(each, torch.Tensor) and each.device != out.device for each in given)
        return name in (
            "_local_scalar_dense",
            "nonzero",
            "masked_select",
            "_unique2",
            "unique_dim",
            "grouped_mm_fallback",
        )

    class Waits(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[str] = set()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, out = function.overloadpacket.__name__, function(*args, **(kwargs or {}))
            if waits(name, args, out):
                self.seen.add(name)
            return out

    return Waits
