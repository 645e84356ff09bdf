"""Branches and loops with effects: what is refused, overlaps and is lowered, many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from semantic_programs import eager_variable, queue

import weft as wf
from weft.frontend.session.step import step_graph
from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    GradientError,
    InvalidArgumentError,
    OutOfRangeError,
    TypeRuleError,
    UnsupportedError,
)
from weft.passes.control.lower_control_flow import lower_control_flow, lowering_reasons


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph("g").as_default() as made:
        yield made


def counted(n: Any, body: Callable[[Any], Any], **options: Any) -> Any:
    def step(i: Any) -> Any:
        with wf.control_dependencies([body(i)]):
            return i + 1

    return wf.while_loop(lambda i: i < n, step, [wf.constant(0, dtype="int64")], **options)[0]


def step_of(graph: wf.Graph, *results: Any) -> Any:
    return step_graph(graph._trace, [t._value for t in results], [], [])


# ------------------------------------------------------------ what it gives
def test_what_functions_return(graph: wf.Graph) -> None:
    """An Effect stands wherever one of the functions returned one."""
    q, p = queue("q"), wf.placeholder("bool", [])
    alone = wf.cond(p, lambda: q.enqueue(1), wf.no_op)
    nested = wf.cond(p, lambda: {"a": q.enqueue(1), "b": 1.0}, lambda: {"a": None, "b": 2.0})
    nothing = wf.cond(p, lambda: q.enqueue(1) and None, lambda: None)
    carry, ys = wf.scan(lambda c, x: (c + x, q.enqueue(x)), 0.0, np.ones(2, np.float32))
    for effect in (alone, nested["a"], nothing, ys, wf.map_fn(q.enqueue, np.ones(2, np.float32))):
        assert type(effect).__name__ == "Effect"
    with wf.Session() as session:
        assert session.run([alone, nested], {p: True}) == [None, {"a": None, "b": 1.0}]
        assert session.run(q.size()) == 2
        assert session.run([carry, ys, nothing], {p: True}) == [2.0, None, None]
        assert session.run(q.size()) == 5


def test_effects_of_variables_alone(graph: wf.Graph) -> None:
    v, p = eager_variable(1), wf.placeholder("bool", [])
    made = wf.cond(p, lambda: wf.group(v.assign(5)), wf.no_op)
    with wf.Session() as session:
        session.run(made, {p: False})
        assert v.numpy() == 1
        session.run(made, {p: True})
        assert v.numpy() == 5


def test_a_queue_made_in_a_body_is_one_queue(graph: wf.Graph) -> None:
    p, made = wf.placeholder("bool", []), []

    def branch() -> Any:
        made.append(wf.FIFOQueue(3, wf.float32, [[]]))
        return made[-1].enqueue(1.0)

    effect = wf.cond(p, branch, wf.no_op)
    with wf.Session() as session:
        session.run(effect, {p: True})
        assert session.run(made[-1].size()) == 1


# ------------------------------------------------------------ refused
def test_compiled_functions_and_eager_calls() -> None:
    q = wf.FIFOQueue(3, wf.float32, [[]])

    def put(x: wf.Tensor) -> None:
        wf.cond(x > 0, lambda: q.enqueue(x), wf.no_op)

    for call in (wf.compile(put), put):
        call(wf.asarray(1.0))
        call(wf.asarray(-1.0))
    assert int(q.size()) == 2
    q.enqueue(3.0)
    add = wf.compile(lambda x: wf.fori_loop(0, 3, lambda i, a: a + q.dequeue(), x))
    assert float(add(wf.asarray(1.0))) == 6.0


def test_values_of_a_body_stay_in_it(graph: wf.Graph) -> None:
    q, held = queue("q"), []

    def body(i: Any) -> Any:
        held[:] = [i, q.enqueue(1)]
        return held[1]

    made = counted(3, body)
    inside, effect = held
    with wf.Session() as session:
        refused = r"(?s)is made in the body of wf.while_loop.*hint: fetch what"
        with pytest.raises(InvalidArgumentError, match=refused) as caught:
            session.run(made, {inside: 1})
        assert "test_control_effects.py" in str(caught.value)
        for fetch in (inside, effect):
            with pytest.raises(InvalidArgumentError, match=refused):
                session.run(fetch)
    refused = r"was made in the body of wf\.while_loop"
    with pytest.raises(InvalidArgumentError, match=refused):
        wf.group(effect)
    with (
        pytest.raises(InvalidArgumentError, match=refused) as caught,
        wf.control_dependencies([effect]),
    ):
        pass
    assert "test_control_effects.py" in str(caught.value)


def test_effects_have_no_place_in_results(graph: wf.Graph) -> None:
    q, p = queue("q"), wf.placeholder("bool", [])
    with pytest.raises(InvalidArgumentError, match="different structures"):
        wf.cond(p, lambda: q.enqueue(1), lambda: 1.0)
    with pytest.raises(InvalidArgumentError, match="the carry"):
        wf.while_loop(lambda: q.size() < 3, lambda: 1.0, [])
    v = eager_variable(1)
    with pytest.raises(TypeRuleError, match="cond assigns to variable"):
        wf.while_loop(lambda i: v.assign_add(q.dequeue()) > 0, lambda i: i, [wf.constant(0)])


@pytest.mark.parametrize("parallel", [0, -1, 1.5, True, None])
def test_parallel_iterations_is_a_count(graph: wf.Graph, parallel: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"parallel_iterations is .* not an int"):
        counted(3, lambda i: wf.no_op(), parallel_iterations=parallel)


def test_no_gradient_through_what_the_host_gave(graph: wf.Graph) -> None:
    q, x = queue("q"), wf.placeholder(wf.float32, [])
    loops = [
        wf.fori_loop(0, 3, lambda i, a: a * q.dequeue() * x, wf.constant(1.0)),
        wf.while_loop(lambda a: a < 9, lambda a: a * q.dequeue() * x, [wf.constant(1.0)])[0],
        wf.while_loop(lambda a: q.dequeue() > 0, lambda a: a * x, [wf.constant(1.0)])[0],
        wf.cond(x > 0, lambda: x * q.dequeue(), lambda: x),
    ]
    for y in loops:
        with pytest.raises(GradientError, match="needs what op 'dequeue' in it gives") as caught:
            wf.gradients(y, [x])
        assert "test_control_effects.py" in str(caught.value)
    before = q.dequeue()
    assert wf.gradients(wf.fori_loop(0, 3, lambda i, a: a * before * x, 1.0), [x])[0] is not None


def test_no_gradient_by_a_variable_that_changes_on_the_way(graph: wf.Graph) -> None:
    q, x, v = queue("q"), wf.placeholder(wf.float32, []), eager_variable(1)

    def body(i: Any, a: Any) -> Any:
        v.assign_add(q.dequeue())
        return a * x

    y = wf.fori_loop(0, 3, body, wf.constant(1.0))
    with pytest.raises(GradientError, match="'v' leads through op 'scan', in which it changes"):
        wf.gradients(y, [v])
    assert wf.gradients(x * v, [v])[0] is not None


# ------------------------------------------------------------ what is lowered
def test_only_what_must_be_is_lowered(graph: wf.Graph) -> None:
    q, x = queue("q"), wf.placeholder(wf.float32, [])
    pure = wf.fori_loop(0, 5, lambda i, a: wf.sin(a), wf.constant(1.0))

    def body(i: Any) -> Any:
        inner = wf.fori_loop(0, 3, lambda j, a: a + 1.0, wf.constant(0.0))
        return wf.cond(i > 1, lambda: q.enqueue(inner), wf.no_op)

    made = counted(4, body)
    graph_of_step = step_of(graph, pure, made)
    reasons = {
        mode: [
            (op.name, lowered, why) for op, lowered, why in lowering_reasons(graph_of_step, mode)
        ]
        for mode in ("auto", "dataflow", "native")
    }
    assert [r[:2] for r in reasons["auto"]] == [
        ("scan", False), ("while", True), ("scan", False), ("cond", True),
    ]  # fmt: skip
    assert "native code is faster" in reasons["auto"][0][2]
    assert "op 'enqueue' in it at" in reasons["auto"][1][2]
    assert all(lowered for _, lowered, _ in reasons["dataflow"])
    assert not any(lowered for _, lowered, _ in reasons["native"])
    auto = lower_control_flow(graph_of_step, mode="auto")
    assert [op.name for op in auto.ops if op.regions] == ["scan", "scan"]
    assert not any(op.regions for op in lower_control_flow(graph_of_step).ops)
    del x


def test_a_native_session_says_what_it_cannot_run(graph: wf.Graph) -> None:
    q = queue("q")
    made = counted(4, lambda i: q.enqueue(1))
    session = wf.Session(control_flow="native")
    with pytest.raises(UnsupportedError, match="dataflow executor only"):
        session.run(made)


def test_parallel_iterations_reaches_the_frame(graph: wf.Graph) -> None:
    q = queue("q")
    for parallel in (1, 7):
        made = counted(4, lambda i: q.enqueue(1), parallel_iterations=parallel)
        lowered = lower_control_flow(step_of(graph, made))
        enters = {op.attrs["parallel_iterations"] for op in lowered.ops if op.name == "enter"}
        assert enters == {parallel}


@pytest.mark.parametrize("parallel", [1, 3])
def test_iterations_overlap(graph: wf.Graph, parallel: int) -> None:
    """While one iteration waits, those after it go on as far as they need not wait for it."""
    q, full = queue("q", *range(10)), queue("full", 1, capacity=1)

    def body(i: Any) -> Any:
        full.enqueue(q.dequeue())
        return i + 1  # needs nothing of that

    start = [wf.constant(0, dtype="int64")]
    made = wf.while_loop(lambda i: i < 10, body, start, parallel_iterations=parallel)
    session = wf.Session()

    def run() -> None:
        with pytest.raises(CancelledError):
            session.run(made)

    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + 5
    while q._queue.size() > 10 - parallel and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.05)
    left = q._queue.size()
    session.close()
    thread.join(5)
    assert left == 10 - parallel


# ------------------------------------------------------------ many threads
def test_concurrent_loops_lose_no_update(graph: wf.Graph) -> None:
    """Loops that act update a variable where they stand, each update as one."""
    q, v = queue("q", *([1] * 200), capacity=1000), eager_variable(0)
    made = counted(25, lambda i: v.assign_add(q.dequeue()))
    with wf.Session() as session:
        threads = [threading.Thread(target=session.run, args=(made,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert session.run(q.size()) == 0
    assert v.numpy() == 200


def test_loops_as_producer_and_consumer(graph: wf.Graph) -> None:
    """One step fills a small queue, another empties it until it is closed; nothing is lost."""
    q, out = queue("q", capacity=3), queue("out", capacity=1000)
    put = counted(100, lambda i: q.enqueue(wf.astype(i, "float32")))
    with wf.control_dependencies([put]):
        end = q.close()
    # one iteration at a time, or the dequeue that finds the queue closed may end the step while the
    # enqueue of the iteration before is under way
    take = wf.while_loop(lambda: True, lambda: out.enqueue(q.dequeue()), [], parallel_iterations=1)
    with wf.Session() as session:

        def run() -> None:
            with pytest.raises(OutOfRangeError):
                session.run(take)

        consumer = threading.Thread(target=run)
        consumer.start()
        session.run(end)
        consumer.join(10)
        assert [float(x) for (x,) in out._queue._elements] == list(range(100))


def test_what_ends_a_loop_that_waits(graph: wf.Graph) -> None:
    q = queue("q")
    forever = wf.while_loop(lambda: True, lambda: wf.group(q.dequeue()), [])
    spin = wf.while_loop(lambda: q.size() < 1, wf.no_op, [])
    session = wf.Session()
    for made in (forever, spin):
        with pytest.raises(DeadlineExceededError):
            session.run(made, options=wf.RunOptions(timeout=0.05))
    ended: list[float] = []

    def run(made: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            session.run(made)
        ended.append(time.monotonic())

    waits = threading.Thread(target=run, args=(forever, OutOfRangeError))
    turns = threading.Thread(target=run, args=(spin, CancelledError))
    waits.start(), turns.start()
    time.sleep(0.1)
    at = time.monotonic()
    q._queue.close(False)
    waits.join(5)
    assert ended[0] - at < 0.5
    at = time.monotonic()
    session.close()
    turns.join(5)
    assert ended[1] - at < 0.5


def test_python_functions_keep_their_order_over_iterations(graph: wf.Graph) -> None:
    """They are one object: no call begins before the one before it is done."""
    seen: list[int] = []

    def note(i: Any) -> Any:
        seen.append(int(i))
        time.sleep(0.001 * (10 - int(i)))
        seen.append(int(i))
        return i

    def body(i: Any, s: Any) -> Any:
        return i + 1, s + wf.py_function(note, [i], wf.int64, ())

    start = (wf.constant(0, dtype="int64"), wf.constant(0, dtype="int64"))
    made = wf.while_loop(lambda i, _: i < 10, body, start)
    with wf.Session() as session:
        assert session.run(made) == (10, 45)
    assert seen == [i for i in range(10) for _ in range(2)]


def test_an_error_in_a_loop_names_the_line(graph: wf.Graph) -> None:
    q = queue("q", closed=True)
    made = counted(3, lambda i: q.enqueue(1))
    with wf.Session() as session, pytest.raises(CancelledError) as caught:
        session.run(made)
    assert "lambda i: q.enqueue(1)" in str(caught.value)


@pytest.mark.parametrize("optimizer", ["GradientDescentOptimizer", "MomentumOptimizer"])
def test_a_training_loop_that_dequeues(graph: wf.Graph, optimizer: str) -> None:
    """Gradients and optimizers work within an iteration; variables and slots are live."""
    options = {"momentum": 0.5} if optimizer == "MomentumOptimizer" else {}
    data = [1.0, -2.0, 3.0, 0.5, 2.0]
    w, v = eager_variable(2.0), eager_variable(2.0)
    q, trained = queue("q", *data), getattr(wf.train, optimizer)(0.1, **options)

    def body(i: Any) -> Any:
        trained.minimize(wf.square(w * q.dequeue() - 1.0), var_list=[w])
        return wf.no_op()

    made = counted(len(data), body)
    with wf.Session() as session:
        assert session.run(made) == len(data)
        assert session.run(q.size()) == 0
    value, velocity = np.float32(v.numpy()), np.float32(0)
    for x in np.array(data, np.float32):
        slope = 2 * (value * x - 1) * x
        velocity = velocity * np.float32(options.get("momentum", 0)) + slope
        value -= np.float32(0.1) * velocity
    np.testing.assert_allclose(w.numpy(), value, rtol=1e-5)


def test_back_prop(graph: wf.Graph) -> None:
    """Without it what a loop gives is a constant to differentiation, and the same otherwise."""
    x, rows = wf.placeholder(wf.float32, []), np.array([1, 2, 3], np.float32)

    def loops(**options: Any) -> list[Any]:
        return [
            wf.while_loop(lambda v: v < 10, lambda v: v * x, [x], **options),
            wf.sum(wf.map_fn(lambda r: r * x, rows, **options)),
            wf.foldl(lambda a, r: a * x + r, rows, x, **options),
            wf.foldr(lambda a, r: a * x + r, rows, x, **options),
        ]

    open_, closed = loops(), loops(back_prop=False, swap_memory=True, parallel_iterations=2)
    assert all(wf.gradients(y, [x])[0] is not None for y in open_)
    assert all(wf.gradients(y, [x])[0] is None for y in closed)
    with wf.Session() as session:
        assert session.run(open_, {x: 3}) == session.run(closed, {x: 3})
    for fold in (wf.foldl, wf.foldr, wf.map_fn):
        with pytest.raises(InvalidArgumentError, match="parallel_iterations is 0"):
            fold(lambda *a: a[0], rows, parallel_iterations=0)


def test_the_text_of_a_graph_runs_again(graph: wf.Graph) -> None:
    q = queue("q")
    wf.name_tensor(counted(3, lambda i: q.enqueue(wf.astype(i, "float32"))), "made")
    wf.name_tensor(wf.identity(q.size()), "size")
    again = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=again) as session:
        assert session.run("made") == 3
        assert session.run("size") == 3
    assert q._queue.size() == 0  # another queue


@pytest.mark.parametrize("where", ["branch", "inner loop", "scan"])
def test_no_gradient_by_what_a_live_variable_stores(graph: wf.Graph, where: str) -> None:
    q, x, v = queue("q"), wf.placeholder(wf.float32, []), wf.Variable(1.0)

    def act(store: Any = x) -> Any:
        q.enqueue(0.0)
        v.assign_add(store * store)
        return v.read()

    def within(store: Any) -> Any:
        if where == "branch":
            return wf.cond(x > 0, lambda: act(store), lambda: x)
        if where == "scan":
            return wf.scan(lambda c, _: (c * x, act(store)), x, length=2)[1]
        done = lambda: wf.fori_loop(0, 2, lambda i, a: a + act(store), 0.0)  # noqa: E731
        return wf.cond(x > 0, lambda: (done(), v.read())[1], lambda: x)

    with pytest.raises(GradientError, match="op 'read' gives what op 'assign_add'") as caught:
        wf.gradients(wf.sum(within(x)), [x])
    assert "wf.stop_gradient" in str(caught.value)
    free = wf.sum(within(wf.stop_gradient(x)) * x)  # what is stored does not depend on x
    assert wf.gradients(free, [x])[0] is not None
