"""Graphs and traced steps as TensorBoard's graph tab shows them: TensorFlow's GraphDef, and
StepStats whose nodes have the graph's names.

From tensorflow/core/framework/{graph,node_def,attr_value,step_stats}.proto:

    GraphDef        { repeated NodeDef node = 1; versions = 4; }
    NodeDef         { name = 1; op = 2; repeated string input = 3; device = 4; map attr = 5; }
    AttrValue       { ListValue list = 1; bytes s = 2; int64 i = 3; float f = 4; bool b = 5; }
    RunMetadata     { StepStats step_stats = 1; }
    StepStats       { repeated DeviceStepStats dev_stats = 1; }
    DeviceStepStats { string device = 1; repeated NodeExecStats node_stats = 2; }
    NodeExecStats   { node_name = 1; all_start_micros = 2; op_start_rel_micros = 3;
                      op_end_rel_micros = 4; all_end_rel_micros = 5;
                      repeated AllocatorMemoryUsed memory = 6; repeated NodeOutput output = 7;
                      thread_id = 10; }
    AllocatorMemoryUsed   { allocator_name = 1; total_bytes = 2; }
    NodeOutput            { slot = 1; TensorDescription tensor_description = 3; }
    TensorDescription     { dtype = 1; shape = 2; allocation_description = 4; }
    AllocationDescription { allocated_bytes = 2; allocator_name = 3; }

An op is a node, named by the tensor, variable or effect that it makes where that has a name, what
reads a variable after that, else by its name scope and kind. The tab groups nodes by the "/" in
names, so the body of a loop or branch is the group `<op>/body`: operands enter it by nodes
of its arguments, and its results enter the op.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from weft.ir.dataclass import dataclass
from weft.ir.device import named_device
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Location, scope_within
from weft.ir.spec import ConstArray
from weft.ir.types import HandleType, RefType, TensorType, Type
from weft.runtime.files.summaries import tensor_shape
from weft.runtime.files.wire import integer, message, text
from weft.runtime.recorder import Output, TraceEvent

_ARGUMENT, _INPUT = "Argument", "Placeholder"
#: The regions of an op, in their order.
_REGIONS = {"cond": ("then", "orelse"), "while": ("test", "body")}
_LONGEST = 200  # characters of an attribute
_DTYPES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7,
    "complex64": 8, "int64": 9, "bool": 10, "bfloat16": 14, "uint16": 17, "complex128": 18,
    "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
_RESOURCE = 20


@dataclass
class NamedGraph:
    """A graph's nodes: `data`, the GraphDef; `nodes`, the node of each op, those in bodies too."""

    data: bytes
    nodes: dict[Operation, str] = field(default_factory=dict)


def graph_def(graph: Graph, names: Mapping[Value, str] | None = None) -> NamedGraph:
    """The graph as a GraphDef. names: of values that have one in the program. The same graph gets
    the same names each time."""
    writer = _Writer({} if names is None else names)
    for name, arg in zip(graph.arg_names, graph.args, strict=True):
        given = writer.names.get(arg, name)
        writer.argument(writer.reserved.get(arg) or writer.free(given), arg, _INPUT)
    writer.block(graph.block, "")
    versions = message(4, integer(1, 1))
    return NamedGraph(b"".join(writer.rows) + versions, writer.nodes)


class _Writer:
    def __init__(self, names: Mapping[Value, str]) -> None:
        self.names = names
        self.rows: list[bytes] = []
        self.nodes: dict[Operation, str] = {}
        self._outputs: dict[Value, str] = {}  # how inputs name a value
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        # what the program has named comes first: its name does not depend on other ops
        self.reserved: dict[Value, str] = {}
        made: set[Operation] = set()
        for value, name in names.items():
            if value.op is None or value.op not in made:
                self.reserved[value] = self.free(name)
                made |= {value.op} if value.op is not None else set()

    def free(self, wanted: str) -> str:
        """`wanted`, or with the next of _1, _2, ... if a node has that name; in the characters that
        names of nodes may have."""
        name = re.sub(r"[^A-Za-z0-9_./\\-]", "_", wanted).strip("/") or "node"
        count, found = self._counts.get(name, 0), name
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._counts[name] = count
        self._taken.add(found)
        return found

    def argument(self, name: str, value: Value, kind: str, inputs: Sequence[str] = ()) -> None:
        self._outputs[value] = name
        self._add(name, kind, inputs, "", _types([value.type]))

    def block(self, block: Block, prefix: str, around: Operation | None = None) -> None:
        for op in block.ops:
            self._op(op, prefix, around)

    def _op(self, op: Operation, prefix: str, around: Operation | None) -> None:
        chosen = [self.reserved[r] for r in op.results if r in self.reserved]
        name = chosen[0] if chosen else self.free(prefix + wanted_name(op, around))
        self.nodes[op] = name
        inputs = [self._outputs[v] for v in op.operands]
        for number, region in enumerate(op.regions):
            inputs += self._region(op, number, region, name)
        inputs += [f"^{self._outputs[v].partition(':')[0]}" for v in op.control]
        for i, value in enumerate(op.results):
            self._outputs[value] = f"{name}:{i}" if i else name
        attrs = _types([r.type for r in op.results])
        attrs |= {key: _attribute(value) for key, value in op.attrs.items()}
        if op.locations:
            attrs["source"] = message(2, ", ".join(map(_place, op.locations)).encode())
        self._add(name, _kind(op), inputs, op.device, attrs)

    def _region(self, op: Operation, number: int, region: Block, name: str) -> list[str]:
        """The nodes of a region; how inputs name its results."""
        labels = _REGIONS.get(op.name, ("body",) if len(op.regions) == 1 else ())
        prefix = f"{name}/{labels[number] if number < len(labels) else number}/"
        entering = op.operands[len(op.operands) - len(region.args) :]
        if len(op.operands) < len(region.args):
            entering = ()
        for i, arg in enumerate(region.args):
            inputs = [self._outputs[entering[i]]] if entering else []
            self.argument(self.free(f"{prefix}argument_{i}"), arg, _ARGUMENT, inputs)
        self.block(region, prefix, op)
        return [self._outputs[v] for v in region.results]

    def _add(
        self, name: str, kind: str, inputs: Sequence[str], device: str, attrs: Mapping[str, bytes]
    ) -> None:
        row = text(1, name) + text(2, kind) + b"".join(text(3, i) for i in dict.fromkeys(inputs))
        if device:
            row += text(4, tensorflow_device(device))
        row += b"".join(message(5, text(1, k) + message(2, v)) for k, v in attrs.items())
        self.rows.append(message(1, row))


def _kind(op: Operation) -> str:
    """The kind of a node. TensorFlow's for those that the tab draws small, beside what uses or what
    makes them: constants and summaries."""
    if op.name == "summary":
        return f"{str(op.attrs['kind']).title()}Summary"
    return "Const" if op.name == "constant" else op.name


def _scope(op: Operation | None) -> str:
    return op.locations[0].scope if op is not None and op.locations else ""


def wanted_name(op: Operation, around: Operation | None = None) -> str:
    """The name that an op gets if it is free. around: the op whose region it is in."""
    made = op.results[0].type if op.results else None
    name = op.attrs.get("name")
    if isinstance(made, RefType | HandleType) and not op.operands and isinstance(name, str):
        return name  # a variable or resource: the scopes are in its name
    variable = op.operands[0].op if op.name == "read" else None
    if variable is not None and "name" in variable.attrs:
        return f"{variable.attrs['name']}/{op.name}"
    scope = scope_within(_scope(op), _scope(around))
    if around is None and scope.endswith("/grad"):
        scope = f"gradients/{scope.removesuffix('/grad')}"
    return f"{scope}/{op.name}".lstrip("/")


def _types(types: Sequence[Type]) -> dict[str, bytes]:
    """What the tab shows of a node's results: their dtype, and their shapes along the edges."""
    held = [t.tensor if isinstance(t, RefType) else t for t in types]
    shapes = [_shape(t) if isinstance(t, TensorType) else integer(3, True) for t in held]
    made = {"_output_shapes": message(1, b"".join(message(7, s) for s in shapes))} if held else {}
    if held and isinstance(held[0], TensorType):
        made["dtype"] = integer(6, _DTYPES[held[0].dtype.name])
    elif held:
        made["dtype"] = integer(6, _RESOURCE)
    return made


def _shape(t: TensorType) -> bytes:
    return tensor_shape([None if isinstance(n, SymbolicDim) else n for n in t.shape])


def _attribute(value: object) -> bytes:
    if isinstance(value, bool):
        return integer(5, value)
    if isinstance(value, int):
        return integer(3, value)
    if isinstance(value, DType):
        return integer(6, _DTYPES[value.name])
    if isinstance(value, ConstArray):
        shown = str(value.array) if value.array.size <= 16 else f"{value.array.size} elements"
    else:
        shown = str(value)
    return message(2, shown[:_LONGEST].encode("utf-8", "replace"))


def _place(location: Location) -> str:
    return f"{location.file}:{location.line}"


def tensorflow_device(device: str) -> str:
    """A device as TensorFlow names it, which the tab's filters know: "/job:ps/task:0/cpu:0" is
    "/job:ps/task:0/device:CPU:0"."""
    spec = named_device(device)
    task = device.partition(f"/{spec.kind}")[0] if spec.kind else device
    return f"{task}/device:{spec.kind.upper()}:{spec.index or 0}" if spec.kind else task


# --------------------------------------------------------------------------------------- step stats
@dataclass
class NodeTime:
    """What a node took in a step: when it first began, and the time of all its runs, in ns.
    outputs: what it gave in the run that took most memory for it, `nbytes` in all."""

    begin_ns: float
    ns: float
    thread: int
    nbytes: int = 0
    outputs: tuple[Output, ...] = ()

    def gave(self, outputs: Sequence[Output]) -> None:
        """One of its runs gave these."""
        nbytes = sum(output.nbytes for output in outputs)
        if not self.outputs or nbytes > self.nbytes:
            self.nbytes, self.outputs = nbytes, tuple(outputs)


def node_times(nodes: Mapping[Operation, str], events: Iterable[TraceEvent]) -> dict[str, NodeTime]:
    """The time and the memory of each node, by name.

    A kernel carries out several ops in one loop, and nobody can say what each of them took: they
    have equal shares of its time, so sums over groups of nodes are what was measured. Which nodes a
    kernel's are is known by the kinds of its ops and the source lines that made them; where passes
    have put other ops in their place, by the lines alone. Of nodes that are alike in both, as an op
    and that of its gradient, each has an event of its own if there are as many, in their order;
    else they share all. Events of no node are left out.

    Memory is that of the node which makes a value: of those with its kind and line the first whose
    type it has, else the first; where passes have put another op in its place, a node of the kernel
    with its type, if it takes memory. What a kernel keeps in registers takes none.
    """
    ran = [event for event in events if not event.dead]
    types = {name: [r.type for r in op.results] for op, name in nodes.items()}
    by_key: dict[_Key, list[str]] = {}
    for op, name in nodes.items():
        for where in op.locations:
            by_key.setdefault((op.name, where), []).append(name)
            if op.name != "constant":
                by_key.setdefault(("", where), []).append(name)
    count = Counter(key for event in ran for key in _keys(event))
    seen: Counter[_Key] = Counter()
    made: dict[str, NodeTime] = {}
    for event in ran:
        chosen: dict[_Key, list[str]] = {}
        for key in _keys(event):
            alike = by_key.get(key, [])
            number = seen[key]
            seen[key] += 1
            chosen[key] = alike[number:][:1] if len(alike) == count[key] else alike
        found = dict.fromkeys(name for names in chosen.values() for name in names)
        if not found:
            found = dict.fromkeys(n for w in event.locations for n in by_key.get(("", w), ()))
        share = (event.end_ns - event.begin_ns) / max(len(found), 1)
        for name in found:
            at = made.setdefault(name, NodeTime(event.begin_ns, 0.0, event.thread))
            at.begin_ns, at.ns = min(at.begin_ns, event.begin_ns), at.ns + share
        for name, outputs in _given(event, chosen, found, types).items():
            made[name].gave(outputs)
    return made


def _given(
    event: TraceEvent,
    chosen: Mapping[_Key, Sequence[str]],
    found: Iterable[str],
    types: Mapping[str, Sequence[Type]],
) -> dict[str, list[Output]]:
    """What each node gave in an event. chosen: its nodes by key; found: all of them; types: of the
    results of each node."""
    known, given = list(found), dict[str, list[Output]]()
    for output in event.outputs:
        keys = [(output.op, where) for where in output.locations]
        alike = [name for key in keys for name in chosen.get(key, ())]
        others = known if output.nbytes else []
        fits = [n for n in alike or others if any(_fits(output, kind) for kind in types[n])]
        for name in (fits or alike)[:1]:
            given.setdefault(name, []).append(output)
    return given


def _fits(output: Output, kind: Type) -> bool:
    return (
        isinstance(kind, TensorType)
        and kind.dtype.name == output.dtype
        and kind.allows(output.shape)
    )


def by_kernel(events: Sequence[TraceEvent], kernels: Sequence[TraceEvent]) -> list[TraceEvent]:
    """The events of a run with those of its kernels in place of the regions that they ran in."""
    begins: dict[str, list[int]] = {}
    for kernel in sorted(kernels, key=lambda e: e.begin_ns):
        begins.setdefault(kernel.device, []).append(kernel.begin_ns)

    def is_known(event: TraceEvent) -> bool:
        if event.kind not in ("plan", "state"):
            return False
        inside = begins.get(event.device, [])
        first = bisect_left(inside, event.begin_ns)
        return first < len(inside) and inside[first] <= event.end_ns

    return [*(e for e in events if not is_known(e)), *kernels]


_Key = tuple[str, Location]


def _keys(event: TraceEvent) -> list[_Key]:
    """The kinds of its ops with each of its lines."""
    return [(kind, where) for kind in dict.fromkeys(event.ops) for where in event.locations]


def step_stats(times: Mapping[str, Mapping[str, NodeTime]]) -> bytes:
    """RunMetadata with the times and the memory of nodes, by device.

    Of a group of nodes the tab shows the time from the first begin to the last end. So that this is
    the sum of what they took, nodes are written as if they had run one after the other in the order
    of their names, in which the nodes of each group stand together. The tab counts in microseconds,
    and takes 0 for a node that did not run: each has at least one."""
    return message(1, b"".join(_device_stats(device, rows) for device, rows in times.items()))


def _device_stats(device: str, rows: Mapping[str, NodeTime]) -> bytes:
    nodes = b"".join(message(2, row) for row in _node_stats(rows))
    return message(1, text(1, tensorflow_device(device)) + nodes)


def _node_stats(rows: Mapping[str, NodeTime]) -> Iterator[bytes]:
    now = min((at.begin_ns for at in rows.values()), default=0.0)
    for name, at in sorted(rows.items(), key=lambda row: row[0].split("/")):
        end = round((now + at.ns) / 1000)
        begin = min(round(now / 1000), end - 1)
        yield (
            text(1, name) + integer(2, begin) + integer(3, 0) + integer(4, end - begin)
            + integer(5, end - begin) + _memory(at) + integer(10, at.thread & 0xFFFFFFFF)
        )  # fmt: skip
        now += at.ns


#: What memory is taken from, as TensorFlow calls it.
_ALLOCATOR = "weft"


def _memory(at: NodeTime) -> bytes:
    """The memory that was taken for a node, and what it gave."""
    held = message(6, text(1, _ALLOCATOR) + integer(2, at.nbytes)) if at.nbytes else b""
    for slot, output in enumerate(at.outputs):
        kind = integer(1, _DTYPES[output.dtype]) + message(2, tensor_shape(output.shape))
        allocation = message(4, integer(2, output.nbytes) + text(3, _ALLOCATOR))
        held += message(7, integer(1, slot) + message(3, kind + allocation))
    return held
