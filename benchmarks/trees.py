"""Dialogue trees against one sequence at a time: ranking, policy training, critic training; one JSON.

    python benchmarks/trees.py [--shape small] [--dialogues 2] [--threads 2] [--json OUT] [--only ranking,policy,critic]
    python benchmarks/trees.py --sweep [--json OUT] [--plot docs/images/trees.png]    cost against size

Everything runs in this one run on the same random dialogues and the same model with random weights, each measurement in
a process of its own (peak memory), peers in turns with ours. Nothing is fetched. `--shape llama-8b` with a CUDA device
is the shape of Llama-3.1-8B in bfloat16.

Lengths follow the official set (uniform, from a seed): 3 to 10 agent turns; 300 to 1,000 tokens before the first reply
(so that the last turns have prefixes of up to about 2,500); replies of 20 to 120 tokens, final ones of 150 to 400, the
person's words 20 to 80. 16 candidates a turn, one in eight of them a final reply; tokens are random, so that candidates
share nothing but the dialogue before them.

ranking  log-probs with and without the adapter of all candidates. Peers: every candidate a sequence of its own, packed
         without padding; and in padded batches of like lengths.
policy   DPO with LoRA on 4 pairs a turn, 8 pairs a step, the reference computed beforehand (counted). Peers: TRL's
         DPOTrainer (where it is installed) with precomputed reference and without gradient checkpointing, on the very
         same token ids; and our flat batches.
critic   Eq. 2 on all pairs of 4 attempts at a task, which share c, the system prompt and the request. Peer: flat
         batches (which compute an attempt once for each step, however many pairs of the step it is in).

Speed is work per processor second on a CPU, per second on a GPU. `ideal` is how many times more tokens the peer
computes than there are distinct prefixes, `share` what of that ratio is reached.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweetrl.learning.batches import PreferenceData, Row
from sweetrl.learning.passes import Layout, length_batches
from sweetrl.learning.trees.layout import build_forest, fed, forest_tokens, split_rows
from sweetrl.settings import CriticSettings, LoraSettings, PolicySettings

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "vocab_size": 2048},
    "small": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 8192},
    "medium": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "vocab_size": 32000},
    "llama-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256},
}
LORA = LoraSettings(rank=16, alpha=32)


# --- dialogues ------------------------------------------------------------------------------------------------------


def dialogue(chance: random.Random, vocabulary: int, turns: int | None = None, prefix: int | None = None) -> Row:
    """A dialogue of random tokens with the lengths of the module's text."""

    def some(low: int, high: int) -> list[int]:
        return [chance.randrange(10, vocabulary) for _ in range(chance.randint(low, high))]

    turns = chance.randint(3, 10) if turns is None else turns
    ids = some(300, 1000) if prefix is None else some(prefix, prefix)
    spans = []
    for turn in range(turns):
        reply = some(150, 400) if turn == turns - 1 else some(20, 120)
        spans.append((len(ids), len(ids) + len(reply)))
        ids += reply
        if turn < turns - 1:
            ids += some(20, 80)
    return Row(tuple(ids), tuple(spans))


def candidates(chance: random.Random, trunk: Row, vocabulary: int, count: int = 16) -> list[Row]:
    """`count` candidates at every turn of `trunk`, as rows."""
    rows = []
    for start, _ in trunk.spans:
        for number in range(count):
            low, high = (150, 400) if number % 8 == 0 else (20, 120)
            reply = tuple(chance.randrange(10, vocabulary) for _ in range(chance.randint(low, high)))
            rows.append(Row(trunk.token_ids[:start] + reply, ((start, start + len(reply)),)))
    return rows


def policy_data(dialogues: Sequence[Row], vocabulary: int, seed: int) -> PreferenceData:
    """4 pairs at every turn, chosen from 16 candidates."""
    chance = random.Random(seed)
    rows: list[Row] = []
    pairs: list[tuple[int, int]] = []
    groups: list[int] = []
    for number, trunk in enumerate(dialogues):
        found = candidates(chance, trunk, vocabulary)
        for turn in range(len(trunk.spans)):
            here = list(range(16 * turn, 16 * turn + 16))
            for good, bad in zip(chance.sample(here[:8], 4), chance.sample(here[8:], 4), strict=True):
                pairs.append((len(rows), len(rows) + 1))
                rows += [found[good], found[bad]]
                groups += [number, number]
    return PreferenceData(tuple(rows), tuple(pairs), (), tuple(groups))


def critic_data(tasks: int, vocabulary: int, seed: int) -> PreferenceData:
    """4 attempts at each task and all 6 pairs of them."""
    chance = random.Random(seed)
    rows: list[Row] = []
    pairs: list[tuple[int, int]] = []
    for task in range(tasks):
        shared = [chance.randrange(10, vocabulary) for _ in range(chance.randint(300, 1000))]
        for _ in range(4):
            one = dialogue(chance, vocabulary, prefix=0)
            moved = tuple((start + len(shared), end + len(shared)) for start, end in one.spans)
            rows.append(Row((*shared, *one.token_ids), moved))
        pairs += [(4 * task + i, 4 * task + j) for i in range(4) for j in range(i + 1, 4)]
    return PreferenceData(tuple(rows), tuple(pairs), (), tuple(index // 4 for index in range(len(rows))))


# --- measurements, each in a process of its own ---------------------------------------------------------------------


def make_model(options: argparse.Namespace) -> Any:
    """A Llama with random weights and a fresh LoRA adapter."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sweetrl.learning.adapters import attach_adapter

    torch.set_num_threads(options.threads)
    large = options.shape == "llama-8b"
    device = torch.device("cuda" if torch.cuda.is_available() and options.device != "cpu" else "cpu")
    torch.manual_seed(0)
    heads = 32 if large else SHAPES[options.shape]["hidden_size"] // 64
    config = LlamaConfig(
        **SHAPES[options.shape],
        num_attention_heads=heads,
        num_key_value_heads=8 if large else max(1, heads // 2),
        max_position_embeddings=32768,
        pad_token_id=0,
    )
    torch.set_default_dtype(torch.bfloat16 if large else torch.float32)
    with device:
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return attach_adapter(model.requires_grad_(False), LORA, seed=0)


def own_process(options: argparse.Namespace, job: Callable[..., dict[str, float]], *given: Any) -> dict[str, float]:
    """Run `job(model, *given)` in a forked process; add its seconds and its peak memory above the model's."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def run() -> None:
        model = make_model(options)
        cuda = next(model.parameters()).is_cuda
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        wall, processor = time.perf_counter(), time.process_time()
        numbers = job(model, *given)
        if cuda:
            import torch

            torch.cuda.synchronize()
        seconds, spent = time.perf_counter() - wall, time.process_time() - processor
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        if cuda:
            peak = torch.cuda.max_memory_allocated() / 2**20
        times = {"seconds": seconds, "processor_seconds": spent, "cost": seconds if cuda else spent}
        send.send(numbers | times | {"peak_mib": peak})

    process = context.Process(target=run)
    process.start()
    send.close()
    try:
        return receive.recv()
    finally:
        process.join()


def rank(model: Any, dialogues: Sequence[Sequence[Row]], how: str, tokens: int) -> dict[str, float]:
    """Log-probs of all candidates with and without the adapter."""
    import torch

    from sweetrl.learning.logprobs import reply_logprobs
    from sweetrl.learning.trees.attention import choose_backend
    from sweetrl.learning.trees.forward import collate_trees, to_device

    device = next(model.parameters()).device
    backend = choose_backend(device)
    flat = Layout(None, tokens)
    computed = 0
    total = 0.0
    model.eval()
    for rows in dialogues:
        if how == "trees":
            passes = split_rows(rows, tokens)
        elif how == "packed":
            passes = pack(rows, tokens)
        else:
            passes = length_batches(rows, tokens)
        for indices in passes:
            chosen = [rows[index] for index in indices]
            batch = flat.collate(chosen) if how == "padded" else collate_trees(chosen, backend, merge=how == "trees")
            batch = to_device(batch, device)
            computed += batch["input_ids"].numel()
            with torch.no_grad():
                ours = reply_logprobs(model, batch)
                with model.disable_adapter():
                    reference = reply_logprobs(model, batch)
            total += float((ours.double() - reference.double()).sum())
    return {"tokens": computed, "checksum": total}


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


def train(model: Any, kind: str, data: PreferenceData, layout: str, tokens: int) -> dict[str, float]:
    """Our trainer on all pairs once."""
    from sweetrl.learning import trainers

    options: dict[str, Any] = {
        "learning_rate": 1e-5,
        "epochs": 1.0,
        "batch_size": 8,
        "micro_batch": 8,
        "tokens": tokens,
    }
    options |= {"layout": layout, "lora": LORA, "checkpoints": 1, "nll": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        if kind == "policy":
            trainer: Any = trainers.PolicyTrainer(model, data, PolicySettings(**options), Path(folder), 0)
        else:
            trainer = trainers.CriticTrainer(model, data, CriticSettings(**options), Path(folder), 0)
        history = trainer.fit()
    return {"steps": len(history), "computed": sum(one["computed"] for one in history) / len(history)}


def train_trl(model: Any, data: PreferenceData, micro_batch: int) -> dict[str, float]:
    """TRL's DPOTrainer on the same pairs of token ids: reference precomputed, no gradient checkpointing."""
    import datasets
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    class OnTokenIds(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *other: Any) -> Any:
            return dataset  # it has the ids already

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
            num_train_epochs=1,
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
        )
        found = trainer.train()
    return {"steps": found.global_step}


# --- the comparison -------------------------------------------------------------------------------------------------


def compare(ours: dict[str, float], peers: dict[str, dict[str, float]], ideal: dict[str, float]) -> dict[str, Any]:
    """Ours against each peer: speed-up, the ratio of tokens, and what share of that is reached."""
    result: dict[str, Any] = {"trees": ours}
    for name, numbers in peers.items():
        speed = numbers["cost"] / ours["cost"]
        result[name] = numbers | {"speed_up": speed, "ideal": ideal[name], "share": speed / ideal[name]}
        print(
            f"  trees against {name}: {speed:.1f} times faster ({ideal[name]:.1f} times fewer tokens: "
            f"{100 * speed / ideal[name]:.0f} % of the ideal), peak memory {ours['peak_mib']:.0f} against "
            f"{numbers['peak_mib']:.0f} MiB",
            flush=True,
        )
    return result


def ranking(options: argparse.Namespace) -> dict[str, Any]:
    vocabulary = SHAPES[options.shape]["vocab_size"]
    chance = random.Random(options.seed)
    dialogues = [candidates(chance, dialogue(chance, vocabulary), vocabulary) for _ in range(options.dialogues)]
    ours = own_process(options, rank, dialogues, "trees", options.tokens)
    peers = {name: own_process(options, rank, dialogues, name, options.tokens) for name in options.peers.split(",")}
    for numbers in peers.values():
        assert abs(numbers["checksum"] - ours["checksum"]) <= 1e-3 * max(1.0, abs(ours["checksum"]))
    unique = sum(forest_tokens(rows) for rows in dialogues)
    sequences = sum(fed(row) for rows in dialogues for row in rows)
    print(
        f"ranking: {sum(map(len, dialogues))} candidates, {sequences} tokens one at a time, {unique} distinct",
        flush=True,
    )
    return compare(ours, peers, dict.fromkeys(peers, sequences / unique)) | {"unique": unique, "sequences": sequences}


def policy(options: argparse.Namespace) -> dict[str, Any]:
    vocabulary = SHAPES[options.shape]["vocab_size"]
    chance = random.Random(options.seed)
    data = policy_data([dialogue(chance, vocabulary) for _ in range(options.dialogues)], vocabulary, options.seed)
    ours = own_process(options, train, "policy", data, "trees", options.tokens)
    peers = {"flat": own_process(options, train, "policy", data, "flat", options.tokens)}
    try:
        import trl

        peers[f"TRL {trl.__version__}"] = own_process(options, train_trl, data, options.trl_micro_batch)
    except ImportError:
        print("policy: TRL is not installed here (pip install trl); compared with our own flat batches only")
    sequences = sum(len(data.rows[index].token_ids) for pair in data.pairs for index in pair)
    # A step has 8 pairs, and weights change after it: the least that can be computed is each step's forest.
    print(f"policy: {len(data.pairs)} pairs, {sequences} tokens one at a time", flush=True)
    return compare(ours, peers, dict.fromkeys(peers, 1 / ours["computed"])) | {"pairs": len(data.pairs)}


def critic(options: argparse.Namespace) -> dict[str, Any]:
    data = critic_data(options.dialogues, SHAPES[options.shape]["vocab_size"], options.seed)
    ours = own_process(options, train, "critic", data, "trees", options.tokens)
    peers = {"flat": own_process(options, train, "critic", data, "flat", options.tokens)}
    print(f"critic: {len(data.pairs)} pairs of {len(data.rows)} attempts", flush=True)
    return compare(ours, peers, {"flat": peers["flat"]["computed"] / ours["computed"]}) | {"pairs": len(data.pairs)}


def sweep(options: argparse.Namespace) -> list[dict[str, float]]:
    """Cost of ranking against size: turns, candidates and length of the prefix, one at a time."""
    vocabulary = SHAPES[options.shape]["vocab_size"]
    points = [(turns, 16, 600) for turns in (2, 4, 6, 8, 10)]
    points += [(4, count, 600) for count in (2, 4, 8, 16, 32)]
    points += [(4, 16, prefix) for prefix in (1000, 2000, 4000, 8000, 16000)]
    found = []
    for turns, count, prefix in points:
        chance = random.Random(options.seed)
        rows = candidates(chance, dialogue(chance, vocabulary, turns, prefix), vocabulary, count)
        forest = build_forest(rows)
        numbers = own_process(options, rank, [rows], "trees", options.tokens)
        sequences = sum(fed(row) for row in rows)
        scores = sum(fed(row) * (fed(row) + 1) // 2 for row in rows)
        point = {"turns": turns, "candidates": count, "prefix": prefix, "sequences": sequences} | numbers
        point |= {"unique": forest.cost.tokens, "scores": forest.cost.scores, "sequence_scores": scores}
        each = 1e6 * numbers["cost"] / point["unique"]
        print(
            f"{turns:3d} turns {count:3d} candidates {prefix:6d} prefix: {point['unique']} of {sequences} tokens",
            end="",
        )
        print(f", {numbers['cost']:.2f} s, {each:.0f} us a token", flush=True)
        found.append(point)
    return found


def plot(points: Sequence[dict[str, float]], path: Path) -> None:
    """Measured cost and the formula (tokens and scores, fitted) against the tokens of one sequence at a time."""
    import numpy as np
    from matplotlib.figure import Figure

    design = np.array([[point["unique"], point["scores"]] for point in points], dtype=float)
    cost = np.array([point["cost"] for point in points])
    weights, *_ = np.linalg.lstsq(design / cost[:, None], np.ones(len(points)), rcond=None)
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    sequences = np.array([[point["sequences"], point["sequence_scores"]] for point in points], dtype=float)
    order = np.argsort([point["unique"] for point in points])
    axes.plot(design[order, 0], cost[order], "o", label="trees, measured")
    axes.plot(design[order, 0], (design @ weights)[order], "-", lw=0.8, label="trees: a tokens + b scores, fitted")
    axes.plot(design[order, 0], (sequences @ weights)[order], "x", label="one sequence at a time, same a and b")
    axes.set(xscale="log", yscale="log", xlabel="distinct tokens of the tree", ylabel="seconds")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--dialogues", type=int, default=2, help="dialogues (ranking, policy) or tasks (critic)")
    parser.add_argument("--tokens", type=int, default=16384, help="most tokens in one pass, of all peers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="ranking,policy,critic")
    parser.add_argument("--peers", default="packed,padded", help="of the ranking")
    parser.add_argument("--trl-micro-batch", type=int, default=8, choices=(1, 2, 4, 8))
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import peft  # noqa: F401  imported once, before processes are forked
    import transformers

    transformers.logging.set_verbosity_error()
    jobs = {"ranking": ranking, "policy": policy, "critic": critic}
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}}
    if options.sweep:
        result["sweep"] = sweep(options)
        if options.plot:
            plot(result["sweep"], options.plot)
    else:
        result |= {name: jobs[name](options) for name in options.only.split(",")}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
