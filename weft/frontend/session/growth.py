"""Graphs that grow from run to run: TensorFlow 1's classic mistake, ops built in the training loop,
is noticed and told."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

from weft.frontend.compile.specializations import RecompileWarning
from weft.ir.graph import Operation
from weft.ir.locations import Location

#: So many step definitions may each follow ops added on one line.
MOST_ADDITIONS = 8


class GraphGrowthWarning(RecompileWarning):
    """One line adds ops to a graph again and again between runs, and each new step is compiled.

    >>> import warnings
    >>> with wf.Graph().as_default(), wf.Session() as session, warnings.catch_warnings():
    ...     warnings.simplefilter("error", wf.tf1.GraphGrowthWarning)
    ...     x = wf.placeholder(wf.float32, [])
    ...     for n in range(20):  # it runs, but x + n is to be built before the loop
    ...         session.run(x + n, {x: 1.0})
    Traceback (most recent call last):
    weft.frontend.session.growth.GraphGrowthWarning: the graph 'graph' has grown to 20 ops: this
    line has added ops 9 times between runs, and each time a new step was compiled.
      hint: build the graph once, before the loop, and feed what changes; graph.finalize() makes
      further ops an error
    """


class GrowthWatch:
    """The detector of graphs that grow from run to run; it is told of each step definition."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: int | None = None
        self._added: Counter[Location] = Counter()
        self._warned = False

    def note(self, ops: Sequence[Operation]) -> None:
        """A step of the graph with these ops is compiled; warns once."""
        before, self._known = self._known, len(ops)
        if before is None or before == self._known or self._warned:
            return
        lines = dict.fromkeys(op.locations[0] for op in ops[before:] if op.locations)
        self._added.update(list(lines))
        often = next((at for at in lines if self._added[at] > MOST_ADDITIONS), None)
        if often is None:
            return
        self._warned = True
        message = (
            f"the graph '{self._name}' has grown to {self._known} ops: this line has added ops "
            f"{self._added[often]} times between runs, and each time a new step was compiled.\n"
            f"  hint: build the graph once, before the loop, and feed what changes; "
            f"graph.finalize() makes further ops an error"
        )
        warnings.warn_explicit(message, GraphGrowthWarning, often.file, often.line)
