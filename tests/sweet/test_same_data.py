"""What methods learn from is what it was when everything was held in memory: rows, pairs, order of draws.

The digests are those of that code.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sweetrl.backend.domain import Backend
from sweetrl.config.settings import CriticSettings, MultiTurnSettings, PolicySettings, RankSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.evaluation.metrics import ranking_metrics
from sweetrl.lm.data import PreferenceData, drop_overlong, plan
from sweetrl.sweet.data import critic_attempts, critic_pairs, policy_pairs, successes
from sweetrl.sweet.pairs import trajectory_pairs
from sweetrl.sweet.preferences import listwise_rows, preference_rows
from sweetrl.sweet.rank import centered, choose_dialogues, choose_preferences, find_replay
from sweetrl.types import Candidate, RankedState, Trajectory

DOMAIN, SYSTEM = Backend(), "You help a user."
EXPECTED = {
    "pairs/official": "f55bec1582752263",
    "critic/official": "69caffa5daa9bfdb",
    "critic/official/header": "77651a8569b353a8",
    "pairs/all": "ab7c08ec01806f5a",
    "critic/all": "9e5cd9128ade04bf",
    "critic/all/header": "7b0534c75c6e9a4f",
    "value": "c2754f47ce67d0da",
    "multi-turn-dpo/final": "c8ab3aea50cf4b61",
    "multi-turn-dpo/all": "dbd44228bd4e65f1",
    "multi-turn-dpo/whole": "095ff7f21bbec7db",
    "rft": "517be8a47817cd4c",
    "dialogues": "eaf43de4a8cf07ae",
    "replay": "a6cbce140a5b022b",
    "metrics/any": "328c1825071d0738",
    "dpo/any/replies": "b75845394cd6920d",
    "dpo/any/all": "b9627860d9111a93",
    "metrics/mean_centered": "af5912f90f974c42",
    "dpo/mean_centered/replies": "ffab2b890983e447",
    "dpo/mean_centered/all": "ef93fd72346ee2fa",
    "metrics/same": "3381abc2d8ca39ed",
    "dpo/same/replies": "a953751667bd6ff7",
    "dpo/same/all": "cabd8b2799d8c2b4",
    "listwise/True": "fa41a63060496b5f",
    "listwise/True/replay": "5c623c1076ba6000",
    "listwise/False": "08b28460572a2c2a",
    "listwise/False/replay": "3084302827c900af",
}


@pytest.fixture(scope="module")
def attempts(make_trajectory: Callable[..., Trajectory]) -> list[Trajectory]:
    """Five attempts at each of twelve tasks, some lost, all of different lengths."""
    chance = random.Random(3)
    return [
        make_trajectory(
            task,
            attempt,
            chance.choice([0.0, 0.3, 0.6, 1.0]),
            sampled=attempt % 2 == 0,
            outcome="lost" if (task + attempt) % 11 == 0 else "answered",
        )
        for task in range(12)
        for attempt in range(5)
    ]


def states(attempts: list[Trajectory], chat: ChatFormat) -> list[RankedState]:
    """Ranked replies at two turns of some dialogues, some of which occur at several states."""
    chance = random.Random(5)
    texts = [
        "Is there a maximum?",
        "What is the rate?",
        "I WANT TO ANSWER:\ndef f(): 0",
        "I WANT TO ANSWER:\nx",
        "Why?",
    ]
    ranked = []
    for dialogue in attempts[::4]:
        for turn in range(2):
            some = chance.sample(texts, chance.randint(2, 5))
            replies = tuple(
                Candidate(chat.reply(text), text, chance.randint(1, 3), chance.gauss(0, 1)) for text in some
            )
            prompt = chat.open(SYSTEM, dialogue.messages[0].content) * (turn + 1)
            ranked.append(RankedState(dialogue.task.id, dialogue.attempt, turn, prompt, replies))
    return ranked


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def labels(data: PreferenceData) -> list[Any]:
    """The labels as training has them, in float32: since Python 3.12 `sum` rounds in another way."""
    return [round(float(np.float32(value)), 7) for value in data.labels]


def data_digest(data: PreferenceData) -> str:
    """A digest of the data, of what is left of them where dialogues are too long, and of two plans."""
    short, gone = drop_overlong(data, sorted(len(row.token_ids) for row in data.rows)[-2])
    plans = [
        [(step.pairs, step.replay) for step in plan(part, 1.7, 4, 11, 0.4 if part.replay else 0.0, together)]
        for part in (data, short)
        for together in (1, 3)
    ]
    parts = [
        [
            [(row.token_ids, row.spans) for row in part.rows],
            [(row.token_ids, row.spans) for row in part.reference_rows],
            *(list(values) for values in (part.pairs, part.replay, part.groups, labels(part), part.turns)),
        ]
        for part in (data, short)
    ]
    return digest([parts, gone, plans])


@pytest.mark.parametrize("rule", ["official", "all"])
def test_the_critic_learns_from_the_same_pairs(rule: Any, attempts: list[Trajectory], chat: ChatFormat) -> None:
    pairs, counts = trajectory_pairs(attempts, rule)
    made = {
        f"pairs/{rule}": digest([[(p.task_id, p.chosen_attempt, p.rejected_attempt) for p in pairs], counts]),
        f"critic/{rule}": data_digest(critic_pairs(pairs, attempts, DOMAIN, chat, SYSTEM, CriticSettings())),
        f"critic/{rule}/header": data_digest(
            critic_pairs(
                pairs,
                attempts,
                DOMAIN,
                chat,
                SYSTEM,
                CriticSettings(reference="unconditioned", token_set="official", privileged_position="before"),
            )
        ),
    }
    assert made == {name: EXPECTED[name] for name in made}


def test_methods_learn_from_the_same_dialogues(attempts: list[Trajectory], chat: ChatFormat) -> None:
    pairs = trajectory_pairs(attempts, "all")[0]
    made = {"value": data_digest(critic_attempts(attempts, DOMAIN, chat, SYSTEM, CriticSettings()))}
    for turns in ("final", "all"):
        settings = MultiTurnSettings(sft_replay=0.5, sft_replay_turns=turns)
        made[f"multi-turn-dpo/{turns}"] = data_digest(policy_pairs(pairs, attempts, chat, SYSTEM, settings))
    settings = MultiTurnSettings(loss_tokens="all")
    made["multi-turn-dpo/whole"] = data_digest(policy_pairs(pairs, attempts, chat, SYSTEM, settings))
    made["rft"] = data_digest(successes(attempts, chat, SYSTEM, 0.6))
    assert made == {name: EXPECTED[name] for name in made}


def test_rank_and_sweet_come_to_the_same(attempts: list[Trajectory], chat: ChatFormat) -> None:
    ranked = states(attempts, chat)
    chosen = choose_dialogues(attempts, 0.3, 7)
    made = {"dialogues": digest([(dialogue.task.id, dialogue.attempt) for dialogue in chosen])}
    replay = list(find_replay(attempts, chat, SYSTEM))
    made["replay"] = digest([(entry.task_id, entry.attempt, entry.row.token_ids, entry.row.spans) for entry in replay])
    for types in ("any", "mean_centered", "same"):
        rules = RankSettings(reply_types=types, margin=0.2)
        preferences = list(choose_preferences(ranked, DOMAIN, rules, 7))
        metrics = ranking_metrics(ranked, preferences, DOMAIN)
        made[f"metrics/{types}"] = digest(sorted(metrics.items()))
        for loss in ("replies", "all"):
            settings = PolicySettings(objective="dpo", sft_replay=0.5, loss_tokens=loss)
            made[f"dpo/{types}/{loss}"] = data_digest(preference_rows(preferences, replay, settings))
    shifted = list(centered(ranked, DOMAIN, "mean_centered"))
    for equal in (True, False):
        made[f"listwise/{equal}"] = data_digest(listwise_rows(shifted, 1.0, 0.5, 0.03, equal))
        made[f"listwise/{equal}/replay"] = data_digest(listwise_rows(shifted, 1.0, 0.5, 0.03, equal, replay, equal))
    assert made == {name: EXPECTED[name] for name in made}
