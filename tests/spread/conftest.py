"""A project folder in which `collect`, `rank` and `evaluate` have little to do, with a tiny random model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sweetrl.backend.suite import generate
from sweetrl.colbench.store import write_task_table
from sweetrl.config.settings import LoraSettings, ModelSettings

PARAMS = """
seed: 7
model: {base: models/base, device: cpu, threads: 1}
agent: {max_turns: 2, max_new_tokens: 6}
collect: {tasks: 5, attempts: 2, batch: 2, shard: 3}
rank: {share: 1.0, candidates: 3, block: 2}
evaluate: {tasks: 5, batch: 2, resamples: 50}
"""
STAGES = {"collect": "data/trajectories", "rank": "data/preferences", "evaluate": "data/evaluation"}


@pytest.fixture(scope="session")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the adapters `critic` and `policy`, which change what the tiny model says."""
    import torch

    from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter

    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("critic", "policy")):
        model, _ = load_base(ModelSettings(base=str(tiny_model), device="cpu", threads=1))
        adapted = attach_adapter(model, LoraSettings(rank=4), seed=seed)
        torch.manual_seed(seed)
        for key, parameter in adapted.named_parameters():
            if "lora_B" in key:
                parameter.data = 0.1 * torch.randn(parameter.shape)
        save_adapter(adapted, folder / name, "models/base")
    return folder


@pytest.fixture
def make_project(tiny_model: Path, adapters: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make a project folder of that name; all are equal in everything but their place."""

    def make(name: str) -> Path:
        root = tmp_path / name
        (root / "models").mkdir(parents=True)
        (root / "params.yaml").write_text(PARAMS)
        for split in ("train", "test"):
            write_task_table(root / f"data/tasks/{split}.parquet", generate(split, 5, seed=1))
        (root / "models/base").symlink_to(tiny_model)
        for adapter in ("critic", "policy"):
            (root / "models" / adapter).symlink_to(adapters / adapter)
        return root

    return make


@pytest.fixture
def results() -> Callable[[Path], dict[str, bytes]]:
    """Every byte that the three stages have written, by path."""

    def read(root: Path) -> dict[str, bytes]:
        paths = [path for out in STAGES.values() for path in sorted((root / out).rglob("*")) if path.is_file()]
        paths += [root / "reports" / name for name in ("results.parquet", "evaluation.json")]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}

    return read
