"""Reductions, sorting and random bits: references against plain Python, and type rules."""

import bisect
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.ir import dtypes
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import OPS
from weft.ir.ops.random import threefry2x32
from weft.ir.types import tensor_type

pytestmark = pytest.mark.filterwarnings("error")

NUMERIC = tuple(d for d in dtypes.ALL if d.is_numeric)
REAL = tuple(d for d in NUMERIC if not d.is_complex)
HALVES = (dtypes.float16, dtypes.bfloat16)
AXES = [(), (0,), (1,), (0, 2), (0, 1, 2)]
FOLDS = {"sum": sum, "prod": math.prod, "max": max, "min": min, "all": all, "any": any}


def run(name: str, *arrays: np.ndarray, **attrs: object) -> np.ndarray:
    (out,) = evaluate_op(name, arrays, attrs)
    return out


def cube(dtype: DType) -> np.ndarray:
    """A 2 x 3 x 4 array; integers are large enough for sums and products to wrap around."""
    rng = np.random.default_rng(3)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max, (2, 3, 4), dtype=dtype.numpy, endpoint=True)
    values = rng.uniform(-2, 2, (2, 3, 4))
    if dtype.is_complex:
        values = values + 1j * rng.uniform(-2, 2, (2, 3, 4))
    return values.astype(dtype.numpy) if dtype.kind != "bool" else values > 0.3


def exact(x: np.ndarray) -> np.ndarray:
    """The elements as Python numbers, integers without bounds."""
    return x.astype(np.float64).astype(object) if x.dtype in _HALF_TYPES else x.astype(object)


_HALF_TYPES = tuple(d.numpy for d in HALVES)


def compare(got: np.ndarray, wanted: np.ndarray, dtype: DType) -> None:
    """Equal modulo 2**bits for integers; to rounding for the others."""
    assert got.shape == wanted.shape
    if dtype.is_integer:
        assert not np.any((got.astype(object) - wanted) % 2**dtype.bits)
    elif dtype.kind == "bool":
        assert (got == wanted).all()
    else:
        wide = np.complex128 if dtype.is_complex else np.float64
        limit = {dtypes.float16: 2**-10, dtypes.bfloat16: 2**-7, dtypes.float32: 1e-6}.get(dtype)
        limit = limit or (1e-6 if dtype is dtypes.complex64 else 1e-14)
        np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=limit, atol=limit)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", list(FOLDS))
def test_reductions_fold_the_elements(name: str, axes: tuple[int, ...], keepdims: bool) -> None:
    legal = {"sum": NUMERIC, "prod": NUMERIC, "max": REAL, "min": REAL}.get(name, (dtypes.bool_,))
    for dtype in legal:
        x = cube(dtype)
        kept = [range(1) if i in axes else range(n) for i, n in enumerate(x.shape)]
        wanted = np.empty(tuple(map(len, kept)), object)
        for index in itertools.product(*kept):
            where = tuple(slice(None) if i in axes else j for i, j in enumerate(index))
            wanted[index] = FOLDS[name](np.ravel(exact(x)[where]).tolist())
        if not keepdims:
            wanted = wanted.reshape([n for i, n in enumerate(x.shape) if i not in axes])
        compare(run(name, x, axes=axes, keepdims=keepdims), wanted, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_halves_accumulate_in_float32(dtype: DType) -> None:
    ones = np.ones(5000, dtype.numpy)  # adding 1 to 2048 (f16) or 256 (bf16) changes nothing
    assert float(run("sum", ones, axes=(0,))) == float(np.array(5000).astype(dtype.numpy))
    running = run("cumulative_sum", ones, axis=0)
    assert float(running[-1]) == float(np.array(5000).astype(dtype.numpy))
    big = np.array([60000, 60000, -60000], dtype.numpy)  # the sum passes through inf in f16
    assert float(run("sum", big, axes=(0,))) == float(big[0])


def test_extrema_propagate_nan_and_positions_find_the_first() -> None:
    for dtype in (*HALVES, dtypes.float32, dtypes.float64):
        x = np.array([[1, math.nan, 3, math.nan], [4, -1, 4, -1]], dtype.numpy)
        for name in ("max", "min"):
            got = run(name, x, axes=(1,)).astype(np.float64)
            np.testing.assert_array_equal(got, [math.nan, 4 if name == "max" else -1])
        assert run("argmax", x, axis=1).tolist() == [1, 0]
        assert run("argmin", x, axis=1, keepdims=True).tolist() == [[1], [1]]
        np.testing.assert_array_equal(
            run("cumulative_max", x, axis=1).astype(np.float64)[0], [1] + [math.nan] * 3
        )


@pytest.mark.parametrize("dtype", [dtypes.bool_, *REAL], ids=lambda d: d.name)
def test_positions_of_every_dtype(dtype: DType) -> None:
    x = cube(dtype)
    for axis in range(3):
        for name, choose in (("argmax", max), ("argmin", min)):
            wanted = np.apply_along_axis(
                lambda v, f=choose: v.tolist().index(f(v.tolist())), axis, exact(x)
            )
            got = run(name, x, axis=axis)
            assert got.dtype == np.int64
            assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("name", "step"),
    [("sum", lambda a, b: a + b), ("prod", lambda a, b: a * b), ("max", max), ("min", min)],
)
def test_running_reductions(name: str, step: Callable[[Any, Any], Any], reverse: bool) -> None:
    for dtype in NUMERIC if name in ("sum", "prod") else REAL:
        x = cube(dtype)
        for axis in range(3):
            rows = np.moveaxis(exact(x), axis, -1)
            wanted = np.empty(rows.shape, object)
            for index in np.ndindex(rows.shape[:-1]):
                row = rows[index].tolist()[:: -1 if reverse else 1]
                wanted[index] = list(itertools.accumulate(row, step))[:: -1 if reverse else 1]
            got = run(f"cumulative_{name}", x, axis=axis, reverse=reverse)
            compare(np.moveaxis(got, axis, -1), wanted, dtype)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_logsumexp(reverse: bool) -> None:
    """As JAX's cumlogsumexp, where exp(x) itself is inf or 0."""
    inf = math.inf
    x = np.array([[1000.0, 1001.0, 0.0], [-inf, -inf, 2.0], [-800.0, -800.0, -inf]])
    rows = x[:, ::-1] if reverse else x
    wanted = np.logaddexp.accumulate(rows, axis=1)
    wanted = wanted[:, ::-1] if reverse else wanted
    got = run("cumulative_logsumexp", x, axis=1, reverse=reverse)
    np.testing.assert_allclose(got, wanted, rtol=1e-15)
    assert got[1].tolist() == ([2, 2, 2] if reverse else [-inf, -inf, 2])


def test_reducing_nothing() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert run("sum", empty, axes=(0,)).tolist() == [0, 0, 0]
    assert run("prod", empty, axes=(0, 1)) == 1
    assert run("all", empty > 0, axes=(0, 1))
    assert not run("any", empty > 0, axes=(0, 1))
    assert run("max", empty, axes=(1,)).shape == (0,)
    assert run("cumulative_max", empty, axis=0).shape == (0, 3)
    assert run("cumulative_logsumexp", empty, axis=0).shape == (0, 3)
    for name, attrs in (
        ("max", {"axes": (0,)}),
        ("min", {"axes": (0, 1)}),
        ("argmax", {"axis": 0}),
    ):
        with pytest.raises(ShapeError, match=f"op '{name}' has no value over no elements"):
            run(name, empty, **attrs)


def test_shapes_keep_symbols() -> None:
    b = SymbolicDim.symbol("b")
    given = [tensor_type(dtypes.float32, "b", 3, None)]

    def shape(name: str, **attrs: object) -> object:
        (result,) = OPS[name].infer(given, {"keepdims": False, "reverse": False, **attrs}, ())
        return result.shape

    assert shape("sum", axes=(1,)) == (b, None)
    assert shape("max", axes=(0, 2), keepdims=True) == (1, 3, 1)
    assert shape("argmin", axis=2) == (b, 3)
    assert shape("cumulative_prod", axis=0) == (b, 3, None)
    assert shape("sort", axis=2) == (b, 3, None)


@pytest.mark.parametrize("axes", [(2,), (-1,), (1, 0), (0, 0)], ids=str)
def test_axes_must_be_normalised(axes: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"op 'sum': axes .* do not fit a f32\[2,3\]"):
        run("sum", np.zeros((2, 3), np.float32), axes=axes)
    for name in ("argmax", "cumulative_sum", "sort", "argsort"):
        with pytest.raises(ShapeError, match=f"op '{name}'"):
            run(name, np.zeros(3, np.float32), axis=-1)


@pytest.mark.parametrize(
    ("name", "attrs", "dtype", "hint"),
    [
        ("sum", {"axes": (0,)}, dtypes.bool_, "wf.astype"),
        ("prod", {"axes": (0,)}, dtypes.bool_, "wf.all"),
        ("max", {"axes": (0,)}, dtypes.bool_, "wf.any"),
        ("max", {"axes": (0,)}, dtypes.complex64, "wf.abs"),
        ("any", {"axes": (0,)}, dtypes.int32, "x != 0"),
        ("argmax", {"axis": 0}, dtypes.complex128, "wf.abs"),
        ("cumulative_sum", {"axis": 0}, dtypes.bool_, "wf.astype"),
        ("sort", {"axis": 0}, dtypes.complex64, "wf.abs"),
        ("argsort", {"axis": 0}, dtypes.string, "strings"),
    ],
)
def test_dtypes_outside_the_rule(name: str, attrs: dict[str, Any], dtype: DType, hint: str) -> None:
    given = tensor_type(dtype, 4)
    with pytest.raises(TypeRuleError) as error:
        OPS[name].infer(
            [given], {"keepdims": False, "reverse": False, "descending": False} | attrs, ()
        )
    assert f"op '{name}'" in error.value.what
    assert str(given) in error.value.what
    assert hint in error.value.hint


def _before(descending: bool, a: float, b: float) -> int:
    # NaN is the largest number
    ka, kb = ((math.isnan(v), 0.0 if math.isnan(v) else v) for v in (a, b))
    sign = (ka > kb) - (ka < kb)
    return -sign if descending else sign


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.bool_, *REAL], ids=lambda d: d.name)
def test_sorting_is_stable_with_nan_as_the_largest(dtype: DType, descending: bool) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 5, (3, 40)).astype(np.float64)
    if dtype.is_floating:
        values[rng.uniform(size=values.shape) < 0.2] = math.nan
        values[(values == 0) & (rng.uniform(size=values.shape) < 0.5)] = -0.0
    x = values.astype(dtype.numpy)
    key = functools.cmp_to_key(functools.partial(_before, descending))
    order = run("argsort", x, axis=1, descending=descending)
    assert order.dtype == np.int64
    for row, got in zip(x.astype(np.float64).tolist(), order, strict=True):
        keys = list(map(key, row))  # sorted() is stable
        assert got.tolist() == sorted(range(40), key=keys.__getitem__)
    by_order = np.take_along_axis(x, order, 1)
    assert run("sort", x, axis=1, descending=descending).tobytes() == by_order.tobytes()
    across = run("sort", np.ascontiguousarray(x.T), axis=0, descending=descending)
    assert np.ascontiguousarray(across.T).tobytes() == by_order.tobytes()


@pytest.mark.parametrize("dtype", [dtypes.bool_, *REAL], ids=lambda d: d.name)
def test_searchsorted_is_bisection(dtype: DType) -> None:
    data = np.sort(np.random.default_rng(7).integers(0, 9, 20)).astype(dtype.numpy)
    values = np.arange(12).reshape(3, 4).astype(dtype.numpy)
    for side, search in (("left", bisect.bisect_left), ("right", bisect.bisect_right)):
        got = run("searchsorted", data, values, side=side)
        wanted = [[search(exact(data).tolist(), v) for v in row] for row in exact(values).tolist()]
        assert got.dtype == np.int64
        assert got.tolist() == wanted
        assert run("searchsorted", data, values[0, 0], side=side).shape == ()


def test_searchsorted_errors() -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(ShapeError, match="data of rank 1"):
        run("searchsorted", np.zeros((2, 3), np.float32), x)
    with pytest.raises(TypeRuleError, match="one dtype"):
        run("searchsorted", x, x.astype(np.float64))
    with pytest.raises(TypeRuleError, match="'middle'"):
        run("searchsorted", x, x, side="middle")


def u32(*words: int) -> np.ndarray:
    return np.array(words, np.uint32)


@pytest.mark.parametrize(
    ("key", "counter", "block"),
    [  # Random123's kat_vectors for threefry2x32 with 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(
    key: tuple[int, int], counter: tuple[int, int], block: tuple[int, int]
) -> None:
    words = threefry2x32(u32(*key), u32(counter[0]), u32(counter[1]))
    assert tuple(int(w[0]) for w in words) == block


def test_random_bits_lie_in_counter_order() -> None:
    key = u32(12345, 678)
    bits = run("random_bits", key, shape=(3, 5, 7))
    flat = bits.ravel()
    for i in (0, 1, 2, 51, 104):
        block = threefry2x32(key, u32(i >> 1), u32(0))
        assert flat[i] == block[i & 1][0]
    # any prefix is the same stream, of odd length too; a scalar is its first word
    assert run("random_bits", key, shape=(33,)).tolist() == flat[:33].tolist()
    assert run("random_bits", key, shape=()) == flat[0]
    assert run("random_bits", key, shape=(0, 4)).shape == (0, 4)
    assert run("random_bits", u32(0, 0), shape=(2,)).tolist() == [0x6B200159, 0x99BA4EFE]


def test_random_bits_are_even_in_every_position() -> None:
    bits = run("random_bits", u32(1, 2), shape=(1 << 16,))
    for i in range(32):
        ones = int(((bits >> np.uint32(i)) & np.uint32(1)).sum())
        assert abs(ones - (1 << 15)) < 5 * 128  # five standard deviations


def test_fold_in_is_one_block() -> None:
    key = u32(3, 4)
    folded = run("random_fold_in", key, np.array(9, np.uint32))
    assert folded.tolist() == [int(w[0]) for w in threefry2x32(key, u32(9), u32(0))]
    streams = {run("random_fold_in", key, np.array(i, np.uint32)).tobytes() for i in range(1000)}
    assert len(streams) == 1000


def test_random_type_rules() -> None:
    with pytest.raises(TypeRuleError, match=r"(?s)got \(i64\[2\]\).*wf\.random\.key"):
        run("random_bits", np.zeros(2, np.int64), shape=(3,))
    with pytest.raises(ShapeError, match="the key"):
        run("random_bits", u32(1, 2, 3), shape=(3,))
    with pytest.raises(ShapeError, match="the data"):
        run("random_fold_in", u32(1, 2), u32(3))
    (symbolic,) = OPS["random_bits"].infer(
        [tensor_type(dtypes.uint32, 2)], {"shape": (SymbolicDim.symbol("b"), 3)}, ()
    )
    assert symbolic == tensor_type(dtypes.uint32, "b", 3)
