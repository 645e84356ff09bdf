"""GPU plan of a traced graph: found on disk, or made by passes and planner; and its bytes.

Everything that carries a step out is kept (`runtime/plan_store.py`), kernels with their source,
as JSON and bytes. Of an op there are its name and the user's lines, as numbers of the traced
graph's: so a program that reads it names its own. What launches and nests say in terms of SSA
values is left out; it is for people, and for errors about indices, for whom passes run again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import weft.runtime.device.gemm_conv as conv
import weft.runtime.device.gemm_conv as gemm
import weft.runtime.device.plan as plans
from weft.codegen.cuda.cubins.cache import architecture
from weft.codegen.cuda.source.kernel import CudaKernel, Launch, Parameter
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode, as_dtype
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.locations import Location, Locations
from weft.ir.process import collector_paused
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.manager import Pass, PassOptions, PassReport, run_passes
from weft.passes.memory.block import MemoryPlan, Moving, Slot
from weft.passes.memory.plan_memory import plan_memory
from weft.runtime.device.gemm_conv import CONVOLUTIONS
from weft.runtime.device.libraries import cublaslt, cudnn
from weft.runtime.device.plan import DevicePlan
from weft.runtime.device.protocol import Device
from weft.runtime.native.step_plan import Once
from weft.runtime.plan_store import (
    Fields,
    NotKeptError,
    PlanKey,
    changed,
    pack_arrays,
    plan_key,
    unpack_arrays,
)

#: The classes that a plan is made of, by name; each object is kept as its fields.
_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Moving, Slot, CudaKernel, Parameter,
        *(c for module in (plans, gemm, conv) for c in vars(module).values()
          if is_dataclass(c) and isinstance(c, type) and c.__module__ == module.__name__),
    )
}  # fmt: skip
_PLAIN = frozenset({int, float, str, bool, type(None)})
#: Fields of a `DevicePlan` that are kept in their own ways.
_OWN = ("constants", "variables", "donated")


def lines_of(graph: Graph) -> list[Location]:
    """The user's lines of a graph's ops, each once: in graphs with equal digests, those that
    correspond have equal numbers."""
    return list(dict.fromkeys(place for op in graph.walk() for place in op.locations))


def pack_plan(
    plan: DevicePlan, traced: Sequence[ConstArray], lines: Sequence[Location]
) -> tuple[Fields, bytes]:
    """Fields that JSON can hold, and the bytes that go with them. traced: the constants of the
    traced graph; lines: `lines_of` it. NotKeptError."""
    arrays, stored = pack_arrays(plan.constants, traced)
    packer = _Packer({place: k for k, place in enumerate(lines)})
    made = {f.name: packer.value(getattr(plan, f.name)) for f in fields(plan)
            if f.name not in _OWN}  # fmt: skip
    variables = [[n, packer.value(t), read] for n, (t, read) in plan.variables.items()]
    tables = {name: list(rows) for name, rows in packer.rows.items()}
    return {
        "plan": made, "tables": tables, "arrays": arrays, "variables": variables,
        "donated": [list(row) for row in plan.donated.items()],
    }, stored  # fmt: skip


class _Packer:
    """Ops, kernels and places are kept once, and named by their numbers."""

    def __init__(self, lines: Mapping[Location, int]) -> None:
        self._lines = lines
        self._numbers: dict[object, int] = {}
        self.rows: dict[str, list[Any]] = {"ops": [], "kernels": [], "places": []}

    def value(self, held: Any) -> Any:
        """`held` as JSON has it: tuples as lists, objects as {class: fields}."""
        kind = type(held)
        if kind in _PLAIN:
            return held
        if kind is tuple:
            return [self.value(x) for x in held]
        if kind in (Nest, RowNest):
            return None
        if kind is TensorType:
            return {"type": [held.dtype.name, list(held.static_shape)]}
        if kind is Launch:
            return {"launch": [self._kernel(held.kernel), held.blocks, held.threads]}
        if kind is Operation:
            return {"op": self._once("ops", held, self._op)}
        if kind is plans.Place:
            return {"place": self._once("places", held, self._fields)}
        if _CLASSES.get(kind.__name__) is kind:
            return {kind.__name__: self._fields(held)}
        raise NotKeptError(f"a {kind.__name__}")

    def _fields(self, held: Any) -> list[Any]:
        return [self.value(getattr(held, f.name)) for f in fields(held)]

    def _kernel(self, kernel: CudaKernel) -> int:
        return self._once("kernels", kernel, self._fields)

    def _op(self, op: Operation) -> list[Any]:
        if any(place not in self._lines for place in op.locations):
            raise NotKeptError(f"a line of op '{op.name}' that is not the user's")
        return [op.name, [self._lines[place] for place in op.locations]]

    def _once(self, table: str, held: Any, pack: Callable[[Any], list[Any]]) -> int:
        number = self._numbers.get(held)
        if number is None:
            rows = self.rows[table]
            number = self._numbers[held] = len(rows)
            rows.append(pack(held))
        return number


def unpack_plan(
    packed: Mapping[str, Any],
    payload: bytes,
    traced: Sequence[ConstArray],
    lines: Sequence[Location],
) -> DevicePlan:
    """The opposite of `pack_plan`. Ops have a name and lines, nothing else."""
    reader, own = _Reader(packed["tables"], lines), packed["plan"]
    return DevicePlan(
        **{name: reader.value(held) for name, held in own.items()},
        constants=tuple(unpack_arrays(packed["arrays"], payload, 0, traced)),
        variables={n: (reader.value(t), read) for n, t, read in packed["variables"]},
        donated=dict(packed["donated"]),
    )


class _Reader:
    def __init__(self, tables: Mapping[str, Any], lines: Sequence[Location]) -> None:
        self._ops = [_op(name, tuple([lines[k] for k in own])) for name, own in tables["ops"]]
        self._kernels = [CudaKernel(*map(self.value, row)) for row in tables["kernels"]]
        self._places = [plans.Place(*row) for row in tables["places"]]

    def value(self, held: Any) -> Any:
        """The opposite of `_Packer.value`."""
        if type(held) is list:
            return tuple([self.value(x) for x in held])
        if type(held) is not dict:
            return held
        ((kind, row),) = held.items()
        match kind:
            case "place":
                return self._places[row]
            case "op":
                return self._ops[row]
            case "launch":
                number, blocks, threads = row
                return Launch(self._kernels[number], (), blocks, threads)
            case "type":
                return TensorType(as_dtype(row[0]), tuple(row[1]))
        return _CLASSES[kind](*[self.value(x) for x in row])


def _op(name: str, lines: Locations) -> Operation:
    return Operation(name, (), {}, (), locations=lines)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The report on planning: the passes, where values are, how long it took, and whether the plan
    came from disk (then the passes ran for this report)."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    seconds: float
    plan_loaded: bool = False


@dataclass(frozen=True, slots=True)
class DeviceDetails:
    """The details of a step for people and errors: the fused graph, the plan with its ops, how it
    was made."""

    graph: Graph
    plan: DevicePlan
    report: DeviceReport


@dataclass(frozen=True)
class Wanted:
    """A plan to be made: of a traced graph of static shapes, by passes. donated: inputs whose
    memory results may take. ahead: for another machine, which may have libraries that are not
    here."""

    graph: Graph
    passes: Sequence[Pass]
    math_mode: MathMode = "ieee"
    donated: Sequence[int] = ()
    ahead: bool = False

    def key(self, options: PassOptions, find: Callable[[], Device]) -> PlanKey | None:
        """What the plan depends on, if it is to be kept on disk; the device's architecture, too,
        if it is there."""

        def target() -> str:
            try:
                cc = architecture(find().cc)
            except WeftError:  # whoever calls the plan is told
                cc = "none"
            # to look for a cuDNN that is not there takes longer than to load a plan
            convolves = any(op.name in CONVOLUTIONS for op in self.graph.walk())
            there = f"cublaslt {cublaslt.installed()} cudnn {convolves and cudnn.installed()}"
            return f"gpu {cc} math {self.math_mode} {there}\n"

        if self.ahead:
            return None
        return plan_key(self.graph, self.passes, options, self.donated, target)

    def planned(
        self, options: PassOptions
    ) -> tuple[Graph, DevicePlan, Sequence[PassReport], MemoryPlan]:
        """The graph after the passes, the plan, what the passes did, and where values are; sizes
        may be traced. Errors as `device.execution.executable.compile_for_device`."""
        # who finds the plan on disk does not wait for these modules
        from weft.codegen.steps.plan import check_supported
        from weft.runtime.device.planning.planner import device_plan, lowering_of

        with collector_paused():
            fused, reports = run_passes(self.graph, self.passes, options=options)
            check_supported(fused)
            memory = plan_memory(fused, donated=self.donated, by_bytes=True)
            lowering = lowering_of(self.passes, self.ahead)
            plan = device_plan(fused, memory, lowering, self.math_mode)
            return fused, plan, reports, memory

    def details(self, options: PassOptions) -> DeviceDetails:
        """As `planned`, in one."""
        started = time.perf_counter()
        fused, plan, reports, memory = self.planned(options)
        report = DeviceReport(tuple(reports), memory, time.perf_counter() - started)
        return DeviceDetails(fused, plan, report)

    def load(self, key: PlanKey) -> tuple[DevicePlan, Callable[[], DeviceDetails]] | None:
        """The plan on disk, and what makes its details when somebody asks; None: it is not there.
        The details raise InternalError if passes do not make that plan any more."""
        started = time.perf_counter()

        def read(
            fields: Mapping[str, Any], payload: bytes, traced: Sequence[ConstArray]
        ) -> DevicePlan:
            return unpack_plan(fields, payload, traced, lines_of(self.graph))

        with collector_paused():
            plan = key.load(read)
        if plan is None:
            return None
        seconds = time.perf_counter() - started
        return plan, Once(lambda: self._again(plan, seconds))

    def _again(self, plan: DevicePlan, seconds: float) -> DeviceDetails:
        made = self.details(PassOptions())
        if _what(plan) != _what(made.plan):
            raise changed(self.graph)
        report = DeviceReport(made.report.passes, made.report.memory, seconds, plan_loaded=True)
        return DeviceDetails(made.graph, made.plan, report)

    def store(self, key: PlanKey, name: str, plan: DevicePlan) -> None:
        """Keep a plan, as of `PlanKey`."""
        key.store(name, lambda traced: pack_plan(plan, traced, lines_of(self.graph)))


def _what(plan: DevicePlan) -> object:
    """What two plans that do the same have in common."""
    launches = [(x.launch.kernel.key, x.launch.blocks, x.args) for x in plan.launches()]
    return launches, plan.arena_bytes, plan.donated
