"""The table of test_composed_truth.py: for each public function of `wf` that is made of several
ops, calls with random shapes, axes, dtypes and options, and what NumPy, SciPy or a direct sum in
float64 makes of them.

(`wf.nn`, `wf.random`, `wf.train`: composed_nn_truth.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp
from composed_draws import FLOATS, INTS, Drawn, Row, Trial, as_float, named, row, wide

import weft as wf

Array = np.ndarray[Any, Any]
TABLE: dict[str, Row] = {}


def truth(*names: str) -> Callable[[Callable[[Drawn], Trial]], Callable[[Drawn], Trial]]:
    """Put a row into the table, for each of the names; the function is given its own, if it asks
    for two arguments."""

    def put(make: Any) -> Any:
        for name in names:
            if make.__code__.co_argcount == 2:
                TABLE[name] = row(named(make, name))
            else:
                TABLE[name] = row(make)
        return make

    return put


# ---------------------------------------------------------------------------------- elementwise
def _two(d: Drawn, dtypes: Any = ("f8", "f4")) -> tuple[Array, Array]:
    shape = d.shape()
    return d.numbers(d.broadcast(shape), dtypes), d.numbers(d.broadcast(shape), dtypes)


@truth("clip", "clip_by_value")
def _(d: Drawn, name: str) -> Trial:
    shape = d.shape()
    x = d.numbers(shape, ("f8", "f4", "i8"))
    low, high = d.ints(d.broadcast(shape), x.dtype), d.ints(d.broadcast(shape), x.dtype)
    ends = [d.one([low, -2]), d.one([high, 3])]
    if name == "clip":
        ends = [None if d.int(0, 3) == 0 else e for e in ends]
    held = [e for e in ends if e is not None]
    expected = np.asarray(x if not held else np.clip(x, *ends))
    expected = np.broadcast_to(expected, np.broadcast_shapes(*(np.shape(v) for v in (x, *held))))
    return Trial(lambda x: getattr(wf, name)(x, *ends), [x], expected, x.dtype, 0)


@truth("nan_to_num")
def _(d: Drawn) -> Trial:
    dtype = d.one(["f8", "f4", "c16", "i8"])
    shape = d.shape()
    x = d.ints(shape) if dtype == "i8" else d.special(shape, "f8" if dtype == "c16" else dtype)
    if dtype == "c16":
        both = np.empty(shape, dtype)
        both.real[...], both.imag[...] = x, d.special(shape)
        x = both
    special = [None, 7.0, np.inf, -np.inf]
    how = {"nan": d.one([0.0, 2.5, np.inf]), "posinf": d.one(special), "neginf": d.one(special)}
    expected = np.nan_to_num(x, **how)
    return Trial(lambda x: wf.nan_to_num(x, **how), [x], expected, x.dtype, 0)


@truth("sinc", "deg2rad", "rad2deg")
def _(d: Drawn, name: str) -> Trial:
    x = d.floats(d.shape(), d.one(FLOATS), ties=d.bool())
    return Trial(getattr(wf, name), [x], getattr(np, name)(wide(x)), x.dtype, 16, 1.0)


@truth("xlogy", "xlog1py")
def _(d: Drawn, name: str) -> Trial:
    x, y = (np.round(np.abs(v)) for v in _two(d))
    expected = getattr(sp, name)(wide(x), wide(y))
    return Trial(getattr(wf, name), [x, y], expected, np.result_type(x, y), 16)


@truth("isclose")
def _(d: Drawn) -> Trial:
    shape = d.shape()
    x, y = d.special(d.broadcast(shape)), d.special(d.broadcast(shape))
    how = {"rtol": d.one([1e-5, 0.5]), "atol": d.one([0.0, 1e-8, 0.6]), "equal_nan": d.bool()}
    return Trial(lambda x, y: wf.isclose(x, y, **how), [x, y], np.isclose(x, y, **how), "?")


@truth("pow")
def _(d: Drawn) -> Trial:
    x, n = d.numbers(d.shape(), ("f8", "f4", "i8", "c16")), d.one([0, 1, 2, 3, 2.0])
    x = x.astype("f8") if isinstance(n, float) and x.dtype.kind == "i" else x
    return Trial(lambda x: wf.pow(x, n), [x], wide(x) ** n, x.dtype, 32)


@truth("squared_difference")
def _(d: Drawn) -> Trial:
    x, y = _two(d, ("f8", "f4", "i8"))
    dtype = wf.result_type(x, y).numpy
    scale = float(np.abs(wide(x)).max(initial=0) + np.abs(wide(y)).max(initial=0)) ** 2
    call = wf.squared_difference
    return Trial(call, [x, y], (wide(x) - wide(y)) ** 2, dtype, 8, scale)


@truth("where")
def _(d: Drawn) -> Trial:
    shape = d.shape()
    c, x, y = (d.numbers(d.broadcast(shape), t) for t in (("?", "i8"), FLOATS, FLOATS))
    y = d.one([y, 0.5])
    expected = np.where(c, wide(x), wide(y))
    dtype = x.dtype if isinstance(y, float) else np.result_type(x, y)
    return Trial(lambda c, x: wf.where(c, x, y), [c, x], expected, dtype, 1)


@truth("real", "imag", "conj", "positive")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(), ("f8", "f4", "i4", "c16", "c8"))
    expected = getattr(np, name)(x)
    return Trial(getattr(wf, name), [x], expected, expected.dtype, 0)


# ----------------------------------------------------------------------------------- reductions
def _reduced(d: Drawn, dtypes: Any, special: bool = True) -> tuple[Array, dict[str, Any]]:
    shape = d.shape()
    x = d.numbers(shape, dtypes)
    if special and x.dtype.kind == "f" and d.int(0, 3) == 0:
        x = d.special(shape, x.dtype)
    return x, {"axis": d.axes(x.ndim), "keepdims": d.bool()}


def _magnitude(x: Array) -> float:
    """A bound of what a sum over x may be on the way."""
    w = np.abs(wide(x))
    return float(np.sum(w, where=np.isfinite(w)))


@truth("sum", "reduce_sum", "prod", "reduce_prod")
def _(d: Drawn, name: str) -> Trial:
    x, how = _reduced(d, ("f8", "f4", "f2", "c16", "?", *INTS))
    function = np.sum if name.endswith("sum") else np.prod
    if name.startswith("reduce"):
        dtype = np.dtype("i8") if x.dtype.kind == "b" else x.dtype
    else:
        dtype = function(x[:0] if x.ndim else x).dtype if x.dtype.kind in "iub" else x.dtype
    expected = function(wide(x), dtype=None if x.dtype.kind in "fc" else dtype, **how)
    scale = _magnitude(x) if name.endswith("sum") else None
    return Trial(lambda x: getattr(wf, name)(x, **how), [x], expected, dtype, 64, scale)


@truth("max", "min", "reduce_max", "reduce_min")
def _(d: Drawn, name: str) -> Trial:
    x, how = _reduced(d, ("f8", "f4", *INTS))
    if not x.size:
        x = d.special((2, *(max(n, 1) for n in x.shape[1:]))[: x.ndim])
    expected = getattr(np, name.removeprefix("reduce_"))(x, **how)
    return Trial(lambda x: getattr(wf, name)(x, **how), [x], expected, x.dtype, 0)


@truth("all", "any", "reduce_all", "reduce_any", "count_nonzero")
def _(d: Drawn, name: str) -> Trial:
    x, how = _reduced(d, ("?", "i4", "f4"))
    expected = getattr(np, name.removeprefix("reduce_"))(x, **how)
    return Trial(lambda x: getattr(wf, name)(x, **how), [x], expected)


@truth("mean", "reduce_mean", "var", "std")
def _(d: Drawn, name: str) -> Trial:
    x, how = _reduced(d, ("f8", "f4", "f2", "i4", "?", "c16", "c8"), special=False)
    x = x + x.dtype.type(d.one([0, 7])) if x.dtype.kind in "fc" else x
    if name in ("var", "std"):
        correction = d.one([0, 1, 0.5])
        expected = getattr(np, name)(wide(x), ddof=correction, **how)
        dtype = np.zeros((), as_float(x.dtype)).real.dtype
        scale = float(np.abs(wide(x) * 1.0).max(initial=0.0)) ** (2 if name == "var" else 1)
        call = lambda x: getattr(wf, name)(x, correction=correction, **how)  # noqa: E731
        # a root makes what is left of a variance of 0 larger
        tolerance = 64.0 if name == "var" else 512.0
        return Trial(call, [x], expected, dtype, tolerance, scale)
    scale = float(np.abs(wide(x) * 1.0).max(initial=0.0))
    expected = np.mean(wide(x), **how)
    return Trial(lambda x: getattr(wf, name)(x, **how), [x], expected, as_float(x.dtype), 16, scale)


@truth("argmax", "argmin")
def _(d: Drawn, name: str) -> Trial:
    shape = d.shape(empty=False)
    x = d.one([d.special(shape, "f4"), d.ints(shape, "u1", 0, 3)])
    how = {"axis": d.axis(x.ndim) if x.ndim and d.bool() else None, "keepdims": d.bool()}
    expected = getattr(np, name)(x, **how)
    return Trial(lambda x: getattr(wf, name)(x, **how), [x], expected, "i8")


@truth("logsumexp", "reduce_logsumexp")
def _(d: Drawn, name: str) -> Trial:
    x, how = _reduced(d, ("f8", "f4", "f2", "i4"))
    x = x * x.dtype.type(d.one([1, 20]))
    expected = _logsumexp(wide(x) * 1.0, **how)
    return Trial(lambda x: getattr(wf, name)(x, **how), [x], expected, as_float(x.dtype), 16, 1.0)


def _logsumexp(x: Array, axis: Any, keepdims: bool) -> Any:
    """SciPy's, which knows no empty arrays, and no axes of a scalar."""
    if not x.size or not x.ndim:
        return np.log(np.sum(np.exp(x), axis, keepdims=keepdims)) if x.ndim else x
    return sp.logsumexp(x, axis, keepdims=keepdims)


@truth("linalg.vector_norm")
def _(d: Drawn) -> Trial:
    x, how = _reduced(d, ("f8", "f4", "f2", "i4", "c16"), special=False)
    ord = d.one([1, 2, 3, 0.5, 0, np.inf, -np.inf, -1, -2])
    if not x.size and ord in (np.inf, -np.inf):
        ord = 2
    w, axes = np.abs(wide(x) * 1.0), {"axis": how["axis"], "keepdims": how["keepdims"]}
    if abs(ord) == np.inf:
        expected = (np.max if ord > 0 else np.min)(w, **axes)
    elif ord == 0:
        expected = np.sum(w != 0, **axes) * 1.0
    else:
        expected = np.sum(w**ord, **axes) ** (1 / ord)
    dtype = np.zeros((), as_float(x.dtype)).real.dtype
    call = lambda x: wf.linalg.vector_norm(x, ord=ord, **how)  # noqa: E731
    return Trial(call, [x], expected, dtype, 128)


@truth("linalg.matrix_norm")
def _(d: Drawn) -> Trial:
    ord, keepdims = d.one(["fro", 1, -1, np.inf, -np.inf]), d.bool()
    x = d.numbers(d.shape(2, 3, empty=ord == "fro"), ("f8", "f4", "c16"))
    expected = np.linalg.norm(wide(x), ord=ord, axis=(-2, -1), keepdims=keepdims)
    call = lambda x: wf.linalg.matrix_norm(x, ord=ord, keepdims=keepdims)  # noqa: E731
    return Trial(call, [x], expected, np.zeros((), x.dtype).real.dtype, 32)


@truth("cumulative_sum", "cumulative_prod")
def _(d: Drawn, name: str) -> Trial:
    x, initial = d.numbers(d.shape(1), ("f8", "f4", "i1", "u1", "?", "c16")), d.bool()
    axis = d.axis(x.ndim) if x.ndim > 1 or d.bool() else None
    function = np.cumulative_sum if name == "cumulative_sum" else np.cumulative_prod
    expected = function(wide(x), axis=axis, include_initial=initial)
    dtype = expected.dtype if x.dtype.kind in "iub" else x.dtype
    call = lambda x: getattr(wf, name)(x, axis=axis, include_initial=initial)  # noqa: E731
    return Trial(call, [x], expected, dtype, 64, _magnitude(x))


@truth("cumulative_max", "cumulative_min")
def _(d: Drawn, name: str) -> Trial:
    shape = d.shape(1)
    x, axis = d.one([d.special(shape, "f4"), d.ints(shape, "i1")]), d.axis(len(shape))
    function = np.maximum if name == "cumulative_max" else np.minimum
    expected = function.accumulate(x, axis)
    return Trial(lambda x: getattr(wf, name)(x, axis=axis), [x], expected, x.dtype, 0)


@truth("cumulative_logsumexp")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape(1), ("f8", "f4"))
    x, axis, initial = x * x.dtype.type(30), d.axis(x.ndim), d.bool()
    expected = np.logaddexp.accumulate(wide(x), axis)
    if initial:
        shape = list(x.shape)
        shape[axis] = 1
        expected = np.concatenate([np.broadcast_to(-np.inf, shape), expected], axis)
    call = lambda x: wf.cumulative_logsumexp(x, axis=axis, include_initial=initial)  # noqa: E731
    return Trial(call, [x], expected, x.dtype, 64, 1.0)


@truth("cumsum", "cumprod")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(1), ("f8", "f4", "i1", "i8"))
    axis, exclusive, reverse = d.axis(x.ndim), d.bool(), d.bool()
    y = np.flip(wide(x), axis) if reverse else wide(x)
    if exclusive:
        shape = list(x.shape)
        shape[axis] = 1
        one = np.full(shape, 0 if name == "cumsum" else 1, y.dtype)
        y = np.concatenate([one, y], axis).take(range(x.shape[axis]), axis)
    y = getattr(np, name)(y, axis, dtype=y.dtype)
    y = np.flip(y, axis) if reverse else y
    call = lambda x: getattr(wf, name)(x, axis, exclusive, reverse)  # noqa: E731
    return Trial(call, [x], y, x.dtype, 64, _magnitude(x))


# ------------------------------------------------------------------------------------- creation
@truth("arange")
def _(d: Drawn) -> Trial:
    if d.bool():
        a, b, s = d.int(-9, 9), d.int(-9, 9), d.one([-3, -1, 1, 2])
        dtype = d.one([None, "i1", "f4"])
        expected = np.arange(a, b, s)
        return Trial(
            lambda: wf.arange(a, b, s, dtype=dtype and np.dtype(dtype)), [], expected, dtype or "i8"
        )
    a, b, s = d.float(-2, 2), d.float(-2, 2), d.one([0.25, -0.5, 0.3])
    expected = a + np.arange(max(0, int(np.ceil((b - a) / s)))) * s
    return Trial(lambda: wf.arange(a, b, s, dtype="f8"), [], expected, "f8", 4, 4.0)


@truth("linspace")
def _(d: Drawn) -> Trial:
    a, b, n, endpoint = d.float(-5, 5), d.float(-5, 5), d.int(0, 6), d.bool()
    dtype = d.one(["f8", "f4", "i8"])
    expected = np.linspace(a, b, n, endpoint=endpoint, dtype="i8" if dtype == "i8" else None)
    call = lambda: wf.linspace(a, b, n, endpoint=endpoint, dtype=np.dtype(dtype))  # noqa: E731
    return Trial(call, [], expected, dtype, 4, 5.0)


@truth("eye")
def _(d: Drawn) -> Trial:
    n, m, k, dtype = d.int(0, 4), d.one([None, 0, 1, 3, 5]), d.int(-6, 6), d.one(["f4", "i8", "?"])
    expected = np.eye(n, m, k=k, dtype=dtype)
    return Trial(lambda: wf.eye(n, m, k=k, dtype=np.dtype(dtype)), [], expected, dtype)


@truth("tril", "triu")
def _(d: Drawn, name: str) -> Trial:
    x, k = d.numbers(d.shape(2, 4), ("f4", "i8", "?")), d.int(-5, 5)
    return Trial(lambda x: getattr(wf, name)(x, k=k), [x], getattr(np, name)(x, k), x.dtype)


@truth("meshgrid")
def _(d: Drawn) -> Trial:
    xs = [d.numbers(d.shape(0, 1)) for _ in range(d.int(1, 3))]
    indexing = d.one(["xy", "ij"])
    expected = list(np.meshgrid(*xs, indexing=indexing))
    dtypes = [x.dtype for x in xs]
    return Trial(lambda *xs: wf.meshgrid(*xs, indexing=indexing), xs, expected, dtypes)


@truth("one_hot")
def _(d: Drawn) -> Trial:
    x, depth = d.ints(d.shape(0, 2), d.one(["i8", "u1"]), -2, 5), d.int(0, 4)
    axis, on, off = d.int(-x.ndim - 1, x.ndim), d.one([1, 2.5]), d.one([0, -1.0])
    hit = x[..., None] == np.arange(depth)
    expected = np.where(np.moveaxis(hit, -1, axis), on, off)
    call = lambda x: wf.one_hot(x, depth, on, off, axis)  # noqa: E731
    return Trial(call, [x], expected * 1.0, "f4")


@truth("zeros", "ones", "empty", "full", "fill")
def _(d: Drawn, name: str) -> Trial:
    shape, dtype = d.shape(), d.one(["f4", "i1", "?", "c8"])
    value = {"zeros": 0, "empty": 0, "ones": 1}.get(name, 1)
    if name in ("full", "fill"):
        given = np.asarray(value, dtype)
        return Trial(lambda v: getattr(wf, name)(shape, v), [given], np.full(shape, given), dtype)
    call = lambda: getattr(wf, name)(shape, dtype=np.dtype(dtype))  # noqa: E731
    return Trial(call, [], np.full(shape, value, dtype), dtype)


@truth("zeros_like", "ones_like", "empty_like", "full_like")
def _(d: Drawn, name: str) -> Trial:
    x, dtype = d.numbers(d.shape(), ("f4", "i1", "?")), d.one([None, "f8", "i8"])
    more = [1] if name == "full_like" else []
    expected = np.full(x.shape, name in ("ones_like", "full_like"), dtype or x.dtype)
    call = lambda x: getattr(wf, name)(x, *more, dtype=dtype and np.dtype(dtype))  # noqa: E731
    return Trial(call, [x], expected, expected.dtype)


@truth("constant", "asarray")
def _(d: Drawn, name: str) -> Trial:
    x, dtype = d.numbers(d.shape()), d.one(["f8", "i8"])
    x = np.trunc(x).astype(x.dtype)
    if name == "asarray":
        return Trial(lambda x: wf.asarray(x, dtype=np.dtype(dtype)), [x], x.astype(dtype), dtype)
    shape = (*d.shape(), *x.shape) if x.size == 1 else (x.size,)
    expected = np.broadcast_to(x.reshape(-1)[0], shape) if x.size == 1 else x.reshape(shape)
    return Trial(lambda: wf.constant(x, np.dtype(dtype), shape), [], expected.astype(dtype), dtype)


# ------------------------------------------------------------------------------------- movement
@truth("reshape", "flatten")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape())
    if name == "flatten":
        return Trial(wf.flatten, [x], x.reshape(-1), x.dtype)
    shape = [*d.one([x.shape[::-1], (x.size,), (1, *x.shape, 1)])]
    if x.size and shape and d.bool():
        shape[d.int(0, len(shape) - 1)] = -1
    return Trial(lambda x: wf.reshape(x, shape), [x], x.reshape(shape), x.dtype)


@truth("permute_dims", "transpose", "matrix_transpose", "swapaxes", "moveaxis")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(2, 4))
    order = d.order(x.ndim)
    sources, places = d.order(x.ndim)[:2], tuple(a - x.ndim for a in d.order(x.ndim)[:2])
    how: tuple[Any, ...] = {
        "permute_dims": (order,), "transpose": d.one([(order,), ()]), "matrix_transpose": (),
        "swapaxes": (sources[0], places[1]), "moveaxis": (sources, places),
    }[name]  # fmt: skip
    function = {"permute_dims": np.transpose}.get(name, getattr(np, name, None))
    assert function is not None
    return Trial(lambda x: getattr(wf, name)(x, *how), [x], function(x, *how), x.dtype)


@truth("expand_dims", "squeeze")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape())
    if name == "expand_dims":
        axes = tuple({d.int(0, x.ndim) for _ in range(d.int(0, 2))})
        axis: Any = axes if d.bool() else d.int(-x.ndim - 1, x.ndim)
    else:
        ones = tuple(i for i, n in enumerate(x.shape) if n == 1)
        axis = d.one([None, ones])
    return Trial(
        lambda x: getattr(wf, name)(x, axis), [x], getattr(np, name)(x, axis=axis), x.dtype
    )


@truth("broadcast_to", "broadcast_arrays")
def _(d: Drawn, name: str) -> Trial:
    shape = d.shape()
    xs = [d.numbers(d.broadcast(shape)) for _ in range(3)]
    if name == "broadcast_to":
        return Trial(lambda x: wf.broadcast_to(x, shape), xs[:1], np.broadcast_to(xs[0], shape))
    return Trial(wf.broadcast_arrays, xs, list(np.broadcast_arrays(*xs)), [x.dtype for x in xs])


@truth("shape", "size", "rank")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape())
    expected = np.asarray({"shape": x.shape, "size": x.size, "rank": x.ndim}[name], "i8")
    return Trial(getattr(wf, name), [x], expected, "i8")


@truth("concat", "stack")
def _(d: Drawn, name: str) -> Trial:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    sizes = [d.int(0, 3) if name == "concat" else shape[axis] for _ in range(d.int(1, 4))]
    at = axis % len(shape)
    xs = [d.numbers((*shape[:at], n, *shape[at + 1 :]), ("f8", "f4")) for n in sizes]
    if name == "concat":
        axis = None if d.int(0, 4) == 0 else axis
        return Trial(lambda *xs: wf.concat(xs, axis=axis), xs, np.concatenate(xs, axis), None, 1)
    return Trial(lambda *xs: wf.stack(xs, axis=axis), xs, np.stack(xs, axis), None, 1)


@truth("split", "unstack")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(1))
    axis = d.axis(x.ndim)
    if name == "unstack":
        expected = [np.take(x, i, axis) for i in range(x.shape[axis])]
        return Trial(lambda x: wf.unstack(x, axis=axis), [x], expected)
    parts = [d.int(0, 3) for _ in range(d.int(1, 3))]
    shape = list(x.shape)
    shape[axis] = sum(parts) if d.bool() else 2 * d.int(0, 2)
    x = d.numbers(shape)
    how: Any = parts if shape[axis] == sum(parts) else 2
    expected = np.split(x, np.cumsum(parts)[:-1] if how == parts else 2, axis)
    return Trial(lambda x: wf.split(x, how, axis=axis), [x], expected)


@truth("tile")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape(0, 2))
    n: Any = d.one([d.int(0, 3), tuple(d.int(0, 3) for _ in range(d.int(0, 3)))])
    return Trial(lambda x: wf.tile(x, n), [x], np.tile(x, n), x.dtype)


@truth("repeat")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape(0))
    axis = d.axis(x.ndim) if x.ndim and d.bool() else None
    size = x.size if axis is None else x.shape[axis]
    n: Any = d.one([d.int(0, 3), [d.int(0, 3) for _ in range(size)], [2]])
    expected = np.repeat(x, np.asarray(n, int), axis)
    return Trial(lambda x: wf.repeat(x, n, axis=axis), [x], expected, x.dtype)


@truth("roll")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape())
    axis: Any = d.one([None, *range(-x.ndim, x.ndim), *([tuple(range(x.ndim))] if x.ndim else [])])
    shift: Any = d.int(-9, 9)
    if isinstance(axis, tuple) and d.bool():
        shift = tuple(d.int(-9, 9) for _ in axis)
    expected = np.roll(x, shift, axis)
    return Trial(lambda x: wf.roll(x, shift, axis=axis), [x], expected, x.dtype)


@truth("flip")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape())
    axes = d.axes(x.ndim)
    return Trial(lambda x: wf.flip(x, axis=axes), [x], np.flip(x, axes), x.dtype)


@truth("rot90")
def _(d: Drawn) -> Trial:
    x, k = d.numbers(d.shape(2, 4)), d.int(-5, 5)
    axes = d.order(x.ndim)[:2]
    return Trial(lambda x: wf.rot90(x, k, axes), [x], np.rot90(x, k, axes), x.dtype)


@truth("pad")
def _(d: Drawn) -> Trial:
    mode = d.one(["constant", "edge", "reflect", "SYMMETRIC"])
    x = d.numbers(d.shape(empty=mode == "constant"))
    most = [max(n - (mode == "reflect"), 0) if mode in ("reflect", "SYMMETRIC") else 3
            for n in x.shape]  # fmt: skip
    pairs: Any = [(d.int(0, m), d.int(0, m)) for m in most]
    if mode == "constant" and d.bool() and x.ndim:
        pairs = d.int(0, 2)
    more = {"constant_values": 2} if mode == "constant" else {}
    expected = np.pad(x, pairs, mode.lower(), **more) if x.ndim else x
    return Trial(lambda x: wf.pad(x, pairs, mode, **more), [x], expected, x.dtype)


@truth("diff")
def _(d: Drawn) -> Trial:
    x, n = d.numbers(d.shape(1), ("f8", "i8", "i1")), d.int(0, 4)
    axis = d.axis(x.ndim)
    shape = list(x.shape)
    shape[axis] = d.int(0, 2)
    more = {k: d.one([d.ints(shape, x.dtype), x.dtype.type(3)]) for k in ("prepend", "append")
            if d.bool()}  # fmt: skip
    call = lambda x: wf.diff(x, axis=axis, n=n, **more)  # noqa: E731
    return Trial(call, [x], np.diff(x, n, axis, **more), x.dtype, 4, 100.0)


# -------------------------------------------------------------------------------------- indexing
@truth("take", "gather")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(1))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    index = d.ints(d.shape(0, 2) if n else (0, 2), d.one(["i8", "i4", "i1"]), -n, max(n - 1, -n))
    call = lambda x, i: getattr(wf, name)(x, i, axis=axis)  # noqa: E731
    return Trial(call, [x, index], np.take(x, index, axis), x.dtype)


@truth("take_along_axis")
def _(d: Drawn) -> Trial:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    n, wanted = shape[axis], list(shape)
    wanted[axis] = d.int(0, 4) if n else 0
    index = d.ints([1 if d.int(0, 3) == 0 and i != axis % len(shape) else m
                    for i, m in enumerate(wanted)], "i8", -n, max(n - 1, -n))  # fmt: skip
    x = d.numbers(shape)
    call = lambda x, i: wf.take_along_axis(x, i, axis=axis)  # noqa: E731
    return Trial(call, [x, index], np.take_along_axis(x, index, axis), x.dtype)


def _rows(d: Drawn) -> tuple[Array, Array, tuple[Any, ...]]:
    """A target, rows of indices into it, and the same as an index of NumPy's."""
    x = d.numbers(d.shape(1, 3, empty=False), ("f8", "i8"))
    depth = d.int(0, x.ndim)
    lead = d.shape(0, 2)
    index = np.stack([d.ints(lead, "i8", -n, n - 1) for n in x.shape[:depth]], -1) if depth else (
        np.zeros((*lead, 0), int))  # fmt: skip
    return x, index, tuple(np.moveaxis(index, -1, 0))


@truth("gather_nd")
def _(d: Drawn) -> Trial:
    x, index, key = _rows(d)
    expected = x[key] if key else np.broadcast_to(x, (*index.shape[:-1], *x.shape))
    return Trial(wf.gather_nd, [x, index], expected, x.dtype)


@truth("scatter_nd_add", "scatter_nd_update", "scatter_nd_min", "scatter_nd_max", "scatter_nd")
def _(d: Drawn, name: str) -> Trial:
    x, index, key = _rows(d)
    updates = d.ints((*index.shape[:-1], *x.shape[len(key) :]), x.dtype)
    expected = np.zeros_like(x) if name == "scatter_nd" else x.copy()
    how = {"scatter_nd_min": np.minimum, "scatter_nd_max": np.maximum}.get(name, np.add)
    for at in np.ndindex(index.shape[:-1]):  # in row-major order, one after the other
        place = tuple(index[at])
        whole = updates[at]
        expected[place] = whole if name == "scatter_nd_update" else how(expected[place], whole)
    if name == "scatter_nd":
        return Trial(lambda i, u: wf.scatter_nd(i, u, x.shape), [index, updates], expected, x.dtype)
    return Trial(getattr(wf, name), [x, index, updates], expected, x.dtype, 4, 200.0)


@truth("segment_sum", "segment_mean", "segment_max", "segment_min")
def _(d: Drawn, name: str) -> Trial:
    lead, count = d.shape(1, 2), d.int(1, 4)
    x = d.numbers((*lead, *d.shape(0, 1)), ("f8", "f4", "i4"))
    ids = d.ints(lead, d.one(["i8", "i4", "u1"]), 0, count - 1)
    kind = name.removeprefix("segment_")
    empty: Any = {"max": -np.inf, "min": np.inf}.get(kind, 0)
    if x.dtype.kind == "i" and kind in ("max", "min"):
        empty = np.iinfo(x.dtype).min if kind == "max" else np.iinfo(x.dtype).max
    rows = []
    for i in range(count):
        part = wide(x)[ids == i]
        rows.append(getattr(part, kind)(0) if len(part) else np.full(part.shape[1:], empty))
    dtype = as_float(x.dtype) if kind == "mean" else x.dtype
    call = lambda x, i: getattr(wf, name)(x, i, count)  # noqa: E731
    return Trial(call, [x, ids], np.stack(rows), dtype, 16, _magnitude(x))


@truth("dynamic_partition", "dynamic_stitch")
def _(d: Drawn, name: str) -> Trial:
    lead, count = d.shape(1, 2), d.int(1, 3)
    x, ids = d.numbers((*lead, *d.shape(0, 1))), d.ints(lead, "i4", 0, count - 1)
    parts = [x[ids == i] for i in range(count)]
    if name == "dynamic_partition":
        call = lambda x, i: wf.dynamic_partition(x, i, count)  # noqa: E731
        return Trial(call, [x, ids], parts, compiled=False)
    places = [np.arange(ids.size).reshape(lead)[ids == i] for i in range(count)]
    expected = x.reshape(ids.size, *x.shape[len(lead) :])
    call = lambda *a: wf.dynamic_stitch(list(a[:count]), list(a[count:]))  # noqa: E731
    return Trial(call, [*places, *parts], expected, compiled=False)


@truth("nonzero", "argwhere", "boolean_mask")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(1), ("?", "i4", "f4"))
    x = np.where(d.bools(x.shape), x, np.zeros((), x.dtype))
    if name == "boolean_mask":
        at = d.int(0, x.ndim - 1)
        mask = d.bools(x.shape[at : d.int(at + 1, x.ndim)])
        expected = x[(slice(None),) * at + (mask,)]
        return Trial(lambda x, m: wf.boolean_mask(x, m, at), [x, mask], expected, compiled=False)
    if name == "nonzero" and d.bool():
        size, fill = d.int(0, 9), d.int(-1, 3)
        found = [np.concatenate([v, np.full(size, fill)])[:size] for v in np.nonzero(x)]
        return Trial(lambda x: wf.nonzero(x, size=size, fill_value=fill), [x], found)
    expected = getattr(np, name)(x)
    return Trial(getattr(wf, name), [x], expected, compiled=False)


@truth("unique_values", "unique_counts", "unique_inverse", "unique_all", "unique",
       "unique_with_counts")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    shape = d.shape(1, 1) if name in ("unique", "unique_with_counts") else d.shape()
    x = d.one([d.ints(shape, "i4", 0, 4), d.special(shape, "f4")])
    if name != "unique_values" and x.dtype.kind == "f":
        x = np.nan_to_num(x, nan=7.0)  # in which order those come that are apart is open
    every = np.unique_all(x)
    expected: Any
    if name in ("unique", "unique_with_counts"):
        order = np.argsort(every.indices)
        place = np.argsort(order).astype("i4")
        expected = [every.values[order], place[every.inverse_indices.reshape(x.shape)],
                    every.counts[order].astype("i4")][: 2 if name == "unique" else 3]  # fmt: skip
    elif name == "unique_values":
        expected = every.values
    else:
        expected = list(getattr(np, name)(x))
    return Trial(getattr(wf, name), [x], expected, compiled=False)


# ---------------------------------------------------------------------------------------- order
@truth("sort", "argsort")
def _(d: Drawn, name: str) -> Trial:
    shape = d.shape(1)
    x = d.one([d.special(shape, "f4"), d.ints(shape, d.one(INTS), 0, 4), d.bools(shape)])
    axis, descending = d.axis(x.ndim), d.bool()
    order = np.argsort(x, axis=axis, kind="stable")
    if descending:  # equal elements keep their order
        back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - back, axis)
    expected = order if name == "argsort" else np.take_along_axis(x, order, axis)
    call = lambda x: getattr(wf, name)(x, axis=axis, descending=descending)  # noqa: E731
    return Trial(call, [x], expected, "i8" if name == "argsort" else x.dtype, 0)


@truth("top_k", "nn.top_k")
def _(d: Drawn) -> Trial:
    shape = d.shape(1)
    x = d.one([d.floats(shape, "f4", ties=True), d.ints(shape, d.one(INTS), 0, 4)])
    axis, largest = d.axis(x.ndim), d.bool()
    k = d.int(0, x.shape[axis])
    key = -x.astype("f8") if largest else x
    order = np.argsort(key, axis=axis, kind="stable").take(range(k), axis)
    call = lambda x: wf.top_k(x, k, axis=axis, largest=largest)  # noqa: E731
    return Trial(call, [x], [np.take_along_axis(x, order, axis), order], [x.dtype, "i8"], 0)


@truth("searchsorted")
def _(d: Drawn) -> Trial:
    x, v = d.ints(d.shape(1, 1), d.one(["i8", "f8"])), d.ints(d.shape(0, 2), "i8")
    side, sorter = d.one(["left", "right"]), np.argsort(x, kind="stable")
    if d.bool():
        call = lambda x, v, s: wf.searchsorted(x, v, side=side, sorter=s)  # noqa: E731
        return Trial(call, [x, v, sorter], np.searchsorted(x, v, side, sorter), "i8")
    x = x[sorter]
    plain = lambda x, v: wf.searchsorted(x, v, side=side)  # noqa: E731
    return Trial(plain, [x, v], np.searchsorted(x, v, side), "i8")


@truth("isin")
def _(d: Drawn) -> Trial:
    dtype = d.one(["i8", "f8", "u1", "?", "c16"])
    x, y = d.ints(d.shape(0, 2), dtype), d.ints(d.shape(0, 2), dtype)
    y = np.tile(y, d.one([1, 40]))  # more elements are sorted first
    invert = d.bool()
    call = lambda x, y: wf.isin(x, y, invert=invert)  # noqa: E731
    return Trial(call, [x, y], np.isin(x, y, invert=invert), "?")


# -------------------------------------------------------------------------------- linear algebra
_PRODUCTS = ("f8", "f4", "i8", "c16")


def _product(d: Drawn, call: Any, a: Array, b: Array, expected: Array) -> Trial:
    scale = float(np.abs(wide(a)).sum() * np.abs(wide(b)).max(initial=0))
    return Trial(call, [a, b], expected, wf.result_type(a, b).numpy, 32, scale)


@truth("matmul")
def _(d: Drawn) -> Trial:
    m, k, n = (d.int(0, 4) for _ in range(3))
    lead = d.shape(0, 2)
    a = d.numbers((*d.broadcast(lead), m, k), _PRODUCTS)
    b = d.numbers((*d.broadcast(lead), k, n), _PRODUCTS)
    a = a.reshape(-1)[:k] if a.size >= k and d.int(0, 4) == 0 else a
    b = b.reshape(-1)[:k] if b.size >= k and d.int(0, 4) == 0 else b
    flip = [v.ndim > 1 and d.bool() for v in (a, b)]
    given = [np.ascontiguousarray(v.swapaxes(-1, -2)) if f else v
             for v, f in zip((a, b), flip, strict=True)]  # fmt: skip
    call = lambda a, b: wf.matmul(a, b, *flip)  # noqa: E731
    return _product(d, call, given[0], given[1], np.matmul(wide(a), wide(b)))


@truth("dot", "inner")
def _(d: Drawn, name: str) -> Trial:
    k = d.int(0, 3)
    a = d.numbers((*d.shape(0, 2), k), _PRODUCTS)
    b = d.numbers((*d.shape(0, 2), k), _PRODUCTS)
    if name == "dot" and b.ndim > 1:
        b = np.ascontiguousarray(b.swapaxes(-1, -2))
    if d.int(0, 4) == 0:
        a = np.asarray(d.numbers((), _PRODUCTS))
    return _product(d, getattr(wf, name), a, b, getattr(np, name)(wide(a), wide(b)))


@truth("tensordot")
def _(d: Drawn) -> Trial:
    a = d.numbers(d.shape(0, 3), _PRODUCTS)
    if d.bool():
        n = d.int(0, a.ndim)
        b = d.numbers((*a.shape[a.ndim - n :], *d.shape(0, 2)), _PRODUCTS)
        axes: Any = n
    else:
        left = d.order(a.ndim)[: d.int(0, a.ndim)]
        places = d.order(len(left) + 1)
        shape = [0] * len(places)
        for i, p in zip(left, places, strict=False):
            shape[p] = a.shape[i]
        shape[places[-1]] = d.int(0, 3)
        b = d.numbers(shape, _PRODUCTS)
        axes = (left, places[: len(left)])
    call = lambda a, b: wf.tensordot(a, b, axes=axes)  # noqa: E731
    return _product(d, call, a, b, np.tensordot(wide(a), wide(b), axes))


@truth("vecdot")
def _(d: Drawn) -> Trial:
    shape = d.shape(1)
    axis = d.int(-len(shape), -1)
    a, b = d.numbers(shape, _PRODUCTS), d.numbers(shape, _PRODUCTS)
    return _product(
        d, lambda a, b: wf.vecdot(a, b, axis=axis), a, b, (np.conj(wide(a)) * wide(b)).sum(axis)
    )


@truth("outer")
def _(d: Drawn) -> Trial:
    a, b = (d.numbers(d.shape(1, 1), _PRODUCTS) for _ in range(2))
    return _product(d, wf.outer, a, b, np.outer(wide(a), wide(b)))


@truth("cross")
def _(d: Drawn) -> Trial:
    shape, rank = d.shape(0, 2), 1
    rank += len(shape)
    axis = d.axis(rank)
    a, b = (np.moveaxis(d.numbers((*shape, 3), ("f8", "f4", "i8")), -1, axis) for _ in range(2))
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    call = lambda a, b: wf.cross(a, b, axis=axis)  # noqa: E731
    return _product(d, call, a, b, np.cross(wide(a), wide(b), axis=axis))


@truth("diagonal", "trace", "diag")
def _(d: Drawn, name: str) -> Trial:
    k = d.int(-5, 5)
    if name == "diag":
        x = d.numbers(d.shape(1, 2), ("f8", "i1", "?"))
        return Trial(lambda x: wf.diag(x, k), [x], np.diag(x, k), x.dtype)
    x = d.numbers(d.shape(2, 4), ("f8", "i1"))
    expected = getattr(np, name)(x, k, -2, -1)
    call = lambda x: getattr(wf, name)(x, offset=k)  # noqa: E731
    return Trial(call, [x], expected, expected.dtype, 16, _magnitude(x))


@truth("linalg.matrix_power")
def _(d: Drawn) -> Trial:
    n, p = d.int(0, 3), d.int(0, 6)
    x = d.numbers((*d.shape(0, 1), n, n), ("f8", "i8", "c16"))
    x = x % 3 if x.dtype.kind == "i" else x / 3
    expected = np.broadcast_to(np.eye(n, dtype=x.dtype), x.shape)
    for _ in range(p):
        expected = expected @ x
    return Trial(lambda x: wf.linalg.matrix_power(x, p), [x], expected, x.dtype, 64, 10.0)


# ------------------------------------------------------------------------------- norms of several
@truth("global_norm", "clip_by_global_norm", "clip_by_norm", "train.global_norm",
       "train.clip_by_global_norm", "train.clip_by_norm")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    name = name.removeprefix("train.")
    dtypes = ("f8", "f4", "f2", "c16") if name == "global_norm" else ("f8", "f4", "f2")
    dtypes = (d.one(dtypes),)  # the norm of several dtypes is as exact as the least of them
    xs = [d.numbers(d.shape(), dtypes) for _ in range(d.int(1, 3))]
    xs = [x * x.dtype.type(d.one([1, 1, 300])) for x in xs]
    limit = d.one([0.5, 3.0, 1e5])
    squares = [np.abs(wide(x)) ** 2 for x in xs]
    norm = np.sqrt(sum(s.sum() for s in squares))
    if name == "global_norm":
        return Trial(lambda *xs: wf.global_norm(xs), xs, norm, None, 64)
    if name == "clip_by_norm":
        axes = d.axes(xs[0].ndim)
        own = np.sqrt(squares[0].sum(axes, keepdims=True))
        expected = wide(xs[0]) * limit / np.maximum(own, limit)
        call = lambda x: wf.clip_by_norm(x, limit, axes)  # noqa: E731
        return Trial(call, xs[:1], expected, xs[0].dtype, 64)
    clipped = [wide(x) * limit / max(norm, limit) for x in xs]

    def both(*xs: Any) -> Any:
        parts, found = wf.clip_by_global_norm([*xs, None], limit)
        return [*parts[:-1], found]

    return Trial(both, xs, [*clipped, norm], [*(x.dtype for x in xs), None], 64)


@truth("astype", "cast", "identity", "stop_gradient")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(), ("f8", "f4", "i8", "i1", "?"))
    if name in ("identity", "stop_gradient"):
        return Trial(getattr(wf, name), [x], x, x.dtype, 0)
    dtype = d.one(["f8", "f4", "i4", "i1", "?", "c16"])
    return Trial(lambda x: getattr(wf, name)(x, np.dtype(dtype)), [x], x.astype(dtype), dtype, 0)
