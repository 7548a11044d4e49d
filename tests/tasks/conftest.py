"""Projects in real repositories: a toy with DVC and three stages, and a retraining whose heavy steps are fakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tasks.fake_project import Project, git, light, start_dvc

STAGE = """
import json, os, pathlib, subprocess, sys, time
import yaml

name, mode = sys.argv[1], yaml.safe_load(open("toy.yaml"))[sys.argv[1]]
if mode == "error":
    print("error: data/first.txt: row 3 is not JSON; fix it.", file=sys.stderr); sys.exit(1)
if mode == "crash":
    raise ZeroDivisionError("division by zero")
if mode == "kill":
    os.kill(os.getpid(), 9)
if mode == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path("child.pid").write_text(str(child.pid))
    print("hanging", flush=True)
    time.sleep(600)
os.makedirs("data", exist_ok=True); os.makedirs("reports/runs", exist_ok=True)
pathlib.Path(f"data/{name}.txt").write_text(f"{name} {mode}")
with open("count.txt", "a") as stream:
    stream.write(f"{name} {os.environ.get('SWEETRL_PARENT_RUN', '')}\\n")
pathlib.Path(f"reports/runs/{name}.json").write_text(json.dumps({"summary": "made " + name}))
print("made", name)
"""

PIPELINE = """
stages:
  third:
    cmd: python stage.py third
    deps: [data/second.txt, data/first.txt]
    params: [toy.yaml: [third]]
    outs: [data/third.txt, reports/runs/third.json]
  first:
    cmd: python stage.py first
    params: [toy.yaml: [first]]
    outs: [data/first.txt, reports/runs/first.json]
  second:
    cmd: python stage.py second
    deps: [data/first.txt]
    params: [toy.yaml: [second]]
    outs: [data/second.txt, reports/runs/second.json]
"""


class Toy:
    """The toy project; `set` changes what a stage does."""

    def __init__(self, root: Path):
        self.root = root
        self.modes = {"first": "a", "second": "a", "third": "a"}

    def set(self, **modes: str) -> None:
        self.modes |= modes
        (self.root / "toy.yaml").write_text("".join(f"{name}: {mode}\n" for name, mode in self.modes.items()))

    def runs(self) -> list[str]:
        """The stages that have really run, in order."""
        path = self.root / "count.txt"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    root = tmp_path / "toy"
    root.mkdir()
    (root / "stage.py").write_text(STAGE)
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "params.yaml").write_text(
        "# the toy's\nseed: 7\ncollect: {tasks: 4, first: 0}\ntracking: {uri: 'sqlite:///mlflow.db'}\n"
    )
    (root / ".gitignore").write_text(
        "/data/\n/reports/\n/count.txt\n/child.pid\n/.scratch/\n/mlflow.db*\n/mlartifacts/\n/.prefect/\n"
    )
    project = Toy(root)
    project.set()
    git(root, "init", "-q", "-b", "main")
    start_dvc(root)
    git(root, "add", ".")
    git(root, "commit", "-qm", "toy")
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    monkeypatch.delenv("SWEETRL_PARENT_RUN", raising=False)
    return project


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    Project.make(root)
    return root


@pytest.fixture
def project(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    made = Project(tmp_path)
    git(made.home, "remote", "set-url", "origin", str(made.origin))
    light(monkeypatch, made)
    return made
