"""`wf.import_graph_def`: a graph as part of the graph that is being built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from weft.frontend.session.graph import Graph, get_default_graph, graph_trace
from weft.frontend.session.graph_import import add_graph
from weft.frontend.session.graph_text import to_ir
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.effect import Effect
from weft.frontend.tracing.trace import set_thread_default
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Graph as IRGraph
from weft.ir.locations import caller_location
from weft.ir.text.parser import parse_graph
from weft.runtime.files.permissions import AllowFiles, grant


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
    trace = graph_trace("wf.import_graph_def")
    graph = get_default_graph()
    scope = ""
    if trace is None:
        set_thread_default(graph._trace)
    else:
        scope = trace.name_scope
    prefix = scope + ("import/" if name is None else f"{name}/" if name else "")
    ir = graph_ir(graph_def, "wf.import_graph_def", allow_files)
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
