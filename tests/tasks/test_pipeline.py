"""Order, skipping, restoring, failing and stopping of stages, on a toy project with real DVC."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sweetrl.errors import UserError
from tasks import pipeline
from tasks.pipeline import StageFailed, changed_stages, execute_stage, failure, policy_of, run_command, stage_states
from tasks.training import run_pipeline
from tasks.workspace import dvc, only_run
from tests.signals import read_until, until
from tests.tasks.fake_project import end_work, quiet, quiet_steps


def statuses(toy) -> dict[str, str]:
    return {result.stage: result.status for result in run_pipeline(toy.root, quiet_steps()).stages}


def test_stages_run_in_the_order_of_the_graph_then_are_skipped_then_restored(toy) -> None:
    assert list(stage_states(toy.root)) == ["first", "second", "third"]
    assert statuses(toy) == {"first": "ran", "second": "ran", "third": "ran"}
    assert toy.runs() == ["first", "second", "third"]

    outcome = run_pipeline(toy.root, quiet_steps())
    assert outcome.unchanged
    assert outcome.stages[0].summary == "made first"
    assert toy.runs() == ["first", "second", "third"], "no stage ran again"

    toy.set(second="b")
    assert changed_stages(toy.root, ["first", "second"]) == {"second"}
    assert statuses(toy) == {"first": "skipped", "second": "ran", "third": "ran"}
    toy.set(second="a")
    assert statuses(toy) == {"first": "skipped", "second": "restored", "third": "restored"}
    assert (toy.root / "data/second.txt").read_text() == "second a"
    assert toy.runs() == ["first", "second", "third", "second", "third"]


def test_what_a_run_and_its_dvc_write_is_for_its_owner_alone(toy) -> None:
    before = os.umask(0o022)
    try:
        statuses(toy)
        (toy.root / "data/first.txt").unlink()
        dvc(toy.root, "checkout", "-q")
    finally:
        os.umask(before)
    wide = [
        path for name in ("data", "reports") for path in (toy.root / name).rglob("*") if path.stat().st_mode & 0o077
    ]
    assert wide == [] and (toy.root / "data").stat().st_mode & 0o077 == 0
    # In its cache DVC makes files that all may read, in folders that nobody else enters.
    assert (toy.root / ".dvc/cache").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("mode", "sentence", "explained"),
    [
        ("error", "stage second failed: data/first.txt: row 3 is not JSON; fix it.", True),
        ("crash", "stage second failed: ZeroDivisionError: division by zero (the full trace is in the log)", False),
        (
            "kill",
            "stage second failed: it was killed (signal 9, perhaps for lack of memory); run the same command again",
            False,
        ),
    ],
)
def test_a_failing_stage_is_one_sentence_and_stops_the_run(toy, mode: str, sentence: str, explained: bool) -> None:
    toy.set(second=mode)
    with pytest.raises(StageFailed) as caught:
        run_pipeline(toy.root, quiet_steps())
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert caught.value.explained is explained
    assert toy.runs() == ["first"]


def test_a_run_goes_on_behind_what_had_ended_before_a_failure(toy) -> None:
    toy.set(second="kill")
    with pytest.raises(StageFailed):
        run_pipeline(toy.root, quiet_steps())
    toy.set(second="a")
    assert statuses(toy) == {"first": "skipped", "second": "ran", "third": "ran"}


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_stage_past_its_limit_is_stopped_with_its_children(toy, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.set(first="hang")
    monkeypatch.setitem(pipeline.POLICIES, "first", pipeline.Policy(60))
    with pytest.raises(StageFailed, match="ran past its limit of 0:01:00"):
        execute_stage(toy.root, "first", {}, quiet)
    child = int((toy.root / "child.pid").read_text())
    # It is killed by now; a busy machine may take a moment to let it go.
    until(lambda: not alive(child), "the stage's child is still there", 120)
    toy.set(first="a")
    assert execute_stage(toy.root, "first", {}, quiet).status == "ran", "DVC's lock was given back"


def test_stages_end_with_a_flow_that_is_killed(toy) -> None:
    toy.set(first="hang")
    code = (
        "import sys; from pathlib import Path; from tasks.pipeline import *; execute_stage(Path(sys.argv[1]), 'first')"
    )
    flow = subprocess.Popen([sys.executable, "-c", code, str(toy.root)], stdout=subprocess.PIPE, text=True)
    read_until(flow, "hanging")
    leader = next(child for child in psutil.Process(flow.pid).children() if "dvc" in " ".join(child.cmdline()))
    flow.kill()
    flow.wait()
    gone, _ = psutil.wait_procs([leader], timeout=120)
    assert gone
    end_work(toy.root)  # the stage itself only ends so if it asks to


def test_a_program_that_leaves_a_child_with_the_pipe_open_does_not_hang() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '300']); print('done')"
    started = time.monotonic()
    assert run_command("any", [sys.executable, "-c", code], Path.cwd(), os.environ, quiet) == ["done"]
    assert time.monotonic() - started < 240


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        only_run(tmp_path),
        pytest.raises(UserError, match="another run is at work in this folder"),
        only_run(tmp_path),
    ):
        pass


@pytest.mark.parametrize("status", ["-9", "137"])  # run directly, and by a shell that stays between
def test_a_killed_stage_is_recognized_however_its_status_is_written(status: str) -> None:
    message = str(failure("rank", [f"ERROR: failed to reproduce 'rank': failed to run: x, exited with {status}"], 1))
    assert message.startswith("stage rank failed: it was killed (signal 9")
    assert "killed" not in str(
        failure("rank", ["ERROR: failed to reproduce 'rank': failed to run: x, exited with 1"], 1)
    )
    assert policy_of("collect").retries and not policy_of("validate").retries


def test_one_iteration_needs_no_flow_of_its_own(tmp_path: Path) -> None:
    from flows.iterate import check_iterations

    (tmp_path / "params.yaml").write_text("iterations: 1\n")
    with pytest.raises(UserError, match="`iterations` is 1, as for `make run`"):
        check_iterations(tmp_path)
    (tmp_path / "params.yaml").write_text("iterations: 3\n")
    check_iterations(tmp_path)
