"""Layered layout of a directed acyclic graph: a position for each box, a polyline for each edge.

The steps are those of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical
System Structures" (1981): layers by longest paths, an order in each layer by sweeps over the
medians of neighbours, then coordinates. A coordinate is as near to the mean of its neighbours as
the order allows: isotonic regression by pooling adjacent violators. The order of the boxes breaks
all ties, so that graphs that differ little are drawn alike."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dataclass import dataclass

Point = tuple[float, float]
#: Pixels between boxes of a layer and between layers, and around all.
GAP, LAYER_GAP, MARGIN = 18.0, 30.0, 12.0
#: An edge over more layers than this is drawn straight, and pushes no box aside.
LONGEST_ROUTED = 6
_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions. boxes: the left upper corner of each; layers: the number of each box's row;
    edges: the points of each, from the lower side of one box to the upper side of another; width,
    height: of all with the margin around it."""

    boxes: tuple[Point, ...]
    layers: tuple[int, ...]
    edges: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def lay_out(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """The layout of boxes of these sizes (width, height). edges: (from, to) with from < to."""
    layers = _layers(len(sizes), edges)
    net = _Net(sizes, edges, layers)
    net.order()
    xs = net.coordinates()
    left = min((xs[i] - w / 2 for i, (w, _) in enumerate(sizes)), default=0.0)
    right = max((xs[i] + w / 2 for i, (w, _) in enumerate(sizes)), default=0.0)
    for nodes in net.rows:
        left = min([left, *(xs[i] for i in nodes)])
        right = max([right, *(xs[i] for i in nodes)])
    shift = MARGIN - left
    heights = [max((net.heights[i] for i in nodes), default=0.0) for nodes in net.rows]
    tops = [MARGIN]
    for height in heights:
        tops.append(tops[-1] + height + LAYER_GAP)
    corners = [
        (round(xs[i] - w / 2 + shift, 1), tops[layers[i]] + (heights[layers[i]] - h) / 2)
        for i, (w, h) in enumerate(sizes)
    ]
    routes = []
    for (a, b), between in zip(edges, net.routes, strict=True):
        start = (round(xs[a] + shift, 1), corners[a][1] + sizes[a][1])
        inner = [
            (round(xs[i] + shift, 1), tops[net.layer[i]] + heights[net.layer[i]] / 2)
            for i in between
        ]
        routes.append((start, *inner, (round(xs[b] + shift, 1), corners[b][1])))
    bottom = tops[-1] - LAYER_GAP + MARGIN if net.rows else 2 * MARGIN
    return Layout(tuple(corners), tuple(layers), tuple(routes), right - left + 2 * MARGIN, bottom)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """By the longest path that leads to a box; one that nothing leads to stands right above the
    first that it leads to."""
    layer = [0] * count
    first: list[int | None] = [None] * count
    is_led_to = [False] * count
    for a, b in sorted(edges):
        layer[b] = max(layer[b], layer[a] + 1)
        is_led_to[b] = True
    for a, b in edges:
        known = first[a]
        first[a] = layer[b] if known is None else min(known, layer[b])
    for i, below in enumerate(first):
        if not is_led_to[i] and below is not None:
            layer[i] = below - 1
    return layer


class _Net:
    """The boxes and, on edges over several layers, a point in each layer between."""

    def __init__(
        self, sizes: Sequence[Point], edges: Sequence[tuple[int, int]], layers: Sequence[int]
    ) -> None:
        self.layer = list(layers)
        self.widths = [w for w, _ in sizes]
        self.heights = [h for _, h in sizes]
        self.routes: list[list[int]] = []
        above: list[list[int]] = [[] for _ in sizes]
        below: list[list[int]] = [[] for _ in sizes]
        for a, b in edges:
            chain = [a]
            span = layers[b] - layers[a]
            for k in range(1, span if span <= LONGEST_ROUTED else 0):
                chain.append(len(self.layer))
                self.layer.append(layers[a] + k)
                self.widths.append(2.0)
                self.heights.append(0.0)
                above.append([])
                below.append([])
            if span <= LONGEST_ROUTED:
                for one, other in zip(chain, [*chain[1:], b], strict=True):
                    below[one].append(other)
                    above[other].append(one)
            self.routes.append(chain[1:])
        self.above, self.below = above, below
        self.rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for i, row in enumerate(self.layer):
            self.rows[row].append(i)

    def order(self) -> None:
        """Sort each row by the medians of the places of its neighbours, down and up in turn."""
        place = {i: float(k) for row in self.rows for k, i in enumerate(row)}
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                keys = {i: _median([place[j] for j in near[i]], place[i]) for i in row}
                row.sort(key=keys.__getitem__)
                place.update((i, float(k)) for k, i in enumerate(row))

    def coordinates(self) -> list[float]:
        """The middle of each box, in x."""
        xs = [0.0] * len(self.layer)
        for row in self.rows:
            total = sum(self.widths[i] + GAP for i in row) - GAP
            at = -total / 2
            for i in row:
                xs[i] = at + self.widths[i] / 2
                at += self.widths[i] + GAP
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                wanted = [
                    sum(xs[j] for j in near[i]) / len(near[i]) if near[i] else xs[i] for i in row
                ]
                for i, x in zip(row, _apart(wanted, [self.widths[i] for i in row]), strict=True):
                    xs[i] = x
        return xs


def _median(values: Sequence[float], default: float) -> float:
    if not values:
        return default
    ranked = sorted(values)
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


def _apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The coordinates nearest to those `wanted` (least squares) at which boxes of these widths, in
    this order, keep their distance."""
    offsets, at = [], 0.0
    for i, width in enumerate(widths):
        at += 0.0 if i == 0 else widths[i - 1] / 2 + GAP + width / 2
        offsets.append(at)
    pools: list[tuple[float, int]] = []  # sum and number of those that move together
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while pools and pools[-1][0] * count > total * pools[-1][1]:
            before, more = pools.pop()
            total, count = total + before, count + more
        pools.append((total, count))
    found: list[float] = []
    for total, count in pools:
        found += [total / count + offsets[len(found) + k] for k in range(count)]
    return found
