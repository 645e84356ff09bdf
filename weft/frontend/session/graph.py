"""`wf.Graph`, as in TensorFlow 1: placeholders, names, the default graph, and
`wf.tf1.import_graph_def`.

`wf.placeholder` outside any graph makes the default graph current in its thread: from then on ops
add to it, until `wf.tf1.reset_default_graph()`. `with wf.Graph().as_default():` limits this to a
block.
A finalized graph has a builder that refuses ops."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, overload

from weft.frontend.core.function_trace import identifier
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, Trace, current_trace, set_thread_default
from weft.frontend.core.user_errors import as_seen
from weft.frontend.session.graph_import import add_graph, near, to_ir
from weft.frontend.session.operations import GraphOperation, Node, OperationNames, results_of
from weft.frontend.state.variable import Variable, variables_of
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.dtypes import as_dtype
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation, Value, unique_name
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.ir.process import ForkLock
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType, Type
from weft.runtime.files.permissions import AllowFiles, grant

if TYPE_CHECKING:
    from weft.ir.drawing.notebook import Frame


class FinalizedBuilder(Builder):
    """Holds the arguments and ops of `builder`, and takes no more: FailedPreconditionError."""

    def __init__(self, builder: Builder, name: str) -> None:
        self.args, self.ops, self._name = builder.args, builder.ops, name

    def emit(self, name: str, *_: Any, **__: Any) -> tuple[Value, ...]:
        self.refuse(f"op '{name}'")

    def clone(self, op: Operation, *_: Any, **__: Any) -> tuple[Value, ...]:
        self.refuse(f"op '{op.name}'")

    def add_arg(self, type: Type) -> Value:
        self.refuse("a placeholder")

    def refuse(self, what: str) -> NoReturn:
        """Raise the error about what was to be added."""
        raise FailedPreconditionError(
            f"{what} was added to the graph '{self._name}', which is finalized",
            hint="build the whole graph before graph.finalize()",
            location=caller_location(),
        )


class Graph:
    """A graph that stays open: ops called inside `as_default()` are added to it.

    >>> with wf.Graph("model").as_default() as graph:
    ...     x = wf.placeholder(wf.float32, [None, 3], name="x")
    ...     y = wf.name_tensor(wf.sum(x, axis=1), "y")
    >>> graph
    <wf.Graph 'model': 1 ops, 1 placeholders, 0 variables (0 bytes)>
    >>> with wf.Session(graph=wf.Graph.from_text(graph.as_text())) as session:  # in any process
    ...     print(session.run("y", {"x": np.ones((2, 3))}))
    [3. 3.]
    """

    def __init__(self, name: str = "graph") -> None:
        self._trace = Trace("graph", name)
        self._trace.owner = self
        self._named: dict[str, Tensor] = {}
        self._effects: dict[str, Effect] = {}
        self._counts: dict[str, int] = {}  # the last number given to a name
        self._symbols = self._trace.symbols = set[str]()
        self._lock = ForkLock()
        #: The objects of the host that the graph's handles stand for, by the name in the IR.
        self.resources = self._trace.resources
        #: What `wf.train.start_queue_runners` starts.
        self.queue_runners: list[Any] = []
        #: What `wf.summary.merge_all` merges, by tag.
        self.summaries: dict[str, Tensor] = {}
        #: What `wf.tf1.local_variables_initializer` sets.
        self.local_variables: list[Any] = []
        self._operations = OperationNames(self)
        self._collections: dict[str, list[Any]] = {}

    def __repr__(self) -> str:
        trace = self._trace
        held = sum(v.state.array.nbytes for v in self.variables if v.state.array is not None)
        size = (
            f"{len(trace.builder.ops)} ops, {len(trace.builder.args)} placeholders, "
            f"{len(trace.variables)} variables ({held:,} bytes)"
        )
        return f"<wf.Graph {self.name!r}: {size}{', finalized' if self.finalized else ''}>"

    @property
    def name(self) -> str:
        """The name given."""
        return self._trace.name

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make this the graph that the code in the block builds."""
        with self._trace.active():
            try:
                yield self
            except Exception as error:
                as_seen(error)
                raise

    @property
    def variables(self) -> list[Variable]:
        """The variables used in this graph so far, in order of first use."""
        return list(variables_of(self._trace).values())

    @property
    def trainable_variables(self) -> list[Variable]:
        """Those that optimizers change by default."""
        return [v for v in self.variables if v.trainable]

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`: a placeholder, what `wf.name_tensor` named, what the op of that
        name gives (`"merge:1"`: its second result, `:0` may be left out), or the value of that
        variable. NotFoundError with the closest names."""
        found = self.element(name)
        if isinstance(found, Variable):
            with self._trace.active():
                found = found.read()
        if isinstance(found, Tensor):
            return found
        raise NotFoundError(
            f"'{name}' is an effect of the graph '{self.name}', not a tensor",
            hint="get_operation_by_name gives effects",
            location=caller_location(),
        )

    get_tensor_by_name = tensor

    def get_operation_by_name(self, name: str) -> Effect | GraphOperation:
        """The effect called `name` (of `minimize`, `group`, initializers, queue ops), or the op
        that makes the tensor or variable of that name. NotFoundError with the closest names."""
        found = self._effects.get(name)
        if found is not None:
            return found
        node = self.operation_names().node(name)
        if node is not None:
            return self.operation(node)
        if name in self._named:  # another name of an op, or of a further result
            return self._named[name].op  # type: ignore[no-any-return]
        raise self._no_such(name)

    def get_operations(self) -> list[GraphOperation]:
        """Placeholders, then all ops, each in the order in which they were made."""
        return [self.operation(node) for node in self.operation_names().all()]

    def operation(self, node: Node) -> GraphOperation:
        """An op or argument of this graph as an object: the same each time."""
        return self._operations.operation(node)

    def operation_names(self) -> OperationNames:
        """The names of all ops so far."""
        with self._lock:
            return self._operations.update()

    def element(self, name: str) -> Tensor | Effect | GraphOperation | Variable:
        """The tensor, effect, op without a tensor or variable called `name`. NotFoundError with the
        closest names."""
        bare = name.removesuffix(":0")
        for known, label in (
            (self._named, bare), (self._effects, name), (variables_of(self._trace), bare),
        ):  # fmt: skip
            if label in known:
                return known[label]
        return self._of_op(name)

    def _of_op(self, name: str) -> Tensor | GraphOperation:
        label, colon, number = name.partition(":")
        node = self.operation_names().node(label)
        results = () if node is None else results_of(node)
        index = int(number) if number.isdecimal() else 0 if not colon else len(results)
        if node is None or index >= len(results):
            raise self._no_such(name)
        value = results[index]
        if isinstance(value.type, TensorType):
            return self._trace.tensor(value)
        if colon:
            raise self._no_such(name)
        return self.operation(node)

    def _no_such(self, name: str) -> NotFoundError:
        known = dict.fromkeys([*self._named, *self._effects, *self.operation_names()])
        return NotFoundError(
            f"the graph '{self.name}' has no tensor or effect named '{name}'{near(name, known)}",
            hint="graph.get_operations() lists all ops; wf.name_tensor(x, name) names a tensor",
            location=caller_location(),
        )

    def unique_name(self, name: str) -> str:
        """`name` within the current name scope, or with `_1`, `_2`, ... what no tensor, effect or
        op has."""
        wanted = self._trace.name_scope + name
        with self._lock:
            taken = {*self.operation_names(), *self._named, *self._effects}
        return unique_name(wanted, taken)

    def add_effect(self, effect: Effect) -> str:
        """The name, of its own, under which the graph knows a new effect."""
        with self._lock:
            label = self._free_name(effect.name)
            self._effects[label] = effect
        return label

    def _free_name(self, name: str) -> str:
        """`name`, or the next of `name_1`, `name_2`, ... that neither tensor nor effect has."""
        candidate, count = name, self._counts.get(name, 0)
        while candidate in self._named or candidate in self._effects:
            count += 1
            candidate = f"{name}_{count}"
        self._counts[name] = count
        return candidate

    # ------------------------------------------------------------------------------- no more ops
    @property
    def finalized(self) -> bool:
        """Whether `finalize` was called."""
        return isinstance(self._trace.builder, FinalizedBuilder)

    def finalize(self) -> None:
        """Refuse further ops from here on: FailedPreconditionError that names op and line, in every
        thread. Running steps goes on."""
        trace = self._trace
        if self.finalized:
            return
        with self._lock, trace.active():
            control, trace.control = trace.control, ()
            for variable in self.variables:  # a step that fetches a variable reads it
                trace.effects.read(variable)
            trace.control = control
            trace.builder = FinalizedBuilder(trace.builder, self.name)

    # -------------------------------------------------------------------------------------- text
    def as_text(self) -> str:
        """The graph as text, which `Graph.from_text` reads in any process: ops with their source
        lines, constants and initial values bit for bit, the names of tensors and effects.

        Not in it: the values of variables (see `wf.train.Saver`), what queues hold, and Python
        functions (of those the names: `wf.register_function`).
        """
        return print_graph(to_ir(self))

    as_graph_def = as_text

    def _repr_html_(self) -> str:
        """The drawing and the text for a notebook, without a script."""
        return to_ir(self)._repr_html_()

    def show(self, height: int = 600) -> Frame:
        """The drawing in a frame of a notebook's cell, `height` pixels high."""
        return to_ir(self).show(height)

    @classmethod
    def from_text(
        cls, text: str, filename: str = "<text>", *, allow_files: AllowFiles = None
    ) -> Graph:
        """The graph that `as_text` wrote: the same bits when it runs.

        Variables and queues are new: variables made in a graph need an initializer (by name, or
        `wf.global_variables_initializer`) or a checkpoint, others have their initial value.
        allow_files: the folder, or folders, whose files its ops may read and write (True: all files
        that the process may use); without it PermissionDeniedError for a graph with such ops.
        ParseError for what is no graph, UnsupportedError for one that passes have changed.
        """
        given: object = text
        if not isinstance(given, str):
            raise TypeRuleError(
                f"Graph.from_text: a {type(given).__name__} is not the text of a graph",
                location=caller_location(),
            )
        ir = grant(parse_graph(text, filename), allow_files)
        made = cls(ir.name)
        add_graph(made, ir)
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `as_text` to a file, whole or not at all."""
        target = os.fspath(path)
        part = f"{target}.{os.getpid()}.{threading.get_ident()}.tmp"
        try:
            with open(part, "w", encoding="utf-8") as file:
                file.write(self.as_text())
            os.replace(part, target)
        finally:
            if os.path.exists(part):
                os.unlink(part)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, allow_files: AllowFiles = None) -> Graph:
        """The graph in a file that `save` wrote. Leave and errors as `from_text`;
        InvalidArgumentError for what is no text, OSError without the file."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(
                f"{os.fspath(path)} is not the text of a graph: {error}",
                location=caller_location(),
            ) from None
        return cls.from_text(text, os.fspath(path), allow_files=allow_files)

    def ir(self, outputs: Sequence[Tensor] = ()) -> IRGraph:
        """What was built so far as an IR graph; `outputs` become its results."""
        return self._trace.graph([self._trace.lift(t) for t in outputs])

    def __str__(self) -> str:
        return print_graph(self.ir())

    # ------------------------------------------------------------------------------- collections
    def get_collection(self, name: str, scope: str | None = None) -> list[Any]:
        """What is in a collection, in order: what `add_to_collection` added, after what the graph
        keeps in those of TensorFlow 1: "variables", "trainable_variables", "local_variables",
        "queue_runners" and "summaries". scope: only things whose name this regular expression
        matches at its beginning."""
        added = self._collections.get(name, ())
        kept = self._kept().get(name, ())
        listed = list({id(x): x for x in (*kept, *added)}.values())
        if scope is None:
            return listed
        return [x for x in listed if hasattr(x, "name") and re.match(scope, x.name)]

    def _kept(self) -> dict[str, list[Any]]:
        """What the graph itself has in collections, by their names."""
        return {
            GraphKeys.GLOBAL_VARIABLES: self.variables,
            GraphKeys.TRAINABLE_VARIABLES: self.trainable_variables,
            GraphKeys.LOCAL_VARIABLES: self.local_variables,
            GraphKeys.QUEUE_RUNNERS: self.queue_runners,
            GraphKeys.SUMMARIES: list(self.summaries.values()),
        }

    def get_collection_ref(self, name: str) -> list[Any]:
        """The list that `add_to_collection` appends to: what is put in or taken out stays so."""
        return self._collections.setdefault(name, [])

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append anything to a collection; a name is a str, such as one of `wf.tf1.GraphKeys`."""
        given: object = name
        if not isinstance(given, str):
            raise TypeRuleError(
                f"add_to_collection: the name is a {type(given).__name__}, not a str",
                hint="add_to_collections takes several names",
                location=caller_location(),
            )
        with self._lock:
            self.get_collection_ref(name).append(value)

    def add_to_collections(self, names: str | Sequence[str], value: Any) -> None:
        """Append a value to each of these collections, once."""
        for name in dict.fromkeys([names] if isinstance(names, str) else names):
            self.add_to_collection(name, value)

    def get_all_collection_keys(self) -> list[str]:
        """The names of the collections that hold something."""
        names = [*self._kept(), *self._collections]
        return [name for name in dict.fromkeys(names) if self.get_collection(name)]

    def clear_collection(self, name: str) -> None:
        """Take out what was added. What the graph itself keeps (its variables) stays."""
        self._collections.pop(name, None)

    def _add_placeholder(self, dtype: object, shape: Any, name: str | None) -> Tensor:
        trace = self._trace
        try:
            element = as_dtype(dtype)
        except WeftError as error:
            raise error.at(caller_location()) from None
        with self._lock:
            label = self._free_name(trace.name_scope + (name or "placeholder"))
            dims = tuple(
                self._dim(d, f"{identifier(label)}_{i}", shape) for i, d in enumerate(shape)
            )
            value = trace.add_arg(TensorType(element, dims), identifier(label))
            t = self._named[label] = trace.tensor(value)
        return t

    def _dim(self, dim: Any, symbol: str, shape: Any) -> Dim:
        if dim is None:
            symbol = unique_name(symbol, dict.fromkeys(self._symbols))
            self._symbols.add(symbol)
            return SymbolicDim.symbol(symbol)
        if isinstance(dim, str):
            self._symbols.add(dim)
            return SymbolicDim.symbol(dim)
        if isinstance(dim, SymbolicDim) or (isinstance(dim, int) and dim >= 0):
            return dim
        raise InvalidArgumentError(
            f"wf.placeholder: {dim!r} in shape {shape!r} is not a size",
            hint="sizes are integers >= 0, None (any size) or names such as 'batch'",
            location=caller_location(),
        )


class GraphKeys:
    """TensorFlow 1's names of collections. Of these the graph itself fills the first five.

    >>> with wf.Graph().as_default():
    ...     v = wf.Variable(1.0, name="v")
    ...     wf.tf1.add_to_collection(wf.tf1.GraphKeys.LOSSES, v * 2)
    ...     wf.tf1.get_collection(wf.tf1.GraphKeys.GLOBAL_VARIABLES)
    [<Variable 'v' f32[]: not initialised>]
    """

    GLOBAL_VARIABLES = VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    LOCAL_VARIABLES = "local_variables"
    QUEUE_RUNNERS = "queue_runners"
    SUMMARIES = "summaries"
    MODEL_VARIABLES = "model_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    METRIC_VARIABLES = "metric_variables"
    REGULARIZATION_LOSSES = "regularization_losses"
    LOSSES = "losses"
    ACTIVATIONS = "activations"
    BIASES = "biases"
    WEIGHTS = "weights"
    UPDATE_OPS = "update_ops"
    TRAIN_OP = "train_op"
    GLOBAL_STEP = "global_step"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    SUMMARY_OP = "summary_op"
    SAVERS = "savers"
    ASSET_FILEPATHS = "asset_filepaths"
    TABLE_INITIALIZERS = "table_initializer"
    EVAL_STEP = "eval_step"


def add_to_collection(name: str, value: Any) -> None:
    """`add_to_collection` of the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: str | Sequence[str], value: Any) -> None:
    """`add_to_collections` of the default graph."""
    get_default_graph().add_to_collections(names, value)


def get_collection(name: str, scope: str | None = None) -> list[Any]:
    """`get_collection` of the default graph."""
    return get_default_graph().get_collection(name, scope)


def get_collection_ref(name: str) -> list[Any]:
    """`get_collection_ref` of the default graph."""
    return get_default_graph().get_collection_ref(name)


_default: Graph | None = None
_default_lock = ForkLock()


def get_default_graph() -> Graph:
    """The graph being built in this thread, else the process's default graph."""
    trace = current_trace()
    if trace is not None and isinstance(trace.owner, Graph):
        return trace.owner
    global _default
    with _default_lock:
        if _default is None:
            _default = Graph("default")
        return _default


def reset_default_graph() -> None:
    """Drop the default graph: ops run at once again, and the next placeholder begins a new one."""
    global _default
    with _default_lock:
        if _default is not None:
            _default._trace.closed = True
        _default = None
    set_thread_default(None)


def graph_trace(what: str) -> Trace | None:
    """The trace of the graph being built, None outside. UnsupportedError in a traced function."""
    trace = current_trace()
    if trace is not None and trace.kind != "graph":
        raise UnsupportedError(
            f"{what} is for graphs, but here the function '{trace.root().name}' is being traced",
            hint="pass the tensor to the function as an argument",
            location=caller_location(),
        )
    return trace


def placeholder(dtype: object, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor whose value each `Session.run` feeds.

    shape: a sequence of sizes, [] for a scalar; None in it stands for any size, a name such as
    "batch" for one that several placeholders share (sizes that must fit each other should).
    UnsupportedError without a shape (TensorFlow 1's unknown rank) and inside a compiled function.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, ["batch", 2])
    ...     y = wf.placeholder(wf.float32, ["batch"])  # as many as x has rows
    ...     print(session.run(x[:, 0] * y, {x: [[1, 2], [3, 4]], y: [10, 20]}))
    [10. 60.]
    """
    trace = graph_trace("wf.placeholder")
    if shape is None:
        raise UnsupportedError(
            "wf.placeholder needs a shape: a placeholder of unknown rank is not supported",
            hint="give one entry for each axis, None for any size: shape=(None, 784); "
            "shape=[] for a scalar",
            location=caller_location(),
        )
    graph = get_default_graph()
    if trace is None:
        set_thread_default(graph._trace)
    return graph._add_placeholder(
        dtype, shape if isinstance(shape, (tuple, list)) else (shape,), name
    )


def with_name(t: Tensor, name: str | None) -> Tensor:
    """What a function with `name=` gives: `t` under that name, or the next of `name_1`, `name_2`,
    ... that is free (TensorFlow 1's rule)."""
    trace = current_trace()
    if name is None or trace is None or not isinstance(trace.owner, Graph):
        return t
    label = trace.owner._free_name(trace.name_scope + name)
    return name_tensor(t, label.removeprefix(trace.name_scope))


def name_tensor(x: Any, name: str) -> Tensor:
    """`x` under a name that `Session.run` and `graph.tensor` know. InvalidArgumentError if it is
    taken.

    >>> with wf.Graph().as_default() as graph, wf.Session() as session:
    ...     total = wf.name_tensor(wf.sum(wf.asarray([1, 2, 3])), "total")
    ...     print(session.run("total"), graph.tensor("total") is total)
    6 True
    """
    t = as_tensor(x)
    trace = graph_trace("wf.name_tensor")
    if trace is None or not isinstance(trace.owner, Graph):
        return t
    label = trace.name_scope + name
    if label in trace.owner._named or label in trace.owner._effects:
        raise InvalidArgumentError(
            f"the graph '{trace.name}' has a tensor or effect named '{label}' already",
            location=caller_location(),
        )
    if isinstance(trace.builder, FinalizedBuilder):
        trace.builder.refuse(f"the name '{label}'")
    named = trace.owner._named[label] = trace.tensor(trace.lift(t))
    return named


@overload
def import_graph_def(
    graph_def: str | Graph,
    input_map: Mapping[str, Any] | None = None,
    return_elements: None = None,
    name: str | None = None,
    *,
    allow_files: AllowFiles = None,
) -> None: ...
@overload
def import_graph_def(
    graph_def: str | Graph,
    input_map: Mapping[str, Any] | None = None,
    *,
    return_elements: Sequence[str],
    name: str | None = None,
    allow_files: AllowFiles = None,
) -> list[Any]: ...
@overload
def import_graph_def(
    graph_def: str | Graph,
    input_map: Mapping[str, Any] | None,
    return_elements: Sequence[str],
    name: str | None = None,
    *,
    allow_files: AllowFiles = None,
) -> list[Any]: ...
def import_graph_def(
    graph_def: str | Graph,
    input_map: Mapping[str, Any] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
    *,
    allow_files: AllowFiles = None,
) -> list[Tensor | Effect] | None:
    """Add the ops of another graph to the one that is being built.

    graph_def: what `Graph.as_text` gave, or a graph. input_map: tensors for its placeholders or
    named tensors, by name; other placeholders become new ones. return_elements: names of tensors
    and effects, which are returned. name: goes before all names with a slash, "import" by default,
    "" for none. allow_files: for a text whose ops read or write files. Variables, queues and other
    resources are new ones. Of both see `Graph.from_text`.

    Raises InvalidArgumentError for names that are taken, NotFoundError for names that are none,
    TypeRuleError and ShapeError for tensors that do not fit, ParseError for what is no graph.
    """
    trace = graph_trace("wf.tf1.import_graph_def")
    graph = get_default_graph()
    scope = ""
    if trace is None:
        set_thread_default(graph._trace)
    else:
        scope = trace.name_scope
    prefix = scope + ("import/" if name is None else f"{name}/" if name else "")
    ir = graph_ir(graph_def, "wf.tf1.import_graph_def", allow_files)
    return add_graph(graph, ir, prefix, input_map, return_elements)


def graph_ir(given: object, what: str, allow_files: AllowFiles = None) -> IRGraph:
    """The IR of a graph or of its text. PermissionDeniedError as `Graph.from_text`,
    TypeRuleError for anything else."""
    if isinstance(given, Graph):
        return to_ir(given)
    if isinstance(given, str):
        return grant(parse_graph(given), allow_files)
    raise TypeRuleError(
        f"{what}: a {type(given).__name__} is neither a wf.Graph nor the text of one",
        location=caller_location(),
    )
