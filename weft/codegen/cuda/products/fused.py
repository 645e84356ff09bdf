"""Fused product as data: a product and its epilogue, carried out by our kernels or a library.

The nest that follows runs over (rows of all matrices, columns), the rows in one loop or several;
the product is one more operand of it, which it reads at its own element. A product by itself has a
nest that only stores it. `simple_epilogue` recognises what libraries know: a bias for each column,
ReLU, both in this order, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from weft.codegen.call import Address, Arg
from weft.codegen.cuda.source.dtypes import nbytes
from weft.codegen.nests.nest import Access, Nest, Store, plain_nest
from weft.codegen.products.calls import (
    is_computed,
    operands_of,
    product_in,
    product_of,
    read_inside,
    result_strides,
    without_product,
)
from weft.codegen.products.gemm import Product
from weft.ir.analysis.index_maps import contiguous_strides, static_shape
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Follow:
    """The epilogue of a product. nest: what follows it. made: the number of the nest's operand that
    is the product; operands has those before it.
    """

    nest: Nest
    made: int
    outputs: tuple[Arg, ...]
    operands: tuple[Arg, ...]

    @property
    def made_dtype(self) -> str:
        """The dtype of the product as the nest reads it."""
        return next(a.dtype for a in self.nest.loads if a.leaf == self.made)


@dataclass(frozen=True, slots=True)
class FusedProduct(Follow):
    """A product with its epilogue. product: sizes and strides of A and B (where C is follows from
    the nest alone); row i of matrix k is row `k * product.m + i` of the nest's rows."""

    product: Product
    a: Address
    b: Address


def stored_alone(op: Operation) -> Follow:
    """What follows a product that is only stored."""
    nest = _store_alone(op.name, op, contiguous_strides(static_shape(op.result)), len(op.operands))
    outputs, operands = (tuple(map(Address, vs)) for vs in ((op.result,), op.operands))
    return Follow(over_rows(nest), len(op.operands), outputs, operands)


def matmul_product(op: Operation) -> FusedProduct:
    """A `matmul` by itself."""
    follow, (a, b) = stored_alone(op), map(Address, op.operands)
    return FusedProduct(
        follow.nest, follow.made, follow.outputs, follow.operands, product_of(op), a, b
    )


def fused_product(op: Operation, in_place: tuple[tuple[int, int], ...] = ()) -> FusedProduct:
    """A `fused` op that holds a matmul, perhaps of integers that it widens. in_place: operand
    number -> number of the result whose buffer it shares. UnsupportedError for an operand that is
    computed.
    """
    matmul, made = product_in(op), len(op.operands)
    check_operands(matmul)
    kind, (a, b) = str(op.attrs["kind"]), operands_of(op)
    strides = result_strides(op)
    if strides is None:
        p, nest = product_of(matmul, read_inside), plain_nest(without_product(op)[0], in_place)
    else:
        p = product_of(matmul, read_inside, strides)
        nest = _store_alone(kind, matmul, strides, made)
        if strides[-1] > 1:  # by columns: C' = B' A'
            p, nest, a, b = _turned(p), _with_last_loops_turned(nest), b, a
    outputs, operands = (tuple(map(Address, vs)) for vs in (op.results, op.operands))
    return FusedProduct(over_rows(nest), made, outputs, operands, p, a, b)


def check_operands(product: Operation) -> None:
    """UnsupportedError for a product in a `fused` op that has an operand which is computed."""
    if any(is_computed(v) for v in product.operands):
        raise UnsupportedError(
            f"op '{product.name}' of what a loop nest computes has no GPU code in one kernel",
            hint="the pipeline 'gpu' does not make such kernels",
        )


def store_nest(name: str, dtype: str, rows: int, columns: int, made: int) -> Nest:
    """The nest that stores rows x columns of `dtype`, operand `made`, as they are."""
    steps = (columns, 1)
    load, store = Access(made, dtype, 0, steps), Store(0, dtype, ("load", 0), None, steps)
    return Nest(name, (rows, columns), (False, False), (load,), (), (store,))


def over_rows(nest: Nest) -> Nest:
    """The nest with neighbouring loops but the last merged where all accesses walk them as one,
    and those of one iteration left out; at least one loop over rows stays."""
    *outer, _ = range(len(nest.extents))
    strides = [a.strides for a in nest.loads] + [w.strides for w in nest.stores]
    walks = [walk for walk in strides if walk]
    loops: list[tuple[int, int]] = []  # the loop whose strides hold, the extent
    for k in reversed(outer):
        size = nest.extents[k]
        if size == 1:
            continue
        if loops and all(w[k] == w[loops[-1][0]] * loops[-1][1] for w in walks):
            loops[-1] = (loops[-1][0], loops[-1][1] * size)
        else:
            loops.append((k, size))
    kept = loops[::-1] or [(0, 1)]

    def steps(walk: tuple[int, ...]) -> tuple[int, ...]:
        if not walk:
            return (0,) * (len(kept) + 1)
        return (*(walk[k] for k, _ in kept), walk[-1])

    return replace(
        nest,
        extents=(*(size for _, size in kept), nest.extents[-1]),
        reduced=(any(nest.reduced),) * (len(kept) + 1),
        loads=tuple(replace(a, strides=steps(a.strides)) for a in nest.loads),
        stores=tuple(replace(w, strides=steps(w.strides)) for w in nest.stores),
    )


def _store_alone(name: str, matmul: Operation, strides: tuple[int, ...], made: int) -> Nest:
    """The nest that stores a product with these strides."""
    held, shape = matmul.result.type, static_shape(matmul.result)
    assert isinstance(held, TensorType)
    load = Access(made, held.dtype.short, 0, contiguous_strides(shape))
    store = Store(0, held.dtype.short, ("load", 0), None, strides)
    return Nest(name, shape, (False,) * len(shape), (load,), (), (store,))


def _turned(p: Product) -> Product:
    steps = p.b_steps[::-1], p.a_steps[::-1], p.c_row
    return Product(p.dtype, p.n, p.m, p.k, p.b_at, p.a_at, p.c_at, *steps)


def _with_last_loops_turned(nest: Nest) -> Nest:
    def swapped(x: tuple[int, ...]) -> tuple[int, ...]:
        return (*x[:-2], x[-1], x[-2])

    return replace(
        nest,
        extents=swapped(nest.extents),
        loads=tuple(replace(a, strides=swapped(a.strides)) for a in nest.loads),
        stores=tuple(replace(w, strides=swapped(w.strides)) for w in nest.stores),
    )


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
