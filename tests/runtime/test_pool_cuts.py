"""The bits of results do not depend on how calls are cut, nor on how many threads there are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE
from cut_calls import WORKERS, assert_same_bits, cut_calls, cut_everything
from example_counts import examples
from graph_makers import MAKERS
from graphs import Case, graph_and_inputs
from hypothesis import given
from hypothesis import strategies as st
from native_runs import run, states

import weft as wf
from weft.codegen.call import split
from weft.ir.cost.thresholds import MOST_CHUNKS
from weft.ir.dtypes import bool_, float16, float32, float64, int32, int64, uint8
from weft.ir.ops import lookup
from weft.ir.ops.collectives import COLLECTIVES
from weft.runtime.native.executable import compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
#: Compiled steps have no ops of the host.
OPS = sorted(n for n in MAKERS if not lookup(n).traits & {"host", "handle"})
OPS = [n for n in OPS if n not in COLLECTIVES]
DTYPES = [float32, float64, int32, int64, uint8, bool_, float16]


@pytest.fixture(autouse=True)
def everything_is_cut() -> Iterator[None]:
    before = POOL.limit
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        POOL.set_limit(16)
        yield
    POOL.set_limit(before)


class TestRandomGraphs:
    @examples(60)
    @given(
        graph_and_inputs(stage="traced", ops=OPS, dtypes=DTYPES, max_ops=8), st.integers(0, 2**32)
    )
    def test_in_random_cuts(self, case: Case, seed: int) -> None:
        variables = states(case)
        step = compile_graph(case.graph, variables, passes=PIPELINE)
        whole = run(step, variables, case)
        for k in range(3):
            with cut_calls(step, random.Random(seed + k)):
                assert_same_bits(run(step, variables, case), whole)

    @examples(40)
    @given(graph_and_inputs(stage="traced", ops=OPS, dtypes=DTYPES, max_ops=8))
    def test_on_1_to_16_threads(self, case: Case) -> None:
        variables = states(case)
        step = compile_graph(case.graph, variables, passes=PIPELINE)
        wanted = None
        for threads in (1, 2, 4, 16):
            POOL.set_limit(threads)
            for _ in range(2):
                results = run(step, variables, case)
                wanted = wanted or results
                assert_same_bits(results, wanted)
        POOL.set_limit(16)


def of_size(*shape: int, dtype: str = "float32") -> Array:
    rng = np.random.default_rng(5)
    if dtype.startswith("float"):
        x = rng.standard_normal(shape).astype(dtype)
        x.reshape(-1)[::7] = x.reshape(-1)[:1]  # ties
        x.reshape(-1)[3::50] = np.nan
        x.reshape(-1)[4::50] = -0.0
        return x
    return rng.integers(-50, 50, shape).astype(dtype)


FUNCTIONS = {
    "cumulative rows": lambda x, i: wf.cumulative_sum(x, axis=1),
    "cumulative columns": lambda x, i: wf.cumulative_prod(x, axis=0),
    "argmax rows": lambda x, i: wf.argmax(x, axis=1),
    "argmin columns": lambda x, i: wf.argmin(x, axis=0),
    "sort rows": lambda x, i: wf.sort(x, axis=1),
    "sort columns": lambda x, i: wf.sort(x, axis=0, descending=True),
    "argsort rows": lambda x, i: wf.argsort(x, axis=1),
    "sort flat": lambda x, i: wf.sort(wf.reshape(x, (-1,))),
    "argsort flat": lambda x, i: wf.argsort(wf.reshape(x, (-1,))),
    "top k": lambda x, i: wf.top_k(x, 5).values,
    "searchsorted": lambda x, i: wf.searchsorted(wf.sort(x[0]), x[1]),
    "rfft rows": lambda x, i: wf.fft.rfft(x, axis=1),
    "fft columns": lambda x, i: wf.abs(wf.fft.fft(x, axis=0)),
    "take rows": lambda x, i: wf.take(x, i, axis=0),
    "take columns": lambda x, i: wf.take(x, i, axis=1),
    "take along": lambda x, i: wf.take_along_axis(x, wf.argsort(x, axis=1), axis=1),
    "gather nd": lambda x, i: wf.gather_nd(x, wf.reshape(i, (-1, 2))),
    "scatter add": lambda x, i: wf.segment_sum(x[:30], i, 60),
    "scatter nd add": lambda x, i: wf.scatter_nd_add(x, wf.reshape(i, (-1, 1)), x[:30]),
    "scatter nd update": lambda x, i: wf.scatter_nd_update(x, wf.reshape(i, (-1, 1)), x[:30]),
    "pad": lambda x, i: wf.pad(x, ((1, 2), (3, 0))),
    "concat": lambda x, i: wf.concat([x, x * 2], axis=1),
    "sum of rows": lambda x, i: wf.sum(x, axis=1),
    "sum of columns": lambda x, i: wf.sum(x, axis=0),
    "sum of all": lambda x, i: wf.sum(x),
    "softmax": lambda x, i: wf.nn.softmax(x),
    "matmul": lambda x, i: x @ wf.permute_dims(x, (1, 0)),
    "batch matmul": lambda x, i: wf.reshape(x, (6, 10, -1)) @ wf.ones((6, 70, 9), dtype=x.dtype),
    "transpose": lambda x, i: wf.permute_dims(x, (1, 0)) * 2,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_kernel_in_cuts_and_on_threads(name: str, dtype: str) -> None:
    f = wf.compile(FUNCTIONS[name])
    x, i = of_size(60, 70, dtype=dtype), np.random.default_rng(1).integers(0, 60, 30)
    step = f._specialized((x, i), {}).executable()
    POOL.set_limit(1)
    whole = f(x, i).numpy()
    POOL.set_limit(16)
    for k in range(4):
        with cut_calls(step, random.Random(k)) as pieces:
            assert_same_bits([f(x, i).numpy()], [whole])
        assert pieces
    for threads in (2, 4, 16):
        POOL.set_limit(threads)
        for _ in range(3):
            assert_same_bits([f(x, i).numpy()], [whole])
    POOL.set_limit(16)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_random_bits_do_not_depend_on_threads(threads: int) -> None:
    f = wf.compile(lambda key: wf.random.bits(key, (4097,)))
    key = wf.random.key(3)
    wanted = wf.random.bits(key, (4097,)).numpy()
    POOL.set_limit(threads)
    assert f(key).numpy().tobytes() == wanted.tobytes()
    POOL.set_limit(16)


def test_of_several_bad_indices_the_same_is_named() -> None:
    f = wf.compile(lambda x, i: wf.take(x, i, axis=0))
    x, i = np.ones((8, 64), np.float32), np.zeros(500, np.int64)
    f(x, i)
    i[[20, 100, 480]] = 8
    messages = set()
    for threads in (1, 2, 4, 16):
        POOL.set_limit(threads)
        for _ in range(5):
            with pytest.raises(wf.errors.InvalidArgumentError) as caught:
                f(x, i)
            messages.add(str(caught.value).splitlines()[0])
    assert len(messages) == 1


def test_scratch_for_each_worker() -> None:
    """Workers' numbers stay below what the step has scratch for, whatever is allowed later."""
    f = wf.compile(
        lambda x: wf.sort(x, axis=1),
    )
    x = of_size(400, 64)
    POOL.set_limit(2)
    wanted = f(x).numpy().tobytes()
    POOL.set_limit(WORKERS + 20)
    assert all(f(x).numpy().tobytes() == wanted for _ in range(50))


class TestCost:
    @given(st.integers(0, 2**40), st.floats(0, 1e9))
    def test_chunks(self, units: int, nanoseconds: float) -> None:
        chunk = split(units, nanoseconds)
        assert 0 <= chunk < max(units, 1)
        if chunk:
            assert -(-units // chunk) <= 16  # MOST_CHUNKS as patched

    def test_small_work_is_not_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        with pytest.MonkeyPatch.context() as patch:
            cut_everything(patch, MOST_CHUNKS)
            patch.setattr("weft.codegen.call.WORTH_CUTTING_NS", 16_000.0)
            patch.setattr("weft.codegen.call.CHUNK_NS", 4_000.0)
            assert split(1000, 10) == 0
            assert split(1, 1e9) == 0
            assert split(1000, 20) == 200
            assert split(1 << 24, 0.5) == (1 << 24) // MOST_CHUNKS
