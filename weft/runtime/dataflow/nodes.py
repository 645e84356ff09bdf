"""The static tables of a dataflow graph: nodes, edges and frames as the native loop reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.ir.cost.thresholds import MOST_BRIEF
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError
from weft.runtime.dataflow import layout as at

Port = tuple["Node", int]


@dataclass(eq=False)
class Node:
    """One node. frame: the number of the static frame in which it runs (0: the root).

    inputs: which ports it reads; control: nodes that must be done before, or ports that must be
    alive for it to be alive. target: the frame that an
    enter opens, the merge that a next_iteration feeds. number: of a feed, a fetch, a host op.
    parallel: see `Frame`. constant: an enter's. value: a constant's cell address. takes_dead:
    a host op's, which runs though its first input is dead (a send).
    """

    kind: int
    frame: int = 0
    inputs: Sequence[Port] = ()
    control: Sequence[Node | Port] = ()
    outputs: int = 1
    number: int = 0
    target: Node | int | None = None
    constant: bool = False
    value: int = 0
    takes_dead: bool = False

    def out(self, port: int = 0) -> Port:
        """One of its outputs, as others read it."""
        return self, port


@dataclass
class Frame:
    """A static frame: where it lies, and how many of its iterations may be under way at once.
    partial: whether an iteration may end with nodes that got only some of their inputs."""

    parent: int
    parallel: int = 10
    partial: bool = False


@dataclass
class _Layout:
    """Offsets in the iteration records of one frame."""

    frame: Frame
    size: int = at.I_FIRST_STATE
    child_at: int = 0
    enters: int = 0
    exits: list[Node] = field(default_factory=list)
    state_at: dict[Node, int] = field(default_factory=dict)
    slot_at: dict[Node, int] = field(default_factory=dict)

    def take(self, words: int) -> int:
        place = self.size
        self.size += 8 * words
        return place


class Tables:
    """The words of a graph. `roots`: the nodes that start a step, by address.

    Raises InternalError for a node inside a loop that waits for nothing (no frame would ever start
    it), and for one that reads what is in another frame.
    """

    def __init__(self, nodes: Sequence[Node], frames: Sequence[Frame]) -> None:
        self._layouts = [_Layout(f) for f in frames]
        self._nodes = list(nodes)
        self._row = {node: i for i, node in enumerate(nodes)}
        self._place()
        self.nodes = np.zeros((max(len(nodes), 1), at.NODE_WORDS), np.int64)
        self._base = int(self.nodes.ctypes.data)
        edges = self._edges()
        self.edges = np.zeros((max(sum(map(len, edges)), 1), at.EDGE_WORDS), np.int64)
        self.frames = np.zeros((len(frames), at.FRAME_WORDS), np.int64)
        self._templates = [np.zeros(layout.size // 8, np.int64) for layout in self._layouts]
        self._exits = [np.zeros(max(len(p.exits), 1), np.int64) for p in self._layouts]
        self._swept = [np.array(found or [0], np.int64) for found in self._to_sweep()]
        self._fill_nodes(edges)
        self._fill_frames()
        waiting = [n for n in nodes if not n.inputs and not n.control]
        for node in waiting:
            if node.frame:
                raise InternalError(f"node {self._row[node]} of a loop waits for nothing")
        self.roots = np.array([self.address(n) for n in waiting] or [0], np.int64)
        # what begins a step: the root frame, the nodes that wait for nothing, how many
        self.begin = self.frame_address(0), int(self.roots.ctypes.data), len(waiting)
        self.most_outputs = max((n.outputs for n in nodes), default=1)
        # whether native code is done with them in some microseconds
        self.brief = len(frames) == 1 and len(nodes) <= MOST_BRIEF
        self.brief &= not any(n.kind in (at.PLAN, at.DEAR) for n in nodes)

    def address(self, node: Node) -> int:
        """Of the node's row."""
        return self._base + 8 * at.NODE_WORDS * self._row[node]

    def frame_address(self, number: int) -> int:
        """Of a static frame's row."""
        return int(self.frames.ctypes.data) + 8 * at.FRAME_WORDS * number

    def node_at(self, address: int) -> Node:
        """The node whose row is at `address`."""
        return self._nodes[(address - self._base) // (8 * at.NODE_WORDS)]

    def slot_at(self, node: Node) -> int:
        """Where its inputs lie in an iteration record of its frame."""
        return self._layouts[node.frame].slot_at[node]

    def state_at(self, node: Node) -> int:
        """Where its pending count lies in an iteration record of its frame."""
        return self._layouts[node.frame].state_at[node]

    def child_at(self, number: int) -> int:
        """Where an iteration around a frame keeps the frame's instance."""
        return self._layouts[number].child_at

    # -------------------------------------------------------------------------------------- layout
    def _place(self) -> None:
        for layout in self._layouts[1:]:
            layout.child_at = self._layouts[layout.frame.parent].take(1)
        for node in self._nodes:
            layout = self._layouts[node.frame]
            layout.state_at[node] = layout.take(1)
            # a merge keeps one value and where it came from
            layout.slot_at[node] = layout.take(2 if node.kind == at.MERGE else len(node.inputs))
            if node.kind == at.EXIT:
                layout.exits.append(node)
            if node.kind == at.ENTER:
                assert isinstance(node.target, int)
                self._layouts[node.target].enters += 1

    def _edges(self) -> list[list[tuple[int, Node, int]]]:
        """For each node (port, reader, number of the reader's input or CONTROL)."""
        out: list[list[tuple[int, Node, int]]] = [[] for _ in self._nodes]
        for node in self._nodes:
            for i, (source, port) in enumerate(node.inputs):
                self._check_edge(source, node)
                out[self._row[source]].append((port, node, i))
            for given in node.control:
                source, port = (given, at.CONTROL) if isinstance(given, Node) else given
                self._check_edge(source, node)
                out[self._row[source]].append((port, node, at.CONTROL))
        for node in self._nodes:
            if node.kind == at.NEXT_ITERATION:
                assert isinstance(node.target, Node)
                out[self._row[node]].insert(0, (0, node.target, 1))
        return out

    def _check_edge(self, source: Node, reader: Node) -> None:
        """The words of an edge are offsets in a record of the frame that both are in."""
        given = source.frame
        if source.kind == at.ENTER:
            assert isinstance(source.target, int)
            given = source.target
        if source.kind == at.EXIT:
            given = self._layouts[given].frame.parent
        if given != reader.frame:
            raise InternalError(
                f"node {self._row[reader]} of frame {reader.frame} reads node "
                f"{self._row[source]}, whose value is in frame {given}"
            )

    # --------------------------------------------------------------------------------------- words
    def _fill_nodes(self, edges: list[list[tuple[int, Node, int]]]) -> None:
        first = int(self.edges.ctypes.data)
        position = 0
        for i, (node, readers) in enumerate(zip(self._nodes, edges, strict=True)):
            layout = self._layouts[node.frame]
            begin = first + 8 * at.EDGE_WORDS * position
            for port, reader, number in readers:
                self.edges[position] = self._edge(port, reader, number)
                position += 1
            self._templates[node.frame][layout.state_at[node] // 8] = _pending(node)
            a, b = self._operands(node)
            if node.kind == at.NEXT_ITERATION:
                a, begin = begin, begin + 8 * at.EDGE_WORDS
            self.nodes[i] = (
                node.kind, layout.state_at[node], layout.slot_at[node], len(node.inputs),
                node.outputs, begin, first + 8 * at.EDGE_WORDS * position,
                a, b, i,
            )  # fmt: skip

    def _edge(self, port: int, reader: Node, number: int) -> tuple[int, ...]:
        layout = self._layouts[reader.frame]
        is_merge = reader.kind == at.MERGE
        slot = layout.slot_at[reader] + (0 if is_merge else 8 * number)
        return (
            port, self.address(reader), layout.state_at[reader], slot if number >= 0 else 0,
            number, int(is_merge),
        )  # fmt: skip

    def _operands(self, node: Node) -> tuple[int, int]:
        match node.kind:
            case at.MERGE:
                return len(node.inputs), int(node.outputs > 1)
            case at.ENTER:
                assert isinstance(node.target, int)
                return self.frame_address(node.target), int(node.constant)
            case at.EXIT:
                return self._layouts[node.frame].exits.index(node), 0
            case at.CONSTANT:
                return node.value, 0
        return node.number, int(node.takes_dead)

    def _fill_frames(self) -> None:
        for i, layout in enumerate(self._layouts):
            exits = self._exits[i]
            exits[: len(layout.exits)] = [self.address(n) for n in layout.exits]
            swept = self._swept[i]
            self.frames[i] = (
                layout.size, self._templates[i].ctypes.data, layout.child_at, layout.enters,
                layout.frame.parallel, exits.ctypes.data, len(layout.exits), i,
                swept.ctypes.data, len(swept) if swept[0] else 0,
            )  # fmt: skip

    def _to_sweep(self) -> list[list[int]]:
        """For each frame the nodes that may hold inputs when an iteration ends."""
        found: list[list[int]] = [[] for _ in self._layouts]
        for node in self._nodes:
            if node.inputs and self._layouts[node.frame].frame.partial:
                found[node.frame].append(self.address(node))
        return found


def _pending(node: Node) -> int:
    # a loop's merge has one input in an iteration: of its enter, or of its next_iteration
    return len(node.inputs) + len(node.control)


def words(count: int) -> Any:
    """So many zeroed int64 words with a fixed address."""
    return (ctypes.c_int64 * max(count, 1))()
