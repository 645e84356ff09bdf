"""Plain loop nests as launches: which kernel a nest becomes, from its loops and extents alone."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.nests.body import Buffers
from weft.codegen.cuda.nests.each import each_launch
from weft.codegen.cuda.nests.folds import fold_launches
from weft.codegen.cuda.nests.transposed import tiled_loads, transposed_launch
from weft.codegen.cuda.scalars.memory import DTYPES
from weft.codegen.cuda.writer import product
from weft.codegen.nests.nest import Nest
from weft.ir.errors import UnsupportedError


def plain_launches(
    nest: Nest, outputs: Sequence[Address], operands: Sequence[Address]
) -> list[Launch]:
    """The launches of a nest on these buffers, in order; none if there is nothing to write.

    Buffers begin at multiples of 16 bytes. Launches with the same `Scratch` see the same memory.
    Raises UnsupportedError for an op, or a dtype, that has no GPU code.
    """
    _check_dtypes(nest)
    buffers = Buffers(outputs, operands)
    written = [n for n, reduced in zip(nest.extents, nest.reduced, strict=True) if not reduced]
    if product(written) == 0 or _picks_of_nothing(nest):
        return []
    if any(nest.reduced):
        return fold_launches(nest, buffers)
    if tiled_loads(nest):
        return [transposed_launch(nest, buffers)]
    return [each_launch(nest, buffers)]


def _check_dtypes(nest: Nest) -> None:
    held = [access.dtype for access in nest.loads] + [store.dtype for store in nest.stores]
    other = next((dtype for dtype in held if dtype not in DTYPES), None)
    if other is not None:
        raise UnsupportedError(
            f"kernel '{nest.name}' on {other} has no GPU code",
            hint="complex numbers run on the CPU only",
        )


def _picks_of_nothing(nest: Nest) -> bool:
    """Whether indices pick from an axis of no elements: the check before tells of all of them."""
    return any(size == 0 for access in nest.loads for _, _, size in access.picks)
