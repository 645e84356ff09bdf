"""What numba-cuda has no name for, as its intrinsics: the machine's own instructions, strictly
typed, on pointers.

The LLVM that libNVVM takes is LLVM 7's for architectures below sm_100: typed pointers, and
`llvm.nvvm` intrinsics as the NVVM IR specification has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.errors import TypingError
from numba.cuda.extending import intrinsic

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_WORDS = (types.int32, types.uint32, types.int64, types.uint64, types.float32, types.float64)
_INTEGERS = _WORDS[:4]
Make = Callable[[Any, Any, Any, Sequence[Any]], Any]


def _typed(name: str, result: Any, given: Sequence[Any], make: Make) -> Any:
    """An intrinsic of arguments of exactly the types `given`, of which any literal may be made."""

    def check(typing_context: Any, *args: Any) -> Any:
        for want, arg in zip(given, args, strict=True):
            if arg != want and not isinstance(arg, types.IntegerLiteral):
                raise TypingError(f"{name} takes {want}, not {arg}")
        return result(*given), make

    return _intrinsic(name, check, len(given))


def _intrinsic(name: str, check: Callable[..., Any], count: int) -> Any:
    """numba-cuda takes the number of arguments from the function's own."""
    names = ", ".join("abcdefghijklmnopqr"[:count])
    scope: dict[str, Any] = {"check": check}
    exec(f"def {name}(typing_context, {names}):\n    return check(typing_context, {names})", scope)
    return intrinsic(scope[name])


# ----------------------------------------------------------------------------------------- memory


def _check_pointer(name: str, pointer: Any, index: Any, dtype: Any) -> None:
    if not isinstance(pointer, types.CPointer) or pointer.dtype != dtype:
        raise TypingError(f"{name} takes a pointer to {dtype}, not {pointer}")
    if not isinstance(index, types.Integer):
        raise TypingError(f"{name} takes an integer index, not {index}")


def _vector_at(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    """The address of 128 bits as words of 32 bits, or of 64: from lanes of 8 or 16 bits LLVM would
    make several accesses."""
    index = context.cast(builder, args[1], sig.args[1], types.int64)
    wide = sig.args[0].dtype.bitwidth == 64
    vector = ir.VectorType(I64, 2) if wide else ir.VectorType(I32, 4)
    return builder.bitcast(builder.gep(args[0], [index]), vector.as_pointer())


def load(dtype: Any) -> Any:
    """p, i -> p[i], p[i + 1] ..., 128 bits."""
    lanes = 128 // dtype.bitwidth
    name = f"load_{dtype}x{lanes}"

    def check(typing_context: Any, pointer: Any, index: Any) -> Any:
        _check_pointer(name, pointer, index, dtype)
        return types.UniTuple(dtype, lanes)(pointer, index), make

    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        vector = builder.load(_vector_at(context, builder, sig, args), align=16)
        element = context.get_value_type(dtype)
        each = max(32 // dtype.bitwidth, 1)
        parts = []
        for lane in range(lanes):
            if lane % each == 0:
                whole = builder.extract_element(vector, I32(lane // each))
                whole = _kept(builder, whole) if each > 1 else whole
            word = whole
            if each > 1:
                word = builder.lshr(word, I32(lane % each * dtype.bitwidth))
                word = builder.trunc(word, element)
            parts.append(builder.bitcast(word, element))
        return context.make_tuple(builder, sig.return_type, parts)

    return _intrinsic(name, check, 2)


def _kept(builder: Any, word: Any) -> Any:
    """A word of 32 bits as it is, which LLVM does not know: it would load a part of it anew."""
    move = ir.InlineAsm(ir.FunctionType(I32, [I32]), "mov.b32 $0, $1;", "=r,r", side_effect=False)
    return builder.call(move, [word])


def store(dtype: Any) -> Any:
    """p, i, a, b, ... -> None; 128 bits at p[i]."""
    lanes = 128 // dtype.bitwidth
    name = f"store_{dtype}x{lanes}"

    def check(typing_context: Any, pointer: Any, index: Any, *values: Any) -> Any:
        _check_pointer(name, pointer, index, dtype)
        if any(v != dtype for v in values):
            raise TypingError(f"{name} stores {dtype}, not {', '.join(map(str, values))}")
        return types.void(pointer, index, *values), make

    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        address = _vector_at(context, builder, sig, args)
        vector_type = address.type.pointee
        word_type = vector_type.element
        each = max(32 // dtype.bitwidth, 1)
        vector = ir.Constant(vector_type, ir.Undefined)
        for number in range(lanes // each):
            word: Any = None
            for lane, value in enumerate(args[2 + number * each : 2 + (number + 1) * each]):
                bits = builder.bitcast(value, ir.IntType(dtype.bitwidth))
                if each > 1:
                    bits = builder.shl(builder.zext(bits, I32), I32(lane * dtype.bitwidth))
                word = bits if word is None else builder.or_(word, bits)
            assert word.type == word_type
            vector = builder.insert_element(vector, word, I32(number))
        builder.store(vector, address, align=16)
        return context.get_dummy_value()

    return _intrinsic(name, check, 2 + lanes)


def atomic(name: str) -> Any:
    """p, i, v -> p[i] as it was; p is a pointer, or an array of shared memory."""

    def check(typing_context: Any, pointer: Any, index: Any, value: Any) -> Any:
        if not isinstance(pointer, types.CPointer | types.Array) or pointer.dtype not in _INTEGERS:
            raise TypingError(f"atomic.{name} takes integers of 32 or 64 bits, not {pointer}")
        if not isinstance(index, types.Integer):
            raise TypingError(f"atomic.{name} takes an integer index, not {index}")
        if value != pointer.dtype and not isinstance(value, types.IntegerLiteral):
            raise TypingError(f"atomic.{name} on {pointer.dtype} takes no {value}")
        return pointer.dtype(pointer, index, pointer.dtype), make

    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        array = sig.args[0]
        base = args[0]
        if isinstance(array, types.Array):
            base = context.make_array(array)(context, builder, base).data
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        unsigned = "" if array.dtype.signed or name == "add" else "u"
        return builder.atomic_rmw(
            unsigned + name, builder.gep(base, [index]), args[2], ordering="monotonic"
        )

    return _intrinsic(f"atomic_{name}", check, 3)


# ------------------------------------------------------------------------------------------ warps


def shuffle(mode: int) -> Any:
    """mask, v, lane -> v of another lane. mode: 0 lane, 1 xor, 2 up, 3 down, as in `SHUFFLES`."""
    # NVVM's own numbers, and the last lane (up: the first)
    nvvm_mode, bound = ((0, 31), (3, 31), (1, 0), (2, 31))[mode]

    def check(typing_context: Any, mask: Any, value: Any, lane: Any) -> Any:
        if value not in _WORDS:
            raise TypingError(f"shuffles take values of 32 or 64 bits, not {value}")
        return value(types.uint32, value, types.int32), make

    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        kind = ir.FunctionType(ir.LiteralStructType((I32, I1)), [I32] * 5)
        move = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.shfl.sync.i32")

        def moved(word: Any) -> Any:
            given = (args[0], I32(nvvm_mode), word, args[2], I32(bound))
            return builder.extract_value(builder.call(move, given), 0)

        bits = builder.bitcast(args[1], ir.IntType(sig.return_type.bitwidth))
        if sig.return_type.bitwidth == 32:
            result = moved(bits)
        else:
            low = moved(builder.trunc(bits, I32))
            high = moved(builder.trunc(builder.lshr(bits, I64(32)), I32))
            high = builder.shl(builder.zext(high, I64), I64(32))
            result = builder.or_(high, builder.zext(low, I64))
        return builder.bitcast(result, context.get_value_type(sig.return_type))

    return _intrinsic(f"shuffle_{mode}", check, 3)


def vote(name: str) -> Any:
    """mask, condition -> of all lanes: u32 for ballot_sync, else boolean."""
    mode = {"all_sync": 0, "any_sync": 1, "ballot_sync": 3}[name]
    result = types.uint32 if mode == 3 else types.boolean

    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        kind = ir.FunctionType(ir.LiteralStructType((I32, I1)), [I32, I32, I1])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.vote.sync")
        both = builder.call(ask, (args[0], I32(mode), args[1]))
        return builder.extract_value(both, 0 if mode == 3 else 1)

    def check(typing_context: Any, mask: Any, condition: Any) -> Any:
        if condition != types.boolean:
            raise TypingError(f"{name} takes a boolean, not {condition}")
        return result(types.uint32, types.boolean), make

    return _intrinsic(name, check, 2)


def _make_syncthreads_or(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    kind = ir.FunctionType(I32, [I32])
    meet = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.barrier0.or")
    met = builder.call(meet, [builder.zext(args[0], I32)])
    return builder.icmp_unsigned("!=", met, I32(0))


SYNCTHREADS_OR = _typed("syncthreads_or", types.boolean, [types.boolean], _make_syncthreads_or)

# ----------------------------------------------------------------------------------- bits, halves


def _bitcast(name: str, result: Any, given: Any) -> Any:
    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        return builder.bitcast(args[0], context.get_value_type(result))

    return _typed(name, result, [given], make)


def _mul_high(name: str, dtype: Any, libdevice: str) -> Any:
    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        word = context.get_value_type(dtype)
        kind = ir.FunctionType(word, [word, word])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, libdevice), args)

    return _typed(name, dtype, [dtype, dtype], make)


def _division(name: str, dtype: Any, method: str) -> Any:
    """Without the test for a divisor of 0 that Numba's operators have."""

    def make(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        return getattr(builder, method)(*args)

    return _typed(name, dtype, [dtype, dtype], make)


DIVISIONS = {
    "div_u32": _division("div_u32", types.uint32, "udiv"),
    "rem_u32": _division("rem_u32", types.uint32, "urem"),
    "div_u64": _division("div_u64", types.uint64, "udiv"),
    "rem_u64": _division("rem_u64", types.uint64, "urem"),
}

BITS = {
    "bits_f32": _bitcast("bits_f32", types.uint32, types.float32),
    "f32_bits": _bitcast("f32_bits", types.float32, types.uint32),
    "bits_f64": _bitcast("bits_f64", types.uint64, types.float64),
    "f64_bits": _bitcast("f64_bits", types.float64, types.uint64),
    "mul_high_u32": _mul_high("mul_high_u32", types.uint32, "__nv_umulhi"),
    "mul_high_u64": _mul_high("mul_high_u64", types.uint64, "__nv_umul64hi"),
}


def _from_f16(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    return builder.fpext(builder.bitcast(args[0], F16), F32)


def _to_f16(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    return builder.bitcast(builder.fptrunc(args[0], F16), I16)


def _from_bf16(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    return builder.bitcast(builder.shl(builder.zext(args[0], I32), I32(16)), F32)


def _to_bf16_in_one(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    text = "cvt.rn.bf16.f32 $0, $1;"
    convert = ir.InlineAsm(ir.FunctionType(I16, [F32]), text, "=h,f", side_effect=False)
    return builder.call(convert, args)


def _to_bf16_by_integers(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    b = builder
    bits = b.bitcast(args[0], I32)
    odd = b.and_(b.lshr(bits, I32(16)), I32(1))
    rounded = b.add(bits, b.add(odd, I32(0x7FFF)))
    is_nan = b.fcmp_unordered("uno", args[0], args[0])
    rounded = b.select(is_nan, I32(0x7FFF0000), rounded)  # what cvt.rn makes of a NaN
    return b.trunc(b.lshr(rounded, I32(16)), I16)


HALVES = {
    "f16_to_f32": _typed("f16_to_f32", types.float32, [types.uint16], _from_f16),
    "f32_to_f16": _typed("f32_to_f16", types.uint16, [types.float32], _to_f16),
    "bf16_to_f32": _typed("bf16_to_f32", types.float32, [types.uint16], _from_bf16),
}


def f32_to_bf16(in_one: bool) -> Any:
    """x -> its bits as bfloat16. in_one: with the instruction that sm_80 brought."""
    make = _to_bf16_in_one if in_one else _to_bf16_by_integers
    return _typed("f32_to_bf16", types.uint16, [types.float32], make)
