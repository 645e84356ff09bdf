"""The ways to run a program, a row each: what it cannot run and why, which kind of step it makes,
and what its results must equal. A new engine joins by a row.

The truth is what a person wrote, or what the interpreter makes of the structured graph. A way
either has the bits of another way, or is near the truth, since kernels that fuse otherwise, sum in
another order or use other polynomials round otherwise (docs/reference/reproducibility.md).
"""

from __future__ import annotations

import atexit
import math
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from cuda_device import use_device, use_fake
from placed_programs import DEVICES, place_at_random
from program_forms import (
    Call,
    Held,
    Outcome,
    Program,
    Steps,
    contents,
    near,
    same_bits,
    with_own_names,
)
from tasks_here import run_steps

import weft as wf
from weft.codegen.llvm import cache as disk
from weft.codegen.llvm.jit import wait_for_background
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import BoundState
from weft.frontend.core.trace import Effect
from weft.frontend.eager.numpy_calls import SWITCH
from weft.ir.analysis.verify import verify
from weft.ir.errors import VerifyError, WeftError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.types import HandleType, RefType, StackType, TensorType
from weft.passes.control.lower_control_flow import executor_only, lower_control_flow
from weft.passes.partition.partition import partition
from weft.passes.pipelines import GPU_REPRODUCIBLE, REPRODUCIBLE, STANDARD
from weft.passes.placement import CostModel, Device, Links, place
from weft.passes.simplify.cse_dce import dce
from weft.passes.simplify.effects import strip_gradient_ops
from weft.passes.sizes import tie_sizes
from weft.runtime import sized_step
from weft.runtime.cluster.multi_device import DevicesStep
from weft.runtime.compile_step import CompileOptions
from weft.runtime.dataflow.executor import dataflow_step, executor_op, holds_strings
from weft.runtime.dataflow.host_dispatch import HostObjects
from weft.runtime.device.backends import registry
from weft.runtime.device.execution import segments
from weft.runtime.device.execution.executable import compile_for_device
from weft.runtime.device.execution.regions import on_gpu
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.step import Kind, RunContext, Step

Patch = pytest.MonkeyPatch
SECONDS = 20.0

# ----------------------------------------------------------------------------------------- traits
#: What a program may be or hold, and how that shows in its graph; None: the program says it.
TRAITS: dict[str, Callable[[Graph], bool] | None] = {
    "steps": None,
    "no steps": None,
    "error": None,
    "filled": None,
    "many sizes": None,
    "one size": None,
    "gradient": None,
    "draws": None,
    "ordered": None,
    "minimizes": None,
    "unread size": None,
    "read transposed": None,
    "large": None,
    "state": lambda g: any(isinstance(r.type, RefType) for op in g.walk() for r in op.results),
    "queues": lambda g: any(isinstance(r.type, HandleType) for op in g.walk() for r in op.results),
    "python": lambda g: any(op.name == "py_function" for op in g.walk()),
    "scalar functions": lambda g: any(op.name == "scalar_function" for op in g.walk()),
    "strings": holds_strings,
    "complex": lambda g: any(_is_complex(r.type) for op in g.walk() for r in op.results),
    "decompositions": lambda g: any(op.name in LINEAR_ALGEBRA for op in g.walk()),
    "stacks": lambda g: any(isinstance(r.type, StackType) for op in g.walk() for r in op.results),
    "loops": lambda g: any(op.name in ("while", "scan", "loop_cond") for op in g.walk()),
    "branches": lambda g: any(op.name in ("cond", "switch") for op in g.walk()),
    "switch": lambda g: any(op.name in DATAFLOW for op in g.walk()),
    "host": lambda g: _holds_host_ops(g),
    "dynamic": lambda g: any(_is_open(r.type) for op in g.walk() for r in op.results),
}


def _holds_host_ops(graph: Graph) -> bool:
    """Whether no native plan holds the graph; calls of Python it does."""
    found = executor_op(graph)
    if found is not None and found.name in PYTHON_CALLS:
        found = executor_only(graph.ops, PYTHON_CALLS)
    return found is not None or holds_strings(graph)


def _is_open(kind: Any) -> bool:
    return isinstance(kind, TensorType) and not kind.is_static


def _is_complex(kind: Any) -> bool:
    return isinstance(kind, TensorType) and kind.dtype.is_complex


def traits(program: Program) -> frozenset[str]:
    """Those that a program has, looked for once."""
    held = vars(program)
    if "traits" not in held:
        held["traits"] = _traits_of(program)
    found: frozenset[str] = held["traits"]
    return found


def _traits_of(program: Program) -> frozenset[str]:
    forms = {"no steps" if program.case is not None else "", "" if program.call else "steps"}
    found = {
        name
        for name, shows in TRAITS.items()
        if shows is not None and any(map(shows, program.graphs))
    }
    sizes = "one size" if len(set(program.graphs)) == 1 else "many sizes"
    return frozenset((found | forms | {sizes} | program.told) - {""})


# -------------------------------------------------------------------------------------------- rows
Run = Callable[[Program, int, Patch], Outcome]


@dataclass(frozen=True)
class Way:
    """One way. run: a program, with a seed for what may be in any order or place. refuses: by trait
    why it does not run such programs. kind: of the steps it makes; None: none, or any. like: what
    it is held against, a way or the truth; exact: whether it has its bits; near: how far floats may
    be apart, if that is less than of the program. share: the default suite runs every so manieth
    program, the slow tests the others. seeds: how many orders are tried."""

    run: Run
    refuses: Mapping[str, str] = field(default_factory=dict)
    kind: Kind | None = None
    like: str = "truth"
    exact: bool = False
    near: float = 1.0
    share: int = 4
    seeds: int = 1

    def reason(self, program: Program) -> str:
        """Why it does not run a program; "": it does."""
        found = [f"{t}: {self.refuses[t]}" for t in sorted(traits(program)) if t in self.refuses]
        return "; ".join(found)


def outcome(program: Program, way: str, seed: int) -> Outcome:
    """What a run gives, errors too."""
    with Patch.context() as patch:
        found = WAYS[way].run(program, seed, patch)
    kind, kinds = WAYS[way].kind, {step.kind for step in found.steps}
    assert kind is None or found.error or kind in kinds, f"{way} made {kinds}"
    return found


def check(program: Program, way: str, known: dict[str, Outcome], seed: int | None = None) -> None:
    """Run a program and hold it against the truth, or the way whose bits it has. known: by ways,
    what the program gave before."""
    row = WAYS[way]
    like = row.like
    if like != "truth" and ("error" in traits(program) or WAYS[like].reason(program)):
        like = "truth"
    first = program.seed if seed is None else seed
    for number in range(first, first + row.seeds):
        found = outcome(program, way, number)
        if like not in known:
            known[like] = truth(program) if like == "truth" else outcome(program, like, number)
        wanted, what = known[like], f"{program.name}, {way}, seed {number}"
        if isinstance(wanted.error, Raises):
            wanted.error.check(found.error)
            found.results = wanted.results
        else:
            for made in (wanted, found):
                if made.error is not None:
                    raise made.error
        if row.exact and like != "truth":
            same_bits(found, wanted, what)
        else:
            near(found, wanted, min(program.near, row.near), what)


def truth(program: Program) -> Outcome:
    """What a person wrote, or the interpreter's."""
    if program.want is not None:
        return program.want
    if program.build is not None:
        _, steps, _ = program.built()
        if steps.want is not None:
            return steps.want
    with Patch.context() as patch:
        return _interpreted(program, 0, patch)


class Raises(Exception):
    """In place of an error that is wanted: its class and a pattern of its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    def check(self, error: Exception | None) -> None:
        """Fails unless `error` is such a one; or the verifier's, who is asked before all else."""
        if not isinstance(error, VerifyError):
            assert isinstance(error, getattr(wf.errors, self.kind)), repr(error)
            assert re.search(self.message, str(error)), str(error)


# --------------------------------------------------------------------------------- on graphs of IR
#: Runs one graph with the state of the program, as often as it is called.
Runner = Callable[[list[Any]], Sequence[Any]]
MakeRunner = Callable[[Graph, Held, int], "Runner | Step"]


def on_graphs(make: MakeRunner, settings: Callable[[Patch], Any] = lambda _: None) -> Run:
    """A way that needs the graphs of the IR alone."""

    def run(program: Program, seed: int, patch: Patch) -> Outcome:
        settings(patch)
        held, made = program.held(), Outcome()
        runners: dict[Graph, Runner] = {}
        try:
            for graph, inputs in zip(held.graphs, held.inputs, strict=True):
                if graph not in runners:
                    step = make(graph, held, seed)
                    if isinstance(step, Step):
                        made.steps.append(step)
                        step = partial(_run_step, step)
                    runners[graph] = step
                given = [np.array(x, order="C") for x in inputs]
                made.results.append(list(runners[graph](given)))
                for a, b in zip(given, inputs, strict=True):
                    assert a.tobytes() == b.tobytes(), "an input changed"
        except WeftError as error:
            made.error = error
        made.variables = {n: s.read() for n, s in held.variables.items() if s.initialized}
        return _after(made, held.resources, held.steps)

    return run


def _run_step(step: Step, inputs: list[Any]) -> list[Any]:
    return step.run(inputs, RunContext(timeout=SECONDS))


def _after(made: Outcome, resources: Mapping[str, Any], steps: Steps | None) -> Outcome:
    """What is left in objects of this process, and what Python functions saw."""
    made.objects = contents(resources)
    made.seen = list(steps.seen) if steps is not None else []
    return made


def _interpreter(
    graph: Graph, held: Held, seed: int, schedule: bool = False, parts: Any = None
) -> Runner:
    state, host = BoundState(held.variables), HostObjects(held.resources, timeout=2.0)
    order = seed if schedule else None
    verify(graph)
    run = interpret if parts is None else interpret_parts
    what = graph if parts is None else parts
    return lambda inputs: run(what, inputs, state, host=host, schedule=order)


def _lowered(mode: str, then: Callable[[Graph], Graph] | None = None) -> MakeRunner:
    """Switch and Merge; with `then` what that pass leaves of them, its ops in any order."""

    def make(graph: Graph, held: Held, seed: int) -> Runner:
        more = {} if then is None else {"parallel_iterations": 1 + seed % 4}
        made = lower_control_flow(tie_sizes(graph), mode=mode, **more)
        verify(made)
        made = made if then is None else then(made)
        assert parse_graph(print_graph(made)) == made
        return _interpreter(made, held, seed, schedule=then is not None)

    return make


def _verified(graph: Graph) -> Graph:
    verify(graph)
    return graph


def _bare(graph: Graph) -> Graph:
    """Without the marks of gradients, which have no place."""
    marked = any(op.name == "custom_gradient" for op in graph.walk())
    return strip_gradient_ops(graph).at_stage(graph.stage) if marked else graph


def _cut(graph: Graph, seed: int, devices: Sequence[str] = DEVICES) -> Any:
    """Parts of a graph whose ops are anywhere."""
    bare, count, stay = _bare(graph), 1 + seed % len(devices), (seed % 4) / 4
    placed = place_at_random(bare, seed, count, stay=stay, devices=devices)
    verify(placed)
    return partition(placed)


def _interpreted_parts(graph: Graph, held: Held, seed: int) -> Runner:
    parts = _cut(graph, seed).parts
    for part in parts:
        verify(part.graph)
        assert parse_graph(print_graph(part.graph)) == part.graph
        assert not any(op.device or op.group for op in part.graph.walk())
    return _interpreter(graph, held, seed, schedule=True, parts=parts)


def _parts_of_lowered(graph: Graph, held: Held, seed: int) -> Runner:
    """Switches, merges and frames that were placed one by one, as users may write them."""
    return _interpreted_parts(lower_control_flow(tie_sizes(_bare(graph))), held, seed)


#: Links so fast that placement uses all devices.
FAST = CostModel(Links(latency_s=1e-9, bytes_per_s=1e15, message_s=0.0))
TASKS = ("/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1")


def _placed_parts(graph: Graph, held: Held, seed: int) -> Runner:
    """Some ops say where they are; placement puts the others somewhere."""
    chance, bare = random.Random(seed), _bare(graph)
    ops = list(bare.walk())
    for op in chance.choices(ops, k=min(8, len(ops))) if ops else ():
        op.device = chance.choice((*TASKS[:2], "/job:worker"))
    devices = [Device(f"{task}/cpu:0") for task in TASKS]
    placed = place(bare, devices, costs=FAST, soft=True, spread=bool(seed % 2))
    parts = partition(placed.graph).parts
    for op in ops:  # the graph is of other ways, too
        op.device = ""
    return _interpreter(graph, held, seed, schedule=True, parts=parts)


def _executor(mode: str, passes: Any = STANDARD) -> MakeRunner:
    def make(graph: Graph, held: Held, seed: int) -> Step:
        return dataflow_step(graph, held.variables, held.resources, mode, passes=passes)

    return make


def _parts_on_executor(graph: Graph, held: Held, seed: int, passes: Any = STANDARD) -> Runner:
    parts = _cut(graph, seed).parts
    states, resources = held.variables, held.resources
    steps = [dataflow_step(p.graph, states, resources, "auto", passes=passes) for p in parts]

    def run(inputs: list[Any]) -> list[Any]:
        found, exchange = run_steps(parts, steps, inputs, SECONDS)
        assert not exchange.left_alive()
        return found

    return run


LOCAL = tuple(f"/job:localhost/task:0/{name}" for name in ("cpu:0", "gpu:0", "gpu:1"))


def _on_devices(graph: Graph, held: Held, seed: int) -> Step:
    there = LOCAL[: 1 + len(registry.gpus())]
    made, results = _cut(graph, seed, there), len(graph.results)
    how = CompileOptions()
    return DevicesStep("program", made, results, held.variables, held.resources, on_gpu, how)


def _native(graph: Graph, held: Held, seed: int, passes: Any = STANDARD) -> Step:
    return compile_graph(graph, held.variables, passes=passes)


def _by_numba(patch: Patch) -> None:
    """Kernels are compiled from their printed source."""
    patch.setenv("WEFT_ENGINE", "numba")


def _reread(graph: Graph, held: Held, seed: int) -> Runner:
    made = parse_graph(print_graph(graph))
    assert made == graph
    return _interpreter(made, held, seed)


def _on_gpu(**options: Any) -> MakeRunner:
    def make(graph: Graph, held: Held, seed: int) -> Runner:
        return compile_for_device(
            graph, held.variables, find=lambda: registry.gpu(0), **options
        ).run

    return make


def _one_by_one(graph: Graph, held: Held, seed: int) -> Runner:
    """Every op is a step of its own."""
    bare = strip_gradient_ops(graph)
    known: dict[str, Runner] = {}

    def run(inputs: list[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip(bare.args, inputs, strict=True))
        for op in bare.ops:
            given = list(dict.fromkeys(op.operands))
            builder = Builder([v.type for v in given])
            made = builder.clone(op, dict(zip(given, builder.args, strict=True)))
            single = builder.graph(op.name, [f"a{k}" for k in range(len(given))], list(made))
            text = str(single)
            if text not in known:
                known[text] = _on_gpu(passes=GPU_REPRODUCIBLE)(single, held, seed)
            found = known[text]([np.ascontiguousarray(values[v]) for v in given])
            values.update(zip(op.results, found, strict=True))
        return [values[v] for v in bare.results]

    return run


#: Whether the machine's own GPUs are asked for, as `pytest -m gpu` does.
REAL = ContextVar("real", default=False)


def _emulated(patch: Patch, kind: str = "check") -> None:
    """A GPU that looks for races, or several, or the machine's own."""
    if REAL.get():
        use_device("real", patch)
    else:
        patch.setenv("WEFT_EMULATE_GPU", kind)


def _short_recordings(patch: Patch) -> None:
    use_fake(patch)
    patch.setattr(segments, "MOST_NODES", 7)


_interpreted = on_graphs(_interpreter)


# --------------------------------------------------------------------------------- as Python calls
def called(wrap: Callable[[Call], Any], settings: Callable[[Patch], Any] = lambda _: None) -> Run:
    """A way that calls the Python function."""

    def run(program: Program, seed: int, patch: Patch) -> Outcome:
        assert program.call is not None
        settings(patch)
        given, made = program.call(), Outcome()
        function = wrap(given)
        for args in given.args:
            made.results.append([np.array(x) for x in pytree.tree_leaves(function(*args))])
        if isinstance(function, wf.CompiledFunction):
            made.steps.append(function._specialized(given.args[-1], {}).executable())
        return made

    return run


def _native_eager(patch: Patch) -> None:
    patch.setenv("WEFT_EAGER", "native")
    patch.setattr(SWITCH, "on", True)


# ------------------------------------------------------------------------------------- in sessions
def in_session(
    scope: Callable[[int], Any] = lambda seed: nullcontext(),
    target: Callable[[], str] = str,
    settings: Callable[[Patch], Any] = lambda _: None,
    **options: Any,
) -> Run:
    """A way that runs steps of a session. scope: what is around the code that builds the graph."""

    def run(program: Program, seed: int, patch: Patch) -> Outcome:
        settings(patch)
        with scope(seed):
            graph, steps, init = program.built()
        made = _run_session(graph, steps, init, target(), options)
        if program.call is not None:  # what is traced of a function calls them otherwise
            made.variables = {}
        return with_own_names(made, program)

    return run


def _run_session(
    graph: wf.Graph, steps: Steps, init: Any, target: str, options: Mapping[str, Any]
) -> Outcome:
    made, limit = Outcome(), wf.RunOptions(timeout=SECONDS)
    try:
        with wf.Session(target, graph=graph, **{**steps.options, **options}) as session:
            if init is not None:
                session.run(init)
            before = set(session._steps.entries)
            for given in steps.feeds:
                found = session.run(list(steps.fetches), dict(given), limit)
                is_effect = (
                    x is None and isinstance(f, Effect)
                    for x, f in zip(found, steps.fetches, strict=True)
                )
                made.results.append([x for x, e in zip(found, is_effect, strict=True) if not e])
            entries = session._steps.entries
            made.steps = [entries[k].executable for k in entries.keys() - before]
            if target:
                names = [v.name for v in graph.variables]
                made.variables = dict(zip(names, session.run(graph.variables), strict=True))
    except WeftError as error:
        made.error = error
    finally:
        if target:
            wf.Session.reset(target)
    if not target:
        made.variables = {v.name: v.state.read() for v in graph.variables}
    return _after(made, {} if target else graph.resources, steps)


def _no_filling(patch: Patch) -> None:
    patch.setattr(sized_step, "MOST_IN_VAIN", 0)


def _verify_passes(patch: Patch) -> None:
    """Every graph on the way is legal. (`run`, which interprets them, too, takes what cancels in
    a sum for a mistake.)"""
    patch.setenv("WEFT_VERIFY", "ir")


def _anywhere(devices: Sequence[str], seed: int) -> Any:
    """Each op on one of the devices: often where the one before it is, now and then not said."""
    chance, stay = random.Random(seed), (seed % 4) / 4
    last = devices[0]

    def device(op: Any) -> str:
        nonlocal last
        if chance.random() >= stay:
            last = chance.choice(devices)
        return "" if chance.random() < 0.15 else last

    return wf.device(lambda op: "" if op.type.startswith("stack_") else device(op))


@cache
def cluster() -> str:
    """The address of a task of a cluster in this process."""
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 2})
    for server in servers:
        atexit.register(server.stop)
    return str(servers[1].target)


def _saved(program: Program, seed: int, patch: Patch) -> Outcome:
    """The graph as text, read again."""
    graph, steps, init = program.built()
    fed: dict[Any, str] = {}
    named = dict(zip(graph._trace.builder.args, graph._trace.arg_names, strict=True))
    with graph.as_default():
        fetches = []
        for k, leaf in enumerate(steps.fetches):
            fetches.append(leaf if isinstance(leaf, str) else f"fetched{k}")
            if isinstance(leaf, Effect):
                wf.group(leaf, name=fetches[-1])
            elif not isinstance(leaf, str):
                wf.name_tensor(wf.identity(leaf), fetches[-1])
        for k, t in enumerate(dict.fromkeys(t for given in steps.feeds for t in given)):
            fed[t] = t if isinstance(t, str) else named.get(t._value, f"fed{k}")
            if fed[t] == f"fed{k}":
                wf.name_tensor(t, fed[t])
    loaded = wf.Graph.from_text(graph.as_text())
    feeds = [{fed[t]: x for t, x in given.items()} for given in steps.feeds]
    own = Steps([loaded.element(n) for n in fetches], feeds, seen=steps.seen, options=steps.options)
    values = {v.name: v.state.read() for v in graph.variables if v.state.initialized}
    for v in loaded.variables:
        if v.name in values:
            v.state.write(values[v.name])
    made = _run_session(loaded, own, init and loaded.element(init.name), "", {})
    return with_own_names(made, program)


def _from_disk(program: Program, seed: int, patch: Patch) -> Outcome:
    """Plans that another session has left on disk."""
    with tempfile.TemporaryDirectory() as folder:
        patch.setenv("WEFT_CACHE", "1")
        patch.setenv("WEFT_CACHE_DIR", folder)
        patch.setattr(disk, "LOADED_AT", math.inf)  # weft may be edited while its tests run
        for known in (disk._common, disk._plan_sources):
            known.cache_clear()
        for _ in range(2):
            made = in_session()(program, seed, patch)
            wait_for_background()
        for step in made.steps:
            assert isinstance(step, Executable)
            assert step.report.plan_loaded, "it was planned again"
        return made


def replayed(run: Run) -> Run:
    """Each step is recorded, and its record gives the same bits again."""

    def and_again(program: Program, seed: int, patch: Patch) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            with wf.record(folder, steps=1000) as files:
                made = run(program, seed, patch)
            for file in files:
                record = wf.replay(file)
                assert not record.differences("recorded"), f"{record}: {record.graph}"
        return made

    return and_again


def held(run: Run) -> Run:
    """Each run of a step is held against the interpreter (WEFT_VERIFY=native)."""

    def with_verifier(program: Program, seed: int, patch: Patch) -> Outcome:
        patch.setenv("WEFT_VERIFY", "native")
        with tempfile.TemporaryDirectory() as folder:
            patch.setenv("WEFT_DUMP", folder)  # of smaller programs, if there are any
            return run(program, seed, patch)

    return with_verifier


# ------------------------------------------------------------------------------------- the table
_NONE: Mapping[str, str] = {}
_MINIMIZES = {"minimizes": "a loss that has its value keeps no history"}
_CALL = {"steps": "it calls a Python function"}
_GRAPH = {
    "draws": "a `wf.random.Generator` has a state of its own for each op of a `wf.Graph`",
    "ordered": "nothing orders a read after an update in a `wf.Graph`",
}
_COMPILED = _CALL | {"dynamic": "it runs on the executor (tests/frontend/test_host_functions.py)"}
_ONE = {"one size": "there is nothing to fill in"}
_MANY = {"many sizes": "plans for many sizes are in `session, open sizes`"}
_TEXT = _GRAPH | {"python": "it is not in the text", "filled": "nor is what queues hold"}
_NATIVE = {"host": "no native plan holds ops of the host", "switch": "nor Switch and Merge"}
_DEAD = {"error": "what is wrong may be in what nobody needs"}
_COMPLEX = {"complex": "no complex numbers on GPUs"}
_LAPACK = {"decompositions": "they are calls of LAPACK on the CPU"}
_ON_GPU = {**_LAPACK, **_COMPLEX, "large": "an emulated GPU takes seconds for it"}
_GPU = _NATIVE | _ON_GPU | {"strings": "no strings on GPUs"}
_ALONE = {
    "state": "ops on a variable are no steps of their own",
    "loops": "nor are bodies of loops",
    "branches": "nor are branches",
    "read transposed": "a fault: a product of few rows that reads a transpose adds up in another "
    "order than one of its copy",
}
_PARTS = {
    "python": "Python functions stay in their process",
    "error": "which part fails first is not said",
}
_SIZES = {"unread size": "`interpret_parts` does not know a size of what no op of the part reads"}
_STACKS = {"stacks": "lowered, they are memory of one device"}
_TASKS = (
    _PARTS
    | _GRAPH
    | {
        "no steps": "the state of a bare graph is set from outside",
        "filled": "what is there before is in this process",
    }
)


def bits(of: str, run: Run, refuses: Mapping[str, str] = _NONE, **more: Any) -> Way:
    """A way with the bits of another one."""
    return Way(run, refuses, like=of, exact=True, **more)


WAYS: dict[str, Way] = {
    # the interpreter
    "structured": Way(_interpreted, share=1),
    "text": bits("structured", on_graphs(_reread), {"python": "a graph read elsewhere has none"}),
    "lowered": bits("structured", on_graphs(_lowered("dataflow"))),
    "lowered where needed": bits("structured", on_graphs(_lowered("auto"))),
    "any order": bits("structured", on_graphs(_lowered("dataflow", _verified)), seeds=3),
    "any order, where needed": bits("structured", on_graphs(_lowered("auto", _verified)), seeds=2),
    "any order, without dead code": bits(
        "structured", on_graphs(_lowered("dataflow", dce)), _DEAD, seeds=3
    ),
    "parts": bits("structured", on_graphs(_interpreted_parts), _PARTS | _SIZES, seeds=3),
    "parts of Switch and Merge": bits(
        "structured", on_graphs(_parts_of_lowered), _PARTS | _SIZES | _STACKS, seeds=3
    ),
    "placed": bits("structured", on_graphs(_placed_parts), _PARTS | _SIZES),
    # Python calls
    "eager": Way(called(lambda c: c.function), _CALL | _MINIMIZES),
    "eager, native": Way(
        called(lambda c: c.function, _native_eager), _CALL | _MINIMIZES, like="eager"
    ),
    "compiled": Way(
        called(lambda c: wf.compile(c.function)), _COMPILED | _NATIVE, "native", like="eager"
    ),
    "compiled, open sizes": bits(
        "compiled", called(lambda c: wf.compile(c.function, input_signature=c.types())),
        _COMPILED | _NATIVE | _ONE, kind="sized", share=2,
    ),
    "compiled for a GPU": Way(
        called(lambda c: wf.compile(c.function, device="gpu:0"), _emulated),
        _COMPILED | _GPU, "gpu", like="compiled", near=2e-5,
    ),
    "compiled for a GPU, open sizes": bits(
        "compiled for a GPU",
        called(
            lambda c: wf.compile(c.function, device="gpu:0", input_signature=c.types()), _emulated
        ),
        _COMPILED | _GPU | _ONE, kind="sized", share=2,
    ),
    "compiled for a GPU, with a host": Way(
        called(lambda c: wf.compile(c.function, device="gpu:0"), _emulated),
        _CALL | _ON_GPU, like="compiled", near=2e-5, share=8,
    ),
    # one process
    "native": Way(on_graphs(_native), _NATIVE, "native"),
    "native, by Numba": Way(
        on_graphs(_native, _by_numba),
        _NATIVE | _LAPACK,
        "native",
        share=100,
    ),
    "executor": bits("native", on_graphs(_executor("dataflow")), kind="dataflow"),
    "session": Way(in_session(), _GRAPH, share=2),
    "session, native": bits("session", in_session(control_flow="native"), _NATIVE | _GRAPH),
    "session, dataflow": bits(
        "session", in_session(control_flow="dataflow"), _GRAPH, kind="dataflow"
    ),
    "session, own sizes": Way(
        in_session(settings=_no_filling), _NATIVE | _ONE | _GRAPH, "native", share=2
    ),
    "session, open sizes": bits(
        "session, own sizes", in_session(), _NATIVE | _ONE | _GRAPH, kind="native", share=2
    ),
    "session, verified": bits("session", in_session(settings=_verify_passes), _GRAPH),
    "saved": bits("session", _saved, _TEXT),
    "from disk": bits(
        "session", _from_disk, _NATIVE | _MANY | _GRAPH | {"python": "nothing to load for it"},
        kind="native", share=8,
    ),
    # recorded and replayed, and held against the interpreter
    "session, replayed": bits("session", replayed(in_session()), _GRAPH),
    "compiled, replayed": bits(
        "compiled", replayed(called(lambda c: wf.compile(c.function))), _COMPILED | _NATIVE,
        kind="native",
    ),
    "cluster, replayed": bits(
        "cluster", replayed(in_session(partial(_anywhere, TASKS), cluster)), _TASKS,
        kind="cluster",
    ),
    "session, held": bits("session", held(in_session()), _GRAPH),
    "compiled, held": bits(
        "compiled", held(called(lambda c: wf.compile(c.function))), _COMPILED | _NATIVE,
        kind="native",
    ),
    "compiled for a GPU, held": bits(
        "compiled for a GPU",
        held(called(lambda c: wf.compile(c.function, device="gpu:0"), _emulated)),
        _COMPILED | _GPU, kind="gpu",
    ),
    "cluster, held": bits(
        "cluster", held(in_session(partial(_anywhere, TASKS), cluster)), _TASKS, kind="cluster"
    ),
    # reproducible
    "reproducible": Way(in_session(reproducible=True), _GRAPH),
    "reproducible, executor": bits(
        "reproducible", on_graphs(_executor("dataflow", REPRODUCIBLE)), kind="dataflow"
    ),
    "reproducible, parts": bits(
        "reproducible", on_graphs(partial(_parts_on_executor, passes=REPRODUCIBLE)), _PARTS,
        seeds=3,
    ),
    # several devices
    "parts on the executor": Way(on_graphs(_parts_on_executor), _PARTS),
    "GPU": Way(on_graphs(_on_gpu(), _emulated), _GPU),
    "GPU, faked driver": bits("GPU", on_graphs(_on_gpu(), use_fake), _GPU),
    "GPU, short recordings": bits("GPU", on_graphs(_on_gpu(), _short_recordings), _GPU),
    "GPU, reproducible": Way(
        on_graphs(_on_gpu(passes=GPU_REPRODUCIBLE), _emulated), _GPU, share=2
    ),
    "GPU, op by op": bits(
        "GPU, reproducible", on_graphs(_one_by_one, _emulated), _GPU | _ALONE, share=8
    ),
    "devices": Way(
        on_graphs(_on_devices, partial(_emulated, kind="2")), _PARTS | _COMPLEX | _LAPACK, "devices"
    ),
    "cluster": Way(in_session(partial(_anywhere, TASKS), cluster), _TASKS, "cluster"),
    "cluster, reproducible": bits(
        "reproducible", in_session(partial(_anywhere, TASKS), cluster, reproducible=True), _TASKS,
        kind="cluster",
    ),
}  # fmt: skip
#: Those that run on the machine's own GPUs, too.
ON_GPU = (
    "compiled for a GPU",
    "compiled for a GPU, open sizes",
    "GPU",
    "GPU, reproducible",
    "GPU, op by op",
    "devices",
)
