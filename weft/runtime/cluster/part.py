"""Part of a partitioned step: compiled to a native plan if it can be one, else to the executor.

`Registered` is one that a task was given: read from text, compiled, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.ir.analysis.effects import written_in
from weft.ir.analysis.frames import is_dataflow
from weft.ir.analysis.verify import verify
from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec, short
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Graph, Operation
from weft.ir.spec import int_attr
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType
from weft.passes.manager import Pass
from weft.passes.partition.partition import step_name
from weft.passes.pipelines import PIPELINES
from weft.runtime.cluster.small_step import SmallProgram, small_program
from weft.runtime.compile_step import CompileOptions, OneDeviceStep, choose, compile_step
from weft.runtime.dataflow.executor import is_small
from weft.runtime.dataflow.host_dispatch import Resources
from weft.runtime.dataflow.regions import RegionDevice
from weft.runtime.files.permissions import AllowFiles, grant
from weft.runtime.native.planning import gpu_passes
from weft.runtime.resources.store import Key, Store
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext


def part_step(
    graph: Graph,
    variables: Mapping[str, VariableState],
    resources: Resources,
    how: CompileOptions,
    elsewhere: RegionDevice | None = None,
) -> OneDeviceStep:
    """A part, compiled. elsewhere: the device that it runs on, if it is not this processor: always
    on the executor, which may find that all of it is one region. Errors as `compile_step`."""
    if elsewhere is None and not choose(graph, "auto").executor:
        graph = graph.at_stage("dataflow" if is_dataflow(graph.block) else "traced")
    return compile_step(graph, variables, resources, how, elsewhere=elsewhere)


def receivers_of(graph: Graph) -> dict[int, Operation]:
    """The ops `recv` of a part, by their keys."""
    return {int_attr(op.attrs, "key"): op for op in graph.walk() if op.name == "recv"}


_Array = np.ndarray[Any, Any]

_NO_LEAVE = (
    "the task does not know who sends it graphs: give the cluster a secret (`weft keygen`, then "
    "key_file= or --key-file), or say allow_files=DIR (weft worker --allow-files DIR)"
)


@dataclass(frozen=True, slots=True)
class Registered:
    """whole: the name of the step's graph. constants: the last inputs, the same in every run.
    peers: the tasks that it sends to and receives from. receivers: its ops `recv` by their keys.
    variables: by their names in the graph; written: those that it writes. device: the name of where
    it runs. small: see `dataflow.executor.is_small`. brief: what runs it if it is small and has no
    control flow. kinds: of its inputs, NumPy's dtype before each. generation: of the store that it
    was read with; again: reads it once more."""

    graph: Graph
    whole: str
    step: OneDeviceStep
    constants: tuple[_Array, ...]
    peers: frozenset[str]
    receivers: Mapping[int, Operation]
    variables: Mapping[str, VariableState]
    written: frozenset[str]
    device: str
    small: bool
    brief: SmallProgram | None
    kinds: tuple[tuple[Any, TensorType], ...]
    generation: int
    again: Callable[[], Registered]

    def run(self, feeds: Sequence[_Array], context: RunContext) -> list[_Array]:
        """The results that are tensors. InvalidArgumentError for feeds that do not fit."""
        made = self.step.run(self.inputs(feeds), context)
        return [array for array in made if array is not None]

    def inputs(self, feeds: Sequence[_Array]) -> list[_Array]:
        """What the step takes. InvalidArgumentError for feeds that do not fit."""
        if not (feeds or self.constants or self.kinds):
            return []
        given = [*feeds, *self.constants]
        if len(given) != len(self.kinds):
            raise InvalidArgumentError(
                f"{len(given)} inputs came for a part that takes {len(self.kinds)}"
            )
        ready: list[_Array] = []
        for array, (dtype, kind) in zip(given, self.kinds, strict=True):
            shape = array.shape
            if array.dtype != dtype or (shape != kind.shape and not kind.allows(shape)):
                raise InvalidArgumentError(f"{array.dtype}{list(shape)} came for {kind}")
            flags = array.flags
            ready.append(
                array if flags.c_contiguous and flags.aligned else np.array(array, order="C")
            )
        return ready


def _kinds(graph: Graph) -> tuple[tuple[Any, TensorType], ...]:
    """The inputs of a part."""
    kinds: list[Any] = [arg.type for arg in graph.args]
    return tuple([(kind.dtype.numpy, kind) for kind in kinds])


def read_part(
    text: str,
    constants: Sequence[_Array],
    store: Store,
    keys: Mapping[str, Key],
    peers: frozenset[str],
    control_flow: str,
    pipeline: str = "standard",
    device: str = "",
    allow_files: AllowFiles = None,
) -> Registered:
    """Read and compile a part. device: where it runs; "": on the processor. allow_files: what its
    ops on files may use. Errors as parsing, verifying and compiling have, and as `on_gpu`;
    PermissionDeniedError for files without leave; KeyError for a pipeline that there is not."""
    passes = PIPELINES[pipeline]
    elsewhere = _elsewhere(device, passes)
    graph, generation = parse_graph(text), store.generation
    verify(graph)
    grant(graph, allow_files, _NO_LEAVE)
    variables, resources = store.of_graph(graph, keys)
    how = CompileOptions(passes, control_flow)
    step = part_step(graph, variables, resources, how, elsewhere)
    if step.kind == "dataflow":
        step.warm()
    receivers = receivers_of(graph)
    again = partial(
        read_part, text, constants, store, keys, peers, control_flow, pipeline, device, allow_files
    )
    small = elsewhere is None and is_small(graph)
    brief = small_program(step) if small and step.kind == "dataflow" else None
    return Registered(
        graph, step_name(graph.name, device), step, tuple(constants), peers, receivers, variables,
        written_in(graph), device, small, brief, _kinds(graph), generation, again,
    )  # fmt: skip


def _elsewhere(device: str, passes: Sequence[Pass]) -> RegionDevice | None:
    """What runs the part on a GPU of this process; None for the processor."""
    if DeviceSpec.parse(device).kind in (None, "cpu"):
        return None
    # a task without GPUs does not wait for these modules
    from weft.runtime.device.execution.regions import on_gpu

    return on_gpu(device, short(device), gpu_passes(passes))
