"""A domain, a reward and a method of one's own in the project's folder: the gate, a version restored, served."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sweetrl.config.settings import load_settings
from sweetrl.tracking.registry import Registry
from tasks.workspace import change_parameters, git

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # `make test-flows`

CODE = {
    "words/__init__.py": "",
    "words/counting.py": """
def letters(dialogue):
    return sum(len(message.content) for message in dialogue.messages if message.role == "assistant")
""",
    "words/few.py": """
import sweetrl
from sweetrl.backend import Backend
from words.counting import letters

class Tickets(Backend):
    prompts = {"short": "You sell tickets, in few words."}
    shipped_prompts = ""

def brief(task, dialogue):
    return {"tests": dialogue.reward, "letters": -letters(dialogue) / 10_000}
""",
    "shortest.py": """
import sweetrl
from words.counting import letters

class Options(sweetrl.TrainerSettings):
    most: int = 1000

class Shortest(sweetrl.Method):
    settings_type = Options
    needs = frozenset({"trajectories"})

    def data(self, job):
        best = {}
        for one in job.inputs.trajectories():
            if letters(one) <= min(job.settings.most, letters(best.get(one.task.id, one))):
                best[one.task.id] = one
        return job.rows(best.values())
""",
}
PARAMETERS: dict[str, Any] = {
    "suite": "words.few:Tickets",
    "reward.function": "words.few:brief",
    "method": "shortest:Shortest",
    "method_options": {"epochs": 1, "learning_rate": 1e-3},
    "sources.suite": "words",
    "sources.reward": "words",
    "sources.method": "shortest.py",
    "agent.max_turns": 2,
    "agent.max_new_tokens": 32,
    "tasks.train": 8,
    "tasks.test": 4,
    "collect.tasks": 4,
    "collect.attempts": 2,
    "evaluate.tasks": 4,
    "validate.duplicate_share": 1.0,
}
SERVED = """
import importlib.util, sys, mlflow
assert not any(map(importlib.util.find_spec, ("words", "shortest")))
print(mlflow.pyfunc.load_model(sys.argv[1]).predict([{"role": "user", "content": "A ticket."}])[0])
"""


def commit(clone: Clone, **changes: Any) -> None:
    change_parameters(clone.root, changes)
    git(clone.root, "add", "-A")
    git(clone.root, "commit", "-qm", "Mine")


def test_own_code_goes_from_the_first_version_to_the_next_and_back(
    tmp_path: Path, clone_project: Callable[..., Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    clone = clone_project(tmp_path / "project")
    for name, text in CODE.items():
        (clone.root / name).parent.mkdir(exist_ok=True)
        (clone.root / name).write_text(text)
    commit(clone, **PARAMETERS)
    wrong = clone.run("flows.run", "--dry-run", "--set", "method_options={mots: 3}")
    assert wrong.returncode == 1 and "method_options of shortest:Shortest: unknown parameter `mots`" in wrong.stderr

    assert "version 1 registered" in clone.check("flows.run").stdout
    settings = load_settings(clone.root / "params.yaml")
    registry = Registry(settings.tracking, clone.root)
    registry.promote("1", "the first")

    # What the reward counts is another one now, in a file that neither `suite` nor `reward.function` names.
    (clone.root / "words/counting.py").write_text(CODE["words/counting.py"].replace("len(message.content)", "1"))
    commit(clone, method_options={"epochs": 2, "learning_rate": 1e-3})
    printed = clone.check("flows.run")
    assert "version 1 was evaluated on other tasks or in another way" in printed.stdout + printed.stderr
    assert "version 2 registered" in printed.stdout and "gate: " in printed.stdout
    registry.promote("2", "the second")

    clone.check("flows.restore", "1")
    assert registry.aliases()["champion"] == "1"
    assert {name: (clone.root / name).read_text() for name in CODE} == CODE
    assert git(clone.root, "status", "--porcelain").stdout == ""
    assert "nothing had changed" in clone.check("flows.run").stdout

    elsewhere = tmp_path / "elsewhere"
    stored = registry.download(registry.get("1"), "", elsewhere)
    command = [sys.executable, "-I", "-c", SERVED, str(stored)]
    served = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert served.returncode == 0 and served.stdout.strip(), served.stderr
