"""Compiled class methods and static methods in both orders, partial functions, callable objects."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest

import weft as wf

ONES = np.ones(3, np.float32)


class Scaled:
    factor = 2.0
    traced: list[str] = []  # noqa: RUF012  # which classes `above` was traced for

    @classmethod
    @wf.compile
    def above(cls, x: Any) -> Any:
        Scaled.traced.append(cls.__name__)
        return x * cls.factor

    @wf.compile
    @classmethod
    def below(cls, x: Any) -> Any:
        return x * cls.factor

    @wf.compile(static_argnames="times")
    @classmethod
    def repeated(cls, x: Any, times: int) -> Any:
        for _ in range(times):
            x = x * cls.factor
        return x

    unnamed = classmethod(wf.compile(lambda cls, x: x * cls.factor))

    @staticmethod
    @wf.compile
    def static_above(x: Any) -> Any:
        return x * 3

    @wf.compile
    @staticmethod
    def static_below(x: Any) -> Any:
        return x * 3

    @wf.compile
    def method(self, x: Any, by: float = 1.0) -> Any:
        return x * (self.factor * by)

    fivefold = functools.partialmethod(method, by=2.5)

    def __call__(self, x: Any) -> Any:
        return x * 5

    @wf.compile
    def uses_class(self, x: Any) -> Any:
        return self.above(x) + Scaled.below(x)


class Derived(Scaled):
    factor = 7.0


@pytest.mark.parametrize("name", ["above", "below", "unnamed"])
def test_class_methods(name: str) -> None:
    for _ in range(3):
        assert getattr(Scaled, name)(ONES).tolist() == [2, 2, 2]
        assert getattr(Derived, name)(ONES).tolist() == [7, 7, 7]
        assert getattr(Derived(), name)(x=ONES).tolist() == [7, 7, 7]


def test_each_class_is_traced_once() -> None:
    class Other(Scaled):
        factor = 4.0

    Scaled.traced.clear()
    for kind in (Other, Other(), Scaled, Other):
        kind.above(np.ones((2, 2), np.float32))
    assert Scaled.traced == ["Other", "Scaled"]
    assert "Other" not in repr(vars(Scaled).get("__weft_compiled__"))


def test_static_arguments_and_static_methods() -> None:
    assert Derived.repeated(ONES, 2).tolist() == [49, 49, 49]
    assert Derived.repeated(ONES, times=1).tolist() == [7, 7, 7]
    for f in (Scaled.static_above, Scaled.static_below, Scaled().static_below):
        assert f(ONES).tolist() == [3, 3, 3]


def test_within_a_trace() -> None:
    assert Derived().uses_class(ONES).tolist() == [9, 9, 9]
    f = wf.compile(lambda x: Derived.above(x) + Scaled.below(x))
    assert f(ONES).tolist() == [9, 9, 9]
    np.testing.assert_array_equal(wf.grad(lambda x: wf.sum(Derived.below(x)))(wf.asarray(ONES)), 7)


def test_partial_functions_and_callable_objects() -> None:
    assert Derived().fivefold(ONES).tolist() == [17.5] * 3
    assert wf.compile(Scaled())(ONES).tolist() == [5, 5, 5]
    assert wf.compile(functools.partial(lambda a, x, b: a * x + b, 2.0, b=1.0))(ONES).tolist() == [
        3, 3, 3,
    ]  # fmt: skip
    part = functools.partial(lambda a, x, n: a * x * n, 2.0)
    assert wf.compile(part, static_argnames="n")(ONES, n=3).tolist() == [6, 6, 6]  # type: ignore[call-overload]
    assert wf.compile(Derived.above)(ONES).tolist() == [7, 7, 7]


def test_copies() -> None:
    d = Derived()
    assert d.method(ONES).tolist() == [7, 7, 7]
    Derived.above(ONES)
    for other in (copy.copy(d), copy.deepcopy(d)):
        assert other.above(ONES).tolist() == [7, 7, 7]
        assert other.method(ONES).tolist() == [7, 7, 7]


def test_the_interface_dict_is_seen_by_donate() -> None:
    f = wf.compile(lambda x: x + 1, donate="x")

    class Holder:
        def __init__(self, interface: dict[str, Any]) -> None:
            self.__array_interface__ = interface

    t = wf.asarray(ONES, copy=True)
    view = np.asarray(Holder(t.__array_interface__))
    with pytest.raises(wf.errors.InvalidArgumentError, match="is seen by an array or a view"):
        f(t)
    assert view.tolist() == [1, 1, 1]
    del view
    assert f(wf.asarray(ONES, copy=True)).tolist() == [2, 2, 2]
