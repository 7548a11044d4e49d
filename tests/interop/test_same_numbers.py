"""The command lines of others measure what `sweetrl evaluate` measures: one served agent, reward by reward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import sweetrl
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import load_settings
from tests.adapters import write_adapter
from tests.interop.shared import tasks_of
from tests.serve.serving import running

REPOSITORY = Path(__file__).resolve().parents[2]
COUNT, SEED = 16, 7
AGENT = {"prompt": "short", "max_turns": 3, "max_new_tokens": 192, "temperature": 0.0}
TURNS = '{"agent":{"max_turns":7}}'  # over those of the file


@pytest.fixture(scope="module")
def project(shipped_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the shipped base, an adapter that changes nothing of it, and tasks of the suite."""
    root = tmp_path_factory.mktemp("project")
    (root / "models").mkdir()
    (root / "models/base").symlink_to(shipped_base)
    write_adapter(shipped_base, root / "models/policy", 0.0)
    values = {"seed": SEED, "agent": AGENT, "model": {"threads": 1}, "tracking": {"traces": 0.0}}
    (root / "params.yaml").write_text(yaml.safe_dump(values))
    write_task_table(root / "tasks.parquet", tasks_of(sweetrl.domain("backend"), "test", COUNT, SEED))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield root


@pytest.fixture(scope="module")
def expected(project: Path) -> list[float | None]:
    """The rewards by `sweetrl evaluate`, in the order of the tasks."""
    command = "evaluate --tasks tasks.parquet --adapter models/policy --out dialogues --set agent.max_turns=7 --quiet"
    environment = {**os.environ, "SWEETRL_TRACKING": "off"}
    subprocess.run([sys.executable, "-m", "sweetrl.cli", *command.split()], cwd=project, env=environment, check=True)
    rewards = [trajectory.reward for trajectory in TrajectoryStore(project / "dialogues").read()]
    assert len(rewards) == COUNT and len({*rewards}) > 2
    return rewards


@pytest.fixture(scope="module")
def served(project: Path) -> Iterator[str]:
    """The address of `sweetrl serve models/policy`."""
    settings = load_settings(project / "params.yaml")
    agent = settings.agent.model_copy(update={"max_turns": 7})
    with running("models/policy", settings.model_copy(update={"agent": agent})) as server:
        yield f"{server.url}/v1"


def called(command: list[str], folder: Path, **environment: str) -> None:
    """Run another project's command line from the repository."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:]],
        cwd=REPOSITORY,
        env={**os.environ, "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.skipif(find_spec("inspect_ai") is None, reason="needs inspect_ai: pip install 'sweetrl[inspect]'")
def test_inspect(project: Path, expected: list[float | None], served: str, tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    command = f"""inspect eval sweetrl/colbench --model openai-api/far/policy --display none --log-dir {tmp_path}
        -T count={COUNT} -T seed={SEED} -T params={project}/params.yaml -T prompt=short -T settings={TURNS}"""
    called(command.split(), tmp_path, FAR_BASE_URL=served, FAR_API_KEY="none")
    (path,) = tmp_path.glob("*.eval")
    samples = read_eval_log(str(path)).samples or []
    rewards = [score.value["reward"] for sample in samples for score in (sample.scores or {}).values()]  # type: ignore[call-overload,index]
    assert rewards == expected


@pytest.mark.skipif(find_spec("verifiers") is None, reason="needs verifiers: pip install 'sweetrl[verifiers]'")
def test_verifiers(project: Path, expected: list[float | None], served: str, tmp_path: Path) -> None:
    command = f"""vf-eval sweetrl-verifiers --env.taskset.domain backend --env.taskset.split test
        --env.taskset.seed {SEED} --env.taskset.params {project}/params.yaml --env.taskset.settings {TURNS}
        -n {COUNT} -r 1
        --client.base-url {served} --client.api-key-var NO_KEY --model policy --no-push --no-rich
        --env.agent.harness.id chat-in-process --output-dir {tmp_path} --run.dir out"""
    called(command.split(), tmp_path, PYTHONPATH=str(Path(__file__).parent))
    rows = [json.loads(line) for line in (tmp_path / "out" / "traces.jsonl").read_text().splitlines()]
    traces = [trace for row in rows for trace in row["traces"]]
    assert all(row["ok"] for row in rows), [row["errors"] for row in (*rows, *traces)]
    requests = [task.problem_description for task in tasks_of(sweetrl.domain("backend"), "test", COUNT, SEED)]
    rewards = {}
    for trace in traces:
        (request,) = (request for request in requests if json.dumps(request) in json.dumps(trace))
        rewards[request] = trace["rewards"]["reward"]["score"]
    assert [rewards[request] for request in requests] == expected
