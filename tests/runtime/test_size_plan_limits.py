"""Plans for many sizes where things go wrong: memory that is not there, variables without a value,
numbers that do not fit; and what such plans must not cost."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.compile.specializations import RecompileWarning
from weft.ir.size_tape import Tape
from weft.ir.sizes import hint, new_size, terms_of


def plans_of(session: wf.Session) -> list[Any]:
    return [plans for plans, _ in session._sized._known.values()]


def filled_by(session: wf.Session) -> list[Any]:
    return [plan for plans in plans_of(session) for plan in plans._plans]


def test_no_memory_is_told_of_the_sizes_that_came() -> None:
    """Of the arena, and of the results."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 1])
        wide = wf.tile(x, [1, 1 << 44])
        session = wf.Session()
        for wanted, more in ((wide, 0), (wf.sum(wf.sort(wide + 1, axis=0)), 1)):
            for n in (3, 2, 5, 6):
                needed = f"{n * (4 << 44) * (1 + more):,}"[:9]
                with pytest.raises(wf.errors.ResourceExhaustedError, match=f"needs {needed}"):
                    session.run(wanted, {x: np.ones((n, 1))})
        assert len(filled_by(session)) >= 2


def test_a_plan_made_for_large_sizes_takes_no_memory_for_small_ones() -> None:
    with wf.Graph().as_default():
        x, y = (wf.placeholder(wf.float32, [None, 1]) for _ in range(2))
        out = wf.sum(wf.sort(x @ wf.transpose(y, (1, 0)), axis=0))
        session = wf.Session()
        for n in (1 << 20, 1 << 19):
            with pytest.raises(wf.errors.ResourceExhaustedError):
                session.run(out, {x: np.ones((n, 1)), y: np.ones((n + 64, 1))})
        (plan,) = filled_by(session)
        assert plan._made.plan.arena_bytes == 0
        assert len(plan._new_activation([]).arena) < 1 << 26  # what threads need by themselves
        session.close()


def test_a_variable_without_a_value() -> None:
    with wf.Graph().as_default():
        x, v = wf.placeholder(wf.float32, [None, 4]), wf.Variable(np.ones((4, 4), np.float32))
        out = wf.tanh(x @ v)
        with wf.Session() as session:
            for n in (3, 4, 5, 6):
                with pytest.raises(wf.errors.FailedPreconditionError, match="'variable' is not"):
                    session.run(out, {x: np.ones((n, 4))})
            session.run(wf.global_variables_initializer())
            assert session.run(out, {x: np.ones((7, 4))}).shape == (7, 4)
        assert filled_by(session)


@pytest.mark.parametrize("power", [4, 2])
def test_numbers_that_do_not_fit_have_no_plan(power: int) -> None:
    """A sum that would wrap, and a monomial that is no int64."""
    tape = Tape()
    n: Any = new_size(tape, 3)
    sizes = tape.sizes([terms_of(n**power * 10000)])
    small = sizes.evaluate([100])
    assert small is not None
    assert small.tolist() == [100**power * 10000]
    for given in (8192, 1 << 16, 1 << 25, 1 << 39):
        found = sizes.evaluate([given])
        assert found is None or found.tolist() == [given**power * 10000]
    assert sizes.evaluate([1 << 39]) is None


def test_a_size_is_known_without_what_has_it() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 64])
        rows = wf.shape(wf.sort(x @ wf.transpose(x, (1, 0)), axis=0))[0] * 2
        with wf.Session() as session:
            for n in (5, 6, 7, 8):
                assert session.run(rows, {x: np.ones((n, 64))}) == 2 * n
            (plan,) = filled_by(session)
        kernels = "".join(plan._made.plan.table.kernels)
        assert "sort" not in kernels
        assert "gemm" not in kernels


def test_sizes_that_leave_nothing_open_are_not_in_vain() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 3])
        out = x * 2
        with wf.Session() as session:
            for n in (5, 1, 0, 1, 0):
                assert session.run(out, {x: np.ones((n, 3))}).shape == (n, 3)
            (plans,) = plans_of(session)
            assert (plans.made, plans._in_vain) == (0, 0)


def test_equal_prices_do_not_tell_sizes_apart() -> None:
    """The work of `where` costs what its bytes cost: rounded differently, the same whatever n."""
    tape = Tape()
    n: Any = new_size(tape, 7)
    price, other = n * 36 * 0.1, 36 * (n * 0.1)
    assert price.terms.keys() == other.terms.keys()
    for a, b in ((0.1 + 0.2, 0.3), (0.3, 0.1 + 0.2)):
        assert isinstance(bool(n * a > n * b), bool)
    sizes = tape.sizes([terms_of(n)])
    found = sizes.evaluate([900])
    assert found is not None
    assert found.tolist() == [900]
    assert hint(n) == 7


def test_sizes_that_do_not_fit_are_no_plans() -> None:
    with wf.Graph().as_default():
        x, y = (wf.placeholder(wf.float32, [None]) for _ in range(2))
        out = x * y
        with wf.Session() as session:
            for n in (3, 4, 5):
                for other in (0, n + 1, n + 2):
                    if other:
                        with pytest.raises(wf.errors.ShapeError):
                            session.run(out, {x: np.ones(n), y: np.ones(other)})
                    else:
                        assert len(session.run(out, {x: np.ones(n), y: np.ones(n)})) == n
            (plans,) = plans_of(session)
            assert plans.made == 1


@pytest.mark.parametrize("error", [TypeError, AttributeError, OverflowError])
def test_code_that_takes_no_such_numbers_gets_a_plan_for_each_size(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> Any:
        raise error("no such number")

    monkeypatch.setattr("weft.runtime.native.size_plan._planned", fails)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None])
        out = x * 2
        with wf.Session() as session:
            for n in (3, 4, 5):
                assert len(session.run(out, {x: np.ones(n)})) == n
            assert not filled_by(session)


def test_layers_of_other_widths_share_memory() -> None:
    """What is as large as needed for any size serves smaller ones, too."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 64])
        value: Any = x
        widths = (64, 96, 128, 160, 192, 224, 256, 128, 64, 32)
        for a, b in itertools.pairwise(widths):
            value = wf.sort(wf.tanh(value @ wf.constant(np.eye(a, b, dtype=np.float32))), axis=1)
        out = wf.sum(value)
        with wf.Session() as session:
            for n in (1000, 1010, 1020):
                session.run(out, {x: np.ones((n, 64))})
            (plan,) = filled_by(session)
            (activation,) = plan._idle
            assert activation.room < 5 * 1020 * 256 * 4


def test_sizes_that_are_filled_in_warn_of_no_compilation() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x, y = wf.placeholder(wf.float32, [None, 3]), wf.placeholder(wf.float32, [])
        z = wf.tanh(x) * y
        session._steps.limit = 6
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for n in range(2, 40):
                session.run(z, {x: np.ones((n, 3)), y: 1.0})
        assert session.cache_info().evicted > 20
        steps = [wf.add(z, float(k)) for k in range(8)]
        with pytest.warns(RecompileWarning, match=r"session\.explain\(fetches, feed_dict\) shows"):
            [session.run(step, {x: np.ones((2, 3)), y: 1.0}) for step in steps]


def test_a_size_is_computed_without_the_tensor_that_has_it() -> None:
    """Nor a vector as long as it."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 4])
        twice = wf.concat([wf.exp(x), x], axis=0)
        sizes = {
            "shape": (wf.shape(twice), lambda n: [2 * n, 4]),
            "size": (wf.size(twice), lambda n: 8 * n),
            "length": (wf.constant(7, wf.int64) * (x.shape[0] * 3 + 1), lambda n: 7 * (3 * n + 1)),
        }
        for value, of in sizes.values():
            with wf.Session() as session:
                for n in (3, 5, 6, 90, 1000):
                    assert session.run(value, {x: np.ones((n, 4))}).tolist() == of(n)
                (plan,) = filled_by(session)
                numbers = plan.numbers(((1_000_000, 4),))
                assert numbers is not None
                activation = plan._new_activation([])
                plan._outputs.resize(activation, numbers)
                assert activation.room < 10_000  # of its arena
