"""`wf.onnx.save`: functions, modules and graphs as ONNX models.

A function is traced and frozen as `wf.export` does it; then each op that the results need becomes
nodes of ONNX (`nodes/table.py`), before any fusion. What has no form in ONNX is one error that
names all such ops."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.bundle.export import exported_function, exported_graph
from weft.frontend.bundle.files import PathLike
from weft.frontend.bundle.freeze import frozen, simplified
from weft.frontend.bundle.load import Bundle
from weft.frontend.bundle.signature import DEFAULT, Exported, Weights
from weft.frontend.onnx.dtypes import number_of
from weft.frontend.onnx.nodes.graph import Body, GraphWriter, Node, RefusedError
from weft.frontend.onnx.nodes.table import Refusal, emit, traced_refusals
from weft.frontend.onnx.reader import package
from weft.frontend.session.graph import Graph as SessionGraph
from weft.frontend.session.session import Session
from weft.ir import dtypes
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Graph
from weft.ir.locations import caller_location
from weft.ir.types import TensorType
from weft.runtime.checkpoint.format import write_atomically
from weft.runtime.files.paths import is_there, path_of

if TYPE_CHECKING:
    import onnx

OPSETS = (20, 23)
IR_VERSION = 10
#: Longer models have their arrays in another file: a protobuf message has 2 GiB at most. Bytes.
MOST_INSIDE = (2 << 30) - (16 << 20)
#: Shorter arrays stay in the model: bytes.
_LEAST_OUTSIDE = 1024
#: Where arrays begin in their file, so that it can be mapped into memory: bytes.
_ALIGNED = 4096


def save(
    model: Any,
    path: PathLike | None = None,
    *,
    example: Any = None,
    signature: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
    opset: int = 20,
    freeze: bool = True,
    external_data: bool = False,
    replace: bool = False,
) -> PathLike | onnx.ModelProto:
    """Write a model as ONNX, for other runtimes; docs/guide/onnx-export.md.

    model: a function of tensors, compiled or not; a `wf.nn.Module`, which is saved as after
    `eval()`; a loaded bundle; a `wf.Graph` or `wf.Session`. example: the arguments of a call, as
    `wf.export` takes them; names in shapes are sizes that are open. signature: of a graph or
    session, its inputs and its outputs by name, tensors or names of tensors.

    opset: 20 or 23. freeze: scales after products and convolutions (batch normalisation) are
    multiplied into weights; without it all variables are initialisers by their names.
    external_data: weights are in a file beside the model, `path` with ".data", as they are where
    they have 2 GiB or more. replace: a file at `path` may go.

    The result is `path`, or without one the model as a message. UnsupportedError that names all
    ops which have no form in ONNX (state, the host, random numbers, complex numbers, ...);
    AlreadyExistsError for a path that is taken; other errors as `wf.export` has.

    >>> model = wf.onnx.save(lambda x: wf.nn.relu(x), example=wf.TensorType(wf.float32, ("n", 3)))
    >>> [node.op_type for node in model.graph.node]
    ['Relu']
    """
    package()
    if opset not in OPSETS:
        raise InvalidArgumentError(
            f"wf.onnx.save: opset={opset!r:.40}", hint="it is 20 or 23", location=caller_location()
        )
    try:
        weights = Weights()
        found = _exported(model, example, signature, weights)
        found = frozen(found, weights) if freeze else simplified(found)
        made = written(found, weights, opset)
        if path is not None:
            _store(made, path, external_data, replace)
            return path
        if external_data or made.nbytes > MOST_INSIDE:
            raise InvalidArgumentError(
                f"wf.onnx.save: {made.nbytes} bytes of weights are to have a file of their own",
                hint="give a path, beside which it is written",
            )
        return made.message()
    except WeftError as error:
        raise _renamed(error).at(caller_location()) from error.__cause__


def _renamed(error: WeftError) -> WeftError:
    """An error of what is shared with `wf.export`, as one of `wf.onnx.save`."""
    what, hint = error.what, error.hint
    for shared in ("wf.export(freeze=True)", "wf.export"):
        what = what.replace(shared, "wf.onnx.save")
        hint = hint and hint.replace(shared, "wf.onnx.save")
    if (what, hint) == (error.what, error.hint):
        return error
    return type(error)(what, hint=hint, location=error.locations)


# ------------------------------------------------------------------------------------------ tracing
def _exported(model: Any, example: Any, signature: Any, weights: Weights) -> Exported:
    if isinstance(model, (SessionGraph, Session)):
        if signature is None or example is not None:
            raise InvalidArgumentError(
                "wf.onnx.save: what of the graph is saved is not known",
                hint="signature=({'x': x}, {'y': y}): its inputs and outputs by name",
            )
        return exported_graph(model, signature, DEFAULT, weights, _check)
    if signature is not None:
        raise InvalidArgumentError(
            "wf.onnx.save: signature= is of a graph or session",
            hint="of a function: example=, the arguments of a call",
        )
    if isinstance(model, Bundle):
        if DEFAULT not in model.signatures:
            raise InvalidArgumentError(
                f"wf.onnx.save: {model!r:.80} has no signature '{DEFAULT}'",
                hint=f"save one of its signatures: bundle[{next(iter(model.signatures))!r}]",
            )
        model = model.signatures[DEFAULT]
    return exported_function(model, example, weights, _check)


def _check(graph: Graph) -> None:
    _refuse(graph.name, traced_refusals(graph))


def _refuse(name: str, refusals: Sequence[Refusal]) -> None:
    """One UnsupportedError for all of them."""
    if not refusals:
        return
    listed = "".join(f"\n  {one}" for one in refusals)
    ops = "an op has" if len(refusals) == 1 else f"{len(refusals)} ops have"
    hints = dict.fromkeys(one.hint for one in refusals if one.hint)
    raise UnsupportedError(
        f"wf.onnx.save: {ops} no form in ONNX, in '{name}':{listed}",
        hint="; ".join(hints) or None,
        location=refusals[0].op.locations,
    )


# ------------------------------------------------------------------------------------------ writing
def written(found: Exported, weights: Weights, opset: int) -> _Model:
    """A signature as nodes of ONNX. UnsupportedError for ops that have none."""
    graph = found.graph
    writer = GraphWriter(graph, found.inputs, opset)
    writer.reserve(set(found.output_names).difference(weights.arrays))
    writer.name_arrays(weights.arrays)
    for arg, name in zip(graph.args[found.inputs :], found.weights, strict=True):
        writer.bind(arg, writer.constant(weights.arrays[name]))
    refusals = emit(writer, graph.block)
    _refuse(graph.name, refusals)
    writer.scope_name = writer.place = ""
    outputs: list[str] = []
    for value in graph.results:
        try:
            outputs.append(writer.use(value))
        except RefusedError as error:
            assert value.op is not None
            refusals.append(Refusal(value.op, error.why, error.hint))
    _refuse(graph.name, refusals)
    return _Model(writer, found, outputs)


def _store(model: _Model, path: PathLike, external_data: bool, replace: bool) -> None:
    """Write a model, and its arrays beside it if they are too many, or are to be."""
    outside = external_data or model.nbytes > MOST_INSIDE
    place = path_of(path)
    data = place.with_name(place.name + ".data")
    for one in (place, data) if outside else (place,):
        if is_there(one) and not replace:
            raise AlreadyExistsError(
                f"wf.onnx.save: '{one}' is there already", hint="replace=True replaces it"
            )
    message = model.message(data.name if outside else None)
    if outside:
        write_atomically(data, model.chunks())
    write_atomically(place, [memoryview(message.SerializeToString())])


class _Model:
    """What was written as messages of ONNX."""

    def __init__(self, writer: GraphWriter, found: Exported, outputs: Sequence[str]) -> None:
        self.onnx = package()
        self.helper = importlib.import_module("onnx.helper")
        self.writer, self.found = writer, found
        graph = found.graph
        self.inputs = list(graph.arg_names[: found.inputs])
        self.outputs: list[str] = []
        self.renamed: dict[str, str] = {}
        self.more: list[Node] = []
        made = {n for node in writer.nodes for n in node.outputs}
        for name, wanted in zip(outputs, found.output_names, strict=True):
            own = writer.output_name(wanted)
            self.outputs.append(own)
            if name in made and name not in self.renamed:
                self.renamed[name] = own
            else:
                self.more.append(Node("Identity", own, [name], [own], {}, {}, ""))
        used = self._used(writer.nodes) | {n for node in self.more for n in node.inputs}
        self.arrays = {n: a for n, a in writer.arrays.items() if n in used}

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(a.nbytes for a in self.arrays.values())

    def _used(self, nodes: Sequence[Node]) -> set[str]:
        found: set[str] = set()
        for node in nodes:
            found.update(node.inputs)
            for body in node.bodies.values():
                found |= self._used(body.nodes)
                found.update(n for n, _ in body.outputs)
        return found

    def message(self, data: str | None = None) -> onnx.ModelProto:
        """The model; data: the name of the file with its arrays, if they are in one."""
        graph = self.found.graph
        nodes = [*self.writer.nodes, *self.more]
        kinds = [v.type for v in graph.results]
        made = self.helper.make_graph(
            [self._node(node) for node in nodes],
            graph.name,
            [self._info(n, a.type) for n, a in zip(self.inputs, graph.args, strict=False)],
            [self._info(n, k) for n, k in zip(self.outputs, kinds, strict=True)],
            self._initializers(data),
        )
        version = str(importlib.import_module("weft").__version__)
        opset = self.helper.make_operatorsetid("", self.writer.opset)
        model = self.helper.make_model(
            made, producer_name="weft", producer_version=version, opset_imports=[opset],
            ir_version=IR_VERSION,
        )  # fmt: skip
        return model  # type: ignore[no-any-return]

    def _node(self, node: Node) -> Any:
        attrs: dict[str, Any] = {}
        for key, value in node.attrs.items():
            if isinstance(value, DType):
                attrs[key] = self._element(value)
            elif isinstance(value, np.ndarray):
                attrs[key] = self._tensor("", value)
            else:
                attrs[key] = value
        for key, body in node.bodies.items():
            attrs[key] = self._body(body)
        inputs, outputs = ([self._name(n) for n in names] for names in (node.inputs, node.outputs))
        made = self.helper.make_node(node.kind, inputs, outputs, name=node.name, **attrs)
        if node.place:
            entry = made.metadata_props.add()
            entry.key, entry.value = "weft.location", node.place
        return made

    def _name(self, name: str) -> str:
        return self.renamed.get(name, name)

    def _body(self, body: Body) -> Any:
        return self.helper.make_graph(
            [self._node(node) for node in body.nodes],
            body.name,
            [self._info(self._name(n), k) for n, k in body.inputs],
            [self._info(self._name(n), k) for n, k in body.outputs],
        )

    def _info(self, name: str, kind: Any) -> Any:
        assert isinstance(kind, TensorType)
        sizes = [_size(d) for d in kind.shape]
        return self.helper.make_tensor_value_info(name, self._element(kind.dtype), sizes)

    def _element(self, dtype: DType) -> int:
        if dtype.is_complex:
            raise TypeRuleError("wf.onnx.save: ONNX runtimes take no complex numbers")
        return number_of(dtype)

    # --------------------------------------------------------------------------------------- arrays
    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        made = self.onnx.TensorProto()
        made.name = name
        made.data_type = self._element(dtypes.as_dtype(array.dtype))
        made.dims.extend(array.shape)
        if array.dtype.hasobject:
            made.string_data.extend(array.ravel().tolist())
        else:
            made.raw_data = np.ascontiguousarray(array).tobytes()
        return made

    def _outside(self) -> list[tuple[str, int, int]]:
        """Of each array that goes to the other file: its name, where it begins, its bytes."""
        found: list[tuple[str, int, int]] = []
        at = 0
        for name, array in self.arrays.items():
            if array.nbytes >= _LEAST_OUTSIDE and not array.dtype.hasobject:
                at = -(-at // _ALIGNED) * _ALIGNED
                found.append((name, at, array.nbytes))
                at += array.nbytes
        return found

    def chunks(self) -> list[memoryview]:
        """The other file."""
        made: list[memoryview] = []
        at = 0
        for name, start, size in self._outside():
            made += [memoryview(bytes(start - at))] if start > at else []
            array = np.ascontiguousarray(self.arrays[name])
            made.append(array.reshape(-1).view(np.uint8).data)
            at = start + size
        return made

    def _initializers(self, data: str | None) -> list[Any]:
        places = {n: (at, size) for n, at, size in self._outside()} if data is not None else {}
        made: list[Any] = []
        for name, array in self.arrays.items():
            if name not in places:
                made.append(self._tensor(name, array))
                continue
            entry = self.onnx.TensorProto()
            entry.name, entry.data_location = name, self.onnx.TensorProto.EXTERNAL
            entry.data_type = self._element(dtypes.as_dtype(array.dtype))
            entry.dims.extend(array.shape)
            at, size = places[name]
            for key, value in (("location", data), ("offset", at), ("length", size)):
                entry.external_data.add(key=key, value=str(value))
            made.append(entry)
        return made


def _size(dim: Dim) -> int | str | None:
    return str(dim) if isinstance(dim, SymbolicDim) else dim
