"""Tensors, tracing, pytrees and variables: what they do outside and inside a trace."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import weft as wf
from weft.frontend.core.operators import METHOD_NAMES, METHODS
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace, current_trace, suspend_trace
from weft.ir.errors import (
    TracerError,
)
from weft.ir.types import TensorType


# --------------------------------------------------------------------------------- concrete tensors
def test_python_numbers_are_weak_and_wide() -> None:
    one, half, yes = as_tensor(1), as_tensor(0.5), as_tensor(True)
    assert (one.dtype, half.dtype, yes.dtype) == (wf.int64, wf.float64, wf.bool)
    assert (one.weak, half.weak, yes.weak) == (True, True, False)
    assert as_tensor(0.5, wf.float32).weak is False


def test_lists_get_default_dtypes_and_arrays_keep_theirs() -> None:
    assert as_tensor([1.0, 2.0]).dtype is wf.float32
    assert as_tensor([[1], [2]]).dtype is wf.int64
    assert as_tensor([1j]).dtype is wf.complex64
    assert as_tensor([True]).dtype is wf.bool
    assert as_tensor(["a", b"b"]).tolist() == [b"a", b"b"]
    assert as_tensor(np.ones(2)).dtype is wf.float64
    assert as_tensor(np.ones(2, ml_dtypes.bfloat16)).dtype is wf.bfloat16
    assert as_tensor([np.float64(1), 2.0]).dtype is wf.float64
    joined = as_tensor([as_tensor([1.0]), as_tensor([2.0])])
    assert joined.shape == (2, 1)


def test_arrays_are_copied() -> None:
    array = np.zeros(3)
    t = as_tensor(array)
    array[0] = 7
    assert t.tolist() == [0, 0, 0]


def test_foreign_byte_order_and_layout_are_normalised() -> None:
    big = np.arange(6, dtype=">i4").reshape(2, 3).T
    t = as_tensor(big)
    assert t.dtype is wf.int32
    assert t.numpy().flags.c_contiguous
    assert_array_equal(t.numpy(), big)


def test_attributes() -> None:
    t = as_tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert (t.shape, t.ndim, t.size, t.nbytes, t.itemsize, t.device) == ((2, 3), 2, 6, 24, 4, "cpu")
    assert t.T.shape == (3, 2)
    assert t.to_device("cpu") is t
    assert t.__array_namespace__() is wf
    assert len(t) == 2
    assert [row.shape for row in t] == [(3,), (3,)]


def test_conversions_of_concrete_tensors() -> None:
    t = as_tensor(3)
    assert (int(t), float(t), complex(t), bool(t), [10, 11, 12, 13][t]) == (
        3,
        3.0,
        3 + 0j,
        True,
        13,
    )
    assert f"{as_tensor(0.123456):.3f}" == "0.123"
    assert as_tensor([5]).item() == 5
    assert 2 in as_tensor([1, 2])
    assert 7 not in as_tensor([1, 2])


def test_numpy_views_are_read_only() -> None:
    t = as_tensor([1.0, 2.0])
    for view in (t.numpy(), np.asarray(t)):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 9
    fresh = np.array(t)
    fresh[0] = 9
    assert t.tolist() == [1, 2]
    assert np.asarray(t, dtype=np.float64).dtype == np.float64


def test_bfloat16_and_strings_reach_numpy_with_their_dtype() -> None:
    assert np.asarray(as_tensor(np.ones(2, ml_dtypes.bfloat16))).dtype == ml_dtypes.bfloat16
    assert np.asarray(as_tensor(["x"])).dtype == object


def test_dlpack_round_trip() -> None:
    t = as_tensor([1.0, 2.0])
    assert_array_equal(np.from_dlpack(t), [1, 2])


def test_numpy_operators_give_tensors() -> None:
    t = as_tensor([1.0, 2.0])
    for result in (np.ones(2, np.float32) + t, t * np.ones(2, np.float32), np.float32(2) - t):
        assert isinstance(result, Tensor)
    assert isinstance(np.sin(t), np.ndarray)
    assert_array_equal(np.concatenate([t, np.zeros(1, np.float32)]), [1, 2, 0])
    assert np.sum(t) == 3


def test_reflected_and_in_place_operators() -> None:
    t = as_tensor([1.0, 2.0])
    before = t
    t += 1
    assert before.tolist() == [1, 2]
    assert t.tolist() == [2, 3]
    assert (10 - t).tolist() == [8, 7]
    assert (2**t).tolist() == [4, 8]
    assert (7 // as_tensor([2, 3])).tolist() == [3, 2]
    assert [r.tolist() for r in divmod(as_tensor([7]), 2)] == [[3], [1]]


def test_equality_is_elementwise_and_hash_is_identity() -> None:
    a, b = as_tensor([1, 2]), as_tensor([1, 3])
    assert (a == b).tolist() == [True, False]
    assert (a != b).tolist() == [False, True]
    assert (a == None) is False  # noqa: E711
    assert {a: 1, b: 2}[a] == 1


def test_unknown_operands_are_a_python_type_error() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        as_tensor(1) + object()


def test_copies_of_immutable_tensors_are_themselves() -> None:
    t = as_tensor([1.0])
    assert copy.copy(t) is t
    assert copy.deepcopy({"t": t})["t"] is t


def test_repr_names_dtype_and_value() -> None:
    assert repr(as_tensor([1.0, 2.0])) == "Tensor([1., 2.], dtype=float32)"
    assert repr(as_tensor(2)) == "Tensor(2, dtype=int64, weak)"


def test_every_method_name_is_filled_in() -> None:
    assert set(METHODS) >= set(METHOD_NAMES)


# ------------------------------------------------------------------------------------------ tracing
def test_symbolic_tensors_know_type_and_origin() -> None:
    seen: list[Tensor] = []

    def f(x: Any) -> Any:
        y = x + 1
        seen.append(y)
        assert y.shape == (2, 3)
        assert y.dtype is wf.float32
        assert len(y) == 2
        assert y._data is None
        return y

    wf.compile(f).trace(np.ones((2, 3), np.float32))
    assert "f32[2,3]" in repr(seen[0])
    assert "test_frontend.py" in repr(seen[0])


def test_concrete_operands_become_one_constant_each() -> None:
    table = as_tensor(np.arange(4.0))
    graph = wf.compile(lambda x: x * table + table).trace(np.ones(4))
    assert [op.name for op in graph.ops].count("constant") == 1


def test_suspend_trace_computes_at_once() -> None:
    def f(x: Any) -> Any:
        assert current_trace() is not None
        with suspend_trace():
            assert current_trace() is None
            two = as_tensor([1.0]) + 1
            assert two.tolist() == [2.0]
        return x * two

    assert wf.compile(f)(np.ones(1, np.float32)).tolist() == [2.0]
    assert current_trace() is None


def test_a_leaked_tensor_names_its_origin() -> None:
    leaked: list[Tensor] = []

    def leak(x: Any) -> Any:
        leaked.append(x * 2)
        return x

    wf.compile(leak)(np.ones(2))
    for use in (lambda: leaked[0] + 1, lambda: wf.compile(lambda x: x + leaked[0])(np.ones(2))):
        with pytest.raises(TracerError, match="after the trace of 'leak'") as caught:
            use()
        assert "leaked.append(x * 2)" in str(caught.value)


def test_a_tensor_of_an_outer_trace_is_refused_in_an_unrelated_one() -> None:
    def f(x: Any) -> Any:
        with wf.Graph("inner").as_default():
            return x + 1

    with pytest.raises(TracerError, match="while 'inner' is traced, not of 'f'"):
        wf.compile(f)(np.ones(2))


def test_symbolic_tensor_used_while_tracing_is_suspended() -> None:
    def f(x: Any) -> Any:
        with suspend_trace():
            return x + 1

    with pytest.raises(TracerError, match="used outside the trace of 'f'"):
        wf.compile(f)(np.ones(2))


def test_regions_capture_outer_values_as_operands() -> None:
    outer = Trace("function", "outer")
    with outer.scope():
        x = outer.tensor(outer.add_arg(TensorType(wf.float32, (2,)), "x"))
        region = Trace("region", "inner", outer)
        with region.scope():
            y = region.tensor(region.add_arg(TensorType(wf.float32, (2,)), "y"))
            out = region.lift(x * y + x)
    assert list(region.captures) == [x._value]
    assert out.op is not None
    assert out.op in region.builder.ops
