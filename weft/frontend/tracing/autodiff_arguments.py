"""What the functions of `autodiff` are given, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.ops.operators import Operators
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import check_usable, current_trace
from weft.ir.dims import format_shape, same
from weft.ir.errors import GradientError, InvalidArgumentError
from weft.ir.locations import caller_location

ArgNums = int | Sequence[int]


def argument_numbers(argnums: ArgNums) -> tuple[bool, tuple[int, ...]]:
    """Whether it is one position, and the positions. InvalidArgumentError for anything else."""
    single = not isinstance(argnums, (tuple, list))
    given: Any = (argnums,) if single else argnums
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in given):
        raise InvalidArgumentError(
            f"grad: argnums must be a position or a tuple of positions, got {argnums!r}",
            hint="0 is the first argument; arguments are chosen by position, not by name",
            location=caller_location(),
        )
    return single, tuple(int(n) for n in given)


def argument_positions(what: str, numbers: Sequence[int], count: int) -> list[int]:
    for n in numbers:
        if not -count <= n < count:
            raise GradientError(
                f"{what}: argnums {n} is out of range: the function was called with {count} "
                "positional arguments",
                hint="arguments to differentiate must be passed by position",
                location=caller_location(),
            )
    return [n % count for n in numbers]


def inexact_inputs(what: str, leaves: Sequence[Any], paths: Sequence[str]) -> list[Tensor]:
    """The leaves as tensors. GradientError for those that have no gradient."""
    out = []
    for leaf, path in zip(leaves, paths, strict=True):
        t = leaf if isinstance(leaf, Tensor) else _leaf_tensor(what, leaf, path)
        if t._data is None:
            check_usable(t, current_trace())
        check_inexact(t, f"{what}: {path}")
        out.append(t)
    return out


def _leaf_tensor(what: str, leaf: Any, path: str) -> Tensor:
    if isinstance(leaf, (Operators, bool, int, float, complex, np.ndarray, np.generic)):
        return as_tensor(leaf)
    raise GradientError(
        f"{what}: {path} is a {type(leaf).__name__}, which has no gradient",
        hint="choose the arguments to differentiate with argnums",
        location=caller_location(),
    )


def check_inexact(t: Tensor, what: str) -> None:
    if not t.dtype.is_inexact:
        raise GradientError(
            f"{what} is {t.dtype.name}; only floating and complex tensors have gradients",
            hint="convert it first: wf.astype(x, wf.float32)",
            location=caller_location(),
        )


def checked_cotangents(
    tree: Any, structure: pytree.Structure, types: Sequence[Any], what: str = "cotangent"
) -> list[Tensor]:
    """The leaves of a cotangent or tangent, checked against the (dtype, shape) that each must
    have."""
    leaves, given = pytree.flatten(tree)
    pytree.same_structure(f"{what}: what it belongs to and what was given", structure, given)
    out = []
    for leaf, path, (dtype, shape) in zip(leaves, pytree.paths(given, what), types, strict=True):
        t = as_tensor(leaf)
        if t.weak and dtype.is_inexact:
            t = as_tensor(t, dtype)
        fits = len(t.shape) == len(shape) and all(map(same, t.shape, shape))
        if not fits or t.dtype is not dtype:
            raise InvalidArgumentError(
                f"{path} has type {t._type}, but what it belongs to is "
                f"{dtype.short}{format_shape(shape)}",
                hint="it must have the same dtype and shape",
                location=caller_location(),
            )
        out.append(t)
    return out


def function_name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__).strip("<>")
