"""Variables: eager updates, effects in compiled functions, creation, and what is refused."""

from __future__ import annotations

import copy
import gc
import pickle  # noqa: TID251  # what users do to variables
import re
import weakref
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
)

Point = namedtuple("Point", "x y")


def test_variable_dtypes_and_eager_updates() -> None:
    v = wf.Variable([1.0, 2.0], name="v")
    assert (v.dtype, v.shape, v.ndim, v.size, v.trainable) == (wf.float32, (2,), 1, 2, True)
    assert wf.Variable(3).dtype is wf.int64
    assert wf.Variable(0.5).dtype is wf.float32
    assert wf.Variable(0, dtype=wf.float32).dtype is wf.float32
    assert wf.Variable(lambda: [1.0]).shape == (1,)
    assert v.assign_add(1.0).tolist() == [2, 3]
    assert v.assign_sub([1.0, 1.0]).tolist() == [1, 2]
    assert v.assign(np.array([5, 6], np.float32)).tolist() == [5, 6]
    assert (v * 2).tolist() == [10, 12]
    assert v[1].item() == 6
    assert_array_equal(np.asarray(v), [5, 6])
    assert np.sum(v) == 11
    assert isinstance(np.ones(2, np.float32) + v, Tensor)
    assert repr(v) == "<Variable 'v' f32[2]: [5., 6.]>"


def test_a_variable_copies_what_it_is_given() -> None:
    start = np.zeros(2, np.float32)
    v, w = wf.Variable(start), wf.Variable(start)
    v.assign_add(1.0)
    assert w.numpy().tolist() == [0, 0]
    assert start.tolist() == [0, 0]
    v.numpy()[0] = 9
    assert v.numpy().tolist() == [1, 1]


def test_scatter_updates() -> None:
    v = wf.Variable(np.zeros((3, 2), np.float32))
    v.scatter_add([0, 0, 2], np.ones((3, 2), np.float32))
    assert v.numpy().tolist() == [[2, 2], [0, 0], [1, 1]]
    v.scatter_sub([2], np.ones((1, 2), np.float32))
    v.scatter_update([1], np.full((1, 2), 7, np.float32))
    assert v.numpy().tolist() == [[2, 2], [7, 7], [0, 0]]


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (np.zeros(2), TypeRuleError, "float64 value does not fit variable 'v' \\(float32\\)"),
        (
            np.zeros(3, np.float32),
            ShapeError,
            r"shape \[3\] does not fit variable 'v' \(f32\[2\]\)",
        ),
        (1.0, ShapeError, r"shape \[\] does not fit"),
    ],
)
def test_assignments_that_do_not_fit(value: Any, error: type[Exception], match: str) -> None:
    v = wf.Variable([1.0, 2.0], name="v")
    with pytest.raises(error, match=match):
        v.assign(value)
    with pytest.raises(error, match=match):
        wf.compile(lambda: v.assign(value))()
    assert v.numpy().tolist() == [1, 2]


def test_in_place_operators_on_variables_are_refused() -> None:
    v = wf.Variable([1.0])
    with pytest.raises(UnsupportedError, match=r"use variable\.assign_add"):
        v += 1.0


def test_effects_follow_program_order_in_a_function() -> None:
    v = wf.Variable(1.0)

    @wf.compile
    def f(x: Any) -> Any:
        first = v * 1.0
        v.assign(x)
        second = v + 0.0
        v.assign_add(v)
        return first, second, v

    assert [float(t) for t in f(np.float32(10))] == [1, 10, 20]
    assert [float(t) for t in f(np.float32(3))] == [20, 3, 6]
    assert float(v) == 6


def test_variables_of_one_name_stay_apart() -> None:
    a, b = wf.Variable(1.0, name="w"), wf.Variable(2.0, name="w")
    f = wf.compile(lambda: (a.assign_add(10.0), b.assign_add(20.0)))
    f()
    assert (float(a), float(b)) == (11, 22)


def test_variables_created_by_the_first_trace() -> None:
    class Counter:
        count: Any = None

        @wf.compile
        def bump(self, x: Any) -> Any:
            if self.count is None:
                self.count = wf.Variable(wf.zeros((), dtype=wf.float32))
            return self.count.assign_add(wf.sum(x))

    c = Counter()
    assert float(c.bump(np.ones(2, np.float32))) == 2
    assert float(c.bump(np.ones(3, np.float32))) == 5  # another shape: traced again
    assert float(c.count) == 5


def test_variables_created_by_every_trace_are_refused() -> None:
    f = wf.compile(lambda x: wf.Variable(1.0, name="w") * x)
    assert f(np.ones(1, np.float32)).tolist() == [1]
    with pytest.raises(UnsupportedError, match="variable 'w' is created again"):
        f(np.ones(2, np.float32))


def test_an_initial_value_that_depends_on_inputs_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="depends on the inputs"):
        wf.compile(lambda x: wf.Variable(x) + 1)(np.ones(1))


def test_reading_an_uninitialised_variable() -> None:
    with wf.Graph().as_default():
        v = wf.Variable([1.0], name="late")
    with pytest.raises(FailedPreconditionError, match="'late' is not initialised"):
        v.read()


def test_nothing_keeps_a_dropped_function_alive() -> None:
    f = wf.compile(lambda x: x + 1)
    f(np.ones(2))
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None


def test_reading_the_second_of_two_uninitialised_variables_of_one_name() -> None:
    ready = wf.Variable([1.0], name="w")
    with wf.Graph().as_default():
        late = wf.Variable([1.0], name="w")
    f = wf.compile(lambda: (ready.assign([5.0]), late * 1.0))
    with pytest.raises(FailedPreconditionError, match="'w' is not initialised"):
        f()
    late.assign([2.0])
    assert [t.tolist() for t in f()] == [[5], [2]]


def test_a_copy_is_a_variable_of_its_own() -> None:
    v = wf.Variable([1.0, 2.0], trainable=False, name="w")
    copies = [copy.deepcopy(v), copy.copy(v), copy.deepcopy(copy.deepcopy(v))]
    v.assign_add(1.0)
    for c in copies:
        assert c.numpy().tolist() == [1, 2]
        assert (c.dtype, c.trainable) == (wf.float32, False)
        assert c.name == c.state.name
    names = {v.name, *(c.name for c in copies)}
    assert len(names) == 4
    assert all(re.fullmatch(r"w(_copy_\d+)?", name) for name in names)
    both = copy.deepcopy([v, v])
    assert both[0] is both[1]
    state = copy.deepcopy(v.state)
    state.write(np.zeros(2, np.float32))
    assert (v.numpy().tolist(), state.read().tolist()) == ([2, 3], [0, 0])


@pytest.mark.parametrize("dtype", [wf.float32, wf.bfloat16, wf.int8, wf.complex64])
def test_pickled_variables(dtype: Any) -> None:
    v = wf.Variable([1, 2], dtype=dtype, trainable=False, name="w")
    p = pickle.loads(pickle.dumps(v))
    assert (p.name, p.dtype, p.trainable) == ("w", dtype, False)
    assert_array_equal(p.numpy(), v.numpy())
    p.assign_add(wf.ones(2, dtype=dtype))
    assert v.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_model_trains_as_the_original(again: Any) -> None:
    first = Model()
    first.step(2.0)
    second = again(first)
    assert second.tied is second.w
    assert [float(m.step(2.0)) for m in (first, first)] == [
        float(m.step(2.0)) for m in (second, second)
    ]


class Model:
    def __init__(self) -> None:
        self.w = self.tied = wf.Variable([1.0])
        self.optimizer = wf.train.AdamOptimizer(0.1)

    @wf.compile
    def step(self, x: Any) -> Any:
        loss = wf.sum(self.w * x)
        self.optimizer.minimize(loss)
        return loss


def test_copies_in_graphs_and_traces() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        v = wf.Variable(wf.ones([2]), name="w")
        with pytest.raises(UnsupportedError, match="cannot be pickled before it is initialised"):
            pickle.dumps(v)
        c = copy.deepcopy(v)
        session.run(wf.global_variables_initializer())
        session.run(v.assign_add([1.0, 1.0]))
        assert session.run([v, c])[1].tolist() == [1, 1]
        assert pickle.loads(pickle.dumps(v)).numpy().tolist() == [2, 2]
    with pytest.raises(UnsupportedError, match="'w' is copied while 'lambda' is traced"):
        wf.compile(lambda: copy.deepcopy(v) + 1)()
