"""From results to rows and differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.evaluation.statistics import t_interval
from sweetrl.reproduce.outcomes import Condition, Measured, difference, picking_gap, row_of
from tests.reproduce.made import CHOSEN, COLD, WARM, keep, measured, measured_results, read_variant, result, results


def test_a_row_resamples_seeds_and_their_tasks() -> None:
    rft = measured("rft", {7: 0.2, 8: 0.6})
    row = row_of(rft, None, [CHOSEN], 0.95, 500)
    assert set(row["at"]) == {"chosen"}
    rates, success = row["at"]["chosen"], row["at"]["chosen"]["success"]
    wins = [sum(result.success for result in scored) / 200 for scored in rft.scored(CHOSEN).values()]
    assert (rates["tasks"], success["n"]) == (400, 400)
    assert success["value"] == pytest.approx(sum(wins) / 2)
    assert success["low"] == pytest.approx(wins[0], abs=0.08), "a resample may hold one seed twice"
    assert (success["t_low"], success["t_high"]) == pytest.approx(t_interval(wins))
    assert [(seed, own["success"]) for seed, own in rates["by_seed"].items()] == [(7, wins[0]), (8, wins[1])]
    assert rates["success_per_question"]["value"] == pytest.approx(sum(wins) / 2 / 4)
    assert rates["questions"]["value"] == 4.0
    assert row["training"] == {"seconds": 2.0, "measuring_seconds": 0.0}


def test_conditions_have_rates_of_their_own() -> None:
    by_condition = {COLD: results(0.9, 7), WARM: results(0.2, 7), Condition("1", "terse"): results(0.5, 7)}
    sweet = measured_results("sweet", {7: by_condition})
    row = row_of(sweet, None, [COLD, WARM, CHOSEN, Condition("0", "terse"), Condition("1", "terse")], 0.95, 100)
    assert set(row["at"]) == {"0", "1"}
    assert row["at"]["0"]["success"]["value"] > 0.8 > 0.4 > row["at"]["1"]["success"]["value"]
    assert {persona: set(rates) for persona, rates in row["personas"].items()} == {"terse": {"1"}}


def test_held_out_domains_are_a_number_of_their_own() -> None:
    def variant(name: str, wins_held_out: bool) -> Measured:
        rows = [result(f"t{n}", n % 5 > 0 or wins_held_out, held_out=n % 5 == 0) for n in range(100)]
        return measured_results(name, {7: {COLD: rows}})

    rates = row_of(variant("rft", False), variant("sweet", True), [COLD], 0.95, 100)["at"]["0"]
    assert (rates["success"]["value"], rates["held_out"]["success"]["value"]) == (0.8, 0.0)
    assert rates["held_out"]["success"]["n"] == 20
    assert rates["held_out"]["difference"]["success"]["value"] == -1.0
    assert rates["difference"]["success"]["value"] == pytest.approx(-0.2)
    plain = measured_results("sweet", {7: {COLD: [result(f"t{n}", True) for n in range(9)]}})
    assert "held_out" not in row_of(plain, None, [COLD], 0.95, 100)["at"]["0"]


def test_a_policy_without_questions_has_no_success_per_question() -> None:
    silent = measured_results("single-turn", {7: {COLD: results(0.5, 7, questions=0)}})
    assert "success_per_question" not in row_of(silent, None, [COLD], 0.95, 100)["at"]["0"]


def test_differences_are_paired_by_seed_and_task() -> None:
    same = measured("sweet", {7: 0.5, 8: 0.5})
    gaps = difference(same, same, CHOSEN, 0.95, 500)
    assert gaps is not None
    assert (gaps["success"].n, gaps["success"].groups, gaps["success"].value) == (400, 2, 0.0)
    assert gaps["success"].p_value == 1.0
    assert difference(same, measured("rft", {9: 0.5}), CHOSEN, 0.95, 500) is None
    assert difference(same, same, COLD, 0.95, 500) is None
    shorter = difference(same, measured("rft", {8: 0.5}, tasks=50), CHOSEN, 0.95, 500)
    assert shorter is not None
    assert (shorter["success"].n, shorter["success"].groups) == (50, 1), "what both have attempted"


def test_lost_dialogues_are_left_out_of_both_sides() -> None:
    sweet = measured("sweet", {7: 1.0}, tasks=4)
    first, *others = sweet.results(CHOSEN)[7]
    rft = measured_results("rft", {7: {CHOSEN: [replace(first, reward=None, outcome="lost"), *others]}})
    gaps = difference(sweet, rft, CHOSEN, 0.95, 500)
    assert gaps is not None
    assert gaps["success"].n == 3
    assert row_of(rft, None, [CHOSEN], 0.95, 500)["at"]["chosen"]["lost"] == 1


def test_what_was_measured_is_read_with_its_training(tmp_path: Path) -> None:
    cold, warm, terse = results(0.9, 7), results(0.3, 7), results(0.6, 7)
    training = {"stages": {"train-policy": {"seconds": 9.0, "metrics": {"pairs": 5.0}}}, "dialogues": 6000}
    keep(tmp_path, "grpo", 7, {"0": cold, "1": warm, "1-terse": terse}, chosen=0.0, training=training)
    grpo = read_variant("grpo", [7, 8], tmp_path)
    expected = {COLD: cold, CHOSEN: cold, WARM: warm, Condition("1", "terse"): terse, Condition("0", "terse"): []}
    assert {condition: grpo.results(condition).get(7, []) for condition in expected} == expected
    assert set(grpo.stages[7]) == {"train-policy", "evaluate"}
    row = row_of(grpo, None, [COLD, WARM, CHOSEN], 0.95, 100)
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
    gap = picking_gap(better, worse, 0.95, 200)
    assert (gap["value"], gap["n"]) == (pytest.approx(0.5 / 3), 3), "a lost task is left out"
    assert gap["low"] <= gap["value"] <= gap["high"]
    own = [point | {"success": point["reward"] == 0.9} for point in worse]
    assert picking_gap(better, own, 0.95, 200)["value"] == pytest.approx(1.0 / 3), "success is what the points say"
