"""User kernels, which the user's program registered for its ops: which one runs, how it is called.

A kernel is a Python function that Numba compiles (`llvm/numba_kernels.py`), once for each set of
dtypes, ranks and those attributes that are no numbers: sizes and numbers are arguments of the call.
Nothing of it is kept on disk, nor a plan that calls it (`Kernel.emit` has no source file that could
be watched): an edited kernel is never stale."""

from __future__ import annotations

import importlib
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from weft.codegen.call import Address, Arg, KernelCall, Status, cut_call
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel, adopt_kernel
from weft.ir.cost.rates import NS_PER_USER_ELEMENT, streamed
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.errors import AlreadyExistsError, InternalError, UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.ops import lookup, registration
from weft.ir.spec import AttrSpec, AttrValue
from weft.ir.types import TensorType

DEVICES = ("cpu",)


@dataclass(frozen=True, slots=True)
class UserKernel:
    """A registered kernel. dtypes: one for each operand; one alone stands for all operands; None:
    any dtypes."""

    function: Callable[..., Any]
    device: str
    dtypes: tuple[tuple[DType, ...], ...] | None
    number: int

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", "kernel"))

    def describe(self) -> str:
        """The function, where it is, and what it is for."""
        code = getattr(self.function, "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return f"'{self.name}'{where} on {self.device} for {describe_dtypes(self.dtypes)}"

    def takes(self, dtypes: Sequence[DType]) -> bool:
        """Whether it is registered for operands of these dtypes."""
        return self.dtypes is None or any(_fits(row, dtypes) for row in self.dtypes)


def _fits(row: Sequence[DType], dtypes: Sequence[DType]) -> bool:
    return all(d is row[0] for d in dtypes) if len(row) == 1 else tuple(dtypes) == tuple(row)


def describe_dtypes(dtypes: tuple[tuple[DType, ...], ...] | None) -> str:
    """`f32 or (f64, i64)`."""
    if dtypes is None:
        return "any dtypes"
    rows = [r[0].short if len(r) == 1 else f"({', '.join(d.short for d in r)})" for r in dtypes]
    return " or ".join(rows)


_KERNELS: dict[str, list[UserKernel]] = {}
_numbers = itertools.count()


def add_kernel(
    op: str,
    function: Callable[..., Any],
    device: str,
    dtypes: tuple[tuple[DType, ...], ...] | None,
    *,
    replace: bool = False,
) -> None:
    """Register a kernel. AlreadyExistsError where another one is for some of the same dtypes."""
    made = UserKernel(function, device, dtypes, next(_numbers))
    rows = None if dtypes is None else set(dtypes)
    kept: list[UserKernel] = []
    for other in _KERNELS.get(op, ()):
        both = other.dtypes is None if rows is None else bool(rows & set(other.dtypes or ()))
        if not both or other.device != device:
            kept.append(other)
            continue
        if not replace:
            raise AlreadyExistsError(
                f"op '{op}' has a kernel on {device} for {describe_dtypes(dtypes)} already: "
                f"{other.describe()}",
                hint="replace=True registers the new one in its place",
            )
        left = tuple(r for r in other.dtypes or () if rows is not None and r not in rows)
        if left:
            kept.append(UserKernel(other.function, device, left, other.number))
    _KERNELS[op] = [*kept, made]


def registered_kernels(op: str) -> tuple[UserKernel, ...]:
    """The kernels of an op."""
    return tuple(_KERNELS.get(op, ()))


def remove_kernels(op: str) -> None:
    """Forget all kernels of an op; compiled steps keep the code that they call."""
    _KERNELS.pop(op, None)


def choose_kernel(op: Operation) -> tuple[UserKernel, str]:
    """The kernel of an op, and why that one. UnsupportedError if there is none."""
    registered = _KERNELS.get(op.name, [])
    dtypes = [_tensor(v).dtype for v in op.operands]
    fitting = [k for k in registered if k.takes(dtypes)]
    if not fitting:
        raise _no_kernel(op, registered, dtypes)
    exact = [k for k in fitting if k.dtypes is not None]
    chosen = (exact or fitting)[-1]
    others = f"of {len(registered)} registered " if len(registered) > 1 else ""
    listed = ", ".join(dict.fromkeys(d.short for d in dtypes)) or "no operands"
    reason = f"the one {others}for {listed}" if exact else f"the one {others}for any dtypes"
    return chosen, f"kernel {chosen.describe()}: {reason}"


def _no_kernel(
    op: Operation, registered: Sequence[UserKernel], dtypes: Sequence[DType]
) -> UnsupportedError:
    types = ", ".join(str(v.type) for v in op.operands)
    listed = "".join(f"\n    {k.describe()}" for k in registered) or " none"
    wanted = ", ".join(f"wf.{d.name}" for d in dict.fromkeys(dtypes))
    return UnsupportedError(
        f"op '{op.name}' ({types}) has no kernel for these dtypes; registered are:{listed}",
        hint=f"register one with @wf.register_kernel('{op.name}', dtypes=[{wanted}]), convert the "
        "operands with wf.astype, or call it outside @wf.compile, where its reference runs",
        location=op.locations,
    )


def lower_registered(op: Operation) -> list[KernelCall]:
    """The call of the kernel that is registered for an op. UnsupportedError if there is none or
    Numba does not have its dtypes; what is wrong with the function itself as `compile_kernel`."""
    chosen, _ = choose_kernel(op)
    elementwise = registration(op.name).elementwise
    numbers, constants = _split_attributes(op)
    values = (*op.operands, *op.results)
    types = tuple((_tensor(v).dtype.short, _tensor(v).rank) for v in values)
    kinds = tuple((name, kind, len(words)) for name, kind, words in numbers)
    key = f"registered-{chosen.number}-{len(op.operands)}-{types}-{kinds}-{constants!r}"
    compiler = importlib.import_module("weft.codegen.llvm.numba_kernels")

    def make() -> Any:
        signature = compiler.Signature(
            op.name, types[: len(op.operands)], types[len(op.operands) :], kinds, constants,
            elementwise,
        )  # fmt: skip
        return compiler.compile_kernel(chosen.function, signature, op.locations)

    kernel = Kernel(key, chosen.name, AlreadyCompiled())
    adopt_kernel(kernel.key, make)
    args: list[Arg] = [Status()]
    for value in values:
        args += [Address(value), *([] if elementwise else _tensor(value).static_shape)]
    args += [word for _, _, words in numbers for word in words]
    if not elementwise:
        return [KernelCall(kernel, tuple(args))]
    return _elementwise_call(kernel, args, values)


def _elementwise_call(
    kernel: Kernel, args: Sequence[Arg], values: Sequence[Value]
) -> list[KernelCall]:
    held = [_tensor(v) for v in values]
    size = held[-1].nbytes // held[-1].dtype.itemsize
    if not size:
        return []
    nanoseconds = max(NS_PER_USER_ELEMENT, streamed(sum(t.dtype.itemsize for t in held)))
    return [cut_call(kernel, tuple(args), size, nanoseconds)]


class AlreadyCompiled:
    """`emit` of a kernel whose code was adopted."""

    def __call__(self, e: Emitter) -> None:
        raise InternalError("a registered kernel is compiled by Numba, before it is asked for")


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


# --------------------------------------------------------------------------------------- attributes
_NUMBERS = ("int", "float", "bool", "ints", "dim", "shape")


def _split_attributes(
    op: Operation,
) -> tuple[list[tuple[str, str, list[int]]], tuple[tuple[str, object], ...]]:
    """Attributes that are numbers as (name, kind, words of the call), the others as (name, value)
    that the code is compiled for."""
    numbers: list[tuple[str, str, list[int]]] = []
    constants: list[tuple[str, object]] = []
    for name, spec in lookup(op.name).attrs.items():
        value = op.attrs[name]
        if spec.kind in _NUMBERS and value is not None:
            numbers.append((name, spec.kind, _words(value)))
        else:
            constants.append((name, _constant(op, name, spec, value)))
    return numbers, tuple(constants)


def _words(value: AttrValue) -> list[int]:
    if isinstance(value, float):
        return [struct.unpack("q", struct.pack("d", value))[0]]
    if isinstance(value, tuple):
        return [int(v) for v in value]
    assert isinstance(value, int)
    return [int(value)]


def _constant(op: Operation, name: str, spec: AttrSpec, value: AttrValue) -> object:
    if spec.kind == "array":
        raise UnsupportedError(
            f"op '{op.name}': a kernel cannot take the attribute '{name}', which is an array",
            hint="make it an operand",
            location=op.locations,
        )
    return value
