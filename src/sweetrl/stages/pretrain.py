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
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.io import publish, write_json
from sweetrl.models.load import load_tokenizer
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.sweet.training import report_to
from sweetrl.types import Task

PROMPT = "short"  # the agent's system prompt in the demonstrations
TASKS = 10_000
HELD_OUT = 200
COPYING_EVERY = 100


def _tasks(domain: Domain, seed: int) -> tuple[list[Task], list[Task]]:
    """Return the tasks to train on, and up to HELD_OUT with contents that those do not have."""
    difficulty = domain.settings.tasks.difficulty

    def content(task: Task) -> str:
        return domain.reference(task) or task.problem_description

    tasks = list(islice(domain.pretraining_tasks(TASKS, seed, difficulty), TASKS))
    contents = list(dict.fromkeys(content(task) for task in tasks))
    others = islice(domain.pretraining_tasks(TASKS, seed + 1, difficulty), 4 * HELD_OUT)
    seen = set(contents)
    if fresh := [task for task in others if content(task) not in seen][:HELD_OUT]:
        return tasks, fresh
    if len(contents) < 2:
        raise UserError(f"{domain.spec}: `tasks` yields {len(contents)} different tasks, too few to pre-train on.")
    # A domain with few contents: these are all of them.
    held_out = set(contents[-max(1, min(HELD_OUT, len(contents) // 10)) :])
    kept = [task for task in tasks if content(task) not in held_out]
    return kept, [task for task in tasks if content(task) in held_out][:HELD_OUT]


def pretrain(settings: Settings, words: Path | None = None, build: Callable[..., Any] = build_model) -> None:
    """Train a base agent for the domain and write it to `model.base`.

    In bfloat16: half the size, loads as any dtype. Its tokenizer is trained on demonstrations too, or is that of the
    model in the folder `words`, so that both models read the same token ids. `build` makes the initial model.
    """
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from sweetrl.sweet.arguments import Checkpoints, last_checkpoint

    how, max_turns = settings.pretrain, settings.agent.max_turns
    domain, out = load_domain(settings), Path(settings.model.base)
    with stage_run("pretrain", settings) as run:
        tasks, fresh = _tasks(domain, how.seed)
        tokenizer: Any = (
            load_tokenizer(words) if words else make_tokenizer(tasks[:3000], domain, how, max_turns, PROMPT)
        )
        encoder = Encoder(tokenizer, domain)
        data = Demonstrations(tasks, how.steps, encoder, how, max_turns, PROMPT)
        blind = how.model_copy(update={"informed": 0.0})  # the values stand in the user's words only
        held_out_data = Demonstrations(fresh, len(fresh), encoder, blind, max_turns, PROMPT)
        held_out = [held_out_data.item(i) for i in range(len(fresh))]
        model: Any = build(len(tokenizer), how, tokenizer, domain.pretraining.positions)
        padding = tokenizer.convert_tokens_to_ids("<|pad|>")

        def measure(step: int) -> tuple[float, float]:
            values, others = copying(model, held_out)
            run.log_metrics({"copied_values": values, "copied_rest": others}, step=step)
            return values, others

        class Copying(TrainerCallback):
            """Measures copying on held-out dialogues on its own: the loss hides it."""

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if state.global_step % COPYING_EVERY == 0:
                    values, _ = measure(state.global_step)
                    reached = f"step {state.global_step:,} of {how.steps:,}"
                    print(f"pretrain: {reached}, {values:.1%} of the values copied", flush=True)

        class Pretrainer(Trainer):
            """transformers.Trainer with the weighted loss, over batches that are ready-made and in order."""

            def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
                return torch.utils.data.SequentialSampler(data)

            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                return weighted_loss(model, inputs["input_ids"], inputs["weights"])

        def collator(batches: list[list[dict[str, Any]]]) -> dict[str, Any]:
            input_ids, weights = collate(batches[0], padding)
            return {"input_ids": input_ids, "weights": weights}

        scratch = run.scratch(Path("params.yaml"))
        trainer = Pretrainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(scratch / "checkpoints"),
                max_steps=how.steps,
                per_device_train_batch_size=1,  # an item is a batch
                learning_rate=how.learning_rate,
                adam_beta2=0.98,
                weight_decay=0.01,
                lr_scheduler_type="warmup_stable_decay",
                lr_scheduler_kwargs={
                    "num_decay_steps": int(0.3 * how.steps),
                    "decay_type": "linear",
                    "min_lr_ratio": 0.02,
                },
                warmup_steps=min(100, how.steps // 4),
                max_grad_norm=1.0,
                bf16=True,  # autocast: a quarter less time on CPUs that have it
                logging_steps=100,
                save_steps=max(50, how.steps // 10),
                save_total_limit=1,
                seed=how.seed,
                data_seed=how.seed,
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
                use_cpu=settings.model.device != "cuda" and not torch.cuda.is_available(),
            ),
            train_dataset=data,
            data_collator=collator,
            callbacks=[Copying(), Checkpoints()],
        )
        report_to(trainer, settings.tracking, "pretrain")
        last = last_checkpoint(scratch / "checkpoints")
        trainer.train(resume_from_checkpoint=str(last) if last is not None else None)
        for entry in trainer.state.log_history:
            if "loss" in entry:
                run.log_metrics({"loss": entry["loss"], "grad_norm": entry["grad_norm"]}, step=int(entry["step"]))
        model = model.to("cpu").eval()
        values, others = measure(how.steps)
        finished = scratch / "model"
        shutil.rmtree(finished, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(finished)
        tokenizer.save_pretrained(finished)
        recipe = {"settings": how.model_dump(mode="json"), "parameters": sum(p.numel() for p in model.parameters())}
        recipe |= {"copied_values": round(values, 4), "copied_rest": round(others, 4)}
        write_json(finished / "recipe.json", recipe)
        publish(finished, out)
        run.summary = f"{how.steps:,} steps, {values:.1%} of the values in {len(fresh):,} held-out dialogues copied"


if __name__ == "__main__":
    stage_main(pretrain)
