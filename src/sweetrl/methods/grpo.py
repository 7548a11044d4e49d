"""GRPO: the policy attempts training tasks while it learns; attempts at one task are a group, compared with each other.

The tasks are those that `collect` attempts, from `collect.first` on, and rewards come from the same scorer. Every
iteration's dialogues lie in the scratch folder until the training ends, shard by shard; a killed run continues from its
last checkpoint with the same dialogues and ends with the same bytes. The losses and the trainer are in
sweetrl.methods.grpo_trainer, what a turn's advantage is in sweetrl.methods.credit.

With `grpo.staleness: 1` a thread plays the dialogues of iteration t + 1 with the weights that iteration t began with,
while iteration t is learnt from. Those weights lie beside the dialogues before the learning goes on, so the result does
not depend on who is faster, nor on where a run was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import CollectSettings, GrpoSettings
from sweetrl.console.progress import first_process
from sweetrl.errors import UserError
from sweetrl.lm.recorded import LEAST, recorded_logprobs
from sweetrl.methods.base import Method
from sweetrl.methods.credit import INFORMED, PRIVILEGED, Attempts, lay_out, turn_gains
from sweetrl.models.check import is_trained
from sweetrl.seeds import part_seed
from sweetrl.sweet.data import critic_row
from sweetrl.sweet.pairs import usable
from sweetrl.sweet.training import TrainingJob, last_fifth, report_to, run_trainer
from sweetrl.types import Task, TrainingResult, Trajectory

if TYPE_CHECKING:
    from sweetrl.engines.policy import Agent, Policy
    from sweetrl.lm.data import Row
    from sweetrl.protocols import Chat
    from sweetrl.rollout.context import OpenEnvironment

Played = tuple[list[Trajectory], "Chat"]  # an iteration's dialogues, and the chat format of their tokens
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
        from sweetrl.engines.slots import written_by_index
        from sweetrl.engines.transformers import samples_in_slots
        from sweetrl.lm.adapters import load_base, trainable
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
            rollouts: Any = None
            if first_process():  # of several processes that train the first one alone samples
                actor = Policy(job.model, job.engine)
                if job.model.train == "lora":  # else every iteration is a model of its own
                    actor = stack.enter_context(actor.serving(scratch / "server.log", grpo.lora.rank))
                environment = stack.enter_context(open_environment(job.domain))
                if grpo.staleness and samples_in_slots(model):
                    # Else the thread that samples would do and undo that in the middle of training steps: other
                    # kernels, and layers compiled anew. Equal bytes are not lost by it: in slots timing decides
                    # anyway which replies share a batch.
                    stack.enter_context(written_by_index())
                thread = stack.enter_context(ThreadPoolExecutor(1, "sweetrl-rollouts")) if grpo.staleness else None
                rollouts = Rollouts(job, tasks, actor, environment, thread)
            trainer = GroupTrainer(
                trainable(model, job.model, grpo.lora, job.seed, keep_reference=True),
                rollouts,
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


class Rollouts:
    """The attempts of each iteration, in order; with a `thread` it plays those of the next one meanwhile.

    `actor` is the policy without what is trained of it, `environment` has users and rewards. A killed run takes up the
    dialogues that are there.
    """

    def __init__(
        self,
        job: TrainingJob,
        tasks: list[Task],
        actor: Policy,
        environment: OpenEnvironment,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        self.job, self.tasks, self.actor, self.environment, self.thread = job, tasks, actor, environment, thread
        self._begun: dict[int, Future[Played]] = {}

    def __call__(self, iteration: int, policy: Any) -> Attempts:
        """Attempt the tasks of `iteration` and lay out what came of it.

        `policy` is the model as it stands; it also gives the information gains (`grpo.credit`).
        """
        if self.thread is None:
            return self._laid_out(*self._player(iteration, policy)(), policy)
        if iteration not in self._begun:
            self._begin(iteration, policy, self.thread)
        played = self._begun.pop(iteration).result()
        if iteration + 1 < self.job.settings.iterations:
            self._begin(iteration + 1, policy, self.thread)
        return self._laid_out(*played, policy)

    def _begin(self, iteration: int, policy: Any, thread: ThreadPoolExecutor) -> None:
        import torch

        with torch.random.fork_rng():  # loading draws numbers, and a run that was killed loads once more
            play = self._player(iteration, policy)
        self._begun[iteration] = thread.submit(play)

    def _player(self, iteration: int, policy: Any) -> Callable[[], Played]:
        """Load the policy as it stands for an iteration's dialogues, and return what plays them.

        Weights that lie there are those of a run that was killed, which had begun the iteration earlier.
        """
        from sweetrl.lm.adapters import save_trained

        folder = self.job.scratch / f"iteration-{iteration:04d}"
        if self.thread is None or not is_trained(folder / "adapter"):
            save_trained(policy, folder / "adapter", self.job.model.base)
        with ExitStack() as opened:
            policy = self.actor.adapted(folder / "adapter")
            served = opened.enter_context(policy.serving(self.job.scratch / "server.log"))
            agent = served.open(self.job.collect.batch, singly=True)
            opened.callback(agent.engine.close)
            closing = opened.pop_all()

        def play() -> Played:
            with closing:
                return self._play(iteration, agent, folder / "dialogues")

        return play

    def _play(self, iteration: int, agent: Agent, folder: Path) -> Played:
        """Attempt an iteration's tasks, a group of times each, into `folder`."""
        from sweetrl.colbench.store import TrajectoryStore
        from sweetrl.rollout.run import batch_of, rollout_scored

        job, grpo = self.job, self.job.settings
        chosen = batch_of(self.tasks, job.collect.first + iteration * grpo.tasks, grpo.tasks)
        store = rollout_scored(
            [(task, attempt) for task in chosen for attempt in range(grpo.group_size)],
            self.environment.context(agent),
            TrajectoryStore(folder),
            seed=part_seed(job.seed, "iteration", iteration + 1),
            policy_name=f"{job.model.base} after {max(0, iteration - grpo.staleness)} iterations",
            batch=job.collect.batch,
            shard=job.collect.shard,
            lost_share=job.collect.lost_share,
        )
        return list(filter(usable, store.read())), agent.chat or job.chat

    def _laid_out(self, dialogues: Sequence[Trajectory], chat: Chat, policy: Any) -> Attempts:
        from sweetrl.models.load import context_limit
        from sweetrl.sweet.rank import rankable

        job, grpo = self.job, self.job.settings
        informs, privileged = None, None
        if grpo.credit in PRIVILEGED:
            dialogues = rankable(dialogues, job.domain, chat, job.system, True, context_limit(policy))
            privileged = partial(critic_row, domain=job.domain, chat=chat, system=job.system, settings=job.critic)
        elif grpo.credit in INFORMED:
            informs = partial(turn_gains, policy, domain=job.domain, chat=chat, settings=grpo)
        made = lay_out(dialogues, chat, job.system, grpo, informs, privileged)
        rows = made.rows
        if not job.learn_thoughts:
            made = replace(made, rows=tuple(job.learnt(rows)), informed=tuple(job.learnt(made.informed)))
        if self.thread is None:
            return made
        return replace(made, recorded=tuple(map(behaviour_logprobs, dialogues, rows, made.rows)))


def behaviour_logprobs(dialogue: Trajectory, row: Row, learnt: Row) -> tuple[float, ...]:
    """Return the log-probs that the policy recorded as it sampled, of the reply tokens that are `learnt` of a row."""
    recorded = recorded_logprobs(dialogue, row)
    if not all(value > LEAST for value in recorded.logprobs):
        raise UserError(
            f"grpo.staleness: 1 needs the log-prob of every token as it was sampled, and {recorded.name} lacks some; "
            "set it to 0, or take another engine."
        )
    kept = {place for start, end in learnt.spans for place in range(start, end)}
    places = (place for start, end in row.spans for place in range(start, end))
    return tuple(value for place, value in zip(places, recorded.logprobs, strict=True) if place in kept)
