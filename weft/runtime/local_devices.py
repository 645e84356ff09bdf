"""Steps that use GPUs of this process: `gpu_use` says whether one does, `compile_gpu_step` makes
one plan for the GPU, or a part for each device (`CutStep`).

Sessions and compiled functions, in which `wf.device` says where ops run, make them so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_DEVICES, LOCAL_JOB, DeviceSpec, local_gpu
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation
from weft.ir.program import Program
from weft.passes.control.program_order import program_order
from weft.passes.manager import QUIET, AnyPass, run_pipeline
from weft.passes.pipelines import before_placement
from weft.passes.sizes import tie_sizes
from weft.runtime.compile_step import CompileOptions, choose, compile_step
from weft.runtime.dataflow.host_dispatch import Resources
from weft.runtime.device.backends.local import not_here, on_local_device
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.planning import gpu_passes
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import Step

if TYPE_CHECKING:
    from weft.runtime.cluster.multi_device import DevicesStep


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The GPU that a step uses. number: of the first that an op names; op: that op. why: what one
    plan for it cannot hold, so that the step has a part for each device; empty if it can."""

    number: int
    op: Operation
    why: str


def gpu_use(step: IRGraph, control_flow: str, *, follow: bool = True) -> GpuUse | None:
    """Whether a step uses a GPU of this process: whether an op names one. follow: whether ops that
    name nothing go with it, as in sessions; else they are on the processor."""
    named = [(DeviceSpec.parse(op.device), op) for op in step.walk() if op.device]
    found = next(((n, op) for s, op in named if (n := local_gpu(s)) is not None), None)
    if found is None:
        return None
    number, first = found
    there = DeviceSpec(LOCAL_JOB, 0, "gpu", number)
    other = next((op for spec, op in named if not spec.matches(there)), None)
    if other is not None:
        return GpuUse(number, first, f"op '{other.name}' is on {other.device}")
    if not follow:
        free = (op for op in step.walk() if not op.device and op.name != "constant")
        other = next(free, None)
        if other is not None:
            return GpuUse(number, first, f"op '{other.name}' names no device: it is on the CPU")
    choice = choose(step, control_flow)
    return GpuUse(number, first, choice.why if choice.executor else "")


def compile_gpu_step(
    step: IRGraph,
    use: GpuUse,
    states: Mapping[str, VariableState],
    resources: Resources,
    how: CompileOptions,
    soft: bool = False,
    *,
    follow: bool = True,
) -> Step:
    """The step as a plan for a GPU, or as a part for each of its devices. soft: ops without a
    kernel for the GPU may go to the processor. follow: as of `gpu_use`.

    UnsupportedError for what a GPU does not do, PlacementError for an op that cannot be where it is
    wanted, InvalidArgumentError, which says why, where there is no such GPU.
    """
    if not use.why and not soft:
        return _whole(step, use, states, how)
    native = how.control_flow == "native"
    if use.why and native:
        raise _not_there(f"{use.why}, and the session was made with control_flow='native'", use.op)
    cut = CutStep(step, use, how, soft=soft, follow=follow)
    fallbacks = cut.placement.fallbacks
    if not use.why and not fallbacks and len(cut.program.parts) == 1:
        return _whole(step, use, states, how)
    if native:
        why = f"the session was made with control_flow='native', and {fallbacks[0]}"
        raise _not_there(why, use.op)
    return cut.compiled(states, resources)


class CutStep:
    """A step with a device of this process for each op, cut into a part for each device.

    use: of a GPU; soft, follow, cpus: as of `place_step`. Errors as placing has.
    """

    def __init__(
        self,
        step: IRGraph,
        use: GpuUse | None,
        how: CompileOptions,
        *,
        soft: bool,
        follow: bool = True,
        cpus: int = 1,
    ) -> None:
        # whoever uses one device does not wait for these modules
        from weft.passes.partition.partition import partition_pass
        from weft.passes.placement import PlacePass
        from weft.runtime.device.backends.placement import place_step

        named = None if use is None else (use.number, use.op)
        place = PlacePass(partial(place_step, named=named, soft=soft, follow=follow, cpus=cpus))
        cut = partition_pass(LOCAL_DEVICES[0])
        first: list[AnyPass] = [program_order] if how.in_order else []
        self._step, self._how = step, how
        before = before_placement(how.passes, step)
        self._passes: list[AnyPass] = [*first, *before, tie_sizes, place, cut]
        self.program, _ = run_pipeline(Program.of(step), self._passes, options=how.passing)
        assert place.placement is not None
        self.placement = place.placement

    def compiled(self, states: Mapping[str, VariableState], resources: Resources) -> DevicesStep:
        """The step that runs the parts. Errors as compiling has."""
        from weft.runtime.cluster.multi_device import DevicesStep
        from weft.runtime.device.execution.regions import on_gpu

        step, how, passes = self._step, self._how, self._passes
        return DevicesStep(
            step.name, self.program, len(step.results), states, resources,
            partial(
                on_gpu, passes=gpu_passes(how.passes), math_mode=how.math_mode,
                results_stay=how.results_stay,
            ),
            replace(how, in_order=False),  # the edges are there, and parts have sends and receives
            placement=self.placement,
            reports=lambda: run_pipeline(Program.of(step), passes, options=QUIET)[1],
        )  # fmt: skip


def _whole(
    step: IRGraph,
    use: GpuUse,
    states: Mapping[str, VariableState],
    how: CompileOptions,
) -> DeviceStep:
    """One plan for one GPU. Its inputs come from the host, and their copies are its own: it needs
    no donated ones."""
    graph = on_local_device(step, use.number)
    how = replace(how, passes=gpu_passes(how.passes), donated=())
    made = compile_step(graph, states, options=how, gpu=use.number)
    assert made.kind == "gpu"
    try:
        made.device()
    except (FailedPreconditionError, InvalidArgumentError) as error:  # there is none
        raise not_here(use.op, error) from None
    except WeftError as error:
        raise error.at(use.op.locations) from None
    return made


def _not_there(why: str, op: Operation) -> UnsupportedError:
    return UnsupportedError(
        f"a step is to run on a GPU, but {why}",
        hint="make the session without that, or fetch what is on the GPU in a session of its own",
        location=op.locations,
    )
