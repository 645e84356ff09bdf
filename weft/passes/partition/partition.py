"""Cut a placed graph into one graph for each device, joined by `send` and `recv`.

Before::

    %0 = matmul(%x, %w) : f32[4,3] device("/job:worker/task:0/cpu:0")
    %1 = sum(%0) : f32[] device("/job:ps/task:0/cpu:0")

After, on the worker and on the ps::

    %0 = matmul(%x, %w) : f32[4,3]
    %1 = send(%0) {key=0, ...} : token

    %0 = recv() {key=0, dtype=f32, shape=[4, 3], ...} : f32[4,3]
    %1 = sum(%0) : f32[]

A tensor goes to each device that needs it once. Branches and loops on one device stay native there;
those that span devices are Switch, Merge and frames (`spans`), and every device that takes part in
a loop runs a loop of its own around its share (`loops`). Dead values are sent as dead. All that
orders effects is kept: a control operand from elsewhere becomes a message without elements. The
scheme is the paper's (sections 3.3 and 3.4; Yu et al. 2018, section 4.4).
"""

from __future__ import annotations

from weft.ir.deadness import Deadness
from weft.ir.device import LOCAL_TASK
from weft.ir.errors import InternalError, UnsupportedError
from weft.ir.frames import find_frames
from weft.ir.graph import Graph, Operation
from weft.passes.dce import dce
from weft.passes.partition.assign import assign, device_names
from weft.passes.partition.builder import Cut, PartBuilder
from weft.passes.partition.parts import Partitioned
from weft.passes.partition.spans import lower_spanning, spans


def partition(placed: Graph, default: str = "") -> Partitioned:
    """The parts of a graph, all ops of which name a full device (constants need not, nor what
    lowering made), and the messages between them.

    What no result and no effect needs is left out. default: the device of what no op says, such as
    an argument that is a result ("": the first device that is named). Sizes that feeds decide
    should be numbers (`specialize`); those that values decide may be symbols (`tie_sizes` comes
    before). Raises InvalidArgumentError for state, queues and stacks that are used on several
    devices, UnsupportedError for a loop that cannot be cut.
    """
    graph = dce(lower_spanning(placed))
    frames = find_frames(graph.block, graph.arg_names)
    for op, what in frames.faults:
        raise InternalError(f"op '{op.name}' {what}", location=op.locations)
    first = default or next(device_names(graph.block), f"{LOCAL_TASK}/cpu:0")
    homes = assign(graph.block, frames, first)
    cut = Cut(graph, frames, Deadness(frames), homes, first, placed.stage)
    for op in frames.order:
        home = homes[op]
        if home is not None:
            _emit(cut, cut.part(home), op)
    for number, value in enumerate(graph.results):
        cut.fetch(number, value)
    return cut.done()


def _emit(cut: Cut, part: PartBuilder, op: Operation) -> None:
    """`op` on its device, with what it needs from others."""
    if spans(op):
        raise UnsupportedError(
            f"op '{op.name}' spans devices and cannot be cut", location=op.locations
        )
    operands = [cut.value(part, v, op) for v in op.operands]
    cut.clone(part, op, operands, cut.controls(part, op))
    if op.name == "loop_cond":
        cut.loops.decided(op)
