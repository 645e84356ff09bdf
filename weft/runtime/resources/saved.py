"""Taking over what `state_dict` gave: it may come from a file that others made or cut."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, string
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.runtime.resources.components import Array, load_arrays


@contextmanager
def reading_state(owner: str) -> Iterator[None]:
    """InvalidArgumentError for what fails in the block because a part is missing or malformed."""
    try:
        yield
    except WeftError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{owner}: the state is not whole: {type(error).__name__}: {error}",
            hint="load what state_dict gave",
        ) from None


def saved_integer(x: Any, least: int = -(2**63)) -> int:
    """`x` as an int of 64 bits, at least `least`. TypeError or ValueError for others."""
    number = operator.index(x)
    if not least <= number < 2**64:
        raise ValueError(f"{number} is out of range")
    return number


def saved_arrays(saved: Any, dtype: DType) -> list[Array]:
    """What `save_arrays` gave for arrays of that dtype. TypeError for others."""
    arrays = load_arrays(saved)
    for array in arrays:
        check_saved(array, dtype)
    return arrays


def check_saved(array: Any, dtype: DType) -> None:
    """TypeError unless it is an array of the dtype, where of strings then of bytes."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype.numpy:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"an array of {dtype.name} was expected, not {kind}")
    if dtype is string and not all(isinstance(x, bytes) for x in array.flat):
        raise TypeError("strings are bytes")
