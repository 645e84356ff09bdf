"""`wf.export`: functions, modules and graphs as a bundle.

A function is traced once for its signature; of a graph or session, what leads from the inputs to
the outputs is taken. State becomes arguments (`passes/functional_state.py`), large constants
become weights, so the text of a graph stays short, and what only this process has (objects of the
host, functions of Python, ops of the user's own) is an error."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as replace_fields
from functools import partial
from keyword import iskeyword
from typing import Any, cast

import numpy as np

from weft.frontend.bundle.files import GRAPH, PathLike, checked_name, write_bundle
from weft.frontend.bundle.freeze import frozen
from weft.frontend.bundle.load import Bundle
from weft.frontend.bundle.signature import (
    DEFAULT,
    Exported,
    Weights,
    signature_to_json,
    type_of,
    type_to_json,
)
from weft.frontend.bundle.structure import structure_from_json, structure_to_json
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.compile.input_signature import InputSignature
from weft.frontend.compile.specializations import signature_of
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import (
    Argument,
    Traced,
    definition,
    function_name,
    identifier,
    trace_function,
)
from weft.frontend.core.tensor import Array, Tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.nn.module import Module
from weft.frontend.session.graph import Graph as SessionGraph
from weft.frontend.session.session import Session
from weft.frontend.session.step import step_program
from weft.frontend.state.variable import Variable
from weft.ir.errors import (
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Graph, Operation, Value, unique_name
from weft.ir.locations import caller_location
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.spec import ConstArray
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType
from weft.passes.functional_state import functional_state
from weft.passes.rewriting.rewrite import bind, extend, with_operands
from weft.passes.simplify.cse_dce import dce
from weft.runtime.device.backends.local import without_devices
from weft.runtime.record.needs import needs_of
from weft.runtime.resources.variables import VariableState

#: Constants of so many bytes are weights: shorter ones can be read in the text.
_LARGE = 1024


def export(
    model: Any,
    path: PathLike,
    *,
    example: Any = None,
    signatures: Mapping[str, Any] | None = None,
    freeze: bool = False,
    replace: bool = False,
) -> None:
    """Write a model as a bundle, a folder that `wf.load` runs where its source is not there:
    graphs as text, weights as safetensors, signatures as JSON, no code and no pickle.

    model: a function of tensors, compiled or not; a `wf.nn.Module`, which is exported as after
    `eval()`; a `wf.Graph` or `wf.Session`; a loaded bundle; or None, if `signatures` says all.
    example: the arguments of a call, a tuple of them (a dict: by name): arrays and tensors, or a
    `wf.TensorType`, None or a name in its shape for a size that is open. A function with an
    `input_signature` needs none.

    signatures: by name, a function, or a pair of a function and its example; of a graph or session
    a pair of dicts, inputs and outputs by name, of tensors or names of tensors. The model itself is
    "serving_default", which calling the loaded bundle runs. The signatures of a bundle share their
    variables. freeze: variables become constants, what is known is computed, scales after products
    and convolutions (batch normalisation) are multiplied into their weights, and what functions
    write to variables is left out (docs/guide/bundles.md). replace: a bundle at `path` may go.

    path may be a URL. Functions that write variables do so in the loaded bundle, too. TypeRuleError
    and InvalidArgumentError for arguments that do not fit, AlreadyExistsError for a path that is
    taken, UnsupportedError for what only this process has: queues, tables, `wf.py_function`, ops
    and `wf.elementwise` functions of the user's.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/double"
    >>> wf.export(lambda x: 2 * x, path, example=wf.TensorType(wf.float32, ("n",)))
    >>> wf.load(path)(wf.asarray([1.0, 2.0]))
    Tensor([2., 4.], dtype=float32)
    """
    weights = Weights()
    made: dict[str, Exported] = {}
    try:
        for name, (what, given) in _all_signatures(model, example, signatures).items():
            if isinstance(what, (SessionGraph, Session)):
                found = exported_graph(what, given, name, weights)
            else:
                found = exported_function(what, given, weights)
            if freeze:
                found = frozen(found, weights)
            structure_from_json(found.result)  # what cannot be read is not written
            made[name] = _with_large_constants(found, weights)
        _write(path, made, weights, replace)
    except WeftError as error:
        raise error.at(caller_location()) from error.__cause__


def _write(path: PathLike, made: Mapping[str, Exported], weights: Weights, replace: bool) -> None:
    """The signatures, and the weights that any of them uses, as the files of a bundle."""
    used = {name for one in made.values() for name in one.weights}
    arrays = {name: array for name, array in weights.arrays.items() if name in used}
    manifest = {
        "weft": str(importlib.import_module("weft").__version__),
        "signatures": {name: signature_to_json(name, one) for name, one in made.items()},
        "weights": {
            name: {**type_to_json(type_of(array)), "trainable": weights.trainable.get(name)}
            for name, array in arrays.items()
        },
    }
    texts = {name + GRAPH: print_graph(one.graph, folders=False) for name, one in made.items()}
    write_bundle(path, manifest, texts, arrays, replace=replace)


# ------------------------------------------------------------------------------------ what is given
def _all_signatures(
    model: Any, example: Any, signatures: Mapping[str, Any] | None
) -> dict[str, tuple[Any, Any]]:
    """By name: a function and its example, or a graph or session with inputs and outputs."""
    found: dict[str, tuple[Any, Any]] = {}
    if isinstance(model, Bundle) and example is None:
        found.update({name: (one, None) for name, one in model.signatures.items()})
        model = None
    is_graph = isinstance(model, (SessionGraph, Session))
    if model is not None and not is_graph:
        found[DEFAULT] = model, example
    elif example is not None:
        raise InvalidArgumentError(
            "wf.export: example= is of a function",
            hint="of a graph: signatures={'serving_default': ({'x': x}, {'y': y})}",
        )
    for name, given in ({} if signatures is None else signatures).items():
        checked_name(name, "wf.export(signatures=)")
        if name in found:
            raise InvalidArgumentError(
                f"wf.export: '{name}' is the signature of the model itself",
                hint="pass None as the model, or give another name",
            )
        if is_graph:
            found[name] = model, given
        else:
            found[name] = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not found:
        raise InvalidArgumentError(
            "wf.export: there is nothing to export",
            hint="pass a function, or signatures={name: function}",
        )
    return found


# ---------------------------------------------------------------------------------------- functions
def exported_function(
    function: Any, example: Any, weights: Weights, check: Callable[[Graph], None] | None = None
) -> Exported:
    """A function, traced once; its variables are added to `weights`. check: raises for graphs that
    cannot be exported; else those are refused that a process without the source cannot run."""
    static: frozenset[str] = frozenset()
    x64 = True
    if isinstance(function, CompiledFunction):
        static, given, x64 = function._static, function._given_signature, function._x64
        function = function._fn
        if example is None and given is not None:
            names = [n for n in signature_of(function).parameters if n not in static]
            example = dict(zip(names, given, strict=True))
    if not callable(function):
        raise TypeRuleError(
            f"wf.export takes a function, a wf.nn.Module, a wf.Graph or a wf.Session, got a "
            f"{type(function).__name__}"
        )
    name, signature = function_name(function), signature_of(function)
    bound = _bound(name, signature, example)
    inputs = {n: v for n, v in bound.arguments.items() if n not in static}
    _check_types(name, inputs)
    kinds = [pytree.tree_map(type_of, value) for value in inputs.values()]
    types = InputSignature(name, tuple(inputs), kinds)
    traced, trainable = _traced(function, bound, types, tuple(inputs), x64)
    (check or _check_portable)(traced.graph)
    pure = functional_state(dce(without_devices(traced.graph)))
    module = getattr(function, "__self__", function)
    paths: dict[VariableState, str] = {}
    if isinstance(module, Module):
        paths = {v.state: path for path, v in module.named_variables().items()}
    called: dict[str, str] = {}
    for label in pure.variables:
        state = traced.variables[label]
        called[label] = weights.add(paths.get(state, label), state, state.read)
        weights.trainable[called[label]] = trainable[label]
    return Exported(
        pure.graph, _parameters(name, signature, types, tuple(inputs)),
        structure_to_json(traced.structure, f"the result of '{name}'"), traced.weak,
        _output_names(traced.structure), len(types.types),
        [called[label] for label in pure.variables], [called[label] for label in pure.written],
    )  # fmt: skip


def _output_names(structure: pytree.Structure) -> list[str]:
    """Names of the results: of a dict its keys, of what has no names "result" and where they are in
    it."""
    paths = pytree.paths(structure)
    named = all(p and not re.match(r"\[\d", p) for p in paths)
    made: list[str] = []
    for path in paths if named else pytree.paths(structure, "result"):
        made.append(unique_name(identifier(path), made))
    return made


def _traced(
    function: Any, bound: inspect.BoundArguments, types: InputSignature, names: tuple[str, ...],
    x64: bool,
) -> tuple[Traced, dict[str, bool]]:  # fmt: skip
    """The function traced on the types of its arguments, and which variables are trainable. names:
    of the parameters that are not static."""
    module = getattr(function, "__self__", function)
    trainable: dict[str, bool] = {}

    def call(inputs: list[Tensor]) -> Any:
        if isinstance(module, Module):
            module.eval()
        bound.arguments.update(zip(names, pytree.unflatten(types.structure, inputs), strict=True))
        result = function(*bound.args, **bound.kwargs)
        trace = current_trace()
        assert trace is not None
        trainable.update({n: v.trainable for n, v in trace.variables.items()})
        return result

    arguments = [
        Argument(t, False, identifier(path))
        for t, path in zip(types.types, types.paths, strict=True)
    ]
    traced = trace_function(
        function_name(function), call, arguments, location=definition(function),
        parameters=names, takes_host_ops=True, x64=x64,
    )  # fmt: skip
    return traced, trainable


def _parameters(
    name: str, signature: inspect.Signature, types: InputSignature, names: Sequence[str]
) -> list[dict[str, Any]]:
    """The parameters as JSON, each with how its leaves nest."""
    made: list[dict[str, Any]] = []
    first = 0
    children = () if types.structure is None else types.structure.children
    for parameter, structure in zip(names, children, strict=True):
        kind = signature.parameters[parameter].kind
        nested = structure_to_json(structure, f"the argument '{parameter}' of '{name}'")
        made.append({
            "name": parameter, "keyword_only": kind is inspect.Parameter.KEYWORD_ONLY,
            "structure": nested, "first_input": first,
        })  # fmt: skip
        first += pytree.count_leaves(structure)
    return made


def _bound(name: str, signature: inspect.Signature, example: Any) -> inspect.BoundArguments:
    """The arguments of the example by parameter. InvalidArgumentError if the function cannot be
    called with them."""
    needed = [p for p in signature.parameters.values() if p.default is p.empty]
    if example is None and needed:
        raise InvalidArgumentError(
            f"wf.export: what '{name}' is called with is not known: it has no example",
            hint="example=wf.TensorType(wf.float32, ('batch', 784)), say, or a tuple of one for "
            "each argument; an array is an example, too",
        )
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    if isinstance(example, dict):
        kwargs = example
    elif isinstance(example, (tuple, list)):
        args = example
    elif example is not None:
        args = (example,)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArgumentError(
            f"wf.export: '{name}' cannot be called with its example: {error}",
            hint="a tuple or list has an array or a wf.TensorType for each argument, a dict by the "
            "names of parameters; one argument that is a list, or a dict: example=([x, y],)",
        ) from None
    for parameter in bound.arguments:
        if signature.parameters[parameter].kind in variable:
            raise UnsupportedError(
                f"wf.export: the parameter '{parameter}' of '{name}' takes any number of arguments",
                hint="export a function with one parameter for each, or for a list or dict of them",
            )
    return bound


def _check_types(name: str, given: Mapping[str, Any]) -> None:
    """TypeRuleError for leaves of the example that say no type: Python's numbers and others."""
    for parameter, value in given.items():
        leaves, structure = pytree.flatten(value)
        for leaf, path in zip(leaves, pytree.paths(structure, parameter), strict=True):
            if not isinstance(leaf, (TensorType, Tensor, Variable, np.ndarray, np.generic)):
                raise TypeRuleError(
                    f"wf.export: the example of '{name}' has {leaf!r:.60} at {path}",
                    hint="give an array or a wf.TensorType; what is to have this value for ever is "
                    "no argument: wf.export(lambda x: f(x, flag=True), ...)",
                )


# ------------------------------------------------------------------------------------------- graphs
def exported_graph(
    where: Any, given: Any, name: str, weights: Weights,
    check: Callable[[Graph], None] | None = None,
) -> Exported:  # fmt: skip
    """What leads from inputs to outputs of a graph or session; as `exported_function` else."""
    session = where if isinstance(where, Session) else None
    graph: SessionGraph = where if session is None else session.graph
    pair = isinstance(given, tuple) and len(given) == 2
    if not pair or not all(isinstance(part, Mapping) for part in given):
        raise TypeRuleError(
            f"wf.export: the signature '{name}' of a graph is a pair of dicts, its inputs and its "
            "outputs by name",
            hint="({'x': x}, {'y': y}), of tensors or names of tensors",
        )
    inputs, outputs = ({n: _element(graph, t) for n, t in part.items()} for part in given)
    for label in (*inputs, *outputs):
        if not isinstance(label, str) or not label.isidentifier() or iskeyword(label):
            raise InvalidArgumentError(
                f"wf.export: '{name}' has an input or output named {label!r:.60}",
                hint="names are those of Python's variables",
            )
    trace = graph._trace
    feeds = [(trace.lift(t), ()) for t in inputs.values()]
    values = [trace.lift(t) for t in outputs.values()]
    try:
        step = step_program(trace, values, (), feeds, sized=False)[0]
    except InvalidArgumentError as error:
        hint = f"add it to the inputs of the signature '{name}'"
        raise InvalidArgumentError(error.what, hint=hint, location=error.locations) from None
    (check or _check_portable)(step)
    pure = functional_state(dce(without_devices(step)))
    names = (*inputs, *pure.graph.arg_names[len(inputs) :])
    called: dict[str, str] = {}
    for label in pure.variables:
        variable = cast(Variable, trace.variables[label])
        called[label] = weights.add(label, variable.state, partial(_value, variable, session))
        weights.trainable[called[label]] = variable.trainable
    parameters = [
        {"name": n, "keyword_only": False, "structure": 0, "first_input": i}
        for i, n in enumerate(inputs)
    ]
    result = {"dict": [[n, i] for i, n in enumerate(outputs)]}
    return Exported(
        Graph(step.name, pure.graph.block, names, pure.graph.stage), parameters, result,
        [False] * len(outputs), list(outputs), len(inputs),
        [called[label] for label in pure.variables], [called[label] for label in pure.written],
    )  # fmt: skip


def _element(graph: SessionGraph, given: Any) -> Tensor:
    """A tensor of the graph, or that of a name. NotFoundError, TypeRuleError."""
    found = graph.tensor(given) if isinstance(given, str) else given
    if isinstance(found, Variable):
        with graph.as_default():
            found = found.read()
    if not isinstance(found, Tensor):
        raise TypeRuleError(
            f"wf.export: {given!r:.60} is no tensor of the graph",
            hint="inputs and outputs are tensors, or names of tensors",
        )
    return found


def _value(variable: Variable, session: Session | None) -> Array:
    if session is not None:
        return np.asarray(session.run(variable))
    return variable.state.read()


# -------------------------------------------------------------------------------- graphs for a text
def _check_portable(graph: Graph) -> None:
    """UnsupportedError for what a process without the model's source cannot run."""
    for op in graph.walk():
        if op.name in PYTHON_CALLS:
            raise UnsupportedError(
                f"wf.export: op '{op.name}' calls Python, which no bundle does",
                hint="leave it out, or compute it with ops of weft",
                location=op.locations,
            )
    needs = [need for need in needs_of(graph) if need.kind in ("op", "function")]
    if needs:
        raise UnsupportedError(
            "wf.export: the graph needs code of yours, which no bundle holds: "
            + "; ".join(map(str, needs)),
            hint="compute it with ops of weft",
        )


def _with_large_constants(given: Exported, weights: Weights) -> Exported:
    """The same with its large constants as weights. Those that repeat one element stay."""
    graph = given.graph
    own = len(graph.results) - len(given.updates)
    builder = extend(graph.block)
    mapping: dict[Value, Value] = {}
    names, held = list(graph.arg_names), list(given.weights)
    for op in graph.block.ops:
        array = _large(op)
        if array is None:
            made = with_operands(op, mapping)
            bind(mapping, op, made.results)
            builder.ops.append(made)
            continue
        name = weights.add("constant", _content(array), partial(np.array, array))
        if name in held:
            mapping[op.result] = builder.args[given.inputs + held.index(name)]
            continue
        mapping[op.result] = builder.add_arg(op.result.type)
        held.append(name)
        names.append(unique_name(name, names))
    results = [mapping.get(v, v) for v in graph.block.results]
    block = builder.block(results)
    labels = [*given.output_names, *[""] * (len(results) - own)]
    made_graph = Graph(graph.name, block, tuple(names), graph.stage, result_names=tuple(labels))
    return replace_fields(given, graph=made_graph, weights=held)


def _large(op: Operation) -> Array | None:
    if op.name != "constant":
        return None
    value = op.attrs["value"]
    assert isinstance(value, ConstArray)
    array = value.array
    repeats = array.size > 1 and not any(array.strides)
    return None if array.nbytes < _LARGE or repeats else array


def _content(array: Array) -> object:
    """A key for an array: equal for equal elements of one dtype and shape."""
    if array.dtype.hasobject:
        return array.shape, tuple(array.ravel().tolist())
    digest = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return array.dtype.str, array.shape, digest.digest()
