"""Ops on stacks as Numba source: push, pop, sums, and where the arena is set back (marks).

A handle, the address of a stack's top, is an element of an int64 array; 0 is an empty stack. What a
push without room reports is told as an index out of bounds is (`kernels/stack.py`)."""

from __future__ import annotations

import math

from weft.codegen.call import Stacks
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.numba.scalars import scalar_text
from weft.codegen.numba.source import (
    KernelSource,
    Lines,
    Number,
    Param,
    View,
    array_dtype,
    load_text,
    stored,
)
from weft.codegen.numba.structural import Printer, dense, template
from weft.codegen.stacks import FIRST_MARK, MARK, WORD_COUNT
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Operation
from weft.ir.ops.control_flow import element_type
from weft.ir.spec import int_attr


def arena_view() -> View:
    """The words of the arena of the running step."""
    return View("arena", "i64", Stacks(), (WORD_COUNT,), (1,), written=True)


def push(op: Operation, in_place: bool) -> list[KernelSource]:
    """The value's bytes in a new element."""
    stack, value = op.operands
    nbytes, limit = tensor(value).nbytes, int_attr(op.attrs, "limit")
    params: list[Param] = [
        dense("out", op.result, written=True), dense("stack", stack),
        dense("value", value, (nbytes,), dtype="u8"), arena_view(), Number("nbytes", nbytes),
    ]  # fmt: skip
    text = """
    place = arena_push(arena, stack[0], nbytes)
    if place == 0:
        fault(faults, 0, -1, 0)
    else:
        data = top_of(place, nbytes, uint8)
        for i in range(nbytes):
            data[i] = value[i]"""
    helpers = {"arena_push", "top_of", "fault"}
    if limit >= 0:
        params.append(Number("limit", limit))
        helpers.add("arena_held")
        text += """
        held = arena_held(arena, place)
        if held > limit:
            fault(faults, 0, held, 0)"""
    text += "\n    out[0] = place"
    key = f"numba-arena-push{'-limited' if limit >= 0 else ''}"
    return [template(key, "push", params, text, helpers, checks=True)]


def pop(op: Operation, in_place: bool) -> list[KernelSource]:
    """The bytes of the top; zeros of a stack without elements."""
    rest, top = op.results
    nbytes = tensor(top).nbytes
    params: list[Param] = [
        dense("rest", rest, written=True), dense("top", top, (nbytes,), written=True, dtype="u8"),
        dense("stack", op.operands[0]), Number("nbytes", nbytes),
    ]  # fmt: skip
    text = """
    place = stack[0]
    if place == 0:
        rest[0] = 0
        for i in range(nbytes):
            top[i] = 0
    else:
        rest[0] = below(place)
        data = top_of(place, nbytes, uint8)
        for i in range(nbytes):
            top[i] = data[i]"""
    return [template("numba-arena-pop", "pop", params, text, {"below", "top_of"})]


def add(op: Operation, in_place: bool) -> list[KernelSource]:
    """Sums of elements from the tops on; where one stack ends the other goes on."""
    held, depth = element_type(op.attrs), int_attr(op.attrs, "depth")
    dtype, count = held.dtype.short, math.prod(held.static_shape)
    params: list[Param] = [
        dense("out", op.result, written=True), dense("first", op.operands[0]),
        dense("second", op.operands[1]), arena_view(), Number("n", count),
    ]  # fmt: skip
    helpers = {"arena_push", "below", "copy_begun", "fault", "put_below", "top_of"}
    out = Lines()
    _sums(out, dtype, depth, ("first[0]", "second[0]", "out[0]"), helpers)
    key, name = f"numba-arena-add-{dtype}-{depth}", f"add_{dtype}"
    return [KernelSource(key, name, tuple(params), tuple(out.lines), frozenset(helpers), True)]


def _sums(
    out: Lines, dtype: str, depth: int, given: tuple[str, str, str], helpers: set[str]
) -> None:
    """The stack of the sums of two stacks of this depth. given: both, and where it goes."""
    own = ("a", "b", "made", "last", "place", "x", "y", "total")
    names = {name: f"{name}{depth}" for name in own}
    names |= dict(zip(("left", "right", "target"), given, strict=True))
    inner = depth > 1  # an element is the handle of a stack
    names["n"], names["kind"] = ("1", "int64") if inner else ("n", array_dtype(dtype))
    names["nbytes"] = "8" if inner else f"n * {as_dtype(dtype).itemsize}"
    out.many(
        """
        $a, $b = $left, $right
        $made = $last = int64(0)
        while $a != 0 and $b != 0:
            $place = arena_push(arena, int64(0), $nbytes)
            if $place == 0:
                fault(faults, 0, -1, 0)
                return
            copy_begun($place, $a)
            $x = top_of($a, $n, $kind)
            $y = top_of($b, $n, $kind)
            $total = top_of($place, $n, $kind)""",
        **names,
    )
    out.depth += 1
    x, y, total = (names[n] for n in ("x", "y", "total"))
    if inner:
        _sums(out, dtype, depth - 1, (f"{x}[0]", f"{y}[0]", f"{total}[0]"), helpers)
    else:
        pair = [load_text(f"{n}[i]", dtype, helpers) for n in (x, y)]
        text = scalar_text("add", dtype, pair, dtype, helpers)
        out("for i in range(n):")
        out(f"    {total}[i] = {stored(text, dtype, helpers)}")
    _link(out, names)
    out.depth -= 1
    _link(out, names | {"place": f"{names['b']} if {names['a']} == 0 else {names['a']}"}, end=True)
    out(f"{names['target']} = {names['made']}")


def _link(out: Lines, names: dict[str, str], end: bool = False) -> None:
    """Put `place` below the last element of the sum; unless it is the `end`, go on below."""
    out.many(
        """
        if $last == 0:
            $made = $place
        else:
            put_below($last, $place)""",
        **names,
    )
    if not end:
        out.many("$last = $place\n$a, $b = below($a), below($b)", **names)


# ---------------------------------------------------------------------------------------- the marks
_MARKS = {
    "begin": ("arena_begin(arena)", {"arena_begin"}),
    "end": ("arena_end(arena)", {"arena_end"}),
    "mark": ("for k in range(4):\n    arena[at + k] = arena[k]", set[str]()),
    "release": ("for k in range(4):\n    arena[k] = arena[at + k]", set[str]()),
}


def mark(name: str, number: int) -> KernelSource:
    """begin, end, mark or release; the last two on the mark of this number."""
    text, helpers = _MARKS[name]
    params: list[Param] = [arena_view(), Number("at", FIRST_MARK + MARK * number)]
    return template(f"numba-arena-{name}", name, params, text, helpers)


PRINTERS: dict[str, Printer] = {"arena_push": push, "arena_pop": pop, "arena_add": add}
