"""Online iterations, with the shipped base and few tasks; the stages run in this process, which is all that differs."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweetrl.backend.suite import generate
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings, load_settings, parse_settings
from sweetrl.engines.transformers import load_model
from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.paths import ITERATIONS_DATA, ITERATIONS_MODELS, ITERATIONS_REPORT, LAST_POLICY
from sweetrl.seeds import part_seed
from sweetrl.stages import evaluate_iterations as evaluating
from sweetrl.stages import iterate as module

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "models/base"
TRAINER = {
    **{"learning_rate": 1e-3, "epochs": 1, "batch_size": 2, "micro_batch_size": 2, "checkpoints": 1},
    "lora": {"rank": 4},
}
VALUES: dict[str, Any] = {
    "seed": 7,
    "iterations": 3,
    "method": "multi-turn-dpo",
    "model": {"base": "models/base", "device": "cpu", "threads": 1},
    "agent": {"max_turns": 8, "max_new_tokens": 128},
    "collect": {"tasks": 4, "attempts": 3, "batch": 12, "shard": 12},
    "validate": {"minimum_pairs": 1},
    "critic": {**TRAINER, "pairs": "all"},
    "multi_turn_dpo": TRAINER,
    "policy": TRAINER,
    "rank": {"share": 0.2, "candidates": 3, "margin": 0.0},
    "evaluate": {"tasks": 6, "batch": 6, "resamples": 200},
}


@pytest.fixture
def project(shipped_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make project folders in which the first iteration has been made; each becomes the working directory."""
    monkeypatch.setattr(module, "run_stage_in", in_process)
    monkeypatch.setattr(evaluating, "run_stage_in", in_process)

    def make(name: str) -> Path:
        folder = tmp_path / name
        (folder / "models").mkdir(parents=True)
        (folder / "models/base").symlink_to(shipped_base)
        monkeypatch.chdir(folder)
        for split, many in (("train", 10), ("test", 6)):
            write_task_table(Path(f"data/tasks/{split}.parquet"), generate(split, many, seed=1))
        return folder

    return make


def in_process(folder: Path, stage: str, parent: str | None = None, module: str = "", part: str = "") -> None:
    name = stage.replace("-", "_")
    here = Path.cwd()
    os.chdir(folder)
    try:
        getattr(importlib.import_module(f"sweetrl.stages.{name}"), name)(load_settings())
    finally:
        os.chdir(here)


def settings(**changes: Any) -> Settings:
    return parse_settings(VALUES | changes)


def first_iteration(config: Settings, *stages: str) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    for stage in stages:
        in_process(Path(), stage)


def files(*folders: Path) -> dict[str, bytes]:
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): path.read_bytes() for path in paths}


@pytest.mark.slow
def test_an_iteration_goes_on_from_the_policy_before_and_a_killed_run_ends_with_the_same_bytes(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()
    made = []
    ran: list[tuple[str, str]] = []
    first = project("first")
    first_iteration(config, *module.STAGES)
    for name in ("undisturbed", "killed"):
        shutil.copytree(first, first.with_name(name), symlinks=True)
        monkeypatch.chdir(first.with_name(name))
        if name == "killed":

            def dies(folder: Path, stage: str, *more: Any, **options: Any) -> None:
                if (folder.name, stage) == ("3", "validate"):
                    raise KeyboardInterrupt
                in_process(folder, stage)

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(module, "run_stage_in", dies)
                module.iterate(config)
            assert not ITERATIONS_DATA.exists()

            def counted(folder: Path, stage: str, *more: Any, **options: Any) -> None:
                ran.append((folder.name, stage))
                in_process(folder, stage)

            monkeypatch.setattr(module, "run_stage_in", counted)
        module.iterate(config)
        made.append(files(ITERATIONS_DATA, ITERATIONS_MODELS))
    assert ran == [("3", stage) for stage in module.STAGES[1:]], "what was finished is not run again"
    assert made[0] == made[1]
    assert not list(Path(".scratch").glob("*"))

    for number, tasks in ((2, range(4, 8)), (3, (8, 9, 0, 1))):
        dialogues = list(TrajectoryStore(ITERATIONS_DATA / str(number) / "trajectories").read())
        ids = [task.id for task in generate("train", 10, seed=1)]
        assert [dialogue.task.id for dialogue in dialogues] == [ids[n] for n in tasks for _ in range(3)]
        written = load_settings(ITERATIONS_DATA / str(number) / "params.yaml")
        assert written.seed == part_seed(7, "round", number)
        assert (written.iterations, written.tracking) == (1, config.tracking)
        assert (ITERATIONS_MODELS / str(number) / "critic/skipped.json").exists(), "this method has none"
    # One adapter on the base that is iteration one's policy, and those of iterations two and three on top of it.
    stacked = load_model(BASE, LAST_POLICY, "float32", "cpu").state_dict()
    model = load_model(BASE, Path("models/policy"), "float32", "cpu")
    for number in (2, 3):
        model.save_pretrained("start")
        model = load_model("start", ITERATIONS_MODELS / str(number) / "policy", "float32", "cpu")
    for name, value in model.state_dict().items():
        assert (value - stacked[name]).abs().max().item() < 1e-4, name

    first_iteration(config, "evaluate")
    evaluating.evaluate_iterations(config)
    comparison = read_json(ITERATIONS_REPORT / "comparison.json")
    assert (comparison["tasks"], comparison["iterations"]) == (6, 3)
    assert read_json(ITERATIONS_REPORT / "evaluation.json")["tasks"] == 6
    page = (ITERATIONS_REPORT / "report.html").read_text()
    assert "<html" in page and "sweetrl view" not in page, "its dialogues are not kept"


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"iterations": 1}, "is 1"), ({"method": "zero-shot"}, "trains nothing"), ({"method": "grpo"}, "grpo.iterations")],
)
def test_where_there_is_nothing_to_repeat_it_says_so(project: Any, changes: dict[str, Any], why: str) -> None:
    project("once")
    module.iterate(settings(**changes))
    evaluating.evaluate_iterations(settings(**changes))
    for out in (ITERATIONS_DATA, ITERATIONS_MODELS, ITERATIONS_REPORT):
        assert [path.name for path in out.iterdir()] == ["skipped.json"]
        assert why in read_json(out / "skipped.json")["why"]


def test_the_first_iteration_is_the_pipelines_and_servers_of_one_model_are_refused() -> None:
    assert part_seed(7, "round", 1) == 7
    assert len({part_seed(seed, "round", number) for seed in range(20) for number in range(2, 6)}) == 80
    with pytest.raises(UserError, match="each iteration is a new model"):
        module.why_once(settings(engine={"kind": "vllm", "urls": "http://localhost:8000/v1"}))
