"""`wf.load`: a bundle as compiled functions.

Each signature is a compiled function that adds the graph of the bundle to the trace that it is
called in, with variables and constants of the bundle in place of its weights; so it can be called,
differentiated, mapped and made a part of other functions, sessions included."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.frontend.bundle.files import BundleFiles, PathLike, damaged, read_bundle
from weft.frontend.bundle.freeze import with_constants
from weft.frontend.bundle.signature import DEFAULT, type_from_json, type_of
from weft.frontend.bundle.structure import structure_from_json
from weft.frontend.compile.decorator import compile
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Array, Tensor
from weft.frontend.core.trace import Trace, current_trace, suspend_trace
from weft.frontend.ops.dispatch import fresh_sizes
from weft.frontend.ops.dynamic import ensure_shape
from weft.frontend.state.variable import Variable
from weft.ir.analysis.verify import verify
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.errors import (
    DataLossError,
    NotFoundError,
    PermissionDeniedError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
    suggest,
)
from weft.ir.graph import Block, Graph, Value
from weft.ir.locations import caller_location
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType
from weft.passes.sizes import made_symbols, specialize
from weft.runtime.files.permissions import AllowFiles, grant


class Bundle:
    """A model that `wf.load` has read: calling it calls its signature "serving_default".

    signatures: compiled functions by name. variables: by name, with the values that they were
    exported with; the functions read and write them, gradients with respect to them are taken as of
    any variables, and a `wf.train.Saver` saves them.
    """

    def __init__(self, path: str, files: BundleFiles, allow_files: AllowFiles) -> None:
        self.path = path
        self.manifest = files.manifest
        with _checked(path):
            self.variables: Mapping[str, Variable] = _variables(files)
            given: dict[str, Variable | Array] = {**files.weights, **self.variables}
            self._held = {
                str(name): _signature(str(name), entry, files, given, allow_files)
                for name, entry in files.manifest["signatures"].items()
            }
            self.signatures: Mapping[str, CompiledFunction[..., Any]] = {
                name: compiled_signature(
                    name, files.manifest["signatures"][name]["parameters"], one
                )
                for name, one in self._held.items()
            }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self[DEFAULT](*args, **kwargs)

    def __getitem__(self, name: str) -> CompiledFunction[..., Any]:
        if name not in self.signatures:
            raise NotFoundError(
                f"the bundle '{self.path}' has no signature {name!r:.60}"
                f"{suggest(str(name), list(self.signatures))}",
                hint=f"it has: {', '.join(self.signatures)}",
                location=caller_location(),
            )
        return self.signatures[name]

    def flat(self, name: str) -> CompiledFunction[..., list[Tensor]]:
        """A signature as a function of its inputs to the list of its outputs, both as the manifest
        lists them: for programs that know names of tensors, but no structures. NotFoundError for
        one that is none."""
        self[name]  # an error for one that is none
        held = self._held[name]

        def call(*inputs: Tensor) -> list[Tensor]:
            return held.add(name, inputs)

        call.__name__ = call.__qualname__ = name
        return compile(call, input_signature=held.inputs)

    def has_loops(self, name: str) -> bool:
        """Whether the graph of a signature has loops, whose number of rounds values may decide."""
        return any(op.name in ("while", "scan") for op in self._held[name].graph.walk())

    def trainable_variables(self) -> list[Variable]:
        """Those that optimizers change by default: for `optimizer.minimize(loss, ...)`."""
        return [v for v in self.variables.values() if v.trainable]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}{inspect.signature(f)}" for name, f in self.signatures.items())
        return f"<bundle {self.path}: {shown}; {len(self.variables)} variables>"


def load(path: PathLike, *, allow_files: AllowFiles = None) -> Bundle:
    """A bundle that `wf.export` wrote, as compiled functions. The source of the model need not be
    there. path: its folder, or the URL of one.

    allow_files: the folder, or folders, whose files its ops may read and write (True: all that the
    process may use); without it PermissionDeniedError for a bundle with such ops.

    Everything is checked before it is used, as a bundle may come from anywhere: NotFoundError where
    there is none, UnsupportedError for a later format, DataLossError for files that are damaged or
    do not fit together, ResourceExhaustedError for weights that do not fit into memory.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/line"
    >>> slope = wf.Variable(3.0, name="slope")
    >>> wf.export(lambda x: slope * x, path, example=wf.TensorType(wf.float32, ("n",)))
    >>> model = wf.load(path)
    >>> model
    <bundle .../line: serving_default(x); 1 variables>
    >>> model(wf.asarray([1.0, 2.0]))
    Tensor([3., 6.], dtype=float32)
    >>> wf.compile(lambda x: wf.grad(lambda x: wf.sum(model(x)))(x))(wf.asarray([1.0, 2.0]))
    Tensor([3., 3.], dtype=float32)
    """
    with suspend_trace():
        return Bundle(str(path), read_bundle(path), allow_files)


def bundle_graph(path: PathLike, signature: str = "", allow_files: AllowFiles = None) -> Graph:
    """The graph of a signature with its weights as constants, for programs that take graphs.

    signature: its name; "": "serving_default", or the only one. NotFoundError for one that is none,
    UnsupportedError for one that writes variables; else as `load`."""
    bundle = load(path, allow_files=allow_files)
    names = list(bundle.signatures)
    chosen = signature or (names[0] if len(names) == 1 else DEFAULT)
    bundle[chosen]  # an error for one that is none
    found = bundle._held[chosen]
    if found.updates:
        raise UnsupportedError(
            f"the signature '{chosen}' of '{path}' writes the variable "
            f"'{found.updates[0].name}', which a graph by itself does not keep",
            hint="wf.export(..., freeze=True) leaves that out; wf.load runs it",
        )
    arrays = [np.asarray(w.read()) if isinstance(w, Variable) else w for w in found.weights]
    return with_constants(found.graph, len(found.inputs), arrays, len(found.graph.results))


@contextmanager
def _checked(path: str) -> Iterator[None]:
    """What does not fit together is a DataLossError."""
    try:
        yield
    except (PermissionDeniedError, UnsupportedError) as error:
        raise error.at(caller_location()) from None
    except (WeftError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = error.what if isinstance(error, WeftError) else repr(error)
        raise damaged(path, what) from error


def _variables(files: BundleFiles) -> dict[str, Variable]:
    made: dict[str, Variable] = {}
    for name, entry in files.manifest["weights"].items():
        kind, array = type_from_json(entry), files.weights[name]
        if kind != type_of(array):
            raise DataLossError(f"the weight '{name}' is no {kind}")
        if entry["trainable"] is not None:
            made[name] = Variable(array, name=name, trainable=bool(entry["trainable"]))
    return made


@dataclass(frozen=True, slots=True)
class LoadedSignature:
    """A signature of a bundle. weights: in the order of the graph's arguments after its inputs;
    updates: the variables that its results after its own are for."""

    graph: Graph
    inputs: tuple[TensorType, ...]
    result: pytree.Structure
    order: Sequence[int]
    weak: Sequence[bool]
    weights: Sequence[Variable | Array]
    updates: Sequence[Variable]

    def add(self, name: str, given: Sequence[Tensor]) -> list[Tensor]:
        """The graph as a part of the current trace; its outputs, as the manifest lists them."""
        trace = current_trace()
        assert trace is not None
        for i, (t, kind) in enumerate(zip(given, self.inputs, strict=True)):
            _check_fits(self.graph.arg_names[i], name, kind, t._type)
        sizes = _sizes(name, self.inputs, [t._type for t in given])
        values = [
            trace.lift(_of_sizes(t, k, sizes)) for t, k in zip(given, self.inputs, strict=True)
        ]
        values += [
            trace.lift(w.read()) if isinstance(w, Variable) else trace.constant(w)
            for w in self.weights
        ]
        for symbol in sorted(made_symbols(self.graph)):  # of sizes that depend on values
            (fresh,) = fresh_sizes(trace, symbol, 1)
            sizes[symbol] = SymbolicDim.symbol(fresh)
        sizes = {s: d for s, d in sizes.items() if d != SymbolicDim.symbol(s)}
        graph = specialize(self.graph, sizes) if sizes else self.graph  # type: ignore[arg-type]
        results = self.inline(trace, graph.block, values)
        own = len(results) - len(self.updates)
        for variable, value in zip(self.updates, results[own:], strict=True):
            variable.assign(trace.tensor(value))
        return [trace.tensor(v, w) for v, w in zip(results, self.weak, strict=False)]

    def inline(self, trace: Trace, block: Block, values: Sequence[Value]) -> Sequence[Value]:
        """Append the ops of the graph, on these arguments; its results."""
        return trace.builder.inline(block, values)


def _check_fits(argument: str, name: str, wanted: TensorType, kind: TensorType) -> None:
    """TypeRuleError or ShapeError for a tensor that is not of the type of the argument."""
    fits = kind.rank == wanted.rank and all(
        isinstance(w, SymbolicDim) or not isinstance(d, int) or d == w
        for d, w in zip(kind.shape, wanted.shape, strict=True)
    )
    if kind.dtype is not wanted.dtype or not fits:
        raise (TypeRuleError if fits else ShapeError)(
            f"the argument '{argument}' of '{name}' is {kind}, but its signature says {wanted}",
            hint="convert it with wf.astype or wf.reshape",
            location=caller_location(),
        )


def _sizes(name: str, wanted: Sequence[TensorType], given: Sequence[TensorType]) -> dict[str, Dim]:
    """The sizes of what is given, by the symbols of the signature: known ones before open ones.
    ShapeError where a symbol has two that are known."""
    found: dict[str, Dim] = {}
    for kind, here in zip(wanted, given, strict=True):
        for dim, size in zip(kind.shape, here.shape, strict=True):
            if not isinstance(dim, SymbolicDim) or size is None:
                continue
            (symbol,) = dim.symbols
            known = found.setdefault(symbol, size)
            if isinstance(size, int) and isinstance(known, int) and known != size:
                raise ShapeError(
                    f"arguments of '{name}' have the sizes {known} and {size} for '{symbol}', "
                    "which its signature says are equal",
                    location=caller_location(),
                )
            found[symbol] = size if isinstance(size, int) else known
    return found


def _of_sizes(t: Tensor, wanted: TensorType, sizes: Mapping[str, Dim]) -> Tensor:
    """The tensor with the sizes that its symbols have; where that is not known, it is checked when
    it runs."""
    shape = tuple([
        sizes[next(iter(d.symbols))] if isinstance(d, SymbolicDim) else d for d in wanted.shape
    ])  # fmt: skip
    return t if t._type.shape == shape else ensure_shape(t, shape)


def _signature(
    name: str,
    entry: Mapping[str, Any],
    files: BundleFiles,
    weights: Mapping[str, Variable | Array],
    allow_files: AllowFiles,
) -> LoadedSignature:
    """A signature, checked."""
    inputs = tuple([type_from_json(one) for one in entry["inputs"]])
    outputs = [type_from_json(one) for one in entry["outputs"]]
    graph = _graph(files, entry["graph"], allow_files)
    held = [weights[w] for w in entry["weights"]]
    updates = [weights[w] for w in entry["updates"]]
    if [a.type for a in graph.args] != [*inputs, *map(type_of, held)]:
        raise DataLossError(f"the inputs of '{name}' are not those of its graph")
    if [r.type for r in graph.results] != [*outputs, *map(type_of, updates)]:
        raise DataLossError(f"the outputs of '{name}' are not those of its graph")
    variables = [v for v in updates if isinstance(v, Variable)]
    if len(variables) < len(updates):
        raise DataLossError(f"'{name}' writes what is no variable")
    for kind in inputs:
        if any(isinstance(d, SymbolicDim) and d != _symbol(d) for d in kind.shape):
            raise DataLossError(f"an input of '{name}' has a size that is no name: {kind}")
    result, order = structure_from_json(entry["result"])
    if len(order) != len(outputs):
        raise DataLossError(f"the result of '{name}' does not hold its outputs")
    return LoadedSignature(
        graph, inputs, result, order, [one["weak"] is True for one in entry["outputs"]], held,
        variables,
    )  # fmt: skip


def _symbol(dim: SymbolicDim) -> Dim:
    return SymbolicDim.symbol(next(iter(dim.symbols))) if len(dim.symbols) == 1 else 0


def _graph(files: BundleFiles, name: str, allow_files: AllowFiles) -> Graph:
    graph = parse_graph(files.texts[name], name)
    verify(graph)
    calls = next((op for op in graph.walk() if op.name in PYTHON_CALLS), None)
    if calls is not None:
        raise UnsupportedError(
            f"{name} calls Python (op '{calls.name}'), which no bundle may",
            location=calls.locations,
        )
    return grant(graph, allow_files)


def compiled_signature(
    name: str, parameters: Sequence[Mapping[str, Any]], signature: LoadedSignature
) -> CompiledFunction[..., Any]:
    """A compiled function with the parameters that the exported one had."""
    given: list[inspect.Parameter] = []
    trees: list[Any] = []
    numbers: list[int] = []
    for one in parameters:
        structure, order = structure_from_json(one["structure"])
        leaves = [one["first_input"] + i for i in order]
        numbers += leaves
        trees.append(pytree.unflatten(structure, [signature.inputs[i] for i in leaves]))
        only = one["keyword_only"] is True
        kind = inspect.Parameter.KEYWORD_ONLY if only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        given.append(inspect.Parameter(one["name"], kind))
    if sorted(numbers) != list(range(len(signature.inputs))):
        raise DataLossError(f"the parameters of '{name}' do not hold its inputs")
    shown = inspect.Signature(given)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = shown.bind(*args, **kwargs)
        leaves, structure = pytree.flatten(tuple(bound.arguments.values()))
        if not pytree.alike(wanted, structure):
            pytree.same_structure(f"'{name}' of the bundle", wanted, structure)
        ordered: list[Any] = [None] * len(leaves)
        for number, leaf in zip(numbers, leaves, strict=True):
            ordered[number] = leaf
        outputs = signature.add(name, ordered)
        return pytree.unflatten(signature.result, [outputs[i] for i in signature.order])

    _, wanted = pytree.flatten(tuple(trees))
    call.__name__ = call.__qualname__ = name
    call.__signature__ = shown  # type: ignore[attr-defined]
    call.__doc__ = f"The signature '{name}' of a bundle."
    made: CompiledFunction[..., Any] = compile(call, input_signature=trees)
    return made
