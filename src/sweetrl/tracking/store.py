"""Where MLflow's records live: an embedded sqlite store, or any tracking server through MLFLOW_TRACKING_URI."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sweetrl.config.settings import TrackingSettings
from sweetrl.console.logs import work_alone
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.io import private_file, private_folder
from sweetrl.paths import RUNS
from sweetrl.text import without_login

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EMBEDDED = "sqlite:///"  # how the URI of a store in a file begins
RECORD_TAG = "sweetrl.record"  # of a stage's run: the hash of the run file, by which it is found again
NOTE = "mlflow.note.content"  # the tag that MLflow's pages show as a run's or an experiment's description
# MLflow's pages have two faces; the one that they open with, for prompts and traces, hides runs and the registry. The
# kind says which one is meant to those that go by it; in MLflow 3.17 the address or the reader says it.
EXPERIMENT = {
    "mlflow.experimentKind": "custom_model_development",
    NOTE: "Choose **Model training** at the top left to see the runs and the model registry. Each run `train` is a "
    "whole pipeline run: its page has the gate's verdict, the results, the stages' runs and the report.",
}


@dataclass(frozen=True)
class Store:
    """An open tracking store and the experiment that runs go to."""

    client: MlflowClient
    uri: str
    experiment_id: str

    @property
    def name(self) -> str:
        """The URI as it is shown to people and kept in logs."""
        return without_login(self.uri)

    def run(self, run_id: str) -> Run | None:
        """Return a run; None where this store does not know it (pulled data name runs of another store)."""
        with allowing("RESOURCE_DOES_NOT_EXIST"):
            return self.client.get_run(run_id)
        return None

    def stage_runs(self, root: Path) -> dict[str, Run]:
        """Return stage -> the run that made its results in `root`: of those with its run file the newest that ended.

        Stages that this store does not know are left out.
        """
        runs = {}
        for path in sorted((root / RUNS).glob("*.json")):
            query = f"tags.`{RECORD_TAG}` = '{file_hash(path)}' and attributes.status = 'FINISHED'"
            newest = ["attributes.start_time DESC"]
            for run in self.client.search_runs([self.experiment_id], query, max_results=1, order_by=newest):
                runs[path.stem] = run
        return runs


def tracking_enabled() -> bool:
    """Whether runs are recorded: SWEETRL_TRACKING=off switches it off (unit tests, bare use of a stage)."""
    return os.environ.get("SWEETRL_TRACKING", "on").lower() not in {"off", "0", "false", "no"}


def tracking_uri(settings: TrackingSettings, root: Path | None = None) -> str:
    """Return the tracking URI; MLFLOW_TRACKING_URI wins; a relative sqlite path is taken from `root` (default: cwd)."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or settings.uri
    if uri.startswith(EMBEDDED) and not uri.startswith(EMBEDDED + "/"):
        return EMBEDDED + str(((root or Path.cwd()) / uri.removeprefix(EMBEDDED)).resolve())
    return uri


def embedded_database(settings: TrackingSettings, root: Path | None = None) -> Path | None:
    """Return the file of the embedded store, which may not be there yet; None where the records are at a server."""
    uri = tracking_uri(settings, root)
    return Path(uri.removeprefix(EMBEDDED)) if uri.startswith(EMBEDDED) else None


def require_store(settings: TrackingSettings, root: Path | None = None) -> None:
    """Raise a UserError where an embedded store is not there yet: who reads makes none."""
    database = embedded_database(settings, root)
    if database is not None and not database.exists():
        raise UserError(f"{settings.model}: no version is registered yet; `sweetrl run` trains and registers one.")


def connect(settings: TrackingSettings, root: Path | None = None) -> Store:
    """Open the store and get or create the experiment; a store that does not answer is a UserError.

    The first opening of an sqlite store migrates its schema, and processes that do so together crash: a lock file
    beside the database lets them in one by one.
    """
    work_alone()
    root = root or Path.cwd()
    uri = tracking_uri(settings, root)
    for category in (FutureWarning, UserWarning):  # advice about type hints that do not fit a dialogue
        warnings.filterwarnings("ignore", category=category, module="mlflow")
    for name in ("alembic", "mlflow.pyfunc", "mlflow.store.db.utils", "mlflow.store.model_registry.abstract_store"):
        logging.getLogger(name).setLevel(logging.WARNING)
    import mlflow
    from mlflow import MlflowClient

    with _opening(uri, embedded_database(settings, root)):
        mlflow.set_tracking_uri(uri)
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(settings.experiment)
        if experiment is None:
            here = private_folder(root / settings.artifacts).resolve().as_uri() if uri.startswith("sqlite:") else None
            with allowing("RESOURCE_ALREADY_EXISTS"):  # another machine was faster on a shared server
                client.create_experiment(settings.experiment, artifact_location=here, tags=EXPERIMENT)
            experiment = client.get_experiment_by_name(settings.experiment)
        assert experiment is not None
        return Store(client, uri, experiment.experiment_id)


@contextlib.contextmanager
def _opening(uri: str, database: Path | None) -> Iterator[None]:
    """Let processes open a `database` one by one; what keeps any store from being opened becomes a sentence."""
    try:
        with contextlib.ExitStack() as stack:
            if database is not None:
                handle = stack.enter_context(private_file(Path(f"{database}.lock")).open("w"))
                fcntl.flock(handle, fcntl.LOCK_EX)
                private_file(database)  # empty, it is a new database
            yield
    except UserError:
        raise
    except Exception as error:  # every kind of store has errors of its own
        fix = "start it" if not isinstance(error, ImportError) else "`pip install 'sweetrl[postgres]'` for PostgreSQL"
        raise UserError(
            f"{without_login(uri)}: MLflow's store does not answer ({reason(error)}); {fix}, or correct "
            "MLFLOW_TRACKING_URI."
        ) from error


@contextlib.contextmanager
def allowing(code: Literal["RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"]) -> Iterator[None]:
    """Go on behind what MLflow answers with this code; any other error says that the store failed, and is raised."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != code:
            raise


def check_active(store: Store) -> None:
    """Raise a UserError where somebody has deleted the experiment: MLflow keeps it, and takes nothing new for it."""
    experiment = store.client.get_experiment(store.experiment_id)
    if experiment.lifecycle_stage == "deleted":
        raise UserError(
            f"{store.name}: the experiment {experiment.name} was deleted, so nothing can be recorded; bring it back "
            f"(`mlflow experiments restore --experiment-id {store.experiment_id}`), or set `tracking.experiment`."
        )


def reason(error: BaseException) -> str:
    """Return what has happened in a few words: clients wrap a refused connection several times."""
    text = " ".join(str(error).split())
    inner = re.findall(r"\[Errno \d+\] [^'\")]+|too many \d+ error responses|Read timed out", text)
    return inner[-1].strip() if inner else text[:300] or type(error).__name__
