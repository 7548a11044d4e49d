"""Rows that begin alike, merged into trees: each distinct prefix is computed once. Pure data, no torch.

A row's tokens are a path, or several where a dialogue's prompts part ways. Rows of one dialogue (the candidates of
every turn) share the dialogue up to their turn, attempts at one task the request and what opening they have in common.
The forest of a set of rows holds every distinct prefix as one node, laid out depth first in one sequence, the longest
branch first, so that a dialogue's trunk is contiguous. Node j is an ancestor of node i (or i itself) exactly if

    j <= i < end[j]

where end[j] is where j's subtree ends: all that attention needs to know. A node's position is its depth, so a branch
restarts where it left the trunk and every token sees just what it sees in its own row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sweetrl.errors import UserError
from sweetrl.lm.rows import Row, common_prefix

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Forest:
    """Rows merged by common prefix: S nodes, M of them predict reply tokens, U distinct predictions for N reply tokens.

    token_ids, position, end  [S]  as in the module's text
    predicting                [M]  nodes whose hidden state predicts a reply token, in rising order
    slot, target              [U]  a distinct prediction: number in `predicting`, and the token that is predicted
    reply                     [N]  for each reply token, row after row, its number among the predictions
    segments                       unbranched stretches in layout order: lists of their first nodes, their last ones
                                   (exclusive), the ends of their subtrees, and the segments they hang below (-1: none)
    """

    token_ids: Ints
    position: Ints
    end: Ints
    segments: tuple[list[int], list[int], list[int], list[int]]
    predicting: Ints
    slot: Ints
    target: Ints
    reply: Ints


def fed(row: Row) -> int:
    """How many tokens of a sequence are given to the model: the last reply's last token predicts nothing."""
    return row.spans[-1][1] - 1


def build_forest(rows: Sequence[Row], merge: bool = True) -> Forest:
    """Lay out `rows` as a forest; it depends on the set of rows, `reply` alone on their order.

    With `merge` false every row is a tree of its own: a packed batch without padding.
    """
    sequences = [sequence for row in rows for sequence in row.sequences]
    paths = [_input_ids(sequence) for sequence in sequences]
    tree = _Radix(paths, merge)
    offsets, order = tree.layout()
    leaf = {segment: number for number, segment in enumerate(order)}
    start = np.array([offsets[segment] for segment in order], dtype=np.int64)
    length = np.array([tree.stop[segment] - tree.start[segment] for segment in order], dtype=np.int64)
    end = np.array([offsets[segment] + tree.size[segment] for segment in order], dtype=np.int64)
    parent = [leaf.get(tree.parent[segment], -1) for segment in order]
    depth = np.array([tree.start[segment] for segment in order], dtype=np.int64)
    pieces = [paths[tree.row[segment]][tree.start[segment] : tree.stop[segment]] for segment in order]
    nodes, targets = [], []
    for row, last in zip(sequences, tree.leaf, strict=True):
        path = tree.nodes(last, offsets)
        for begin, stop in row.spans:
            nodes.append(path[begin - 1 : stop - 1])
            targets.append(np.asarray(row.token_ids[begin:stop], dtype=np.int64))
    node, token = np.concatenate(nodes), np.concatenate(targets)
    width = int(token.max()) + 1
    pairs, reply = np.unique(node * width + token, return_inverse=True)
    predicting, slot = np.unique(pairs // width, return_inverse=True)
    return Forest(
        token_ids=np.concatenate(pieces),
        position=np.arange(int(length.sum())) - np.repeat(start - depth, length),
        end=np.repeat(end, length),
        segments=(start.tolist(), (start + length).tolist(), end.tolist(), parent),
        predicting=predicting,
        slot=slot.astype(np.int64),
        target=pairs % width,
        reply=reply.astype(np.int64),
    )


def split_rows(rows: Sequence[Row], limit: int) -> list[list[int]]:
    """Indices of `rows` in groups whose forests have at most `limit` nodes (a longer row is alone), trunks repeated.

    Groups follow the layout of the whole forest from its deepest turn to the first, so that a dialogue is cut at a turn
    and what is repeated of its trunk becomes shorter and shorter. The log-probs are those of the whole forest.
    """
    paths = [_paths(row) for row in rows]
    groups: list[list[int]] = []
    size = 0
    for index in layout_order(rows):
        alone = _new(paths[index])
        new = _new(paths[index], paths[groups[-1][-1]][-1]) if groups else alone
        if groups and size + new <= limit:
            groups[-1].append(index)
            size += new
        else:
            groups.append([index])
            size = alone
    return groups


def forest_tokens(rows: Sequence[Row]) -> int:
    """How many nodes the forest of `rows` has, without building it."""
    return _new(sorted((path for row in rows for path in _paths(row)), key=_sort_key))


def layout_order(rows: Sequence[Row]) -> list[int]:
    """Indices of `rows` in the order of their leaves in the forest: neighbours share the most."""
    paths = [_paths(row) for row in rows]
    tree = _Radix([path for own in paths for path in own], merge=True)
    offsets, _ = tree.layout()
    ends = list(accumulate(map(len, paths)))
    return sorted(range(len(rows)), key=lambda index: (offsets[tree.leaf[ends[index] - 1]], index))


def _paths(row: Row) -> list[Ints]:
    """What the model is given of each sequence of a row."""
    return [_input_ids(sequence) for sequence in row.sequences]


def _new(paths: Sequence[Ints], before: Ints | None = None) -> int:
    """Nodes that `paths` add one after the other, each to the one before it."""
    nodes = 0
    for path in paths:
        nodes += len(path) - (0 if before is None else common_prefix(before, path))
        before = path
    return nodes


def _input_ids(row: Row) -> Ints:
    if row.spans[0][0] < 1:
        raise UserError("a reply cannot be the first thing in a row: nothing would predict its first token.")
    return np.asarray(row.token_ids[: fed(row)], dtype=np.int64)


def _sort_key(path: Ints) -> bytes:
    return path.astype(">u4").tobytes()  # big-endian bytes compare as the ids do, at the speed of memcmp


class _Radix:
    """The compressed trie of paths: segment s covers depths start[s]..stop[s] as in path row[s], below parent[s]."""

    def __init__(self, paths: Sequence[Ints], merge: bool):
        self.start: list[int] = []
        self.stop: list[int] = []
        self.row: list[int] = []
        self.parent: list[int] = []
        self.leaf = [-1] * len(paths)  # the segment at whose end a path ends
        self.size: list[int] = []  # nodes of the subtree
        keys = [_sort_key(path) for path in paths]
        stack: list[int] = []
        before = np.zeros(0, dtype=np.int64)
        for index in sorted(range(len(paths)), key=keys.__getitem__):
            path = paths[index]
            shared = common_prefix(before, path) if merge else 0
            while stack and self.start[stack[-1]] >= shared:
                stack.pop()
            if stack and self.stop[stack[-1]] > shared:  # cut in two; the lower part keeps its number
                lower = stack.pop()
                upper = self._add(self.start[lower], shared, self.row[lower], self.parent[lower])
                self.start[lower], self.parent[lower] = shared, upper
                stack.append(upper)
            if len(path) > shared:
                stack.append(self._add(shared, len(path), index, stack[-1] if stack else -1))
            self.leaf[index] = stack[-1]
            before = path

    def _add(self, start: int, stop: int, row: int, parent: int) -> int:
        self.start.append(start)
        self.stop.append(stop)
        self.row.append(row)
        self.parent.append(parent)
        return len(self.start) - 1

    def layout(self) -> tuple[list[int], list[int]]:
        """Return (each segment's first node, segments depth first with the longest branch first)."""
        count = len(self.start)
        children: list[list[int]] = [[] for _ in range(count)]
        roots: list[int] = []
        for segment, parent in enumerate(self.parent):
            (roots if parent < 0 else children[parent]).append(segment)
        reach = list(self.stop)
        self.size = [self.stop[segment] - self.start[segment] for segment in range(count)]
        for segment in sorted(range(count), key=lambda segment: -self.start[segment]):
            parent = self.parent[segment]
            if parent >= 0:
                reach[parent] = max(reach[parent], reach[segment])
                self.size[parent] += self.size[segment]
        # Equally long branches come in the order of their tokens, whatever the order of the rows.
        offsets, order, offset = [0] * count, list[int](), 0
        waiting = sorted(roots, key=lambda segment: (reach[segment], -segment))
        while waiting:
            segment = waiting.pop()
            order.append(segment)
            offsets[segment] = offset
            offset += self.stop[segment] - self.start[segment]
            waiting += sorted(children[segment], key=lambda segment: (reach[segment], -segment))
        return offsets, order

    def nodes(self, leaf: int, offsets: Sequence[int]) -> Ints:
        """The nodes on the path that ends with segment `leaf`."""
        path = np.empty(self.stop[leaf], dtype=np.int64)
        while leaf >= 0:
            start, stop = self.start[leaf], self.stop[leaf]
            path[start:stop] = np.arange(offsets[leaf], offsets[leaf] + stop - start)
            leaf = self.parent[leaf]
        return path
