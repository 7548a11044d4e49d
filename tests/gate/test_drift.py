"""Watching the champion: a drop is found, an equal champion raises no alarm, and the sentence says what to do."""

from __future__ import annotations

import numpy as np

from sweetrl.config.settings import GateSettings
from sweetrl.gate.drift import Look, look


def looked(first: np.ndarray, now: np.ndarray, number: int = 1, resamples: int = 1000) -> Look:
    sides = [{f"t{index}": float(value) for index, value in enumerate(side)} for side in (first, now)]
    return look(sides[0], sides[1], GateSettings(), 0.95, resamples, 0, number)


def test_a_drop_is_found_and_asks_for_a_retraining() -> None:
    rng = np.random.default_rng(1)
    first = (rng.random(400) < 0.8).astype(float)
    worse = looked(first, first * (rng.random(400) < 0.85), 4)
    assert worse.drifted and "look 4" in worse.sentence and "Retrain now: `python -m flows.retrain`." in worse.sentence
    better = looked(first * (rng.random(400) < 0.85), first)
    assert not better.drifted and "has got better without training" in better.sentence


def test_what_could_not_be_seen_is_reported() -> None:
    rng = np.random.default_rng(3)
    first, now = (rng.random(200) < 0.5).astype(float), (rng.random(200) < 0.5).astype(float)
    same = looked(first, now)
    assert "is not shown to have changed" in same.sentence and "or more is seen with a chance of 80 %" in same.sentence


def test_a_fall_that_the_interval_does_not_show_is_no_rise() -> None:
    """Most tasks a little worse and one much better: p is below the limit, and the interval reaches beyond 0."""
    now = np.full(41, 0.45)
    now[0] = 1.0
    fall = looked(np.full(41, 0.5), now)
    assert fall.difference < 0.0 and fall.p_value < fall.alpha and not fall.drifted
    assert "is not shown to have changed" in fall.sentence
