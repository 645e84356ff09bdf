"""From a traced graph to a plan for a GPU: made by passes and planning, or found on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from weft.codegen.cuda.cubins.cache import architecture
from weft.codegen.llvm.cache import CachedRecord
from weft.codegen.llvm.jit import do_later
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.errors import InternalError, WeftError
from weft.ir.graph import Graph
from weft.ir.process import collector_paused
from weft.ir.spec import ConstArray
from weft.passes.manager import Pass, PassOptions, PassReport, run_passes
from weft.passes.memory.block import MemoryPlan
from weft.passes.memory.plan_memory import plan_memory
from weft.runtime.details import Once
from weft.runtime.device.libraries import cublaslt, cudnn
from weft.runtime.device.libraries.conv import CONVOLUTIONS
from weft.runtime.device.planning.packed import UnknownPartError, lines_of, pack_plan, unpack_plan
from weft.runtime.device.planning.plan import DevicePlan
from weft.runtime.device.protocol import Device
from weft.runtime.plan_disk import PlanKey, plan_key

_log = logging.getLogger("weft.compile")


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What planning did: the passes, where values are, how long it took, and whether the plan came
    from disk (then the passes ran for this report)."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    seconds: float
    plan_loaded: bool = False


@dataclass(frozen=True, slots=True)
class DeviceDetails:
    """What people and errors are told of a step: the fused graph, the plan with its ops, how it was
    made."""

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
        if self.ahead or plan_key(self.graph, self.passes, options, self.donated) is None:
            return None
        try:
            cc = architecture(find().cc)
        except WeftError:  # whoever calls the plan is told
            cc = "none"
        # to look for a cuDNN that is not there takes longer than to load a plan
        convolves = any(op.name in CONVOLUTIONS for op in self.graph.walk())
        there = f"cublaslt {cublaslt.installed()} cudnn {convolves and cudnn.installed()}"
        target = f"gpu {cc} math {self.math_mode} {there}\n"
        return plan_key(self.graph, self.passes, options, self.donated, target)

    def planned(
        self, options: PassOptions
    ) -> tuple[Graph, DevicePlan, Sequence[PassReport], MemoryPlan]:
        """The graph after the passes, the plan, what the passes did, and where values are; sizes
        may be traced. Errors as `runtime.device.executable.compile_for_device`."""
        # who finds the plan on disk does not wait for these modules
        from weft.codegen.steps.plan import check_supported
        from weft.runtime.device.planning.lowering import lowering_of
        from weft.runtime.device.planning.planner import device_plan

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

        def read(found: CachedRecord, constants: list[ConstArray]) -> DevicePlan:
            return unpack_plan(found.fields, found.payload, constants, lines_of(self.graph))

        with collector_paused():
            plan = key.load(read)
        if plan is None:
            return None
        seconds = time.perf_counter() - started
        return plan, Once(lambda: self._again(plan, seconds))

    def _again(self, plan: DevicePlan, seconds: float) -> DeviceDetails:
        made = self.details(PassOptions())
        if _what(plan) != _what(made.plan):
            raise InternalError(
                f"the plan of '{self.graph.name}' is not what weft makes of it now",
                hint="`weft cache clear` removes it from the disk",
            )
        report = DeviceReport(made.report.passes, made.report.memory, seconds, plan_loaded=True)
        return DeviceDetails(made.graph, made.plan, report)

    def store(self, key: PlanKey, name: str, plan: DevicePlan) -> None:
        """Keep a plan, if all of it can be and its constants are not too large; in another
        thread."""

        def write() -> None:
            try:
                key.store(name, pack_plan(plan, key.content[1], lines_of(self.graph)))
            except UnknownPartError as error:
                _log.info("cache: the plan of %s is not kept: it holds %s", name, error)

        do_later(write)


def _what(plan: DevicePlan) -> object:
    """What two plans that do the same have in common."""
    launches = [(x.launch.kernel.key, x.launch.blocks, x.args) for x in plan.launches()]
    return launches, plan.arena_bytes, plan.donated
