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
    "google": "MLflow's server",  # its answers are read by protobuf
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
        status = _status(one)
        if server is not None and status in (401, 403):
            return UserError(
                f"{server} refuses who you are, or what you may do there ({reason(one)}); correct the credentials and "
                "run the same command again."
            )
        if server is not None and (status is None or status >= 500):
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


def _status(error: BaseException) -> int | None:
    """The HTTP status of a server's answer, None where there was no answer.

    Above 500 the server has failed. What it refuses, but for who asks, is an error of ours, with its trace.
    """
    status = getattr(getattr(error, "response", None), "status_code", None)
    code = getattr(error, "get_http_status_code", None)  # MlflowException
    if status is None and code is not None:
        status = code()
    return status if isinstance(status, int) else None
