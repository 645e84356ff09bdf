"""Compiled code against the interpreter: sums, matmul, random bits, chains, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_checks import ELEMENTWISE, PIPELINE, Case, allowed_dtypes, check, check_sum, plain
from shares import usual

import weft as wf
from weft.codegen.scalar.elementwise import supported
from weft.ir import dtypes
from weft.ir.dtypes import ALL, DType
from weft.ir.errors import UnsupportedError
from weft.ir.types import TensorType, tensor_type
from weft.passes.fusion.fuse import fuse
from weft.runtime.native.executable import compile_graph

Array = np.ndarray[Any, Any]

NATIVE = [d for d in ALL if d is not dtypes.string]
NUMERIC = [d for d in NATIVE if d.is_numeric]
REAL = [d for d in NATIVE if d.is_numeric and not d.is_complex]
by_name = pytest.mark.parametrize


class TestReductions:
    """Reductions over every set of axes; running reductions; scatters that add."""

    @pytest.mark.share(4)
    @by_name("dtype", usual(NATIVE), ids=str)
    def test_reductions(self, dtype: DType) -> None:
        for shape in ((5, 7), (3, 4, 5), (1, 9), (0, 3), (6, 0), ()):
            case = Case()
            rows = []
            for name in ("sum", "prod", "max", "min", "all", "any"):
                if dtype not in allowed_dtypes(name):
                    continue
                for axes in subsets(len(shape)):
                    if name in ("max", "min") and 0 in shape:
                        continue
                    x = plain(dtype, shape, len(axes) + 1, scale=1.0)
                    case.op(name, case.input(x), axes=axes, keepdims=len(axes) == 1)
                    rows.append((name, x, axes))
            for (label, got, wanted), (name, x, axes) in zip(case.run(), rows, strict=True):
                check_reduction(f"{label} {shape} {axes}", name, x, axes, got, wanted)

    @by_name("dtype", [d for d in REAL if d.is_floating], ids=str)
    def test_special_values(self, dtype: DType) -> None:
        case = Case()
        for k, values in enumerate(([np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [-0.0, 0.0])):
            x = plain(dtype, (37,), k)
            x[5 : 5 + len(values)] = values
            for name in ("sum", "prod", "max", "min"):
                case.op(name, case.input(x), axes=(0,), keepdims=False)
        for label, got, wanted in case.run():
            check(label, got, wanted, 64)

    @pytest.mark.share(2)
    @by_name("dtype", [d for d in NUMERIC if d.is_inexact], ids=str)
    def test_long_sums(self, dtype: DType) -> None:
        case = Case()
        for shape, axes in (((70_001,), (0,)), ((3, 9000), (1,)), ((4100, 3), (0,))):
            x = plain(dtype, shape, 1, scale=1.0)
            case.op("sum", case.input(x), axes=axes, keepdims=False)
            ((label, got, wanted),) = case.run()[-1:]
            check_reduction(label, "sum", x, axes, got, wanted)

    @pytest.mark.share(4)
    @by_name("dtype", usual(NUMERIC), ids=str)
    def test_running(self, dtype: DType) -> None:
        case = Case()
        rows = []
        for shape in ((5, 7), (1, 3), (0, 2), (41,)):
            for axis in range(len(shape)):
                for name in ("sum", "prod", "max", "min", "logsumexp"):
                    if dtype in allowed_dtypes(f"cumulative_{name}"):
                        x = plain(dtype, shape, axis, scale=1.0)
                        value, reverse = case.input(x), axis == 0
                        case.op(f"cumulative_{name}", value, axis=axis, reverse=reverse)
                        rows.append((name, x, axis))
        for (label, got, wanted), (name, x, axis) in zip(case.run(), rows, strict=True):
            if name in ("max", "min") or not dtype.is_inexact:
                check(label, got, wanted)
            else:
                work = np.abs(x).astype(np.float64)
                bound = np.cumsum(work, axis)[..., ::-1].max() if name == "sum" and x.size else 0
                if name in ("prod", "logsumexp"):
                    bound = np.abs(wanted.astype(np.complex128)) + (name == "logsumexp")
                check_sum(label, got, wanted, bound + 0 * np.abs(got).astype(float), x.shape[axis])

    @pytest.mark.share(2)
    @by_name("dtype", usual(NUMERIC), ids=str)
    def test_scatters(self, dtype: DType) -> None:
        case = Case()
        rng = np.random.default_rng(3)
        x = case.input(plain(dtype, (5, 4), 1))
        picks = case.input(rng.integers(-5, 5, (7,)))
        case.op("index_add", x, picks, case.input(plain(dtype, (7, 4), 2)), axis=0)
        along = case.input(rng.integers(-4, 4, (5, 6)))
        updates = case.input(plain(dtype, (5, 6), 3))
        case.op("scatter_along_axis_add", x, along, updates, axis=1)
        rows = case.input(rng.integers(0, 4, (8, 2)))
        values = case.input(plain(dtype, (8,), 4))
        for name in ("scatter_nd_add", "scatter_nd_min", "scatter_nd_max"):
            if dtype in allowed_dtypes(name):
                case.op(name, x, rows, values)
        for label, got, wanted in case.run():
            check(label, got, wanted)  # updates are applied one after another, in order, in both


def subsets(rank: int) -> list[tuple[int, ...]]:
    """Every set of axes."""
    return [tuple(k for k in range(rank) if mask >> k & 1) for mask in range(1 << rank)]


def check_reduction(
    label: str, name: str, x: Array, axes: tuple[int, ...], got: Array, wanted: Array
) -> None:
    if name not in ("sum", "prod") or got.dtype.kind in "biu":
        check(label, got, wanted)
        return
    terms = int(np.prod([x.shape[a] for a in axes]))
    wide = np.abs(x.astype(np.complex128))
    fold = np.sum if name == "sum" else np.prod
    size = np.asarray(fold(wide, axis=axes, keepdims=got.ndim == x.ndim and bool(axes)))
    check_sum(label, got, wanted, size.reshape(got.shape), terms)


class TestMatmul:
    @pytest.mark.share(4)
    @by_name("dtype", usual(NUMERIC), ids=str)
    def test_all_forms(self, dtype: DType) -> None:
        case = Case()
        pairs = []
        shapes = [((3, 4), (4, 5)), ((1, 1), (1, 1)), ((17, 33), (33, 9)), ((2, 0), (0, 3))]
        shapes += [((0, 3), (3, 2)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))]
        shapes += [((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 5)), ((0, 3, 4), (1, 4, 5))]
        for a_shape, b_shape in shapes:
            for ta in (False, True):
                for tb in (False, True):
                    a, b = plain(dtype, a_shape, 1), plain(dtype, b_shape, 2)
                    a = np.ascontiguousarray(a.swapaxes(-1, -2)) if ta else a
                    b = np.ascontiguousarray(b.swapaxes(-1, -2)) if tb else b
                    flags = {"transpose_a": ta, "transpose_b": tb}
                    label = f"matmul {a_shape} {b_shape} {ta} {tb}"
                    case.op("matmul", case.input(a), case.input(b), label=label, **flags)
                    pairs.append((a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b))
        for (label, got, wanted), (a, b) in zip(case.run(), pairs, strict=True):
            if not dtype.is_inexact:
                check(label, got, wanted)
                continue
            size = np.abs(a.astype(np.complex128)) @ np.abs(b.astype(np.complex128))
            check_sum(label, got, wanted, size, a.shape[-1])


class TestRandom:
    @by_name("shape", [(), (0,), (1,), (7, 3), (1000,)], ids=str)
    def test_bits(self, shape: tuple[int, ...]) -> None:
        case = Case()
        key = case.input(np.array([7, 2**32 - 1], np.uint32))
        case.op("random_bits", key, shape=shape)
        folded = case.op("random_fold_in", key, case.input(np.array(5, np.uint32)))
        case.op("random_bits", folded, shape=shape)
        for label, got, wanted in case.run():
            check(label, got, wanted)


class TestChains:
    """Fused chains: 16-bit floats stay in f32 between ops and are rounded once, at the store."""

    @by_name("dtype", [d for d in NATIVE if d.is_floating], ids=str)
    def test_softmax_of_rows(self, dtype: DType) -> None:
        case = Case()
        x = case.input(plain(dtype, (9, 37), 1, scale=0.5))
        top = case.hidden("max", x, axes=(1,), keepdims=True)
        moved = case.hidden("subtract", x, case.hidden("broadcast_to", top, shape=(9, 37)))
        e = case.hidden("exp", moved)
        total = case.hidden("sum", e, axes=(1,), keepdims=True)
        case.op("divide", e, case.hidden("broadcast_to", total, shape=(9, 37)))
        for passes in ((fuse,), PIPELINE):
            ((label, got, wanted),) = case.run(passes)
            check(label, got, wanted, 16 if dtype.bits == 16 else 64)

    @by_name("dtype", [d for d in NATIVE if d.is_floating], ids=str)
    def test_one_rounding(self, dtype: DType) -> None:
        """(x * x + x) / 3: three roundings in the interpreter, one in a fused 16-bit chain."""
        case = Case()
        value = np.abs(plain(dtype, (101,), 1)) + np.ones((), dtype.numpy)
        x = case.input(value.astype(dtype.numpy))
        third = case.input(np.full((101,), 3, dtype.numpy))
        case.op("divide", case.hidden("add", case.hidden("multiply", x, x), x), third)
        ((label, got, wanted),) = case.run()
        check(label, got, wanted, 2)


class TestUnsupported:
    """What has no native code is refused when the graph is compiled, at the user's line."""

    def test_strings(self) -> None:
        case = Case()
        x = case.builder.add_arg(plain_type(dtypes.string))
        case.results = [x]
        with pytest.raises(UnsupportedError, match="string"):
            compile_graph(case.graph(), {}, passes=(fuse,))

    @by_name("name", ["equal", "concat", "reshape", "slice"])
    def test_string_ops(self, name: str) -> None:
        case = Case()
        attrs: dict[str, dict[str, Any]] = {
            "equal": {}, "concat": {"axis": 0}, "reshape": {"shape": (1, 2)},
            "slice": {"starts": (0,), "stops": (2,), "steps": (1,)},
        }  # fmt: skip
        x = case.builder.add_arg(plain_type(dtypes.string))
        case.op(name, *[x] * (2 if name in ("equal", "concat") else 1), **attrs[name])
        with pytest.raises(UnsupportedError, match=r"string\[2\]"):
            compile_graph(case.graph(), {}, passes=(fuse,))

    def test_symbolic_dims(self) -> None:
        case = Case()
        case.results = [case.builder.add_arg(tensor_type(dtypes.float32, "b"))]
        with pytest.raises(UnsupportedError, match="without a size"):
            compile_graph(case.graph(), {}, passes=(fuse,))

    def test_every_pair_has_native_code(self) -> None:
        special = ("astype", "bitcast", "where")
        pairs = [(n, d) for n in ELEMENTWISE if n not in special for d in allowed_dtypes(n)]
        missing = [(n, d.name) for n, d in pairs if d in NATIVE and not supported(n, d.short)]
        assert not missing


def plain_type(dtype: DType) -> Any:
    return TensorType(dtype, (2,))


@pytest.mark.share(8)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("length", [5, 300])
def test_what_is_added_up_is_not_cancelled(dtype: str, axis: int | None, length: int) -> None:
    """x - x is NaN where x is not finite: LLVM may reorder a sum, not what is summed."""
    x = np.ones((3, length), dtype)
    x[0, 0], x[2, 4] = np.inf, np.nan
    terms: list[Any] = [
        lambda v: v - v,
        lambda v: v + (-v),
        lambda v: v * v - wf.square(v),
        lambda v: v * 3.0 - 3.0 * v,
        lambda v: wf.exp(v * 0) * (v - v),
    ]
    expected = np.isnan(np.where(np.isfinite(x), 0, np.nan).sum(axis))
    for term in terms:
        total = wf.compile(lambda v, term=term: wf.sum(term(v), axis=axis))(x)
        np.testing.assert_array_equal(np.isnan(np.asarray(total)), expected)
        assert not np.asarray(total)[~expected].any()
    y = np.full((3, length), 4096, dtype)
    lost = wf.compile(lambda a, b: wf.sum((a + b) - b, axis=axis))(y * 0 + 0.25, y)
    kept = np.asarray((y * 0 + 0.25 + y) - y, np.float64).sum(axis)
    if dtype != "float16":  # a chain in 16 bits rounds when it stores
        np.testing.assert_array_equal(np.asarray(lost), kept)
