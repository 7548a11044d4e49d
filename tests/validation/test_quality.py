"""The page about a batch's quality: what it says of each expectation, its lines, and where its rows lead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sweetrl.config.settings import ValidateSettings
from sweetrl.validation.quality import KEPT, line, read_history, remember, write_page
from sweetrl.validation.suites import Rule, Table, Verdict, trajectories_table
from sweetrl.validation.tables import KEYS, Rows, Summary

SUMMARY = Summary("b9", 2, 4, 0, 0.5, 0.01, 0.5, 3.0, 0.1)
LEAK = Rule("leak", "ExpectColumnValuesToBeNull", {"column": "leak"}, "nothing may be given away", "fix the simulator")
SAME = Rule("duplicate", "ExpectColumnValuesToBeNull", {"column": "x", "mostly": 0.5}, "at most 50% may repeat another")
MEAN = Rule("shift", "ExpectColumnMeanToBeBetween", {"column": "reward"}, "the mean reward may differ by 0.1")
COUNT = Rule("enough", "ExpectTableRowCountToBeBetween", {"min_value": 2}, "there must be at least 2 rows")
HOSTILE = '<script>alert(1)</script>"/../x'


def row(task: str, attempt: int) -> dict[str, Any]:
    return {"row": "shard-00000.parquet row 1", "task_id": task, "attempt": attempt}


VERDICTS = [
    Verdict("trajectories", "leak", False, 4, 1, "...", 0.25, None, 0.0, ((row(HOSTILE, 2), "it says 42"),)),
    Verdict("trajectories", "duplicate", True, 4, 2, "", 0.5, None, 0.5, ((row("t-1", 1), "the same words"),)),
    Verdict("trajectories", "shift", True, 4, 0, "", 0.5, 0.4, 0.6),
    Verdict("trajectories", "enough", True, 4, 0, "", 4.0, 2, None),
]
TABLE = Table("trajectories", Rows([row("t-1", 0)] * 4), (LEAK, SAME, MEAN, COUNT), KEYS)


def written(folder: Path) -> str:
    page = folder / "reports/data-quality.html"
    write_page(page, [TABLE], VERDICTS, SUMMARY, folder / "history.json", "data/trajectories")
    return page.read_text(encoding="utf-8")


def cells(page: str) -> list[list[str]]:
    """The numbers of each expectation: observed, allowed, whether it holds."""
    return [
        [
            re.sub(r"<[^>]+>", "", cell).replace("\u00a0", " ").strip()
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", text, re.S)
        ]
        for text in page.split("<tr>")[2:]
    ]


def test_each_expectation_stands_beside_its_bound(tmp_path: Path) -> None:
    page = written(tmp_path)
    assert [[row[1], row[2], row[4]] for row in cells(page)] == [
        ["1 of 4 (25.0 %)", "none", "fails"],
        ["2 of 4 (50.0 %)", "at most 50.0 %", "holds"],
        ["0.5", "0.4 to 0.6", "holds"],
        ["4", "at least 2", "holds"],
    ]
    assert "1 of 4 expectations fail" in page and "What to do: fix the simulator." in page
    assert "nothing may be given away" in page and "2 at" not in page and "4 at 2 tasks" in page


def test_the_page_loads_and_runs_nothing_and_hostile_names_stay_text(tmp_path: Path) -> None:
    (tmp_path / "reports/view").mkdir(parents=True)
    (tmp_path / "reports/view/index.html").write_text("")
    page = written(tmp_path)
    assert "default-src 'none'" in page and "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!view/index\.html#/)', page)


def test_rows_lead_to_their_dialogue_where_a_viewer_lies_beside(tmp_path: Path) -> None:
    without = written(tmp_path)
    assert "href" not in without and "#/dialogue/data%2Ftrajectories/t-1/1" in without and "sweetrl view" in without
    (tmp_path / "reports/view").mkdir()
    (tmp_path / "reports/view/index.html").write_text("")
    assert 'href="view/index.html#/dialogue/data%2Ftrajectories/t-1/1"' in written(tmp_path)


def test_the_last_batches_are_kept_once_each_and_drawn(tmp_path: Path) -> None:
    history = tmp_path / "history.json"
    for number in range(KEPT + 5):
        remember(history, f"b{number}", VERDICTS)
        remember(history, f"b{number}", VERDICTS)
    kept = read_history(history)
    assert [batch["batch"] for batch in kept] == [f"b{number}" for number in range(5, KEPT + 5)]
    assert kept[0]["observed"]["trajectories.shift"] == 0.5
    page = written(tmp_path)  # batch b9 is its own predecessor nowhere
    assert f"{KEPT - 1} accepted batches before this one" in page
    longest = max(len(points.split()) for points in re.findall(r'points="([^"]*)"', page))
    assert longest == KEPT


def test_a_line_keeps_values_and_bounds_in_sight() -> None:
    drawn = line([0.1, 0.9, 0.5], (0.2, 0.6), True)
    places = [tuple(map(float, point.split(","))) for point in re.findall(r'points="([^"]*)"', drawn)[0].split()]
    assert [y for _, y in places] == [26.0, 4.0, 15.0], "the largest value is on top"
    assert drawn.count('class="bound"') == 2 and 'class="ok"' in drawn and "0.5 now, 0.9 before" in drawn
    assert 'class="not"' in line([0.0], (None, 0.0), False), "one batch, all values equal"


def test_a_share_that_is_allowed_is_written_as_it_is_set() -> None:
    rules = trajectories_table(Rows(), ValidateSettings(duplicate_share=0.005, lost_share=0.07)).rules
    says = " ".join(rule.says for rule in rules)
    assert "at most 0.5% of the attempts may repeat" in says and "at most 7% of the dialogues may be lost" in says
