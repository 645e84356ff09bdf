"""`Session`: runs the part of a graph that the fetches need, as one compiled step (paper, section
3.2)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.arrays import Array, contiguous
from weft.frontend.calls.specializations import CacheInfo, Specialization, Specializations
from weft.frontend.session.graph import Graph, get_default_graph
from weft.frontend.session.options import RunOptions
from weft.frontend.session.step import step_graph
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Effect
from weft.frontend.variable import Variable
from weft.ir.dims import SymbolicDim, format_shape
from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Value
from weft.ir.source import caller_location
from weft.ir.types import TensorType
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.lowered import dataflow_step, executor_op
from weft.runtime.executable import Executable, compile_graph
from weft.runtime.resources.cancel import CancelToken

#: What `Session(control_flow=...)` may be.
CONTROL_FLOW = ("auto", "native", "dataflow")


class _Step(Specialization):
    """One step definition: what is fetched and fed, in which shapes, compiled."""

    __slots__ = ("executable",)

    def __init__(self, executable: Executable | DataflowStep) -> None:
        super().__init__()
        self.executable = executable


class Session:
    """Runs a `wf.Graph`. Step definitions are compiled once per set of fetches, feeds and feed
    shapes.

    target: "" (this process; others are not supported yet). graph: the default graph if None.
    control_flow: "native" runs a step as one plan, "dataflow" lowers branches and loops to Switch
    and Merge and runs them by the dataflow executor, with the same bits; "auto" takes the executor
    for steps that have ops of the host (queues). As a context manager it also makes its graph the
    default, and closes at the end. Any number of threads may call `run` at once.
    """

    def __init__(
        self, target: str = "", graph: Graph | None = None, *, control_flow: str = "auto"
    ) -> None:
        if target:
            raise UnsupportedError(
                f"wf.Session(target={target!r}): running on other tasks is not supported yet",
                hint='use target=""',
                location=caller_location(),
            )
        if graph is not None and not isinstance(graph, Graph):
            raise TypeRuleError(
                f"wf.Session: graph must be a wf.Graph, got a {type(graph).__name__}",
                location=caller_location(),
            )
        if control_flow not in CONTROL_FLOW:
            raise InvalidArgumentError(
                f"wf.Session: control_flow={control_flow!r}",
                hint=f"it is one of {', '.join(CONTROL_FLOW)}",
                location=caller_location(),
            )
        self.graph = get_default_graph() if graph is None else graph
        self._control_flow = control_flow
        self._cancel = CancelToken()
        self._steps: Specializations[_Step] = Specializations(f"Session of {self.graph.name}")
        self._closed = False
        self._scopes = threading.local()

    def __enter__(self) -> Session:
        stack = ExitStack()
        stack.enter_context(self.graph.as_default())
        self._scopes.stack = stack
        return self

    def __exit__(self, *exc: object) -> None:
        self._scopes.stack.close()
        self.close()

    def close(self) -> None:
        """Free the compiled steps; variables keep their values. `run` raises afterwards, and steps
        that wait for a queue end with CancelledError."""
        self._closed = True
        self._cancel.cancel("the session was closed")
        self._steps = Specializations(self._steps.name)

    def cache_info(self) -> CacheInfo:
        """How many step definitions there are, were made, and were dropped."""
        return self._steps.info()

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """The values of `fetches`, nested alike: NumPy arrays for tensors, None for effects.

        fetches: tensors, variables, effects, names of tensors. feed_dict: values for placeholders,
        or for any other tensor of the graph in place of its own. Raises InvalidArgumentError for
        fetches and feeds that do not fit, FailedPreconditionError for a closed session and
        uninitialised variables, DeadlineExceededError as `options` say.
        """
        if options is not None and not isinstance(options, RunOptions):
            raise TypeRuleError(
                f"Session.run: options must be wf.RunOptions, got a {type(options).__name__}",
                location=caller_location(),
            )
        values, structure = self._fetches(fetches)
        feeds = self._feeds(feed_dict or {})
        return self._run(values, structure, list(feeds), list(feeds.values()), options)

    def _run(
        self,
        values: tuple[Value | None, ...],
        structure: Any,
        fed: Sequence[Value],
        arrays: list[Array],
        options: RunOptions | None,
    ) -> Any:
        if self._closed:
            raise FailedPreconditionError(
                "this session is closed",
                hint="make a new wf.Session(graph=...)",
                location=caller_location(),
            )
        key = (values, tuple([(v, a.shape) for v, a in zip(fed, arrays, strict=True)]))
        step = self._steps.entries.get(key)
        if step is None:
            feeds = dict(zip(fed, arrays, strict=True))
            step = self._steps.get_or_make(key, lambda: self._compile(values, feeds))
        step.used = True
        results = iter(self._execute(step, arrays, options))
        out = [_fetched(next(results)) if _is_tensor(v) else None for v in values]
        return pytree.unflatten(structure, out)

    def _fetches(self, fetches: Any) -> tuple[tuple[Value | None, ...], Any]:
        """What the fetches stand for, and how they are nested."""
        leaves, structure = pytree.flatten(fetches)
        trace = self.graph._trace
        if all(type(t) is Tensor and t._trace is trace for t in leaves):
            return tuple([t._value for t in leaves]), structure
        paths = pytree.paths(structure, "fetches")
        found = [self._fetch(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
        return tuple(found), structure

    def make_callable(self, fetches: Any, feed_list: Sequence[Any] = ()) -> Callable[..., Any]:
        """A function from values for `feed_list` to `run(fetches, ...)`."""

        values, structure = self._fetches(fetches)
        tensors = [self._fed(key) for key in feed_list]
        fed = [value for value, _ in tensors]

        def call(*given: Any) -> Any:
            if len(given) != len(tensors):
                raise InvalidArgumentError(
                    f"this callable takes {len(tensors)} values, got {len(given)}",
                    location=caller_location(),
                )
            arrays = [_feed_array(g, t) for g, (_, t) in zip(given, tensors, strict=True)]
            return self._run(values, structure, fed, arrays, None)

        return call

    # ---------------------------------------------------------------------------------- one step
    def _compile(self, values: Sequence[Value | None], feeds: Mapping[Value, Array]) -> _Step:
        trace = self.graph._trace
        results = [v for v in values if v is not None and _is_tensor(v)]
        effects = [v for v in values if v is not None and not _is_tensor(v)]
        graph = step_graph(trace, results, effects, [(v, a.shape) for v, a in feeds.items()])
        states = {name: v.state for name, v in trace.variables.items()}
        found = executor_op(graph)
        if found is not None and self._control_flow == "native":
            raise UnsupportedError(
                f"op '{found.name}' runs on the dataflow executor only",
                hint="make the session with control_flow='auto'",
                location=found.locations,
            )
        if found is not None or self._control_flow == "dataflow":
            return _Step(dataflow_step(graph, states, self.graph.resources))
        return _Step(compile_graph(graph, states, name=self.graph.name))

    def _execute(
        self, step: _Step, arrays: list[Array], options: RunOptions | None = None
    ) -> list[Any]:
        running = self.graph._trace.running
        running.step = True
        try:
            if isinstance(step.executable, DataflowStep):
                limit = None if options is None else options.seconds
                return step.executable(arrays, timeout=limit, cancel=self._cancel)
            return step.executable(arrays)
        except WeftError as error:
            raise error.at(caller_location()) from error.__cause__
        finally:
            running.step = False

    # ----------------------------------------------------------------------------------- fetches
    def _fetch(self, leaf: Any, path: str) -> Value | None:
        """The value that a fetch stands for; None for an effect that is done already."""
        trace = self.graph._trace
        if isinstance(leaf, str):
            leaf = self.graph.tensor(leaf)
        if isinstance(leaf, Variable):
            with self.graph._lock, trace.active():
                control, trace.control = trace.control, ()
                try:
                    return trace.effects.read(leaf)
                finally:
                    trace.control = control
        if isinstance(leaf, Effect):
            if leaf.trace not in (None, trace):
                raise InvalidArgumentError(
                    f"{path}: the effect '{leaf.name}' is not in this session's graph "
                    f"{trace.describe()}",
                    hint="make the session with the graph that it was built in",
                    location=caller_location(),
                )
            return leaf.value
        if not isinstance(leaf, Tensor):
            raise TypeRuleError(
                f"{path} is a {type(leaf).__name__}, which cannot be fetched: {leaf!r:.60}",
                hint="fetch tensors, variables, effects, or names of tensors",
                location=caller_location(),
            )
        return self._own(leaf, path)

    def _own(self, t: Tensor, what: str) -> Value:
        """The value of a tensor of this session's graph."""
        if t._trace is not self.graph._trace:
            described = (
                "a concrete tensor"
                if t._trace is None
                else f"a tensor of {t._trace.root().describe()}"
            )
            raise InvalidArgumentError(
                f"{what}: {described} is not in this session's graph "
                f"{self.graph._trace.describe()}: {t.describe()}",
                hint="build it inside `with graph.as_default():`",
                location=caller_location(),
            )
        assert t._value is not None
        return t._value

    # ------------------------------------------------------------------------------------- feeds
    def _feeds(self, feed_dict: Mapping[Any, Any]) -> dict[Value, Array]:
        out: dict[Value, Array] = {}
        for key, given in feed_dict.items():
            value, t = self._fed(key)
            out[value] = _feed_array(given, t)
        return out

    def _fed(self, key: Any) -> tuple[Value, Tensor]:
        """The value and tensor that a key of feed_dict names."""
        t = self.graph.tensor(key) if isinstance(key, str) else key
        if not isinstance(t, Tensor):
            raise TypeRuleError(
                f"feed_dict: a {type(t).__name__} cannot be fed: {t!r:.60}",
                hint="feed tensors of the graph (or their names); assign to variables",
                location=caller_location(),
            )
        return self._own(t, "feed_dict"), t


def _fetched(array: Array) -> Any:
    """Without axes a NumPy scalar, as indexing gives it."""
    return array if array.ndim else array[()]


def _is_tensor(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, TensorType)


def _feed_array(given: Any, t: Tensor) -> Array:
    """`given` as a value for `t`. TypeRuleError or InvalidArgumentError if it does not fit."""
    assert t._value is not None
    kind = t._value.type
    assert isinstance(kind, TensorType)
    if type(given) is np.ndarray and given.dtype == kind.dtype.numpy and given.dtype.kind != "O":
        data: Array = given
    else:
        data = _converted(given, t)
    fits = data.shape == kind.shape or (
        data.ndim == t.ndim
        and all(
            d is None or isinstance(d, SymbolicDim) or d == n
            for d, n in zip(kind.shape, data.shape, strict=True)
        )
    )
    if not fits:
        raise InvalidArgumentError(
            f"a value of shape {list(data.shape)} was fed for {t.describe()}",
            hint=f"its shape must fit {format_shape(t.shape)}",
            location=caller_location(),
        )
    return contiguous(data)


def _converted(given: Any, t: Tensor) -> Array:
    try:
        value = given if isinstance(given, Tensor) else as_tensor(given)
    except WeftError as error:
        raise TypeRuleError(
            f"the value fed for {t.describe()} is no tensor: {error.what}",
            location=caller_location(),
        ) from None
    if value._data is None:
        raise TypeRuleError(
            f"the value fed for {t.describe()} is symbolic itself",
            hint="feed NumPy arrays or concrete tensors; in a graph, connect the tensors instead",
            location=caller_location(),
        )
    return _cast(value._data, value.dtype, t.dtype, t)


_ORDER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def _cast(data: Array, given: DType, wanted: DType, t: Tensor) -> Array:
    """Feeds convert within a kind (float64 to float32) or to a higher one, if integers keep their
    value."""
    if given is wanted:
        return data
    if string in (given, wanted) or _ORDER[given.kind] > _ORDER[wanted.kind]:
        raise TypeRuleError(
            f"a {given.name} value was fed for {t.describe()}",
            hint=f"convert it first: value.astype('{wanted.name}')",
            location=caller_location(),
        )
    with np.errstate(over="ignore"):
        out = data.astype(wanted.numpy)
    if wanted.is_integer and not np.array_equal(out, data):
        raise InvalidArgumentError(
            f"an integer fed for {t.describe()} does not fit {as_dtype(wanted).name}",
            location=caller_location(),
        )
    return out
