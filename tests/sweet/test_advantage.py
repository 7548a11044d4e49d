from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Trajectories as lists of turns as lists of (log-prob, reference log-prob).
numbers = st.floats(-20, 0, allow_nan=False)
turns = st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4), min_size=1, max_size=4)


def flat(trajectories: list) -> tuple:
    import torch

    tokens = [token for trajectory in trajectories for turn in trajectory for token in turn]
    number, turn, turn_row = 0, [], []
    for row, trajectory in enumerate(trajectories):
        for replies in trajectory:
            turn += [number] * len(replies)
            turn_row.append(row)
            number += 1
    values = torch.tensor(tokens, dtype=torch.float64)
    return values[:, 0], values[:, 1], torch.tensor(turn), torch.tensor(turn_row)


@given(st.lists(turns, min_size=1, max_size=3))
def test_scores_equal_the_formulas_written_as_loops(trajectories: list) -> None:
    from sweetrl.sweet.advantage import trajectory_scores, turn_advantages

    ours, reference, turn, turn_row = flat(trajectories)
    advantages = [[sum(p - r for p, r in tokens) / len(tokens) for tokens in one] for one in trajectories]
    found = turn_advantages(ours, reference, turn, len(turn_row)).tolist()
    assert found == pytest.approx([value for one in advantages for value in one], abs=1e-9)
    ratios = [[p - r for tokens in one for p, r in tokens] for one in trajectories]
    expected = {
        "turn": [sum(one) for one in advantages],
        "trajectory": [sum(one) / len(one) for one in ratios],
        "none": [sum(one) for one in ratios],
    }
    for name, values in expected.items():
        scores = trajectory_scores(ours, reference, turn, turn_row, len(trajectories), name)  # type: ignore[arg-type]
        assert scores.tolist() == pytest.approx(values, abs=1e-9)
