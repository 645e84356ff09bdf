"""The programs of the snapshot, and the ways in which each is planned.

Most come from the tables that the tests run; those that are written here only have ways of their
own (sizes that stay open, tasks, GPUs). Nothing is run, so large shapes cost nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from api_cases import ELEMENTWISE, REDUCTIONS
from api_cases_array import CREATION, EINSUM, INDEXING, LINALG, SHAPES
from cuda_models import MODELS, OPS, Call
from dataflow_nets import make_net
from golden_cases import read_cases
from paths import CASES
from program_forms import Steps
from semantic_gradients import PROGRAMS as GRADIENTS
from semantic_loops import PROGRAMS as LOOPS
from semantic_programs import PROGRAMS as BRANCHES
from session_programs import arrays
from session_programs import build as random_session
from training_programs import PROGRAMS as TRAINING

import weft as wf
from snapshot import inside, sessions
from snapshot.inside import Files
from weft.frontend.core import pytree
from weft.frontend.tools.bench_workloads import CHAINS, Weft
from weft.ir.errors import WeftError
from weft.ir.graph import Graph
from weft.ir.text.parser import parse_graph

#: The tasks of programs that run on several.
TASKS = ("/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0")
#: Files of tests/cases whose inputs are no graphs to compile, or those of another table.
NO_PROGRAMS = ("dataflow_errors", "errors", "partition", "semantics")
RANDOM_SESSIONS, RANDOM_NETS = 12, 12


@dataclass(frozen=True)
class Program:
    """What is planned. name: with its group, "training/lstm". ways: by name what makes the texts of
    the plan; `gpu_ways`: those that are for a GPU."""

    name: str
    ways: Mapping[str, Callable[[], Files]]
    gpu_ways: Mapping[str, Callable[[], Files]]


def programs() -> Iterator[Program]:
    """All of them, always in the same order."""
    yield from _functions()
    yield from _graphs()
    yield from _semantics()
    yield from _random_sessions()
    for name, build in sessions.SESSIONS.items():
        yield _session(f"sessions/{name}", build, dataflow=True)
    for name, build in sessions.ON_TASKS.items():
        yield Program(f"tasks/{name}", {"tasks": partial(_tasks, name, build)}, {})
    for name, build in sessions.ON_GPU.items():
        yield Program(f"devices/{name}", {}, {"session": partial(_steps, name, build)})


# --------------------------------------------------------------------------------------- functions
def _functions() -> Iterator[Program]:
    for name, (make, args) in TRAINING.items():
        yield _function(f"training/{name}", partial(_made, make, args), True)
    for name, of in MODELS.items():
        yield _function(f"models/{name}", of, True)
    for name, of in OPS.items():
        yield _function(f"ops/{name}", of)
    for f in CHAINS:
        xs = tuple(np.ones(1 << 16, np.float32) for _ in range(3))
        yield _function(f"chains/{f.__name__}", partial(Call, partial(f, Weft), xs), True)
    yield Program("functions/donated", {"function": _donated}, {"gpu": partial(_donated, "gpu:0")})
    for name, optimizer in OPTIMIZERS.items():
        yield _function(f"optimizers/{name}", partial(_training_by, optimizer))
    count: dict[str, int] = {}
    for case in (*ELEMENTWISE, *REDUCTIONS, *CREATION, *EINSUM, *INDEXING, *LINALG, *SHAPES):
        count[case.name] = count.get(case.name, 0) + 1
        name = f"api/{case.name}" + f" {count[case.name]}" * (count[case.name] > 1)
        yield _function(name, partial(Call, case.call, case.inputs))


def _donated(device: str = "cpu") -> Files:
    """An update in the memory of what it is of."""
    xs = tuple(np.ones((64, 32), np.float32) for _ in range(2))
    return inside.function_files(lambda p, g: p - 0.1 * wf.tanh(g), xs, donate="p", device=device)


def _made(make: Callable[[], Any], args: tuple[Any, ...]) -> Call:
    return Call(make(), args)


def _function(name: str, of: Callable[[], Call], reproducible: bool = False) -> Program:
    def files(**options: Any) -> Files:
        found = of()
        return inside.function_files(found.function, found.args, **options)

    ways = {"function": files}
    gpu_ways = {"gpu": partial(files, device="gpu:0")}
    if reproducible:
        ways["reproducible"] = partial(files, passes="reproducible")
        gpu_ways["gpu-reproducible"] = partial(files, passes="gpu_reproducible", device="gpu:0")
    return Program(name, ways, gpu_ways)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "gradient descent": lambda: wf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: wf.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: wf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: wf.train.AdadeltaOptimizer(0.1),
    "rmsprop": lambda: wf.train.RMSPropOptimizer(0.1),
    "adam": lambda: wf.train.AdamOptimizer(0.1),
}


def _training_by(optimizer: Callable[[], Any]) -> Call:
    """A dense weight and an embedding, of whose gradient only some rows are not zero."""
    w = wf.Variable(np.ones((8, 3), np.float32), name="w")
    table = wf.Variable(np.ones((500, 8), np.float32), name="table")
    made = optimizer()

    def step(index: Any, target: Any) -> Any:
        logits = wf.matmul(wf.nn.embedding_lookup(table, index), w)
        loss = wf.mean(wf.square(logits - target))
        made.minimize(loss)
        return loss

    return Call(step, (np.arange(16), np.ones((16, 3), np.float32)))


# ------------------------------------------------------------------------------------------ graphs
def _graphs() -> Iterator[Program]:
    """The inputs of the golden cases, and random dataflow graphs."""
    for file in sorted(CASES.glob("*.weft")):
        if file.stem in NO_PROGRAMS:
            continue
        for case in read_cases(file.read_text(encoding="utf-8"))[1]:
            graph = _parsed(case.source)
            if graph is not None:
                name = f"cases/{file.stem}/{case.name}"
                ways = {"graph": partial(inside.graph_files, graph)}
                yield Program(name, ways, {"gpu": partial(inside.gpu_graph_files, graph)})
    for seed in range(RANDOM_NETS):
        chance = random.Random(seed)
        net = make_net(chance.randint)
        if net is not None:
            ways = {"dataflow": partial(inside.dataflow_graph_files, net.graph)}
            yield Program(f"nets/{seed:02d}", ways, {})


def _parsed(text: str) -> Graph | None:
    """A graph to compile by itself: one that a native plan holds."""
    try:
        graph = parse_graph(text)
    except WeftError:
        return None
    return graph if inside.is_native(graph) else None


# ---------------------------------------------------------------------------------------- sessions
def _semantics() -> Iterator[Program]:
    for name, build in (BRANCHES | LOOPS | GRADIENTS).items():

        def made(build: Callable[[], Any] = build) -> Steps:
            case = build()
            return Steps(pytree.flatten(case.fetch)[0], [dict(case.feed)])

        yield _session(f"semantics/{name}", made, dataflow=True)


def _random_sessions() -> Iterator[Program]:
    for seed in range(RANDOM_SESSIONS):

        def files(control_flow: str, seed: int = seed) -> Files:
            graph, _, feeds, fetches = random_session(seed, placed=False)
            given = dict(zip(feeds, arrays(seed), strict=True))
            return inside.session_files(graph, fetches, [given], control_flow=control_flow)

        def parts(seed: int = seed) -> Files:
            graph, _, feeds, fetches = random_session(seed)
            given = dict(zip(feeds, arrays(seed), strict=True))
            return inside.task_files(graph, fetches, given, TASKS)

        ways = {"auto": partial(files, "auto"), "dataflow": partial(files, "dataflow")}
        yield Program(f"random/{seed:02d}", {**ways, "tasks": parts}, {})


def _session(name: str, build: Callable[[], Steps], *, dataflow: bool) -> Program:
    ways = {"auto": partial(_steps, name, build)}
    if dataflow:
        ways["dataflow"] = partial(_steps, name, build, control_flow="dataflow")
    return Program(name, ways, {})


def _steps(name: str, build: Callable[[], Steps], **options: Any) -> Files:
    graph, steps = _built(name, build)
    return inside.session_files(
        graph, steps.fetches, steps.feeds, **(dict(steps.options) | options)
    )


def _tasks(name: str, build: Callable[[], Steps]) -> Files:
    graph, steps = _built(name, build)
    return inside.task_files(graph, steps.fetches, steps.feeds[0], TASKS, **steps.options)


def _built(name: str, build: Callable[[], Steps]) -> tuple[wf.Graph, Steps]:
    graph = wf.Graph(name.rpartition("/")[2].replace(" ", "_"))
    with graph.as_default():
        return graph, build()


def selected(patterns: Sequence[str]) -> Iterator[Program]:
    """The programs whose names contain one of `patterns`; all if there are none."""
    for program in programs():
        if not patterns or any(pattern in program.name for pattern in patterns):
            yield program
