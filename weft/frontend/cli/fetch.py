"""`weft compile --fetch`: the step of a saved `wf.Graph` that a session runs for some fetches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft.frontend.arrays import Array
from weft.frontend.session.compiling import pruned
from weft.frontend.session.fetching import fetch_values, is_tensor
from weft.frontend.session.graph import Graph
from weft.frontend.session.graph_import import add_graph
from weft.frontend.session.on_gpu import gpu_use
from weft.frontend.session.subgraph import needed_ops
from weft.ir.dims import SymbolicDim, substitute_dim
from weft.ir.errors import NotFoundError, UnsupportedError, suggest
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.runtime.device.backends.local import on_local_device

NAMES = (
    "placeholders and effects (of minimize, of initializers) have names; wf.name_tensor(x, name) "
    "names another tensor"
)


def fetched_step(
    graph: IRGraph, names: Sequence[str], sizes: Callable[[Sequence[str]], Mapping[str, int]]
) -> IRGraph:
    """The step that `Session.run(names)` makes of a graph that `wf.Graph.save` wrote, with all
    placeholders fed whose sizes are known; it names no device any more.

    sizes: the sizes of the symbols, of which those that it is called with are needed. NotFoundError
    for a name that is none, UnsupportedError for a step that has parts on several devices, and as a
    session has them.
    """
    made = Graph(graph.name)
    add_graph(made, graph)
    known = [*made._named, *made._effects]
    for name in names:
        if name.removesuffix(":0") not in made._named and name not in made._effects:
            raise NotFoundError(
                f"--fetch {name}: nothing in the graph '{graph.name}' has this name"
                f"{suggest(name, known)}",
                hint=f"named are: {', '.join(known)}" if known else NAMES,
            )
    values, _ = fetch_values(made, list(names))
    step = pruned(made, values, _feeds(made, values, sizes))
    use = gpu_use(step, "auto")
    if use is not None and use.why:
        raise UnsupportedError(
            f"--fetch: the step has a part for each device: {use.why}",
            hint="WEFT_DUMP writes what each part runs: compile the graphs of those on GPUs",
            location=use.op.locations,
        )
    return on_local_device(step, None if use is None else use.number)


def _feeds(
    graph: Graph,
    values: Sequence[Value | None],
    sizes: Callable[[Sequence[str]], Mapping[str, int]],
) -> dict[Value, Array]:
    """Arrays of the sizes that are given, without memory, for the placeholders."""
    args = [a for a in graph._trace.builder.args if is_tensor(a)]
    wanted = [v for v in values if v is not None]
    _, met = needed_ops(graph._trace.builder.ops, wanted, args)
    needed = [s for a in args if a in met for s in _symbols(a)]
    known = sizes(list(dict.fromkeys(needed)))
    made: dict[Value, Array] = {}
    for arg in args:
        assert isinstance(arg.type, TensorType)
        shape = [n for d in arg.type.shape if isinstance(n := substitute_dim(d, known), int)]
        if len(shape) == arg.type.rank:
            made[arg] = np.broadcast_to(np.empty((), arg.type.dtype.numpy), shape)
    return made


def _symbols(arg: Value) -> list[str]:
    assert isinstance(arg.type, TensorType)
    dims = [d for d in arg.type.shape if isinstance(d, SymbolicDim)]
    return [s for d in dims for s in sorted(d.symbols)]
