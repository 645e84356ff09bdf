"""The kernels of a step on one device, plan by plan: of a native plan, of a plan for a GPU, of the
regions that the dataflow executor runs; and their form on the wire, by which a task tells a session
those of its part.

On the wire it is compressed JSON in an array of bytes; graphs go as text."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.runtime.native.executable import Executable
from weft.runtime.trace.kernel_facts import (
    MOST_KERNELS,
    KernelFacts,
    native_kernels,
    region_name,
)

Array = np.ndarray[Any, Any]
#: What packed kernels may be unpacked to, in bytes.
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class PlanKernels:
    """The kernels of a plan, as it numbers them. graph: after all passes, whose ops they are."""

    graph: Graph
    kernels: Sequence[KernelFacts]


@dataclass(frozen=True)
class StepKernels:
    """The kernels of a step or part. missing: lines on what it does not have of them."""

    plans: Sequence[PlanKernels] = ()
    missing: Sequence[str] = ()

    @property
    def kernels(self) -> list[KernelFacts]:
        """Those of all plans."""
        return [kernel for plan in self.plans for kernel in plan.kernels]


def list_kernels(step: Any, device: str, what: str, most: int = MOST_KERNELS) -> StepKernels:
    """The kernels of a step of one device. device: as of `KernelFacts`; what: the step, for people;
    most: so many have all of their code. Plans for open sizes have the kernels of the run that was
    traced last."""
    if step.kind != "dataflow":
        return _joined([_plan(step, device, 0, what, most)])
    found: list[StepKernels] = []
    for number, made in enumerate(step.built.compiled, 1):
        plan = getattr(made, "step", made)
        room = max(0, most - sum(len(one.kernels) for one in found))
        found.append(_plan(plan, device, number, region_name(number), room))
    return _joined(found)


def _joined(found: Sequence[StepKernels]) -> StepKernels:
    missing = dict.fromkeys(line for one in found for line in one.missing)
    return StepKernels([plan for one in found for plan in one.plans], list(missing))


def _plan(step: Any, device: str, region: int, what: str, room: int) -> StepKernels:
    """Those of a plan. room: so many have all of their code."""
    made, missing = step, list[str]()
    if made.kind == "sized":
        made = made.traced
    if made is None:
        return StepKernels(
            missing=[
                f"The sizes of {what} depend on values: its kernels are compiled for the sizes "
                "that come, and listed after a traced run."
            ]
        )
    shown = range(1, room + 1)
    if isinstance(made, Executable):
        found = native_kernels(made, shown)
    else:
        # whoever has no GPU does not wait for this module
        from weft.runtime.device.execution.launch_facts import EMULATED, launches_of

        found = launches_of(made, shown)
        missing += [EMULATED] if made.device().emulated else []
    named = [replace(k, device=device, region=region_name(region)) for k in found]
    return StepKernels([PlanKernels(made.graph, named)], missing)


# ------------------------------------------------------------------------------------ on the wire
def pack_kernels(found: StepKernels) -> Array:
    """Kernels as an array of bytes: `unpack_kernels` is its inverse."""
    plans = []
    for plan in found.plans:
        number = {op: k for k, op in enumerate(plan.graph.walk())}
        rows = [{**k.row(), "op": -1 if k.op is None else number[k.op]} for k in plan.kernels]
        plans.append({"graph": print_graph(plan.graph), "kernels": rows})
    data = {"plans": plans, "missing": list(found.missing)}
    text = json.dumps(data, separators=(",", ":")).encode()
    return np.frombuffer(zlib.compress(text, 1), np.uint8)


def unpack_kernels(packed: Array) -> StepKernels:
    """What was packed. InvalidArgumentError for what is none, or is larger than MOST_BYTES."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(np.ascontiguousarray(packed, np.uint8).tobytes(), MOST_BYTES)
        if not stream.eof:
            raise ValueError(f"they are cut off, or larger than {MOST_BYTES} bytes")
        data = json.loads(text)
        plans = [_read_plan(row) for row in data["plans"]]
        return StepKernels(plans, [str(line) for line in data["missing"]])
    except (ValueError, TypeError, LookupError, zlib.error, WeftError) as error:
        raise InvalidArgumentError(
            f"a task sent kernels that are not well formed: {error}"
        ) from None


def _read_plan(row: Mapping[str, Any]) -> PlanKernels:
    graph = parse_graph(str(row["graph"]))
    ops = list(graph.walk())
    return PlanKernels(graph, [_read(kernel, ops) for kernel in row["kernels"]])


def _read(row: Mapping[str, Any], ops: Sequence[Operation]) -> KernelFacts:
    def whole(name: str) -> int | None:
        return None if row[name] is None else int(row[name])

    number = int(row["op"])
    return KernelFacts(
        int(row["number"]), str(row["name"]), ops[number] if number >= 0 else None, str(row["key"]),
        bytes=whole("bytes"), flops=whole("flops"), notes=tuple(map(str, row["notes"])),
        code={str(language): str(text) for language, text in row["code"].items()},
        blocks=whole("blocks"), threads=whole("threads"), shared=whole("shared"),
        device=str(row["device"]), region=str(row["region"]),
    )  # fmt: skip
