"""Compiled functions that need the dataflow executor: ops of the host, strings, sizes that depend
on values. The truth is what the same Python gives eagerly, or NumPy."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    TypeRuleError,
    UnsupportedError,
)

F32 = np.float32


def _queue(capacity: int = 100, shape: tuple[int, ...] = ()) -> Any:
    return wf.tf1.FIFOQueue(capacity, [wf.float32], [shape])


# ---------------------------------------------------------------------------------- program order
_STEPS = st.lists(
    st.sampled_from(["put", "take", "size", "assign", "add", "read", "note", "branch", "loop"]),
    max_size=9,
)


class _Program:
    """A random sequence of effects on a queue of its own, a variable and a list."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps
        self.queue, self.variable = _queue(), wf.Variable(F32(0))
        self.notes: list[float] = []
        self.put(5.0)
        self.put(6.0)

    def put(self, x: Any) -> None:
        self.queue.enqueue(x)

    def __call__(self, x: wf.Tensor) -> list[wf.Tensor]:
        out = [x * 2.0]
        for step in self.steps:
            getattr(self, f"_{step}")(out)
        return out

    def _put(self, out: list[wf.Tensor]) -> None:
        self.put(out[-1] + 1.0)

    def _take(self, out: list[wf.Tensor]) -> None:
        self.put(out[-1])
        out.append(self.queue.dequeue())

    def _size(self, out: list[wf.Tensor]) -> None:
        out.append(wf.astype(self.queue.size(), wf.float32) + out[0])

    def _assign(self, out: list[wf.Tensor]) -> None:
        self.variable.assign(out[-1])

    def _add(self, out: list[wf.Tensor]) -> None:
        self.variable.assign_add(wf.ones(()))

    def _read(self, out: list[wf.Tensor]) -> None:
        out.append(self.variable.read() + 0.0)

    def _note(self, out: list[wf.Tensor]) -> None:
        wf.debug_callback(lambda v: self.notes.append(float(v)), out[-1])

    def _branch(self, out: list[wf.Tensor]) -> None:
        def true() -> wf.Tensor:
            self.put(out[-1])
            return self.queue.dequeue() * 2.0

        out.append(wf.cond(out[0] > 1.0, true, lambda: out[-1] - 1.0))

    def _loop(self, out: list[wf.Tensor]) -> None:
        def body(i: wf.Tensor, v: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            self.put(v + 1.0)
            return i + 1, self.queue.dequeue() + v

        out.append(wf.while_loop(lambda i, v: i < 2, body, (0, out[-1]))[1])


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
@given(steps=_STEPS, x=st.sampled_from([0.25, 3.0]))
@examples(60)
def test_effects_are_in_the_order_of_the_program(device: str, steps: list[str], x: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_EMULATE_GPU", "1")
        _check_order(device, steps, x)


def _check_order(device: str, steps: list[str], x: float) -> None:
    eager, compiled = _Program(steps), _Program(steps)
    wanted = [float(t) for t in eager(wf.asarray(F32(x)))]
    run = wf.compile(compiled, device=device)
    got = [float(t) for t in run(F32(x))]
    assert got == wanted
    assert compiled.notes == eager.notes
    assert float(compiled.variable) == float(eager.variable)
    assert int(compiled.queue.size()) == int(eager.queue.size())
    left = int(eager.queue.size())
    rest = [[float(p.queue.dequeue()) for _ in range(left)] for p in (eager, compiled)]
    assert rest[0] == rest[1]


def test_each_call_does_its_effects_again() -> None:
    queue = _queue()

    @wf.compile
    def push(x: wf.Tensor) -> wf.Tensor:
        queue.enqueue(x)
        return x + 1.0

    assert [float(push(F32(k))) for k in range(5)] == [1, 2, 3, 4, 5]
    assert [float(queue.dequeue()) for _ in range(5)] == [0, 1, 2, 3, 4]


def test_an_error_of_the_host_ends_the_call_and_what_follows_is_not_done() -> None:
    queue, v = _queue(), wf.Variable(F32(1))
    queue.close()

    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        v.assign(x)
        y = queue.dequeue()
        v.assign(y)
        return y

    with pytest.raises(OutOfRangeError) as caught:
        f(F32(7))
    assert caught.value.locations[0].file == __file__
    assert float(v) == 7.0


def test_a_call_waits_for_another_thread() -> None:
    queue = _queue()
    take = wf.compile(lambda x: queue.dequeue() * x)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(float(take(F32(2)))))
    thread.start()
    queue.enqueue(F32(21))
    thread.join(20)
    assert found == [42.0]


def test_closing_a_queue_ends_a_wait_as_the_error_of_a_timeout_says() -> None:
    queue = _queue()
    with pytest.raises(InvalidArgumentError, match=r"(?s)outside of graphs and.*closing"):
        wf.compile(lambda: queue.dequeue(timeout=1))()
    take = wf.compile(lambda: queue.dequeue())
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(take)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        queue.close()
        with pytest.raises(OutOfRangeError, match="closed"):
            waiting.result(20)


def test_queues_tables_and_files(tmp_path: Any) -> None:
    table = wf.tf1.MutableHashTable(wf.string, wf.int64, -1)
    name = str(tmp_path / "text")

    @wf.compile
    def f(keys: wf.Tensor, values: wf.Tensor) -> Any:
        table.insert(keys, values)
        wf.tf1.write_file(name, wf.tf1.string_join([keys[0], "!"]))
        return table.lookup(keys[::-1]), wf.tf1.read_file(name), table.size()

    found, text, size = f(np.array(["a", "bc"]), np.array([3, 4]))
    np.testing.assert_array_equal(found.numpy(), [4, 3])
    assert text.numpy().item() == b"a!"
    assert int(size) == 2


def test_strings_go_in_and_out() -> None:
    join = wf.compile(lambda a, b: wf.tf1.string_join([a, b], "-"))
    got = join(np.array(["x", "yy"]), np.array(["1", "2"]))
    assert got.dtype is wf.string
    assert got.numpy().tolist() == [b"x-1", b"yy-2"]
    same = wf.compile(lambda a: a)(np.array(["x"]))
    assert same.numpy().tolist() == [b"x"]
    with pytest.raises(TypeRuleError, match=r"wf.asarray\('...'\)"):
        join("x", np.array(["1"]))


# -------------------------------------------------------------------------- sizes from values
_ROWS = st.lists(st.integers(-3, 3), max_size=20).map(lambda v: np.array(v, np.int64))


@given(rows=_ROWS)
@examples(40)
def test_sizes_that_depend_on_values(rows: np.ndarray[Any, Any]) -> None:
    @wf.compile
    def f(x: wf.Tensor) -> Any:
        kept = x[x > 0]
        places = wf.nonzero(x)[0]
        return kept, places, wf.unique_values(x), wf.sum(kept) + x.shape[0], kept * 2

    kept, places, values, total, doubled = (t.numpy() for t in f(rows))
    np.testing.assert_array_equal(kept, rows[rows > 0])
    np.testing.assert_array_equal(places, np.nonzero(rows)[0])
    np.testing.assert_array_equal(values, np.unique(rows))
    assert total == rows[rows > 0].sum() + len(rows)
    np.testing.assert_array_equal(doubled, rows[rows > 0] * 2)


def test_gradients_through_a_mask() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.grad(lambda t: wf.sum(t[t > 1.0] ** 2))(x)

    x = np.array([0.5, 2, 3, -1], F32)
    np.testing.assert_array_equal(f(x).numpy(), np.where(x > 1, 2 * x, 0))


def test_a_size_that_depends_on_values_in_a_training_step() -> None:
    w = wf.Variable(np.ones(3, F32))

    @wf.compile
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        def loss(w: wf.Tensor) -> wf.Tensor:
            valid = y == y  # rows without a label are NaN
            error = (wf.matmul(x, w) - y)[valid]
            return wf.mean(error**2)

        value, slope = wf.value_and_grad(loss)(w.read())
        w.assign_sub(0.1 * slope)
        return value

    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype(F32)
    y = x @ np.array([1, -2, 0.5], F32)
    y[::3] = np.nan
    losses = [float(step(x, y)) for _ in range(60)]
    assert losses[-1] < 1e-3 < losses[0]


def test_open_sizes_of_inputs_beside_sizes_from_values() -> None:
    @wf.compile(input_signature=[wf.TensorType(wf.float32, (None,))])
    def f(x: wf.Tensor) -> Any:
        return wf.unique_values(x), x * 2

    for n in (4, 6, 4, 0):
        x = np.arange(n, dtype=F32) // 2
        values, doubled = f(x)
        np.testing.assert_array_equal(values.numpy(), np.unique(x))
        np.testing.assert_array_equal(doubled.numpy(), x * 2)


def test_what_has_a_form_with_known_sizes_keeps_it() -> None:
    step = wf.compile(lambda x: x[np.array([True, False, True])] + wf.repeat(x, 2)[:2])
    assert "native" in str(step.cost(np.ones(3, F32))) or step.asm(np.ones(3, F32))
    tables = [wf.Variable(np.ones((4, 2), F32)) for _ in range(2)]
    look = wf.compile(lambda i: wf.nn.embedding_lookup([t.read() for t in tables], i))
    assert look.asm(np.array([0, 5]))  # one native plan


# ------------------------------------------------------------------------------------ the edges
def test_results_never_share_memory_with_arguments() -> None:
    queue = _queue(shape=(2,))

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        queue.enqueue(x)
        return x, wf.reshape(x, (2, 1)), queue.dequeue()

    x = np.array([1, 2], F32)
    same, view, taken = f(x)
    x[:] = 9
    assert same.numpy().tolist() == taken.numpy().tolist() == [1, 2]
    assert view.numpy().tolist() == [[1], [2]]


def test_arguments_that_are_not_contiguous() -> None:
    queue = _queue(shape=(3, 2))

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        queue.enqueue(x)
        return queue.dequeue() * 2.0

    x = np.arange(6, dtype=F32).reshape(2, 3).T
    np.testing.assert_array_equal(f(x).numpy(), x * 2)
    np.testing.assert_array_equal(f(x[::-1]).numpy(), x[::-1] * 2)


def test_explain_says_why_and_what_it_costs() -> None:
    queue = _queue()

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        queue.enqueue(x)
        return queue.dequeue() * 2.0

    text = f.explain(F32(1))
    assert "runs on the dataflow executor: op 'enqueue' at " in text
    assert "2 ops of the host, which hold the GIL, and 1 native regions" in text
    assert "without such ops it would be one native call" in text
    assert "the dataflow executor: " in f.summary(F32(1))
    assert "program_order" in repr(f.view(F32(1)).document.passes)
    assert "after(" in f.ir(F32(1), after="program_order")
    for what in ("asm", "llvm", "cost", "kernels"):
        with pytest.raises(UnsupportedError, match=r"op 'enqueue' at .* dataflow executor"):
            getattr(f, what)(F32(1))
    with pytest.raises(UnsupportedError, match="cannot be done for a look only"):
        f.values(F32(1))
    wf.Graph.from_text(str(f.trace(F32(1))))


def test_what_stays_refused_says_so() -> None:
    queue = _queue()

    def push(x: wf.Tensor) -> wf.Tensor:
        queue.enqueue(x)
        return x

    with pytest.raises(UnsupportedError, match="make a new object each time that it is traced"):
        wf.compile(lambda x: (_queue(), x)[1])(F32(1))
    with pytest.raises(UnsupportedError, match="vmap: op 'enqueue' acts outside the graph"):
        wf.compile(wf.vmap(push))(np.ones(3, F32))


# ------------------------------------------------------------------------------ donated arguments
_SIZE = 1 << 16  # large enough for its memory to count


def _given(value: float = 1.0, size: int = _SIZE) -> wf.Tensor:
    return wf.asarray(np.full(size, value, F32), copy=True)


def test_a_result_takes_the_memory_of_an_argument() -> None:
    queue = _queue(shape=(_SIZE,))

    @wf.compile(donate="params")
    def step(params: wf.Tensor, x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        queue.enqueue(x * params)
        gradient = params * 0.5 + queue.dequeue()
        return params - 0.5 * gradient, wf.sum(gradient)

    params, x = _given(), np.ones(_SIZE, F32)
    address, wanted = params.__array_interface__["data"][0], F32(1)
    for _ in range(4):
        before = params
        params, total = step(params, x)
        gradient = wanted * F32(0.5) + wanted
        wanted = wanted - F32(0.5) * gradient
        np.testing.assert_array_equal(params, np.full(_SIZE, wanted))
        np.testing.assert_allclose(total, gradient * _SIZE, rtol=1e-5)
        assert params.__array_interface__["data"][0] == address
        with pytest.raises(FailedPreconditionError, match="was donated to 'step'"):
            before + 1.0
    text = step.explain(_given(), x)
    assert "the memory of the donated argument 'params' holds a result when it ends" in text
    with pytest.raises(TypeRuleError, match="but got a ndarray"):
        step(np.ones(_SIZE, F32), x)
    seen = _given()
    view = np.asarray(seen)
    with pytest.raises(InvalidArgumentError, match="is seen by an array"):
        step(seen, x)
    assert view[0] == 1


_LAST = st.lists(
    st.sampled_from(["put", "take", "mask", "add", "variable", "branch", "pass", "both"]),
    max_size=6,
)


@examples(25)
@given(_LAST, st.sampled_from([3, _SIZE]))
def test_donation_changes_no_bit(steps: list[str], size: int) -> None:
    """Whatever reads the arguments, and in which order."""

    def program(queue: Any, variable: wf.Variable) -> Any:
        def f(a: wf.Tensor, b: wf.Tensor) -> tuple[wf.Tensor, ...]:
            y, z, more = a * 2.0, b + a, [wf.unique_values(b)]  # so that it is not native
            for step in steps:
                if step == "put":
                    queue.enqueue(a if len(more) % 2 else y)
                elif step == "take":
                    queue.enqueue(z)
                    z = z + queue.dequeue()
                elif step == "mask":
                    more.append(wf.sum(b[b > 1.0]))
                elif step == "add":
                    y = y * b + z
                elif step == "variable":
                    variable.assign_add(a)
                    z = z - variable
                elif step == "branch":
                    z = wf.cond(wf.sum(b[b > 1.0]) > 0, lambda z=z: z + a, lambda z=z: z - b)
                elif step == "pass":
                    same = wf.cond(wf.sum(b[b > 0.4]) > 0, lambda: a, lambda: queue.dequeue())
                    y = a + wf.flip(same)
                    more.append(same)
                else:
                    queue.enqueue(y)
                    more.append(y)
            return (y, z, *more)

        return f

    makers = []
    for donate in ((), ("a", "b")):
        queue, variable = _queue(shape=(size,)), wf.Variable(np.ones(size, F32))
        for k in range(12):  # six steps of two calls may take one each
            queue.enqueue(np.full(size, 7 + k, F32))
        makers.append((wf.compile(program(queue, variable), donate=donate), queue, variable))
    for i in range(3):
        found = []
        for compiled, queue, variable in makers:
            made = compiled(_given(1.5 + i, size), _given(0.25 * i, size))
            there = [np.asarray(e) for e in queue.state_dict()["components"][0]]
            found.append([*map(np.asarray, made), variable.numpy(), *there])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("taken", [True, False])
def test_what_a_branch_passes_on_is_not_written_over(taken: bool) -> None:
    queue = _queue(shape=(_SIZE,))
    queue.enqueue(np.full(_SIZE, 7, F32))

    @wf.compile(donate="x")
    def step(p: wf.Tensor, x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        y = wf.cond(p, lambda: x, queue.dequeue)
        return x + wf.flip(y), y

    x = np.arange(_SIZE, dtype=F32)
    same = x if taken else np.full(_SIZE, 7, F32)
    sums, passed = step(np.array(taken), wf.asarray(x, copy=True))
    np.testing.assert_array_equal(passed, same)
    np.testing.assert_array_equal(sums, x + same[::-1])


def test_what_a_loop_passes_on_is_not_written_over() -> None:
    queue = _queue(shape=(_SIZE,))

    @wf.compile(donate="x")
    def step(n: wf.Tensor, x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        def body(i: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            queue.enqueue(y)
            return i + 1, y

        i, y = wf.while_loop(lambda i, y: i < n, body, (wf.asarray(0), x))
        return x + wf.flip(y) + wf.cast(i, wf.float32), y

    x = np.arange(_SIZE, dtype=F32)
    sums, passed = step(2, wf.asarray(x, copy=True))
    np.testing.assert_array_equal(passed, x)
    np.testing.assert_array_equal(sums, x + x[::-1] + F32(2))
    for _ in range(2):
        np.testing.assert_array_equal(queue.dequeue(), x)


def test_what_no_result_can_take_goes_back() -> None:
    queue = _queue(shape=(_SIZE,))

    @wf.compile(donate=("a", "b"))
    def shared(a: wf.Tensor, b: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        y = a * 2.0
        queue.enqueue(y)  # so the queue may have it, too
        queue.enqueue(b)
        return y, wf.sum(b)

    a, b = _given(), _given(3.0)
    address = a.__array_interface__["data"][0]
    y, total = shared(a, b)
    assert float(total) == 3 * _SIZE
    assert y.__array_interface__["data"][0] != address
    np.testing.assert_array_equal(queue.dequeue(), y)
    np.testing.assert_array_equal(queue.dequeue(), np.full(_SIZE, 3.0))
    for gone in (a, b):
        with pytest.raises(FailedPreconditionError, match="was donated to 'shared'"):
            gone + 1.0
    text = shared.explain(_given(), _given())
    assert text.count("goes back when it ends") == 2


def test_a_function_in_another_one() -> None:
    queue = _queue()

    @wf.compile
    def push(x: wf.Tensor) -> wf.Tensor:
        queue.enqueue(x)
        return queue.dequeue() + 1.0

    outer = wf.compile(lambda x: push(x) * 2.0)
    assert float(outer(F32(1))) == 4.0


def test_many_threads_call_at_once() -> None:
    queue, v = _queue(10_000), wf.Variable(np.zeros(4, F32))

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        queue.enqueue(x)
        return wf.sum(v.read() + x)

    def work(k: int) -> None:
        for i in range(20):
            assert float(f(F32(k * 20 + i))) == 4.0 * (k * 20 + i)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(float(queue.dequeue()) for _ in range(80)) == list(range(80))


def test_calls_are_watched_and_replayed(tmp_path: Any) -> None:
    queue = _queue()

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        queue.enqueue(x * 2.0)
        return wf.log(queue.dequeue())

    with wf.record(str(tmp_path), steps=10) as files:
        assert float(f(F32(0.5))) == 0.0
    assert not wf.replay(files[0]).differences("recorded")


def test_nan_checks_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = _queue()
    monkeypatch.setenv("WEFT_CHECK", "nan")

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        queue.enqueue(x - 1.0)
        return wf.log(queue.dequeue())

    with pytest.raises(InvalidArgumentError, match="op 'log'"):
        f(F32(0.5))
    assert int(queue.size()) == 0  # nothing is done twice
