"""The reproduction's pipeline on a clone: data, training, measuring, the report, and nothing to do the second time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone

pytestmark = pytest.mark.slow

VARIANTS = ["zero-shot", "single-turn", "rft", "multi-turn-dpo", "answered-turns", "sweet", "value-head", "random"]
VARIANTS += ["other-c", "no-rewards", "sweet-third"]


def test_variants_run_once_and_make_a_report(
    tmp_path_factory: pytest.TempPathFactory, clone_project: Callable[..., Clone]
) -> None:
    clone = clone_project(tmp_path_factory.mktemp("reproduce"), **{"rft.batch_size": 2, "rft.micro_batch_size": 2})
    folder = clone.root / "reproduce" / "small"
    for leftover in ("dvc.lock", "results.json", "results.md"):
        (folder / leftover).unlink(missing_ok=True)
    shutil.rmtree(folder / "figures", ignore_errors=True)
    values = yaml.safe_load((folder / "params.yaml").read_text())
    project = yaml.safe_load((clone.root / "params.yaml").read_text())
    for name in ("tasks.train", "tasks.validation", "tasks.test", "collect.tasks", "evaluate.tasks"):
        section, key = name.split(".")
        values["settings"][name] = project[section][key]
    values["settings"] |= {"best_of_n.tasks": 2, "best_of_n.max_n": 2}
    values["settings"] |= {"grpo.iterations": 2, "grpo.tasks": 2, "grpo.group_size": 2}
    values["settings"] |= {"grpo.batch_size": 2, "grpo.micro_batch_size": 2, "iterations": 1}
    values["large_base"] |= {"pretrain.layers": 2, "pretrain.width": 64, "pretrain.heads": 2, "pretrain.steps": 6}
    values |= {"large": ["large-zero-shot", "large-rft"], "online": ["sweet-iterations", "grpo", "grpo-distillation"]}
    values["choose"] = {"grid": [0.0, 0.5, 1.0], "tasks": project["tasks"]["validation"]}
    values |= {"personas": ["terse"], "persona_variants": ["sweet"], "tuning": {"rft": [{"rft.epochs": 1.0}]}}
    values |= {"seeds": [7], "variants": VARIANTS, "critics": ["sweet", "value-head", "random"], "best_of_n_seeds": [7]}
    values |= {"large_seeds": [7], "online_seeds": [7]}
    claims = yaml.safe_load((folder / "claims.yaml").read_text())
    claims = [claim for claim in claims if claim.get("persona", "") in ("", *values["personas"])]
    (folder / "claims.yaml").write_text(yaml.safe_dump(claims, sort_keys=False))
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    repro = ("--cd", str(folder), "repro", "dvc.yaml")
    clone.check("dvc", *repro, seconds=1800)
    results = json.loads((folder / "results.json").read_text())
    assert set(results["rows"]) == {*VARIANTS, *values["large"], *values["online"]}
    assert results["rows"]["grpo"]["dialogues"] == 8
    assert len(results["rows"]["sweet-iterations"]["on_the_way"]) == 2
    kept = folder / "online" / "sweet-iterations" / "7" / "iterations"
    assert {path.name for path in (kept / "models").iterdir()} == {"2", "3", "policy"}
    assert results["missing"] == []
    for row in results["rows"].values():
        assert {name: at["tasks"] for name, at in row["at"].items()} == {"0": 8, "1": 8, "chosen": 8}, row["variant"]
        assert set(row["personas"]) == ({"terse"} if row["variant"] == "sweet" else set())
    assert all(claim["written"] in ("before", "") for claim in results["claims"])
    critics = ("sweet", "value-head", "random")
    assert set(results["best_of_n"]["7"]) == {f"{name}{end}" for name in critics for end in ("", " with prior")}
    assert "SWEET-RL, a third of the tasks" in (folder / "results.md").read_text()
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert {"table-2", "online", "claims", "best-of-n-7"} <= figures
    assert (folder / "report.html").read_text().count("<svg") >= len(figures)
    assert not any((folder / ".work").iterdir())

    before = (folder / "dvc.lock").read_bytes()
    again = clone.check("dvc", *repro)
    assert "python -m sweetrl.reproduce" not in again.stdout
    assert (folder / "dvc.lock").read_bytes() == before

    # Another temperature of the grid is measured with the policies that are there.
    values["temperatures"] = [0.0, 0.5, 1.0]
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    more = clone.check("dvc", *repro, seconds=1800)
    assert "sweetrl.reproduce measure" in more.stdout and "sweetrl.reproduce variant" not in more.stdout
