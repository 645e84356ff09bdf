"""Compiled methods: inheritance, copies and pickles, and other decorators beside `@wf.compile`."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251  # what others do to objects with compiled methods
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import TypeRuleError, UnsupportedError

ONES = np.ones(3, np.float32)


class Base:
    """At module level, so that it can be pickled."""

    def __init__(self, k: float) -> None:
        self.k = k

    @wf.compile
    def forward(self, x: Any) -> Any:
        return x + self.k

    @wf.compile(static_argnames="times")
    def repeated(self, x: Any, times: int) -> Any:
        for _ in range(times):
            x = x * self.k
        return x

    @property
    @wf.compile
    def double(self) -> Any:
        return wf.asarray(2.0) * self.k

    @classmethod
    @wf.compile(static_argnames="cls")
    def name_length(cls, x: Any) -> Any:
        return x * len(cls.__name__)

    @classmethod
    @wf.compile
    def class_not_static(cls, x: Any) -> Any:
        return x

    @staticmethod
    @wf.compile
    def tripled(x: Any) -> Any:
        return x * 3


class Derived(Base):
    @wf.compile
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 10


@wf.compile
def at_module_level(x: Any) -> Any:
    return x + 1


def test_super_calls_the_method_of_the_base_class() -> None:
    d = Derived(2.0)
    assert d.forward(ONES).tolist() == [30, 30, 30]
    assert super(Derived, d).forward(ONES).tolist() == [3, 3, 3]
    assert d.forward is d.forward
    assert d.forward is not super(Derived, d).forward


def test_a_method_called_through_its_class() -> None:
    d = Derived(2.0)
    assert Base.forward(d, ONES).tolist() == [3, 3, 3]
    assert Base.repeated(d, ONES, times=2).tolist() == [4, 4, 4]
    assert wf.compile(lambda x: Base.forward(d, x))(ONES).tolist() == [3, 3, 3]
    with pytest.raises(TypeRuleError, match=r"argument self of 'forward' is a object"):
        Base.forward(object(), ONES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_of_an_object_have_methods_of_their_own(duplicate: Callable[[Any], Any]) -> None:
    d = Derived(2.0)
    assert d.forward(ONES).tolist() == [30, 30, 30]
    assert d.repeated(ONES, 3).tolist() == [8, 8, 8]
    twin = duplicate(d)
    twin.k = 4.0
    assert twin.forward(ONES).tolist() == [50, 50, 50]
    assert twin.repeated(ONES, 3).tolist() == [64, 64, 64]
    assert d.forward(ONES).tolist() == [30, 30, 30]
    assert twin.forward is twin.forward
    assert twin.forward is not d.forward


def test_compiled_functions_are_copied_and_pickled_as_functions_are() -> None:
    assert copy.copy(at_module_level) is at_module_level
    assert copy.deepcopy(at_module_level) is at_module_level
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    d = Derived(2.0)
    for twin in (copy.deepcopy(d.repeated), pickle.loads(pickle.dumps(d.repeated))):
        assert isinstance(twin, wf.CompiledFunction)
        assert twin(ONES, times=2).tolist() == [4, 4, 4]
        assert twin is not d.repeated
        assert twin.cache_info().made == 1
    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(wf.compile(lambda x: x))


def test_an_object_may_hold_a_compiled_function() -> None:
    class Holder:
        def __init__(self) -> None:
            self.k = 1.0
            self.call = wf.compile(self.plain)

        def plain(self, x: Any) -> Any:
            return x + self.k

    holder = Holder()
    assert holder.call(ONES).tolist() == [2, 2, 2]
    twin = copy.deepcopy(holder)
    twin.k = 5.0
    assert twin.call(ONES).tolist() == [6, 6, 6]
    assert isinstance(twin.call, wf.CompiledFunction)


# ---------------------------------------------------------------------------- above and below it
def test_decorators_above() -> None:
    d = Derived(2.0)
    assert float(d.double) == 4
    assert d.tripled(ONES).tolist() == Base.tripled(ONES).tolist() == [3, 3, 3]
    assert Base.name_length(ONES).tolist() == [4, 4, 4]
    assert d.name_length(ONES).tolist() == [7, 7, 7]
    assert d.class_not_static(ONES).tolist() == ONES.tolist()


def test_a_property_below_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="given a property") as caught:
        wf.compile(property(lambda x: x))  # type: ignore[call-overload]
    assert caught.value.hint == "write @property above @wf.compile, not below it"
    assert caught.value.locations[0].file == __file__


@pytest.mark.parametrize("builtin", [max, min, dict])
def test_functions_without_a_signature_are_refused(builtin: Any) -> None:
    with pytest.raises(TypeRuleError, match="cannot tell the parameters of") as caught:
        wf.compile(builtin)
    assert "Python function" in str(caught.value.hint)
    assert caught.value.locations[0].file == __file__


def test_a_class_without_dict_is_refused() -> None:
    class Slotted:
        __slots__ = ()

        @wf.compile
        def method(self, x: Any) -> Any:
            return x

    with pytest.raises(UnsupportedError, match="class without __dict__"):
        _ = Slotted().method


# ------------------------------------------------------------------------------- inside a trace
def test_static_arguments_stay_static_inside_a_trace() -> None:
    @wf.compile(static_argnames=("times", "training"))
    def inner(x: Any, k: Any, times: int = 1, *, training: bool = False) -> Any:
        for _ in range(times):
            x = x * k
        return x if training else -x

    outer = wf.compile(lambda x: inner(x, 2.0, 3, training=True) + inner(x, k=3.0))
    assert outer(ONES).tolist() == [5, 5, 5]
    assert outer(ONES).dtype is wf.float32
    d = Derived(2.0)
    assert wf.compile(lambda x: d.repeated(x, 3))(ONES).tolist() == [8, 8, 8]
    with pytest.raises(TypeRuleError, match="static argument 'times' is an array") as caught:
        wf.compile(lambda x, n: inner(x, 2.0, n))(ONES, 2)
    assert "static in the function that is being traced" in str(caught.value.hint)
    with pytest.raises(TypeRuleError, match="'inner' cannot be called like this"):
        wf.compile(lambda x: inner(x, 2.0, time=3))(ONES)
