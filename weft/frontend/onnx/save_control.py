"""ONNX nodes of branches and loops: `If`, `Loop` and `Scan`, whose bodies read what is around."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.frontend.onnx.save_graph import Body, GraphWriter, tensor_of
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
    """`Scan`, or without sequences a `Loop` that stacks what it makes."""
    carries, sequences = (int_attr(op.attrs, name) for name in ("carries", "sequences"))
    (region,) = op.regions
    given = _whole(writer, op.operands)
    own_kinds = _types(region.args[: carries + sequences])
    with writer.body() as scope:
        number, went_on = writer.name("iteration"), writer.name("condition")
        own = [writer.name("carried" if k < carries else "row") for k in range(len(own_kinds))]
        names = [*own, *given[carries + sequences :]]
        for arg, name in zip(region.args, names, strict=True):
            writer.bind(arg, name)
        emit(writer, region)
        results = _whole(writer, region.results)
        if not sequences:
            results = [went_on, *results]
        results = writer.own(scope, results)
    inputs = list(zip(own, own_kinds, strict=True))
    kinds = _types(region.results)
    if sequences:
        body = Body("body", scope.nodes, inputs, list(zip(results, kinds, strict=True)))
        made = _scan(writer, op, body, given[: carries + sequences])
    else:
        inputs = [(number, _INT), (went_on, _BOOL), *inputs]
        outputs = list(zip(results, [_BOOL, *kinds], strict=True))
        made = _counted(writer, op, Body("body", scope.nodes, inputs, outputs), given[:carries])
    for value, name in zip(op.results, made, strict=True):
        writer.bind(value, name)


def _scan(writer: GraphWriter, op: Operation, body: Body, given: Sequence[str]) -> list[str]:
    carries, sequences = (int_attr(op.attrs, name) for name in ("carries", "sequences"))
    stacked = len(op.results) - carries
    back = bool(op.attrs["reverse"])
    return writer.nodes_of(
        "Scan", given, len(op.results), {"body": body}, num_scan_inputs=sequences,
        scan_input_directions=[1] * sequences if back else None,
        scan_output_directions=[1] * stacked if back and stacked else None,
    )  # fmt: skip


def _counted(writer: GraphWriter, op: Operation, body: Body, given: Sequence[str]) -> list[str]:
    carries, length = int_attr(op.attrs, "carries"), length_attr(op.attrs)
    made = writer.nodes_of(
        "Loop", [writer.scalar(length), "", *given], len(op.results), {"body": body}
    )
    if not op.attrs["reverse"]:
        return made
    flipped = [
        writer.node(
            "Slice", name, writer.ints(-1), writer.ints(-(2**63)), writer.ints(0), writer.ints(-1)
        )
        for name in made[carries:]
    ]
    return [*made[:carries], *flipped]


BUILDERS: dict[str, Callable[[GraphWriter, Operation, EmitBlock], None]] = {
    "cond": cond,
    "while": while_loop,
    "scan": scan,
}
