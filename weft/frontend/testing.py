"""`wf.testing`: checks of people's own ops (`wf.register_op`): native kernels against the NumPy
reference, gradients against differences."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.codegen.kernels.user_kernels import registered_kernels
from weft.frontend.autodiff.gradients import vjp
from weft.frontend.compile.decorator import compile
from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.core.tensor import as_tensor
from weft.frontend.extend.ops import has_gradient, op_name
from weft.frontend.ops.promotion import is_scalar
from weft.ir.errors import (
    GradientError,
    InvalidArgumentError,
    UnknownError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Graph
from weft.ir.locations import caller_location
from weft.ir.ops import lookup
from weft.ir.program import Program
from weft.passes.differential import tolerance, unequal

__all__ = ["CheckError", "check_op"]

Array = np.ndarray[Any, Any]
#: Of a directional derivative: relative tolerance, and the step of the difference, by the bits of
#: the dtype. A central difference errs by the square of its step, and by rounding over the step.
_DIFFERENCE = {64: (1e-5, 1e-5), 32: (2e-2, 1e-2)}


class CheckError(WeftError, AssertionError):
    """An op is not what its reference says.

    >>> noise = wf.register_op(
    ...     "example_noise", elementwise=True, replace=True, reference=lambda x: np.random.rand(2)
    ... )
    >>> wf.testing.check_op(noise, np.float64([1.0, 2.0]))
    Traceback (most recent call last):
        ...
    weft.frontend.testing.CheckError: the reference of 'example_noise' gives another result 0 ...
    """


def check_op(
    op: Any, *operands: Any, seed: int = 0, rtol: float | None = None, **attrs: Any
) -> list[str]:
    """Check a registered op on these operands, given as to a call of it (a Python float is an array
    of the dtype of the others): a line on each check.

    op: the function that `wf.register_op` gave, or its name. Checked are that the reference leaves
    its operands alone and gives the same twice; that what a compiled function computes is what the
    reference gives, element by element (rtol: relative to the largest one; default: 256 units in
    the last place), for kernels of other floats, too; and that the registered gradient is the
    difference quotient, for each float operand, along a random direction drawn by `seed`, in
    float64 if the op takes that. A missing kernel or gradient is said in its line: weft has no
    fallback. CheckError for what is wrong; errors of the op itself as those of a call;
    UnsupportedError for an op with an attribute that is called as an option here.

    >>> double = wf.register_op(
    ...     "example_double", elementwise=True, replace=True, reference=lambda x: 2 * x
    ... )
    >>> _ = wf.register_kernel(double)(lambda x: x + x)
    >>> wf.testing.check_op(double, np.float32([1.0, 2.0]))[1]
    "kernel of 'example_double' for float32[2]: as the reference"
    """
    name = op_name(op)
    if taken := {"seed", "rtol"} & set(lookup(name).attrs):
        raise UnsupportedError(
            f"'{name}' has the attribute '{min(taken)}', which is an option of check_op",
            hint="register it under another name",
            location=caller_location(),
        )
    function: Callable[..., Any] = op if callable(op) else _function(name)
    operands = _with_arrays(operands)
    places = [i for i, x in enumerate(operands) if not is_scalar(x)]
    arrays = [_array(operands[i]) for i in places]

    def call(*given: Any) -> Any:
        filled = list(operands)
        for i, x in zip(places, given, strict=True):
            filled[i] = x
        return function(*filled, **attrs)

    expected = _reference(name, call, arrays)
    lines = [f"reference of '{name}': pure, {', '.join(map(_kind, expected))}"]
    lines.append(_check_kernel(name, call, arrays, expected, rtol))
    lines += _check_other_kernels(name, call, arrays, rtol)
    lines += _check_gradient(name, call, arrays, np.random.default_rng(seed))
    return lines


def _with_arrays(operands: Sequence[Any]) -> tuple[Any, ...]:
    """The operands with Python floats as arrays of the dtype of the others, so that they are
    checked, too."""
    dtypes = [a.dtype for a in (_array(x) for x in operands if not is_scalar(x))]
    dtype = next((d for d in dtypes if d.kind == "f"), np.dtype(np.float32))
    return tuple([np.asarray(x, dtype) if type(x) is float else x for x in operands])


def _function(name: str) -> Callable[..., Any]:
    from weft.frontend.extend.ops import RegisteredOp

    return RegisteredOp(name)


def _array(x: Any) -> Array:
    array: Array = as_tensor(x).numpy().copy()
    return array


def _kind(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _leaves(made: Any) -> list[Array]:
    return [_array(t) for t in (made if isinstance(made, (tuple, list)) else (made,))]


def _reference(name: str, call: Callable[..., Any], arrays: Sequence[Array]) -> list[Array]:
    tensors = [as_tensor(a) for a in arrays]  # one memory for both calls
    first, second = _leaves(call(*tensors)), _leaves(call(*tensors))
    for number, (before, t) in enumerate(zip(arrays, tensors, strict=True)):
        if wrong := unequal(before, t.numpy(), 0.0):
            raise _wrong(f"the reference of '{name}' changes its operand {number}: {wrong}")
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if wrong := unequal(a, b, 0.0):
            raise _wrong(
                f"the reference of '{name}' gives another result {number} the second time: {wrong}",
                "a reference is a pure function: random numbers are operands",
            )
    return first


def _check_kernel(
    name: str,
    call: Callable[..., Any],
    arrays: Sequence[Array],
    expected: Sequence[Array],
    rtol: float | None,
) -> str:
    compiled = compile(call)
    kinds = ", ".join(map(_kind, arrays))
    try:
        _leave_other_results(compiled, arrays)
        made = _leaves(compiled(*arrays))
    except UnsupportedError as error:
        return f"no kernel of '{name}' for {kinds}: {error.what}"
    graph: Graph = compiled.trace(*arrays)
    allowed = tolerance(Program.of(graph)) if rtol is None else rtol
    for number, (a, b) in enumerate(zip(expected, made, strict=True)):
        if wrong := unequal(a, b, allowed):
            raise _wrong(
                f"the kernel of '{name}' for {kinds} contradicts the reference: result {number} "
                + wrong
            )
    return f"kernel of '{name}' for {kinds}: as the reference"


def _leave_other_results(compiled: Callable[..., Any], arrays: Sequence[Array]) -> None:
    """Call it on other floats: the memory of results, which is used again, must not hold those that
    are wanted, or a kernel that fills a part of it would pass."""
    others = [a * 3 + 1 if a.dtype.kind == "f" else a for a in arrays]
    with contextlib.suppress(UnknownError, InvalidArgumentError):  # a kernel may refuse them
        for made in [_leaves(compiled(*others)) for _ in range(3)]:
            for array in made:
                array.fill(1)


def _check_other_kernels(
    name: str, call: Callable[..., Any], arrays: Sequence[Array], rtol: float | None
) -> list[str]:
    """Kernels that are registered for other floats, on the operands as those."""
    given = {a.dtype for a in arrays}
    lines = []
    for row in dict.fromkeys(r for k in registered_kernels(name) for r in k.dtypes or ()):
        dtypes = [d.numpy for d in (row * len(arrays) if len(row) == 1 else row)]
        if len(dtypes) != len(arrays) or set(dtypes) <= given:
            continue
        pairs = list(zip(arrays, dtypes, strict=True))
        if any(a.dtype != d and (a.dtype.kind, d.kind) != ("f", "f") for a, d in pairs):
            lines.append(f"kernel of '{name}' for {', '.join(map(str, dtypes))}: not checked")
            continue
        others = [a.astype(d) for a, d in pairs]
        lines.append(_check_kernel(name, call, others, _reference(name, call, others), rtol))
    return lines


def _check_gradient(
    name: str, call: Callable[..., Any], arrays: Sequence[Array], random: np.random.Generator
) -> list[str]:
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    if not floats:
        return [f"no gradient of '{name}': no operand is a float"]
    given = _in_float64(call, arrays)
    bits = min(given[i].dtype.itemsize * 8 for i in floats)
    if bits not in _DIFFERENCE:
        return [f"gradient of '{name}' not checked: it takes {bits}-bit floats alone"]
    allowed, step = _DIFFERENCE[bits]

    def floating(*chosen: Any) -> list[Any]:
        filled = list(given)
        for i, x in zip(floats, chosen, strict=True):
            filled[i] = x
        made = call(*filled)
        results = made if isinstance(made, (tuple, list)) else (made,)
        return [y for y in results if as_tensor(y).dtype.is_floating]

    try:
        out, pullback = vjp(floating, *[given[i] for i in floats])
        weights = [np.asarray(random.normal(size=y.shape), _array(y).dtype) for y in out]
        slopes = pullback([as_tensor(w) for w in weights])
    except GradientError as error:
        if has_gradient(name):
            raise _wrong(f"the gradient of '{name}': {error.what}", error.hint) from None
        return [f"no gradient of '{name}': {error.what}"]

    def total(chosen: Sequence[Array]) -> float:
        made: list[Array] = [_array(y).astype(np.float64) for y in floating(*chosen)]
        return float(sum(np.sum(w * y) for w, y in zip(weights, made, strict=True)))

    lines = []
    for number, i in enumerate(floats):
        direction = np.asarray(random.normal(size=given[i].shape), given[i].dtype)
        ends = []
        for sign in (1, -1):
            moved = [given[k] for k in floats]
            moved[number] = np.asarray(given[i] + sign * step * direction, given[i].dtype)
            ends.append(total(moved))
        difference = (ends[0] - ends[1]) / (2 * step)
        slope = float(np.sum(_array(slopes[number]).astype(np.float64) * direction))
        if not abs(slope - difference) <= allowed * (1 + abs(difference)):
            raise _wrong(
                f"the gradient of '{name}' for operand {i} is {slope:.6g} along a random "
                f"direction, where differences of {given[i].dtype} give {difference:.6g}",
                "near a point where it has no gradient (a corner of |x|) try other operands",
            )
        lines.append(f"gradient of '{name}' for operand {i}: as differences of {given[i].dtype}")
    return lines


def _in_float64(call: Callable[..., Any], arrays: Sequence[Array]) -> list[Array]:
    """The operands with float64 in place of floats, if the op takes that."""
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    try:
        call(*wide)
    except WeftError:
        return list(arrays)
    return wide


def _wrong(what: str, hint: str | None = None) -> CheckError:
    return CheckError(what, hint=hint, location=caller_location())


if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
