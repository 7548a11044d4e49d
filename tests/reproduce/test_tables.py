"""From results to rows and differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.evaluation.statistics import t_interval
from sweetrl.reproduce.outcomes import Condition, Measured, difference, picking_gap, row_of
from tests.reproduce.made import CHOSEN, COLD, WARM, keep, measured, of, read_variant, result, results


def test_a_row_resamples_seeds_and_their_tasks() -> None:
    one = measured("rft", {7: 0.2, 8: 0.6})
    row = row_of(one, None, [CHOSEN], 0.95, 500)
    assert set(row["at"]) == {"chosen"}
    found = row["at"]["chosen"]
    wins = [sum(r.success for r in some) / 200 for some in one.scored(CHOSEN).values()]
    assert (found["tasks"], found["success"]["n"]) == (400, 400)
    assert found["success"]["value"] == pytest.approx(sum(wins) / 2)
    assert found["success"]["low"] == pytest.approx(wins[0], abs=0.08), "a resample may hold one seed twice"
    assert (found["success"]["t_low"], found["success"]["t_high"]) == pytest.approx(t_interval(wins))
    assert {seed: one["success"] for seed, one in found["by_seed"].items()} == dict(zip((7, 8), wins, strict=True))
    assert found["success_per_question"]["value"] == pytest.approx(sum(wins) / 2 / 4)
    assert found["questions"]["value"] == 4.0
    assert row["training"] == {"seconds": 2.0, "measuring_seconds": 0.0}


def test_every_condition_is_told_apart() -> None:
    some = {COLD: results(0.9, 7), WARM: results(0.2, 7), Condition("1", "terse"): results(0.5, 7)}
    one = of("sweet", {7: some})
    row = row_of(one, None, [COLD, WARM, CHOSEN, Condition("0", "terse"), Condition("1", "terse")], 0.95, 100)
    assert set(row["at"]) == {"0", "1"}
    assert row["at"]["0"]["success"]["value"] > 0.8 > 0.4 > row["at"]["1"]["success"]["value"]
    assert {who: set(found) for who, found in row["personas"].items()} == {"terse": {"1"}}


def test_held_out_domains_are_a_number_of_their_own() -> None:
    def told(known: bool) -> Measured:
        some = [result(f"t{n}", n % 5 > 0 or known, held_out=n % 5 == 0) for n in range(100)]
        return of("sweet" if known else "rft", {7: {COLD: some}})

    row = row_of(told(False), told(True), [COLD], 0.95, 100)
    found = row["at"]["0"]
    assert (found["success"]["value"], found["held_out"]["success"]["value"]) == (0.8, 0.0)
    assert found["held_out"]["success"]["n"] == 20
    assert found["held_out"]["difference"]["success"]["value"] == -1.0
    assert found["difference"]["success"]["value"] == pytest.approx(-0.2)
    plain = of("sweet", {7: {COLD: [result(f"t{n}", True) for n in range(9)]}})
    assert "held_out" not in row_of(plain, None, [COLD], 0.95, 100)["at"]["0"]


def test_who_asks_nothing_has_no_success_for_a_question() -> None:
    silent = of("single-turn", {7: {COLD: results(0.5, 7, questions=0)}})
    assert "success_per_question" not in row_of(silent, None, [COLD], 0.95, 100)["at"]["0"]


def test_differences_are_paired_by_seed_and_task() -> None:
    same = measured("sweet", {7: 0.5, 8: 0.5})
    found = difference(same, same, CHOSEN, 0.95, 500)
    assert found is not None
    assert (found["success"].n, found["success"].groups, found["success"].value) == (400, 2, 0.0)
    assert found["success"].p_value == 1.0
    assert difference(same, measured("rft", {9: 0.5}), CHOSEN, 0.95, 500) is None
    assert difference(same, same, COLD, 0.95, 500) is None
    shorter = difference(same, measured("rft", {8: 0.5}, tasks=50), CHOSEN, 0.95, 500)
    assert shorter is not None
    assert (shorter["success"].n, shorter["success"].groups) == (50, 1), "what both have attempted"


def test_lost_dialogues_are_left_out_of_both_sides() -> None:
    one = measured("sweet", {7: 1.0}, tasks=4)
    first, *others = one.results(CHOSEN)[7]
    other = of("rft", {7: {CHOSEN: [replace(first, reward=None, outcome="lost"), *others]}})
    found = difference(one, other, CHOSEN, 0.95, 500)
    assert found is not None
    assert found["success"].n == 3
    assert row_of(other, None, [CHOSEN], 0.95, 500)["at"]["chosen"]["lost"] == 1


def test_what_was_measured_is_read_with_its_training(tmp_path: Path) -> None:
    cold, warm, terse = results(0.9, 7), results(0.3, 7), results(0.6, 7)
    training = {"stages": {"train-policy": {"seconds": 9.0, "metrics": {"pairs": 5.0}}}, "dialogues": 6000}
    keep(tmp_path, "grpo", 7, {"0": cold, "1": warm, "1-terse": terse}, chosen=0.0, training=training)
    found = read_variant("grpo", [7, 8], tmp_path)
    expected = {COLD: cold, CHOSEN: cold, WARM: warm, Condition("1", "terse"): terse, Condition("0", "terse"): []}
    assert {condition: found.results(condition).get(7, []) for condition in expected} == expected
    assert set(found.stages[7]) == {"train-policy", "evaluate"}
    row = row_of(found, None, [COLD, WARM, CHOSEN], 0.95, 100)
    assert row["at"]["0"] == row["at"]["chosen"]
    assert (row["chosen"], row["dialogues"], row["at"]["0"]["reply_tokens"]) == ({7: 0.0}, 6000, 8.5)
    assert row["validation"]["0.5"]["success"] == pytest.approx(0.375)
    assert row["training"] == {"pairs": 5.0, "seconds": 69.0, "measuring_seconds": 60.0}


def test_picks_are_compared_by_task_over_all_n_but_one() -> None:
    def points(*rewards: tuple[float | None, ...]) -> list[dict[str, Any]]:
        return [
            {"task_id": f"t{task}", "n": n, "reward": reward, "success": reward == 1.0}
            for task, row in enumerate(rewards)
            for n, reward in zip((1, 2, 4), row, strict=True)
        ]

    better = points((0.0, 1.0, 1.0), (1.0, 1.0, 0.5), (0.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    worse = points((0.0, 0.0, 1.0), (1.0, 1.0, 0.5), (0.0, None, 0.0), (0.0, 0.0, 0.9))
    found = picking_gap(better, worse, 0.95, 200)
    assert (found["value"], found["n"]) == (pytest.approx(0.5 / 3), 3), "a lost task is left out"
    assert found["low"] <= found["value"] <= found["high"]
    own = [one | {"success": one["reward"] == 0.9} for one in worse]
    assert picking_gap(better, own, 0.95, 200)["value"] == pytest.approx(1.0 / 3), "success is what the points say"
