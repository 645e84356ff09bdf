"""`mma_sync_...` of kernel source as LLVM has it.

| architecture | f16                       | bf16                     |
|--------------|---------------------------|--------------------------|
| sm_80 on     | m16n8k16                  | m16n8k16                 |
| sm_75        | m16n8k8, twice            | shuffles and multiply-adds |

(PTX ISA, "mma": `.m16n8k8` of f16 from sm_75 on, with PTX 6.5; `.m16n8k16` and `.bf16` from sm_80
on, with PTX 7.0.) The intrinsics: LLVM's `IntrinsicsNVVM.td`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.codegen.cuda.language import MMAS

if TYPE_CHECKING:
    from weft.codegen.cuda.llvm.expressions import Expressions

#: The first architecture with an instruction for 16 x 8 x 8, and for 16 x 8 x 16.
SHORT = {"f16": (7, 5), "bf16": (8, 0)}
WHOLE = (8, 0)
#: The module has an instruction that needs a newer PTX than sm_75 itself: 6.5.
NEEDS_PTX_65 = "@llvm.nvvm.mma.m16n8k8."

_SUMS = "{ float, float, float, float }"
_ALL = "i32 -1"


def takes_shuffles(source: str, cc: tuple[int, int]) -> bool:
    """Whether kernel source has products for which the architecture has no instruction."""
    return any(cc < SHORT[dtype] and name in source for name, dtype in MMAS.items())


def multiply_add(e: Expressions, dtype: str, values: Sequence[str]) -> list[str]:
    """A B + C of a warp; values: a0 to a3, b0, b1 (i32), c0 to c3 (float)."""
    a, b, c = [*values[:4]], [*values[4:6]], [*values[6:]]
    if e.module.cc < SHORT[dtype]:
        return _by_shuffles(e, dtype, a, b, c)
    if e.module.cc >= WHOLE:
        return _instruction(e, dtype, "m16n8k16", [*a, *b], c)
    for half in (0, 1):
        c = _instruction(e, dtype, "m16n8k8", [*a[2 * half : 2 * half + 2], b[half]], c)
    return c


def _instruction(
    e: Expressions, dtype: str, shape: str, words: list[str], c: list[str]
) -> list[str]:
    given = [f"i32 {word}" for word in words]
    if dtype == "f16":
        given = [f"<2 x half> {e.value(f'bitcast {word} to <2 x half>')}" for word in given]
    name = f"llvm.nvvm.mma.{shape}.row.col.{'f32.f32' if dtype == 'f16' else 'bf16'}"
    # LLVM does not say so of these, and may not move them to where lanes are missing
    made = e.intrinsic(name, _SUMS, *given, *(f"float {x}" for x in c), attribute="convergent")
    return [e.value(f"extractvalue {_SUMS} {made}, {i}") for i in range(4)]


def _by_shuffles(e: Expressions, dtype: str, a: list[str], b: list[str], c: list[str]) -> list[str]:
    """Each lane fetches its two rows of A and two columns of B; one fma for each product, in the
    order of k."""
    lane = e.intrinsic("llvm.nvvm.read.ptx.sreg.laneid", "i32")
    row = e.value(f"and i32 {lane}, 28")  # the first lane of the group
    t = e.value(f"and i32 {lane}, 3")
    column = e.value(f"shl i32 {t}, 3")  # the lane of column 2 t
    widen = {"f16": from_f16, "bf16": from_bf16}[dtype]
    for half in (0, 1):
        for other in range(4):
            of_rows = e.value(f"or i32 {row}, {other}")
            of_columns = [e.value(f"or i32 {column}, {4 * n + other}") for n in (0, 1)]
            rows = [_fetched(e, word, of_rows) for word in a[2 * half : 2 * half + 2]]
            columns = [_fetched(e, b[half], lane) for lane in of_columns]
            for k in (0, 1):
                x, y = ([_half(e, w, k, widen) for w in words] for words in (rows, columns))
                c = [
                    e.intrinsic(
                        "llvm.fma.f32", "float", *(f"float {v}" for v in (x[i // 2], y[i % 2], one))
                    )
                    for i, one in enumerate(c)
                ]
    return c


def _fetched(e: Expressions, word: str, lane: str) -> str:
    given = (_ALL, f"i32 {word}", f"i32 {lane}", "i32 31")
    return e.intrinsic("llvm.nvvm.shfl.sync.idx.i32", "i32", *given)


def _half(e: Expressions, word: str, k: int, widen: Callable[[Expressions, str], str]) -> str:
    word = e.value(f"lshr i32 {word}, 16") if k else word
    return widen(e, e.value(f"trunc i32 {word} to i16"))


def from_f16(e: Expressions, u: str) -> str:
    """The 16 bits of an f16 as f32."""
    half = e.value(f"bitcast i16 {u} to half")
    return e.value(f"fpext half {half} to float")


def from_bf16(e: Expressions, u: str) -> str:
    """The 16 bits of a bf16 as f32."""
    word = e.value(f"zext i16 {u} to i32")
    upper = e.value(f"shl i32 {word}, 16")
    return e.value(f"bitcast i32 {upper} to float")
