"""What `wf.import_graph_def` is asked for by name: tensors of a graph's IR, and what stands in for
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.errors import NotFoundError, ShapeError, TypeRuleError, suggest
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.types import TensorType, Type

#: The result that is the initial value of a variable, after its name.
INITIAL = "/initial_value"


def values_by_name(named: IRGraph, ir: IRGraph) -> dict[str, Value]:
    """The results of `ir` that have names, and the inputs that are none of these, by the names in
    `named`: the same graph, maybe with other sizes."""
    names = {n: v for n, v in zip(named.result_names, ir.results, strict=False) if n}
    placed = set(names.values())
    for arg, name in zip(ir.args, named.arg_names, strict=True):
        if arg not in placed:
            names.setdefault(name, arg)
    return names


def given_tensors(given: object, named: Mapping[str, Value]) -> dict[str, Tensor]:
    """An `input_map` without `:0`; numbers and lists take the dtypes of what they stand for."""
    if not isinstance(given, Mapping):
        raise TypeRuleError(
            f"input_map is a {type(given).__name__}, not a dict of tensors by name",
            location=caller_location(),
        )
    made = {str(n).removesuffix(":0"): x for n, x in given.items()}
    for name in made:
        if name not in named:
            raise NotFoundError(
                f"input_map: the graph has no tensor named '{name}'{suggest(name, list(named))}",
                location=caller_location(),
            )
    return {n: _as_type(x, named[n].type) for n, x in made.items()}


def _as_type(x: Any, wanted: Type) -> Tensor:
    if isinstance(x, (bool, int, float, complex, list, tuple)) and isinstance(wanted, TensorType):
        return as_tensor(x, wanted.dtype)
    return as_tensor(x)


def check_fits(name: str, wanted: Type, given: TensorType) -> None:
    """ShapeError or TypeRuleError if the tensor cannot stand for what has the name."""
    if wanted == given:
        return
    same_dtype = isinstance(wanted, TensorType) and wanted.dtype is given.dtype
    raise (ShapeError if same_dtype else TypeRuleError)(
        f"input_map: '{name}' is {wanted}, and a {given} was given for it",
        location=caller_location(),
    )


def check_wanted(wanted: Sequence[str], named: Iterable[str]) -> None:
    """NotFoundError with the closest names for `return_elements` that are none."""
    if isinstance(wanted, str):
        raise TypeRuleError(
            f"return_elements is the name {wanted!r:.60}, not a list of names",
            location=caller_location(),
        )
    known = [name for name in named if not name.endswith(INITIAL)]
    for name in map(str, wanted):
        if name.removesuffix(":0") not in known:
            raise NotFoundError(
                f"return_elements: the imported graph has no tensor or effect named '{name}'"
                f"{suggest(name, known)}",
                location=caller_location(),
            )
