"""Updates of variables as ops of graphs: what they mean, their order, threads, memory, errors."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import weft as wf
from weft.ir.cost.work import work
from weft.ir.dtypes import bool_, float32, int32, int64
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops.builder import Builder
from weft.ir.ops.state import UPDATES
from weft.ir.types import TensorType
from weft.passes.pipelines import STANDARD

E = wf.errors
MODES = ("native", "dataflow")
START = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(params=MODES)
def session(request: Any) -> Iterator[Callable[[], wf.Session]]:
    """Makes sessions that run steps natively, or by the executor."""
    with wf.Graph().as_default():
        mode = "auto" if request.param == "native" else "dataflow"
        yield lambda: wf.Session(control_flow=mode)


def started(make: Callable[[], wf.Session]) -> wf.Session:
    made = make()
    made.run(wf.global_variables_initializer())
    return made


# ----------------------------------------------------------------------------------- what they mean
def expected(op: str, old: Any, *given: Any) -> Any:
    """The new value, written with loops over the rows."""
    new = np.array(old)
    if op in ("assign_add", "assign_sub"):
        return new + given[0] if op == "assign_add" else new - given[0]
    indices, updates = given
    for at in np.ndindex(indices.shape):
        row = int(indices[at])
        match op:
            case "scatter_add":
                new[row] = new[row] + updates[at]
            case "scatter_sub":
                new[row] = new[row] - updates[at]
            case "scatter_update":
                new[row] = updates[at]
    return new


def operands(op: str) -> list[Any]:
    if op in ("assign_add", "assign_sub"):
        return [START[::-1] * 2]
    indices = np.array([[1, -1, 1], [0, 1, 3]], np.int32)
    return [indices, np.arange(18, dtype=np.float32).reshape(2, 3, 3)]


@pytest.mark.parametrize("op", sorted(UPDATES))
def test_an_update_in_the_interpreter(op: str) -> None:
    given = operands(op)
    b = Builder([TensorType(int32, x.shape) if x.dtype.kind == "i" else TensorType(float32, x.shape)
                 for x in given])  # fmt: skip
    (ref,) = b.emit("variable", attrs={"name": "w", "dtype": float32, "shape": (4, 3)})
    (before,) = b.emit("read", [ref])
    (new,) = b.emit(op, [ref, *b.args], control=[before])
    (after,) = b.emit("read", [ref], control=[new])
    names = [f"a{i}" for i in range(len(given))]
    graph = b.graph("g", names, [before, new, after])
    wanted = expected(op, START, *given)
    for run in (lambda g: g, *STANDARD):
        graph = run(graph)
        state = DictState({"w": START})
        found = interpret(graph, given, state)
        for made, right in zip(found, [START, wanted, wanted], strict=True):
            assert_array_equal(made, right)
        assert_array_equal(state.get("w"), wanted)


@pytest.mark.parametrize("op", sorted(UPDATES))
def test_an_update_in_a_session(op: str, session: Any) -> None:
    v = wf.Variable(START, name="w")
    given = operands(op)
    new = getattr(v, op)(*given)
    run = started(session)
    wanted = expected(op, START, *given)
    before, made = run.run([v, new])  # reads come first
    assert_array_equal(before, START)
    assert_array_equal(made, wanted)
    assert_array_equal(v.numpy(), wanted)
    assert [o.name for o in wf.get_default_graph().ir().ops].count(op) == 1


@pytest.mark.parametrize("op", sorted(UPDATES))
def test_an_update_outside_of_graphs(op: str) -> None:
    given = operands(op)
    wanted = expected(op, START, *given)
    eager = wf.Variable(START)
    assert_array_equal(getattr(eager, op)(*given).numpy(), wanted)
    traced = wf.Variable(START)
    wf.compile(lambda *args: getattr(traced, op)(*args))(*given)
    assert_array_equal(traced.numpy(), wanted)


def test_operands_convert_as_outside_of_graphs(session: Any) -> None:
    v = wf.Variable(START, name="w")
    n = wf.Variable(np.arange(3, dtype=np.int8), name="n")
    done = [
        v.assign_add(1),
        v.scatter_add([0, 2], 10),
        v.scatter_sub(wf.constant(1), [1.0, 2.0, 3.0]),
        v.scatter_update([3], wf.Variable([7.0, 8.0, 9.0], name="row")),
        v.scatter_add([], wf.zeros((0, 3))),
        n.assign_sub(1),
        n.scatter_update([0, 0], np.array([5, 6], np.int8)),
    ]
    for t in done:
        assert t.shape in ((4, 3), (3,))
    run = started(session)
    run.run([wf.group(t) for t in done])
    right = START + 1
    right[[0, 2]] += 10
    right[1] -= [1, 2, 3]
    right[3] = [7, 8, 9]
    assert_array_equal(v.numpy(), right)
    assert n.numpy().tolist() == [6, 0, 1]


def test_rows_of_sizes_that_are_not_known_yet(session: Any) -> None:
    v = wf.Variable(START, name="v")
    ids = wf.placeholder(wf.int32, [None], name="ids")
    fed = v.scatter_add(ids, wf.ones((ids.shape[0], 3)))
    few = wf.boolean_mask(ids, ids > 1)
    chosen = v.scatter_sub(few, 1.0)
    run = started(session)
    assert run.run(fed, {ids: [0, 0, 2]})[:, 0].tolist() == [2, 3, 7, 9]
    assert run.run(chosen, {ids: [0, 2, 3, 3]})[:, 0].tolist() == [2, 3, 6, 7]
    assert run.run(chosen, {ids: [0]})[:, 0].tolist() == [2, 3, 6, 7]


def test_sizes_that_may_differ(session: Any) -> None:
    v = wf.Variable(START, name="v")
    rows = [
        wf.placeholder(kind, [None, *more]) for kind, more in ((wf.int32, []), ("float32", [3]))
    ]
    with pytest.raises(E.ShapeError, match="should have one name"):
        v.scatter_add(*rows)


def test_updates_that_nothing_orders_happen_as_they_were_made(session: Any) -> None:
    v = wf.Variable(1.0, name="v")
    one, two, three = v.assign_add(1.0), v.assign(10.0), v.assign_sub(3.0)
    r = v.read()
    run = started(session)
    assert run.run([three, two, one, r]) == [7, 10, 2, 1]
    assert run.run(one) == 8  # alone: nothing else happens


def test_control_operands_order_updates(session: Any) -> None:
    v = wf.Variable(1.0, name="v")
    with wf.control_dependencies([v.assign_add(1.0)]):
        r = v.read()
        with wf.control_dependencies([r]):
            last = v.assign_add(r * 10.0)
    run = started(session)
    assert run.run([last, r]) == [22, 2]


def test_an_update_of_what_an_update_gives(session: Any) -> None:
    v, w = wf.Variable(1.0, name="v"), wf.Variable(0.0, name="w")
    a = v.assign_add(1.0)
    b = v.assign_add(a)
    c = w.assign_sub(b + v)
    run = started(session)
    assert run.run([c]) == [-5]
    assert (v.numpy(), w.numpy()) == (4, -5)


def test_branches_and_loops_are_updates(session: Any) -> None:
    """What they start from is the value after the updates before them, also without an edge."""
    v, w = wf.Variable(10.0, name="v"), wf.Variable(0.0, name="w")
    first = v.assign_add(5.0)
    after = wf.cond(first > 0, lambda: v.assign_add(1.0), lambda: v.assign_sub(1.0))
    free = wf.cond(w > -1, lambda: v.assign_add(100.0), lambda: v.assign(v * 0.0))

    def body(i: Any, x: Any) -> Any:
        with wf.control_dependencies([v.assign_add(x)]):
            return i + 1, x

    end = wf.while_loop(lambda i, x: i < 3, body, (0, after * 0.0 + 1000.0))[0]
    total, _ = wf.scan(lambda c, x: (c + v.assign_add(x), None), 0.0, np.ones(2, np.float32) * 1e4)
    run = started(session)
    assert run.run([first, after, free, end, total]) == [15, 16, 116, 3, 13116 + 23116]
    assert v.numpy() == 23116
    assert run.run([v, free]) == [23116, 23216]  # what only reads comes first


def test_a_read_after_a_branch_turns_nothing_round(session: Any) -> None:
    """It comes after the loop before the branch, too: the branch is done after all of that."""
    v = wf.Variable(10.0, name="v")
    start = wf.Variable(1.0, name="start")

    def body(i: Any) -> Any:
        with wf.control_dependencies([v.assign_add(1.0)]):
            return i + 1

    loop = wf.while_loop(lambda i: i < 3, body, 0)
    branch = wf.cond(start > 0, lambda: v.assign_add(100.0), lambda: v.assign_sub(1.0))
    with wf.control_dependencies([branch]):
        read = v.read()
    run = started(session)
    assert run.run([read, loop, branch]) == [113, 3, 113]
    assert v.numpy() == 113


def test_a_branch_reads_what_its_bodies_read(session: Any) -> None:
    """One that only assigns needs no value before."""
    p = wf.placeholder(wf.bool, [], name="p")
    v = wf.Variable(0.0, name="v")
    chosen = wf.cond(p, lambda: v.assign(1.0), lambda: v.assign(2.0))
    with session() as run:
        assert run.run(chosen, {p: False}) == 2


def test_rows_of_strings(session: Any) -> None:
    v = wf.Variable(["a", "b", "c"], name="v")
    i = wf.placeholder(wf.int32, [2], name="i")
    step = v.scatter_update(i, ["y", "z"])
    with pytest.raises(E.FailedPreconditionError, match="'v' is not initialised"):
        session().run(step, {i: [0, 1]})
    run = started(session)
    assert run.run(step, {i: [2, 0]}).tolist() == [b"z", b"b", b"y"]
    assert run.run(step, {i: [1, 1]}).tolist() == [b"z", b"z", b"y"]
    with pytest.raises(E.InvalidArgumentError, match="index 3"):
        run.run(step, {i: [0, 3]})
    assert run.run(v).tolist() == [b"z", b"z", b"y"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["read", *sorted(UPDATES)]), st.integers(0, 3), st.integers(-4, 4)),
    min_size=1,
    max_size=7,
)


@examples(15, deadline=None)
@given(steps=STEPS, chained=st.booleans())
def test_random_updates(steps: list[tuple[str, int, int]], chained: bool) -> None:
    """In program order: what interpreter, native plan, executor and NumPy make of them."""
    wanted, value = [], START
    for op, row, k in steps:
        if op != "read":
            given = [np.float32(k)] if "assign" in op else [np.array([row, 1]), np.full((2, 3), k)]
            value = expected(op, value, *given)
        wanted.append(value)
    for mode in MODES:
        with wf.Graph().as_default():
            v = wf.Variable(START, name="v")
            made: list[Any] = []
            for op, row, k in steps:
                with wf.control_dependencies(made[-1:]):
                    x = made[-1][0, 0] * 0 if chained and made else wf.constant(0.0)
                    if op == "read":
                        made.append(wf.identity(v.read()))
                    elif "assign" in op:
                        made.append(getattr(v, op)(x + k))
                    else:
                        made.append(getattr(v, op)([row, 1], wf.full((2, 3), k) + x))
            run = wf.Session(control_flow=mode)
            run.run(v.initializer)
            graph = wf.get_default_graph().ir(made)
            for found, right in zip(run.run(made), wanted, strict=True):
                assert_array_equal(found, right)
            state = DictState({"v": START})
            for found, right in zip(interpret(graph, [], state), wanted, strict=True):
                assert_array_equal(found, right)


# ---------------------------------------------------------------------------------------- gradients
def test_gradients_through_updates() -> None:
    with wf.Graph().as_default():
        v = wf.Variable(START, name="v")
        x = wf.placeholder(wf.float32, [2, 3], name="x")
        factor = np.arange(12, dtype=np.float32).reshape(4, 3)
        run = started(wf.Session)
        index = [1, 3]
        for op, sign in (("scatter_add", 1), ("scatter_sub", -1), ("scatter_update", 1)):
            loss = wf.sum(getattr(v, op)(index, x) * factor)
            of_x, of_v = wf.gradients(loss, [x, v])
            gx, gv = run.run([of_x, of_v], {x: np.ones((2, 3))})
            assert_array_equal(gx, sign * factor[index])
            kept = np.array(factor)
            if op == "scatter_update":
                kept[index] = 0
            assert_array_equal(gv, kept)
            v = wf.Variable(START, name="v")  # gradients are of all that was done to one
            run.run(v.initializer)
        loss = wf.sum(v.assign_sub(wf.sum(x)) * factor)
        assert_array_equal(run.run(wf.gradients(loss, x)[0], {x: np.ones((2, 3))}), -factor.sum())
        loss = wf.sum(v.assign_add(wf.sum(x)) * factor)
        assert_array_equal(run.run(wf.gradients(loss, x)[0], {x: np.ones((2, 3))}), factor.sum())
        twice = v.scatter_update([2, 2], x)  # the last stays
        gx = run.run(wf.gradients(wf.sum(twice * factor), x)[0], {x: np.ones((2, 3))})
        assert_array_equal(gx, [np.zeros(3), factor[2]])


# ------------------------------------------------------------------------------------------ threads
def together(work: Callable[[int], None], count: int = 16) -> None:
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(50)
    assert not failures
    assert not any(t.is_alive() for t in threads)


@pytest.mark.share(2)
@pytest.mark.parametrize("mode", ["auto", "dataflow"])
@pytest.mark.parametrize("waits", [False, True])
def test_no_update_is_lost(mode: str, waits: bool) -> None:
    with wf.Graph().as_default():
        v = wf.Variable(np.zeros(500, np.float32), name="v")
        rows = wf.Variable(np.zeros((50, 4), np.float32), name="rows")
        slot = wf.Variable(np.zeros(500, np.float32), name="slot")
        counter = wf.Variable(0, name="counter")
        queue = wf.FIFOQueue(-1, wf.float32, [])
        x = queue.dequeue() if waits else wf.constant(1.0)
        done = wf.group(
            v.assign_add(wf.ones(500) * x),
            rows.scatter_add([1, 1, 3], wf.ones((3, 4)) * x),
            rows.scatter_sub([2], wf.ones((1, 4)) * x),
            slot.assign(slot * 1.0 + x),  # what optimizers do: one lock from the read to the write
            counter.assign_add(wf.astype(x, wf.int64)),
        )
        put = queue.enqueue(1.0)
        session = wf.Session(control_flow=mode)
        session.run(wf.global_variables_initializer())

        def work(i: int) -> None:
            for _ in range(20):
                session.run(put)
                session.run(done)

        together(work)
        for held in (v.numpy(), slot.numpy()):
            assert_array_equal(held, np.full(500, 320.0))
        assert counter.numpy() == 320
        assert rows.numpy()[:4, 0].tolist() == [0, 640, -320, 320]


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: wf.train.SGD(0.5),
    "momentum": lambda: wf.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: wf.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: wf.train.RMSPropOptimizer(0.1),
    "adam": lambda: wf.train.AdamOptimizer(0.1),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("mode", ["auto", "dataflow"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_in_steps_that_wait(name: str, mode: str) -> None:
    """What one reads and writes of its slots and of the weight lies in one region: steps of 8
    threads, all with one gradient, give what as many one after the other do."""
    found = []
    for threads in (1, 8):
        with wf.Graph().as_default():
            queue = wf.FIFOQueue(-1, wf.float64, [])
            w = wf.Variable(np.zeros((20, 3)), name="w")
            train = OPTIMIZERS[name]().minimize(wf.sum(w) * queue.dequeue())
            put = queue.enqueue(1.0)
            session = wf.Session(control_flow=mode)
            session.run(wf.global_variables_initializer())

            def work(i: int) -> None:
                for _ in range(80 // threads):  # noqa: B023
                    session.run(put)  # noqa: B023
                    session.run(train)  # noqa: B023

            together(work, threads)
            found.append(w.numpy())
    assert_array_equal(*found)
    assert found[0].max() < 0


@pytest.mark.share(2)
@pytest.mark.parametrize("mode", ["auto", "dataflow"])
@pytest.mark.parametrize("waits", [False, True])
def test_no_update_in_a_branch_or_loop_is_lost(mode: str, waits: bool) -> None:
    with wf.Graph().as_default():
        queue = wf.FIFOQueue(-1, wf.float32, [])
        v = wf.Variable(np.zeros(300, np.float32), name="v")

        def add() -> Any:
            x = queue.dequeue() if waits else wf.constant(1.0)
            v.assign_add(wf.ones(300) * x)
            return x

        def body(i: Any) -> Any:
            add()
            return i + 1

        branch = wf.cond(wf.size(v) > 3, add, lambda: wf.constant(0.0))
        loop = wf.while_loop(lambda i: i < 3, body, 0)
        put = queue.enqueue_many(wf.ones(4))
        session = wf.Session(control_flow=mode)
        session.run(v.initializer)

        def work(i: int) -> None:
            for _ in range(10):
                session.run(put)
                session.run(branch)
                session.run(loop)

        together(work)
        assert_array_equal(v.numpy(), np.full(300, 640.0))


def test_what_updates_a_variable_is_not_lowered_around_it() -> None:
    with wf.Graph().as_default():
        v, w = wf.Variable(0.0, name="v"), wf.Variable(1.0, name="w")

        def body(i: Any) -> Any:
            v.assign_add(w)
            return i + 1

        loop = wf.while_loop(lambda i: i < 3, body, 0)
        other = wf.while_loop(lambda x: x < 10.0, lambda x: x * 2.0, w.read())
        session = wf.Session(control_flow="dataflow")
        text = str(session.explain([loop, other]))
        assert "it updates variable 'v'" in text
        session.run([v.initializer, w.initializer])
        assert session.run([loop, other]) == [3, 16]
        assert v.numpy() == 3


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_no_read_is_torn(mode: str) -> None:
    """A large variable whose elements are all equal, always."""
    with wf.Graph().as_default():
        v = wf.Variable(np.zeros(300_000, np.float32), name="v")
        x = wf.placeholder(wf.float32, [], name="x")
        read, add, put = v.read(), wf.group(v.assign_add(wf.ones(300_000))), v.assign(
            wf.zeros(300_000) + x
        )  # fmt: skip
        fetched = v.assign_sub(1.0)
        session = wf.Session(control_flow=mode)
        session.run(wf.global_variables_initializer())
        doubled = wf.compile(lambda: v * 2.0)

        def work(i: int) -> None:
            for _ in range(6):
                match i % 5:
                    case 0:
                        session.run(add)
                    case 1:
                        whole(session.run(put, {x: float(i)}))
                    case 2:
                        whole(session.run(read))
                    case 3:
                        whole(session.run(fetched))
                    case _:
                        whole(v.numpy())
                        whole(doubled().numpy())

        together(work)


def whole(array: Any) -> None:
    assert array.min() == array.max()


# ------------------------------------------------------------------------------------------- memory
MEMORY = """
import numpy as np, weft as wf
def status(word):
    line = next(x for x in open("/proc/self/status") if x.startswith(word))
    return int(line.split()[1]) << 10
def once(run):
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before
def peak(run):  # a copy is in each of them, what another thread allocates is not
    run(), run()
    return min(once(run) for _ in range(5))
ROWS = {rows}
with wf.Graph().as_default():
    v = wf.Variable(wf.zeros((ROWS, 256)))
    ids, part = wf.placeholder(wf.int32, [32]), wf.placeholder(wf.float32, [32, 256])
    full = wf.placeholder(wf.float32, [ROWS, 256])
    done = [wf.group(getattr(v, op)(ids, part)) for op in
            ("scatter_add", "scatter_sub", "scatter_update")]
    both = [wf.group(getattr(v, op)(full)) for op in ("assign_add", "assign_sub", "assign")]
    fetched = v.scatter_add(ids, part)
    session = wf.Session(control_flow="{mode}")
    session.run(v.initializer)
    few = {{ids: np.arange(32, dtype=np.int32), part: np.ones((32, 256), np.float32)}}
    for step in done:
        print(peak(lambda: session.run(step, few)))
    many = {{full: np.ones((ROWS, 256), np.float32)}}
    for step in both:
        print(peak(lambda: session.run(step, many)))
    old, new = session.run([v, fetched], few)  # the old value is kept where it is asked for
    assert (new - old).sum() == 32 * 256 and (v.numpy() == new).all()
    print(0)
"""


def _peaks(mode: str, rows: int) -> list[int]:
    code = textwrap.dedent(MEMORY.format(mode=mode, rows=rows))
    made = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert not made.returncode, made.stderr
    return [int(line) for line in made.stdout.split()]


@pytest.mark.share(2)
@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc/self/clear_refs")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "rows", [30_000, pytest.param(200_000, marks=[pytest.mark.slow, pytest.mark.alone])]
)
def test_updates_are_done_in_place(mode: str, rows: int) -> None:
    """Less than 1 MB beside the variable (of 200 MB) and the delta."""
    found = _peaks(mode, rows)
    assert len(found) == 7
    assert max(found) < 1 << 20, found


# ------------------------------------------------------------------------------ whether initialised
def test_is_initialized(session: Any) -> None:
    v, w = wf.Variable([1.0], name="v"), wf.Variable(2, name="w")
    asked = v.is_initialized()
    with wf.control_dependencies([v.initializer]):
        then = wf.is_variable_initialized(v)
    missing = wf.report_uninitialized_variables()
    check = wf.assert_variables_initialized()
    run = session()
    assert run.run(missing).tolist() == [b"v", b"w"]
    with pytest.raises(E.FailedPreconditionError, match=r"these variables are 'v', 'w' not") as e:
        run.run(check)
    assert "check = wf.assert_variables_initialized()" in str(e.value)
    assert run.run([asked, then]) == [False, True]
    assert run.run([asked, missing])[1].tolist() == [b"w"]
    with pytest.raises(E.FailedPreconditionError, match="variable 'w' is not"):
        run.run(check)
    run.run(w.initializer)
    assert run.run(check) is None
    assert run.run(missing).tolist() == []
    assert run.run(wf.report_uninitialized_variables([v])).size == 0


def test_whether_initialised_outside_of_graphs() -> None:
    v = wf.Variable([1.0], name="v")
    assert bool(v.is_initialized())
    with wf.Graph().as_default():
        late = wf.Variable(1.0, name="late")
    assert not wf.is_variable_initialized(late)
    assert wf.report_uninitialized_variables([v, late]).numpy().tolist() == [b"late"]
    assert wf.assert_variables_initialized([v]).value is None
    with pytest.raises(E.FailedPreconditionError, match="'late' is not initialised"):
        wf.assert_variables_initialized([v, late])
    n = wf.Variable(0)
    asks: list[Callable[[], Any]] = [
        n.is_initialized, lambda: n.count_up_to(3), wf.report_uninitialized_variables,
        lambda: wf.assert_variables_initialized([n]),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(E.UnsupportedError, match="traced is not supported"):
            wf.compile(ask)()
    for use in (late.numpy, late.read, lambda: late + 1.0, lambda: late.assign_add(1.0)):
        with pytest.raises(E.FailedPreconditionError, match="'late' is not initialised") as e:
            use()
        assert "test_state_ops.py" in str(e.value)


def test_errors_name_the_variable_and_the_line(session: Any) -> None:
    v = wf.Variable([1.0], name="v")
    doubled = v * 2.0
    added = v.assign_add([1.0])
    run = session()
    with pytest.raises(E.FailedPreconditionError, match="'v' is not initialised") as e:
        run.run(doubled)
    assert "doubled = v * 2.0" in str(e.value)
    with pytest.raises(E.FailedPreconditionError, match="'v' is not initialised") as e:
        run.run(added)
    assert "added = v.assign_add([1.0])" in str(e.value)
    assert not v.state.initialized


def test_count_up_to(session: Any) -> None:
    n = wf.Variable(3, name="n")
    step = n.count_up_to(5)
    run = started(session)
    assert [run.run(step), run.run(step)] == [3, 4]
    with pytest.raises(E.OutOfRangeError, match="'n' has reached its limit of 5") as e:
        run.run(step)
    assert "step = n.count_up_to(5)" in str(e.value)
    assert n.numpy() == 5
    assert run.run(n) == 5


def test_counting_outside_of_graphs() -> None:
    eager = wf.Variable(np.int32(0), name="eager")
    assert wf.count_up_to(eager, 1).item() == 0
    with pytest.raises(E.OutOfRangeError, match="limit of 1"):
        eager.count_up_to(1)
    small = wf.Variable(np.int8(126))
    assert small.count_up_to(1000).item() == 126
    with pytest.raises(E.OutOfRangeError, match="limit of 127"):  # it does not wrap around
        small.count_up_to(1000)


def test_counting_from_threads() -> None:
    with wf.Graph().as_default():
        n = wf.Variable(0, name="n")
        step = n.count_up_to(200)
        session = started(wf.Session)
        seen: list[int] = []

        def work(i: int) -> None:
            try:
                while True:
                    seen.append(int(session.run(step)))
            except E.OutOfRangeError:
                pass

        together(work)
        assert sorted(seen) == list(range(200))


# ---------------------------------------------------------------------------------------- functions
def test_functions_with_the_names_of_tensorflow(session: Any) -> None:
    v = wf.Variable(START, name="v")
    made = [
        wf.assign(v, START * 2, use_locking=True, name="set"),
        wf.assign_add(v, 1.0, use_locking=False),
        wf.assign_sub(v, 2.0),
        wf.scatter_add(v, [0], [[1.0, 1.0, 1.0]], use_locking=True),
        wf.scatter_sub(v, [1], 1.0, name="less"),
        wf.scatter_update(v, [2], 0.0),
    ]
    run = started(session)
    *_, sixth, less = run.run([*made, "less"])
    assert_array_equal(less, START * 2 - 1 + [[1], [-1], [0], [0]])
    assert_array_equal(sixth, less * [[1], [1], [0], [1]])


def test_functions_outside_of_graphs() -> None:
    eager = wf.Variable(START)
    for function in (wf.assign, wf.assign_add, wf.assign_sub):
        assert function(eager, START).shape == (4, 3)


def test_what_is_refused() -> None:
    with wf.Graph().as_default():
        v = wf.Variable(START, name="v")
        n = wf.Variable(3, name="n")
        x = wf.placeholder(wf.float64, [4, 3])
        y = wf.placeholder(wf.float32, [None, 3])
        cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
            (lambda: v.assign_add(wf.ones(5)), E.ShapeError, r"\[5\] does not fit .*'v'"),
            (lambda: v.assign_sub(wf.ones((2, 4, 3))), E.ShapeError, "'v'"),
            (lambda: v.assign_add(x), E.TypeRuleError, "float64 value does not fit variable 'v'"),
            (lambda: n.assign_add(0.5), E.TypeRuleError, "does not fit variable 'n'"),
            (lambda: n.scatter_add([0], [1]), E.ShapeError, "'n' has no axes"),
            (lambda: v.scatter_add([0.5], 1.0), E.TypeRuleError, "must be integers, got float"),
            (lambda: v.scatter_sub([0], wf.ones((2, 3))), E.ShapeError, r"\[2,3\].*rows.*\[1,3\]"),
            (lambda: v.assign(wf.ones(3)), E.ShapeError, "does not fit variable 'v'"),
            (lambda: v.count_up_to(3), E.TypeRuleError, "not one integer"),
            (lambda: n.count_up_to(2.5), E.TypeRuleError, "the limit is a float"),  # type: ignore[arg-type]
            (
                lambda: wf.assign(v, 1, validate_shape=False),
                E.UnsupportedError,
                r"does not fit variable 'v'.*(\n.*)*made with validate_shape",
            ),
            (lambda: wf.Variable(y), E.ShapeError, "not known"),
            (
                lambda: wf.Variable(START, validate_shape=False).assign_add(wf.ones((5, 1, 1))),
                E.ShapeError,
                r"\[5,1,1\] does not fit variable 'variable' \(f32\[\?,\?\]\)",
            ),
            (
                lambda: wf.tf1.get_variable("g", initializer=y),
                E.ShapeError,
                r"not known.*(\n.*)*validate_shape=False",
            ),
            (lambda: wf.assign_add(x, 1.0), E.TypeRuleError, "not a wf.Variable"),  # type: ignore[arg-type]
        ]
        for build, kind, what in cases:
            count = len(wf.get_default_graph().ir().ops)
            with pytest.raises(kind, match=what) as e:
                build()
            assert "test_state_ops.py" in str(e.value)
            after = wf.get_default_graph().ir().ops[count:]
            assert all(op.name == "constant" or "state" not in op.name for op in after)
            assert not any(op.name in UPDATES for op in after)


def test_an_index_out_of_bounds_changes_nothing(session: Any) -> None:
    v = wf.Variable(START, name="v")
    i = wf.placeholder(wf.int32, [2], name="i")
    step = v.scatter_add(i, 1.0)
    run = started(session)
    with pytest.raises(E.InvalidArgumentError, match=r"index 4 .* out of bounds"):
        run.run(step, {i: [0, 4]})
    assert_array_equal(v.numpy(), START)
    assert run.run(step, {i: [0, -1]})[3, 0] == 10


def test_type_rules() -> None:
    b = Builder([TensorType(float32, (3,)), TensorType(int64, (2,)), TensorType(bool_, (3,))])
    (ref,) = b.emit("variable", attrs={"name": "w", "dtype": float32, "shape": (3,)})
    (flags,) = b.emit("variable", attrs={"name": "b", "dtype": bool_, "shape": (3,)})
    x, i, p = b.args
    for op, operands, kind, what in (
        ("assign_add", [x, x], E.TypeRuleError, "ref as its first operand"),
        ("assign_add", [ref, i], E.ShapeError, "does not fit a variable of type f32"),
        ("assign_add", [flags, p], E.TypeRuleError, "bool"),
        ("scatter_add", [ref, x, x], E.TypeRuleError, "must be integers"),
        ("scatter_add", [ref, i, x], E.ShapeError, "the updates has shape"),
        ("scatter_update", [flags, i, x], E.TypeRuleError, "must be bool"),
        ("count_up_to", [ref], E.TypeRuleError, "one integer"),
        ("is_initialized", [x], E.TypeRuleError, "ref as its first operand"),
    ):
        attrs = {"limit": 3} if op == "count_up_to" else {}
        with pytest.raises(kind, match=what):
            b.emit(op, operands, attrs)
    (kept,) = b.emit(
        "scatter_update", [flags, i, b.emit1("slice", p, starts=(0,), stops=(2,), steps=(1,))]
    )
    assert kept.type == TensorType(bool_, (3,))


def test_how_much_work_an_update_is() -> None:
    b = Builder([TensorType(float32, (4, 3)), TensorType(int64, (2,)), TensorType(float32, (2, 3))])
    (ref,) = b.emit("variable", attrs={"name": "w", "dtype": float32, "shape": (4, 3)})
    whole, indices, rows = b.args
    wanted = {
        "assign_add": ([whole], 12, 96, 48),
        "assign_sub": ([whole], 12, 96, 48),
        "scatter_add": ([indices, rows], 6, 16 + 24 + 24, 24),
        "scatter_sub": ([indices, rows], 6, 16 + 24 + 24, 24),
        "scatter_update": ([indices, rows], 0, 16 + 24, 24),
    }
    assert set(wanted) == UPDATES
    for op, (values, flops, read, written) in wanted.items():
        b.emit(op, [ref, *values])
        found = work(b.ops[-1])
        assert (found.flops, found.bytes_read, found.bytes_written) == (flops, read, written)


def test_sizes_that_are_not_validated_are_checked_when_a_step_runs() -> None:
    """TensorFlow's validate_shape=False for a value whose sizes are not known when it is built."""
    with wf.Graph().as_default(), wf.Session() as session:
        v = wf.Variable([1.0, 2.0])
        x = wf.placeholder(wf.float32, [None])
        put = wf.tf1.assign(v, x, validate_shape=False)
        session.run(wf.global_variables_initializer())
        assert session.run(put, {x: [3, 4]}).tolist() == [3, 4]
        with pytest.raises(E.ShapeError, match="do not fit"):
            session.run(put, {x: [3, 4, 5]})
        assert session.run(v).tolist() == [3, 4]
