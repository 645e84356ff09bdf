"""Benchmark targets: the built-in suites, a function of the user's, or a dumped graph."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.frontend.compile.cost import inputs_of
from weft.frontend.compile.decorator import compile
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.compile.gpu import gpu_number, not_on_gpu
from weft.frontend.tools.bench_workloads import WORKLOADS, Workload, compiled, suites
from weft.frontend.tools.run import (
    compile_for,
    completed_arrays,
    given_arrays,
    load,
    named_pairs,
    static_graph,
)
from weft.ir.analysis.verify import verify
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, ParseError, suggest
from weft.ir.graph import Graph
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType
from weft.passes.differential import random_array
from weft.passes.pipelines import GPU
from weft.runtime.compile_step import CompileOptions, compile_step
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.executable import Executable
from weft.runtime.resources.variables import VariableState

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Target:
    """A compiled step and what it runs on. workload, function: of a built-in one."""

    name: str
    executable: Executable | DeviceStep
    inputs: Sequence[Array]
    variables: Mapping[str, VariableState]
    workload: Workload | None = None
    function: CompiledFunction[Any, Any] | None = None

    @property
    def on_cpu(self) -> Executable:
        """The native code. UnsupportedError for a step on a GPU."""
        if self.executable.kind != "native":
            raise not_on_gpu("cost")
        return self.executable

    @property
    def lines(self) -> tuple[str, ...]:
        """Where a built-in function is: the IR names lines outside weft only."""
        if self.workload is None:
            return ()
        code = self.workload.function.__code__
        return (f"{code.co_filename}:{code.co_firstlineno}",)


def targets(
    args: Namespace, read_graph: Callable[[str], Graph], device: str | None = None
) -> Iterator[Target]:
    """What `args.what` names, one after another, so that no two hold memory at once. device: what
    it is compiled for, as `wf.compile` takes it; None: what a function says, or the CPU.

    NotFoundError for what is not there, InvalidArgumentError for arguments that do not fit.
    """
    what: str = args.what
    if what == "all" or what in suites():
        yield from _suite(what, args.quick, device)
    elif what == "-" or what.endswith(".weft"):
        yield _dump(what, args, read_graph, device)
    elif ":" in what:
        yield _function(what, args, device)
    else:
        raise _no_suite(what)


def named_targets(
    what: str | Path | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    quick: bool,
) -> Iterator[Target]:
    """What `wf.bench` names: a suite, a function with its arguments, or a dump with its inputs by
    name (random ones for the others). Errors as `targets`."""
    if callable(what):
        function = what if isinstance(what, CompiledFunction) else compile(what)
        yield _of_call(function._name, function, args, kwargs)
        return
    name = str(what)
    is_dump = name.endswith(".weft")
    if args or (kwargs and not is_dump):
        raise InvalidArgumentError(
            f"wf.bench: {name!r} takes no arguments" + (" but inputs by name" * is_dump)
        )
    if is_dump:
        yield _graph(name, kwargs)
    elif name == "all" or name in suites():
        yield from _suite(name, quick)
    else:
        raise _no_suite(name)


def _no_suite(name: str) -> NotFoundError:
    names = ["all", *suites()]
    return NotFoundError(
        f"there is no suite '{name}'{suggest(name, names)}",
        hint=f"give one of {', '.join(names)}, FILE.py:FUNCTION or FILE.weft",
    )


def _suite(name: str, quick: bool, device: str | None = None) -> Iterator[Target]:
    seen: set[Any] = set()
    for workload in WORKLOADS:
        if name not in ("all", workload.suite):
            continue
        arrays = workload.make(quick)
        what = (workload.function, tuple(a.shape for a in arrays))
        if what in seen:
            continue  # the sizes of two are the same when they are small
        seen.add(what)
        function = compiled(workload)
        title = f"{workload.suite}: {workload.name}{', small' if quick else ''}"
        yield _of_call(title, _for_device(function, device), arrays, {}, workload)


def _of_call(
    name: str,
    function: CompiledFunction[Any, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    workload: Workload | None = None,
) -> Target:
    made = function._specialized(tuple(args), dict(kwargs))
    inputs = inputs_of(function._key(tuple(args), dict(kwargs)), made.traced.graph.args)
    step = made.step([a.shape for a in inputs])
    return Target(name, step, inputs, made.traced.variables, workload, function)


def _for_device(
    function: CompiledFunction[Any, Any], device: str | None
) -> CompiledFunction[Any, Any]:
    """The same function compiled for another device."""
    if device is None:
        return function
    return compile(device=device, static_argnames=sorted(function._static))(function._fn)


# ------------------------------------------------------------------------------------------ dumps


def _dump(
    path: str, args: Namespace, read_graph: Callable[[str], Graph], device: str | None
) -> Target:
    graph = read_graph(path)
    verify(graph)
    if args.seed is None:
        args.seed = 0
    return _of_graph(path, graph, *given_arrays(graph, args), device)


def _graph(path: str, given: Mapping[str, Any]) -> Target:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise NotFoundError(f"there is no file {path}: {error.strerror}") from None
    graph = parse_graph(text)
    verify(graph)
    arrays = {name: np.asarray(value) for name, value in given.items()}
    return _of_graph(path, graph, *completed_arrays(graph, arrays, {}, 0, {}))


def _of_graph(
    path: str,
    graph: Graph,
    inputs: Sequence[Array],
    before: Mapping[str, Array],
    device: str | None = None,
) -> Target:
    number = None if device is None else gpu_number(device)
    executable: Executable | DeviceStep
    if number is None:
        executable, variables = compile_for(graph, inputs, before)
    else:
        static, variables = static_graph(graph, inputs, before)
        made = compile_step(static, variables, options=CompileOptions(GPU), gpu=number)
        assert made.kind == "gpu"
        executable = made
    given = [np.ascontiguousarray(a).reshape(a.shape) for a in inputs]
    return Target(f"{path} @{graph.name}", executable, given, variables)


# -------------------------------------------------------------------------------------- functions


def _function(what: str, args: Namespace, device: str | None) -> Target:
    place, _, name = what.rpartition(":")
    module = _module(place)
    found: Any = _attribute(module, name, place)
    if not callable(found):
        raise InvalidArgumentError(f"{what} is a {type(found).__name__}, not a function")
    function = _for_device(found if isinstance(found, CompiledFunction) else compile(found), device)
    if args.example is not None:
        if args.feed:
            raise InvalidArgumentError("give --example or --feed, not both")
        given = _attribute(module, args.example, place)
        given = given() if callable(given) else given
        if isinstance(given, dict):
            return _of_call(what, function, (), given)
        return _of_call(what, function, given if isinstance(given, tuple) else (given,), {})
    return _of_call(what, function, *_fed(function, what, args))


def _fed(
    function: CompiledFunction[Any, Any], what: str, args: Namespace
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from `--feed NAME=FILE.npy` or `--feed NAME=f32[8,4]`."""
    parameters = inspect.signature(function).parameters
    fed = named_pairs(args.feed, "--feed")
    for name in fed:
        if name not in parameters:
            raise NotFoundError(
                f"{what} has no parameter '{name}'{suggest(name, list(parameters))}",
                hint=f"it has: {', '.join(parameters) or 'none'}",
            )
    generator = np.random.default_rng(args.seed or 0)
    values = {n: load(t) if t.endswith(".npy") else _random(t, generator) for n, t in fed.items()}
    needed = [n for n, p in parameters.items() if p.default is p.empty and n not in values]
    if needed and parameters[needed[0]].kind in (
        inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    ):  # fmt: skip
        raise InvalidArgumentError(
            f"there is no value for the parameter '{needed[0]}' of {what}",
            hint=f"--feed '{needed[0]}=f32[1024,1024]' for random values, "
            f"--feed {needed[0]}=FILE.npy, or --example NAME of arguments in its module",
        )
    positional = tuple(
        values.pop(n)
        for n, p in parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and n in values
        and not any(m not in fed for m in list(parameters)[: list(parameters).index(n)])
    )  # fmt: skip
    return positional, values


def _random(text: str, generator: np.random.Generator) -> Array:
    """A random array of a type as the IR writes it."""
    try:
        graph = parse_graph(f"graph @a(%x: {text}) -> ({text}) stage=traced {{\n return %x\n}}\n")
    except ParseError:
        raise InvalidArgumentError(
            f"--feed: '{text}' is neither a file FILE.npy nor a type",
            hint="for example f32[8,1024]",
        ) from None
    held = graph.args[0].type
    if not isinstance(held, TensorType) or not held.is_static:
        raise InvalidArgumentError(f"--feed: '{text}' has a dimension without a size")
    return random_array(held, generator, 0)


def _module(place: str) -> Any:
    """The module in a file, or by name. NotFoundError if there is none."""
    if not place.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise NotFoundError(f"there is no module '{place}': {error}") from None
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise NotFoundError(f"there is no file {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _attribute(module: Any, name: str, place: str) -> Any:
    held = module
    for part in name.split("."):
        if not hasattr(held, part):
            public = [n for n in vars(module) if not n.startswith("_")]
            raise NotFoundError(f"{place} has no '{name}'{suggest(name, public)}")
        held = getattr(held, part)
    return held
