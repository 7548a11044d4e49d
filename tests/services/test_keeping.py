"""Pruning with a team's servers, and their loss: what was backed up is there again, and restores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import pruning
from tasks.workspace import git
from tests.services.checks import Books
from tests.services.servers import PASSWORD
from tests.services.team import BUCKET, Checkout, Team

SCRIPT = Path(__file__).resolve().parents[2] / "infra/kubernetes/base/backup.sh"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Checkout]:
    """A checkout with servers of its own, in which three batches were trained."""
    made = Team(tmp_path)
    try:
        checkout = Checkout.make(made, tmp_path / "own", "own", stand_in=True)
        checkout.check("flows.run")
        checkout.keep_first_run()
        for _ in range(3):
            checkout.check("flows.retrain")
        git(checkout.root, "push", "-q", "origin", "main")
        yield checkout
    finally:
        made.close()


def here(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process work with the team's servers, too."""
    for name, value in team.environment().items():
        monkeypatch.setenv(name, value)


def backup(team: Team, folder: Path, *words: str) -> str:
    """Run infra's script as its containers do."""
    libpq = {"PGHOST": "127.0.0.1", "PGPORT": str(team.postgres.port), "PGUSER": "sweetrl", "PGPASSWORD": PASSWORD}
    environment = team.environment() | libpq | {"BACKUP": str(folder), "BUCKETS": BUCKET}
    environment["PATH"] = f"{team.postgres.programs}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(["sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts_of(checkout: Checkout) -> dict[str, object]:
    """What the project says of its champions and where its versions come from."""
    facts = {"champions": json.loads(checkout.check("flows.restore", "--json"))}
    for version in Books(checkout).registry.versions():
        reference = f"{checkout.model}/{version.version}"
        facts[reference] = json.loads(checkout.check("sweetrl.cli", "lineage", reference, "--json"))
    return facts


def test_what_is_pruned_frees_its_bytes_and_what_is_backed_up_survives_the_loss_of_both_stores(
    own: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team, books = own.team, Books(own)
    champion, store, folder = books.check(), team.s3.client(), tmp_path / "backup"

    def stored(part: str) -> int:
        pages = store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=part)
        return sum(item["Size"] for page in pages for item in page.get("Contents", ()))

    backup(team, folder, "databases")
    backup(team, folder, "buckets")
    before, versions = (stored("mlflow/"), stored("own/")), books.registry.versions()
    here(team, monkeypatch)
    plan = pruning.prune(own.root, keep=1, days=0, remote=True)
    kept = {int(str(version.version)) for version in books.registry.versions()}
    assert int(champion) in kept and len(kept) < len(versions), plan.stays
    of_mlflow = sum(item.size for item in plan.items if item.kind in ("logged model", "run"))
    of_dvc = sum(item.size for item in plan.items if item.kind == "objects of DVC's remote")
    assert 0 < of_mlflow == before[0] - stored("mlflow/") and 0 < of_dvc == before[1] - stored("own/")
    assert not pruning.prune(own.root, keep=1, days=0, remote=True).items
    assert not json.loads(own.check("flows.prune", "--json"))["items"], "all that is left is young"
    facts = facts_of(own)

    backup(team, folder, "databases")
    backup(team, folder, "buckets")
    gone = sum(path.stat().st_size for path in folder.glob("team-gone-*/**/*") if path.is_file())
    assert gone == of_mlflow + of_dvc, "and what was pruned is kept for a week"
    for server in (team.prefect, team.mlflow, team.s3):
        server.stop(hard=True)
    team.to_s3.close()
    team.postgres.remove()
    shutil.rmtree(tmp_path / "s3")

    team.store("s3-again")
    (day,) = (path.name for path in folder.iterdir() if (path / "mlflow.dump").exists())
    backup(team, folder, "restore-buckets")
    backup(team, folder, "restore-databases", day)
    team.serve()
    here(team, monkeypatch)
    assert facts_of(own) == facts
    flow_runs = team.api("POST", "/flow_runs/filter", {"flows": {"name": {"any_": ["retrain"]}}})
    assert [run["state"]["name"] for run in flow_runs] == ["Completed"] * 3
    shutil.rmtree(own.root / ".dvc/cache")
    git(own.root, "clean", "-fdxq", "--", "models", "reports", "data")
    other = next(str(number) for number in sorted(kept) if str(number) != champion)
    for number in (other, champion):  # the data come from the bucket
        own.check("flows.restore", number)
        assert books.registry.aliases()["champion"] == number
        assert own.check("dvc", "status", "dvc.yaml").strip() == "Data and pipelines are up to date."
