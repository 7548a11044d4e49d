import json

import pytest

from sweetrl.backend.suite import generate
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import read_results
from sweetrl.paths import EVALUATION, EVALUATION_DIALOGUES, POLICY, PREFERENCES, REPORT, RESULTS, SCRATCH, TEST_TASKS
from sweetrl.stages.evaluate import evaluate
from sweetrl.sweet.preferences import CANDIDATES
from sweetrl.sweet.tables import write_table
from sweetrl.types import Candidate, RankedState
from tests.stages.conftest import kill_at

TASKS = 5


@pytest.fixture
def settings(tiny_model, tmp_path, monkeypatch, long_answers_win, write_adapter):
    monkeypatch.chdir(tmp_path)
    write_task_table(TEST_TASKS, generate("test", TASKS, seed=1))
    write_adapter(tiny_model, POLICY, 0.5, name=str(tiny_model))
    return make_settings(tiny_model)


def make_settings(tiny_model, **evaluation):
    return parse_settings(
        {
            "model": {"base": str(tiny_model), "threads": 1},
            "agent": {"max_turns": 3, "max_new_tokens": 12},
            "evaluate": {"tasks": TASKS, "batch": 2, "resamples": 200, **evaluation},
        }
    )


def outputs():
    paths = [RESULTS, EVALUATION, REPORT, *sorted(EVALUATION_DIALOGUES.rglob("*.parquet"))]
    return {path: path.read_bytes() for path in paths}


def test_both_policies_attempt_the_same_tasks_and_equal_runs_give_equal_bytes(settings, capsys, monkeypatch):
    evaluate(settings)
    first = outputs()
    rows = read_results(RESULTS)
    assert [(row.policy, row.task_id) for row in rows] == [
        (policy, f"synthetic-test-1-{index:05d}") for policy in ("base", "trained") for index in range(TASKS)
    ]
    base, trained = (list(TrajectoryStore(EVALUATION_DIALOGUES / name).read()) for name in ("base", "trained"))
    assert [dialogue.seed for dialogue in base] == [dialogue.seed for dialogue in trained]
    assert [dialogue.messages for dialogue in base] != [dialogue.messages for dialogue in trained]
    assert len(TrajectoryStore(EVALUATION_DIALOGUES / "base").shards()) == 3
    report = json.loads(EVALUATION.read_text())
    assert report["tasks"] == TASKS and 0.0 <= report["reward_before"] <= 1.0
    assert "before and" in capsys.readouterr().out
    assert "What the critic thinks" not in REPORT.read_text()
    assert not list(SCRATCH.glob("evaluate-*"))

    # Killed after a shard of the second policy: what is finished is not done again, and the bytes are the same.
    written = kill_at(1, monkeypatch, "trained")
    with pytest.raises(KeyboardInterrupt):
        evaluate(settings)
    assert written == [0, 1, 2, 0], "all of the base's"
    evaluate(settings)
    assert written == [0, 1, 2, 0, 1, 2]
    assert outputs() == first


def test_candidates_appear_in_the_report(settings):
    replies = (Candidate((1, 2), "What is the rate?", 3, 0.25), Candidate((3,), "Hm <b>?", 1, -0.125))
    write_table(PREFERENCES / CANDIDATES, RankedState, [RankedState("some-task", 0, 0, (5, 6), replies)])
    evaluate(settings)
    page = REPORT.read_text()
    assert "What the critic thinks" in page and "+0.250" in page and "Hm &lt;b&gt;?" in page


def test_missing_inputs_are_refused_before_anything_is_done(settings, tiny_model):
    with pytest.raises(UserError, match="at least 2 tasks"):
        evaluate(make_settings(tiny_model, tasks=1))
    (POLICY / "adapter_config.json").unlink()
    with pytest.raises(
        UserError, match=r"models/policy: there is no trained policy here; run the stage `train-policy`"
    ):
        evaluate(settings)
    TEST_TASKS.unlink()
    with pytest.raises(UserError, match=r"data/tasks/test.parquet: there is no such file"):
        evaluate(settings)
