"""The drawings of a reproduction: rows with intervals beside the paper's points, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweetrl.evaluation.charts import AFTER_COLOR, BEFORE_COLOR, Chart, percent_axis

PALETTE = ("#0f766e", "#b45309", "#4338ca", "#be123c", "#0369a1", "#64748b", "#a16207")
VERDICTS = {
    "needed": "#15803d",
    "complete": "#15803d",
    "plausible": "#65a30d",
    "repeated": "#d97706",
    "irrelevant": "#dc2626",
    "premature": "#7f1d1d",
    "mistaken": "#7f1d1d",
    "unclear": "#94a3b8",
}


def rates(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Success of each row: the interval, every seed as a small point, and the paper's number as a ring."""
    with Chart(name, 10.8, 0.7 + 0.36 * len(rows)) as chart:
        axes = chart.axes
        for place, row in enumerate(rows):
            success = row["success"]
            axes.plot([success["low"], success["high"]], [place, place], color=AFTER_COLOR, linewidth=2.2, alpha=0.55)
            seeds = list(row["success_by_seed"].values())
            axes.plot(seeds, [place - 0.2] * len(seeds), "|", color="#64748b", markersize=7)
            axes.plot([success["value"]], [place], "o", color=AFTER_COLOR, markersize=7, zorder=3)
            paper = row["paper"][1]
            if paper is not None:
                axes.plot([paper / 100], [place], "o", markerfacecolor="none", color=BEFORE_COLOR, markersize=8)
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        percent_axis(axes, "x", max([row["success"]["high"] for row in rows] or [1.0]))
        axes.set_xlabel("success rate: ours with interval (bars: the seeds); rings: the paper's, on Llama-3.1-8B")
    return chart.svg


def curves(series: Mapping[str, Sequence[tuple[float, Mapping[str, float]]]], axis: str, name: str) -> str:
    """A line with a band for each label: (x, estimate) points; x on a scale of powers of two."""
    with Chart(name, 10.8, 3.6) as chart:
        axes = chart.axes
        places = sorted({x for points in series.values() for x, _ in points})
        for color, (label, points) in zip(PALETTE * 3, series.items(), strict=False):
            xs = [x for x, _ in points]
            axes.fill_between(
                xs, [one["low"] for _, one in points], [one["high"] for _, one in points], color=color, alpha=0.08
            )
            axes.plot(xs, [one["value"] for _, one in points], "o-", color=color, linewidth=1.8, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xlabel(axis)
        axes.set_ylabel("success rate")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        percent_axis(axes, "y", max([one["high"] for points in series.values() for _, one in points] or [1.0]))
    return chart.svg


def advantages(turns: Sequence[Sequence[tuple[str, float]]], name: str) -> str:
    """A dialogue's turns: every candidate reply as a point at its advantage, coloured by what it is worth."""
    with Chart(name, 10.8, 3.0) as chart:
        axes = chart.axes
        axes.axhline(0.0, color="#94a3b8", linewidth=1.0)
        seen: set[str] = set()
        for turn, candidates in enumerate(turns, start=1):
            for place, (verdict, advantage) in enumerate(candidates):
                label = None if verdict in seen else verdict
                seen.add(verdict)
                shift = 0.5 * ((place * 0.618) % 1.0 - 0.5)
                axes.plot(
                    [turn + shift],
                    [advantage],
                    "o",
                    color=VERDICTS.get(verdict, "#94a3b8"),
                    markersize=4.5,
                    label=label,
                )
        axes.set_xticks(range(1, len(turns) + 1))
        axes.set_xlabel("turn")
        axes.set_ylabel("advantage")
        axes.grid(axis="x", visible=False)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return chart.svg
