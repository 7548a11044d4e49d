"""Tiny random models of many families: what is sampled and learnt is what the model itself computes, or refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.lm.data import Row
from sweetrl.types import Prompt, Sampling
from tests.lm.slowly import slow_logprobs

WINDOW = 8
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.4}
BOTH, CAP = ["sliding_attention", "full_attention"], {"final_logit_softcapping": 3.0}
MOE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SLIDING, PER_LAYER = {"sliding_window": WINDOW}, {"sliding_window": WINDOW, "layer_types": BOTH}
GEMMA_4 = PER_LAYER | CAP | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 8}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4}

TREES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2 without its window": SLIDING,
    "qwen2": SLIDING | {"use_sliding_window": True, "max_window_layers": 1},
    "qwen2_moe": SLIDING | MOE | {"use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {},
    "qwen3_moe": SLIDING | MOE | {"use_sliding_window": True},
    "mistral": SLIDING,
    "mixtral": SLIDING | MOE,
    "phi3": SLIDING,
    "phimoe": SLIDING | MOE,
    "starcoder2": SLIDING,
    "gemma3_text": PER_LAYER,
    "gemma3n_text": PER_LAYER | CAP | {"hidden_size_per_layer_input": 4, "num_kv_shared_layers": 0, "laurel_rank": 4}
    | {"activation_sparsity_pattern": None},
    "gemma4_text": GEMMA_4,
    "gemma4": {"text_config": SIZES | GEMMA_4},
    "cohere": {"logit_scale": 0.0625},
    "cohere2": PER_LAYER | {"logit_scale": 0.0625},
    "granite": {"logits_scaling": 8.0},
    "olmo2": {},
    "glm4_moe": MOE | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "olmo3": PER_LAYER,
    "exaone4": PER_LAYER,
    "smollm3": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
}  # fmt: skip
FLAT: dict[str, dict[str, Any]] = {  # each with its reason
    "gemma2": SLIDING | CAP,  # caps its attention, too
    "gpt_oss": PER_LAYER | MOE,  # sinks
    "gpt_neo": {"window_size": WINDOW, "attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4},
    "llama4_text": MOE | {"attention_chunk_size": WINDOW, "layer_types": ["chunked_attention", "full_attention"]}
    | {"intermediate_size_mlp": 48},
    "falcon_h1": MAMBA | {"lm_head_multiplier": 0.05},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "bamba": MAMBA | {"attn_layer_indices": [1], "mamba_n_heads": 8},
    "qwen3_next": MOE | LINEAR | {"layer_types": ["linear_attention", "full_attention"]},
}  # fmt: skip
SLOTTED = {"llama", "qwen2 without its window", "qwen3", "cohere", "granite", "olmo2", "glm4_moe", "smollm3", "opt"}
NOT_SAMPLED = {"falcon_h1", "lfm2", "bamba", "qwen3_next"}


def random_model(name: str, vocabulary: int) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    values = (TREES | FLAT)[name]
    tokens = {"vocab_size": vocabulary, "vocab_size_per_layer_input": vocabulary, "pad_token_id": 0, "eos_token_id": 2}
    values = {"text_config": values["text_config"] | tokens} if "text_config" in values else SIZES | values | tokens
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name.split()[0], **values), dtype=torch.float32).eval()


def alone(model: Any, rows: Sequence[Row]) -> Any:
    import torch

    with torch.no_grad():
        return torch.stack([token for row in rows for turn in slow_logprobs(model, row) for token in turn])


@pytest.mark.parametrize("name", TREES | FLAT)
def test_log_probs_are_the_models_own(tokenizer: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In trees by every backend of a CPU, in flat batches, and while sampling over two turns, in slots, too."""
    import torch

    from sweetrl.engines.transformers import TransformersEngine
    from sweetrl.lm.passes import Layout, reply_logprobs, usable_backend

    model = random_model(name, len(tokenizer))
    ids = random.Random(0).choices(range(100, len(tokenizer)), k=60)
    rows = [Row((*ids[:35], *ids[35 + 5 * cut : 60]), ((10, 14), (35, 60 - 5 * cut))) for cut in range(4)]
    own = alone(model, rows)
    backend, reason = usable_backend(model)
    assert (backend, reason) == ("blocks", "") if name in TREES else backend is None and name in reason
    for layout in (Layout("blocks"), Layout("flex"), Layout(None)) if backend else (Layout(None),):
        with torch.no_grad():
            assert (reply_logprobs(model, layout.collate(rows)) - own).abs().max().item() < 1e-4

    if name in NOT_SAMPLED:
        with pytest.raises(UserError, match="not all layers of this model cache plain keys and values of one size"):
            TransformersEngine(name, loaded=(model, tokenizer), threads=1)
        return
    engine = TransformersEngine(name, loaded=(model, tokenizer), threads=1)
    monkeypatch.setattr(TransformersEngine, "_slot_devices", ("cpu",))
    slotted = TransformersEngine(name, loaded=(model, tokenizer), threads=1)
    assert slotted.slotted == (name in SLOTTED)
    first = [Prompt(tuple(ids[:length]), length) for length in (3, 9, 40)]
    for turn in range(4):
        if turn % 2 == 0:
            session, prompts = (slotted if turn else engine).session(), first
        replies = [reply for (reply,) in session.sample(prompts, Sampling(12))]
        prompts = [Prompt((*old.token_ids, *reply.token_ids), 1) for old, reply in zip(prompts, replies, strict=True)]
        ends = [len(prompt.token_ids) for prompt in prompts]
        starts = [end - len(reply.token_ids) for end, reply in zip(ends, replies, strict=True)]
        rows = [Row(prompt.token_ids, ((a, b),)) for prompt, a, b in zip(prompts, starts, ends, strict=True)]
        drawn = torch.tensor([logprob for reply in replies for logprob in reply.logprobs])
        assert (drawn - alone(model, rows)).abs().max().item() < 1e-4


def test_faults_are_seen_when_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is lost, and logits that depend on more than what the layers return."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sweetrl.lm import tree_attention
    from sweetrl.lm.passes import model_layout, usable_backend

    kept = tree_attention.tree_mask
    monkeypatch.setattr(tree_attention, "tree_mask", lambda local_size, **more: kept(**more))
    backend, reason = usable_backend(random_model("mistral", 300))
    assert backend is None and "mistral gives other log-probs in a tree than its own logits" in reason

    class Odd(LlamaForCausalLM):
        def forward(self, input_ids: Any, **more: Any) -> Any:
            output = LlamaForCausalLM.forward(self, input_ids, **more)
            read = torch.nn.functional.one_hot(input_ids, self.vocab_size)
            output.logits = output.logits + read[:, -output.logits.shape[1] :]
            return output

    for layout in ("trees", "flat"):
        with pytest.raises(UserError, match="llama: the model's logits cannot be made of what its layers return"):
            model_layout(Odd(LlamaConfig(vocab_size=64, **SIZES)), layout)
