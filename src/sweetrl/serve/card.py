"""The model card of an exported agent: what it is, what it was made from, what it reached, where its limits are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sweetrl.models.licences import base_licence
from sweetrl.serve.source import Facts, Handed

UNKNOWN = "unknown"
# Sections of params.yaml that say how an agent was made; others say how the pipeline runs.
SECTIONS = ("seed", "preset", "tasks", "collect", "lora", "critic", "rank", "policy", "rft", "grpo", "agent")

CITATION = """@misc{zhou2025sweetrl,
  title         = {SWEET-RL: Training Multi-Turn LLM Agents on Collaborative Reasoning Tasks},
  author        = {Zhou, Yifei and Jiang, Song and Tian, Yuandong and Weston, Jason and Levine, Sergey and
                   Sukhbaatar, Sainbayar and Li, Xian},
  year          = {2025},
  eprint        = {2503.15478},
  archivePrefix = {arXiv}
}"""

MERGED_USE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)"""
ADAPTER_USE = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)"""
TALK = """
agent = json.load(open(f"{FOLDER}/agent.json"))
messages = [{"role": "system", "content": agent["system_prompt"]}, {"role": "user", "content": "I want a function ..."}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
reply = model.generate(**ids, max_new_tokens=agent["max_new_tokens"])"""


def model_card(handed: Handed, facts: Facts, merged: bool) -> str:
    """Return README.md: metadata that the Hub reads in front, then the card."""
    return "\n".join(_lines(handed, facts, merged)) + "\n"


def _metadata(handed: Handed, merged: bool, licence: str) -> dict[str, Any]:
    simple = licence if licence and " " not in licence else ""
    metadata: dict[str, Any] = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "license": simple or (UNKNOWN if not licence else "other"),
        "tags": ["sweetrl", "multi-turn", *([] if merged else ["lora"])],
    }
    if handed.config.on_the_hub:
        metadata["base_model"] = handed.config.base
    return metadata


def _lines(handed: Handed, facts: Facts, merged: bool) -> Iterator[str]:
    licence = base_licence(Path(handed.base), facts.base_hash)
    yield f"---\n{yaml.safe_dump(_metadata(handed, merged, licence), sort_keys=False)}---\n"
    yield f"# {handed.title}\n"
    what = "the whole model: base and adapter merged" if merged else "a LoRA adapter (peft), to be put on its base"
    made = " and ".join(f"{key} `{value}`" for key, value in facts.code.items()) or "a method that is not recorded"
    yield (
        "A language-model agent that works with a person over several turns: it asks before it answers. "
        f"Trained with sweetrl ({made}). This folder holds {what}.\n"
    )
    yield from _use(handed, merged)
    yield from _origin(handed, facts, licence)
    yield from _results(facts.evaluation)
    yield from _limits(handed, facts, merged)
    yield "## How it was trained\n"
    chosen = {key: value for key, value in facts.params.items() if key.partition(".")[0] in SECTIONS}
    yield from _table(("parameter", "value"), chosen) if chosen else ["The parameters are not recorded.\n"]
    if facts.cost:
        yield "What it took: " + ", ".join(f"{name} {amount:,.0f}" for name, amount in facts.cost.items()) + ".\n"
    yield "## How to cite\n"
    yield f"The method:\n\n```bibtex\n{CITATION}\n```\n"
    yield f"This agent: {handed.title}, trained with sweetrl, adapter {facts.adapter_hash}."


def _use(handed: Handed, merged: bool) -> Iterator[str]:
    yield "## How to use\n"
    yield f"```python\nimport json\n\n{MERGED_USE if merged else ADAPTER_USE}{TALK}\n```\n"
    settings = "the settings it was evaluated with" if handed.version else "the settings of its project's params.yaml"
    yield (
        f"`agent.json` has the system prompt and {settings}: at most {handed.config.max_turns} "
        f"turns, {handed.config.max_new_tokens} tokens a reply, temperature {handed.config.temperature:g}, "
        f"top_p {handed.config.top_p:g}. With another system prompt it is another agent.\n"
    )


def _origin(handed: Handed, facts: Facts, licence: str) -> Iterator[str]:
    yield "## Where it comes from\n"
    rows = {
        "adapter": facts.adapter_hash,
        "base": handed.config.base,
        "base, content": facts.base_hash or handed.config.base_revision or UNKNOWN,
        "licence of the base": licence or f"{UNKNOWN}: the base's folder states none",
        "registered": facts.created or "no",
        "commit": (facts.commit or UNKNOWN) + (" with uncommitted changes" if facts.dirty else ""),
        "dvc.lock": facts.dvc_lock or UNKNOWN,
    }
    yield from _table(("what", "which"), rows)
    if not facts.data:
        yield "The data that it was trained on are not recorded.\n"
        return
    yield "Data, by DVC hash:\n"
    yield from _table(("data", "hash"), facts.data)


def _results(evaluation: Mapping[str, Any]) -> Iterator[str]:
    yield "## Results\n"
    if not evaluation:
        yield "No evaluation of exactly this adapter is recorded.\n"
        return
    before, after = (evaluation["policies"][policy] for policy in ("base", "trained"))
    yield f"On held-out tasks that no stage trained on; in brackets: {evaluation['confidence']:.0%} intervals.\n"
    yield "| | base | this agent | difference |\n|---|---|---|---|"
    for measure in ("success", "reward"):
        difference = evaluation["difference"][measure]
        p = difference["p_value"]
        test = f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'} ({difference['test']})"
        estimates = [_estimate(each) for each in (before[measure], after[measure], difference)]
        yield f"| {evaluation['labels'][measure]} | {' | '.join(estimates)}, {test} |"
    yield f"\nTasks: {after['success']['n']}.\n"


def _limits(handed: Handed, facts: Facts, merged: bool) -> Iterator[str]:
    yield "## Limits\n"
    source, user = facts.params.get("tasks.source", UNKNOWN), facts.params.get("simulator.kind", UNKNOWN)
    yield f"- Tasks in training and test: {source}. Other kinds of tasks were not tried.\n"
    yield f"- The user in training and test: {user}. What real people experience was not measured.\n"
    yield "- It writes programs or pages that nobody has read: run them in a sandbox.\n"
    if not merged:
        yield "- The adapter belongs to exactly the base above; on another base its replies mean nothing.\n"
    elif handed.config.dtype != "float32":
        yield f"- Merging rounds to {handed.config.dtype}: replies may differ a little from base and adapter apart.\n"


def _table(header: tuple[str, str], rows: Mapping[str, Any]) -> Iterator[str]:
    yield f"| {header[0]} | {header[1]} |\n|---|---|"
    for name, value in rows.items():
        cell = str(value).replace("|", "\\|").replace("\n", " ")
        yield f"| {name} | {cell} |"
    yield ""


def _estimate(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"
