"""Stage `evaluate` where pages are designed: scores, wins over a rival, and a report with pictures, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.files import write_trajectories
from sweetrl.colbench.store import write_task_table
from sweetrl.config.settings import PretrainSettings, RewardSettings, Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.frontend import Frontend
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import demonstrate
from sweetrl.io import read_json
from sweetrl.paths import EVALUATION, POLICY, REPORT, RUNS, TEST_TASKS
from sweetrl.rollout.context import OpenEnvironment
from sweetrl.rollout.scored import scored
from sweetrl.stages.evaluate import evaluate
from sweetrl.types import Task, Trajectory

FRONTEND = Frontend()
TASKS = list(generate("test", 4, 3, 2))
QUALITIES = {"base": 0.0, "trained": 1.0, "rival": 0.5}
SKILL = {name: PretrainSettings(poorest=quality, best=quality, informed=0.0) for name, quality in QUALITIES.items()}


def play(task: Task, policy: str) -> Trajectory:
    """A dialogue of a demonstrator of known skill."""
    messages = demonstrate(task, SKILL[policy], 5, 3).messages
    answer, outcome = FRONTEND.final_answer(messages), FRONTEND.outcome(messages)
    return Trajectory(task, 0, messages, (), answer, outcome=outcome, policy=policy, simulator="scripted")


def attempt(
    environment: OpenEnvironment,
    policy: Any,
    pairs: list[tuple[Task, int]],
    store: Any,
    *rest: Any,
    name: str,
    **how: Any,
) -> None:
    """In the place of a model: demonstrators talk to the scripted user; only the scoring is the stage's own."""
    store.write_shard(0, scored([play(task, name) for task, _ in pairs], environment.scorer))


def settings(**evaluation: Any) -> Settings:
    return parse_settings(
        {
            "suite": "frontend",
            "agent": {"max_turns": 5},
            "browser": {"tabs": 2},
            "evaluate": {"tasks": 4, "resamples": 200, **evaluation},
        }
    )


@pytest.fixture
def project(browser: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sweetrl.api.rollouts.attempt", attempt)
    write_task_table(TEST_TASKS, TASKS)
    POLICY.mkdir(parents=True)
    (POLICY / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    (POLICY / "adapter_model.safetensors").touch()
    return tmp_path


@pytest.mark.slow
def test_pages_are_compared_and_shown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trajectories(project / "rival.jsonl", [play(task, "rival") for task in TASKS[:3]], 1)
    evaluate(settings(rival="rival.jsonl"))
    results = read_json(EVALUATION)
    before, after = (results["pages"]["policies"][name] for name in ("base", "trained"))
    assert results["pages"]["reward"] == "layout"
    assert after["last_page"]["value"] == results["reward_after"] > results["reward_before"]
    assert after["gained_in_dialogue"]["value"] > before["gained_in_dialogue"]["value"] > 0.0
    assert 0.0 < before["first_page"]["value"] < 1.0
    assert after["wins_over_other"]["value"] == pytest.approx(1.0 - before["wins_over_other"]["value"])
    assert after["wins_over_rival"]["n"] == 3 and after["no_answer"]["value"] == after["not_rendered"]["value"] == 0.0
    output = capsys.readouterr().out
    likeness = f"{results['reward_before']:.1%} before and {results['reward_after']:.1%} after training"
    assert f"4 tasks, likeness to the reference (layout) {likeness} (+" in output
    logged = read_json(RUNS / "evaluate.json")["metrics"]
    assert logged["trained/wins_over_other"] == after["wins_over_other"]["value"]
    assert logged["trained/wins_over_rival"] == after["wins_over_rival"]["value"]
    report = REPORT.read_text()
    assert report.count('src="data:image/png;base64,') >= 4 * 3 and "[SEE RENDERED HTML]" in report
    assert "should be" in report and "the reference, which only the user sees" in report
    assert len(report) < 2_000_000


def test_a_rival_of_other_tasks_is_refused(project: Path) -> None:
    write_trajectories(project / "rival.jsonl", [play(task, "rival") for task in generate("test", 2, 9, 2)], 1)
    with pytest.raises(UserError, match="has no dialogue about any of the test tasks"):
        evaluate(settings(rival="rival.jsonl"))
    with pytest.raises(UserError, match=r"evaluate\.rival: nowhere: there is nothing here"):
        evaluate(settings(rival="nowhere"))


def test_an_own_reward_is_no_likeness(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "wordy.py").write_text("def few(task, dialogue):\n    return 10.0 - len(dialogue.messages)\n")
    evaluate(settings().model_copy(update={"reward": RewardSettings(function="wordy:few")}))
    results = read_json(EVALUATION)
    rewards = [10.0 - len(play(task, "base").messages) for task in TASKS]
    assert results["reward_before"] == pytest.approx(sum(rewards) / 4) and "pages" not in results
    assert results["labels"] == {"success": "Equal to the reference", "reward": "Mean reward"}
    report = REPORT.read_text()
    assert "Mean reward" in report and "layout" not in report and "likeness" not in report.lower()
    assert "mean reward" in capsys.readouterr().out
