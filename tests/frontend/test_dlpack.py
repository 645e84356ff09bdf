"""Arrays of other libraries: taken and given without copies, refused where that cannot be."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.core.tensor import foreign_array
from weft.ir.errors import TypeRuleError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Interface:
    """An array that shows its memory through `__array_interface__` alone."""

    def __init__(self, array: Any) -> None:
        self.held = array
        self.__array_interface__ = array.__array_interface__


class Elsewhere:
    """An array on a GPU."""

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("its memory is not to be asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_from_dlpack_shares() -> None:
    t = wf.from_dlpack(X)
    assert t.dtype is wf.float32
    assert np.shares_memory(t.numpy(), X)
    strided = np.arange(12.0).reshape(3, 4).T
    np.testing.assert_array_equal(wf.from_dlpack(strided).numpy(), strided)
    copied = wf.from_dlpack(X, copy=True)
    assert not np.shares_memory(copied.numpy(), X)
    with pytest.raises(TypeRuleError, match="has no DLPack"):
        wf.from_dlpack([1.0, 2.0])


def test_a_tensor_gives_its_memory_read_only() -> None:
    t = wf.asarray(X)
    array = np.from_dlpack(t)
    assert np.shares_memory(array, t.numpy())
    assert not array.flags.writeable
    again = wf.from_dlpack(t)
    assert np.shares_memory(again.numpy(), t.numpy())
    assert t.__dlpack_device__() == (1, 0)
    interface = np.asarray(Interface(t))
    assert np.shares_memory(interface, t.numpy())
    assert not interface.flags.writeable
    assert np.from_dlpack(t, copy=True).flags.writeable


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_bfloat16_goes_out_as_what_it_is(version: tuple[int, int] | None) -> None:
    t = wf.asarray([1.0, -2.5, 3.0]).astype(wf.bfloat16)
    capsule = t.__dlpack__(max_version=version)
    name = b"dltensor" if version is None else b"dltensor_versioned"
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    words = ctypes.string_at(address(capsule, name), 80)[0 if version is None else 32 :]
    # dlpack.h: data, device (type, id), ndim, dtype (code, bits, lanes)
    data, device, _, ndim, code, bits, lanes = struct.unpack("<QiiiBBH", words[:24])
    assert (device, ndim, code, bits, lanes) == (1, 1, 4, 16, 1)
    expected = np.asarray(t).view(np.int16)
    if version is not None:
        assert data == expected.ctypes.data
    assert ctypes.string_at(data, 6) == expected.tobytes()
    with pytest.raises(RuntimeError, match="Unsupported dtype"):
        np.from_dlpack(t)  # NumPy has no such type


def test_arguments_are_not_copied() -> None:
    given = Interface(X)
    assert np.shares_memory(foreign_array(given), X)
    f = wf.compile(lambda x: x * 2)
    np.testing.assert_array_equal(f(given).numpy(), X * 2)
    X[0, 0] = 5
    np.testing.assert_array_equal(f(given).numpy(), X * 2)
    X[0, 0] = 0


def test_other_devices_are_refused() -> None:
    with pytest.raises(TypeRuleError, match="another device"):
        wf.compile(lambda x: x)(Elsewhere())
    with pytest.raises(wf.errors.FailedPreconditionError, match="there is no GPU to use"):
        wf.from_dlpack(Elsewhere())


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 8])
def test_any_alignment(offset: int) -> None:
    raw = np.zeros(1000, np.uint8)
    x = raw[offset : offset + 128].view(np.float32)
    x[:] = np.arange(32)
    f = wf.compile(lambda x: x + 1)
    for _ in range(3):
        np.testing.assert_array_equal(f(x).numpy(), np.arange(1, 33))


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(6.0).reshape(2, 3)
    shared = wf.from_dlpack(t)
    t[0, 0] = 7
    assert float(shared[0, 0]) == 7
    f = wf.compile(lambda x: x + 1)
    np.testing.assert_array_equal(f(t).numpy(), (t + 1).numpy())
    assert foreign_array(t).ctypes.data == t.data_ptr()
    half = t.to(torch.bfloat16)
    assert foreign_array(half).ctypes.data == half.data_ptr()
    assert f(half).dtype is wf.bfloat16
    with pytest.raises(TypeRuleError, match="detach"):
        f(t.requires_grad_())
    back = torch.from_dlpack(wf.asarray(X))
    np.testing.assert_array_equal(back.numpy(), X)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    a = jax.numpy.asarray(X)
    assert foreign_array(a).ctypes.data == a.unsafe_buffer_pointer()
    f = wf.compile(lambda x: x + 1)
    np.testing.assert_array_equal(f(a).numpy(), X + 1)
    assert f(a.astype("bfloat16")).dtype is wf.bfloat16
    np.testing.assert_array_equal(np.asarray(jax.numpy.from_dlpack(wf.asarray(X))), X)
