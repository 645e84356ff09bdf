"""Out-of-memory handling: the error names the tensor that did not fit; no memory stays taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from weft.ir.dataclass import dataclass
from weft.ir.errors import ResourceExhaustedError, WeftError
from weft.ir.graph import Operation, Value
from weft.ir.types import TensorType
from weft.runtime.device.execution.segments import Base
from weft.runtime.device.plan import DevicePlan, Place, layout_of
from weft.runtime.device.planning.stored_plan import DeviceDetails
from weft.runtime.device.protocol import Device, Memory
from weft.runtime.native.kernel_times import traced_names


class AllocationError(ResourceExhaustedError):
    """There is no memory for a buffer of a plan, by its kind and number or name, as of `Place`;
    ("arena", 0) is a step's own block, ("constant", 0) all constants, ("results", 0) all small
    results."""

    def __init__(self, error: ResourceExhaustedError, base: Base) -> None:
        super().__init__(error.what, hint=error.hint, location=error.locations)
        self.base = base


def allocate_for(device: Device, nbytes: int, what: str, base: Base) -> Memory:
    """`Device.allocate`, whose error is `AllocationError`."""
    try:
        return device.allocate(nbytes, what)
    except ResourceExhaustedError as error:
        raise AllocationError(error, base) from None


def let_go(error: BaseException) -> None:
    """What a call that failed has made is held by nobody, though its error is held: the locals of
    weft's functions that the error has left, and those before it, are cleared."""
    errors: list[BaseException | None] = [error]
    seen: set[int] = set()
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        errors += [one.__cause__, one.__context__]
        place = one.__traceback__
        while place is not None:
            if str(place.tb_frame.f_globals.get("__name__")).startswith("weft."):
                with suppress(RuntimeError):  # it still runs
                    place.tb_frame.clear()
            place = place.tb_next


#: Of what is fused, so many ops are told of.
MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on a device. what: "argument x", say. op: what makes it, if that is known."""

    what: str
    type: TensorType | None
    nbytes: int
    op: Operation | None = None

    def __str__(self) -> str:
        text = f"{self.what}{f', {self.type}' if self.type else ''}: {self.nbytes:,} bytes"
        return text + (f", of op {_named(self.op)}" if self.op is not None else "")


def named(error: AllocationError, details: Callable[[], DeviceDetails]) -> ResourceExhaustedError:
    """The error with the tensor that there was no memory for; of a block of many, the largest."""
    try:
        found = [tensor for tensor in _tensors(error, details()) if tensor is not None]
    except WeftError:  # the passes do not make that plan any more: what is known is said
        found = []
    locations = next((tensor.op.locations for tensor in found if tensor.op is not None), ())
    return ResourceExhaustedError(
        "; ".join([error.what, *map(str, found)]),
        hint=error.hint,
        location=error.locations or locations,
    )


def _tensors(error: AllocationError, made: DeviceDetails) -> Sequence[Tensor | None]:
    """One, or where scratch memory of an op is larger than any value that first."""
    kind, which = error.base
    graph, plan = made.graph, made.plan
    if kind == "variable":
        ops = [op for op in graph.walk() if op.name == "variable"]
        own = next((op for op in ops if op.attrs["name"] == which), None)
        t = plan.variables[str(which)][0]
        return [Tensor(f"it is variable '{which}'", t, t.nbytes, own)]
    if kind == "input":
        return [_argument(made, int(which), "it is ")]
    if kind == "result":
        return [_of(graph.results[int(which)], f"it is result {which}")]
    if kind == "results":
        small = (_of(graph.results[i], f"result {i}") for i in layout_of(plan).results)
        return [_largest((tensor for tensor in small if tensor is not None), "the largest is ")]
    if kind == "constant":
        return [_largest(_constants(made), "the largest is ")]
    value = _largest(_values(made), "the largest value there is ")
    scratch = _largest(_scratch(plan), "most is for ")
    if scratch is not None and (value is None or scratch.nbytes > value.nbytes):
        return [scratch, value]
    return [value]


def _argument(made: DeviceDetails, i: int, what: str) -> Tensor:
    names, t = made.graph.arg_names, made.plan.inputs[i]
    name = f"'{names[i]}'" if i < len(names) and names[i] else str(i)
    return Tensor(f"{what}argument {name}", t, t.nbytes)


def _of(value: Value, what: str) -> Tensor | None:
    t = value.type
    return Tensor(what, t, t.nbytes, value.op) if isinstance(t, TensorType) else None


def _largest(tensors: Iterator[Tensor], what: str) -> Tensor | None:
    found = max(tensors, key=lambda t: t.nbytes, default=None)
    return found and replace(found, what=f"{what}{found.what}")


def _constants(made: DeviceDetails) -> Iterator[Tensor]:
    for i, op in enumerate(made.report.memory.constants):
        tensor = _of(op.result, f"constant {i}")
        if tensor is not None:
            yield tensor


def _values(made: DeviceDetails) -> Iterator[Tensor]:
    """What is in the block of a step."""
    for value, slot in made.report.memory.slots.items():
        if slot.kind == "arena":
            tensor = _of(value, "one")
            if tensor is not None:
                yield tensor
    yield from (_argument(made, i, "") for i in layout_of(made.plan).inputs)


def _scratch(plan: DevicePlan) -> Iterator[Tensor]:
    for launch in plan.launches():
        for place in launch.args:
            if isinstance(place, Place) and place.kind == "scratch":
                yield Tensor("scratch memory", None, place.nbytes, launch.op)


def _named(op: Operation) -> str:
    names = list(dict.fromkeys(traced_names(op)))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(f"'{name}'" for name in names[:MOST_NAMES]) + more
