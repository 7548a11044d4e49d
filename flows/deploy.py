"""Deploy: put what prefect.yaml names on the Prefect server, under the project's own name.

`tracking.model` is that name: deployments, automations, the work pool and events carry it, so that several projects
share a server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists

from flows.console import program
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.text import without_login
from tasks.workspace import git

FILE, PROJECT = "prefect.yaml", "{{ $SWEETRL_PROJECT }}"
Name = Annotated[bool, typer.Option("--name", help="Print the name of the project and of its work pool.")]
Pool = Annotated[str, typer.Option("--pool", help="Another work pool, which is there already.")]
Notify = Annotated[
    str, typer.Option("--notify", help="Prefect's notification block that tells people; default: the project's name.")
]


def origin(root: Path) -> str:
    """Return where the project at `root` comes from: its git remote, or its machine and folder."""
    remote = git(root, "remote", "get-url", "origin", check=False).stdout.strip()
    return without_login(remote) if remote else f"{socket.gethostname()}:{root}"


def deploy(root: Path, pool: str = "", block: str = "") -> None:
    """Deploy all of prefect.yaml; UserError where a deployment of that name is another project's.

    The notification block `block` (default: of the project's name) sends what the automations say.
    """
    project, mark = load_settings(root / "params.yaml").tracking.model, f"from:{origin(root)}"
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError(
            "PREFECT_API_URL is not set; set it to the address of the Prefect server that takes the deployments"
        )
    named = yaml.safe_load((root / FILE).read_text().replace(PROJECT, project))
    with get_client(sync_client=True) as client:
        names = [deployment["name"] for deployment in named["deployments"]]
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
        command += ["--pool", pool] if pool else []
        if subprocess.run(command, cwd=root, env=variables, check=False).returncode:
            raise UserError("Prefect did not take all deployments; its words are above")
        print(automate(client, named.get("automations", []), block or project))


def automate(client: SyncPrefectClient, automations: list[dict[str, Any]], block: str) -> str:
    """Put `automations`, each of which sends words by the notification block `block`, on the server; say what was done.

    One that is there already under its name is brought up to date.
    """
    blocks = client.read_block_documents(include_secrets=False)
    able = [each for each in blocks if each.block_schema and "notify" in each.block_schema.capabilities]
    sender = next((each for each in able if each.name == block), None)
    if sender is None:
        names = ", ".join(str(each.name) for each in able) or "none"
        return (
            f"nobody is told when a run fails or a winner waits: the Prefect server has no notification block {block} "
            f"(there are: {names}); make one on its page `Blocks` (Slack, mail, a webhook) and deploy again"
        )
    for each in automations:
        words = {"type": "send-notification", "block_document_id": sender.id, **each["words"]}
        core = AutomationCore(
            **{key: each[key] for key in ("name", "description", "enabled", "trigger")}, actions=[words]
        )
        if there := client.read_automations_by_name(core.name):
            client.update_automation(there[0].id, core)
        else:
            client.create_automation(core)
    return f"the notification block {block} tells of {', '.join(each['name'] for each in automations)}"


@program
def main(name: Name = False, pool: Pool = "", notify: Notify = "") -> None:
    """Put the flows of prefect.yaml on the Prefect server of PREFECT_API_URL, under the project's own name."""
    if name:
        print(load_settings().tracking.model)
    else:
        deploy(Path.cwd(), pool, notify)


if __name__ == "__main__":
    main()
