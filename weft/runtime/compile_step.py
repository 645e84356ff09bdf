"""`compile_step`: from the graph of a step, or of its part on one device, to a `Step`.

Compiled functions, sessions, parts on devices and on the tasks of a cluster, and the command line
all compile by it. A graph whose sizes are known becomes one native plan or one plan for a GPU; one
with open sizes a `SizedStep` of such plans; and what neither holds (ops of the host, strings,
Switch and Merge) runs on the dataflow executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from weft.codegen.llvm.jit import compile_count
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.locations import caller_location
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.ops.io import PYTHON_CALLS
from weft.passes.manager import STANDARD, Pass, PassOptions
from weft.passes.sizes import is_symbolic
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.progress import progress
from weft.runtime.resources.variables import VariableState

if TYPE_CHECKING:
    from weft.runtime.dataflow.executor import DataflowStep
    from weft.runtime.dataflow.host_dispatch import Resources
    from weft.runtime.dataflow.regions import RegionDevice
    from weft.runtime.device.execution.executable import DeviceExecutable
    from weft.runtime.device.execution.size_plan import DeviceMaker, DeviceSizedStep
    from weft.runtime.device.protocol import Device
    from weft.runtime.native.size_plan import NativeSizedStep
    from weft.runtime.sized_step import SizedGraph

#: What a graph on one device becomes.
OneDeviceStep: TypeAlias = (
    "Executable | NativeSizedStep | DeviceExecutable | DeviceSizedStep | DataflowStep"
)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a step is compiled.

    passes: the pipeline of what is compiled, that of the device. control_flow: "native" for one
    plan or an error, "dataflow" for the executor, "auto" for that where it is needed.
    deterministic: the executor runs nodes in one order. threads: how many a native step may use
    (None: as many as all others). donated: inputs whose memory results may take. math_mode: how
    libraries of a GPU may compute products of f32. passing: verifying, dumps and logs; the
    environment's if None. in_order: effects are done in the order in which they stand, as in a
    compiled function; else only what the graph says is in order. results_stay: results that lie on
    a GPU are given as they are there, by steps with a part on it.
    """

    passes: Sequence[Pass] = STANDARD
    control_flow: str = "auto"
    deterministic: bool = False
    threads: int | None = None
    donated: Sequence[int] = ()
    math_mode: MathMode = "ieee"
    passing: PassOptions | None = None
    in_order: bool = False
    results_stay: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen way to run a step. forced: the op that only the executor runs, if there is one."""

    executor: bool
    why: str
    forced: Operation | None = None


def choose(graph: Graph, control_flow: str) -> Choice:
    """The native plan or the dataflow executor."""
    # whose steps are native in any case does not wait for these modules
    from weft.passes.control.lower_control_flow import executor_only
    from weft.runtime.dataflow.executor import executor_op, holds_strings

    found = executor_op(graph)
    if found is not None and found.name in PYTHON_CALLS and control_flow != "dataflow":
        # which may wait for what other nodes do meanwhile, unless the user says that it does not
        calls = PYTHON_CALLS - ({"py_function"} if control_flow == "auto" else set())
        switches = next((op for op in graph.ops if op.name in DATAFLOW), None)
        found = switches or executor_only(graph.ops, calls)
    if found is not None:
        return Choice(True, f"op '{found.name}' runs on the dataflow executor only", found)
    if holds_strings(graph):
        return Choice(True, "strings go in or out, which native plans do not take")
    if control_flow == "dataflow":
        return Choice(True, "the session was made with control_flow='dataflow'")
    return Choice(False, "no op needs the dataflow executor")


def compile_step(
    graph: Graph,
    variables: Mapping[str, VariableState],
    resources: Resources | None = None,
    options: CompileOptions | None = None,
    *,
    gpu: int | None = None,
    elsewhere: RegionDevice | None = None,
) -> OneDeviceStep:
    """The compiled step of a graph that names no devices.

    gpu: the number of the GPU that its plans are for, looked for when one is first called.
    elsewhere: the device that regions run on while the executor runs the rest here. Errors as
    `compile_graph`, `compile_for_device` and `dataflow_step` have.
    """
    options = options or CompileOptions()
    before = compile_count()

    def kernels() -> str:
        return f"{compile_count() - before} new kernels"

    with progress(f"compiling '{graph.name}'", f"compiled '{graph.name}'", kernels):
        if gpu is not None:
            return _for_gpu(graph, variables, options, gpu)
        if elsewhere is None:
            native = options.control_flow == "native"
            if native or not choose(graph, options.control_flow).executor:
                return _native(graph, variables, options)
        from weft.runtime.dataflow.executor import dataflow_step

        return dataflow_step(
            graph, variables, resources or {}, options.control_flow,
            deterministic=options.deterministic, passes=options.passes, elsewhere=elsewhere,
            options=options.passing, in_order=options.in_order, donated=options.donated,
        )  # fmt: skip


def _native(
    graph: Graph, variables: Mapping[str, VariableState], options: CompileOptions
) -> Executable | NativeSizedStep:
    if is_symbolic(graph.block):
        # who has no open sizes does not wait for this module
        from weft.runtime.native.size_plan import native_step_of_any_size

        return native_step_of_any_size(
            graph, variables, options.threads, options.passes, donated=options.donated
        )
    return compile_graph(
        graph, variables, name=graph.name, passes=options.passes, threads=options.threads,
        donated=options.donated, options=options.passing,
    )  # fmt: skip


def _for_gpu(
    graph: Graph, variables: Mapping[str, VariableState], options: CompileOptions, gpu: int
) -> DeviceExecutable | DeviceSizedStep:
    # whoever has no GPU does not wait for these modules when weft is imported
    if is_symbolic(graph.block):
        from weft.runtime.sized_step import SizedGraph, SizedStep

        return SizedStep(
            maker_for_gpu(
                SizedGraph.of(graph), variables, gpu, options.passes, options.math_mode,
                options.donated,
            )
        )  # fmt: skip
    from weft.runtime.device.execution.executable import compile_for_device

    return compile_for_device(
        graph, variables, find=find_gpu(gpu), name=graph.name, passes=options.passes,
        math_mode=options.math_mode, donated=options.donated, options=options.passing,
    )  # fmt: skip


def maker_for_gpu(
    graph: SizedGraph,
    variables: Mapping[str, VariableState],
    number: int,
    passes: Sequence[Pass],
    math_mode: MathMode = "ieee",
    donated: Sequence[int] = (),
) -> DeviceMaker:
    """What makes plans for GPU `number` of a graph for the sizes that come. donated: as of
    `DeviceMaker`."""
    from weft.runtime.device.execution.size_plan import DeviceMaker

    return DeviceMaker(graph, variables, find_gpu(number), passes, math_mode, donated=donated)


def find_gpu(number: int) -> Callable[[], Device]:
    """What finds a GPU of this process when it is needed; its errors name the user's line."""
    return partial(_found_gpu, number)


def _found_gpu(number: int) -> Device:
    from weft.runtime.device.backends.registry import gpu

    try:
        return gpu(number)
    except WeftError as error:
        raise error.at(caller_location()) from None
