"""Sizes that only strings have: compiled parts, which take no strings, learn them all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.text.parser import parse_graph
from weft.passes.sizes import tie_sizes


def test_numbers_tell_what_a_table_of_strings_holds() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        table = wf.MutableHashTable(wf.string, wf.float32, 0.0)
        session.run(table.insert(["a", "b"], [1.0, 2.0]))
        _, values = table.export()
        assert session.run(wf.sum(values * 6)) == 18


@pytest.mark.parametrize("given", [["a", "b", "c"], [], ["x"]])
def test_only_strings_have_the_size(given: list[str]) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        lines = wf.FIFOQueue(9, wf.string, [[]])
        read, p = lines.dequeue_up_to(5), wf.placeholder(wf.bool_, [])
        ones = wf.sum(wf.ones(read.shape, dtype=wf.float32) * 3)
        inside = wf.cond(p, lambda: wf.sum(wf.ones(read.shape)), lambda: wf.sum(wf.ones([7])))
        put = lines.enqueue_many(np.array(given, object))
        for _ in given or [0]:
            session.run(put)
        session.run(lines.close())
        if not given:
            with pytest.raises(wf.errors.OutOfRangeError):
                session.run(ones)
            return
        count = min(5, len(given) ** 2)
        got: Any = session.run([ones, inside, read], {p: True})
        assert (got[0], got[1], len(got[2])) == (3 * count, count, count)


def test_strings_to_come_after_are_no_inputs() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        b = wf.Barrier([wf.int64], [[]])
        session.run([b.insert_many(0, ["k", "l"], [1, 2])])
        session.run(b.close())
        _, keys, _ = b.take_many(2, allow_small_batch=True)
        with wf.control_dependencies([keys]):
            later = wf.identity(wf.constant(3.0) + 4)
        assert session.run(later) == 7
        assert session.run(b.ready_size()) == 0


def test_tying_twice_changes_nothing() -> None:
    graph = parse_graph("""graph @g() -> (f32[n]) stage=traced {
  %0 = queue() {name="q", kind="fifo", parts=["string[]"]} : queue<string[]>
  %1 = dequeue_up_to(%0) {n=5, sizes=["n"]} : string[n]
  %2 = constant() {value=f32[] 1.0} : f32[]
  %3 = broadcast_to(%2) {shape=[n]} : f32[n]
  return %3
}
""")
    once = tie_sizes(graph)
    verify(once)
    assert [op.name for op in once.ops].count("string_length") == 1
    assert tie_sizes(once) == once
