"""What servers' clients raise becomes one sentence; an error of sweetrl itself keeps its trace."""

from __future__ import annotations

import httpx
import pytest

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


def test_what_clients_have_wrapped_several_times_becomes_a_few_words() -> None:
    assert reason(RuntimeError(REFUSED)) == "[Errno 111] Connection refused"
    text = "(Caused by ResponseError('too many 503 error responses'))"
    assert reason(RuntimeError(text)) == "too many 503 error responses"
    assert reason(RuntimeError("two\nlines")) == "two lines" and reason(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("package", "name", "server"),
    [
        ("requests.exceptions", "ConnectionError", "MLflow's server"),
        ("google.protobuf.json_format", "ParseError", "MLflow's server"),
        ("httpx", "ConnectError", "Prefect's server"),
        ("botocore.exceptions", "EndpointConnectionError", "the S3"),
    ],
)
def test_a_server_that_is_gone_is_one_sentence(package: str, name: str, server: str) -> None:
    around = RuntimeError("a task has failed")
    around.__cause__ = type(name, (Exception,), {"__module__": package})("refused")
    assert str(outage(around)).startswith(f"{server} fails, refuses who you are or does not answer (refused); run the")


def test_a_refusal_becomes_a_sentence_and_other_errors_keep_their_trace() -> None:
    """Before, a token that ran out while an agent was trained ended the run with a trace."""
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, PERMISSION_DENIED

    assert "MLflow's server" in str(outage(mlflow_error(REFUSED)))
    assert "PERMISSION_DENIED: no" in str(outage(mlflow_error("PERMISSION_DENIED: no", PERMISSION_DENIED)))
    assert outage(mlflow_error("no such parameter", INVALID_PARAMETER_VALUE)) is None
    for status in (401, 409, 500):
        response = httpx.Response(status, request=httpx.Request("GET", "http://127.0.0.1"))
        error = httpx.HTTPStatusError("no", request=response.request, response=response)
        assert (outage(error) is None) == (status == 409)
    assert outage(ZeroDivisionError()) is None and outage(UserError("said already")) is None
