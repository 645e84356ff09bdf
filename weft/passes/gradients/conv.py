"""Gradients of convolutions and windowed reductions.

A convolution is one of the three derivatives of a trilinear form (`weft.ir.ops.conv`), so its
gradients are the two others, with the same attributes but for the size of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.attributes import AttrValue
from weft.ir.dims import Dim
from weft.passes.expression import Expr
from weft.passes.gradients.rule import Rule, Site


def _other(s: Site, name: str, a: Expr, b: Expr, size: tuple[Dim, ...]) -> Expr:
    attrs: dict[str, AttrValue] = {**s.attrs, "size": size}
    return a.op(name, b, **attrs)


def _conv(s: Site) -> Sequence[Expr | None]:
    (x, w), g = s.operands, s.g
    return [
        _other(s, "conv_input", g, w.conj(), x.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv_kernel", x.conj(), g, w.shape[:-2]) if s.needed[1] else None,
    ]


def _conv_input(s: Site) -> Sequence[Expr | None]:
    (y, w), g = s.operands, s.g
    return [
        _other(s, "conv", g, w.conj(), y.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv_kernel", g, y.conj(), w.shape[:-2]) if s.needed[1] else None,
    ]


def _conv_kernel(s: Site) -> Sequence[Expr | None]:
    (x, y), g = s.operands, s.g
    return [
        _other(s, "conv_input", y.conj(), g, x.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv", x.conj(), g, y.shape[1:-1]) if s.needed[1] else None,
    ]


def _adjoint_sum(name: str) -> Rule:
    def rule(s: Site) -> Sequence[Expr | None]:
        attrs: dict[str, AttrValue] = {**s.attrs, "size": s.x.shape[1:-1]}
        return [s.g.op(name, **attrs)]

    return rule


def _place(s: Site, x: Expr, g: Expr) -> Expr:
    attrs = {k: v for k, v in s.attrs.items() if k != "size"}
    return x.op("window_place", g, **attrs)


def _window_place(s: Site) -> Sequence[Expr | None]:
    x, g = s.operands
    attrs: dict[str, AttrValue] = {**s.attrs, "size": g.shape[1:-1]}
    return [None, x.op("window_pick", s.g, **attrs)]


GRADIENTS: Mapping[str, Rule] = {
    "conv": _conv,
    "conv_input": _conv_input,
    "conv_kernel": _conv_kernel,
    "window_sum": _adjoint_sum("window_spread"),
    "window_spread": _adjoint_sum("window_sum"),
    "window_max": lambda s: [_place(s, s.x, s.g)],
    "window_pick": lambda s: [None, _place(s, s.x, s.g)],
    "window_place": _window_place,
}
NO_GRADIENT: frozenset[str] = frozenset()
