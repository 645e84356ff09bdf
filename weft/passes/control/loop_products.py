"""Matrix products in loops: done for all iterations at once, or on operands transposed once.

`batch`, a rule of `simplify_control`, takes out of a scan what needs no carry:

* *lift*: a product of a row and an invariant matrix becomes one product before the loop;
* *sink*: a product with an invariant matrix that the loop only stacks becomes one after it;
* *gather*: a carry that only adds up products ``a^T b`` (the gradient of a weight) becomes one
  product of the stacks of a and b after the loop, one that adds up sums of what is stacked anyway
  (the gradient of a bias) one sum.

One product of T*B rows is several times faster than T of B rows; it rounds in another order. Only
for dtypes of 4 bytes and more, whose sums are not made wider than they are.

`transpose_outside_loops`: a product in a loop's body reads loop invariants as they lie. Before, in
the body of a loop with the invariant `%u`::

    %d = matmul(%z, %u) {transpose_a=false, transpose_b=true}

After, with `%t = permute_dims(%u) {axes=[1, 0]}` before the loop and a further invariant `%v`::

    %d = matmul(%z, %v) {transpose_a=false, transpose_b=false}

The way back through an RNN multiplies by the transposed weights in every step; with few rows in
`%z`, going through `%u` across its rows costs as much as a third of the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.ir.analysis.known_values import uniform
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import length_attr
from weft.ir.spec import int_attr, ints_attr
from weft.ir.types import TensorType
from weft.passes.control.loops import Loop
from weft.passes.rewriting.expression import Expr
from weft.passes.rewriting.rewrite import copy_needed, in_regions, tensor


def batch(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """The scan with one such op taken out, which is appended before or after it; None if none."""
    if op.name != "scan":
        return None
    length = length_attr(op.attrs)
    if not isinstance(length, int) or length < 2:
        return None
    scan = _Scan(builder, Loop.of(op), length)
    return scan.lift() or scan.sink() or scan.gather()


@dataclass(slots=True)
class _Edit:
    """Changes to a scan. rows: sequences to add, each with the value of the body that is its row.
    ys: values to stack as well. stacked: for a stacked result, what to stack in its place. without:
    a carry to drop."""

    rows: list[tuple[Value, Value]] = field(default_factory=list)
    ys: list[Value] = field(default_factory=list)
    stacked: dict[int, Value] = field(default_factory=dict)
    without: int | None = None


class _Scan:
    def __init__(self, builder: Builder, loop: Loop, length: int) -> None:
        self.builder, self.loop, self.length = builder, loop, length
        self.body = loop.body
        self.invariants = {loop.body.args[i]: loop.op.operands[i] for i in loop.rest}
        self.rows = {loop.body.args[i]: loop.op.operands[i] for i in loop.row_numbers}
        self.uses = _uses(loop.body)

    def expr(self, value: Value, op: Operation) -> Expr:
        """A value outside the loop, for ops at the source line of an op in it."""
        return Expr(self.builder, value, op.locations)

    # -- before the loop, after the loop ----------------------------------------------------------

    def lift(self) -> Sequence[Value] | None:
        """Products of a row and an invariant matrix."""
        for op in self.body.ops:
            if _is_plain_product(op) and op.operands[0] in self.rows:
                weights = self.invariants.get(op.operands[1])
                if weights is not None:
                    product = self._of_all(op, self.rows[op.operands[0]], weights)
                    results, _ = self._edited(_Edit(rows=[(product, op.result)]))
                    return [results[i] for i in range(len(self.loop.op.results))]
        return None

    def sink(self) -> Sequence[Value] | None:
        """Products with an invariant matrix that are only stacked."""
        for number in self.loop.ys:
            op = self.body.results[number].op
            if op is None or not _is_plain_product(op) or self.uses[op.result] != 1:
                continue
            weights = self.invariants.get(op.operands[1])
            if weights is not None:
                results, _ = self._edited(_Edit(stacked={number: op.operands[0]}))
                results[number] = self._of_all(op, results[number], weights)
                return [results[i] for i in range(len(self.loop.op.results))]
        return None

    def _of_all(self, op: Operation, stack: Value, weights: Value) -> Value:
        """The product of all rows of `stack` at once."""
        a = self.expr(stack, op)
        flat = a.reshape((self.length * _size(op.operands[0], 0), a.shape[-1]))
        product = flat.op("matmul", self.expr(weights, op), **op.attrs)
        return product.reshape((self.length, *tensor(op.result).shape)).value

    # -- sums over the iterations -----------------------------------------------------------------

    def gather(self) -> Sequence[Value] | None:
        """Carries that only add up products, or sums of what is stacked."""
        for number in range(self.loop.carries):
            term = self._added(number)
            if term is None or term.op is None:
                continue
            if _is_outer_product(term.op):
                return self._gathered(number, term.op, list(term.op.operands))
            if term.op.name == "sum" and self._is_stacked(term.op.operands[0]):
                return self._gathered(number, term.op, [term.op.operands[0]])
        return None

    def _added(self, number: int) -> Value | None:
        """What an iteration adds to the carry of this number, if that is all it does with it."""
        own, after = self.body.args[number], self.body.results[number]
        if after.op is None or after.op.name != "add" or own not in after.op.operands:
            return None
        if self.uses[own] != 1 or self.uses[after] != 1 or tensor(own).dtype.itemsize < 4:
            return None
        terms = [v for v in after.op.operands if v is not own]
        return terms[0] if terms and self.uses[terms[0]] == 1 else None

    def _is_stacked(self, value: Value) -> bool:
        return value in self.rows or value in self.body.results[self.loop.carries :]

    def _gathered(self, number: int, op: Operation, parts: list[Value]) -> Sequence[Value]:
        """The scan without the carry, which is computed from the stacks of `parts` after it."""
        ys = self.body.results[self.loop.carries :]
        new = [v for v in dict.fromkeys(parts) if not self._is_stacked(v)]
        results, added = self._edited(_Edit(ys=new, without=number))
        stacks: dict[Value, Value] = dict(zip(new, added, strict=True))
        for v in parts:
            if v in self.rows:
                stacks[v] = self.rows[v]
            elif v in ys:
                stacks[v] = results[self.loop.carries + ys.index(v)]
        given = [self.expr(stacks[v], op) for v in parts]
        if op.name == "sum":
            axes = (0, *(i + 1 for i in ints_attr(op.attrs, "axes")))
            total = given[0].sum(axes).reshape(tensor(op.result).shape)
        else:
            a, b = (
                x.reshape((self.length * _size(v, 0), x.shape[-1]))
                for x, v in zip(given, parts, strict=True)
            )
            total = a.op("matmul", b, transpose_a=True, transpose_b=False)
        start = self.expr(self.loop.op.operands[number], op)
        zero = uniform(start.value)
        results[number] = (total if zero is not None and zero.item() == 0 else start + total).value
        return [results[i] for i in range(len(self.loop.op.results))]

    # -- the loop itself --------------------------------------------------------------------------

    def _edited(self, edit: _Edit) -> tuple[dict[int, Value], Sequence[Value]]:
        """Append the scan with these changes: its results by their old numbers, and the added
        stacks."""
        loop, op = self.loop, self.loop.op
        carries = [i for i in range(loop.carries) if i != edit.without]
        arguments = [*carries, *loop.row_numbers], list(loop.rest)
        types = [self.body.args[i].type for i in arguments[0]]
        types += [v.type for _, v in edit.rows]
        types += [self.body.args[i].type for i in arguments[1]]
        inner = Builder(types)
        old = [self.body.args[i] for i in arguments[0]]
        old += [v for _, v in edit.rows]
        old += [self.body.args[i] for i in arguments[1]]
        mapping = dict(zip(old, inner.args, strict=True))
        wanted = [self.body.results[i] for i in carries]
        wanted += [edit.stacked.get(i, self.body.results[i]) for i in loop.ys] + edit.ys
        copy_needed(inner, self.body, wanted, mapping)
        region = inner.block([mapping[v] for v in wanted])
        operands = [op.operands[i] for i in arguments[0]]
        operands += [v for v, _ in edit.rows] + [op.operands[i] for i in arguments[1]]
        sequences = loop.rows + len(edit.rows)
        attrs = {**op.attrs, "carries": len(carries), "sequences": sequences}
        values = self.builder.emit(
            "scan", operands, attrs, regions=(region,), locations=op.locations
        )
        numbers = [*carries, *loop.ys]
        return dict(zip(numbers, values, strict=False)), values[len(numbers) :]


def _uses(block: Block) -> Mapping[Value, int]:
    """How often each value of the block is used, as a result too."""
    count = dict.fromkeys((*block.args, *(r for op in block.ops for r in op.results)), 0)
    for value in (*(v for op in block.ops for v in op.operands), *block.results):
        count[value] += 1
    return count


def _size(value: Value, axis: int) -> int:
    return tensor(value).static_shape[axis]


def _is_static_matrix(value: Value) -> bool:
    kind = tensor(value)
    return kind.rank == 2 and kind.is_static and kind.dtype.itemsize >= 4


def _is_plain_product(op: Operation) -> bool:
    """A matmul of matrices whose first one is not transposed."""
    return (
        op.name == "matmul"
        and not op.attrs["transpose_a"]
        and all(map(_is_static_matrix, op.operands))
    )


def _is_outer_product(op: Operation) -> bool:
    """A matmul a^T b of matrices."""
    return (
        op.name == "matmul"
        and bool(op.attrs["transpose_a"])
        and not op.attrs["transpose_b"]
        and all(map(_is_static_matrix, op.operands))
    )


def transpose_outside_loops(graph: Graph) -> Graph:
    """Rewrite products with transposed loop invariants, in all loops of `graph`."""
    if not any(op.name in ("while", "scan") for op in graph.walk()):
        return graph
    graph = in_regions(graph, transpose_outside_loops)
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        products = _products(op)
        made = _with_transposes(builder, op, products, mapping) if products else None
        results = builder.clone(op, mapping) if made is None else made
        mapping.update(zip(op.results, results, strict=True))
    outputs = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, outputs, graph.stage)


def _products(op: Operation) -> dict[Operation, int]:
    """The products in a loop's body by a transposed invariant, and the invariant's number."""
    if op.name not in ("while", "scan"):
        return {}
    varying = int_attr(op.attrs, "carries")
    if op.name == "scan":
        varying += int_attr(op.attrs, "sequences")
    number = {arg: k for k, arg in enumerate(op.regions[-1].args) if k >= varying}
    return {
        inner: number[inner.operands[1]]
        for inner in op.regions[-1].ops
        if inner.name == "matmul" and inner.attrs["transpose_b"] and inner.operands[1] in number
    }


def _with_transposes(
    builder: Builder, op: Operation, products: Mapping[Operation, int], mapping: dict[Value, Value]
) -> tuple[Value, ...]:
    turned: dict[int, Value] = {}
    for product, k in products.items():
        if k not in turned:
            operand = mapping[op.operands[k]]
            assert isinstance(operand.type, TensorType)
            *batch, rows, columns = range(operand.type.rank)
            axes = (*batch, columns, rows)
            turned[k] = builder.emit1(
                "permute_dims", operand, axes=axes, locations=product.locations
            )
    place = {k: len(op.operands) + j for j, k in enumerate(turned)}
    extra = list(turned.values())
    aim = {product: place[k] for product, k in products.items()}
    regions = [_with_arguments(region, extra, aim) for region in op.regions]
    operands = [*(mapping[v] for v in op.operands), *extra]
    control = tuple(mapping[v] for v in op.control)
    return builder.emit(
        op.name, operands, op.attrs, regions=regions, control=control, locations=op.locations
    )


def _with_arguments(region: Block, extra: list[Value], aim: Mapping[Operation, int]) -> Block:
    """The region with further arguments, which the products in `aim` multiply by."""
    builder = Builder([*(a.type for a in region.args), *(v.type for v in extra)])
    mapping: dict[Value, Value] = dict(zip(region.args, builder.args, strict=False))
    for op in region.ops:
        if op in aim:
            operands = [mapping[op.operands[0]], builder.args[aim[op]]]
            attrs = {**op.attrs, "transpose_b": False}
            results = builder.emit(op.name, operands, attrs, locations=op.locations)
        else:
            results = builder.clone(op, mapping)
        mapping.update(zip(op.results, results, strict=True))
    return builder.block([mapping[v] for v in region.results])
