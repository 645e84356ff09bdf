"""One specialisation of a compiled function: its graph, and its native code once it was called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend import pytree
from weft.frontend.signature import Signature
from weft.frontend.specializations import Specialization
from weft.frontend.tensor import Tensor
from weft.frontend.tracing import Traced
from weft.ir.source import Locations, caller_location
from weft.passes.manager import Pass, PassReport, run_passes
from weft.runtime.executable import Executable, compile_graph


class Compiled(Specialization):
    """One specialisation: its signature and graph, why it was made, and native code once called."""

    __slots__ = (
        "_executable", "_lock", "_passes", "_reports", "location", "pack", "reasons", "run",
        "signature", "traced",
    )  # fmt: skip

    def __init__(self, signature: Signature, traced: Traced, passes: Sequence[Pass]) -> None:
        super().__init__()
        self.signature = signature
        self.traced = traced
        self.run: Callable[[list[Any]], list[Any]] = self._first_run
        self.pack = _packer(traced)
        self.location: Locations = caller_location()
        self.reasons: list[str] = []
        self._lock = threading.Lock()
        self._passes = passes
        self._executable: Executable | None = None
        self._reports: Sequence[PassReport] = ()

    def executable(self) -> Executable:
        """The native code, compiled on first use. UnsupportedError for an op that has none."""
        with self._lock:
            if self._executable is None:
                graph = self.traced.graph
                made = compile_graph(
                    graph, self.traced.variables, name=graph.name, passes=self._passes
                )
                self._executable, self.run, self._reports = made, made, made.report.passes
            return self._executable

    def _first_run(self, arrays: list[Any]) -> list[Any]:
        return self.executable()(arrays)

    def reports(self) -> Sequence[PassReport]:
        """What the passes did; runs them if the graph is not compiled yet."""
        with self._lock:
            if not self._reports:
                self._reports = run_passes(self.traced.graph, self._passes)[1]
            return self._reports


def _packer(traced: Traced) -> Callable[[list[Any]], Any]:
    """From result arrays to what the function returned."""
    structure, weak = traced.structure, traced.weak
    if structure is None and not weak[0]:
        return lambda arrays: Tensor(arrays[0])
    if structure is not None and not any(weak) and structure.children == (None,) * len(weak):
        if structure.cls is tuple:
            return lambda arrays: tuple([Tensor(a) for a in arrays])
    return lambda arrays: pytree.rebuild(
        structure, iter([Tensor(a, None, None, w) for a, w in zip(arrays, weak, strict=True)])
    )
