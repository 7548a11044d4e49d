"""A project for the tests of export and serving: a small random agent's adapter, its results, a dvc.lock."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sweetrl.file_hashes import dvc_hash
from sweetrl.io import write_json
from tests import adapters

MODEL = "agent-to-hand-over"


def write_adapter(root: Path, seed: int) -> None:
    """Write models/policy: a random adapter, large enough that its replies differ from the base's."""
    adapters.write_adapter(root / "models/base", root / "models/policy", 0.3, seed)


def make_project(root: Path, base: Path) -> None:
    """Write a base, an adapter and test tasks, as the pipeline leaves them."""
    shutil.copytree(base, root / "models/base")
    write_adapter(root, 1)
    (root / "data/tasks").mkdir(parents=True)
    (root / "data/tasks/test.parquet").write_bytes(b"test tasks")


def write_rewards(root: Path, rewards: Mapping[str, float | None], base: float = 0.0) -> None:
    """Write a trained policy's reward on each task, the mean, and the difference from `base`."""
    import pyarrow as pa
    from pyarrow import parquet

    from sweetrl.evaluation.statistics import paired_p_value

    # Columns that slices and costs are taken from.
    columns = {"topic": "boat", "held_out": False, "turns": 3}
    rows = [{"task_id": task, "policy": "trained", "reward": value, **columns} for task, value in rewards.items()]
    rows += [{"task_id": task, "policy": "base", "reward": base, **columns} for task in rewards]
    for row in rows[: 3 * len(rewards) // 4]:
        row["topic"] = "taxi"
    (root / "reports").mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), root / "reports/results.parquet")
    scored = [value for value in rewards.values() if value is not None]
    mean = sum(scored) / len(scored)
    difference: dict[str, Any] = dict.fromkeys(("value", "low", "high"), mean - base)
    difference |= {"p_value": paired_p_value([base] * len(scored), scored), "test": "sign-flip permutation"}
    report: dict[str, Any] = {
        "tasks": len(rewards),
        "mean": mean,
        "confidence": 0.95,
        "difference": {"reward": difference},
    }
    write_json(root / "reports/evaluation.json", report)


def write_results(root: Path, reward: float) -> None:
    """Write reports and a dvc.lock with their hashes."""

    def estimate(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 40}

    write_rewards(root, {f"t{n}": reward for n in range(4)})
    measured = {
        name: {"success": estimate(v), "reward": estimate(v)} for name, v in (("base", 0.2), ("trained", reward))
    }
    difference = {**estimate(reward - 0.2), "p_value": 0.0001, "test": "exact McNemar"}
    report: dict[str, Any] = {
        "tasks": 4,
        "confidence": 0.9,
        "policies": measured,
        "difference": {"success": difference, "reward": difference},
    }
    report["labels"] = {"success": "success", "reward": "reward"}
    write_json(root / "reports/evaluation.json", report)
    outs = [{"path": path, "md5": dvc_hash(root / path)} for path in ("models/policy", "reports/evaluation.json")]
    outs.append({"path": "data/trajectories", "md5": "0123abcd.dir"})
    agent = {"max_turns": 3, "max_new_tokens": 12, "temperature": 0.0}
    seen = {"seed": 7, "suite": "backend", "method": "sweet", "agent": agent, "simulator": {"kind": "scripted"}}
    stage = {"cmd": "x", "params": {"params.yaml": seen}, "outs": outs}
    (root / "dvc.lock").write_text(yaml.safe_dump({"stages": {"all": stage}}))
