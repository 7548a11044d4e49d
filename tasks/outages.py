"""Servers that fail or do not answer, and full disks: from whatever was raised, the sentence that a person needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from sweetrl.errors import DISK_FULL, UserError, full_disk
from sweetrl.tracking.store import reason

# The package that an error comes from -> whose fault it is. MLflow's client raises errors of requests, too.
SERVERS = {
    **dict.fromkeys(("mlflow", "requests", "urllib3", "google"), "MLflow's server"),  # its answers are protobuf
    **dict.fromkeys(("prefect", "httpx", "httpcore"), "Prefect's server"),
    "botocore": "the S3",
}


def outage(error: BaseException) -> UserError | None:
    """Return the sentence for an error of a server or a full disk; None for every other error."""
    for cause in _causes(error):
        if isinstance(cause, UserError):
            return None
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return full_disk(cause.filename)
        server, status = SERVERS.get(type(cause).__module__.partition(".")[0]), _status(cause)
        # What a server refuses, but for who asks, is an error of ours.
        if server is not None and (status is None or status in (401, 403) or status >= 500):
            return UserError(
                f"{server} fails, refuses who you are or does not answer ({reason(cause)}); run the same command again "
                "when that is mended."
            )
    return None


def raise_outage(error: Exception | None) -> None:
    """Raise the sentence for an error of a server or a full disk; every other error, and none, is passed over."""
    if error is not None and (sentence := outage(error)) is not None:
        raise sentence from error


def stop_asking() -> None:
    """Let Prefect's client ask each thing once from now on: for an interruption with the embedded server.

    The signal of a terminal ends that server, too. The client would ask it six times over a minute to write down the
    crash, each time that it is told of one.
    """
    if "PREFECT_API_URL" in os.environ or "prefect" not in sys.modules:
        return
    from prefect.settings import get_current_settings

    get_current_settings().client.max_retries = 0


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _status(error: BaseException) -> int | None:
    """The HTTP status of a server's answer, None where there was no answer."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    code = getattr(error, "get_http_status_code", None)  # MlflowException
    return code() if status is None and code is not None else status
