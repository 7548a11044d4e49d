"""Where MLflow's records live: an embedded sqlite store, or any tracking server through MLFLOW_TRACKING_URI."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.errors import UserError
from sweetrl.settings import TrackingSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "DO_NOT_TRACK": "1",
    "GIT_PYTHON_REFRESH": "quiet",
}


EMBEDDED = "sqlite:///"  # how the URI of a store in a file begins


@dataclass(frozen=True)
class Store:
    """An open tracking store and the experiment that runs go to."""

    client: MlflowClient
    uri: str
    experiment_id: str


def tracking_enabled() -> bool:
    """Whether runs are recorded: SWEETRL_TRACKING=off switches it off (unit tests, bare use of a stage)."""
    return os.environ.get("SWEETRL_TRACKING", "on").lower() not in {"off", "0", "false", "no"}


def tracking_uri(settings: TrackingSettings, root: Path | None = None) -> str:
    """Return the tracking URI; MLFLOW_TRACKING_URI wins; a relative sqlite path is taken from `root` (default: cwd)."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or settings.uri
    if uri.startswith(EMBEDDED) and not uri.startswith(EMBEDDED + "/"):
        return EMBEDDED + str(((root or Path.cwd()) / uri.removeprefix(EMBEDDED)).resolve())
    return uri


def connect(settings: TrackingSettings, root: Path | None = None) -> Store:
    """Open the store and get or create the experiment; a store that does not answer is a UserError.

    The first opening of an sqlite store migrates its schema, and processes that do so together crash: a lock file
    beside the database lets them in one by one.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    root = root or Path.cwd()
    uri = tracking_uri(settings, root)
    for category in (FutureWarning, UserWarning):  # advice about type hints that do not fit a dialogue
        warnings.filterwarnings("ignore", category=category, module="mlflow")
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    import mlflow
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with _one_at_a_time(uri):
        mlflow.set_tracking_uri(uri)
        client = MlflowClient(tracking_uri=uri)
        try:
            experiment = client.get_experiment_by_name(settings.experiment)
        except MlflowException as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{uri}: MLflow's store does not answer ({reason}); start it, or correct MLFLOW_TRACKING_URI."
            ) from error
        if experiment is not None:
            return Store(client, uri, experiment.experiment_id)
        embedded = uri.startswith("sqlite:")
        where = _own_folder(root / settings.artifacts).as_uri() if embedded else None
        try:
            identifier = client.create_experiment(settings.experiment, artifact_location=where)
        except MlflowException:  # another machine was faster on a shared server
            experiment = client.get_experiment_by_name(settings.experiment)
            if experiment is None:
                raise
            identifier = experiment.experiment_id
        return Store(client, uri, identifier)


def is_missing(error: Exception) -> bool:
    """Whether an MlflowException says that what was asked for does not exist (any other says that the store failed)."""
    return getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST"


@contextlib.contextmanager
def _one_at_a_time(uri: str) -> Iterator[None]:
    if not uri.startswith(EMBEDDED):
        yield
        return
    database = Path(uri.removeprefix(EMBEDDED))
    database.parent.mkdir(parents=True, exist_ok=True)
    with _own_file(Path(f"{database}.lock")).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        _own_file(database)  # empty, it is a new database
        yield


def _own_file(path: Path) -> Path:
    """Make `path` for this user alone where it is not there: dialogues and parameters are nobody else's business."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    return path


def _own_folder(path: Path) -> Path:
    """Make the folder `path` for this user alone where it is not there; return where it really is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path.resolve()
