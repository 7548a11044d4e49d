"""Random faults, SWEETRL_FAULT_RUNS of them from the seed SWEETRL_FAULT_SEED on.

SWEETRL_FAULT_TABLE=faults.json keeps what came of them; docs/records/hardening.md has 50.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.checks import Books
from tests.services.faults import SmallDisk
from tests.services.random_faults import Runs
from tests.services.team import Checkout, Team

RUNS = int(os.environ.get("SWEETRL_FAULT_RUNS", "4"))
FIRST_SEED = int(os.environ.get("SWEETRL_FAULT_SEED", "18"))
TABLE = os.environ.get("SWEETRL_FAULT_TABLE")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk | None]:
    """A small disk for a checkout; None where this user may not mount one."""
    if os.getuid():
        yield None
        return
    made = SmallDisk(tmp_path_factory.mktemp("disk"), 160)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def runs(team: Team, disk: SmallDisk | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """A checkout of its own, with its flows deployed and a worker."""
    folder = disk.folder if disk is not None else tmp_path_factory.mktemp("no-disk")
    checkout = Checkout.make(team, folder / "faults", "faults", stand_in=True)
    # Clients that give up sooner: what is tried is what comes after.
    checkout.extra |= {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "TMPDIR": str(folder)}
    checkout.check("flows.run")
    checkout.keep_first_run()
    checkout.deploy()
    worker = checkout.worker()
    made = Runs(checkout, Books(checkout), worker, disk)
    made.books.check()
    yield made
    worker.stop(hard=True)


@pytest.mark.timeout(RUNS * 600)
def test_whatever_fails_at_whatever_moment_nothing_is_lost_or_doubled(runs: Runs, tmp_path: Path) -> None:
    table = Path(TABLE or tmp_path / "faults.json")
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        row = runs.run(seed)
        runs.write(table)
        print(row, flush=True)
    assert [row for row in runs.rows if row.outcome != "right"] == []
