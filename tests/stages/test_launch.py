"""`model.processes`: a training stage starts others of its kind, and they end together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweetrl.config.settings import ModelSettings
from sweetrl.errors import UserError
from sweetrl.stages import launch

STAGE = """\
import os, sys, time
from sweetrl.errors import UserError
from sweetrl.stages.run import stage_main

def stage(settings):
    import torch.distributed as distributed
    distributed.init_process_group("gloo")
    names = [None] * distributed.get_world_size()
    distributed.all_gather_object(names, f"{os.environ['RANK']} {os.environ.get('ACCELERATE_USE_FSDP')}")
    if settings.seed == 13:
        raise UserError("thirteen: this seed is unlucky; take another.")
    if os.environ["RANK"] == "0":
        open("names.txt", "w").write("\\n".join([*names, *sys.argv[1:]]))
    distributed.destroy_process_group()

if __name__ == "__main__":
    stage_main(stage, lambda settings: settings.method != "zero-shot")
"""


def run(folder: Path, parameters: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "stage.py").write_text(STAGE)
    (folder / "params.yaml").write_text(parameters)
    plain = {name: value for name, value in os.environ.items() if name not in ("RANK", launch.LAUNCHED)}
    return subprocess.run(
        [sys.executable, "stage.py", "a word"],
        cwd=folder,
        env=plain | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_stage_starts_its_processes_with_its_own_command(tmp_path: Path) -> None:
    done = run(tmp_path, "model: {processes: 2, device: cpu, sharding: fsdp2}\n")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "names.txt").read_text().splitlines() == ["0 true", "1 true", "a word"]


@pytest.mark.slow
def test_an_error_of_all_processes_is_printed_once(tmp_path: Path) -> None:
    done = run(tmp_path, "model: {processes: 2, device: cpu}\nseed: 13\n")
    assert done.returncode == 1
    assert done.stderr.count("error:") == 1 and "error: thirteen: this seed is unlucky" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("ending", "status"), [("pass", 0), ("raise UserError('no.')", 1), ("sys.exit(143)", 143), ("1 / 0", 1)]
)
def test_a_launched_process_ends_with_its_status_whatever_threads_it_leaves(
    tmp_path: Path, ending: str, status: int
) -> None:
    """A process group's threads abort an interpreter that ends without them; here one that would keep it alive."""
    (tmp_path / "params.yaml").write_text("")
    (tmp_path / "stage.py").write_text(
        "import atexit, sys, threading, time\nfrom sweetrl.errors import UserError\n"
        "from sweetrl.stages.run import stage_main\natexit.register(print, 'put away')\n"
        f"def stage(settings):\n    threading.Thread(target=time.sleep, args=(600,)).start()\n    {ending}\n"
        "stage_main(stage)\n"
    )
    done = subprocess.run(
        [sys.executable, "stage.py"],
        cwd=tmp_path,
        env=os.environ | {launch.LAUNCHED: "2", "RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (status, "put away\n"), done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (ending == "1 / 0")


def test_a_launcher_starts_its_processes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launch.LAUNCHED, raising=False)
    assert launch.wants_processes(ModelSettings(processes=2)) and not launch.wants_processes(ModelSettings())
    monkeypatch.setenv(launch.LAUNCHED, "2")
    assert not launch.wants_processes(ModelSettings(processes=2))


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert launch.processes_of(ModelSettings(processes=8, device="cpu")) == (8, [])
    assert launch.processes_of(ModelSettings(processes=4, device="cuda")) == (2, ["0", "1"])
    assert launch.processes_of(ModelSettings(processes=2, device="cuda:1")) == (1, [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv(launch.LAUNCHED, raising=False)
    assert launch.processes_of(ModelSettings(processes=2, device="cuda")) == (1, ["3"])
    assert not launch.wants_processes(ModelSettings(processes=2, device="cuda"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os._exit(3)", "sweet, seed 7: stage `rank` ended with 3; what it said stands above"),
        ("os.kill(os.getpid(), 9)", r"was killed \(signal 9, perhaps for lack of memory\); run the same command again"),
        ("os.kill(os.getpid(), 15)", r"was killed \(signal 15\); run the same command again to go on"),
    ],
)
def test_a_stage_that_ends_without_a_message_was_killed(tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "ends.py").write_text(f"import os\n{code}")
    with pytest.raises(UserError, match=words):
        launch.run_stage_in(tmp_path, "rank", module="ends", part="sweet, seed 7")
