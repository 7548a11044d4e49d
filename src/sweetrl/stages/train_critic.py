"""Stage `train-critic`: the turn-wise advantage function, from pairs of whole trajectories (Eqs. 2-3)."""

from __future__ import annotations

from pathlib import Path

from sweetrl.settings import Settings
from sweetrl.stages.common import stage_main, stage_run
from sweetrl.stages.training import (
    CRITIC,
    PAIRS,
    REFERENCES,
    TRAJECTORIES,
    Progress,
    leave_out,
    train_and_publish,
    why_no_critic,
)


def train_critic(settings: Settings) -> None:
    """Read trajectories and pairs, train an adapter that sees c, write models/critic/."""
    with stage_run("train-critic", settings) as run:
        if why := why_no_critic(settings):
            leave_out(run, CRITIC, why)
            return
        from sweetrl.colbench.prompts import system_prompt
        from sweetrl.colbench.store import TrajectoryStore
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.learning.adapters import attach_adapter, context_limit, load_base
        from sweetrl.learning.batches import within
        from sweetrl.learning.pairs import read_pairs
        from sweetrl.learning.trainers import CriticTrainer, RegressionTrainer, ValueTrainer
        from sweetrl.learning.whole import critic_attempts, critic_pairs

        kind = settings.critic.parameterization
        if kind == "vision-head":
            from sweetrl.stages.vision import train_vision_critic

            train_vision_critic(run)
            return
        trainers = {"log-ratio": CriticTrainer, "regression-head": RegressionTrainer, "value-head": ValueTrainer}
        pairs = read_pairs(PAIRS)
        trajectories = TrajectoryStore(TRAJECTORIES)
        run.log_input("trajectories", TRAJECTORIES)
        run.log_input("pairs", PAIRS)
        run.log_input("base", settings.model.base)
        model, tokenizer = load_base(settings.model)
        chat, system = ChatFormat(tokenizer), system_prompt(settings.agent.prompt, settings.suite)
        if kind == "value-head":
            rows = critic_attempts(trajectories.read(), chat, system, settings.critic)
        else:
            rows = critic_pairs(pairs, trajectories.read(), chat, system, settings.critic, str(PAIRS))
        data, too_long = within(rows, context_limit(model))
        run.log_metrics({"pairs": len(data.pairs), "pairs_too_long": too_long})
        scratch = run.scratch(TRAJECTORIES, PAIRS, Path(settings.model.base))
        progress = Progress(run)
        trainer = trainers[kind](
            attach_adapter(model, settings.critic.lora, settings.seed, head=kind != "log-ratio"),
            data,
            settings.critic,
            scratch,
            settings.seed,
            tokenizer.pad_token_id or 0,
            progress,
            cache=REFERENCES,
        )
        train_and_publish(run, trainer, progress, scratch, CRITIC)


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(train_critic)


if __name__ == "__main__":
    main()
