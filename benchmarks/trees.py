"""Dialogue trees against one sequence at a time: ranking, policy training, critic training; one JSON.

    python benchmarks/trees.py [--shape small] [--dialogues 2] [--threads 2] [--json OUT] [--only ranking,policy,critic]
    python benchmarks/trees.py --formula     what can be reached, for all shapes; measures nothing
    python benchmarks/trees.py --sweep [--json OUT] [--plot docs/images/trees.png]    cost against size

Everything runs in this one run on the same random dialogues and the same model with random weights, one measurement
after the other; on a CPU each in a process of its own (peak memory). Nothing is fetched. `--shape smollm2-135m` and
`--shape llama-8b` (bfloat16, with a CUDA device) are the shapes of those models, the others are made up. With a CUDA
device each job is first run unmeasured, because FlexAttention is compiled for the first shapes that it meets.

Lengths follow the official set (uniform): 3 to 10 agent turns (`--turns` for another number); 300 to 1,000
tokens before the first reply (so that the last turns have prefixes of up to about 2,500); replies of 20 to 120 tokens,
final ones of 150 to 400, the user's words 20 to 80. 16 candidates a turn, one in eight of them as long as a final
reply; tokens are random, so that candidates share nothing but the dialogue before them.

ranking  log-probs with and without the adapter of all candidates. Peers: `packed`, every candidate a sequence of its
         own, without padding; `padded`, batches of like lengths; `vllm`, its prompt_logprobs (`--vllm PYTHON`, the
         Python of an environment that has it). With `--sample N` peers compute every Nth candidate (or as many as fill
         one pass), and their cost is multiplied up by tokens.
policy   DPO with LoRA on 4 pairs a turn, 8 pairs a step, the reference computed beforehand (counted). Peers: `trl`, its
         DPOTrainer (where it is installed) with precomputed reference on the very same token ids; `flat`, our padded
         batches. Without gradient checkpointing.
critic   Eq. 2 on all pairs of 4 attempts at a task, which share c, the system prompt and the request, and nothing after
         it. Peers: `pairs`, every pair a batch of its own, as trainers of preferences do; `flat`, our padded batches,
         which compute an attempt once for each step, however many pairs of the step it is in.

Speed is work per processor second on a CPU, per second on a GPU. `ideal` is how many times more tokens the peer
computes than we do (training counts three times a forward pass), `share` what of that ratio is reached, and
`arithmetic` how many times more multiply-adds of layers, attention and head: the latter two cannot be shared.
`utilisation` is these operations (padding, the adapter and what is recomputed left out) against the ceiling of large
matrix products, measured here; `mfu` (llama-8b, H100 or H200) against the data sheet's 989 TFLOP/s. Training by LoRA
needs twice the forward pass's operations in layers and head (frozen weights) and three times those of attention.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
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
from trees_measure import matrix_products, measure, on_cuda
from trees_peers import Unavailable, rank_vllm, train_trl

from sweetrl.config.settings import CriticSettings, PolicySettings
from sweetrl.lm.data import MicroBatch, PreferenceData, Row
from sweetrl.lm.forest import fed, split_rows
from sweetrl.lm.passes import Layout, length_batches

TRL_PAIRS = 2  # in a batch of TRL's

# --- the jobs -------------------------------------------------------------------------------------------------------


def rank(model: Any, dialogues: Sequence[Sequence[Row]], how: str, tokens: int) -> dict[str, Any]:
    """Log-probs of all candidates with and without the adapter; `sums` are the differences, candidate by candidate."""
    import torch

    from sweetrl.lm.passes import collate_trees, reply_logprobs, to_device
    from sweetrl.lm.tree_attention import choose_backend

    device = next(model.parameters()).device
    backend = choose_backend(device)
    flat = Layout(None, tokens)
    computed = 0
    sums: list[float] = []
    model.eval()
    for rows in dialogues:
        if how == "trees":
            passes = split_rows(rows, tokens)
        elif how == "packed":
            passes = pack(rows, tokens)
        else:
            passes = length_batches(rows, tokens)
        dialogue_sums = [0.0] * len(rows)
        for indices in passes:
            chosen = [rows[index] for index in indices]
            batch = flat.collate(chosen) if how == "padded" else collate_trees(chosen, backend, merge=how == "trees")
            batch = to_device(batch, device)
            computed += batch["input_ids"].numel()
            with torch.no_grad():
                adapted = reply_logprobs(model, batch)
                with model.disable_adapter():
                    reference = reply_logprobs(model, batch)
            differences = (adapted.double() - reference.double()).split([row.reply_tokens for row in chosen])
            for index, difference in zip(indices, differences, strict=True):
                dialogue_sums[index] = difference.sum().item()
        sums += dialogue_sums
    return {"tokens": computed, "sums": sums}


def pack(rows: Sequence[Row], tokens: int) -> list[list[int]]:
    """Sequences in packs of at most `tokens`, in order."""
    result: list[list[int]] = []
    room = 0
    for index, row in enumerate(rows):
        if not result or fed(row) > room:
            result.append([])
            room = tokens
        result[-1].append(index)
        room -= fed(row)
    return result


@dataclass(frozen=True)
class Counted(Layout):
    """A layout that adds up the sizes of what it lays out."""

    total: Any = field(default_factory=lambda: np.zeros(3))

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        self.total[:] += sizes(rows, self.backend is not None)
        return super().collate(rows)


def train(model: Any, kind: str, data: PreferenceData, layout: str, tokens: int, pairs: int = 8) -> dict[str, Any]:
    """Our trainer on all pairs once; at most `pairs` pairs in a pass. `tokens` counts training three times."""
    from sweetrl.sweet import trainer as trainers

    options: dict[str, Any] = {"learning_rate": 1e-5, "epochs": 1.0, "batch_size": 8, "micro_batch_size": pairs}
    options |= {"tokens": tokens, "layout": layout, "lora": LORA, "checkpoints": 1, "nll": 0.0}
    options |= {"gradient_checkpointing": False}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        if kind == "policy":
            trainer: Any = trainers.PolicyTrainer(model, data, PolicySettings(**options), Path(folder), 0)
        else:
            trainer = trainers.CriticTrainer(model, data, CriticSettings(**options), Path(folder), 0)
        referring = time.perf_counter() - start
        make, trained = trainer.make_micro_batches, [0]
        layout_ = trainer.layout = Counted(trainer.layout.backend, trainer.layout.tokens, trainer.layout.pad_id)

        def counted(step: MicroBatch) -> list[dict[str, Any]]:
            passes: list[dict[str, Any]] = make(step)
            trained[0] += sum(batch["rows"]["input_ids"].numel() for batch in passes)
            return passes

        trainer.make_micro_batches = counted
        steps = len(trainer.fit())
    cut = [[data.rows[index] for index in indices] for indices in layout_.cut_rows(data.rows)]
    reference = sum(sizes(rows, layout_.backend is not None) for rows in cut)
    return {
        "steps": steps,
        "tokens": 3 * trained[0] + sum(layout_.cost(rows) for rows in cut),
        "reference_seconds": referring,
        "backend": layout_.backend,
        "sizes": {"training": layout_.total.tolist(), "reference": reference.tolist()},
    }


# --- the comparison -------------------------------------------------------------------------------------------------


def compare(trees: dict[str, Any], peers: dict[str, dict[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
    """Ours against each peer (with its `ideal`): speed-up, the ratio of tokens, and what share of that is reached."""
    result: dict[str, Any] = {"trees": trees} | more
    for name, numbers in peers.items():
        speed = numbers["cost"] / trees["cost"]
        result[name] = numbers | {"speed_up": speed, "share": speed / numbers["ideal"]}
        arithmetic = numbers.get("arithmetic", more.get("arithmetic"))
        bound = f", {arithmetic:.1f} times less arithmetic" if arithmetic else ""
        print(
            f"  trees against {name}: {speed:.1f} times faster ({numbers['ideal']:.1f} times fewer tokens{bound}: "
            f"{100 * speed / numbers['ideal']:.0f} % of the ideal), peak memory {trees['peak_mib']:.0f} against "
            f"{numbers['peak_mib']:.0f} MiB, {trees['cost']:.1f} against {numbers['cost']:.1f} s",
            flush=True,
        )
    return result


def selected(options: argparse.Namespace, *names: str) -> list[str]:
    return [name for name in names if options.peers == "all" or name in options.peers.split(",")]


def ranked_dialogues(options: argparse.Namespace) -> list[list[Row]]:
    """All candidates of each dialogue, as rows."""
    vocabulary = SHAPES[options.shape]["vocab_size"]
    chance = random.Random(0)
    trunks = [dialogue(chance, vocabulary, options.turns) for _ in range(options.dialogues)]
    return [candidates(chance, trunk, vocabulary) for trunk in trunks]


def formula(options: argparse.Namespace) -> dict[str, float]:
    """What the formulas say of the ranking, for all shapes; nothing is measured."""
    dialogues = ranked_dialogues(options)
    tree, alone = (sum(sizes(rows, merge) for rows in dialogues) for merge in (True, False))
    ratios = {shape: multiply_adds(shape, alone) / multiply_adds(shape, tree) for shape in SHAPES}
    turns = [len(rows) // 16 for rows in dialogues]
    print(f"dialogues of {turns} turns: {alone[0]} tokens, {tree[0]} distinct, {alone[0] / tree[0]:.1f} times fewer")
    print("times fewer multiply-adds:", ", ".join(f"{shape} {times:.1f}" for shape, times in ratios.items()))
    return ratios | {"tokens": float(alone[0] / tree[0])}


def ranking(options: argparse.Namespace) -> dict[str, Any]:
    dialogues = ranked_dialogues(options)
    # What peers compute fills one pass at least, so that their peak memory is that of all.
    every = max(1, min(options.sample, sum(fed(row) for rows in dialogues for row in rows) // options.tokens))
    sampled = [rows[every // 2 :: every] for rows in dialogues]
    everything, some = ([row for rows in sample for row in rows] for sample in (dialogues, sampled))
    tree, alone = sum(sizes(rows, True) for rows in dialogues), sizes(everything, False)
    print(f"ranking: {len(everything)} candidates, {alone[0]} tokens one at a time, {tree[0]} distinct", flush=True)
    given = (rank, dialogues, "trees", options.tokens)
    trees = measure(options, *given, moved=True, warm=given[1:])
    expected = dict(zip(map(id, everything), trees.pop("sums"), strict=True))
    peers = {}
    for name in selected(options, "packed", "padded", *(["vllm"] if options.vllm else [])):
        try:
            if name == "vllm":
                numbers = measure(options, rank_vllm, some, options.vllm, options.threads, moved=True)
            else:
                warm = (sampled[:1], name, options.tokens)
                numbers = measure(options, rank, sampled, name, options.tokens, moved=True, warm=warm)
        except Unavailable as reason:
            print(f"  {name} is left out: {reason}", flush=True)
            continue
        error = max(abs(value - expected[id(row)]) for value, row in zip(numbers.pop("sums"), some, strict=True))
        # Whole replies' log-ratios; in bfloat16 each of their tokens' log-probs is rounded.
        allowed = 0.1 if options.shape == "llama-8b" else 1e-3
        assert error <= allowed * max(1.0, *map(abs, expected.values())), (name, error)
        share = float(sizes(some, False)[0] / alone[0])
        numbers |= {key: numbers[key] / share for key in ("cost", "seconds", "processor_seconds") if key in numbers}
        peers[name] = numbers | {"ideal": float(alone[0] / tree[0]), "sampled": share, "error": error}
    work = {way: 4.0 * multiply_adds(options.shape, counts) for way, counts in (("tree", tree), ("alone", alone))}
    more = {"tree_sizes": tree.tolist(), "alone_sizes": alone.tolist(), "arithmetic": work["alone"] / work["tree"]}
    for numbers, way in ((trees, "tree"), *((peer, "alone") for peer in peers.values())):
        numbers["flops"] = work[way] / numbers["cost"]
        numbers["tokens_per_second"] = float(alone[0] if way == "alone" else tree[0]) / numbers["cost"]
    more["ceiling"] = say_utilisation(options, {"trees": trees, **peers})
    return compare(trees, peers, more)


def say_utilisation(options: argparse.Namespace, measured: dict[str, dict[str, Any]]) -> float:
    """Add `utilisation` to each, and `mfu` where the data sheet is known; return the measured ceiling."""
    ceiling = float(measure(options, matrix_products, warm=())["flops"])
    for numbers in measured.values():
        numbers["utilisation"] = numbers["flops"] / ceiling
        if on_cuda() and options.shape == "llama-8b":
            numbers["mfu"] = numbers["flops"] / HOPPER
    shares = ", ".join(
        f"{name} {100 * row['utilisation']:.0f} %"
        + (f" (MFU {100 * row['mfu']:.0f} %)" if "mfu" in row else "")
        + f", {row['tokens_per_second']:.0f} tokens/s"
        for name, row in measured.items()
    )
    print(f"  of the {ceiling / 1e9:.0f} GFLOP/s of large matrix products: {shares}", flush=True)
    return ceiling


def training(options: argparse.Namespace, kind: str, data: PreferenceData, names: list[str]) -> dict[str, Any]:
    print(f"{kind}: {len(data.pairs)} pairs of {len(data.rows)} rows", flush=True)
    few = first_steps(data)

    def ours_or(layout: str, pairs: int = 8) -> dict[str, Any]:
        more = (layout, options.training_tokens or options.tokens, pairs)
        # Trees of all sizes are compiled before; flat batches have nothing to compile.
        return measure(options, train, kind, data, *more, warm=(kind, data if layout == "trees" else few, *more))

    trees = ours_or("trees")
    peers = {}
    for name in names:
        if name == "trl":
            try:
                numbers = measure(options, train_trl, data, TRL_PAIRS, warm=(few, TRL_PAIRS))
            except Unavailable as reason:
                print(f"  trl is left out: {reason}", flush=True)
                continue
            rows = [data.rows[index] for pair in data.pairs for index in pair]
            numbers["tokens"] = 4 * sum(len(row.token_ids) for row in rows)
            counts = sizes(rows, False).tolist()
            numbers["sizes"] = {"training": counts, "reference": counts}
        else:
            numbers = ours_or("flat", 1 if name == "pairs" else 8)
        peers[name] = numbers | {"ideal": numbers["tokens"] / trees["tokens"]}
    for numbers in (trees, *peers.values()):
        counts = numbers["sizes"]
        work = training_multiply_adds(options.shape, counts["training"])
        work += multiply_adds(options.shape, counts["reference"])
        numbers["work"] = 2.0 * work
        numbers["flops"] = numbers["work"] / numbers["cost"]
        numbers["tokens_per_second"] = (counts["training"][0] + counts["reference"][0]) / numbers["cost"]
    ceiling = say_utilisation(options, {"trees": trees, **peers})
    more = {"pairs_of_rows": len(data.pairs), "ceiling": ceiling}
    for numbers in peers.values():
        numbers["arithmetic"] = numbers["work"] / trees["work"]
    return compare(trees, peers, more)


def first_steps(data: PreferenceData) -> PreferenceData:
    """The first 16 pairs, as data of their own."""
    pairs = data.pairs[:16]
    kept = sorted({index for pair in pairs for index in pair})
    place = {index: number for number, index in enumerate(kept)}
    return PreferenceData(
        tuple(data.rows[index] for index in kept),
        tuple((place[chosen], place[rejected]) for chosen, rejected in pairs),
        (),
        tuple(data.groups[index] for index in kept),
    )


def policy(options: argparse.Namespace) -> dict[str, Any]:
    vocabulary = SHAPES[options.shape]["vocab_size"]
    chance = random.Random(0)
    dialogues = [dialogue(chance, vocabulary, options.turns) for _ in range(options.dialogues)]
    names = selected(options, "trl", "flat")
    if "trl" in names:
        try:
            import trl
            from trl import DPOConfig, DPOTrainer  # noqa: F401  before its process is measured

            print(f"policy: TRL {trl.__version__}, {TRL_PAIRS} pairs in a batch", flush=True)
        except ImportError:
            names.remove("trl")
            print("policy: trl is left out: it is not installed here (pip install trl)", flush=True)
    return training(options, "policy", policy_data(dialogues, vocabulary, 0), names)


def critic(options: argparse.Namespace) -> dict[str, Any]:
    vocabulary = SHAPES[options.shape]["vocab_size"]
    data = critic_data(options.dialogues, vocabulary, 0, options.turns)
    return training(options, "critic", data, selected(options, "pairs", "flat"))


def cost_against_size(options: argparse.Namespace) -> list[dict[str, Any]]:
    from trees_sweep import plot, sweep

    def cost_of(rows: Sequence[Row], how: str) -> dict[str, Any]:
        return measure(options, rank, [rows], how, options.tokens, moved=True, warm=([rows], how, options.tokens))

    points = sweep(options, cost_of)
    if options.plot:
        title = f"Ranking, shape {options.shape}, {options.threads} thread" + "s" * (options.threads > 1)
        plot(points, options.plot, title)
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--dialogues", type=int, default=2, help="dialogues (ranking, policy) or tasks (critic)")
    parser.add_argument("--tokens", type=int, default=16384, help="most tokens in one pass, of all peers")
    parser.add_argument("--training-tokens", type=int, help="the same where gradients are kept; default: --tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="ranking,policy,critic")
    parser.add_argument("--peers", default="all", help="packed, padded, vllm; trl, flat; pairs, flat")
    parser.add_argument("--turns", type=int, help="of every dialogue, in place of 3 to 10")
    parser.add_argument("--sample", type=int, default=1, help="peers of the ranking compute every Nth candidate")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--formula", action="store_true", help="say what the formulas give, for all shapes")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.formula:
        formula(options)
        return
    import transformers

    import sweetrl.sweet.trainer as trainers  # noqa: F401  imported once, before processes are forked and measured

    transformers.logging.set_verbosity_error()
    jobs = {"ranking": ranking, "policy": policy, "critic": critic}
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}}
    if options.sweep:
        options.tokens = max(options.tokens, 2**15)  # each dialogue in one pass
        result["sweep"] = cost_against_size(options)
    else:
        for name in options.only.split(","):
            result[name] = jobs[name](options)
            write(options.json, result)
    write(options.json, result)


def write(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
