"""Shape, index and linear algebra ops: references against NumPy, type rules with symbolic dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from weft.ir import dtypes
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, WeftError
from weft.ir.interpreter.evaluate import as_array, evaluate_op
from weft.ir.ops import lookup
from weft.ir.spec import Attrs, complete_attrs
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]

NUMERIC = [d for d in dtypes.ALL if d.is_numeric]
REAL = [d for d in NUMERIC if not d.is_complex]
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (2, 3), (3, 0, 2), (2, 1, 4)]

B = SymbolicDim.symbol("b")
C = SymbolicDim.symbol("c")


def data(dtype: DType, shape: Sequence[int], seed: int = 0) -> Array:
    """Small whole numbers, so that sums of them are exact in every dtype; bytes for strings."""
    values = np.random.default_rng(seed).integers(0, 5, tuple(shape))
    if dtype is dtypes.string:
        out = np.empty(tuple(shape), object)
        out[...] = (
            np.vectorize(lambda i: b"s\0%d" % i, otypes=[object])(values) if values.size else 0
        )
        return out
    if dtype.kind in ("int", "float", "complex"):
        values = values - 2
    array = values.astype(dtype.numpy)
    return array + array.dtype.type(1j) if dtype.is_complex else array


def one(op: str, *arrays: Array, **attrs: Any) -> Array:
    """The result of a one-result op."""
    (result,) = evaluate_op(op, arrays, attrs)
    return result


def check(got: Array, wanted: Any, dtype: DType) -> None:
    """Same dtype, shape and elements, laid out in C order."""
    wanted = np.asarray(wanted)
    assert got.dtype == dtype.numpy
    assert got.shape == wanted.shape
    assert got.flags.c_contiguous
    assert np.array_equal(got, wanted)


def infer(op: str, *types: TensorType, **attrs: Any) -> str:
    """The result type as text."""
    spec = lookup(op)
    full: Attrs = complete_attrs(op, spec.attrs, attrs)
    (result,) = spec.infer(types, full, ())
    return str(result)


def f32(*dims: Dim) -> TensorType:
    return TensorType(dtypes.float32, dims)


def i64(*dims: Dim) -> TensorType:
    return TensorType(dtypes.int64, dims)


every_dtype = pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.short)
numeric_dtype = pytest.mark.parametrize("dtype", NUMERIC, ids=lambda d: d.short)
real_dtype = pytest.mark.parametrize("dtype", REAL, ids=lambda d: d.short)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
index_dtype = pytest.mark.parametrize("index", ["int8", "int64", "uint8", "uint64"])


# -- shape -----------------------------------------------------------------------------------------


@every_dtype
@every_shape
def test_movement(dtype: DType, shape: tuple[int, ...]) -> None:
    x = data(dtype, shape)
    check(one("reshape", x, shape=(x.size, 1)), x.reshape(x.size, 1), dtype)
    axes = tuple(reversed(range(x.ndim)))
    check(one("permute_dims", x, axes=axes), x.transpose(axes), dtype)
    check(one("broadcast_to", x, shape=(2, *shape)), np.stack([x, x]), dtype)
    fill = data(dtype, (), seed=1)
    lo, hi = tuple(range(x.ndim)), tuple(2 for _ in shape)
    wanted = np.full([n + a + 2 for n, a in zip(shape, lo, strict=True)], fill[()], dtype.numpy)
    wanted[tuple(slice(a, a + n) for n, a in zip(shape, lo, strict=True))] = x
    check(one("pad", x, fill, lo=lo, hi=hi), wanted, dtype)
    for axis in range(x.ndim):
        y = data(dtype, [*shape[:axis], 4, *shape[axis + 1 :]], seed=2)
        check(one("concat", x, y, x, axis=axis), np.concatenate([x, y, x], axis), dtype)
        check(one("dim_size", x, axis=axis), shape[axis], dtypes.int64)


def test_broadcast_repeats_axes_of_size_one() -> None:
    x = data(dtypes.int32, (2, 1, 3))
    check(
        one("broadcast_to", x, shape=(4, 2, 5, 3)), np.broadcast_to(x, (4, 2, 5, 3)), dtypes.int32
    )
    assert one("broadcast_to", data(dtypes.int8, (1,)), shape=(0,)).shape == (0,)


SLICES = [slice(None), slice(1, 4), slice(None, None, 2), slice(4, None, 3), slice(None, None, -1)]
SLICES += [slice(3, 0, -2), slice(2, 2), slice(4, 1), slice(0, None, -1), slice(None, None, -3)]


def raw(cuts: Sequence[slice], shape: Sequence[int]) -> dict[str, Any]:
    """The attributes of `slice` for what a user wrote."""
    starts, stops, steps = zip(
        *(s.indices(n) for s, n in zip(cuts, shape, strict=True)), strict=True
    )
    return {"starts": starts, "stops": stops, "steps": steps}


@pytest.mark.parametrize("cut", SLICES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 5, 6])
def test_slice(cut: slice, size: int) -> None:
    x = data(dtypes.float32, (size, 3))
    cuts = (cut, slice(None, None, -1))
    attrs = raw(cuts, x.shape)
    wanted = x[cuts]
    check(one("slice", x, **attrs), wanted, dtypes.float32)
    update = data(dtypes.float32, wanted.shape, seed=3)
    kept = x.copy()
    kept[cuts] = update
    before = x.copy()
    check(one("slice_update", x, update, **attrs), kept, dtypes.float32)
    assert np.array_equal(x, before)


@every_dtype
def test_slice_dtypes(dtype: DType) -> None:
    x = data(dtype, (4, 3))
    attrs = raw((slice(1, 3), slice(None, None, -2)), x.shape)
    check(one("slice", x, **attrs), x[1:3, ::-2], dtype)
    wanted = x.copy()
    wanted[1:3, ::-2] = x[2:4, :2]
    check(one("slice_update", x, x[2:4, :2], **attrs), wanted, dtype)
    scalar, other = data(dtype, ()), x[:1, 0].reshape(())
    none: dict[str, Any] = {"starts": (), "stops": (), "steps": ()}
    check(one("slice", scalar, **none), scalar, dtype)
    check(one("slice_update", scalar, other, **none), other, dtype)


@numeric_dtype
def test_iota(dtype: DType) -> None:
    got = one("iota", dtype=dtype, shape=(3, 4, 2), axis=1)
    check(got, np.broadcast_to(np.arange(4).astype(dtype.numpy)[:, None], (3, 4, 2)), dtype)
    check(one("iota", dtype=dtype, shape=(0,), axis=0), np.zeros(0), dtype)


def test_iota_wraps_integers() -> None:
    got = one("iota", dtype=dtypes.uint8, shape=(258,), axis=0)
    assert got[-3:].tolist() == [255, 0, 1]


# -- indices ---------------------------------------------------------------------------------------


def with_negative(indices: Array, size: int) -> Array:
    """The same places, every second one counted from the end where the dtype has a sign."""
    if indices.dtype.kind == "u":
        return indices
    flat = indices.copy().ravel()
    flat[::2] -= size
    return flat.reshape(indices.shape)


@every_dtype
@index_dtype
def test_take(dtype: DType, index: str) -> None:
    x = data(dtype, (3, 4, 2))
    for axis in range(3):
        for shape in [(), (0,), (5,), (2, 3)]:
            size = x.shape[axis]
            i = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % size).astype(index)
            check(one("take", x, with_negative(i, size), axis=axis), np.take(x, i, axis), dtype)
            j = i.reshape([i.size if a == axis else 1 for a in range(3)])
            j = np.broadcast_to(j, [i.size if a == axis else n for a, n in enumerate(x.shape)])
            got = one("take_along_axis", x, with_negative(j, size), axis=axis)
            check(got, np.take_along_axis(x, j.astype(np.int64), axis), dtype)


@numeric_dtype
@index_dtype
def test_index_add(dtype: DType, index: str) -> None:
    x = data(dtype, (3, 4, 2))
    for axis in range(3):
        for shape in [(), (0,), (7,), (2, 3)]:
            size = x.shape[axis]
            i = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % size).astype(index)
            u = data(dtype, [*x.shape[:axis], *shape, *x.shape[axis + 1 :]], seed=4)
            wanted = x.copy()
            for place in np.ndindex(*x.shape[:axis], *shape, *x.shape[axis + 1 :]):
                middle = place[axis : axis + len(shape)]
                wanted[(*place[:axis], i[middle], *place[axis + len(shape) :])] += u[place]
            check(one("index_add", x, with_negative(i, size), u, axis=axis), wanted, dtype)


@numeric_dtype
def test_scatter_along_axis_add(dtype: DType) -> None:
    x = data(dtype, (3, 4, 2))
    for axis in range(3):
        shape = [6 if a == axis else n for a, n in enumerate(x.shape)]
        i = np.random.default_rng(5).integers(0, x.shape[axis], shape)
        u = data(dtype, shape, seed=6)
        wanted = x.copy()
        for place in np.ndindex(*shape):
            wanted[(*place[:axis], i[place], *place[axis + 1 :])] += u[place]
        got = one("scatter_along_axis_add", x, with_negative(i, x.shape[axis]), u, axis=axis)
        check(got, wanted, dtype)
    empty = data(dtype, (0, 2))
    nowhere = np.zeros((0, 2), np.int64)
    check(one("scatter_along_axis_add", empty, nowhere, empty, axis=0), empty, dtype)


def some_nd_indices(x: Array, depth: int, shape: Sequence[int]) -> Array:
    """indices[..., depth] into x with duplicates and negative ones."""
    rng = np.random.default_rng(7)
    columns = [rng.integers(-n, n, tuple(shape)) for n in x.shape[:depth]]
    return np.stack(columns, -1) if columns else np.zeros((*shape, 0), np.int64)


ND: dict[str, Callable[[Any, Any], Any]] = {
    "scatter_nd_add": lambda old, new: old + new,
    "scatter_nd_update": lambda old, new: new,
    "scatter_nd_min": np.minimum,
    "scatter_nd_max": np.maximum,
}


@every_dtype
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(), (0,), (9,), (2, 4)], ids=str)
def test_nd(dtype: DType, depth: int, shape: tuple[int, ...]) -> None:
    x = data(dtype, (3, 4, 2))
    indices = some_nd_indices(x, depth, shape)
    wanted = np.empty((*shape, *x.shape[depth:]), dtype.numpy)
    for place in np.ndindex(*shape):
        wanted[place] = x[tuple(indices[place])]
    check(one("gather_nd", x, indices), wanted, dtype)
    updates = data(dtype, wanted.shape, seed=8)
    for op, combine in ND.items():
        if op != "scatter_nd_update" and dtype not in (NUMERIC if op == "scatter_nd_add" else REAL):
            continue
        wanted = x.copy()
        for place in np.ndindex(*shape):
            at = tuple(indices[place])
            wanted[at] = combine(wanted[at], updates[place])
        for order in ("C", "F"):
            check(one(op, x, np.array(indices, order=order), updates), wanted, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_wins(dtype: str) -> None:
    kind = dtypes.as_dtype(dtype)
    x = np.array([1, np.nan, 3, 4]).astype(kind.numpy)
    updates = np.array([np.nan, 0, 9]).astype(kind.numpy)
    indices = np.array([[0], [1], [2]])
    for op, last in [("scatter_nd_min", 3), ("scatter_nd_max", 9)]:
        got = one(op, x, indices, updates).astype(np.float64)
        assert np.array_equal(got, [np.nan, np.nan, last, 4], equal_nan=True)


def test_first_occurrence() -> None:
    ids = np.array([3, 1, -1, 3, 2, 1])
    assert one("first_occurrence", ids, size=4).tolist() == [0, 1, 0, 0, 4, 1]
    assert one("first_occurrence", np.zeros(0, np.int32), size=4).shape == (0,)


X34 = np.zeros((3, 4), np.float32)
OUT_OF_BOUNDS: list[tuple[str, list[Any], dict[str, int], str]] = [
    ("take", [X34, [1, 4]], {"axis": 1}, "index 4 is out of bounds for axis 1 of size 4"),
    ("take", [X34, [-4]], {"axis": 0}, "index -4 is out of bounds for axis 0 of size 3"),
    ("take", [np.zeros((0, 2)), 0], {"axis": 0}, "index 0 is out of bounds for axis 0 of size 0"),
    ("take", [X34, np.array([2**64 - 1], np.uint64)], {"axis": 0}, "index 18446744073709551615 is"),
    ("take", [X34, np.array([-128], np.int8)], {"axis": 0}, "index -128 is out of bounds"),
    (
        "index_add",
        [X34, [3], X34[:1]],
        {"axis": 0},
        "index 3 is out of bounds for axis 0 of size 3",
    ),
    ("first_occurrence", [[0, 3]], {"size": 3}, "index 3 is out of bounds for axis 0 of size 3"),
    (
        "take_along_axis",
        [X34, np.full((3, 1), 7)],
        {"axis": 1},
        "index 7 is out of bounds for axis 1",
    ),
    ("scatter_along_axis_add", [X34, np.full((3, 4), -5), X34], {"axis": 1}, "index -5 is out of"),
    ("gather_nd", [X34, [[0, 9], [0, 0]]], {}, "index 9 is out of bounds for axis 1 of size 4"),
    ("scatter_nd_add", [X34, [[5, 9]], X34[0, :1]], {}, "index 5 is out of bounds for axis 0"),
    (
        "scatter_nd_update",
        [X34, [[3]], X34[:1]],
        {},
        "index 3 is out of bounds for axis 0 of size 3",
    ),
    ("scatter_nd_min", [X34, [[3]], X34[:1]], {}, "index 3 is out of bounds for axis 0 of size 3"),
    (
        "scatter_nd_max",
        [X34, [[-4]], X34[:1]],
        {},
        "index -4 is out of bounds for axis 0 of size 3",
    ),
]


@pytest.mark.parametrize(("op", "arrays", "attrs", "message"), OUT_OF_BOUNDS)
def test_out_of_bounds(op: str, arrays: list[Any], attrs: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        evaluate_op(op, [as_array(a) for a in arrays], attrs)
    assert message in str(caught.value)
    assert f"op '{op}' on (" in str(caught.value)
    assert "test_ops_structural.py" in str(caught.value)


# -- linear algebra --------------------------------------------------------------------------------


@numeric_dtype
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul(dtype: DType, ta: bool, tb: bool) -> None:
    batches: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ()), ((2,), ()), ((2, 1), (3,))]
    for a_batch, b_batch in [*batches, ((0,), (1,))]:
        for m, k, n in [(2, 3, 4), (1, 1, 1), (2, 0, 3), (0, 2, 3)]:
            a = data(dtype, (*a_batch, k, m) if ta else (*a_batch, m, k))
            b = data(dtype, (*b_batch, n, k) if tb else (*b_batch, k, n), seed=1)
            left, right = a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b
            wanted = (left[..., :, :, None] * right[..., None, :, :]).sum(-2, dtype=dtype.numpy)
            got = one("matmul", a, b, transpose_a=ta, transpose_b=tb)
            check(got, wanted, dtype)


def test_matmul_integers_wrap() -> None:
    a = np.full((1, 300), 100, np.int8)
    assert one("matmul", a, a.T.copy()).tolist() == [[int(np.int64(3_000_000).astype(np.int8))]]


def test_matmul_16_bit_accumulates_in_float32() -> None:
    for name in ("float16", "bfloat16"):
        ones = np.ones((1, 4096)).astype(dtypes.as_dtype(name).numpy)
        assert (
            float(one("matmul", ones, ones.T.copy())[0, 0]) == 4096.0
        )  # bfloat16 sums stop at 256


# -- type rules ------------------------------------------------------------------------------------

SYMBOLIC: list[tuple[str, list[TensorType], dict[str, Any], str]] = [
    ("reshape", [f32(B, 28, 28)], {"shape": (B, 784)}, "f32[b,784]"),
    ("reshape", [f32(B, 2)], {"shape": (6,)}, "f32[6]"),
    ("reshape", [f32(None, 2)], {"shape": (B * 2,)}, "f32[2*b]"),
    ("permute_dims", [f32(B, None, 3)], {"axes": (2, 0, 1)}, "f32[3,b,?]"),
    ("broadcast_to", [f32(1, B)], {"shape": (C, 7, B)}, "f32[c,7,b]"),
    ("broadcast_to", [f32(B)], {"shape": (5,)}, "f32[5]"),
    ("concat", [f32(B, 3), f32(C, 3), f32(2, 3)], {"axis": 0}, "f32[b+c+2,3]"),
    ("concat", [f32(B, None), f32(4, B), f32(None, 3)], {"axis": 0}, "f32[?,3]"),
    ("pad", [f32(B, 2), f32()], {"lo": (1, 0), "hi": (2, 0)}, "f32[b+3,2]"),
    ("pad", [f32(None), f32()], {"lo": (1,), "hi": (2,)}, "f32[?]"),
    ("slice", [f32(B)], {"starts": (1,), "stops": (B,), "steps": (1,)}, "f32[b-1]"),
    ("slice", [f32(B)], {"starts": (B - 1,), "stops": (-1,), "steps": (-1,)}, "f32[b]"),
    ("slice", [f32(B * 4)], {"starts": (0,), "stops": (B * 4,), "steps": (2,)}, "f32[2*b]"),
    ("slice", [f32(B)], {"starts": (0,), "stops": (B,), "steps": (2,)}, "f32[div(b+1,2)]"),
    ("slice", [f32(B)], {"starts": (B - 3,), "stops": (B,), "steps": (2,)}, "f32[2]"),
    ("slice", [f32(None)], {"starts": (0,), "stops": (None,), "steps": (1,)}, "f32[?]"),
    (
        "slice_update",
        [f32(B), f32(B - 1)],
        {"starts": (1,), "stops": (B,), "steps": (1,)},
        "f32[b]",
    ),
    ("iota", [], {"dtype": dtypes.int32, "shape": (B, 2), "axis": 0}, "i32[b,2]"),
    ("dim_size", [f32(B, 2)], {"axis": 0}, "i64[]"),
    ("take", [f32(B, 3), i64(C, 2)], {"axis": 0}, "f32[c,2,3]"),
    ("take", [f32(4, B), i64()], {"axis": 0}, "f32[b]"),
    ("index_add", [f32(B, 3), i64(C), f32(C, 3)], {"axis": 0}, "f32[b,3]"),
    ("first_occurrence", [TensorType(dtypes.int8, (C,))], {"size": 9}, "i64[c]"),
    ("take_along_axis", [f32(B, 3), i64(4, C)], {"axis": 1}, "f32[4,c]"),
    ("scatter_along_axis_add", [f32(B, 3), i64(B, 1), f32(B, 1)], {"axis": 1}, "f32[b,3]"),
    ("gather_nd", [f32(B, C, 3), i64(5, 2)], {}, "f32[5,3]"),
    ("gather_nd", [f32(2, C, 3), i64(B, 1)], {}, "f32[b,c,3]"),
    ("scatter_nd_add", [f32(B, 3), i64(C, 1), f32(C, 3)], {}, "f32[b,3]"),
    ("matmul", [f32(B, 784), f32(784, 10)], {}, "f32[b,10]"),
    ("matmul", [f32(B, 784), f32(B, 10)], {"transpose_a": True}, "f32[784,10]"),
    ("matmul", [f32(B, 1, 2, 3), f32(C, None, 3)], {"transpose_b": True}, "f32[b,c,2,?]"),
]


@pytest.mark.parametrize(("op", "types", "attrs", "wanted"), SYMBOLIC)
def test_symbolic_types(
    op: str, types: list[TensorType], attrs: dict[str, Any], wanted: str
) -> None:
    assert infer(op, *types, **attrs) == wanted


def i32(*dims: Dim) -> TensorType:
    return TensorType(dtypes.int32, dims)


CUT = {"starts": (0,), "stops": (2,), "steps": (1,)}
REFUSED: list[tuple[str, list[TensorType], dict[str, Any], type[WeftError], str]] = [
    (
        "reshape",
        [f32(2, 3)],
        {"shape": (7,)},
        ShapeError,
        "f32[2,3] has 6 elements, shape [7] has 7",
    ),
    ("reshape", [f32(2, 3)], {"shape": (-1,)}, ShapeError, "negative dimension"),
    ("permute_dims", [f32(2, 3)], {"axes": (0, 0)}, ShapeError, "no permutation"),
    ("broadcast_to", [f32(2, 3)], {"shape": (3,)}, ShapeError, "does not broadcast to [3]"),
    ("broadcast_to", [f32(2)], {"shape": (3,)}, ShapeError, "f32[2] does not broadcast to [3]"),
    ("concat", [], {"axis": 0}, TypeRuleError, "at least one"),
    ("concat", [f32(2), i32(2)], {"axis": 0}, TypeRuleError, "one dtype, got (f32[2], i32[2])"),
    ("concat", [f32(2, 3), f32(2, 4)], {"axis": 0}, ShapeError, "differ outside axis 0"),
    ("concat", [f32(2), f32(2, 3)], {"axis": 0}, ShapeError, "differ outside axis 0"),
    ("concat", [f32(2)], {"axis": 1}, ShapeError, "axis 1 is not an axis"),
    ("concat", [f32(2)], {"axis": -1}, ShapeError, "axis -1 is not an axis"),
    ("pad", [f32(2), f32(1)], {"lo": (0,), "hi": (0,)}, ShapeError, "the fill value has shape [1]"),
    ("pad", [f32(2), i32()], {"lo": (0,), "hi": (0,)}, TypeRuleError, "one dtype"),
    (
        "pad",
        [f32(2), f32()],
        {"lo": (-1,), "hi": (0,)},
        ShapeError,
        "one number >= 0 for each axis",
    ),
    ("pad", [f32(2), f32()], {"lo": (0, 0), "hi": (0,)}, ShapeError, "for each axis of f32[2]"),
    ("slice", [f32(1)], CUT, InvalidArgumentError, "stop 2 is out of bounds for axis 0 of size 1"),
    (
        "slice",
        [f32(3)],
        {**CUT, "starts": (-1,)},
        InvalidArgumentError,
        "start -1 is out of bounds",
    ),
    ("slice", [f32(3)], {**CUT, "steps": (0,)}, ShapeError, "no step 0"),
    ("slice", [f32(3, 3)], CUT, ShapeError, "one entry for each axis of [3,3]"),
    (
        "slice",
        [f32(3)],
        {**CUT, "starts": (3,), "steps": (-1,)},
        InvalidArgumentError,
        "start 3 is out of",
    ),
    ("slice_update", [f32(3), f32(3)], CUT, ShapeError, "the update has shape [3], needs [2]"),
    ("slice_update", [f32(3), i32(2)], CUT, TypeRuleError, "one dtype"),
    ("iota", [], {"dtype": dtypes.bool_, "shape": (2,), "axis": 0}, TypeRuleError, "makes numbers"),
    (
        "iota",
        [],
        {"dtype": dtypes.int8, "shape": (), "axis": 0},
        ShapeError,
        "axis 0 is not an axis",
    ),
    ("dim_size", [f32()], {"axis": 0}, ShapeError, "axis 0 is not an axis"),
    ("take", [f32(3), f32(2)], {"axis": 0}, TypeRuleError, "indices must be integers, got f32[2]"),
    ("take", [f32(3), i64(2)], {"axis": 1}, ShapeError, "axis 1 is not an axis"),
    (
        "index_add",
        [f32(3), i64(2), f32(3)],
        {"axis": 0},
        ShapeError,
        "updates has shape [3], needs [2]",
    ),
    ("index_add", [f32(3), i64(2), i32(2)], {"axis": 0}, TypeRuleError, "one dtype"),
    ("take_along_axis", [f32(3, 2), i64(4, 3)], {"axis": 0}, ShapeError, "needs [4,2]"),
    ("take_along_axis", [f32(3, 2), i64(4)], {"axis": 0}, ShapeError, "has shape [4], needs [3,2]"),
    (
        "scatter_along_axis_add",
        [f32(3), i64(2), f32(1)],
        {"axis": 0},
        ShapeError,
        "updates has shape [1], needs [2]",
    ),
    ("gather_nd", [f32(3), i64(5, 2)], {}, ShapeError, "at most the rank of f32[3]"),
    ("gather_nd", [f32(3), i64(B)], {}, ShapeError, "must be a known size"),
    ("gather_nd", [f32(3), i64()], {}, ShapeError, "must be a known size"),
    ("scatter_nd_add", [f32(3), i64(5, 1), f32(4)], {}, ShapeError, "has shape [4], needs [5]"),
    ("matmul", [f32(3), f32(3, 2)], {}, ShapeError, "rank 2 or more, got f32[3] and f32[3,2]"),
    ("matmul", [f32(2, 3), f32(2, 3)], {}, ShapeError, "do not fit: 3 columns, 2 rows"),
    (
        "matmul",
        [f32(2, 3), f32(4, 3)],
        {"transpose_a": True},
        ShapeError,
        "f32[2,3]^T and f32[4,3]",
    ),
    ("matmul", [f32(2, 3), i32(3, 2)], {}, TypeRuleError, "one dtype"),
    ("matmul", [f32(2, 2, 3), f32(3, 3, 2)], {}, ShapeError, "batch dimensions of"),
]


@pytest.mark.parametrize(("op", "types", "attrs", "error", "message"), REFUSED)
def test_type_errors(
    op: str, types: list[TensorType], attrs: dict[str, Any], error: type[WeftError], message: str
) -> None:
    with pytest.raises(error) as caught:
        infer(op, *types, **attrs)
    assert message in str(caught.value)
    assert f"op '{op}'" in str(caught.value)


@pytest.mark.parametrize("op", ["index_add", "scatter_along_axis_add"])
def test_bools_do_not_add(op: str) -> None:
    flags = TensorType(dtypes.bool_, (2,))
    with pytest.raises(TypeRuleError, match="numeric"):
        infer(op, flags, i64(2), flags, axis=0)


@pytest.mark.parametrize("op", ["scatter_nd_min", "scatter_nd_max"])
def test_complex_numbers_have_no_order(op: str) -> None:
    z = TensorType(dtypes.complex64, (2,))
    with pytest.raises(TypeRuleError, match="real"):
        infer(op, z, i64(2, 1), z)


def test_matmul_refuses_bools() -> None:
    flags = TensorType(dtypes.bool_, (2, 2))
    with pytest.raises(TypeRuleError, match="numeric"):
        infer("matmul", flags, flags)
