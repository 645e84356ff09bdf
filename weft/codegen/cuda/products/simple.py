"""Epilogues that libraries know: a bias for each column, ReLU, both in this order, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from weft.codegen.call import Address
from weft.codegen.cuda.products.fused import FusedProduct
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.nests.nest import Access, Nest
from weft.ir.dataclass import dataclass
from weft.ir.spec import ConstArray

Activation = Literal["none", "relu"]


@dataclass(frozen=True, slots=True)
class SimpleEpilogue:
    """out[row, column] = activation(product[row, column] + bias[column]), where `out` has the
    product's dtype and lies as `Product.c_at` and `c_row` say. bias: None if there is none. "relu"
    is `maximum(x, 0)`, of NaN NaN."""

    bias: Address | None
    activation: Activation
    out: Address


def simple_epilogue(fused: FusedProduct) -> SimpleEpilogue | None:
    """What follows the product, if it is no more than that."""
    nest = fused.nest
    if len(nest.stores) != 1 or nest.in_place or any(nest.reduced):
        return None
    (store,) = nest.stores
    if store.dtype != fused.product.dtype:
        return None
    out = fused.outputs[store.output]
    if not isinstance(out, Address):
        return None
    source, activation = store.source, _relu(nest, store.source)
    if activation is not None:
        source = activation
    made = [("load", k) for k, access in enumerate(nest.loads) if access.leaf == fused.made]
    kind: Activation = "none" if activation is None else "relu"
    if source in made:
        return SimpleEpilogue(None, kind, out)
    bias = _bias(fused, source, made)
    return None if bias is None else SimpleEpilogue(bias, kind, out)


def _relu(nest: Nest, source: tuple[str, int]) -> tuple[str, int] | None:
    """What `source` is the maximum of and 0, or `where(x <= 0, 0, x)`, as `wf.nn.relu` has it."""
    op, args = _statement(nest, source)
    if op == "where":
        test, zero, value = args
        least = _statement(nest, test) == ("less_equal", (value, zero))
        return value if least and _is_zero(nest, zero) else None
    if op != "maximum":
        return None
    zeros = [k for k, arg in enumerate(args) if _is_zero(nest, arg)]
    return args[1 - zeros[0]] if len(zeros) == 1 else None


def _bias(
    fused: FusedProduct, source: tuple[str, int], made: list[tuple[str, int]]
) -> Address | None:
    """The array, one element for each column, that `source` adds to the product."""
    op, args = _statement(fused.nest, source)
    if op != "add" or not set(args) & set(made):
        return None
    other = next((arg for arg in args if arg not in made), None)
    if other is None or other[0] != "load":
        return None
    access = fused.nest.loads[other[1]]
    return _of_columns(fused, access)


def _of_columns(fused: FusedProduct, access: Access) -> Address | None:
    *rows, column = access.strides
    if not isinstance(access.leaf, int) or access.picks or access.dtype != fused.product.dtype:
        return None
    if any(rows) or column != 1:
        return None
    held = fused.operands[access.leaf]
    if not isinstance(held, Address):
        return None
    return replace(held, offset=held.offset + access.offset * nbytes(access.dtype))


def _statement(nest: Nest, source: tuple[str, int]) -> tuple[str, tuple[tuple[str, int], ...]]:
    kind, number = source
    if kind != "value":
        return "", ()
    statement = nest.statements[number]
    return statement.op, statement.args


def _is_zero(nest: Nest, source: tuple[str, int]) -> bool:
    kind, number = source
    leaf = nest.loads[number].leaf if kind == "load" else None
    return isinstance(leaf, ConstArray) and leaf.array.item() == 0
