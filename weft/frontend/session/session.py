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
from weft.runtime.executable import Executable, compile_graph


class _Step(Specialization):
    """One step definition: what is fetched and fed, in which shapes, compiled."""

    __slots__ = ("executable",)

    def __init__(self, executable: Executable) -> None:
        super().__init__()
        self.executable = executable


class Session:
    """Runs a `wf.Graph`. Step definitions are compiled once per set of fetches, feeds and feed
    shapes.

    target: "" (this process; others are not supported yet). graph: the default graph if None. As a
    context manager it also makes its graph the default, and closes at the end. Any number of
    threads may call `run` at once.
    """

    def __init__(self, target: str = "", graph: Graph | None = None) -> None:
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
        self.graph = get_default_graph() if graph is None else graph
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
        """Free the compiled steps; variables keep their values. `run` raises afterwards."""
        self._closed = True
        self._steps = Specializations(self._steps.name)

    def cache_info(self) -> CacheInfo:
        """How many step definitions there are, were made, and were dropped."""
        return self._steps.info()

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, options: object = None
    ) -> Any:
        """The values of `fetches`, nested alike: NumPy arrays for tensors, None for effects.

        fetches: tensors, variables, effects, names of tensors. feed_dict: values for placeholders,
        or for any other tensor of the graph in place of its own. Raises InvalidArgumentError for
        fetches and feeds that do not fit, FailedPreconditionError for a closed session and
        uninitialised variables.
        """
        if options is not None:
            raise UnsupportedError(
                "Session.run(options=...) is not supported yet", location=caller_location()
            )
        if self._closed:
            raise FailedPreconditionError(
                "this session is closed",
                hint="make a new wf.Session(graph=...)",
                location=caller_location(),
            )
        leaves, structure = pytree.flatten(fetches)
        trace = self.graph._trace
        if all(type(t) is Tensor and t._trace is trace for t in leaves):
            values = [t._value for t in leaves]
        else:
            paths = pytree.paths(structure, "fetches")
            values = [self._fetch(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
        feeds = self._feeds(feed_dict or {})
        key = (tuple(values), tuple((value, a.shape) for value, a in feeds.items()))
        step = self._steps.entries.get(key)
        if step is None:
            step = self._steps.get_or_make(key, lambda: self._compile(values, feeds))
        step.used = True
        results = iter(self._execute(step, list(feeds.values())))
        out = [_fetched(next(results)) if _is_tensor(v) else None for v in values]
        return pytree.unflatten(structure, out)

    def make_callable(self, fetches: Any, feed_list: Sequence[Any] = ()) -> Callable[..., Any]:
        """A function from values for `feed_list` to `run(fetches, ...)`."""

        def call(*values: Any) -> Any:
            if len(values) != len(feed_list):
                raise InvalidArgumentError(
                    f"this callable takes {len(feed_list)} values, got {len(values)}",
                    location=caller_location(),
                )
            return self.run(fetches, dict(zip(feed_list, values, strict=True)))

        return call

    # ---------------------------------------------------------------------------------- one step
    def _compile(self, values: Sequence[Value | None], feeds: Mapping[Value, Array]) -> _Step:
        trace = self.graph._trace
        results = [v for v in values if v is not None and _is_tensor(v)]
        effects = [v for v in values if v is not None and not _is_tensor(v)]
        graph = step_graph(trace, results, effects, [(v, a.shape) for v, a in feeds.items()])
        states = {name: v.state for name, v in trace.variables.items()}
        return _Step(compile_graph(graph, states, name=self.graph.name))

    def _execute(self, step: _Step, arrays: list[Array]) -> list[Any]:
        running = self.graph._trace.running
        running.step = True
        try:
            return step.executable(arrays)
        except WeftError as error:
            raise error.at(caller_location()) from None
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
            t = self.graph.tensor(key) if isinstance(key, str) else key
            if not isinstance(t, Tensor):
                raise TypeRuleError(
                    f"feed_dict: a {type(t).__name__} cannot be fed: {t!r:.60}",
                    hint="feed tensors of the graph (or their names); assign to variables",
                    location=caller_location(),
                )
            value = self._own(t, "feed_dict")
            out[value] = _feed_array(given, t)
        return out


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
