"""`wf.register_op`: an op of the user's own, with a type rule and a meaning in NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from weft.codegen.kernels.lowerings import LOWERINGS
from weft.codegen.kernels.user_kernels import lower_registered, remove_kernels
from weft.frontend.extend.schema import (
    as_attribute,
    check_name,
    of_numpy,
    of_weft,
    read_schema,
)
from weft.frontend.ops.dispatch import apply_many
from weft.frontend.ops.promotion import broadcast_tensors, promote_tensors, strong_tensor
from weft.frontend.tensor import Tensor
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import as_dtype
from weft.ir.errors import (
    GradientError,
    InvalidArgumentError,
    NotFoundError,
    ShapeError,
    TypeRuleError,
    UnknownError,
    WeftError,
)
from weft.ir.graph import Block
from weft.ir.interpreter.evaluate import type_of
from weft.ir.locations import caller_location
from weft.ir.ops import REGISTERED, lookup, register, registration, unregister
from weft.ir.sizes import fixed
from weft.ir.spec import Attrs, AttrSpec, OpSpec, tensors
from weft.ir.types import TensorType, Type
from weft.passes.autodiff.rule import Site
from weft.passes.autodiff.table import GRADIENTS

Array = np.ndarray[Any, Any]


def register_op(
    name: str,
    *,
    reference: Callable[..., Any],
    type_rule: Callable[..., Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
    elementwise: bool = False,
    doc: str = "",
    replace: bool = False,
) -> RegisteredOp:
    """Add an op to weft; returns the function that calls it: eagerly, in wf.compile, in wf.Graph.

    reference(*arrays, **attributes): what the op means, in NumPy; its parameters that are no
    attributes name the operands (`*args`: any number). It must be a pure function: it returns an
    array, or a tuple of arrays if there are several results.
    type_rule(*types, **attributes): from the operands' wf.TensorType to the result's, or a tuple of
    several; (dtype, shape) will do for a type. elementwise: operands promote to one dtype and
    broadcast; without type_rule the result is like them.
    attrs: name -> kind or (kind, default), the kinds as in docs/extending.md; given by keyword.
    replace: take the place of an op that was registered before, with its kernels and gradient.

    Raises AlreadyExistsError if there is such an op, InvalidArgumentError for what does not fit.
    """
    try:
        made = _checked(name, reference, type_rule, attrs or {}, elementwise, doc)
        spec, inputs = made
        again = REGISTERED.get(name)
        register(spec, inputs, elementwise, replace=replace)
    except WeftError as error:
        raise error.at(caller_location()) from None
    if again is not None:
        remove_kernels(name)
    GRADIENTS[name] = _no_gradient
    LOWERINGS[name] = lower_registered
    return RegisteredOp(name, _caller_module())


def unregister_op(name: str) -> None:
    """Take an op that was registered out of weft, with its kernels and gradient. NotFoundError."""
    unregister(name)
    remove_kernels(name)
    del GRADIENTS[name], LOWERINGS[name]


class RegisteredOp:
    """The function of a registered op. A pickle holds its name: whoever loads it must have
    registered the op."""

    def __init__(self, name: str, module: str = "") -> None:
        spec = lookup(name)
        self.__name__ = self.__qualname__ = name
        self.__module__ = module
        self.__doc__ = spec.doc
        inputs = registration(name).inputs
        kinds = inspect.Parameter
        positional = (
            [kinds("operands", kinds.VAR_POSITIONAL)]
            if inputs is None
            else [kinds(n, kinds.POSITIONAL_ONLY) for n in inputs]
        )
        self.__signature__ = inspect.Signature(
            [*positional, *(kinds(n, kinds.KEYWORD_ONLY) for n in spec.attrs)]
        )

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        name = self.__name__
        try:
            inputs = registration(name).inputs
            if inputs is not None and len(operands) != len(inputs):
                raise TypeRuleError(
                    f"op '{name}' takes {len(inputs)} operands ({', '.join(inputs)}), "
                    f"got {len(operands)}",
                    hint="attributes are given by keyword",
                )
            schema = lookup(name).attrs
            given = {
                n: as_attribute(name, n, schema[n], v) if n in schema else v
                for n, v in attrs.items()
            }
            results = apply_many(name, self._tensors(operands), given)
        except WeftError as error:
            raise error.at(caller_location()) from error.__cause__
        return results[0] if len(results) == 1 else results

    def _tensors(self, operands: Sequence[Any]) -> list[Tensor]:
        if not registration(self.__name__).elementwise:
            return [strong_tensor(x) for x in operands]
        held = promote_tensors(*operands, op=self.__name__)
        return broadcast_tensors(*held, op=self.__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        return RegisteredOp, (self.__name__, self.__module__)

    def __repr__(self) -> str:
        return f"<registered op {self.__name__}{self.__signature__}>"


def op_name(op: object) -> str:
    """The name of a registered op that is given by name or by its function."""
    found = op.__name__ if isinstance(op, RegisteredOp) else op
    if not isinstance(found, str):
        raise InvalidArgumentError(f"an op is given by its name or its function, got {op!r}")
    registration(found)
    return found


def _caller_module() -> str:
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("weft."):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


# ------------------------------------------------------------------------------------- the op's row
def _checked(
    name: str,
    reference: Callable[..., Any],
    type_rule: Callable[..., Any] | None,
    attrs: Mapping[str, Any],
    elementwise: bool,
    doc: str,
) -> tuple[OpSpec, tuple[str, ...] | None]:
    check_name(name, "the name of an op")
    schema = read_schema(name, attrs)
    if not callable(reference):
        raise InvalidArgumentError(f"op '{name}': reference must be a function, got {reference!r}")
    if type_rule is None and not elementwise:
        raise InvalidArgumentError(
            f"op '{name}' needs a type_rule",
            hint="type_rule=lambda x: wf.TensorType(x.dtype, x.shape), say, or elementwise=True",
        )
    inputs = _operands(name, reference, schema)
    if elementwise and inputs == ():
        raise InvalidArgumentError(f"op '{name}' is elementwise and has no operands")
    rule = _Rule(name, type_rule, elementwise)
    return (
        OpSpec(
            name,
            None if inputs is None else len(inputs),
            rule.infer,
            _Meaning(name, reference, rule),
            doc or inspect.getdoc(reference) or f"The registered op '{name}'.",
            schema,
            frozenset({"no_fold"}),  # the reference runs where the user calls it, nowhere else
        ),
        inputs,
    )


def _operands(
    name: str, reference: Callable[..., Any], schema: Mapping[str, AttrSpec]
) -> tuple[str, ...] | None:
    """The names of the operands; None: any number. InvalidArgumentError if an attribute is no
    parameter of the reference."""
    try:
        parameters = inspect.signature(reference).parameters.values()
    except (TypeError, ValueError):  # a function in C that does not tell: a NumPy ufunc does
        count = getattr(reference, "nin", None)
        return None if count is None else tuple(f"x{i}" for i in range(count))
    kinds = inspect.Parameter
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        found = None
    else:
        by_place = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        found = tuple(
            p.name for p in parameters
            if p.kind in by_place and p.name not in schema and p.default is kinds.empty
        )  # fmt: skip
    if isinstance(reference, np.ufunc):
        return tuple(f"x{i}" for i in range(reference.nin))
    names = {p.name for p in parameters if p.kind is not kinds.POSITIONAL_ONLY}
    missing = [n for n in schema if n not in names]
    if missing and not any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        raise InvalidArgumentError(
            f"op '{name}': the reference has no parameter for the attribute '{missing[0]}'"
        )
    return found


class _Rule:
    """The type rule, between the IR and the user's function."""

    def __init__(self, name: str, function: Callable[..., Any] | None, elementwise: bool) -> None:
        self.name, self.function, self.elementwise = name, function, elementwise

    def infer(
        self, types: Sequence[Type], attrs: Attrs, regions: Sequence[Block] = ()
    ) -> list[Type]:
        """The result types. What the user's function raises is told of, and kept as the cause."""
        given = tensors(self.name, types)
        alike = self._alike(given) if self.elementwise else None
        if self.function is None and alike is not None:
            return [alike]
        assert self.function is not None  # `_checked` wants a rule of ops that are not elementwise
        listed = ", ".join(map(str, given))
        plain = [TensorType(t.dtype, fixed(t.shape)) for t in given]  # users' code: Python's own
        attrs = {name: fixed(value) for name, value in attrs.items()}
        try:
            made = self.function(*plain, **of_weft(attrs))
        except WeftError:
            raise
        except Exception as error:
            kind = ShapeError if isinstance(error, ValueError) else TypeRuleError
            raise kind(
                f"op '{self.name}' ({listed}): its type rule raised {type(error).__name__}: {error}"
            ) from error
        several = isinstance(made, (list, tuple)) and not _is_pair(made)
        found = [self._type(t, listed) for t in (made if several else (made,))]
        if alike is not None and [t.shape for t in found] != [alike.shape]:
            raise TypeRuleError(
                f"op '{self.name}' ({listed}) is elementwise; its type rule gave "
                f"({', '.join(map(str, found))})",
                hint="such an op has one result, of its operands' shape",
            )
        return list(found)

    def _alike(self, given: Sequence[TensorType]) -> TensorType:
        if any(t.dtype is not given[0].dtype for t in given):
            raise TypeRuleError(f"op '{self.name}' takes operands of one dtype")
        if any(t.shape != given[0].shape for t in given):
            raise ShapeError(f"op '{self.name}' takes operands of one shape")
        return given[0]

    def _type(self, made: Any, listed: str) -> TensorType:
        try:
            if isinstance(made, TensorType):
                made = (made.dtype, made.shape)
            dtype, shape = made
            sizes = tuple(d if d is None or isinstance(d, SymbolicDim) else int(d) for d in shape)
            if not any(isinstance(d, int) and d < 0 for d in sizes):
                return TensorType(as_dtype(dtype), sizes)
        except (TypeError, ValueError):
            pass
        raise TypeRuleError(
            f"op '{self.name}' ({listed}): its type rule gave {made!r}, which is no type",
            hint="return wf.TensorType(dtype, shape), or a tuple of them for several results",
        )


def _is_pair(made: Sequence[Any]) -> bool:
    """Whether it is (dtype, shape), not two types."""
    return (
        len(made) == 2
        and not isinstance(made[0], (TensorType, tuple, list))
        and isinstance(made[1], (tuple, list))
    )


class _Meaning:
    """The reference, between the interpreter and the user's function."""

    def __init__(self, name: str, function: Callable[..., Any], rule: _Rule) -> None:
        self.name, self.function, self.rule = name, function, rule

    def __call__(self, arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
        wanted = self.rule.infer([type_of(a) for a in arrays], attrs)
        try:
            made = self.function(*arrays, **of_numpy(attrs))
        except (WeftError, MemoryError):
            raise
        except Exception as error:
            raise user_error(f"the reference of op '{self.name}'", error) from error
        several = isinstance(made, (list, tuple))
        if several and len(wanted) == 1 and len(made) != 1:
            made, several = np.asarray(made), False
        results = [np.asarray(r) for r in made] if several else [np.asarray(made)]
        given = [type_of(r) for r in results]
        if list(map(str, given)) != list(map(str, wanted)):
            raise InvalidArgumentError(
                f"the reference of op '{self.name}' gave ({', '.join(map(str, given))}), its type "
                f"rule says ({', '.join(map(str, wanted))})"
            )
        return results


_CLASSES: tuple[tuple[type[Exception], type[WeftError]], ...] = (
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (LookupError, NotFoundError),
)


def user_error(what: str, error: Exception) -> WeftError:
    """What a function of the user's raised, as an error of weft's: of the class that TensorFlow's
    py_function maps it to, else UnknownError."""
    for cls, mapped in _CLASSES:
        if isinstance(error, cls):
            return mapped(f"{what} raised {type(error).__name__}: {error}")
    return UnknownError(f"{what} raised {type(error).__name__}: {error}")


def _no_gradient(site: Site) -> NoReturn:
    name = site.op.name
    raise GradientError(
        f"op '{name}' has no gradient",
        hint=f"register one: @wf.register_gradient('{name}') above a function (op, *gradients) "
        "that returns the gradient of each operand; or use wf.stop_gradient around it",
        location=site.op.locations,
    )
