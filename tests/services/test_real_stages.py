"""The pipeline itself, made small, through a worker: trained, retrained, measured, promoted by hand, and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.workspace import git
from tests.services.checks import Books
from tests.services.team import RUN_SECONDS, Checkout, Team


@pytest.fixture(scope="module")
def agent(team: Team) -> Iterator[Checkout]:
    """A checkout with all stages, and a worker with its flows; nothing is trained yet."""
    folder = team.folder / "checkouts"
    folder.mkdir(exist_ok=True)
    made = Checkout.make(team, folder / "agent", "agent", stand_in=False)
    made.deploy()
    worker = made.worker()
    yield made
    worker.stop(hard=True)


@pytest.mark.timeout(2 * RUN_SECONDS)
def test_real_stages_go_from_the_worker_to_the_registry_and_back(agent: Checkout) -> None:
    books = Books(agent)
    run = agent.ask("on-demand")
    assert agent.ended(run)["name"] == "Completed", agent.logs(run)
    agent.keep_first_run()
    assert books.check() == "1"

    # Eight tasks are too few for the gate: the version is the challenger, and a person decides.
    changes = {"validate.reward_shift": 1.0, "validate.turns_shift": 10.0}
    run = agent.ask("nightly", {"changes": changes})
    assert agent.ended(run)["name"] == "Completed", agent.logs(run)
    branch = git(agent.root, "for-each-ref", "--format=%(refname:short)", "refs/heads/retrain").stdout.strip()
    if books.check() == "1":
        agent.check("flows.promote", "@challenger", "--by-hand", "for the test")
        git(agent.root, "merge", "-q", "--ff-only", branch)
        agent.check("dvc", "checkout", "-q", "dvc.yaml")
    assert books.check() == "2"
    said = agent.check("sweetrl.cli.main", "lineage")
    assert "version 2" in said and git(agent.root, "rev-parse", "--short", branch).stdout.strip() in said, said

    measured = agent.begun("check-champion")
    run = agent.ask("undo")
    assert agent.ended(run)["name"] == "Completed", agent.logs(run)
    assert books.check() == "1"
    check = agent.wait_for_another("check-champion", measured)["id"]  # by the event that the rollback has sent
    assert agent.state(check)["name"] == "Completed", agent.logs(check)
    assert books.check() == "1"
