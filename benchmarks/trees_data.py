"""What benchmarks/trees.py measures on: shapes of models, random dialogues, and what they cost by the formulas."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from sweetrl.config.settings import LoraSettings
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.lm.forest import build_forest, fed


def _shape(hidden: int, intermediate: int, layers: int, vocabulary: int, heads: int, key_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
    }


SHAPES: dict[str, dict[str, int]] = {
    "tiny": _shape(128, 352, 2, 2048, 2, 1),
    "small": _shape(256, 704, 4, 8192, 4, 2),
    "medium": _shape(512, 1408, 8, 32000, 8, 4),
    "smollm2-135m": _shape(576, 1536, 30, 49152, 9, 3),
    "qwen-0.5b": _shape(896, 4864, 24, 151936, 14, 2),
    "llama-8b": _shape(4096, 14336, 32, 128256, 32, 8),
}
HOPPER = 989e12  # bfloat16 operations a second of an H100 or H200 (SXM) by the data sheet, without sparsity
LORA = LoraSettings(rank=16, alpha=32)


def some(chance: random.Random, vocabulary: int, low: int, high: int) -> list[int]:
    """Between `low` and `high` random tokens; how many does not depend on the vocabulary."""
    return chance.choices(range(10, vocabulary), k=chance.randint(low, high))


def dialogue(chance: random.Random, vocabulary: int, turns: int | None = None, prefix: int | None = None) -> Row:
    """A dialogue of random tokens with the lengths of benchmarks/trees.py."""
    turns = chance.randint(3, 10) if turns is None else turns
    ids = some(chance, vocabulary, *((300, 1000) if prefix is None else (prefix, prefix)))
    spans = []
    for turn in range(turns):
        reply = some(chance, vocabulary, *((150, 400) if turn == turns - 1 else (20, 120)))
        spans.append((len(ids), len(ids) + len(reply)))
        ids += reply
        if turn < turns - 1:
            ids += some(chance, vocabulary, 20, 80)
    return Row(tuple(ids), tuple(spans))


def candidates(chance: random.Random, trunk: Row, vocabulary: int, count: int = 16) -> list[Row]:
    """`count` candidates at every turn of `trunk`, as rows; one in eight is as long as a final reply."""
    rows = []
    for start, _ in trunk.spans:
        for number in range(count):
            reply = tuple(some(chance, vocabulary, *((150, 400) if number % 8 == 0 else (20, 120))))
            rows.append(Row(trunk.token_ids[:start] + reply, ((start, start + len(reply)),)))
    return rows


def policy_data(dialogues: Sequence[Row], vocabulary: int, seed: int) -> PreferenceData:
    """4 pairs at every turn, chosen from 16 candidates."""
    chance = random.Random(seed)
    rows: list[Row] = []
    pairs: list[tuple[int, int]] = []
    groups: list[int] = []
    for number, trunk in enumerate(dialogues):
        replies = candidates(chance, trunk, vocabulary)
        for turn in range(len(trunk.spans)):
            here = list(range(16 * turn, 16 * turn + 16))
            for good, bad in zip(chance.sample(here[:8], 4), chance.sample(here[8:], 4), strict=True):
                pairs.append((len(rows), len(rows) + 1))
                rows += [replies[good], replies[bad]]
                groups += [number, number]
    return PreferenceData(tuple(rows), tuple(pairs), (), tuple(groups))


def critic_data(tasks: int, vocabulary: int, seed: int, turns: int | None = None) -> PreferenceData:
    """4 attempts at each task, which share what stands before the first reply and nothing else; all 6 pairs of them."""
    chance = random.Random(seed)
    rows: list[Row] = []
    pairs: list[tuple[int, int]] = []
    for task in range(tasks):
        shared = some(chance, vocabulary, 300, 1000)
        for _ in range(4):
            attempt = dialogue(chance, vocabulary, turns, prefix=0)
            moved = tuple((start + len(shared), end + len(shared)) for start, end in attempt.spans)
            rows.append(Row((*shared, *attempt.token_ids), moved))
        pairs += [(4 * task + i, 4 * task + j) for i in range(4) for j in range(i + 1, 4)]
    return PreferenceData(tuple(rows), tuple(pairs), (), tuple(index // 4 for index in range(len(rows))))


def sizes(rows: Sequence[Row], merge: bool) -> Any:
    """(tokens through the layers, query-key pairs, tokens through the head) as a tree or one sequence at a time."""
    if merge:
        forest = build_forest(rows)
        nodes = len(forest.token_ids)
        return np.array([nodes, int(forest.position.sum()) + nodes, len(forest.predicting)])
    fed_tokens = [fed(row) for row in rows]
    return np.array([sum(fed_tokens), sum(count * (count + 1) // 2 for count in fed_tokens), sum_of_replies(rows)])


def sum_of_replies(rows: Sequence[Row]) -> int:
    return sum(row.reply_tokens for row in rows)


def multiply_adds(shape: str, counts: Any) -> float:
    """Of one forward pass over `counts` as `sizes` gives them: linear layers, attention, head; no adapter."""
    config = SHAPES[shape]
    hidden, width = config["hidden_size"], config["hidden_size"] // config["num_attention_heads"]
    keys = config["num_key_value_heads"] * width
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * config["intermediate_size"]
    layers = config["num_hidden_layers"]
    each = [layers * layer, layers * 2 * hidden, hidden * config["vocab_size"]]
    return float(np.dot(np.asarray(each, dtype=float), counts))


def training_multiply_adds(shape: str, counts: Any) -> float:
    """Of a forward and a backward pass where layers and head are frozen under an adapter, whose own are left out.

    What layers and head take in costs a gradient each, their weights none. In attention both operands of both products
    have gradients.
    """
    attention = multiply_adds(shape, np.asarray(counts, dtype=float) * [0, 1, 0])
    return 2 * multiply_adds(shape, counts) + attention
