"""The drawings of a reproduction: bars with intervals, curves, claims. Equal numbers give equal SVG.

An estimate is a mapping with `value`, `low` and `high`, and with `t_low` and `t_high` where seeds were resampled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweetrl.evaluation.charts import Chart, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Estimate = Mapping[str, Any]
PALETTE = ("#0f766e", "#b45309", "#4338ca", "#be123c", "#0369a1", "#64748b", "#a16207")
AT = {"0": "#0f766e", "1": "#f0b37e", "chosen": "#334155"}  # colours of temperatures
JUDGED = {"confirmed": "#15803d", "refuted": "#b91c1c", "open": "#b45309"}
INK = "#334155"


def bars(
    rows: Sequence[tuple[str, Mapping[str, Estimate]]],
    series: Sequence[tuple[str, str]],
    axis: str,
    name: str,
    marked: tuple[str, str] | None = None,
    seeds: Mapping[tuple[str, str], Sequence[float]] | None = None,
) -> str:
    """For each row (label, estimates by series) bars side by side, with intervals, as per cent.

    `series` are (key, label), `marked` is one that is drawn as a diamond over the bars, `seeds` the single values of a
    (row's label, series), as ticks.
    """
    keys = [key for key, _ in series]
    thick = 0.8 / max(1, len(keys))
    with Chart(name, 10.8, 0.9 + max(0.36, 0.17 * len(keys) + 0.06) * len(rows)) as chart:
        axes = chart.axes
        for index, (key, label) in enumerate(series):
            color = AT.get(key, PALETTE[index % len(PALETTE)])
            shift = (index - (len(keys) - 1) / 2) * thick
            for place, (row, estimates) in enumerate(rows):
                if key not in estimates:
                    continue
                bar, height = estimates[key], place + shift
                axes.barh(height, bar["value"], thick * 0.92, color=color, alpha=0.85, zorder=2)
                axes.plot([bar["low"], bar["high"]], [height, height], color=INK, linewidth=1.1, zorder=3)
                ticks = (seeds or {}).get((row, key), ())
                axes.plot(ticks, [height] * len(ticks), "|", color=INK, markersize=4.5, alpha=0.7, zorder=4)
            axes.barh([0], [0], color=color, label=label)
        if marked is not None:
            places = [place for place, (_, estimates) in enumerate(rows) if marked[0] in estimates]
            values = [rows[place][1][marked[0]]["value"] for place in places]
            axes.plot(
                values, places, "D", color="#ffffff", markeredgecolor=INK, markersize=5, zorder=5, label=marked[1]
            )
        _rows(axes, [label for label, _ in rows], axis)
        axes.invert_yaxis()
        percent_axis(axes, "x", _end(each for _, estimates in rows for each in estimates.values()))
        if len(series) > 1 or marked is not None:
            _legend(axes)
    return chart.svg


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _rows(axes: Axes, labels: Sequence[str], axis: str) -> None:
    """Name the rows from above, and the axis below."""
    axes.set_yticks(range(len(labels)), labels)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(axis)


def _end(estimates: Iterable[Estimate]) -> float:
    """Where the axis of shares ends."""
    return max([0.01, *(each["high"] for each in estimates)])


def curves(series: Mapping[str, Sequence[tuple[float, Estimate]]], axis: str, name: str, what: str = "success") -> str:
    """A line with a band for each label through (x, estimate) points, x on a scale of powers of two."""
    with Chart(name, 10.8, 3.6) as chart:
        axes = chart.axes
        places = sorted({x for points in series.values() for x, _ in points})
        for color, (label, points) in zip(PALETTE * 5, series.items(), strict=False):
            xs = [x for x, _ in points]
            lows, highs, values = ([estimate[key] for _, estimate in points] for key in ("low", "high", "value"))
            axes.fill_between(xs, lows, highs, color=color, alpha=0.08)
            axes.plot(xs, values, "o-", color=color, linewidth=1.8, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xlabel(axis)
        axes.set_ylabel(what)
        _legend(axes)
        percent_axis(axes, "y", _end(estimate for points in series.values() for _, estimate in points))
    return chart.svg


def claims(rows: Sequence[tuple[str, Estimate, str]], axis: str, name: str) -> str:
    """For each (claim, difference, verdict) a point with its interval, thick, and the t interval of the seeds, thin."""
    with Chart(name, 10.8, 0.8 + 0.34 * len(rows)) as chart:
        axes = chart.axes
        axes.axvline(0.0, color="#94a3b8", linewidth=1.0)
        shown = 1.4 * max([0.01, *(abs(gap[end]) for _, gap, _ in rows for end in ("low", "high"))])
        for place, (_, gap, verdict) in enumerate(rows):
            color = JUDGED.get(verdict, INK)
            if gap["t_low"] is not None:
                reach = [max(gap["t_low"], -shown), min(gap["t_high"], shown)]  # of few seeds it may be very wide
                axes.plot(reach, [place, place], color=color, linewidth=0.9, alpha=0.7)
            axes.plot([gap["low"], gap["high"]], [place, place], color=color, linewidth=3.2, alpha=0.6)
            axes.plot([gap["value"]], [place], "o", color=color, markersize=6, zorder=3)
        axes.set_xlim(-shown, shown)
        from matplotlib.ticker import PercentFormatter

        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _rows(axes, [label for label, _, _ in rows], axis)
        axes.invert_yaxis()
    return chart.svg


def as_file(svg: str) -> str:
    """Return a drawing as a file of its own: with its size, and on white, whatever the page around it is."""
    box = re.search(r'viewBox="([^"]*)"', svg)
    width, height = box[1].split()[2:] if box else ("800", "300")
    head, body = svg.split(">", 1)
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head} width="{width}pt" height="{height}pt">{white}{body}\n'
