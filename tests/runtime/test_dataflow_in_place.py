"""Updates on the executor: in the memory of what they update if nobody else reads that, with the
same values everywhere."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.dtypes import as_dtype
from weft.ir.text.parser import parse_graph
from weft.passes.control.dataflow_regions import given_inputs, plan_regions
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.executor import DataflowStep

SIZE = 5000


def cells(step: DataflowStep) -> list[int]:
    """The classes of the cells that a step has made."""
    (running,) = step._idle
    found, cell = [], running.state.word(at.S_ALL_CELLS)
    while cell:
        words = np.ctypeslib.as_array(_words(cell))
        found.append(int(words[at.C_CLASS // 8]))
        cell = int(words[at.C_ALL // 8])
    return found


def _words(address: int) -> Any:
    return (ctypes.c_int64 * 8).from_address(int(address))


def step_of(session: wf.Session) -> DataflowStep:
    *_, made = session._steps.entries.values()
    assert isinstance(made.executable, DataflowStep)
    return made.executable


def both(build: Any, *inputs: Any) -> tuple[Any, DataflowStep]:
    """What `build` of placeholders gives, the same by both ways, and the step on the executor."""
    found, steps = [], []
    for mode in ("native", "dataflow"):
        with wf.Graph().as_default() as graph:
            arrays = [np.asarray(x) for x in inputs]
            feeds = [wf.placeholder(a.dtype.name, a.shape) for a in arrays]
            fetches = build(*feeds)
            with wf.Session(graph=graph, control_flow=mode) as session:
                fed = dict(zip(feeds, arrays, strict=True))
                before = [a.copy() for a in arrays]
                results = [session.run(fetches, fed) for _ in range(3)]
                assert all(_same(r, results[0]) for r in results)
                assert _same(arrays, before), "a feed was written to"
                found.append(results[0])
                if mode == "dataflow":
                    steps.append(step_of(session))
    assert _same(found[0], found[1])
    return found[0], steps[0]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.array_equal(a, b))


def test_a_carry_is_updated_where_it_is() -> None:
    def build(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return i + 1, x.at[i].set(wf.astype(i, wf.float32))

        start = wf.constant(np.int64(0))
        return wf.while_loop(lambda i, x: i < 40, body, [start, x])[1]

    found, step = both(build, np.ones(SIZE, np.float32))
    assert found[:41].tolist() == [*range(40), 1.0]
    large = [c for c in cells(step) if (64 << c) >= 4 * SIZE]
    assert len(large) == 1  # the copy of the feed


def test_a_value_that_others_read_is_copied() -> None:
    def build(x: Any) -> Any:
        def body(i: Any, x: Any, old: Any) -> Any:
            new = x.at[i].add(1.0)
            return i + 1, new, x

        start = [wf.constant(np.int64(0)), x * 2.0, x]
        _, new, old = wf.while_loop(lambda i, x, old: i < 7, body, start)
        return new, old, x

    found, _ = both(build, np.ones(SIZE, np.float32))
    assert found[0][:8].tolist() == [3.0] * 7 + [2.0]
    assert found[1][:8].tolist() == [3.0] * 6 + [2.0, 2.0]
    assert found[2].tolist() == [1.0] * SIZE


def test_both_sides_of_a_branch() -> None:
    def build(p: Any, x: Any) -> Any:
        y = x * 3.0
        a = wf.cond(p, lambda: y.at[0].set(0.0), lambda: y.at[1].set(1.0))
        b = wf.cond(p, lambda: y.at[2].set(0.0), lambda: y)
        return a, b

    for p in (False, True):
        (a, b), _ = both(build, np.bool_(p), np.ones(SIZE, np.float32))
        assert a[:3].tolist() == ([0, 3, 3] if p else [3, 1, 3])
        assert b[:3].tolist() == ([3, 3, 0] if p else [3, 3, 3])


OPS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


@given(OPS, st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_random_updates_in_a_loop(ops: list[tuple[int, int, int, int]], count: int) -> None:
    def build(x: Any, y: Any) -> Any:
        def body(i: Any, p: Any, q: Any, r: Any, s: Any) -> Any:
            values = [p, q, r, s]
            for kind, a, b, k in ops:
                v, w = values[a], values[b]
                match kind:
                    case 0:
                        new = v.at[k].set(w[k] + 1.0)
                    case 1:
                        new = v.at[k].add(w[(k + 1) % 10])
                    case 2:
                        new = v + w
                    case 3:
                        new = wf.cond(wf.sum(v) > 5.0, lambda v=v, k=k: v.at[k].set(0.0),
                                      lambda v=v: v)  # fmt: skip
                    case 4:
                        new = v.at[wf.stack([i % 10, k])].add(0.5)
                    case _:
                        new = w
                values[a] = new
            return (i + 1, *values)

        start = [wf.constant(np.int64(0)), x, y, x * 2.0, y + 1.0]
        return list(wf.while_loop(lambda i, p, q, r, s: i < count, body, start))[1:]

    both(build, np.arange(10, dtype=np.float32), np.ones(10, np.float32))


def test_a_region_gives_only_what_it_updates() -> None:
    graph = parse_graph(
        """
graph @g(%x: f32[4], %y: f32[4], %i: i64[1]) -> (f32[4]) stage=dataflow {
  %a = take(%y, %i) {axis=0} : f32[1]
  %z = slice_update(%x, %a) {starts=[0], stops=[1], steps=[1]} : f32[4]
  %r = add(%z, %y) : f32[4]
  return %r
}
"""
    )
    (region,) = plan_regions(graph).regions
    names = [region.inputs[i].index for i in given_inputs(region)]
    assert names == [0]


PS, WORKER = "/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0"


@pytest.mark.parametrize("sent", [False, True])
def test_a_table_whose_rows_are_looked_up_and_written_stays_in_one_region(sent: bool) -> None:
    """Unless the rows are needed for what the region waits for."""
    send = f"""%8 = send(%2) {{key=1, tensor="rows", src="{PS}", dst="{WORKER}"}} : token"""
    graph = parse_graph(f"""
graph @part(%ids: i64[256]) -> () stage=partitioned {{
  %0 = variable() {{name="slots", dtype=f32, shape=[12000, 64]}} : ref<f32[12000,64]>
  %1 = read(%0) : f32[12000,64]
  %2 = take(%1, %ids) {{axis=0}} : f32[256,64]
  {send if sent else ""}
  %3 = recv() {{key=0, tensor="g", src="{WORKER}", dst="{PS}", dtype=f32, shape=[256, 64],
                live=0, depth=1}} : f32[256,64]
  %4 = add(%2, %3) : f32[256,64]
  %5 = reshape(%ids) {{shape=[256, 1]}} : i64[256,1]
  %6 = scatter_nd_update(%1, %5, %4) : f32[12000,64]
  %7 = assign(%0, %6) after(%1) : token
  return
}}
""")
    regions = plan_regions(graph).regions
    held = {op.name: region for region in regions for op in region.ops}
    assert held["scatter_nd_update"] is held["assign"]
    assert (held["take"] is held["assign"]) is not sent
    if not sent:
        assert held["read"] is held["assign"]
        assert all(v.type.shape != (12000, 64) for region in regions for v in region.results)


@pytest.mark.parametrize("dtype", ["int8", "complex128", "bfloat16"])
def test_other_dtypes(dtype: str) -> None:
    def build(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return i + 1, x.at[i].set(wf.astype(i, dtype))

        return wf.while_loop(lambda i, x: i < 3, body, [wf.constant(np.int64(0)), x + x])[1]

    found, _ = both(build, np.ones(SIZE, as_dtype(dtype).numpy))
    assert found[:4].tolist() == [0, 1, 2, 2]
