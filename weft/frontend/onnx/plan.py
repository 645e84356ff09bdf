"""`Plan`: the graph of a model, ready to be run: operators found in the table, attributes read,
functions with bodies opened up. What cannot be run is known here, all of it."""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.onnx import budget, table
from weft.frontend.onnx.reader import Arrays, damaged, package, shown_dims
from weft.ir.dataclass import dataclass
from weft.ir.errors import ResourceExhaustedError, UnsupportedError
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    import onnx

_DEEPEST = 60  # bodies of functions and branches within each other


@dataclass(frozen=True, slots=True)
class Node:
    """A node. operator: of the table; else `body`, the function that stands for it; else `schema`,
    whose body depends on the types of the inputs. attrs: by name; graphs are Plans."""

    name: str
    kind: str
    domain: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    where: str
    operator: table.Operator | None = None
    body: Plan | None = None
    schema: Any = None
    proto: Any = None

    @property
    def scope(self) -> str:
        """The path that its ops have in the graph, by which views group them."""
        path = self.name.strip("/") or f"{self.kind}/{self.outputs[0].strip('/')}"
        return re.sub(r"[^\w./-]+", "_", path)

    @property
    def shown(self) -> str:
        """What messages call it."""
        return f"the ONNX node '{self.name or self.outputs[0]}' ({self.kind})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph. constants: its initialisers, and what Constant nodes give; weights: those of them
    that training may change; nodes: each after what it needs."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    weights: tuple[str, ...] = ()


def _is_number(name: str, value: Tensor) -> bool:
    """Whether an initialiser is a number of the program, a scale say, by what torch calls it."""
    return value.numpy().size == 1 and re.fullmatch(r"_?val_\d+", name) is not None


#: What the nodes of a graph may use, those of the graphs around it among them.
Names: TypeAlias = "ChainMap[str, None]"


def _names(own: Iterable[str] = (), outer: Names | None = None) -> Names:
    return ChainMap(dict.fromkeys(own), *(outer.maps if outer is not None else ()))


class Reader:
    """Makes Plans of the graphs of a model. missing: operators that nobody knows, with a node of
    each; nbytes: of its tensors."""

    def __init__(self, path: str, model: onnx.ModelProto, arrays: Arrays) -> None:
        self._path = path
        self._arrays = arrays
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.opsets = _opsets(path, model.opset_import)
        self.missing: dict[str, list[str]] = {}
        self.nbytes = 0
        self._depth = self._count = self._zeros = 0

    def graph(
        self,
        graph: onnx.GraphProto,
        given: Mapping[str, Any] | None = None,
        opsets: Mapping[str, int] | None = None,
        names: Names | None = None,
    ) -> Plan:
        """The main graph, or that of an attribute of a node, which sees the names around it; given:
        the attributes of the function that it is in."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise damaged(self._path, f"graphs are nested more than {_DEEPEST} deep")
        constants = {t.name: self._tensor(t) for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            constants[sparse.values.name] = self._dense(sparse)
        inputs = tuple([i.name for i in graph.input if i.name not in constants])
        outputs = tuple([o.name for o in graph.output])
        inside = _names((*inputs, *constants), names)
        weights = [n for n, t in constants.items() if t.dtype.is_floating and not _is_number(n, t)]
        made = self._nodes(graph.node, given or {}, opsets or self.opsets, inside)
        nodes, literals = _without_literals(made)
        constants.update(literals)
        weights += [n for n, t in literals.items() if t.dtype.is_floating and t.numpy().size > 1]
        for name in outputs:
            if name not in inside:
                raise damaged(self._path, f"nothing makes the output '{name}' of '{graph.name}'")
        self._depth -= 1
        kept = _needed(nodes, outputs)
        return Plan(graph.name, inputs, outputs, constants, kept, tuple(weights))

    def function(
        self, function: onnx.FunctionProto, attrs: Mapping[str, Any], opsets: Mapping[str, int]
    ) -> Plan:
        """The body of a function, with these attributes."""
        given = dict(attrs)
        for attribute in function.attribute_proto:
            given.setdefault(attribute.name, self._value(attribute, {}, opsets, _names()))
        inner = {**opsets, **_opsets(self._path, function.opset_import)}
        self._depth += 1
        if self._depth > _DEEPEST:
            raise damaged(self._path, f"its function '{function.name}' calls itself")
        made = self._nodes(function.node, given, inner, _names(function.input))
        nodes, literals = _without_literals(made)
        self._depth -= 1
        outputs = tuple(function.output)
        kept = _needed(nodes, outputs)
        return Plan(function.name, tuple(function.input), outputs, literals, kept)

    def _nodes(
        self,
        protos: Sequence[onnx.NodeProto],
        given: Mapping[str, Any],
        opsets: Mapping[str, int],
        names: Names,
    ) -> list[Node]:
        nodes = []
        for proto in protos:
            for name in proto.input:
                if name and name not in names:
                    raise damaged(
                        self._path,
                        f"the node '{proto.name}' ({proto.op_type}) uses '{name}' before anything "
                        "makes it",
                    )
            nodes.append(self._node(proto, given, opsets, names))
            names.update((o, None) for o in proto.output if o)
        return nodes

    def _node(
        self,
        proto: onnx.NodeProto,
        given: Mapping[str, Any],
        opsets: Mapping[str, int],
        names: Names,
    ) -> Node:
        self._count += 1
        if self._count > budget.MOST_NODES:
            raise ResourceExhaustedError(
                f"'{self._path}' has more than {budget.MOST_NODES} nodes, with those of functions "
                "where they are called",
                location=caller_location(),
            )
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        attrs = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                if given.get(attribute.ref_attr_name) is not None:
                    attrs[attribute.name] = given[attribute.ref_attr_name]
                continue
            attrs[attribute.name] = self._value(attribute, given, opsets, names)
        opset = opsets.get(domain, 0 if domain else 1)
        made: dict[str, Any] = {}
        held = self._functions.get((proto.domain, proto.op_type, proto.overload))
        found = None if held is not None else table.find(domain, proto.op_type, opset)
        if held is not None:
            made["body"] = self.function(held, attrs, opsets)
        elif found is not None:
            made["operator"] = found
        else:
            made = self._of_schema(proto, domain, attrs, opset, opsets)
        return Node(
            proto.name, proto.op_type, domain, opset, tuple(proto.input), tuple(proto.output),
            attrs, _stack_trace(proto), **made,
        )  # fmt: skip

    def _of_schema(
        self,
        proto: onnx.NodeProto,
        domain: str,
        attrs: Mapping[str, Any],
        opset: int,
        opsets: Mapping[str, int],
    ) -> dict[str, Any]:
        """The body that ONNX itself gives an operator."""
        onnx = package()
        try:
            schema = onnx.defs.get_schema(proto.op_type, opset, domain)
        except onnx.defs.SchemaError:
            schema = None
        if schema is not None and schema.has_context_dependent_function:
            return {"schema": schema, "proto": _filled(proto, attrs)}
        if schema is not None and schema.has_function:
            body = onnx.FunctionProto()
            version = max(v for v in schema.function_opset_versions if v <= opset)
            body.ParseFromString(schema.get_function_with_opset_version(version))
            return {"body": self.function(body, {**self._defaults(schema), **attrs}, opsets)}
        label = proto.op_type if not domain else f"{domain}.{proto.op_type}"
        self.missing.setdefault(label, []).append(proto.name or proto.output[0])
        return {}

    def dependent(self, node: Node, types: Sequence[bytes]) -> Plan:
        """The body of a node whose body depends on the types of its inputs."""
        schema = node.schema
        version = max(
            v for v in schema.context_dependent_function_opset_versions if v <= node.opset
        )
        body = package().FunctionProto()
        body.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version, node.proto.SerializeToString(), list(types)
            )
        )
        if not body.node:
            raise UnsupportedError(f"{node.shown} has no meaning for the types of its inputs")
        plan = self.function(body, {**self._defaults(schema), **node.attrs}, self.opsets)
        self.check()
        return plan

    def _defaults(self, schema: Any) -> dict[str, Any]:
        """The attributes that have values where a node has none."""
        return {
            name: self._value(a.default_value, {}, self.opsets, _names())
            for name, a in schema.attributes.items()
            if a.default_value.name
        }

    # ---------------------------------------------------------------------------------- attributes
    def _value(
        self,
        attribute: onnx.AttributeProto,
        given: Mapping[str, Any],
        opsets: Mapping[str, int],
        names: Names,
    ) -> Any:
        kinds = attribute
        match attribute.type:
            case kinds.FLOAT:
                return attribute.f
            case kinds.INT:
                return attribute.i
            case kinds.STRING:
                return attribute.s.decode(errors="replace")
            case kinds.TENSOR:
                return self._tensor(attribute.t)
            case kinds.SPARSE_TENSOR:
                return self._dense(attribute.sparse_tensor)
            case kinds.FLOATS:
                return list(attribute.floats)
            case kinds.INTS:
                return list(attribute.ints)
            case kinds.STRINGS:
                return [s.decode(errors="replace") for s in attribute.strings]
            case kinds.TENSORS:
                return [self._tensor(t) for t in attribute.tensors]
            case kinds.GRAPH:
                return self.graph(attribute.g, given, opsets, names)
            case kinds.TYPE_PROTO:
                return attribute.tp
        raise damaged(self._path, f"its attribute '{attribute.name}' has no type that is known")

    def _tensor(self, proto: onnx.TensorProto) -> Tensor:
        made = as_tensor(self._arrays(proto))
        self.nbytes += budget.tensor_bytes(made)
        return made

    def _dense(self, sparse: onnx.SparseTensorProto) -> Tensor:
        """A sparse tensor with its zeros, which are not in the file: at most `MOST_DENSE`."""
        values, index = self._arrays(sparse.values), self._arrays(sparse.indices)
        dims = tuple(sparse.dims)
        size = math.prod(dims) * values.dtype.itemsize
        if size > budget.MOST_DENSE - self._zeros:
            raise ResourceExhaustedError(
                f"'{self._path}' has sparse tensors of more than {budget.MOST_DENSE:,} bytes with "
                f"their zeros: '{sparse.values.name}' of the shape {shown_dims(dims)}",
                location=caller_location(),
            )
        self._zeros += size
        try:
            made = np.zeros(dims, values.dtype)
            made[np.unravel_index(index, dims) if index.ndim == 1 else tuple(index.T)] = values
        except (ValueError, IndexError, MemoryError) as error:
            raise damaged(self._path, f"a sparse tensor of it is none: {error}") from None
        return as_tensor(made)

    def check(self) -> None:
        """UnsupportedError that names every operator that is missing, with nodes."""
        if not self.missing:
            return
        listed = "; ".join(
            f"{kind} ({', '.join(repr(n) for n in nodes[:3])}"
            + (f" and {len(nodes) - 3} more)" if len(nodes) > 3 else ")")
            for kind, nodes in sorted(self.missing.items())
        )
        raise UnsupportedError(
            f"'{self._path}' has operators that weft cannot run: {listed}",
            hint="export the model with a lower opset, or with these as functions of known ones",
            location=caller_location(),
        )


def _opsets(path: str, imports: Any) -> dict[str, int]:
    found = {("" if o.domain == "ai.onnx" else o.domain): int(o.version) for o in imports}
    newest = package().defs.onnx_opset_version()
    if found.get("", 1) > newest:
        raise UnsupportedError(
            f"'{path}' is of opset {found['']}, the package onnx knows them up to {newest}",
            hint="pip install --upgrade onnx",
            location=caller_location(),
        )
    return found


def _filled(proto: onnx.NodeProto, attrs: Mapping[str, Any]) -> onnx.NodeProto:
    """The node with the attributes that it takes from the function around it as its own."""
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    made: onnx.NodeProto = package().NodeProto()
    made.CopyFrom(proto)
    del made.attribute[:]
    for a in proto.attribute:
        if not a.ref_attr_name:
            made.attribute.append(a)
        elif a.name in attrs:
            made.attribute.append(package().helper.make_attribute(a.name, attrs[a.name]))
    return made


def _stack_trace(proto: onnx.NodeProto) -> str:
    """The line of the user's model, where torch has written it down."""
    held = {p.key: p.value for p in proto.metadata_props}
    trace = held.get("pkg.torch.onnx.stack_trace", "").strip()
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return lines[-1] if lines else ""


def _without_literals(nodes: Sequence[Node]) -> tuple[list[Node], dict[str, Tensor]]:
    """The nodes but those that are constants, and the values of these."""
    kept, literals = [], {}
    for node in nodes:
        if node.kind == "Constant" and node.operator is not None and not node.domain:
            literals[node.outputs[0]] = node.operator.function(**node.attrs)
        else:
            kept.append(node)
    return kept, literals


def uses(node: Node) -> Iterator[str]:
    """The names that a node uses, those around its graphs among them."""
    yield from (name for name in node.inputs if name)
    for value in node.attrs.values():
        if isinstance(value, Plan):
            yield from value.outputs
            for inner in value.nodes:
                yield from uses(inner)


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> tuple[Node, ...]:
    """The nodes that the outputs need."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(uses(node))
    return tuple(reversed(kept))
