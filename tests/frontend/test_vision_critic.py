"""The critic that looks at pages, through its stages: trained on pairs, loaded, ranking replies by their pictures."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import PretrainSettings, Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.frontend import Frontend
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import demonstrate
from sweetrl.methods.critics import make_critic
from sweetrl.paths import CRITIC, PAIRS, TRAJECTORIES
from sweetrl.stages.train_critic import train_critic
from sweetrl.sweet.pairs import trajectory_pairs, write_pairs
from sweetrl.types import Reply, Trajectory

TASK = next(iter(generate("train", 1, 3, 2)))


def settings(model: str, **changes: Any) -> Settings:
    critic = {
        "parameterization": "vision-head", "vision": {"model": model, "tokens": 16}, "epochs": 2.0, "batch_size": 1,
        "learning_rate": 0.01, "beta": 1.0, "lora": {"rank": 2},
    }  # fmt: skip
    return parse_settings({"suite": "frontend", "browser": {"tabs": 1}, "critic": critic, **changes})


def dialogue(attempt: int, quality: float, reward: float) -> Trajectory:
    messages = demonstrate(TASK, PretrainSettings(heed_least=quality, heed_most=quality, informed=0.0), 2, 1).messages
    domain = Frontend()
    return Trajectory(
        TASK, attempt, messages, (), domain.final_answer(messages), reward, outcome=domain.outcome(messages)
    )


def collected() -> tuple[Trajectory, Trajectory]:
    """Write what the stage reads; return the better and the worse of the two dialogues."""
    good, bad = dialogue(0, 1.0, 0.9), dialogue(1, 0.0, 0.3)
    TrajectoryStore(TRAJECTORIES).write_shard(0, [good, bad])
    write_pairs(PAIRS, trajectory_pairs([good, bad], "all", 0.1)[0])
    return good, bad


def test_it_is_trained_and_ranks(
    browser: None,
    tiny_vision: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = settings(str(tiny_vision))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    good, bad = collected()
    train_critic(chosen)
    assert "2 steps on 1 pairs of dialogues" in capsys.readouterr().out
    run = json.loads(Path("reports/runs/train-critic.json").read_text())
    assert run["metrics"]["pairs"] == 1
    assert {path.name for path in CRITIC.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    critic = make_critic(load_domain(chosen), chosen, CRITIC)
    replies = [Reply((number,), attempt.messages[-1].content) for number, attempt in enumerate((good, bad))]
    ((values,),) = critic.rate([(good, [replies])])
    assert len(values) == 2 and values[0] != values[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"suite": "backend"}, "`vision-head` looks at pages"), ({}, r"critic\.vision\.model: this is empty")],
)
def test_what_cannot_work_is_one_sentence(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    collected()
    with pytest.raises(UserError, match=message):
        train_critic(settings("", **changes))


def test_of_several_processes_the_first_one_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its training is not shared: the others would all train the same, and write to the same folder."""
    from sweetrl.api.learning import training_job
    from sweetrl.methods.base import Inputs
    from sweetrl.sweet.critic import fit_critic

    chosen, trained = settings("nowhere"), []
    domain = load_domain(chosen)
    own = SimpleNamespace(fit=lambda *given: trained.append(given))
    monkeypatch.setattr(type(domain), "own_critic", lambda self, critic: own)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        fit_critic(training_job(None, chosen, domain, Inputs([], []), tmp_path))
        assert len(trained) == (rank == "0")
