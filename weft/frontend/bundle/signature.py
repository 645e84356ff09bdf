"""`Exported`: one signature of a bundle, before it is written, and its form as JSON."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any

from weft.frontend.bundle.files import GRAPH
from weft.frontend.core.tensor import Array
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim, format_dim
from weft.ir.dtypes import as_dtype
from weft.ir.errors import DataLossError
from weft.ir.graph import Graph, unique_name
from weft.ir.text.parser import parse_dim
from weft.ir.types import TensorType
from weft.runtime.checkpoint.format import RESERVED

#: The signature that a bundle has if nothing else is said: TensorFlow's name for it.
DEFAULT = "serving_default"


@dataclass(frozen=True, slots=True)
class Exported:
    """One signature, ready to be written. graph: a pure function of its inputs and of `weights`
    (names in the bundle); results: its own, then the new values of `updates`. parameters: name,
    kind and structure of each; inputs: how many of the graph's arguments they are."""

    graph: Graph
    parameters: Sequence[Mapping[str, Any]]
    result: Any
    weak: Sequence[bool]
    output_names: Sequence[str]
    inputs: int
    weights: Sequence[str]
    updates: Sequence[str]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a bundle. arrays: their values; trainable: of those that are variables;
    names: what each variable is called."""

    arrays: dict[str, Array] = field(default_factory=dict)
    trainable: dict[str, bool] = field(default_factory=dict)
    names: dict[Hashable, str] = field(default_factory=dict)

    def add(self, name: str, key: Hashable, value: Callable[[], Array]) -> str:
        """The name in the bundle of what `key` stands for, under which its value is kept."""
        if name == "__metadata__" or name.startswith(RESERVED):  # the file's own
            name = f"variable_{name}"
        if key not in self.names:
            free = self.names[key] = unique_name(name, self.arrays)
            self.arrays[free] = value()
        return self.names[key]


def signature_to_json(name: str, one: Exported) -> dict[str, Any]:
    """A signature as JSON."""
    graph = one.graph
    inputs = [
        {"name": n, **type_to_json(arg.type)}
        for n, arg in zip(graph.arg_names[: one.inputs], graph.args, strict=False)
    ]
    outputs = [
        {"name": n, **type_to_json(value.type), "weak": bool(weak)}
        for n, value, weak in zip(one.output_names, graph.results, one.weak, strict=False)
    ]
    return {
        "graph": name + GRAPH, "inputs": inputs, "outputs": outputs,
        "parameters": list(one.parameters), "result": one.result, "weights": list(one.weights),
        "updates": list(one.updates),
    }  # fmt: skip


def type_of(x: Any) -> TensorType:
    """The type of an array, a tensor, a variable; a type is its own."""
    return x if isinstance(x, TensorType) else TensorType(as_dtype(x.dtype), tuple(x.shape))


def type_to_json(kind: object) -> dict[str, Any]:
    """Dtype and shape; sizes that are open are names."""
    assert isinstance(kind, TensorType)
    sizes = [format_dim(d) if isinstance(d, SymbolicDim) else d for d in kind.shape]
    return {"dtype": kind.dtype.name, "shape": sizes}


def type_from_json(entry: Mapping[str, Any]) -> TensorType:
    """The type that JSON tells of. DataLossError for what is none."""
    sizes = [parse_dim(d) if isinstance(d, str) else d for d in entry["shape"]]
    if not all(isinstance(d, SymbolicDim) or (type(d) is int and d >= 0) for d in sizes):
        raise DataLossError(f"{entry['shape']!r:.80} is no shape")
    return TensorType(as_dtype(entry["dtype"]), tuple(sizes))
