"""One specialisation of a compiled function: its graph, and its native code once it was called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.accessors import packer
from weft.frontend.signature import Signature
from weft.frontend.specializations import Specialization
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
        self.pack = packer(traced.structure, traced.weak)
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
                self._executable, self._reports = made, made.report.passes
                self.run = self._checked_run if self.traced.limits else made
            return self._executable

    def _first_run(self, arrays: list[Any]) -> list[Any]:
        self.executable()
        return self.run(arrays)

    def _checked_run(self, arrays: list[Any]) -> list[Any]:
        """Run with a check of the Python integers that are converted to a narrower dtype."""
        for limit in self.traced.limits:
            value = arrays[limit.index].item()
            if not limit.low <= value <= limit.high:
                raise limit.error(value)
        assert self._executable is not None
        return self._executable(arrays)

    def reports(self) -> Sequence[PassReport]:
        """What the passes did; runs them if the graph is not compiled yet."""
        with self._lock:
            if not self._reports:
                self._reports = run_passes(self.traced.graph, self._passes)[1]
            return self._reports
