"""Measuring a policy: every temperature and user from one loaded model, the choice, and a new start after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend.suite import generate
from sweetrl.colbench.store import write_task_table
from sweetrl.config.settings import LoraSettings, ModelSettings, Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import read_results
from sweetrl.io import read_json, write_json
from sweetrl.paths import POLICY, TEST_TASKS, VALIDATION_TASKS
from sweetrl.reproduce.evaluate import OUT, PLAN, Player, choose, evaluate, rates
from tests.reproduce.made import result
from tests.stages.conftest import content

LOADED: list[Any] = []


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_answers_win: None) -> Settings:
    from sweetrl.engines.transformers import TransformersEngine

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    load = TransformersEngine.__init__
    LOADED.clear()

    def recorded(self: Any, *args: Any, **options: Any) -> None:
        LOADED.append(args[1])
        load(self, *args, **options)

    monkeypatch.setattr(TransformersEngine, "__init__", recorded)
    write_task_table(VALIDATION_TASKS, generate("train", 3, seed=2))
    write_task_table(TEST_TASKS, generate("test", 4, seed=1))
    return parse_settings(
        {
            "model": {"base": str(tiny_model), "threads": 1, "device": "cpu"},
            "agent": {"max_turns": 2, "max_new_tokens": 8, "temperature": 0.3},
            "evaluate": {"tasks": 3, "batch": 2},
        }
    )


def plan(
    temperatures: Sequence[float] = (0.0, 1.0),
    tasks: int = 3,
    personas: Sequence[str] = (),
    persona_temperatures: Sequence[float] = (0.0,),
    opening: str = "",
) -> None:
    measured = {"temperatures": temperatures, "personas": personas, "persona_temperatures": persona_temperatures}
    write_json(PLAN, {**measured, "choose": {"grid": [0.0, 0.5, 1.0], "tasks": tasks}, "opening": opening})


def test_a_policy_is_measured_at_every_temperature_with_one_model(settings: Settings) -> None:
    plan()
    evaluate(settings)
    assert LOADED == [None], "the base, once"
    summary = read_json(OUT / "summary.json")
    assert set(summary["validation"]) == {"0", "0.5", "1"}
    assert all(rates["tasks"] == 3 for rates in summary["validation"].values())
    best = choose({float(name): rates["success"] for name, rates in summary["validation"].items()})
    assert summary["chosen"] == best
    expected = sorted({0.0, 1.0, best})
    assert [record["temperature"] for record in summary["measured"]] == expected
    assert {path.name for path in OUT.iterdir()} == {"summary.json", *(f"t{at:g}.parquet" for at in expected)}
    cold, warm = (read_results(OUT / f"t{at}.parquet") for at in (0, 1))
    assert [result.task_id for result in cold] == [result.task_id for result in warm]
    assert len(cold) == 3 and {result.policy for result in cold} == {"trained"}
    assert all(0 < record["reply_tokens"] <= 8 for record in summary["measured"])


def test_other_users_are_met_at_temperatures_of_their_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, float, str, str]] = []
    play = Player.play

    def recorded(self: Player, name: str, tasks: Any, temperature: float, persona: str = "") -> Any:
        with self.at(temperature, persona) as environment:
            manner = environment.domain.settings.simulator.persona
            sampling = environment.context(self.agent).sampling()
            runs.append((name, sampling.temperature, manner, environment.simulator.name))
        return play(self, name, tasks, temperature, persona)

    monkeypatch.setattr(Player, "play", recorded)
    plan(temperatures=[0.0], personas=["terse"], persona_temperatures=[0.5])
    evaluate(settings)
    summary = read_json(OUT / "summary.json")
    temperatures = sorted({0.0, summary["chosen"]})
    assert [run for run in runs if not run[0].startswith("validation")] == [
        *((f"t{at:g}", at, "plain", "scripted") for at in temperatures),
        ("t0.5-terse", 0.5, "terse", "scripted:terse"),
    ]
    assert [record["persona"] for record in summary["measured"]] == [""] * len(temperatures) + ["terse"]
    assert LOADED == [None]


def test_without_temperatures_no_test_task_is_touched(settings: Settings) -> None:
    plan(temperatures=[])
    TEST_TASKS.write_bytes(b"not to be read")
    evaluate(settings)
    assert read_json(OUT / "summary.json")["measured"] == []


def test_a_killed_run_ends_with_the_same_bytes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(personas=["terse"], persona_temperatures=[0.0, 1.0])
    evaluate(settings)
    uninterrupted = content(OUT)
    for path in OUT.iterdir():
        path.unlink()
    play, played = Player.play, []

    def dies(self: Player, name: str, *args: Any) -> Any:
        if len(played) == 4:
            raise KeyboardInterrupt
        played.append(name)
        return play(self, name, *args)

    monkeypatch.setattr(Player, "play", dies)
    with pytest.raises(KeyboardInterrupt):
        evaluate(settings)
    assert not any(OUT.iterdir())
    assert {path.name for path in Path(".scratch").glob("evaluate-*/dialogues/*")} == set(played), "it goes on there"
    monkeypatch.setattr(Player, "play", play)
    evaluate(settings)
    assert content(OUT) == uninterrupted


def test_the_trained_policy_is_measured(settings: Settings) -> None:
    from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter

    model = attach_adapter(load_base(ModelSettings(base=settings.model.base))[0], LoraSettings(rank=2), 1)
    save_adapter(model, POLICY, settings.model.base)
    plan()
    evaluate(settings)
    assert LOADED == [POLICY]


def test_a_control_is_made_to_answer_in_its_last_turn(settings: Settings) -> None:
    plan(temperatures=[0.0], opening="I WANT TO ANSWER:\n")
    evaluate(settings)
    assert {result.outcome for result in read_results(OUT / "t0.parquet")} == {"answered"}
    plan(temperatures=[0.0])
    evaluate(settings)
    assert {result.outcome for result in read_results(OUT / "t0.parquet")} == {"max_turns_reached"}


def test_too_few_validation_tasks_are_one_sentence(settings: Settings) -> None:
    plan(tasks=4)
    with pytest.raises(UserError, match=r"there are 3 tasks, but choose.tasks asks for 4; lower it"):
        evaluate(settings)


def test_of_equal_temperatures_the_lowest_is_chosen() -> None:
    assert choose({1.0: 0.5, 0.25: 0.7, 0.5: 0.7}) == 0.25
    assert choose({0.5: 0.0, 0.0: 0.0}) == 0.0


def test_rates_are_of_what_was_scored() -> None:
    attempted = [result("a", True), result("b", False), result("c", False, reward=None)]
    assert rates(attempted) == {"tasks": 2, "success": 0.5, "reward": 0.5, "questions": 4.0}
    assert rates([])["success"] == 0.0
