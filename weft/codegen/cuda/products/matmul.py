"""Launches of products: which kernel, and into how many parts k is cut, by the sizes alone.

Where C has few tiles and k is long, k is cut into parts, whose sums are added up in order by a
second kernel; what follows the product is there then.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.codegen.call import Address
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.products.choice import bits_of, choose
from weft.codegen.cuda.products.epilogue import index_of_epilogue
from weft.codegen.cuda.products.fused import FusedProduct, fused_product, matmul_product
from weft.codegen.cuda.products.parts import AddParts, Parts, cut, into_scratch, results
from weft.codegen.cuda.products.thin import (
    SHORT,
    THIN_UNIT,
    is_thin,
    short_launch,
    thin_blocks,
    thin_launch,
    thin_of,
)
from weft.codegen.cuda.products.tile_kernel import folds, tile_launches
from weft.codegen.cuda.scalars.memory import DTYPES
from weft.codegen.cuda.writer import IndexDtype, index_dtype, product
from weft.codegen.nests.nest import Nest
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.types import TensorType

#: Of products with few rows or columns: so many blocks are wanted in all, parts of k included, for
#: at least so many products of an element each.
WANTED_THIN, LEAST_THIN = 256, 512


def matmul_launches(op: Operation) -> list[Launch]:
    """The launches of a `matmul`. UnsupportedError for complex numbers and bool."""
    held = op.result.type
    assert isinstance(held, TensorType)
    if held.dtype.short not in DTYPES or not held.dtype.is_numeric:
        raise UnsupportedError(f"op 'matmul' on {held.dtype.name} has no GPU kernel")
    return product_launches(matmul_product(op))


def fused_matmul_launches(
    op: Operation, in_place: tuple[tuple[int, int], ...]
) -> tuple[list[Launch], Nest]:
    """The launches of a `fused` op that holds a matmul, and the nest that follows it."""
    fused = fused_product(op, in_place)
    return product_launches(fused), fused.nest


def product_launches(fused: FusedProduct) -> list[Launch]:
    """The launches of products and what follows them; none if there are no elements."""
    p = fused.product
    if not results(p):
        return []
    sizes, bits = (p.m, p.n, p.k), bits_of(p.dtype)
    if folds(fused):
        tile, _ = choose(sizes, len(p.c_at), bits=bits, whole=True)
        return tile_launches(fused, tile, Parts(1, p.k), _index(fused, 1))
    if is_thin(p):
        if p.k <= SHORT:
            return [short_launch(fused, _index(fused, 1))]
        thin = thin_of(p)
        wanted = min(WANTED_THIN // max(thin_blocks(p, thin), 1), p.k // LEAST_THIN)
        parts = cut(p.k, max(1, wanted), THIN_UNIT)
        return _launches(fused, parts, lambda f, index: [thin_launch(f, thin, parts, index)])
    tile, count = choose(sizes, len(p.c_at), bits=bits)
    parts = cut(p.k, count, tile.depth)
    return _launches(fused, parts, lambda f, index: tile_launches(f, tile, parts, index))


def _launches(
    fused: FusedProduct, parts: Parts, launch: Callable[[FusedProduct, IndexDtype], list[Launch]]
) -> list[Launch]:
    index = _index(fused, parts.count)
    if parts.count == 1:
        return launch(fused, index)
    split, scratch = into_scratch(fused, parts)
    p = fused.product
    size = p.m * len(p.c_at), p.n
    added = AddParts(fused, p.dtype, size, parts.count, scratch, index)
    return [*launch(split, index), added.launch()]


def _index(fused: FusedProduct, parts: int) -> IndexDtype:
    counts = [_elements(x) for x in (fused.a, fused.b)]
    index = index_dtype(*counts, results(fused.product) * parts)
    return "i64" if index_of_epilogue(fused) == "i64" else index


def _elements(address: Address) -> int:
    held = address.value.type
    assert isinstance(held, TensorType)
    return product(held.static_shape)
