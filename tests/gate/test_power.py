"""The power of comparisons: the formulas against simulated comparisons, with the tests that the gate uses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from sweetrl.config.settings import GateSettings
from sweetrl.evaluation.statistics import paired_p_value
from sweetrl.gate.power import detectable_difference, required_tasks, tasks_for_margin
from sweetrl.gate.slices import compare_slices


def differences(rng: np.random.Generator, count: int, mean: float, discordance: float) -> np.ndarray:
    """Differences of rewards of 0 and 1: `discordance` of them are not 0, and their mean is `mean`."""
    shares = [(discordance - mean) / 2, 1 - discordance, (discordance + mean) / 2]
    return rng.choice([-1.0, 0.0, 1.0], count, p=shares)


def test_the_textbooks_number() -> None:
    """Connor's formula by hand: (1.95996 sqrt(0.2) + 0.84162 sqrt(0.19))^2 / 0.01 = 154.6."""
    assert required_tasks(0.1, 0.2, 0.05, 0.8) == 155
    assert required_tasks(-0.1, 0.2, 0.05, 0.8) == 155


@pytest.mark.parametrize(("mean", "discordance", "power"), [(0.1, 0.2, 0.8), (0.1, 0.4, 0.8), (0.06, 0.15, 0.9)])
def test_so_many_tasks_show_the_difference_so_often(mean: float, discordance: float, power: float) -> None:
    count, rng = required_tasks(mean, discordance, 0.05, power), np.random.default_rng(1)
    p_values: dict[tuple[int, int], float] = {}
    seen = 0
    for _ in range(2000):
        gaps = differences(rng, count, mean, discordance)
        pair = int(np.sum(gaps > 0)), int(np.sum(gaps != 0))
        p_values[pair] = p_values[pair] if pair in p_values else binomtest(*pair, 0.5).pvalue
        seen += pair[0] > pair[1] / 2 and p_values[pair] < 0.05
    assert seen / 2000 == pytest.approx(power, abs=0.04)


def test_rewards_between_0_and_1_are_seen_as_often() -> None:
    rng = np.random.default_rng(2)
    values, shares = np.array([-0.6, -0.2, 0.0, 0.2, 0.6]), np.array([0.06, 0.1, 0.56, 0.16, 0.12])
    mean, discordance = float(values @ shares), float(values**2 @ shares)
    count = required_tasks(mean, discordance, 0.05, 0.8)
    trials = [rng.choice(values, count, p=shares) for _ in range(150)]
    seen = sum(paired_p_value(np.zeros(count), gaps, resamples=499) < 0.05 for gaps in trials)
    assert seen / len(trials) == pytest.approx(0.8, abs=0.08)


def test_the_detectable_difference_is_the_inverse() -> None:
    for count in (50, 155, 1000):
        delta = detectable_difference(count, 0.2, 0.05, 0.8)
        assert delta is not None and required_tasks(delta, 0.2, 0.05, 0.8) == pytest.approx(count, abs=1)
    assert detectable_difference(3, 0.2, 0.05, 0.8) is None
    assert detectable_difference(100, 0.0, 0.05, 0.8) == 0.0


def test_so_many_tasks_of_a_slice_rule_a_loss_out() -> None:
    """With equal versions, by the same interval that judges slices."""
    rules, rng = GateSettings(slices=["topic"]), np.random.default_rng(3)
    count = tasks_for_margin(rules.slice_margin, 0.2, 0.05, rules.power)
    assert count == 157
    groups = {"topic": {f"{slice_}-{task}": slice_ for slice_ in "ab" for task in range(count)}}
    safe = []
    for _ in range(400):
        values = {
            task: float(value)
            for task, value in zip(groups["topic"], differences(rng, 2 * count, 0.0, 0.2), strict=True)
        }
        safe += [part.status == "safe" for part in compare_slices(values, groups, rules, 0.95)]
    assert np.mean(safe) == pytest.approx(rules.power, abs=0.05)
