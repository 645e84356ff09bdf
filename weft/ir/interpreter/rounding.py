"""What rounding may do to a program's results: the interpreter with rounding errors put in.

Compiled code rounds otherwise than NumPy (fused multiply-add, sums in another order, polynomials
for exp). Through a comparison, `floor` or a difference of near equals that may change a result by
any amount. So the program runs several times, each time with random relative errors of a few units
in the last place in the result of every inexact op; how far an element then moves says how far
compiled code may be off there. The idea is that of CESTAC (Vignes, "A stochastic arithmetic for
reliable scientific computation", 1993)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.graph import Graph, Operation
from weft.ir.interpreter.evaluate import RunHost, Watch, interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops import lookup
from weft.ir.ops.fourier import FOURIER, scale_of
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.ir.spec import int_attr

Array = np.ndarray[Any, Any]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Runs with errors put in.
RUNS = 6
#: And so many with errors of whole ulps.
ULP_RUNS = 12
#: Relative error of each inexact op in units of eps, as large as the worst of them has in float32.
ULPS = 8.0
#: Elementwise ops that give the exact result of their operands, or the correctly rounded one
#: whatever their neighbours are fused into.
EXACT = _names(
    """
    abs negative ceil floor round trunc isnan isinf isfinite signbit logical_not bitwise_invert conj
    real imag maximum minimum copysign nextafter equal not_equal less less_equal greater
    greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
    bitwise_left_shift bitwise_right_shift where bitcast window_max window_pick
    """
)
ACCUMULATING = _names(
    """
    sum cumulative_sum matmul index_add scatter_along_axis_add scatter_nd_add conv conv_input
    conv_kernel window_sum window_spread window_place
    sparse_matmul quantized_matmul
    """
)
#: Whose errors are relative to what they give, and add up.
PRODUCTS = frozenset(["prod", "cumulative_prod", "cumulative_logsumexp"])
#: SciPy's own error is larger here: 60 ulp for erfc in float64, more far out.
SPECIAL = frozenset(["erf", "erfc", "erfinv", "logaddexp"])
#: inf from finite operands is no overflow where a function has a pole.
POLES = _names("divide reciprocal rsqrt log log2 log10 log1p atanh erfinv lgamma digamma power")


class Overflow(Exception):
    """A finite computation overflowed, or met what compiled code may do otherwise: whether it does
    depends on how it is fused."""


class Rounding(Watch):
    """Puts random rounding errors in the results of inexact ops; without `random` it only looks for
    what overflows. sizes: how large errors are: of whole ulps, 0 among them, so that what is equal
    by chance may be so here, too; or never small, so that an exact tie is seen to break. Where a
    finite computation overflows it raises Overflow, or, if `anything`, goes on with what compiled
    code may make of it, and so where a float that is converted to an integer does not fit."""

    def __init__(
        self, random: np.random.Generator | None, *, ulps: bool = False, anything: bool = False
    ) -> None:
        self._random, self._ulps, self._anything = random, ulps, anything

    def changed(
        self, op: Operation, operands: Sequence[Any], results: Sequence[Any]
    ) -> Sequence[Any]:
        if op.name == "astype" and self._anything and self._random is not None:
            return [_converted(operands[0], results[0], self._random)]
        if op.name in LINEAR_ALGEBRA:
            return results if self._random is None else _decomposed(op, operands, self._random)
        if op.name in FOURIER:
            if self._random is None:
                return results
            return [_transformed(op, operands[0], results[0], self._random)]
        if not _is_inexact(op) or results[0].dtype.kind not in "fcV":
            return results
        arrays = [x for x in operands if isinstance(x, np.ndarray)]
        floats = [x for x in arrays if x.dtype.kind in "fcV"]
        whole = all(np.isfinite(x).all() for x in floats)
        if op.name.startswith("conv") and not whole:
            raise Overflow(op.name)  # padding may be multiplied by what is not finite (numerics.md)
        over = None if op.name in POLES else _overflows(op, arrays, results[0], whole)
        if over is not None and over.any() and not self._anything:
            raise Overflow(op.name)
        if self._random is None:
            return results
        made = _disturbed(op, arrays, results[0], self._random, self._ulps)
        if over is not None and over.any():
            most = _largest(made.dtype)
            either = self._random.choice([1.0, 0.5], made.shape)  # finite where it is wider
            made = np.where(over & (either < 1), np.sign(_wide(made).real) * most, made)
            made = made.astype(results[0].dtype)
        return [made, *results[1:]]


def _decomposed(op: Operation, arrays: Sequence[Array], random: np.random.Generator) -> list[Array]:
    """What LAPACK makes of operands with errors of the size of each matrix's rounding errors (it is
    backward stable), and with other signs or phases of vectors, which are anybody's choice."""
    given = []
    for x in arrays:
        if x.dtype.kind in "fc" and x.size:
            size = np.abs(np.where(np.isfinite(x), x, 0)).max((-2, -1), keepdims=True)
            size = size * np.finfo(x.dtype).eps
            x = (x + ULPS * size * random.uniform(-1, 1, x.shape)).astype(x.dtype)
        given.append(x)
    reference = lookup(op.name).reference
    assert reference is not None
    made = reference(given, op.attrs)
    made = [made] if isinstance(made, np.ndarray) else list(made)
    if op.name == "eig":  # in no order
        order = random.permutation(made[0].shape[-1])
        made = [x[..., order] for x in made]
    if not op.attrs.get("vectors") or not made[0].size:
        return made

    def phases(x: Array, axis: int) -> Array:
        shape = [*x.shape[:-2], x.shape[axis]]
        if x.dtype.kind == "f":
            return random.choice([-1, 1], shape).astype(x.dtype)
        return np.asarray(np.exp(2j * np.pi * random.random(shape))).astype(x.dtype)

    if op.name != "svd":
        return [made[0], made[1] * phases(made[1], -1)[..., None, :]]
    left, values, right = made
    turns, others, count = phases(left, -1), phases(right, -2), values.shape[-1]
    others[..., :count] = turns[..., :count].conj()
    return [left * turns[..., None, :], values, others[..., None] * right]


def _transformed(op: Operation, x: Array, made: Array, random: np.random.Generator) -> Array:
    """Lines of a Fourier transform with errors of the size of each line's; of a line that is not
    finite anything: 0 times an infinite part is NaN, where there is such a product."""
    axis = int_attr(op.attrs, "axis")
    n = made.shape[axis] if op.name == "irfft" else x.shape[axis]
    squares = np.abs(x).astype(np.float64) ** 2
    size = np.sqrt(squares.sum(axis, keepdims=True)) * scale_of(op.attrs["scale"], n)
    moves: Any = random.uniform(-1, 1, made.shape)
    if made.dtype.kind == "c":
        moves = moves + 1j * random.uniform(-1, 1, made.shape)
    out = made + ULPS * np.finfo(made.dtype).eps * 2 * size * moves  # 2: elements that count twice
    other = np.where(np.isnan(made), 0, np.nan)
    whole = np.isfinite(x).all(axis, keepdims=True)
    return np.asarray(np.where(whole, out, other).astype(made.dtype))


def _converted(x: Array, made: Array, random: np.random.Generator) -> Array:
    """An integer that a float was converted to: any, where it does not fit."""
    if x.dtype.kind not in "fV" or made.dtype.kind not in "iu":
        return made
    info, wide = np.iinfo(made.dtype), _wide(x)
    unfit = ~((wide >= float(info.min)) & (wide <= float(info.max)))
    if not unfit.any():
        return made
    values = random.integers(info.min, info.max, made.shape, made.dtype, endpoint=True)
    return np.where(unfit, values, made)


def _largest(dtype: np.dtype[Any]) -> float:
    return 3.38e38 if dtype.kind == "V" else float(np.finfo(dtype).max)


def roundings(seed: int, *, anything: bool = False) -> list[Rounding]:
    """The watches of the runs that say what rounding may do; the first puts no errors in. anything:
    as of `Rounding`, and more runs, some with errors of whole ulps."""
    runs = [Rounding(None, anything=anything)]
    for k in range(RUNS + (ULP_RUNS if anything else 0)):
        random = np.random.default_rng((seed, k))
        runs.append(Rounding(random, ulps=k >= RUNS, anything=anything))
    return runs


def stable_results(
    graph: Graph, inputs: Sequence[Array], state: dict[str, Array], seed: int,
    host: Callable[[], RunHost] | None = None, *, anything: bool = False,
) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
    """(centre, spread) for each result and each variable after the step; spread inf: anything goes.

    Compiled results must be within the spread of the centre. `graph` must not update variables in
    other ways than by `assign` (the pass `expand_updates`). host: makes what carries out its ops of
    the host, for each run. anything: as of `roundings`. Raises Overflow, and what the program
    raises in one of the runs.
    """
    held = [_run(graph, inputs, state, watch, host) for watch in roundings(seed, anything=anything)]
    results = [spread_of([r[0][i] for r in held]) for i in range(len(graph.results))]
    return results, {n: spread_of([r[1][n] for r in held]) for n in held[0][1]}


def _run(
    graph: Graph, inputs: Sequence[Array], state: dict[str, Array], watch: Rounding,
    host: Callable[[], RunHost] | None,
) -> tuple[list[Any], dict[str, Array]]:  # fmt: skip
    variables = DictState(state)
    on_host = None if host is None else host()
    made = interpret(graph, inputs, variables, host=on_host, watch=watch)
    return made, variables.values


def _is_inexact(op: Operation) -> bool:
    inexact = "elementwise" in lookup(op.name).traits and op.name not in EXACT
    return inexact or op.name in ACCUMULATING or op.name in PRODUCTS


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def spread_of(samples: Sequence[Any]) -> Any:
    """(centre, spread) of one value in several runs, the first without errors; None for a token."""
    first = samples[0]
    if first is None:
        return None
    if first.dtype.kind not in "fcV":
        wild = np.zeros(first.shape, bool)
        for x in samples[1:]:
            wild |= x != first
        return first, np.where(wild, np.inf, 0.0)
    centre = _wide(first)
    with np.errstate(all="ignore"):
        # an ulp of a subnormal number is the smallest of them
        eps, tiny = _limits(first.dtype)
        most = ULPS * np.maximum(eps * np.abs(centre), tiny)
        for x in samples[1:]:
            y = _wide(x)
            same = (y == centre) | (np.isnan(y) & np.isnan(centre))
            move = np.where(same, 0.0, np.abs(y - centre))
            most = np.maximum(most, np.where(np.isnan(move), np.inf, move))
        most = np.where(np.isnan(most), 0.0, most)
    return first, 8 * most


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The machine epsilon and the smallest number above 0 of a floating type."""
    if dtype.kind == "V":  # bfloat16
        return 2.0**-7, 2.0**-133
    info = np.finfo(dtype)
    return float(info.eps), float(info.smallest_subnormal)


def _overflows(op: Operation, operands: list[Array], result: Array, whole: bool) -> Array:
    """Which elements of `result` are infinite although what they were made of is finite."""
    infinite = np.isinf(result)
    if whole or not infinite.any():
        return infinite
    finite = [np.isfinite(x) for x in operands if x.dtype.kind in "fcV"]
    if "elementwise" in lookup(op.name).traits:
        return np.asarray(infinite & np.all(np.broadcast_arrays(*finite), axis=0))
    zeroed = [np.where(np.isfinite(x), x, 0).astype(x.dtype) for x in operands]
    reference = lookup(op.name).reference
    assert reference is not None
    return np.asarray(np.isinf(np.asarray(reference(zeroed, op.attrs))))


def _disturbed(
    op: Operation, operands: list[Array], x: Array, random: np.random.Generator, ulps: bool
) -> Array:
    size = np.abs(_wide(x)).astype(np.float64)
    terms = 1.0
    if op.name in ACCUMULATING:  # the error is relative to the sum of the terms' magnitudes
        reference = lookup(op.name).reference
        assert reference is not None
        wide = [
            np.abs(_wide(v)).astype(np.float64) if v.dtype.kind in "fcV" else v for v in operands
        ]
        size, terms = np.asarray(reference(wide, op.attrs)), 4.0
        if op.name == "sum" and x.size:  # up to n eps / 2, where the terms are alike (Higham 4.2)
            terms = max(terms, operands[0].size / x.size / 128)
    elif op.name in PRODUCTS:
        terms = 16.0
    elif op.name in SPECIAL:
        terms = 32.0
    eps, tiny = _limits(x.dtype)
    if ulps:
        scale = eps * np.abs(_wide(x)).astype(np.float64)
        error = random.choice([-1.0, -0.5, 0.0, 0.0, 0.5, 1.0], x.shape)
    else:  # never a small error: an exact tie must be seen to break
        scale = ULPS * terms * eps * size + np.where(size > 0, tiny, 0.0)
        error = random.uniform(0.25, 1.0, x.shape) * random.choice([-1.0, 1.0], x.shape)
    moved = _wide(x) + error * np.where(np.isfinite(scale), scale, 0.0)
    return np.where(np.isfinite(x), moved, _wide(x)).astype(x.dtype)
