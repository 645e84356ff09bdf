"""The ops of a `wf.Graph` as objects with names of their own, as TensorFlow 1's `tf.Operation`:
what `graph.get_operations()`, `tensor.op` and `tensor.consumers()` give.

What the program has named (placeholders, `wf.name_tensor`, effects) has that name. Any other op has
that of its scope and kind, `layer/multiply`, with `_1`, `_2`, ... in the order of the program where
that is taken; a read of the variable `v` is `v/read`. A name that the program gives later goes
before one that an op got by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Effect
from weft.ir.errors import NotFoundError
from weft.ir.graph import Operation, Value
from weft.ir.locations import Locations, caller_location
from weft.ir.spec import AttrValue
from weft.ir.text.printer import print_op
from weft.ir.types import TensorType, TokenType
from weft.runtime.trace.graph_def import wanted_name

if TYPE_CHECKING:
    from weft.frontend.session.graph import Graph

#: An op, or the argument that a placeholder is.
Node: TypeAlias = Operation | Value


class GraphOperation:
    """An op of a `wf.Graph`, as `graph.get_operations()`, `get_operation_by_name` and `tensor.op`
    give it. Fetched, it runs and gives None, as an effect does.

    Types are the names of the IR's ops (`wf.Graph.as_text`): "multiply", "placeholder", "variable".
    Branches and loops are one op each, what is in their bodies is not listed.

    >>> with wf.Graph().as_default() as graph:
    ...     x = wf.placeholder(wf.float32, [3], name="x")
    ...     y = wf.name_tensor(wf.exp(x) * 2, "y")
    >>> [op.name for op in graph.get_operations()]
    ['x', 'exp', 'constant', 'y']
    >>> y.op, y.op.type, [t.name for t in y.op.inputs], x.consumers()
    (<wf operation 'y' of type multiply>, 'multiply', ['exp:0', ...], [<wf operation 'exp' of ...>])
    """

    __slots__ = ("_graph", "_node")

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self._node = graph, node

    # ------------------------------------------------------------------------------- what it is
    @property
    def name(self) -> str:
        """Its name in the graph, which no other op has."""
        return self._graph.operation_names().of(self._node)

    @property
    def type(self) -> str:
        """The kind of op: its name in the IR, or "placeholder"."""
        return self._node.name if isinstance(self._node, Operation) else "placeholder"

    @property
    def graph(self) -> Graph:
        """The graph that it is in."""
        return self._graph

    @property
    def device(self) -> str:
        """Where `wf.device` puts it; "" for anywhere."""
        return self._node.device if isinstance(self._node, Operation) else ""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that it takes, in order; `node_def` shows handles of variables, too."""
        given = self._node.operands if isinstance(self._node, Operation) else ()
        return self._tensors(given)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that it gives."""
        return list(self._tensors(results_of(self._node)))

    def values(self) -> tuple[Tensor, ...]:
        """`outputs` as a tuple."""
        return tuple(self.outputs)

    @property
    def control_inputs(self) -> list[GraphOperation]:
        """The ops that it comes after without taking a value of them."""
        before = self._node.control if isinstance(self._node, Operation) else ()
        nodes = dict.fromkeys(v.op if v.op is not None else v for v in before)
        return [self._graph.operation(node) for node in nodes]

    @property
    def traceback(self) -> Locations:
        """Where in the program it was made."""
        if isinstance(self._node, Operation):
            return self._node.locations
        return self._graph._trace.arg_locations.get(self._node, ())

    @property
    def node_def(self) -> str:
        """The op as a line of the IR's text, with the names of the graph."""
        if not isinstance(self._node, Operation):
            return f"%{self.name}: {self._node.type}"
        values = (*self._node.results, *self._node.operands, *self._node.control)
        names = self._graph.operation_names()
        return print_op(self._node, {v: f"%{names.of_value(v)}" for v in values})

    def get_attr(self, name: str) -> AttrValue:
        """An attribute. NotFoundError, which says what there is, for one that it has not."""
        attrs = self._node.attrs if isinstance(self._node, Operation) else {}
        if name not in attrs:
            raise NotFoundError(
                f"op '{self.name}' of type {self.type} has no attribute '{name}'",
                hint=f"it has {', '.join(attrs) or 'none'}",
                location=caller_location(),
            )
        return attrs[name]

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Run it, and what it needs, in `session` or the default one. Errors as `Session.run`."""
        Effect.in_session(self, feed_dict, session)

    def __repr__(self) -> str:
        return f"<wf operation {self.name!r} of type {self.type}>"

    def _tensors(self, values: Iterable[Value]) -> tuple[Tensor, ...]:
        trace = self._graph._trace
        return tuple(trace.tensor(v) for v in values if isinstance(v.type, TensorType))


def results_of(node: Node) -> Sequence[Value]:
    """What it gives."""
    return node.results if isinstance(node, Operation) else (node,)


def _as_effect(op: GraphOperation) -> tuple[list[Effect], None]:
    """What runs the op: an effect that fetches, `wf.group` and control dependencies take; nothing
    for a handle, which is there from the start."""
    given = [v for v in results_of(op._node)[:1] if isinstance(v.type, TensorType | TokenType)]
    return [Effect.of(op.name, v, op._graph._trace) for v in given], None


# a fetch of it is a fetch of that effect, in whose place None stands
pytree.register_pytree(GraphOperation, _as_effect, lambda _, __: None)


class OperationNames:
    """The names of the ops of a graph, made as they are asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: dict[str, Node] = {}
        self._names: dict[Node, str] = {}
        self._given: set[Node] = set()  # that the program has named
        self._counts: dict[str, int] = {}
        self._users: dict[Value, dict[Operation, None]] = {}
        self._seen = {"tensors": 0, "effects": 0, "args": 0, "ops": 0}
        self._made: dict[Node, GraphOperation] = {}

    def update(self) -> OperationNames:
        """Name what is new in the graph."""
        graph, trace = self._graph, self._graph._trace
        again: list[Node] = []
        for name, t in self._new("tensors", graph._named.items()):
            if t._value is not None:
                self._give(name, t._value, again)
        for name, effect in self._new("effects", graph._effects.items()):
            if effect.value is not None:
                self._give(name, effect.value, again)
        for arg in self._new("args", trace.builder.args):
            again.append(arg)
        for op in self._new("ops", trace.builder.ops):
            for value in op.operands:
                self._users.setdefault(value, {})[op] = None
            again.append(op)
        for node in again:
            if node not in self._names:
                self._set(node, self._free(_wanted(node)))
        return self

    def _new(self, kind: str, items: Collection[Any]) -> list[Any]:
        """Those that were not looked at before."""
        before = self._seen[kind]
        if before == len(items):
            return []
        found = list(islice(items, before, None))
        self._seen[kind] = before + len(found)
        return found

    def _give(self, name: str, value: Value, again: list[Node]) -> None:
        """The program has given a value this name. What had it by itself gets another one."""
        node: Node = value if value.op is None else value.op
        if node in self._given or (value.op is not None and value.index):
            return  # it is another name of the op, or that of a further result
        other = self._nodes.get(name)
        if other is not None and other is not node:
            del self._names[other]
            again.append(other)
        if node in self._names:
            del self._nodes[self._names[node]]
        self._given.add(node)
        self._set(node, name)

    def _set(self, node: Node, name: str) -> None:
        self._nodes[name], self._names[node] = node, name

    def _free(self, wanted: str) -> str:
        """`wanted`, or the next of `wanted_1`, `wanted_2`, ... that nothing has."""
        graph = self._graph
        name, count = wanted, self._counts.get(wanted, 0)
        while name in self._nodes or name in graph._named or name in graph._effects:
            count += 1
            name = f"{wanted}_{count}"
        self._counts[wanted] = count
        return name

    # ---------------------------------------------------------------------------------- questions
    def of(self, node: Node) -> str:
        """The name of an op or placeholder. ValueError if it is not in the graph."""
        found = self._names.get(node)
        if found is None:
            raise ValueError(f"{node!r} is not in the graph '{self._graph.name}'")
        return found

    def of_value(self, value: Value) -> str:
        """That of its op, and its number if the op gives several: `merge:1`."""
        if value.op is None:
            return self.of(value)
        return f"{self.of(value.op)}:{value.index}" if value.index else self.of(value.op)

    def of_tensor(self, value: Value) -> str:
        """That of its op with its number, always: `x:0`, `merge:1`."""
        return self.of(value) + ":0" if value.op is None else f"{self.of(value.op)}:{value.index}"

    def node(self, name: str) -> Node | None:
        """What has the name; None if nothing has."""
        return self._nodes.get(name)

    def all(self) -> list[Node]:
        """Placeholders, then ops, in the order in which they were made."""
        builder = self._graph._trace.builder
        known = [*builder.args, *builder.ops]
        return [node for node in known if node in self._names]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._nodes))

    def users(self, value: Value) -> list[Operation]:
        """The ops that take it."""
        return list(self._users.get(value, ()))

    def operation(self, node: Node) -> GraphOperation:
        """The one object for it."""
        return self._made.setdefault(node, GraphOperation(self._graph, node))


def _wanted(node: Node) -> str:
    return wanted_name(node) if isinstance(node, Operation) else "placeholder"
