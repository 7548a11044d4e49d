"""Stage `pretrain` (frozen): the small base agent that ships with the project; `make base-model` runs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from sweetrl.base_agent.pretraining import (
    Demonstrations,
    Encoder,
    build_model,
    collate,
    copying,
    make_tokenizer,
    weighted_loss,
)
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import PretrainSettings, Settings
from sweetrl.errors import UserError
from sweetrl.io import publish, write_json
from sweetrl.models.load import load_tokenizer
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.sweet.reporting import report_to
from sweetrl.types import Task

PROMPT = "short"  # the agent's system prompt in the demonstrations
TASKS = 10_000
HELD_OUT = 200
COPYING_EVERY = 100


def _tasks(domain: Domain, wanted: PretrainSettings) -> tuple[list[Task], list[Task]]:
    """Return the tasks to train on, and up to HELD_OUT with contents that those do not have."""
    difficulty = domain.settings.tasks.difficulty

    def content(task: Task) -> str:
        return domain.reference(task) or task.problem_description

    tasks = list(islice(domain.pretraining_tasks(TASKS, wanted.seed, difficulty), TASKS))
    seen = list(dict.fromkeys(content(task) for task in tasks))
    known = set(seen)
    unseen = islice(domain.pretraining_tasks(TASKS, wanted.seed + 1, difficulty), 4 * HELD_OUT)
    fresh = [task for task in unseen if content(task) not in known][:HELD_OUT]
    if fresh:
        return tasks, fresh
    if len(seen) < 2:
        raise UserError(
            f"{domain.spec}: `tasks` yields {len(seen)} different tasks, too few to pre-train a base agent."
        )
    held_out = set(seen[-max(1, min(HELD_OUT, len(seen) // 10)) :])  # a domain with few contents: these are all of them
    kept = [task for task in tasks if content(task) not in held_out]
    return kept, [task for task in tasks if content(task) in held_out][:HELD_OUT]


def pretrain(settings: Settings, words: Path | None = None, build: Callable[..., Any] = build_model) -> None:
    """Train a base agent for the domain and write it to `model.base`.

    In bfloat16: half the size, loads as any dtype. Its tokenizer is trained on demonstrations too, or is that of the
    model in the folder `words`, so that both models read the same token ids. It starts as what `build` makes: from
    scratch, unless told otherwise.
    """
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    wanted = settings.pretrain
    max_turns = settings.agent.max_turns
    domain, out = load_domain(settings), Path(settings.model.base)
    with stage_run("pretrain", settings) as run:
        tasks, fresh = _tasks(domain, settings.pretrain)
        tokenizer: Any = (
            load_tokenizer(words) if words else make_tokenizer(tasks[:3000], domain, wanted, max_turns, PROMPT)
        )
        encoder = Encoder(tokenizer, domain)
        data = Demonstrations(tasks, wanted.steps, encoder, wanted, max_turns, PROMPT)
        blind = wanted.model_copy(update={"informed": 0.0})  # the values stand in the user's words only
        held_out_data = Demonstrations(fresh, len(fresh), encoder, blind, max_turns, PROMPT)
        held_out = [held_out_data.item(i) for i in range(len(fresh))]
        model: Any = build(len(tokenizer), wanted, tokenizer, domain.pretraining.positions)
        padding = tokenizer.convert_tokens_to_ids("<|pad|>")

        class Copying(TrainerCallback):
            """Measures copying on held-out dialogues on its own: the loss hides it."""

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if state.global_step % COPYING_EVERY == 0:
                    values, others = copying(model, held_out)
                    run.log_metrics({"copied_values": values, "copied_rest": others}, step=state.global_step)
                    print(
                        f"pretrain: step {state.global_step:,} of {wanted.steps:,}, {values:.1%} of the values copied",
                        flush=True,
                    )

        class Pretrainer(Trainer):
            """transformers.Trainer with the weighted loss, over batches that are ready-made and in order."""

            def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
                return torch.utils.data.SequentialSampler(data)

            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                return weighted_loss(model, inputs["input_ids"], inputs["weights"])

        def collator(batches: list[list[dict[str, Any]]]) -> dict[str, Any]:
            input_ids, weights = collate(batches[0], padding)
            return {"input_ids": input_ids, "weights": weights}

        scratch = run.scratch("params.yaml")
        trainer = Pretrainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(scratch / "checkpoints"),
                max_steps=wanted.steps,
                per_device_train_batch_size=1,  # an item is a batch
                learning_rate=wanted.learning_rate,
                adam_beta2=0.98,
                weight_decay=0.01,
                lr_scheduler_type="warmup_stable_decay",
                lr_scheduler_kwargs={
                    "num_decay_steps": int(0.3 * wanted.steps),
                    "decay_type": "linear",
                    "min_lr_ratio": 0.02,
                },
                warmup_steps=min(100, wanted.steps // 4),
                max_grad_norm=1.0,
                bf16=True,  # autocast: a quarter less time on CPUs that have it
                logging_steps=100,
                save_steps=max(50, wanted.steps // 10),
                save_total_limit=1,
                seed=wanted.seed,
                data_seed=wanted.seed,
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
                use_cpu=settings.model.device != "cuda" and not torch.cuda.is_available(),
            ),
            train_dataset=data,
            data_collator=collator,
            callbacks=[Copying()],
        )
        report_to(trainer, settings.tracking, "pretrain")
        trainer.train(resume_from_checkpoint=any((scratch / "checkpoints").glob("checkpoint-*")) or None)
        for entry in trainer.state.log_history:
            if "loss" in entry:
                run.log_metrics({"loss": entry["loss"], "grad_norm": entry["grad_norm"]}, step=int(entry["step"]))
        model = model.to("cpu").eval()
        values, others = copying(model, held_out)
        run.log_metrics({"copied_values": values, "copied_rest": others}, step=wanted.steps)
        finished = scratch / "model"
        shutil.rmtree(finished, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(finished)
        tokenizer.save_pretrained(finished)
        write_json(
            finished / "recipe.json",
            {
                "settings": wanted.model_dump(mode="json"),
                "parameters": sum(p.numel() for p in model.parameters()),
                "copied_values": round(values, 4),
                "copied_rest": round(others, 4),
            },
        )
        publish(finished, out)
        run.summary = f"{wanted.steps:,} steps, {values:.1%} of the values copied right on held-out dialogues"


if __name__ == "__main__":
    stage_main(pretrain)
