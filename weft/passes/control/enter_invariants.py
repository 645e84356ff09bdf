"""Constant enters for the frames of hand-made loops: constants and handles that their ops use.

A handle of a variable or queue is no tensor, so nobody can bring it into a frame by `wf.tf1.enter`,
and a constant needs no value of the loop, nor does what is computed of constants alone, such as the
2.0 of `2.0 * x`, repeated to the shape of x. Where an op of a frame uses one, or comes after
something outside, a constant enter is added.

Before::

    %1 = variable() {name="v"} : ref<f32[]>
    %2 = assign_add(%1, %x)              // %x is in frame "loop"

After::

    %1 = variable() {name="v"} : ref<f32[]>
    %2 = enter(%1) {frame="loop", constant=true} : ref<f32[]>
    %3 = assign_add(%2, %x)"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from weft.ir.analysis.frames import Frame, Frames, find_frames
from weft.ir.graph import Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import HandleType, RefType
from weft.passes.rewriting.rewrite import has_effect


def enter_invariants(graph: Graph) -> Graph:
    """`graph` with enters for what its frames use of constants, handles and control operands that
    are outside of them; itself if it has no frames. Other faults in its frames stay."""
    if not any(op.name == "enter" for op in graph.ops):
        return graph
    return with_enters(graph)[0]


def with_enters(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    """The graph with enters, a copy, and what each value has become in it."""
    made = _Enters(graph)
    for op in graph.ops:
        made.copy(op)
    results = [made.mapping[v] for v in graph.results]
    done = made.builder.graph(graph.name, graph.arg_names, results, graph.stage)
    return done, made.mapping


class _Enters:
    def __init__(self, graph: Graph) -> None:
        self.frames: Frames = find_frames(graph.block)
        self.builder = Builder([a.type for a in graph.args])
        self.mapping: dict[Value, Value] = dict(zip(graph.args, self.builder.args, strict=True))
        self.entered: dict[tuple[Value, Frame], Value] = {}
        self.invariant: set[Value] = set()

    def copy(self, op: Operation) -> None:
        """Append `op`, after the enters that it needs."""
        if _is_invariant(op, self.invariant):
            self.invariant.update(op.results)
        here = self.frames.of_op[op]
        inside: dict[Value, Value] = {}
        for value in op.operands:
            if self._is_around(value, here) and value in self.invariant:
                inside[value] = self._in(value, here, op.locations)
        for value in op.control:
            if self._is_around(value, here) and value not in inside:
                what = value if value in self.invariant else self._after(value, op.locations)
                inside[value] = self._in(what, here, op.locations)
        results = self.builder.clone(op, {**self.mapping, **inside})
        self.mapping.update(zip(op.results, results, strict=True))

    def _is_around(self, value: Value, here: Frame) -> bool:
        at = self.frames.of_value[value]
        return at is not here and at in here.around()

    def _in(self, value: Value, frame: Frame, locations: Locations) -> Value:
        """`value`, of the graph or in `mapping`, in a frame inside its own."""
        if self.frames.of_value[value] is frame or frame.parent is None:
            return self.mapping[value]
        if (value, frame) not in self.entered:
            outer = self._in(value, frame.parent, locations)
            attrs: dict[str, AttrValue] = {
                "frame": frame.name,
                "constant": True,
                "parallel_iterations": frame.parallel_iterations,
            }
            (made,) = self.builder.emit("enter", [outer], attrs, locations=locations)
            self.entered[value, frame] = made
        return self.entered[value, frame]

    def _after(self, value: Value, locations: Locations) -> Value:
        """A constant in the frame of `value` that comes after it."""
        true = ConstArray(np.array(True))
        (made,) = self.builder.emit(
            "constant", (), {"value": true}, control=[self.mapping[value]], locations=locations
        )
        self.frames.of_value[made] = self.frames.of_value[value]
        self.mapping[made] = made
        return made


def _is_invariant(op: Operation, invariant: Container[Value]) -> bool:
    """Whether an op gives a handle, or computes something of constants alone."""
    if op.control or op.name in DATAFLOW or not all(v in invariant for v in op.operands):
        return False
    handles = all(isinstance(r.type, (RefType, HandleType)) for r in op.results)
    return not has_effect(op) or (handles and not op.operands)
