"""A stranger's first hour: the demo, a run, a domain, reward and method of one's own up to the second champion, served.

The commands are those of the README, the quick start, extending, operations and serving.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from sweetrl.config.settings import load_settings
from sweetrl.tracking.registry import Registry
from tasks.workspace import change_parameters, git
from tests.signals import models_served, only

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
        for dialogue in job.inputs.trajectories():
            if letters(dialogue) <= min(job.settings.most, letters(best.get(dialogue.task.id, dialogue))):
                best[dialogue.task.id] = dialogue
        return job.rows(best.values())
""",
}
PARAMETERS: dict[str, Any] = {
    "tracking.experiment": "tickets",
    "tracking.model": "tickets",
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


def commit(clone: Clone, **changes: Any) -> None:
    change_parameters(clone.root, changes)
    git(clone.root, "add", "-A")
    git(clone.root, "commit", "-qm", "Mine")


def look_at_the_demo(clone: Clone, folder: Path) -> None:
    """`make demo`, on fewer tasks."""
    script, before = folder / "first_look.py", git(clone.root, "status", "--porcelain").stdout
    text = (clone.root / "examples/first_look.py").read_text().replace("held_out = 60, 60", "held_out = 8, 4")
    script.write_text(f"{text}\nassert any(old.messages != new.messages for old, new in pairs), 'it has not moved'\n")
    run: Any = {"cwd": folder, "env": clone.environment(), "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, str(script)], **run)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("32 dialogues about 8 tasks") and "BEFORE TRAINING" in done.stdout
    assert len(re.findall(r"on 4 held-out tasks \(99\.5.% interval \S+ to \S+, .* p.=.", done.stdout)) == 2, done.stdout
    assert git(clone.root, "status", "--porcelain").stdout == before


def environment_without_the_project(place: Path) -> Path:
    """An environment with the packages of this one, without the project and its editable installation."""
    venv.create(place)
    for name in ("mlflow", "uvicorn"):
        program = place / "bin" / name
        program.write_text(f"#!{place}/bin/python\nimport runpy\nrunpy.run_module('{name}', run_name='__main__')\n")
        program.chmod(0o755)
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    (next(place.glob("lib/python*/site-packages")) / "packages.pth").write_text("\n".join(packages) + "\n")
    return place


def test_from_the_demo_to_an_own_domains_second_champion_and_back(
    tmp_path: Path, first: tuple[Clone, str], first_kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "version 1 registered" in first[1]  # `make run`, as all tests here share it
    clone = type(first[0])(tmp_path / "project")
    shutil.copytree(first_kept, clone.root, symlinks=True)
    look_at_the_demo(clone, tmp_path)
    for name, text in CODE.items():
        (clone.root / name).parent.mkdir(exist_ok=True)
        (clone.root / name).write_text(text)
    commit(clone, **PARAMETERS)
    wrong = clone.run("flows.run", "--dry-run", "--set", "method_options={mots: 3}")
    assert wrong.returncode == 1 and "method_options of shortest:Shortest: unknown parameter `mots`" in wrong.stderr

    assert "tickets version 1 registered" in clone.check("flows.run").stdout
    registry = Registry(load_settings(clone.root / "params.yaml").tracking, clone.root)
    registry.promote("1", "the first")  # as `flows.promote` does with the second

    # What the reward counts has changed, in a file that neither `suite` nor `reward.function` names.
    (clone.root / "words/counting.py").write_text(CODE["words/counting.py"].replace("len(message.content)", "1"))
    commit(clone, method_options={"epochs": 2, "learning_rate": 1e-3})
    printed = clone.check("flows.run")
    assert "version 1 was evaluated on other tasks or in another way" in printed.stdout + printed.stderr
    assert "version 2 registered" in printed.stdout and "gate: " in printed.stdout
    assert "champion: version 2" in clone.check("flows.promote", "--accept", "the second").stdout

    clone.check("flows.restore", "1")
    assert registry.aliases()["champion"] == "1"
    assert {name: (clone.root / name).read_text() for name in CODE} == CODE
    assert git(clone.root, "status", "--porcelain").stdout == ""
    assert "nothing had changed" in clone.check("flows.run").stdout

    elsewhere = tmp_path / "elsewhere"
    stored = registry.download(registry.get("champion"), "", elsewhere)
    place = environment_without_the_project(tmp_path / "environment")
    absent = "import importlib.util; assert not any(map(importlib.util.find_spec, ('sweetrl', 'words', 'shortest')))"
    subprocess.run([place / "bin/python", "-c", absent], cwd=elsewhere, env=only(place), check=True)
    question = {"dataframe_records": [{"role": "user", "content": "A ticket."}], "params": {"temperature": 0.0}}
    with models_served(stored, place, elsewhere) as url, httpx.Client(trust_env=False, timeout=60) as client:
        assert client.post(f"{url}/invocations", json=question).json()["predictions"].strip()
