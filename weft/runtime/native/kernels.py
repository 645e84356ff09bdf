"""The kernels of a native step as readable source: what `f.kernels(x)` and WEFT_DUMP give.

A dump's folder has `kernels/`: a Python file for each kernel, `step.weft`, the fused graph whose
ops they carry out, `kernels.json`, which op is whose, `memory.json`, where values in between are,
and, once the step has run, `inputs.npz`: the arrays and variables of its first call. With these
`weft kernel check` runs a file again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.codegen.call import Address
from weft.codegen.loops.program import PlannedCall
from weft.codegen.loops.register_source import loop_source
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest
from weft.codegen.numba.calls import nest_kernel, sources_of
from weft.codegen.numba.replacements import replacement
from weft.codegen.numba.source import KernelSource, View
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.control_flow import CONTROL
from weft.ir.text.printer import print_graph
from weft.passes.memory.block import ArenaRange, MemoryPlan
from weft.runtime.native.executable import Executable
from weft.runtime.step import PLAIN, RunContext

if TYPE_CHECKING:
    from weft.ir.drawing.notebook import Frame

FOLDER, GRAPH, TABLE, INPUTS = "kernels", "step.weft", "kernels.json", "inputs.npz"
MEMORY = "memory.json"


@dataclass(frozen=True)
class StepKernel:
    """A kernel of a step. name: for people; key: what its code depends on; op: what it carries out;
    step: the name of the step; number: which of the op's kernels it is; in_place: the numbers of
    operands and results of the op that share memory.

    >>> f = wf.compile(lambda x: wf.exp(x) + 1)
    >>> (kernel,) = f.kernels(wf.TensorType(wf.float32, (8,)))
    >>> print(kernel.source().partition("import")[2])
     numpy as np
    <BLANKLINE>
    from weft.codegen.numba.functions import exp
    <BLANKLINE>
    <BLANKLINE>
    def kernel(out0, in0, c, n0, lo, hi):
        x1 = c[0]
        for i0 in range(lo, hi):
            x0 = in0[i0]
            v0 = exp(x0)
            v1 = v0 + x1
            out0[i0] = v1
    <BLANKLINE>
    """

    name: str
    key: str
    op: Operation
    step: str
    made: KernelSource | UnsupportedError
    number: int = 0
    in_place: tuple[tuple[int, int], ...] = ()

    def source(self) -> str:
        """The Python source, which Numba compiles; UnsupportedError for what has none."""
        if isinstance(self.made, UnsupportedError):
            raise self.made
        return self.made.text(header_of(self))

    @property
    def replaced_by(self) -> str | None:
        """The file that is in its place, if there is one."""
        held = replacement(self.key)
        return None if held is None else held[1]

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.step}: {self.key}>"

    def _repr_html_(self) -> str:
        """What it computes as a drawing, and its source, for a notebook; no script."""
        # who shows nothing does not wait for these modules
        from weft.ir.drawing.notebook import MOST_BYTES, folded
        from weft.ir.drawing.svg import draw_op

        drawing = draw_op(self.op)
        made = self.made
        text = made.what if isinstance(made, UnsupportedError) else self.source()
        room = MOST_BYTES - len(drawing.encode()) - 1000
        return f"<b>{escape(repr(self))}</b><br>{drawing}{folded('source', text, room)}"

    def show(self, height: int = 400) -> Frame:
        """The drawing and the source in a frame of a notebook's cell, `height` pixels high."""
        from weft.ir.drawing.notebook import Frame

        return Frame(self._repr_html_(), height)


def ops_of(op: Operation) -> list[str]:
    """The names of the ops that a kernel of `op` carries out."""
    return [o.name for o in _inside(op) if o.name != "constant"]


def _inside(op: Operation) -> Sequence[Operation]:
    """The ops that are one kernel."""
    if op.name == "fused":
        return op.regions[0].ops
    inside = [o for region in op.regions for o in region.walk()]
    return [op, *(o for o in inside if o.name != "fused")]


def header_of(kernel: StepKernel) -> list[str]:
    """What a kernel is and where it comes from."""
    op = kernel.op
    places = dict.fromkeys(at for o in _inside(op) for at in o.locations[:1])
    lines = [
        f"{kernel.name}, of the step '{kernel.step}'",
        f"ops: {', '.join(dict.fromkeys(ops_of(op)))}",
        *(f"from {at}" for at in places),
        f"operands: {', '.join(_operands(kernel)) or 'none'}",
        f"results: {', '.join(f'out{k} {v.type}' for k, v in enumerate(op.results))}",
    ]
    assert isinstance(kernel.made, KernelSource)
    lines += ["", "arguments, with their values in this step:"]
    lines += [f"  {line}" for line in kernel.made.describe_params()]
    if kernel.made.units is not None:
        lines.append(
            f"  lo, hi: a part of the {int(kernel.made.units)} iterations that threads share"
        )
    if kernel.made.checks:
        lines.append("  faults: takes reports of indices out of bounds")
    if kernel.made.stops:
        lines.append("  faults, worker: whom a loop asks whether it is to end")
    return lines


def _operands(kernel: StepKernel) -> Iterator[str]:
    """Each operand's type, after the names of the arguments that are views of it."""
    assert isinstance(kernel.made, KernelSource)
    for value in kernel.op.operands:
        names = [
            p.name for p in kernel.made.params
            if isinstance(p, View) and isinstance(p.address, Address) and p.address.value is value
        ]  # fmt: skip
        yield " ".join([*names, str(value.type)])


def step_kernels(step: Executable) -> list[StepKernel]:
    """The kernels of a step in the order of their calls, each once. Copies of the memory plan are
    not among them."""
    found: dict[str, StepKernel] = {}
    for kernel in _all_kernels(step.name, step.report.calls):
        found.setdefault(kernel.key, kernel)
    return list(found.values())


def _all_kernels(name: str, calls: Sequence[PlannedCall]) -> Iterator[StepKernel]:
    done: set[Operation] = set()
    for planned in calls:
        op = planned.op
        if op is None or op in done:
            continue
        done.add(op)
        shared = planned.nest.in_place if planned.nest is not None else ()
        try:
            if isinstance(planned.nest, Nest | RowNest) and not planned.call.kernel.key.startswith(
                ("gemm", "conv", "numba")
            ):
                source = nest_kernel(
                    planned.nest,
                    [Address(v) for v in op.results],
                    [Address(v) for v in op.operands],
                )
                made = [source]
            else:
                made = printed_kernels(op, shared)
        except UnsupportedError as error:
            yield StepKernel(planned.call.kernel.name, planned.call.kernel.key, op, name, error)
            continue
        for number, source in enumerate(made):
            yield StepKernel(source.name, source.key, op, name, source, number, shared)


def printed_kernels(
    op: Operation, in_place: tuple[tuple[int, int], ...] = ()
) -> list[KernelSource]:
    """The kernels of an op of a plan as source, in the order of their calls; of control flow, which
    is one kernel. UnsupportedError for an op that has no source."""
    if op.name in CONTROL:
        return [loop_source(op)]
    return [source for source, _ in sources_of(op, in_place)]


# -------------------------------------------------------------------------------------------- dumps
def file_name(key: str) -> str:
    """The name of a kernel's file."""
    return re.sub(r"[^\w.-]", "_", key)[:100] + ".py"


class DumpedExecutable(Executable):
    """A step whose kernels are in a dump; the first call leaves its inputs there. folder: of the
    dump."""

    folder: Path | None = None

    def run(self, inputs: list[Any], context: RunContext = PLAIN) -> list[Any]:
        """As of `Executable`."""
        if self.folder is not None:
            where, self.folder = self.folder, None
            _keep_inputs(where, inputs, self)
        return super().run(inputs, context)


def _keep_inputs(folder: Path, inputs: Sequence[Any], step: Executable) -> None:
    arrays = {f"x{k}": np.asarray(a) for k, a in enumerate(inputs)}
    for name, state in step.states().items():
        if state.array is not None:
            arrays[f"variable {name}"] = state.array
    # as bits: NumPy's files have no 16-bit floats of other libraries
    plain = {n: a.view(np.uint16) if a.dtype.kind == "V" or a.dtype.name == "bfloat16" else a
             for n, a in arrays.items()}  # fmt: skip
    np.savez(folder / INPUTS, **plain)  # type: ignore[arg-type]


def dump_kernels(step: DumpedExecutable, folder: Path) -> None:
    """Write the kernels of a step into the folder of its dump."""
    where = folder / FOLDER
    where.mkdir(exist_ok=True)
    for old in (*where.glob("*.py"), where / INPUTS):
        old.unlink(missing_ok=True)
    number = {op: k for k, op in enumerate(step.graph.walk())}
    table: dict[str, Any] = {}
    for kernel in step_kernels(step):
        if isinstance(kernel.made, UnsupportedError):
            table[kernel.key] = {"name": kernel.name, "not printed": str(kernel.made.what)}
            continue
        path = where / file_name(kernel.key)
        path.write_text(kernel.source(), encoding="utf-8")
        table[kernel.key] = {
            "file": path.name, "name": kernel.name, "op": number.get(kernel.op, -1),
            "kernel": kernel.number, "in_place": [list(p) for p in kernel.in_place],
        }  # fmt: skip
    (where / GRAPH).write_text(print_graph(step.graph), encoding="utf-8")
    (where / TABLE).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    write_memory(where, step.graph, step.report.memory)
    step.folder = where


def _values(graph: Graph) -> list[Value]:
    """All values of a graph, in the order of its text."""
    found = list(graph.args)
    for op in graph.walk():
        found += op.results
        found += [arg for region in op.regions for arg in region.args]
    return found


def write_memory(folder: Path, graph: Graph, plan: MemoryPlan) -> None:
    """Write the ranges of the arena into a dump: [offset, size, start, end, numbers of values]."""
    number = {value: k for k, value in enumerate(_values(graph))}
    ranges = [
        [r.offset, r.size, r.start, r.end, [number[v] for v in r.values if v in number]]
        for r in plan.ranges
    ]
    held = {"bytes": plan.arena_bytes, "events": plan.events, "ranges": ranges}
    (folder / MEMORY).write_text(json.dumps(held) + "\n", encoding="utf-8")


def read_memory(folder: Path, graph: Graph) -> tuple[int, int, list[ArenaRange]] | None:
    """Bytes, events and ranges of the arena of a dumped step; None if the dump has none. graph: as
    of the dump's `step.weft`. ValueError and others for a damaged one."""
    path = folder / MEMORY
    if not path.is_file():
        return None
    held, values = json.loads(path.read_text(encoding="utf-8")), _values(graph)
    ranges = [
        ArenaRange(offset, size, start, end, tuple(values[k] for k in numbers))
        for offset, size, start, end, numbers in held["ranges"]
    ]
    numbers = [held["bytes"], held["events"]]
    numbers += [n for r in ranges for n in (r.offset, r.size, r.start, r.end)]
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"{path} has ranges that are none")
    return numbers[0], numbers[1], ranges


def read_table(file: Path, key: str) -> dict[str, Any]:
    """The row of a kernel in the dump that its file lies in. InvalidArgumentError if it lies in
    none."""
    path = file.parent / TABLE
    if not path.exists():
        raise InvalidArgumentError(
            f"{file} does not lie in a dump: there is no {TABLE} beside it",
            hint="WEFT_DUMP=DIR writes DIR/STEP/kernels/*.py: edit the file there, or name that "
            "folder with --dump",
        )
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if key not in table or "op" not in table[key]:
        raise InvalidArgumentError(
            f"the dump in {os.fspath(file.parent)} has no kernel '{key}'",
            hint=f"it has: {', '.join(k for k, row in table.items() if 'op' in row)}",
        )
    row: dict[str, Any] = table[key]
    return row
