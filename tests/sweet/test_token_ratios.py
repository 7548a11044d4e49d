"""Token log-ratios that ranking keeps: those of a slow reference, and nothing else changes for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.api.calls import settings_of
from sweetrl.api.learning import TrainedCritic, rank_replies
from sweetrl.backend import Backend
from sweetrl.config.settings import parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.lm.data import Row, encode
from sweetrl.methods.critics import make_critic
from sweetrl.sweet import preferences as files
from sweetrl.sweet import rank as ranking
from sweetrl.sweet.data import critic_row
from sweetrl.sweet.preferences import Ranking
from sweetrl.sweet.tables import Table
from sweetrl.types import TokenRatios, Trajectory
from tests.lm.slowly import slow_logprobs

BLOCK, KEPT = 2, 3  # the sample ends within the second block


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, write_adapter: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A critic that changes what the base says."""
    return write_adapter(tiny_model, tmp_path_factory.mktemp("critic") / "critic", 0.1)


def domain(tiny_model: Path, view: dict[str, Any] | None = None, **rank: Any) -> Backend:
    values = {"share": 0.2, "candidates": 4, "block": BLOCK, "token_ratios": KEPT, **rank}
    model = {"base": str(tiny_model), "device": "cpu", "threads": 1}
    tree = {"seed": 5, "model": model, "agent": {"max_new_tokens": 8}, "critic": view or {}, "rank": values}
    return Backend().configured(parse_settings(tree))


def sampled(env: Backend, trajectories: list[Trajectory]) -> list[Trajectory]:
    return list(ranking.choose_dialogues(trajectories, env.settings.rank.share, env.settings.seed))[:KEPT]


@pytest.mark.parametrize(
    ("critic", "rank"),
    [
        ({}, {}),
        ({"normalization": "none"}, {"reference": "unconditioned"}),
        ({"token_set": "official"}, {"reference": "unconditioned"}),
        ({}, {"critic": "privileged-ratio"}),
    ],
)
def test_they_are_those_of_a_slow_reference(
    critic: dict[str, Any],
    rank: dict[str, Any],
    tiny_model: Path,
    adapter: Path,
    trajectories: list[Trajectory],
    chat: ChatFormat,
    tmp_path: Path,
) -> None:
    """Each token with a pass of its own row; their mean (without normalisation the sum) is the advantage of Eq. 3."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    env = domain(tiny_model, critic, **rank)
    trained = env.settings.rank.critic == "trained"
    ranking = rank_replies(env, adapter if trained else None, trajectories, out=tmp_path)
    stored = list(Table(tmp_path / files.TOKEN_RATIOS, TokenRatios))
    assert stored == list(ranking.token_ratios)
    dialogues = {(dialogue.task.id, dialogue.attempt): dialogue for dialogue in sampled(env, trajectories)}
    states = [state for state in ranking.states if (state.task_id, state.attempt) in dialogues]
    assert [(entry.task_id, entry.attempt, entry.turn) for entry in stored] == [
        (state.task_id, state.attempt, state.turn) for state in states
    ]

    base = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    reference: Any = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    policy = PeftModel.from_pretrained(base, adapter).eval() if trained else base
    system = env.system_prompt("short")
    largest = 0.0
    for state, entry in zip(states, stored, strict=True):
        dialogue = dialogues[state.task_id, state.attempt]
        trunk = critic_row(dialogue, env, chat, system, env.settings.critic)
        same = trained and env.settings.rank.reference == "conditioned"
        plain = trunk if same else encode(dialogue, chat, system)
        for candidate, explained in zip(state.candidates, entry.replies, strict=True):
            values = []
            for model, context in ((policy, trunk), (reference, plain)):
                start = context.spans[state.turn][0]
                row = Row(context.token_ids[:start] + candidate.token_ids, ((start, start + len(candidate.token_ids)),))
                with torch.no_grad():
                    values.append([value.item() for value in slow_logprobs(model, row)[0]])
            ratios = list(explained.ratios)
            assert ratios == pytest.approx([a - b for a, b in zip(*values, strict=True)], abs=1e-4)
            assert list(explained.tokens) == [chat.tokenizer.decode([token]) for token in candidate.token_ids]
            largest = max(largest, *map(abs, ratios))
            if "token_set" in critic:
                continue  # its two sides go over different tokens: the advantage is no mean of these
            total = sum(ratios)
            assert candidate.advantage == pytest.approx(total if critic else total / len(ratios), abs=1e-4)
    assert largest > 0.01


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("critic", [{}, {"token_set": "official"}])
def test_nothing_else_changes_for_them(
    critic: dict[str, Any], tiny_model: Path, adapter: Path, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    rank_replies(domain(tiny_model, critic), adapter, trajectories, out=tmp_path / "some")
    some = written(tmp_path / "some")
    assert some.keys() == {files.CANDIDATES, files.PREFERENCES, files.SFT_REPLAY, files.TOKEN_RATIOS}
    # In the folder of another ranking, whose file would be of other candidates.
    ranking = rank_replies(domain(tiny_model, critic, token_ratios=0), adapter, trajectories, out=tmp_path / "some")
    assert not ranking.token_ratios
    none = written(tmp_path / "some")
    assert none == {name: value for name, value in some.items() if name != files.TOKEN_RATIOS}


def test_a_trained_critic_in_hand_gives_them_and_others_have_none(
    tiny_model: Path, adapter: Path, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    env = domain(tiny_model)
    by_folder = rank_replies(env, adapter, trajectories, out=tmp_path / "folder")
    in_hand = TrainedCritic(make_critic(env, settings_of(env), adapter), adapter)
    ranking: Ranking = rank_replies(env, in_hand, trajectories, out=tmp_path / "in hand")
    assert written(tmp_path / "in hand") == written(tmp_path / "folder")
    by_folder.save(tmp_path / "saved")
    assert written(tmp_path / "saved") == written(tmp_path / "folder")
    everything = rank_replies(domain(tiny_model, token_ratios=1000), adapter, trajectories)
    assert len(everything.token_ratios) == len(everything.states) > len(ranking.token_ratios) > 0
    assert list(everything.token_ratios)[: len(ranking.token_ratios)] == list(ranking.token_ratios)
    other = rank_replies(env, Loud(), trajectories, out=tmp_path / "loud")
    assert not other.token_ratios and not (tmp_path / "loud" / files.TOKEN_RATIOS).exists()
    other.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / files.TOKEN_RATIOS).exists(), "those of the ranking that was saved there before"


class Loud:
    """A critic of somebody's own: the longer, the better."""

    def rate(self, work: Any) -> list[list[list[float]]]:
        return [[[float(len(reply.text)) for reply in replies] for replies in turns] for _, turns in work]
