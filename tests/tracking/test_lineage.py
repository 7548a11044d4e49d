"""How a result came about: what dvc.lock says, runs with their curves and files, and the chain behind a version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sweetrl.cli.main import app
from sweetrl.config.settings import TrackingSettings
from sweetrl.errors import UnknownVersion, UserError
from sweetrl.tracking.lineage import Records, data_hashes, lineage
from sweetrl.tracking.registry import Registry
from sweetrl.tracking.runs import RunLog
from sweetrl.tracking.store import connect

SETTINGS = TrackingSettings(model="agent")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with a pipeline run, a training run below it, and three versions, one of them deleted."""
    root = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("SWEETRL_TRACKING", "on")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        parent = RunLog(SETTINGS, "train", root=root)
        parent.log_params({"seed": 7, "policy": {"beta": 0.1}})
        parent.open()
        child = RunLog(SETTINGS, "train-policy", parent=parent.run_id, root=root)
        (root / "b.txt").write_text("b")
        for name in ("second", "first"):
            child.log_input(name, root / "b.txt", "training")
        child.log_artifact(root / "b.txt", "costs")
        child.log_metrics({"loss": 2.0}, step=1)
        child.log_metrics({"loss": 0.5, "odd": float("nan")}, step=2)
        child.finish()
        parent.finish()
        client = connect(SETTINGS, root).client
        client.create_registered_model("agent")
        client.create_registered_model("other")
        common = {"git_commit": "c0ffee", "stage_runs": json.dumps({"train-policy": child.run_id})}
        for name, adapter, base in (
            ("agent", "a1", ""),
            ("agent", "a2", "b1"),
            ("agent", "a2", "b2"),
            ("other", "a1", "b1"),
        ):
            tags = common | {"adapter_hash": adapter} | ({"base_hash": base} if base else {})
            client.create_model_version(name, source=str(root), run_id=child.run_id, tags=tags)
        client.delete_model_version("agent", "2")
        client.set_registered_model_alias("agent", "champion", "3")
        client.set_registered_model_alias("other", "champion", "1")
        yield root


def trained(root: Path) -> str:
    return str(Registry(SETTINGS, root).get("@champion").run_id)


def test_a_run_is_read_back_with_its_curves(store: Path) -> None:
    records = Records(SETTINGS, store)
    run = records.run(trained(store))
    assert run is not None and records.run("f" * 32) is None
    above = records.run(run.parent)
    assert above is not None and above.params == {"policy.beta": "0.1", "seed": "7"}
    assert (run.name, run.status) == ("train-policy", "FINISHED") and run.seconds is not None
    assert [(read.name, read.path, read.context) for read in run.inputs] == [
        (name, (store / "b.txt").as_posix(), "training") for name in ("first", "second")
    ]
    curves = records.histories(trained(store), ("loss", "odd", "absent"))
    assert curves == {"loss": [(1, 2.0), (2, 0.5)], "odd": [], "absent": []}
    assert records.histories("f" * 32, ("loss",)) == {"loss": []}


def test_files_of_a_run_are_found(store: Path, tmp_path: Path) -> None:
    records = Records(SETTINGS, store)
    (path,) = records.files(trained(store), "costs", tmp_path)
    assert (path.name, path.read_text()) == ("b.txt", "b")
    assert records.files(trained(store), "nothing", tmp_path) == []
    assert records.files("f" * 32, "costs", tmp_path) == []


def test_an_unknown_version_is_answered_with_the_known_ones_and_no_store_is_made(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reference in ("agent@nobody", "agent/2", "agent/9"):
        with pytest.raises(UnknownVersion, match=r"known are @champion, 1, 3\."):
            lineage(reference, SETTINGS, store)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it when a store is opened
    with pytest.raises(UserError, match="no version is registered yet"):
        lineage("agent", SETTINGS, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lineage_is_few_lines(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "params.yaml").write_text("tracking: {model: agent}\n")
    monkeypatch.chdir(store)

    def printed(*options: str) -> list[str]:
        app(["lineage", *options], standalone_mode=False)
        return capsys.readouterr().out.splitlines()

    few = printed()
    assert few[0].startswith("model\tagent version 3 (@champion)") and len(few) <= 15
    assert "params\t2 values" in few and few[-1] == "more\tsweetrl lineage agent/3 --all"
    everything = printed("--all")
    assert "param policy.beta\t0.1" in everything and "commit\tc0ffee" in everything
    assert json.loads("".join(printed("--json")))["params"] == {"policy.beta": "0.1", "seed": "7"}


def test_data_have_the_hash_of_their_last_stage(tmp_path: Path) -> None:
    def rows(**hashes: str) -> list[dict[str, str]]:
        return [{"path": path, "hash": "md5", "md5": content} for path, content in hashes.items()]

    collect = {"deps": rows(**{"models/base": "b", "src/sweetrl": "s"}), "outs": rows(**{"data/trajectories": "t"})}
    train = {"deps": rows(**{"data/trajectories": "u"}), "outs": rows(**{"models/policy": "p", "reports/runs/x": "r"})}
    assert data_hashes(tmp_path) == {}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": {"collect": collect, "train-policy": train}}))
    assert data_hashes(tmp_path) == {"data/trajectories": "u", "models/base": "b", "models/policy": "p"}


def test_a_lock_of_another_form_is_one_sentence(tmp_path: Path) -> None:
    for wrong in ("stages: []", "stages: {a: 3}", "stages: {a: {outs: [3]}}"):
        (tmp_path / "dvc.lock").write_text(wrong)
        with pytest.raises(UserError, match=r"dvc\.lock: this is not what DVC writes"):
            data_hashes(tmp_path)
    (tmp_path / "dvc.lock").write_text("stages: {a: {outs: [{path: data}]}}")
    assert data_hashes(tmp_path) == {}
