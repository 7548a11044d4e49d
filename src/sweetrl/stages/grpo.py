"""The part of stage `train-policy` that is method `grpo`: the policy attempts training tasks while it learns.

data/tasks/train.parquet -> models/policy/. The tasks are those that `collect` attempts, from `collect.first` on, and
rewards come from the same sandbox. Every iteration's dialogues lie in the scratch folder until the stage ends, shard by
shard; a killed run continues from its last checkpoint with the same dialogues and ends with the same bytes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.settings import Settings
from sweetrl.stages.collect import TASKS, batch_of
from sweetrl.stages.common import StageRun, derived_seed, publish
from sweetrl.stages.training import POLICY, TRAJECTORIES, Progress, devices_of

if TYPE_CHECKING:
    from sweetrl.colbench.types import Task
    from sweetrl.learning.groups import Attempts
    from sweetrl.rollout.scored import Actors

FINAL = ("loss", "return", "success", "kl", "clip_share", "reply_length", "grad_norm", "tokens_per_second")


def train_online(run: StageRun) -> None:
    """Train the policy on its own attempts and write its adapter."""
    from sweetrl.colbench.rewards import Scorer
    from sweetrl.colbench.store import read_task_table
    from sweetrl.engines.make import make_agent, serving
    from sweetrl.learning.adapters import attach_adapter, load_base, save_adapter
    from sweetrl.learning.online import GroupTrainer
    from sweetrl.rollout.people import person
    from sweetrl.rollout.scored import Actors

    settings, wanted = run.settings, run.settings.grpo
    tasks = read_task_table(TASKS)
    run.log_input("train-tasks", TASKS)
    run.log_input("base", settings.model.base)
    # The offline dialogues are not learnt from, but follow from all that decides the dialogues of this stage.
    scratch = run.scratch(TASKS, TRAJECTORIES, Path(settings.model.base))
    model, tokenizer = load_base(settings.model)
    progress = Progress(run)
    started = time.monotonic()
    with (
        serving(settings.engine, settings.model, scratch / "server.log", wanted.lora.rank) as engine,
        person(settings.simulator, settings.model) as simulator,
        Scorer(settings.reward) as scorer,
    ):

        def sample(iteration: int, policy: Any) -> Attempts:
            """Let the policy of the moment attempt the iteration's tasks."""
            folder = scratch / f"iteration-{iteration:04d}"
            save_adapter(policy, folder / "adapter", settings.model.base)
            agent = make_agent(engine, settings.model, folder / "adapter", settings.collect.batch)
            words = settings.simulator.reply_characters
            actors = Actors(agent.engine, agent.chat, simulator, scorer, settings.agent, words)
            try:
                return attempts(tasks, actors, folder / "dialogues", settings, iteration)
            finally:
                agent.engine.close()

        trainer = GroupTrainer(
            attach_adapter(model, wanted.lora, settings.seed),
            sample,
            wanted,
            scratch,
            settings.seed,
            tokenizer.pad_token_id or 0,
            progress,
        )
        try:
            history = trainer.fit()
        finally:
            progress.close()
    seconds = time.monotonic() - started
    save_adapter(trainer.model, scratch / "adapter", settings.model.base)
    publish(scratch / "adapter", POLICY)
    tail = history[-max(1, len(history) // 5) :]  # the last fifth: single steps are noisy
    final = {f"final/{name}": sum(entry[name] for entry in tail) / len(tail) for name in FINAL}
    dialogues = wanted.iterations * wanted.tasks * wanted.group
    run.log_metrics(final | {"dialogues": dialogues, "gpu_seconds": seconds * devices_of(trainer)})
    run.summary = (
        f"{len(history)} steps on {dialogues:,} dialogues of its own, success {history[0]['success']:.1%} at first and "
        f"{final['final/success']:.1%} in the last fifth, adapter in {POLICY}"
    )


def attempts(tasks: list[Task], actors: Actors, folder: Path, settings: Settings, iteration: int) -> Attempts:
    """Attempt an iteration's tasks, a group of times each, into `folder`, and lay out what came of it."""
    from sweetrl.colbench.prompts import system_prompt
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.engines.transformers import load_tokenizer
    from sweetrl.learning.groups import lay_out
    from sweetrl.rollout.scored import rollout_scored

    wanted = settings.grpo
    chosen = batch_of(tasks, settings.collect.first + iteration * wanted.tasks, wanted.tasks)
    each = [(task, attempt) for task in chosen for attempt in range(wanted.group)]
    store = rollout_scored(
        each,
        actors,
        TrajectoryStore(folder),
        seed=derived_seed(settings.seed, "iteration", iteration + 1),
        policy_name=f"{settings.model.base} after {iteration} iterations",
        batch=settings.collect.batch,
        shard=settings.collect.shard,
        lost_share=settings.collect.lost_share,
    )
    chat = actors.chat or ChatFormat(load_tokenizer(settings.model.base))
    return lay_out(list(store.read()), chat, system_prompt(settings.agent.prompt), wanted)


__all__ = ["attempts", "train_online"]
