"""Measuring a compiled step, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.codegen.call import Address, Code
from weft.codegen.llvm.asm_facts import kernel_facts
from weft.codegen.llvm.cache import kernel_cache
from weft.codegen.loops.program import Branch, Loop, Node, PlannedCall
from weft.frontend.bench.cost import Cost, KernelCost
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType
from weft.passes.analysis.cost import Work, work
from weft.passes.analysis.trip_count import trip_count
from weft.passes.differential import random_array
from weft.runtime.native.executable import Executable
from weft.runtime.resources.variables import VariableState
from weft.runtime.trace.peaks import Peaks, machine_peaks
from weft.runtime.trace.replay import Piece, PieceTime, Replay, pieces_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Effort:
    """rounds: how many times each thing is timed. seconds: what all kernels of one function may
    take together, roughly; a round lasts between 0.1 and 4 ms, or one run if that is longer."""

    rounds: int = 9
    seconds: float = 2.0

    def per_round(self, kernels: int) -> float:
        """Seconds of one round of one kernel, with one thread or with all."""
        return min(4e-3, max(1e-4, self.seconds / max(1, 2 * kernels * self.rounds)))


QUICK = Effort(3, 0.05)


def peaks_now(*, quick: bool = False) -> Peaks:
    """This machine's peaks; kept in weft's cache folder for some minutes."""
    cache = kernel_cache()
    return machine_peaks(quick=quick, folder=None if cache is None else cache.folder)


def measure(
    executable: Executable,
    inputs: Sequence[Array],
    variables: Mapping[str, VariableState],
    name: str,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    wanted: Callable[[int, Piece], bool] = lambda number, piece: True,
    peaks: Peaks | None = None,
) -> Cost:
    """Run the step on copies of `variables` and time the kernels that are `wanted` (by number,
    from 1). Errors as those of a call."""
    peaks = peaks or peaks_now()
    replay = Replay(executable, inputs, variables)
    pieces = pieces_of(executable)
    numbers = {piece.first: number for number, piece in enumerate(pieces, 1)}
    chosen = [p for p in pieces if wanted(numbers[p.first], p)]
    runs = dict(_runs(executable.report.program, 1))
    each = effort.per_round(len(chosen))
    firsts = {p.first for p in chosen}
    rows = [
        _row(numbers[t.piece.first], t, runs.get(id(t.piece.calls[0])))
        for t in replay.times(effort.rounds, each, lambda p: p.first in firsts)
    ]
    step = replay.step_time(effort.rounds, max(each, 1e-3))
    last, memory = executable.report.passes[-1], executable.report.memory
    return Cost(
        name, last.ops_after, len(executable.report.calls), last.bytes, memory.peak_bytes,
        min(executable.threads, peaks.threads), step, tuple(rows), peaks,
    )  # fmt: skip


def _row(number: int, timed: PieceTime, runs: int | None) -> KernelCost:
    calls = timed.piece.calls
    op = calls[0].op
    kernels = [c.call.kernel for c in calls]
    kernels += [a.kernel for c in calls for a in c.call.args if isinstance(a, Code)]
    keys = tuple(dict.fromkeys(k.key for k in kernels))
    return KernelCost(
        number,
        " + ".join(dict.fromkeys(c.call.kernel.name for c in calls if "partial" not in c.why)),
        _ops(op),
        len(calls),
        runs,
        timed.one,
        timed.all,
        _copied(calls[0]) if op is None else work(op, _is_in_place(calls)),
        "f32" if op is None else _dtype(op),
        kernel_facts(keys),
        () if op is None else tuple(dict.fromkeys(_line(loc) for loc in op.locations)),
        tuple(_notes(timed)),
        keys,
    )


def _line(location: Any) -> str:
    return f"{location.file}:{location.line}"


def _ops(op: Operation | None) -> tuple[str, ...]:
    if op is None:
        return ("copy",)
    if op.name != "fused":
        return (op.name,)
    moves = ("constant", "broadcast_to", "reshape")
    return tuple(inner.name for inner in op.regions[0].ops if inner.name not in moves)


def _copied(planned: PlannedCall) -> Work:
    """Of a byte copy: (target, source, bytes)."""
    nbytes = planned.call.args[2]
    assert isinstance(nbytes, int)
    return Work(0, 0, nbytes, nbytes)


def _is_in_place(calls: Sequence[PlannedCall]) -> bool:
    """Whether an update runs on its operand's own memory: the operand is no argument of any of its
    calls, or the copy that it begins with was left out."""
    op = calls[0].op
    if op is None or not op.operands:
        return False
    addresses = {a.value for c in calls for a in c.call.args if isinstance(a, Address)}
    return op.operands[0] not in addresses


def _dtype(op: Operation) -> str:
    """f64 if anything in the op computes in 64 bits, else f32."""
    regions = [inner for region in op.regions for inner in region.walk()]
    for each in (op, *regions):
        for value in (*each.operands, *each.results):
            held = value.type
            if isinstance(held, TensorType) and held.dtype.is_inexact:
                width = held.dtype.itemsize // (2 if held.dtype.is_complex else 1)
                if width == 8:
                    return "f64"
    return "f32"


def _notes(timed: PieceTime) -> Iterator[str]:
    if timed.one is None:
        yield "not reached by this call"
        return
    if timed.restored:
        runs = "each run" if timed.batch == 1 else f"every {timed.batch} runs"
        yield f"changes its operand: put back before {runs}, which leaves it in the caches"
        if timed.batch == 1:
            yield "timed one run at a time: about 0.5 us of each is the call from Python"
    faults = [c for c in timed.piece.calls if "partial" in c.why]
    if faults:
        yield "with the call that adds up partial results"


def _runs(nodes: Sequence[Node], times: int | None) -> Iterator[tuple[int, int | None]]:
    """(id of a planned call, how often one step runs it)."""
    for node in nodes:
        match node:
            case PlannedCall():
                yield id(node), times
            case Loop(op=op):
                trips = int_attr(op.attrs, "length") if op.name == "scan" else trip_count(op)
                parts = 1 if node.parts is None else node.parts.count
                inside = None if trips is None or times is None else times * trips * parts
                tests = None if inside is None or times is None else inside + times
                yield from _runs(node.test, tests)
                yield from _runs(node.body, inside)
            case Branch():
                yield from _runs(node.then, None)
                yield from _runs(node.orelse, None)


def inputs_of(key: tuple[Any, list[Any], list[Any]], args: Sequence[Value]) -> list[Array]:
    """The arrays of a call by its key (`CompiledFunction._key`): C-contiguous, and random ones in
    place of types."""
    (_, leaf_keys, _, _), arrays, _ = key
    given = [a for a, k in zip(arrays, leaf_keys, strict=True) if isinstance(k, tuple)]
    generator = np.random.default_rng(0)
    out = []
    for array, arg in zip(given, args, strict=True):
        if array is None:
            assert isinstance(arg.type, TensorType)
            array = random_array(arg.type, generator, 0)
        elif not isinstance(array, np.ndarray):  # it is on a device
            array = array.numpy()
        out.append(np.ascontiguousarray(array).reshape(np.shape(array)))
    return out
