"""The frame of every stage: its run file, resumable scratch, seeds, and one sentence for each error."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import read_json
from sweetrl.stages.run import stage_run

SETTINGS = parse_settings({"seed": 5, "collect": {"tasks": 3}})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finished_stage_writes_its_run_file_and_removes_its_scratch(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "input.txt").write_text("x")
    with stage_run("collect", SETTINGS, torch=False) as run:
        run.log_input("input", "input.txt")
        scratch = run.scratch()
        (scratch / "part").write_text("half")
        run.log_metrics({"loss": 2.0, "accuracy": 0.5, "tokens_per_second": 9.0}, step=1)
        run.log_metrics({"loss": 1.0}, step=2)
        run.summary = "3 dialogues"
    facts = read_json(here / "reports/runs/collect.json")
    assert facts["metrics"] == {"loss": 1.0, "accuracy": 0.5}, "what differs each time is in MLflow only"
    assert facts["curves"] == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], "columns that every step has"
    assert facts["inputs"] == {"input": "input.txt 9dd4e461268c8034f5c8564e155c67a6"}
    assert not scratch.exists()
    assert capsys.readouterr().out.startswith("collect: 3 dialogues (")


def test_a_run_file_follows_from_parameters_and_inputs(here: Path) -> None:
    (here / "input.txt").write_text("x")

    def written(seed: int) -> bytes:
        with stage_run("collect", parse_settings({"seed": seed}), torch=False) as run:
            run.log_input("input", "input.txt")
            seconds = time.monotonic()
            run.log_metrics({"reward": 0.5, "seconds_sampling": seconds, "dialogue/seconds_p95": seconds})
            run.log_metrics({"generated_tokens/base": seconds, "simulator/requests": seconds})
        return (here / "reports/runs/collect.json").read_bytes()

    first = written(5)
    assert written(5) == first != written(6), "other parameters, whatever the numbers: another run"


def test_a_failed_stage_keeps_its_scratch_and_writes_no_run_file(here: Path) -> None:
    with pytest.raises(UserError), stage_run("collect", SETTINGS, torch=False) as run:
        (run.scratch() / "part").write_text("half")
        raise UserError("row 3 is broken.")
    assert not (here / "reports/runs/collect.json").exists()
    with stage_run("collect", SETTINGS, torch=False) as run:
        assert (run.scratch() / "part").read_text() == "half"


def test_only_the_first_process_of_a_launcher_writes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        with stage_run("collect", SETTINGS, torch=False) as run:
            scratch = run.scratch()
        assert (here / "reports/runs/collect.json").exists() == (rank == "0")
        assert scratch.exists() == (rank == "1")
    assert capsys.readouterr().out.count("collect: ") == 1


def test_other_parameters_or_data_get_another_scratch_folder(here: Path) -> None:
    (here / "input.txt").write_text("x")

    def name(settings, *inputs: str) -> str:
        with stage_run("collect", settings, torch=False) as run:
            return run.scratch(*map(Path, inputs)).name

    first = name(SETTINGS, "input.txt")
    assert name(SETTINGS, "input.txt") == first
    assert name(parse_settings({"seed": 6, "collect": {"tasks": 3}}), "input.txt") != first
    assert name(parse_settings({"seed": 5, "collect": {"tasks": 3}, "rank": {"pairs": 9}}), "input.txt") == first
    (here / "input.txt").write_text("y")
    assert name(SETTINGS, "input.txt") != first


OWN = """
import sweetrl

class Forms(sweetrl.Domain):
    pass

class Best(sweetrl.Method):
    pass

def brief(task, dialogue):
    return 1.0

class Terse:
    def reply(self, task, messages, seed):
        return "No."
"""
CHOSEN: dict[str, dict[str, Any]] = {
    "suite": {"suite": "mine:Forms"},
    "method": {"method": "mine:Best"},
    "reward": {"reward": {"function": "mine:brief"}},
    "simulator": {"simulator": {"kind": "mine:Terse"}},
}


@pytest.mark.parametrize("place", CHOSEN)
def test_a_change_of_own_code_gets_another_scratch_folder(
    here: Path, own_code: Callable[..., Path], place: str
) -> None:
    def name(text: str) -> str:
        own_code(here, text)
        with stage_run("collect", parse_settings(CHOSEN[place]), torch=False) as run:
            return run.scratch().name

    assert name(OWN) == name(OWN) != name(OWN.replace("1.0", "0.5"))
    inputs = read_json(here / "reports/runs/collect.json")["inputs"]
    assert inputs == {f"source-{place}": f"mine.py {dvc_hash(here / 'mine.py')}"}


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ("raise UserError('data/x: row 3 is broken; fix it.')", 1, "error: data/x: row 3 is broken; fix it."),
        (
            "raise OSError(28, 'No space left on device', 'data/x')",
            1,
            "error: data/x: no space left on the disk; free some",
        ),
        (
            "import sys; sys.modules['jinja2'] = None; import jinja2",
            1,
            "error: jinja2 is not installed; it comes with an extra: pip install 'sweetrl[report]'.",
        ),
        ("raise KeyboardInterrupt", 130, "interrupted; finished work is kept"),
        ("os.kill(os.getpid(), 15)", 143, ""),
    ],
)
def test_a_stage_says_in_one_sentence_what_is_wrong(here: Path, body: str, code: int, sentence: str) -> None:
    (here / "params.yaml").write_text("seed: 7\n")
    program = (
        "import os\nfrom sweetrl.errors import UserError\nfrom sweetrl.stages.run import *\n"
        f"def stage(settings):\n    {body}\nstage_main(stage)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(sentence) and len(done.stderr.splitlines()) == bool(sentence)


def test_a_stage_whose_starter_has_ended_while_it_was_importing_does_not_run(here: Path) -> None:
    (here / "params.yaml").write_text("seed: 7\n")
    program = "from sweetrl.stages.run import *\nstage_main(lambda settings: print('ran'))\n"
    for command, ran in ("exit", False), ("sleep 60", True):
        starter = subprocess.Popen(["bash", "-c", command])
        if not ran:
            starter.wait()
        environment = os.environ | {"SWEETRL_DIE_WITH_PARENT": str(starter.pid)}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        starter.kill()
        starter.wait()
        assert (done.returncode, done.stdout) == ((0, "ran\n") if ran else (143, "")), done.stderr


def test_of_talkative_libraries_only_warnings_are_shown(here: Path) -> None:
    """Whatever level their loggers have set themselves; own code and the project say what they like."""
    (here / "params.yaml").write_text("{}")
    program = (
        "import logging\nfrom sweetrl.stages.run import *\n"
        "def stage(settings):\n"
        "    for name in ('great_expectations.docs', 'datasets.config', 'own_domain', 'sweetrl'):\n"
        "        log = logging.getLogger(name)\n"
        "        log.setLevel(logging.INFO)\n"
        "        log.info('%s works', name)\n"
        "        log.warning('%s warns', name)\n"
        "stage_main(stage)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "great_expectations.docs warns",
        "datasets.config warns",
        "own_domain works",
        "own_domain warns",
        "sweetrl works",
        "sweetrl warns",
    ]
