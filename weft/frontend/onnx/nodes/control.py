"""ONNX nodes of branches and loops: `If`, `Loop` and `Scan`, whose bodies read what is around."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.frontend.onnx.nodes.graph import FROM_FIRST, Body, GraphWriter, tensor_of
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim
from weft.ir.dtypes import bool_, int64
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.control_flow import length_attr
from weft.ir.spec import int_attr
from weft.ir.types import TensorType

#: Writes a block's ops, whose arguments are bound.
EmitBlock = Callable[[GraphWriter, Block], None]

_INT, _BOOL = TensorType(int64), TensorType(bool_)


def _types(values: Sequence[Value]) -> list[TensorType]:
    return [tensor_of(v) for v in values]


def _whole(writer: GraphWriter, values: Sequence[Value]) -> list[str]:
    """Operands as tensors that are made outside of the body."""
    return [writer.use(v) for v in values]


def cond(writer: GraphWriter, op: Operation, emit: EmitBlock) -> None:
    """`If`: the operands are read where they are."""
    predicate, *operands = _whole(writer, op.operands)
    bodies: dict[str, Body] = {}
    for key, region in zip(("then_branch", "else_branch"), op.regions, strict=True):
        with writer.body() as scope:
            for arg, name in zip(region.args, operands, strict=True):
                writer.bind(arg, name)
            emit(writer, region)
            names = writer.own(scope, _whole(writer, region.results))
        kinds = _types(region.results)
        bodies[key] = Body(key, scope.nodes, [], list(zip(names, kinds, strict=True)))
    names = writer.nodes_of("If", [predicate], len(op.results), bodies)
    for value, name in zip(op.results, names, strict=True):
        writer.bind(value, name)


def while_loop(writer: GraphWriter, op: Operation, emit: EmitBlock) -> None:
    """`Loop`: the test is computed before it, and at the end of its body."""
    carries, limit = int_attr(op.attrs, "carries"), int_attr(op.attrs, "limit")
    test, body = op.regions
    given = _whole(writer, op.operands)
    for arg, name in zip(test.args, given, strict=True):
        writer.bind(arg, name)
    emit(writer, test)
    goes_on = writer.use(test.results[0])
    kinds = _types(op.operands[:carries])
    with writer.body() as scope:
        number, went_on = writer.name("iteration"), writer.name("condition")
        own = [writer.name("carried") for _ in kinds]
        for arg, name in zip(body.args, [*own, *given[carries:]], strict=True):
            writer.bind(arg, name)
        emit(writer, body)
        results = _whole(writer, body.results)
        for arg, name in zip(test.args, [*results, *given[carries:]], strict=True):
            writer.bind(arg, name)
        _forget(writer, test)
        emit(writer, test)
        names = writer.own(scope, [writer.use(test.results[0]), *results])
    inputs = [(number, _INT), (went_on, _BOOL), *zip(own, kinds, strict=True)]
    outputs = list(zip(names, [_BOOL, *kinds], strict=True))
    most = writer.constant(np.asarray(limit, np.int64)) if limit >= 0 else ""
    made = writer.nodes_of(
        "Loop", [most, goes_on, *given[:carries]], carries,
        {"body": Body("body", scope.nodes, inputs, outputs)},
    )  # fmt: skip
    for value, name in zip(op.results, made, strict=True):
        writer.bind(value, name)


def _forget(writer: GraphWriter, block: Block) -> None:
    """Make a block be written a second time: what was used of its values was of the first."""
    values = {*block.args, *(v for op in block.walk() for v in op.results)}
    values.update(a for op in block.walk() for region in op.regions for a in region.args)
    writer.forget(values)


def scan(writer: GraphWriter, op: Operation, emit: EmitBlock) -> None:
    """The rows of sequences one by one; what is around is read where it is."""
    carries, sequences = (int_attr(op.attrs, name) for name in ("carries", "sequences"))
    (region,) = op.regions
    given = _whole(writer, op.operands)

    def step(own: Sequence[str]) -> list[str]:
        names = [*own, *given[carries + sequences :]]
        for arg, name in zip(region.args, names, strict=True):
            writer.bind(arg, name)
        emit(writer, region)
        return _whole(writer, region.results)

    rows = Rows(length_attr(op.attrs), bool(op.attrs["reverse"]))
    own, made = _types(region.args[: carries + sequences]), _types(region.results)
    names = given[: carries + sequences]
    results = scanned(writer, rows, names, own, made, carries, step)
    for value, name in zip(op.results, results, strict=True):
        writer.bind(value, name)


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows a scan has, whether it begins with the last, and their axis."""

    length: Dim
    reverse: bool
    axis: int = 0


def scanned(
    writer: GraphWriter, rows: Rows, given: Sequence[str], own: Sequence[TensorType],
    made: Sequence[TensorType], carries: int, step: Callable[[Sequence[str]], list[str]],
) -> list[str]:  # fmt: skip
    """The carries at the end, and what each step makes, stacked. given: carries and sequences, of
    which `own` are the types of carries and rows; step: writes the body, whose results have the
    types `made`.

    A `Scan`, but a `Loop` where there may be no rows, or none of an element along another axis, for
    which onnxruntime's Scan divides by 0, or no sequences, which Scan needs."""
    if rows.length == 0 and all(t.is_static for t in made[carries:]):
        stacked = [_no_rows(writer, rows, t) for t in made[carries:]]
        return [*given[:carries], *stacked]
    sizes = [rows.length, *(d for t in own[carries:] for d in t.shape if rows.axis)]
    sure = all(isinstance(d, int) and d > 0 for d in sizes)
    if sure and len(given) > carries:
        return _scan(writer, rows, given, own, made, carries, step)
    return _loop(writer, rows, given, own, made, carries, step)


def _no_rows(writer: GraphWriter, rows: Rows, row: TensorType) -> str:
    """What a scan without steps has stacked."""
    shape = list(row.static_shape)
    shape.insert(rows.axis, 0)
    return writer.constant(np.zeros(shape, row.dtype.numpy))


def _scan(
    writer: GraphWriter, rows: Rows, given: Sequence[str], own: Sequence[TensorType],
    made: Sequence[TensorType], carries: int, step: Callable[[Sequence[str]], list[str]],
) -> list[str]:  # fmt: skip
    sequences, stacked = len(given) - carries, len(made) - carries
    with writer.body() as scope:
        names = [writer.name("carried" if k < carries else "row") for k in range(len(own))]
        results = writer.own(scope, step(names))
    inputs, outputs = (list(zip(n, t, strict=True)) for n, t in ((names, own), (results, made)))

    def of_each(number: int, count: int) -> list[int] | None:
        return [number] * count if number and count else None

    return writer.nodes_of(
        "Scan", given, len(made), {"body": Body("body", scope.nodes, inputs, outputs)},
        num_scan_inputs=sequences,
        scan_input_axes=of_each(rows.axis, sequences),
        scan_output_axes=of_each(rows.axis, stacked),
        scan_input_directions=of_each(int(rows.reverse), sequences),
        scan_output_directions=of_each(int(rows.reverse), stacked),
    )  # fmt: skip


def _loop(
    writer: GraphWriter, rows: Rows, given: Sequence[str], own: Sequence[TensorType],
    made: Sequence[TensorType], carries: int, step: Callable[[Sequence[str]], list[str]],
) -> list[str]:  # fmt: skip
    length, true = writer.scalar(rows.length), writer.constant(np.asarray(True))
    one = writer.constant(np.asarray(1, np.int64))
    last = writer.node("Sub", length, one) if rows.reverse else ""
    with writer.body() as scope:
        number, went_on = writer.name("iteration"), writer.name("condition")
        names = [writer.name("carried") for _ in range(carries)]
        at = writer.node("Sub", last, number) if rows.reverse else number
        cut = [writer.node("Gather", n, at, axis=rows.axis) for n in given[carries:]]
        results = writer.own(scope, [went_on, *step([*names, *cut])])
    inputs = [(number, _INT), (went_on, _BOOL), *zip(names, own[:carries], strict=True)]
    outputs = list(zip(results, [_BOOL, *made], strict=True))
    body = Body("body", scope.nodes, inputs, outputs)
    found = writer.nodes_of("Loop", [length, true, *given[:carries]], len(made), {"body": body})
    stacked = [
        _stacked(writer, rows, n, t) for n, t in zip(found[carries:], made[carries:], strict=True)
    ]
    return [*found[:carries], *stacked]


def _stacked(writer: GraphWriter, rows: Rows, name: str, row: TensorType) -> str:
    """What a loop has stacked, in the order and along the axis of the rows. Without any iteration
    onnxruntime does not know the sizes of one."""
    if not row.is_static:
        name = writer.node("Reshape", name, writer.shape((rows.length, *row.shape)), allowzero=1)
    if rows.reverse:
        ends = writer.ints(-1), writer.ints(FROM_FIRST), writer.ints(0), writer.ints(-1)
        name = writer.node("Slice", name, *ends)
    if rows.axis:
        axes = [*range(1, rows.axis + 1), 0, *range(rows.axis + 1, row.rank + 1)]
        name = writer.node("Transpose", name, perm=axes)
    return name


BUILDERS: dict[str, Callable[[GraphWriter, Operation, EmitBlock], None]] = {
    "cond": cond,
    "while": while_loop,
    "scan": scan,
}
