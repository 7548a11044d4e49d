"""The model card of an exported agent: what it is, what it was made from, what it reached, where its limits are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sweetrl.evaluation.report import harm, level
from sweetrl.io import read_json
from sweetrl.models.check import FULL, is_full
from sweetrl.models.licences import base_licence
from sweetrl.serve.source import Handed
from sweetrl.tracking.lineage import Lineage

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
how = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True, **agent["template_options"]}
ids = tokenizer.apply_chat_template(messages, **how)
reply = model.generate(**ids, max_new_tokens=agent["max_new_tokens"])"""


CARD = """# {title}

A language-model agent that works with a person over several turns: it asks before it answers. Trained with sweetrl \
({made}). This folder holds {what}.

## How to use

```python
import json

{use}
```

`agent.json` has the system prompt and {settings}: at most {config.max_turns} turns, {config.max_new_tokens} tokens a \
reply, temperature {config.temperature:g}, top_p {config.top_p:g}. With another system prompt it is another agent.

## Where it comes from

{origin}

{data}

## Results

{results}

## Limits

- Tasks in training and test: {tasks}. Other kinds of tasks were not tried.
- The user in training and test: {user}. What real people experience was not measured.
- It writes programs or pages that nobody has read: run them in a sandbox.
{limit}

## How it was trained

{params}

## How to cite

The method:

```bibtex
{citation}
```

This agent: {title}, trained with sweetrl, adapter {adapter}.
"""


def model_card(handed: Handed, facts: Lineage, merged: bool) -> str:
    """Return README.md: metadata that the Hub reads in front, then the card."""
    config, full = handed.config, is_full(handed.adapter)
    stated = read_json(handed.adapter / FULL).get("license") if full else base_licence(Path(handed.base))
    licence = stated or base_licence(Path(handed.base), facts.base_hash)
    simple = licence if licence and " " not in licence else ""
    metadata: dict[str, Any] = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "license": simple or (UNKNOWN if not licence else "other"),
        "tags": ["sweetrl", "multi-turn", *([] if merged else ["lora"])],
    }
    if config.on_the_hub:
        metadata["base_model"] = config.base
    origin = {
        "adapter": facts.adapter_hash,
        "base": config.base,
        "base, content": facts.base_hash or config.base_revision or UNKNOWN,
        "licence of the base": licence or f"{UNKNOWN}: the base's folder states none",
        "registered": facts.created or "no",
        "commit": (facts.commit or UNKNOWN) + (" with uncommitted changes" if facts.dirty else ""),
        "dvc.lock": facts.dvc_lock or UNKNOWN,
    }
    limit = "- The adapter belongs to exactly the base above; on another base its replies mean nothing."
    if merged and not full:
        limit = f"- Merging rounds to {config.dtype}: replies may differ a little from base and adapter apart."
    what = "the whole model: base and adapter merged" if merged else "a LoRA adapter (peft), to be put on its base"
    what = "the whole model, of which all weights were trained" if full else what
    params = {key: value for key, value in facts.params.items() if key.partition(".")[0] in SECTIONS}
    trained = _table("parameter", "value", params) if params else "The parameters are not recorded."
    if facts.cost:
        costs = ", ".join(f"{name} {amount:,.0f}" for name, amount in facts.cost.items())
        trained += f"\n\nWhat it took: {costs}."
    data = "The data that it was trained on are not recorded."
    if facts.data:
        data = f"Data, by DVC hash:\n\n{_table('data', 'hash', facts.data)}"
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n\n" + CARD.format(
        title=handed.title,
        made=" and ".join(f"{key} `{value}`" for key, value in facts.code.items()) or "a method that is not recorded",
        what=what,
        use=(MERGED_USE if merged else ADAPTER_USE) + TALK,
        settings="the settings it was evaluated with"
        if handed.version
        else "the settings of its project's params.yaml",
        config=config,
        origin=_table("what", "which", origin),
        data=data,
        results=_results(facts.evaluation)
        if facts.evaluation
        else "No evaluation of exactly this adapter is recorded.",
        tasks=facts.params.get("tasks.source", UNKNOWN),
        user=facts.params.get("simulator.kind", UNKNOWN),
        limit="" if full or (merged and config.dtype == "float32") else limit,
        params=trained,
        citation=CITATION,
        adapter=facts.adapter_hash,
    )


def _results(evaluation: Mapping[str, Any]) -> str:
    before, after = (evaluation["policies"][policy] for policy in ("base", "trained"))
    hurt = harm(evaluation)
    lines = [
        *([f"**It is worse than its base:** {hurt}.\n"] if hurt else []),
        f"On held-out tasks that no stage trained on; in brackets: {level(evaluation)} intervals.\n",
        "| | base | this agent | difference |\n|---|---|---|---|",
    ]
    for measure in ("success", "reward"):
        difference = evaluation["difference"][measure]
        p = "< 0.001" if difference["p_value"] < 0.001 else f"= {difference['p_value']:.3f}"
        estimates = " | ".join(
            f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]"
            for each in (before[measure], after[measure], difference)
        )
        lines.append(f"| {evaluation['labels'][measure]} | {estimates}, p {p} ({difference['test']}) |")
    return "\n".join([*lines, f"\nTasks: {after['success']['n']}."])


def _table(what: str, which: str, rows: Mapping[str, Any]) -> str:
    cells = {name: str(value).replace("|", "\\|").replace("\n", " ") for name, value in rows.items()}
    return "\n".join([f"| {what} | {which} |\n|---|---|", *(f"| {name} | {cell} |" for name, cell in cells.items())])
