"""What needs no carry is done for all rows of a scan at once. Rules of `simplify_control`.

* *lift*: a product of a row and an invariant matrix becomes one product before the loop;
* *sink*: a product with an invariant matrix that the loop only stacks becomes one after it;
* *gather*: a carry that only adds up products ``a^T b`` (the gradient of a weight) becomes one
  product of the stacks of a and b after the loop, one that adds up sums of what is stacked anyway
  (the gradient of a bias) one sum.

One product of T*B rows is several times faster than T of B rows; it rounds in another order. Only
for dtypes of 4 bytes and more, whose sums are not made wider than they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.ir.builder import Builder
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.control import length_attr
from weft.ir.rules import ints_attr
from weft.passes.control.loops import Loop
from weft.passes.control.regions import copy_needed
from weft.passes.expression import Expr
from weft.passes.fold import uniform
from weft.passes.rewrite import tensor


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
    """Changes to a scan. rows: sequences to add, with the values of the body that their rows are.
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
