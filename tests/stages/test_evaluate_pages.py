"""Stage `evaluate` where pages are designed: scores, wins over a rival, and a report with pictures, in a browser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sweetrl.browser.renderer import Renderer
from sweetrl.colbench.environment import final_answer, outcome_of
from sweetrl.colbench.files import write_trajectories
from sweetrl.colbench.store import write_task_table
from sweetrl.domains.frontend.suite import generate
from sweetrl.domains.frontend.suite.agents import demonstrate
from sweetrl.errors import UserError
from sweetrl.rollout.scored import scored
from sweetrl.settings import BrowserSettings, Settings, parse_settings
from sweetrl.stages import evaluate as stage
from sweetrl.types import Task, Trajectory, Usage

TASKS = list(generate("test", 4, 3, 2))
SKILL = {"base": 0.0, "trained": 1.0, "rival": 0.5}


def play(task: Task, policy: str) -> Trajectory:
    """A dialogue of a demonstrator of known skill."""
    messages = demonstrate(task, 5, 3, SKILL[policy], SKILL[policy], 0.0).messages
    answer = final_answer(messages, "frontend")
    return Trajectory(task, 0, messages, (), answer, outcome=outcome_of(messages), policy=policy, simulator="scripted")


def attempt(tasks: list[Task], adapter: Any, name: str, store: Any, *rest: Any) -> Usage:
    """In the place of a model: demonstrators talk to the scripted person; only the scoring is the stage's own."""
    scorer = rest[2]
    store.write_shard(0, scored([play(task, name) for task in tasks], scorer))
    return Usage()


def settings(**evaluation: Any) -> Settings:
    return parse_settings(
        {
            "suite": "frontend",
            "agent": {"rounds": 5},
            "browser": {"tabs": 2},
            "evaluate": {"tasks": 4, "resamples": 200, **evaluation},
        }
    )


@pytest.fixture
def project(tmp_path, monkeypatch):
    try:
        with Renderer(BrowserSettings(cache="", tabs=2)) as renderer:
            renderer.render("<p>x</p>")
    except UserError as error:
        pytest.skip(f"no browser here: {error}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    monkeypatch.setattr(stage, "attempt", attempt)
    write_task_table(stage.TASKS, TASKS)
    stage.POLICY.mkdir(parents=True)
    (stage.POLICY / "adapter_config.json").write_text('{"r": 2}')
    return tmp_path


def test_pages_are_compared_and_shown(project, capsys):
    write_trajectories(project / "rival.jsonl", [play(task, "rival") for task in TASKS[:3]], 1)
    stage.evaluate(settings(rival="rival.jsonl"))
    found = json.loads(stage.EVALUATION.read_text())
    before, after = (found["pages"]["policies"][name] for name in ("base", "trained"))
    assert found["pages"]["reward"] == "layout"
    assert after["last_page"]["value"] == found["reward_after"] > found["reward_before"]
    assert after["gained_in_dialogue"]["value"] > before["gained_in_dialogue"]["value"] > 0.0
    assert 0.0 < before["first_page"]["value"] < 1.0
    assert after["wins_over_other"]["value"] == pytest.approx(1.0 - before["wins_over_other"]["value"])
    assert after["wins_over_rival"]["n"] == 3 and after["no_answer"]["value"] == after["not_rendered"]["value"] == 0.0
    said = capsys.readouterr().out
    assert "mean reward (layout)" in said and "of the pages won" in said
    report = stage.REPORT.read_text()
    assert report.count('src="data:image/png;base64,') >= 4 * 3 and "[SEE RENDERED HTML]" in report
    assert "should be" in report and "the reference, which only the person sees" in report
    assert len(report) < 2_000_000


def test_a_rival_of_other_tasks_is_refused(project):
    write_trajectories(project / "rival.jsonl", [play(task, "rival") for task in generate("test", 2, 9, 2)], 1)
    with pytest.raises(UserError, match="has no dialogue about any of the test tasks"):
        stage.evaluate(settings(rival="rival.jsonl"))
    with pytest.raises(UserError, match=r"evaluate\.rival: nowhere: there is nothing here"):
        stage.evaluate(settings(rival="nowhere"))
