"""Compiled code against the interpreter: every op, every dtype, awkward shapes and values.

The bounds are those of `compiled_checks`; sums and products of n terms may be n * eps of the sum of
the terms' magnitudes apart. One graph holds many ops on inputs of their own, so that each is a
kernel of its own and all are compiled together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE, Case, check, operands, plain, specials
from elementwise_checks import bitcasts, casts, check_bitcasts, check_elementwise, domain, ops_at
from shares import usual

from weft.codegen.llvm.jit import compile_count
from weft.ir import dtypes
from weft.ir.dtypes import ALL, DType
from weft.ir.ops import OPS
from weft.passes.fusion.fuse import fuse

Array = np.ndarray[Any, Any]

NATIVE = [d for d in ALL if d is not dtypes.string]
NUMERIC = [d for d in NATIVE if d.is_numeric]
REAL = [d for d in NATIVE if d.is_numeric and not d.is_complex]
by_name = pytest.mark.parametrize


def elementwise_case(dtype: DType, size: int | None, ops: list[str]) -> Case:
    """Each op on operands of its own of one dimension; None: of none."""
    case = Case()
    for k, op in enumerate(ops):
        arity = OPS[op].arity or 1
        arrays = domain(op, operands(dtype, arity, 1 if size is None else size, seed=k))
        case.op(op, *(case.input(x.reshape(()) if size is None else x) for x in arrays))
    return case


class TestElementwise:
    """One kernel for each op and dtype."""

    @pytest.mark.share(4)
    @by_name("dtype", usual(NATIVE), ids=str)
    def test_vector_body_and_remainder(self, dtype: DType) -> None:
        ops = ops_at(dtype)
        size = max(len(specials(dtype)) ** 2 + 37, 151)
        for op, got, wanted in elementwise_case(dtype, size, ops).run():
            check_elementwise(op, dtype, got, wanted)

    @pytest.mark.share(4)
    @by_name("dtype", usual(NATIVE), ids=str)
    def test_other_sizes_use_the_same_kernels(self, dtype: DType) -> None:
        ops = ops_at(dtype)
        elementwise_case(dtype, 64, ops).run()
        before = compile_count()
        for size in (0, 2, 3, 7, 33):
            for op, got, wanted in elementwise_case(dtype, size, ops).run():
                check_elementwise(op, dtype, got, wanted)
        assert compile_count() == before

    @pytest.mark.share(2)
    @by_name("dtype", [dtypes.bool_, dtypes.int32, dtypes.bfloat16, dtypes.float32], ids=str)
    def test_rank_0(self, dtype: DType) -> None:
        for op, got, wanted in elementwise_case(dtype, None, ops_at(dtype)).run():
            check_elementwise(op, dtype, got, wanted)

    @by_name("dtype", [d for d in NATIVE if d.is_complex], ids=str)
    def test_complex_infinities(self, dtype: DType) -> None:
        values = [0.0, -1.0, 2.5, np.inf, -np.inf, np.nan]
        grid = np.array([complex(x, y) for x in values for y in values], dtype.numpy)
        ops = "sign abs negative conj real imag isnan isinf isfinite round equal not_equal add"
        case = Case()
        for op in (*ops.split(), "subtract", "sqrt", "exp", "log"):
            arity = OPS[op].arity or 1
            case.op(op, *(case.input(grid if k == 0 else grid[::-1]) for k in range(arity)))
        for op, got, wanted in case.run():
            check_elementwise(op, dtype, got, wanted)

    @pytest.mark.share(4)
    @by_name("source", usual(NATIVE), ids=str)
    def test_astype(self, source: DType) -> None:
        targets = [t for t in NATIVE if t.is_complex or t.kind == "bool" or not source.is_complex]
        for label, got, wanted in casts(source, targets).run():
            check(label, got, wanted)

    @pytest.mark.share(3)
    @by_name("source", REAL, ids=str)
    def test_bitcast(self, source: DType) -> None:
        case = bitcasts(source, REAL)
        check_bitcasts(source, case, case.run())

    @by_name("dtype", usual(NATIVE), ids=str)
    def test_where(self, dtype: DType) -> None:
        case = Case()
        a, b = operands(dtype, 2, 61)
        c = case.input(plain(dtypes.bool_, (61,)))
        case.op("where", c, case.input(a), case.input(b))
        (row,) = case.run()
        check(*row)

    @pytest.mark.share(4)
    @by_name("dtype", usual(NATIVE), ids=str)
    def test_through_index_maps(self, dtype: DType) -> None:
        """Transposed, strided, reversed, broadcast and reshaped operands, read in place."""
        case = Case()
        op = "logical_xor" if dtype.kind == "bool" else "add"
        for shape in ((5, 7), (1, 7), (5, 1), (17, 19), (0, 3)):
            n, m = shape
            x = case.input(plain(dtype, shape, 1))
            y = case.input(plain(dtype, (m, n), 2))
            turned = case.hidden("permute_dims", y, axes=(1, 0))
            flipped = case.hidden("slice", x, **cut(shape, (-1, -1)))
            case.op(op, x, turned, label=f"transposed {shape}")
            case.op(op, flipped, turned, label=f"reversed {shape}")
            row = case.input(plain(dtype, (m,), 3))
            rows = case.hidden("broadcast_to", row, shape=shape)
            column = case.hidden("reshape", case.input(plain(dtype, (n,), 4)), shape=(n, 1))
            columns = case.hidden("broadcast_to", column, shape=shape)
            case.op(op, rows, columns, label=f"broadcast {shape}")
            half = cut(shape, (2, -3))
            case.op(op, *(case.hidden("slice", v, **half) for v in (x, turned)), label="strided")
        if dtype.is_numeric:
            ramp = case.hidden("iota", dtype=dtype, shape=(6, 11), axis=1)
            part = case.hidden("slice", ramp, **cut((6, 11), (2, -3)))
            case.op(op, part, case.hidden("slice", ramp, starts=(0, 0), stops=(3, 4), steps=(1, 1)))
        for label, got, wanted in case.run():
            check(label, got, wanted)


class TestMovingData:
    """Ops that compute nothing: bits agree, for every dtype."""

    @pytest.mark.share(8)
    @by_name("passes", [(fuse,), PIPELINE], ids=["fuse", "pipeline"])
    @by_name("dtype", usual(NATIVE), ids=str)
    def test_shapes(self, dtype: DType, passes: Any) -> None:
        case = Case()
        for n, shape in enumerate(((4, 6, 5), (1, 3, 1), (2, 0, 3))):
            x = case.input(special_mix(dtype, shape, n))
            a, b, c = shape
            case.op("reshape", x, shape=(a * b, c))
            case.op("reshape", x, shape=(1, a, b, c, 1))
            case.op("permute_dims", x, axes=(2, 0, 1))
            case.op("broadcast_to", x, shape=(2, *shape))
            case.op("concat", x, case.input(special_mix(dtype, (a, 3, c), 5)), x, axis=1)
            fill = case.input(special_mix(dtype, (), 6))
            case.op("pad", x, fill, lo=(1, 0, 2), hi=(0, 3, 1))
            ends = cut(shape, (1, -1, 2))
            case.op("slice", x, **ends)
            update = case.input(special_mix(dtype, (a, b, -(-c // 2)), 7))
            case.op("slice_update", x, update, **ends)
            case.op("dim_size", x, axis=1)
        case.op("concat", case.input(special_mix(dtype, (3,), 8)), axis=0)
        case.op("pad", fill, fill, lo=(), hi=())
        for label, got, wanted in case.run(passes):
            check(label, got, wanted)

    @pytest.mark.share(2)
    @by_name("dtype", usual(NUMERIC), ids=str)
    def test_iota(self, dtype: DType) -> None:
        case = Case()
        for axis in (0, 1):
            case.op("iota", dtype=dtype, shape=(5, 7), axis=axis)
        case.op("iota", dtype=dtype, shape=(0,), axis=0)
        case.op("iota", dtype=dtype, shape=(130,), axis=0)
        for label, got, wanted in case.run():
            check(label, got, wanted)

    @by_name("index", usual(d for d in NATIVE if d.is_integer), ids=str)
    def test_index_dtypes(self, index: DType) -> None:
        for label, got, wanted in gathers(Case(), dtypes.float32, index).run():
            check(label, got, wanted)

    @pytest.mark.share(4)
    @by_name("dtype", usual(NATIVE), ids=str)
    def test_gathers(self, dtype: DType) -> None:
        for label, got, wanted in gathers(Case(), dtype, dtypes.int64).run():
            check(label, got, wanted)

    @pytest.mark.share(4)
    @by_name("dtype", usual(d for d in NATIVE if not d.is_complex), ids=str)
    def test_sorting(self, dtype: DType) -> None:
        case = Case()
        for shape in ((5, 7), (300, 3), (2, 0, 3), (1,), (49,)):
            x = case.input(special_mix(dtype, shape, len(shape)))
            for axis in range(len(shape)):
                for descending in (False, True):
                    label = f"{shape} axis {axis} {descending}"
                    case.op("sort", x, axis=axis, descending=descending, label="sort " + label)
                    case.op("argsort", x, axis=axis, descending=descending, label="arg " + label)
        for size in (0, 1, 2, 33):
            data = case.input(ascending(special_mix(dtype, (size,), size)))
            values = case.input(special_mix(dtype, (4, 9), 3))
            for side in ("left", "right"):
                case.op("searchsorted", data, values, side=side)
        for label, got, wanted in case.run():
            check(label, got, wanted)

    @pytest.mark.share(4)
    @by_name("dtype", usual(d for d in NATIVE if not d.is_complex), ids=str)
    def test_positions(self, dtype: DType) -> None:
        case = Case()
        for shape in ((5, 7), (1, 3), (200, 2), (3, 1, 4)):
            x = case.input(special_mix(dtype, shape, len(shape)))
            for axis in range(len(shape)):
                for name in ("argmax", "argmin"):
                    case.op(name, x, axis=axis, keepdims=axis == 1, label=f"{name} {shape} {axis}")
        case.op("argmax", case.input(special_mix(dtype, (0, 3), 1)), axis=1)
        for label, got, wanted in case.run():
            check(label, got, wanted)


def cut(shape: tuple[int, ...], steps: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The attributes of the slice of all of `shape` with these steps."""
    ends = [slice(None, None, s).indices(n) for n, s in zip(shape, steps, strict=True)]
    starts, stops, _ = zip(*ends, strict=True)
    return {"starts": starts, "stops": stops, "steps": steps}


def special_mix(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Special values among plain ones in random order."""
    size = int(np.prod(shape))
    rng = np.random.default_rng(seed)
    special = specials(dtype)
    out = np.where(rng.random(size) < 0.3, rng.choice(special, size), plain(dtype, (size,), seed))
    return out.astype(dtype.numpy).reshape(shape)


def ascending(x: Array) -> Array:
    """Sorted, NaNs last (NumPy alone does not put bfloat16's there)."""
    wide = x.astype(np.float64) if x.dtype.itemsize == 2 else x
    return x[np.argsort(wide, kind="stable")]


def gathers(case: Case, dtype: DType, index: DType) -> Case:
    """take, take_along_axis, gather_nd, scatter_nd_update with duplicates and negative indices."""
    rng = np.random.default_rng(1)

    def indices(shape: tuple[int, ...], size: int) -> Any:
        low = -size if index.kind == "int" else 0
        return case.input(rng.integers(low, size, shape).astype(index.numpy))

    x = case.input(special_mix(dtype, (5, 3, 4), 2))
    empty = case.input(special_mix(dtype, (5, 0), 2))
    for axis, size in enumerate((5, 3, 4)):
        case.op("take", x, indices((2, 3), size), axis=axis)
        case.op("take", x, indices((), size), axis=axis)
        case.op("take", x, indices((0,), size), axis=axis)
        shape = [5, 3, 4]
        shape[axis] = 6
        case.op("take_along_axis", x, indices(tuple(shape), size), axis=axis)
    case.op("take", empty, indices((3,), 5), axis=0)
    for depth, size in ((0, 1), (1, 5), (2, 3), (3, 3)):
        rows = indices((9, depth), size)
        case.op("gather_nd", x, rows)
        updates = case.input(special_mix(dtype, (9, *(5, 3, 4)[depth:]), depth))
        case.op("scatter_nd_update", x, rows, updates)
    case.op("gather_nd", x, indices((0, 2), 3))
    return case


@pytest.mark.slow
class TestLargeSweep:
    """Every elementwise op at every dtype through strided operands, and fused with a reduction."""

    @by_name("dtype", usual(NATIVE), ids=str)
    def test_strided(self, dtype: DType) -> None:
        case = Case()
        for k, op in enumerate(ops_at(dtype)):
            arrays = domain(op, operands(dtype, OPS[op].arity or 1, 24 * 31, seed=k))
            maps = [
                case.hidden("permute_dims", case.input(x.reshape(31, 24)), axes=(1, 0))
                for x in arrays
            ]
            down = cut((24, 31), (-2, -3))
            case.op(op, *(case.hidden("slice", m, **down) for m in maps))
        for op, got, wanted in case.run():
            check_elementwise(op, dtype, got, wanted)

    @by_name("dtype", usual(NATIVE), ids=str)
    def test_rank_0_everywhere(self, dtype: DType) -> None:
        for op, got, wanted in elementwise_case(dtype, None, ops_at(dtype)).run():
            check_elementwise(op, dtype, got, wanted)

    @by_name("dtype", usual(NATIVE), ids=str)
    def test_after_the_pipeline(self, dtype: DType) -> None:
        size = len(specials(dtype)) ** 2 + 37
        for op, got, wanted in elementwise_case(dtype, size, ops_at(dtype)).run(PIPELINE):
            check_elementwise(op, dtype, got, wanted)
