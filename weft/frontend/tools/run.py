"""`weft run`: execute any dumped graph on arrays from files, or on random ones; loading graphs and
arrays, and writing files, for the other commands too."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import bfloat16
from weft.ir.errors import InvalidArgumentError, NotFoundError, UnsupportedError, suggest
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import as_array, bind_symbols, type_of
from weft.ir.interpreter.partitioned import interpret_program
from weft.ir.interpreter.state import DictState
from weft.ir.program import Program
from weft.ir.types import RefType, TensorType, Type
from weft.passes.differential import random_inputs, random_sizes, random_state
from weft.passes.sizes import specialize
from weft.runtime.compile_step import compile_step
from weft.runtime.files.permissions import grant
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import Step


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Around what writes the file or folder `path`: InvalidArgumentError if that cannot be done."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        what = error.filename or path
        raise InvalidArgumentError(f"{what} cannot be written: {reason}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a text file. InvalidArgumentError if it cannot be written."""
    with writing(path):
        Path(path).write_text(text, encoding="utf-8")


Array = np.ndarray[Any, Any]


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft run`."""
    parser.add_argument("file", help="IR text; - reads standard input")
    add_array_arguments(parser)
    parser.add_argument(
        "--compiled", action="store_true", help="compile the graph; otherwise it is interpreted"
    )
    parser.add_argument(
        "--print", action="store_true", dest="show", help="print the arrays, not only a summary"
    )
    add_allow_files(parser)
    parser.add_argument("--save", metavar="DIR", help="write the results as DIR/result0.npy, ...")


def add_allow_files(parser: ArgumentParser) -> None:
    """--allow-files, which gives graphs leave."""
    parser.add_argument(
        "--allow-files",
        action="append",
        metavar="DIR",
        help="let ops of the graph read and write the files in DIR (/: all files); repeat for more",
    )


def add_array_arguments(parser: ArgumentParser, *, types: bool = False) -> None:
    """The options that say what a graph runs on; types: the arguments of a function, too."""
    also = "; for a function also NAME=TYPE, f32[8,4] say: random values" if types else ""
    parser.add_argument(
        "--feed",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help=f"the array for the input NAME (repeat for each input){also}",
    )
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="the value of the variable NAME before the run (repeat for each variable)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="make up what no --feed or --state gives, by the random seed N >= 0",
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="with --seed: the size of the symbolic dimension NAME",
    )


@dataclass
class Outcome:
    """The outcome of a run: results (None for tokens), the variables' values before and after."""

    results: list[Array | None]
    before: dict[str, Array]
    after: dict[str, Array]


def run_file(program: Program, args: Namespace) -> Iterator[str]:
    """Execute `program` as the options in `args` say; yields the lines to print.

    Raises NotFoundError or InvalidArgumentError for options that do not fit it,
    PermissionDeniedError for a graph that uses files without --allow-files.
    """
    for part in program.parts:
        leave = "if you trust whoever wrote the graph: --allow-files DIR"
        grant(part.graph, args.allow_files, leave)
    outcome = execute(program, args)
    types = {
        number: value.type
        for part in program.parts
        for number, value in zip(part.fetches, part.graph.results, strict=True)
    }
    for i, result in enumerate(outcome.results):
        yield from _shown(f"result {i}", types[i], result, args.show)
    for name, array in sorted(outcome.after.items()):
        old = outcome.before.get(name)
        if old is None or old.tobytes() != array.tobytes():
            yield from _shown(f"variable '{name}' is now", type_of(array), array, args.show)
    if args.save is not None:
        yield from save(outcome, Path(args.save))


def execute(program: Program, args: Namespace) -> Outcome:
    """Load or make up the arrays, and run the program. UnsupportedError for parts to compile."""
    if program.is_whole:
        arrays, before = given_arrays(program.graph, args)
        if args.compiled:
            return _compiled(program.graph, arrays, before)
        return _interpreted(program, arrays, before)
    if args.compiled:
        raise UnsupportedError(
            f"--compiled: the program has {len(program.parts)} parts, which the tasks of a cluster "
            "compile, each its own",
            hint="leave --compiled out, and it is interpreted; or run the graph that was cut",
        )
    return _interpreted(program, *given_arrays(program.signature(), args))


def given_arrays(graph: Graph, args: Namespace) -> tuple[list[Array], dict[str, Array]]:
    """The inputs, and the variables' values, that `--feed`, `--state`, `--seed` and `--size` give.

    NotFoundError or InvalidArgumentError for options that do not fit the graph.
    """
    fed, held = named_pairs(args.feed, "--feed"), named_pairs(args.state, "--state")
    _check_names(fed, graph.arg_names, "input")
    _check_names(held, list(variable_types(graph)), "variable")
    inputs = {k: load(v) for k, v in fed.items()}
    state = {k: load(v) for k, v in held.items()}
    sizes = named_pairs(args.size, "--size") if args.seed is not None else {}
    return completed_arrays(graph, inputs, state, args.seed, sizes)


def completed_arrays(
    graph: Graph,
    inputs: dict[str, Array],
    state: dict[str, Array],
    seed: int | None,
    sizes: Mapping[str, str],
) -> tuple[list[Array], dict[str, Array]]:
    """The inputs in order, and the variables' values; with a seed, random ones for what is not
    given. Errors as `given_arrays`."""
    variables = variable_types(graph)
    _check_names(inputs, graph.arg_names, "input")
    if seed is not None:
        _fill(graph, seed, sizes, inputs, state)
    missing = [name for name in graph.arg_names if name not in inputs]
    if missing:
        raise InvalidArgumentError(
            f"there is no array for the input '{missing[0]}'",
            hint=f"give --feed '{missing[0]}=FILE.npy', or --seed 0 for random arrays",
        )
    typed = {n: a.type for n, a in zip(graph.arg_names, graph.args, strict=True)}
    arrays = [_as_bfloat16(inputs[n], typed[n]) for n in graph.arg_names]
    before = {n: _as_bfloat16(a, variables[n]) for n, a in state.items()}
    return [as_array(a) for a in arrays], before


def variable_types(graph: Graph) -> dict[str, TensorType]:
    """The type of each variable that `graph` names, nested graphs included."""
    found: dict[str, TensorType] = {}
    for op in graph.walk():
        if op.name == "variable" and isinstance(op.result.type, RefType):
            found[str(op.attrs["name"])] = op.result.type.tensor
    return found


def _interpreted(program: Program, inputs: Sequence[Array], before: Mapping[str, Array]) -> Outcome:
    state = DictState(before)
    results = interpret_program(program, inputs, state)
    return Outcome(results, dict(before), state.values)


def _compiled(graph: Graph, inputs: Sequence[Array], before: Mapping[str, Array]) -> Outcome:
    step, variables = compiled_for(graph, inputs, before)
    results = step.run([np.ascontiguousarray(a).reshape(a.shape) for a in inputs])
    after = {n: v.read() for n, v in variables.items() if v.initialized}
    return Outcome(results, dict(before), after)


def compiled_for(
    graph: Graph, inputs: Sequence[Array], before: Mapping[str, Array]
) -> tuple[Step, dict[str, VariableState]]:
    """As `compile_for`; for the dataflow executor where an op needs that."""
    static, variables = static_graph(graph, inputs, before)
    return compile_step(static, variables), variables


def compile_for(
    graph: Graph, inputs: Sequence[Array], before: Mapping[str, Array]
) -> tuple[Executable, dict[str, VariableState]]:
    """The graph compiled for inputs of these shapes, and its variables with the values `before`."""
    static, variables = static_graph(graph, inputs, before)
    return compile_graph(static, variables), variables


def static_graph(
    graph: Graph, inputs: Sequence[Array], before: Mapping[str, Array]
) -> tuple[Graph, dict[str, VariableState]]:
    """The graph with the sizes of these inputs, and its variables."""
    static = specialize(graph, bind_symbols(graph, inputs), [a.shape for a in inputs])
    variables = {}
    for name, t in variable_types(static).items():
        variables[name] = VariableState(name, t.dtype, t.shape, before.get(name))
    return static, variables


# ---------------------------------------------------------------------------------------- arrays


def load(path: str) -> Array:
    """The array in a .npy file. Raises InvalidArgumentError where there is none."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgumentError(
            f"{path} cannot be read as an array: {error}", hint="write it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InvalidArgumentError(f"{path} holds several arrays", hint="write it with numpy.save")
    return array


def _as_bfloat16(array: Array, wanted: Type) -> Array:
    # .npy files know no bfloat16: they hold two bytes without a type
    if (
        isinstance(wanted, TensorType)
        and wanted.dtype is bfloat16
        and array.dtype == np.dtype("V2")
    ):
        return array.view(bfloat16.numpy)
    return array


def _fill(
    graph: Graph,
    seed: int,
    given_sizes: Mapping[str, str],
    inputs: dict[str, Array],
    state: dict[str, Array],
) -> None:
    """Add random arrays for the inputs and variables that were not given."""
    if seed < 0:
        raise InvalidArgumentError(f"--seed {seed}: it must be 0 or more")
    sizes = random_sizes(graph, seed)
    for name, array in inputs.items():
        given = graph.args[graph.arg_names.index(name)].type
        if isinstance(given, TensorType) and given.rank == array.ndim:
            for dim, size in zip(given.shape, array.shape, strict=True):
                if isinstance(dim, SymbolicDim) and dim == SymbolicDim.symbol(min(dim.symbols)):
                    sizes[min(dim.symbols)] = size
    for name, text in given_sizes.items():
        _check_names({name: text}, list(sizes), "symbolic dimension")
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise InvalidArgumentError(f"--size {name}={text}: the size must be an integer")
        sizes[name] = int(text)
    made = random_inputs(graph, seed, sizes)
    for name, array in zip(graph.arg_names, made, strict=True):
        inputs.setdefault(name, array)
    for name, array in random_state(graph, seed, sizes).items():
        state.setdefault(name, array)


def named_pairs(options: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise InvalidArgumentError(f"{option} {text}: expected NAME=VALUE")
        if name in pairs:
            raise InvalidArgumentError(f"{option} gives '{name}' twice")
        pairs[name] = value
    return pairs


def _check_names(given: Mapping[str, object], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise NotFoundError(
                f"the graph has no {what} '{name}'{suggest(name, list(known))}",
                hint=f"it has: {', '.join(known) or 'none'}",
            )


def save(outcome: Outcome, folder: Path) -> Iterator[str]:
    """Write the results and the variables as .npy files; yields what was written."""
    named = {f"result{i}": r for i, r in enumerate(outcome.results) if r is not None}
    for name, array in outcome.after.items():
        named["variable-" + re.sub(r"[^\w.-]", "_", name)] = array
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for stem, array in named.items():
        if array.dtype == object:
            array = array.astype(np.bytes_)  # a .npy file cannot hold objects without pickle
        with writing(folder):
            np.save(folder / f"{stem}.npy", array, allow_pickle=False)
        yield f"wrote {folder / stem}.npy"


# ---------------------------------------------------------------------------------------- showing


def _shown(what: str, t: Type, array: Array | None, whole: bool) -> Iterator[str]:
    if array is None:
        yield f"{what}: {t}"
        return
    yield f"{what}: {type_of(array)}" + ("" if whole else f"  {summary(array)}")
    if whole:
        yield np.array2string(array, separator=", ", threshold=array.size + 1)


def summary(array: Array) -> str:
    """Range and mean of numbers, a few elements otherwise: one line about an array."""
    if array.size <= 4 or array.dtype == object or array.dtype.kind in "bc":
        return np.array2string(array, separator=", ", threshold=8).replace("\n", " ")
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        text = f"min {wide.min():.6g}  mean {wide.mean():.6g}  max {wide.max():.6g}"
    wrong = int(np.count_nonzero(~np.isfinite(wide)))
    return text + (f"  ({wrong} not finite)" if wrong else "")
