"""`donate=`: arguments whose memory a call takes for its results.

A donated argument is a tensor that nobody sees the memory of in another way: then overwriting it
cannot be noticed, and the tensor itself says what became of it. NumPy arrays are refused, because
the caller would see the array change.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.calls.compiled import Compiled
from weft.frontend.calls.donated import Donated
from weft.frontend.calls.signature import Signature
from weft.frontend.device_array import DeviceArray
from weft.frontend.tensor import Tensor
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.ir.source import caller_location


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
    arrays: Sequence[Any],
) -> None:  # fmt: skip
    """TypeRuleError or InvalidArgumentError for an argument whose memory the call must not take.

    given: the leaves of the arguments; arrays: a list with the array of each, held nowhere else.
    """
    alone = _sole_owner()
    seen: set[int] = set()
    everyone = [id(a) for a in arrays]
    for i in numbers:
        why = ""
        on_device = isinstance(given[i], DeviceArray)
        if on_device or not isinstance(given[i], Tensor):
            raise TypeRuleError(
                f"'{function}' takes the memory of its argument '{paths()[i]}' (donate=), but got "
                f"a {type(given[i]).__name__}",
                hint="pass wf.asarray(x.numpy()), a tensor of the host"
                if on_device
                else "pass a tensor (wf.asarray copies an array into one): the caller would see "
                "anything else change",
                location=caller_location(),
            )
        if id(arrays[i]) in seen or everyone.count(id(arrays[i])) > 1:
            why = "is passed more than once"
        elif not arrays[i].flags.owndata or not arrays[i].flags.writeable:
            why = "shares its memory with another tensor, array or library"
        elif _owners(arrays, i) > alone:
            why = "is seen by an array or a view that was taken from it"
        seen.add(id(arrays[i]))
        if why:
            raise InvalidArgumentError(
                f"the tensor donated to '{function}' as '{paths()[i]}' {why}",
                hint="donate a tensor that only you hold: wf.asarray(x, copy=True) makes one",
                location=caller_location(),
            )


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
    found.executable()  # says if it cannot use the memory
    paths = functools.partial(found.signature.paths, parameters)
    check_donated(function, found.donated, paths, given, arrays)
    try:
        return found.pack(found.run(arrays))
    finally:
        bury(function, found.donated, given)


def bury(function: str, numbers: Sequence[int], given: Sequence[Any]) -> None:
    """Mark the donated tensors: whoever uses one is told where it went."""
    gone = Donated(function, caller_location())
    for i in numbers:
        given[i]._data = None
        given[i]._trace = gone
