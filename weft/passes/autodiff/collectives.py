"""Gradients of collectives over the rows of a batch, which are collectives again.

The cotangent of a row's operand is that of the sum of what all rows make of it, as in JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.spec import ints_attr
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.expression import Expr


def _of_extremum(s: Site) -> Sequence[Expr | None]:
    """To the rows that have it, in equal parts."""
    name = s.attrs["axis_name"]
    here = s.x.op("equal", s.y)
    count = here.op("astype", dtype=s.g.dtype).op("psum", axis_name=name)
    return [here.where(s.g.op("psum", axis_name=name) / count, s.g.full(0))]


def _of_ppermute(s: Site) -> Sequence[Expr | None]:
    sources = ints_attr(s.attrs, "sources")
    target_of = {source: k for k, source in enumerate(sources) if source >= 0}
    back = tuple(target_of.get(k, -1) for k in range(len(sources)))
    return [s.g.op("ppermute", axis_name=s.attrs["axis_name"], sources=back)]


def _adjoint(name: str) -> Rule:
    """Of a collective that is linear: another one."""
    return lambda s: [s.g.op(name, **s.attrs)]


COLLECTIVE_GRADIENTS: Mapping[str, Rule] = {
    "psum": _adjoint("psum"),
    "all_gather": _adjoint("psum_scatter"),
    "psum_scatter": _adjoint("all_gather"),
    "all_to_all": _adjoint("all_to_all"),
    "ppermute": _of_ppermute,
    **dict.fromkeys(("pmax", "pmin"), _of_extremum),
}
