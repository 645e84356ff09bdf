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

from weft.ir.deadness import checked
from weft.ir.device import LOCAL_TASK, DeviceSpec
from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.ir.graph import Graph, Operation
from weft.passes.dce import dce
from weft.passes.partition.assign import assign, device_names
from weft.passes.partition.builder import Cut, PartBuilder
from weft.passes.partition.parts import Partitioned
from weft.passes.partition.spans import lower_spanning, spans


def partition(placed: Graph, default: str = "", *, bfloat16: bool = False) -> Partitioned:
    """The parts of a graph, all ops of which name a full device (constants need not, nor what
    lowering made), and the messages between them.

    What no result and no effect needs is left out. default: the device of what no op says, such as
    an argument that is a result ("": the first device that is named). Sizes that feeds decide
    should be numbers (`specialize`); those that values decide may be symbols (`tie_sizes` comes
    before). bfloat16: float32 tensors, but scalars, go from task to task as that (narrow.py).
    Raises InvalidArgumentError for an op whose device is not full, and for state, queues
    and stacks that are used on several devices; UnsupportedError for a loop that cannot be cut.
    """
    _check_devices(placed)
    graph = dce(lower_spanning(dce(placed)))  # before, too: a dead read ties no branch to a device
    deadness = checked(graph)
    frames = deadness.frames
    first = default or next(device_names(graph.block), f"{LOCAL_TASK}/cpu:0")
    homes = assign(graph.block, frames, first)
    cut = Cut(graph, frames, deadness, homes, first, placed.stage, bfloat16)
    for op in frames.order:
        home = homes[op]
        if home is not None:
            _emit(cut, cut.part(home), op)
    for number, value in enumerate(graph.results):
        cut.fetch(number, value)
    return cut.done()


def _check_devices(placed: Graph) -> None:
    """Refuse an op with a partial device, which may be one of several. InvalidArgumentError."""
    known: set[str] = {""}
    for op in placed.walk():
        if op.device not in known and not DeviceSpec.parse(op.device).is_full:
            raise InvalidArgumentError(
                f"op '{op.name}' is on {op.device}, which does not name one device",
                hint="place the graph first: weft.passes.placement.place, or weft place",
                location=op.locations,
            )
        known.add(op.device)


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
