"""`Executable`: a traced graph compiled by passes, memory plan and native plan, and the call."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from weft.codegen.engines import engine
from weft.codegen.faults import RAISED, STOPPED, describe_fault
from weft.codegen.llvm.jit import (
    Kernels,
    compile_count,
    hold_kernels,
    kernel_asm,
    kernel_llvm,
    load_count,
)
from weft.codegen.llvm.target import isa
from weft.codegen.numba.replacements import replacements
from weft.codegen.python_calls import CALLEE
from weft.codegen.steps.walker import CALL_WORDS
from weft.ir.errors import (
    BoundsError,
    InternalError,
    ResourceExhaustedError,
    UnknownError,
    WeftError,
)
from weft.ir.graph import Graph
from weft.ir.ops.collectives import settle_exchanges
from weft.ir.ops.control_flow import STACK_OPS
from weft.ir.process import collector_paused, cpython
from weft.passes.manager import (
    STANDARD,
    PassOptions,
    PassReport,
)
from weft.runtime.native.activation import Activation, LinkedPlan, no_room, raise_stopped, watched
from weft.runtime.native.ahead import compile_ahead, compile_products_ahead, native_walker
from weft.runtime.native.api import NativeApi, begin_native_api, native_api_or_none
from weft.runtime.native.pool import POOL
from weft.runtime.native.python_calls import logged
from weft.runtime.native.step import NativeStep
from weft.runtime.native.step_plan import (
    CompileReport,
    Details,
    Once,
    StepPlan,
    details_again,
    load_plan,
    pack_plan,
    planned,
    step_plan,
    variable_name,
)
from weft.runtime.plan_store import plan_key
from weft.runtime.resources.variables import VariableState, check_variables, held
from weft.runtime.step import PLAIN, RunContext, Step, StepSummary

if TYPE_CHECKING:
    from weft.codegen.loops.program import PlannedCall

Array = np.ndarray[Any, Any]
Effort = tuple[int, float, int]
_log = logging.getLogger("weft.compile")
MOST_IDLE_ACTIVATIONS = 8
LARGE_ARENA = 1 << 20
#: Options of passes that are not those of a step: nothing is verified, dumped or logged.
PLAIN_PASSES = PassOptions()


class Executable(Step):
    """A compiled graph: run it with C-contiguous input arrays, get the list of result arrays.

    Each run takes an activation (argument words and arena) of its own; the locks of the variables
    it uses make its effect on them atomic, and let runs that only read them go beside each other.
    A step that fails (an index out of bounds) stops there: what it wrote to initialised variables
    before stays written, variables that it would have initialised stay uninitialised.

    addresses: of the kernels, by content key. details: graph and report, made when they are asked
    for. threads: how many a call may use, as many as others if None. effort: kernels compiled for
    it, seconds that took, kernels loaded.
    """

    kind: Literal["native"] = "native"

    def __init__(
        self,
        name: str,
        plan: StepPlan,
        variables: Mapping[str, VariableState],
        addresses: Kernels,
        details: Callable[[], Details],
        threads: int | None = None,
        effort: Effort = (0, 0.0, 0),
    ) -> None:
        self.name = name
        self.plan = plan
        self._details = details
        self._limit = threads
        self._addresses = addresses
        self._linked = LinkedPlan(plan, addresses)
        self._pool: tuple[int, int] | None = None if plan.cut else (0, 1)
        self._results = [None if r is None else (r[0], r[1].numpy) for r in plan.results]
        self._donated = tuple(plan.donated.items())
        self.taken = frozenset(plan.donated.values())
        number = {key: k for k, key in enumerate(plan.slots)}
        names = plan.read | plan.written
        used = [(variables[n], number[("variable", n)], n in plan.read) for n in names]
        self._states = {n: variables[n] for n in names}
        # as `in_order`, but for each name, which is the graph's
        self._variables = sorted(used, key=lambda row: id(row[0]))
        written = {variables[n] for n in plan.written}
        self._uses = [(state, state in written) for state, _, _ in self._variables]
        self._result_slots = [number.get(("result", i), -1) for i in range(len(self._results))]
        self._activations: list[Activation] = []
        self._walker_address, self._walker = native_walker()
        self._was_called = False
        self.new_kernels, self.seconds, _ = effort
        self.native: NativeStep | None = None
        self.native_step()

    @property
    def graph(self) -> Graph:
        """The graph after all passes."""
        return self._details()[0]

    @property
    def report(self) -> CompileReport:
        """What compiling did."""
        return self._details()[1]

    @property
    def pool(self) -> int:
        """The address of the pool's words; 0 if the step uses one thread."""
        return self.pool_and_threads()[0]

    @property
    def threads(self) -> int:
        """How many threads a call may use at most."""
        return self.pool_and_threads()[1]

    def with_variables(self, variables: Mapping[str, VariableState]) -> Executable:
        """The same step on other variables."""
        return Executable(
            self.name, self.plan, variables, self._addresses, self._details, self.threads
        )

    def pool_and_threads(self) -> tuple[int, int]:
        """`pool` and `threads`."""
        if self._pool is None:
            self._pool = POOL.enter(self._limit, self.plan.table.worker_bytes)
        return self._pool

    def run(self, inputs: list[Array], context: RunContext = PLAIN) -> list[Any]:
        """As of `Step`: on an activation of its own if the context asks for more than the
        results."""
        if context is not PLAIN:
            if context.donation is not None:
                context.donation.take(self.taken)
            if not context.is_plain:
                return self._run_in(context, inputs)
        native = self.native or self._next_native_step()
        if native is not None:
            made = native.run(inputs)
            if made is not None:
                for number, given in self._donated:
                    made[number] = inputs[given]
                return made
        try:
            activation = self._take_activation()
            results = self.run_on(activation, inputs, self._walker)
        except ResourceExhaustedError:  # a MemoryError, too: of what the step itself keeps
            raise
        except MemoryError:
            self.raise_no_memory()
        if self.native is None and self._pool and len(self._activations) < self._most_idle():
            self._activations.append(activation)
        return results

    def run_on(
        self, activation: Activation, inputs: list[Array], walk: Callable[[int], object]
    ) -> list[Any]:
        """Run one step on `activation`; `walk`, given its header, carries the table out."""
        results = [None if r is None else np.empty(r[0], r[1]) for r in self._results]
        return self.run_with(activation, inputs, results, walk)

    def run_with(
        self, activation: Activation, inputs: list[Array], results: list[Any],
        walk: Callable[[int], object] | None = None,
    ) -> list[Any]:  # fmt: skip
        """As `run_on`, into arrays that are there."""
        walk, slots = walk or self._walker, activation.slots
        for i, array in enumerate(inputs):
            slots[i] = id(array)
        for result, slot in zip(results, self._result_slots, strict=True):
            if result is not None:
                slots[slot] = id(result)
        if self._variables:
            self._run_with_state(activation, walk)
        else:
            walk(activation.header)
        if activation.failed.value >= 0:
            activation.forget_stacks()  # whoever keeps the error keeps the activation
            self.raise_failed(
                activation.failed.value, activation.status.value, activation.status.index
            )
        for number, given in self._donated:
            results[number] = inputs[given]
        return results

    def _run_in(self, context: RunContext, inputs: list[Array]) -> list[Any]:
        activation, _, _ = self.own_activation()
        if context.keep is not None:
            context.keep(activation)
        with watched(activation.status, context), logged(context.log):
            if context.recorder is None:
                return self.run_on(activation, inputs, self._walker)
            # who takes no traces does not wait for this module
            from weft.runtime.native.kernel_times import run_traced

            return run_traced(self, activation, inputs, context.recorder)

    def passes(self) -> Sequence[PassReport]:
        return self.report.passes

    def summary(self) -> StepSummary:
        kernels = sum(n >= 0 for n in self.plan.table.owner)
        return StepSummary(
            kernels, arena_bytes=self.plan.arena_bytes, result_bytes=self.plan.result_bytes
        )

    def explain(self) -> Iterator[str]:
        from weft.runtime.native.explain import explain_native  # it knows most passes

        return explain_native(self.report)

    def own_activation(self, *, one_thread: bool = False) -> tuple[Activation, int, list[int]]:
        """For the dataflow executor: an activation of its own, the walker's address, the results'
        slots (-1: a token). one_thread: one that never uses the pool."""
        pool = (0, 1) if one_thread else self.pool_and_threads()
        return Activation(self._linked, *pool), self._walker_address, self._result_slots

    def states(self) -> Mapping[str, VariableState]:
        """The variables that it reads or writes, by name."""
        return self._states

    @property
    def uses_state(self) -> bool:
        """Whether it reads or writes variables."""
        return bool(self._variables)

    def idle_activations(self) -> int:
        """How many activations wait for the next call."""
        return len(self._activations) + (
            0 if self.native is None else self.native.idle_activations()
        )

    def _take_activation(self) -> Activation:
        try:
            return self._activations.pop()
        except IndexError:
            pass
        if self._pool is None and not POOL.is_ready():
            return Activation(
                self._linked, 0, 1
            )  # the first call does not wait for the pool's code
        return Activation(self._linked, *self.pool_and_threads())

    def describe(self) -> str:
        """The step for people: each kernel call as pseudo-code, then where the values are."""
        rows = [*self.report.describe_program(), f"memory: {self.report.memory.describe()}"]
        return "\n".join(rows)

    def llvm(self) -> str:
        """Optimised LLVM IR of every kernel of the step, each once."""
        return "\n".join(f"; {n}  {key}\n{kernel_llvm(key)}" for key, n in self._kernels())

    def asm(self) -> str:
        """Assembly of every kernel of the step, each once."""
        return "\n".join(f"# {n}  {key}\n{kernel_asm(key)}" for key, n in self._kernels())

    def _kernels(self) -> list[tuple[str, str]]:
        """The key and name of each kernel that is called."""
        return list({c.call.kernel.key: c.call.kernel.name for c in self.report.calls}.items())

    def _run_with_state(self, activation: Activation, walk: Callable[[int], object]) -> None:
        with held(self._uses):
            for variable, _, read in self._variables:
                if read and variable.array is None:
                    raise self._uninitialised(variable)
            fresh = [v for v, _, _ in self._variables if v.array is None]
            for variable in fresh:
                variable.array = np.empty(variable.shape, variable.dtype.numpy)
            arrays = [v.array for v, _, _ in self._variables]  # Python may take them from v
            for (_, slot, _), array in zip(self._variables, arrays, strict=True):
                activation.slots[slot] = id(array)
            walk(activation.header)
            if activation.failed.value >= 0:
                for variable in fresh:
                    variable.array = None

    # ------------------------------------------------------------------- for the native call path
    def _next_native_step(self) -> NativeStep | None:
        """From the second call on, have the native call path compiled."""
        if self._was_called:
            begin_native_api()
        self._was_called = True
        return self.native_step()

    def native_step(self) -> NativeStep | None:
        """The step for the native call path, once that is compiled: None until then."""
        api = native_api_or_none()
        if self.native is None and api is not None:
            self.native = self._make_native_step(api)
            self._activations.clear()  # the native path has activations of its own
        return self.native

    def _make_native_step(self, api: NativeApi) -> NativeStep:
        results = [
            None if r is None else (r[1], r[0], slot)
            for r, slot in zip(self._results, self._result_slots, strict=True)
        ]
        slots = [slot for _, slot, _ in self._variables]
        variables = [(*use, slot) for use, slot in zip(self._uses, slots, strict=True)]
        return NativeStep(api, self, self._walker_address, self.plan.inputs, results, variables,
                          not self.plan.short, self._most_idle())  # fmt: skip

    def _most_idle(self) -> int:
        """How many activations are kept for later calls: their arenas are memory that nobody
        uses."""
        if self._linked.arena_bytes >= LARGE_ARENA:
            return 1
        return (
            2 if self.plan.table.stacks else MOST_IDLE_ACTIVATIONS
        )  # each keeps up to stacks.KEPT

    def new_activation(self) -> int:
        """The address of the words of a new activation, which belongs to who asked."""
        try:
            activation = Activation(self._linked, *self.pool_and_threads())
        except MemoryError:
            self.raise_no_memory()
        cpython.Py_IncRef(ctypes.py_object(activation))
        return ctypes.addressof(activation.native)

    def raise_no_memory(self, *_: int) -> NoReturn:
        """Arena or results did not fit into memory."""
        raise ResourceExhaustedError(
            f"'{self.name}' needs {self.plan.arena_bytes + self.plan.result_bytes:,} bytes, which "
            "are not there",
            hint="the memory plan in .explain() says what for",
            location=self.graph.ops[-1].locations if self.graph.ops else (),
        )

    def _uninitialised(self, variable: VariableState) -> WeftError:
        """The error for a variable without a value, at the first line that reads it."""
        name = next(n for n, state in self._states.items() if state is variable)
        reads = (op for op in self.graph.ops if op.name == "read")
        held = (op for op in reads if variable_name(op) == name)
        where = next((op.locations for op in held), ())
        try:
            variable.buffer()
        except WeftError as error:
            return error.at(where)
        raise InternalError(f"variable '{name}' has a value")

    def raise_not_arrays(self) -> NoReturn:
        """An input that is no array of class ndarray: weft's fault, never the user's."""
        raise InternalError(f"'{self.name}' was given an input that is no plain NumPy array")

    def _calls_python(self, row: int) -> bool:
        """Whether a row of the table is a call of Python."""
        table, fields = self.plan.table, CALL_WORDS * row
        return any(table.calls[fields + 1] + CALLEE == word for word, _ in table.callees)

    def _raise_from_python(self, failed: PlannedCall, kept: int) -> NoReturn:
        """Raise what an op that Python carries out has raised, at the user's line."""
        assert failed.op is not None
        try:
            raise_stopped(kept)
        except WeftError as error:
            raise error.at(failed.op.locations) from error.__cause__

    def raise_failed(self, call: int, status: int, index: int) -> NoReturn:
        """The step stopped at row `call` of the table, whose kernel stored `status` and `index`
        (`faults.FaultWords`). Its memory may go when this is done."""
        try:
            self._raise(call, status, index)
        except BaseException as error:
            if self.plan.table.python:
                settle_exchanges(error)
            raise

    def _raise(self, call: int, status: int, index: int) -> NoReturn:
        if status == STOPPED and not self._calls_python(call):
            raise_stopped(index)
        failed = self.report.calls[self.plan.table.owner[call]]
        if status == STOPPED:
            self._raise_from_python(failed, index)
        op, element = failed.fault(status)
        types = ", ".join(str(v.type) for v in op.operands)
        if status == RAISED or failed.call.kernel.key.startswith("registered-"):
            raise UnknownError(
                f"op '{op.name}' ({types}): its kernel '{failed.call.kernel.name}' raised an error",
                hint="compiled code does not say which: call the function itself on arrays",
                location=op.locations,
            )
        if op.name in STACK_OPS:
            raise no_room(self.graph, op, index)
        raise BoundsError(
            f"op '{op.name}' ({types}): {describe_fault(op, element, index)}",
            hint="indices must be in -n .. n-1 for an axis of size n; "
            "clip them with wf.clip if that is meant",
            location=op.locations,
        )


def compile_graph(
    graph: Graph,
    variables: Mapping[str, VariableState] | None = None,
    *,
    name: str = "",
    passes: Sequence[Any] = STANDARD,
    threads: int | None = None,
    donated: Sequence[int] = (),
    kept: bool = True,
    options: PassOptions | None = None,
) -> Executable:
    """Compile a traced graph of static shapes into an Executable.

    `donated`: inputs whose memory results may take; `report.memory.donated` says which did.
    `variables` holds the state behind each `variable` op by name; `threads`: how many threads a
    step may use (None: as many as all others); `kept`: whether its plan is kept on disk; `options`:
    of the passes, the environment's if None. Raises
    UnsupportedError for an op or dtype that has no native code, FailedPreconditionError for a
    variable that is not in `variables`, ShapeError for one of another dtype or shape.
    """
    started, before, loaded = time.perf_counter(), compile_count(), load_count()
    variables, own, by = variables or {}, isa(), (engine(), replacements())
    check_variables(graph, variables)
    compile_ahead()
    options = PassOptions.of_step(options, graph.name)
    key = plan_key(graph, passes, options, donated) if kept else None
    found = None if key is None else load_plan(key)

    def effort() -> Effort:
        return compile_count() - before, time.perf_counter() - started, load_count() - loaded

    if found is not None:
        plan, addresses = found
        spent = effort()
        again = Once(lambda: details_again(graph, passes, donated, plan, spent, True, own, by))
        _log.info("loaded the plan of %s: %d kernels, %.1f ms", name or graph.name,
                  len(addresses), spent[1] * 1e3)  # fmt: skip
        return Executable(graph.name, plan, variables, addresses, again, threads, spent)
    compile_products_ahead(graph)
    with collector_paused():
        fused, reports, memory, program = planned(graph, passes, donated, options)
        addresses = hold_kernels(program.kernels)
        plan = step_plan(fused, memory, program, reports[-1])
    spent = effort()
    report = CompileReport(tuple(reports), memory, program.nodes, program.calls, *spent)
    _log.info("compiled %s: %d calls, %d new kernels, %.1f ms; %s", name or graph.name,
              len(program.calls), report.kernels_compiled, report.seconds * 1e3,
              memory.describe())  # fmt: skip
    details: Callable[[], Details] = lambda: (fused, report)  # noqa: E731
    if key is not None:
        key.store(name or graph.name, partial(pack_plan, plan, program.kernels))
    if key is not None or not kept:
        # not kept: the graph after every pass takes more memory than all else that a step has
        details = Once(lambda: details_again(graph, passes, donated, plan, spent, False, own, by))
    made = _made(options, graph.name, plan, variables, addresses, details, threads, spent)
    if options.verify == "run":
        _verify_kernels(graph)
    return made


def _made(options: PassOptions, *given: Any) -> Executable:
    """The step; its plan and its kernels are in the dump, if there is one."""
    if options.dumps is None:
        return Executable(*given)
    from weft.runtime.native.kernels import DumpedExecutable, dump_kernels  # for who dumps alone

    made = DumpedExecutable(*given)
    options.write_plan(made.describe)
    options.write_kernels(lambda folder: dump_kernels(made, folder))
    return made


def _verify_kernels(graph: Graph) -> None:
    from weft.runtime.native.verify_kernels import check_registered  # for who verifies alone

    check_registered(graph, lambda one: compile_graph(one, kept=False, options=PLAIN_PASSES))
