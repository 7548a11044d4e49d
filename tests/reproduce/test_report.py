"""The files of the report: what they show, what they name as missing, and that they can be made of results.json."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from sweetrl.errors import UserError
from sweetrl.evaluation.report import percent
from sweetrl.io import read_json, write_json
from sweetrl.reproduce import comparisons, report
from sweetrl.reproduce.claims import read_claims, sha256
from sweetrl.reproduce.comparisons import PICKING, SEED_DATA
from sweetrl.reproduce.outcomes import row_of
from sweetrl.reproduce.run import Profile
from sweetrl.reproduce.variants import VARIANTS
from tests.reproduce.made import CHOSEN, ROOT, edit, keep, measured, profile_folder, record_of, results, write_report

PROFILES = ("small", "frontend", "smollm2")
RECORDED = [name for name in PROFILES if (ROOT / "reproduce" / name / "results.json").exists()]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile in which nothing has been run; the current folder."""
    folder = profile_folder(tmp_path, getattr(request, "param", "small"))
    monkeypatch.chdir(folder)
    return folder


def table(text: str, title: str) -> list[list[str]]:
    """The cells of the first table under a title."""
    lines = text.split(f"### {title}\n\n")[1].splitlines()
    rows = [line.strip("|").split("|") for line in lines[: lines.index("") if "" in lines else None]]
    return [[cell.strip() for cell in row] for row in rows if not row[0].startswith("---")]


def test_the_report_shows_what_was_run_and_names_what_was_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("zero-shot", 0.2), ("sweet", 0.5)):
        files = {"0": results(rate + 0.2, 7), "1": results(rate, 7), "0.5": results(rate + 0.1, 7)}
        keep(folder, name, 7, files)
    point = {"n": 1, "success": {"value": 0.2, "low": 0.1, "high": 0.3}}
    for name, wins in (("sweet", 6), ("random", 3)):
        points = [
            {"critic": curve, "task_id": str(task), "n": n, "reward": 0.9, "success": n > 1 and task < wins + more}
            for curve, more in ((name, 0), (f"{name} with prior", 2))
            for n in (1, 2, 4)
            for task in range(8)
        ]
        kept = {
            "curves": {name: [point], f"{name} with prior": [point]},
            "points": points,
            "seconds": {"seconds": 2700.0},
        }
        write_json(folder / "best-of-n" / name / "7.json", kept)
    recorded = write_report()
    count = len(Profile().variants)
    assert f"2 of {count} rows; results.json, results.md, report.html, figures/" in capsys.readouterr().out
    assert set(recorded["rows"]) == {"zero-shot", "sweet"}
    assert "rft 7" in recorded["missing"]
    assert "sweet 7" not in recorded["missing"]
    assert "Best-of-N with oracle 7" in recorded["missing"]
    assert "Best-of-N with random 7" not in recorded["missing"]
    text = Path("results.md").read_text(encoding="utf-8")
    head, zero, sweet = table(text, "Table 2")
    assert head[1:4] == ["success, T = 0", "success, T = 1", "success, chosen T"]
    rates = [recorded["rows"]["sweet"]["at"][name]["success"]["value"] for name in ("0", "1", "chosen")]
    assert rates[0] > rates[2] > rates[1]
    assert [cell.split(" [")[0] for cell in sweet[1:4]] == [percent(rate) for rate in rates]
    assert sweet[4:7] == ["", "", ""], "SWEET-RL is not compared with itself"
    assert all(cell.startswith("−") for cell in zero[4:7])
    assert table(text, "Temperatures")[1][-1] == "0.5"
    gaps = {name: gap["value"] for name, gap in recorded["best_of_n_gaps"]["7"].items()}
    assert gaps == pytest.approx({"random": 3 / 8, "random with prior": 1 / 8, "sweet with prior": -2 / 8})
    assert "| SWEET-RL with prior | 20.0" in text
    assert "| random ranking | 20.0\u00a0% [10.0\u00a0%, 30.0\u00a0%] | +37.5 [" in text
    assert "1.5 hours on the clock (Table 2 2 min, Figure 3a 90 min)" in text, "the seed's data are not here"
    page = Path("report.html").read_text(encoding="utf-8")
    assert percent(rates[0]) in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_a_part_of_the_tasks_is_a_point_of_its_methods_curve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"zero-shot": 0.2, "sweet": 0.8, "sweet-third": 0.6, "sweet-tenth": 0.4, "rft-third": 0.3}
    for name, rate in rates.items():
        keep(folder, name, 7, {"0": results(rate, 7), "1": results(rate, 7), "0.5": results(rate, 7)})
    drawn: dict[str, Any] = {}

    def curves(series: Any, axis: str, name: str, *more: Any, **options: Any) -> str:
        drawn[name] = {label: [(x, rate["value"]) for x, rate in points] for label, points in series.items()}
        return "<svg xmlns='http://www.w3.org/2000/svg'/>"

    monkeypatch.setattr(comparisons.figures, "curves", curves)
    success = {name: row["at"]["0"]["success"]["value"] for name, row in write_report()["rows"].items()}
    assert drawn["amounts"] == {
        "SWEET-RL": [(10, success["sweet-tenth"]), (33, success["sweet-third"]), (100, success["sweet"])],
        "Rejection Fine-Tuning": [(33, success["rft-third"])],
        "zero-shot": [(share, success["zero-shot"]) for share in (10, 33, 100)],
    }
    assert (folder / "figures" / "amounts.svg").exists()


def test_pictures_come_first_and_are_files_that_stay_the_same(folder: Path) -> None:
    for name, rate in (("zero-shot", 0.3), ("sweet", 0.6), ("random", 0.2)):
        files = {"0": results(rate, 7), "1": results(rate - 0.1, 7), "0.5": results(rate, 8)}
        users = {"0-terse": results(0.4, 7), "1-terse": results(0.3, 7)} if name != "random" else {}
        metrics = {"ranked/needed_over_irrelevant": 0.8}
        training = {"stages": {"rank": {"seconds": 30.0, "metrics": metrics if name == "random" else {}}}}
        keep(folder, name, 7, {**files, **users}, training=training)
    settings = {"policy.learning_rate": 0.001, "policy.epochs": 2.0}  # in no order: results.json has one
    run = {"variant": "sweet", "seed": 5, "settings": settings, "tasks": 9, "digest": "d"}
    at = {"0": {"success": 0.4, "reward": 0.5}, "1": {"success": 0.3, "reward": 0.5}}
    (folder / "tuning.yaml").write_text(yaml.safe_dump([{**run, "at": at}], sort_keys=False), encoding="utf-8")
    write_report()
    text = Path("results.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(figures/([a-z0-9-]+)\.svg\)", text)
    expected = {"table-2", "controls", "held-out-domains", "other-users", "claims"}
    assert set(shown) == expected == {path.stem for path in Path("figures").iterdir()}
    assert text.rindex("![") < text.index("\n| "), "tables after them"
    best = [[percent(rate), percent(rate), "policy.epochs: 2.0, policy.learning_rate: 0.001"] for rate in (0.4, 0.3)]
    assert table(text, "Tuning")[1] == ["SWEET-RL", "1", *best[0], *best[1]]
    assert [row[0] for row in table(text, "Other users")[1:]] == [
        *("zero-shot, usual", "SWEET-RL, usual", "zero-shot, terse", "SWEET-RL, terse")
    ]
    head, *rows = table(text, "Table 2")
    others = head.index("success with other users, T = 0")
    terse = [result.success for result in results(0.4, 7)]
    assert {row[others] for row in rows} == {f"terse {percent(sum(terse) / len(terse))}"}
    drawn = {path.name: path.read_bytes() for path in Path("figures").iterdir()}
    for name, content in drawn.items():
        root = ElementTree.fromstring(content)
        assert root.tag.endswith("svg") and float(root.attrib["width"].removesuffix("pt")) > 300, name
        assert b"<script" not in content
    assert Path("report.html").read_text(encoding="utf-8").count("<svg") == len(drawn)
    Path("figures/old.svg").write_text("from a table that is gone", encoding="utf-8")
    report.write(Profile())
    assert {path.name: path.read_bytes() for path in Path("figures").iterdir()} == drawn


def test_claims_are_those_of_the_file_and_say_when_they_were_written(folder: Path) -> None:
    path = folder / "claims.yaml"
    first = {"claim": "SWEET-RL is above the base", "better": "sweet", "worse": "zero-shot", "temperature": 0}
    path.write_text(yaml.safe_dump([first]), encoding="utf-8")
    kept = record_of(*read_claims(path, ["0", "1"]), digest=sha256(path))
    for name, rate in (("zero-shot", 0.2), ("sweet", 0.7)):
        for seed in (7, 8, 9):
            keep(folder, name, seed, {"0": results(rate, seed), "1": results(0.4, seed)}, chosen=0.0, claims=kept)
    assert "claims.yaml is as it was when each of the 6 policies" in write_report()["claims_file"]
    second = {"claim": "the same at 1", "better": "sweet", "worse": "zero-shot", "temperature": 1}
    path.write_text(yaml.safe_dump([first, second]), encoding="utf-8")
    recorded = write_report()
    assert "claims.yaml has been changed since 6 of the 6 policies" in recorded["claims_file"]
    rows = table(Path("results.md").read_text(encoding="utf-8"), "Claims")
    assert [row[-2:] for row in rows[1:]] == [["before", "confirmed"], ["after", "open"]]
    assert rows[1][1:2] + rows[1][4:5] == ["T = 0, success", "3"]
    path.write_text("- {claim: x, better: sweet, worse: rft, temperature: 2}", encoding="utf-8")
    with pytest.raises(UserError, match="claim 1: temperature 2 is not measured in this profile"):
        report.write(Profile())


def test_variants_that_cost_more_have_seeds_and_columns_of_their_own(folder: Path) -> None:
    stages = {
        "sweet": {"train-policy": {"pairs": 9.0}},
        "sweet-iterations": {"iterate": {f"iteration_{number}/success": number / 20 for number in range(2, 12)}},
        "grpo": {"train-policy": {"final/success": 0.3}},
        "large-sweet": {},
        "large-rft": {},
    }
    for name, metrics in stages.items():
        training = {"stages": {stage: {"seconds": 1.0, "metrics": values} for stage, values in metrics.items()}}
        training |= {"dialogues": 6000} if VARIANTS[name].table == "Online" else {}
        rows = results(0.9 if name == "large-rft" else 0.4, 7)
        keep(folder, name, 7, {"0": rows, "1": rows}, chosen=1.0, training=training)
    recorded = write_report()
    assert recorded["rows"]["sweet-iterations"]["on_the_way"] == [number / 20 for number in range(2, 12)]
    assert recorded["rows"]["grpo"]["on_the_way"] == [0.3]
    gap = recorded["rows"]["large-rft"]["at"]["0"]["difference"]["success"]
    assert gap["value"] > 0.3, "against SWEET-RL on the same base"
    assert "dialogues" not in recorded["rows"]["sweet"]
    assert "large-zero-shot 7" in recorded["missing"] and "large-zero-shot 8" not in recorded["missing"]
    text = Path("results.md").read_text(encoding="utf-8")
    assert f"| SWEET-RL, three iterations | 6,000 | {percent(0.1)}, {percent(0.15)}, " in text
    assert text.index("### Table 4") < text.index("### Online")
    assert "minus larger base, SWEET-RL, T = 0" in table(text, "Table 4")[0]
    head, *held_out = table(text, "Held-out domains")
    place = head.index("minus SWEET-RL, T = 0")
    gaps = {row[0]: row[place] for row in held_out}
    assert gaps["GRPO, on-policy"] and gaps["larger base, Rejection Fine-Tuning"] == "", "that one is minus another row"
    assert "open" in next(row[-1] for row in table(text, "Claims") if row[0].startswith("beyond the paper: further"))


@pytest.mark.parametrize("folder", ["smollm2"], indirect=True)
def test_a_row_that_is_compared_with_nothing_names_no_column(folder: Path) -> None:
    seed = Profile().seeds[0]
    for name, rate in (("zero-shot", 0.3), ("pretrained", 0.1), ("sweet", 0.6)):
        rows = results(rate, seed)
        keep(folder, name, seed, {f"{at:g}": rows for at in Profile().temperatures})
    write_report()
    head, *rows = table(Path("results.md").read_text(encoding="utf-8"), "Table 2")
    place = head.index("minus SWEET-RL, T = 0")
    assert {row[0]: bool(row[place]) for row in rows} == {
        "zero-shot": True,
        "the pretrained model, before its warm start": False,
        "SWEET-RL": False,
    }


@pytest.mark.parametrize("folder", ["frontend"], indirect=True)
def test_the_profile_of_pages_compares_likeness(folder: Path) -> None:
    for name, mean in (("multi-turn-dpo", 0.7), ("sweet", 0.9)):
        pages = [
            replace(
                result,
                reward=mean + 0.01 * (n % 7 - 3),
                success=False,
                questions=int(n == 3),
                irrelevant=None,
                held_out=False,
            )
            for n, result in enumerate(results(0.5, 7, 50))
        ]
        metrics = {"ranked/better_over_worse": 0.75} if name == "sweet" else {}
        training = {"stages": {"rank": {"seconds": 1.0, "metrics": metrics}}}
        keep(folder, name, 7, {"0": pages, "1": pages}, chosen=0.0, training=training)
    recorded = write_report()
    assert (recorded["measure"], recorded["labels"]["reward"]) == ("reward", "likeness to the reference (layout)")
    verdicts = {claim["claim"]: claim["verdict"] for claim in recorded["claims"]}
    assert verdicts["SWEET-RL is above Multi-Turn DPO"] == "confirmed"
    text = Path("results.md").read_text(encoding="utf-8")
    assert "| likeness to the reference (layout), T = 0 |" in text
    assert "−20.0 [−20.0, −20.0]" in text and "76.9 / 42.8" in text
    assert table(text, "Critics")[1] == ["SWEET-RL", percent(0.75)]
    assert "Not run: zero-shot 7, zero-shot 8, " in text
    head, *rows = table(text, "Questions")
    assert "equal to the reference, T = 0" in head
    place = head.index("equal to the reference a question, T = 0")
    assert all(row[place] == "" and row[place + 1] == "" for row in rows), "a quotient of one question"
    assert '"equal to the reference a question" is left out where fewer than one question is asked' in text
    assert "### Held-out domains" not in text


# What was measured and is in git


def sections(text: str) -> dict[str, list[str]]:
    """The lines under each heading of the third level."""
    lines = {}
    for part in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        lines[heading] = [line for line in body.splitlines() if line]
    return lines


@pytest.mark.parametrize("profile", RECORDED)
def test_the_guide_shows_what_was_measured(profile: str) -> None:
    """Some of the tables, each complete, and some of the pictures: nothing that results.md does not have."""
    guide = (ROOT / "docs" / "records" / "results.md").read_text(encoding="utf-8")
    shown = guide.split(f"<!-- tables: reproduce/{profile}/results.md -->\n")[1].split("<!-- end of tables -->")[0]
    text = (ROOT / "reproduce" / profile / "results.md").read_text(encoding="utf-8")
    kept = sections(text.replace("](figures/", f"](../../reproduce/{profile}/figures/"))
    tables = sections(shown)
    pictures = tables.pop("Pictures", [])
    assert set(pictures) <= set(kept.get("Pictures", []))
    assert "Table 2" in tables and (pictures or "Pictures" not in kept)
    assert tables.items() <= kept.items()


@pytest.mark.parametrize("profile", RECORDED)
def test_what_was_measured_is_stored_as_it_would_be_today(profile: str) -> None:
    """The keys, rows and labels of the recorded results are those that the code writes."""
    recorded: dict[str, Any] = read_json(ROOT / "reproduce" / profile / "results.json")
    if recorded.get("format") != report.FORMAT:
        pytest.skip(f"measured by an earlier version: run `make reproduce PROFILE={profile}` again")
    kept = (ROOT / "reproduce" / profile / "results.md").read_text(encoding="utf-8")
    assert report.markdown(recorded) == kept
    figures = {figure.name for part in report.parts(recorded) for figure in part.figures}
    folder = ROOT / "reproduce" / profile / "figures"
    assert figures == {path.relative_to(folder).as_posix()[:-4] for path in folder.rglob("*.*")}, (
        "a report empties the folder: what else lies there would be gone"
    )
    today = row_of(measured("sweet", {7: 0.5}), None, [CHOSEN], 0.95, 10)
    for name, row in recorded["rows"].items():
        assert set(row) - {"dialogues", "on_the_way"} == set(today), name
        variant = VARIANTS[row["variant"]]
        assert (name, row["label"], row["table"]) == (variant.name, variant.label, variant.table)
    claims = {claim["claim"] for claim in recorded["claims"] if not claim["withdrawn"]}
    assert claims == {claim.claim for claim in Profile(ROOT / "reproduce" / profile).claims}
    assert set(recorded["hours"]) <= {SEED_DATA, PICKING, *(variant.table for variant in VARIANTS.values())}


@pytest.mark.parametrize("folder", ["colbench"], indirect=True)
def test_where_one_temperature_is_measured_none_was_chosen(folder: Path) -> None:
    edit(folder / "params.yaml", choose={"grid": [0.0], "tasks": 100})
    for name, rate in (("zero-shot", 0.3), ("sweet", 0.5)):
        tried = {"0": {"success": rate, "reward": rate, "questions": 3.0, "tasks": 100}}
        keep(folder, name, 7, {"0": results(rate, 7)}, chosen=0.0, validation=tried)
    recorded = write_report()
    assert recorded["temperatures"] == ["0"]
    text = Path("results.md").read_text(encoding="utf-8")
    assert "chosen T" not in text and "Temperatures" not in text
