"""first_occurrence: which indices are equal. Few are looked through by a thread for each; many are
put in order first (`ordered.py`)."""

from __future__ import annotations

from weft.codegen.call import Address
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.others.index import Indices
from weft.codegen.cuda.others.ordered import Keys, key_launches, worth_ordering
from weft.codegen.cuda.others.sizes import count_of, dtype_of
from weft.codegen.cuda.writer import Source, index_dtype
from weft.ir.graph import Operation, Value
from weft.ir.type_rules import int_attr


def first_occurrence_launches(op: Operation) -> list[Launch]:
    """For each index the position of the first that is equal."""
    (index,) = op.operands
    count = count_of(index)
    if not count:
        return []
    size = int_attr(op.attrs, "size")
    if worth_ordering(count, size, count // 2):
        launches, keys = key_launches(index, (size,), size, tells=True)
        return [*launches, _first_launch(op.result, keys)]
    kind = index_dtype(count)
    s = Source(f"first_occurrence_{dtype_of(index)}_{kind}", kind)
    out = s.pointer("out", "i64", Address(op.result))
    indices = Indices(s, index, (size,))
    # the same ones again, for which no faults are told of: whose position it is does that
    others = indices.quiet()
    n = s.number("n", count)
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {n}"):
        mine, _ = indices.read(i)
        place = s.let(s.const(0), "place")
        looking = s.let("boolean(True)", "looking")
        with s.block(f"while {looking}"):
            number, _ = others.read(place)
            with s.block(f"if {number} == {mine} or {place} >= {i}"):
                s.line(f"{looking} = boolean(False)")
            with s.block("else"):
                s.line(f"{place} = {s.add(place, s.const(1))}")
        s.line(f"{out}[{i}] = i64({place})")
    return [s.launch(-(-count // s.threads))]


def _first_launch(result: Value, keys: Keys) -> Launch:
    """For each position (i64) the first one of the same part: a binary search among the keys."""
    kind = index_dtype(2 * keys.n)
    s = Source(f"first_of_part_{kind}", kind)
    out = s.pointer("out", "i64", Address(result))
    pointer, first = keys.parameter(s)
    n = s.number("n", keys.n)
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {n}"):
        key = s.let(f"{pointer}[{s.add(first, i)}]", "key")
        wanted = s.let(f"u64(u64({key} >> u64(32)) << u64(32))", "wanted")
        low, high = s.let(s.const(0), "low"), s.let(i, "high")
        with s.block(f"while {low} < {high}"):
            half = s.let(s.add(low, s.div(s.sub(high, low), s.const(2))), "half")
            with s.block(f"if {pointer}[{s.add(first, half)}] < {wanted}"):
                s.line(f"{low} = {s.add(half, s.const(1))}")
            with s.block("else"):
                s.line(f"{high} = {half}")
        found = s.let(f"{pointer}[{s.add(first, low)}]", "found")
        position = s.let(s.cast(f"u64({key} & u64(0xFFFFFFFF))"), "position")
        s.line(f"{out}[{position}] = i64(u64({found} & u64(0xFFFFFFFF)))")
    return s.launch(-(-keys.n // s.threads))
