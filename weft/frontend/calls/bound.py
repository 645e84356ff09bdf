"""Compiled methods: where the specialisations of each object are kept, and what cannot be compiled.

An object keeps them in its `__dict__`, as `functools.cached_property` does; so does a class, those
of its class methods. A copy of the object and one that was pickled begin without any:
specialisations hold locks and native code.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, suggest
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock

T = TypeVar("T")
_ATTRIBUTE = "__weft_compiled__"
_lock = ForkLock()  # held while an object gets its first compiled method


class Methods(dict[object, T], Generic[T]):
    """The compiled methods of one object, by the function of its class that each belongs to.

    `owner`: the object. The dict that a copied object shares with the original is not its own.
    """

    def __init__(self, owner: object = None) -> None:
        super().__init__()
        self.owner = owner

    def __deepcopy__(self, memo: object) -> Methods[T]:
        return Methods()

    def __reduce__(self) -> tuple[type[Methods[T]], tuple[()]]:
        return (Methods, ())


def bind(function: object, name: str, instance: Any, make: Callable[[], T]) -> T:
    """The compiled method of `instance` that belongs to `function`; `make` makes it on first use.

    UnsupportedError for an object that has no `__dict__`.
    """
    try:
        held = instance.__dict__.get(_ATTRIBUTE)
    except AttributeError:
        raise UnsupportedError(
            f"'{name}' is a compiled method of a class without __dict__",
            hint="leave __slots__ out, or compile a function that takes the object's tensors",
            location=caller_location(),
        ) from None
    if held is not None and held.owner is instance and function in held:
        found: T = held[function]
        return found
    with _lock:
        held = instance.__dict__.get(_ATTRIBUTE)
        if held is None or held.owner is not instance:
            held = Methods(instance)
            if isinstance(instance, type):
                setattr(instance, _ATTRIBUTE, held)
            else:
                instance.__dict__[_ATTRIBUTE] = held
        if function not in held:
            held[function] = make()
        found = held[function]
    return found


def defines(function: object, instance: object) -> bool:
    """Whether the class of `instance` (or a base) has `function` as a method or a property, or
    `instance`, being a class, has it as a class method."""
    members = [m for c in type(instance).__mro__ for m in vars(c).values()]
    if any(m is function or getattr(m, "fget", None) is function for m in members):
        return True
    own = instance.__mro__ if isinstance(instance, type) else ()
    held = (m for c in own for m in vars(c).values() if isinstance(m, classmethod))
    return any(m.__func__ is function for m in held)


def below(function: object) -> Callable[[Any], Any] | None:
    """classmethod or staticmethod, if `function` is one: `wf.compile` stands above it then."""
    kinds = (classmethod, staticmethod)
    return next((kind for kind in kinds if isinstance(function, kind)), None)


def signature_of(function: Any) -> inspect.Signature:
    """The signature of what `wf.compile` was given. TypeRuleError, at the user's line, for what has
    none."""
    kind = type(function).__name__
    if isinstance(function, property):
        raise TypeRuleError(
            f"wf.compile was given a {kind}, not a function",
            hint=f"write @{kind} above @wf.compile, not below it",
            location=caller_location(),
        )
    if not callable(function):
        raise TypeRuleError(
            f"wf.compile takes a function, got a {kind}",
            hint="write @wf.compile above a def",
            location=caller_location(),
        )
    try:
        return inspect.signature(function)
    except ValueError:
        name = getattr(function, "__name__", kind)
        raise TypeRuleError(
            f"wf.compile cannot tell the parameters of '{name}': it is a {kind} without a "
            "signature, so not written in Python",
            hint="compile a Python function of tensors that calls functions of weft",
            location=caller_location(),
        ) from None


def check_names(
    option: str, names: Iterable[str], parameters: Sequence[str], function: str
) -> None:
    """InvalidArgumentError for a name, given in `option` of wf.compile, that is no parameter."""
    for name in names:
        if name not in parameters:
            raise InvalidArgumentError(
                f"{option} names '{name}', but the parameters of '{function}' are "
                f"{', '.join(parameters) or 'none'}{suggest(name, parameters)}",
                location=caller_location(),
            )


def parameter_names(
    option: str, given: object, parameters: Sequence[str], function: str
) -> tuple[str, ...]:
    """The parameters that an option of wf.compile names: one or several, by name or by position
    (negative: from the last). InvalidArgumentError for what is neither, or not there.
    """
    names = []
    for item in given if isinstance(given, Iterable) and not isinstance(given, str) else (given,):
        if isinstance(item, int) and not isinstance(item, bool):
            if not -len(parameters) <= item < len(parameters):
                raise InvalidArgumentError(
                    f"{option} names parameter {item}, but '{function}' has {len(parameters)}: "
                    f"{', '.join(parameters) or 'none'}",
                    location=caller_location(),
                )
            item = parameters[item]
        if not isinstance(item, str):
            raise InvalidArgumentError(
                f"{option} takes names or positions of parameters, but got a "
                f"{type(item).__name__}: {item!r:.60}",
                location=caller_location(),
            )
        names.append(item)
    check_names(option, names, parameters, function)
    return tuple(dict.fromkeys(names))


def is_bound(function: object) -> bool:
    """Whether `function` is a method together with its object."""
    return isinstance(function, types.MethodType)
