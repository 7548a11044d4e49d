"""GRPO: the policy attempts training tasks while it learns; attempts at one task are a group, compared with each other.

The tasks are those that `collect` attempts, from `collect.first` on, and rewards come from the same scorer. Every
iteration's dialogues lie in the scratch folder until the training ends, shard by shard; a killed run continues from its
last checkpoint with the same dialogues and ends with the same bytes. The losses and the trainer are in
sweetrl.methods.grpo_trainer, what a turn's advantage is in sweetrl.methods.credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import CollectSettings, GrpoSettings
from sweetrl.console.progress import first_process
from sweetrl.errors import UserError
from sweetrl.methods.base import Method
from sweetrl.methods.credit import INFORMED, PRIVILEGED, Attempts, lay_out, turn_gains
from sweetrl.seeds import part_seed
from sweetrl.sweet.data import critic_row
from sweetrl.sweet.pairs import usable
from sweetrl.sweet.training import TrainingJob, last_fifth, report_to, run_trainer
from sweetrl.types import Task, TrainingResult, Trajectory

if TYPE_CHECKING:
    from sweetrl.rollout.context import RolloutContext

FINAL = (
    *("loss", "return", "success", "kl", "clip_share", "reply_length", "grad_norm", "tokens_per_second"),
    *("info_gain", "teacher_kl"),
)


class Grpo(Method):
    """On-policy policy gradients with the user in the loop."""

    name, section, settings_type = "grpo", "grpo", GrpoSettings
    needs = frozenset({"tasks"})
    once = "the method `grpo` samples with the current policy by itself; raise grpo.iterations"

    def dialogues(self, settings: GrpoSettings, collect: CollectSettings, iterations: int) -> int:
        """Those that it makes itself."""
        return settings.iterations * settings.tasks * settings.group_size

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train the policy on its own attempts."""
        from sweetrl.engines.policy import Policy
        from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter
        from sweetrl.methods.grpo_trainer import GroupTrainer
        from sweetrl.rollout.context import open_environment

        grpo, scratch = job.settings, job.scratch
        if grpo.credit in PRIVILEGED and not job.critic.privileged:
            raise UserError(
                f"grpo.credit: `{grpo.credit}` is what c changes, and with `critic.privileged: false` nobody sees c; "
                "set it to true, or take another credit."
            )
        tasks = job.inputs.tasks()
        model, tokenizer = load_base(job.model)
        with ExitStack() as stack:
            if first_process():  # of several processes that train the first one alone samples
                actor = stack.enter_context(
                    Policy(job.model, job.engine).serving(scratch / "server.log", grpo.lora.rank)
                )
                environment = stack.enter_context(open_environment(job.domain))

            def sample(iteration: int, policy: Any) -> Attempts:
                """Let the current policy attempt the iteration's tasks."""
                folder = scratch / f"iteration-{iteration:04d}"
                save_adapter(policy, folder / "adapter", job.model.base)
                agent = actor.adapted(folder / "adapter").open(job.collect.batch, singly=True)
                try:
                    return attempts(tasks, environment.context(agent), folder / "dialogues", job, iteration, policy)
                finally:
                    agent.engine.close()

            trainer = GroupTrainer(
                attach_adapter(model, grpo.lora, job.seed),
                sample,
                grpo,
                scratch,
                job.seed,
                tokenizer.pad_token_id or 0,
                job.progress,
            )
            report_to(trainer, job.tracking, "train-policy")
            result = run_trainer(trainer, scratch, job.model.base, job.progress)
        if not first_process():
            return result
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        final, dialogues = last_fifth(history, FINAL), self.dialogues(grpo, job.collect, 1)
        summary = (
            f"{len(history)} steps on {dialogues:,} dialogues of its own, success {history[0]['success']:.1%} in the "
            f"first {dialogues // len(history):,} and {final['final/success']:.1%} in the last fifth"
        )
        spent = {"dialogues": dialogues, "gpu_seconds": result.metrics["gpu_seconds"]}
        return replace(result, summary=summary, metrics=final | spent)


def attempts(
    tasks: list[Task], context: RolloutContext, folder: Path, job: TrainingJob, iteration: int, policy: Any
) -> Attempts:
    """Attempt an iteration's tasks, a group of times each, into `folder`, and lay out what came of it.

    `policy` is the model that attempts them, which also says what their turns have found out (`grpo.credit`).
    """
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.models.load import context_limit
    from sweetrl.rollout.run import batch_of, rollout_scored
    from sweetrl.sweet.rank import rankable

    grpo = job.settings
    chosen = batch_of(tasks, job.collect.first + iteration * grpo.tasks, grpo.tasks)
    store = rollout_scored(
        [(task, attempt) for task in chosen for attempt in range(grpo.group_size)],
        context,
        TrajectoryStore(folder),
        seed=part_seed(job.seed, "iteration", iteration + 1),
        policy_name=f"{job.model.base} after {iteration} iterations",
        batch=job.collect.batch,
        shard=job.collect.shard,
        lost_share=job.collect.lost_share,
    )
    chat = context.chat or job.chat
    dialogues: Sequence[Trajectory] = list(filter(usable, store.read()))
    informs, privileged = None, None
    if grpo.credit in PRIVILEGED:
        dialogues = rankable(dialogues, job.domain, chat, job.system, True, context_limit(policy))
        privileged = partial(critic_row, domain=job.domain, chat=chat, system=job.system, settings=job.critic)
    elif grpo.credit in INFORMED:
        informs = partial(turn_gains, policy, domain=job.domain, chat=chat, settings=grpo)
    made = lay_out(dialogues, chat, job.system, grpo, informs, privileged)
    if job.learn_thoughts:
        return made
    return replace(made, rows=tuple(job.learnt(made.rows)), informed=tuple(job.learnt(made.informed)))
