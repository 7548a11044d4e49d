"""Shares of a stage on the nodes of a Ray cluster, through Prefect's Ray task runner (the extra `ray`).

SWEETRL_RAY names the cluster, as in ray://head:10001 or host:6379; then the flows let it make the parts of `collect`,
`rank` and `evaluate` before those stages put them together. SWEETRL_RAY_SHARES says in how many shares (default: as
many as the cluster has CPUs, or GPUs), SWEETRL_RAY_GPUS how many GPUs a share gets. All nodes must see the project's
folder under the same path, and Prefect's server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from sweetrl.errors import UserError
from sweetrl.stages.scratch import SPREAD, VARIABLE, Share
from tasks import steps
from tasks.pipeline import StageResult, run_command, stage_environment


def run_stage(stage: str, root: Path, env: dict[str, str]) -> StageResult:
    """Bring one stage up to date, with its parts made by the cluster that the environment names, if it names one."""
    address = os.environ.get("SWEETRL_RAY", "").strip()
    if address and stage in SPREAD:
        shares, gpus = os.environ.get("SWEETRL_RAY_SHARES") or "0", os.environ.get("SWEETRL_RAY_GPUS") or "0"
        try:
            cut = int(shares), float(gpus)
        except ValueError as error:
            raise UserError(f"SWEETRL_RAY_SHARES={shares}, SWEETRL_RAY_GPUS={gpus}: these must be numbers.") from error
        spread(stage, root, address, *cut, env)
    return steps.run_stage(stage, root, env)


@task(name="make_share", task_run_name="{stage} {index}/{count}", cache_policy=NO_CACHE, retries=1)
def make_share(stage: str, root: str, index: int, count: int, env: dict[str, str]) -> dict[str, str]:
    """Make one share on the node that this runs on; return the stage's last line ("last_line") and the node."""
    import ray

    own = {**env, VARIABLE: str(Share(index, count)), "SWEETRL_TRACKING": "off"}
    command = [sys.executable, "-m", f"sweetrl.stages.{stage.replace('-', '_')}"]
    lines = run_command(stage, command, Path(root), stage_environment(Path(root), own), get_run_logger().info)
    last_line = next((text for text in reversed(lines) if text), "")
    return {"node": ray.get_runtime_context().get_node_id(), "last_line": last_line}


@flow(name="spread", validate_parameters=False)
def make_shares(stage: str, root: str, count: int, gpus: float, env: dict[str, str]) -> list[dict[str, str]]:
    """Make all shares of a stage, side by side as far as the cluster has room."""
    from prefect_ray.context import remote_options

    if not count:
        import ray

        room = ray.cluster_resources()
        count = max(int(room.get("GPU", 0.0) / gpus if gpus else room.get("CPU", 1.0)), 1)
    options = {"num_gpus": gpus} if gpus else {}
    with remote_options(**options, scheduling_strategy="SPREAD"):
        futures = [make_share.submit(stage, root, index, count, env) for index in range(count)]
    return [future.result() for future in futures]


def spread(
    stage: str, root: Path, address: str, shares: int = 0, gpus: float = 0.0, env: dict[str, str] | None = None
) -> list[dict[str, str]]:
    """Let the cluster at `address` make `stage` in `shares` (0: as many as fit), with `gpus` each.

    Returns {"node", "last_line"} of each share. StageFailed where one fails, UserError without the extra or a cluster.
    """
    try:
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise UserError("SWEETRL_RAY needs Prefect's Ray task runner; `pip install 'sweetrl[ray]'`.") from error
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url = server_url()
    path = os.pathsep.join(filter(None, [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]))
    workers = {"PREFECT_API_URL": url, "PYTHONPATH": path, "PREFECT_HOME": str(root / ".prefect")}
    init: dict[str, Any] = {"runtime_env": {"env_vars": workers}, "log_to_driver": False}
    with temporary_settings({PREFECT_API_URL: url}):
        runner: Any = RayTaskRunner(address=address, init_kwargs=init)
        try:
            flow_there = make_shares.with_options(task_runner=runner)
            return flow_there(stage, str(root), shares, gpus, env or {})
        except ConnectionError as error:
            raise UserError(f"SWEETRL_RAY={address}: cannot be reached ({error}); fix it.") from error


def server_url() -> str:
    """Return the address of Prefect's server, the embedded one included: a node must not start one of its own."""
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_URL

    if configured := PREFECT_API_URL.value():
        return str(configured)
    server = SubprocessASGIServer()
    server.start()
    return str(server.api_url)
