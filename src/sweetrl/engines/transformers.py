"""The default engine: any causal language model that transformers loads, with or without a peft adapter."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.engines.cache import CacheShape, PrefixCache
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.decoding import Decoder, Reply
from sweetrl.engines.slots import Slots
from sweetrl.errors import UserError
from sweetrl.models.check import is_full
from sweetrl.models.load import context_limit, load_lora, load_tokenizer, load_weights, resolve_device
from sweetrl.protocols import Sampler
from sweetrl.types import Completion, Prompt, Sampling, Usage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What a session keeps for the next turn in ordinary memory: some 350,000 tokens of the small agent. Of a CUDA device it
# takes a quarter of what is free.
KEPT_BYTES = 2**30


class TransformersEngine:
    """An Engine over AutoModelForCausalLM: batched, seeded, with the key-value cache reused across a session's calls.

    `model` is a folder (or hub name), `adapter` a peft folder; `device` "auto" takes CUDA where there is one; `threads`
    sets torch's CPU threads (part of what makes results repeatable). A float32 adapter is merged into the weights,
    which changes logits by rounding only; in lower precisions it stays beside them. `rows` completions are decoded
    together. `loaded` is a model and its tokenizer that are in memory already, as they are: nothing else is loaded.
    Equal calls give equal bytes; a completion depends on the rest of its batch by rounding only. On a GPU replies are
    sampled in slots (sweetrl.engines.slots) where the model can be.
    """

    _slot_devices: tuple[str, ...] = ("cuda",)

    def __init__(
        self,
        model: Path | str,
        adapter: Path | str | None = None,
        dtype: str = "float32",
        device: str = "auto",
        threads: int = 2,
        rows: int = 256,
        loaded: tuple[Any, PreTrainedTokenizerBase] | None = None,
        chat_options: Mapping[str, Any] = {},
        quantization: str = "none",
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self.name = str(model) if adapter is None else f"{model}+{adapter}"
        if loaded is None:
            self.device = resolve_device(device)
            self.tokenizer = load_tokenizer(model)
            self.model = load_model(model, adapter, dtype, self.device, quantization)
        else:
            self.model, self.tokenizer = loaded
            self.device = str(next(self.model.parameters()).device)
        self.chat = ChatFormat(self.tokenizer, **chat_options)
        self.context = context_limit(self.model)
        """Positions of the model: prompt and reply together are never longer."""
        self.stop_ids = stop_ids(self.model, self.tokenizer, self.chat)
        self._how = (cache_shape(self.model, self.name), self.stop_ids, rows, self.context)
        self.slotted = torch.device(self.device).type in self._slot_devices and takes_masks(self.model, self._how[0])
        """Whether replies are sampled in slots."""
        self._decoder = Decoder(self.model, *self._how)
        self._shared: Callable[[], Slots | None] = lambda: None
        self._usage = Usage(devices=int(self.device.startswith("cuda")))

    def session(self) -> Sampler:
        """Return a sampler that reuses the keys and values of its last call for prompts that begin alike.

        Sessions side by side have the same slots: those of each would take half of the memory that is left.
        """
        import torch

        if self.slotted:
            slots = self._shared() or self.slots()
            self._shared = weakref.ref(slots)
            return _Session(self, slots)
        size = self.model.get_input_embeddings().weight.element_size()
        room = KEPT_BYTES
        if self.device.startswith("cuda"):
            room = torch.cuda.mem_get_info(torch.device(self.device))[0] // 4
        return _Session(self, PrefixCache(room // size))

    def lasting(self) -> Sampler:
        """Return a sampler for many calls: in slots that stay, so that what comes again is recorded as graphs once."""
        return self.session() if self.slotted else self

    def slots(self) -> Slots:
        """Return empty slots."""
        return Slots(self.model, *self._how)

    def usage(self) -> Usage:
        """What this engine has spent since it was made."""
        return self._usage

    def close(self) -> None:
        """Free the model; the engine is not used afterwards."""
        del self.model, self._decoder

    def sample(
        self, prompts: Sequence[Prompt], sampling: Sampling, kept: PrefixCache | Slots | None = None
    ) -> list[list[Completion]]:
        """Return `sampling.n` completions for each prompt, in order; only `kept` holds something for later calls."""
        import torch

        if self.slotted:
            slots = kept if isinstance(kept, Slots) else self.slots()
            return self.complete(prompts, slots.generate(prompts, sampling))
        assert not isinstance(kept, Slots)
        started = time.perf_counter()
        with torch.inference_mode():
            groups = self._decoder.generate(prompts, sampling, kept)
        seconds = time.perf_counter() - started
        generated = sum(len(reply.ids) for group in groups for reply in group)
        for group in groups:
            for reply in group:
                reply.busy = seconds / max(generated, 1) * len(reply.ids)
        return self.complete(prompts, groups)

    def complete(self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Reply]]) -> list[list[Completion]]:
        """Return finished replies as completions; what they took is counted as spent."""
        replies = [reply for group in groups for reply in group]
        spent = self._usage
        self._usage = replace(
            spent,
            prompt_tokens=spent.prompt_tokens + sum(len(prompt.token_ids) for prompt in prompts),
            cached_tokens=spent.cached_tokens + sum(reply.cached for reply in replies),
            generated_tokens=spent.generated_tokens + sum(len(reply.ids) for reply in replies),
            seconds=spent.seconds + sum(reply.busy for reply in replies),
        )
        spoken = [reply.ids[:-1] if reply.ended else reply.ids for reply in replies]
        texts = self.chat.decode(spoken)
        completions = iter(
            Completion(
                tuple(reply.ids),
                tuple(reply.logprobs),
                text,
                "stop" if reply.ended else "length",
                cached_tokens=reply.cached,
                busy=reply.busy,
            )
            for reply, text in zip(replies, texts, strict=True)
        )
        return [[next(completions) for _ in group] for group in groups]


class _Session:
    """Calls that belong together; holds what the last one computed."""

    def __init__(self, engine: TransformersEngine, kept: PrefixCache | Slots) -> None:
        self.engine, self.kept = engine, kept

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """Like the engine's, faster for prompts that continue those of the call before."""
        return self.engine.sample(prompts, sampling, self.kept)


def load_model(
    model: Path | str, adapter: Path | str | None, dtype: str, device: str, quantization: str = "none"
) -> Any:
    """Load a causal language model for inference, with a peft adapter if given; a missing part is a UserError.

    In the place of an adapter may be the folder of all the model's weights, trained: then those are loaded.
    """
    if adapter is not None and is_full(adapter):
        model, adapter = adapter, None
    loaded: Any = load_weights(model, dtype, quantization, device)
    if adapter is not None:
        loaded = load_lora(loaded, adapter)
        if dtype == "float32" and quantization == "none":
            loaded = loaded.merge_and_unload()
    loaded = loaded.to(device).eval()
    # torch multiplies [rows, 1, width] by weights without gradients row by row, with a copy of them for each.
    loaded.get_output_embeddings().requires_grad_()
    return loaded


def stop_ids(model: Any, tokenizer: PreTrainedTokenizerBase, chat: ChatFormat) -> tuple[int, ...]:
    """Return every id that ends a reply: those of the generation config, the tokenizer and the chat template."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = {chat.end_of_turn, tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])}
    return tuple(sorted(id_ for id_ in ids if isinstance(id_, int)))


def samples_in_slots(model: Any) -> bool:
    """Whether an engine samples from `model`, as it lies on its device, in slots."""
    on_device = model.device.type in TransformersEngine._slot_devices
    return on_device and takes_masks(model, cache_shape(model, "model.base"))


def takes_masks(model: Any, shape: CacheShape) -> bool:
    """Whether all layers attend to what a mask of ours says: a window and attention of a model's own do not."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return bool(base._supports_attention_backend) and not any(shape.sliding)


def cache_shape(model: Any, name: str) -> CacheShape:
    """Find out what the model caches by letting it see one token; a model without plain attention is a UserError."""
    import torch
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    start = torch.zeros((1, 1), dtype=torch.long, device=model.get_input_embeddings().weight.device)
    with torch.inference_mode():
        cached = getattr(model(input_ids=start, use_cache=True), "past_key_values", None)
    layers = getattr(cached, "layers", [])
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    parts = [part for layer in layers for part in (layer.keys, layer.values)] if plain else []
    shapes = {tuple(getattr(part, "shape", ())[1::2]) for part in parts}
    if len(shapes) != 1 or () in shapes:
        raise UserError(f"{name}: not all layers of this model cache plain keys and values of one size; use vllm.")
    heads, size = shapes.pop()
    return CacheShape(len(layers), heads, size, tuple(layer.is_sliding for layer in layers))
