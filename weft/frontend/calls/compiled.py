"""One specialisation of a compiled function: its graph, and its native code once it was called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from weft.codegen.llvm.target import NATIVE, using
from weft.frontend import pytree
from weft.frontend.calls.accessors import packer
from weft.frontend.calls.donated import refuse_unused
from weft.frontend.calls.native_call import NativeEntry, Static, prepare
from weft.frontend.calls.on_gpu import GpuCall, compile_for_gpu, not_on_gpu
from weft.frontend.calls.signature import Signature
from weft.frontend.calls.specializations import Specialization
from weft.frontend.tracing.tracing import Traced
from weft.ir.dtypes import MathMode
from weft.ir.locations import Locations, caller_location
from weft.ir.process import ForkLock
from weft.passes.manager import Pass, PassReport, run_passes
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.executable import Executable, compile_graph


class Compiled(Specialization):
    """One specialisation: its signature and graph, why it was made, and native code once called."""

    __slots__ = (
        "_executable", "_gpu", "_isa", "_lock", "_passes", "_reports", "_run", "_threads",
        "donated", "location", "math_mode", "native", "native_tried", "pack", "reasons", "run",
        "signature", "traced",
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
    ) -> None:
        super().__init__()
        self.signature = signature
        self.traced = traced
        self.run: Callable[[list[Any]], list[Any]] = self._first_run
        self._run: Callable[[list[Any]], list[Any]] = self._first_run
        self.pack = packer(traced.structure, traced.weak, gpu is not None)
        self.location: Locations = caller_location()
        self.reasons: list[str] = []
        self._lock = ForkLock()
        self._passes = passes
        self._threads = threads
        self.donated = donated
        self._gpu, self.math_mode = gpu, math_mode
        self._isa = isa
        self._executable: Executable | DeviceStep | None = None
        self._reports: Sequence[PassReport] = ()
        self.native: NativeEntry | None = None
        self.native_tried = False

    def executable(self) -> Executable | DeviceStep:
        """The code, compiled on first use. UnsupportedError for an op that has none."""
        with self._lock:
            if self._executable is None:
                made = self._compiled() if self._gpu is None else self._planned(self._gpu)
                self._executable = made
                run = made if isinstance(made, Executable) else GpuCall(made, self.traced.graph)
                self._run = run
                self.run = self._checked_run if self.traced.limits else run
            return self._executable

    def _compiled(self) -> Executable:
        graph = self.traced.graph
        with using(self._isa):
            made = compile_graph(
                on_local_device(graph),
                self.traced.variables,
                name=graph.name,
                passes=self._passes,
                threads=self._threads,
                donated=self.donated,
            )
        self._check_donated(made)
        return made

    def on_cpu(self, what: str) -> Executable:
        """The native code. UnsupportedError, which says `what` is not for a GPU, if that is where
        the function runs."""
        made = self.executable()
        if not isinstance(made, Executable):
            raise not_on_gpu(what)
        return made

    def _planned(self, gpu: int) -> DeviceStep:
        graph = on_local_device(self.traced.graph, gpu)
        return compile_for_gpu(
            graph, self.traced.variables, gpu, self._passes, self.math_mode, self.donated
        )

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
        step = self.executable().native_step()
        if step is None or self.traced.limits or self.donated or prepare() is None:
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

    def _first_run(self, arrays: list[Any]) -> list[Any]:
        self.executable()
        return self.run(arrays)

    def _checked_run(self, arrays: list[Any]) -> list[Any]:
        """Run with a check of the Python integers that are converted to a narrower dtype."""
        for limit in self.traced.limits:
            given = arrays[limit.index]
            value = (given if isinstance(given, np.ndarray) else given.numpy()).item()
            if not limit.low <= value <= limit.high:
                raise limit.error(value)
        return self._run(arrays)

    def reports(self) -> Sequence[PassReport]:
        """What the passes did; runs them if the graph is not compiled yet."""
        with self._lock:
            if self._executable is not None:
                return self._executable.report.passes
            if not self._reports:
                self._reports = run_passes(self.traced.graph, self._passes)[1]
            return self._reports
