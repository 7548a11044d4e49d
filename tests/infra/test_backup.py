"""The backup of a team's servers: each night in a cluster, by one command on one host, always the databases first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

INFRA = Path(__file__).resolve().parents[2] / "infra"
(SCRIPT,) = INFRA.rglob("backup.sh")
(MANIFEST,) = INFRA.rglob("backup.yaml")
JOB = next(obj for obj in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")) if obj["kind"] == "CronJob")
SECRETS = {"databases": {"PGPASSWORD"}, "buckets": {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}}


def test_the_job_of_a_cluster_dumps_the_databases_before_it_copies_the_buckets() -> None:
    pod = JOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    steps: list[dict[str, Any]] = [*pod["initContainers"], *pod["containers"]]
    assert [step["command"] for step in steps] == [["sh", f"/etc/sweetrl/{SCRIPT.name}", name] for name in SECRETS]
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    for step in steps:
        secrets = {variable["valueFrom"]["secretKeyRef"]["key"] for variable in step["env"] if "valueFrom" in variable}
        assert secrets == SECRETS[step["name"]], "each program gets its own secrets"
        assert step["securityContext"]["readOnlyRootFilesystem"] and step["resources"]["limits"]["memory"]
        assert {mount["name"] for mount in step["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_one_host_does_the_same() -> None:
    services = yaml.safe_load((INFRA / "compose.yaml").read_text(encoding="utf-8"))["services"]
    first, second = services["backup-databases"], services["backup"]
    assert (first["command"], second["command"]) == (["databases"], ["buckets"])
    assert second["depends_on"]["backup-databases"] == {"condition": "service_completed_successfully"}
    for service in (first, second):
        assert service["profiles"] == ["backup"], "it runs when it is told to"
        files = [volume.split(":") for volume in service["volumes"] if volume.startswith(".")]
        assert [there for _, there, _ in files] == [*reversed(service["entrypoint"])]
        assert all((INFRA / here).stat().st_mode & 0o111 for here, _, _ in files)


def test_a_dump_that_fails_leaves_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "pg_dump").write_text(
        "#!/bin/sh\nfor word; do case $word in --file=*) echo half >${word#--file=};; esac; done\nexit 1\n"
    )
    (tmp_path / "pg_dump").chmod(0o755)
    (tmp_path / "date").write_text("#!/bin/sh\necho 3\n")
    (tmp_path / "date").chmod(0o755)
    (tmp_path / "3").mkdir()
    (tmp_path / "3/mlflow.dump").write_text("whole")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BACKUP": str(tmp_path)}
    for words, status in ((["databases"], 1), ([], 1)):
        done = subprocess.run([str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status
    assert "error: " in done.stderr and (tmp_path / "3/mlflow.dump").read_text() == "whole"
