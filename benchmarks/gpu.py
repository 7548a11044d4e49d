"""What a GPU makes of sweetrl, in one command: speeds and memory at three shapes of models, and two reproductions.

    python benchmarks/gpu.py [--out gpu.jsonl] [--minutes 10] [--only critic-8b,policy-8b]
    python benchmarks/gpu.py --list         the pieces and the minutes that each may take
    python benchmarks/gpu.py --dry-run      every kind of piece but the reproductions, tiny, on the CPU

Each piece adds a line to the file of results; what has one is not measured again, and none is begun that may take
longer than is left of `--minutes`: give the same command until it says that all is measured. Needs torch, transformers,
peft and accelerate; TRL is a peer where it is installed. Models have random weights, made on the device, bfloat16, with
LoRA of rank 16 on all linear layers; lengths are those of benchmarks/trees.py.

sampling-SHAPE-ROWS    4 x ROWS dialogues of 4 turns, ROWS at a time, prompts of 300 to 1,000 tokens and replies of some
                       55 (at most 128), each on its own in the transformers engine's slots: generated tokens/s
sampling-...-lock-step the same, a turn of all at a time
KIND-SHAPE             warm-start, critic, policy: steps of 8 as the trainer makes them, the second time that they are
                       made (`warm_up` seconds hold what is compiled, `graphs` of layers); ranking: log-probs of
                       candidates with and without the adapter. `layout` trees, in training also without compiled
                       layers, then flat. tokens/s are computed ones without padding,
                       `mfu` is the arithmetic of layers, attention and head against the data sheet's 989 TFLOP/s of an
                       H100 or H200 (elsewhere `flops` alone), `peak_gib` all memory that torch held
policy-SHAPE-full      the same steps with all weights trained, in float32 under autocast, instead of adapters
policy-SHAPE-trl       TRL's DPOTrainer on the same pairs, the second time, with as many in a batch as fit; its
                       reference is computed before and not counted, as ours
smollm2-PART           reproduce/smollm2 with 3,000 demonstrations, 250 x 4 dialogues and `tokens: auto` in
                       .scratch/gpu-smollm2, by the project's own stages (needs models/smollm2 and mlflow)
colbench-PART          reproduce/colbench alike: 8 dialogues on each of the 180 tasks that are not imitated, 300 test
                       tasks (needs models/qwen2.5-coder-0.5b, data/colbench and mlflow)
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from trees_data import (
    HOPPER,
    LORA,
    SHAPES,
    candidates,
    critic_data,
    dialogue,
    multiply_adds,
    policy_data,
    sizes,
    training_multiply_adds,
)
from trees_peers import train_trl

from sweetrl.config.settings import CriticSettings, PolicySettings, RftSettings, parse_settings
from sweetrl.io import read_json
from sweetrl.lm.data import PreferenceData, Row, plan

MODELS = {"135m": "smollm2-135m", "0.5b": "qwen-0.5b", "8b": "llama-8b"}
KINDS = ("warm-start", "critic", "ranking", "policy")
STEPS = 6  # made twice: the first time kernels are compiled
ROOT = Path(__file__).resolve().parent.parent
SCRATCH, SEED = ROOT / ".scratch", 41
# Profile -> what is larger than on two cores, and the variants.
REPRODUCTIONS = {
    "smollm2": (
        {"warm_start.dialogues": 3000, "collect.tasks": 250, "evaluate.tasks": 300},
        ("zero-shot", "rft", "multi-turn-dpo", "sweet", "no-privileged", "no-rewards"),
    ),
    "colbench": (
        {"collect.tasks": 180, "collect.attempts": 8, "evaluate.tasks": 300},
        ("zero-shot", "forced-answer", "rft", "multi-turn-dpo", "sweet", "no-privileged", "other-c"),
    ),
}

Line = dict[str, Any]


@contextmanager
def model_of(shape: str, full: bool = False) -> Iterator[Any]:
    """A model with random weights and an adapter, or with all of them trained, made on the device.

    What was there before and is held no more goes first: else it would be in what `peak_gib` and `tokens: auto` see.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sweetrl.lm.adapters import attach_adapter
    from sweetrl.lm.full import train_all
    from sweetrl.models.load import without_plans

    release()
    without_plans()
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if cuda else "cpu"):
            model = LlamaForCausalLM(LlamaConfig(**SHAPES[shape], max_position_embeddings=8192, pad_token_id=0))
    finally:
        torch.set_default_dtype(before)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    yield train_all(model, "bfloat16") if full else attach_adapter(model.requires_grad_(False), LORA, seed=0)


def release() -> None:
    """Give the device back what nobody holds any more; RuntimeError where it has failed for good."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    now()


def now() -> float:
    """Seconds, when the device has done what it was told."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def figures(seconds: float, tokens: float, multiply_adds_: float = 0.0) -> Line:
    """What a line says of memory, and of arithmetic where that was counted."""
    import torch

    line = {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}
    if multiply_adds_:
        line["flops"] = 2 * multiply_adds_ / seconds
    if torch.cuda.is_available():
        line["peak_gib"] = torch.cuda.max_memory_reserved() / 2**30
        if multiply_adds_ and any(name in torch.cuda.get_device_name(0) for name in ("H100", "H200")):
            line["mfu"] = line["flops"] / HOPPER
    return line


def sample(shape: str, rows: int, play: Any, length: int = 128, turns: int = 4) -> list[Line]:
    """Generated tokens a second of dialogues side by side, by `play`."""
    from sweetrl.engines.transformers import cache_shape
    from sweetrl.types import Prompt, Sampling

    vocabulary = SHAPES[shape]["vocab_size"]
    sampling = Sampling(length, stop_ids=tuple(range(0, vocabulary, 64)))  # all tokens are about as likely
    line: Line = {}
    with model_of(shape) as model:
        base = model.eval().merge_and_unload()
        how = cache_shape(base, shape), (), rows, 8192
        for dialogues in (rows, 4 * rows):  # the first are not counted
            chance = random.Random(dialogues)

            def ids(least: int, most: int, chance: random.Random = chance) -> tuple[int, ...]:
                return tuple(chance.choices(range(10, vocabulary), k=chance.randint(least, most)))

            prompts = [Prompt(ids(300, 1000), seed) for seed in range(dialogues)]
            words = [[ids(20, 60) for _ in range(turns - 1)] for _ in prompts]
            start = now()
            tokens = play(base, how, prompts, sampling, words)
            line = {"rows": rows} | figures(now() - start, tokens)
    return [line]


def in_slots(base: Any, how: Any, prompts: Sequence[Any], sampling: Any, words: Sequence[Sequence[Any]]) -> int:
    """Let the user say `words`, in each dialogue as soon as its reply is over; return how many tokens there were."""
    from sweetrl.engines.slots import Slots

    slots, tokens, left = Slots(base, *how), 0, list(zip(prompts, words, strict=True))[::-1]
    under_way: list[Any] = []
    while left or under_way:
        while left and len(under_way) < slots.rows:
            prompt, user_words = left.pop()
            under_way.append((prompt, user_words, slots.add(prompt, sampling)[0]))
        slots.step()
        over = [talk for talk in under_way if not talk[2].open]
        under_way = [talk for talk in under_way if talk[2].open]
        for prompt, user_words, reply in over:
            tokens += len(reply.ids)
            if user_words:
                prompt = replace(prompt, token_ids=(*prompt.token_ids, *reply.ids, *user_words[0]))
                under_way.append((prompt, user_words[1:], slots.add(prompt, sampling)[0]))
    return tokens


def in_lock_step(base: Any, how: Any, prompts: Sequence[Any], sampling: Any, words: Sequence[Sequence[Any]]) -> int:
    """The same, in all dialogues of a batch at a time."""
    import torch

    from sweetrl.engines.cache import PrefixCache
    from sweetrl.engines.decoding import Decoder

    decoder, tokens = Decoder(base, *how), 0
    for first in range(0, len(prompts), decoder.rows):
        batch, kept = list(prompts[first : first + decoder.rows]), PrefixCache(2**33)
        for turn_words in zip(*([*user_words, ()] for user_words in words[first : first + decoder.rows]), strict=True):
            with torch.inference_mode():
                groups = decoder.generate(batch, sampling, kept)
            tokens += sum(len(reply.ids) for (reply,) in groups)
            batch = [
                replace(prompt, token_ids=(*prompt.token_ids, *reply.ids, *more))
                for prompt, (reply,), more in zip(batch, groups, turn_words, strict=True)
            ]
    return tokens


def data_of(kind: str, shape: str, steps: int = STEPS) -> PreferenceData:
    """Pairs for so many steps of 8."""
    chance, vocabulary = random.Random(0), SHAPES[shape]["vocab_size"]
    count, turns = 8 * steps, 1 if shape == "tiny" else None
    if kind == "critic":
        return critic_data(-(-count // 6), vocabulary, 0, turns)
    if kind == "policy":
        return policy_data([dialogue(chance, vocabulary, 5) for _ in range(-(-count // 20))], vocabulary, 0)
    rows = tuple(dialogue(chance, vocabulary, turns) for _ in range(count))
    return PreferenceData(rows, tuple((row, row) for row in range(count)))


def train(kind: str, shape: str, steps: int = STEPS, full: bool = False) -> Iterator[Line]:
    """Steps of a trainer in both layouts, in trees with and without compiled layers; of an adapter or all weights."""
    from torch._dynamo.utils import counters

    from sweetrl.sweet import trainer as trainers

    types: dict[str, Any] = {
        "warm-start": (trainers.ImitationTrainer, RftSettings),
        "critic": (trainers.CriticTrainer, CriticSettings),
        "policy": (trainers.PolicyTrainer, PolicySettings),
    }
    trainer_type, settings_type = types[kind]
    data = data_of(kind, shape, steps)
    twice = 2 * list(plan(data, 1.0, 8, 0)[:steps])

    class Noted(trainer_type):  # type: ignore[misc, valid-type]
        def make_micro_batches(self, step: Any) -> Any:
            rows = [self.data.rows[row] for row in {row for pair in step.pairs for row in pair}]
            # One that runs out of memory is made again.
            self.done[self.state.global_step] = sizes(rows, self.layout.backend is not None)
            return super().make_micro_batches(step)

    for layout in ("trees", "trees, not compiled", "flat"):
        settings = settings_type(
            learning_rate=1e-5, epochs=1.0, batch_size=8, micro_batch_size=8, layout=layout.partition(",")[0],
            lora=LORA, checkpoints=1,
        )  # fmt: skip
        Noted.compiled_from = 0 if layout == "trees" else sys.maxsize
        with model_of(shape, full) as model, tempfile.TemporaryDirectory() as folder:
            trainer = Noted(model, data, settings, Path(folder), 0, steps=twice)
            ends, trainer.done, graphs = [now()], {}, counters["stats"]["unique_graphs"]
            trainer.report = lambda step, steps, logs, ends=ends: ends.append(now())
            trainer.args.save_strategy = "no"
            trainer.fit()
            total = sum(trainer.done[step] for step in range(steps, 2 * steps))
            work = 3 * multiply_adds(shape, total) if full else training_multiply_adds(shape, total)
            line = figures(ends[-1] - ends[steps], float(total[0]), work)
            line |= {"layout": layout, "backend": trainer.layout.backend, "pass_tokens": trainer.layout.tokens}
            line |= {"warm_up": ends[steps] - ends[0], "graphs": counters["stats"]["unique_graphs"] - graphs}
            line |= {"steps": steps, "gradient_checkpointing": trainer._checkpointing}
            del trainer, model
        yield line


def rank(shape: str, dialogues: int = 2) -> Iterator[Line]:
    """Log-probs of 16 candidates at every turn, with the adapter and without it."""
    from sweetrl.lm.passes import model_layout
    from sweetrl.lm.reference import reference_logprobs, row_logprobs

    chance, vocabulary = random.Random(0), SHAPES[shape]["vocab_size"]
    trunks = [dialogue(chance, vocabulary, 1 if shape == "tiny" else 5) for _ in range(dialogues)]
    each: list[Sequence[Row]] = [candidates(chance, trunk, vocabulary) for trunk in trunks]
    for layout in ("trees", "flat"):
        with model_of(shape) as model:
            how = model_layout(model.eval().requires_grad_(False), layout, "auto")
            row_logprobs(model, each[0], how)
            start = now()
            for rows in each:
                row_logprobs(model, rows, how)
                reference_logprobs(model, rows, how)
            total = 2 * sum(sizes(rows, how.backend is not None) for rows in each)
            line = figures(now() - start, float(total[0]), multiply_adds(shape, total))
            del model
        yield line | {"layout": layout, "backend": how.backend, "pass_tokens": how.tokens}


def trl(shape: str) -> list[Line]:
    """TRL on the pairs of policy-SHAPE, all of them a second time; tokens are those that our flat batches compute."""
    import torch

    data, line, pairs = data_of("policy", shape), None, 2 if shape == "llama-8b" else 16
    total = sum(sizes([data.rows[row] for row in pair], False) for pair in data.pairs)

    def second(pairs: int) -> Line:
        with model_of(shape) as model:
            numbers = train_trl(model, data, pairs, epochs=2)
            work = training_multiply_adds(shape, total)
            return {"steps": numbers["steps"] // 2} | figures(numbers["last_epoch"], float(total[0]), work)

    while line is None:
        pairs //= 2
        try:
            line = second(pairs)
        except torch.OutOfMemoryError:
            if pairs == 1:
                raise
    return [line | {"layout": "trl", "pairs": pairs, "gradient_checkpointing": False}]


def reproduction(profile: str, *part: str) -> list[Line]:
    """One part of a reproduction, by the project's own command; killed, it goes on where it was."""
    folder = prepare(profile)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "sweetrl.reproduce", *part], cwd=folder, check=True)
    line: Line = {"seconds": time.perf_counter() - start}
    if part[0] == "measure":
        line["measured"] = read_json(folder / "measured" / part[1] / part[2] / "summary.json")
    return [line]


def prepare(profile: str) -> Path:
    """Make and return the profile's folder, with more data, and limits that follow from the device."""
    source, folder = ROOT / "reproduce" / profile, SCRATCH / f"gpu-{profile}"
    values = yaml.safe_load((source / "params.yaml").read_text(encoding="utf-8"))
    settings = {name: value for name, value in values["settings"].items() if not name.endswith(".tokens")}
    settings |= {"collect.batch": 256, "evaluate.batch": 256, "model.threads": 4, "rank.block": 32}
    settings |= dict.fromkeys(("trainer.tokens", "rank.tokens"), "auto") | REPRODUCTIONS[profile][0]
    values |= {"seeds": [SEED], "settings": settings, "warm_start_settings": {}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    shutil.copy(source / "claims.yaml", folder)
    return folder


def pieces() -> dict[str, tuple[float, Callable[[], Iterable[Line]]]]:
    """Name -> (the minutes that a piece may take, what measures it)."""
    functions: dict[str, tuple[float, Callable[[], Iterable[Line]]]] = {}
    for name, shape in MODELS.items():
        long = 2.0 if name == "8b" else 1.0
        for rows in (64, 256, 1024):
            functions[f"sampling-{name}-{rows}"] = 2 * long, partial(sample, shape, rows, in_slots)
            functions[f"sampling-{name}-{rows}-lock-step"] = 3 * long, partial(sample, shape, rows, in_lock_step)
        for kind in KINDS:
            work = partial(rank, shape) if kind == "ranking" else partial(train, kind, shape)
            functions[f"{kind}-{name}"] = (1.5 if kind == "ranking" else 3.0) * long, work
        if name != "8b":  # 16 bytes a number are more than one card has
            functions[f"policy-{name}-full"] = 3.0 * long, partial(train, "policy", shape, full=True)
        functions[f"policy-{name}-trl"] = 2.5 * long, partial(trl, shape)
    seed = str(SEED)
    for profile, (_, variants) in REPRODUCTIONS.items():
        parts = [("warm-start",), ("seed-data", seed)]
        parts += [(what, name, seed) for name in variants for what in ("variant", "measure")]
        for part in parts:
            name = "-".join(word for word in (profile, *part) if word != seed)
            functions[name] = 9.0, partial(reproduction, profile, *part)
    return functions


def dry_pieces() -> dict[str, tuple[float, Callable[[], Iterable[Line]]]]:
    """The same functions on a tiny model, but for TRL and the reproductions, whose profiles are written and read."""

    def read(name: str) -> list[Line]:
        from sweetrl.reproduce.run import Profile

        there = (SCRATCH / f"gpu-{name}").exists()
        folder = prepare(name)
        profile = Profile(folder)
        for variant in map(profile.variant, REPRODUCTIONS[name][1]):
            parse_settings(profile.tree(SEED, variant.settings), f"{name}'s {variant.name}")
        if not there:
            shutil.rmtree(folder)
        return [{"variants": list(REPRODUCTIONS[name][1])}]

    functions: dict[str, tuple[float, Callable[[], Iterable[Line]]]] = {
        "sampling": (1, partial(sample, "tiny", 3, in_slots, 4)),
        "sampling-lock-step": (1, partial(sample, "tiny", 3, in_lock_step, 4)),
    }
    functions |= {kind: (1, partial(train, kind, "tiny", 1)) for kind in KINDS if kind != "ranking"}
    functions["full"] = 1, partial(train, "policy", "tiny", 1, full=True)
    functions |= {name: (1, partial(read, name)) for name in REPRODUCTIONS}
    return functions | {"ranking": (1, partial(rank, "tiny", 1))}


def device() -> Line:
    """What is measured on, and with what."""
    import torch
    import transformers

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {"device": name, "torch": torch.__version__, "transformers": transformers.__version__}


def measure(chosen: dict[str, tuple[float, Callable[[], Iterable[Line]]]], out: Path, minutes: float) -> list[str]:
    """Measure what is not in `out` yet, as long as there is time; return the names of what is left."""
    start, left = time.monotonic(), list[str]()
    done = {json.loads(line)["piece"] for line in out.read_text().splitlines()} if out.exists() else set[str]()
    for name, (most, work) in chosen.items():
        if name in done:
            continue
        if (time.monotonic() - start) / 60 + most > minutes and most <= minutes:
            left.append(name)
            continue
        lines = list[Line]()
        try:
            for line in work():
                lines.append(line)  # what was measured before a failure is kept
        except Exception as error:  # the others are measured nevertheless
            cause = str(error).splitlines()[0] if str(error) else ""
            lines.append({"failed": f"{type(error).__name__}: {cause}"})
        with out.open("a", encoding="utf-8") as file:
            for line in lines:
                print(text := json.dumps({"piece": name} | device() | line), flush=True)
                file.write(text + "\n")
        try:
            release()  # the next piece may be another process
        except RuntimeError as error:  # after a kernel's failure whatever follows fails, too, in this process
            print(f"the device has failed: {error}", file=sys.stderr)
            done.add(name)
            return [name for name in chosen if name not in done]
        done.add(name)
    return left


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default="", help="pieces, with commas between them")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    chosen = dry_pieces() if options.dry_run else pieces()
    if options.only:
        chosen = {name: chosen[name] for name in options.only.split(",")}
    if options.list:
        for name, (minutes, _) in chosen.items():
            print(f"{minutes:4.1f}  {name}")
        return
    left = measure(chosen, options.out, options.minutes)
    print(f"left for the next call: {', '.join(left)}" if left else f"all is measured: {options.out}")


if __name__ == "__main__":
    main()
