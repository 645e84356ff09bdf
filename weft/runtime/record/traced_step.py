"""`TracedStep`: a step as it was traced and the way it runs; `Watcher`: who watches its runs.

Compiled functions and sessions run a step through its watchers: WEFT_CHECK looks at its values,
WEFT_VERIFY=native holds it against the interpreter, WEFT_RECORD keeps what it needs to be run
again. A step without watchers is called as ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.ir.analysis.effects import written_in
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.graph import Graph
from weft.ir.types import RefType
from weft.runtime.cluster.exchange import task_of
from weft.runtime.resources.variables import VariableState
from weft.runtime.run_log import (
    HostGroup,
    RunLog,
    goes_outside,
    host_groups,
    is_outside,
    values_of,
)

#: Runs a step on inputs; the log, if there is one, is told what comes from outside.
Call = Callable[[list[Any], RunLog | None], list[Any]]


@dataclass(frozen=True, slots=True)
class Way:
    """How a step is run. kind: of the `Step`. engine: "llvm" or "numba"; isa: the instruction set
    that its kernels are for. pipeline: the name of its passes, or of each of them with commas, ""
    for others. gpu: the number of the GPU that it is for. threads: how many it may use; None: all.
    bfloat16: whether tensors go between tasks as that."""

    kind: str
    engine: str
    isa: str
    pipeline: str = "standard"
    control_flow: str = "auto"
    gpu: int | None = None
    math_mode: MathMode = "ieee"
    threads: int | None = None
    deterministic: bool = False
    bfloat16: bool = False

    @property
    def parts(self) -> bool:
        """Whether it runs in parts, whose program says of each op where it is."""
        return self.kind in ("devices", "cluster")


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step as it was traced. variables: by their names in it, of which a run
    writes those in `written`; where `remote`, they are on other tasks, and a `RunLog` has their
    values. donated: inputs that a run may write to. outside: whether its ops take something from
    outside of the program; effects: whether they do that, or give something to it."""

    graph: Graph
    way: Way
    variables: Mapping[str, VariableState]
    written: frozenset[str] = frozenset()
    donated: Sequence[int] = ()
    remote: bool = False
    outside: bool = True
    effects: bool = True

    @staticmethod
    def of(
        graph: Graph, way: Way, variables: Mapping[str, VariableState], donated: Sequence[int] = (),
        *, remote: bool = False,
    ) -> TracedStep:  # fmt: skip
        """The step of a graph."""
        names = {op.name for op in graph.walk()}
        outside = remote or any(map(is_outside, names))
        effects = remote or any(map(goes_outside, names))
        written = written_in(graph)
        return TracedStep(graph, way, variables, written, donated, remote, outside, effects)

    @property
    def name(self) -> str:
        """That of its graph."""
        return self.graph.name

    def log(self, given: RunLog | None) -> RunLog | None:
        """`given`, or a log of its own if a run of it has something to say."""
        return RunLog() if given is None and self.outside else given

    def log_with_operands(self, given: RunLog | None) -> RunLog | None:
        """`given`, or a log of its own, which keeps what goes into host ops; None if there are
        none."""
        made = RunLog() if given is None and self.effects else given
        return None if made is None else made.keep_operands()

    def after(self, log: RunLog | None) -> dict[str, Any]:
        """The values of the variables that it writes after a run; of a remote step those in the
        log."""
        if not self.remote:
            return values_of({n: self.variables[n] for n in self.written if n in self.variables})
        found: dict[str, Any] = {}
        for part in () if log is None else log.parts:
            found |= part.after
        return found

    def groups(self, log: RunLog | None) -> list[HostGroup]:
        """What its host ops gave in a run."""
        return [] if log is None else host_groups(self.graph, log)

    def before(self, log: RunLog | None) -> dict[str, Any]:
        """The values of its variables, of a remote step those that the log has; a task whose log is
        missing has told none."""
        if not self.remote:
            return values_of(self.variables)
        found: dict[str, Any] = {}
        known = set[str]()
        parts = () if log is None else log.parts
        for part in parts:
            found |= part.variables
            known |= part.known
        for op in self.graph.walk() if parts else ():
            kind = op.result.type if op.name == "variable" else None
            told = log is None or not any(op.device.startswith(f"{t}/") for t in log.silent)
            if isinstance(kind, RefType) and str(op.attrs["name"]) not in known and told:
                held = kind.tensor  # of what no part needs, any value will do
                sizes = [d if isinstance(d, int) else 0 for d in held.shape]
                found[str(op.attrs["name"])] = np.zeros(sizes, held.dtype.numpy)
        return found

    def silent(self, log: RunLog | None) -> list[str]:
        """The tasks that have told nothing of a run: those whose log is missing, or all of them
        where the step failed before it was begun."""
        if not self.remote or log is None:
            return []
        if log.parts or log.silent:
            return log.silent
        return list(dict.fromkeys(task_of(op.device) for op in self.graph.walk() if op.device))


class Watcher(Protocol):
    """Who watches the runs of steps."""

    def run(self, step: TracedStep, call: Call, inputs: list[Any], log: RunLog | None) -> list[Any]:
        """`call(inputs, log)`, which runs the step, and what is to be done before and after. log:
        that of another watcher around; a watcher that needs one makes it where it is None."""
        ...


def run_watched(
    watchers: Sequence[Watcher], step: TracedStep, call: Call, inputs: list[Any],
    log: RunLog | None = None,
) -> list[Any]:  # fmt: skip
    """Run a step through all watchers, the first of which is the outermost."""
    if not watchers:
        return call(inputs, log)
    first, *rest = watchers

    def inner(given: list[Any], noted: RunLog | None) -> list[Any]:
        return run_watched(rest, step, call, given, noted)

    return first.run(step, inner, inputs, log)
