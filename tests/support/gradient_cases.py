"""Cases for gradient rules: ops with operands and attributes, and losses over their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.ir.dtypes import as_dtype, complex128, float64
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Value
from weft.ir.interpreter.evaluate import type_of
from weft.ir.locations import Location
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.autodiff.reverse_mode import gradients
from weft.passes.autodiff.table import GRADIENTS
from weft.passes.rewriting.expression import Expr

Array = np.ndarray[Any, Any]
Build = Callable[[Builder, Sequence[Value]], Sequence[Value]]
HERE = (Location("model.py", 7, 3),)


@dataclass
class Case:
    """One application of an op; operands that are not floats are not differentiated."""

    op: str
    operands: list[Array]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ",".join(str(type_of(x)) for x in self.operands)
        return f"{self.op}({shapes}){self.attrs or ''}"


def weighted_loss(builder: Builder, ys: Sequence[Value], seed: int) -> Value:
    """sum Re(conj(w) y) over all floating ys, with fixed random weights w."""
    rng = np.random.default_rng(seed)
    total = Expr(builder, builder.emit1("constant", value=ConstArray(np.array(0.0))), HERE)
    for y in ys:
        assert isinstance(y.type, TensorType)
        if not y.type.dtype.is_inexact:
            continue
        w = draw(rng, y.type.static_shape, -2, 2, y.type.dtype is complex128)
        weight = Expr(builder, builder.emit1("constant", value=ConstArray(w)), HERE)
        term = Expr(builder, y, HERE) * weight.conj()
        total = total + term.op("real").sum(range(term.rank))
    return total.value


def loss_graph(build: Build, inputs: Sequence[Array], order: int) -> tuple[Graph, list[int]]:
    """(graph, wrt): the loss of `build` (order 1), or a weighted sum of its gradients (order 2)."""
    builder = Builder([type_of(x) for x in inputs])
    wrt = [i for i, x in enumerate(inputs) if as_dtype(x.dtype).is_inexact]
    xs = [builder.args[i] for i in wrt]
    loss = weighted_loss(builder, build(builder, builder.args), 1)
    if order == 2:
        grads = gradients(builder, [loss], xs)
        loss = weighted_loss(builder, [g for g in grads if g is not None], 2)
    names = [f"x{i}" for i in range(len(inputs))]
    return builder.graph("loss", names, [loss]), wrt


def draw(
    rng: np.random.Generator, shape: Sequence[int], low: float, high: float, cplx: bool = False
) -> Array:
    """Uniform numbers in low..high, and imaginary parts in the same range."""
    x = rng.uniform(low, high, shape)
    return np.asarray(x + 1j * rng.uniform(low, high, shape) if cplx else x)


#: Where the operands of an op are drawn from, if not from -2..2.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10", "lgamma"), (0.3, 3.0)),
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv", "tan"), (-0.8, 0.8)),
    **dict.fromkeys(("reciprocal", "power", "divide", "remainder", "hypot"), (0.4, 2.6)),
    "log1p": (-0.6, 3.0),
    "acosh": (1.3, 3.0),
    "digamma": (-2.8, 3.0),
}
SHAPES = ((), (3,), (2, 1, 3), (0, 2))


def elementwise_cases() -> list[Case]:
    """Each elementwise op on several shapes, in each of float64 and complex128 that it takes."""
    cases = []
    for spec in OPS.values():
        special = ("where", "astype", "bitcast", "scalar_function")
        skip = spec.name in special or spec.name not in GRADIENTS
        if "elementwise" not in spec.traits or skip:
            continue
        low, high = RANGES.get(spec.name, (-2.0, 2.0))
        for shape in SHAPES:
            for dtype in (float64, complex128):
                rng = np.random.default_rng(len(cases))
                cplx = dtype is complex128
                count = spec.arity or 1
                operands = [draw(rng, shape, low, high, cplx) for _ in range(count)]
                try:
                    spec.infer([type_of(x) for x in operands], {}, ())
                except WeftError:
                    continue
                cases.append(Case(spec.name, operands))
    return cases


def structural_cases() -> list[Case]:
    """Ops with attributes, over axes, flags, and empty and repeated indices."""
    rng = np.random.default_rng(0)

    def f(*shape: int) -> Array:
        return draw(rng, shape, -2, 2)

    def z(*shape: int) -> Array:
        return draw(rng, shape, -2, 2, True)

    def distinct(*shape: int) -> Array:
        return np.asarray(rng.permutation(int(np.prod(shape))).reshape(shape) * 0.37 - 1)

    def i(*rows: Any) -> Array:
        return np.array(rows, np.int64)

    with_zeros = np.array([[0.0, 1.5, 0.0], [2.0, 0.0, -1.0], [1.0, 2.0, -3.0]])
    window = {"starts": (1, 3), "stops": (3, -1), "steps": (1, -2)}
    cases = [
        Case("where", [np.array([True, False, True]), f(3), f(3)]),
        Case("fma", [f(3), f(3), f(3)]),
        Case("where", [np.array([True, False, True]), z(3), z(3)]),
        Case("astype", [f(3)], {"dtype": complex128}),
        Case("astype", [z(3)], {"dtype": complex128}),
        Case("identity", [f(3)]),
        Case("tap", [f(3)], {"name": "h"}),
        Case("row_guard", [f(2, 3), np.array([True, True])]),
        Case("optimization_barrier", [f(3)]),
        *(Case(op, [f(3)], {"axis_name": "i"}) for op in ("psum", "pmax", "pmin")),
        *(
            Case(op, [f(1, 3)], {"axis_name": "i", "size": 1})
            for op in ("psum_scatter", "all_to_all")
        ),
        Case("all_gather", [f(3)], {"axis_name": "i", "size": 1}),
        Case("ppermute", [f(3)], {"axis_name": "i", "sources": (0,)}),
        Case("reshape", [f(2, 3)], {"shape": (3, 1, 2)}),
        Case("permute_dims", [f(2, 3, 4)], {"axes": (2, 0, 1)}),
        Case("permute_dims", [z(2, 3)], {"axes": (1, 0)}),
        Case("broadcast_to", [f(2, 1, 3)], {"shape": (4, 2, 5, 3)}),
        Case("broadcast_to", [f()], {"shape": (2, 3)}),
        Case("broadcast_to", [f(1, 3)], {"shape": (0, 3)}),
        Case("concat", [f(2, 1), f(2, 0), f(2, 3)], {"axis": 1}),
        Case("concat", [z(2, 2)], {"axis": 0}),
        Case("pad", [f(2, 3), f()], {"lo": (1, 0), "hi": (2, 3)}),
        Case("slice", [f(4, 5)], window),
        Case("slice", [f(4, 5)], {"starts": (1, 2), "stops": (3, 5), "steps": (1, 1)}),
        Case("slice", [f(4, 5)], {"starts": (3, 0), "stops": (1, 5), "steps": (1, 2)}),
        Case("slice_update", [f(4, 5), f(2, 2)], window),
        *[
            Case(op, [x], {"axes": axes, "keepdims": keep})
            for op in ("sum", "prod")
            for x in (f(2, 3, 2), z(2, 3, 2), f(0, 3, 2))
            for axes, keep in (((0, 2), False), ((1,), True), ((), False), ((0, 1, 2), False))
        ],
        *[Case("prod", [with_zeros], {"axes": axes, "keepdims": False}) for axes in ((1,), (0, 1))],
        *[
            Case(op, [distinct(2, 3, 4)], {"axes": axes, "keepdims": keep})
            for op in ("max", "min")
            for axes, keep in (((0, 2), False), ((1,), True), ((0, 1, 2), False))
        ],
        *[
            Case(op, [x], {"axis": axis, "reverse": reverse})
            for op in (
                "cumulative_sum",
                "cumulative_prod",
                "cumulative_max",
                "cumulative_min",
                "cumulative_logsumexp",
            )
            for x in (distinct(3, 5), z(2, 3), distinct(0, 3), distinct(2, 1))
            for axis, reverse in ((0, False), (1, True))
            if x.dtype.kind == "f" or op in ("cumulative_sum", "cumulative_prod")
        ],
        Case("cumulative_prod", [with_zeros], {"axis": 1, "reverse": False}),
        Case("cumulative_prod", [with_zeros], {"axis": 1, "reverse": True}),
        Case("sort", [distinct(3, 4)], {"axis": 1, "descending": False}),
        Case("sort", [distinct(3, 4)], {"axis": 0, "descending": True}),
        Case("take", [f(3, 4), i([0, 2, 2], [-1, 1, 0])], {"axis": 0}),
        Case("take", [z(3, 4), i(1, 1)], {"axis": 1}),
        Case("take", [f(3), np.zeros((0,), np.int64)], {"axis": 0}),
        Case("index_add", [f(3, 4), i(0, 2, -1), f(3, 4)], {"axis": 0}),
        Case("index_add", [f(3, 4), i([0, 3], [3, 3]), f(3, 2, 2)], {"axis": 1}),
        Case("take_along_axis", [f(3, 4), i([0, 1], [2, 2], [-1, 3])], {"axis": 1}),
        Case("scatter_along_axis_add", [f(3, 4), i([0, 1], [2, 2], [-1, 3]), f(3, 2)], {"axis": 1}),
        Case("gather_nd", [f(3, 4, 2), i([0, 1], [2, 2], [2, -2])]),
        Case("gather_nd", [f(3, 4), i([[0, 1]], [[2, 2]])]),
        Case("gather_nd", [f(3, 4), np.zeros((2, 0), np.int64)]),
        *[
            Case(op, operands)
            for op in ("scatter_nd_add", "scatter_nd_update", "scatter_nd_max", "scatter_nd_min")
            for operands in (
                [f(3, 4), i([0], [2], [2]), f(3, 4)],
                [f(3, 4), i([[0, 1]], [[2, 3]], [[-1, -1]]), f(3, 1)],
                [f(3), np.zeros((2, 0), np.int64), f(2, 3)],
            )
        ],
        Case("dynamic_stitch", [i(0, 3), i([1, 4]), f(2, 3), f(1, 2, 3)], {"rows": 5}),
        Case("dynamic_stitch", [i(0, 3, 3), i(1, 0), z(3), z(2)], {"rows": 6}),
        Case("ensure_shape", [f(3, 4)], {"shape": (3, 4)}),
        *matmul_cases(),
        *fourier_cases(),
        *factor_cases(),
    ]
    return cases


def fourier_cases() -> list[Case]:
    """Both directions, even and odd lengths, every scale, both weights of mirrored elements."""
    rng = np.random.default_rng(6)
    cases = []
    for n, scale in ((1, "1"), (2, "1/n"), (5, "1/sqrt(n)"), (6, "1/n")):
        x, z, h = (draw(rng, (2, k), -1, 1, c) for k, c in ((n, 0), (n, 1), (n // 2 + 1, 1)))
        for on in (False, True):
            cases += [
                Case("fft", [z.T.copy()], {"axis": 0, "inverse": on, "scale": scale}),
                Case("rfft", [x], {"axis": 1, "mirrored": on, "scale": scale}),
                Case("irfft", [h], {"axis": 1, "n": n, "mirrored": on, "scale": scale}),
            ]
    return cases


def matmul_cases() -> list[Case]:
    """All transpose flags, broadcast batch axes on either side, complex."""
    rng = np.random.default_rng(3)
    cases = []
    for cplx in (False, True):
        for batch_a, batch_b in (((), ()), ((2, 1), (3,)), ((), (2,)), ((2,), (1,))):
            for flag_a in (False, True):
                for flag_b in (False, True):
                    a = draw(rng, (*batch_a, *((4, 2) if flag_a else (2, 4))), -1, 1, cplx)
                    b = draw(rng, (*batch_b, *((3, 4) if flag_b else (4, 3))), -1, 1, cplx)
                    flags = {"transpose_a": flag_a, "transpose_b": flag_b}
                    cases.append(Case("matmul", [a, b], flags))
    return cases


def factor_cases() -> list[Case]:
    """Decompositions that read all of an operand and whose results are unique; triangles."""
    rng = np.random.default_rng(5)
    cases = []
    for cplx in (False, True):
        for shape in ((3, 3), (2, 2, 2), (4, 2), (2, 3), (0, 2), (1, 1)):
            x = draw(rng, shape, -2, 2, cplx)
            cases += [Case("lu", [x]), Case("qr", [x], {"full": shape[-2] < shape[-1]})]
            cases.append(Case("svd", [x], {"full": False, "vectors": False}))
            if not cplx:
                cases.append(Case("svd", [x], {"full": False, "vectors": True}))
        for shape in ((3, 3), (2, 2, 2), (0, 0)):
            a = draw(rng, shape, -1, 1, cplx) + 3 * np.eye(shape[-1])
            b = draw(rng, (*shape[:-1], 2), -1, 1, cplx)
            for number in range(8):
                flags = [bool(number & k) for k in (1, 2, 4)]
                names = ("lower", "adjoint", "unit_diagonal")
                attrs = dict(zip(names, flags, strict=True))
                cases.append(Case("triangular_solve", [a, b], attrs))
    return cases


def window_cases() -> list[Case]:
    """Convolutions and windows: strides, padding, dilation, groups, one and two axes, complex."""
    rng = np.random.default_rng(4)
    plain = {"strides": (1, 1), "lo": (1, 1), "dilation": (1, 1)}
    wide = {"strides": (2, 1), "lo": (1, -1), "dilation": (1, 2)}
    line = {"strides": (2,), "lo": (1,), "dilation": (2,)}
    cases = []
    for x, w, size, groups, attrs in (
        ((2, 3, 4, 2), (3, 2, 2, 3), (3, 4), 1, plain),
        ((1, 4, 5, 4), (2, 2, 2, 2), (2, 3), 2, wide),
        ((2, 5, 3), (2, 1, 3), (3,), 3, line),
        ((0, 3, 2), (2, 2, 1), (2,), 1, line),
    ):
        for cplx in (False, True):
            y = (x[0], *size, w[-1])
            a, b, c = (draw(rng, shape, -1, 1, cplx) for shape in (x, w, y))
            same = {**attrs, "groups": groups}
            cases += [
                Case("conv", [a, b], {**same, "size": size}),
                Case("conv_input", [c, b], {**same, "size": x[1:-1]}),
                Case("conv_kernel", [a, c], {**same, "size": w[:-2]}),
            ]
    for shape, window, size, attrs in (
        ((2, 4, 4, 2), (2, 2), (2, 2), {"strides": (2, 2), "lo": (0, 0), "dilation": (1, 1)}),
        ((1, 4, 5, 2), (3, 2), (3, 4), wide),
        ((2, 5, 1), (3,), (3,), line),
    ):
        x = np.asarray(rng.permutation(int(np.prod(shape))).reshape(shape) * 0.37 - 1)
        y = draw(rng, (shape[0], *size, shape[-1]), -1, 1)
        t = draw(rng, shape, -1, 1)
        same = {**attrs, "window": window}
        cases += [
            Case("window_sum", [t], {**same, "size": size}),
            Case("window_spread", [y], {**same, "size": shape[1:-1]}),
            Case("window_max", [x], {**same, "size": size}),
            Case("window_pick", [x, t], {**same, "size": size}),
            Case("window_place", [x, y], same),
        ]
    return cases


CASES = elementwise_cases() + structural_cases() + window_cases()
