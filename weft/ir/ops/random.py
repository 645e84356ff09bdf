"""Counter-based random bits: Threefry-2x32 with 20 rounds.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011, section 3.2 and table 2 for the rotations; the parity constant is that of Random123 1.00
and later. The bits depend on key and position only: any thread can make any part of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir import dtypes
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import (
    Array,
    Attrs,
    AttrSpec,
    OpSpec,
    check_shape,
    shape_attr,
    static_attr,
    tensors,
)
from weft.ir.types import TensorType, Type

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
ROUNDS = 20


def threefry2x32(key: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The two words (u32[n]) of each block: `low`, `high` u32[n] count blocks, `key` is u32[2]."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    with np.errstate(over="ignore"):
        x, y = low + schedule[0], high + schedule[1]
        for i in range(ROUNDS):
            bits = ROTATIONS[i % 8]
            x = x + y
            y = ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits))) ^ x
            if i % 4 == 3:  # a key injection after every four rounds
                n = i // 4 + 1
                x = x + schedule[n % 3]
                y = y + schedule[(n + 1) % 3] + np.uint32(n)
    return x, y


def _key(op: str, types: Sequence[Type]) -> list[TensorType]:
    operands = tensors(op, types)
    for operand in operands:
        if operand.dtype is not dtypes.uint32:
            listed = ", ".join(map(str, operands))
            raise TypeRuleError(
                f"op '{op}' takes uint32 operands, got ({listed})",
                hint="a key is a u32[2], as wf.random.key(seed) makes it",
            )
    check_shape(op, "the key", operands[0].shape, (2,))
    return operands


def _bits_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _key("random_bits", types)
    return [TensorType(dtypes.uint32, shape_attr(attrs, "shape"))]


def _random_bits(arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape = static_attr(attrs, "shape")
    count = int(np.prod(shape, dtype=np.int64))
    counter = np.arange((count + 1) // 2, dtype=np.uint64)
    low, high = counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32)
    words = np.stack(threefry2x32(arrays[0], low, high), axis=-1)
    return words.reshape(-1)[:count].reshape(shape)


def _fold_in_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _, data = _key("random_fold_in", types)
    check_shape("random_fold_in", "the data", data.shape, ())
    return [TensorType(dtypes.uint32, (2,))]


def _fold_in(arrays: Sequence[Array], attrs: Attrs) -> Array:
    key, data = arrays
    return np.concatenate(threefry2x32(key, data.reshape(1), np.zeros(1, np.uint32)))


TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "random_bits",
        1,
        _bits_type,
        _random_bits,
        "Threefry-2x32-20: element i is word i & 1 of the block with counter i >> 1 under the key.",
        {"shape": AttrSpec("shape")},
    ),
    OpSpec(
        "random_fold_in",
        2,
        _fold_in_type,
        _fold_in,
        "A new key: the Threefry block of the counter (data, 0) under the key.",
    ),
)
