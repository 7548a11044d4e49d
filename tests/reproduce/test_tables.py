"""From results to rows, differences and verdicts, and the three files of the report."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import Result, write_results
from sweetrl.evaluation.report import percent
from sweetrl.io import write_json
from sweetrl.reproduce import report
from sweetrl.reproduce.run import RESULTS, SUMMARY, Profile
from sweetrl.reproduce.tables import CLAIMS, Measured, claims, difference, picking_gap, row_of, verdict
from sweetrl.reproduce.variants import VARIANTS

ROOT = Path(__file__).resolve().parents[2]


def results(rate: float, seed: int, tasks: int = 200) -> list[Result]:
    chance = random.Random(seed)
    return [
        Result(f"t{n}", "trained", "d", float(won), won, "answered", 10 * won, 10, 5, 4, 1, False, 0, 3, 1, 0, 0)
        for n in range(tasks)
        for won in [chance.random() < rate]
    ]


def measured(name: str, rates: dict[int, float], tasks: int = 200) -> Measured:
    facts = {seed: {"evaluate": {"seconds": 2.0, "metrics": {"reply_tokens": 9.0}}} for seed in rates}
    return Measured(VARIANTS[name], {seed: results(rate, seed, tasks) for seed, rate in rates.items()}, facts)


def test_a_row_pools_the_seeds() -> None:
    one = measured("rft", {7: 0.2, 8: 0.6})
    row = row_of(one, None, 0.95, 500)
    wins = [sum(r.success for r in some) for some in one.results.values()]
    assert row["tasks"] == 400
    assert row["success"]["value"] == pytest.approx(sum(wins) / 400)
    assert row["success_by_seed"] == {7: wins[0] / 200, 8: wins[1] / 200}
    assert row["training"] == {"reply_tokens": 9.0, "seconds": 2.0}


def test_differences_are_paired_by_seed_and_task() -> None:
    same = measured("sweet", {7: 0.5, 8: 0.5})
    found = difference(same, same, 0.95, 500)
    assert found is not None
    assert found["tasks"] == 400
    assert found["success"]["value"] == 0.0
    assert verdict(found) == "open"
    assert difference(same, measured("rft", {9: 0.5}), 0.95, 500) is None


def test_lost_dialogues_are_left_out_of_both_sides() -> None:
    one = measured("sweet", {7: 1.0}, tasks=4)
    lost = Result("t0", "trained", "d", None, False, "lost", 0, 0, 1, 1, 0)
    other = Measured(VARIANTS["rft"], {7: [lost, *one.results[7][1:]]}, one.stages)
    found = difference(one, other, 0.95, 500)
    assert found is not None
    assert found["tasks"] == 3
    assert row_of(other, None, 0.95, 500)["lost"] == 1


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


def test_picks_of_an_earlier_version_are_read() -> None:
    """Their points have no `success`: a reward of 1 was one."""

    def points(*rewards: float) -> list[dict[str, Any]]:
        return [{"critic": "x", "n": 2, "task_id": f"t{n}", "reward": r, "turns": 3} for n, r in enumerate(rewards)]

    def now(old: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one | {"success": one["reward"] == 1.0} for one in old]

    better, worse = points(1.0, 1.0, 0.9), points(1.0, 0.0, 1.0)
    assert picking_gap(better, worse, 0.95, 200) == picking_gap(now(better), now(worse), 0.95, 200)
    assert picking_gap(better, points(0.9, 0.9, 0.9), 0.95, 200)["value"] == pytest.approx(2 / 3)


def test_claims_say_confirmed_refuted_or_open() -> None:
    found = {
        "sweet": measured("sweet", {7: 0.9}),
        "multi-turn-dpo": measured("multi-turn-dpo", {7: 0.5}),
        "rft": measured("rft", {7: 0.95}),
        "zero-shot": measured("zero-shot", {7: 0.95}),
    }
    verdicts = {one["claim"]: one["verdict"] for one in claims(found, 0.95, 500)}
    assert verdicts == {
        "SWEET-RL is above Multi-Turn DPO": "confirmed",
        "Multi-Turn DPO is above Rejection Fine-Tuning": "refuted",
        "Rejection Fine-Tuning is above zero-shot": "open",
    }


def test_the_report_shows_what_was_run_and_names_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "reproduce" / "small"
    folder.mkdir(parents=True)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    text = (ROOT / "reproduce" / "small" / "params.yaml").read_text(encoding="utf-8")
    (folder / "params.yaml").write_text(text, encoding="utf-8")
    for name, rate in (("zero-shot", 0.2), ("sweet", 0.5)):
        place = folder / "variants" / name / "7"
        place.mkdir(parents=True)
        write_results(place / RESULTS, results(rate, 7))
        write_json(place / SUMMARY, {"stages": {"evaluate": {"seconds": 1.0, "metrics": {"reply_tokens": 8.5}}}})
    point = {"n": 1, "success": {"value": 0.2, "low": 0.1, "high": 0.3}}
    for name, wins in (("sweet", 6), ("random", 3)):
        points = [
            {"task_id": str(task), "n": n, "reward": 0.9, "success": n > 1 and task < wins}
            for n in (1, 2, 4)
            for task in range(8)
        ]
        kept = {"curves": {name: [point]}, "points": points, "seconds": {"seconds": 2700.0}}
        write_json(folder / "best-of-n" / name / "7.json", kept)
    monkeypatch.chdir(folder)
    report.write(Profile())
    assert "2 of 21 rows" in capsys.readouterr().out
    found = json.loads(Path("results.json").read_text(encoding="utf-8"))
    assert set(found["rows"]) == {"zero-shot", "sweet"}
    assert "rft 7" in found["missing"]
    assert "sweet 7" not in found["missing"]
    assert "Best-of-N with oracle 7" in found["missing"]
    assert "Best-of-N with random 7" not in found["missing"]
    assert found["rows"]["zero-shot"]["difference"]["success"]["value"] < 0
    tables = Path("results.md").read_text(encoding="utf-8")
    value = f"{100 * found['rows']['sweet']['success']['value']:.1f}"
    assert value in tables
    assert "Best-of-N, success (seed 7)" in tables
    assert found["best_of_n_gaps"]["7"]["random"]["value"] == pytest.approx(3 / 8)
    assert "| random ranking | 20.0\u00a0% [10.0\u00a0%, 30.0\u00a0%] | +37.5 [" in tables
    assert "1.5 hours on the clock (seed-data 0 min, Table 2 0 min, Figure 3a 90 min)" in tables
    page = Path("report.html").read_text(encoding="utf-8")
    assert value in page
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_variants_that_cost_more_have_seeds_and_columns_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reproduce" / "small"
    folder.mkdir(parents=True)
    for source, place in ((ROOT, tmp_path), (ROOT / "reproduce" / "small", folder)):
        (place / "params.yaml").write_text((source / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    ways = {
        "sweet": {"train-policy": {"pairs": 9.0}},
        "sweet-iterations": {"iterate": {"iteration_2/success": 0.4, "iteration_3/success": 0.5}},
        "grpo": {"train-policy": {"final/success": 0.3}},
        "large-sweet": {},
        "large-rft": {},
    }
    for name, metrics in ways.items():
        place = folder / VARIANTS[name].folder / name / "7"
        place.mkdir(parents=True)
        write_results(place / RESULTS, results(0.9 if name == "large-rft" else 0.4, 7))
        facts = {stage: {"seconds": 1.0, "metrics": found} for stage, found in metrics.items()}
        summary = {"stages": facts} | ({"dialogues": 6000} if VARIANTS[name].table == "Online" else {})
        write_json(place / SUMMARY, summary)
    monkeypatch.chdir(folder)
    report.write(Profile())
    found = json.loads(Path("results.json").read_text(encoding="utf-8"))
    assert found["rows"]["sweet-iterations"]["on_the_way"] == [0.4, 0.5]
    assert found["rows"]["grpo"]["on_the_way"] == [0.3]
    assert found["rows"]["large-rft"]["difference"]["success"]["value"] > 0.3, "against SWEET-RL on the same base"
    assert "dialogues" not in found["rows"]["sweet"]
    assert "large-zero-shot 7" in found["missing"] and "large-zero-shot 8" not in found["missing"]
    tables = Path("results.md").read_text(encoding="utf-8")
    way = f"{percent(0.4)}, {percent(0.5)}"
    assert f"| SWEET-RL, three iterations | 6,000 | {way} |" in tables
    assert tables.index("### Table 4") < tables.index("### Online")
    assert "beyond the paper: further iterations" in tables
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert f"learnt from 6,000 dialogues; success on training tasks on the way:\n{way}." in page


def test_the_guide_shows_the_tables_that_were_measured() -> None:
    guide = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    shown = guide.split("<!-- tables: reproduce/small/results.md -->\n")[1].split("<!-- end of tables -->")[0]
    measured = (ROOT / "reproduce" / "small" / "results.md").read_text(encoding="utf-8")
    assert shown == measured.replace("### ", "## ")
    results = json.loads((ROOT / "reproduce" / "small" / "results.json").read_text(encoding="utf-8"))
    assert report.markdown(results) == measured
    pages = guide.split("<!-- tables: reproduce/frontend/results.md -->\n")[1].split("<!-- end of tables -->")[0]
    measured = (ROOT / "reproduce" / "frontend" / "results.md").read_text(encoding="utf-8")
    assert pages == measured
    results = json.loads((ROOT / "reproduce" / "frontend" / "results.json").read_text(encoding="utf-8"))
    assert report.markdown(results) == measured


@pytest.mark.parametrize("profile", ["small", "frontend"])
def test_what_was_measured_is_stored_as_it_would_be_today(profile: str) -> None:
    """The keys, rows, labels and claims of the recorded results are those that the code writes."""
    found = json.loads((ROOT / "reproduce" / profile / "results.json").read_text(encoding="utf-8"))
    told = [replace(one, irrelevant=0 if profile == "small" else None) for one in results(0.5, 7)]
    today = row_of(replace(measured("sweet", {7: 0.5}), results={7: told}), None, 0.95, 10)
    for name, row in found["rows"].items():
        assert set(row) - {"difference", "dialogues", "on_the_way"} == set(today), name
        variant = VARIANTS[row["variant"]]
        assert (name, row["label"], row["table"]) == (variant.name, variant.label, variant.table)
    assert {one["claim"] for one in found["claims"]} <= {words for _, _, words in CLAIMS}
    assert set(found["hours"]) <= {report.SEED_DATA, report.PICKING, *(one.table for one in VARIANTS.values())}
    assert ("scoring" in found) == (profile == "frontend")


def test_results_of_an_earlier_version_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    folder = tmp_path / "reproduce" / "small"
    place = folder / "online" / "grpo" / "7"  # where an earlier version had it, too
    place.mkdir(parents=True)
    for source, target in ((ROOT, tmp_path), (ROOT / "reproduce" / "small", folder)):
        (target / "params.yaml").write_text((source / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    write_results(place / RESULTS, results(0.4, 7))
    old = pq.read_table(place / RESULTS)
    pq.write_table(old.rename_columns({"topic": "domain"}), place / RESULTS)
    write_json(place / SUMMARY, {"cell": "grpo", "seed": 7, "stages": {}, "dialogues": 6000})
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"online/grpo/7/results\.parquet: column `topic` is missing; run the stage"):
        report.write(Profile())


def test_the_profile_of_pages_compares_likeness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "reproduce" / "frontend"
    folder.mkdir(parents=True)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    text = (ROOT / "reproduce" / "frontend" / "params.yaml").read_text(encoding="utf-8")
    (folder / "params.yaml").write_text(text, encoding="utf-8")
    for name, mean in (("multi-turn-dpo", 0.7), ("sweet", 0.9)):
        place = folder / "variants" / name / "7"
        place.mkdir(parents=True)
        rewards = [mean + 0.01 * (n % 7 - 3) for n in range(50)]
        pages = [Result(f"p{n}", "trained", "d", r, False, "answered", 0, 0, 4, 0, 0) for n, r in enumerate(rewards)]
        write_results(place / RESULTS, pages)
        facts = {"rank": {"seconds": 1.0, "metrics": {"ranked/better_over_worse": 0.75}}} if name == "sweet" else {}
        write_json(place / SUMMARY, {"stages": facts})
    monkeypatch.chdir(folder)
    report.write(Profile())
    assert "2 of 4 rows; results.json, results.md\n" in capsys.readouterr().out
    found = json.loads(Path("results.json").read_text(encoding="utf-8"))
    assert found["scoring"] == "layout"
    verdicts = {one["claim"]: one["verdict"] for one in found["claims"]}
    assert verdicts["SWEET-RL is above Multi-Turn DPO"] == "confirmed"
    tables = Path("results.md").read_text(encoding="utf-8")
    assert "| likeness (layout) |" in tables and "−20.0 [−20.0, −20.0]" in tables and "76.9 / 42.8" in tables
    assert "more details right in 75.0" in tables and "Not run: zero-shot 7, zero-shot 8, " in tables
    assert not Path("report.html").exists()
