"""Outcomes that git keeps: rows stay when the trained policies are gone, but only while the settings are the same."""

from __future__ import annotations

import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.evaluation.report import percent
from sweetrl.reproduce import report
from sweetrl.reproduce.outcomes import OUTCOMES, Measured, measured_outcome, read_outcomes, write_outcomes
from sweetrl.reproduce.run import Profile
from sweetrl.reproduce.variants import VARIANTS
from tests.reproduce.made import COLD, ROOT, edit, keep, profile_folder, results, write_report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile in which two variants were measured."""
    folder = profile_folder(tmp_path)
    monkeypatch.chdir(folder)
    for name, rate in (("zero-shot", 0.2), ("sweet", 0.6)):
        training = {"stages": {"rank": {"seconds": 1.0, "metrics": {}}}, "dialogues": 40}
        keep(folder, name, 7, {"0": results(rate, 7), "1": results(0.4, 7, premature=None)}, 0.0, training)
    return folder


def test_a_report_is_the_same_without_what_was_trained(folder: Path) -> None:
    before = write_report()
    files = {path: path.read_bytes() for path in (OUTCOMES, Path("results.md"))}
    for name in ("measured", "variants", "online"):
        shutil.rmtree(name, ignore_errors=True)
    after = write_report()
    del before["hours"], after["hours"]
    assert after == before
    assert {path: path.read_bytes() for path in files} == files
    assert after["origins"] == [
        {"date": "2026-01-02", "commit": "0123456789ab", "processor": "a processor", "policies": 2}
    ]
    text = Path("results.md").read_text(encoding="utf-8")
    assert "Policies measured on 2026-01-02, a processor, at 0123456789ab: 2." in text


def test_rows_are_added_on_another_machine_and_new_rows_replace_old_rows(folder: Path) -> None:
    before = write_report()
    shutil.rmtree("measured")
    other = {"date": "2026-02-03", "commit": "ba9876543210", "processor": "another"}
    keep(folder, "rft", 7, {"0": results(0.5, 7), "1": results(0.3, 7)}, chosen=0.0, origin=other)
    keep(folder, "sweet", 7, {"0": results(0.9, 7), "1": results(0.3, 7)}, chosen=0.0, origin=other)
    after = write_report()
    assert set(after["rows"]) == {"zero-shot", "rft", "sweet"}
    assert after["rows"]["zero-shot"]["at"]["0"]["success"] == before["rows"]["zero-shot"]["at"]["0"]["success"]
    assert after["rows"]["sweet"]["at"]["0"]["success"]["value"] > 0.8
    origins = {origin["processor"]: origin["policies"] for origin in after["origins"]}
    assert origins == {"a processor": 1, "another": 2}


def test_rows_of_other_settings_are_left_out_by_name_and_stay_in_the_file(folder: Path) -> None:
    write_report()
    shutil.rmtree("measured")
    # The first is of SWEET-RL; the untrained agent has none.
    changes = {"policy.epochs": 9.0, "evaluate.resamples": 900}
    edit(Path("params.yaml"), settings=Profile().values["settings"] | changes)
    recorded = write_report()
    assert (list(recorded["rows"]), recorded["stale"]) == (["zero-shot"], ["sweet 7"])
    assert "Measured with other settings, and left out: sweet 7." in Path("results.md").read_text(encoding="utf-8")
    assert set(read_outcomes(OUTCOMES)) == {("zero-shot", 7), ("sweet", 7)}
    keep(folder, "sweet", 7, {"0": results(0.9, 7), "1": results(0.3, 7)}, chosen=0.0)
    assert write_report()["stale"] == [], "measured anew"


@pytest.mark.parametrize("changes", [{"settings": {"evaluate.tasks": 150}}, {"choose": {"grid": [0.0, 0.5]}}])
def test_rows_of_other_tasks_or_temperatures_are_left_out(folder: Path, changes: dict[str, dict[str, Any]]) -> None:
    outcomes = [measured_outcome(VARIANTS[name], 7) for name in ("zero-shot", "sweet")]
    assert all(outcome and Profile().still(outcome) for outcome in outcomes)
    edit(Path("params.yaml"), **{key: Profile().values[key] | value for key, value in changes.items()})
    assert not any(outcome and Profile().still(outcome) for outcome in outcomes)


def test_another_base_makes_rows_stale_and_a_missing_base_does_not(folder: Path) -> None:
    base = folder / "../../models/base"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}", encoding="utf-8")
    keep(folder, "sweet", 7, {"0": results(0.6, 7), "1": results(0.4, 7)}, chosen=0.0)
    shutil.rmtree("measured/zero-shot")
    assert write_report()["stale"] == []
    shutil.rmtree("measured")
    shutil.rmtree(base)
    assert write_report()["stale"] == []
    base.mkdir()
    (base / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="no variant has been run yet"):
        report.write(Profile())


def test_outcomes_are_read_as_they_were_written(folder: Path, tmp_path: Path) -> None:
    write_report()
    outcomes = read_outcomes(OUTCOMES)
    copy = tmp_path / "copy.parquet"
    write_outcomes(copy, dict(reversed(outcomes.items())))
    assert copy.read_bytes() == OUTCOMES.read_bytes()
    assert outcomes["sweet", 7].results["t1.parquet"][0] == results(0.4, 7, premature=None)[0]
    assert outcomes["sweet", 7].training["dialogues"] == 40


def test_a_file_that_holds_no_outcomes_is_named(folder: Path) -> None:
    measured = Path("measured/sweet/7/t0.parquet").read_bytes()
    for content in (b"", b"PAR1", measured):
        OUTCOMES.write_bytes(content)
        with pytest.raises(UserError, match=r"outcomes\.parquet: these are no outcomes of a reproduction; restore"):
            report.write(Profile())


@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "reproduce").glob(f"*/{OUTCOMES}")))
def test_the_tables_of_a_profile_are_those_of_the_outcomes_that_git_has(name: str) -> None:
    profile = Profile(ROOT / "reproduce" / name)
    outcomes = read_outcomes(profile.folder / OUTCOMES)
    page = (profile.folder / "results.md").read_text(encoding="utf-8")
    assert outcomes and all(profile.still(outcome) for outcome in outcomes.values()), "rows of other settings"
    for variant in profile.variants:
        row = Measured(variant, {seed: outcome for (of, seed), outcome in outcomes.items() if of == variant.name})
        seeds = [
            statistics.fmean(getattr(result, profile.domain.measure) for result in results)
            for results in row.scored(COLD).values()
        ]
        if seeds:
            of_row = rf"\| {re.escape(variant.label)} \| ([\d.]+)\W%\W\["
            (mean,) = re.findall(of_row, page.split("### Held-out")[0])
            assert float(mean) == pytest.approx(100 * statistics.fmean(seeds), abs=0.0501)  # 28.25 may be 28.2 or 28.3
            assert f"| {variant.label} | {', '.join(map(percent, seeds))} |" in page, "seed by seed"
