"""The names of kernel source (`language.py`) as LLVM has them.

What a GPU alone has are the NVPTX target's intrinsics; maths is LLVM's own where it is one
instruction, else a function of NVIDIA's libdevice (`libdevice.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.codegen.cuda.language import ATOMICS, LANES, MMAS, SHUFFLES, THREE, TWO
from weft.codegen.cuda.llvm import tensor_cores
from weft.codegen.cuda.llvm.scalars import TYPES, bits, is_signed
from weft.codegen.cuda.reading.kinds import Pointer
from weft.codegen.cuda.reading.program import cuda_name

if TYPE_CHECKING:
    from weft.codegen.cuda.llvm.expressions import Expressions

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
    "f16_to_f32": tensor_cores.from_f16,
    "f32_to_f16": _to_f16,
    "bf16_to_f32": tensor_cores.from_bf16,
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
    return tensor_cores.multiply_add(e, MMAS[name], values)


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
