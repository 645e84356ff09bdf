"""Plans for many sizes: the bits of the plan that each set of sizes has by itself, errors and
memory as there, and passes that run a few times for hundreds of sizes."""

from __future__ import annotations

import gc
import threading
from typing import Any, TypeAlias

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shares import every
from sized_layers import DIM, EMPTY_FAILS, LAYERS

import weft as wf
from weft.frontend.extend.ops import unregister_op
from weft.ir.interpreter.evaluate import interpret
from weft.ir.sizes import is_traced
from weft.runtime import sized_step
from weft.runtime.native import size_plan
from weft.runtime.native.executable import compile_graph
from weft.runtime.sized_step import SizedStep
from weft.runtime.step import PLAIN, RunContext

Region: TypeAlias = SizedStep[Any]


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """All regions of open sizes that are made from now on."""
    made: list[Region] = []
    init = SizedStep.__init__

    def noted(self: Region, *args: Any, **options: Any) -> None:
        made.append(self)
        init(self, *args, **options)

    monkeypatch.setattr(SizedStep, "__init__", noted)
    return made


def alike(a: Any, b: Any) -> None:
    for one, other in zip(a, b, strict=True):
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def check_calls(patch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Hold each call of a region against a plan of its sizes alone and the interpreter; the sizes
    that are seen."""
    seen: list[tuple[int, ...]] = []
    call = SizedStep.run

    def run(self: Region, arrays: list[Any], context: RunContext = PLAIN) -> list[Any]:
        maker: Any = self.maker
        own = maker.graph.at([a.shape for a in arrays])
        wanted = compile_graph(own, passes=maker.passes, kept=False).run([a.copy() for a in arrays])
        oracle = interpret(own, [a.copy() for a in arrays])
        got = call(self, arrays, context)
        alike(got, wanted)
        for one, other in zip(got, oracle, strict=True):
            assert_allclose(one, other, rtol=2e-3, atol=2e-3)
        seen.append(tuple(a.shape[0] for a in arrays if a.ndim))
        return got

    patch.setattr(SizedStep, "run", run)
    return seen


@examples(36, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3),
    counts=st.lists(st.integers(0, 70), min_size=3, max_size=6),
    slope=st.booleans(),
    seed=st.integers(0, 9),
)
def test_bits_of_a_plan_of_ones_own(
    names: list[str], counts: list[int], slope: bool, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        seen = check_calls(patch)
        if not EMPTY_FAILS.isdisjoint(names):
            counts = [max(n, 1) for n in counts]
        _run_layers(names, counts, slope, seed)
        assert seen


def _run_layers(names: list[str], counts: list[int], slope: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(70, DIM)).astype(np.float32)
    weights = (rng.normal(size=(DIM, DIM)) / np.sqrt(DIM)).astype(np.float32)
    with wf.Graph().as_default():
        data, mask = wf.placeholder(wf.float32, [70, DIM]), wf.placeholder(wf.bool, [70])
        w = wf.placeholder(wf.float32, [DIM, DIM])
        value = wf.boolean_mask(data, mask)
        for name in names:
            value = LAYERS[name](value, w)
        total = wf.sum(value * value)
        wanted = [value, total, *(wf.gradients(total, [data, w]) if slope else ())]
        with wf.Session() as session:
            for n in counts:
                session.run(wanted, {data: x, mask: rng.permutation(70) < n, w: weights})


@pytest.mark.share(3)
@pytest.mark.parametrize("name", every(2, sorted(LAYERS)))
def test_each_layer(name: str, monkeypatch: pytest.MonkeyPatch, regions: list[Region]) -> None:
    seen = check_calls(monkeypatch)
    counts = [5, 17, 2, 1, 0, 64, 33, 18, 40, 9]
    if name in EMPTY_FAILS:
        counts.remove(0)
    _run_layers([name], counts, True, 3)
    assert seen
    for region in regions:
        assert region.planned <= 7


# -------------------------------------------------------------------------------------- how often
def test_passes_run_a_few_times_for_200_sizes(regions: list[Region]) -> None:
    """Two sizes that change at once, a gather, updates of rows, products, reductions."""
    rng = np.random.default_rng(0)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [400, DIM])
        part = wf.placeholder(wf.int32, [400])
        w = wf.Variable((rng.normal(size=(DIM, DIM)) / 4).astype(np.float32))
        a, b = wf.dynamic_partition(x, part, 2)
        value = wf.concat([LAYERS["rows"](wf.tanh(a @ w), w), wf.nn.softmax(b @ w)], axis=0)
        loss = wf.mean(wf.square(value)) + wf.mean(a)
        train = wf.train.GradientDescentOptimizer(0.01).minimize(loss)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            data = rng.normal(size=(400, DIM)).astype(np.float32)
            for n in rng.permutation(np.arange(60, 260)):
                session.run([train, loss], {x: data, part: (np.arange(400) < n).astype(np.int32)})
    assert regions
    assert sum(r.planned for r in regions) <= 8 * len(regions)
    assert all(len(r) <= sized_step.MOST_SIZES for r in regions)


def test_a_session_fills_in_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=s).astype(np.float32) / 8 for s in ((20, 30), (30, 10))]

    def losses(most_in_vain: int) -> tuple[list[bytes], int]:
        monkeypatch.setattr("weft.runtime.sized_step.MOST_IN_VAIN", most_in_vain)
        made: list[int] = []
        planned = size_plan.planned

        def noted(*args: Any, **options: Any) -> Any:
            made.append(1)
            return planned(*args, **options)

        monkeypatch.setattr(size_plan, "planned", noted)
        with wf.Graph().as_default():
            x, y = wf.placeholder(wf.float32, [None, 20]), wf.placeholder(wf.int64, [None])
            one, two = wf.Variable(weights[0]), wf.Variable(weights[1])
            logits = wf.nn.relu(x @ one) @ two
            loss = wf.mean(wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            train = wf.train.AdagradOptimizer(0.1).minimize(loss)
            with wf.Session() as session:
                session.run(wf.global_variables_initializer())
                out = []
                for n in (32, 7, 1, 64, *range(100, 130), 2, 0, 33):
                    draw = np.random.default_rng(n)
                    data = draw.normal(size=(n, 20)).astype(np.float32)
                    found = session.run(
                        [train, loss, one, two], {x: data, y: draw.integers(0, 10, n)}
                    )
                    out += [a.tobytes() for a in found[1:]]
        return out, len(made)

    filled, made = losses(4)
    own, none = losses(0)
    assert filled == own
    assert none == 0
    assert 0 < made <= 8


# ------------------------------------------------------------------------------------------ errors
def test_an_error_tells_of_the_sizes_that_came(regions: list[Region]) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.int64, [50])
        kept = wf.boolean_mask(x, x >= 0)
        rows = wf.gather(wf.reshape(wf.iota(60, dtype=wf.float32), [12, 5]), kept) * 2
        with wf.Session() as session:
            for n in (3, 4, 5, 6):
                session.run(rows, {x: np.where(np.arange(50) < n, 1, -1)})
            with pytest.raises(wf.errors.InvalidArgumentError, match=r"i64\[7\].*12"):
                session.run(rows, {x: np.where(np.arange(50) < 7, 12, -1)})
            assert session.run(rows, {x: np.where(np.arange(50) < 8, 1, -1)}).shape == (8, 5)
    assert regions[0].planned == 2


def test_sizes_that_must_be_equal_are_checked() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [40])
        y = wf.placeholder(wf.float32, [40])
        both = wf.boolean_mask(x, x > 0) + wf.boolean_mask(y, y > 0) * 2

        def of(n: int) -> Any:
            return np.where(np.arange(40) < n, 1, -1).astype(np.float32)

        with wf.Session() as session:
            for n in (3, 4, 5, 6):
                assert_array_equal(session.run(both, {x: of(n), y: of(n)}), np.full(n, 3))
            for n in (4, 5, 9, 1, 0):
                with pytest.raises(wf.errors.ShapeError):
                    session.run(both, {x: of(n), y: of(8)})
            assert_array_equal(session.run(both, {x: of(9), y: of(9)}), np.full(9, 3))


def test_feeds_that_must_be_equal_are_checked() -> None:
    with wf.Graph().as_default():
        x, y = (wf.placeholder(wf.float32, [None]) for _ in range(2))
        both = x * y
        with wf.Session() as session:
            for n in (3, 4, 5, 1, 6):
                assert len(session.run(both, {x: np.ones(n), y: np.ones(n)})) == n
            for n in (4, 9, 1):
                with pytest.raises(wf.errors.ShapeError, match="do not"):
                    session.run(both, {x: np.ones(n), y: np.ones(8)})


# ----------------------------------------------------------------------------- threads and memory
@pytest.mark.slow
def test_threads_fill_in_one_plan() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 8])
        kept = wf.boolean_mask(x, x[:, 0] > 0)
        out = [kept * 2, wf.sum(wf.exp(kept)), wf.sum(x * x, axis=1)]
        session, wrong = wf.Session(), list[int]()

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(40):
                v = rng.standard_normal((int(rng.integers(2, 90)), 8)).astype(np.float32)
                mine = v[v[:, 0] > 0]
                doubled, total, squares = session.run(out, {x: v})
                right = np.array_equal(doubled, mine * 2)
                right &= bool(np.isclose(total, np.exp(mine).sum(), rtol=1e-4))
                if not right or not np.allclose(squares, (v * v).sum(1), rtol=1e-5):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        session.close()
    assert not wrong


def test_thousands_of_sizes_keep_little(regions: list[Region]) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3000])
        count = wf.placeholder(wf.int64, [])
        kept = wf.boolean_mask(x, wf.iota(3000) < count)
        out = wf.sum(kept * 2 - 1)
        values = np.ones(3000, np.float32)
        with wf.Session() as session:
            for n in range(10, 60):
                session.run(out, {x: values, count: n})
            gc.collect()
            before = len(gc.get_objects())
            for n in range(1500, 2999):
                assert session.run(out, {x: values, count: n}) == n
            gc.collect()
            assert len(gc.get_objects()) < before + 4000
    (region,) = regions
    assert len(region) == sized_step.MOST_SIZES
    assert region.planned <= 5


def test_a_large_arena_is_given_back() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 64])
        y = wf.placeholder(wf.float32, [64, 64])
        out = wf.sum(wf.sort(x @ y, axis=0))
        session = wf.Session()
        for n in (50, 60, 70, 9000, 80, 9001, 90):
            session.run(out, {x: np.ones((n, 64)), y: np.ones((64, 64))})
        plans: list[Any] = [p for known, _ in session._sized._known.values() for p in known._plans]
        rooms = [activation.room for plan in plans for activation in plan._idle]
        session.close()
    assert rooms
    assert min(rooms) < 1 << 20


def test_rules_of_users_see_plain_sizes() -> None:
    seen: list[Any] = []

    def rule(x: Any) -> Any:
        seen.extend(x.shape)
        return x.dtype, x.shape[:1]

    op = wf.register_op("my_row_sums", type_rule=rule, reference=lambda x: x.sum(1))
    try:

        @wf.register_kernel(op)
        def kernel(x: Any, out: Any) -> None:
            for i in range(x.shape[0]):
                total = 0 * x[i, 0]
                for j in range(x.shape[1]):
                    total += x[i, j]
                out[i] = total

        with wf.Graph().as_default():
            x = wf.placeholder(wf.float32, [30, 4])
            sums = op(wf.boolean_mask(x, x[:, 0] > 0)) * 2
            data = np.random.default_rng(2).normal(size=(30, 4)).astype(np.float32)
            with wf.Session() as session:
                for k in range(8):
                    mine = np.roll(data, k, axis=1) - k / 8
                    kept = mine[mine[:, 0] > 0]
                    assert_allclose(session.run(sums, {x: mine}), kept.sum(1) * 2, rtol=1e-4)
        assert len(set(map(str, seen))) > 4
        assert not any(map(is_traced, seen))
    finally:
        unregister_op("my_row_sums")
