"""Regions whose sizes are known only when they run: compiled then, once for each set of sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.ir.graph import Graph
from weft.ir.types import TensorType
from weft.passes.specialize import specialize_inputs
from weft.runtime.executable import Executable, compile_graph
from weft.runtime.variables import VariableState

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
#: For so many sets of sizes a region keeps what was compiled; those used last stay.
MOST_SIZES = 64
#: The plans of so many are kept on disk, too: for steps that see few sizes. Writing takes longer
#: than making most of them.
SIZES_ON_DISK = 4


class _Entry:
    __slots__ = ("made", "used")

    def __init__(self, made: Executable) -> None:
        self.made = made
        self.used = True


class LazyRegion:
    """Called as an `Executable` is, by any number of threads; its results have the sizes that
    follow from those of the inputs. Another size makes a plan, but no kernel that is not there."""

    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState],
        threads: int | None = None,
    ) -> None:
        self.graph = graph
        self._variables, self._threads = variables, threads
        types = [a.type for a in graph.args]
        self._open = [
            i for i, t in enumerate(types) if isinstance(t, TensorType) and not t.is_static
        ]
        self._made: dict[Shapes, _Entry] = {}
        self._count = 0  # how many were compiled
        self._lock = threading.Lock()

    def __call__(self, arrays: list[Array]) -> list[Any]:
        """The results. ShapeError where sizes differ that must be equal."""
        return self._plan(arrays)(arrays)

    def run_kept(self, arrays: list[Array], keep: Callable[[Any], object]) -> list[Any]:
        """As `Executable.run_kept`."""
        return self._plan(arrays).run_kept(arrays, keep)

    def _plan(self, arrays: list[Array]) -> Executable:
        key = tuple([arrays[i].shape for i in self._open])
        entry = self._made.get(key)
        if entry is None:
            entry = self._compile(key, arrays)
        entry.used = True
        return entry.made

    def __len__(self) -> int:
        """For how many sets of sizes it is compiled."""
        return len(self._made)

    def _compile(self, key: Shapes, arrays: list[Array]) -> _Entry:
        graph = specialize_inputs(self.graph, [a.shape for a in arrays])
        kept = self._count < SIZES_ON_DISK
        self._count += 1
        compiled = compile_graph(
            graph, self._variables, name=graph.name, threads=self._threads, kept=kept
        )
        with self._lock:
            while len(self._made) >= MOST_SIZES:
                oldest = next(iter(self._made))
                entry = self._made.pop(oldest)
                if entry.used:  # since it was last looked at: it gets another turn
                    entry.used = False
                    self._made[oldest] = entry
            return self._made.setdefault(key, _Entry(compiled))
