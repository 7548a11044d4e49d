"""GRPO: the policy attempts training tasks while it learns, and is told apart within groups of attempts at one task.

The tasks are those that `collect` attempts, from `collect.first` on, and rewards come from the same scorer. Every
iteration's dialogues lie in the scratch folder until the training ends, shard by shard; a killed run continues from its
last checkpoint with the same dialogues and ends with the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.learning.training import devices_of, last_fifth
from sweetrl.methods.base import Method, TrainingJob
from sweetrl.progress import first_process
from sweetrl.seeds import part_seed
from sweetrl.settings import GrpoSettings, Settings
from sweetrl.types import TrainingResult

if TYPE_CHECKING:
    from sweetrl.learning.batches import Row
    from sweetrl.learning.groups import Attempts
    from sweetrl.rollout.context import RolloutContext
    from sweetrl.types import Task, Trajectory

FINAL = ("loss", "return", "success", "kl", "clip_share", "reply_length", "grad_norm", "tokens_per_second", "info_gain")


class Grpo(Method):
    """On-policy policy gradients with the user in the loop."""

    name, section, settings_type = "grpo", "grpo", GrpoSettings
    needs = frozenset({"tasks"})
    once = "the method `grpo` samples with the current policy by itself; raise grpo.iterations"

    def dialogues(self, settings: Settings) -> int:
        """Those that it makes itself."""
        wanted = settings.grpo
        return wanted.iterations * wanted.tasks * wanted.group_size

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train the policy on its own attempts."""
        from sweetrl.engines.make import make_agent, serving
        from sweetrl.learning.adapters import attach_adapter, load_base, save_adapter
        from sweetrl.learning.online import GroupTrainer
        from sweetrl.learning.reporting import report_to
        from sweetrl.rollout.environment import open_environment

        settings, wanted, scratch = job.settings, job.settings.grpo, job.scratch
        if wanted.credit == "privileged" and not settings.critic.privileged:
            raise UserError(
                "grpo.credit: `privileged` is what c changes, and with `critic.privileged: false` nobody sees c; "
                "set it to true, or take another credit."
            )
        tasks = job.inputs.tasks()
        model, tokenizer = load_base(settings.model)
        started = time.monotonic()
        with ExitStack() as stack:
            if first_process():  # of several processes that train the first one alone samples
                engine = stack.enter_context(
                    serving(settings.engine, settings.model, scratch / "server.log", wanted.lora.rank)
                )
                environment = stack.enter_context(open_environment(job.domain))

            def sample(iteration: int, policy: Any) -> Attempts:
                """Let the current policy attempt the iteration's tasks."""
                folder = scratch / f"iteration-{iteration:04d}"
                save_adapter(policy, folder / "adapter", settings.model.base)
                agent = make_agent(engine, settings.model, folder / "adapter", settings.collect.batch)
                try:
                    return attempts(tasks, environment.context(agent), folder / "dialogues", job, iteration, policy)
                finally:
                    agent.engine.close()

            trainer = GroupTrainer(
                attach_adapter(model, wanted.lora, settings.seed),
                sample,
                wanted,
                scratch,
                settings.seed,
                tokenizer.pad_token_id or 0,
                job.progress,
            )
            report_to(trainer, settings.tracking, "train-policy")
            try:
                history = trainer.fit()
            finally:
                if job.progress is not None:
                    job.progress.close()
        seconds = time.monotonic() - started
        if not first_process():
            return TrainingResult(scratch / "adapter", "", {}, trainer.model)
        save_adapter(trainer.model, scratch / "adapter", settings.model.base)
        final = last_fifth(history, FINAL)
        dialogues = self.dialogues(settings)
        return TrainingResult(
            scratch / "adapter",
            f"{len(history)} steps on {dialogues:,} dialogues of its own, success {history[0]['success']:.1%} at first "
            f"and {final['final/success']:.1%} in the last fifth",
            final | {"dialogues": dialogues, "gpu_seconds": seconds * devices_of(trainer)},
            trainer.model,
        )


def attempts(
    tasks: list[Task], context: RolloutContext, folder: Path, job: TrainingJob, iteration: int, policy: Any
) -> Attempts:
    """Attempt an iteration's tasks, a group of times each, into `folder`, and lay out what came of it.

    `policy` is the model that attempts them, which also says what their turns have found out (`grpo.credit`).
    """
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.learning.groups import lay_out
    from sweetrl.learning.information import turn_gains
    from sweetrl.learning.pairs import usable
    from sweetrl.learning.ranking import rankable
    from sweetrl.learning.whole import critic_row
    from sweetrl.models import context_limit
    from sweetrl.rollout.run import batch_of, rollout_scored

    settings, wanted = job.settings, job.settings.grpo
    chosen = batch_of(tasks, settings.collect.first + iteration * wanted.tasks, wanted.tasks)
    store = rollout_scored(
        [(task, attempt) for task in chosen for attempt in range(wanted.group_size)],
        context,
        TrajectoryStore(folder),
        seed=part_seed(settings.seed, "iteration", iteration + 1),
        policy_name=f"{settings.model.base} after {iteration} iterations",
        batch=settings.collect.batch,
        shard=settings.collect.shard,
        lost_share=settings.collect.lost_share,
    )
    chat = context.chat or job.chat

    def informs(dialogues: Sequence[Trajectory], rows: Sequence[Row]) -> Sequence[Sequence[float]]:
        return turn_gains(policy, dialogues, rows, job.domain, chat, wanted)

    def privileged(dialogue: Trajectory) -> Row:
        return critic_row(dialogue, job.domain, chat, job.system, settings.critic)

    dialogues: Sequence[Trajectory] = list(store.read())
    if wanted.credit == "privileged":
        limit = context_limit(policy)
        dialogues = rankable([one for one in dialogues if usable(one)], job.domain, chat, job.system, True, limit)
    return lay_out(dialogues, chat, job.system, wanted, informs, privileged)
