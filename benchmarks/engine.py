"""Whole dialogues on the transformers engine, with and without reuse of the cache across turns, against plain generate.

    python benchmarks/engine.py [--model models/base] [--dialogues 256] [--threads 2]

All three run the same dialogues (same model, same tasks of the synthetic suite, same scripted user) at temperature 1
in one process, in turns, several times; the median counts. `generate` is transformers' own: one call a turn for all
open dialogues, left-padded, the whole prompt computed again at every turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

from sweetrl.backend import Backend
from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.config.settings import AgentSettings
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.protocols import Sampler
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.run import rollout
from sweetrl.types import Completion, Prompt, Sampling, Score, Trajectory, Usage


class WithoutReuse:
    """Our engine with every turn's prompt computed from its beginning."""

    name = "our engine, no reuse"

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine

    def session(self) -> Sampler:
        return self.engine

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        return self.engine.sample(prompts, sampling)

    def usage(self) -> Usage:
        return self.engine.usage()

    def close(self) -> None: ...


class PlainGenerate:
    """model.generate on the left-padded prompts, all rows until the last one has ended."""

    name = "transformers generate"

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.generated = 0

    def session(self) -> Sampler:
        return self

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        import torch

        width = max(len(prompt.token_ids) for prompt in prompts)
        ids = torch.full((len(prompts), width), self.engine.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
            mask[row, width - len(prompt.token_ids) :] = 1
        torch.manual_seed(prompts[0].seed % 2**63)
        device = self.engine.model.device
        with torch.inference_mode():
            output = self.engine.model.generate(
                ids.to(device),
                attention_mask=mask.to(device),
                do_sample=True,
                temperature=sampling.temperature,
                top_k=0,
                max_new_tokens=min(sampling.max_new_tokens, self.engine.context - width),
                eos_token_id=list(self.engine.stop_ids),
                pad_token_id=self.engine.tokenizer.pad_token_id,
            )
        return [[self._completion(row)] for row in output[:, width:].tolist()]

    def _completion(self, row: list[int]) -> Completion:
        stop = next((at for at, token in enumerate(row) if token in self.engine.stop_ids), None)
        ids = row if stop is None else row[: stop + 1]
        self.generated += len(ids)
        text = self.engine.tokenizer.decode(ids if stop is None else ids[:-1], skip_special_tokens=True)
        return Completion(tuple(ids), (0.0,) * len(ids), text, "length" if stop is None else "stop")

    def usage(self) -> Usage:
        return Usage(generated_tokens=self.generated)

    def close(self) -> None: ...


class Unscored:
    """The scorer of dialogues that nobody scores here."""

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        raise NotImplementedError


def measure(engine: Any, chat: Any, tasks: list[Any], seed: int) -> dict[str, float]:
    """Run one dialogue for each task side by side; return seconds and rates (process time: what other work cost)."""
    before = engine.usage().generated_tokens
    wall, processor = time.perf_counter(), time.process_time()
    agent = AgentSettings(max_turns=10, max_new_tokens=256)
    context = RolloutContext(Backend(), engine, chat, ScriptedSimulator(), Unscored(), agent)
    dialogues = rollout([(task, 0) for task in tasks], context, seed=seed, batch=len(tasks))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    tokens = engine.usage().generated_tokens - before
    return {
        "dialogues_per_second": len(dialogues) / wall,
        "dialogues_per_processor_second": len(dialogues) / processor,
        "tokens_per_second": tokens / wall,
        "turns": sum(len(dialogue.turns) for dialogue in dialogues) / len(dialogues),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/base")
    parser.add_argument("--dialogues", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    engine = TransformersEngine(options.model, threads=options.threads, rows=options.dialogues)
    tasks = list(generate("train", options.dialogues, seed=12345, difficulty=3))
    peers: dict[str, Any] = {
        "our engine, cache reused": engine,
        "our engine, no reuse": WithoutReuse(engine),
        "transformers generate": PlainGenerate(engine),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    for repeat in range(options.repeats):
        for name, peer in peers.items():
            runs[name].append(measure(peer, engine.chat, tasks, repeat))
    result = {
        name: {key: statistics.median(run[key] for run in some) for key in some[0]} for name, some in runs.items()
    }
    first = result["our engine, cache reused"]
    for name, numbers in result.items():
        faster = first["dialogues_per_second"] / numbers["dialogues_per_second"]
        # On a busy machine the wall clock says little, the processor's time still something.
        cheaper = first["dialogues_per_processor_second"] / numbers["dialogues_per_processor_second"]
        print(
            f"{name:26s} {numbers['dialogues_per_second']:7.1f} dialogues/s"
            f"{numbers['tokens_per_second']:8.0f} tokens/s{numbers['turns']:5.1f} turns"
            f"   ours is {faster:.2f} times as fast, {cheaper:.2f} times by the processor's time"
        )


if __name__ == "__main__":
    main()
