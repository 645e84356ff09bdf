"""The kernels that a plan for a GPU launches, as people read them: modules that numba-cuda compiles
(`codegen/cuda/numba_cuda`)."""

from __future__ import annotations

from weft.codegen.cuda.numba_cuda.text import numba_text
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.plan import PlannedLaunch
from weft.runtime.native.kernels import ops_of


@dataclass(frozen=True)
class GpuKernel:
    """A kernel of a step on a GPU. name, key: of the kernel; op: what it carries out, in the fused
    graph (None for a part of the plan that is no op's); step: the name of the step; blocks,
    threads: of its first launch.

    >>> f = wf.compile(lambda x: wf.exp(x) + 1, device="gpu:0")
    >>> (kernel,) = f.kernels(np.ones(3, np.float32))  # doctest: +SKIP
    >>> print(kernel.source())  # doctest: +SKIP
    """

    name: str
    key: str
    op: Operation | None
    step: str
    blocks: int
    threads: int
    kernel: CudaKernel

    def source(self) -> str:
        """The module that numba-cuda compiles; UnsupportedError for a kernel that calls functions
        which Numba compiled for the CPU."""
        return numba_text(self.kernel, self._header())

    def _header(self) -> list[str]:
        lines = [f"{self.name}, of the step '{self.step}'"]
        if self.op is not None:
            inner = self.op.regions[0].ops if self.op.name == "fused" else (self.op,)
            places = dict.fromkeys(at for o in inner for at in o.locations[:1])
            results = ", ".join(f"{v.type}" for v in self.op.results)
            lines += [
                f"ops: {', '.join(dict.fromkeys(ops_of(self.op)))}",
                *(f"from {at}" for at in places),
                f"operands: {', '.join(str(v.type) for v in self.op.operands) or 'none'}",
                f"results: {results or 'none'}",
            ]
        return [*lines, f"launched as [{self.blocks}, {self.threads}] (blocks, threads of each)"]

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.step}: {self.key}>"


def gpu_kernels(step: DeviceExecutable) -> list[GpuKernel]:
    """The kernels of a step in the order of their launches, each once."""
    found: dict[str, GpuKernel] = {}
    for planned in step.told().launches():
        made = kernel_of(step.name, planned)
        found.setdefault(made.key, made)
    return list(found.values())


def kernel_of(step: str, planned: PlannedLaunch) -> GpuKernel:
    """The kernel of a launch of a step of that name."""
    launch = planned.launch
    kernel, blocks, threads = launch.kernel, int(launch.blocks), int(launch.block_threads)
    return GpuKernel(kernel.name, kernel.key, planned.op, step, blocks, threads, kernel)


def source_of(step: str, planned: PlannedLaunch) -> str:
    """The text of a launch's kernel; of one that is not printed for numba-cuda its source alone,
    and why."""
    try:
        return kernel_of(step, planned).source()
    except UnsupportedError as error:
        return f"# {error.what}\n{planned.launch.kernel.source}"
