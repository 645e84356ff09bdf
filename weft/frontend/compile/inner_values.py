"""Inner values of a run: `f.values(...)` and `session.values(...)`.

The program - as it was traced, or as a pass left it - runs in the reference interpreter on the
given inputs and the variables as they are, which stay so; each value is kept as it is made, those
in the iterations of loops and in fused nests too. Prints, checks and callbacks are silent. Where
kernels round otherwise than NumPy, so do the values that they make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.compile.explain import program_after
from weft.frontend.core.tensor import Tensor
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    WeftError,
    suggest,
)
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import Path, RunHost, Watch, interpret, iterations_of
from weft.ir.interpreter.state import EXECUTE_STATE, DictState
from weft.ir.locations import Location, caller_location
from weft.ir.ops import lookup
from weft.ir.ops.io import SILENT_CALLS, muted
from weft.ir.program import Program
from weft.passes.manager import run_passes
from weft.passes.sizes import specialize_inputs
from weft.runtime.resources.variables import VariableState
from weft.runtime.run_log import values_of

if TYPE_CHECKING:
    from weft.frontend.compile.compiled import Compiled

Array = np.ndarray[Any, Any]
_SHOWN = 8  # elements of a value, at most


@dataclass(frozen=True, slots=True)
class InnerValue:
    """A value that an op made in a run. name: what `wf.tap` called it, "" without; op: the op's
    name in the IR; iterations: of the loops around it, outermost first; location: the user's line,
    None where no line made it."""

    name: str
    op: str
    iterations: tuple[int, ...]
    value: Tensor
    location: Location | None

    def __repr__(self) -> str:
        at = inside = ""
        if self.location is not None:
            at = f" at {os.path.basename(self.location.file)}:{self.location.line}"
        if self.iterations:
            inside = f" in iteration {', '.join(map(str, self.iterations))}"
        shown = self.value if len(self.value.numpy().ravel()) <= _SHOWN else self.value._type
        return f"<{self.name or self.op}{inside}{at}: {shown}>"

    def fits(self, where: Any) -> bool:
        """Whether it is what `where` says: a name, an op, "file.py:12", a line, or a function."""
        if where is None:
            return True
        if callable(where):
            return bool(where(self))
        line = None if self.location is None else self.location.line
        if isinstance(where, int):
            return line == where
        file, _, number = where.rpartition(":")
        if number.isdigit() and self.location is not None:
            return line == int(number) and self.location.file.endswith(file)
        return where in (self.name, self.op)


class _Keep(Watch):
    """Keeps the values that fit. names: of values, where no op has them."""

    def __init__(self, where: Any, names: Mapping[Value, str]) -> None:
        self.where, self.names = where, names
        self.found: list[InnerValue] = []
        self.known: dict[str, None] = {}  # names of taps and ops

    def done(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        place = op.locations[0] if op.locations else None
        iterations = iterations_of(around)
        for value, result in zip(op.results, results, strict=True):
            name = str(op.attrs["name"]) if op.name == "tap" else self.names.get(value, "")
            if isinstance(result, np.ndarray) and (name or op.name != "constant"):
                self.note(InnerValue(name, op.name, iterations, Tensor(np.array(result)), place))

    def note(self, made: InnerValue) -> None:
        """Keep a value, if it is wanted."""
        self.known[made.name or made.op] = None
        if made.fits(self.where):
            self.found.append(made)


def check_where(what: str, where: Any) -> None:
    """InvalidArgumentError for what says nothing about a value."""
    if not (where is None or isinstance(where, str) or type(where) is int or callable(where)):
        raise InvalidArgumentError(
            f"{what}: where is {where!r:.60}",
            hint='a name (of wf.tap, or of an op), "model.py:12", a line, or a function of an '
            "inner value",
            location=caller_location(),
        )


def inner_values(
    what: str,
    program: Program,
    inputs: Sequence[Any],
    variables: Mapping[str, VariableState],
    where: Any,
    names: Mapping[Value, str] | None = None,
) -> list[InnerValue]:
    """The values of a run that `where` chooses, in the order in which they are made. names: of
    some of its values.
    NotFoundError if there are none; UnsupportedError for a program in several parts, or with ops
    that must not be done for a look (queues, files)."""
    check_where(what, where)
    if not program.is_whole:
        raise UnsupportedError(
            f"{what}: after that pass the program is in parts for several devices",
            hint='after="traced" is the whole program',
            location=caller_location(),
        )
    graph = program.graph
    for op in graph.walk():
        of_state = op.name in EXECUTE_STATE  # on a copy of the variables
        if "host" in lookup(op.name).traits and op.name not in SILENT_CALLS and not of_state:
            raise UnsupportedError(
                f"{what}: op '{op.name}' in '{graph.name}' cannot be done for a look only",
                hint="fetch values that do not need it, or feed what it gives",
                location=op.locations or caller_location(),
            )
    used = {str(op.attrs["name"]) for op in graph.walk() if op.name == "variable"}
    held = values_of({n: v for n, v in variables.items() if n in used})
    arrays = [np.asarray(x if isinstance(x, np.ndarray) else x.numpy()) for x in inputs]
    return values_in_run(what, graph, arrays, held, where, names)


def values_in_run(
    what: str,
    graph: Graph,
    arrays: Sequence[Array],
    variables: Mapping[str, Array],
    where: Any,
    names: Mapping[Value, str] | None = None,
    host: RunHost | None = None,
    *,
    may_fail: bool = False,
) -> list[InnerValue]:
    """As `inner_values`, of a graph on these values of its inputs and variables. host: carries out
    its ops of the host. may_fail: an error ends the run, and what was made before it counts."""
    keep = _Keep(where, names or {})
    for arg, array in zip(graph.args, arrays, strict=True):
        if arg in keep.names:
            keep.note(InnerValue(keep.names[arg], "argument", (), Tensor(np.array(array)), None))
    with muted(), suppress(*((WeftError,) if may_fail else ())):
        interpret(graph, arrays, DictState(variables), host=host, watch=keep)
    if not keep.found and where is not None:
        known = list(keep.known)
        near = suggest(where, known) if isinstance(where, str) else ""
        raise NotFoundError(
            f"{what}: no value of '{graph.name}' is at where={where!r}{near}",
            hint=f"its names and ops are: {', '.join(known)}",
            location=caller_location(),
        )
    return keep.found


def values_after(
    what: str, made: Compiled, after: str, inputs: Sequence[Any], where: Any
) -> list[InnerValue]:
    """`inner_values` of a compiled function after a pass. What `wf.tap` names outside of loops and
    branches becomes a result of the program first, or passes would not keep it."""
    graph, variables = made.traced.graph, made.traced.variables
    if after == "traced":
        return inner_values(what, Program.of(graph), inputs, variables, where)
    if made.is_open:
        graph = specialize_inputs(graph, [np.shape(a) for a in inputs])
    taps = [op for op in graph.ops if op.name == "tap"]
    results = (*graph.results, *(op.result for op in taps))
    whole = Graph(graph.name, Block(graph.args, graph.ops, results), graph.arg_names, graph.stage)
    program = program_after(run_passes(whole, made.pipeline)[1], after)
    names = [str(op.attrs["name"]) for op in taps]
    kept = program.graph.results[len(results) - len(taps) :]
    return inner_values(
        what, program, inputs, variables, where, dict(zip(kept, names, strict=True))
    )
