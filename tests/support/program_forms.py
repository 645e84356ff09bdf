"""A program of the tests in the forms that the ways to run it take, and what a run of it gives.

A program is a Python function, what is built in a `wf.Graph`, or a graph of the IR. Each is made
from the one before, so that any of them runs in a session and by the interpreter.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from graphs import Case

import weft as wf
from weft.frontend.core import pytree
from weft.frontend.session.compiling import pruned
from weft.frontend.session.fetches import feed_values, fetch_values
from weft.ir.analysis.frames import is_dataflow
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.ir.text.printer import print_graph
from weft.passes.rewriting.rewrite import extend, must_run
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.queue_kinds import Barrier
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import Step

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """A function and what it is called with, one time after another."""

    function: Callable[..., Any]
    args: Sequence[tuple[Any, ...]]

    def types(self) -> list[wf.TensorType]:
        """Of the arguments; sizes that differ between the calls are open."""
        made = []
        for arrays in zip(*self.args, strict=True):
            first, *others = map(np.asarray, arrays)
            sizes = zip(*(np.shape(x) for x in (first, *others)), strict=True)
            shape = tuple(n[0] if len(set(n)) == 1 else None for n in sizes)
            made.append(wf.TensorType(as_dtype(first.dtype), shape))
        return made


@dataclass
class Outcome:
    """What a run gives: results of each step, and what variables and objects of the host hold.

    error: what it ended with. seen: what Python functions were called with. steps: those
    that ran. What a way cannot see is empty."""

    results: list[list[Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    seen: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Steps:
    """Steps in the graph that is current.

    fetches: tensors and effects, or their names. feeds: of one step after another. want: the truth;
    None: the interpreter has it. seen: the list that Python functions fill. options: of
    `wf.Session`."""

    fetches: Sequence[Any]
    feeds: Sequence[Mapping[Any, Any]]
    want: Outcome | None = None
    seen: list[Any] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Held:
    """A graph of the IR for each step, its inputs, and the state that the steps share."""

    graphs: list[Graph]
    inputs: list[list[Array]]
    variables: dict[str, VariableState]
    resources: Mapping[str, Any]
    steps: Steps | None = None


@dataclass(frozen=True)
class Program:
    """One of: build, which adds its steps to the current graph; call, which gives a function, with
    variables of its own, and arguments; case. want: the truth; None: its steps or the interpreter
    have it. told: traits that its graph does not show. near: how far floats may be apart.
    weight: the default suite runs it in so much fewer ways than a program of weight 1."""

    name: str
    build: Callable[[], Steps] | None = None
    call: Callable[[], Call] | None = None
    case: Case | None = None
    want: Outcome | None = None
    told: frozenset[str] = frozenset()
    near: float = 2e-5
    weight: int = 24

    def __repr__(self) -> str:
        return f"{self.name} {self.case or ''}"

    @property
    def seed(self) -> int:
        """A number of its own, the same in each process."""
        return zlib.crc32(self.name.encode())

    def steps(self) -> Steps:
        """Its steps, added to the graph that is current."""
        if self.build is not None:
            return self.build()
        if self.case is not None:
            return _imported(self.case)
        assert self.call is not None
        made, graph = self.call(), wf.get_default_graph()
        args = [wf.placeholder(t.dtype, t.shape) for t in made.types()]
        fetches = pytree.tree_leaves(made.function(*args))
        trained = graph._effects.values()  # nobody else fetches them
        return Steps([*fetches, *trained], [dict(zip(args, xs, strict=True)) for xs in made.args])

    def built(self) -> tuple[wf.Graph, Steps, Any]:
        """A graph, its steps, and what initialises its variables, those of a case apart."""
        graph = wf.Graph(re.sub(r"\W", "_", self.name.rpartition("/")[2]))
        with graph.as_default():
            steps = self.steps()
            return graph, steps, None if self.case else wf.global_variables_initializer()

    def held(self) -> Held:
        """Graphs of the IR with state of their own."""
        if self.case is not None:
            return _held(self.case)
        if self.call is not None and "dynamic" not in self.told:
            return _traced(self.call())
        graph, steps, init = self.built()
        if graph.variables:
            with wf.Session(graph=graph) as session:
                session.run(init)
        values, _ = fetch_values(graph, steps.fetches)
        fed = [feed_values(graph, given) for given in steps.feeds]
        known: dict[Any, Graph] = {}
        for given in fed:
            shapes = tuple(x.shape for x in given.values())
            if shapes not in known:
                made = pruned(graph, values, given)
                known[shapes] = made.at_stage("dataflow") if is_dataflow(made.block) else made
        graphs = [known[tuple(x.shape for x in given.values())] for given in fed]
        variables = {name: v.state for name, v in graph._trace.variables.items()}
        return Held(graphs, [list(x.values()) for x in fed], variables, graph.resources, steps)

    @cached_property
    def graphs(self) -> list[Graph]:
        """Its graphs in the IR, to look at."""
        return self.held().graphs


def of_case(case: Case, name: str = "case", **more: Any) -> Program:
    """A graph as a program."""
    return Program(name, case=case, **more)


def contents(resources: Mapping[str, Any]) -> dict[str, Any]:
    """What objects of the host hold: elements of queues, the state of others."""
    found: dict[str, Any] = {}
    for name, given in resources.items():
        held = getattr(given, "_queue", given)
        if isinstance(held, Queue) and not isinstance(held, Barrier):
            found[name] = [np.asarray(x).tolist() for row in held._elements for x in row]
        elif hasattr(held, "state_dict"):
            found[name] = str(held.state_dict())
    return found


def variable_states(state: Mapping[str, Any]) -> dict[str, VariableState]:
    """Variables that hold copies of these values."""
    return {
        name: VariableState(name, as_dtype(np.asarray(x).dtype), np.shape(x), np.array(x))
        for name, x in state.items()
    }


def _held(case: Case) -> Held:
    """One step."""
    queues = {name: wf.FIFOQueue(1 << 20, wf.int64, [[]])._queue for name in case.queues}
    inputs = [np.array(x, order="C") for x in case.inputs]
    return Held([case.graph], [inputs], variable_states(case.state), queues)


def _traced(call: Call) -> Held:
    """What is traced of a function: its effects in the order of the program."""
    function = wf.compile(call.function)
    traced = [function._specialized(args, {}).traced for args in call.args]
    inputs = [[np.array(x, order="C") for x in args] for args in call.args]
    variables = {name: state for t in traced for name, state in t.variables.items()}
    return Held([t.graph for t in traced], inputs, variables, {})


def _imported(case: Case) -> Steps:
    """A graph as part of the current one, by names; its variables have their values. All that it
    does is fetched, as a session does nothing else."""
    builder = extend(case.graph.block)
    builder.ops = list(case.graph.ops)
    done = [op.results[0] for op in case.graph.ops if must_run(op) and op.results]
    names = [f"r{i}" for i in range(len(case.graph.results))]
    results = list(case.graph.results)
    if done:
        results += builder.emit("group", [], control=done, locations=done[0].op.locations)
        names.append("done")
    graph = builder.graph(case.graph.name, case.graph.arg_names, results)
    text = print_graph(replace(graph, result_names=tuple(names), stage=case.graph.stage))
    wf.import_graph_def(text, name="part")
    current = wf.get_default_graph()
    for v in current.variables:
        v.state.write(np.asarray(case.state[v.name.removeprefix("part/")]))
    given = zip(case.graph.arg_names, case.inputs, strict=True)
    fetches = [current.element(f"part/{n}") for n in names]
    return Steps(fetches, [{f"part/{n}": x for n, x in given}])


def with_own_names(made: Outcome, program: Program) -> Outcome:
    """What a session leaves behind of a graph that is a part of its own, by that graph's names."""
    if program.case is not None:
        made.variables = {n.removeprefix("part/"): x for n, x in made.variables.items()}
        made.objects = {n.removeprefix("part/"): x for n, x in made.objects.items()}
    return made


# ---------------------------------------------------------------------------------------- comparing
def same_bits(found: Outcome, wanted: Outcome, what: str) -> None:
    """Equal in dtype, shape and bits, variables and queues too, as far as both were seen."""
    assert len(found.results) == len(wanted.results), what
    for step, pair in enumerate(zip(found.results, wanted.results, strict=True)):
        for i, (a, b) in enumerate(zip(*pair, strict=True)):
            _same(a, b, f"{what}: result {i} of step {step}")
    for name in _shared(found.variables, wanted.variables, what):
        _same(found.variables[name], wanted.variables[name], f"{what}: {name}")
    _check_effects(found, wanted, what)


def _array(x: Any) -> Array:
    """Strings as objects: a session gives those of no dimension as they are."""
    made = np.asarray(x)
    return made.astype(object) if made.dtype.kind in "SU" else made


def _same(a: Any, b: Any, what: str) -> None:
    assert (a is None) == (b is None), what
    if a is None:
        return
    a, b = _array(a), _array(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape), what
    assert a.tolist() == b.tolist() if a.dtype.kind == "O" else a.tobytes() == b.tobytes(), what


def near(found: Outcome, wanted: Outcome, rtol: float, what: str) -> None:
    """As `same_bits`, but floats are within `rtol`, of 1 where they are smaller; those of two bytes
    within 3 %. The dtype is that of `found` where a person wrote what is wanted."""
    assert len(found.results) == len(wanted.results), what
    for step, pair in enumerate(zip(found.results, wanted.results, strict=True)):
        for i, (a, b) in enumerate(zip(*pair, strict=True)):
            _near(a, b, rtol, f"{what}: result {i} of step {step}")
    for name in _shared(found.variables, wanted.variables, what):
        _near(found.variables[name], wanted.variables[name], rtol, f"{what}: {name}")
    _check_effects(found, wanted, what)


def _near(a: Any, b: Any, rtol: float, what: str) -> None:
    assert (a is None) == (b is None), what
    if a is None:
        return
    a = _array(a)
    b = _array(b) if isinstance(b, (np.ndarray, np.generic, bytes)) else np.asarray(b, a.dtype)
    assert (a.dtype, a.shape) == (b.dtype, b.shape), what
    if a.dtype.kind in "biuO":
        assert a.tolist() == b.tolist(), what
        return
    rtol = 3e-2 if a.dtype.itemsize == 2 else rtol
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol, rtol, err_msg=what)


def _shared(a: Mapping[str, Any], b: Mapping[str, Any], what: str) -> Set[str]:
    """The names of both. One of them may have seen less, but nothing else."""
    assert a.keys() <= b.keys() or b.keys() <= a.keys(), f"{what}: {sorted(a)} and {sorted(b)}"
    return a.keys() & b.keys()


def _check_effects(found: Outcome, wanted: Outcome, what: str) -> None:
    for name in _shared(found.objects, wanted.objects, what):
        assert found.objects[name] == wanted.objects[name], f"{what}: {name}"
    assert found.seen == wanted.seen, what
