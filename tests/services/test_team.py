"""Flows through a Prefect server and its worker, with MLflow and data at the team's servers."""

from __future__ import annotations

from dataclasses import replace

import httpx

from tasks.workspace import change_parameters, git
from tests.services.checks import Books
from tests.services.servers import Worker
from tests.services.team import Checkout, Team


def test_by_hand_on_schedule_and_by_the_event_a_batch_goes_from_worker_to_champion(
    small: Checkout, worker: Worker, books: Books
) -> None:
    champion = books.check()  # the tests before have retrained, too
    seen = len(books.seen)
    run = small.ask("nightly")
    assert small.ended(run)["name"] == "Completed", small.logs(run)
    assert int(books.check()) >= int(champion) and len(books.seen) == seen + 1

    # Each minute, until it has run: a moment chosen beforehand may be over before a busy machine has taken it down.
    before = small.begun("nightly")
    schedules = {row["id"] for row in small.deployment("nightly")["schedules"]}
    small.check("prefect", "deployment", "schedule", "create", f"retrain/{small.model}.nightly", "--interval", "60")
    small.wait_until_begun("nightly", before)
    (made,) = [row["id"] for row in small.deployment("nightly")["schedules"] if row["id"] not in schedules]
    small.team.api("DELETE", f"/deployments/{small.deployment('nightly')['id']}/schedules/{made}")
    run = small.wait_for_another("nightly", before)["id"]
    assert small.state(run)["name"] == "Completed", small.logs(run)
    assert "auto-scheduled" in small.team.api("GET", f"/flow_runs/{run}")["tags"]
    books.check()

    before = small.begun("nightly")
    small.check("prefect", "event", "emit", "sweetrl.data.arrived", "--resource-id", f"sweetrl.data.{small.model}")
    run = small.wait_for_another("nightly", before)["id"]
    assert small.state(run)["name"] == "Completed", small.logs(run)
    assert int(books.check()) > int(champion), "of three batches at least one is better"
    assert len(books.seen) == seen + 3


def test_projects_on_one_server_have_each_their_own(small: Checkout, worker: Worker) -> None:
    """Another project of the same name is refused, and under a name of its own it moves nothing."""
    before, keys = small.deployment("nightly"), ("id", "tags", "pull_steps", "work_pool_name")
    origin = git(small.root, "remote", "get-url", "origin").stdout.strip()
    other = replace(small, model="other", extra={"SWEETRL_HOME": "/elsewhere"})
    try:
        git(small.root, "remote", "set-url", "origin", "https://user:secret@git.example.org/other")
        refused = small.run("flows.deploy")
        assert refused.code == 1 and f"is that of another project ({origin})" in refused.message
        change_parameters(small.root, {"tracking.model": "other"})
        other.deploy()
    finally:
        git(small.root, "remote", "set-url", "origin", origin)
        git(small.root, "checkout", "-q", "params.yaml")
    assert all(small.deployment("nightly")[key] == before[key] for key in keys)
    assert other.deployment("nightly")["work_pool_name"] == "other"
    assert other.deployment("nightly")["tags"] == ["from:https://git.example.org/other"]


def test_no_page_of_another_site_starts_anything(team: Team) -> None:
    """As its browser would send it: from its own origin, and by a name that leads here."""
    page = {"Origin": "https://evil.example", "Host": "evil.example", "Sec-Fetch-Site": "cross-site"}
    for path in ("/flows/", "/deployments/filter", "/work_pools/"):
        answer = httpx.post(team.prefect.url + path, json={"name": "evil"}, headers=page, trust_env=False, timeout=60)
        assert answer.status_code in (401, 403), path
        assert answer.headers.get("access-control-allow-origin") is None
    assert httpx.get(f"{team.prefect.url}/admin/version", headers=page, trust_env=False).status_code == 401


def test_a_loser_stands_before_the_gate_again_and_the_champion_before_comes_back(
    small: Checkout, worker: Worker, books: Books
) -> None:
    champion = books.check()
    while "challenger" not in books.client.get_registered_model(small.model).aliases:  # one batch in three loses
        small.ended(small.ask("nightly"))
        champion = books.check()
    run = small.ask("gate")
    assert small.ended(run)["name"] == "Completed", small.logs(run)
    assert books.check() == champion

    measured = small.begun("check-champion")
    before = books.registry.history()[-2].version
    run = small.ask("restore", {"version": before})
    assert small.ended(run)["name"] == "Completed", small.logs(run)
    back = books.check(before)
    small.wait_for_another("check-champion", measured)  # by the event; a stand-in cannot be measured
    lines = small.check("sweetrl.cli", "lineage")
    assert f"version {back}" in lines, lines
    run = small.ask("nightly")
    assert small.ended(run)["name"] == "Completed", small.logs(run)
    books.check()


def test_the_worker_and_a_person_at_once(small: Checkout, worker: Worker, books: Books) -> None:
    books.check()
    before = len(books.seen)
    run = small.ask("nightly")
    by_hand = small.start("flows.retrain")
    output = by_hand.communicate(timeout=400)
    assert by_hand.returncode == 0, output
    assert small.ended(run)["name"] == "Completed", small.logs(run)
    books.check()
    assert len(books.seen) == before + 2
