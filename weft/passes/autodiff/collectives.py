"""Gradients of collectives over the rows of a batch or the processes of a mesh, which are
collectives again.

The cotangent of a row's operand is that of the sum of what all rows make of it, as in JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.ops.collectives import member_types
from weft.ir.spec import AttrValue, ints_attr
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.buckets import packed, summed, taken_apart
from weft.passes.rewriting.expression import Expr

#: The adjoint of a collective, for those that are linear and whose attributes it has.
_ADJOINTS = {
    "psum": "psum", "all_gather": "psum_scatter", "psum_scatter": "all_gather",
    "all_to_all": "all_to_all", "split": "join", "join": "split",
    "enter": "total", "total": "enter", "leave": "first", "first": "leave",
}  # fmt: skip


def _of_collective(s: Site) -> Sequence[Expr | None]:
    """Of an op over rows, or of an exchange of that kind. The halves of a sum: what goes back
    through `done` is packed, and summed by `start`."""
    kind = str(s.attrs.get("kind", s.op.name))
    if kind == "start":
        return taken_apart(summed(s.g, s.op), member_types(s.op))
    if kind == "done":
        pairs = zip(s.cotangents, s.results, strict=True)
        return [packed([y.full(0) if g is None else g for g, y in pairs], member_types(s.op))]
    if kind in _ADJOINTS:
        return [_over_axis(s, _ADJOINTS[kind], s.g)]
    if kind == "ppermute":
        return [_over_axis(s, kind, s.g, sources=_back(s))]
    here = s.x.op("equal", s.y)  # of an extremum: to the rows that have it, in equal parts
    count = _over_axis(s, "psum", here.op("astype", dtype=s.g.dtype))
    return [here.where(_over_axis(s, "psum", s.g) / count, s.g.full(0))]


def _over_axis(s: Site, kind: str, x: Expr, **changed: AttrValue) -> Expr:
    """Another collective over the axis of this one."""
    attrs = {**s.attrs, **changed}
    return x.op("exchange", **{**attrs, "kind": kind}) if "kind" in attrs else x.op(kind, **attrs)


def _back(s: Site) -> tuple[int, ...]:
    """The sources of the permutation that brings back what this one has moved."""
    sources = ints_attr(s.attrs, "sources")
    target_of = {source: k for k, source in enumerate(sources) if source >= 0}
    return tuple(target_of.get(k, -1) for k in range(len(sources)))


COLLECTIVE_GRADIENTS: Mapping[str, Rule] = dict.fromkeys(
    ("psum", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute", "exchange"),
    _of_collective,
)
