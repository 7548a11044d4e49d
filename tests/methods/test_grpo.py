"""Method `grpo` of stage `train-policy`, with the shipped base: on-policy, repeatable, and resumable."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweetrl.api.learning import training_job
from sweetrl.backend.suite import generate
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.errors import UserError
from sweetrl.methods import grpo, grpo_trainer
from sweetrl.methods.grpo import Grpo
from sweetrl.methods.grpo_trainer import GroupTrainer
from sweetrl.models.check import is_full
from sweetrl.stages.train_policy import train_policy
from tests.lm.slowly import killed_at

VALUES: dict[str, Any] = {
    "method": "grpo",
    "model": {"base": "models/base", "device": "cpu", "threads": 1},
    "agent": {"max_turns": 6, "max_new_tokens": 96},
    "collect": {"tasks": 2, "batch": 8, "shard": 4},
    "grpo": {
        **{"learning_rate": 1e-3, "iterations": 3, "tasks": 2, "group_size": 4, "batch_size": 4, "micro_batch_size": 4},
        **{"warmup_ratio": 0.0, "checkpoints": 3, "lora": {"rank": 4}},
    },
}
ADAPTER = Path("models/policy/adapter_model.safetensors")


@pytest.fixture
def project(shipped_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make project folders with a few training tasks and the shipped base; each becomes the working directory."""
    monkeypatch.setenv("SWEETRL_TRACKING", "off")

    def make(name: str) -> Path:
        folder = tmp_path / name
        (folder / "models").mkdir(parents=True)
        (folder / "models/base").symlink_to(shipped_base)
        monkeypatch.chdir(folder)
        write_task_table(Path("data/tasks/train.parquet"), generate("train", 5, seed=1))
        return folder

    return make


def settings(**changes: Any) -> Settings:
    return parse_settings(VALUES | changes)


@pytest.mark.slow
def test_iterations_attempt_the_next_tasks_and_a_killed_run_ends_with_the_same_bytes(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project("undisturbed")
    with monkeypatch.context() as patch:
        patch.setattr("sweetrl.stages.run.keep_finished", lambda *_: None)  # to look at the scratch
        train_policy(settings())
    assert "6 steps on 24 dialogues of its own" in capsys.readouterr().out
    weights = ADAPTER.read_bytes()
    (scratch,) = Path(".scratch").glob("train-policy-*")
    tasks = list(generate("train", 5, seed=1))
    seeds, policies = set(), []
    for iteration, chosen in enumerate(([0, 1], [2, 3], [4, 0])):
        talks = list(TrajectoryStore(scratch / f"iteration-{iteration:04d}" / "dialogues").read())
        assert [(talk.task.id, talk.attempt) for talk in talks] == [(tasks[n].id, k) for n in chosen for k in range(4)]
        assert all(talk.reward is not None and len(talk.tests) == len(talk.task.test_cases) for talk in talks)
        seeds |= {talk.seed for talk in talks}
        policies.append((scratch / f"iteration-{iteration:04d}/adapter/adapter_model.safetensors").read_bytes())
    assert len(seeds) == 24, "every attempt of every iteration has a seed of its own, also at a task it meets again"
    assert len({*policies, weights}) == 4, "each iteration is sampled from the current policy"

    project("killed")
    with killed_at(GroupTrainer, 3):
        train_policy(settings())
    assert not ADAPTER.exists()
    (scratch,) = Path(".scratch").glob("train-policy-*")
    kept = scratch / "iteration-0001/dialogues/shard-00000.parquet"
    moment = kept.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr("sweetrl.stages.run.keep_finished", lambda *_: None)
        train_policy(settings())
    assert kept.stat().st_mtime_ns == moment, "finished shards are not made again"
    assert ADAPTER.read_bytes() == weights


def test_the_policy_of_one_step_before_samples_while_training_goes_on_whoever_is_faster(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {
        "iterations": 3,
        "tasks": 1,
        "staleness": 1,
        "credit": "privileged",
        "learning_rate": 3e-3,
        "lora": {"rank": 4, "dropout": 0.1},
    }
    changed = settings(grpo=VALUES["grpo"] | how, policy={"learn_thoughts": False})
    ratios: list[float] = []
    log, play = GroupTrainer.log, grpo.Rollouts._play
    monkeypatch.setattr("sweetrl.stages.run.keep_finished", lambda *_: None)  # to look at the scratch

    def noted(self: Any, logs: Any, *more: Any) -> None:
        log(self, logs, *more)
        ratios.append(logs.get("ratio", math.nan))

    project("undisturbed")
    with monkeypatch.context() as patch:
        patch.setattr(GroupTrainer, "log", noted)
        train_policy(changed)
    weights = ADAPTER.read_bytes()
    (scratch,) = Path(".scratch").glob("train-policy-*")
    policies = [
        (scratch / f"iteration-{number:04d}/adapter/adapter_model.safetensors").read_bytes() for number in range(3)
    ]
    assert policies[0] == policies[1] and len({*policies, weights}) == 3, "the second is sampled before the first step"
    assert len(list(TrajectoryStore(scratch / "iteration-0002/dialogues").read())) == 4
    assert ratios[0] == pytest.approx(1.0, abs=1e-5)
    assert abs(ratios[1] - 1.0) > 1e-4 < abs(ratios[2] - 1.0), "the ratio is to the policy that sampled"

    def slow(*given: Any) -> Any:
        time.sleep(0.5)
        return play(*given)

    project("killed")
    monkeypatch.setattr(grpo.Rollouts, "_play", slow)
    with killed_at(GroupTrainer, 2):
        train_policy(changed)
    assert not ADAPTER.exists()
    train_policy(changed)
    assert ADAPTER.read_bytes() == weights


def test_a_sampler_beside_the_training_leaves_the_choice_of_kernels_alone(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deterministic kernels are a setting of the whole process, which a sampler in slots (as on a GPU) turns off."""
    import torch

    changed, choose, before = (
        list[str](),
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled,
    )

    def noted(mode: bool, **more: Any) -> None:
        if mode != before():
            changed.append(threading.current_thread().name)
        choose(mode, **more)

    project("beside")
    monkeypatch.setattr(TransformersEngine, "_slot_devices", ("cpu",))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", noted)
    how = {"iterations": 2, "tasks": 1, "staleness": 1, "credit": "privileged"}
    train_policy(settings(grpo=VALUES["grpo"] | how))
    assert ADAPTER.exists() and before(), "as every stage"
    assert "sweetrl-stream" not in changed and len(changed) >= 2


@pytest.mark.parametrize("staleness", [0, 1])
def test_all_weights_may_be_trained_beside_the_base_that_they_were(
    project: Any, monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    kl: list[float] = []
    log = GroupTrainer.log

    def noted(self: Any, logs: Any, *more: Any) -> None:
        log(self, logs, *more)
        kl.append(logs.get("kl", math.nan))

    project("full")
    monkeypatch.setattr(GroupTrainer, "log", noted)
    how = {"iterations": 2, "tasks": 1, "credit": "privileged", "learning_rate": 1e-4, "staleness": staleness}
    train_policy(settings(model=VALUES["model"] | {"train": "full"}, grpo=VALUES["grpo"] | how))
    assert is_full(ADAPTER.parent) and not ADAPTER.exists()
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and kl[1] > 1e-6, "the reference stays the base"


@pytest.mark.parametrize("credit", ["infopo", "igpo"])
def test_turns_are_credited_by_the_information_gains_of_the_current_policy(
    project: Any, monkeypatch: pytest.MonkeyPatch, credit: str
) -> None:
    iterations: list[Any] = []
    lay_out, turn_gains = grpo.lay_out, grpo.turn_gains
    weights: list[float] = []

    def measured(model: Any, *given: Any, **more: Any) -> Any:
        weights.append(sum(value.abs().sum().item() for name, value in model.named_parameters() if "lora_B" in name))
        return turn_gains(model, *given, **more)

    def laid_out(*given: Any) -> Any:
        iterations.append(lay_out(*given))
        return iterations[-1]

    monkeypatch.setattr(grpo, "turn_gains", measured)
    monkeypatch.setattr(grpo, "lay_out", laid_out)
    project("informed")
    changes = {"iterations": 2, "tasks": 1, "credit": credit, "layout": "trees"}
    train_policy(settings(grpo=VALUES["grpo"] | changes))
    assert ADAPTER.exists()
    assert len(weights) == 2 and weights[0] == 0.0 < weights[1], "the gains are those of the policy that has sampled"
    gains = [attempts.metrics["info_gain"] for attempts in iterations]
    assert all(math.isfinite(gain) and gain for gain in gains)
    several = [turns for attempts in iterations for turns in attempts.advantages if len(turns) > 2]
    assert several and any(len(set(turns)) > 1 for turns in several), "turns of an attempt differ"


def test_the_base_that_sees_c_teaches_the_policy_and_no_reward_does(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest: list[float] = []
    privileged_advantages, lay_out = grpo_trainer.privileged_advantages, grpo.lay_out

    def compared(teacher: Any, old: Any) -> Any:
        advantages = privileged_advantages(teacher, old)
        largest.append(float(advantages.abs().max()))
        return advantages

    def unrewarded(trajectories: Any, *more: Any) -> Any:
        return lay_out([replace(dialogue, reward=0.5) for dialogue in trajectories], *more)

    monkeypatch.setattr(grpo_trainer, "privileged_advantages", compared)
    changed = settings(grpo=VALUES["grpo"] | {"iterations": 2, "credit": "privileged"})
    adapters = []
    for name in ("rewarded", "unrewarded"):
        project(name)
        train_policy(changed)
        adapters.append(ADAPTER.read_bytes())
        monkeypatch.setattr(grpo, "lay_out", unrewarded)
    assert len(largest) == 2 * 2 * 8, "one for each attempt"
    # In the first iteration the policy is the base, and tells tokens apart only because the teacher has read c.
    assert min(largest[:8]) > 0.1
    assert adapters[0] == adapters[1]


def test_without_c_nobody_can_be_taught_by_who_sees_it(project: Any) -> None:
    project("blind")
    with pytest.raises(UserError, match=r"grpo.credit: `privileged` .* nobody sees c; set it to true"):
        train_policy(settings(grpo=VALUES["grpo"] | {"credit": "privileged"}, critic={"privileged": False}))
    assert not ADAPTER.exists()


def test_of_several_processes_one_has_the_server_and_the_users_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would start a vLLM of its own, on the same GPUs."""
    done: list[str] = []

    @contextmanager
    def opened(*_: Any) -> Any:
        done.append("opened")
        yield

    def trainer(model: Any, *_: Any) -> Any:
        step = {"loss": 0.0, "success": 0.5, "tokens_per_second": 1.0}
        args = SimpleNamespace(device=SimpleNamespace(type="cpu"))
        state, data = SimpleNamespace(log_history=[step]), SimpleNamespace(pairs=[])
        return SimpleNamespace(model=model, args=args, state=state, data=data, steps=1, fit=lambda: [step])

    monkeypatch.setattr("sweetrl.engines.policy.Policy.serving", opened)
    monkeypatch.setattr("sweetrl.rollout.context.open_environment", opened)
    monkeypatch.setattr("sweetrl.methods.grpo_trainer.GroupTrainer", trainer)
    monkeypatch.setattr("sweetrl.lm.adapters.load_base", lambda _: (None, SimpleNamespace(pad_token_id=0)))
    monkeypatch.setattr("sweetrl.lm.adapters.attach_adapter", lambda *_: None)
    monkeypatch.setattr("sweetrl.lm.adapters.save_adapter", lambda *_: done.append("written"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    inputs: Any = SimpleNamespace(tasks=list)
    domain: Any = None
    for process_rank, expected in (("1", []), ("0", ["opened", "opened", "written"])):
        monkeypatch.setenv("RANK", process_rank)
        result = Grpo().train(training_job(Grpo(), settings(), domain, inputs, tmp_path))
        assert (done, bool(result.metrics)) == (expected, process_rank == "0")
