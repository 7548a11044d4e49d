"""Every command, setting and Python block of the docs, page by page and in order, in copies of a small trained project.

What the comments before a block mean is in docs/site/README.md; `tests/test_docs.py` has the checks that take seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from sweetrl.engines.vllm_server import free_port
from tasks.workspace import git
from tests.signals import as_at_a_terminal, until
from tests.test_docs import merged

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone

pytestmark = pytest.mark.slow  # `make test-flows`

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
from blocks import SHELL, Block, blocks, pages  # type: ignore[import-not-found]  # noqa: E402

PAGES = [page for page in pages() if any(block.language in SHELL and not block.skipped for block in blocks(page))]
# Numbers for readers are large; the same commands run with smaller ones.
NUMBERS = {
    "--count 100": "--count 6",
    "epochs: 4, lead": "epochs: 1, lead",
}
QUICK = {
    "README.md",
    "docs/extending.md",
    "docs/sandbox.md",
    "docs/browser.md",
}  # by tests/test_docs.py
SECONDS = 900.0
PYTHON = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "the page", "exec"), names)
    print("\\0", flush=True)
"""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, first: tuple[Clone, str], first_kept: Path) -> Clone:
    """A small project on which `make run` has ended once; its `.venv` is this environment."""
    clone = type(first[0])(tmp_path_factory.mktemp("docs") / "ready")
    shutil.copytree(first_kept, clone.root, symlinks=True)
    (clone.root / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (clone.root / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    (clone.root / ".venv/.ready").touch()  # last: make finds nothing to install
    git(clone.root, "add", "-A")
    git(clone.root, "commit", "-qm", "A run")
    return clone


class Reader:
    """A reader who runs a page's commands in a folder, with one shell, one Python and one params.yaml."""

    def __init__(self, root: Path, environment: dict[str, str]):
        self.root, self.place, self.environment = root, str(root), environment
        self.port = free_port()
        self.servers: list[subprocess.Popen[bytes]] = []
        self.python: subprocess.Popen[str] | None = None

    def follow(self, block: Block, python: bool) -> None:
        """Run a block; an AssertionError has the command and the end of its output."""
        if block.title:
            (self.root / block.title).parent.mkdir(parents=True, exist_ok=True)
            (self.root / block.title).write_text(block.text, encoding="utf-8")
        elif block.language in SHELL:
            for command in block.commands():
                self.type(self.small(command), block)
        elif block.language == "yaml":
            path = self.root / "params.yaml"
            tree = merged(yaml.safe_load(path.read_text(encoding="utf-8")), yaml.safe_load(self.small(block.text)))
            path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        elif block.language == "python" and python:
            self.execute(self.small(block.text), block)

    def small(self, text: str) -> str:
        """The text with smaller numbers, and a port that is free."""
        for large, smaller in NUMBERS.items():
            text = text.replace(large, smaller)
        return text.replace("8000", str(self.port))

    def type(self, command: str, block: Block) -> None:
        """Run a command with the folder and variables that the last command has left."""
        state = self.root.parent / f"{self.root.name}.state"
        script = f"{command}\ncode=$?\n{{ pwd; env -0; }} > {state}\nexit $code\n"
        run: dict[str, Any] = {"cwd": self.place, "env": self.environment, "start_new_session": True}
        if "server" in block.comments:
            run |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "preexec_fn": as_at_a_terminal}
            server = subprocess.Popen(["bash", "-c", command], **run)
            self.servers.append(server)
            wait_for(self.small(block.comments["server"]), server)
        else:
            words = "\n".join(part.strip() for part in block.comments.get("typed", "").split(";")) + "\n"
            done = subprocess.run(
                ["bash", "-c", script], **run, input=words, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            output = f"line {block.line}: {command}\n{done.stdout[-2500:]}\n{done.stderr[-2500:]}"
            assert done.returncode == 0 and "Traceback (most recent call last)" not in done.stdout + done.stderr, output
            self.place, _, rest = state.read_text(encoding="utf-8").partition("\n")
            self.environment = dict(pair.split("=", 1) for pair in rest.split("\0") if "=" in pair)

    def execute(self, text: str, block: Block) -> None:
        """Run a block in the page's one Python."""
        if self.python is None:
            self.python = subprocess.Popen(
                [sys.executable, "-c", PYTHON], cwd=self.root, env=self.environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        assert self.python.stdin and self.python.stdout and self.python.stderr
        self.python.stdin.write(json.dumps(text) + "\n")
        self.python.stdin.flush()
        for line in self.python.stdout:
            if line == "\0\n":
                return
        raise AssertionError(f"line {block.line}: {text}\n{self.python.stderr.read()[-2500:]}")

    def leave(self) -> None:
        """End what still runs."""
        for server in self.servers:
            os.killpg(server.pid, signal.SIGINT)
        for process in [*self.servers, *filter(None, [self.python])]:
            if process is self.python:
                process.kill()
            process.communicate(timeout=60)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return True
        return False

    until(lambda: answers() or server.poll() is not None, f"{url} does not answer", 300, 0.5)
    assert server.poll() is None, server.stderr.read()[-2500:].decode() if server.stderr else url


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_says_works(page: Path, ready: Clone, tmp_path: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    shutil.copytree(ready.root, tmp_path / "project", symlinks=True)
    environment = ready.environment() | {
        "PYTHONPATH": str(tmp_path / "project/src"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    reader = Reader(tmp_path / "project", environment)
    try:
        for block in blocks(page):
            if not block.skipped:
                reader.follow(block, python=name not in QUICK)
    finally:
        reader.leave()
        shutil.rmtree(tmp_path / "project")
