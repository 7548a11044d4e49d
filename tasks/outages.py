"""Servers that fail or do not answer, and full disks: from whatever was raised, the sentence that a person needs."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator

from sweetrl.errors import UserError
from sweetrl.tracking.store import reason

# The package that an error comes from -> whose fault it is. MLflow's client raises errors of requests, too.
SERVERS = {
    "mlflow": "MLflow's server",
    "requests": "MLflow's server",
    "urllib3": "MLflow's server",
    "prefect": "Prefect's server",
    "httpx": "Prefect's server",
    "httpcore": "Prefect's server",
    "botocore": "the S3",
}


def outage(error: BaseException) -> UserError | None:
    """Return the sentence for an error of a server or a full disk; None for every other error."""
    for one in _chain(error):
        if isinstance(one, UserError):
            return None
        if isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f"{one.filename}: " if one.filename else ""
            return UserError(f"{where}no space left on the disk; free some and run the same command again.")
        server = SERVERS.get(type(one).__module__.partition(".")[0])
        if server is not None and _of_the_server(one):
            return UserError(
                f"{server} failed or does not answer ({reason(one)}); run the same command again when it does."
            )
    return None


def stop_asking() -> None:
    """Let Prefect's client ask each thing once from now on: for an interruption with the embedded server.

    The signal of a terminal ends that server, too. The client would ask it six times over a minute to write down the
    crash, each time that it is told of one.
    """
    if "PREFECT_API_URL" in os.environ or "prefect" not in sys.modules:
        return
    from prefect.settings import get_current_settings

    get_current_settings().client.max_retries = 0


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _of_the_server(error: BaseException) -> bool:
    """Whether the server has failed, and not refused: what it refuses is an error of ours, with its trace."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    code = getattr(error, "get_http_status_code", None)  # MlflowException
    if status is None and code is not None:
        status = code()
    return not isinstance(status, int) or status >= 500
