"""`donate=`: arguments whose memory a call takes for its results.

A donated argument is a tensor that nobody sees the memory of in another way: then overwriting it
cannot be noticed, and the tensor itself says what became of it. NumPy arrays are refused, because
the caller would see the array change.

On a GPU a result is written where a donated array is, or else its memory goes back to the device's
pool when the step has read it. It is taken before the call begins, so that no other thread can hand
it to one; a call that fails before the device is asked for anything gives it back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.calls.compiled import Compiled
from weft.frontend.calls.donated import Donated, DonatedMemory
from weft.frontend.calls.signature import Signature
from weft.frontend.device_array import DeviceArray
from weft.frontend.tensor import Tensor
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.runtime.native.executable import Executable

if TYPE_CHECKING:
    from weft.runtime.device.array import DeviceValue

_COPY = "donate a tensor that only you hold: wf.asarray(x, copy=True) makes one"
_taking = ForkLock()
_DEVICE_COPY = "donate an array that only you hold: copy.deepcopy(x) makes one"


def donated_leaves(
    donate: Sequence[str], signature: Signature, parameters: Sequence[str]
) -> tuple[int, ...]:
    """Which leaves of a signature belong to the arguments named in `donate`."""
    assert signature.structure is not None
    names = [*(signature.names or parameters)]
    out: list[int] = []
    first = 0
    for position, child in enumerate(signature.structure.children):
        count = pytree.count_leaves(child)
        if position < len(names) and names[position] in donate:
            out += range(first, first + count)
        first += count
    return tuple(out)


def _owners(arrays: Sequence[Any], i: int) -> int:
    return sys.getrefcount(arrays[i])


def _sole_owner() -> int:
    """What `_owners` says of an array that one tensor and the list hold."""
    tensor = Tensor(np.zeros(1))
    arrays = [tensor._data]
    return _owners(arrays, 0)


def check_donated(
    function: str, numbers: Sequence[int], paths: Callable[[], Sequence[str]], given: Sequence[Any],
    arrays: Sequence[Any], on_gpu: bool,
) -> None:  # fmt: skip
    """TypeRuleError or InvalidArgumentError for an argument whose memory the call must not take.

    given: the leaves of the arguments; arrays: a list with the array of each, held nowhere else.
    """
    everyone = [id(a) for a in arrays]
    for i in numbers:
        on_device = isinstance(given[i], DeviceArray)
        if (on_device and not on_gpu) or not isinstance(given[i], Tensor):
            raise TypeRuleError(
                f"'{function}' takes the memory of its argument '{paths()[i]}' (donate=), but got "
                f"a {type(given[i]).__name__}",
                hint="pass wf.asarray(x.numpy()), a tensor of the host"
                if on_device
                else "pass a tensor (wf.asarray copies an array into one): the caller would see "
                "anything else change",
                location=caller_location(),
            )
        if everyone.count(id(arrays[i])) > 1:
            raise _seen(function, paths()[i], "is passed more than once", on_device)
        if not on_device and (why := _why_not(arrays, i)):
            raise _seen(function, paths()[i], why, on_device)


def _seen(function: str, path: str, why: str, on_device: bool) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the {'array' if on_device else 'tensor'} donated to '{function}' as '{path}' {why}",
        hint=_DEVICE_COPY if on_device else _COPY,
        location=caller_location(),
    )


def _why_not(arrays: Sequence[Any], i: int) -> str:
    """Why the call must not take the memory of an array of the host; "" if it may."""
    if not arrays[i].flags.owndata or not arrays[i].flags.writeable:
        return "shares its memory with another tensor, array or library"
    if _owners(arrays, i) > _sole_owner():
        return "is seen by an array or a view that was taken from it"
    return ""


def _why_not_there(value: DeviceValue) -> str:
    """The same of an array on a device."""
    from weft.runtime.device.array import Borrowed

    if isinstance(value.memory, Borrowed):
        return "is in memory of another library, which weft has borrowed"
    if value.shown:
        return "has told its address to another library (__cuda_array_interface__)"
    if value.shared:
        return "is shared with another library (DLPack)"
    return ""


def run_donated(
    function: str, parameters: Sequence[str], found: Compiled, given: list[Any], arrays: list[Any]
) -> Any:
    """A call that takes the memory of the leaves `found.donated` of what was `given`."""
    if any(array is None for array in arrays):
        raise UnsupportedError(
            f"'{function}' has donate= and an argument that is part of the signature",
            hint="let the function close over the variable",
            location=caller_location(),
        )
    made = found.executable()  # says if it cannot use the memory
    on_gpu = not isinstance(made, Executable)
    paths = functools.partial(found.signature.paths, parameters)
    check_donated(function, found.donated, paths, given, arrays, on_gpu)
    there = [i for i in found.donated if isinstance(given[i], DeviceArray)]
    _take(function, there, given, arrays)
    try:
        for i in there:
            if why := _why_not_there(arrays[i]):
                raise _seen(function, paths()[i], why, True)
        try:
            return found.pack(found.run(arrays))
        finally:
            bury(function, [i for i in found.donated if i not in there], given)
    except BaseException:
        for i in there:
            if not arrays[i].taken:
                given[i]._give(arrays[i])
        raise


def _take(
    function: str, numbers: Sequence[int], given: Sequence[Any], arrays: Sequence[Any]
) -> None:
    """Let arrays on a device say where they went: `arrays` has what they held."""
    gone = DonatedMemory(function, caller_location())
    with _taking:
        for i in numbers:
            if given[i]._held is not arrays[i]:
                given[i].shape  # noqa: B018  # raises: another thread has donated it
        for i in numbers:
            given[i]._give(gone)


def bury(function: str, numbers: Sequence[int], given: Sequence[Any]) -> None:
    """Mark donated tensors of the host: whoever uses one is told where it went."""
    gone = Donated(function, caller_location())
    for i in numbers:
        given[i]._data = None
        given[i]._trace = gone
