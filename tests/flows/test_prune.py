"""The flow that prunes: this project's flow runs, and what is printed of the plan; tests/tasks has the plan itself."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import prune
from tasks.pruning import Item, Plan
from tests.tasks.fake_project import git, quiet

PLAN = Plan((Item("version", "1", 0, list), Item("run", "train", 2**20, list)), (("version 2", "is @champion"),))


class Server:
    """Prefect's: so many flow runs have ended."""

    def __init__(self, count: int) -> None:
        self.runs = [SimpleNamespace(id=number) for number in range(count)]
        self.filters: list[Any] = []

    def read_flow_runs(self, flow_run_filter: Any, deployment_filter: Any, limit: int, offset: int) -> list[Any]:
        self.filters.append((flow_run_filter, deployment_filter))
        return self.runs[offset : offset + limit]

    def delete_flow_run(self, number: int) -> None:
        self.runs = [run for run in self.runs if run.id != number]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server(450)
    monkeypatch.setattr(prune, "prune_project", lambda *given: PLAN)
    monkeypatch.setattr(prune, "get_run_logger", lambda: SimpleNamespace(info=quiet))
    monkeypatch.setattr(prune, "get_client", lambda sync_client: contextlib.nullcontext(made))
    return made


def test_old_flow_runs_go_of_this_project_alone_where_a_server_is_shared(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "remote", "add", "origin", "https://user:secret@git.example.org/agent")
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example.org/api")
    assert len(prune.prune.fn(str(tmp_path), dry_run=True).items) == 2 + 450 and len(server.runs) == 450
    assert len(prune.prune.fn(str(tmp_path), days=30).items) == 2 + 450 and not server.runs
    ended, own = server.filters[-1]
    assert own.tags.all_ == ["from:https://git.example.org/agent"], "as flows.deploy has marked them"
    assert ended.end_time.before_ is not None and ended.start_time is None
    monkeypatch.delenv("PREFECT_API_URL")
    prune.prune.fn(str(tmp_path))
    assert server.filters[-1][1] is None, "the embedded server has no others"


def test_the_plan_is_printed_in_few_lines_or_as_json(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prune, "prune", prune.prune.fn)
    for words, as_json in (([], False), (["--dry-run", "--json"], True)):
        monkeypatch.setattr("sys.argv", ["prune", *words])
        with pytest.raises(SystemExit) as ended:
            prune.main()
        assert ended.value.code == 0
        text = capsys.readouterr().out
        if as_json:
            assert json.loads(text)["stays"] == {"version 2": "is @champion"} and json.loads(text)["bytes"] == 2**20
        else:
            assert "version\t1\t0.0 MiB" in text and "flow run\t450\t0.0 MiB" in text
            assert "version 2\tis @champion" in text
