"""`wf.DeviceArray`: a tensor whose elements are on a GPU; `wf.to_device` makes one.

Compiled functions on a GPU give and take it. Everything else that a tensor can do works by a copy
on the host, which is made once. `wf.transfer_guard` says which copies between the host and a
device may happen without being asked for, as `jax.transfer_guard` does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import (
    Array,
    DonatedMemory,
    Tensor,
    as_tensor,
    contiguous,
    foreign_array,
)
from weft.ir.device import is_local, local_gpu, named_device, short
from weft.ir.dims import Shape
from weft.ir.dlpack import CPU, is_on_gpu
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import Locations, caller_location
from weft.ir.types import TensorType
from weft.runtime.device.backends.dlpack import borrowed, export, interface

if TYPE_CHECKING:
    from weft.runtime.device.array import DeviceValue
    from weft.runtime.step import Step


LEVELS = ("allow", "log", "disallow")
_log = logging.getLogger("weft.transfers")
_level: ContextVar[str | None] = ContextVar("weft.transfer_guard", default=None)
_of_process = ["allow"]


@contextmanager
def transfer_guard(level: str) -> Iterator[None]:
    """In the block, what is copied between the host and a device by the way is "allow"ed, "log"ged
    (a warning of the logger "weft.transfers", with the line), or "disallow"ed.

    By the way: host arrays and numbers as arguments of a function for a GPU, or as feeds of a step
    there; a `wf.DeviceArray` as a NumPy array, a Python number or condition, in an op outside of
    compiled functions, or as a feed of a step on the CPU; one of another GPU as an argument or a
    feed; what a session fetches from a GPU, which it gives as NumPy arrays; copies between the
    devices of a step of this process that is on several. Asked for, and so never an error:
    `wf.to_device`, `.numpy()`, `.to_device()`, `np.from_dlpack`. Variables, which move to where
    they are used, are not guarded, nor is what the host reads to lead loops and branches.

    It is for the thread (for the context, as in `contextvars`); blocks nest.
    `wf.set_transfer_guard` is for all threads. InvalidArgumentError for another word; what is
    disallowed is a FailedPreconditionError.

    >>> import os
    >>> os.environ["WEFT_EMULATE_GPU"] = "1"  # where there is no GPU
    >>> x = wf.to_device(np.ones(3, np.float32), "gpu:0")
    >>> with wf.transfer_guard("disallow"):
    ...     float(x[0])
    Traceback (most recent call last):
    weft.ir.errors.FailedPreconditionError: an array f32[3] on gpu:0 is copied to the host, by an op
    there or as a Python value, which wf.transfer_guard disallows
      ...
      hint: x.numpy() copies it to the host, and may be used where transfers are disallowed
    >>> del os.environ["WEFT_EMULATE_GPU"]
    """
    token = _level.set(_checked(level, "wf.transfer_guard"))
    try:
        yield
    finally:
        _level.reset(token)


def set_transfer_guard(level: str) -> None:
    """What `wf.transfer_guard` says where no block of it is around: for all threads.

    >>> wf.set_transfer_guard("disallow")  # in all threads, where no block says otherwise
    >>> wf.set_transfer_guard("allow")
    """
    _of_process[0] = _checked(level, "wf.set_transfer_guard")


def _checked(level: str, function: str) -> str:
    if level not in LEVELS:
        raise InvalidArgumentError(
            f"{function}: the level is one of {', '.join(LEVELS)}, not {level!r}",
            location=caller_location(),
        )
    return level


def guarded() -> bool:
    """Whether anything but "allow" holds here."""
    return (_level.get() or _of_process[0]) != "allow"


def transfer(what: str, hint: str) -> None:
    """A copy that nobody asked for is to happen: FailedPreconditionError where it must not."""
    level = _level.get() or _of_process[0]
    if level == "allow":
        return
    place = caller_location()
    if level == "log":
        _log.warning("%s%s", what, f" at {place[0].describe()}" if place else "")
        return
    raise FailedPreconditionError(
        f"{what}, which wf.transfer_guard disallows", hint=hint, location=place
    )


def check_copies(step: Step) -> None:
    """FailedPreconditionError for a copy between a GPU and another device of this process that the
    step makes, where such must not be."""
    for edge in step.copies():
        ends = [short(device).lstrip("/") for device in (edge.src, edge.dst)]
        if any(end.startswith("gpu") for end in ends):
            transfer(
                f"a step of '{step.name}' copies '{edge.tensor}', {edge.type}"
                f"{made_at(edge.locations)}, from {ends[0]} to {ends[1]}",
                "put the ops on one device (explain shows all copies), or run it in "
                '`with wf.transfer_guard("allow"):`',
            )


def made_at(locations: Locations) -> str:
    """Where a value was made, for errors: " (made at model.py:3)"; "" if that is not known."""
    return f" (made at {locations[0].file}:{locations[0].line})" if locations else ""


def host_array(given: Any) -> Array:
    """What a call is given, an array or one on a device, as a contiguous array of the host."""
    return contiguous(given if isinstance(given, np.ndarray) else given.numpy())


_READ = "x.numpy() copies it to the host, and may be used where transfers are disallowed"


class DeviceArray(Tensor):
    """An immutable array in memory of a GPU.

    It may not be computed yet: whoever reads it waits for it, and gets the error if a kernel failed
    before it was there. Functions compiled for its device take it without a copy. Ops outside of
    them, indexing, printing and NumPy run on the host, on a copy that is kept; they count as
    transfers (`wf.transfer_guard`). Not hashable; pickled, it is a tensor of the host.

    >>> import os
    >>> os.environ["WEFT_EMULATE_GPU"] = "1"  # where there is no GPU
    >>> double = wf.compile(lambda x: 2 * x, device="gpu:0")
    >>> y = double(wf.asarray([1.0, 2.0]))
    >>> y
    DeviceArray([2., 4.], dtype=float32, device=gpu:0)
    >>> double(y).numpy()  # y is not copied; the result is, by numpy()
    array([4., 8.], dtype=float32)
    >>> del os.environ["WEFT_EMULATE_GPU"]
    """

    __slots__ = ("_copy", "_held")

    _value = None
    _trace = None
    __hash__ = None  # type: ignore[assignment]  # it is no key of a feed_dict

    def __init__(self, held: DeviceValue, weak: bool = False) -> None:
        self._held, self.weak = held, weak
        self._copy: Array | None = None

    # ------------------------------------------------------------------------------- what is known
    @property
    def _type(self) -> TensorType:
        return self._held.type

    @property
    def dtype(self) -> DType:
        """The element type."""
        return as_dtype(self._held.dtype)

    @property
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return self._held.shape

    @property
    def device(self) -> str:
        """Where it is: "gpu:0"."""
        return self._held.device.name.lstrip("/")

    def describe(self) -> str:
        """Type and device, for messages: `f32[2,3] on gpu:0`."""
        return f"{self._type} on {self.device}"

    def _give(self, held: DeviceValue | DonatedMemory) -> None:
        """Let what holds a donated array's memory, or says where it went, take its place."""
        self._held, self._copy = held, None  # type: ignore[assignment]  # every use of it raises

    def _check_held(self, held: DeviceValue) -> None:
        """After others were told of `held`: the error of an array that another thread has donated
        since. That looks who was told once it has put something else in its place."""
        if self._held is not held:
            self._held.address  # noqa: B018  # raises

    def __repr__(self) -> str:
        if isinstance(self._held, DonatedMemory):
            return f"<DeviceArray donated to '{self._held.function}'>"
        if self._copy is None and guarded():
            return f"<DeviceArray {self.describe()}>"
        body = np.array2string(self._data, separator=", ", prefix="DeviceArray(")
        weak = ", weak" if self.weak else ""
        return f"DeviceArray({body}, dtype={self.dtype.name}{weak}, device={self.device})"

    # ------------------------------------------------------------------------------------- values
    @property
    def _data(self) -> Array:  # type: ignore[override]  # what tensors of the host have
        if self._copy is None:
            transfer(
                f"an array {self.describe()} is copied to the host, by an op there or as a Python "
                "value",
                _READ,
            )
            self._fetch()
        assert self._copy is not None
        return self._copy

    def _fetch(self) -> Array:
        if self._copy is None:
            try:
                self._copy = self._held.numpy()
            except WeftError as error:
                raise error.at(caller_location()) from None
        return self._copy

    def numpy(self) -> Array:
        """The value as a read-only array of the host, copied there once. Waits for it."""
        view = self._fetch().view()
        view.setflags(write=False)
        return view

    def block_until_ready(self) -> DeviceArray:
        """This array, once the device has computed it. InternalError if a kernel failed."""
        try:
            self._held.wait()
        except WeftError as error:
            raise error.at(caller_location()) from None
        return self

    def to_device(self, device: str, /, *, stream: object = None) -> Tensor:
        """A copy on another device; this array if it is there."""
        if stream is not None:
            raise InvalidArgumentError(
                "to_device(stream=): the copy is in the order of what the devices are asked for",
                hint="leave stream out",
                location=caller_location(),
            )
        moved: Tensor = to_device(self, device)
        return moved

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        self._data  # noqa: B018  # a transfer that is guarded, before `numpy`, which is not
        return super().__array__(dtype, copy)

    @property
    def __array_interface__(self) -> NoReturn:
        raise AttributeError("__array_interface__")  # it is not in memory of the host

    @property
    def __array_struct__(self) -> NoReturn:
        raise AttributeError("__array_struct__")

    # ------------------------------------------------------------------------------------- others
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        held = self._held
        made = interface(held)
        self._check_held(held)
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        """(2, number): a CUDA device; (1, 0), the CPU, for the memory of an emulated one."""
        return self._held.device.dlpack

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule, as the array API 2023.12 has it. stream: -1 (the consumer takes care), 1
        (legacy default, also None), 2 (the thread's), or a handle: it waits for the array.

        dl_device: this device, or (1, 0) for a copy on the host. Not copied, the capsule is
        read-only, which consumers that know no DLPack 1.0 cannot be told: they must not write.
        BufferError for another device, or a copy with copy=False.
        """
        own = self.__dlpack_device__()
        wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        held = self._held
        if wanted == own:
            copied = bool(copy)
            made = export(held.copy() if copied else held, stream, max_version, copied=copied)
            self._check_held(held)
            return made
        if wanted != (CPU, 0) or copy is False:
            raise BufferError(
                f"an array {self.describe()} is on DLPack device {own}; it cannot be shown on "
                f"{wanted}"
                f"{' without a copy' if copy is False else ''}"
            )
        if stream is not None and (not isinstance(stream, int) or stream < -1):
            raise ValueError(f"__dlpack__(stream={stream!r}) is no stream")
        return Tensor(held.numpy()).__dlpack__(max_version=max_version, copy=copy)

    def __deepcopy__(self, memo: object) -> DeviceArray:
        return DeviceArray(self._held.copy(), self.weak)

    def __reduce__(self) -> tuple[object, ...]:
        return (Tensor, (self._fetch(), None, None, self.weak))


def to_device(x: Any, device: str) -> Any:
    """`x` on a device: "gpu:0", "gpu:1", ..., or "cpu" for tensors of the host.

    x: a tensor or what `wf.asarray` takes, arrays of other libraries on a GPU, too; or a tree of
    such, whose leaves are moved. What is there already is not copied. Host arrays may change when
    this returns. A copy between GPUs does not pass the host if they reach each other.

    InvalidArgumentError for a device that is not of this process or not there,
    FailedPreconditionError where there is no GPU, ResourceExhaustedError without memory,
    TypeRuleError for what is no array, UnsupportedError for strings.

    >>> import os
    >>> os.environ["WEFT_EMULATE_GPU"] = "1"  # where there is no GPU
    >>> parameters = wf.to_device({"w": [1.0, 2.0], "b": np.float32(0)}, "gpu:0")
    >>> parameters["b"]
    DeviceArray(0., dtype=float32, device=gpu:0)
    >>> wf.to_device(parameters["b"], "cpu")
    Tensor(0., dtype=float32)
    >>> del os.environ["WEFT_EMULATE_GPU"]
    """
    spec = named_device(device)
    number = local_gpu(spec)
    if number is None and not is_local(spec):
        raise InvalidArgumentError(
            f"wf.to_device: {device!r} is no device of this process",
            hint='the devices are "cpu", "gpu:0", "gpu:1", ...',
            location=caller_location(),
        )
    try:
        return pytree.tree_map(lambda leaf: _moved(leaf, number), x)
    except WeftError as error:
        raise error.at(caller_location()) from None


def _moved(x: Any, number: int | None) -> Tensor:
    if not isinstance(x, (Operators, np.ndarray)) and is_on_gpu(x):
        x = borrowed_array(x)
    elif not isinstance(x, (Operators, np.ndarray)) and hasattr(x, "__dlpack__"):
        x = foreign_array(x)  # which knows dtypes that NumPy does not
    if number is None:
        return Tensor(x._fetch(), weak=x.weak) if isinstance(x, DeviceArray) else as_tensor(x)
    # who has no GPU does not wait for these modules when weft is imported
    from weft.runtime.device.array import DeviceValue
    from weft.runtime.device.backends.registry import gpu

    device = gpu(number)
    if isinstance(x, DeviceArray):
        held = x._held.on(device)
        return x if held is x._held else DeviceArray(held, x.weak)
    given = as_tensor(x)
    if given.dtype.name == "string":
        raise UnsupportedError(
            "wf.to_device: a GPU has no arrays of strings", hint="strings stay on the host"
        )
    data = given._concrete("wf.to_device", "return the tensor from the graph first")
    return DeviceArray(DeviceValue.of(data, device, "arrays of wf.to_device"), given.weak)


def borrowed_array(x: Any) -> DeviceArray:
    """An array of another library that is on a GPU, as one of weft on its memory. TypeRuleError,
    with the user's line, for what weft cannot take; errors of `registry.gpu`."""
    kind = f"{type(x).__module__.split('.')[0]} {type(x).__name__}"
    try:
        return DeviceArray(borrowed(x))
    except TypeRuleError as error:
        raise TypeRuleError(
            f"this {kind} on a GPU cannot be shared: {error.what}",
            hint=error.hint, location=caller_location(),
        ) from None  # fmt: skip


def from_device(x: Any, device: str | None, copy: bool | None) -> Tensor:
    """`wf.from_dlpack` of what is on a GPU, or is to be there."""
    held = x if isinstance(x, Tensor) or not is_on_gpu(x) else borrowed_array(x)
    moved: Tensor = held if device is None else to_device(held, device)
    if copy is False and moved is not held:
        raise BufferError(f"wf.from_dlpack(copy=False): the array is not on {device!r}")
    if copy and moved is held:
        return held.__deepcopy__(None)
    return moved


__all__ = ["DeviceArray", "borrowed_array", "from_device", "to_device"]
