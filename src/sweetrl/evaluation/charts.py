"""The report's charts: matplotlib drawings as SVG text that is the same for the same numbers and fits into a page.

No dates, no random ids, nothing loaded from anywhere; text stays text, so that it can be searched and styled.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEFORE_COLOR, AFTER_COLOR, INK, FAINT = "#a3adba", "#0f766e", "#334155", "#e2e8f0"
REPLY_COLORS = ("#0f766e", "#4338ca", "#be123c", "#0369a1", "#b45309")  # of types of replies; the last is the answers'

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sweetrl",
    "font.family": "DejaVu Sans",  # ships with matplotlib: the layout is the same everywhere; the page sets its own
    "font.size": 9.0,
    "text.parse_math": False,  # names of topics are others' words: a dollar in them is a dollar
    "text.color": INK,
    "axes.edgecolor": "#cbd5e1",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
}


Interval = Mapping[str, Any]  # `value`, `low`, `high`, as evaluation.json has them


def bars(labels: Sequence[str], before: Sequence[float], after: Sequence[float], axis: str, name: str) -> str:
    """Two bars a label, in shares of the dialogues."""
    with Chart(name, 5.6, 2.6) as chart:
        axes, places, width = chart.axes, range(len(labels)), 0.4
        axes.bar([place - width / 2 for place in places], before, width, color=BEFORE_COLOR)
        axes.bar([place + width / 2 for place in places], after, width, color=AFTER_COLOR)
        axes.set_xticks(list(places), labels)
        axes.set_xlabel(axis)
        axes.grid(axis="x", visible=False)
        percent_axis(axes, "y", max([*before, *after, 0.01]))
    return chart.svg


def dumbbells(labels: Sequence[str], before: Sequence[Interval], after: Sequence[Interval], name: str) -> str:
    """A line a label from the rate before to the rate after, each with its interval."""
    with Chart(name, 10.8, 0.6 + 0.3 * len(labels)) as chart:
        axes = chart.axes
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            axes.plot([old["value"], new["value"]], [place, place], color="#94a3b8", linewidth=1.4, zorder=2)
            for rate, color, shift in ((old, BEFORE_COLOR, 0.14), (new, AFTER_COLOR, -0.14)):
                ends = rate["low"], rate["high"]
                axes.plot(ends, [place + shift] * 2, color=color, linewidth=1.2, alpha=0.75, zorder=1)
                axes.plot([rate["value"]], [place], "o", color=color, markersize=6.5, zorder=3)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        percent_axis(axes, "x", max([rate["high"] for rate in (*before, *after)] or [1.0]))
        axes.set_xlabel("success rate, with intervals")
    return chart.svg


def lines_by_turn(series: Sequence[tuple[str, str, Sequence[int], Sequence[Interval]]], axis: str, name: str) -> str:
    """A line with a band for each (label, color, turns, mean and quartiles)."""
    with Chart(name, 10.8, 3.0) as chart:
        axes = chart.axes
        axes.axhline(0.0, color="#94a3b8", linewidth=1.0, zorder=1)
        for label, color, turns, values in series:
            if turns:
                means, lows, highs = ([mean[end] for mean in values] for end in ("value", "low", "high"))
                axes.fill_between(turns, lows, highs, color=color, alpha=0.14, linewidth=0)
                axes.plot(turns, means, "o-", color=color, linewidth=1.8, markersize=4, label=label)
        last = max((turn for _, _, turns, _ in series for turn in turns), default=1)
        axes.set_xticks(range(1, last + 1))
        axes.set_xlabel("turn")
        axes.set_ylabel(axis)
        axes.grid(axis="x", visible=False)
    return chart.svg


class Chart:
    """A figure with one pair of axes in the project's style; `svg` is there after the block."""

    def __init__(self, name: str, width: float, height: float) -> None:
        self.name, self.size, self.svg = name, (width, height), ""

    def __enter__(self) -> Chart:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        self._style: Any = matplotlib.rc_context(STYLE)
        self._style.__enter__()
        self._figure = Figure(figsize=self.size, layout="constrained")
        FigureCanvasSVG(self._figure)
        self.axes: Axes = self._figure.subplots()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            buffer = io.StringIO()
            nothing = dict.fromkeys(("Date", "Creator", "Type", "Format"))
            self._figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
            self.svg = inline_svg(buffer.getvalue(), self.name)
        self._style.__exit__(kind, *rest)


def inline_svg(text: str, name: str) -> str:
    """Cut an SVG file down to an element that fills its box; ids that are used begin with `name`, others are gone."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    for _ in range(2):  # its width and its height
        body = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", body, count=1)
    used = {key for keys in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', body) for key in keys}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    return body.strip()


def percent_axis(axes: Axes, which: str, top: float) -> None:
    """Let the axis `which` ("x" or "y") show shares as per cent, from 0 to a little above `top`."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=None if top < 0.05 else 0))
    axes.set(**{f"{which}lim": (0.0, min(1.02, top * 1.08))})
