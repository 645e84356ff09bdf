"""`wf.compile`: signatures, results, the ways to look inside, and what one call costs."""

from __future__ import annotations

import array
import copy
import dataclasses
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import weft as wf
from weft.frontend.compile.specializations import RecompileWarning
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.ir.dtypes import float32
from weft.ir.errors import (
    InvalidArgumentError,
    TracerError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.types import TensorType

ONES = np.ones(3, np.float32)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Params:
    w: Any
    b: Any


class Traces:
    """Counts how often a function runs as Python, that is, how often it is traced."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def traced() -> Traces:
    return Traces()


# ----------------------------------------------------------------------------------- specialisation
def test_one_trace_per_dtype_and_shape(traced: Traces) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        traced()
        return x + x

    for _ in range(3):
        assert f(ONES).tolist() == [2, 2, 2]
    f(as_tensor(ONES))  # a tensor and an array of one type are one signature
    assert traced.count == 1
    f(np.ones(4, np.float32))
    f(np.ones(3, np.float64))
    assert traced.count == 3
    assert f.cache_info()[:3] == (3, 3, 0)


def test_python_numbers_are_inputs_and_weak(traced: Traces) -> None:
    @wf.compile
    def f(x: Any, k: Any) -> Any:
        traced()
        return x * k

    assert f(ONES, 2.0).tolist() == [2, 2, 2]
    assert f(ONES, 5.0).tolist() == [5, 5, 5]
    assert f(ONES, 2.0).dtype is wf.float32
    assert traced.count == 1
    assert f(ONES, 3).tolist() == [3, 3, 3]
    assert f(np.arange(3), True).tolist() == [0, 1, 2]
    assert traced.count == 3


def test_numpy_scalars_are_strong() -> None:
    f = wf.compile(lambda x, k: x * k)
    assert f(ONES, np.float64(2)).dtype is wf.float64


def test_static_arguments_select_code(traced: Traces) -> None:
    @wf.compile(static_argnames="mode")
    def f(x: Any, mode: Any = 1) -> Any:
        traced()
        return x * 2 if mode else x

    assert f(ONES, 1).tolist() == f(ONES, mode=1).tolist() == [2, 2, 2]
    assert f(ONES, 0).tolist() == f(ONES, mode=0).tolist() == [1, 1, 1]
    assert traced.count == 2
    f(ONES, True)  # equal to 1, but another value
    f(ONES, 1.0)
    f(ONES, (1, 2))
    f(ONES, (1.0, 2.0))
    assert traced.count == 6
    assert f(ONES).tolist() == [2, 2, 2]  # the default


def test_keywords_and_positions_are_one_signature(traced: Traces) -> None:
    @wf.compile
    def f(x: Any, y: Any, *rest: Any, scale: Any = 1.0) -> Any:
        traced()
        return x + y * scale + sum(rest)

    assert f(ONES, ONES).tolist() == f(ONES, y=ONES).tolist() == f(y=ONES, x=ONES).tolist()
    assert traced.count == 1
    assert f(ONES, ONES, 1.0, ONES, scale=2.0).tolist() == [5, 5, 5]


def test_repeated_calls_in_every_style_pass_the_right_arrays() -> None:
    @wf.compile(static_argnames=("double", "label"))
    def f(a: Any, b: Any, double: Any = False, c: Any = 0.0, label: str = "") -> Any:
        out = a * 100 + b * 10 + c
        return (out * 2 if double else out), len(label)

    one, two, three = (np.float32(i) for i in (1, 2, 3))
    arrays = [np.asarray(v) for v in (one, two, three)]
    for x, y, z in ((one, two, three), arrays, [as_tensor(a) for a in arrays]):
        for _ in range(3):
            assert float(f(x, y, False, z)[0]) == 123
            assert float(f(x, y, True, z)[0]) == 246
            assert float(f(c=z, b=y, a=x)[0]) == 123
            assert float(f(x, c=z, b=y, double=True)[0]) == 246
            assert float(f(x, b=y, c=z, label="four")[1]) == 4
            assert float(f(x, b=y, label="three", c=z)[1]) == 5
            assert float(f(x, y)[0]) == 120


def test_repeated_nested_calls_tell_structures_apart() -> None:
    @wf.compile
    def f(tree: Any) -> Any:
        return pytree.tree_map(lambda leaf: leaf + 1, tree)

    trees = [
        {"a": ONES, "b": [ONES, (ONES,)]},
        {"a": ONES, "b": [ONES, [ONES]]},
        {"a": ONES, "c": [ONES, (ONES,)]},
        {"a": ONES, "b": [ONES, (ONES, ONES)]},
        {"a": [ONES], "b": [ONES, (ONES,)]},
        {"a": None, "b": [ONES]},
        Pair(ONES, {"x": ONES}),
        (ONES, {"x": ONES}),
        Params(ONES, {"x": 1.0}),
        OrderedDict(b=ONES, a=[ONES]),
    ]
    for _ in range(3):
        for tree in trees:
            leaves, structure = pytree.flatten(f(tree))
            assert structure == pytree.flatten(tree)[1]
            assert all(np.all(np.asarray(leaf) == 2) for leaf in leaves)
    assert f.cache_info().made == len(trees)


def test_nested_arguments_and_results() -> None:
    @wf.compile
    def f(p: Params, batch: dict[str, Any]) -> Any:
        y = batch["x"] * p.w + p.b
        return {"pair": Pair(y, [y, None]), "params": Params(p.w, 3), "empty": ()}

    out = f(Params(ONES, 1.0), {"x": ONES})
    assert out["pair"].first.tolist() == [2, 2, 2]
    assert out["pair"].second[1] is None
    assert isinstance(out["params"], Params)
    assert int(out["params"].b) == 3
    assert out["empty"] == ()
    a, b = wf.compile(lambda x: (x, x + 1))(ONES)
    assert (a.tolist(), b.tolist()) == ([1, 1, 1], [2, 2, 2])


def test_structure_is_part_of_the_signature(traced: Traces) -> None:
    @wf.compile
    def f(p: Any) -> Any:
        traced()
        return sum(p.values() if isinstance(p, dict) else p)

    for p in ([ONES, ONES], (ONES, ONES), {"a": ONES, "b": ONES}, {"a": ONES, "c": ONES}):
        assert f(p).tolist() == [2, 2, 2]
    assert traced.count == 4


def test_results_are_new_arrays() -> None:
    f = wf.compile(lambda x: (x, x))
    array = ONES.copy()
    a, b = f(array)
    array[0] = 9
    assert a.tolist() == b.tolist() == [1, 1, 1]
    assert isinstance(a, Tensor)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-2],
        np.arange(6, dtype=">f8"),
        np.array(2.0),
        np.zeros((0, 3)),
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.frombuffer(b"\0" + np.arange(3.0).tobytes(), np.uint8)[1:].view(np.float64),
    ],
    ids=["transposed", "negative stride", "big endian", "0-d", "empty", "stride 0", "unaligned"],
)
def test_array_layouts(array: np.ndarray[Any, Any]) -> None:
    f = wf.compile(lambda x: x + 1)
    for _ in range(2):
        assert_array_equal(f(array).numpy(), np.asarray(array, np.float64) + 1)


def test_one_fast_signature_with_two_layouts() -> None:
    f = wf.compile(lambda x: x + 1)
    square = np.arange(9.0).reshape(3, 3)
    assert_array_equal(f(square).numpy(), square + 1)
    assert_array_equal(f(square.T).numpy(), square.T + 1)


def test_a_compiled_function_inside_another_becomes_part_of_it(traced: Traces) -> None:
    @wf.compile
    def inner(x: Any, k: Any) -> Any:
        traced()
        return x * k

    outer = wf.compile(lambda x: inner(x, 2.0) + inner(x, 3.0))
    assert outer(ONES).tolist() == [5, 5, 5]
    assert outer(ONES).dtype is wf.float32
    assert traced.count == 2
    assert inner.cache_info().size == 0
    assert wf.grad(lambda x: wf.sum(inner(x, 2.0)))(ONES).tolist() == [2, 2, 2]


def test_methods_have_specialisations_per_object() -> None:
    class Model:
        def __init__(self, k: float) -> None:
            self.k = k

        @wf.compile
        def scale(self, x: Any) -> Any:
            return x * self.k

    two, three = Model(2.0), Model(3.0)
    assert two.scale(ONES).tolist() == [2, 2, 2]
    assert three.scale(ONES).tolist() == [3, 3, 3]
    twin = copy.copy(two)
    twin.k = 4.0
    assert twin.scale(ONES).tolist() == [4, 4, 4]
    assert two.scale is two.scale


def test_a_variable_may_be_an_argument() -> None:
    @wf.compile
    def bump(v: Any, by: Any) -> Any:
        return v.assign_add(by)

    a, b = wf.Variable(1.0), wf.Variable(10.0)
    assert [float(bump(v, 1.0)) for v in (a, b, a)] == [2, 11, 3]


def test_wrapping_keeps_the_function_s_name_and_doc() -> None:
    @wf.compile
    def documented(x: Any) -> Any:
        """What it does."""
        return x

    assert (documented.__name__, documented.__doc__) == ("documented", "What it does.")
    assert repr(documented).startswith("<compiled documented(x")


def test_the_least_used_specialisations_are_dropped_with_a_warning() -> None:
    f = wf.compile(lambda x: x + 1)
    f._specializations.limit = 3
    keep = np.ones(1)

    def call_with_seven_sizes() -> None:
        for n in range(1, 8):
            f(np.ones(n))
            f(keep)

    with pytest.warns(RecompileWarning, match="compiled for 3 different signatures") as caught:
        call_with_seven_sizes()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    info = f.cache_info()
    assert (info.size, info.made, info.evicted) == (3, 7, 4)  # `keep` was made once
    assert len(f._fast) <= 4
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*different signatures")
        warnings.filterwarnings("ignore", message=".*for the 8th signature")
        assert f(np.ones(2)).tolist() == [2, 2]


class TestManySignatures:
    """The eighth is told of, with what differs and what to do."""

    @staticmethod
    def told(call: Callable[[int], object], count: int = 12) -> str:
        with pytest.warns(RecompileWarning) as caught:
            [call(n) for n in range(1, count)]
        (one,) = caught
        assert one.filename == __file__
        return str(one.message)

    def test_sizes(self) -> None:
        f = wf.compile(lambda x: x + 1)
        message = self.told(lambda n: f(np.ones((n, 3))))
        assert message.splitlines()[:2] == [
            "'lambda' is compiled for the 8th signature; it differs from the nearest in",
            "  x: f64[8,3] instead of f64[1,3] (specialisation 1)",
        ]
        assert "wf.compile(input_signature=" in message

    def test_static_arguments(self) -> None:
        f = wf.compile(static_argnames="n")(lambda x, n: x * n)
        message = self.told(lambda n: f(np.ones(3), n))
        assert (
            "each value of the static argument 'n' compiles anew; a number need not be" in message
        )

    def test_structures(self) -> None:
        f = wf.compile(lambda xs: sum(xs))
        message = self.told(lambda n: f([np.ones(3)] * n))
        assert "the structure of the arguments" in message
        assert "hint: pass arguments of one structure and dtype" in message

    def test_seven_are_silent_and_open_sizes_are_one(self) -> None:
        f = wf.compile(lambda x: x + 1)
        kind = wf.TensorType(wf.float64, (None, 3))
        g = wf.compile(input_signature=[kind])(lambda x: x + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            [f(np.ones((n, 3))) for n in range(1, 8)]
            [g(np.ones((n, 3))) for n in range(1, 20)]


def test_a_failed_trace_leaves_nothing_behind() -> None:
    broken = True

    @wf.compile
    def f(x: Any) -> Any:
        if broken:
            raise KeyError("mine")
        return x

    with pytest.raises(KeyError, match="mine"):
        f(ONES)
    broken = False
    assert f(ONES).tolist() == [1, 1, 1]


# ------------------------------------------------------------------------------------------- errors
def test_bad_arguments_name_their_path() -> None:
    f = wf.compile(lambda p: p)
    with pytest.raises(TypeRuleError, match=r"argument p\['mode'\]\[1\] of 'lambda' is a str"):
        f({"mode": [ONES, "fast"]})
    with pytest.raises(TypeRuleError, match=r"static_argnames=\('p',\)"):
        f(object())


def test_bad_results_name_their_path() -> None:
    with pytest.raises(TypeRuleError, match=r"returned a str at result\['a'\]\[0\]: 'no'"):
        wf.compile(lambda x: {"a": ["no"]})(ONES)


def test_wrong_calls() -> None:
    @wf.compile
    def f(x: Any, y: Any) -> Any:
        return x

    with pytest.raises(TypeRuleError, match="missing a required argument: 'y'"):
        f(ONES)  # type: ignore[call-arg]
    with pytest.raises(TypeRuleError, match="unexpected keyword argument 'z'"):
        f(ONES, ONES, z=1)  # type: ignore[call-arg]


def test_static_arguments_must_be_hashable_and_no_arrays() -> None:
    f = wf.compile(static_argnames=["k"])(lambda x, k: x)
    with pytest.raises(
        TypeRuleError, match="static argument 'k' is a list, which cannot be hashed"
    ):
        f(ONES, [1])
    with pytest.raises(TypeRuleError, match="static argument 'k' is an array"):
        f(ONES, ONES)
    with pytest.raises(InvalidArgumentError, match=r"static_argnames names 'kk'.*did you mean 'k'"):
        wf.compile(static_argnames=["kk"])(lambda x, k: x)


@pytest.mark.parametrize("device", ["cpu:1", "/job:ps/task:1", "/device:tpu:0"])
def test_devices_that_compiled_functions_do_not_run_on(device: str) -> None:
    with pytest.raises(UnsupportedError, match="runs in this process, on its CPU or on one of"):
        wf.compile(device=device)


def test_integers_beyond_int64() -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit int64"):
        wf.compile(lambda x: x)(2**63)


def test_types_cannot_be_called() -> None:
    f = wf.compile(lambda x: x)
    f(ONES)
    with pytest.raises(TypeRuleError, match="called with a type"):
        f(TensorType(float32, (3,)))


def test_a_leaked_tensor_as_argument() -> None:
    leaked: list[Any] = []
    wf.compile(lambda x: leaked.append(x))(ONES)
    with pytest.raises(TracerError, match="has ended"):
        wf.compile(lambda x: x)(leaked[0])


# -------------------------------------------------------------------------------------------- speed
def test_a_call_costs_few_instructions_of_python() -> None:
    """The share of this package in one call, which the executable is taken out of: CPython's
    instructions, since times say what else the machine does."""
    f = wf.compile(lambda x, y: x + y)
    x, y = as_tensor(ONES), as_tensor(ONES)
    result = [f(x, y).numpy()]
    for made in f._specializations.entries.values():
        made.run = lambda arrays: result
    tree = {"a": {"w": x, "b": y}, "c": [x, y]}
    f(x, y=y)
    h = wf.compile(lambda t: t)
    h(tree)
    for made in h._specializations.entries.values():
        made.run = lambda arrays: result * 4
    calls = (lambda: f(x, y), lambda: f(ONES, y), lambda: f(x, y=y), lambda: h(tree))
    for call, most in zip(calls, (210, 220, 350, 570), strict=True):
        call()
        # 7 where the native path is there by now; of three: objects may be freed meanwhile
        assert min(_instructions(call) for _ in range(3)) < most


def _instructions(call: Callable[[], Any]) -> int:
    count = 0

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("given", "dtype", "wanted"),
    [
        (array.array("f", [1, 2.5]), "float32", [1, 2.5]),
        (array.array("q", [3]), "int64", [3]),
        (array.array("B"), "uint8", []),
        (memoryview(np.arange(6.0))[::2], "float64", [0, 2, 4]),
        (memoryview(np.ones((1, 2), np.float32)), "float32", [[1, 1]]),
        (bytearray(b"ab"), "uint8", [97, 98]),
    ],
)
def test_pythons_own_arrays(given: Any, dtype: str, wanted: Any) -> None:
    """As arguments of compiled functions and of ops, as NumPy reads their buffers."""
    shown = [wf.asarray(given), wf.compile(lambda x: wf.abs(x))(given), wf.abs(given)]
    for result in shown:
        assert result.dtype.name == dtype
        assert result.tolist() == wanted


def test_a_buffer_is_read_anew_in_each_call() -> None:
    x = array.array("f", [1, 2])
    double, kept = wf.compile(lambda x: x * 2), wf.asarray(x)
    assert double(x).tolist() == [2, 4]
    x[0] = 5
    assert double(x).tolist() == [10, 4]
    assert kept.tolist() == [1, 2]
