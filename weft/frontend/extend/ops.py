"""`wf.register_op`: an op of the user's own, with a type rule and a meaning in NumPy;
`wf.register_kernel`: native code for it, as a Python function for Numba; `wf.register_gradient`:
its gradient, in wf ops.

The schema says which attributes such an op has: how users declare them, give them, and get
them."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, NoReturn, cast, get_args

import numpy as np

from weft.codegen.kernels.lowerings import LOWERINGS
from weft.codegen.kernels.user_kernels import DEVICES, add_kernel, lower_registered, remove_kernels
from weft.codegen.scalar.replaced_ops import replace_code
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace
from weft.frontend.ops.dispatch import apply_many
from weft.frontend.ops.promotion import broadcast_tensors, promote_tensors, strong_tensor
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import (
    AlreadyExistsError,
    GradientError,
    InvalidArgumentError,
    NotFoundError,
    ShapeError,
    TypeRuleError,
    UnknownError,
    UnsupportedError,
    WeftError,
    suggest,
)
from weft.ir.graph import Block
from weft.ir.interpreter.evaluate import type_of
from weft.ir.locations import caller_location
from weft.ir.ops import OPS, REGISTERED, lookup, register, registration, unregister
from weft.ir.ops.scalar_function import KINDS as SCALAR_DTYPES
from weft.ir.sizes import fixed
from weft.ir.spec import (
    REQUIRED,
    AttrKind,
    Attrs,
    AttrSpec,
    AttrValue,
    ConstArray,
    OpSpec,
    fits,
    tensors,
)
from weft.ir.types import TensorType, Type
from weft.passes.autodiff.rule import Site
from weft.passes.autodiff.table import GRADIENTS
from weft.passes.rewriting.expression import Expr

KINDS: tuple[str, ...] = get_args(AttrKind)
_OF_CLASS = {int: "int", float: "float", bool: "bool", str: "str", DType: "dtype"}


def check_name(name: object, what: str) -> str:
    """A name that Python and the IR's text can both have. InvalidArgumentError."""
    fits = isinstance(name, str) and name.isascii() and name.isidentifier()
    if not fits or keyword.iskeyword(str(name)):
        raise InvalidArgumentError(
            f"{what} must be a Python identifier of ASCII letters, digits and _, got {name!r}"
        )
    return str(name)


def read_schema(op: str, attrs: Mapping[str, Any]) -> dict[str, AttrSpec]:
    """`attrs` of wf.register_op: name -> kind, or (kind, default). InvalidArgumentError."""
    if not isinstance(attrs, Mapping):
        raise InvalidArgumentError(
            f"wf.register_op: attrs of '{op}' must be a dict of name: kind, got {attrs!r}"
        )
    return {check_name(n, f"op '{op}': the name of an attribute"): _read(op, n, given)
            for n, given in attrs.items()}  # fmt: skip


def _read(op: str, name: str, given: Any) -> AttrSpec:
    if isinstance(given, AttrSpec):
        return given
    kind, default = given if isinstance(given, tuple) and len(given) == 2 else (given, REQUIRED)
    kind = _OF_CLASS.get(kind, kind) if isinstance(kind, type) else kind
    if kind not in KINDS:
        close = suggest(kind, KINDS) if isinstance(kind, str) else ""
        raise InvalidArgumentError(
            f"op '{op}': attribute '{name}' is declared as {given!r}{close}",
            hint=f"declare it as a kind, or (kind, default); the kinds are {', '.join(KINDS)}",
        )
    spec = AttrSpec(cast(AttrKind, kind), optional=default is None)
    if default is REQUIRED:
        return spec
    return replace(spec, default=as_attribute(op, name, spec, default))


def as_attribute(op: str, name: str, spec: AttrSpec, value: Any) -> AttrValue:
    """What a user gave, as the IR holds it. TypeRuleError if it is not of the attribute's kind."""
    made: Any = value
    try:
        if isinstance(value, np.generic) and spec.kind != "array":
            made = value.item()
        if spec.kind == "dtype" and value is not None:
            made = as_dtype(value)
        elif spec.kind == "float" and isinstance(made, int) and not isinstance(made, bool):
            made = float(made)
        elif spec.kind in ("ints", "shape", "strs") and isinstance(value, (list, tuple)):
            made = tuple(v.item() if isinstance(v, np.generic) else v for v in value)
        elif spec.kind == "array" and value is not None and not isinstance(value, ConstArray):
            made = ConstArray(np.asarray(value))
    except WeftError as error:
        raise TypeRuleError(f"op '{op}': attribute '{name}': {error.what}") from None
    if not spec.accepts(made):
        raise TypeRuleError(
            f"op '{op}': attribute '{name}' must be of kind {spec.kind}, got {value!r}"
        )
    return cast(AttrValue, made)


def of_weft(attrs: Attrs) -> dict[str, Any]:
    """Attributes as type rules and gradients get them."""
    return {n: v.array if isinstance(v, ConstArray) else v for n, v in attrs.items()}


def of_numpy(attrs: Attrs) -> dict[str, Any]:
    """Attributes as references get them: dtypes are NumPy's."""
    return {n: v.numpy if isinstance(v, DType) else v for n, v in of_weft(attrs).items()}


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
    attrs: name -> kind or (kind, default), the kinds as in docs/guide/extending.md; given by
    keyword. replace: take the place of an op that was registered before, with its kernels and
    gradient.

    Raises AlreadyExistsError if there is such an op, InvalidArgumentError for what does not fit.

    >>> hypot = wf.register_op("example_hypot", reference=np.hypot, elementwise=True, replace=True)
    >>> hypot(wf.asarray([3.0, 6.0]), wf.asarray([4.0, 8.0]))
    Tensor([ 5., 10.], dtype=float32)
    >>> largest = wf.register_op(
    ...     "example_largest", reference=lambda x, k: np.sort(x)[-k:], attrs={"k": (int, 1)},
    ...     type_rule=lambda x, k: wf.TensorType(x.dtype, (k,)), replace=True)
    >>> largest(wf.asarray([3, 9, 4]), k=2)
    Tensor([4, 9], dtype=int64)
    """
    try:
        made = _checked(name, reference, type_rule, attrs or {}, elementwise, doc)
        spec, inputs = made
        again = REGISTERED.get(name)
        module, file = _caller_module()
        register(spec, inputs, elementwise, replace=replace, module=module, file=file)
    except WeftError as error:
        raise error.at(caller_location()) from None
    if again is not None:
        remove_kernels(name)
    GRADIENTS[name] = _no_gradient
    LOWERINGS[name] = lower_registered
    return RegisteredOp(name, module)


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


def _caller_module() -> tuple[str, str]:
    """The module of the user's code that is running, and its file."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("weft."):
        frame = frame.f_back
    if frame is None:
        return "", ""
    return str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename


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


def has_gradient(name: str) -> bool:
    """Whether a gradient is registered for an op."""
    return isinstance(GRADIENTS.get(name), _UserRule)


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
    disk. What it raises ends the step with UnknownError. NotFoundError if there is no such op,
    AlreadyExistsError if there is a kernel for some of the dtypes, UnsupportedError for a device
    that weft does not have.

    An elementwise op of weft's own, by its name in the IR ("tanh"), takes a kernel, too: a function
    of numbers as `wf.elementwise` has them, which fuses where the op would, on CPUs and GPUs, in
    what is compiled from then on. dtypes must be said: of float32, float64, int64, uint64 and bool.
    The op's meaning and gradient stay. UnsupportedError for any other op of weft's.

    >>> cube = wf.register_op(
    ...     "example_cube", reference=lambda x: x * x * x, elementwise=True, replace=True)
    >>> @wf.register_kernel(cube)
    ... def cube_kernel(x):  # one element
    ...     return x * x * x
    >>> wf.compile(lambda x: cube(x) + 1)(wf.asarray([1.0, 2.0]))
    Tensor([2., 9.], dtype=float32)
    """
    try:
        if isinstance(op, str) and op in OPS and op not in REGISTERED:
            return _replacing(op, device, dtypes, replace)
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


def _replacing(op: str, device: str, dtypes: Any, replace: bool) -> Callable[[Function], Function]:
    """The decorator of a kernel for an op of weft's own."""
    if "elementwise" not in OPS[op].traits or op in ("scalar_function", "astype", "bitcast"):
        raise UnsupportedError(
            f"wf.register_kernel: weft's own op '{op}' takes no kernel",
            hint="elementwise ones do; wf.register_op makes an op of your own with any kernel",
        )
    if device not in DEVICES:
        raise UnsupportedError(f"wf.register_kernel: there is no device {device!r}")
    rows = _rows(op, dtypes)
    if rows is None or any(d not in SCALAR_DTYPES for row in rows for d in row):
        raise InvalidArgumentError(
            f"wf.register_kernel: say which dtypes the kernel of '{op}' is for",
            hint=f"of {', '.join(d.name for d in SCALAR_DTYPES)}",
        )

    def decorate(function: Function) -> Function:
        if not isinstance(function, FunctionType):
            raise InvalidArgumentError(
                f"a kernel of op '{op}' must be a plain Python function, got {function!r}",
                location=caller_location(),
            )
        try:
            replace_code(op, function, rows, replace=replace)
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


@dataclass(frozen=True, slots=True)
class OpSite:
    """The op whose gradient is wanted, as TensorFlow's gradient functions get it."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, Any]

    def get_attr(self, name: str) -> Any:
        """The value of an attribute."""
        return self.attrs[name]


Gradient = Callable[..., Any]


def register_gradient(op: object, *, replace: bool = False) -> Callable[[Gradient], Gradient]:
    """Decorate `fn(op, *gradients)`, the gradient of a registered op (name or function).

    `op.inputs`, `op.outputs`: its tensors; `op.attrs`, `op.get_attr(name)`: its attributes. There
    is one gradient for each output (None for integers). `fn` returns the gradient of the only
    input, or a tuple with one for each (None: zero), computed with wf ops, so it has a gradient
    itself. It may use nothing of another trace, and no variables: make them inputs.
    NotFoundError if the op is not registered, AlreadyExistsError if it has a gradient.

    >>> square = wf.register_op(
    ...     "example_square", reference=np.square, elementwise=True, replace=True)
    >>> @wf.register_gradient(square)
    ... def square_gradient(op, dy):
    ...     return 2 * op.inputs[0] * dy
    >>> wf.grad(square)(wf.asarray(3.0))
    Tensor(6., dtype=float32)
    """
    try:
        name = op_name(op)
        if isinstance(GRADIENTS[name], _UserRule) and not replace:
            raise AlreadyExistsError(
                f"op '{name}' has a gradient already", hint="replace=True registers the new one"
            )
    except WeftError as error:
        raise error.at(caller_location()) from None

    def decorate(function: Gradient) -> Gradient:
        if not callable(function):
            raise InvalidArgumentError(
                f"the gradient of op '{name}' must be a function, got {function!r}",
                location=caller_location(),
            )
        GRADIENTS[name] = _UserRule(name, function)
        return function

    return decorate


class _UserRule:
    """A `gradients.rule.Rule` that calls the user's function in a trace of its own."""

    def __init__(self, name: str, function: Gradient) -> None:
        self.name, self.function = name, function

    def __call__(self, site: Site) -> list[Expr | None]:
        trace = Trace("region", f"gradient of {self.name}")
        trace.builder = site.x.builder  # its ops go where all gradients go
        with trace.scope():
            inputs = tuple(trace.tensor(x.value) for x in site.operands)
            outputs = tuple(trace.tensor(y.value) for y in site.results)
            gradients = [self._cotangent(trace, y, g) for y, g in
                         zip(site.results, site.cotangents, strict=True)]  # fmt: skip
            given = OpSite(self.name, inputs, outputs, of_weft(site.attrs))
            made = self._one_each(self.function(given, *gradients), inputs, site)
            found = [
                None if g is None else self._fit(trace, g, x, i, site)
                for i, (g, x) in enumerate(zip(made, inputs, strict=True))
            ]
        if trace.variables:
            raise GradientError(
                f"the gradient of op '{self.name}' reads the variable "
                f"'{next(iter(trace.variables))}'",
                hint="make what it needs an operand of the op",
                location=site.op.locations,
            )
        return found

    def _cotangent(self, trace: Trace, y: Expr, g: Expr | None) -> Tensor | None:
        held = trace.tensor(y.value)
        if not held.dtype.is_inexact:
            return None
        return trace.tensor((y.full(0) if g is None else g).value)

    def _one_each(self, made: Any, inputs: Sequence[Tensor], site: Site) -> Sequence[Any]:
        several = isinstance(made, (tuple, list))
        found = tuple(made) if several else (made,)
        if len(found) != len(inputs):
            raise GradientError(
                f"the gradient of op '{self.name}' gave {len(found)} gradients for "
                f"{len(inputs)} operands",
                hint="return a tuple with one for each operand, None for those without",
                location=site.op.locations,
            )
        return found

    def _fit(self, trace: Trace, g: Any, x: Tensor, number: int, site: Site) -> Expr:
        if not isinstance(g, Operators):
            g = as_tensor(g)
        t = as_tensor(g)
        if t.weak:
            t = as_tensor(t, x.dtype)
        value = trace.lift(t)
        if t.dtype is not x.dtype or not fits(t.shape, x.shape):
            raise GradientError(
                f"the gradient of op '{self.name}' for operand {number} has type {t._type}, the "
                f"operand {x._type}",
                hint="a gradient has the dtype and shape of its operand",
                location=site.op.locations,
            )
        return site.x.wrap(value)
