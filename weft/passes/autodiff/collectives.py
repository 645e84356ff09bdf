"""Gradients of collectives over the rows of a batch or the processes of a mesh, which are
collectives again.

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


def _back(s: Site) -> tuple[int, ...]:
    """The sources of the permutation that brings back what this one has moved."""
    sources = ints_attr(s.attrs, "sources")
    target_of = {source: k for k, source in enumerate(sources) if source >= 0}
    return tuple(target_of.get(k, -1) for k in range(len(sources)))


def _of_ppermute(s: Site) -> Sequence[Expr | None]:
    return [s.g.op("ppermute", axis_name=s.attrs["axis_name"], sources=_back(s))]


def _adjoint(name: str) -> Rule:
    """Of a collective that is linear: another one."""
    return lambda s: [s.g.op(name, **s.attrs)]


#: By kind of `exchange`: its adjoint, for those that are linear and whose attributes it has.
_ADJOINTS = {
    "psum": "psum", "all_gather": "psum_scatter", "psum_scatter": "all_gather",
    "all_to_all": "all_to_all", "split": "join", "join": "split",
    "enter": "total", "total": "enter", "leave": "first", "first": "leave",
}  # fmt: skip


def _of_exchange(s: Site) -> Sequence[Expr | None]:
    kind = str(s.attrs["kind"])
    if kind in _ADJOINTS:
        return [s.g.op("exchange", **{**s.attrs, "kind": _ADJOINTS[kind]})]
    if kind == "ppermute":
        return [s.g.op("exchange", **{**s.attrs, "sources": _back(s)})]
    total = {**s.attrs, "kind": "psum"}  # of an extremum, as `_of_extremum`
    here = s.x.op("equal", s.y)
    count = here.op("astype", dtype=s.g.dtype).op("exchange", **total)
    return [here.where(s.g.op("exchange", **total) / count, s.g.full(0))]


COLLECTIVE_GRADIENTS: Mapping[str, Rule] = {
    "psum": _adjoint("psum"),
    "all_gather": _adjoint("psum_scatter"),
    "psum_scatter": _adjoint("all_gather"),
    "all_to_all": _adjoint("all_to_all"),
    "ppermute": _of_ppermute,
    "exchange": _of_exchange,
    **dict.fromkeys(("pmax", "pmin"), _of_extremum),
}
