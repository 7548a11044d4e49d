"""What servers' clients raise becomes one sentence; what is an error of ours keeps its trace."""

from __future__ import annotations

import httpx

from sweetrl.errors import UserError
from sweetrl.tracking.store import reason
from tasks.outages import outage

REFUSED = (
    "API request to http://127.0.0.1:5/api failed with exception HTTPConnectionPool(host='127.0.0.1', port=5): Max "
    "retries exceeded with url: /api (Caused by NewConnectionError(\"HTTPConnection(host='127.0.0.1', port=5): Failed "
    'to establish a new connection: [Errno 111] Connection refused"))'
)


def mlflow_error(text: str, code: int = 1) -> Exception:
    from mlflow.exceptions import MlflowException

    return MlflowException(text, error_code=code)


def test_what_clients_have_wrapped_several_times_is_told_in_a_few_words() -> None:
    assert reason(RuntimeError(REFUSED)) == "[Errno 111] Connection refused"
    text = "(Caused by ResponseError('too many 503 error responses'))"
    assert reason(RuntimeError(text)) == "too many 503 error responses"
    assert reason(RuntimeError("two\nlines")) == "two lines" and reason(ValueError()) == "ValueError"


def test_a_server_that_is_gone_is_one_sentence() -> None:
    told = outage(mlflow_error(REFUSED))
    assert str(told).startswith(
        "MLflow's server failed or does not answer ([Errno 111] Connection refused); run the same"
    )
    of_requests = type("ConnectionError", (OSError,), {"__module__": "requests.exceptions"})
    assert "MLflow's server" in str(outage(of_requests("refused")))
    assert "Prefect's server" in str(outage(httpx.ConnectError("All connection attempts failed")))
    of_protobuf = type("ParseError", (Exception,), {"__module__": "google.protobuf.json_format"})
    assert "MLflow's server failed or does not answer (Failed to parse" in str(outage(of_protobuf("Failed to parse")))
    around = RuntimeError("a task has failed")
    around.__cause__ = httpx.ReadTimeout("timed out")
    assert "Prefect's server failed or does not answer (timed out)" in str(outage(around))


def test_a_server_that_refuses_who_asks_is_one_sentence() -> None:
    """A token that ran out while an agent was trained ended the run with a trace."""
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    told = str(outage(mlflow_error("PERMISSION_DENIED: no", PERMISSION_DENIED)))
    assert told.startswith("MLflow's server refuses who you are, or what you may do there (PERMISSION_DENIED: no); ")
    response = httpx.Response(401, request=httpx.Request("GET", "http://127.0.0.1"))
    refused = httpx.HTTPStatusError("401 Unauthorized", request=response.request, response=response)
    assert str(outage(refused)).startswith("Prefect's server refuses who you are")


def test_what_a_server_refuses_and_errors_of_ours_keep_their_trace() -> None:
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    assert outage(mlflow_error("no such parameter", INVALID_PARAMETER_VALUE)) is None
    response = httpx.Response(409, request=httpx.Request("GET", "http://127.0.0.1"))
    assert outage(httpx.HTTPStatusError("conflict", request=response.request, response=response)) is None
    assert outage(ZeroDivisionError()) is None and outage(UserError("said already")) is None
