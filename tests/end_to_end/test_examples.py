"""The examples through real flows, DVC, MLflow and the gate, in clones of which only params.yaml differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from safetensors.numpy import load_file

from tasks.workspace import change_parameters, git
from tests.signals import at_work

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # `make test-flows`

FORMS: dict[str, Any] = {
    "suite": "examples.forms:Forms",
    "sources.suite": "examples/forms.py",
    "pretrain.steps": 250,
    "pretrain.vocabulary": 384,
    "pretrain.width": 64,
    "pretrain.layers": 2,
    "agent.max_new_tokens": 48,
    "agent.max_turns": 8,
    "tasks.train": 60,
    "collect.tasks": 40,
    "collect.batch": 80,
    "collect.shard": 80,
    "evaluate.tasks": 12,
    "evaluate.confidence": 0.9999,  # as for the 8 tasks of `SMALL`: nothing is shown
    "evaluate.temperature": 1.0,  # the demonstrations' faults are noise, which greedy decoding takes out of both
}
BEST: dict[str, Any] = {
    "method": "examples.best_attempt:BestAttempt",
    "method_options": {"learning_rate": 1e-3, "epochs": 2, "lead": 0.05},
    "sources.method": "examples/best_attempt.py",
}

BRIEF: dict[str, Any] = {
    "method": "rft",
    "rft.min_reward": 0.3,  # a solved task earns 1 less the price of its questions
    "reward.function": "examples.brief:brief",
    "sources.reward": "examples/brief.py",
}


def run(clone: Clone) -> str:
    done = clone.check("flows.run")
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


def status(printed: str, stage: str) -> str:
    return next(line.split()[1] for line in printed.splitlines() if line.split()[:1] == [stage])


def read(clone: Clone, name: str) -> Any:
    return json.loads((clone.root / name).read_text())


def code_of(clone: Clone, version: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    from sweetrl.config.settings import load_settings
    from sweetrl.tracking.lineage import lineage

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    origins = lineage(f"sweetrl-agent/{version}", load_settings(clone.root / "params.yaml").tracking, clone.root)
    assert origins.parent is not None and origins.parent.status == "FINISHED"
    return origins.code


def committed(clone: Clone, changes: dict[str, Any]) -> None:
    change_parameters(clone.root, changes)
    git(clone.root, "add", "-A")
    git(clone.root, "commit", "-qm", "Other parameters")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory, clone_project: Callable[..., Clone]) -> Iterator[tuple[Clone, str]]:
    """The own domain, pre-trained and trained with SWEET-RL, and what the run printed."""
    clone = clone_project(tmp_path_factory.mktemp("examples") / "forms", **FORMS)
    done = clone.run("sweetrl.stages.pretrain")  # as `make base-model` does
    assert done.returncode == 0, done.stderr[-4000:]
    done = clone.check("dvc", "commit", "--quiet", "--force", "pretrain")
    git(clone.root, "add", "-A")
    git(clone.root, "commit", "-qm", "A base agent for forms")
    yield clone, run(clone)
    assert at_work(clone.root) == []


def test_an_own_domain_is_trained_evaluated_and_registered(
    forms: tuple[Clone, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, printed = forms
    for stage in ("tasks", "collect", "validate", "train-critic", "rank", "train-policy", "evaluate"):
        assert status(printed, stage) == "ran", stage
    assert "model: sweetrl-agent version 1 registered (@challenger)" in printed
    code = code_of(clone, "1", monkeypatch)
    assert code["suite"].startswith("examples.forms:Forms ") and len(code["suite"].split()[1]) == 32
    assert code["method"] == "sweet"
    dialogues = parquet.read_table(clone.root / "data/trajectories").to_pylist()
    assert len(dialogues) == 160
    # Its own reward and its own user: the parts add up, and a question that matters is answered by its value.
    for dialogue in dialogues:
        assert dialogue["reward"] == pytest.approx(sum(part for _, part in dialogue["parts"]))
    assert len({dialogue["reward"] for dialogue in dialogues}) > 2
    adapter = load_file(clone.root / "models/policy/adapter_model.safetensors")
    assert all(weight.any() for name, weight in adapter.items() if "lora_B" in name), "the policy has not moved"
    assert "<dt>Domain</dt><dd>examples.forms:Forms</dd>" in (clone.root / "reports/report.html").read_text()
    assert git(clone.root, "status", "--porcelain", "--", "src", "flows", "tasks").stdout == ""


def test_an_own_method_takes_the_same_dialogues_and_skips_what_it_does_not_need(
    forms: tuple[Clone, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, _ = forms
    before = clone.lock()
    committed(clone, BEST)
    printed = run(clone)
    assert status(printed, "collect") == "skipped"
    for stage, skipped in (("train-critic", "models/critic"), ("rank", "data/preferences")):
        note = read(clone, f"{skipped}/skipped.json")
        assert "examples.best_attempt:BestAttempt" in json.dumps(note), stage
    assert clone.lock()["collect"] == before["collect"]
    assert clone.lock()["train-policy"] != before["train-policy"]
    assert "version 2" in printed
    assert code_of(clone, "2", monkeypatch)["method"].startswith("examples.best_attempt:BestAttempt ")


def test_a_change_of_its_source_collects_again(forms: tuple[Clone, str]) -> None:
    from tasks.pipeline import changed_stages

    clone, _ = forms
    path = clone.root / "examples/forms.py"
    before = path.read_text()
    try:
        path.write_text(before.replace("That does not matter.", "No need."))
        assert {"tasks", "collect"} <= changed_stages(clone.root, ["tasks", "collect"])
    finally:
        path.write_text(before)


def test_an_own_reward_on_backend_programming(
    tmp_path: Path, clone_project: Callable[..., Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = clone_project(tmp_path / "brief", **BRIEF)
    printed = run(clone)
    assert "model: sweetrl-agent version 1 registered (@challenger)" in printed
    messages = priced(clone, 0.02)
    assert code_of(clone, "1", monkeypatch)["reward.function"].startswith("examples.brief:brief ")
    path = clone.root / "examples/brief.py"
    path.write_text(path.read_text().replace("0.02", "0.03"))
    again = clone.check("flows.run", "--until", "collect").stdout
    assert status(again, "collect") == "ran" and "scored again, none played" in again
    assert priced(clone, 0.03) == messages


def priced(clone: Clone, price: float) -> list[Any]:
    """The messages of the collected dialogues, whose questions have cost `price`."""
    dialogues = parquet.read_table(clone.root / "data/trajectories").to_pylist()
    for dialogue in dialogues:
        parts = dict(dialogue["parts"])
        questions = sum(message["role"] == "assistant" for message in dialogue["messages"]) - 1
        assert parts["questions"] == pytest.approx(-price * questions)
        assert dialogue["reward"] == pytest.approx(parts["tests"] + parts["questions"])
    return [dialogue["messages"] for dialogue in dialogues]
