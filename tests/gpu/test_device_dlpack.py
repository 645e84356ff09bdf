"""Memory of a GPU shared with other libraries: DLPack capsules and `__cuda_array_interface__`.

Another library is played by `Other`, on a stream of its own of the fake driver, which is as lazy as
it may be: what nobody waits for has not happened.
"""

from __future__ import annotations

import copy
import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver

import weft as wf
from weft.ir.dlpack import Fields
from weft.runtime.device import plan
from weft.runtime.device.backends import registry
from weft.runtime.device.backends.cuda import CudaDevice

Array = np.ndarray[Any, Any]
on_gpu = wf.compile(device="gpu:0")
OWN = 77  # the handle of the other library's stream


class Tensor(ctypes.Structure):
    """dlpack.h: DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Old(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class New(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    )  # fmt: skip


def _struct(capsule: Any) -> Any:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    kind = {b"dltensor": Old, b"dltensor_versioned": New}[name(capsule)]
    return kind.from_address(pointer(capsule, name(capsule)))


class Other:
    """Another library's array: in its memory, written by its stream when somebody waits for it."""

    def __init__(self, api: FakeDriver, values: Array, device: int = 0, offset: int = 0) -> None:
        self.api, self.values = api, values
        self.context = f"context {device}"
        api.cuCtxSetCurrent(self.context)
        self.stream = api.CUstream(OWN)
        self.default = api.CUstream(1)
        self.block = api.cuMemAllocAsync(values.nbytes + offset, self.stream)[1]
        self.address = self.block + offset
        self.write(values, self.stream)
        self.gone: list[str] = []
        self.device = device

    def write(self, values: Array, stream: Any) -> None:
        """Write, when the stream gets there."""
        raw = values.tobytes()
        at, nbytes = self.address, len(raw)
        self.api.cuCtxSetCurrent(self.context)
        self.api._put(
            stream, lambda: ctypes.memmove(self.api.view(at, nbytes).ctypes.data, raw, nbytes)
        )

    def wait(self, stream: Any) -> None:
        """As whoever uses the stream next."""
        self.api.cuCtxSetCurrent(self.context)
        self.api.cuStreamSynchronize(stream)


class ByDlpack(Other):
    """With `__dlpack__`, of before or since version 1.0."""

    old = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: Any, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("max_version is not known")
        assert options in ({}, {"max_version": (1, 0)})
        event = self.api.cuEventCreate(2)[1]
        self.api.cuCtxSetCurrent(self.context)
        self.api.cuEventRecord(event, self.stream)
        self.api.cuStreamWaitEvent(self.api.CUstream(stream), event, 0)
        shown = Shown(self)
        capsule = np.asarray(shown).__dlpack__(max_version=None if self.old else (1, 0))
        _struct(capsule).tensor.device_type = 2
        _struct(capsule).tensor.device_id = self.device
        return capsule


class Shown:
    """What the capsule holds until its deleter is called."""

    def __init__(self, other: Other) -> None:
        self.gone = other.gone
        self.__array_interface__ = {
            "data": (other.address, False), "shape": other.values.shape, "version": 3,
            "typestr": other.values.dtype.str,
        }  # fmt: skip

    def __del__(self) -> None:
        self.gone.append("deleted")


class ByInterface(Other):
    """With `__cuda_array_interface__`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.more: dict[str, Any] = {}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.values.shape, "typestr": self.values.dtype.str, "version": 3,
            "data": (self.address, False), "strides": None, "stream": OWN,
        } | self.more  # fmt: skip


@pytest.fixture
def fake(fake: Callable[..., FakeDriver]) -> Callable[..., FakeDriver]:
    """As that of all tests; the device is there already."""

    def make(**options: Any) -> FakeDriver:
        api = fake(**options)
        registry.gpu(0)
        return api

    return make


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All inputs are large: read from where they are."""
    monkeypatch.setattr(plan, "DEVICE_SMALL_INPUT_BYTES", -1)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")


X = np.arange(12, dtype=np.float32).reshape(3, 4)
DTYPES = ("float32", "float64", "float16", "int8", "int64", "uint8", "uint32", "bool")


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_capsules_are_those_of_numpy_but_for_the_device(
    fake: Callable[..., FakeDriver], dtype: str, version: tuple[int, int] | None
) -> None:
    fake()
    given = X.astype(dtype)
    x = wf.to_device(given, "gpu:0")
    assert x.__dlpack_device__() == (2, 0)
    made = x.__dlpack__(stream=1, max_version=version)
    wanted = given.__dlpack__(max_version=version)
    mine, theirs = _struct(made), _struct(wanted)
    assert mine.tensor.data + mine.tensor.byte_offset == x._held.address
    assert (mine.tensor.device_type, mine.tensor.device_id) == (2, 0)
    for field in ("ndim", "code", "bits", "lanes"):
        assert getattr(mine.tensor, field) == getattr(theirs.tensor, field), field
    assert mine.tensor.shape[:2] == [3, 4]
    assert not mine.tensor.strides or mine.tensor.strides[:2] == [4, 1]
    if version is not None:
        assert mine.major == 1
        assert (mine.flags, theirs.flags) == (1, 0)  # read-only


def test_bfloat16_and_copies(fake: Callable[..., FakeDriver]) -> None:
    fake()
    x = wf.to_device(wf.asarray([1.0, -2.5]).astype(wf.bfloat16), "gpu:0")
    shared = _struct(kept := x.__dlpack__(max_version=(1, 0)))
    assert (shared.tensor.code, shared.tensor.bits) == (4, 16)
    copied = _struct(other := x.__dlpack__(max_version=(1, 0), copy=True))
    assert copied.tensor.data != shared.tensor.data
    assert (copied.flags, copied.tensor.code) == (2, 4)  # the consumer's own, may be written
    assert not hasattr(x, "__cuda_array_interface__")
    del kept, other


@pytest.mark.parametrize("stream", [OWN, 2, 1, None])
def test_the_consumers_stream_waits_for_the_value(
    fake: Callable[..., FakeDriver], stream: int | None
) -> None:
    api = fake()
    y = on_gpu(lambda x: x * 2.0)(X)
    capsule = y.__dlpack__(stream=stream, max_version=(1, 0))
    address = _struct(capsule).tensor.data
    device = registry.gpu(0)
    assert address in api.pending  # nothing has happened yet
    device.begin()
    api.cuStreamSynchronize(api.CUstream(1 if stream is None else stream))
    np.testing.assert_array_equal(api.view(address, 48).view(np.float32), X.ravel() * 2)


def test_streams_that_are_none_and_devices_that_are_others(fake: Callable[..., FakeDriver]) -> None:
    fake()
    y = wf.to_device(X, "gpu:0")
    for wrong in (0, -2, "1"):
        with pytest.raises(ValueError, match=r"0 could mean two of them"):
            y.__dlpack__(stream=wrong)
    y.__dlpack__(stream=-1)  # the consumer takes care
    with pytest.raises(BufferError, match=r"f32\[3,4\] on gpu:0 is on DLPack device \(2, 0\)"):
        y.__dlpack__(dl_device=(2, 1))
    with pytest.raises(BufferError, match="without a copy"):
        y.__dlpack__(dl_device=(1, 0), copy=False)
    host = np.from_dlpack(y, device="cpu")
    np.testing.assert_array_equal(host, X)
    assert not host.flags.writeable
    assert np.from_dlpack(y, device="cpu", copy=True).flags.writeable


@pytest.mark.parametrize("stream", [OWN, -1])
def test_memory_is_not_used_again_before_the_consumer_is_done(
    fake: Callable[..., FakeDriver], stream: int
) -> None:
    api = fake()
    y = wf.to_device(X, "gpu:0")
    y.block_until_ready()
    capsule = y.__dlpack__(stream=stream, max_version=(1, 0))
    address, device, read = _struct(capsule).tensor.data, registry.gpu(0), list[Array]()
    device.begin()
    own = api.CUstream(1 if stream < 0 else stream)
    del y
    gc.collect()
    device.allocate(8, "a test")
    device.synchronize()
    assert address in api.blocks  # the capsule holds it
    api._put(own, lambda: read.append(api.view(address, 48).view(np.float32).copy()))
    del capsule  # its kernel may be running yet
    gc.collect()
    device.allocate(8, "a test")
    device.synchronize()
    assert address not in api.blocks
    np.testing.assert_array_equal(read, [X.ravel()])


@pytest.mark.parametrize("version", [13000, 12040])
def test_a_stream_that_is_gone_is_not_asked(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """The kernels' stream waits for all of the context; the host where CUDA has no event for that,
    and once for all arrays that went."""
    monkeypatch.setattr(FakeDriver, "CUDA_VERSION", version // 1000 * 1000)
    api = fake(version=version)
    arrays = [wf.to_device(X, "gpu:0") for _ in range(3)]
    device = registry.gpu(0)
    capsules = [y.__dlpack__(stream=OWN) for y in arrays]
    addresses = {y._held.address for y in arrays}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "CUstream", None)
        arrays.clear(), capsules.clear()
        gc.collect()
        device.allocate(8, "a test")
    device.synchronize()
    assert not addresses & set(api.blocks)
    asked = "cuCtxRecordEvent" if version >= 12050 else "cuCtxSynchronize"
    assert [name for name in api.calls if name.startswith("cuCtx")] == [asked]


def test_the_interface_names_the_stream_that_makes_the_value(
    fake: Callable[..., FakeDriver],
) -> None:
    fake()
    y = on_gpu(lambda x: x + 1.0)(X)
    device = registry.gpu(0)
    assert y.__cuda_array_interface__ == {
        "shape": (3, 4), "typestr": "<f4", "data": (y._held.address, True), "strides": None,
        "stream": device.stream, "version": 3,
    }  # fmt: skip
    assert not hasattr(y, "__array_interface__")  # it is no memory of the host


@pytest.mark.parametrize("size", [12, 3000])  # a small result, and a large one
def test_who_was_told_the_address_may_be_at_it_yet(
    fake: Callable[..., FakeDriver], size: int
) -> None:
    api = fake()
    x = np.arange(size, dtype=np.float32)
    y = on_gpu(lambda x: x + 1.0)(x)
    device, read = registry.gpu(0), list[Array]()
    told = y.__cuda_array_interface__
    assert told == y.__cuda_array_interface__
    address, default = told["data"][0], api.CUstream(1)
    device.precede(1, y._held.ready)  # as the other library has its stream wait for told["stream"]
    api._put(default, lambda: read.append(api.view(address, 4 * size).view(np.float32).copy()))
    del y  # and its kernel has not begun
    gc.collect()
    device.allocate(8, "a test")
    device.synchronize()
    api.cuStreamSynchronize(default)
    np.testing.assert_array_equal(read, [x + 1])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", [ByDlpack, ByInterface])
@pytest.mark.parametrize("old", [False, True])
def test_arrays_of_others_are_read_where_they_are(
    fake: Callable[..., FakeDriver], kind: type[Other], old: bool
) -> None:
    api = fake()
    f, three = on_gpu(lambda x, k: x * k), wf.to_device(np.float32(3), "gpu:0")
    api.calls.clear()
    for k in range(4):
        x = kind(api, X + np.float32(k))
        x.old = old  # type: ignore[attr-defined]
        with wf.transfer_guard("disallow"):
            y = f(x, three)
        assert "upload" not in api.calls
        assert not x.gone
        back = x.stream if kind is ByInterface else x.default
        if k % 2:
            x.write(np.zeros_like(X), back)  # its owner goes on with it
            x.wait(back)
        np.testing.assert_array_equal(y, (X + k) * 3)


@pytest.mark.usefixtures("large")
def test_the_owner_is_told_when_a_step_has_read_its_memory(
    fake: Callable[..., FakeDriver],
) -> None:
    api = fake()
    f = on_gpu(lambda x: x * 2.0)
    x = ByDlpack(api, X)
    gone = x.gone
    y = f(x)
    del x
    gc.collect()
    f(wf.to_device(X, "gpu:0"))
    assert not gone  # the device has not come to it
    registry.gpu(0).synchronize()
    gc.collect()
    assert gone == ["deleted"]
    np.testing.assert_array_equal(y, X * 2)


def test_from_dlpack_holds_the_memory(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    x = ByDlpack(api, X)
    shared = wf.from_dlpack(x)
    assert isinstance(shared, wf.DeviceArray)
    assert shared._held.address == x.address
    assert (shared.device, shared.shape, shared.dtype) == ("gpu:0", (3, 4), wf.float32)
    np.testing.assert_array_equal(shared, X)
    for _ in range(3):
        np.testing.assert_array_equal(on_gpu(lambda x: x + 1.0)(shared), X + 1)
    assert not x.gone
    own: Any = wf.from_dlpack(x, copy=True)
    assert own._held.address != x.address
    host = wf.from_dlpack(x, device="cpu")
    assert type(host) is wf.Tensor
    with pytest.raises(BufferError, match="copy=False"):
        wf.from_dlpack(x, device="cpu", copy=False)
    del shared
    registry.gpu(0).synchronize()
    gc.collect()
    assert x.gone == ["deleted"] * 4
    np.testing.assert_array_equal(own, X)
    np.testing.assert_array_equal(host, X)
    sent = wf.from_dlpack(X, device="gpu:0")
    assert isinstance(sent, wf.DeviceArray)


@pytest.mark.parametrize("kind", [ByDlpack, ByInterface])
def test_the_owner_goes_on_when_its_array_has_been_copied(
    fake: Callable[..., FakeDriver], kind: type[Other]
) -> None:
    copies: list[Callable[[Any], Any]] = [
        lambda x: wf.to_device(x, "gpu:1"), copy.deepcopy,
        lambda x: wf.compile(device="gpu:1")(lambda x: x * 1.0)(x),
    ]  # fmt: skip
    for peers in (True, False):
        for made in copies:
            api = fake(devices=2, peers=peers)
            x = kind(api, X)
            shared: Any = x
            if made is copy.deepcopy:
                shared = wf.to_device(x, "gpu:0")
            y = made(shared)
            back = x.stream if kind is ByInterface else x.default
            x.write(np.zeros_like(X), back)
            x.wait(back)
            np.testing.assert_array_equal(y, X)


@pytest.mark.usefixtures("large")
def test_memory_that_begins_anywhere(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    f = on_gpu(lambda x: x * 2.0)
    for offset in (4, 16, 128, 256):
        x = ByDlpack(api, X, offset=offset)
        f(x)
        np.testing.assert_array_equal(f(x), X * 2)


def test_bfloat16_of_others(fake: Callable[..., FakeDriver]) -> None:
    fake()
    x = wf.to_device(wf.asarray([1.0, -2.5]).astype(wf.bfloat16), "gpu:0")

    class Same:
        """Which is not weft's."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **options: Any) -> Any:
            return x.__dlpack__(**options)

    shared: Any = wf.from_dlpack(Same())
    assert shared.dtype is wf.bfloat16
    assert shared._held.address == x._held.address
    assert shared.tolist() == [1.0, -2.5]


def test_what_cannot_be_shared_is_said(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    f = on_gpu(lambda x: x * 2.0)

    class Torn(ByDlpack):
        def __dlpack__(self, **_: Any) -> Any:
            return self

    class Refused(ByDlpack):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("it requires a gradient")

    masked, strided = ByInterface(api, X), ByInterface(api, X)
    masked.more, strided.more = {"mask": object()}, {"strides": (4, 12)}
    nowhere = ByInterface(api, X)
    nowhere.more = {"data": (8, False)}
    dates = ByInterface(api, X.astype("datetime64[s]"))
    turned, null = ByInterface(api, X.astype(">f4")), ByInterface(api, X)
    null.more = {"data": (0, False)}
    cases = [
        (Torn(api, X), "Torn on a GPU cannot be shared: .*no DLPack capsule"),
        (Refused(api, X), "through DLPack: it requires a gradient"),
        (masked, "has a mask"), (strided, "is not contiguous"), (dates, "M8.*is not a weft dtype"),
        (turned, ">f4, have their bytes in another order"), (null, "cannot be taken: data is NULL"),
    ]  # fmt: skip
    for x, words in cases:
        with pytest.raises(wf.errors.TypeRuleError, match=words) as caught:
            f(x)
        assert "test_device_dlpack.py" in str(caught.value)
    with pytest.raises(wf.errors.InvalidArgumentError, match="0x8 is not memory of a GPU"):
        f(nowhere)
    with pytest.raises(wf.errors.InvalidArgumentError, match="no device '/gpu:3'"):
        f(_on_third(api))
    with pytest.raises(wf.errors.TypeRuleError, match="another device"):
        wf.compile(lambda x: x)(ByDlpack(api, X))  # a function for the CPU


def _on_third(api: FakeDriver) -> Other:
    x = ByDlpack(api, X)
    x.device = 3
    return x


def test_a_capsule_is_taken_once(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    capsule = ByDlpack(api, X).__dlpack__(stream=1)

    class Twice:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    wf.from_dlpack(Twice())
    with pytest.raises(wf.errors.TypeRuleError, match="used_dltensor"):
        wf.from_dlpack(Twice())
    for what in (None, 3, np.zeros(1)):
        with pytest.raises(ValueError, match="no DLPack capsule"):
            Fields(what)


@pytest.mark.usefixtures("emulated")
def test_memory_of_an_emulated_device_is_the_hosts() -> None:
    y = on_gpu(lambda x: x * 2.0)(X)
    assert y.__dlpack_device__() == (1, 0)
    shared = np.from_dlpack(y)
    assert shared.ctypes.data == y._held.address
    assert not shared.flags.writeable
    own = np.from_dlpack(y, copy=True)
    assert own.ctypes.data != y._held.address
    with pytest.raises(ValueError, match="has no stream"):
        y.__dlpack__(stream=1)
    with pytest.raises(AttributeError, match="/gpu:0 is emulated"):
        y.__cuda_array_interface__  # noqa: B018
    address = y._held.address
    del y
    gc.collect()
    registry.gpu(0).allocate(8, "a test")
    np.testing.assert_array_equal(shared, X * 2)
    assert address == shared.ctypes.data
    np.testing.assert_array_equal(on_gpu(lambda x: x + 1.0)(shared), X * 2 + 1)  # as any array

    class There:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(wf.errors.TypeRuleError, match="/gpu:0 is emulated"):
        on_gpu(lambda x: x)(There())


@pytest.mark.usefixtures("emulated")
def test_torch_shares_the_memory_of_an_emulated_device() -> None:
    torch = pytest.importorskip("torch")
    y = on_gpu(lambda x: x * 2.0)(X)
    shared = torch.from_dlpack(y)
    assert shared.data_ptr() == y._held.address
    half = on_gpu(lambda x: wf.astype(x, wf.bfloat16))(X)
    assert torch.from_dlpack(half).dtype is torch.bfloat16
    del y
    gc.collect()
    np.testing.assert_array_equal(shared.numpy(), X * 2)
    np.testing.assert_array_equal(on_gpu(lambda x: x + 1.0)(shared), X * 2 + 1)


@pytest.mark.usefixtures("emulated")
def test_arrays_of_others_on_the_host_go_to_a_gpu() -> None:
    class Host:
        def __init__(self, given: Array) -> None:
            self.given = given

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **options: Any) -> Any:
            if self.given.dtype == wf.bfloat16.numpy:
                raise BufferError("it requires a gradient")
            return self.given.__dlpack__(**options)

    given = np.asfortranarray(X)
    moved = wf.to_device(Host(given), "gpu:0"), wf.from_dlpack(Host(given), device="gpu:0")
    given[...] = 0
    for x in moved:
        np.testing.assert_array_equal(x, X)
    with pytest.raises(wf.errors.TypeRuleError, match="it requires a gradient"):
        wf.to_device(Host(X.astype(wf.bfloat16.numpy)), "gpu:0")
    torch = pytest.importorskip("torch")
    half = wf.to_device(torch.ones(3, dtype=torch.bfloat16), "gpu:0")
    assert half.dtype is wf.bfloat16


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_fields_of_torchs_own_capsules(version: tuple[int, int] | None) -> None:
    torch = pytest.importorskip("torch")
    options = {} if version is None else {"max_version": version}
    capsule = torch.zeros(3, dtype=torch.bfloat16).__dlpack__(**options)
    fields = Fields(capsule)
    assert fields.device == (1, 0)
    assert fields.is_bfloat16
    fields.device = 2, 5
    held = _struct(capsule)
    assert (held.tensor.device_type, held.tensor.device_id, held.tensor.ndim) == (2, 5, 1)
    fields.device = 1, 0


def test_a_device_array_of_a_second_gpu(fake: Callable[..., FakeDriver]) -> None:
    api = fake(devices=2)
    x = ByDlpack(api, X, device=1)
    shared = wf.from_dlpack(x)
    assert shared.device == "gpu:1"
    assert isinstance(registry.gpu(1), CudaDevice)
    with (
        wf.transfer_guard("disallow"),
        pytest.raises(
            wf.errors.FailedPreconditionError,
            match=r"argument x of .* an array of gpu:1 .* to gpu:0",
        ),
    ):
        on_gpu(lambda x: x * 2.0)(shared)
    np.testing.assert_array_equal(on_gpu(lambda x: x * 2.0)(shared), X * 2)
    np.testing.assert_array_equal(wf.to_device(shared, "gpu:0"), X)
