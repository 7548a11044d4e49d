"""Stage `train-policy`: training of the actor by the method in params.yaml; it never sees c.

sweet            preferences between replies to one state (Eq. 4)
multi-turn-dpo   preferences between whole trajectories (Eq. 2 on the actor)
rft              the likelihood of the replies of successful attempts
grpo             the returns of attempts that it makes itself, on-policy (sweetrl.stages.grpo)
single-turn, zero-shot   nothing is trained: the adapter's B is 0, so that the policy is the base, to the bit
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.settings import Settings, TrainerSettings
from sweetrl.stages.common import StageRun, publish, stage_main, stage_run
from sweetrl.stages.training import (
    PAIRS,
    POLICY,
    PREFERENCES,
    REFERENCES,
    TRAJECTORIES,
    Progress,
    train_and_publish,
)

if TYPE_CHECKING:
    from sweetrl.learning.batches import Chat, PreferenceData

INPUTS = {"sweet": (PREFERENCES,), "multi-turn-dpo": (TRAJECTORIES, PAIRS), "rft": (TRAJECTORIES,)}


def train_policy(settings: Settings) -> None:
    """Read what the method learns from, train an adapter, write models/policy/."""
    with stage_run("train-policy", settings) as run:
        from sweetrl.learning.adapters import attach_adapter, load_base

        if settings.method == "grpo":
            from sweetrl.stages.grpo import train_online

            train_online(run)
            return
        if settings.method not in INPUTS:
            untrained(run)
            return
        lay_out, wanted, trainer_class, anchors = prepare(settings)
        for path in INPUTS[settings.method]:
            run.log_input(path.stem, path)
        run.log_input("base", settings.model.base)
        model, tokenizer = load_base(settings.model)
        data = fitting(run, lay_out(tokenizer), model)
        scratch = run.scratch(*INPUTS[settings.method], Path(settings.model.base))
        progress = Progress(run)
        trainer = trainer_class(
            attach_adapter(model, wanted.lora, settings.seed),
            data,
            wanted,
            scratch,
            settings.seed,
            tokenizer.pad_token_id or 0,
            progress,
            anchors,
            cache=REFERENCES,
        )
        train_and_publish(run, trainer, progress, scratch, POLICY)


def prepare(settings: Settings) -> tuple[Callable[[Any], PreferenceData], TrainerSettings, type, float]:
    """Return what the method trains with: its data (given a tokenizer), its section, its trainer, anchors a pair.

    Inputs that are missing are said here, before a model is loaded.
    """
    from sweetrl.colbench.prompts import system_prompt
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.learning import preferences as files
    from sweetrl.learning import whole
    from sweetrl.learning.pairs import read_pairs
    from sweetrl.learning.trainers import ImitationTrainer, PolicyTrainer

    system = system_prompt(settings.agent.prompt, settings.suite)
    if settings.method == "sweet":
        preferences = files.read_preferences(PREFERENCES / files.PREFERENCES)
        anchors = files.read_anchors(PREFERENCES / files.ANCHORS) if settings.policy.anchors else []
        rows = files.preference_rows(preferences, anchors, settings.policy)
        return lambda tokenizer: rows, settings.policy, PolicyTrainer, settings.policy.anchors
    store = TrajectoryStore(TRAJECTORIES)
    if settings.method == "rft":
        return (
            lambda tokenizer: whole.successes(store.read(), ChatFormat(tokenizer), system, settings.rft.least),
            settings.rft,
            ImitationTrainer,
            0.0,
        )
    pairs, wanted = read_pairs(PAIRS), settings.multi_turn_dpo

    def data(tokenizer: Any) -> PreferenceData:
        chat: Chat = ChatFormat(tokenizer)
        return whole.policy_pairs(pairs, store.read(), chat, system, wanted, str(PAIRS))

    return data, wanted, PolicyTrainer, wanted.anchors


def fitting(run: StageRun, data: PreferenceData, model: Any) -> PreferenceData:
    """Leave out what is too long for the model, and count."""
    from sweetrl.learning.adapters import context_limit
    from sweetrl.learning.batches import within

    fits, too_long = within(data, context_limit(model))
    run.log_metrics({"pairs": len(fits.pairs), "anchors": len(fits.anchors), "pairs_too_long": too_long})
    return fits


def untrained(run: StageRun) -> None:
    """Write an adapter that changes nothing: what a method without training evaluates."""
    from sweetrl.learning.adapters import attach_adapter, load_base, save_adapter

    settings = run.settings
    run.log_input("base", settings.model.base)
    model, _ = load_base(settings.model)
    folder = run.scratch(Path(settings.model.base)) / "adapter"
    save_adapter(attach_adapter(model, settings.policy.lora, settings.seed), folder, settings.model.base)
    publish(folder, POLICY)
    run.summary = f"the method `{settings.method}` trains nothing: the adapter in {POLICY} leaves the base as it is"


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(train_policy)


if __name__ == "__main__":
    main()
