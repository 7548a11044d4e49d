"""The peers of benchmarks/trees.py that are other people's: TRL's DPOTrainer and vLLM's prompt_logprobs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trees_data import LORA

from sweetrl.lm.data import PreferenceData, Row


class Unavailable(Exception):
    """A peer cannot be run here; says why."""


def train_trl(model: Any, data: PreferenceData, micro_batch: int, epochs: int = 1) -> dict[str, Any]:
    """TRL's DPOTrainer on the same pairs of token ids, the reference precomputed; of more `epochs` the last is timed.

    It names its cache of the reference's log-probs by a hash of all weights: a minute at 8B, however few the pairs.
    That is left out.
    """
    import uuid

    import datasets
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import DPOConfig, DPOTrainer
    from trl.trainer import dpo_trainer

    dpo_trainer.hash_module = lambda module: uuid.uuid4().hex

    class OnTokenIds(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *other: Any) -> Any:
            return dataset  # it has the ids already

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_epoch_end(self, *given: Any, **more: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<eos>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    columns: dict[str, list[Any]] = {"prompt_ids": [], "chosen_ids": [], "rejected_ids": []}
    for chosen, rejected in data.pairs:
        start = data.rows[chosen].spans[0][0]
        columns["prompt_ids"].append(list(data.rows[chosen].token_ids[:start]))
        columns["chosen_ids"].append(list(data.rows[chosen].token_ids[start:]))
        columns["rejected_ids"].append(list(data.rows[rejected].token_ids[start:]))
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(
            output_dir=folder,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=8 // micro_batch,
            num_train_epochs=epochs,
            learning_rate=1e-5,
            beta=0.1,
            max_length=None,
            gradient_checkpointing=False,
            precompute_ref_log_probs=True,
            bf16=False,
            use_cpu=not next(model.parameters()).is_cuda,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        base = model.unload()  # TRL puts a LoRA of the same shape on the bare base itself
        from peft import LoraConfig

        lora = LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        trainer = OnTokenIds(
            model=base,
            args=arguments,
            train_dataset=datasets.Dataset.from_dict(columns),
            processing_class=tokenizer,
            peft_config=lora,
            callbacks=[Clock()],
        )
        result = trainer.train()
    return {"steps": result.global_step} | ({"last_epoch": ends[-1] - ends[-2]} if epochs > 1 else {})


def rank_vllm(model: Any, rows: Sequence[Row], python: Path, threads: int) -> dict[str, Any]:
    """vLLM's prompt_logprobs of every row with and without the adapter; Unavailable where that does not work."""
    import torch

    from sweetrl.lm.adapters import save_adapter

    if not python.exists():
        raise Unavailable(f"there is no {python}")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        save_adapter(model, here / "adapter", "model")
        base = model.unload()
        base.save_pretrained(here / "model")
        job = {
            "model": str(here / "model"),
            "adapter": str(here / "adapter"),
            "dtype": str(base.dtype).removeprefix("torch."),
            "rank": LORA.rank,
            "context": max(len(row.token_ids) for row in rows) + 8,
            "sequences": [{"ids": row.token_ids, "start": row.spans[0][0]} for row in rows],
        }
        (here / "job.json").write_text(json.dumps(job))
        on_cpu = {
            "CUDA_VISIBLE_DEVICES": "",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
        }
        common = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1500",
        }
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | common
        environment |= {} if torch.cuda.is_available() else on_cpu
        script = Path(__file__).with_name("trees_vllm.py")
        command = [str(python), str(script), str(here / "job.json"), str(here / "out.json")]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(str(error)) from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
            errors = [line for line in lines if "Error" in line] or lines[-1:]  # the first one is the cause
            raise Unavailable(f"it ended with {done.returncode}: {errors[0]}")
        result = json.loads((here / "out.json").read_text())
    result["tokens"] = sum(len(row.token_ids) for row in rows)
    return result | {"cost": result["seconds" if torch.cuda.is_available() else "processor_seconds"]}
