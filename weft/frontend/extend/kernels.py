"""`wf.register_kernel`: native code for a registered op, as a Python function for Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.codegen.kernels.user_kernels import DEVICES, add_kernel
from weft.frontend.extend.ops import op_name
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import InvalidArgumentError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.ir.ops import lookup

Function = Callable[..., Any]


def register_kernel(
    op: object, device: str = "cpu", dtypes: Any = None, *, replace: bool = False
) -> Callable[[Function], Function]:
    """Decorate a plain Python function in Numba's nopython subset: what runs in compiled code.

    It is called as `fn(*operands, *results, **attributes)` with C-contiguous NumPy arrays: operands
    are read-only, results uninitialised, to be filled whole. For an op that is elementwise it is
    called as `fn(*numbers, **attributes)` for one element and returns the result's, on any threads.
    dtypes: a dtype, or a list of what the kernel is for: dtypes (of all operands) and tuples of one
    dtype for each operand; None: any. A kernel for the very dtypes goes before one for any.

    Numba compiles it when a compiled function first needs it; the machine code is never kept on
    disk. What it raises ends the step with UnknownError. NotFoundError if the op is not registered,
    AlreadyExistsError if there is a kernel for some of the dtypes, UnsupportedError for a device
    that weft does not have.
    """
    try:
        name = op_name(op)
        if device not in DEVICES:
            raise UnsupportedError(
                f"wf.register_kernel: there is no device {device!r}",
                hint=f"weft has {', '.join(map(repr, DEVICES))}",
            )
        rows = _rows(name, dtypes)
    except WeftError as error:
        raise error.at(caller_location()) from None

    def decorate(function: Function) -> Function:
        try:
            if not callable(function):
                raise InvalidArgumentError(
                    f"a kernel of op '{name}' must be a Python function, got {function!r}"
                )
            add_kernel(name, function, device, rows, replace=replace)
        except WeftError as error:
            raise error.at(caller_location()) from None
        return function

    return decorate


def _rows(op: str, dtypes: Any) -> tuple[tuple[DType, ...], ...] | None:
    if dtypes is None:
        return None
    given = dtypes if isinstance(dtypes, (list, set, frozenset)) else [dtypes]
    rows = [tuple(map(as_dtype, d)) if isinstance(d, tuple) else (as_dtype(d),) for d in given]
    arity = lookup(op).arity
    for row in rows:
        if not row or (len(row) > 1 and arity is not None and len(row) != arity):
            raise InvalidArgumentError(
                f"wf.register_kernel: dtypes has {len(row)} dtypes for op '{op}', which takes "
                f"{arity} operands",
                hint="a dtype alone is that of all operands; a tuple has one for each",
            )
    if not rows:
        raise InvalidArgumentError("wf.register_kernel: dtypes is empty; None stands for any")
    return tuple(dict.fromkeys(rows))
