"""What the engine recorded while sampling is what training computes; where it is not, nothing is learnt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.api.rollouts import collect
from sweetrl.backend import Backend
from sweetrl.config.settings import parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.lm import recorded
from sweetrl.lm.data import Row, encode
from sweetrl.lm.passes import Layout, model_layout
from sweetrl.types import Trajectory

WINDOW = 60


def model_of(tokenizer: Any, seed: int = 0, window: int | None = None) -> Any:
    """A random model whose words depend on what it reads."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, sliding_window=window, initializer_range=0.15, **shape
    )
    return MistralForCausalLM(config).eval()


def logprobs(model: Any, row: Row) -> list[float]:
    """The model's own, of the tokens in the row's spans."""
    import torch

    ids = torch.tensor([row.token_ids])
    with torch.no_grad():
        values = model(ids).logits[0].double().log_softmax(-1)
    return [values[at - 1, row.token_ids[at]].item() for span in row.spans for at in range(*span)]


def record(dialogue: Trajectory, row: Row, values: Sequence[float]) -> Trajectory:
    """The dialogue with `values` as the log-probs that an engine recorded for its replies' tokens, in order."""
    rest = list(values)
    turns = []
    for turn, (start, end) in zip(dialogue.turns, row.spans, strict=True):
        turns.append(replace(turn, logprobs=tuple(rest[: end - start])))
        del rest[: end - start]
    return replace(dialogue, turns=tuple(turns), policy="base")


@pytest.fixture(scope="module")
def dialogues(make_trajectory: Callable[..., Trajectory]) -> list[Trajectory]:
    return [make_trajectory(number, 0) for number in range(6)]


def compared(model: Any, rows: list[recorded.Recorded], backend: Any = "blocks") -> dict[str, float]:
    return recorded.compare(model, rows, Layout(backend))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("", ""),
        ("engine without the window", "attention window"),
        ("template", "chat template"),
        ("blank", "`agent.prompt`"),
        ("weights", "the base"),
        ("precision", "`model.dtype`"),
    ],
)
def test_faults_are_named(
    dialogues: list[Trajectory], tokenizer: Any, chat: ChatFormat, fault: str, cause: str
) -> None:
    """The engine is the model itself, token by token or in another state; a fault is on its side or in training."""
    import torch

    window = WINDOW if "window" in fault else None
    model, engine = model_of(tokenizer, window=window), model_of(tokenizer, int(fault == "weights"), window)
    free, system = model_of(tokenizer), "You help a user."
    if fault == "precision":
        engine.to(torch.bfloat16)

    def sampled(dialogue: Trajectory) -> Trajectory:
        seen = dialogue
        if fault == "template":  # what is said to the agent's first reply is laid out otherwise
            words = [replace(message, content=f"The rate: {message.content}") for message in dialogue.messages[2:3]]
            seen = replace(dialogue, messages=(*dialogue.messages[:2], *words, *dialogue.messages[3:]))
        row = encode(seen, chat, " " + system if fault == "blank" else system)
        by = free if fault == "engine without the window" else engine
        return record(dialogue, row, logprobs(by, row))

    made = [sampled(dialogue) for dialogue in dialogues]
    rows = recorded.recorded_rows(made, "base", lambda dialogue: encode(dialogue, chat, system), 0)
    if not fault:
        for backend in ("blocks", None):
            metrics = compared(model, rows, backend)
            assert metrics["recorded_mean_difference"] < metrics["recorded_worst_difference"] < 1e-4
            assert metrics["recorded_tokens"] == sum(row.row.reply_tokens for row in rows)
        return
    where = r"^task train-0000\d, attempt 0, turn \d: the log-prob of a token is"
    with pytest.raises(UserError, match=where) as caught:
        compared(model, rows, None if fault == "engine without the window" else "blocks")
    assert cause in str(caught.value), str(caught.value)


def test_half_precision_rounds_and_is_no_fault(dialogues: list[Trajectory], tokenizer: Any, chat: ChatFormat) -> None:
    import torch

    model = model_of(tokenizer)
    exact = [encode(dialogue, chat, None) for dialogue in dialogues]
    made = [record(dialogue, row, logprobs(model, row)) for dialogue, row in zip(dialogues, exact, strict=True)]
    rows = recorded.recorded_rows(made, "base", lambda dialogue: encode(dialogue, chat, None), 0)
    assert compared(model.to(torch.bfloat16), rows, None)["recorded_worst_difference"] > 1e-3
    with pytest.raises(UserError, match="collect again"):
        compared(model_of(tokenizer, 1).to(torch.bfloat16), rows, None)


def test_only_what_the_base_recorded_is_compared(
    dialogues: list[Trajectory], tokenizer: Any, chat: ChatFormat, caplog: Any
) -> None:
    rows = [encode(dialogue, chat, None) for dialogue in dialogues]
    model = model_of(tokenizer)
    made = [record(dialogue, row, logprobs(model, row)) for dialogue, row in zip(dialogues, rows, strict=True)]

    def tokens(given: Any) -> float:
        chosen = recorded.recorded_rows(given, "base", lambda dialogue: encode(dialogue, chat, None), 0)
        return compared(model, chosen).get("recorded_tokens", 0)

    foreign = [replace(dialogue, policy="base+models/policy") for dialogue in made]
    servers = [record(talk, row, [-9999.0] * row.reply_tokens) for talk, row in zip(dialogues, rows, strict=True)]
    with caplog.at_level(logging.INFO, "sweetrl"):
        assert [tokens(given) for given in (dialogues, foreign, servers, [])] == [0] * 4
    assert [entry.message for entry in caplog.records].count(caplog.records[0].message) == 4
    assert tokens(iter([*foreign[:3], made[3]])) == rows[3].reply_tokens
    assert len(recorded.recorded_rows(made * 200, "base", lambda dialogue: rows[0], 0)) == recorded.MOST


def test_the_engine_of_this_process_records_what_training_computes(tiny_model: Path, tmp_path: Path) -> None:
    """Whatever temperature and top_p: what is recorded is at temperature 1."""
    agent = {"max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9, "max_turns": 3}
    settings = parse_settings({"model": {"base": str(tiny_model), "device": "cpu", "threads": 1}, "agent": agent})
    domain = Backend().configured(settings)
    policy = Policy.load(tiny_model, device="cpu", threads=1)
    made = collect(domain, policy, 3, attempts=2, out=tmp_path / "made")
    loaded = policy.open()
    lay_out = lambda dialogue: encode(dialogue, loaded.chat, domain.system_prompt(settings.agent.prompt))  # noqa: E731
    rows = recorded.recorded_rows(made, policy.name, lay_out, 0)
    model: Any = loaded.engine.model  # type: ignore[union-attr]
    metrics = recorded.compare(model, rows, model_layout(model, "trees"))
    assert len(rows) == 4 and metrics["recorded_tokens"] > 40 and metrics["recorded_worst_difference"] < 1e-4
