"""Candidates that were sampled once are ranked by other critics without sampling, and never stand in for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.api.learning import rank_replies
from sweetrl.backend import Backend
from sweetrl.config.settings import parse_settings
from sweetrl.engines.slots import Slots
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.sweet import candidates
from sweetrl.types import Trajectory


def ranked(base: Path, dialogues: list[Trajectory], cache: Path | None, seed: int = 5, **rank: Any) -> list[Any]:
    settings = parse_settings(
        {
            "seed": seed,
            "model": {"base": str(base), "device": "cpu", "threads": 1},
            "agent": {"max_new_tokens": 6},
            "rank": {"critic": "random", "share": 0.3, "candidates": 3, "block": 4, **rank},
        }
    )
    states = rank_replies(Backend().configured(settings), None, dialogues, cache=cache).states
    return [(state.prompt_ids, [(c.token_ids, c.text, c.count) for c in state.candidates]) for state in states]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many dialogues were sampled for, call by call."""
    made: list[int] = []
    original = candidates.sample_candidates

    def counted(rows: Any, *more: Any) -> Any:
        made.append(len(rows))
        return original(rows, *more)

    monkeypatch.setattr(candidates, "sample_candidates", counted)
    return made


def test_what_is_kept_is_what_would_be_sampled(
    tiny_model: Path, trajectories: list[Trajectory], tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ranked(tiny_model, trajectories, None)
    sampled = sum(calls)
    assert sampled > 4 and ranked(tiny_model, trajectories, tmp_path) == plain
    calls.clear()
    for other in ({}, {"critic": "privileged-ratio"}, {"margin": 0.5, "pairs": 1}):
        assert ranked(tiny_model, trajectories, tmp_path, **other) == plain, other
    assert not calls, "nothing was sampled again"
    for changed in ({"candidates": 2}, {"seed": 6}, {"block": 5}):
        calls.clear()
        ranked(tiny_model, trajectories, tmp_path, **changed)
        assert calls, changed


@pytest.mark.parametrize("critic", ["random", "judge"])
def test_slots_and_their_graphs_serve_all_blocks(
    tiny_model: Path, trajectories: list[Trajectory], monkeypatch: pytest.MonkeyPatch, critic: str
) -> None:
    """The judge, which is the base as well, has slots of its own."""
    made, init, expected = list[Slots](), Slots.__init__, ranked(tiny_model, trajectories, None, block=2)

    def counted(self: Slots, *given: Any) -> None:
        made.append(self)
        init(self, *given)

    monkeypatch.setattr(TransformersEngine, "_slot_devices", ("cpu",))
    monkeypatch.setattr(Slots, "__init__", counted)
    assert ranked(tiny_model, trajectories, None, critic=critic, block=2) == expected
    assert len(made) == (2 if critic == "judge" else 1)


def test_weights_what_ends_a_reply_and_what_its_tokens_read_as_are_part_of_the_key(
    tiny_model: Path, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    """Somebody mends a base's generation config, or its tokenizer, or trains it on: prompts are what they were."""
    import json
    import shutil

    from safetensors.torch import load_file, save_file

    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    first = ranked(base, trajectories, tmp_path / "cache")
    reply = next(ids for _, candidates in first for ids, _, _ in candidates if len(ids) == 6)
    config = json.loads((base / "generation_config.json").read_text())
    config["eos_token_id"] = [config["eos_token_id"], reply[3]]
    (base / "generation_config.json").write_text(json.dumps(config))
    ending = ranked(base, trajectories, tmp_path / "cache")
    assert ending == ranked(base, trajectories, None) != first
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["decoder"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "A"}
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    reading = ranked(base, trajectories, tmp_path / "cache")
    assert reading == ranked(base, trajectories, None) != ending
    weights = {name: 1.5 * weight for name, weight in load_file(base / "model.safetensors").items()}
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    trained = ranked(base, trajectories, tmp_path / "cache")
    assert trained == ranked(base, trajectories, None) != reading
