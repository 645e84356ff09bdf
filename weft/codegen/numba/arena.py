"""The functions that printed kernels of stacks call: the arena that the elements of stacks lie in,
and the element at an address. Numba compiles them into the kernel.

The arena and its words are those of `codegen/stacks.py`; what LLVM is told there stands here as
Python. `arena` is the array of its words. Importing this imports Numba."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir
from numba.np import arrayobj
from numpy import int64

from weft.codegen.numba import functions
from weft.codegen.stacks import HEADER, LARGEST_CHUNK, LEAST_CHUNK, WORDS

njit, _intrinsic, _types = functions.njit, functions._intrinsic, functions._types
#: Numba is annotated in part only.
_arrays: Any = arrayobj
_I64 = ir.IntType(64)
TOP, END, CHUNK, BEFORE, TOTAL, MOST, FIRST, KEPT = (
    WORDS[n] for n in ("top", "end", "chunk", "before", "total", "most", "first", "kept")
)
#: Bytes at the start of a chunk; and of an element, its `stacks.HEADER`, as kernels have it.
_CHUNK_HEADER, _HEADER = 16, HEADER


def _c_function(name: str, result: Any) -> Any:
    function = ctypes.CDLL(None)[name]
    function.argtypes, function.restype = [ctypes.c_int64], result
    return function


_malloc, _free = _c_function("malloc", ctypes.c_int64), _c_function("free", None)


@_intrinsic  # type: ignore[untyped-decorator]
def array_at(typing_context: Any, address: Any, count: Any, kind: Any) -> Any:
    """`count` numbers of a NumPy type at an address."""
    array = _types.Array(kind.instance_type, 1, "C")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        held = _arrays.make_array(array)(context, builder)
        element = context.get_data_type(array.dtype)
        itemsize = ir.Constant(_I64, context.get_abi_sizeof(element))
        data = builder.inttoptr(args[0], element.as_pointer())
        _arrays.populate_array(held, data=data, shape=[args[1]], strides=[itemsize],
                               itemsize=itemsize, meminfo=None)  # fmt: skip
        return held._getvalue()

    return array(_types.int64, _types.int64, kind), codegen


# --------------------------------------------------------------------------------------- the arena
@njit
def _enter(arena, chunk):  # type: ignore[no-untyped-def]
    """Go on in a chunk, of which the address is given."""
    arena[CHUNK] = chunk
    arena[TOP] = chunk + _CHUNK_HEADER
    arena[END] = chunk + array_at(chunk, 2, int64)[1]


@njit
def _used(arena):  # type: ignore[no-untyped-def]
    """Bytes in use; of chunks before the current one all."""
    return arena[BEFORE] + (arena[TOP] - arena[CHUNK])


@njit
def _new_chunk(arena, need):  # type: ignore[no-untyped-def]
    """The address of a new chunk of at least `need` bytes; 0 if there is no memory."""
    wanted = max(need, min(max(arena[TOTAL] >> 1, LEAST_CHUNK), LARGEST_CHUNK))
    if arena[TOTAL] + wanted > arena[MOST]:
        return int64(0)
    made = _malloc(wanted)
    if made != 0:
        array_at(made, 2, int64)[1] = wanted
        arena[TOTAL] += wanted
    return made


@njit
def _grow(arena, size):  # type: ignore[no-untyped-def]
    """The address of `size` bytes in the next chunk: one that is there and has room, or a new one;
    0 if there is no memory."""
    need = size + _CHUNK_HEADER
    before = arena[CHUNK]
    found = follows = arena[FIRST] if before == 0 else array_at(before, 1, int64)[0]
    if follows == 0 or array_at(follows, 2, int64)[1] < need:
        found = _new_chunk(arena, need)
        if found == 0:
            return found
        array_at(found, 1, int64)[0] = follows
        if before == 0:
            arena[FIRST] = found
        else:
            array_at(before, 1, int64)[0] = found
    if before != 0:
        arena[BEFORE] = _used(arena)
    _enter(arena, found)
    arena[TOP] += size
    return found + _CHUNK_HEADER


@njit
def arena_take(arena, nbytes):  # type: ignore[no-untyped-def]
    """The address of so many bytes more; 0 if there is no memory."""
    size = (nbytes + 15) & -16
    top = arena[TOP]
    if top + size > arena[END]:
        return _grow(arena, size)
    arena[TOP] = top + size
    return top


@njit
def arena_begin(arena):  # type: ignore[no-untyped-def]
    """Forget all that is in the arena; its memory stays."""
    for k in range(4):
        arena[k] = 0
    if arena[FIRST] != 0:
        _enter(arena, arena[FIRST])


@njit
def arena_end(arena):  # type: ignore[no-untyped-def]
    """Give all chunks back but the first ones, of `KEPT` bytes in all."""
    if arena[TOTAL] <= arena[KEPT]:
        return
    chunk, last, kept = arena[FIRST], int64(0), int64(0)
    arena[FIRST] = 0
    while chunk != 0:
        follows, nbytes = array_at(chunk, 2, int64)
        if kept + nbytes > arena[KEPT]:
            _free(chunk)
        else:
            kept += nbytes
            array_at(chunk, 1, int64)[0] = 0
            if last == 0:
                arena[FIRST] = chunk
            else:
                array_at(last, 1, int64)[0] = chunk
            last = chunk
        chunk = follows
    arena[TOTAL] = kept


# ------------------------------------------------------------------------------------- the elements
@njit
def arena_push(arena, stack, nbytes):  # type: ignore[no-untyped-def]
    """A stack with room for an element of so many bytes on top; 0 if there is no memory."""
    begun = _used(arena) if stack == 0 else array_at(stack, 2, int64)[1]
    place = arena_take(arena, nbytes + _HEADER)
    if place != 0:
        node = array_at(place, 2, int64)
        node[0], node[1] = stack, begun
    return place


@njit
def arena_held(arena, stack):  # type: ignore[no-untyped-def]
    """Bytes of the arena that were taken since the stack began."""
    return _used(arena) - array_at(stack, 2, int64)[1]


@njit
def below(stack):  # type: ignore[no-untyped-def]
    """The stack without its top."""
    return array_at(stack, 1, int64)[0]


@njit
def put_below(stack, other):  # type: ignore[no-untyped-def]
    """Have another stack below the top."""
    array_at(stack, 1, int64)[0] = other


@njit
def copy_begun(stack, other):  # type: ignore[no-untyped-def]
    """A stack counts as begun where another one did."""
    array_at(stack, 2, int64)[1] = array_at(other, 2, int64)[1]


@njit
def top_of(stack, count, kind):  # type: ignore[no-untyped-def]
    """The `count` numbers of the top."""
    return array_at(stack + _HEADER, count, kind)
