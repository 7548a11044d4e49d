"""Reading the embedded store directly says what MLflow's own client says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from sweetrl.errors import UserError
from sweetrl.settings import TrackingSettings
from sweetrl.tracking import records
from sweetrl.tracking.lineage import lineage
from sweetrl.tracking.records import EmbeddedRecords, Records, open_records
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


def both(root: Path) -> tuple[Records, Records]:
    embedded = open_records(SETTINGS, root)
    assert isinstance(embedded, EmbeddedRecords), (
        "MLflow's database is in a state that sweetrl.tracking.records does not know: look whether its statements "
        "still hold, then add the state to KNOWN_TABLES"
    )
    return embedded, Records(SETTINGS, root)


def test_the_database_says_what_mlflow_says(store: Path) -> None:
    embedded, client = both(store)
    for reference in ("@champion", "1", "3"):
        assert embedded.get(reference) == client.get(reference)
    assert embedded.get("@champion").version == "3"
    assert embedded.aliases_of("3") == client.aliases_of("3") == ("champion",)
    for adapter, base in (("a1", ""), ("a1", "b1"), ("a2", "b1"), ("a2", "b2"), ("a3", "")):
        assert embedded.find(adapter, base) == client.find(adapter, base)
    assert embedded.find("a2", "b1") is None, "deleted"
    run_id = str(embedded.get("3").run_id)
    found, expected = embedded.run(run_id), client.run(run_id)
    assert found is not None and expected is not None
    assert str(asdict(found)) == str(asdict(expected))  # nan is not equal to itself
    assert found.facts.metrics["loss"] == 0.5 and [one.name for one in found.facts.inputs] == ["first", "second"]
    assert found.parent and embedded.run("f" * 32) is None
    curves = embedded.histories(run_id, ("loss", "absent"))
    assert curves == client.histories(run_id, ("loss", "absent")) == {"loss": [(1, 2.0), (2, 0.5)], "absent": []}
    assert embedded.histories("f" * 32, ("loss",)) == client.histories("f" * 32, ("loss",)) == {"loss": []}


def test_files_of_a_run_are_found(store: Path, tmp_path: Path) -> None:
    embedded, client = both(store)
    run_id = str(embedded.get("3").run_id)
    for number, known in enumerate((embedded, client)):
        (found,) = known.files(run_id, "costs", tmp_path / str(number))
        assert found.name == "b.txt" and found.read_text() == "b"
        assert known.files(run_id, "nothing", tmp_path / str(number)) == []
        assert known.files("f" * 32, "costs", tmp_path / str(number)) == []


def test_an_unknown_version_is_answered_with_the_known_ones(store: Path) -> None:
    for reference in ("@nobody", "2", "9"):
        with pytest.raises(UserError, match=r"known are @champion, 1, 3\."):
            open_records(SETTINGS, store).get(reference)


def test_another_state_of_the_database_and_other_stores_are_left_to_mlflow(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embedded() -> bool:
        return isinstance(open_records(SETTINGS, store), EmbeddedRecords)

    assert embedded()
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_REGISTRY_URI", "http://localhost:1")
        assert not embedded()
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
        assert not embedded()
    monkeypatch.setattr(records, "KNOWN_TABLES", ("0",))
    assert not embedded()
    assert lineage("agent", SETTINGS, store).version == "3", "and it is slower, no more"


def test_lineage_is_few_lines_and_loads_no_mlflow(store: Path) -> None:
    (store / "params.yaml").write_text("tracking: {model: agent}\n")

    def printed(*options: str) -> list[str]:
        code = "import sys; from sweetrl.cli import app; app(sys.argv[1:], standalone_mode=False)"
        command = [sys.executable, "-c", f"{code}; assert 'mlflow' not in sys.modules", "lineage", *options]
        return subprocess.run(command, cwd=store, capture_output=True, text=True, check=True).stdout.splitlines()

    few = printed()
    assert few[0].startswith("model\tagent version 3 (@champion)") and len(few) <= 15
    assert "params\t2 values" in few and few[-1] == "more\tsweetrl lineage agent/3 --all"
    everything = printed("--all")
    assert "param policy.beta\t0.1" in everything and "commit\tc0ffee" in everything
    assert json.loads("".join(printed("--json")))["params"] == {"policy.beta": "0.1", "seed": "7"}
