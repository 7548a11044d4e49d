from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sweetrl.sweet.pairs import trajectory_pairs
from sweetrl.types import Message, Task, Trajectory

rewards = st.one_of(st.none(), st.integers(0, 10).map(lambda tenths: tenths / 10))
outcomes = st.sampled_from(["answered", "answered", "max_turns_reached", "lost"])
batches = st.lists(st.lists(st.tuples(rewards, outcomes), max_size=5), max_size=5)


def batch(attempts: list) -> list[Trajectory]:
    return [
        Trajectory(Task(f"t{task}", "", ""), attempt, (Message("user", ""),), reward=reward, outcome=outcome)
        for task, tries in enumerate(attempts)
        for attempt, (reward, outcome) in enumerate(tries)
    ]


@given(batches, st.sampled_from(["official", "all"]), st.sampled_from([0.1, 0.3, 1.0]))
def test_pairs_obey_the_rules(attempts: list, rule: str, gap: float) -> None:
    trajectories = batch(attempts)
    pairs, counts = trajectory_pairs(trajectories, rule, gap)  # type: ignore[arg-type]
    dialogues = {(dialogue.task.id, dialogue.attempt): dialogue for dialogue in trajectories}
    for pair in pairs:
        chosen, rejected = dialogues[pair.task_id, pair.chosen_attempt], dialogues[pair.task_id, pair.rejected_attempt]
        assert (chosen.reward, rejected.reward) == (pair.chosen_reward, pair.rejected_reward)
        assert pair.chosen_reward > pair.rejected_reward
        assert "lost" not in (chosen.outcome, rejected.outcome)
        if rule == "all":
            assert pair.chosen_reward - pair.rejected_reward >= gap - 1e-6
    assert len(set(pairs)) == len(pairs)
    # By brute force, task by task.
    expected = 0
    for tries in attempts:
        usable = [reward for reward, outcome in tries if reward is not None and outcome != "lost"]
        if rule == "official":
            expected += sum(reward < 1 for reward in usable) if 1.0 in usable else 0
        else:
            expected += sum(a - b >= gap - 1e-6 for a in usable for b in usable)
    assert len(pairs) == counts["pairs"] == expected
    assert counts["trajectories"] == len(trajectories)
    assert counts["unusable"] == sum(r is None or o == "lost" for tries in attempts for r, o in tries)
    assert counts["tasks_with_pairs"] == len({pair.task_id for pair in pairs})


def test_official_takes_the_first_success_whatever_it_has_cost() -> None:
    """With a price of questions (`reward.turn_cost`) no success has a reward of 1."""
    paid = [(0.6, False), (0.8, True), (0.9, True), (-0.1, False)]
    attempts = [
        replace(dialogue, solved=solved)
        for dialogue, (_, solved) in zip(batch([[(reward, "answered") for reward, _ in paid]]), paid, strict=True)
    ]
    pairs, counts = trajectory_pairs(attempts)
    assert [(pair.chosen_attempt, pair.rejected_attempt) for pair in pairs] == [(1, 0), (1, 3)]
    assert (counts["equal"], counts["too_close"]) == (1, 0)
    pairs, _ = trajectory_pairs(attempts, "all", 0.1)
    assert (2, 1) in {(pair.chosen_attempt, pair.rejected_attempt) for pair in pairs}, "the shorter success is better"
