"""Nests without reductions: one grid-stride loop over all elements, vector by vector."""

from __future__ import annotations

from dataclasses import replace

from weft.codegen.cuda.kernel import THREADS, Launch
from weft.codegen.cuda.nests.body import Body, Buffers, index_of, lanes_of
from weft.codegen.cuda.writer import Source, product
from weft.codegen.nests.nest import Nest

#: A grid has at most so many blocks; their threads go on in strides of the grid.
MOST_BLOCKS = 65536


def each_launch(nest: Nest, buffers: Buffers) -> Launch:
    """The launch of a nest whose loops are all parallel."""
    if not nest.extents:
        nest = _one_loop(nest)
    lanes = lanes_of(nest)
    s = Source(f"{nest.name}_each", index_of(nest))
    body = Body(s, nest, buffers, lanes)
    items = product(nest.extents) // lanes
    count = s.number("items", items)
    first = s.let(s.add(s.mul(s.block_index, s.const(THREADS)), s.thread), "first")
    *outer, last = nest.extents
    inner = [s.number(f"n{k + 1}", n) for k, n in enumerate((*outer[1:], last // lanes)) if outer]
    step = s.let(s.mul(s.block_count, s.const(THREADS)), "step")
    with s.loop(first, count, step) as i:
        body.begin()
        at = s.split(i, ["", *inner] if outer else [""])
        if lanes > 1:
            at[-1] = s.let(s.mul(at[-1], s.const(lanes)), "j")
        body.write(at, body.values(at, lanes))
    if lanes > 1 and not outer:
        tail(s, body, s.mul(count, s.const(lanes)), first, last % lanes)
    return s.launch(max(1, min(-(-items // THREADS), MOST_BLOCKS)))


def tail(s: Source, body: Body, start: str, thread: str, rest: int) -> None:
    """The elements that make no whole vector, one each for the first threads."""
    with s.block(f"if {thread} < {s.number('rest', rest)}"):
        body.begin()
        at = [s.let(s.add(start, thread), "j")]
        body.write(at, body.values(at, 1))


def _one_loop(nest: Nest) -> Nest:
    """A single element as a loop of one iteration."""
    return replace(
        nest,
        extents=(1,),
        reduced=(False,),
        loads=tuple(replace(a, strides=(0,)) for a in nest.loads),
        stores=tuple(replace(w, strides=(0,)) for w in nest.stores),
    )
