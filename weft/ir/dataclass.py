"""Dataclasses whose methods are compiled when they are first called.

`dataclasses.dataclass` writes each method as text and compiles it while the class is made: half a
millisecond a class. A process loads 75 of them before its first step, and compares, hashes or
prints few. Here the standard library keeps the fields (`field`, `fields`, `replace` and `asdict`
are its own), and each method is compiled at its first call and replaces itself.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import partial
from reprlib import recursive_repr
from types import MethodType
from typing import Any, TypeVar, dataclass_transform, overload

_C = TypeVar("_C", bound=type[Any])
_Method = Callable[..., Any]
_ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


@overload
def dataclass(cls: _C, /) -> _C: ...
@overload
def dataclass(
    *,
    init: bool = True,
    eq: bool = True,
    order: bool = False,
    frozen: bool = False,
    slots: bool = False,
) -> Callable[[_C], _C]: ...
@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    cls: type[Any] | None = None,
    /,
    *,
    init: bool = True,
    eq: bool = True,
    order: bool = False,
    frozen: bool = False,
    slots: bool = False,
) -> Any:
    """A class decorator, as `dataclasses.dataclass`: the same fields, methods and errors. No
    `InitVar`s."""
    writers: dict[str, Callable[[type[Any]], _Method]] = {"__repr__": _write_repr}
    if init:
        writers["__init__"] = partial(_write_init, frozen=frozen)
    if eq:
        writers["__eq__"] = partial(_write_comparison, name="__eq__", operator="==")
    if eq and frozen:
        writers["__hash__"] = _write_hash
    if order:
        writers |= {n: partial(_write_comparison, name=n, operator=_ORDER[n]) for n in _ORDER}

    def decorate(cls: type[Any]) -> type[Any]:
        own = {name for name, value in cls.__dict__.items() if (name, value) != ("__hash__", None)}
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        for name in writers.keys() - own:
            setattr(made, name, _Uncompiled(made, name, writers[name]))
        others: dict[str, _Method | None] = {}
        if frozen:
            others |= _refusals(made)
        elif eq:
            others["__hash__"] = None
        if frozen and slots:  # for copies and pickles
            others |= {"__getstate__": _get_state, "__setstate__": _set_state}
        for name in others.keys() - own:
            setattr(made, name, others[name])
        return made

    return decorate if cls is None else decorate(cls)


class _Made:
    """The default of a parameter whose value a factory makes, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


class _Uncompiled:
    """A method until its first call, or until `inspect.signature` asks for its parameters."""

    def __init__(self, cls: type[Any], name: str, write: Callable[[type[Any]], _Method]) -> None:
        self.cls, self.write = cls, write
        self.__name__, self.__qualname__ = name, f"{cls.__qualname__}.{name}"
        self.__module__ = cls.__module__

    def compiled(self) -> _Method:
        """The method, which takes this object's place in the class."""
        method = self.write(self.cls)
        if vars(self.cls).get(self.__name__) is self:
            setattr(self.cls, self.__name__, method)
        return method

    @property
    def __signature__(self) -> Any:
        return importlib.import_module("inspect").signature(self.compiled())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled()(*args, **kwargs)


def _compiled(cls: type[Any], name: str, parameters: str, body: str, **scope: Any) -> _Method:
    scope["__name__"] = cls.__module__
    exec(f"def {name}({parameters}):\n{body}", scope)
    method: _Method = scope[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _write_init(cls: type[Any], frozen: bool) -> _Method:
    """Parameters that are keywords only come last, and defaults stand in the method's globals."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_MADE": _MADE}
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}  # by whether a keyword only
    lines = []
    for field in dataclasses.fields(cls):
        name, value, default = field.name, field.name, ""
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}"] = field.default_factory
            default = "=_MADE"
            value = f"_make_{name}()"
            value += f" if {name} is _MADE else {name}" if field.init else ""
        elif field.default is not dataclasses.MISSING:
            scope[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:  # `__post_init__` sets it
            continue
        if field.init:
            parameters[bool(field.kw_only)].append(name + default)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    every = parameters[False] + (["*", *parameters[True]] if parameters[True] else [])
    body = "\n".join(f" {line}" for line in lines or ["pass"])
    method = _compiled(cls, "__init__", ", ".join(every), body, **scope)
    types = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
    method.__annotations__ = {**types, "return": None}
    return method


def _write_repr(cls: type[Any]) -> _Method:
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in dataclasses.fields(cls) if f.repr)
    body = f' return self.__class__.__qualname__ + f"({shown})"'
    return recursive_repr()(_compiled(cls, "__repr__", "self", body))


def _write_comparison(cls: type[Any], name: str, operator: str) -> _Method:
    compared = [f.name for f in dataclasses.fields(cls) if f.compare]
    body = (
        " if other.__class__ is not self.__class__:\n  return NotImplemented\n"
        f" return {_tuple('self', compared)} {operator} {_tuple('other', compared)}"
    )
    return _compiled(cls, name, "self, other", body)


def _write_hash(cls: type[Any]) -> _Method:
    hashed = [f.name for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compiled(cls, "__hash__", "self", f" return hash({_tuple('self', hashed)})")


def _tuple(owner: str, names: list[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


def _refusals(cls: type[Any]) -> dict[str, _Method]:
    """What sets and deletes attributes of an instance that is frozen."""
    names = {f.name for f in dataclasses.fields(cls)}

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
