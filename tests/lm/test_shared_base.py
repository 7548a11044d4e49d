"""Ranking loads the base once: the engine samples with the model that the critic's adapter lies on, switched off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.api.learning import rank_replies
from sweetrl.backend import Backend
from sweetrl.config.settings import parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.lm.data import encode
from sweetrl.methods.critics import RandomCritic
from sweetrl.sweet import rank
from sweetrl.sweet.candidates import sample_candidates
from sweetrl.sweet.preferences import Ranking
from sweetrl.types import RankedState, Sampling, Trajectory

REPLIES, TOKENS, BLOCK = 6, 8, 2


def sampled(states: list[RankedState]) -> list[list[tuple[tuple[int, ...], str, int]]]:
    """What was sampled at each state, without what the critic thinks of it."""
    return [[(reply.token_ids, reply.text, reply.count) for reply in state.candidates] for state in states]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that transformers is asked to load, as it happens."""
    from transformers import AutoModelForCausalLM

    names: list[str] = []
    load = AutoModelForCausalLM.from_pretrained

    def counted(name: str, *more: Any, **options: Any) -> Any:
        names.append(name)
        return load(name, *more, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", counted)
    return names


@pytest.mark.parametrize("kind", ["log-ratio", "regression-head", "privileged-ratio", "judge", "random"])
def test_candidates_are_those_of_a_base_that_was_loaded_on_its_own(
    kind: str,
    tiny_model: Path,
    write_adapter: Callable[..., Path],
    trajectories: list[Trajectory],
    chat: ChatFormat,
    tmp_path: Path,
    loads: list[str],
) -> None:
    from sweetrl.engines.transformers import TransformersEngine

    fitted = kind in ("log-ratio", "regression-head")
    adapter = write_adapter(tiny_model, tmp_path / "critic", 0.5, head=kind == "regression-head")
    settings = parse_settings(
        {
            "seed": 5,
            "model": {"base": str(tiny_model), "device": "cpu", "threads": 1},
            "agent": {"max_new_tokens": TOKENS},
            "critic": {"parameterization": kind if fitted else "log-ratio"},
            "judge": {"max_new_tokens": 2},
            "rank": {"critic": "trained" if fitted else kind, "share": 0.2, "candidates": REPLIES, "block": BLOCK},
        }
    )
    env = Backend().configured(settings)
    loads.clear()
    ranking: Ranking = rank_replies(env, adapter if fitted else None, trajectories)
    assert loads == [str(tiny_model)]
    if fitted:
        values = [reply.advantage for state in ranking.states for reply in state.candidates]
        assert all(values) and len(set(values)) > 0.9 * len(values), "the critic's adapter was on while it rated"

    system, sampling = env.system_prompt("short"), Sampling(TOKENS, n=REPLIES)
    chosen = rank.choose_dialogues(trajectories, 0.2, 5)
    expected: dict[str, list[RankedState]] = {}
    for name, on_top in (("base", None), ("critic", adapter)):
        engine = TransformersEngine(tiny_model, on_top, "float32", "cpu", 1)
        expected[name] = []
        for first in range(0, len(chosen), BLOCK):
            part = chosen[first : first + BLOCK]
            rows = [(dialogue, encode(dialogue, chat, system)) for dialogue in part]
            samples = sample_candidates(rows, engine, sampling, 5)
            expected[name] += rank.rank_sampled(rows, samples, RandomCritic(0).rate)
    assert len(chosen) > 2 * BLOCK
    assert len(ranking.states) == sum(len(encode(dialogue, chat, system).spans) for dialogue in chosen)
    assert sampled(list(ranking.states)) == sampled(expected["base"])
    differ = [a != b for a, b in zip(sampled(expected["base"]), sampled(expected["critic"]), strict=True)]
    assert all(differ), "with the adapter the model would say other things"
