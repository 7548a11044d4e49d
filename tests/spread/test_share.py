"""Stages cut into shares: whoever makes the parts, and in which order, the stage ends with the same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.stages.collect import collect
from sweetrl.stages.evaluate import evaluate
from sweetrl.stages.rank import rank
from sweetrl.stages.scratch import VARIABLE, Share, current_share

RUN = {"collect": collect, "rank": rank, "evaluate": evaluate}


def test_shares_are_everything_once() -> None:
    shares = [Share(index, 3) for index in range(3)]
    assert all(sum(share(part) for share in shares) == 1 for part in range(20))
    assert Share().is_all and all(Share()(part) for part in range(5)) and Share().suffix == ""
    assert (str(shares[1]), shares[1].suffix, shares[1].is_all) == ("1/3", "-1-of-3", False)


@pytest.mark.parametrize("text", ["3", "3/3", "-1/3", "a/3", "1/", "/2"])
def test_what_is_no_share_is_said(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UserError, match="this is no share; write INDEX/COUNT"):
        current_share()


def test_shares_leave_the_same_bytes(
    make_project: Callable[[str], Path],
    results: Callable[[Path], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    logged: dict[str, float],
) -> None:
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    whole, cut = make_project("whole"), make_project("cut")
    for name, run in RUN.items():
        monkeypatch.chdir(whole)
        logged.clear()
        run(load_settings())
        costs = dict(logged)
        monkeypatch.chdir(cut)
        for index in (1, 0):
            monkeypatch.setenv(VARIABLE, f"{index}/2")
            run(load_settings())
            assert f"{name}: share {index}/2 is made" in capsys.readouterr().out
        assert not (cut / f"reports/runs/{name}.json").exists()  # a share is no result
        parts = sorted(path.name for path in (cut / ".scratch").rglob("*.parquet"))
        made = {path: path.stat().st_mtime_ns for path in (cut / ".scratch").rglob("*.parquet")}
        # Of a ranking: its blocks and their log-ratios.
        assert len(made) == {"collect": 4, "rank": 5 + 5, "evaluate": 6}[name], parts
        monkeypatch.delenv(VARIABLE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sweetrl.stages.run.keep_finished", lambda *_: None)
            run(load_settings())
        assert {path: path.stat().st_mtime_ns for path in made} == made  # put together, not made again
        shutil.rmtree(cut / ".scratch")
        mine, alone = (root / f"reports/runs/{name}.json" for root in (cut, whole))
        assert mine.read_bytes() == alone.read_bytes()
        for key in (one for one in costs if one.startswith(("prompt_tokens", "generated_tokens", "dialogue/prompt"))):
            if name != "rank":  # the account is that of all shares
                assert logged[key] == costs[key] > 0, key
    assert results(cut) == results(whole)
    assert len(results(cut)) == 4 + 4 + 6 + 2


@pytest.mark.slow
def test_processes_make_the_shares(make_project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    alone, several = make_project("alone"), make_project("several")
    parameters = several / "params.yaml"
    parameters.write_text(parameters.read_text().replace("threads: 1", "threads: 1, processes: 2"))
    monkeypatch.setattr("sweetrl.stages.run.keep_finished", lambda *_: None)
    for root in (alone, several):
        monkeypatch.chdir(root)
        collect(load_settings())
    made = {path.name: path.read_bytes() for path in alone.glob("data/trajectories/*")}
    assert {path.name: path.read_bytes() for path in several.glob("data/trajectories/*")} == made != {}
    assert sorted(path.name for path in several.glob(".scratch/*/costs*.jsonl")) == [
        "costs-0-of-2.jsonl",
        "costs-1-of-2.jsonl",
    ]


@pytest.mark.slow
def test_a_share_that_fails_ends_them_all(make_project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    project = make_project("broken")
    parameters = project / "params.yaml"
    parameters.write_text(parameters.read_text().replace("threads: 1", "threads: 1, processes: 2"))
    (project / "models/base").unlink()
    monkeypatch.chdir(project)
    with pytest.raises(UserError, match=r"share [01] of 2 ended with 1; run the same command again to go on\.$"):
        collect(load_settings())
