"""`@op`: the table of ONNX operators, by domain, name and the opset that each version is since.

An operator is a function whose positional parameters are the inputs, in ONNX's order, and whose
keyword parameters are the attributes, by ONNX's names. Inputs that are left out are None. A
function that asks for the keyword parameter `node` is told of its node (`Call`)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from weft.ir.dataclass import dataclass

F = TypeVar("F", bound=Callable[..., Any])

_MODULES = (
    "control", "images", "linear", "maths", "normal", "quantised", "random",
    "recurrent", "reducing", "sequences", "shapes", "spectral", "texts", "windows",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """What a function may know of its node. outputs: how many are used; opset: of the node's
    domain; input_types, output_types: ONNX's numbers of dtypes, 0 where they are not known, told
    only where a model has dtypes that weft has not."""

    outputs: int
    opset: int
    input_types: tuple[int, ...] = ()
    output_types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """A version of an operator. known: inputs whose values have to be known when it is traced, and
    come as arrays; sizes: those that come as lists of sizes, some of which may be symbols or
    tensors; like: those whose types alone matter; folds: whether it is computed outside of the
    trace where its inputs are known; asks: whether it is told of its node."""

    function: Callable[..., Any]
    since: int
    known: frozenset[int]
    sizes: frozenset[int]
    like: frozenset[int]
    folds: bool
    inputs: tuple[str, ...]
    variadic: bool
    attributes: frozenset[str]
    asks: bool


_TABLE: dict[tuple[str, str], list[Operator]] = {}


def op(
    name: str,
    *,
    since: int = 1,
    known: Sequence[str] = (),
    sizes: Sequence[str] = (),
    like: Sequence[str] = (),
    folds: bool = True,
    domain: str = "",
) -> Callable[[F], F]:
    """Enter a function into the table as the operator `name` from the opset `since` on."""

    def enter(function: F) -> F:
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        made = Operator(
            function, since,
            frozenset(positional.index(n) for n in known),
            frozenset(positional.index(n) for n in sizes),
            frozenset(positional.index(n) for n in like),
            folds, tuple(positional),
            any(p.kind is p.VAR_POSITIONAL for p in parameters),
            frozenset(keywords - {"node"}), "node" in keywords,
        )  # fmt: skip
        versions = _TABLE.setdefault((domain, name), [])
        versions.append(made)
        versions.sort(key=lambda v: v.since)
        return function

    return enter


def find(domain: str, name: str, opset: int) -> Operator | None:
    """The version of an operator for an opset, or None."""
    for module in _MODULES:
        importlib.import_module(f"weft.frontend.onnx.ops.{module}")
    held = [v for v in _TABLE.get((domain, name), ()) if v.since <= opset]
    return held[-1] if held else None


def names() -> list[str]:
    """The names of the operators of the core domain that have a function of their own."""
    find("", "", 0)
    return sorted(name for domain, name in _TABLE if not domain)
