"""The loop through the servers: served, collected, ingested, retrained, gated, served by the new one, and undone.

The stages are the pipeline's own, the agent is the small one, and the users are those of the synthetic suite. Its first
logs have taught the champion to answer at once; its users are content with an agent that asks first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.workspace import git
from tests.services.checks import Books
from tests.services.dialogues import People, write_first_logs
from tests.services.servers import Served
from tests.services.team import BUCKET, RUN_SECONDS, Checkout, Team, until

pytestmark = pytest.mark.timeout(4 * RUN_SECONDS)

PREFIX = "served/"
TOLD = {"success": 10, "failure": 6}
SETTINGS: dict[str, Any] = {
    "method": "rft",
    "rft.batch_size": 16,
    "collect.source": "files",
    "sources.trajectories": "first",
    "tasks.test": 40,
    "evaluate.tasks": 40,
    "ingest.source": f"s3://{BUCKET}/{PREFIX}",
}


@pytest.fixture(scope="module")
def agent(team: Team) -> Iterator[Checkout]:
    """A checkout with all stages and logs to begin with, and a worker with its flows; nothing is trained yet."""
    folder = team.folder / "checkouts"
    folder.mkdir(exist_ok=True)
    made = Checkout.make(team, folder / "loop", "loop", stand_in=False, **SETTINGS)
    write_first_logs(made.root)
    git(made.root, "add", "first")
    git(made.root, "commit", "-qm", "The first logs")
    git(made.root, "push", "-q", "origin", "main")
    made.deploy()
    for name in ("nightly", "ingest", "check-champion"):  # events alone are to start them
        found = made.deployment(name)
        for row in found["schedules"]:
            team.api("DELETE", f"/deployments/{found['id']}/schedules/{row['id']}")
    worker = made.worker()
    yield made
    worker.stop(hard=True)


@pytest.fixture
def served(agent: Checkout) -> Iterator[Served]:
    """`sweetrl serve` of the champion in a clone of its own; it is started by the test."""
    root = agent.root.parent / "loop-served"
    git(agent.root, "clone", "-q", str(agent.origin), str(root))
    made = Served(agent.root.parent / "loop-endpoint", root, agent.model, agent.environment())
    yield made
    made.stop(hard=True)


def complete(agent: Checkout, run: str) -> None:
    """Wait until a flow run has ended, which must have done all it should."""
    assert agent.ended(run)["name"] == "Completed", agent.logs(run)


def lineage(agent: Checkout) -> dict[str, Any]:
    """What `sweetrl lineage` says of the champion."""
    return json.loads(agent.check("sweetrl.cli.main", "lineage", "--json"))


def test_what_is_served_is_learnt_from_and_the_new_agent_is_served_and_undone(
    agent: Checkout, served: Served, team: Team
) -> None:
    books = Books(agent)
    complete(agent, agent.ask("on-demand"))
    agent.keep_first_run()
    assert books.check() == "1"
    first = lineage(agent)
    assert first["version"] == "1" and "first" in first["data"], first

    # Served: with consent and outcome a dialogue is kept, and whoever lists the folder sees whole files only.
    served.start()
    people = People(agent.root, served.url, agent.model)
    people.tell(TOLD)
    people.talk_without_consent()
    kept = served.cwd / "kept"
    assert set(people.versions) == {"1"} and not list(kept.glob("served-*.jsonl"))
    assert git(served.cwd, "status", "--porcelain").stdout == "", "people's words are no part of the project"
    served.stop()
    files = sorted(kept.glob("served-*.jsonl"))
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert len(rows) == sum(TOLD.values()) and all(row["consent"] for row in rows)
    assert {row["model"] for row in rows} == {"loop version 1"}
    served.start()

    # Ingested, by the event of whoever puts files there; retrained, by the event of the ingest.
    ingested, retrained = agent.begun("ingest"), agent.begun("nightly")
    s3 = team.s3.client()
    for path in files:
        s3.upload_file(str(path), BUCKET, f"{PREFIX}{path.name}")
    with people.keep_asking():
        agent.check("prefect", "event", "emit", "sweetrl.files.arrived", "--resource-id", "sweetrl.files.served")
        complete(agent, agent.wait_until_begun("ingest", ingested)["id"])
        (line, *_) = git(agent.origin, "log", "-1", "--format=%s", "ingest").stdout.splitlines()
        assert line == f"dialogues-000001: {len(rows)} rows of {len(files)} new files", line
        batch = "data/batches/dialogues-000001"
        tracked = git(agent.origin, "show", f"ingest:{batch}.dvc").stdout
        complete(agent, agent.wait_until_begun("nightly", retrained)["id"])
        assert books.check() == "2"
        until(lambda: people.versions[-1] == "2", "the new champion did not take over")
        second = lineage(agent)
        assert second["version"] == "2" and not second["dirty"], second
        assert second["commit"] == git(agent.root, "rev-parse", "main").stdout.strip()
        assert second["data"][batch] in tracked, second["data"]
        assert second["params"]["sources.trajectories"] == batch, second["params"]

        # Undone: the old agent answers again, and its lineage is what it was.
        measured = agent.begun("check-champion")
        complete(agent, agent.ask("undo"))
        until(lambda: people.versions[-1] == "1", "the old champion did not come back")
        complete(agent, agent.wait_until_begun("check-champion", measured)["id"])  # by the event of the rollback
        assert books.check() == "1"
        third = lineage(agent)
        assert third == first | {"aliases": third["aliases"], "evaluation": third["evaluation"]}, third
    assert people.failures == []
    turns = [
        version for version, before in zip(people.versions, ["", *people.versions], strict=False) if version != before
    ]
    assert turns == ["1", "2", "1"], turns
