"""Checks that hold after every retraining, whatever has happened: nothing is lost, doubled or half-registered."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sweetrl.config.settings import TrackingSettings
from sweetrl.file_hashes import file_hash
from sweetrl.tracking.registry import Registry
from tasks.ingestion import batch_named
from tasks.workspace import git
from tests.services.team import BUCKET, Checkout
from tests.signals import at_work, until

if TYPE_CHECKING:
    from mlflow import MlflowClient

REF = "refs/sweetrl/batches"


@dataclass
class Books:
    """Compares git, the S3 and MLflow's server with each other; a version that was right once is not read again."""

    checkout: Checkout
    withdrawn: set[int] = field(default_factory=set)
    seen: dict[str, int | str] = field(default_factory=dict)  # version -> its batch's first task, or ingested data

    @property
    def registry(self) -> Registry:
        name = self.checkout.model
        return Registry(TrackingSettings(uri=self.checkout.team.mlflow.url, experiment=name, model=name))

    @property
    def client(self) -> MlflowClient:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.checkout.team.mlflow.url)

    def batches(self) -> list[dict[str, Any]]:
        """The batches taken at the origin, oldest first."""
        if git(self.checkout.origin, "rev-parse", "-q", "--verify", REF, check=False).returncode:
            return []
        log = git(self.checkout.origin, "log", "--reverse", "--format=%B%x00", REF).stdout.split("\0")
        return [json.loads(text) for text in log if text.strip()]

    def keys(self) -> dict[str, int]:
        """Key -> bytes of the checkout's DVC remote."""
        paginator = self.checkout.team.s3.client().get_paginator("list_objects_v2")
        pages = paginator.paginate(Bucket=BUCKET, Prefix=f"{self.checkout.root.name}/")
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", [])}

    def stored(self, keys: dict[str, int], digest: str) -> bool:
        """Whether the data of one hash, with all files of a folder, are in the S3."""
        key = f"{self.checkout.root.name}/files/md5/{digest[:2]}/{digest[2:]}"
        if key not in keys:
            return False
        if not digest.endswith(".dir"):
            return True
        body = self.checkout.team.s3.client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return all(self.stored(keys, row["md5"]) for row in json.loads(body))

    def version(self, version: Any, keys: dict[str, int]) -> int | str:
        """Check one registered version, and return its batch: the first task (0 without one), or the ingested data."""
        label = f"version {version.version}"
        tags, model = version.tags, self.checkout.model
        assert version.status == "READY", label
        assert {"adapter_hash", "data", "evaluation", "gate", "git_commit", "dvc_lock"} <= tags.keys(), label
        assert tags["git_dirty"] == "false", label
        commit = tags["git_commit"]
        with tempfile.TemporaryDirectory() as name:
            import mlflow

            location = self.client.get_logged_model(version.source.removeprefix("models:/")).artifact_location
            uri = self.checkout.team.mlflow.url
            load = mlflow.artifacts.download_artifacts
            lock = Path(load(f"{location}/lineage/dvc.lock", dst_path=name, tracking_uri=uri))
            adapter = Path(load(f"{location}/artifacts/policy/adapter_config.json", dst_path=name, tracking_uri=uri))
            assert file_hash(lock) == tags["dvc_lock"], label
            params = yaml.safe_load(git(self.checkout.origin, "show", f"{commit}:params.yaml").stdout)
            first = int(params["collect"]["first"])
            batch = batch_named({"sources.trajectories": params["sources"]["trajectories"]}) or first
            if batch:  # `make run` registers before anybody has committed its dvc.lock
                assert git(self.checkout.origin, "show", f"{commit}:dvc.lock").stdout == lock.read_text(), label
            written = json.loads(adapter.read_text())
            assert written.get("first", first) == first, f"{model} {label}: another batch's adapter"
        for path, digest in json.loads(tags["data"]).items():
            if path.startswith(("data/", "models/policy", "reports/")):
                assert self.stored(keys, digest), f"{label}: {path} ({digest}) is not in the S3"
        return batch

    def check(self, champion: str | None = None) -> str:
        """Assert that git, DVC, S3 and registry agree and that nothing is left of the work; return the champion."""
        home, client = self.checkout.root, self.client
        keys, versions = self.keys(), client.search_model_versions(f"name = '{self.checkout.model}'")
        for version in sorted(versions, key=lambda version: int(version.version)):
            if version.version not in self.seen and version.tags.get("git_dirty") == "false":
                self.seen[str(version.version)] = self.version(version, keys)
        batches = self.batches()
        taken = [batch.get("data") or batch["first"] for batch in batches]
        assert taken == sorted(set(taken)), f"a batch was taken twice: {taken}"
        trained = sorted(batch for batch in self.seen.values() if batch)
        assert trained == sorted(set(taken) - self.withdrawn), f"batches {taken}, but versions of {trained}"
        hashes = [version.tags["adapter_hash"] for version in versions]
        assert len(hashes) == len(set(hashes)), "an adapter is registered twice"

        model = client.get_registered_model(self.checkout.model)
        now = str(model.aliases["champion"])
        last = self.registry.history()[-1]
        assert last.version == now and last.time and champion in (None, now), (last, champion)
        assert str(model.aliases.get("challenger", "")) != now
        for version in versions:
            verdict = json.loads(version.tags["gate"])
            assert not verdict["promote"] or verdict["promoted"], f"version {version.version} has won and waits"
        chosen = client.get_model_version(self.checkout.model, now)
        assert file_hash(home / "dvc.lock") == chosen.tags["dvc_lock"], "the checkout is not the champion's"
        for place in (home, self.checkout.origin):
            git(place, "merge-base", "--is-ancestor", chosen.tags["git_commit"], "main")

        assert git(home, "status", "--porcelain").stdout == ""
        status = self.checkout.check("dvc", "status", "dvc.yaml")
        assert "Data and pipelines are up to date" in status, status
        branches = git(home, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads/retrain").stdout
        at_origin = git(
            self.checkout.origin, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads/retrain"
        )
        assert branches == at_origin.stdout, (branches, at_origin.stdout)
        assert len(branches.splitlines()) == len(trained)
        journals = sorted((home / ".git/sweetrl/retrain").glob("*.jsonl"))
        assert all('"step": "done"' in path.read_text() for path in journals)
        assert git(home, "worktree", "list").stdout.count("\n") == 1
        experiment = client.get_experiment_by_name(self.checkout.model)
        assert experiment is not None
        running = client.search_runs([experiment.experiment_id], "attributes.status = 'RUNNING'")
        assert not running, [run.info.run_name for run in running]
        # A flow that has ended still says so to Prefect's server.
        until(lambda: not at_work(home), "processes of the checkout did not end", 200, 0.2)
        return now
