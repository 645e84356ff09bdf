"""What a page says of a plan for a GPU: each launch with its grid, work, code and times.

Times are those of a traced run on copies of the variables: of the device's own clock, or of the
host's where the device is emulated. Nothing of it needs a GPU or a toolchain; what is missing for
that reason is said in words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from weft.codegen.cuda.cubins.cache import Cc
from weft.codegen.cuda.cubins.compile import emit_ptx, module_text, ptx_of, symbol_of
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.typecheck import read
from weft.codegen.nests.rows import RowNest, describe_rows
from weft.frontend.compile.view import calls_user
from weft.frontend.viewer.facts import KernelFacts, Memory, PlanFacts, WorkOnce, events_of
from weft.ir.dataclass import dataclass
from weft.ir.errors import ToolchainError, WeftError
from weft.ir.ops.io import muted
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.execution.kernels import source_of
from weft.runtime.device.plan import PlannedLaunch
from weft.runtime.recorder import TraceEvent, TraceRecorder

Array = np.ndarray[Any, Any]
#: Runs that are traced: of each launch the least time is shown, after a first run.
RUNS = 3
#: So many launches, those that take most, are shown with LLVM and PTX.
MOST_LAUNCHES = 40
RECORDED = (
    "Recorded launch by launch: each is waited for, so nothing overlaps and the gaps are the "
    "recording's. All is by the device's own clock but the gaps."
)
EMULATED = (
    "The device is emulated: times are of the emulator, by this machine's clock, and say nothing "
    "of a GPU."
)
RUN_ONCE = (
    "Times are those of a first run, which is slow: the step calls Python functions of yours "
    "(wf.py_function), so it was run once."
)
NO_PEAKS = "Percents of the roofline are not shown: weft does not measure the peaks of a GPU."


@dataclass(frozen=True)
class Traced:
    """A traced run. events: as recorded. seconds: of each node the times of its runs in a call, the
    least of several calls each, in order; by its identity."""

    events: Sequence[TraceEvent]
    seconds: Mapping[int, Sequence[float]]


def plan_on_gpu(step: DeviceExecutable, inputs: Sequence[Array]) -> PlanFacts:
    """The launches of a plan, its memory, and the timeline of a run on copies of the variables.
    Where it cannot run, it has no times, and says why."""
    memory = Memory.of(step.report.memory)
    try:
        traced, emulated = _traced(step, inputs), step.device().emulated
    except WeftError as error:
        told = f"The launches have no times: {error.what}"
        return PlanFacts(launches_of(step), memory, missing=(told,))
    missing = [EMULATED if emulated else NO_PEAKS]
    missing += [RUN_ONCE] if calls_user(step.graph) else []
    recorded = EMULATED if emulated else RECORDED
    return PlanFacts(launches_of(step, traced), memory, events_of(traced.events), recorded, missing)


def _traced(step: DeviceExecutable, inputs: Sequence[Array]) -> Traced:
    """Run the step some times; once if it calls functions of the user's. Errors as those of a
    call."""
    seconds: dict[int, list[float]] = {}
    recorder = TraceRecorder()
    runs = 1 if calls_user(step.graph) else RUNS + 1
    for number in range(runs):  # the first run is slow: it compiles and loads the kernels
        recorder = TraceRecorder()
        own = step.with_variables({name: copy.copy(state) for name, state in step.states().items()})
        with muted():
            nodes = own.run_noted(list(inputs), recorder)
        met: dict[int, int] = {}
        for node, event in zip(nodes, recorder.events(), strict=True):
            known, k = seconds.setdefault(id(node), []), met.get(id(node), 0)
            met[id(node)] = k + 1
            took = (event.end_ns - event.begin_ns) / 1e9
            if k < len(known) and number > 1:
                known[k] = min(known[k], took)
            elif k < len(known):
                known[k] = took
            else:
                known.append(took)
    return Traced(recorder.events(), seconds)


def launches_of(
    step: DeviceExecutable, traced: Traced | None = None, most: int = MOST_LAUNCHES
) -> list[KernelFacts]:
    """The launches of a plan in order, with what was traced of them. most: so many have LLVM and
    PTX."""
    launches = step.told().launches()
    times = {} if traced is None else traced.seconds
    ranked = sorted(launches, key=lambda launch: -sum(times.get(id(launch), ())))
    shown = {id(launch) for launch in ranked[:most]}
    cc = (9, 0)
    with suppress(WeftError):  # there is no device
        cc = step.device().cc
    texts, counted = _Texts(cc), WorkOnce("launch")
    made = []
    for number, launch in enumerate(launches, 1):
        took = None if traced is None else times.get(id(launch), ())
        few = "that come first: nothing was timed" if traced is None else "that take most"
        code = _code(step.name, launch, texts if id(launch) in shown else None, few)
        made.append(_launch(number, launch, took, counted, code))
    return made


def _launch(
    number: int,
    planned: PlannedLaunch,
    took: Sequence[float] | None,
    counted: WorkOnce,
    code: dict[str, str],
) -> KernelFacts:
    """A launch. took: seconds of its runs."""
    launch, op = planned.launch, planned.op
    nbytes, flops, notes = counted.of(op, number, bool(planned.writes))
    if took is not None and not took:
        notes.append("not reached by this call, or a library of the device does it")
    return KernelFacts(
        number, launch.kernel.name, op, launch.kernel.key,
        None if took is None else len(took),
        min(took) * 1e6 if took else None,
        bytes=nbytes, flops=flops, notes=tuple(notes), code=code,
        blocks=launch.blocks, threads=launch.block_threads, shared=shared_bytes(launch.kernel),
    )  # fmt: skip


def shared_bytes(kernel: CudaKernel) -> int:
    """Bytes of shared memory of a block, as the source declares them."""
    return read(kernel).main.shared_bytes


def _code(step: str, planned: PlannedLaunch, texts: _Texts | None, few: str) -> dict[str, str]:
    """step: its name. few: which launches have more code."""
    launch, nest = planned.launch, planned.nest
    args = ", ".join(map(str, planned.args))
    lines = [f"{launch.kernel.name}<<<{launch.blocks}, {launch.block_threads}>>>({args})"]
    if nest is not None:
        lines.append(describe_rows(nest) if isinstance(nest, RowNest) else nest.describe())
    code = {"source": source_of(step, planned), "plan": "\n".join(lines)}
    if texts is None:
        return {**code, "PTX": f"The page has the code of the {MOST_LAUNCHES} launches {few}."}
    return {**code, "LLVM": texts.llvm(launch.kernel), "PTX": texts.ptx(launch.kernel)}


class _Texts:
    """The code of kernels for an architecture, each made once."""

    def __init__(self, cc: Cc) -> None:
        self._cc = cc
        self._known: dict[tuple[str, str], str] = {}

    def llvm(self, kernel: CudaKernel) -> str:
        """The LLVM that is made of a kernel's source; functions of libdevice are declared."""
        return self._once("LLVM", kernel, lambda: module_text(kernel, symbol_of(kernel), self._cc))

    def ptx(self, kernel: CudaKernel) -> str:
        """The PTX; without libdevice, which the toolchain has, calls of its functions."""
        return self._once("PTX", kernel, lambda: self._ptx(kernel))

    def _ptx(self, kernel: CudaKernel) -> str:
        try:
            return emit_ptx(kernel, self._cc)
        except ToolchainError as error:
            why = f"// Functions of libdevice are called, not in place: {error.what}\n"
        try:
            return why + ptx_of(self.llvm(kernel), self._cc)
        except WeftError as error:
            return f"{why}// There is no PTX: {error.what}"

    def _once(self, language: str, kernel: CudaKernel, make: Callable[[], str]) -> str:
        known = self._known.get((language, kernel.key))
        if known is None:
            known = self._known[language, kernel.key] = make()
        return known
