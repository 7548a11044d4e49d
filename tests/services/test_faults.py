"""Servers that go away and processes that are killed, one at a time; random_faults.py draws what comes together."""

from __future__ import annotations

import contextlib
import signal

import psutil
import pytest

from tests.services.checks import Books
from tests.services.random_faults import not_one_sentence
from tests.services.servers import Worker
from tests.services.team import Checkout, Done, Team
from tests.signals import until


@pytest.fixture
def impatient(small: Checkout, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """The stand-in's checkout with clients that give up sooner, for people who wait."""
    monkeypatch.setattr(small, "extra", {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "PREFECT_CLIENT_MAX_RETRIES": "2"})
    return small


def wait_for_step(checkout: Checkout, step: str, before: int, seconds: float = 240) -> None:
    until(lambda: checkout.count(step) != before, f"no retraining came to {step!r}", seconds)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("postgres", "pushed"),
        ("postgres", "promoted"),
        ("mlflow", "pushed"),
        ("mlflow", "taken"),
        ("prefect", "taken"),
        ("s3", "trained"),
    ],
)
def test_a_server_that_is_gone_fails_a_run_in_one_sentence_and_the_next_run_ends_well(
    team: Team, impatient: Checkout, books: Books, name: str, step: str
) -> None:
    books.check()
    server, before, seen = getattr(team, name), impatient.count(step), len(books.seen)
    process = impatient.start("flows.retrain")
    wait_for_step(impatient, step, before)
    server.stop(hard=True)
    try:
        out, err = process.communicate(timeout=400)
    finally:
        server.start()
    done = Done(process.returncode, out, err)
    assert done.code == 0 or not not_one_sentence(done), done.output[-3000:]
    impatient.check("flows.retrain", "--continue")
    books.check()
    assert len(books.seen) == seen + 1


@pytest.mark.parametrize("status", [403, 503])
def test_an_s3_that_refuses_keeps_the_version_from_everybody(
    team: Team, impatient: Checkout, books: Books, status: int
) -> None:
    champion, seen = books.check(), len(books.seen)
    team.to_s3.refuse(status)
    try:
        done = impatient.run("flows.retrain")
        assert done.code == 1 and not not_one_sentence(done), done.output[-3000:]
        assert len(books.client.search_model_versions(f"name = '{impatient.model}'")) == seen
        assert str(books.client.get_registered_model(impatient.model).aliases["champion"]) == champion
    finally:
        team.to_s3.refuse(0)
    impatient.check("flows.retrain", "--continue")
    books.check()
    assert len(books.seen) == seen + 1


@pytest.mark.parametrize("killed", ["flow", "worker", "flow and worker", "flow, worker and server"])
def test_whoever_is_killed_under_a_worker_the_next_run_of_the_deployment_ends_well(
    team: Team, small: Checkout, worker: Worker, books: Books, killed: str
) -> None:
    books.check()
    seen, before = len(books.seen), small.count("trained")
    run = small.ask("nightly")
    wait_for_step(small, "trained", before)
    assert worker.process is not None
    children = psutil.Process(worker.process.pid).children(recursive=True)
    flows = [process for process in children if "prefect" in " ".join(process.cmdline())]
    if "worker" in killed:
        worker.process.kill()
    if "flow" in killed:
        for flow in flows:
            with contextlib.suppress(psutil.Error):
                flow.send_signal(signal.SIGKILL)
    if "server" in killed:
        team.prefect.stop(hard=True)
        team.prefect.start()
    if "worker" in killed:
        worker.stop(hard=True)
        if killed == "worker":  # what it had started ends at one of its next lines: nobody reads them any more
            small.ended(run)
        worker.start()
    again = small.ask("nightly")
    assert small.ended(again, 600)["name"] == "Completed", small.logs(again)
    books.check()
    assert len(books.seen) == seen + 1 + (small.state(run)["name"] == "Completed")


def test_a_deployment_runs_again_when_prefects_server_was_restarted_under_it(
    team: Team, small: Checkout, worker: Worker, books: Books
) -> None:
    """The deployment runs once at a time: the place that the interrupted run had must become free again."""
    books.check()
    before = small.count("worktree")
    run = small.ask("nightly")
    wait_for_step(small, "worktree", before)
    team.prefect.stop(hard=True)
    team.prefect.start()
    small.ended(run)
    again = small.ask("nightly")
    assert small.ended(again, 600)["name"] == "Completed", small.logs(again)
    small.check("flows.retrain", "--continue")
    books.check()
