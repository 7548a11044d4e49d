"""All servers of a team together, and a checkout that works with them: its origin, its S3, its deployments."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tasks.workspace import git
from tests.end_to_end.conftest import make_clone
from tests.services.faults import Proxy
from tests.services.servers import (
    PREFECT_PASSWORD,
    MLflow,
    ObjectStore,
    Postgres,
    Prefect,
    SeaweedFS,
    Worker,
    plain_environment,
    s3_environment,
)
from tests.signals import as_at_a_terminal, until

BUCKET = "team"
RUN_SECONDS = 2700.0  # a retraining with real stages, on two cores with much other load
EVENT_SECONDS = 900.0  # until what an event or a schedule starts has begun
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

# The pretended training of a stand-in: two batches in three are better than what was before.
STAGE = """
import json, os, pathlib, time
import pyarrow as pa, yaml
from pyarrow import parquet

first = yaml.safe_load(open("params.yaml"))["collect"]["first"]
number = first // 12
level = 1 - 0.97 ** (number - number // 3 + 1)
if number % 3 == 0 and number:
    level -= 0.02
for folder in ("models/policy", "reports", "data/tasks"):
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
time.sleep(float(os.environ.get("STAND_IN_SECONDS", "0")))
pathlib.Path("models/policy/adapter_config.json").write_text(json.dumps({"first": first}))
pathlib.Path("models/policy/adapter_model.safetensors").write_bytes(f"weights of batch {first};".encode() * 4000)
pathlib.Path("data/tasks/test.parquet").write_bytes(b"test tasks")
rewards = {f"task-{task:03d}": level * (0.8 + 0.002 * task) for task in range(100)}
rows = [{"task_id": task, "policy": "trained", "reward": value} for task, value in rewards.items()]
rows = [row | {"topic": "prices", "held_out": False} for row in rows]
parquet.write_table(pa.Table.from_pylist(rows), "reports/results.parquet")
mean = sum(rewards.values()) / len(rewards)
estimate = {"value": mean, "low": mean, "high": mean, "p_value": 0.0, "test": "none"}
both = {"success": estimate, "reward": estimate}
report = {"tasks": len(rewards), "confidence": 0.95, "mean": mean, "difference": both}
report["policies"] = {"base": both, "trained": both}
pathlib.Path("reports/evaluation.json").write_text(json.dumps(report))
print(f"trained on batch {first}")
"""
PIPELINE = """
stages:
  train:
    cmd: python stand_in.py
    deps: [stand_in.py]
    params: [collect]
    outs: [models/policy, data/tasks, reports/results.parquet, reports/evaluation.json]
"""


def make_stand_in(root: Path) -> None:
    """Put one stage that only pretends to train into a clone, in the place of all others, and commit it."""
    for name in ("reproduce", "iterations", "benchmarks", "docs", "data", "reports", "models/base-frontend"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "stand_in.py").write_text(STAGE)
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / ".gitignore").write_text(
        "/data/\n/reports/\n/models/policy/\n/.scratch/\n/.cache/\n/.prefect/\n__pycache__/\n"
    )
    git(root, "add", "-A")
    git(root, "commit", "-qm", "A stand-in")


class Team:
    """PostgreSQL, an S3, MLflow and Prefect; clients reach the last three through proxies that can be told to fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store()
        self.serve()

    def store(self, name: str = "s3") -> None:
        """Start a PostgreSQL and an S3, both empty."""
        self.postgres = Postgres()
        self.s3: ObjectStore = SeaweedFS(self.folder / name)
        self.s3.start()
        self.s3.client().create_bucket(Bucket=BUCKET)
        self.to_s3 = Proxy(self.s3.port)

    def serve(self) -> None:
        """Start MLflow and Prefect on what is stored there."""
        self.mlflow = MLflow(self.folder / "mlflow", self.postgres.url("psycopg2", "mlflow"), self.to_s3.url, BUCKET)
        self.prefect = Prefect(self.folder / "prefect", self.postgres.url("asyncpg", "prefect"))
        for server in (self.mlflow, self.prefect):
            server.start(wait=False)
        self.mlflow.wait()
        self.prefect.wait()

    def environment(self) -> dict[str, str]:
        """What docs/operations.md says to set on every machine."""
        servers = {"MLFLOW_TRACKING_URI": self.mlflow.url, "PREFECT_API_URL": self.prefect.url}
        servers["PREFECT_API_AUTH_STRING"] = PREFECT_PASSWORD
        servers["PREFECT_CLIENT_RETRY_EXTRA_CODES"] = "500"
        return {**plain_environment(), **s3_environment(self.to_s3.url), **servers}

    def close(self) -> None:
        for server in (self.prefect, self.mlflow, self.s3):
            with contextlib.suppress(Exception):
                server.stop(hard=True)
        self.to_s3.close()
        self.postgres.remove()

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Call Prefect's server."""
        name, _, password = PREFECT_PASSWORD.partition(":")
        with httpx.Client(trust_env=False, timeout=60, auth=(name, password)) as client:
            token = client.get(f"{self.prefect.url}/csrf-token", params={"client": "tests"}).json()["token"]
            headers = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
            answer = client.request(method, self.prefect.url + path, json=body, headers=headers)
        answer.raise_for_status()
        return answer.json() if answer.content else None


@dataclass
class Done:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def output(self) -> str:
        return self.out + self.err

    @property
    def message(self) -> str:
        """The sentence with which a command of sweetrl ends; "" where it has none."""
        return next((line for line in reversed(self.err.splitlines()) if line.startswith("error: ")), "")


@dataclass
class Checkout:
    """A checkout of the project with a bare origin and a DVC remote in the bucket."""

    team: Team
    root: Path
    model: str
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, team: Team, root: Path, model: str, stand_in: bool, **changes: Any) -> Checkout:
        """Copy the working tree, made small by its parameters; as a `stand_in` with one stage that only pretends."""
        named = {"tracking.model": model, "tracking.experiment": model}
        make_clone(root, **named, **{"evaluate.resamples": 20000, "evaluate.confidence": 0.95} | changes)
        made = cls(team, root, model)
        if stand_in:
            make_stand_in(root)
        origin = root.parent / f"{root.name}.git"
        git(root, "init", "-q", "--bare", "-b", "main", str(origin))
        git(root, "remote", "add", "origin", str(origin))
        made.check("dvc", "remote", "add", "-q", "-d", "store", f"s3://{BUCKET}/{root.name}")
        git(root, "commit", "-qam", "A remote for the data")
        git(root, "push", "-q", "-u", "origin", "main")
        return made

    @property
    def origin(self) -> Path:
        return self.root.parent / f"{self.root.name}.git"

    def environment(self) -> dict[str, str]:
        return {
            **self.team.environment(),
            "PYTHONPATH": str(self.root / "src"),
            "SWEETRL_HOME": str(self.root),
            **self.extra,
        }

    def start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start `python -m module` in the checkout, in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=as_at_a_terminal,
        )

    def run(self, module: str, *arguments: str, seconds: float = RUN_SECONDS) -> Done:
        """Run `python -m module` in the checkout."""
        process = self.start(module, *arguments)
        out, err = process.communicate(timeout=seconds)
        return Done(process.returncode, out, err)

    def check(self, module: str, *arguments: str) -> str:
        """Run `python -m module`, which must succeed, and return what it printed."""
        done = self.run(module, *arguments)
        assert done.code == 0, done.out[-3000:] + done.err[-6000:]
        return done.out

    def keep_first_run(self) -> None:
        """Commit and push what the first run has made, as its user does."""
        git(self.root, "add", "dvc.lock")
        git(self.root, "commit", "-qm", "The first run")
        git(self.root, "push", "-q", "origin", "main")
        self.check("dvc", "push", "-q", "dvc.yaml")

    def deploy(self) -> None:
        """Deploy everything, as docs/operations.md says."""
        self.check("flows.deploy")

    def deployment(self, name: str) -> dict[str, Any]:
        """Prefect's record of a deployment, by its name in prefect.yaml."""
        query = {"deployments": {"name": {"any_": [f"{self.model}.{name}"]}}}
        (record,) = self.team.api("POST", "/deployments/filter", query)
        return record

    def begun(self, name: str) -> list[dict[str, Any]]:
        """The runs of a deployment that have begun, newest first."""
        query = {"deployments": {"id": {"any_": [self.deployment(name)["id"]]}}, "sort": "EXPECTED_START_TIME_DESC"}
        runs = self.team.api("POST", "/flow_runs/filter", query)
        return [run for run in runs if run["state"]["type"] != "SCHEDULED"]

    def wait_until_begun(self, name: str, before: list[dict[str, Any]]) -> dict[str, Any]:
        """Wait until a deployment has got a run that was not there before."""
        until(lambda: len(self.begun(name)) > len(before), f"{name} did not run", EVENT_SECONDS, 1.0)
        return self.begun(name)[0]

    def wait_for_another(self, name: str, before: list[dict[str, Any]]) -> dict[str, Any]:
        """Wait until a deployment has got a run that nobody asked for by hand, and until that has ended."""
        run = self.wait_until_begun(name, before)
        self.ended(run["id"])
        return run

    def ask(self, name: str, parameters: dict[str, Any] | None = None) -> str:
        """Have a deployment run now; return the flow run's id."""
        path = f"/deployments/{self.deployment(name)['id']}/create_flow_run"
        body = {"parameters": parameters or {}, "state": {"type": "SCHEDULED"}}
        return self.team.api("POST", path, body)["id"]

    def state(self, run: str) -> dict[str, Any]:
        return self.team.api("GET", f"/flow_runs/{run}")["state"]

    def ended(self, run: str, seconds: float = RUN_SECONDS) -> dict[str, Any]:
        """Wait until a flow run has ended, and return its state."""
        deadline = time.monotonic() + seconds
        while (state := self.state(run))["type"] not in ENDED:
            assert time.monotonic() < deadline, f"{run} is {state['name']} after {seconds:g} s:\n{self.logs(run)}"
            time.sleep(0.5)
        return state

    def logs(self, run: str) -> str:
        """The log messages of a flow run."""
        query = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        return "\n".join(row["message"] for row in self.team.api("POST", "/logs/filter", query))

    def worker(self) -> Worker:
        """Start a worker whose flows work with this checkout's servers."""
        worker = Worker(self.root.parent / f"{self.root.name}-worker", self.environment(), self.model)
        worker.start()
        return worker

    def journal_rows(self) -> list[dict[str, Any]]:
        """All rows of all journals, of the newest retraining last."""
        files = sorted((self.root / ".git/sweetrl/retrain").glob("*.jsonl"))
        lines = [line for path in files for line in path.read_text(errors="replace").splitlines()]
        rows = []
        for line in lines:
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
        return rows

    def count(self, step: str) -> int:
        """How often retrainings have come to a step of the journal."""
        return sum(row["step"] == step for row in self.journal_rows())

    def unfinished(self) -> bool:
        """Whether a retraining has a journal that does not say that it is done."""
        files = (self.root / ".git/sweetrl/retrain").glob("*.jsonl")
        return any('"step": "done"' not in path.read_text(errors="replace") for path in files)
