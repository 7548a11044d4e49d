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
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from sweetrl.config.settings import CriticSettings, PolicySettings, PreferenceSettings, RftSettings, TrainerSettings
from sweetrl.errors import UserError
from sweetrl.lm.data import MicroBatch, PreferenceData, collate_pairs, plan
from sweetrl.lm.distributed import add_gradients, all_gather, broadcast, shard_layers, wants_shards
from sweetrl.lm.head import base_of
from sweetrl.lm.passes import cut_step, model_layout, reply_logprobs, share_of_step
from sweetrl.lm.recorded import Recorded, compare
from sweetrl.lm.reference import reference_logprobs
from sweetrl.sweet.advantage import Normalization, segment_mean, segment_sum, trajectory_scores, turn_advantages
from sweetrl.sweet.losses import critic_loss, ipo_loss, listwise_loss, policy_loss, reference_kl, token_nll

Metrics = dict[str, float]
Report = Callable[[int, int, Metrics], None]  # (step, steps, metrics of that step)

# Checkpoints are numbered, so it does not matter which of them a file system calls the newest.
logging.getLogger("transformers.trainer_utils").addFilter(lambda record: "mtime" not in record.getMessage())

MOST_LOGGED = 2000  # entries of a training's metrics: about 2 KB each in memory, in every checkpoint and in MLflow
COMPLETE = "complete"  # a file in a checkpoint folder that was written to the end


class Checkpoints(TrainerCallback):
    """Marks a checkpoint as complete once all of it is on the disk: a killed run never continues from half of one."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint that has just been written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            (folder / COMPLETE).touch()


class _ShardedArguments(TrainingArguments):
    """For a model whose layers are where they belong already."""

    @property
    def place_model_on_device(self) -> bool:
        return False


def training_arguments(
    settings: TrainerSettings, scratch: Path, seed: int, steps: int, device: torch.device, sharded: bool = False
) -> TrainingArguments:
    """The arguments of transformers.Trainer, for `steps` ready-made steps with checkpoints in `scratch`.

    Metrics are those of every step, of longer trainings means over a few steps, and checkpoints lie between them.
    """
    every = math.ceil(steps / MOST_LOGGED)
    if settings.batch_size % settings.micro_batch_size:
        raise UserError(
            f"params: batch_size {settings.batch_size} is not a multiple of micro_batch_size "
            f"{settings.micro_batch_size}; change one."
        )
    arguments = (_ShardedArguments if sharded else TrainingArguments)(
        output_dir=str(scratch),
        per_device_train_batch_size=1,  # an item is a whole step already
        num_train_epochs=1,  # the plan holds all epochs
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": settings.min_lr_ratio},
        warmup_steps=min(math.ceil(settings.warmup_ratio * steps), steps - 1),  # its first step has learning rate 0
        optim="adamw_torch",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=settings.max_grad_norm,
        logging_steps=every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=every * max(1, math.ceil(steps / settings.checkpoints / every)),
        save_total_limit=2,
        seed=seed % 2**32,  # NumPy takes no other
        data_seed=seed % 2**32,
        use_cpu=device.type == "cpu" and not (sharded and torch.cuda.is_available()),
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=[],
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one process, one device: DataParallel would split the batch
    if settings.batch_size < arguments.world_size:
        raise UserError(
            f"params: batch_size {settings.batch_size} is less than the {arguments.world_size} processes; start fewer."
        )
    return arguments


class PreferenceTrainer(Trainer):
    """A Trainer over a plan of steps (by default `plan` makes it); subclasses give the loss and its metrics.

    A step is computed in as many micro-batches as its tokens need; its loss and gradient do not depend on how it is
    cut. Under torchrun or `accelerate launch` each process computes a share of every step's pairs, and gradients are
    added up; with FSDP the frozen base is sharded over them (sweetrl.lm.distributed).
    """

    compares = True  # whether the loss or its metrics look at the reference's log-probs

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
        device = next(model.parameters()).device
        self.sharded = wants_shards()
        arguments = training_arguments(settings, scratch, seed, self.steps, device, self.sharded)
        if self.sharded:
            shard_layers(model, arguments.device)
            model._is_accelerate_prepared = True  # no wrapper: gradients are added up in training_step
        self.layout = model_layout(model, settings.layout, settings.tokens, pad_id)
        self.compared = {} if recorded is None else compare(model, recorded, self.layout)
        if settings.gradient_checkpointing:
            base_of(model).gradient_checkpointing_enable({"use_reentrant": False})
        # An adapter that already changes the model: then its start, not the bare base, is the reference.
        trained = any("lora_B" in name and bool(value.any()) for name, value in model.named_parameters())
        self.reference: Sequence[Tensor] | None = None
        if self.compares:
            rows = data.reference_rows or data.rows
            self.reference = reference_logprobs(model, rows, self.layout, cache, adapter=trained)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=list(plan_),
            data_collator=lambda items: {"micro_batches": self.make_micro_batches(items[0])},
            callbacks=[Checkpoints()],
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.model_accepts_loss_kwargs = False  # losses are means over a step

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
            return cut_step(self.data, own, self.layout, self.settings.micro_batch_size)

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

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward, part by part; returns the step's loss (its processes' losses have that mean)."""
        model.train()
        total = torch.zeros((), device=self.args.device)
        for micro_batch in inputs["micro_batches"]:
            batch = self._prepare_inputs(micro_batch)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, batch)
            self.accelerator.backward(loss)
            total += loss.detach()
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
        self._step_tokens += int(rows["tokens"].sum())
        self._step_computed += rows["input_ids"].numel()
        return (loss, None) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the step's own metrics, so that they are in the checkpointed history and reach `report`.

        `tokens_per_second` counts the tokens of the distinct rows, `computed` is the share of them that went through
        the layers (with padding in flat batches).
        """
        if self._step_metrics and "loss" in logs:
            parts = all_gather((self._step_metrics, (self._step_tokens, self._step_computed)))
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
        self.train(resume_from_checkpoint=str(last) if last is not None else None)
        all_gather(None)  # nobody removes checkpoints that others still write
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

    def pair_metrics(
        self, logprobs: Tensor, chosen: Tensor, rejected: Tensor, beta: float, batch: dict[str, Any]
    ) -> Metrics:
        """What scores [P] and log-probs [N] say of pairs: rewards, accuracy, distance to the reference, advantages."""
        rows, logprobs = batch["rows"], logprobs.detach()
        advantages = turn_advantages(logprobs, batch["reference"], rows["turn"], len(rows["turn_row"]))
        metrics = margin_metrics(chosen, rejected, beta) | self.value_metrics(advantages, batch)
        return metrics | {"reference_kl": reference_kl(logprobs, batch["reference"]).item()}

    def value_metrics(self, values: Tensor, batch: dict[str, Any]) -> Metrics:
        """Mean value [T] and length of the replies of chosen and rejected rows, and by turn for critics."""
        rows = batch["rows"]
        turns = len(rows["turn_row"])
        with torch.no_grad():
            lengths = segment_sum(values.new_ones(len(rows["turn"])), rows["turn"], turns)
            result: Metrics = {}
            for name in ("chosen", "rejected"):
                picked = torch.isin(rows["turn_row"], batch[name])
                result[f"advantage/{name}"] = values[picked].mean().item()
                result[f"reply_length/{name}"] = lengths[picked].mean().item()
                if int(rows["turn_index"].max()):
                    index = rows["turn_index"][picked]
                    means = segment_mean(values[picked], index, int(index.max()) + 1).tolist()
                    result |= {f"advantage/{name}/turn_{turn + 1:02d}": mean for turn, mean in enumerate(means)}
        return result


def last_checkpoint(scratch: Path) -> Path | None:
    """The newest checkpoint in `scratch` that was written to the end; unfinished ones are removed."""
    complete: list[tuple[int, Path]] = []
    for folder in scratch.glob("checkpoint-*"):
        if (folder / COMPLETE).exists():
            complete.append((int(folder.name.rsplit("-", 1)[1]), folder))
        else:
            shutil.rmtree(folder)
    return max(complete)[1] if complete else None


def margin_metrics(chosen: Tensor, rejected: Tensor, beta: float) -> Metrics:
    """Rewards are beta times a score, as in DPO."""
    margin = (chosen - rejected).detach()
    return {
        "reward/chosen": beta * chosen.detach().mean().item(),
        "reward/rejected": beta * rejected.detach().mean().item(),
        "reward/margin": beta * margin.mean().item(),
        "accuracy": (margin > 0).to(margin.dtype).mean().item(),
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
        metrics |= {"loss/preference": preference.item(), "loss/nll": nll.item()}
        return batch.get("share", (1.0,))[0] * (preference + settings.nll * nll), metrics


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
        pair_share, replay_share = batch.get("share", (1.0, 1.0))
        loss = pair_share * (preference + settings.nll * nll)
        metrics = self.pair_metrics(logprobs, chosen, rejected, settings.beta, batch) | {
            "loss/preference": preference.item(),
            "loss/nll": nll.item(),
            "log_ratio/chosen": chosen.detach().mean().item(),
            "log_ratio/rejected": rejected.detach().mean().item(),
        }
        if len(batch["replay"]):
            replay = self.nll(logprobs, batch, "replay")
            loss = loss + replay_share * settings.sft_replay_nll * replay
            metrics["loss/sft_replay"] = replay.item()
        return loss, metrics


class ImitationTrainer(PreferenceTrainer):
    """Rejection Fine-Tuning: the likelihood of the replies of successful attempts, each a pair with itself."""

    settings: RftSettings

    def pair_loss(self, logprobs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """-(1/R) sum_r (1/L_r) sum_l log pi_theta(a^l): over all replies of an attempt, then over R attempts."""
        nll = self.nll(logprobs, batch, "chosen")
        metrics = {
            "loss/nll": nll.item(),
            "reference_kl": reference_kl(logprobs.detach(), batch["reference"]).item(),
            "reply_length/chosen": len(logprobs) / len(batch["rows"]["turn_row"]),
        }
        return batch.get("share", (1.0,))[0] * nll, metrics


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
        pair_share, replay_share = batch.get("share", (1.0, 1.0))
        loss = pair_share * listwise
        metrics = {"loss/listwise": listwise.item(), "reply_length": len(logprobs) / len(rows["turn_row"])}
        if len(batch["replay"]):
            replay = self.nll(logprobs, batch, "replay")
            loss = loss + replay_share * self.settings.sft_replay_nll * replay
            metrics["loss/sft_replay"] = replay.item()
        return loss, metrics
