"""Best-of-N as a program: the trained critic and the controls, on synthetic tasks; a killed run goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sweetrl.backend.suite import generate
from sweetrl.colbench.store import read_task_table, write_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.engines.openai import SEEDS
from sweetrl.errors import UserError
from sweetrl.evaluation import best_of_n as core
from sweetrl.io import read_json
from sweetrl.paths import BEST_OF_N, CRITIC, TEST_TASKS
from sweetrl.seeds import best_of_n_seed
from sweetrl.stages import best_of_n as stage


@pytest.fixture
def settings(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    long_answers_win: None,
    write_adapter: Callable[..., Path],
) -> Settings:
    monkeypatch.chdir(tmp_path)
    write_task_table(TEST_TASKS, generate("test", 3, seed=1))
    write_adapter(tiny_model, CRITIC, 0.3, name=str(tiny_model))
    return parse_settings(
        {
            "model": {"base": str(tiny_model), "threads": 1, "device": "cpu"},
            "agent": {"max_turns": 2, "max_new_tokens": 8},
            "evaluate": {"resamples": 100},
            "best_of_n": {"tasks": 3, "max_n": 4, "batch": 2},
        }
    )


def test_every_critic_gets_a_curve_and_a_killed_run_goes_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.best_of_n(settings)
    undisturbed = read_json(BEST_OF_N)
    assert {name: [place["n"] for place in places] for name, places in undisturbed["curves"].items()} == {
        f"{name}{end}": [1, 2, 4]
        for name in ("trained", "privileged-ratio", "random", "oracle")
        for end in ("", core.WITH_PRIOR)
    }
    assert len(undisturbed["points"]) == 8 * 3 * 3
    assert {place["success"]["n"] for places in undisturbed["curves"].values() for place in places} == {3}
    assert "success at N = 4: trained" in capsys.readouterr().out

    BEST_OF_N.unlink()
    done, real = [], core.best_of_n

    def dies(tasks: Any, *more: Any, **named: Any) -> Any:
        if done and done[-1] != "killed":
            done.append("killed")
            raise KeyboardInterrupt
        done.append([task.id for task in tasks])
        return real(tasks, *more, **named)

    monkeypatch.setattr(core, "best_of_n", dies)
    with pytest.raises(KeyboardInterrupt):
        stage.best_of_n(settings)
    stage.best_of_n(settings)
    assert [len(batch) for batch in done if batch != "killed"] == [2, 1], "what was finished is not done again"
    assert read_json(BEST_OF_N) == undisturbed


def test_the_critic_of_the_settings_picks_too(settings: Settings) -> None:
    rank = settings.rank.model_copy(update={"critic": "rollout-value", "rollouts": 2})
    critic = settings.critic.model_copy(update={"privileged": False})
    policy = settings.policy.model_copy(update={"advantage_temperature": 0.0})  # which leaves advantages out
    stage.best_of_n(settings.model_copy(update={"rank": rank, "critic": critic, "policy": policy}))
    assert set(read_json(BEST_OF_N)["curves"]) == {"trained", "rollout-value", "random", "oracle"}


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_a_server_gives_the_replies(settings: Settings, fake_server: Any, kind: str) -> None:
    retries = {"backoff_seconds": 0.01, "attempts": 12}
    tokenizer = AutoTokenizer.from_pretrained(settings.model.base)
    curves = []
    for share in (0.0, 0.3):
        with fake_server(tokenizer=tokenizer, share=share, faults=("429", "500", "cut")) as server:
            engine = {"kind": kind, "urls": server.url, "model": "base", **retries}
            there = parse_settings({**settings.model_dump(mode="json", by_alias=True), "engine": engine})
            stage.best_of_n(there)
            counts = {body.get("n", 1) for body in server.bodies}
        assert max(counts) == 4, "one request for the replies at a state"
        curves.append(read_json(BEST_OF_N))
    assert curves[0] == curves[1]
    points = curves[0]["points"]
    count = {"vllm": 8, "openai": 4}[kind]  # who gives no log-probabilities has no prior
    assert len(points) == count * 3 * 3 and {point["turns"] for point in points} == {2}
    assert all(point["reward"] is not None for point in points)
    unlucky = read_task_table(TEST_TASKS)[1].id
    seed = best_of_n_seed(settings.seed, unlucky, 1)
    with fake_server(tokenizer=tokenizer) as server:
        error = {"message": "no such luck"}
        chat, complete = server._chat, server._completions
        server._chat = lambda body: (400, {"error": error}) if body["seed"] == seed % SEEDS else chat(body)
        server._completions = lambda body: (400, {"error": error}) if body["seed"] == seed else complete(body)
        there = there.model_copy(update={"engine": there.engine.model_copy(update={"urls": server.url})})
        stage.best_of_n(there)
        lost = [point["task_id"] for point in read_json(BEST_OF_N)["points"] if point["reward"] is None]
        assert lost == [unlucky] * count * 3, "a reply that cannot be had loses its dialogues, and no others"
        error["message"] = "This model's maximum context length is 64 tokens. However, you requested 65 tokens."
        stage.best_of_n(there)
    full = [point for point in read_json(BEST_OF_N)["points"] if point["task_id"] == unlucky]
    assert {point["reward"] for point in full} == {0.0}, "a context that is full is the agent's failure"


def test_lost_dialogues_get_another_chance(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = core.best_of_n, []

    def silent(tasks: Any, *more: Any, **named: Any) -> Any:
        done.append(len(tasks))
        dialogues = real(tasks, *more, **named)
        return [replace(dialogue, reward=None) for dialogue in dialogues] if len(done) == 1 else dialogues

    monkeypatch.setattr(core, "best_of_n", silent)
    with pytest.raises(UserError, match=r"Best-of-N: 2 of 3 tasks have a dialogue that was lost .* run the same"):
        stage.best_of_n(settings)
    stage.best_of_n(settings)
    assert done == [2, 1, 2], "of two batches that with lost dialogues is done again"
    assert len(read_json(BEST_OF_N)["points"]) == 8 * 3 * 3
