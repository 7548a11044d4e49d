"""Flowcharts of the docs (the few forms of mermaid that they use) as SVG at build time: no script, any theme.

flowchart LR
  a --> b & c
  d[(a store)] -->|label| e{a choice?}
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any

from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout

LETTER, LINE, PADDING, GAP, MARGIN = 7.4, 20.0, 14.0, 26.0, 6.0  # in pixels, at a font of 13 px
NODE = re.compile(r"^([\w-]+)(?:(\[\(|\[|\{)(.*?)(\)\]|\]|\}))?$")
ARROW = re.compile(r"\s*-->(?:\|([^|]*)\|)?\s*")


@dataclass
class Chart:
    """What a text says: labels and shapes of nodes, and arrows with their labels, in the order of the text."""

    down: bool
    labels: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)
    arrows: list[tuple[str, str, str]] = field(default_factory=list)


class Box:
    """A node's size, which the layout asks for, and its place, which the layout sets (the centre)."""

    def __init__(self, width: float, height: float):
        self.w, self.h, self.xy = width, height, (0.0, 0.0)


def parse(text: str) -> Chart:
    """Read a flowchart; a ValueError names the line that is of no known form."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines or lines[0] not in ("flowchart LR", "flowchart TD"):
        raise ValueError(f"a flowchart begins with `flowchart LR` or `flowchart TD`, not with {lines[:1]}")
    chart = Chart(lines[0].endswith("TD"))
    for line in lines[1:]:
        pieces = ARROW.split(line)
        groups = [[node(chart, word.strip(), line) for word in piece.split(" & ")] for piece in pieces[::2]]
        for before, after, label in zip(groups, groups[1:], pieces[1::2], strict=False):
            chart.arrows += [(one, other, label or "") for one in before for other in after]
    return chart


def node(chart: Chart, word: str, line: str) -> str:
    """Note a node as it is written and return its name."""
    found = NODE.match(word)
    if found is None:
        raise ValueError(
            f"{line!r}: {word!r} is no node of a known form: name, name[label], name[(label)], name{{label}}"
        )
    name, bracket, label, _ = found.groups()
    if bracket or name not in chart.labels:
        chart.labels[name] = label if bracket else name
        chart.shapes[name] = bracket or "["
    return name


def placed(chart: Chart) -> dict[str, Box]:
    """Lay the nodes out in layers, part by part where some hang together with nothing else."""
    boxes, vertices = {}, {}
    for name, label in chart.labels.items():
        width = max(len(line) for line in label.split("<br>")) * LETTER + 2 * PADDING
        size = (width, LINE + PADDING)
        boxes[name] = Box(*size) if chart.down else Box(*reversed(size))
        vertices[name] = Vertex(name)
        vertices[name].view = boxes[name]
    longest = max((len(label) for _, _, label in chart.arrows), default=0)
    between = GAP * 1.5 if chart.down else max(GAP * 1.5, longest * LETTER + PADDING)  # labels stand between the layers
    graph = Graph(list(vertices.values()), [Edge(vertices[one], vertices[other]) for one, other, _ in chart.arrows])
    for part in graph.C:
        layout = SugiyamaLayout(part)
        layout.xspace, layout.yspace = GAP, between
        layout.init_all(optimize=True)
        layout.draw(12)
    if not chart.down:  # laid out downwards, then turned
        for box in boxes.values():
            box.w, box.h, box.xy = box.h, box.w, (box.xy[1], box.xy[0])
    left = min(box.xy[0] - box.w / 2 for box in boxes.values()) - MARGIN
    top = min(box.xy[1] - box.h / 2 for box in boxes.values()) - MARGIN
    for box in boxes.values():
        box.xy = (box.xy[0] - left, box.xy[1] - top)
    return boxes


def outline(box: Box, shape: str) -> str:
    """Return a node's outline: a box, a rounder one for a store, a lozenge for a choice."""
    (x, y), w, h = box.xy, box.w, box.h
    if shape == "{":
        points = [(x - w / 2 - 8, y), (x, y - h / 2 - 6), (x + w / 2 + 8, y), (x, y + h / 2 + 6)]
        return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>'
    radius = h / 2 if shape == "[(" else 4
    return f'<rect x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius:.1f}"/>'


def arrow(start: Box, end: Box, down: bool, label: str) -> str:
    """Return an arrow from one box to another as a curve, with its label in the middle."""
    (x1, y1), (x2, y2) = start.xy, end.xy
    if down:
        y1, y2 = y1 + start.h / 2, y2 - end.h / 2 - 5
        middle = (y1 + y2) / 2
        curve = f"M{x1:.1f},{y1:.1f} C{x1:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{y2:.1f}"
    else:
        x1, x2 = x1 + start.w / 2, x2 - end.w / 2 - 5
        middle = (x1 + x2) / 2
        curve = f"M{x1:.1f},{y1:.1f} C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    text = (
        f'<text class="label" x="{(x1 + x2) / 2:.1f}" y="{(y1 + y2) / 2 - 5:.1f}">{html.escape(label)}</text>'
        if label
        else ""
    )
    return f'<path d="{curve}" marker-end="url(#arrowhead)"/>{text}'


def draw(text: str) -> str:
    """Return the SVG of a flowchart, with its arrows in words for those who do not see it."""
    chart = parse(text)
    boxes = placed(chart)
    width = max(box.xy[0] + box.w / 2 for box in boxes.values()) + MARGIN + 8
    height = max(box.xy[1] + box.h / 2 for box in boxes.values()) + MARGIN + 6
    words = "; ".join(f"{chart.labels[one]} to {chart.labels[other]}" for one, other, _ in chart.arrows)
    parts = [arrow(boxes[one], boxes[other], chart.down, label) for one, other, label in chart.arrows]
    for name, box in boxes.items():
        parts.append(outline(box, chart.shapes[name]))
        parts.append(f'<text x="{box.xy[0]:.1f}" y="{box.xy[1] + 4.5:.1f}">{html.escape(chart.labels[name])}</text>')
    return (
        f'<div class="flowchart"><svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'aria-label="{html.escape(words)}"><defs><marker id="arrowhead" viewBox="0 0 8 8" refX="3" refY="4" '
        f'markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
        f"{''.join(parts)}</svg></div>"
    )


def fence(source: str, language: str, css_class: str, options: dict[str, Any], md: Any, **rest: Any) -> str:
    """Set a fenced block `mermaid` (a formatter of pymdownx.superfences)."""
    return draw(source)
