"""Stage `summary`, and what DVC makes of its files and of the run files' curves."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sweetrl.config.settings import parse_settings
from sweetrl.evaluation.metrics import AFTER, BEFORE, compare, write_results
from sweetrl.io import read_json, write_json
from sweetrl.paths import EVALUATION, METRICS, PLOTS, RESULTS, RUNS
from sweetrl.stages.summary import summary
from sweetrl.types import Result
from tests.tasks.fake_project import start_dvc

ROOT = Path(__file__).resolve().parents[2]


def result(number: int, policy: str, turns: int, success: bool) -> Result:
    return Result(f"t-{number}", policy, "gym", float(success), success, "answered", 1, 1, turns, turns - 1, 0)


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an evaluation on four tasks: the base solves one in 3 turns, the trained one three in 1, 2, 2."""
    monkeypatch.chdir(tmp_path)
    results = [result(number, BEFORE, 3, number == 0) for number in range(4)]
    results += [result(number, AFTER, turns, turns < 3) for number, turns in enumerate((1, 2, 2, 3))]
    write_results(RESULTS, results)
    write_json(EVALUATION, compare(results, resamples=100))
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as source:
        return list(csv.DictReader(source))


def test_the_headline_and_the_tables_are_those_of_the_evaluation(evaluated: Path) -> None:
    summary(parse_settings({"method": "rft"}))
    assert read_json(METRICS) == {
        "success_before": 0.25,
        "success_after": 0.75,
        "success_difference": 0.5,
        "reward_after": 0.75,
        "turns_after": 2.0,
    }
    policies = rows(PLOTS / "policies.csv")
    assert [(row["policy"], row["success"]) for row in policies] == [("untrained", "0.25"), ("rft", "0.75")]
    assert float(policies[1]["low"]) < 0.75 < float(policies[1]["high"])
    assert rows(PLOTS / "turns.csv") == [
        {"turns": "1", "before": "0.0", "after": "0.25"},
        {"turns": "2", "before": "0.0", "after": "0.75"},
        {"turns": "3", "before": "0.25", "after": "0.75"},
    ]


def test_dvc_shows_the_few_metrics_and_every_plot_of_the_project(evaluated: Path) -> None:
    summary(parse_settings({}))
    for stage, columns in (("train-critic", ("loss", "accuracy")), ("train-policy", ("loss",))):
        steps = [{"step": step, **dict.fromkeys(columns, 1.0 / step)} for step in (1, 2, 3)]
        write_json(RUNS / f"{stage}.json", {"metrics": {"loss": 0.3}, "curves": steps})
    declared = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    metrics = [path for stage in declared["stages"].values() for path in stage.get("metrics", [])]
    plain = {"metrics": metrics, "plots": declared["plots"]}
    (evaluated / "dvc.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    start_dvc(evaluated, no_scm=True)

    def dvc(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dvc", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    shown = json.loads(dvc("metrics", "show", "--json").stdout)[""]["data"]
    assert list(shown) == [str(METRICS)] and len(shown[str(METRICS)]["data"]) == 5
    done = dvc("plots", "show", "-o", "drawn")
    page = (evaluated / "drawn/index.html").read_text(encoding="utf-8")
    assert "WARNING" not in done.stderr
    for plot in declared["plots"]:
        ((_, options),) = plot.items()
        assert options["title"] in page
