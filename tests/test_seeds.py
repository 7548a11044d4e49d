"""Seeds are stable for ever and differ in every argument."""

from __future__ import annotations

from sweetrl.seeds import best_of_n_seed, dialogue_seed, part_seed, simulator_seed, state_seed, trace_draw


def test_seeds_are_stable_and_fit_63_bits() -> None:
    """Other ones would change every run there has been."""
    assert dialogue_seed(7, "train-00000", 0, 0) == 4052355320337177411
    assert dialogue_seed(7, "train-00000", 0) == 6967314007356404589
    assert simulator_seed(0, 1) == 4925445270313286572
    assert state_seed(7, "draw", "train-00000", 2, 3) == 3361238806117662953
    assert best_of_n_seed(7, "test-00000", 1) == 7144420777451342234
    assert (part_seed(7, "round", 1), part_seed(7, "round", 2)) == (7, 1148651246)
    assert trace_draw(7, "train-00000", 1) == 0.9258915256239971
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
