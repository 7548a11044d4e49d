"""Run a file of untrusted Python on its own: the body of `sweetrl sandbox run FILE --call "f(1)"`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.sandbox.client import Sandbox
from sweetrl.sandbox.compare import render
from sweetrl.sandbox.limits import Job, Limits


def run_file(
    path: Path,
    calls: Sequence[str],
    limits: Limits = Limits(),  # noqa: B008 - frozen
    unsafe: bool = False,
) -> dict[str, object]:
    """Execute the file at `path` in the sandbox, once for each call expression.

    Returns {"isolation": layers, "seconds": s, "calls": [{"call": ..., "kind": ..., "value": text | None, "detail":
    ...}]}.
    """
    try:
        source = Path(path).read_text(encoding="utf-8-sig")  # as Python reads files: a mark at the start is none of it
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; give the path of a Python file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: this is no UTF-8 text; give the path of a Python file.") from error
    if not calls:
        raise UserError(f'{path}: nothing to call; give at least one expression, as in --call "f(1)".')
    with Sandbox(limits, workers=1, unsafe=unsafe) as sandbox:
        outcome = sandbox.submit(Job((source,), tuple(calls))).result()
    rows: list[dict[str, object]] = []
    for call, result in zip(calls, outcome.calls, strict=True):
        value = render(result.tree) if result.kind == "value" else None
        rows.append({"call": call, "kind": result.kind, "value": value, "detail": result.detail})
    return {"isolation": outcome.isolation, "seconds": outcome.seconds, "calls": rows}
