"""The attributes of a registered op: how users declare them, give them, and get them."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np

from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError, suggest
from weft.ir.spec import REQUIRED, AttrKind, Attrs, AttrSpec, AttrValue, ConstArray

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
