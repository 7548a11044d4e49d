"""A team's servers for the tests that are marked `services`; they are started once, when the first one needs them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.checks import Books
from tests.services.servers import Worker, plain_environment, postgres_programs, program
from tests.services.team import Checkout, Team

ASKED = "SWEETRL_SERVICES"  # set by `make test-services`


def missing() -> str:
    """Why the servers cannot be started here; "" where they can."""
    if postgres_programs() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if importlib.util.find_spec("psycopg2") is None or program("weed") is None:
        return "the packages of requirements-services.lock are not installed (make environment-services)"
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests here take minutes and servers: they are skipped unless they are asked for."""
    here = Path(__file__).parent
    why = missing() if os.environ.get(ASKED) else "`make test-services` runs it"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.services)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1500))
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", autouse=True)
def environment_of_a_user() -> Iterator[None]:
    """This process is a client of the servers, too, and has the environment of a user."""
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(plain_environment()) - {ASKED}:
            patch.delenv(name)
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        patch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        yield


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """PostgreSQL, S3, MLflow and Prefect, all running."""
    made = Team(tmp_path_factory.mktemp("team"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def small(team: Team) -> Iterator[Checkout]:
    """A checkout with one stage that pretends to train; version 1 is champion."""
    folder = team.folder / "checkouts"
    folder.mkdir(exist_ok=True)
    made = Checkout.make(team, folder / "small", "small", stand_in=True)
    made.check("flows.run")
    made.keep_first_run()
    yield made
    shutil.rmtree(made.root, ignore_errors=True)


@pytest.fixture(scope="session")
def books(small: Checkout) -> Books:
    """The checks of the stand-in's checkout."""
    return Books(small)


@pytest.fixture(scope="module")
def worker(small: Checkout) -> Iterator[Worker]:
    """A worker of the stand-in's checkout, whose flows are deployed."""
    small.deploy()
    made = small.worker()
    yield made
    made.stop(hard=True)
