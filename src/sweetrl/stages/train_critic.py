"""Stage `train-critic`: the turn-wise advantage function, from pairs of whole trajectories (Eqs. 2-3)."""

from __future__ import annotations

from pathlib import Path

from sweetrl.settings import Settings
from sweetrl.stages.common import stage_main, stage_run
from sweetrl.stages.training import CRITIC, PAIRS, REFERENCES, TRAJECTORIES, Progress, train_and_publish


def train_critic(settings: Settings) -> None:
    """Read trajectories and pairs, train an adapter that sees c, write models/critic/."""
    with stage_run("train-critic", settings) as run:
        from sweetrl.colbench.prompts import privileged_prefix, system_prompt
        from sweetrl.colbench.store import TrajectoryStore
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.learning.adapters import attach_adapter, context_limit, load_base
        from sweetrl.learning.batches import PreferenceData, critic_system, encode, within
        from sweetrl.learning.pairs import find_pairs, read_pairs
        from sweetrl.learning.trainers import CriticTrainer

        pairs = read_pairs(PAIRS)
        trajectories, indices = find_pairs(pairs, TrajectoryStore(TRAJECTORIES).read(), str(PAIRS))
        run.log_input("trajectories", TRAJECTORIES)
        run.log_input("pairs", PAIRS)
        run.log_input("base", settings.model.base)
        model, tokenizer = load_base(settings.model)
        chat, system = ChatFormat(tokenizer), system_prompt(settings.agent.prompt, settings.suite)
        prefix = privileged_prefix if settings.critic.privileged else lambda task: None
        rows = tuple(encode(one, chat, critic_system(prefix(one.task), system)) for one in trajectories)
        tasks = {one.task.id: number for number, one in enumerate(trajectories)}
        groups = tuple(tasks[one.task.id] for one in trajectories)
        data, too_long = within(PreferenceData(rows, tuple(indices), groups=groups), context_limit(model))
        run.log_metrics({"pairs": len(data.pairs), "pairs_too_long": too_long})
        scratch = run.scratch(TRAJECTORIES, PAIRS, Path(settings.model.base))
        progress = Progress(run)
        trainer = CriticTrainer(
            attach_adapter(model, settings.critic.lora, settings.seed),
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
