"""The names of the kernel language as numba-cuda compiles them: types, which are casts, functions
of bits and floats, accesses of 128 bits, shuffles, votes, atomics, sums of products of bytes and
products of tensor cores.

Their meaning is that of the language (`source/kernel.py`). What numba-cuda has under the same name
(`cuda.threadIdx`, `cuda.syncthreads`, `cuda.shared.array`) is used as it is; shuffles and votes are
here because numba-cuda's know no unsigned integers. Importing this imports numba-cuda."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import extending, libdevice, types
from numba.cuda.np import arrayobj

from weft.codegen.cuda.source.kernel import (
    ATOMICS,
    CASTS,
    DOTS,
    LANES,
    LOADS,
    MATHS,
    MMAS,
    SHUFFLES,
    STORES,
    VOTES,
)

_cuda: Any = cuda
_types: Any = types
_intrinsic: Any = extending.intrinsic
_libdevice: Any = libdevice
_arrays: Any = arrayobj

_I1, _I16, _I32, _I64 = (ir.IntType(n) for n in (1, 16, 32, 64))
_FLOAT = ir.FloatType()
#: (context, builder, LLVM values of the arguments, their Numba types) -> the result.
_Emit = Callable[[Any, ir.IRBuilder, Sequence[Any], Sequence[Any]], Any]

_FULL = {"i": "int", "u": "uint", "f": "float"}


def type_of(dtype: str) -> Any:
    """The Numba type of values of a dtype."""
    return _types.boolean if dtype == "bool" else getattr(_types, _FULL[dtype[0]] + dtype[1:])


def pointer_to(dtype: str) -> Any:
    """The Numba type of a pointer to elements."""
    return _types.CPointer(type_of(dtype))


def _function(emit: _Emit, kinds: Sequence[Any], result: Any) -> Any:
    """A function of values of these types."""
    if len(kinds) == 1:

        @_intrinsic  # type: ignore[untyped-decorator]
        def one(typing_context: Any, a: Any) -> Any:
            return result(*kinds), generated

        made = one
    elif len(kinds) == 2:

        @_intrinsic  # type: ignore[untyped-decorator]
        def two(typing_context: Any, a: Any, b: Any) -> Any:
            return result(*kinds), generated

        made = two
    elif len(kinds) == 3:

        @_intrinsic  # type: ignore[untyped-decorator]
        def three(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
            return result(*kinds), generated

        made = three
    else:
        assert len(kinds) == 10

        @_intrinsic  # type: ignore[untyped-decorator]
        def ten(
            typing_context: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any,
            i: Any, j: Any,
        ) -> Any:  # fmt: skip
            return result(*kinds), generated

        made = ten

    def generated(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return emit(context, builder, args, signature.args)

    return made


def _call(builder: ir.IRBuilder, name: str, result: Any, args: Sequence[Any]) -> Any:
    """A call of a function that NVVM knows."""
    kind = ir.FunctionType(result, [a.type for a in args])
    held = builder.module.globals.get(name)
    return builder.call(held or ir.Function(builder.module, kind, name), args)


def device(function: Callable[..., Any]) -> Any:
    """Decorate a function that kernels call. It is inlined as Python: to compile it alone
    numba-cuda would ask a driver for the GPU."""
    return _cuda.jit(device=True, inline="always")(function)


# ---------------------------------------------------------------------------------- bits and halves
def _reinterpret(source: str, target: str) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(type_of(target)))

    return _function(emit, [type_of(source)], type_of(target))


def _from_f16(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    return builder.fpext(builder.bitcast(args[0], ir.HalfType()), _FLOAT)


def _to_f16(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    return _call(builder, "llvm.nvvm.f2h.rn", _I16, args)


def _from_bf16(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    word = builder.shl(builder.zext(args[0], _I32), ir.Constant(_I32, 16))
    return builder.bitcast(word, _FLOAT)


def _to_bf16(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    word = builder.bitcast(args[0], _I32)
    odd = builder.and_(builder.lshr(word, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
    rounded = builder.add(word, builder.add(odd, ir.Constant(_I32, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", args[0], args[0])
    kept = builder.select(is_nan, ir.Constant(_I32, 0x7FFF0000), rounded)
    return builder.trunc(builder.lshr(kept, ir.Constant(_I32, 16)), _I16)


def _mul_high(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    size = args[0].type.width
    twice = ir.IntType(2 * size)
    product = builder.mul(*(builder.zext(a, twice) for a in args))
    return builder.trunc(builder.lshr(product, ir.Constant(twice, size)), args[0].type)


def _dp4a(dtype: str) -> Any:
    """c and the products of four bytes (PTX ISA, "dp4a")."""
    kind = "s32" if dtype == "i32" else "u32"

    def emit(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
        of = ir.FunctionType(_I32, [_I32] * 3)
        text = f"dp4a.{kind}.{kind} $0, $1, $2, $3;"
        return builder.call(ir.InlineAsm(of, text, "=r,r,r,r"), args)

    return _function(emit, [type_of(dtype)] * 3, type_of(dtype))


def _divided(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    return builder.udiv(*args)


def _remainder(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    return builder.urem(*args)


# ----------------------------------------------------------------------------------------- memory
def _address(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    """Of an element of a pointer or a shared array: `args` begin with it and an index."""
    data = args[0]
    if not isinstance(kinds[0], _types.CPointer):
        data = _arrays.make_array(kinds[0])(context, builder, data).data
    return builder.gep(data, [context.cast(builder, args[1], kinds[1], _types.int64)])


def _wide_address(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any, count: int) -> Any:
    at = _address(context, builder, args, kinds)
    vector = ir.VectorType(at.type.pointee, count)
    return builder.bitcast(at, vector.as_pointer(at.type.addrspace))


def _load(dtype: str) -> Any:
    """128 bits as a tuple of elements."""
    count, kind = LANES[dtype], type_of(dtype)

    @_intrinsic  # type: ignore[untyped-decorator]
    def load(typing_context: Any, p: Any, i: Any) -> Any:
        def generated(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            at = _wide_address(context, builder, args, signature.args, count)
            whole = builder.load(at, align=16)
            lanes = [builder.extract_element(whole, ir.Constant(_I32, k)) for k in range(count)]
            return context.make_tuple(builder, signature.return_type, lanes)

        return _types.UniTuple(kind, count)(p, i), generated

    return load


def _store(dtype: str) -> Any:
    """Elements as 128 bits."""
    count, kind = LANES[dtype], type_of(dtype)

    @_intrinsic  # type: ignore[untyped-decorator]
    def store(typing_context: Any, p: Any, i: Any, values: Any) -> Any:
        taken = _types.UniTuple(kind, count)

        def generated(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            at = _wide_address(context, builder, args, signature.args, count)
            given = context.cast(builder, args[2], signature.args[2], taken)
            whole = ir.Constant(at.type.pointee, ir.Undefined)
            for k in range(count):
                one = builder.extract_value(given, k)
                whole = builder.insert_element(whole, one, ir.Constant(_I32, k))
            builder.store(whole, at, align=16)
            return context.get_dummy_value()

        return _types.void(p, i, values), generated

    # one function of all the elements, as the language has it
    names = [f"v{k}" for k in range(count)]
    text = f"def store_all(p, i, {', '.join(names)}):\n    store(p, i, ({', '.join(names)}))\n"
    scope: dict[str, Any] = {"store": store}
    exec(text, scope)
    return device(scope["store_all"])


def _atomic(name: str) -> Any:
    """`p[i]` becomes the sum, the least or the largest; gives what was there."""

    @_intrinsic  # type: ignore[untyped-decorator]
    def atomic(typing_context: Any, p: Any, i: Any, value: Any) -> Any:
        kind = p.dtype
        signed = kind.signed
        what = name if signed or name == "add" else f"u{name}"

        def generated(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            at = _address(context, builder, args, signature.args)
            given = context.cast(builder, args[2], signature.args[2], kind)
            return builder.atomic_rmw(what, at, given, "monotonic")

        return kind(p, i, value), generated

    return atomic


# ------------------------------------------------------------------------------------------- warps
_MODES = dict(zip(SHUFFLES, ((0, 31), (3, 31), (1, 0), (2, 31)), strict=True))
_WORDS = ir.LiteralStructType((_I32, _I1))


def _shuffle(name: str) -> Any:
    """The value that another lane of the warp brings (NVVM IR, "Data Movement")."""
    mode, bound = _MODES[name]

    @_intrinsic  # type: ignore[untyped-decorator]
    def shuffle(typing_context: Any, mask: Any, value: Any, lane: Any) -> Any:
        def generated(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            given, of = args[1], args[1].type
            size = signature.args[1].bitwidth
            word = builder.bitcast(given, ir.IntType(size))
            all_lanes, by = (
                context.cast(builder, args[k], signature.args[k], _types.int32) for k in (0, 2)
            )

            def moved(half: Any) -> Any:
                brought = (all_lanes, ir.Constant(_I32, mode), half, by, ir.Constant(_I32, bound))
                made = _call(builder, "llvm.nvvm.shfl.sync.i32", _WORDS, brought)
                return builder.extract_value(made, 0)

            if size == 32:
                return builder.bitcast(moved(word), of)
            low = builder.zext(moved(builder.trunc(word, _I32)), _I64)
            high = builder.lshr(word, ir.Constant(_I64, 32))
            high = builder.zext(moved(builder.trunc(high, _I32)), _I64)
            both = builder.or_(low, builder.shl(high, ir.Constant(_I64, 32)))
            return builder.bitcast(both, of)

        return value(mask, value, lane), generated

    return shuffle


_VOTES = {"all_sync": 0, "any_sync": 1, "ballot_sync": 3}


def _vote(name: str) -> Any:
    """What the lanes of a warp say together (NVVM IR, "Vote")."""
    result = type_of(VOTES[name])

    @_intrinsic  # type: ignore[untyped-decorator]
    def vote(typing_context: Any, mask: Any, said: Any) -> Any:
        def generated(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            lanes = context.cast(builder, args[0], signature.args[0], _types.int32)
            own = context.cast(builder, args[1], signature.args[1], _types.boolean)
            own = builder.icmp_unsigned("!=", own, ir.Constant(own.type, 0))
            given = (lanes, ir.Constant(_I32, _VOTES[name]), own)
            made = _call(builder, "llvm.nvvm.vote.sync", _WORDS, given)
            return builder.extract_value(made, 0 if name == "ballot_sync" else 1)

        return result(mask, said), generated

    return vote


def _syncthreads_or(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
    made = _call(builder, "llvm.nvvm.barrier0.or", _I32, [builder.zext(args[0], _I32)])
    return builder.icmp_unsigned("!=", made, ir.Constant(_I32, 0))


def _multiply_add(dtype: str) -> Any:
    """A B + C of a warp (PTX ISA, "mma.m16n8k16")."""
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)
    made = ir.LiteralStructType([_FLOAT] * 4)

    def emit(context: Any, builder: ir.IRBuilder, args: Any, kinds: Any) -> Any:
        kind = ir.FunctionType(made, [a.type for a in args])
        result = builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), args)
        values = [builder.extract_value(result, k) for k in range(4)]
        return context.make_tuple(builder, _types.UniTuple(_types.float32, 4), values)

    given = [_types.uint32] * 6 + [_types.float32] * 4
    return _function(emit, given, _types.UniTuple(_types.float32, 4))


# ------------------------------------------------------------------------------------------- names
def _names() -> dict[str, Any]:
    names: dict[str, Any] = {dtype: type_of(dtype) for dtype in CASTS}
    names |= {"boolean": _types.boolean, "device": device}
    for dtype in ("f32", "f64"):
        word = f"u{dtype[1:]}"
        names[f"bits_{dtype}"] = _reinterpret(dtype, word)
        names[f"{dtype}_bits"] = _reinterpret(word, dtype)
        for stem in MATHS:
            names[f"{stem}_{dtype}"] = getattr(_libdevice, stem + ("f" if dtype == "f32" else ""))
    u16, u32, u64, f32 = (type_of(d) for d in ("u16", "u32", "u64", "f32"))
    names["f16_to_f32"] = _function(_from_f16, [u16], f32)
    names["f32_to_f16"] = _function(_to_f16, [f32], u16)
    names["bf16_to_f32"] = _function(_from_bf16, [u16], f32)
    names["f32_to_bf16"] = _function(_to_bf16, [f32], u16)
    names |= {name: _dp4a(name[-3:]) for name in DOTS}
    for dtype, kind in (("u32", u32), ("u64", u64)):
        names[f"mul_high_{dtype}"] = _function(_mul_high, [kind] * 2, kind)
        names[f"div_{dtype}"] = _function(_divided, [kind] * 2, kind)
        names[f"rem_{dtype}"] = _function(_remainder, [kind] * 2, kind)
    names |= {name: _load(dtype) for dtype, name in LOADS.items()}
    names |= {name: _store(dtype) for dtype, name in STORES.items()}
    names |= {f"atomic_{name}": _atomic(name) for name in ATOMICS}
    names |= {name: _shuffle(name) for name in SHUFFLES}
    names |= {name: _vote(name) for name in VOTES}
    names["syncthreads_or"] = _function(_syncthreads_or, [_types.boolean], _types.boolean)
    names |= {name: _multiply_add(dtype) for name, dtype in MMAS.items()}
    return names


NAMES = _names()
