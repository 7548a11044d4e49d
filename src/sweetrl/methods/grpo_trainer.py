"""The losses of GRPO, and its trainer: iteration after iteration, attempts by the current policy and steps on them.

    (1/L_r) sum_l [ -min(q A, clip(q, 1-e, 1+e) A) + kl KL(pi_theta || pi_ref) ],  q = pi_theta / pi_old

With `credit: distillation` the first term is the divergence from the base that sees c (`distillation_loss`).
transformers.Trainer underneath, as for the other methods: a run is a fixed number of steps, and the step that begins an
iteration asks for its attempts first. Checkpoints lie at the ends of iterations. Import this module where training
happens: it loads transformers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweetrl.config.settings import GrpoSettings
from sweetrl.errors import UserError
from sweetrl.lm.data import MicroBatch, PreferenceData, plan
from sweetrl.lm.distributed import broadcast, patient_group, wants_shards
from sweetrl.lm.head import token_logprobs, vocabulary_kl
from sweetrl.lm.passes import reply_states
from sweetrl.lm.reference import reference_logprobs, row_logprobs
from sweetrl.methods.credit import Attempts, privileged_advantages
from sweetrl.sweet.advantage import segment_mean
from sweetrl.sweet.trainer import Metrics, PreferenceTrainer, Report

Sample = Callable[[int, Any], Attempts]  # (iteration from 0, the model with its adapter) -> its attempts


def clipped_loss(logprobs: Tensor, old: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-min( q A, clip(q, 1-e, 1+e) A ), q = pi_theta / pi_old, of each token (PPO, Schulman et al. 2017, Eq. 7), [N].

    `logprobs`, `old`, `advantage` [N]; pi_old is the policy that sampled the tokens, e is `clip`.
    """
    ratio = (logprobs - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def policy_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(pi_theta || pi_ref) of each token, estimated on tokens drawn from pi_theta: q - 1 - log q, q = pi_ref/pi, [N].

    Never negative, and 0 with a gradient of 0 at the reference (Schulman's k3, the penalty of GRPO).
    """
    log_ratio = reference - logprobs
    return log_ratio.exp() - 1.0 - log_ratio


def group_policy_loss(
    logprobs: Tensor,
    old: Tensor,
    reference: Tensor,
    advantage: Tensor,
    token_row: Tensor,
    rows: int,
    clip: float,
    kl: float,
) -> Tensor:
    """(1/L_r) sum_l [ -min(ratio A, clip(ratio) A) + kl KL(pi_theta || pi_ref) ] of each attempt r, [R] (GRPO).

    All else is [N]: the reply tokens of R = `rows` attempts; `token_row` says which attempt a token belongs to.
    """
    each = clipped_loss(logprobs, old, advantage, clip) + kl * policy_kl(logprobs, reference)
    return segment_mean(each, token_row, rows)


def distillation_loss(
    divergence: Tensor, logprobs: Tensor, reference: Tensor, token_row: Tensor, rows: int, kl: float
) -> Tensor:
    """(1/L_r) sum_l [ KL(pi_theta(. | o, a^{<l}) || pi_ref(. | o, c, a^{<l})) + kl KL(pi_theta || pi_ref) ], [R].

    On-policy self-distillation with the divergence of each token taken over the whole vocabulary (Zhao et al.,
    "Self-Distilled Reasoner", 2026), here the reverse KL, as in OPSD for agents of several turns (Penaloza et al.,
    arXiv 2602.04942). `credit: privileged` estimates the first term on the token that was sampled.

    Departs from both in the teacher, which is the frozen base and not the policy of the moment, and in having no
    reward; from the former in its bound on a token's divergence, from the latter's pi-Distill, which trains teacher
    and policy together. `divergence`, `logprobs`, `reference` [N] are of the reply tokens of R = `rows` attempts.
    """
    return segment_mean(divergence + kl * policy_kl(logprobs, reference), token_row, rows)


class GroupTrainer(PreferenceTrainer):
    """GRPO on whole dialogues; an attempt is a pair with itself, so that it is planned, cut and laid out like the rest.

    `sample` is asked once an iteration, in the first process. pi_old is the policy at the start of the iteration, or
    what the attempts have `recorded` of the one that sampled them; pi_ref is the model with its adapter off.
    """

    settings: GrpoSettings
    compares = False  # with what `begin` lays out
    waiting: Any = None  # in what group the other processes wait while the first one samples

    def __init__(
        self,
        model: Any,
        sample: Sample,
        settings: GrpoSettings,
        scratch: Path,
        seed: int,
        pad_id: int = 0,
        report: Report | None = None,
    ):
        if wants_shards():
            raise UserError(
                "method grpo: the policy samples while it learns, which a sharded model cannot; start without FSDP."
            )
        self.sample, self.seed = sample, seed
        dialogues = settings.tasks * settings.group_size
        self.steps_each = max(1, round(settings.epochs * dialogues / settings.batch_size))
        self.iteration, self.attempts, self.plan = -1, Attempts((), (), ()), list[MicroBatch]()
        steps: Any = range(settings.iterations * self.steps_each)
        super().__init__(model, PreferenceData((), ()), settings, scratch, seed, pad_id, report, steps=steps)
        self.data_collator = lambda items: {"step": torch.tensor(items[0])}
        # Checkpoints lie at the ends of iterations, and between the entries of metrics.
        unit = math.lcm(self.steps_each, int(self.args.logging_steps))
        between = self.steps_each * math.ceil(settings.iterations / settings.checkpoints)
        self.args.save_steps = unit * math.ceil(between / unit)
        self.waiting = patient_group()

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One step; the first one of an iteration has its attempts made before.

        Not in the data loader, which reads a batch ahead: the attempts would be those of an older policy.
        """
        iteration, place = divmod(int(inputs["step"]), self.steps_each)
        if iteration != self.iteration:
            self.begin(iteration)
        return super().training_step(model, {"step": self.plan[place]}, num_items_in_batch)

    def begin(self, iteration: int) -> None:
        """Have the attempts of an iteration made, and lay out its steps."""
        model = self.accelerator.unwrap_model(self.model)
        model.eval()
        started = time.perf_counter()
        self.attempts = broadcast(lambda: self.sample(iteration, model), self.waiting)
        seconds = time.perf_counter() - started
        rows, settings = self.attempts.rows, self.settings
        self.attempts.metrics["seconds_sampling"] = seconds
        self.data = PreferenceData(rows, tuple((n, n) for n in range(len(rows))), groups=self.attempts.groups)
        epochs = self.steps_each * settings.batch_size / len(rows)  # exact, however many dialogues were lost
        seed = self.seed * 1_000_003 + iteration
        self.plan = plan(self.data, epochs, settings.batch_size, seed, max_pairs_per_group=settings.max_pairs_per_group)
        if self.attempts.recorded:
            old = [torch.tensor(values) for values in self.attempts.recorded]
        else:
            old = row_logprobs(model, rows, self.layout, together=True)
        reference = reference_logprobs(model, rows, self.layout)
        advantages = []
        for row, turns, logprobs in zip(rows, self.attempts.advantages, old, strict=True):
            lengths = torch.tensor([end - start for start, end in row.spans])
            advantages.append(torch.tensor(turns, dtype=torch.float64).repeat_interleave(lengths).to(logprobs))
        if self.attempts.informed and settings.credit != "distillation":
            teacher = reference_logprobs(model, self.attempts.informed, self.layout)
            advantages = [privileged_advantages(*logprobs) for logprobs in zip(teacher, old, strict=True)]
        # What a token is compared with, side by side: [reply tokens, 3] for each row.
        self.reference = [torch.stack(each, 1) for each in zip(old, reference, advantages, strict=True)]
        self.iteration = iteration
        self._step_start = time.perf_counter()  # tokens per second are those of the steps

    def collate(self, part: MicroBatch) -> dict[str, Any]:
        """Beside the rows of a micro-batch, what the teacher reads of them (`credit: distillation`)."""
        batch = super().collate(part)
        if self.settings.credit == "distillation":
            order = dict.fromkeys(number for number, _ in part.pairs)
            batch["rows"]["informed"] = self.layout.collate([self.attempts.informed[number] for number in order])
        return batch

    def outputs(self, rows: dict[str, Any]) -> Tensor:
        """The log-probs [N] of the reply tokens; with `credit: distillation` beside them the divergence, [N, 2]."""
        if "informed" not in rows:
            return super().outputs(rows)
        model: Any = self.model
        with torch.no_grad(), model.disable_adapter():
            teacher, _, _ = reply_states(model, rows["informed"])
        hidden, tokens, head = reply_states(model, rows)
        return torch.stack([token_logprobs(head, hidden, tokens), vocabulary_kl(head, hidden, teacher)], 1)

    def pair_loss(self, outputs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """The clipped objective (or the divergence) and the KL penalty: means over tokens, then over attempts."""
        settings, rows = self.settings, batch["rows"]
        old, reference, advantage = batch["reference"].to(outputs).unbind(1)
        token_row, count = rows["turn_row"][rows["turn"]], len(rows["tokens"])
        if settings.credit == "distillation":
            logprobs, divergence = outputs.unbind(1)
            each = distillation_loss(divergence, logprobs, reference, token_row, count, settings.kl_coef)
        else:
            logprobs = outputs
            each = group_policy_loss(
                logprobs, old, reference, advantage, token_row, count, settings.clip_ratio, settings.kl_coef
            )
        with torch.no_grad():
            ratio = (logprobs - old).exp()
            over = (ratio > 1.0 + settings.clip_ratio) & (advantage > 0)
            under = (ratio < 1.0 - settings.clip_ratio) & (advantage < 0)
            metrics = {
                **({"teacher_kl": outputs[:, 1].mean()} if settings.credit == "distillation" else {}),
                "kl": policy_kl(logprobs, reference).mean(),
                "clip_share": (over | under).to(logprobs.dtype).mean(),
                "ratio": ratio.mean(),
            }
        share = batch["share"][0]
        return share * each[batch["chosen"]].mean(), metrics | self.attempts.metrics
