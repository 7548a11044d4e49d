"""Training of the critic (Eq. 2) and of the policy (Eq. 4): one transformers.Trainer, and what each minimises.

CriticTrainer is stage 1, PolicyTrainer and ListwiseTrainer are stage 2; they stand at the end of the file.

One model holds both sides: the policy is the base with its adapter, the reference the same base with the adapter
switched off (its log-probs are computed once, before training). Import this module where training happens: it loads
transformers.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PrinterCallback, Trainer

from sweetrl.config.settings import CriticSettings, PolicySettings, PreferenceSettings, RftSettings, TrainerSettings
from sweetrl.errors import UserError
from sweetrl.lm.compiled import compile_layers
from sweetrl.lm.data import MicroBatch, PreferenceData, collate_pairs, plan
from sweetrl.lm.distributed import add_gradients, all_gather, broadcast, shard_layers, wants_shards
from sweetrl.lm.head import base_of
from sweetrl.lm.memory import no_room, no_room_beside, pass_tokens
from sweetrl.lm.passes import cut_step, model_layout, reply_logprobs, share_of_step, to_device
from sweetrl.lm.recorded import Recorded, compare
from sweetrl.lm.reference import reference_logprobs
from sweetrl.lm.rows import longest_of
from sweetrl.sweet.advantage import Normalization, segment_mean, segment_sum, trajectory_scores, turn_advantages
from sweetrl.sweet.arguments import Checkpoints, last_checkpoint, training_arguments
from sweetrl.sweet.losses import critic_loss, ipo_loss, listwise_loss, policy_loss, reference_kl, token_nll

Metrics = dict[str, Any]  # numbers; within a step also tensors of one, which are read together at its end
Report = Callable[[int, int, Metrics], None]  # (step, steps, metrics of that step)

logger = logging.getLogger("sweetrl")


class PreferenceTrainer(Trainer):
    """A Trainer over a plan of steps (by default `plan` makes it); subclasses give the loss and its metrics.

    A step is computed in as many micro-batches as its tokens need; its loss and gradient do not depend on how it is
    cut. Under torchrun or `accelerate launch` each process computes a share of every step's pairs, and gradients are
    added up; with FSDP the frozen base is sharded over them (sweetrl.lm.distributed).
    """

    compares = True  # whether the loss or its metrics look at the reference's log-probs
    compiled_from = 50  # steps, where attention is FlexAttention: fewer take less time than compiling layers

    def __init__(
        self,
        model: Any,
        data: PreferenceData,
        settings: TrainerSettings,
        scratch: Path,
        seed: int,
        pad_id: int = 0,
        report: Report | None = None,
        replay: float = 0.0,
        cache: Path | None = None,
        steps: Sequence[MicroBatch] | None = None,
        recorded: Sequence[Recorded] | None = None,
    ):
        groups = settings.max_pairs_per_group
        plan_ = steps or plan(data, settings.epochs, settings.batch_size, seed, replay, groups)
        self.settings, self.data, self.report, self.steps = settings, data, report, len(plan_)
        self._step_metrics: list[tuple[int, int, Metrics]] = []  # pairs, replay and metrics of each micro-batch
        self._step_tokens, self._step_computed, self._step_start = 0, 0, time.perf_counter()
        self._pass = 0, 0  # pairs and tokens of the pass that was begun last
        device = next(model.parameters()).device
        self.sharded = wants_shards()
        arguments = training_arguments(settings, scratch, seed, self.steps, device, self.sharded)
        if self.sharded:
            shard_layers(model, arguments.device)
            device = arguments.device  # until now the model was on the CPU
            model._is_accelerate_prepared = True  # no wrapper: gradients are added up in training_step
        self.layout = model_layout(model, settings.layout, pad_id=pad_id)
        self._checkpointing = self._fit_passes(model, device)
        self.compared = {} if recorded is None else compare(model, recorded, self.layout)
        if self._checkpointing:
            self._checkpoint(model)
        # An adapter that already changes the model: then its start, not the bare base, is the reference.
        trained = any("lora_B" in name and bool(value.any()) for name, value in model.named_parameters())
        self.reference: Sequence[Tensor] | None = None
        if self.compares:
            rows = data.reference_rows or data.rows
            self.reference = reference_logprobs(model, rows, self.layout, cache, adapter=trained)
        if self.steps >= self.compiled_from and self.layout.backend == "flex" and not self.sharded:
            self.layout = replace(self.layout, lengths=compile_layers(model, self.layout.tokens))
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=list(plan_),
            data_collator=lambda items: {"step": items[0]},
            callbacks=[Checkpoints()],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False  # losses are means over a step
        # Listed once: the search walks over all modules.
        self._trained = [weight for weight in model.parameters() if weight.requires_grad]
        model.zero_grad = partial(_clear, self._trained)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted."""
        return 0

    def _clip_grad_norm(self, model: Any) -> Any:
        return self.accelerator.clip_grad_norm_(self._trained, self.args.max_grad_norm)

    def get_train_dataloader(self) -> DataLoader:
        """The steps in their order, all of them in every process."""
        return DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_size=1,
            sampler=SequentialSampler(self.train_dataset),  # type: ignore[arg-type]
            collate_fn=self.data_collator,
        )

    def make_micro_batches(self, step: MicroBatch) -> list[dict[str, Any]]:
        """This process's part of a step; `share` is the share of the step's pairs and replay in a micro-batch.

        Processes that share a model's layers compute equally many, those with fewer an `idle` one or more.
        """
        processes = self.args.world_size

        def parts(process_rank: int) -> list[MicroBatch]:
            own = share_of_step(self.data, step, self.layout, process_rank, processes)
            return cut_step(self.data, own, self.layout, self._most_pairs)

        micro_batches = []
        for part in parts(self.args.process_index):
            batch = self.collate(part)
            share = (len(part.pairs) / len(step.pairs), len(part.replay) / max(1, len(step.replay)))
            micro_batches.append(batch | {"share": share})
        if not self.sharded:
            return micro_batches
        most = max(len(parts(process_rank)) for process_rank in range(processes))
        return micro_batches + [micro_batches[-1] | {"idle": True}] * (most - len(micro_batches))

    def collate(self, part: MicroBatch) -> dict[str, Any]:
        """Make the tensors of a micro-batch."""
        return collate_pairs(self.data, part, self.reference, lay_out=self.layout.collate)

    def outputs(self, rows: dict[str, Any]) -> Tensor:
        """What the loss is made of: the log-probs [N] of a micro-batch's reply tokens."""
        model: Any = self.model
        return reply_logprobs(model, rows)

    def pair_loss(self, outputs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Return a micro-batch's part of the step's loss and its metrics, given its `outputs`."""
        raise NotImplementedError

    def _fit_passes(self, model: Any, device: torch.device) -> bool:
        """Set the most pairs and tokens of a pass; return if it takes gradient checkpointing. All processes agree."""
        lengths, least = longest_of(self.data.rows), 0
        by_memory = self.settings.tokens == "auto" and device.type == "cuda"
        self._most_pairs = self.settings.batch_size if by_memory else self.settings.micro_batch_size
        if by_memory and self.data.pairs:
            widest = max(self.data.pairs, key=lambda pair: sum(lengths[row] for row in pair))
            least = self.layout.cost([self.data.rows[row] for row in {*widest}])
        fits = all_gather(pass_tokens(model, self.settings.tokens, least, self.settings.gradient_checkpointing))
        self.layout = replace(self.layout, tokens=min(tokens for tokens, _ in fits))
        return any(checkpointing for _, checkpointing in fits)

    def _checkpoint(self, model: Any) -> None:
        self._checkpointing = True
        base_of(model).gradient_checkpointing_enable({"use_reentrant": False})

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward, part by part; returns the step's loss (its processes' losses have that mean).

        Where a pass does not fit into the device's memory, the step begins again with half the tokens in each.
        """
        if not model.training:
            model.train()
        counted = len(self._step_metrics), self._step_tokens, self._step_computed
        states = torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self.args.device.type == "cuda" else [])
        while True:
            try:
                return self._passes(model, inputs["step"])
            except torch.OutOfMemoryError as error:
                if self.sharded:  # the others wait in the middle of their passes
                    raise no_room(self.layout.tokens) from error
                failure = error.with_traceback(None)  # which holds what the pass has computed
            self._shrink(failure)
            model.zero_grad()
            del self._step_metrics[counted[0] :]
            self._step_tokens, self._step_computed = counted[1:]
            for restore, state in zip((torch.set_rng_state, torch.cuda.set_rng_state), states, strict=False):
                restore(state)

    def _shrink(self, failure: Exception) -> None:
        """Make passes smaller than the one that failed; UserError where nothing is left to be tried."""
        model, (pairs, tokens) = self.accelerator.unwrap_model(self.model), self._pass
        if pairs > 1:
            self.layout = replace(self.layout, tokens=max(1, min(self.layout.tokens, tokens) // 2))
            how = f"{self.layout.tokens:,} tokens in a pass from here on"
        elif not self._checkpointing:
            self._checkpoint(model)
            how = "gradient checkpointing from here on"
        else:
            raise no_room(tokens) from failure
        logger.warning("the device's memory is short: %s; step %d begins again", how, self.state.global_step + 1)
        torch.cuda.empty_cache()

    def _passes(self, model: Any, step: MicroBatch) -> Tensor:
        """Forward and backward of a step."""
        total = torch.zeros((), device=self.args.device)
        for micro_batch in self.make_micro_batches(step):
            batch = to_device(micro_batch, self.args.device)
            self._pass = len(batch["chosen"]), batch["rows"]["input_ids"].numel()
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, batch)
            self.accelerator.backward(loss)
            total += loss.detach()
        if self.args.world_size > 1:
            add_gradients(self.accelerator.unwrap_model(model))
        return total * self.args.world_size

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """One forward pass over the distinct rows of a micro-batch.

        The model itself is called, not what a distributed launcher has wrapped around it: gradients are added up later.
        """
        rows = inputs["rows"]
        outputs = self.outputs(rows)
        if inputs.get("idle"):
            return (outputs * 0.0).sum()
        loss, metrics = self.pair_loss(outputs, inputs)
        self._step_metrics.append((len(inputs["chosen"]), len(inputs["replay"]), metrics))
        self._step_tokens += inputs["tokens"]
        self._step_computed += rows["input_ids"].numel()
        return (loss, None) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the step's own metrics, so that they are in the checkpointed history and reach `report`.

        `tokens_per_second` counts the tokens of the distinct rows, `computed` is the share of them that went through
        the layers (with padding).
        """
        if self._step_metrics and "loss" in logs:
            parts = all_gather((_numbers(self._step_metrics), (self._step_tokens, self._step_computed)))
            micro_batches = [micro_batch for of_process, _ in parts for micro_batch in of_process]
            for name in dict.fromkeys(name for _, _, metrics in micro_batches for name in metrics):
                weighted = [
                    (replay if name == "loss/sft_replay" else pairs, metrics[name])
                    for pairs, replay, metrics in micro_batches
                    if name in metrics
                ]
                logs[name] = sum(weight * value for weight, value in weighted) / sum(weight for weight, _ in weighted)
            tokens, computed = (sum(counts) for counts in zip(*(counts for _, counts in parts), strict=True))
            logs["computed"] = computed / tokens
            now = time.perf_counter()
            logs["tokens_per_second"] = tokens / max(now - self._step_start, 1e-9)
            self._step_metrics, self._step_tokens, self._step_computed, self._step_start = [], 0, 0, now
            if not math.isfinite(logs["loss"]):
                raise UserError(
                    f"the loss is not finite at step {self.state.global_step}; lower the learning rate or beta."
                )
        super().log(logs, start_time)
        if self.report is not None and "loss" in logs and self.args.process_index == 0:
            self.report(self.state.global_step, self.steps, logs)

    def fit(self) -> list[Metrics]:
        """Train, from the last complete checkpoint in the scratch folder if there is one; return what was logged.

        The history spans the whole run, steps before an interruption included; each entry has the key `step`.
        """
        last = broadcast(lambda: last_checkpoint(Path(str(self.args.output_dir))))
        if last is not None and self.report is not None and self.args.process_index == 0:
            history = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
            for entry in history:
                self.report(int(entry["step"]), self.steps, {k: v for k, v in entry.items() if k != "step"})
        self._step_start = time.perf_counter()
        try:
            self.train(resume_from_checkpoint=str(last) if last is not None else None)
        except torch.OutOfMemoryError as error:  # outside of passes, which are cut
            raise no_room_beside() from error
        all_gather(None)  # no process removes checkpoints that others still write
        return [entry for entry in self.state.log_history if "loss" in entry]

    def scores(self, logprobs: Tensor, batch: dict[str, Any], normalization: Normalization) -> tuple[Tensor, Tensor]:
        """The scores of the chosen and of the rejected rows that a preference compares, [P] each."""
        rows = batch["rows"]
        scores = trajectory_scores(
            logprobs, batch["reference"], rows["turn"], rows["turn_row"], len(rows["tokens"]), normalization
        )
        return scores[batch["chosen"]], scores[batch["rejected"]]

    def nll(self, logprobs: Tensor, batch: dict[str, Any], members: str) -> Tensor:
        """The mean NLL per token of the rows `members` ("chosen", "replay"), each as often as it is among them."""
        rows = batch["rows"]
        weight = segment_sum(logprobs.new_ones(len(batch[members])), batch[members], len(rows["tokens"]))
        return token_nll(logprobs, weight, rows["turn_row"][rows["turn"]])

    def with_replay(
        self, loss: Tensor, metrics: Metrics, logprobs: Tensor, batch: dict[str, Any]
    ) -> tuple[Tensor, Metrics]:
        """Return a part of the step's loss and its metrics with sft_replay_nll * NLL(replay), where there is replay."""
        if not len(batch["replay"]):
            return loss, metrics
        settings: Any = self.settings
        replay = self.nll(logprobs, batch, "replay")
        loss = loss + batch["share"][1] * settings.sft_replay_nll * replay
        return loss, metrics | {"loss/sft_replay": replay.detach()}

    def pair_metrics(
        self, logprobs: Tensor, chosen: Tensor, rejected: Tensor, beta: float, batch: dict[str, Any]
    ) -> Metrics:
        """What scores [P] and log-probs [N] say of pairs: rewards, accuracy, distance to the reference, advantages."""
        rows, logprobs = batch["rows"], logprobs.detach()
        advantages = turn_advantages(logprobs, batch["reference"], rows["turn"], len(rows["turn_row"]))
        metrics = margin_metrics(chosen, rejected, beta) | self.value_metrics(advantages, batch)
        return metrics | {"reference_kl": reference_kl(logprobs, batch["reference"])}

    def value_metrics(self, values: Tensor, batch: dict[str, Any]) -> Metrics:
        """Mean value [T] and length of the replies of chosen and rejected rows, and by turn for critics."""
        rows = batch["rows"]
        turns = len(rows["turn_row"])
        with torch.no_grad():
            lengths = segment_sum(values.new_ones(len(rows["turn"])), rows["turn"], turns)
            result: Metrics = {}
            for name in ("chosen", "rejected"):
                own = batch[f"{name}_turns"]
                result[f"advantage/{name}"] = values[own].mean()
                result[f"reply_length/{name}"] = lengths[own].mean()
                if batch["turns"]["all"] > 1:
                    present = batch["turns"][name]  # in stage 2 single turns of dialogues
                    means = segment_mean(values[own], rows["turn_index"][own], present[-1] + 1)
                    result |= {f"advantage/{name}/turn_{turn + 1:02d}": means[turn] for turn in present}
        return result


def _numbers(counted: list[tuple[int, int, Metrics]]) -> list[tuple[int, int, Metrics]]:
    """Read the metrics that are tensors, all at once: the device is waited for a single time."""
    tensors = [value for _, _, metrics in counted for value in metrics.values() if isinstance(value, Tensor)]
    numbers = iter(torch.stack([tensor.double() for tensor in tensors]).tolist() if tensors else ())

    def read(metrics: Metrics) -> Metrics:
        return {name: next(numbers) if isinstance(value, Tensor) else value for name, value in metrics.items()}

    return [(pairs, replay, read(metrics)) for pairs, replay, metrics in counted]


def _clear(weights: Sequence[Tensor]) -> None:
    for weight in weights:
        weight.grad = None


def margin_metrics(chosen: Tensor, rejected: Tensor, beta: float) -> Metrics:
    """Rewards are beta times a score, as in DPO."""
    margin = (chosen - rejected).detach()
    return {
        "reward/chosen": beta * chosen.detach().mean().double(),
        "reward/rejected": beta * rejected.detach().mean().double(),
        "reward/margin": beta * margin.mean().double(),
        "accuracy": (margin > 0).to(margin.dtype).mean(),
    }


class CriticTrainer(PreferenceTrainer):
    """Stage 1: Eq. 2 on pairs of whole trajectories, plus `nll` times the chosen trajectory's NLL.

    The reference sees c, or it does not, where the data have `reference_rows`. Then the advantages begin as the
    privileged ratio, log pi_ref(a|o,c) - log pi_ref(a|o), not as 0: pairs that c tells apart have little left to teach,
    and `reference_kl` counts what c does, too.
    """

    settings: CriticSettings

    def pair_loss(self, logprobs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Eq. 2 + nll * NLL(chosen)."""
        settings = self.settings
        chosen, rejected = self.scores(logprobs, batch, settings.normalization)
        preference = critic_loss(chosen, rejected, settings.beta)
        nll = self.nll(logprobs, batch, "chosen")
        metrics = self.pair_metrics(logprobs, chosen, rejected, settings.beta, batch)
        metrics |= {"loss/preference": preference.detach(), "loss/nll": nll.detach()}
        return batch["share"][0] * (preference + settings.nll * nll), metrics


class PolicyTrainer(PreferenceTrainer):
    """Stage 2: Eq. 4 on pairs of replies to one state, plus NLL of the chosen replies and of the replay."""

    settings: PreferenceSettings

    def pair_loss(self, logprobs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Eq. 4 + nll * NLL(chosen) + sft_replay_nll * NLL(replay)."""
        settings = self.settings
        # `token` is the mean over all reply tokens of a row.
        chosen, rejected = self.scores(logprobs, batch, "none" if settings.normalization == "none" else "trajectory")
        if settings.loss == "ipo":
            preference = ipo_loss(chosen, rejected, settings.beta)
        else:
            preference = policy_loss(chosen, rejected, settings.beta, settings.label_smoothing)
        nll = self.nll(logprobs, batch, "chosen")
        loss = batch["share"][0] * (preference + settings.nll * nll)
        metrics = self.pair_metrics(logprobs, chosen, rejected, settings.beta, batch) | {
            "loss/preference": preference.detach(),
            "loss/nll": nll.detach(),
            "log_ratio/chosen": chosen.detach().mean(),
            "log_ratio/rejected": rejected.detach().mean(),
        }
        return self.with_replay(loss, metrics, logprobs, batch)


class ImitationTrainer(PreferenceTrainer):
    """Rejection Fine-Tuning: the likelihood of the replies of successful attempts, each a pair with itself."""

    settings: RftSettings

    def pair_loss(self, logprobs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """-(1/R) sum_r (1/L_r) sum_l log pi_theta(a^l): over all replies of an attempt, then over R attempts."""
        nll = self.nll(logprobs, batch, "chosen")
        metrics = {
            "loss/nll": nll.detach(),
            "reference_kl": reference_kl(logprobs.detach(), batch["reference"]),
            "reply_length/chosen": len(logprobs) / len(batch["rows"]["turn_row"]),
        }
        return batch["share"][0] * nll, metrics


class ListwiseTrainer(PreferenceTrainer):
    """Stage 2 as weighted likelihood of a state's candidates (sweetrl.sweet.preferences), plus NLL of the replay."""

    settings: PolicySettings
    compares = False

    def pair_loss(self, logprobs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """-(1/C) sum_r w_r sum_l log pi_theta(a_r^l) + sft_replay_nll * NLL(replay); a row's label is its weight."""
        rows = batch["rows"]
        token_row = rows["turn_row"][rows["turn"]]
        # A small data set puts a candidate into a step twice: it is computed once, and counts twice.
        times = segment_sum(logprobs.new_ones(len(batch["chosen"])), batch["chosen"], len(rows["tokens"]))
        weight = batch["label"].to(logprobs.dtype) * times
        listwise = listwise_loss(logprobs, weight, token_row, len(batch["chosen"]))
        metrics = {"loss/listwise": listwise.detach(), "reply_length": len(logprobs) / len(rows["turn_row"])}
        return self.with_replay(batch["share"][0] * listwise, metrics, logprobs, batch)
