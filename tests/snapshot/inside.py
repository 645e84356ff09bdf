"""The plans of steps as files of text: all that the snapshot knows of weft's classes, besides how
kernels become text (`text_engine.py`).

`files_of` takes anything that runs a graph apart: `plan.txt` for people, `table.txt` with all
numbers that carry it out, `ir.txt` after the last pass, `kernels/`, and a folder for each step
inside of it. A change of weft's inside is followed here, the texts staying what they were.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np

import weft as wf
from weft.codegen.cuda.cubins.compile import emit_ptx, symbol_of
from weft.codegen.cuda.cubins.toolchain import toolchain
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.llvm.jit import kernel_llvm
from weft.frontend.session.compiling import pruned
from weft.frontend.session.fetches import feed_values, fetch_values
from weft.frontend.tools.run import variable_types
from weft.ir.errors import ToolchainError
from weft.ir.graph import Graph
from weft.ir.text.printer import print_graph
from weft.passes.differential import random_sizes
from weft.passes.manager import run_passes
from weft.passes.partition.partition import partition
from weft.passes.pipelines import STANDARD, before_placement
from weft.passes.placement import Device, place
from weft.passes.sizes import is_symbolic, specialize, tie_sizes
from weft.runtime.cluster.multi_device import DevicesStep
from weft.runtime.cluster.part import part_step
from weft.runtime.compile_step import CompileOptions
from weft.runtime.dataflow.build import Built
from weft.runtime.dataflow.executor import (
    DataflowStep,
    dataflow_step,
    describe_nodes,
    executor_op,
    holds_strings,
)
from weft.runtime.dataflow.nodes import Node
from weft.runtime.device.execution.executable import DeviceExecutable, compile_for_device
from weft.runtime.device.execution.regions import GpuRegion
from weft.runtime.device.plan import DevicePlan, describe_plan
from weft.runtime.device.planning.stored_plan import lines_of, pack_plan
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.size_plan import Filled
from weft.runtime.plan_store import NotKeptError
from weft.runtime.resources.variables import VariableState
from weft.runtime.sized_step import FilledStep, SizedStep

#: Texts by their paths, which have forward slashes.
Files = dict[str, str]
#: The compute capability that PTX is for.
CC = (9, 0)
#: Numbers on a line.
LINE = 12


# ------------------------------------------------------------------------- programs to their plans
def function_files(function: Callable[..., Any], args: Sequence[Any], **options: Any) -> Files:
    """Of a function that is compiled, with `options` of `wf.compile`."""
    made = wf.compile(function, **options)
    return files_of(made._specialized(tuple(args), {}).executable())


def session_files(
    graph: wf.Graph, fetches: Any, feeds: Sequence[Mapping[Any, Any]], **options: Any
) -> Files:
    """Of a step of a session with `options` of `wf.Session`, for each of `feeds` in turn: the plans
    after the first may be for many sizes."""
    made: Files = {}
    with wf.Session(graph=graph, **options) as session:
        values, _ = fetch_values(graph, fetches)
        for number, given in enumerate(feeds):
            fed = feed_values(graph, given)
            step = session._sized.step(values, fed, session._compile)
            shapes = [np.shape(a) for a in fed.values()]
            folder = f"feeds-{number}" if len(feeds) > 1 else ""
            made |= _inside(folder, files_of(step.executable, shapes))
    return made


def is_native(graph: Graph) -> bool:
    """Whether a graph is one for a native plan, of static sizes and not yet partitioned."""
    if graph.stage != "traced" or is_symbolic(graph.block):
        return False
    return executor_op(graph) is None and not holds_strings(graph)


def graph_files(graph: Graph) -> Files:
    """Of a graph of static sizes."""
    return files_of(compile_graph(graph, _states(graph)))


def dataflow_graph_files(graph: Graph) -> Files:
    """Of a graph with Switch and Merge."""
    return files_of(dataflow_step(graph, _states(graph), {}))


def gpu_graph_files(graph: Graph) -> Files:
    """Of a graph of static sizes, for a GPU."""
    return files_of(compile_for_device(graph, _states(graph), find=_no_device))


def task_files(
    graph: wf.Graph,
    fetches: Any,
    feeds: Mapping[Any, Any],
    devices: Sequence[str],
    bfloat16_sendrecv: bool = False,
) -> Files:
    """Of a step of a session on a cluster with these devices: the text of the parts and the plan of
    each."""
    values, _ = fetch_values(graph, fetches)
    step = pruned(graph, values, feed_values(graph, feeds))
    whole, _ = run_passes(step, [*before_placement(STANDARD, step), tie_sizes])
    placed = place(whole, [Device(name) for name in devices])
    made = partition(placed.graph, devices[0], bfloat16=bfloat16_sendrecv)
    states = {name: v.state for name, v in graph._trace.variables.items()}
    files = {"parts.txt": str(made)}
    for part in made.parts:
        ready = part_step(part.graph, states, graph.resources, CompileOptions(STANDARD))
        files |= _inside(_device_folder(part.device), files_of(ready))
    return files


# ---------------------------------------------------------------------------------- steps to files
def files_of(step: Any, shapes: Sequence[tuple[int, ...]] = ()) -> Files:
    """The texts of whatever runs a graph. shapes: of its inputs, where they are not static."""
    match step:
        case Executable():
            return _native(step)
        case Filled():
            exact = step.plan._exact([np.broadcast_to(np.float32(0), s) for s in shapes])
            numbers = step.plan.numbers(tuple(shapes))
            rows = [] if numbers is None else numbers.tolist()
            sizes = [f"conditions {step.plan.conditions}", *_rows("numbers", rows)]
            return {**_native(exact), "sizes.txt": "\n".join(sizes) + "\n"}
        case DeviceExecutable():
            return _on_gpu(step)
        case GpuRegion():
            files = {"ir.txt": print_graph(step.graph)}
            return files if step.step.kind == "sized" else files | _on_gpu(step.step)
        case FilledStep():
            return files_of(step._made, shapes)
        case SizedStep():
            made_of: Any = step.maker.graph.at
            (graph,) = made_of.args
            return {"ir-of-any-size.txt": print_graph(graph)} | files_of(_at_some_size(step, graph))
        case DataflowStep():
            return _dataflow(step)
        case DevicesStep():
            made: Files = {}
            for part in step.parts:
                own = {"part.txt": print_graph(part.graph)} | files_of(part.step)
                made |= _inside(_device_folder(part.device), own)
            return made
    raise TypeError(f"the snapshot does not know how to print a {type(step).__name__}")


def _native(step: Executable) -> Files:
    table = step.plan.table
    text = {key: _named(kernel_llvm(key)) for key in table.kernels}
    kernels = _numbered([(key, name) for key, (name, _) in text.items()])
    files = {f"kernels/{kernels[key]}.ll": made for key, (_, made) in text.items()}
    rows = []
    for field in fields(table):
        held = getattr(table, field.name)
        if field.name == "arrays":
            held = [_array(a) for a in held]
        if field.name == "kernels":
            held = [kernels[key] for key in held]
        rows += _rows(field.name, held)
    for field in fields(step.plan):
        held = getattr(step.plan, field.name)
        if field.name != "table":
            rows += _rows(f"plan.{field.name}", held)
    files |= {
        "plan.txt": _DIGEST.sub("", step.describe()) + "\n",
        "table.txt": "\n".join(rows) + "\n",
        "ir.txt": print_graph(step.graph),
    }
    return files


def _on_gpu(step: DeviceExecutable) -> Files:
    plan, exact = step.plan, step.exact()
    held = {k.key: k for k in (*plan.kernels(), *plan.kernels_after())}
    kernels = _numbered([(key, kernel.name) for key, kernel in held.items()])
    files: Files = {}
    for key, kernel in held.items():
        files[f"kernels/{kernels[key]}.cu"] = _source(kernel)
        if has_toolchain():
            files[f"kernels/{kernels[key]}.ptx"] = _ptx(kernel)
    text = [describe_plan(step.told()), f"memory: {exact.report.memory.describe()}"]
    files |= {
        "plan.txt": _DIGEST.sub("", "\n".join(text)) + "\n",
        "table.txt": _packed(plan, exact.report.passes[0].graph, kernels),
        "ir.txt": print_graph(exact.graph),
    }
    return files


def _packed(plan: DevicePlan, traced: Graph, kernels: Mapping[str, str]) -> str:
    """The plan as it is kept on disk, without what the kernels are made of."""
    try:
        rows, data = pack_plan(plan, [], lines_of(traced))
    except NotKeptError:
        return "the constants are too large to be kept\n"
    rows["tables"].pop("kernels", None)
    rows["tables"].pop("ops", None)
    rows["kernels"] = list(kernels.values())
    rows["constants"] = hashlib.sha256(data).hexdigest()[:16]
    return "".join(f"{line}\n" for line in _flat("", rows))


def _flat(name: str, held: Any) -> Iterator[str]:
    """Fields of fields by their dotted names, a line for each row of a list."""
    if isinstance(held, dict) and held:
        for key, value in sorted(held.items()):
            yield from _flat(f"{name}.{key}" if name else key, value)
    elif isinstance(held, list) and held:
        yield from (f"{name} {json.dumps(row)}" for row in held)
    else:
        yield f"{name} {json.dumps(held)}"


def _dataflow(step: DataflowStep) -> Files:
    built = step.built
    text = [*describe_nodes(built), "", *_nodes(built)]
    files = {"plan.txt": "\n".join(text) + "\n", "ir.txt": print_graph(step.graph)}
    for number, made in enumerate(built.compiled):
        files |= _inside(f"region-{number}", files_of(made))
    return files


def _nodes(built: Built) -> Iterator[str]:
    """Each node with what it reads and waits for."""
    number = {node: i for i, node in enumerate(built.nodes)}

    def port(given: Any) -> str:
        return str(number[given]) if isinstance(given, Node) else f"{number[given[0]]}:{given[1]}"

    for frame, name in zip(built.frames, built.frame_names, strict=True):
        yield f"frame '{name}' in {frame.parent}, parallel {frame.parallel}, {frame.partial}"
    for i, node in enumerate(built.nodes):
        op = built.op_of.get(node)
        what = f"{i}. kind {node.kind} {op.name if op else '-'} in frame {node.frame}"
        reads = ", ".join(map(port, node.inputs))
        after = ", ".join(map(port, node.control))
        target = port(node.target) if isinstance(node.target, Node) else node.target
        yield (
            f"{what}: number {node.number} of {node.outputs} reads ({reads}) after ({after}) "
            f"to {target} {node.constant} {node.takes_dead}"
        )


def _at_some_size(region: SizedStep[Any], graph: Graph) -> Executable:
    """A region whose sizes only a run knows, planned for some that were picked."""
    own = specialize(graph, random_sizes(graph, 0))
    made: Executable = region.alone([a.type.static_shape for a in own.args])
    return made


# ----------------------------------------------------------------------------------------- kernels
def has_toolchain() -> bool:
    """Whether PTX can be made here."""
    try:
        return bool(toolchain())
    except ToolchainError:
        return False


def versions() -> str:
    """What texts of kernels depend on besides weft."""
    import llvmlite
    from llvmlite import binding

    llvm = ".".join(map(str, binding.llvm_version_info))
    ptx = f"sm_{CC[0]}{CC[1]}" if has_toolchain() else "none: no CUDA toolchain"
    return f"llvmlite {llvmlite.__version__}\nllvm {llvm}\nnumpy {np.__version__}\nptx {ptx}\n"


def _source(kernel: CudaKernel) -> str:
    name = re.compile(rf"\b{re.escape(kernel.name)}\b")
    head = f"// threads {kernel.threads} blocks {kernel.blocks} contract {kernel.contract}\n"
    taken = "".join(f"// {parameter}\n" for parameter in kernel.parameters)
    return head + taken + name.sub("kernel", kernel.source) + "\n"


@cache
def _ptx(kernel: CudaKernel) -> str:
    name = re.compile(rf"\b{re.escape(kernel.name)}\b")
    return name.sub("kernel", emit_ptx(kernel, CC).replace(symbol_of(kernel), "kernel"))


def _named(text: str) -> tuple[str, str]:
    """The name of a kernel, and its text without it: one that is called otherwise is the same."""
    head, _, rest = text.partition("\n")
    name = head.removeprefix("; ")
    return name, rest.replace(f'; ModuleID = "{name}"\n', "")


def _numbered(kernels: Sequence[tuple[str, str]]) -> dict[str, str]:
    """By content key what a kernel's file is called: its name, and a number if others have it."""
    made: dict[str, str] = {}
    count: dict[str, int] = {}
    for key, name in dict(kernels).items():
        safe = re.sub(r"[^\w.-]", "_", name)
        count[safe] = count.get(safe, 0) + 1
        made[key] = safe if count[safe] == 1 else f"{safe}-{count[safe]}"
    return made


#: What people are told of a nest is followed by a digest of it.
_DIGEST = re.compile(r"  # (?:\S+ )?(?:nest|rows)-[0-9a-f]{32}$", re.MULTILINE)


# ---------------------------------------------------------------------------------------- numbers
def _rows(name: str, held: Any) -> Iterator[str]:
    """A field of a plan: lists a few numbers a line, so that a difference is seen where it is."""
    if isinstance(held, (frozenset, set)):
        held = sorted(held)
    if not isinstance(held, list) or len(held) <= LINE:
        yield f"{name} {dict(held) if isinstance(held, Mapping) else held}"
        return
    for first in range(0, len(held), LINE):
        yield f"{name}[{first}] {held[first : first + LINE]}"


def _array(array: np.ndarray[Any, Any]) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]
    return f"{array.dtype}{list(array.shape)} {digest}"


def _states(graph: Graph) -> dict[str, VariableState]:
    """The variables of a graph, without values."""
    held = variable_types(graph)
    return {n: VariableState(n, t.dtype, t.static_shape, None) for n, t in held.items()}


def _no_device() -> Any:
    raise AssertionError("a plan needs no device")


def _device_folder(device: str) -> str:
    return device.strip("/").replace("/", ",").replace(":", "-")


def _inside(folder: str, files: Files) -> Files:
    return {f"{folder}/{path}" if folder else path: text for path, text in files.items()}
