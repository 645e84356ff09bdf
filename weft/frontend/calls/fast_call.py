"""The quick way from arguments to a key and arrays, for the calls that need no conversion.

A key says all that a signature does, but is cheaper to make: shape and dtype of each array, the
class of each number, the value of each static argument. What is not plain is left to
`signature.leaves_of`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.device_array import DeviceArray
from weft.frontend.tensor import Tensor

NUMBERS = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_BEHAVED = 0x101  # flags of an array that is C-contiguous and aligned
_PLAIN_STATIC = frozenset({int, bool, str, type(None)})  # 0.0 == -0.0 and (1,) == (1.0,): not these


def scan(leaves: Sequence[Any], key: list[Any], arrays: list[Any], on_gpu: bool = False) -> bool:
    """Append the key and the array of each leaf; False at the first one that needs a closer
    look. on_gpu: arrays that are on a device may stay there."""
    for a in leaves:
        kind = type(a)
        if kind is Tensor:
            data = a._data
            if data is None or a.weak:
                return False
        elif kind is np.ndarray:
            data = a
            if data.flags.num & _BEHAVED != _BEHAVED:
                return False
        elif kind in NUMBERS and (kind is not int or _INT_MIN <= a <= _INT_MAX):
            key.append(kind)
            arrays.append(np.array(a, NUMBERS[kind]))
            continue
        elif kind is DeviceArray:
            data = a._held
            if a.weak or not on_gpu:
                return False
        else:
            return False
        key.append(data.shape)  # shape first: a dtype compares equal to the class float
        key.append(data.dtype)
        arrays.append(data)
    return True


class NamedCalls:
    """`scan` for calls with keywords or static arguments of one function."""

    def __init__(self, signature: inspect.Signature, static: frozenset[str], on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = signature.parameters
        self._usable = all(p.kind in plain for p in parameters.values())
        self._position = {name: i for i, name in enumerate(parameters)}
        self._static = static
        self._static_at = frozenset(self._position[name] for name in static)
        self._most = sum(p.kind is plain[0] for p in parameters.values())

    def scan(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], key: list[Any], arrays: list[Any]
    ) -> bool:
        """As the function `scan`; arrays are appended in the order of the parameters."""
        count = len(args)
        if not self._usable or count > self._most:
            return False
        key.append(count)
        dynamic = [a for i, a in enumerate(args) if i not in self._static_at]
        for i in self._static_at:
            if i < count:
                if type(args[i]) not in _PLAIN_STATIC:
                    return False
                key += (type(args[i]), args[i])
        last = count - 1
        for name, value in kwargs.items():
            key.append(name)
            if name in self._static:
                if type(value) not in _PLAIN_STATIC:
                    return False
                key += (type(value), value)
                continue
            position = self._position.get(name, -1)
            if position <= last:  # unknown, given twice, or out of order
                return False
            last = position
            dynamic.append(value)
        return scan(dynamic, key, arrays, self._on_gpu)
