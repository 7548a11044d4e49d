"""Programs that tests interrupt are interrupted also where these tests run in a shell's background."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.services.servers import Server, plain_environment
from tests.services.team import Checkout

PROGRAM = "import signal\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"


class Program(Server):
    def command(self) -> list[str]:
        return ["python", "program.py"]


@pytest.fixture
def in_the_background() -> Any:
    """SIGINT is ignored, as a shell has it for its background jobs."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_background")
def test_a_teams_flows_and_servers_take_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    team: Any = SimpleNamespace(environment=plain_environment)
    out, _ = Checkout(team, tmp_path, "agent").start("program").communicate(timeout=60)
    assert out == "True\n", "a flow that is told Ctrl-C would go on"
    server = Program(tmp_path)
    server.start(wait=False)
    assert server.process is not None and server.process.wait(60) == 0
    assert server.tail() == "True\n"
