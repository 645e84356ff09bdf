"""`GraphWriter`: an ONNX graph while it is written, and what stands for weft's values.

A value is `Held` as an ONNX tensor that is yet to be transposed and to be repeated: ONNX's
elementwise operators broadcast by themselves, and its convolutions have channels first where weft's
have them last. `use` writes the Transpose and the Expand where an operator needs the whole tensor.
So a chain of convolutions has no Transpose in it, and a bias no Expand.

Sizes that are open are polynomials of the sizes of inputs: `size` writes how one is computed, once,
before everything else, as the bodies of branches and loops may read it too.

Operators are not there for all dtypes in onnxruntime, which most people run: where `RUNS_IN` lacks
one, `call` computes in a wider one, of the same result, between two Casts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from weft.frontend.onnx.nodes.dtypes import working_dtype
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Factor, Shape, SymbolicDim, broadcast_dim, format_dim
from weft.ir.dtypes import DType
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation, Value, unique_name
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]

#: The default for `stops` of a Slice that takes all, and of one with a negative step.
ALL, FROM_FIRST = 2**63 - 1, -(2**63)
#: A constant that is repeated to so many elements is one of that size.
_MOST_REPEATED = 1024


class RefusedError(Exception):
    """Why an op has no form in ONNX; `hint`: what to do."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True, slots=True)
class Held:
    """The ONNX tensor `name` of `shape` that stands for a value: with its axes permuted as `perm`
    says (() not at all; only where it has the value's rank), and broadcast to the value's shape
    unless it is `full`."""

    name: str
    shape: Shape
    perm: tuple[int, ...] = ()
    full: bool = True

    @property
    def turned(self) -> Shape:
        """The shape with the axes permuted."""
        return tuple(self.shape[a] for a in self.perm) if self.perm else self.shape


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph; `bodies`: its attributes that are graphs."""

    kind: str
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attrs: Mapping[str, Any]
    bodies: Mapping[str, Body]
    place: str


@dataclass(frozen=True, slots=True)
class Body:
    """The graph of a branch or a loop: inputs and outputs with their types."""

    name: str
    nodes: Sequence[Node]
    inputs: Sequence[tuple[str, TensorType]]
    outputs: Sequence[tuple[str, TensorType]]


@dataclass(slots=True)
class Scope:
    """What is known within one graph. used: names of whole values; sizes: of dimensions and shapes
    as tensors; symbols: of named sizes; made: tensors that its nodes make."""

    nodes: list[Node] = field(default_factory=list)
    used: dict[tuple[Value, tuple[int, ...]], str] = field(default_factory=dict)
    sizes: dict[object, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)


class GraphWriter:
    """An ONNX graph while it is written. opset: 20 or 23."""

    def __init__(self, graph: Graph, inputs: int, opset: int) -> None:
        self.opset = opset
        self.held: dict[Value, Held] = {}
        self.arrays: dict[str, Array] = {}
        self.made_by: dict[str, Node] = {}
        self.scope_name = ""
        self.place = ""
        self._first = Scope()  # of sizes of inputs, before all other nodes
        self._scopes = [Scope()]
        self._names: set[str] = set()
        self._reserved: set[str] = set()
        self._tried: dict[str, int] = {}
        self._constants: dict[object, str] = {}
        self._wanted: dict[object, str] = {}
        self._sources: dict[str, tuple[str, int, int, int]] = {}
        for name, arg in zip(graph.arg_names[:inputs], graph.args, strict=False):
            assert isinstance(arg.type, TensorType)
            self._names.add(name)
            self.bind(arg, name)
            self._note_sizes(name, arg.type)

    # ------------------------------------------------------------------------------------- nodes
    @property
    def nodes(self) -> list[Node]:
        """Of the whole graph."""
        (scope,) = self._scopes
        return [*self._first.nodes, *scope.nodes]

    def name(self, wanted: str) -> str:
        """A name that no other tensor or node has."""
        found = unique_name(wanted, self._names, self._tried)
        self._names.add(found)
        return found

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names for outputs: no tensor or node within has them, those of inputs aside."""
        self._reserved = set(names) - self._names
        self._names |= self._reserved

    def output_name(self, wanted: str) -> str:
        """The name of an output: as wanted where that is reserved, else another one."""
        if wanted not in self._reserved:
            return self.name(wanted)
        self._reserved.remove(wanted)
        return wanted

    def at(self, op: Operation) -> None:
        """What is written next is of this op: its scope and place name the nodes."""
        location = op.locations[0] if op.locations else None
        self.scope_name = location.scope if location is not None else ""
        file = location.file.replace("\\", "/").rpartition("/")[2] if location is not None else ""
        self.place = f"{file}:{location.line}" if location is not None else ""

    def nodes_of(
        self, kind: str, inputs: Sequence[str], outputs: int,
        bodies: Mapping[str, Body] | None = None, **attrs: Any,
    ) -> list[str]:  # fmt: skip
        """Write a node; the names of its outputs."""
        return self._write(self._scopes[-1], kind, inputs, outputs, bodies, attrs)

    def node(self, kind: str, *inputs: str, **attrs: Any) -> str:
        """Write a node with one output; its name."""
        return self._node(self._scopes[-1], kind, *inputs, **attrs)

    def _node(self, scope: Scope, kind: str, *inputs: str, **attrs: Any) -> str:
        return self._write(scope, kind, inputs, 1, None, attrs)[0]

    def _write(
        self, scope: Scope, kind: str, inputs: Sequence[str], outputs: int,
        bodies: Mapping[str, Body] | None, attrs: Mapping[str, Any],
    ) -> list[str]:  # fmt: skip
        name = self.name(f"{self.scope_name}/{kind}".strip("/"))
        names = [name] if outputs == 1 else [self.name(f"{name}.{k}") for k in range(outputs)]
        given = {k: v for k, v in attrs.items() if v is not None}
        made = Node(kind, name, tuple(inputs), tuple(names), given, bodies or {}, self.place)
        scope.nodes.append(made)
        scope.made.update(names)
        self.made_by.update(dict.fromkeys(names, made))
        return names

    def call(
        self, kind: str, inputs: Sequence[str], dtype: DType, *, result: DType | None = None,
        typed: int | None = None, **attrs: Any,
    ) -> str:  # fmt: skip
        """Write a node on operands of `dtype`, by way of another dtype where onnxruntime lacks the
        operator for it. result: the dtype of the output where it is always that; typed: how many of
        the inputs, from the first, have the dtype."""
        working = working_dtype(kind, dtype)
        if working is dtype:
            return self.node(kind, *inputs, **attrs)
        count = len(inputs) if typed is None else typed
        wide = [self.cast(n, dtype, working) if n else n for n in inputs[:count]]
        made = self.node(kind, *wide, *inputs[count:], **attrs)
        return made if result is not None else self.cast(made, working, dtype)

    def cast(self, name: str, given: DType, wanted: DType) -> str:
        """The tensor as another dtype."""
        if given is wanted:
            return name
        if name in self.arrays:
            return self.constant(self.arrays[name].astype(wanted.numpy))
        return self.node("Cast", name, to=wanted)

    def constant(self, array: Any, name: str = "") -> str:
        """The name of an initialiser with these elements, one for all that are equal."""
        given = np.ascontiguousarray(array).reshape(np.shape(array))
        key = _content(given)
        if key not in self._constants:
            wanted = self._wanted.get(key) or name or f"{self.scope_name}/constant".strip("/")
            self._constants[key] = made = self.name(wanted)
            self.arrays[made] = given
        return self._constants[key]

    def name_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Call initialisers so that have the elements of one of these."""
        for name, array in arrays.items():
            self._wanted.setdefault(_content(np.asarray(array)), name)

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        return self.constant(np.asarray(values, np.int64))

    # ------------------------------------------------------------------------------------ values
    def bind(self, value: Value, name: str) -> None:
        """Note that a tensor is a value as it is. RefusedError for a value that is no tensor."""
        self.held[value] = Held(name, tensor_of(value).shape)

    def forget(self, values: set[Value]) -> None:
        """Make values be used anew: of a block that is written a second time."""
        for scope in self._scopes:
            scope.used = {key: name for key, name in scope.used.items() if key[0] not in values}

    def use(self, value: Value, perm: tuple[int, ...] = ()) -> str:
        """The name of a tensor that is the value, all of it; its axes permuted by `perm`."""
        key = value, perm
        for scope in reversed(self._scopes):
            if key in scope.used:
                return scope.used[key]
        held = self.held[value]
        name = self.transposed(held, perm) if held.full else self._expanded(value, held, perm)
        self._scopes[-1].used[key] = name
        return name

    def transposed(self, held: Held, perm: tuple[int, ...]) -> str:
        """What is held as a tensor in the value's order of axes, or in that order permuted."""
        own = held.perm or tuple(range(len(held.shape)))
        axes = tuple(own[a] for a in perm) if perm else own
        if axes == tuple(range(len(axes))):
            return held.name
        if held.name in self.arrays:
            return self.constant(np.transpose(self.arrays[held.name], axes), f"{held.name}.T")
        return self.node("Transpose", held.name, perm=list(axes))

    def _expanded(self, value: Value, held: Held, perm: tuple[int, ...]) -> str:
        assert isinstance(value.type, TensorType)
        shape, name = value.type.shape, held.name
        if value.type.is_static and 0 in shape:  # onnxruntime takes out an Expand to no elements
            empty = np.zeros(value.type.static_shape, value.type.dtype.numpy)
            return self.constant(_permuted(empty, perm))
        if name in self.arrays and value.type.is_static:
            if np.prod(value.type.static_shape) <= _MOST_REPEATED:
                array = _permuted(self.arrays[name], held.perm)
                whole = np.broadcast_to(array, value.type.static_shape)
                return self.constant(_permuted(whole, perm))
        if perm:
            name = self.in_layout(held, len(shape), perm)
            shape = tuple(shape[a] for a in perm)
        elif held.perm:
            name = self.transposed(held, ())
        return self.node("Expand", name, self.shape(shape))

    def in_layout(self, held: Held, rank: int, perm: tuple[int, ...]) -> str:
        """A tensor that broadcasts to the value of `rank` axes that is held, permuted by `perm`."""
        if all(d == 1 for d in held.shape) and len(held.shape) != rank:
            return held.name
        plain = tuple(range(rank))
        if len(held.shape) == rank:
            return self.transposed(held, perm)
        if perm == plain:
            return held.name
        missing = rank - len(held.shape)
        if held.name in self.arrays:
            array = self.arrays[held.name]
            turned = np.transpose(array.reshape((1,) * missing + array.shape), perm)
            return self.constant(turned, f"{held.name}.T")
        name = self.node("Unsqueeze", held.name, self.ints(*range(missing)))
        return self.node("Transpose", name, perm=list(perm))

    # ------------------------------------------------------------------------------------- sizes
    def _note_sizes(self, name: str, kind: TensorType) -> None:
        """Which symbols follow from the sizes of an input."""
        for axis, dim in enumerate(kind.shape):
            if not isinstance(dim, SymbolicDim):
                continue
            terms = dict(dim.terms)
            constant = terms.pop((), 0)
            if len(terms) == 1:
                ((mono, factor),) = terms.items()
                if len(mono) == 1 and not isinstance(mono[0], Factor):
                    source = (name, axis, factor, constant)
                    if mono[0] not in self._sources or (factor, constant) == (1, 0):
                        self._sources[mono[0]] = source

    def note_symbol(self, dim: Dim, name: str) -> None:
        """Note that a vector of one element is a size that has only now a value."""
        if isinstance(dim, SymbolicDim):
            self._scopes[-1].symbols[str(dim)] = name

    def size(self, dim: Dim) -> str:
        """A vector of one int64: the dimension. RefusedError for one that is not known."""
        if isinstance(dim, int):
            return self.ints(dim)
        if dim is None:
            raise RefusedError(
                "it needs a size that is not known when the model is written",
                "name the size: wf.TensorType(dtype, ('n', 3)), or wf.ensure_shape",
            )
        everywhere = all(s in self._sources for s in dim.symbols)
        scope = self._first if everywhere else self._scopes[-1]
        if known := self._known_size(dim):
            return known
        kept, self.scope_name = self.scope_name, "sizes" if everywhere else self.scope_name
        scope.sizes[dim] = made = self._size(scope, dim)
        self.scope_name = kept
        return made

    def _known_size(self, key: object) -> str | None:
        around = (*reversed(self._scopes), self._first)
        return next((scope.sizes[key] for scope in around if key in scope.sizes), None)

    def _size(self, scope: Scope, dim: SymbolicDim) -> str:
        total = ""
        for mono, factor in dim.terms:
            part = ""
            for atom in mono:
                value = self._atom(scope, atom)
                part = self._node(scope, "Mul", part, value) if part else value
            if factor != 1 or not part:
                number = self.ints(factor)
                part = self._node(scope, "Mul", part, number) if part else number
            total = self._node(scope, "Add", total, part) if total else part
        return total

    def _atom(self, scope: Scope, atom: str) -> str:
        """A symbol, `max(p,0)` or `div(p,q)`."""
        for known in (*reversed(self._scopes), self._first):
            if atom in known.symbols:
                return known.symbols[atom]
        if isinstance(atom, Factor):
            name, first, second = atom.name, atom.first, atom.second  # type: ignore[attr-defined]
            kind = "Max" if name == "max" else "Div"
            return self._node(scope, kind, self.size(first), self.size(second))
        if atom not in self._sources:
            raise RefusedError(f"the size '{atom}' of no input is needed")
        name, axis, factor, constant = self._sources[atom]
        made = self._node(self._first, "Shape", name, start=axis, end=axis + 1)
        if constant:
            made = self._node(self._first, "Sub", made, self.ints(constant))
        if factor != 1:
            made = self._node(self._first, "Div", made, self.ints(factor))
        self._first.symbols[atom] = made
        return made

    def shape(self, dims: Sequence[Dim]) -> str:
        """A vector of int64 with all dimensions."""
        key = tuple(dims)
        if all(isinstance(d, int) for d in key):
            return self.constant(np.asarray(key, np.int64))
        if known := self._known_size(key):
            return known
        parts: list[str] = []
        run: list[int] = []
        for d in key:
            if isinstance(d, int):
                run.append(d)
                continue
            parts += [self.ints(*run)] if run else []
            parts.append(self.size(d))
            run = []
        parts += [self.ints(*run)] if run else []
        made = parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)
        self._scopes[-1].sizes[key] = made
        return made

    def scalar(self, dim: Dim) -> str:
        """A dimension as a scalar of int64."""
        if isinstance(dim, int):
            return self.constant(np.asarray(dim, np.int64))
        key = "scalar", dim
        if known := self._known_size(key):
            return known
        made = self._scopes[-1].sizes[key] = self.node("Squeeze", self.size(dim), self.ints(0))
        return made

    # ------------------------------------------------------------------------------------ bodies
    @contextmanager
    def body(self) -> Iterator[Scope]:
        """What is written within is of a graph of its own, which may read all that is around."""
        scope = Scope()
        self._scopes.append(scope)
        try:
            yield scope
        finally:
            self._scopes.pop()

    def own(self, scope: Scope, names: Sequence[str]) -> list[str]:
        """Tensors that the nodes of the scope make, each another one, with the same elements."""
        out: list[str] = []
        for name in names:
            fits = name in scope.made and name not in out
            out.append(name if fits else self.node("Identity", name))
        return out


def inverted(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes one; () of ()."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def _permuted(array: Array, axes: tuple[int, ...]) -> Array:
    return np.transpose(array, axes) if axes else array


def _content(array: Array) -> object:
    """A key for an array: equal for equal elements of one dtype and shape."""
    if array.dtype.hasobject:
        return array.dtype.str, array.shape, tuple(array.ravel().tolist())
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    short = bytes(data) if array.nbytes <= 64 else hashlib.sha256(data).digest()
    return array.dtype.name, array.shape, short


def tensor_of(value: Value) -> TensorType:
    """The type of a value that is a tensor. RefusedError for others."""
    if not isinstance(value.type, TensorType):
        raise RefusedError(f"it has a {value.type}, no tensor")
    return value.type


def joined(shapes: Sequence[Shape]) -> Shape:
    """The shape to which they broadcast."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, rank - len(shape)):
            try:
                out[axis] = broadcast_dim(out[axis], dim)
            except WeftError as error:
                raise RefusedError(f"{format_dim(dim)} does not broadcast: {error.what}") from None
    return tuple(out)


def dtype_of(value: Value) -> DType:
    """Of a value that is a tensor."""
    return tensor_of(value).dtype
