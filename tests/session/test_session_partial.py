"""`Session.partial_run`: one step in several calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
)


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


def _three() -> tuple[Any, Any, Any]:
    return tuple(wf.placeholder(wf.float32, [], name=n) for n in "abc")  # type: ignore[return-value]


def test_a_step_in_two_calls(graph: Any) -> None:
    a, b, c = _three()
    first = a + b
    second = first * c
    session = wf.Session()
    for _ in range(3):
        handle = session.partial_run_setup([first, second], [a, b, c])
        value = session.partial_run(handle, first, {a: 1, b: 2})
        assert isinstance(value, np.float32)
        assert value == 3
        assert session.partial_run(handle, {"x": [second]}, {c: value}) == {"x": [9]}
    assert session.cache_info().made == 2  # one step definition for each part


def test_feeds_may_come_before_they_are_needed(graph: Any) -> None:
    a, b, c = _three()
    out = a * b + c
    session = wf.Session()
    handle = session.partial_run_setup(out, ["a", b, c])
    assert session.partial_run(handle, [], {a: 2}) == []
    assert session.partial_run(handle, [], {"b": 3}) == []
    assert session.partial_run(handle, out, {c: 4}) == 10


def test_errors_change_nothing(graph: Any) -> None:
    a, b, c = _three()
    first, second, other = a + b, (a + b) * c, a - b
    session = wf.Session()
    handle = session.partial_run_setup([first, second], [a, b, c])

    def refuses(match: str, *call: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=match) as caught:
            session.partial_run(handle, *call)
        assert "test_session_partial.py" in str(caught.value)

    refuses(r"also needs 'b'|also needs .*b", first, {a: 1})
    refuses("is not among the fetches set up", other, {a: 1})
    refuses("is not among the feeds set up", first, {a: 1, first: 2})
    assert session.partial_run(handle, first, {a: 1, b: 2}) == 3
    refuses("was fed already", second, {a: 1, c: 2})
    refuses("was fetched already", first)
    refuses("also needs", second)
    assert session.partial_run(handle, second, {c: 3}) == 9
    refuses("there is no partial run", second)
    handle = "zz"
    refuses("there is no partial run 'zz'", first)


def test_setup_errors(graph: Any) -> None:
    a, _, c = _three()
    session = wf.Session()
    with pytest.raises(InvalidArgumentError, match="nothing to fetch"):
        session.partial_run_setup([], [a])
    with pytest.raises(InvalidArgumentError, match="named twice"):
        session.partial_run_setup([a + c], [a, "a"])
    total = a + c
    handle = session.partial_run_setup(total, [a])
    with pytest.raises(InvalidArgumentError, match=r"the placeholder 'c'.* must be fed"):
        session.partial_run(handle, total, {a: 1})


def test_what_is_no_list_of_feeds(graph: Any) -> None:
    a, b, _ = _three()
    total = a + b
    session = wf.Session()
    for feeds in (a, "a", 3):
        with pytest.raises(TypeRuleError, match="not a list of tensors"):
            session.partial_run_setup(total, feeds)  # type: ignore[arg-type]
    handle = session.partial_run_setup(total, {a: 1, b: 2}.keys())  # type: ignore[arg-type]
    with pytest.raises(TypeRuleError, match="feed_dict is a list, not a dict"):
        session.partial_run(handle, total, [1, 2])  # type: ignore[arg-type]
    assert session.partial_run(handle, total, {a: 1, b: 2}) == 3


def test_one_call_may_fetch_a_value_twice(graph: Any) -> None:
    a, b, _ = _three()
    total = a + b
    session = wf.Session()
    handle = session.partial_run_setup([total, total, a], [a, b])
    assert session.partial_run(handle, [total, total], {a: 1, b: 2}) == [3, 3]
    assert session.partial_run(handle, a) == 1
    with pytest.raises(InvalidArgumentError, match="there is no partial run"):
        session.partial_run(handle, a)


def test_a_run_is_forgotten_with_its_handle(graph: Any) -> None:
    a, b, c = _three()
    first, second = a + b, (a + b) * c
    session = wf.Session()
    for _ in range(20):
        handle = session.partial_run_setup([first, second], [a, b, c])
        session.partial_run(handle, first, {a: 1, b: 2})
    assert list(session._partial._runs) == [handle]
    assert session.partial_run(handle, second, {c: 3}) == 9
    assert not session._partial._runs


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_a_host_function_does_not_go_on_with_its_own_step(graph: Any, mode: str) -> None:
    a, b, _ = _three()
    double = b * 2
    inner: list[Any] = []

    def go_on(x: Any) -> Any:
        with pytest.raises(FailedPreconditionError, match="of which a part is running"):
            session.partial_run(handle, double, {b: 1})
        other = session.partial_run_setup(double, [b])
        inner.append(session.partial_run(other, double, {b: 4}))
        return x

    called = wf.py_function(go_on, [a], wf.float32, shapes=[])
    session = wf.Session(control_flow=mode)
    handle = session.partial_run_setup([called, double], [a, b])
    assert session.partial_run(handle, called, {a: 1}) == 1
    assert inner == [8]
    assert session.partial_run(handle, double, {b: 3}) == 6


def test_closing_ends_partial_runs(graph: Any) -> None:
    a, b, _ = _three()
    out = a + b
    session = wf.Session()
    handle = session.partial_run_setup(out, [a, b])
    session.close()
    with pytest.raises(FailedPreconditionError, match="session is closed"):
        session.partial_run(handle, out, {a: 1, b: 2})
    with pytest.raises(FailedPreconditionError, match="session is closed"):
        session.partial_run_setup(out, [a, b])


def test_closing_wakes_a_part_that_waits(graph: Any) -> None:
    q = wf.FIFOQueue(3, wf.float32, [[]])
    taken = q.dequeue()
    session = wf.Session()
    handle = session.partial_run_setup([taken, taken * 2])
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            session.partial_run(handle, taken)
        except CancelledError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    session.close()
    thread.join(5)
    assert len(raised) == 1
    assert q._queue.size() == 0


def test_effects_happen_once(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [2], name="x")
    y = wf.placeholder(wf.float32, [2], name="y")
    v = wf.Variable(np.zeros(2, np.float32), name="v")
    new = v.assign_add(x)
    with wf.control_dependencies([new]):
        count = wf.group(name="after")
    out = new * y
    session = wf.Session()
    session.run(wf.global_variables_initializer())
    handle = session.partial_run_setup([new, out, count], [x, y])
    assert session.partial_run(handle, new, {x: [1, 2]}).tolist() == [1, 2]
    session.run(v.assign([100.0, 100.0]))  # what was fetched stays what it is
    assert session.partial_run(handle, [out, count], {y: [3, 3]})[0].tolist() == [3, 6]
    assert v.numpy().tolist() == [100, 100]


def test_python_functions_run_once_and_their_values_cross(graph: Any) -> None:
    called: list[float] = []

    def note(x: Any) -> Any:
        called.append(float(x))
        return x * 2

    a, b, c = _three()
    noted = wf.py_function(note, [a], wf.float32, shapes=[])
    first, second, third = noted + b, noted * c, noted - 1
    session = wf.Session()
    handle = session.partial_run_setup([first, second, third], [a, b, c])
    assert session.partial_run(handle, first, {a: 5, b: 1}) == 11
    assert session.partial_run(handle, second, {c: 3}) == 30
    assert session.partial_run(handle, third) == 9
    assert called == [5]


def test_queue_elements_are_taken_once(graph: Any) -> None:
    q = wf.FIFOQueue(10, [wf.float32, wf.int32], [[2], []])
    x, number = q.dequeue()
    scale = wf.placeholder(wf.float32, [], name="scale")
    out = x * scale
    with wf.Session() as session:
        session.run(q.enqueue_many([np.ones((3, 2), np.float32), np.arange(3, dtype=np.int32)]))
        handle = session.partial_run_setup([number, out], [scale])
        assert session.partial_run(handle, number) == 0
        assert session.run(q.size()) == 2
        assert session.partial_run(handle, out, {scale: 4}).tolist() == [4, 4]
        assert session.run(q.size()) == 2
        empty = wf.FIFOQueue(1, wf.int32, [[]]).dequeue()
        handle = session.partial_run_setup([empty, out], [scale])
        with pytest.raises(DeadlineExceededError):
            session.partial_run(handle, empty, options=wf.RunOptions(timeout=0.02))
        with pytest.raises(InvalidArgumentError, match="there is no partial run"):
            session.partial_run(handle, out, {scale: 1})  # a step that failed is over


def test_a_loop_that_spans_parts_and_unknown_sizes(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None], name="x")
    n = wf.placeholder(wf.int32, [], name="n")
    double = wf.concat([x, x])
    first = wf.sum(double)
    out = wf.fori_loop(0, n, lambda i, a: a + double, double) * wf.ones((x.shape[0] * 2,))
    for mode in ("auto", "dataflow"):
        session = wf.Session(control_flow=mode)
        handle = session.partial_run_setup([first, out], [x, n])
        assert session.partial_run(handle, first, {x: [1, 2, 3]}) == 12
        assert session.partial_run(handle, out, {n: 2}).tolist() == [3, 6, 9, 3, 6, 9]


def test_arrays_belong_to_the_user_between_calls(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [3], name="x")
    c = wf.placeholder(wf.float32, [], name="c")
    y = x + 1
    out, late = y * c, x * c
    for mode in ("auto", "dataflow"):
        session = wf.Session(control_flow=mode)
        handle = session.partial_run_setup([y, x, out, late], [x, c])
        fed = np.ones(3, np.float32)
        first, same = session.partial_run(handle, [y, x], {x: fed})
        assert same.tolist() == [1, 1, 1]
        first[:] = same[:] = fed[:] = 100
        assert session.partial_run(handle, out, {c: 3}).tolist() == [6, 6, 6]
        assert session.partial_run(handle, late).tolist() == [3, 3, 3]


def test_sizes_that_depend_on_values_cross(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None], name="x")
    c = wf.placeholder(wf.float32, [], name="c")
    (where,) = wf.nonzero(x > 0)
    picked = wf.take(x, where)
    out = picked * c + wf.ones((picked.shape[0],))
    session = wf.Session()
    handle = session.partial_run_setup([picked, out, where], [x, c])
    assert session.partial_run(handle, picked, {x: [1, -2, 3]}).tolist() == [1, 3]
    assert session.partial_run(handle, out, {c: 2}).tolist() == [3, 7]
    assert session.partial_run(handle, where).tolist() == [0, 2]


def test_what_makes_a_size_is_not_done_again(graph: Any) -> None:
    q = wf.FIFOQueue(9, wf.float32, [[]], name="q")
    c = wf.placeholder(wf.float32, [], name="c")
    taken = q.dequeue_up_to(4)
    total = wf.sum(taken)
    out = wf.ones((taken.shape[0],)) * c  # needs the size alone
    session = wf.Session()
    session.run(q.enqueue_many([[1.0, 2.0, 3.0]]))
    session.run(q.close())
    handle = session.partial_run_setup([total, out], [c])
    assert session.partial_run(handle, total) == 6
    assert session.partial_run(handle, out, {c: 5}).tolist() == [5, 5, 5]


def test_branches_with_effects(graph: Any) -> None:
    a, b, _ = _three()
    q = wf.FIFOQueue(9, wf.float32, [[]], name="q")
    flag = wf.placeholder(wf.bool_, [], name="flag")
    put = wf.cond(flag, lambda: q.enqueue(a), wf.no_op)
    first = wf.while_loop(lambda i: i < 3.0, lambda i: i + q.dequeue(), 0.0)
    second = first * b
    session = wf.Session()
    session.run(q.enqueue_many([[1.0] * 5]))
    handle = session.partial_run_setup([put, first, second], [a, b, flag])
    assert session.partial_run(handle, first) == 3
    assert session.run(q.size()) == 2
    assert session.partial_run(handle, [put], {a: 7, flag: True}) == [None]
    assert session.run(q.size()) == 3
    assert session.partial_run(handle, second, {b: 2}) == 6
    assert session.run(q.size()) == 3


def test_dead_values_do_not_cross(graph: Any) -> None:
    a, b, c = _three()
    flag = wf.placeholder(wf.bool_, [], name="flag")
    no, yes = wf.switch(a * 2, flag)
    low, high = no + 1, yes + 100
    merged = wf.merge([low, high])[0]
    out = merged * c
    late = wf.merge([low * b, high * b])[0]
    session = wf.Session()
    for value, expected in ((False, 3.0), (True, 102.0)):
        handle = session.partial_run_setup([merged, out, late], [a, flag, b, c])
        assert session.partial_run(handle, merged, {a: 1, flag: value}) == expected
        assert session.partial_run(handle, out, {c: 2}) == 2 * expected
        assert session.partial_run(handle, late, {b: 3}) == 3 * expected


def test_an_effect_that_may_be_dead_does_not_run_twice(graph: Any) -> None:
    a, b, _ = _three()
    flag = wf.placeholder(wf.bool_, [], name="flag")
    no, yes = wf.switch(a, flag)
    high = wf.py_function(lambda x: x, [yes], wf.float32, shapes=[])
    merged = wf.merge([no, high])[0]
    late = wf.merge([no, high * b])[0]
    session = wf.Session()
    handle = session.partial_run_setup([merged, late], [a, flag, b])
    with pytest.raises(UnsupportedError, match=r"'py_function'.* may be dead"):
        session.partial_run(handle, merged, {a: 1, flag: True})
    assert session.partial_run(handle, [merged, late], {a: 1, flag: True, b: 2}) == [1, 2]


def test_many_threads_each_with_a_run(graph: Any) -> None:
    a, b, c = _three()
    first = a + b
    second = first * c
    session = wf.Session()
    wrong: list[object] = []

    def work(i: int) -> None:
        for k in range(20):
            handle = session.partial_run_setup([first, second], [a, b, c])
            one = session.partial_run(handle, first, {a: i, b: k})
            two = session.partial_run(handle, second, {c: 2})
            if (one, two) != (i + k, 2 * (i + k)):
                wrong.append((i, k, one, two))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert not wrong


@examples(120, deadline=None)
@given(st.data())
def test_any_split_gives_what_one_run_gives(data: st.DataObject) -> None:
    with wf.Graph().as_default():
        feeds = [wf.placeholder(wf.float64, [3]) for _ in range(4)]
        nodes: list[Any] = list(feeds)
        counter = wf.Variable(np.zeros(3), name="counter")
        start = wf.global_variables_initializer()
        for _ in range(data.draw(st.integers(3, 12))):
            i = data.draw(st.integers(0, len(nodes) - 1))
            k = data.draw(st.integers(0, len(nodes) - 1))
            nodes.append(nodes[i] + 0.5 * nodes[k])
        total = counter.assign_add(nodes[data.draw(st.integers(0, 3))])
        nodes.append(total + nodes[-1])
        fetches = data.draw(
            st.lists(st.sampled_from(nodes[4:]), min_size=1, max_size=5, unique_by=id)
        )
        session = wf.Session()
        values = {f: np.arange(3.0) + 10 * i for i, f in enumerate(feeds)}
        session.run(start)
        whole = session.run(fetches, values)
        counted = counter.numpy()
        session.run(start)
        handle = session.partial_run_setup(fetches, feeds)
        order = data.draw(st.permutations(feeds))
        found: dict[int, Any] = {}
        for feed in order:
            session.partial_run(handle, [], {feed: values[feed]})
            for i, fetch in enumerate(fetches):
                if i in found:
                    continue
                try:
                    found[i] = session.partial_run(handle, fetch)
                except InvalidArgumentError as error:
                    assert "also needs" in str(error)  # noqa: PT017
        assert [found[i].tobytes() for i in range(len(fetches))] == [w.tobytes() for w in whole]
        assert counter.numpy().tobytes() == counted.tobytes()
