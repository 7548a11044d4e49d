"""The tables of named models in docs/real-models.md: each row of the first by a tiny random model and our template.

A dialogue is sampled (its second reply has a thought, so that templates that leave those out do), laid out, and its
log-probs computed as training does: they are those that the engine recorded.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import Settings, parse_settings
from sweetrl.config.yaml_files import parse_yaml
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import encode, rewrite
from sweetrl.types import AgentTurn, Message, Prompt, Sampling, Task, Trajectory
from tests.engines.families import FAMILIES, tokenizer_of
from tests.lm.test_families import random_model

PAGE = Path(__file__).parents[2] / "docs/real-models.md"
CHATML = "Qwen2.5, SmolLM2, OLMo"
# The models, the architecture, the family of the template, the kind of the tokenizer.
NAMED = {
    "Llama 3.1 to 3.3": ("llama", "Llama 3", "bytes"),
    "Qwen2.5": ("qwen2 without its window", CHATML, "bytes"),
    "Qwen3": ("qwen3", "Qwen3", "bytes"),
    "Qwen3.5, Qwen3.6": ("qwen3_next", "Qwen3.5", "bytes"),
    "Gemma 3": ("gemma3_text", "Gemma 3", "first"),
    "Gemma 4": ("gemma4", "Gemma 4", "first"),
    "Mistral 7B and Nemo": ("mistral", "Mistral 7B, Nemo", "prepend"),
    "Mistral Small 3": ("mistral", "Mistral Small", "bytes"),
    "Phi-4": ("phi3", CHATML, "bytes"),
    "SmolLM2": ("llama", CHATML, "bytes"),
    "SmolLM3": ("smollm3", "Qwen3", "bytes"),
    "OLMo 2": ("olmo2", "Zephyr", "bytes"),
    "OLMo 2 and 3": ("olmo3", CHATML, "bytes"),
    "Granite 3": ("granite", "Llama 3", "bytes"),
    "GLM-4": ("glm4_moe", "GLM", "bytes"),
    "gpt-oss": ("gpt_oss", "gpt-oss", "bytes"),
    "DeepSeek-R1 distillations": ("qwen2 without its window", "DeepSeek", "bytes"),
    "TinyLlama, Zephyr": ("mistral", "Zephyr", "metaspace"),
}


def outcome(name: str) -> str:
    """Return the end of the row of the table that `name` belongs to."""
    import torch

    from sweetrl.engines.transformers import TransformersEngine
    from sweetrl.lm.passes import model_layout, reply_logprobs

    architecture, family, kind = NAMED[name]
    tokenizer = tokenizer_of(kind, FAMILIES[family])
    chat, model = ChatFormat(tokenizer), random_model(architecture, len(tokenizer))
    layout = model_layout(model, "trees")
    try:
        engine: Any = TransformersEngine(name, loaded=(model, tokenizer), threads=1)
    except UserError as error:
        assert "use vllm" in str(error)
        engine = None
    prompts, messages, turns = chat.begin("Ask.", "I want one."), [Message("user", "I want one.")], list[AgentTurn]()
    for turn in range(3):
        place, raw = len(messages), f"{chat.marks[0]}\nhm\n{chat.marks[1]}\n\nWhy?" if turn == 1 else "Why?"
        ids, logprobs = chat.reply(raw), ()
        if engine is not None:
            ((reply,),) = engine.sample([Prompt(prompts.ids, turn)], Sampling(8))
            ids, logprobs = reply.token_ids, reply.logprobs
        turns.append(AgentTurn(place, raw, ids, logprobs, "stop", 0, prompts.ids))
        messages += [Message("assistant", "Why?"), Message("user", "7")]
        prompts.add(turns[-1], "7")
    trajectory = Trajectory(Task("1", "I want one.", "x"), 0, tuple(messages[:-1]), tuple(turns))
    row = encode(trajectory, chat, None)
    assert [row.prompt(turn) for turn in range(3)] == [turn.prompt_ids for turn in turns]
    partly = replace(trajectory, turns=(turns[0], *(replace(turn, prompt_ids=()) for turn in turns[1:])))
    assert encode(partly, chat, "Ask.") == rewrite(trajectory, chat, "Ask.") == row
    with torch.no_grad():
        computed = reply_logprobs(model, layout.collate([row])).tolist()
    recorded = [logprob for turn in turns for logprob in turn.logprobs]
    assert not recorded or computed == pytest.approx(recorded, abs=1e-3)
    plain, thoughtful = chat.appends(True, False), chat.appends(True, True)
    sent = "appended to" if plain and thoughtful else "anew after thoughts" if plain else "anew"
    learnt, sampled = "trees" if layout.backend else "flat batches", "yes" if engine else "vLLM only"
    return f"| {sent} | {learnt} | {sampled} |"


@pytest.mark.parametrize("name", NAMED)
def test_a_row_is_true(name: str) -> None:
    end, lines = outcome(name), PAGE.read_text(encoding="utf-8").splitlines()
    assert any(name in line and line.endswith(end) for line in lines), end


def test_every_family_has_settings_to_start_from() -> None:
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| models | `params.yaml` |\n|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()
    assert [name for name in NAMED if not any(name in row for row in rows)] == []
    for row in rows:
        values = parse_yaml("\n".join(re.findall(r"`(\w+: .*?)`", row)), row) or {}
        assert (parse_settings(values, row) == Settings()) == row.endswith("no advice |"), row
