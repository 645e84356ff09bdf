"""What is to be said of the launches of a plan for a GPU: grid, work and code. None of it needs a
GPU or a toolchain; what is missing for that reason is said in words."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from weft.codegen.cuda.cubins.cache import Cc
from weft.codegen.cuda.cubins.compile import emit_ptx, module_text, ptx_of, symbol_of
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.typecheck import read
from weft.codegen.nests.rows import RowNest, describe_rows
from weft.ir.errors import ToolchainError, WeftError
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.execution.kernels import source_of
from weft.runtime.device.plan import PlannedLaunch
from weft.runtime.trace.kernel_facts import FIRST, KernelFacts, WorkOnce

#: So many launches, those that take most, are shown with LLVM and PTX.
MOST_LAUNCHES = 40
#: What is to be known of times on an emulated device.
EMULATED = (
    "The device is emulated: times are of the emulator, by this machine's clock, and say nothing "
    "of a GPU."
)
#: Why a launch of a call that was timed has no time.
NOT_REACHED = "not reached by this call, or a library of the device does it"


def launches_of(
    step: DeviceExecutable, shown: Collection[int] = range(1, MOST_LAUNCHES + 1), few: str = FIRST
) -> list[KernelFacts]:
    """The launches of a plan in order, without times. shown: the numbers of those that have LLVM
    and PTX; few: which these are, for people."""
    cc = (9, 0)
    with suppress(WeftError):  # there is no device
        cc = step.device().cc
    texts, counted = _Texts(cc), WorkOnce("launch")
    return [
        _launch(
            number, launch, counted,
            _code(step.name, launch, texts if number in shown else None, few),
        )
        for number, launch in enumerate(step.told().launches(), 1)
    ]  # fmt: skip


def _launch(
    number: int, planned: PlannedLaunch, counted: WorkOnce, code: dict[str, str]
) -> KernelFacts:
    launch, op = planned.launch, planned.op
    nbytes, flops, notes = counted.of(op, number, bool(planned.writes))
    return KernelFacts(
        number, launch.kernel.name, op, launch.kernel.key, bytes=nbytes, flops=flops,
        notes=tuple(notes), code=code, blocks=launch.blocks, threads=launch.block_threads,
        shared=shared_bytes(launch.kernel),
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
    if launch.kernel.engine == "llvm":
        code["LLVM"] = texts.llvm(launch.kernel)
    return {**code, "PTX": texts.ptx(launch.kernel)}


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
            if kernel.engine != "llvm":
                return f"// There is no PTX: {error.what}"
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
