"""Which work of a row kernel is done in which pass over the row, and what is kept in between.

A pass is one loop over the elements of a row. A reduction over the row that needs the result of
another one must wait for the next pass. What several passes need is computed again in each of them
if that costs a few instructions (its operands are in the first-level cache by then), and is kept in
a buffer of one row if it costs more: in the row of an output that is written later, or in scratch
memory of the thread.
"""

from __future__ import annotations

from dataclasses import field

from weft.codegen.elements import HALVES
from weft.codegen.nests.cost import op_nanoseconds
from weft.codegen.nests.rows import Node, Output, RowNest
from weft.ir.dataclass import dataclass

#: A value that costs more than this to compute again (ns an element) is kept: a store and a load.
KEEP_NS = 0.055


@dataclass(slots=True)
class Pass:
    """One loop over a row. compute: the nodes that differ from element to element, in order;
    reload: those of them that an earlier pass kept. folds: reductions (nodes) that it completes.
    keep: nodes to keep for later passes. stores, totals: outputs that it writes.
    """

    compute: list[int] = field(default_factory=list)
    reload: set[int] = field(default_factory=set)
    folds: list[int] = field(default_factory=list)
    keep: list[int] = field(default_factory=list)
    stores: list[Output] = field(default_factory=list)
    totals: list[Output] = field(default_factory=list)


@dataclass(slots=True)
class Schedule:
    """passes: in order. row_nodes: per pass, what is computed once per row before it (one list more
    than passes: what is left for the end). kept: node -> the output whose row holds it, or None for
    scratch. row_stores, row_totals: outputs with one number per row, written at its end. in_row:
    per node, whether it differs from element to element of a row.
    """

    passes: list[Pass]
    row_nodes: list[list[int]]
    kept: dict[int, Output | None]
    row_stores: list[Output]
    row_totals: list[Output]
    in_row: tuple[bool, ...]


def schedule(nest: RowNest) -> Schedule:
    """The passes of a row kernel."""
    return _Scheduler(nest).run()


class _Scheduler:
    def __init__(self, nest: RowNest) -> None:
        self.nest = nest
        self.in_row: list[bool] = []  # differs from element to element
        self.stage: list[int] = []  # the first pass in (row values: before) which it is known
        for node in nest.nodes:
            self._classify(node)
        self.computed: dict[int, int] = {}  # node -> first pass that computes it
        self.last_use: dict[int, int] = {}  # kept nodes -> last pass that reloads them
        self.kept: dict[int, Output | None] = {}

    def _classify(self, node: Node) -> None:
        stages = [self.stage[a] for a in node.args]
        if node.kind == "load":
            self.in_row.append(self.nest.differs_in_row(node))
            self.stage.append(0)
        elif node.kind == "fold":
            self.in_row.append(False)
            self.stage.append(stages[0] + 1)
        elif node.kind in ("check", "pick"):
            self.in_row.append(False)
            self.stage.append(max(stages))
        else:
            self.in_row.append(any(self.in_row[a] for a in node.args))
            self.stage.append(max(stages, default=0))

    def run(self) -> Schedule:
        nest = self.nest
        whole = [o for o in nest.outputs if nest.moves_in_row(o.strides)]
        per_row = [o for o in nest.outputs if not nest.moves_in_row(o.strides)]
        folds = [n for n, node in enumerate(nest.nodes) if node.kind == "fold"]
        last = max(
            [self.stage[n] - 1 for n in folds] + [self.stage[o.source] for o in whole], default=0
        )
        if nest.in_place:  # operands are whole until their last element has been picked
            picks = [self.stage[n] for n, node in enumerate(nest.nodes) if node.kind == "pick"]
            last = max([last, *picks])
        passes = [Pass() for _ in range(last + 1)]
        for n in folds:
            passes[self.stage[n] - 1].folds.append(n)
        over_operands = {output for _, output in nest.in_place}
        for o in whole:
            # an output in place of an operand is written when nobody reads that any more
            late = last if o.output in over_operands else self.stage[o.source]
            (passes[late].totals if o.total else passes[late].stores).append(o)
        for p in range(last + 1):
            self._fill(p, passes)
        self._choose_places(passes, over_operands)
        row_nodes: list[list[int]] = [[] for _ in range(last + 2)]
        for n, node in enumerate(nest.nodes):
            if not self.in_row[n] and node.kind != "fold":
                row_nodes[self.stage[n]].append(n)
        stores = [o for o in per_row if o.total is None]
        totals = [o for o in per_row if o.total is not None]
        return Schedule(passes, row_nodes, self.kept, stores, totals, tuple(self.in_row))

    def _fill(self, p: int, passes: list[Pass]) -> None:
        """The nodes that pass p needs: computed anew or kept by the pass that had them first."""
        this, nodes = passes[p], self.nest.nodes
        seen: set[int] = set()

        def need(n: int) -> None:
            if not self.in_row[n] or n in seen:
                return
            seen.add(n)
            first = self.computed.setdefault(n, p)
            if first < p and self._price(n, set()) > KEEP_NS:
                if n not in passes[first].keep:
                    passes[first].keep.append(n)
                self.last_use[n] = p
                this.reload.add(n)
            else:
                for a in nodes[n].args:
                    need(a)
            this.compute.append(n)

        for fold in this.folds:
            need(nodes[fold].args[0])
        for o in (*this.stores, *this.totals):
            need(o.source)

    def _price(self, n: int, seen: set[int]) -> float:
        """Nanoseconds to compute node n again from loads and row values."""
        node = self.nest.nodes[n]
        if n in seen or not self.in_row[n] or node.kind == "load":
            return 0.0
        seen.add(n)
        own = op_nanoseconds(node.name, node.dtype)
        return own + sum(self._price(a, seen) for a in node.args)

    def _choose_places(self, passes: list[Pass], over_operands: set[int]) -> None:
        """For each kept node an output row that is free until after its last use, else scratch."""
        free: dict[Output, int] = {}  # until (and with) this pass
        for p, this in enumerate(passes):
            free.update({o: p for o in this.stores if o.output not in over_operands})
        lies_close = not self.nest.by_columns  # in scratch memory a block of columns does
        for p, this in enumerate(passes):
            for n in this.keep:
                dtype = self.nest.nodes[n].result_dtype
                fits = [
                    o
                    for o, end in free.items()
                    if o.dtype == dtype
                    and dtype not in HALVES
                    and (o.source == n or (end >= self.last_use[n] and lies_close))
                    and end >= p
                ]
                fits.sort(key=lambda o: o.source != n)
                self.kept[n] = fits[0] if fits else None
                if fits:
                    del free[fits[0]]
