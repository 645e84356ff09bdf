"""Ahead-of-time compilation of a graph's kernels, for GPUs that need not be here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from weft.codegen.cuda.cubins.cache import architecture, write_cubins
from weft.codegen.cuda.cubins.compile import compile_kernel
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError, InvalidArgumentError
from weft.ir.graph import Graph
from weft.passes.manager import Pass
from weft.passes.pipelines import GPU
from weft.runtime.device.execution.executable import compile_for_device
from weft.runtime.resources.variables import VariableState


@dataclass(frozen=True, slots=True)
class AheadRow:
    """A cubin: the kernel's name, the architecture, its size, and what the kernel takes."""

    name: str
    target: str
    nbytes: int
    report: str


@dataclass(frozen=True, slots=True)
class Ahead:
    """The cubins written: a row for each, kernel by kernel."""

    rows: tuple[AheadRow, ...]
    targets: tuple[str, ...]

    @property
    def kernels(self) -> int:
        """How many kernels."""
        return len(self.rows) // len(self.targets)

    @property
    def nbytes(self) -> int:
        """Bytes of all cubins."""
        return sum(row.nbytes for row in self.rows)


def compile_ahead(
    graph: Graph,
    variables: Mapping[str, VariableState],
    targets: Sequence[tuple[int, int]],
    folder: Path,
    passes: Sequence[Pass] = GPU,
) -> Ahead:
    """Plan a traced graph of static shapes for a GPU by `passes`, and write its kernels' cubins for
    `targets` into `folder`, which WEFT_CUBINS may then name on a machine without a toolchain.

    Errors as `compile_for_device` and `compile_kernel`, InvalidArgumentError for a graph that
    launches nothing; nothing is written then. OSError for a folder that cannot be written."""
    plan = compile_for_device(graph, variables, find=_no_device, passes=passes, ahead=True).plan
    kernels = {kernel.key: kernel for kernel in (*plan.kernels(), *plan.kernels_after())}
    if not kernels:
        raise InvalidArgumentError(
            f"the graph '{graph.name}' has no kernels: nothing is computed for its results "
            f"({', '.join(str(value.type) for value in graph.results)})",
            hint="give the graph of a step, which WEFT_DUMP writes when it runs, or name what a "
            "saved wf.Graph is to compute: wf.name_tensor(x, name), then --fetch name",
        )
    made = [
        (kernel, cc, compile_kernel(kernel, cc)) for kernel in kernels.values() for cc in targets
    ]
    write_cubins(folder, made, {"graph": graph.name})
    rows = (
        AheadRow(kernel.name, architecture(cc), len(cubin.code), cubin.report.describe())
        for kernel, cc, cubin in made
    )
    return Ahead(tuple(rows), tuple(map(architecture, targets)))


def _no_device() -> NoReturn:
    raise InternalError("a plan that is compiled ahead does not run")
