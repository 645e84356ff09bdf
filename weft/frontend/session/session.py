"""`Session`: runs the part of a graph that the fetches need, as one compiled step (paper, section
3.2), and explains where a step's ops run, and why.

The default session of a thread is the one that `tensor.eval` and `effect.run` use;
`InteractiveSession` is the default from the start, for notebooks and shells."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self

from weft.frontend.compile.specializations import CacheInfo
from weft.frontend.compile.watchers import add_watched, watchers
from weft.frontend.core import pytree
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Array, Tensor
from weft.frontend.core.trace import Effect, set_thread_default, thread_default
from weft.frontend.core.user_errors import as_seen
from weft.frontend.session.compiling import (
    StepDefinition,
    compile_definition,
    no_values_there,
    pruned,
    step_reports,
    step_values,
)
from weft.frontend.session.cpu_devices import checked_count
from weft.frontend.session.fetches import (
    Fetches,
    fed_parts,
    feed_array,
    feed_values,
    fetch_values,
    fetched,
    is_tensor,
)
from weft.frontend.session.graph import Graph, get_default_graph, graph_ir
from weft.frontend.session.graph_import import add_graph
from weft.frontend.session.growth import GrowthWatch
from weft.frontend.session.partial_run import PartialRuns
from weft.frontend.session.run import RunMetadata, RunOptions, check_options, execute, new_recorder
from weft.frontend.session.sized_steps import SizedSteps, own_step, steps_of
from weft.frontend.session.sparse_values import sparse_parts
from weft.frontend.session.states import SessionStates, check_own
from weft.frontend.state.resources import forget
from weft.frontend.state.variable import Variable
from weft.ir.dtypes import checked_math
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.passes.control.lower_control_flow import MODES
from weft.passes.pipelines import PIPELINES
from weft.runtime.compile_step import CompileOptions
from weft.runtime.files.permissions import AllowFiles
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState, clear_containers
from weft.runtime.step import RunContext

if TYPE_CHECKING:
    from weft.frontend.compile.inner_values import InnerValue
    from weft.frontend.session.remote import Remote
    from weft.frontend.viewer.page import View
    from weft.runtime.cluster.spec import Cluster
    from weft.runtime.native.kernels import StepKernel


class _Default(threading.local):
    """The default session of a thread. Not a ContextVar: notebooks run each cell in a context of
    its own."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []


_default = _Default()


def get_default_session() -> Session | None:
    """The session of the innermost `with session:` or `with session.as_default():` in this thread,
    else the `wf.tf1.InteractiveSession` made last; None if there is none."""
    return _default.sessions[-1] if _default.sessions else None


@contextmanager
def default_session(session: Session) -> Iterator[Session]:
    """Make it the default in the block."""
    push_default(session)
    try:
        yield session
    finally:
        drop_default(session)


def push_default(session: Session) -> None:
    """Make it the default of this thread."""
    _default.sessions.append(session)


def drop_default(session: Session) -> None:
    """Undo the last `push_default` of it in this thread, if there is one."""
    for i in reversed(range(len(_default.sessions))):
        if _default.sessions[i] is session:
            del _default.sessions[i]
            return


def _in_session(what: Any, feed_dict: Any, session: Any) -> Any:
    if isinstance(what, Tensor) and what._data is not None:  # it has its value already
        return what.numpy()[()]
    found = get_default_session() if session is None else session
    if found is not None and not hasattr(found, "run"):
        raise TypeRuleError(
            f"session= is a {type(found).__name__}, not a wf.Session", location=caller_location()
        )
    if found is None:
        raise FailedPreconditionError(
            "there is no default session to run this in",
            hint="use it inside `with wf.Session(...):`, after wf.tf1.InteractiveSession(), or "
            "pass session=",
            location=caller_location(),
        )
    return found.run(what, feed_dict)


def _state_in_session(variable: Variable) -> VariableState:
    session = get_default_session()
    return variable.state if session is None else session.states.of(variable)


Operators.in_session = staticmethod(_in_session)
Effect.in_session = staticmethod(_in_session)
Variable.in_default_session = staticmethod(_state_in_session)


def reset(target: str = "", containers: Sequence[str] | None = None) -> None:
    """Clear containers: their variables have no value from now on, as before an initializer ran,
    and their shared names stand for nothing: what is made under them later is new.

    containers: names as given to `wf.tf1.container` or `container=`; None is the default container,
    that of all variables made in graphs without another. Variables made outside of graphs without a
    container or shared name keep their values, which no initializer could bring back. Resources
    stay with those who hold them. Sessions stay open (TensorFlow 1 closes them): variables belong
    to the program, so a step that runs meanwhile ends first, and later ones need an initializer.
    target: the address of a task; then the containers are those of all tasks of its cluster.
    """
    names = [""] if containers is None else containers
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeRuleError(
            f"wf.Session.reset: containers is {containers!r}, not a list of names",
            location=caller_location(),
        )
    if target:
        # who has no cluster does not load these
        from weft.frontend.session.remote import Remote
        from weft.runtime.cluster.spec import Cluster

        remote = Remote(Cluster(target))
        try:
            remote.reset(names)
        finally:
            remote.close()
        return
    forget(names)
    clear_containers(names)


#: What were arguments of `wf.Session`, and what `wf.train.Cluster` calls them.
_OF_CLUSTERS = {
    "key_file": "key_file", "secret": "secret", "connect_seconds": "connect_timeout",
    "recv_seconds": "recv_timeout", "spread": "spread", "bfloat16_sendrecv": "bfloat16_sendrecv",
}  # fmt: skip


def _refuse(names: Iterable[str]) -> None:
    """TypeRuleError for an argument that `wf.Session` does not have."""
    for name in names:
        held = _OF_CLUSTERS.get(name)
        raise TypeRuleError(
            f"wf.Session has no argument {name!r}"
            + (": what only clusters need is in cluster=" if held else ""),
            hint=f"wf.Session(cluster=wf.train.Cluster(target, {held}=...))" if held else None,
            location=caller_location(),
        )


class Session:
    """Runs a `wf.Graph`. Steps are compiled once per set of fetches, feeds and feed shapes.

    target: "" is this process, the address of a task ("tcp://host:port", "ipc:///path") its
    cluster: see docs/guide/cluster.md. cluster: in place of an address, a `wf.train.Cluster`, which
    says more of it (keys, timeouts, what is sent). graph: the default graph if None. control_flow:
    "native" runs a step as one plan, "dataflow" lowers branches and loops to Switch and Merge and
    runs them by the dataflow executor, with the same bits; "auto" takes the executor for steps that
    have ops of the host (queues), and lowers what is around those. deterministic: the dataflow
    executor begins nodes one at a time, always in the same order. reproducible: the bits of each
    op's results depend on its operands alone, so that a graph has the same results however it is
    cut over tasks (docs/reference/reproducibility.md). math: as `wf.compile` has it, of
    one process. own_variables: those made in the graph have values of this session, which begin
    with its initializer (docs/guide/session-state.md); UnsupportedError on a cluster. cpu_devices:
    how many of `/cpu:0`, `/cpu:1`, ... there are for `wf.device` (docs/guide/devices.md). As a
    context manager it also makes its graph and itself the default, and closes at the end. Any
    number of threads may call `run` at once.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [None])
    ...     w = wf.Variable(2.0, name="w")
    ...     session.run(wf.global_variables_initializer())
    ...     print(session.run({"product": w * x, "w": w}, feed_dict={x: [1.0, 2.0]}))
    {'product': array([2., 4.], dtype=float32), 'w': np.float32(2.0)}
    """

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        *,
        cluster: Cluster | None = None,
        control_flow: str = "auto",
        deterministic: bool = False,
        reproducible: bool = False,
        soft_placement: bool = False,
        math: str = "ieee",
        own_variables: bool = False,
        cpu_devices: int = 1,
        **others: Never,
    ) -> None:
        _refuse(others)
        if graph is not None and not isinstance(graph, Graph):
            raise TypeRuleError(
                f"wf.Session: graph must be a wf.Graph, got a {type(graph).__name__}",
                location=caller_location(),
            )
        if control_flow not in MODES:
            raise InvalidArgumentError(
                f"wf.Session: control_flow={control_flow!r}",
                hint=f"it is one of {', '.join(MODES)}",
                location=caller_location(),
            )
        on_cluster = bool(target or cluster is not None)
        check_own(own_variables, on_cluster)
        mode = checked_math(math, "wf.Session(math=)")
        self._cpus = checked_count(cpu_devices, on_cluster)
        self._remote: Remote | None = None
        if on_cluster:
            # who has no cluster does not wait for these modules
            from weft.frontend.session.remote import connected

            self._remote = connected(target, cluster, mode, deterministic, soft_placement)
        self.graph = get_default_graph() if graph is None else graph
        self.states = SessionStates(self.graph, own_variables)
        self._control_flow = control_flow
        self._soft = soft_placement
        self._pipeline = "reproducible" if reproducible else "standard"
        self._how = CompileOptions(
            PIPELINES[self._pipeline], control_flow, deterministic, math_mode=mode
        )
        self._sized = SizedSteps(
            self.graph, self._pipeline, control_flow, self._remote, mode, states=self.states
        )
        self._growth = GrowthWatch(self.graph.name)
        self._cancel = CancelToken()
        self._context = RunContext(cancel=self._cancel)  # of a run without a limit or a record
        self._steps = steps_of(self.graph)
        self._partial, self._closed = PartialRuns(), False
        self._watchers = watchers()
        add_watched(self)
        self._scopes = threading.local()

    def __enter__(self) -> Self:
        stack = ExitStack()
        stack.enter_context(self.graph.as_default())
        stack.enter_context(self.as_default())
        self._scopes.stack = stack
        return self

    def __exit__(self, *exc: object) -> None:
        self._scopes.stack.close()
        self.close()

    def extend(
        self, graph_def: str | Graph, input_map: Mapping[str, Any] | None = None,
        return_elements: Sequence[str] | None = None, name: str = "", *,
        allow_files: AllowFiles = None,
    ) -> list[Tensor | Effect] | None:  # fmt: skip
        """Add another graph, or the text of one, to this session's graph: as
        `wf.tf1.import_graph_def`, but without a prefix by default. Compiled steps stay."""
        self._check_open()
        prefix = f"{name}/" if name else ""
        ir = graph_ir(graph_def, "Session.extend", allow_files)
        try:
            return add_graph(self.graph, ir, prefix, input_map, return_elements)
        except WeftError as error:
            raise error.at(caller_location()) from None

    def __repr__(self) -> str:
        held = len(self._steps.entries)
        steps = "1 step" if held == 1 else f"{held} steps"
        where = "" if self._remote is None else f" on the cluster of {self._remote.master.target}"
        state = "closed" if self._closed else f"{steps} compiled"
        return f"<wf.Session of {self.graph.name!r}{where}: {state}>"

    def as_default(self) -> AbstractContextManager[Session]:
        """`with session.as_default():` makes it the session of `tensor.eval()` and `effect.run()`
        in this thread; it stays open at the end."""
        return default_session(self)

    def close(self) -> None:
        """Free the compiled steps; variables keep their values, but for the session's own. `run`
        raises afterwards, and steps that wait for a queue, or go round a loop, as of `RunOptions`,
        end with CancelledError."""
        self._closed = True
        self._cancel.cancel("the session was closed")
        self._steps = steps_of(self.graph)
        self._sized.clear()
        self._partial.clear()
        self.states.clear()
        remote = self._remote
        if remote is not None:
            remote.close()

    def task_stats(self) -> dict[str, Any]:
        """What each task of the cluster counts (docs/guide/timeline.md), or why it does not
        say. InvalidArgumentError for a session on this process alone."""
        self._check_open()
        if self._remote is None:
            raise InvalidArgumentError(
                "Session.task_stats is for sessions on a cluster",
                hint="give the address of a task: wf.Session('tcp://host:port')",
                location=caller_location(),
            )
        return self._remote.stats()

    reset = staticmethod(reset)

    @property
    def is_remote(self) -> bool:
        """Whether its variables are on the tasks of a cluster."""
        return self._remote is not None

    def cache_info(self) -> CacheInfo:
        """How many step definitions there are, were made, and were dropped."""
        return self._steps.info()

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """The values of `fetches`, nested alike: NumPy arrays for tensors, None for effects.

        fetches: tensors, variables, effects, names of tensors. feed_dict: values for placeholders,
        or for any other tensor of the graph in place of its own, by tensor or name; a tuple of them
        takes a tuple of values. Raises InvalidArgumentError for
        fetches and feeds that do not fit, FailedPreconditionError for a closed session and
        uninitialised variables, DeadlineExceededError as `options` say. run_metadata: is filled
        with a report of the run, and with a trace if `options` ask for it.
        """
        try:
            if options is not None:
                check_options(options)
            values, structure = fetch_values(self.graph, fetches)
            feeds = feed_values(self.graph, feed_dict or {})
            if run_metadata is not None:
                results = iter(self._run_reported(values, feeds, options, run_metadata))
                out = [fetched(next(results)) if is_tensor(v) else None for v in values]
                return pytree.unflatten(structure, out)
            return self._run(values, structure, list(feeds), list(feeds.values()), options)
        except Exception as error:
            as_seen(error)
            raise

    def explain(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        sections: str | Sequence[str] | None = None,
    ) -> str:
        """What `run` with these fetches and feeds runs where and why: as one native plan or on the
        dataflow executor, which branches and loops are lowered, regions, kernels, ops of the host.
        sections: as of `CompiledFunction.explain`.

        Compiles the step if it is new, and does not run it. Raises as `run`.
        """
        from weft.frontend.compile.explain import in_sections

        self._check_open()
        values, _ = fetch_values(self.graph, fetches)
        feeds = feed_values(self.graph, feed_dict or {})
        step, cached = self._step(values, feeds)
        if self._remote is not None:
            ir = pruned(self.graph, values, feeds)
            return in_sections(self._remote.explain_step(self.graph, ir, self._pipeline), sections)
        from weft.frontend.session.reports import explain_step

        text = explain_step(self.graph, values, feeds, self._control_flow, step, cached)
        return in_sections(text, sections)

    def kernels(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> list[StepKernel]:
        """The kernels that `run` with these fetches and feeds runs, each with its `source()`: the
        same loops as Python that Numba compiles (docs/guide/numba.md).

        Compiles the step if it is new, and does not run it. UnsupportedError for a step that is no
        native plan (the dataflow executor, a GPU, several devices, a cluster); else raises as
        `run`.

        >>> with wf.Graph().as_default(), wf.Session() as session:
        ...     x = wf.placeholder(wf.float32, [4], name="x")
        ...     print(session.kernels(wf.exp(x) * 2, {x: [1, 2, 3, 4]}))  # doctest: +ELLIPSIS
        [<kernel exp_multiply of graph: nest-...>]
        """
        # who prints no kernels does not wait for what prints them
        from weft.runtime.native.executable import Executable
        from weft.runtime.native.kernels import step_kernels

        self._check_open()
        values, _ = fetch_values(self.graph, fetches)
        step = None
        if self._remote is None:
            step = self._step(values, feed_values(self.graph, feed_dict or {}))[0].executable
        if not isinstance(step, Executable):
            where = "a cluster" if step is None else step.kind
            raise UnsupportedError(
                f"session.kernels: this step runs on '{where}', only native plans have Numba "
                "source",
                hint="session.explain says what runs where; WEFT_DUMP=DIR writes the kernels of "
                "the native parts of such steps, too",
            )
        return step_kernels(step)

    def summary(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> str:
        """A line on what `run` with these fetches and feeds runs: kernels, nodes and parts, how
        long compiling took, the way it runs, threads. Compiles the step if it is new, and does not
        run it. Raises as `run`.

        >>> with wf.Graph().as_default(), wf.Session() as session:
        ...     x = wf.placeholder(wf.float32, [None], name="x")
        ...     session.summary(wf.exp(x) + 1, {x: np.ones(3, np.float32)})
        '1 kernel call; compiled in ... s; one native plan; ...'
        """
        self._check_open()
        values, _ = fetch_values(self.graph, fetches)
        step, _ = self._step(values, feed_values(self.graph, feed_dict or {}))
        # who only runs steps does not wait for this module
        from weft.frontend.session.reports import step_summary

        return step_summary(step)

    def ir(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        after: str | None = None,
        loc: bool = True,
        fold: int | None = None,
    ) -> str:
        """The text of the step that `run` makes of these fetches and feeds, after the pass `after`
        ("traced": the whole graph, before all; None: after the last): one graph, or a part for each
        device. It parses, and `weft run | opt | diff | view | explain` take it. loc: with the
        places in the user's files. fold: as of `CompiledFunction.ir`.

        Compiles the step if it is new, and does not run it. PassError for a pass that it does not
        go through; else raises as `run`.
        """
        # who only runs steps does not wait for these modules, which know most passes
        from weft.frontend.compile.explain import ir_text, program_after

        self._check_open()
        values, _ = fetch_values(self.graph, fetches)
        feeds = feed_values(self.graph, feed_dict or {})
        step, _ = self._step(values, feeds)
        reports = step_reports(self.graph, values, feeds, step.executable)
        return ir_text(program_after(reports, after), loc, fold)

    def view(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> View:
        """A page for the browser on the step that `run` makes of these fetches and feeds: the graph
        after every pass, the report, its kernels with code, on a cluster those of all tasks, of a
        native plan also times, memory and the timeline of a run (docs/guide/viewer.md).
        run_metadata: of a traced run of it, whose timeline is shown instead, and whose times the
        kernels of all other steps have.

        Compiles the step if it is new. A native plan is measured and run on copies of the
        variables, which takes some seconds; nothing else runs. InvalidArgumentError for a report of
        another step, or without a trace; else raises as `explain`.
        """
        from weft.frontend.session.view import view_step

        self._check_open()
        values, _ = fetch_values(self.graph, fetches)
        feeds = feed_values(self.graph, feed_dict or {})
        step, _ = self._step(values, feeds)
        reports = list(step_reports(self.graph, values, feeds, step.executable))
        explained = self.explain(fetches, feed_dict)
        arrays = list(feeds.values())
        return view_step(self.graph._trace.name, reports, explained, step, arrays, run_metadata)

    def values(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        after: str = "traced",
        where: Any = None,
    ) -> list[InnerValue]:
        """The inner values of the step that `run` makes of these: arguments and values as of
        `CompiledFunction.values`. `wf.tap`'s names are in the program as traced.

        UnsupportedError on clusters, for what acts on queues and files, and after passes that cut
        the program into parts; else raises as `ir`, and NotFoundError if there are none.

        >>> with wf.Graph().as_default(), wf.Session() as session:
        ...     x = wf.placeholder(wf.float32, [2])
        ...     y = wf.exp(wf.tap("half", x / 2))
        ...     print(session.values(y, {x: [2, 4]}, where="half")[0].value)
        Tensor([1., 2.], dtype=float32)
        """
        self._check_open()
        if self._remote is not None:
            raise no_values_there()
        values, _ = fetch_values(self.graph, fetches)
        feeds = feed_values(self.graph, feed_dict or {})
        step = None if after == "traced" else self._step(values, feeds)[0].executable
        states = self.states.all()
        return step_values(self.graph, values, feeds, step, after, where, states)

    def partial_run_setup(self, fetches: Any, feeds: Sequence[Any] = ()) -> str:
        """Begin a step that `partial_run` carries out in parts; gives its handle.

        fetches, feeds: all that the calls will fetch (nested as for `run`) and feed. A step that is
        never carried out to its end keeps its values as long as there is the handle. Raises
        InvalidArgumentError for a feed that is named twice, and as `run`.
        """
        self._check_open()
        values, _ = fetch_values(self.graph, fetches)
        if isinstance(feeds, (str, Tensor)) or not isinstance(feeds, Iterable):
            raise TypeRuleError(
                f"partial_run_setup: feeds is a {type(feeds).__name__}, not a list of tensors",
                location=caller_location(),
            )
        fed = [value for key in feeds for value, _ in fed_parts(self.graph, key)]
        if len(set(fed)) < len(fed):
            raise InvalidArgumentError(
                "partial_run_setup: a feed is named twice", location=caller_location()
            )
        return self._partial.begin(self.graph._trace, values, tuple(fed))

    def partial_run(
        self,
        handle: str,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """The values of `fetches` in the step that `handle` stands for, after feeding `feed_dict`.

        Runs what they need of the step and no earlier call has run, so each op runs at most once.
        Each fetch and each feed is used once. Raises InvalidArgumentError for an unknown handle (it
        ends when all is fetched and fed), for fetches and feeds that were not set up or were used
        before, and for a fetch that needs a feed which is not there yet; that changes nothing. Any
        other error, as of `run`, ends the step.
        """
        self._check_open()
        check_options(options)
        run = self._partial.get(handle)
        values, structure = fetch_values(self.graph, fetches)

        def part(
            values: Fetches, given: Mapping[Value, Array], done: frozenset[Value]
        ) -> list[Array | None]:
            key = (values, tuple([(v, a.shape) for v, a in given.items()]), done)
            step = self._steps.get_or_make(key, lambda: self._compile(values, given, done))
            results = iter(self._execute(step, list(given.values()), options))
            return [next(results) if is_tensor(v) else None for v in values]

        try:
            made = run(values, feed_values(self.graph, feed_dict or {}), part)
        finally:
            if run.over:
                self._partial.forget(handle)
        return pytree.unflatten(structure, [None if a is None else fetched(a) for a in made])

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPreconditionError(
                "this session is closed",
                hint="make a new wf.Session(graph=...)",
                location=caller_location(),
            )

    def _run(
        self,
        values: Fetches,
        structure: Any,
        fed: Sequence[Value],
        arrays: list[Array],
        options: RunOptions | None,
    ) -> Any:
        if self._closed:
            self._check_open()
        key = (values, tuple([(v, a.shape) for v, a in zip(fed, arrays, strict=True)]))
        step = self._steps.entries.get(key)
        if step is None:
            feeds = dict(zip(fed, arrays, strict=True))
            make = self._sized.step
            step = self._steps.get_or_make(key, lambda: make(values, feeds, self._compile))
        step.used = True
        made = self._execute(step, arrays, options)
        if len(made) == len(values):
            return pytree.unflatten(structure, [fetched(a) for a in made])
        results = iter(made)
        out = [fetched(next(results)) if is_tensor(v) else None for v in values]
        return pytree.unflatten(structure, out)

    def make_callable(self, fetches: Any, feed_list: Sequence[Any] = ()) -> Callable[..., Any]:
        """A function from values for `feed_list` to `run(fetches, ...)`."""

        values, structure = fetch_values(self.graph, fetches)
        keys = list(feed_list)
        tensors = [part for key in keys for part in fed_parts(self.graph, key)]
        fed = [value for value, _ in tensors]

        def call(*given: Any) -> Any:
            if len(given) != len(keys):
                raise InvalidArgumentError(
                    f"this callable takes {len(keys)} values, got {len(given)}",
                    location=caller_location(),
                )
            if len(tensors) > len(keys):  # SparseTensors are fed as several
                given = sparse_parts(self.graph, keys, given)
            arrays = [feed_array(g, t) for g, (_, t) in zip(given, tensors, strict=True)]
            return self._run(values, structure, fed, arrays, None)

        return call

    # ---------------------------------------------------------------------------------- one step
    def _compile(
        self,
        values: Fetches,
        feeds: Mapping[Value, Array],
        done: frozenset[Value] = frozenset(),
    ) -> StepDefinition:
        self._growth.note(self.graph._trace.builder.ops)
        if self._remote is not None:
            return self._remote.compiled(
                self.graph, values, feeds, done, self._control_flow, self._pipeline
            )
        states = self.states.all()
        return compile_definition(
            self.graph, values, feeds, done, self._how, states, soft=self._soft, cpus=self._cpus
        )

    def _step(self, values: Fetches, feeds: Mapping[Value, Array]) -> tuple[StepDefinition, bool]:
        """The step definition, and whether it was there."""
        made: list[StepDefinition] = []

        def make() -> StepDefinition:
            made.append(self._compile(values, feeds))
            return made[0]

        key = (values, tuple([(v, a.shape) for v, a in feeds.items()]))
        return own_step(self._steps, key, make), not made

    def _execute(
        self,
        step: StepDefinition,
        arrays: list[Array],
        options: RunOptions | None = None,
        recorder: Any = None,
    ) -> list[Any]:
        running = self.graph._trace.running
        outer, running.step = running.step, True
        try:
            context = self._context
            if options is not None:
                context = RunContext(options.timeout, self._cancel, recorder)
            if self._watchers:
                return self._run_watched(step, arrays, context)
            return execute(step, arrays, context)
        except WeftError as error:
            raise error.at(caller_location()) from error.__cause__
        finally:
            running.step = outer

    def watch(self) -> None:
        """Have the watchers of steps looked for again (`compile.watchers.Watched`)."""
        self._watchers = watchers()

    def _run_watched(
        self, step: StepDefinition, arrays: list[Array], context: RunContext
    ) -> list[Any]:
        # who watches nothing does not wait for this module
        from weft.frontend.session.watched import run_step_watched, traced_step

        if step.traced is None:
            how, pipeline = self._how, self._pipeline
            step.traced = traced_step(step, arrays, how, pipeline, self._remote, self.states)
        run = partial(execute, step)
        return run_step_watched(self._watchers, step.traced, run, arrays, context)

    def _run_reported(
        self,
        values: Fetches,
        feeds: Mapping[Value, Array],
        options: RunOptions | None,
        metadata: RunMetadata,
    ) -> list[Any]:
        if not isinstance(metadata, RunMetadata):
            raise TypeRuleError(
                f"Session.run: run_metadata must be wf.RunMetadata, got a "
                f"{type(metadata).__name__}",
                location=caller_location(),
            )
        metadata.clear()
        self._check_open()
        step, cached = self._step(values, feeds)
        recorder = new_recorder(step, options)
        begun = time.perf_counter()
        try:
            return self._execute(step, list(feeds.values()), options, recorder)
        finally:
            seconds = time.perf_counter() - begun
            metadata.fill(self.graph, step, cached, seconds, recorder)


class _Open(threading.local):
    """The sessions of a thread that are open, the newest last."""

    def __init__(self) -> None:
        self.sessions: list[InteractiveSession] = []


_open = _Open()


class InteractiveSession(Session):
    """A `wf.Session` that makes its graph and itself the default of this thread until `close`, so
    that `tensor.eval()` and `effect.run()` need no `with`. Arguments as `wf.Session`."""

    def __init__(self, target: str = "", graph: Graph | None = None, **options: Any) -> None:
        super().__init__(target, graph, **options)
        self._before = thread_default()
        set_thread_default(self.graph._trace)
        push_default(self)
        _open.sessions.append(self)

    def close(self) -> None:
        """As `Session.close`; graph and session are the defaults no more. Sessions may be closed in
        any order, each in the thread that made it."""
        super().close()
        if self not in _open.sessions:
            return
        drop_default(self)
        place = _open.sessions.index(self)
        del _open.sessions[place]
        if place < len(_open.sessions):  # one that was made later is still open
            _open.sessions[place]._before = self._before
        elif thread_default() is self.graph._trace:
            set_thread_default(self._before)
