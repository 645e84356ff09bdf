"""Sizes that depend on values in graphs: through branches and loops, queues, Python functions and
variables; regions that are compiled for the sizes that come, cells over arrays of any shape."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf
from weft.frontend.core.trace import suspend_trace
from weft.frontend.session.step import step_graph
from weft.frontend.tools.main import main
from weft.ir.interpreter.evaluate import interpret
from weft.ir.text.parser import parse_graph
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.sizes import specialize_inputs, tie_sizes
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.executor import dataflow_step
from weft.runtime.dataflow.state import State
from weft.runtime.sized_step import MOST_SIZES, SizedStep

MODES = ("auto", "dataflow")


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


def vector(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


# ----------------------------------------------------------------------------------- control flow
@pytest.mark.parametrize("mode", MODES)
def test_sizes_of_an_iteration(graph: wf.Graph, mode: str) -> None:
    x = wf.placeholder(wf.float32, [None])

    def body(i: wf.Tensor, total: wf.Tensor) -> Any:
        part = wf.boolean_mask(x, x > wf.cast(i, wf.float32))
        return i + 1, total + wf.sum(part * wf.ones([part.shape[0]])) + part.shape[0]

    _, total = wf.while_loop(lambda i, _: i < 4, body, (0, 0.0))
    again = wf.fori_loop(0, 4, lambda i, t: body(i, t)[1], 0.0)
    with wf.Session(control_flow=mode) as session:
        for v in (vector(1, 2, 3, -4), vector(), vector(0.5, 9)):
            wanted = sum(v[v > i].sum() + len(v[v > i]) for i in range(4))
            assert_allclose(session.run([total, again], {x: v}), [wanted, wanted])


@pytest.mark.parametrize("verified", ["", "ir"])
@pytest.mark.parametrize("mode", MODES)
def test_sizes_that_a_branch_chooses(
    graph: wf.Graph, mode: str, verified: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verified: what is compiled obeys the rules of the IR, too (`WEFT_VERIFY`)."""
    monkeypatch.setenv("WEFT_VERIFY", verified)
    x = wf.placeholder(wf.float32, [4])
    chosen = wf.cond(wf.sum(x) > 0, lambda: x[x > 0], lambda: x)
    inner = wf.cond(
        wf.sum(x) > 0, lambda: wf.cond(x[0] > 1, lambda: x[x > 1], lambda: x[x > 0]), lambda: x[:0]
    )
    after = [chosen * 2, wf.sum(wf.ones([chosen.shape[0]])), wf.concat([chosen, inner])]
    slope = wf.gradients(wf.sum(chosen**2), [x])[0]
    sizes_only = wf.gradients(wf.sum(chosen * wf.ones([chosen.shape[0]])), [x])[0]
    with wf.Session(control_flow=mode) as session:
        for v in (vector(1, -1, 3, 2), vector(2, -1, 0, 0), vector(-1, -1, 0, 1)):
            one = v[v > 0] if v.sum() > 0 else v
            two = (v[v > 1] if v[0] > 1 else v[v > 0]) if v.sum() > 0 else v[:0]
            got = session.run([chosen, inner, after, slope, sizes_only], {x: v})
            assert_array_equal(got[0], one)
            assert_array_equal(got[1], two)
            for a, b in zip(got[2], (one * 2, len(one), np.concatenate([one, two])), strict=True):
                assert_array_equal(a, b)
            kept = v > 0 if v.sum() > 0 else np.ones(4, bool)
            assert_array_equal(got[3], np.where(kept, 2 * v, 0))
            assert_array_equal(got[4], kept)


@pytest.mark.parametrize("mode", MODES)
def test_loop_variables_whose_sizes_change(graph: wf.Graph, mode: str) -> None:
    x = wf.placeholder(wf.float32, [None])
    shrunk = wf.while_loop(
        lambda h: wf.sum(h) > 3,
        lambda h: wf.boolean_mask(h * wf.ones([h.shape[0]]), h < wf.max(h)),
        x,
    )
    after = wf.zeros([shrunk.shape[0]]) + shrunk
    grown = wf.while_loop(
        lambda i, _: i < 3,
        lambda i, h: (i + 1, wf.concat([wf.boolean_mask(h, h < 4), wf.ones([h.shape[0]])])),
        (0, x),
    )[1]
    rest, sums = wf.scan(lambda h, i: (h[h != i], wf.sum(h)), x, wf.asarray([1.0, 3.0]))
    with wf.Session(control_flow=mode) as session:
        for v in (vector(1, 2, 3, 4, 5), vector(-1, -2), vector(9)):
            small, big = v, v
            while small.sum() > 3:
                small = small[small < small.max()]
            for _ in range(3):
                big = np.concatenate([big[big < 4], np.ones(len(big), np.float32)])
            got = session.run([shrunk, after, grown, rest, sums], {x: v})
            for a, b in zip(got[:3], (small, small, big), strict=True):
                assert_array_equal(a, b)
            assert_array_equal(got[3], v[(v != 1) & (v != 3)])
            assert_array_equal(got[4], [v.sum(), v[v != 1].sum()])


@pytest.mark.share(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["fori", "most", "most, sooner", "open"])
def test_gradients_of_loops_make_such_sizes_again(graph: wf.Graph, kind: str, mode: str) -> None:
    def body(h: wf.Tensor) -> wf.Tensor:
        return h * 0.9 + 0.01 * wf.sum(wf.sin((h * 1.5)[h > 1]) ** 2)

    def plain(h: wf.Tensor) -> wf.Tensor:
        for _ in range(3):
            h = body(h)
        return wf.sum(h)

    x, n = wf.placeholder(wf.float32, [5]), wf.placeholder(wf.int32, [])
    if kind == "fori":
        out = wf.fori_loop(0, 3, lambda i, h: body(h), x)
    else:
        test = (lambda i, h: i < 3) if kind == "most" else (lambda i, h: i < n)
        step = lambda i, h: (i + 1, body(h))  # noqa: E731
        most = None if kind == "open" else 5
        out = wf.while_loop(test, step, (0, x), maximum_iterations=most)[1]
    slope = wf.gradients(wf.sum(out), [x])
    with wf.Session(control_flow=mode) as session, suspend_trace():
        for v in (vector(1, 2, 3, 4, 5), vector(0, -1, 3, 0.5, 2), vector(0, 0, 0, 0, 0)):
            wanted = np.asarray(wf.grad(plain)(wf.asarray(v)))
            assert_allclose(session.run(slope, {x: v, n: 3})[0], wanted, rtol=1e-5)


def test_the_interpreter_takes_sizes_of_the_same_iteration(graph: wf.Graph) -> None:
    """In any order of the ops, though iterations overlap and a control operand has the size."""
    x = wf.placeholder(wf.float32, [5])

    def body(i: wf.Tensor, total: wf.Tensor) -> Any:
        n = x[x > wf.cast(i, wf.float32)].shape[0]
        return i + 1, total + wf.sum(wf.ones([n])) * 10.0 ** wf.cast(i, wf.float32)

    out = wf.while_loop(lambda i, _: i < 4, body, (0, 0.0))[1]
    step = lower_control_flow(step_graph(graph._trace, [out._value], [], [(x._value, (5,))]))
    for schedule in range(20):
        assert interpret(step, [vector(1, 2, 3, 4, 9)], schedule=schedule)[0] == 2345


def test_gradients_of_loops_keep_no_sizes_that_change(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.float32, [5])
    for body in (lambda h: (h * h)[h > 1], lambda h: wf.concat([x[x > 0] * 2.0, h * 3.0])):
        step = lambda i, h, b=body: (i + 1, b(h))  # noqa: E731
        out = wf.while_loop(lambda i, h: i < 3, step, (0, x))[1]
        with pytest.raises(
            wf.errors.GradientError, match=r"(?s)depends on values.*may change"
        ) as e:
            wf.gradients(wf.sum(out), [x])
        assert e.value.locations[0].file == __file__


def test_what_changes_without_values_is_refused(graph: wf.Graph) -> None:
    with pytest.raises(wf.errors.WeftError) as error:
        wf.while_loop(lambda h: wf.sum(h) < 9, lambda h: wf.concat([h, h]), wf.ones(2))
    assert error.value.locations[0].file == __file__
    with pytest.raises(wf.errors.ShapeError, match="its size depends on values") as error:
        wf.map_fn(lambda i: wf.ones(4)[wf.ones(4) > i], wf.arange(3.0))
    assert error.value.locations[0].file == __file__


@pytest.mark.parametrize("size", [None, 3])
def test_sizes_are_values_of_their_iteration_in_the_interpreter_too(
    graph: wf.Graph, size: int | None
) -> None:
    x = wf.placeholder(wf.float32, [size])
    out = wf.while_loop(
        lambda i, _: i < 3,
        lambda i, h: (i + 1, wf.concat([h[h > 0], wf.zeros([h.shape[0]])])),
        (0, x),
        None if size is None else (None, (None,)),
    )[1]
    fed = vector(1, -1, 2)
    structured = step_graph(graph._trace, [out._value], [], [(x._value, fed.shape)])
    (wanted,) = interpret(structured, [fed])
    assert_array_equal(wanted, [1, 2] + [0] * 7)
    lowered = lower_control_flow(structured)
    for seed in (None, 1, 2):
        assert_array_equal(interpret(lowered, [fed], schedule=seed)[0], wanted)
    assert_array_equal(dataflow_step(structured, {}, {}).run([fed])[0], wanted)


# --------------------------------------------------------------------------------- ops of the host
def test_dequeue_up_to(graph: wf.Graph) -> None:
    queue = wf.FIFOQueue(10, [wf.float32, wf.int32], shapes=[[2], []], names=["x", "y"])
    fill = queue.enqueue_many({"x": np.arange(10.0).reshape(5, 2), "y": np.arange(5)})
    batch = queue.dequeue_up_to(3)
    mean = wf.sum(batch["x"]) / wf.cast(batch["x"].shape[0], wf.float32)
    weighted = wf.sum(batch["x"] * wf.cast(batch["y"], wf.float32)[:, None])
    close = queue.close()
    assert batch["x"].shape[0] == batch["y"].shape[0]
    with wf.Session() as session:
        session.run(fill)
        rows, average, total = session.run([batch["x"], mean, weighted])
        assert_array_equal(rows, np.arange(6.0).reshape(3, 2))
        assert (average, total) == (5, 23)
        session.run(close)
        rows, average, total = session.run([batch["x"], mean, weighted])
        assert_array_equal(rows, [[6, 7], [8, 9]])
        assert (average, total) == (15, 107)
        with pytest.raises(wf.errors.OutOfRangeError):
            session.run(mean)


def test_elements_of_any_size(graph: wf.Graph) -> None:
    queue = wf.PaddingFIFOQueue(10, [wf.int32, wf.string], shapes=[[None], [None, 1]])
    x = wf.placeholder(wf.int32, [None])
    put = queue.enqueue([x, np.array([[b"a"], [b"b"]], object)])
    number, text = queue.dequeue()
    many = queue.dequeue_many(2)
    left = queue.dequeue_up_to(5)
    close = queue.close()
    with wf.Session() as session:
        for n in (2, 1, 3, 0, 4):
            session.run(put, {x: np.arange(n, dtype=np.int32)})
        got = session.run([wf.sum(number) + number, text])
        assert_array_equal(got[0], [1, 2])
        assert got[1].tolist() == [[b"a"], [b"b"]]
        assert_array_equal(session.run(many)[0], [[0, 0, 0], [0, 1, 2]])
        session.run(close)
        assert_array_equal(session.run(left)[0], [[0, 0, 0, 0], [0, 1, 2, 3]])


def test_python_functions_of_unknown_sizes(graph: wf.Graph) -> None:
    n = wf.placeholder(wf.int32, [])
    ramp, pair = wf.py_function(
        lambda k: (np.arange(int(k), dtype=np.float32), np.ones((2, int(k)), np.float32)),
        [n], [wf.float32, wf.float32], shapes=[(None,), (2, None)],
    )  # fmt: skip
    total = wf.matmul(pair, ramp[:, None])
    wrong = wf.py_function(lambda k: np.zeros((1, 2), np.float32), [n], wf.float32, shapes=(None,))
    with wf.Session() as session:
        for k in (0, 3, 5):
            assert_array_equal(session.run(total, {n: k}), [[k * (k - 1) / 2]] * 2)
        with pytest.raises(wf.errors.ShapeError, match="shapes says"):
            session.run(wrong, {n: 1})
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"(?s)must be known.*\(2, None\)"):
        wf.py_function(lambda k: k, [n], wf.float32)


def test_compiled_functions_take_python_functions_of_unknown_sizes() -> None:
    f = wf.compile(
        lambda k: wf.py_function(lambda v: np.ones(int(v), "f4"), [k], wf.float32, (None,)) * 2
    )
    assert f(3.0).numpy().tolist() == [2, 2, 2]
    assert f(1.0).numpy().tolist() == [2]


def test_variables(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.float32, [None])
    w, total = wf.Variable([1.0, 2.0, 3.0]), wf.Variable(0.0)
    kept = wf.boolean_mask(x, x > 0)
    update = total.assign_add(wf.sum(kept) * wf.sum(w.read()))
    whole = w.assign(wf.ensure_shape(kept, [3]))
    with wf.Session() as session:
        session.run(wf.global_variables_initializer())
        for v in (vector(1, -1), vector(), vector(2, 2, 2)):
            session.run(update, {x: v})
        assert total.numpy() == 6 * (1 + 6)
        session.run(whole, {x: vector(5, 0, 6, 7)})
        assert_array_equal(w.numpy(), [5, 6, 7])
        with pytest.raises(wf.errors.ShapeError):
            session.run(whole, {x: vector(5, 0, 6)})
        assert_array_equal(w.numpy(), [5, 6, 7])


def test_feeding_what_has_such_a_size(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.float32, [4], name="x")
    kept = x[x > 0]
    both = wf.concat([kept, x[x < 0]])
    with wf.Session() as session:
        assert_array_equal(session.run(kept * wf.ones([kept.shape[0]]), {kept: [7.0]}), [7])
        assert_array_equal(session.run(both * 2, {both: [7.0, 8.0, 9.0]}), [14, 16, 18])
        fed = {kept: [7.0, 8.0], x: vector(-1, 2, 3, 4)}
        assert_array_equal(session.run(both, fed), [7, 8, -1])


# ----------------------------------------------------------------------------------- how it is run
def test_what_is_needed_for_its_size_alone_runs(graph: wf.Graph) -> None:
    calls: list[int] = []

    def counted(v: wf.Tensor) -> Any:
        calls.append(1)
        return v.numpy()[v.numpy() > 0]

    x = wf.placeholder(wf.float32, [None])
    part = wf.py_function(counted, [x], wf.float32, shapes=(None,))
    size, unused = wf.sum(wf.ones([part.shape[0]])), x * 2
    with wf.Session() as session:
        session.run(unused, {x: vector(1)})
        assert not calls
        assert session.run(size, {x: vector(1, -1, 3)}) == 2
        assert len(calls) == 1


def test_tied_text() -> None:
    text = """graph @step(%x: f32[4], %p: bool[]) -> (f32[n], f32[]) stage=traced {
  %0 = nonzero(%x) {sizes=["n"]} : i64[n,1]
  %1 = constant() {value=f32[] 1.0} : f32[]
  %2 = broadcast_to(%1) {shape=[n]} : f32[n]
  %3 = cond(%p, %1) : f32[] {
    ^(%a0: f32[])
    %0 = broadcast_to(%a0) {shape=[n]} : f32[n]
    %1 = sum(%0) {axes=[0], keepdims=false} : f32[]
    yield %1
  } {
    ^(%a0: f32[])
    yield %a0
  }
  return %2, %3
}
"""
    tied = tie_sizes(parse_graph(text))
    made, one, wide, branch = tied.ops
    assert wide.control == (made.result,)
    assert branch.operands[2] is made.result
    inner = branch.regions[0]
    assert inner.args[1].type == made.result.type
    assert inner.ops[0].control == (inner.args[1],)
    assert not one.control
    static = specialize_inputs(
        parse_graph(
            text.replace(
                'nonzero(%x) {sizes=["n"]} : i64[n,1]',
                "iota() {dtype=i64, shape=[n,1], axis=0} : i64[n,1]",
            ).replace("f32[4]", "f32[n]")
        ),
        [(3,), ()],
    )
    assert "[n" not in str([v.type for op in static.walk() for v in op.results])


def test_a_region_is_compiled_once_for_each_size_and_bounded(
    graph: wf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SizedStep[Any]] = []
    init = SizedStep.__init__

    def noted(self: SizedStep[Any], *args: Any) -> None:
        made.append(self)
        init(self, *args)

    monkeypatch.setattr(SizedStep, "__init__", noted)
    monkeypatch.setattr("weft.runtime.sized_step.MOST_SIZES", 4)
    x = wf.placeholder(wf.float32, [20])
    total = wf.sum(x[x > 0] * 3)
    session = wf.Session()
    for n in (1, 2, 3, 1, 2, 3, 1):
        assert session.run(total, {x: np.where(np.arange(20) < n, 1, -1)}) == 3 * n
    (region,) = made
    assert len(region) == 3
    for n in range(15):
        assert session.run(total, {x: np.where(np.arange(20) < n, 1, -1)}) == 3 * n
        assert session.run(total, {x: np.where(np.arange(20) < 1, 1, -1)}) == 3
    assert len(region) == 4
    assert MOST_SIZES == 64


def test_many_threads_run_one_step(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.float32, [50])
    kept = x[x > 0]
    out = [kept * 2, wf.sum(wf.exp(kept))]
    session, wrong = wf.Session(), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            v = rng.standard_normal(50).astype(np.float32)
            doubled, total = session.run(out, {x: v})
            if not (
                np.array_equal(doubled, v[v > 0] * 2) and np.isclose(total, np.exp(v[v > 0]).sum())
            ):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_boxed_cells_let_go(graph: wf.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a loop is, only the arrays of iterations under way are held."""
    states: list[State] = []
    most = [0]
    complete = State.complete

    def noted(self: State, *args: Any) -> None:
        complete(self, *args)
        most[0] = max(most[0], len(self.boxes))
        if self not in states:
            states.append(self)

    monkeypatch.setattr(State, "complete", noted)
    x = wf.placeholder(wf.float32, [None])
    out = wf.while_loop(
        lambda i, _: i < 200,
        lambda i, h: (i + 1, wf.concat([h[h > 0], x[x < 0]])),
        (0, x),
        parallel_iterations=1,
    )[1]
    with wf.Session() as session:
        v = vector(1, -1, 2, -2)
        assert_array_equal(session.run(out, {x: v}), [1, 2, -1, -2])
    assert 0 < most[0] < 40
    assert [len(s.boxes) for s in states] == [0] * len(states)


def test_a_fetched_array_is_the_users_own(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.float32, [3])
    queue, kept = wf.FIFOQueue(3, wf.float32, shapes=[[]]), x[x > 0]
    put, first = queue.enqueue_many(kept), queue.dequeue()
    with wf.Session() as session:
        _, one, two = session.run([put, kept, kept], {x: vector(1, -1, 2)})
        one[:] = 9
        assert_array_equal(two, [1, 2])
        assert session.run(first) == 1


def test_a_boxed_value_goes_through_a_switch() -> None:
    """Its memory is read by native code as that of any other cell."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3])
        rows = wf.argwhere(x > 0)
        any_there = wf.ensure_shape(rows, [None, 1])
        one = wf.cond(wf.reshape(rows, (-1,))[0] > 1, lambda: wf.sum(rows), lambda: wf.min(rows))
        with wf.Session(control_flow="dataflow") as session:
            assert session.run(one, {x: vector(0, 0, 1)}) == 2
            assert session.run(one, {x: vector(0, 1, 1)}) == 1
            assert session.run(any_there, {x: vector(0, 1, 1)}).shape == (2, 1)
    assert at.BOXED == at.CELL_CLASSES - 1
    gc.collect()


def test_in_parts_and_as_text(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.float32, [None], name="x")
    y = wf.placeholder(wf.float32, [], name="y")
    kept = wf.name_tensor(x[x > 0] * 2, "kept")
    out = wf.name_tensor(wf.sum(kept * wf.ones([kept.shape[0]])) * y, "out")
    fed = vector(1, -1, 2)
    with wf.Session() as session:
        run = session.partial_run_setup([kept, out], [x, y])
        assert_array_equal(session.partial_run(run, kept, {x: fed}), [2, 4])
        assert session.partial_run(run, out, {y: 3.0}) == 18
    again = wf.Graph.from_text(graph.as_text())
    with again.as_default(), wf.Session() as session:
        assert session.run("out", {"x": fed, "y": 2.0}) == 12
        more = wf.boolean_mask(again.tensor("x"), again.tensor("x") > 1)
        assert more.shape != again.tensor("kept").shape
        both = session.run([wf.concat([more, again.tensor("kept")])], {"x": fed})
        assert_array_equal(both[0], [2, 2, 4])
        first, second = wf.import_graph_def(graph, {"x": more}, ["kept", "out"], name="inner")
        assert_array_equal(session.run(first, {"x": fed, "inner/y": 1.0}), [4])
        assert session.run(second, {"x": fed, "inner/y": 1.0}) == 4


@pytest.mark.parametrize("how", [[], ["--compiled"]])
def test_the_command_line(
    how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """graph @step(%x: f32[b]) -> (f32[n], f32[n]) stage=traced {
  %0 = nonzero(%x) {sizes=["n"]} : i64[n,1]
  %1 = reshape(%0) {shape=[n]} : i64[n]
  %2 = take(%x, %1) {axis=0} : f32[n]
  %3 = constant() {value=f32[] 7.0} : f32[]
  %4 = broadcast_to(%3) {shape=[n]} : f32[n]
  return %2, %4
}
"""
    (tmp_path / "g.weft").write_text(text)
    np.save(tmp_path / "x.npy", vector(1, 0, 2))
    feed = ["--feed", f"x={tmp_path / 'x.npy'}"]
    assert main(["run", str(tmp_path / "g.weft"), *feed, "--print", *how]) == 0
    assert "[1., 2.]\nresult 1: f32[2]\n[7., 7.]" in capsys.readouterr().out


@pytest.mark.share(2)
@pytest.mark.parametrize("length", [3, None], ids=["known", "data"])
@pytest.mark.parametrize("rows", [4, 0, 1])
def test_gradients_of_loops_over_masked_rows(length: int | None, rows: int) -> None:
    """What a loop has computed is kept for the way back, in as many rows as the mask has."""
    data = np.arange(18, dtype=np.float32).reshape(6, 3) / 9
    found = []
    for control_flow in ("auto", "dataflow"):
        with wf.Graph().as_default():
            x, n = wf.placeholder(wf.float32, [6, 3]), wf.placeholder(wf.int32, [])
            w = wf.Variable(np.full((3, 3), 0.5, np.float32))
            kept = wf.boolean_mask(x, wf.arange(6) < n)
            end = n - n + 3 if length is None else length
            _, h = wf.while_loop(
                lambda i, h, end=end: i < end,
                lambda i, h, w=w: (i + 1, wf.tanh(h @ w)),
                [wf.constant(0), kept],
            )
            gradient = wf.gradients(wf.sum(h), [w])[0]
            with wf.Session(control_flow=control_flow) as session:
                session.run(wf.global_variables_initializer())
                found.append(session.run([h, gradient], {x: data, n: rows}))
    assert found[0][0].shape == (rows, 3)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert np.any(found[0][1]) == (rows > 0)
