"""A product as libraries take it: column-major matrices, as BLAS has had them since 1979.

weft's matrices are row-major: C = A B there is C' = B' A' here, so the library's A is weft's B.
That is also why a bias of one element per column of C is one per row of the library's D, the only
one that its epilogues know.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

from weft.codegen.products.gemm import Product
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.sizes import same_size

Epilogue = Literal["none", "bias", "relu", "relu_bias"]

#: Every buffer of a plan begins at a multiple of so many bytes.
ALIGNMENT = 16
_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
#: Those that libraries take.
DTYPES = frozenset(_BYTES)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of `rows` x `columns` in memory, columns after each other, `ld` elements apart; one
    for each product, `stride` elements apart (0: the same for all). offset: of the first one, in
    bytes. transposed: op(X) is its transpose."""

    rows: int
    columns: int
    ld: int
    stride: int = 0
    transposed: bool = False
    offset: int = 0

    @property
    def alignment(self) -> int:
        """Bytes of which its address is a multiple."""
        return math.gcd(ALIGNMENT, self.offset)

    def __str__(self) -> str:
        text = f"{self.rows}x{self.columns}" + "'" * self.transposed + f" ld {self.ld}"
        return text + (f" stride {self.stride}" if self.stride else "")


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products D = op(A) op(B), D of m x n, sums over k, then the epilogue: plus a bias of
    m elements for each column, then max(x, 0).

    dtype: of A, B, D and the bias; f16 and bf16 are summed in f32. mode: how f32 is multiplied.
    """

    dtype: str
    mode: MathMode
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    d: Operand
    batch: int = 1
    epilogue: Epilogue = "none"

    @property
    def offsets(self) -> tuple[int, ...]:
        """Of D, A, B and the bias, in bytes."""
        return (self.d.offset, self.a.offset, self.b.offset, 0)

    @property
    def key(self) -> str:
        """Equal keys, equal calls but for the addresses."""
        offsets = [x.alignment for x in (self.a, self.b, self.d)]
        return f"{self.describe()}; {self.a} | {self.b} | {self.d}; aligned {offsets}"

    def describe(self) -> str:
        """Sizes as users see them: rows of C, its columns, k."""
        text = f"{self.n} x {self.m} x {self.k}"
        text += f", {self.batch} of them" if self.batch > 1 else ""
        how = f" ({self.mode})" if self.dtype == "f32" else ""
        return f"{text}, {self.dtype}{how}" + f", {self.epilogue}" * (self.epilogue != "none")


def gemm_of(p: Product, mode: MathMode = "ieee", epilogue: Epilogue = "none") -> Gemm | None:
    """The products `p` as a library takes them. None for what it does not: dtypes other than
    floats, nothing to add up, matrices whose rows and columns both have gaps or overlap, batches
    that do not lie at equal distances."""
    if p.dtype not in _BYTES or not (p.m and p.n and p.k and p.c_at):
        return None
    size = _BYTES[p.dtype]
    a = _operand(p.n, p.k, p.b_steps[1], p.b_steps[0], p.b_at, size)
    b = _operand(p.k, p.m, p.a_steps[1], p.a_steps[0], p.a_at, size)
    d = _operand(p.n, p.m, 1, p.c_row, p.c_at, size)
    if a is None or b is None or d is None or d.transposed:
        return None
    batch = len(p.c_at)
    if batch > 1 and d.stride < (p.m - 1) * d.ld + p.n:
        return None
    # tf32 is a way to multiply f32 alone
    mode = mode if p.dtype == "f32" else "ieee"
    return Gemm(p.dtype, mode, p.n, p.m, p.k, a, b, d, batch, epilogue)


def _operand(
    rows: int, columns: int, row_step: int, column_step: int, at: tuple[int, ...], size: int
) -> Operand | None:
    """op(X) is rows x columns with these steps in memory; `at`: where each of the batch begins."""
    stride = _stride(at)
    if stride is None:
        return None
    for transposed in (False, True):
        near, far, inner, outer = (
            (column_step, row_step, columns, rows)
            if transposed
            else (row_step, column_step, rows, columns)
        )
        ld = far if outer > 1 else inner  # one column: there is no next one
        if (near == 1 or inner == 1) and ld >= inner:
            return Operand(inner, outer, ld, stride, transposed, at[0] * size)
    return None


def _stride(at: tuple[int, ...]) -> int | None:
    """The one distance of neighbours, None if there is none."""
    if len(at) == 1:
        return 0
    first, *others = (after - before for before, after in pairwise(at))
    return first if first >= 0 and all(same_size(first, step) for step in others) else None
