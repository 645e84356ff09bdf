"""LLVM instructions for the kernel language: scalars, the vocabulary's names, tensor cores.

Scalars: types, constants, casts, arithmetic, comparisons; functions return one instruction, but for
its result's name. `contract` is the only freedom that floats have: a product and a sum may become
one fma. What a GPU alone has are the NVPTX target's intrinsics; maths is LLVM's own where it is one
instruction, else a function of NVIDIA's libdevice (`compile.py`).

`mma_sync_...`:

| architecture | f16                       | bf16                     |
|--------------|---------------------------|--------------------------|
| sm_80 on     | m16n8k16                  | m16n8k16                 |
| sm_75        | m16n8k8, twice            | shuffles and multiply-adds |

(PTX ISA, "mma": `.m16n8k8` of f16 from sm_75 on, with PTX 6.5; `.m16n8k16` and `.bf16` from sm_80
on, with PTX 7.0.) The intrinsics: LLVM's `IntrinsicsNVVM.td`."""

from __future__ import annotations

import ast
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.codegen.cuda.source.kernel import (
    ATOMICS,
    FLOATS,
    LANES,
    MMAS,
    NUMPY,
    SHUFFLES,
    THREE,
    TWO,
    Pointer,
    constant,
)
from weft.codegen.cuda.source.typecheck import cuda_name

if TYPE_CHECKING:
    from weft.codegen.cuda.cubins.llvm_functions import Expressions


#: The only flag of floating-point instructions.
CONTRACT = "contract"

TYPES = {"bool": "i1", "f32": "float", "f64": "double"}
TYPES |= {f"{sign}{bits}": f"i{bits}" for sign in "iu" for bits in (8, 16, 32, 64)}

_BITWISE = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor"}
_SUMS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_ORDER = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}


def bits(dtype: str) -> int:
    """Bits of a value of `dtype`."""
    return 1 if dtype == "bool" else NUMPY[dtype].itemsize * 8


def is_signed(dtype: str) -> bool:
    """Whether `dtype` is a signed integer."""
    return dtype[0] == "i"


def literal(dtype: str, value: float | int) -> str:
    """A constant of `dtype`; integers wrap."""
    number = constant(dtype, value)
    if dtype in FLOATS:  # LLVM writes both as the bits of an f64
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(number)))[0]:016X}"
    return str(int(number))


def arithmetic(operator: ast.operator, dtype: str, left: str, right: str) -> str:
    """`left operator right`, for operators that are one instruction."""
    of = f"{TYPES[dtype]} {left}, {right}"
    kind = type(operator)
    if kind in _BITWISE:
        return f"{_BITWISE[kind]} {of}"
    if kind in _SUMS:
        return f"f{_SUMS[kind]} {CONTRACT} {of}" if dtype in FLOATS else f"{_SUMS[kind]} {of}"
    if kind is ast.Div:
        return f"fdiv {CONTRACT} {of}"
    if kind is ast.LShift:
        return f"shl {of}"
    if kind is ast.RShift:
        return f"{'ashr' if is_signed(dtype) else 'lshr'} {of}"
    name = {ast.FloorDiv: "div", ast.Mod: "rem"}[kind]  # of signed ones: towards 0
    return f"{'s' if is_signed(dtype) else 'u'}{name} {of}"


def comparison(operator: ast.cmpop, dtype: str, left: str, right: str) -> str:
    """`left operator right`; with a NaN only `!=` holds."""
    name = _ORDER[type(operator)]
    of = f"{TYPES[dtype]} {left}, {right}"
    if dtype in FLOATS:
        return f"fcmp {'u' if name == 'ne' else 'o'}{name} {of}"
    sign = "" if name in ("eq", "ne") else "s" if is_signed(dtype) else "u"
    return f"icmp {sign}{name} {of}"


def cast(value: str, dtype: str, to: str) -> str | None:
    """`value` of `dtype` as `to`; None where they are the same bits of one type."""
    if to == "bool":
        if dtype == "bool":
            return None
        return comparison(ast.NotEq(), dtype, value, literal(dtype, 0))
    if TYPES[dtype] == TYPES[to]:
        return None
    if dtype in FLOATS and to in FLOATS:
        name = "fpext" if to == "f64" else "fptrunc"
    elif dtype in FLOATS:
        name = "fptosi" if is_signed(to) else "fptoui"
    elif to in FLOATS:
        name = "sitofp" if is_signed(dtype) else "uitofp"
    elif bits(to) < bits(dtype):
        name = "trunc"
    else:
        name = "sext" if is_signed(dtype) else "zext"
    return f"{name} {TYPES[dtype]} {value} to {TYPES[to]}"


#: The first architecture with an instruction for 16 x 8 x 8, and for 16 x 8 x 16.
SHORT = {"f16": (7, 5), "bf16": (8, 0)}
WHOLE = (8, 0)
#: The module has an instruction that needs a newer PTX than sm_75 itself: 6.5.
NEEDS_PTX_65 = "@llvm.nvvm.mma.m16n8k8."

_MMA_RESULT = "{ float, float, float, float }"
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
    made = e.intrinsic(
        name, _MMA_RESULT, *given, *(f"float {x}" for x in c), attribute="convergent"
    )
    return [e.value(f"extractvalue {_MMA_RESULT} {made}, {i}") for i in range(4)]


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


#: Functions of floats that LLVM knows as one instruction of the machine, by its own names.
ONE_INSTRUCTION = ("sqrt", "floor", "ceil", "trunc", "rint", "fabs", "copysign", "fma")
_WARP = dict(zip(SHUFFLES, ("idx", "bfly", "up", "down"), strict=True))
_VOTES = {"all_sync": "all", "any_sync": "any", "ballot_sync": "ballot"}
#: The first architecture with an instruction that rounds to bfloat16.
BFLOAT16 = (8, 0)


def function(e: Expressions, name: str, values: list[str]) -> str:
    """A call of one of `kinds.FUNCTIONS`."""
    if name in _CONVERSIONS:
        return _CONVERSIONS[name](e, values[0])
    stem, _, dtype = name.rpartition("_")
    if stem == "dp4a":
        kind = "s.s" if is_signed(dtype) else "u.u"
        return e.intrinsic(f"llvm.nvvm.idp4a.{kind}", "i32", *(f"i32 {v}" for v in values))
    if stem == "mul_high":
        return _mul_high(e, TYPES[dtype], *values)
    of = TYPES[dtype]
    given = [f"{of} {v}" for v in values]
    assert len(given) == (3 if stem in THREE else 2 if stem in TWO else 1)
    if stem in ONE_INSTRUCTION:
        return e.intrinsic(f"llvm.{stem}.{dtype}", of, *given)
    return e.intrinsic(f"__nv_{stem}{'f' if dtype == 'f32' else ''}", of, *given)


def _mul_high(e: Expressions, of: str, a: str, b: str) -> str:
    size = int(of[1:])
    twice = f"i{2 * size}"
    wide_a, wide_b = (e.value(f"zext {of} {x} to {twice}") for x in (a, b))
    product = e.value(f"mul {twice} {wide_a}, {wide_b}")
    upper = e.value(f"lshr {twice} {product}, {size}")
    return e.value(f"trunc {twice} {upper} to {of}")


# ---------------------------------------------------------------------------------- conversions


def _bits_of(of: str, to: str) -> Callable[[Expressions, str], str]:
    return lambda e, x: e.value(f"bitcast {of} {x} to {to}")


def _to_f16(e: Expressions, x: str) -> str:
    # with fptrunc LLVM computes in f16, where a product and a sum may become one fma past the cast
    return e.intrinsic("llvm.convert.to.fp16.f32", "i16", f"float {x}")


def _to_bf16(e: Expressions, x: str) -> str:
    if e.module.cc >= BFLOAT16:
        half = e.intrinsic("llvm.nvvm.f2bf16.rn", "bfloat", f"float {x}")
        return e.value(f"bitcast bfloat {half} to i16")
    word = e.value(f"bitcast float {x} to i32")
    last = e.value(f"lshr i32 {word}, 16")
    odd = e.value(f"and i32 {last}, 1")
    up = e.value(f"add i32 {odd}, {0x7FFF}")
    rounded = e.value(f"add i32 {word}, {up}")
    is_nan = e.value(f"fcmp uno float {x}, {x}")
    # what the instruction makes of a NaN
    result = e.value(f"select i1 {is_nan}, i32 {0x7FFF0000}, i32 {rounded}")
    upper = e.value(f"lshr i32 {result}, 16")
    return e.value(f"trunc i32 {upper} to i16")


_CONVERSIONS: dict[str, Callable[[Expressions, str], str]] = {
    "f16_to_f32": from_f16,
    "f32_to_f16": _to_f16,
    "bf16_to_f32": from_bf16,
    "f32_to_bf16": _to_bf16,
    "bits_f32": _bits_of("float", "i32"),
    "f32_bits": _bits_of("i32", "float"),
    "bits_f64": _bits_of("double", "i64"),
    "f64_bits": _bits_of("i64", "double"),
}

# --------------------------------------------------------------------------------------- memory


def several(e: Expressions, node: ast.Call) -> list[str]:
    """The values of a name of the vocabulary that gives several."""
    name = cuda_name(node.func)
    if name is None:
        return _wide_load(e, node)
    values = [e.of(a) for a in node.args]
    return multiply_add(e, MMAS[name], values)


def _wide_load(e: Expressions, node: ast.Call) -> list[str]:
    """`load_...(p, i)`: 128 bits, as elements."""
    dtype, vector = _vector(e, node)
    whole = e.value(f"load {vector}, {e.address(node.args[0], node.args[1])}, align 16")
    lanes = range(LANES[dtype])
    return [e.value(f"extractelement {vector} {whole}, i32 {lane}") for lane in lanes]


def wide_store(e: Expressions, node: ast.Call) -> None:
    """`store_...(p, i, ...)`: elements, as 128 bits."""
    dtype, vector = _vector(e, node)
    whole = "poison"
    values = [e.of(a, dtype) for a in node.args[2:]]
    for lane, value in enumerate(values):
        of = f"{vector} {whole}, {TYPES[dtype]} {value}, i32 {lane}"
        whole = e.value(f"insertelement {of}")
    e.line(f"store {vector} {whole}, {e.address(node.args[0], node.args[1])}, align 16")


def _vector(e: Expressions, node: ast.Call) -> tuple[str, str]:
    pointer = e.f.kinds[node.args[0]]
    assert isinstance(pointer, Pointer)
    return pointer.dtype, f"<{LANES[pointer.dtype]} x {TYPES[pointer.dtype]}>"


def _atomic(e: Expressions, node: ast.Call, name: str) -> str:
    pointer = e.f.kinds[node.args[0]]
    assert isinstance(pointer, Pointer)
    dtype = pointer.dtype
    address = e.address(node.args[0], node.args[1])
    value = e.of(node.args[2], dtype)
    unsigned = "" if is_signed(dtype) or name == "add" else "u"
    of = f"{unsigned}{name} {address}, {TYPES[dtype]} {value}"
    return e.value(f'atomicrmw {of} syncscope("device") monotonic')


# ---------------------------------------------------------------------------------------- warps


def special(e: Expressions, node: ast.Call, name: str) -> str:
    """A call of `cuda.NAME`."""
    space, _, what = name.partition(".")
    if space == "atomic" and what in ATOMICS:
        return _atomic(e, node, what)
    if what == "array":
        kind = e.f.kinds[node]
        assert isinstance(kind, Pointer)
        if space == "shared":
            return e.module.array(TYPES[kind.dtype], kind.size)
        return e.variable(f"[{kind.size} x {TYPES[kind.dtype]}]")
    if name == "syncthreads":
        return e.intrinsic("llvm.nvvm.barrier.cta.sync.aligned.all", "void", "i32 0")
    if name == "syncthreads_or":
        given = ("i32 0", f"i1 {e.of(node.args[0])}")
        return e.intrinsic("llvm.nvvm.barrier.cta.red.or.aligned.all", "i1", *given)
    mask = f"i32 {e.as_dtype(node.args[0], 'u32')}"
    if name == "syncwarp":
        return e.intrinsic("llvm.nvvm.bar.warp.sync", "void", mask)
    if name in _VOTES:
        result = "i32" if name == "ballot_sync" else "i1"
        vote = f"llvm.nvvm.vote.{_VOTES[name]}.sync"
        return e.intrinsic(vote, result, mask, f"i1 {e.of(node.args[1])}")
    return _shuffle(e, node, _WARP[name], mask)


def _shuffle(e: Expressions, node: ast.Call, way: str, mask: str) -> str:
    dtype = str(e.f.kinds[node])
    of, size = TYPES[dtype], bits(dtype)
    value = e.of(node.args[1])
    lane = f"i32 {e.as_dtype(node.args[2], 'i32')}"
    bound = f"i32 {0 if way == 'up' else 31}"  # the last lane of the warp; up: the first

    def moved(word: str) -> str:
        given = (mask, f"i32 {word}", lane, bound)
        return e.intrinsic(f"llvm.nvvm.shfl.sync.{way}.i32", "i32", *given)

    if size == 32:
        if of == "i32":
            return moved(value)
        word = moved(e.value(f"bitcast {of} {value} to i32"))
        return e.value(f"bitcast i32 {word} to {of}")
    words = e.value(f"bitcast {of} {value} to <2 x i32>")
    result = "poison"
    for half in range(2):
        word = moved(e.value(f"extractelement <2 x i32> {words}, i32 {half}"))
        result = e.value(f"insertelement <2 x i32> {result}, i32 {word}, i32 {half}")
    return e.value(f"bitcast <2 x i32> {result} to {of}")
