"""The price of a question, from the rollout to the pairs: a short success is worth more than a long one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.scoring import PRICE, TASK, PricedScorer
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import parse_settings
from sweetrl.engines.policy import Agent
from sweetrl.errors import UserError
from sweetrl.interop.worlds import World
from sweetrl.paths import PAIRS, TRAJECTORIES, VALIDATION
from sweetrl.rollout.context import open_environment
from sweetrl.rollout.run import rollout_scored
from sweetrl.stages.validate import validate
from sweetrl.sweet.pairs import read_pairs
from sweetrl.types import Task, Trajectory

COST, TASKS, TURNS = 0.05, 4, 6
RIGHT, WRONG = "I WANT TO ANSWER: seven", "I WANT TO ANSWER: eight"
AGENTS = {
    "long": ("Is it even?", "Is it odd?", "Is it small?", "Is it prime?", RIGHT),
    "short": ("Is it odd?", RIGHT),
    "wrong": ("Is it even?", "Is it odd?", WRONG),
    "endless": tuple(f"Is it {number}?" for number in range(TURNS)),
}
DOMAIN = """
import sweetrl


class Number(sweetrl.Domain):
    prompt = "Find out the number, in words."

    def tasks(self, split, count, seed, difficulty):
        for number in range(count):
            yield sweetrl.Task(f"{split}-{number}", f"Say my number, please ({number}).", ground_truth="seven")

    def reply(self, task, messages, seed):
        return f"That was question {len(messages) // 2}."

    def reward(self, task, dialogue):
        return float((dialogue.answer or "").strip() == "seven")

    def check_score(self, trajectory):
        right = (trajectory.answer or "").strip() == "seven"
        return None if trajectory.reward == right else f"{trajectory.reward:g} is not the reward of the task"


def brief(task, dialogue):
    return {"right": dialogue.reward, "luck": 0.5}
"""


@pytest.fixture
def number(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_code: Callable[..., Path]
) -> Callable[..., Domain]:
    """A function that makes the domain with settings of one's own; we are in an empty project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    own_code(tmp_path, DOMAIN)

    def make(**sections: Any) -> Domain:
        values = {
            "suite": "mine:Number",
            "sources": {"suite": "mine.py"},
            "model": {"base": str(tiny_model)},
            "agent": {"max_turns": TURNS},
            "collect": {"attempts": len(AGENTS)},
            "critic": {"pairs": "all", "gap": COST},
            "validate": {"minimum_pairs": 1},
        }
        return load_domain(parse_settings(values | sections))

    return make


def collected(domain: Domain, cast: Any, folder: Path = TRAJECTORIES) -> list[Trajectory]:
    """One dialogue of every agent about every task, the agents being the attempts."""
    tasks = list(domain.tasks("train", TASKS, 0, 1))
    dialogues = []
    with open_environment(domain) as environment:
        for attempt, replies in enumerate(AGENTS.values()):
            store = TrajectoryStore(folder.parent / f"of-{attempt}")
            context = environment.context(Agent(cast.engine(*replies), cast.chat))
            assert context.scorer is environment.scorer
            rollout_scored(
                [(task, attempt) for task in tasks], context, store, seed=3, policy_name="base", batch=4, shard=2
            )
            dialogues += list(store)
    TrajectoryStore(folder).write_shard(0, dialogues)
    return dialogues


def play(domain: Domain, task: Task, *replies: str) -> Trajectory:
    """What an adapter of another library gets for a dialogue: ended, or broken off after these replies."""
    world = World(domain)
    talk = world.begin(task)
    for reply in replies:
        talk.say(reply)
    dialogue = world.score(task, talk)
    world.close()
    return dialogue


def test_equal_success_at_different_prices(number: Callable[..., Domain], cast: Any) -> None:
    domain = number(reward={"turn_cost": COST})
    dialogues, names = collected(domain, cast), list(AGENTS)
    assert {
        (names[dialogue.attempt], dialogue.reward, dialogue.success, tuple(sorted(dialogue.parts.items())))
        for dialogue in dialogues
    } == {
        ("long", 0.8, True, ((PRICE, -0.2), (TASK, 1.0))),
        ("short", 0.95, True, ((PRICE, -0.05), (TASK, 1.0))),
        ("wrong", -0.1, False, ((PRICE, -0.1), (TASK, 0.0))),
        ("endless", -0.25, False, ((PRICE, -0.25), (TASK, 0.0))),
    }
    assert (dialogues[-1].outcome, domain.reward_bounds[0]) == ("max_turns_reached", -0.25)

    validate(domain.settings)
    pairs = read_pairs(PAIRS)
    assert len(pairs) == TASKS * 6
    assert [(pair.chosen_attempt, pair.rejected_attempt) for pair in pairs[:6]] == [
        (1, 0), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3),
    ]  # fmt: skip
    report = json.loads(VALIDATION.read_text())["batch"]
    assert report["success_rate"] == 0.5 and report["mean_reward"] == pytest.approx((0.8 + 0.95 - 0.1 - 0.25) / 4)

    validate(number(reward={"turn_cost": COST}, critic={"pairs": "official"}).settings)
    pairs = read_pairs(PAIRS)
    assert [(pair.chosen_attempt, pair.rejected_attempt) for pair in pairs] == [(0, 2), (0, 3)] * TASKS
    assert {pair.chosen_reward for pair in pairs} == {0.8}


@pytest.mark.parametrize(
    ("collected_at", "validated_at", "fault"),
    [
        (0.0, COST, "its questions have cost 0, with this reward.turn_cost it is 0.2"),
        (COST, 0.0, "its questions have cost 0.2, with this reward.turn_cost it is 0"),
        (COST, 0.02, "rewards must lie in -0.1 to 1, but 4 of 16 rows do not"),
    ],
)
def test_another_price_than_the_batchs_is_found_out(
    number: Callable[..., Domain], cast: Any, collected_at: float, validated_at: float, fault: str
) -> None:
    collected(number(reward={"turn_cost": collected_at}), cast)
    with pytest.raises(UserError) as caught:
        validate(number(reward={"turn_cost": validated_at}).settings)
    assert fault in str(caught.value)


def test_a_function_is_priced_after_it(number: Callable[..., Domain], cast: Any) -> None:
    domain = number(
        reward={"function": "mine:brief", "turn_cost": COST}, sources={"suite": "mine.py", "reward": "mine.py"}
    )
    dialogues = collected(domain, cast)
    assert {(dialogue.reward, dialogue.success) for dialogue in dialogues[: 2 * TASKS]} == {(1.3, True), (1.45, True)}
    assert dialogues[0].parts == {"right": 1.0, "luck": 0.5, PRICE: -0.2}
    validate(domain.settings)


def test_other_libraries_pay_too(number: Callable[..., Domain]) -> None:
    domain = number(reward={"turn_cost": COST})
    (task,) = domain.tasks("test", 1, 0, 1)
    short, long = play(domain, task, *AGENTS["short"]), play(domain, task, *AGENTS["long"])
    assert (short.reward, long.reward, short.success, long.success) == (0.95, 0.8, True, True)
    broken_off = play(domain, task, "Is it even?", "Is it odd?")
    assert (broken_off.reward, broken_off.success) == (-0.1, False), "both have been answered"
    assert play(domain, task, RIGHT).parts == {TASK: 1.0, PRICE: 0.0}


def test_without_a_price_nothing_changes(number: Callable[..., Domain], cast: Any, tmp_path: Path) -> None:
    plain, free = number(), number(reward={"turn_cost": 0})
    with open_environment(free) as environment:
        assert not isinstance(environment.scorer, PricedScorer)
    dialogues = collected(plain, cast, tmp_path / "plain" / "batch")
    assert collected(free, cast, tmp_path / "free" / "batch") == dialogues
    first, second = ((tmp_path / name / "batch" / "shard-00000.parquet").read_bytes() for name in ("plain", "free"))
    assert first == second
    assert {dialogue.reward for dialogue in dialogues} == {1.0, 0.0}
    assert all(dialogue.parts == {} and dialogue.solved is None for dialogue in dialogues)
    assert plain.reward_bounds == (0.0, 1.0) and plain.shown_labels == plain.labels
