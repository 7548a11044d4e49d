"""Shares on a Ray cluster of two nodes (in processes here), through Prefect's task runner: the same bytes as alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import load_settings
from sweetrl.engines.vllm_server import free_port
from sweetrl.errors import UserError
from sweetrl.stages.collect import collect
from sweetrl.stages.evaluate import evaluate
from sweetrl.stages.rank import rank
from tasks.pipeline import StageFailed

REPOSITORY = Path(__file__).resolve().parents[2]


# A busy machine: Ray's and Prefect's processes may take their time to start, to find each other and to answer.
PATIENCE = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_port_wait_time_s": "600",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_py_gcs_connect_timeout_s": "600",
    "RAY_raylet_client_num_connect_attempts": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_initial_delay_ms": "600000",
    "RAY_health_check_timeout_ms": "600000",
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes with one CPU each."""
    for name, value in PATIENCE.items():  # Prefect reads its own as it is imported
        monkeypatch.setenv(name, value)
    pytest.importorskip("prefect_ray", reason="the extra `ray` is not installed (pip install 'sweetrl[ray]')")
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    # How long a new node may take until it is known is no setting: 30 s.
    get_node = services.get_node

    def patiently(address: str, node_id: str) -> Any:
        deadline = time.monotonic() + 600.0
        while True:
            try:
                return get_node(address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    monkeypatch.setattr(services, "get_node", patiently)
    # Nor is how long it waits until its agents have named their ports: 15 s, then it ends itself. So they get ports,
    # and the dashboard's agent, which without its packages has none, is not waited for.
    start_raylet = services.start_raylet

    def at_once(*arguments: Any, **more: Any) -> Any:
        node_id, session = arguments[2], Path(arguments[11])
        (session / f"dashboard_agent_listen_port_{node_id}").write_text("-1")
        return start_raylet(*arguments, **more)

    monkeypatch.setattr(services, "start_raylet", at_once)
    monkeypatch.setattr("ray._private.utils.get_dashboard_dependency_error", lambda: ImportError("not wanted here"))
    ports = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    found = Cluster(initialize_head=False)
    try:
        for more in ({"include_dashboard": False}, {}):
            chosen = {one: free_port() for one in ports}
            found.add_node(wait=False, num_cpus=1, num_gpus=0, object_store_memory=80 * 2**20, **chosen, **more)
        found.wait_for_nodes(600.0)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_nodes_make_the_same_bytes(
    cluster: Any,
    make_project: Callable[[str], Path],
    results: Callable[[Path], dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    # The projects of this test have no sources of their own.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]))
    from flows.spread import spread

    whole, cut = make_project("whole"), make_project("cut")
    nodes: set[str] = set()
    for name, run in (("collect", collect), ("rank", rank), ("evaluate", evaluate)):
        monkeypatch.chdir(whole)
        run(load_settings())
        monkeypatch.chdir(cut)
        made = spread(name, cut, cluster.address, 2)
        assert all(f"{name}: share {index}/2 is made" in share["last_line"] for index, share in enumerate(made))
        assert len(made) == 2
        nodes |= {share["node"] for share in made}
        present = len(list((cut / ".scratch").rglob("*.parquet")))
        # Of a ranking: its blocks and their log-ratios.
        assert present == {"collect": 4, "rank": 5 + 5, "evaluate": 6}[name]
        run(load_settings())
    assert len(nodes) == 2
    assert results(cut) == results(whole)
    (cut / "models/critic").unlink()
    with pytest.raises(StageFailed, match="stage rank failed: models/critic: there is no peft adapter here"):
        spread("rank", cut, cluster.address, 1)


def test_a_flow_names_its_cluster_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import spread

    calls: list[Any] = []
    monkeypatch.setattr(spread, "spread", lambda *arguments: calls.append(arguments[2:-1]))
    monkeypatch.setattr(spread.steps, "run_stage", lambda *arguments: None)
    for values, call in (
        ({}, None),
        ({"SWEETRL_RAY": "ray://head:10001"}, ("ray://head:10001", 0, 0.0)),
        ({"SWEETRL_RAY_SHARES": "8", "SWEETRL_RAY_GPUS": "1"}, ("ray://head:10001", 8, 1.0)),
    ):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        spread.run_stage("rank", Path(), {})
        assert calls[-1:] == ([call] if call else [])
    monkeypatch.setenv("SWEETRL_RAY_SHARES", "many")
    with pytest.raises(UserError, match="SWEETRL_RAY_SHARES=many"):
        spread.run_stage("rank", Path(), {})
