"""Deploy: put what prefect.yaml names on the Prefect server, under the project's own name.

`tracking.model` is that name: deployments, the work pool and events carry it, so that several projects share a server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.exceptions import ObjectAlreadyExists

from flows.console import program
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.text import without_login
from tasks.workspace import git

FILE = "prefect.yaml"
Name = Annotated[bool, typer.Option("--name", help="Print the name of the project and of its work pool.")]
Pool = Annotated[str, typer.Option("--pool", help="Another work pool, which is there already.")]


def origin(root: Path) -> str:
    """Return where the project at `root` comes from: its git remote, or its machine and folder."""
    remote = git(root, "remote", "get-url", "origin", check=False).stdout.strip()
    return without_login(remote) if remote else f"{socket.gethostname()}:{root}"


def deploy(root: Path, pool: str = "") -> None:
    """Deploy all flows of prefect.yaml; UserError where a deployment of that name is another project's."""
    project, mark = load_settings(root / "params.yaml").tracking.model, f"from:{origin(root)}"
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError(
            "PREFECT_API_URL is not set; set it to the address of the Prefect server that takes the deployments"
        )
    names = [
        f"{project}.{one['name'].partition('.')[2]}" for one in yaml.safe_load((root / FILE).read_text())["deployments"]
    ]
    with get_client(sync_client=True) as client:
        same = DeploymentFilter(name=DeploymentFilterName(any_=names))
        for other in client.read_deployments(deployment_filter=same):
            if mark not in other.tags:
                marks = [tag.removeprefix("from:") for tag in other.tags if tag.startswith("from:")]
                raise UserError(
                    f"the deployment {other.name} on this Prefect server is that of another project "
                    f"({', '.join(marks) or 'of an unknown place'}); give this one a `tracking.model` of its own, or "
                    f"delete the deployment first (`prefect deployment delete {other.id}`)"
                )
        if not pool:
            with contextlib.suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=project, type="process"))
    variables = {"SWEETRL_HOME": str(root), **os.environ, "SWEETRL_PROJECT": project, "SWEETRL_ORIGIN": mark}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", FILE]
    if subprocess.run(command + (["--pool", pool] if pool else []), cwd=root, env=variables, check=False).returncode:
        raise UserError("Prefect did not take all deployments; its words are above")


@program
def main(name: Name = False, pool: Pool = "") -> None:
    """Put the flows of prefect.yaml on the Prefect server of PREFECT_API_URL, under the project's own name."""
    if name:
        print(load_settings().tracking.model)
    else:
        deploy(Path.cwd(), pool)


if __name__ == "__main__":
    main()
