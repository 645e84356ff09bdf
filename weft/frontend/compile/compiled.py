"""`Compiled`: one specialisation of a compiled function, its graph, and its native code once it was
called.

`donate=`: arguments whose memory a call takes for its results. A donated argument is a tensor that
nobody sees the memory of in another way: then overwriting it cannot be noticed, and the tensor
itself says what became of it. NumPy arrays are refused, because the caller would see the array
change. A native function refuses what no result can take; where sizes are open those that come
decide, and what no result takes goes back when the call ends. On the dataflow executor a result is
written there if the region that reads the argument last computes it and nothing else reads it; else
the memory goes back. So it is where parts run on several devices, for what one part alone reads. On
a GPU a result is written where a donated array is, or else its memory goes back to the device's
pool when the step has read it; an array there is taken before the call begins, so that no other
thread can hand it to one. A call that fails gives back what nothing was written to
(`step.Donation`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weft.codegen.engines import using_engine
from weft.codegen.llvm.target import NATIVE, isa_line, using
from weft.frontend.compile.arguments import Signature, packer
from weft.frontend.compile.gpu import GpuCall, not_on_gpu, result_kinds
from weft.frontend.compile.native_call import NativeEntry, Static, prepare
from weft.frontend.compile.specializations import Specialization
from weft.frontend.compile.watchers import watchers
from weft.frontend.core import pytree
from weft.frontend.core.device_array import DeviceArray
from weft.frontend.core.function_trace import Traced
from weft.frontend.core.slow import note_unfused
from weft.frontend.core.tensor import Donated, DonatedMemory, Tensor, refuse_unused
from weft.ir.analysis.effects import needs_host
from weft.ir.dtypes import MathMode
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, UnsupportedError
from weft.ir.locations import Locations, caller_location
from weft.ir.process import ForkLock
from weft.passes.manager import Pass, PassReport, run_passes
from weft.passes.sizes import has_open_inputs
from weft.runtime.compile_step import CompileOptions, compile_step
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.executable import Executable
from weft.runtime.run_log import RunLog
from weft.runtime.step import PLAIN, Donation, PartOfDonation, RunContext, Step

if TYPE_CHECKING:
    from weft.frontend.compile.on_cluster import Connection
    from weft.runtime.cluster.spec import Cluster
    from weft.runtime.device.array import DeviceValue
    from weft.runtime.native.size_plan import NativeSizedStep
    from weft.runtime.sized_step import SizedStep


class Compiled(Specialization):
    """One specialisation: its signature and graph, why it was made, and native code once called."""

    __slots__ = (
        "_engine", "_executable", "_isa", "_lock", "_passes", "_reports", "_run", "cluster",
        "connection", "donated", "gpu", "is_open", "location", "math_mode", "native",
        "native_tried", "on_host", "pack", "reasons", "run", "signature", "threads", "traced",
        "watched",
    )  # fmt: skip

    def __init__(
        self,
        signature: Signature,
        traced: Traced,
        passes: Sequence[Pass],
        threads: int | None = None,
        donated: tuple[int, ...] = (),
        gpu: int | None = None,
        math_mode: MathMode = "ieee",
        isa: str = NATIVE,
        engine: str | None = None,
        cluster: Cluster | str | None = None,
    ) -> None:
        super().__init__()
        self.signature = signature
        self.traced = traced
        self.run: Callable[..., list[Any]] = self._first_run
        self._run: Callable[..., list[Any]] = self._first_run
        kinds = None if gpu is None else result_kinds(traced.graph)
        self.pack = packer(traced.structure, traced.weak, kinds)
        self.location: Locations = caller_location()
        self.reasons: list[str] = []
        self._lock = ForkLock()
        self._passes = passes
        self.threads = threads
        self.donated = donated
        self.gpu, self.math_mode = gpu, math_mode
        self._isa, self._engine, self.cluster = isa, engine, cluster
        self.connection: Connection | None = None  # to the cluster, once it is compiled
        self._executable: Step | None = None
        self.watched = False  # whether its calls run through watchers
        #: Whether sizes of its inputs are open.
        self.is_open = has_open_inputs(traced.graph)
        #: Whether it may need more than one plan for its device: ops of the host, several devices,
        #: a cluster. Found once: the rows of the user's own ops may be gone later.
        self.on_host = cluster is not None or needs_host(traced.graph, gpu)
        self._reports: Sequence[PassReport] = ()
        self.native: NativeEntry | None = None
        self.native_tried = False

    def executable(self) -> Step:
        """The code, compiled on first use. UnsupportedError for an op that has none."""
        with self._lock:
            if self._executable is None:
                made = self._compiled()
                if isinstance(made, Executable):
                    self._check_donated(made)
                    self._run = made.run
                elif self.on_host:
                    from weft.frontend.compile.host_steps import host_call

                    self._run = host_call(self, made)
                elif self.gpu is not None:
                    self._run = GpuCall(cast("DeviceStep", made), self.traced.graph)
                else:
                    self._run = partial(self._run_sized, cast("NativeSizedStep", made))
                self._executable = made
                self.watch()
            return self._executable

    def _compiled(self) -> Step:
        how = CompileOptions(
            self._passes, "native", threads=self.threads, donated=self.donated,
            math_mode=self.math_mode,
        )  # fmt: skip
        with self.target():
            if self.on_host:
                # whoever runs native steps alone does not wait for this module
                from weft.frontend.compile.host_steps import compile_host_step

                return compile_host_step(self, how)
            graph = on_local_device(self.traced.graph, self.gpu)
            note_unfused(graph)
            made = compile_step(graph, self.traced.variables, options=how, gpu=self.gpu)
        assert made.kind != "dataflow"
        return made

    def watch(self) -> None:
        """Have calls run through the watchers that there are now, if there are any."""
        if self._executable is None:
            return  # it is not compiled yet, and looks then
        made = watchers()
        self.watched, run = bool(made), self._run
        if made:
            # who watches nothing does not wait for this module
            from weft.frontend.compile.watched_call import watched_call

            run = watched_call(self, made)
        self.run = partial(self._checked_run, run) if self.traced.limits else run

    def run_logged(
        self,
        arrays: list[Any],
        log: RunLog | None,
        donation: Donation | PartOfDonation | None = None,
    ) -> list[Any]:
        """A call without watchers; the log is told what comes from outside, and what goes there.
        donation: as of `RunContext`."""
        if log is None and donation is None:
            return self._run(arrays)
        return self._run(arrays, RunContext(log=log, donation=donation))

    @property
    def pipeline(self) -> Sequence[Pass]:
        """The passes that it is compiled by."""
        return self._passes

    @contextmanager
    def target(self) -> Iterator[None]:
        """What is compiled within is for the instruction set and by the engine of the function."""
        with using(self._isa), using_engine(self._engine):
            yield

    def step(self, shapes: Sequence[tuple[int, ...]] = ()) -> Step:
        """The code that can be looked at; shapes: of the inputs, where sizes are open."""
        made = self.executable()
        if made.kind != "sized":
            return made
        with self.target():
            return cast("Step", cast("SizedStep[Any]", made).alone(shapes))

    def on_cpu(self, what: str, shapes: Sequence[tuple[int, ...]] = ()) -> Executable:
        """The native code. UnsupportedError, which says `what` is not for a GPU, if that is where
        the function runs. shapes: as of `step`."""
        made = self.step(shapes)
        if not isinstance(made, Executable):
            raise not_on_gpu(what) if self.on_gpu else self.not_native(what)
        return made

    def not_native(self, what: str) -> UnsupportedError:
        """The error for a question that only one native plan answers."""
        from weft.frontend.compile.host_steps import not_native

        return not_native(what, self.traced.graph, self.gpu)

    @property
    def isa(self) -> str:
        """The instruction set that its kernels are for, as people write it."""
        with using(self._isa):
            return isa_line()

    @property
    def on_gpu(self) -> bool:
        """Whether the function is one plan for a GPU."""
        return self.gpu is not None and not self.on_host

    def _check_donated(self, made: Executable) -> None:
        used = made.plan.donated.values()
        names = self.traced.graph.arg_names
        args = self.traced.graph.args
        unused = [(names[i], str(args[i].type)) for i in self.donated if i not in used]
        refuse_unused(self.traced.graph.name, unused)

    def add_native(
        self, parameters: Sequence[str], static: Collection[str], values: Sequence[Any]
    ) -> NativeEntry | None:
        """The native entry for calls like the one with these `values` (leaves, args, kwargs). None
        if there is none for it."""
        self.native_tried = True
        made = self.executable()
        step = made.native_step() if isinstance(made, Executable) else None
        if step is None or self.watched or self.traced.limits or self.donated or prepare() is None:
            return None
        leaves, args, kwargs = values
        names: Sequence[object] = [*parameters[: len(args)], *kwargs]
        dynamic: Sequence[object] = self.signature.names or [n for n in parameters if n in names]
        structure = self.signature.structure
        try:
            if structure is None:
                raise LookupError
            if self.signature.names is None and not kwargs:
                names = dynamic = range(len(args))  # *args too
            if len(dynamic) != len(structure.children):
                raise LookupError  # **kwargs
            firsts = [0, *accumulate(map(pytree.count_leaves, structure.children))]
            given = {
                n: (c, k) for n, c, k in zip(dynamic, structure.children, firsts, strict=False)
            }
            arguments: list[tuple[pytree.Structure | Static, int]] = [
                (Static(value), 0) if name in static else given[name]
                for name, value in zip(names, (*args, *kwargs.values()), strict=True)
            ]
            self.native = NativeEntry(
                arguments, tuple(kwargs), list(zip(self.signature.leaves, leaves, strict=True)),
                step, self.traced.structure, self.traced.weak, self.pack,
            )  # fmt: skip
        except LookupError:
            return None
        return self.native

    def take_used(self) -> bool:
        """As in the base class; the native entry keeps a flag of its own."""
        native = self.native is not None and self.native.take_used()
        return super().take_used() or native

    def _first_run(self, arrays: list[Any], context: RunContext = PLAIN) -> list[Any]:
        self.executable()
        return self.run(arrays, context)

    def _checked_run(
        self, run: Callable[..., list[Any]], arrays: list[Any], context: RunContext = PLAIN
    ) -> list[Any]:
        """`run` with a check of the Python integers that are converted to a narrower dtype."""
        for limit in self.traced.limits:
            given = arrays[limit.index]
            value = (given if isinstance(given, np.ndarray) else given.numpy()).item()
            if not limit.low <= value <= limit.high:
                raise limit.error(value)
        return run(arrays, context)

    def _run_sized(
        self, step: NativeSizedStep, arrays: list[Any], context: RunContext = PLAIN
    ) -> list[Any]:
        try:
            with self.target():  # other sizes may be planned anew
                return step.run(arrays, context)
        except ShapeError as error:
            raise error.at(caller_location()) from None

    def reports(self, shapes: Sequence[tuple[int, ...]] = ()) -> Sequence[PassReport]:
        """What the passes did; runs them if the graph is not compiled yet. shapes: as of `step`."""
        if self.is_open:
            return self.step(shapes).passes()
        if self.on_host:
            return self.executable().passes()
        with self._lock:
            if self._executable is not None:
                return self._executable.passes()
            if not self._reports:
                self._reports = run_passes(self.traced.graph, self._passes)[1]
            return self._reports


_COPY = "donate a tensor that only you hold: wf.asarray(x, copy=True) makes one"
_taking = ForkLock()
_DEVICE_COPY = "donate an array that only you hold: copy.deepcopy(x) makes one"


def donated_leaves(
    donate: Sequence[str], signature: Signature, parameters: Sequence[str]
) -> tuple[int, ...]:
    """Which leaves of a signature belong to the arguments named in `donate`."""
    assert signature.structure is not None
    names = [*(signature.names or parameters)]
    out: list[int] = []
    first = 0
    for position, child in enumerate(signature.structure.children):
        count = pytree.count_leaves(child)
        if position < len(names) and names[position] in donate:
            out += range(first, first + count)
        first += count
    return tuple(out)


def _owners(arrays: Sequence[Any], i: int) -> int:
    return sys.getrefcount(arrays[i])


def _sole_owner() -> int:
    """What `_owners` says of an array that one tensor and the list hold."""
    tensor = Tensor(np.zeros(1))
    arrays = [tensor._data]
    return _owners(arrays, 0)


def check_donated(
    function: str, numbers: Sequence[int], paths: Callable[[], Sequence[str]], given: Sequence[Any],
    arrays: Sequence[Any], on_gpu: bool,
) -> None:  # fmt: skip
    """TypeRuleError or InvalidArgumentError for an argument whose memory the call must not take.

    given: the leaves of the arguments; arrays: a list with the array of each, held nowhere else.
    """
    everyone = [id(a) for a in arrays]
    for i in numbers:
        on_device = isinstance(given[i], DeviceArray)
        if (on_device and not on_gpu) or not isinstance(given[i], Tensor):
            raise TypeRuleError(
                f"'{function}' takes the memory of its argument '{paths()[i]}' (donate=), but got "
                f"a {type(given[i]).__name__}",
                hint="pass wf.asarray(x.numpy()), a tensor of the host"
                if on_device
                else "pass a tensor (wf.asarray copies an array into one): the caller would see "
                "anything else change",
                location=caller_location(),
            )
        if everyone.count(id(arrays[i])) > 1:
            raise _seen(function, paths()[i], "is passed more than once", on_device)
        if not on_device and (why := _why_not(arrays, i)):
            raise _seen(function, paths()[i], why, on_device)


def _seen(function: str, path: str, why: str, on_device: bool) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the {'array' if on_device else 'tensor'} donated to '{function}' as '{path}' {why}",
        hint=_DEVICE_COPY if on_device else _COPY,
        location=caller_location(),
    )


def _why_not(arrays: Sequence[Any], i: int) -> str:
    """Why the call must not take the memory of an array of the host; "" if it may."""
    if not arrays[i].flags.owndata or not arrays[i].flags.writeable:
        return "shares its memory with another tensor, array or library"
    if _owners(arrays, i) > _sole_owner():
        return "is seen by an array or a view that was taken from it"
    return ""


def _why_not_there(value: DeviceValue) -> str:
    """The same of an array on a device."""
    from weft.runtime.device.array import Borrowed

    if isinstance(value.memory, Borrowed):
        return "is in memory of another library, which weft has borrowed"
    if value.shown:
        return "has told its address to another library (__cuda_array_interface__)"
    if value.shared:
        return "is shared with another library (DLPack)"
    return ""


def run_donated(
    function: str, parameters: Sequence[str], found: Compiled, given: list[Any], arrays: list[Any]
) -> Any:
    """A call that takes the memory of the leaves `found.donated` of what was `given`."""
    if any(array is None for array in arrays):
        raise UnsupportedError(
            f"'{function}' has donate= and an argument that is part of the signature",
            hint="let the function close over the variable",
            location=caller_location(),
        )
    found.executable()  # says if it cannot use the memory
    paths = partial(found.signature.paths, parameters)
    check_donated(function, found.donated, paths, given, arrays, found.gpu is not None)
    there = [i for i in found.donated if isinstance(given[i], DeviceArray)]
    on_host = [i for i in found.donated if i not in there]
    _take(function, there, given, arrays)
    donation = Donation()
    try:
        for i in there:
            if why := _why_not_there(arrays[i]):
                raise _seen(function, paths()[i], why, True)
        made = found.pack(found.run(arrays, RunContext(donation=donation)))
    except BaseException:
        taken = donation.close()
        for i in there:
            if i not in taken and not arrays[i].taken:
                given[i]._give(arrays[i])
        bury(function, [i for i in on_host if i in taken], given)
        arrays.clear()  # whoever holds the error holds this list, and what was given back with it
        raise
    bury(function, on_host, given)
    return made


def _take(
    function: str, numbers: Sequence[int], given: Sequence[Any], arrays: Sequence[Any]
) -> None:
    """Let arrays on a device say where they went: `arrays` has what they held."""
    gone = DonatedMemory(function, caller_location())
    with _taking:
        for i in numbers:
            if given[i]._held is not arrays[i]:
                given[i].shape  # noqa: B018  # raises: another thread has donated it
        for i in numbers:
            given[i]._give(gone)


def bury(function: str, numbers: Sequence[int], given: Sequence[Any]) -> None:
    """Mark donated tensors of the host: whoever uses one is told where it went."""
    gone = Donated(function, caller_location())
    for i in numbers:
        given[i]._data = None
        given[i]._trace = gone
