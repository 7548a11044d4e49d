"""The sweep of benchmarks/trees.py: the cost of ranking against turns, candidates and length, and its picture."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from trees_data import SHAPES, candidates, dialogue, sizes

TURNS, COUNTS, PREFIXES = (2, 4, 6, 8, 10), (2, 4, 8, 16, 32), (1000, 2000, 4000, 8000, 16000)
USUAL = {"turns": 4, "candidates": 16, "prefix": 600}
SINGLES = 8000  # tokens of the sequences that are measured one at a time at each point; two sequences at least
AXES = {"turns": "agent turns", "candidates": "candidates at each turn", "prefix": "tokens before the first reply"}


def sweep(options: argparse.Namespace, measure: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """One point at a time: `measure(rows, how)` is the cost of ranking `rows` as `trees` or `packed`.

    One sequence at a time is measured on an even sample of them and multiplied up by the formula's tokens.
    """
    vocabulary = SHAPES[options.shape]["vocab_size"]
    axes = [("turns", value) for value in TURNS] + [("candidates", value) for value in COUNTS]
    points = []
    for axis, value in axes + [("prefix", value) for value in PREFIXES]:
        chance, at = random.Random(0), USUAL | {axis: value}
        trunk = dialogue(chance, vocabulary, at["turns"], at["prefix"])
        rows = candidates(chance, trunk, vocabulary, at["candidates"])
        tree, alone = sizes(rows, True), sizes(rows, False)
        count = min(len(rows), max(2, int(SINGLES * len(rows) / alone[0])))
        sample = [rows[int((number + 0.5) * len(rows) / count)] for number in range(count)]
        costs = measure(rows, "trees")["cost"], measure(sample, "packed")["cost"]
        part = sizes(sample, False)
        point = {"axis": axis, "tree": tree.tolist(), "alone": alone.tolist(), "sample": part.tolist()} | at
        point |= {"tree_cost": costs[0], "sample_cost": costs[1], "alone_cost": costs[1] * float(alone[0] / part[0])}
        points.append(point)
        print(
            f"{axis} {value}: {tree[0]} of {alone[0]} tokens ({alone[0] / tree[0]:.1f} times fewer), trees "
            f"{costs[0]:.1f} s, one at a time {point['alone_cost']:.1f} s (from {len(sample)} of {len(rows)}), "
            f"{point['alone_cost'] / costs[0]:.1f} times faster",
            flush=True,
        )
    return points


def fit(points: Sequence[dict[str, Any]]) -> Any:
    """Seconds for a token, a query-key pair and a scored position: least squares of relative errors, none negative."""
    from scipy.optimize import nnls

    counts = [point["tree"] for point in points] + [point["sample"] for point in points]
    costs = [point["tree_cost"] for point in points] + [point["sample_cost"] for point in points]
    return nnls(np.array(counts, dtype=float) / np.array(costs)[:, None], np.ones(len(costs)))[0]


def plot(points: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """A panel for each axis: what was measured, and the formula with its three constants fitted."""
    from matplotlib.figure import Figure

    seconds = fit(points)
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for panel, axis in zip(panels, AXES, strict=True):
        here = sorted((point for point in points if point["axis"] == axis), key=lambda point: point[axis])
        x = [point[axis] for point in here]
        for name, key, cost, colour in (
            ("one sequence at a time", "alone", "alone_cost", "tab:gray"),
            ("trees", "tree", "tree_cost", "tab:blue"),
        ):
            panel.plot(x, [point[cost] for point in here], "o", color=colour, label=f"{name}, measured")
            formula = [float(np.dot(point[key], seconds)) for point in here]
            panel.plot(x, formula, "-", lw=1, color=colour, label=f"{name}, formula")
        for point in here:
            times = f"{point['alone_cost'] / point['tree_cost']:.1f}×"
            middle = (point["alone_cost"] * point["tree_cost"]) ** 0.5
            panel.annotate(times, (point[axis], middle), ha="center", fontsize=8, color="0.3")
        panel.set(xscale="log", yscale="log", xlabel=AXES[axis], xticks=x, xticklabels=[str(value) for value in x])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("processor seconds")
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
