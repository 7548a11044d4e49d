"""Seeds are stable for ever and differ in every argument."""

from __future__ import annotations

from sweetrl.seeds import dialogue_seed


def test_seeds_are_stable_and_fit_63_bits() -> None:
    assert dialogue_seed(7, "train-00000", 0, 0) == 4052355320337177411
    assert 0 <= dialogue_seed(-1, "", 0) < 2**63


def test_seeds_differ_in_every_argument() -> None:
    seeds = {
        dialogue_seed(seed, task, attempt, turn)
        for seed in (0, 1)
        for task in ("a", "b", "a\0001")
        for attempt in (0, 1, 11)
        for turn in (-1, 0, 1, 10)
    }
    assert len(seeds) == 2 * 3 * 3 * 4
