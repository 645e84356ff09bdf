"""Steps on a cluster whose feeds come in many sizes: after a few sets of sizes, each with parts of
its own, a definition whose parts take feeds of any; each task plans for the sizes that come
(`runtime/dataflow/regions.py`).

The client checks that sizes fit together, so that errors are those of any other step: once with
sizes that note what is decided by them, then in microseconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from weft.frontend.arrays import Array
from weft.frontend.session.compiling import Step
from weft.frontend.session.fetching import Fetches
from weft.ir.dims import SymbolicDim
from weft.ir.errors import UnavailableError, WeftError
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.runtime.native.size_plan import SizeCheck, SizedGraph

_log = logging.getLogger("weft.cluster")
#: So many sets of sizes have parts of their own, which need not look at sizes: a small one runs on
#: the thread that reads messages, and large tensors are computed where other tasks read them.
MOST_OWN = 4
#: So many sets of conditions are kept.
MOST_CHECKS = 16

#: Makes a definition for feeds of any sizes, which all tasks have taken.
Open = Callable[[Fetches, Mapping[Value, Array]], Step]


class OpenStep(Step):
    """A definition for feeds of any sizes, as one for some."""

    __slots__ = ()

    def __init__(self, of: Step, seconds: float) -> None:
        super().__init__(of.executable, of.ops, seconds)
        self.compiled = False


class OpenSteps:
    """The definitions of one pair of fetches and feeds. make: called at most once. Thread-safe as
    far as it must be: two threads may make the same twice."""

    def __init__(self, sized: SizedGraph, make: Open) -> None:
        self._sized, self._make = sized, make
        self._own = 0  # sets of sizes that have parts of their own
        self._open: Step | None = None
        self._checks: list[SizeCheck] = []

    def step(
        self,
        values: Fetches,
        feeds: Mapping[Value, Array],
        compiled: Callable[[Fetches, Mapping[Value, Array]], Step],
    ) -> Step:
        """The step for feeds of these sizes; `compiled` makes one for them alone, and its errors
        are those of this."""
        if self._own < MOST_OWN:
            step = compiled(values, feeds)
            self._own += 1
            return step
        begun = time.perf_counter()
        self._check(tuple([a.shape for a in feeds.values()]))
        if self._open is None:
            try:
                self._open = self._make(values, feeds)
            except UnavailableError:
                raise
            except WeftError as error:
                _log.info("no step of '%s' for many sizes: %s", self._sized.name, error)
                self._own = -(1 << 62)
                return compiled(values, feeds)
        return OpenStep(self._open, time.perf_counter() - begun)

    def _check(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Raise what is wrong with these sizes."""
        if any(check.holds(shapes) for check in self._checks):
            return
        self._sized.at(shapes)
        if len(self._checks) < MOST_CHECKS:
            try:
                self._checks.append(SizeCheck(self._sized, shapes))
            except (TypeError, AttributeError, OverflowError) as error:
                _log.info("no check of '%s' for many sizes: %s", self._sized.name, error)


def may_be_open(feeds: Mapping[Value, Array]) -> bool:
    """Whether a definition may leave the sizes of these feeds open: there are such sizes, and all
    have names."""
    dims = [d for v in feeds if isinstance(v.type, TensorType) for d in v.type.shape]
    return any(not isinstance(d, int) for d in dims) and all(
        isinstance(d, (int, SymbolicDim)) for d in dims
    )
