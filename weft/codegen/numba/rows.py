"""Row kernels as Numba source: the passes that `nests.rows.schedule` lays out, one row at a time.

A row is a loop over its elements for each pass; between passes there are numbers of the row. What a
later pass needs again is computed again, or kept in the row of an output or in an array."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Pool
from weft.codegen.nests.rows import Node, Output, Pass, RowNest, schedule
from weft.codegen.numba.nests import Place, view_of
from weft.codegen.numba.scalars import (
    accumulator_dtype,
    fold_text,
    identity_text,
    narrowed,
    scalar_text,
)
from weft.codegen.numba.source import (
    KernelSource,
    Lines,
    Names,
    Number,
    Param,
    View,
    element,
    load_text,
    numpy_name,
    store_text,
)
from weft.ir.cost.rates import PASS_NS, ROW_NS, arithmetic
from weft.ir.dtypes import as_dtype
from weft.ir.spec import ConstArray


def rows_source(nest: RowNest, outputs: Sequence[Place], operands: Sequence[Place]) -> KernelSource:
    """The row kernel on these buffers. UnsupportedError for an op without source."""
    return _RowPrinter(nest, outputs, operands).run()


class _RowPrinter:
    def __init__(self, nest: RowNest, outputs: Sequence[Place], operands: Sequence[Place]) -> None:
        self.nest, self.plan = nest, schedule(nest)
        self.operands = operands
        self.helpers: set[str] = set()
        self.params: list[Param] = []
        self.out = Lines()
        self.names = Names()
        self.inner = range(nest.outer, len(nest.extents))
        self.checks = any(n.kind == "check" for n in nest.nodes)
        self.parallel = not nest.totals and not self.checks
        self.outputs = {o: self._output(o, outputs) for o in nest.outputs}
        self.loads = {n: self._load(n, k) for n, k in enumerate(nest.nodes) if k.kind == "load"}

    # -- arguments --------------------------------------------------------------------------------
    def _walk(self, strides: Sequence[int]) -> tuple[list[tuple[int, int]], list[str]]:
        loops = [k for k, s in enumerate(strides) if s]
        return [(self.nest.extents[k], strides[k]) for k in loops], [f"i{k}" for k in loops]

    def _output(self, o: Output, outputs: Sequence[Place]) -> tuple[str, list[str]]:
        walk, index = self._walk(o.strides)
        name = self.names(f"out{o.output}")
        self.params.append(view_of(name, o.dtype, outputs[o.output], walk, written=True))
        return name, index

    def _load(self, n: int, node: Node) -> tuple[str, list[str]]:
        """The array and index of a load; of a position its text alone."""
        walk, index = self._walk(node.strides)
        if node.leaf == "index":
            start = f"start{n}"
            self.params.append(Number(start, node.offset))
            terms = [start]
            for k, s in enumerate(node.strides):
                if s:
                    self.params.append(Number(f"step{n}_{k}", s))
                    terms.append(f"i{k} * step{n}_{k}")
            return f"({' + '.join(terms)})", []
        if isinstance(node.leaf, int):
            shared = dict(self.nest.in_place).get(node.leaf)
            for o in self.nest.outputs:
                if o.output == shared and o.total is None and o.dtype == node.dtype:
                    return self.outputs[o]
        for k, stride, size in node.picks:
            walk.append((size, stride))
            index.append(f"at{n}_{k}")
            if self.nest.nodes[k].dtype.startswith("i"):
                self.params.append(Number(f"size_of_at{n}_{k}", size))
        if isinstance(node.leaf, ConstArray):
            name = self.names("c")
            sizes, strides = tuple(s for s, _ in walk), tuple(s for _, s in walk)
            self.params.append(View(name, node.dtype, Pool(node.leaf), sizes, strides))
            return name, index
        assert isinstance(node.leaf, int)
        at, more = self.operands[node.leaf]
        more += node.offset * as_dtype(node.dtype).itemsize
        place: Place = (at, more)
        if isinstance(at, Address):
            place = Address(at.value, at.offset + more), 0
        name = self.names.number("in")
        self.params.append(view_of(name, node.dtype, place, walk))
        return name, index

    # -- the rows ---------------------------------------------------------------------------------
    def run(self) -> KernelSource:
        nest, out = self.nest, self.out
        for k, extent in enumerate(nest.extents):
            self.params.append(Number(f"n{k}", extent))
        self._open_totals()
        for n, held in self.plan.kept.items():
            if held is None:
                kind = numpy_name(nest.nodes[n].result_dtype)
                sizes = ", ".join(f"n{k}" for k in self.inner)
                out(f"kept{n} = np.empty(({sizes},), np.{kind})")
        if not self.parallel:
            self.params.append(Number("rows", nest.rows))
        rows = "lo, hi" if self.parallel else "rows"
        if nest.outer == 1:
            out(f"for i0 in range({rows}):  # rows")
        else:
            out(f"for row in range({rows}):")
        out.depth += 1
        self._row_indices()
        self._row()
        out.depth = 1
        self._close_totals()
        return KernelSource(
            nest.key, nest.name, tuple(self.params), tuple(out.lines), frozenset(self.helpers),
            self.checks, nest.rows if self.parallel else None, self._nanoseconds(),
        )  # fmt: skip

    def _nanoseconds(self) -> float:
        nodes = self.nest.nodes
        work = 0.0
        for step in self.plan.passes:
            work += PASS_NS + arithmetic(
                (nodes[n].name, nodes[n].dtype) for n in step.compute if nodes[n].kind == "apply"
            )
        return work * self.nest.row_elements + ROW_NS * len(self.plan.passes)

    def _row_indices(self) -> None:
        """The outer loops' numbers of row `row`."""
        outer = self.nest.outer
        if outer < 2:
            return
        rest = "row"
        for k in range(outer - 1, 0, -1):
            self.out(f"i{k} = {rest} % n{k}")
            rest = f"{rest} // n{k}" if rest == "row" else f"({rest}) // n{k}"
        self.out(f"i0 = {rest}")

    def _row(self) -> None:
        self._row_values(0)
        for p, step in enumerate(self.plan.passes):
            self._pass(step)
            self._row_values(p + 1)
        for o in self.plan.row_stores:
            name, index = self.outputs[o]
            self.out(store_text(element(name, index), f"v{o.source}", o.dtype, self.helpers))
        for o in self.plan.row_totals:
            self._add_total(o, f"total{o.output}")

    def _row_values(self, p: int) -> None:
        for n in self.plan.row_nodes[p]:
            self._node(n)

    def _node(self, n: int) -> None:
        """Lines that compute node n where its loops' numbers are known."""
        node, out = self.nest.nodes[n], self.out
        if node.kind == "load":
            self._load_line(n, node)
        elif node.kind == "apply":
            args = [f"v{a}" for a in node.args]
            text = scalar_text(node.name, node.dtype, args, node.result_dtype, self.helpers)
            out(f"v{n} = {text}")
        elif node.kind == "check":
            self.helpers |= {"wrapped", "fault"}
            row = "i0" if self.nest.outer == 1 else "row"
            raw = f"v{node.args[0]}"
            out(f"v{n} = wrapped({raw}, n{self.nest.outer})")
            out(f"if v{n} < 0:")
            out(f"    fault(faults, {row}, {raw}, {node.name})")
        elif node.kind == "pick":
            self._pick(n, node)

    def _load_line(self, n: int, node: Node) -> None:
        name, index = self.loads[n]
        if node.leaf == "index":
            self.out(f"v{n} = {scalar_text('astype', 'i64', [name], node.dtype, self.helpers)}")
            return
        for k, _, _ in node.picks:
            text = f"int64(v{k})"
            if self.nest.nodes[k].dtype.startswith("i"):
                text = f"int64(v{k}) + size_of_at{n}_{k} if v{k} < 0 else int64(v{k})"
            self.out(f"at{n}_{k} = {text}")
        self.out(f"v{n} = {load_text(element(name, index), node.dtype, self.helpers)}")

    def _pick(self, n: int, node: Node) -> None:
        """The one element of a row value that a checked index names, computed by itself."""
        whole, at = node.args
        (loop, *_) = self.inner
        self.out(f"i{loop} = max(v{at}, 0)")
        done: set[int] = set()

        def need(k: int) -> None:
            if k in done or not self.plan.in_row[k]:
                return
            done.add(k)
            held = self.nest.nodes[k]
            for a in (*held.args, *(p for p, _, _ in held.picks)):
                need(a)
            self._node(k)

        need(whole)
        self.out(f"v{n} = v{whole}")

    # -- one pass ---------------------------------------------------------------------------------
    def _pass(self, step: Pass) -> None:
        nodes, out = self.nest.nodes, self.out
        for n in step.folds:
            running = accumulator_dtype(nodes[n].name, nodes[n].dtype)
            out(f"acc{n} = {identity_text(nodes[n].name, running)}")
        depth = out.depth
        if step.compute or step.folds or step.stores or step.totals:
            for k in self.inner:
                out(f"for i{k} in range(n{k}):")
                out.depth += 1
            self._elements(step)
        out.depth = depth
        for n in step.folds:
            dtype = nodes[n].dtype
            running = accumulator_dtype(nodes[n].name, dtype)
            out(f"v{n} = {narrowed(f'acc{n}', running, dtype, self.helpers)}")

    def _elements(self, step: Pass) -> None:
        nodes, out = self.nest.nodes, self.out
        for n in step.compute:
            if n in step.reload:
                where, dtype = self._kept(n)
                out(f"v{n} = {load_text(where, dtype, self.helpers)}")
                continue
            for k in [p for p, _, _ in nodes[n].picks]:
                if k not in step.compute and self.plan.in_row[k]:
                    self._node(k)
            self._node(n)
        for n in step.keep:
            held = self.plan.kept[n]
            if held is None or held.source != n:
                where, dtype = self._kept(n)
                out(store_text(where, f"v{n}", dtype, self.helpers))
        for n in step.folds:
            node = nodes[n]
            running = accumulator_dtype(node.name, node.dtype)
            value = self._widened(f"v{node.args[0]}", node.dtype, running)
            out(f"acc{n} = {fold_text(node.name, running, f'acc{n}', value, self.helpers)}")
        for o in step.stores:
            name, index = self.outputs[o]
            out(store_text(element(name, index), f"v{o.source}", o.dtype, self.helpers))
        for o in step.totals:
            self._add_total(o, element(f"total{o.output}", self._inner_index(o)))

    def _kept(self, n: int) -> tuple[str, str]:
        held = self.plan.kept[n]
        if held is not None:
            return element(*self.outputs[held]), held.dtype
        dtype = self.nest.nodes[n].result_dtype
        dtype = "f32" if dtype in ("f16", "bf16") else dtype
        return element(f"kept{n}", [f"i{k}" for k in self.inner]), dtype

    def _widened(self, value: str, dtype: str, running: str) -> str:
        if numpy_name(dtype) == numpy_name(running):
            return value
        return f"{numpy_name(running)}({value})"

    # -- what is folded over all rows -------------------------------------------------------------
    def _inner_index(self, o: Output) -> list[str]:
        return [f"i{k}" for k, s in enumerate(o.strides) if s]

    def _open_totals(self) -> None:
        for o in self.nest.totals:
            assert o.total is not None
            running = accumulator_dtype(o.total, o.dtype)
            start = identity_text(o.total, running)
            sizes = [f"n{i[1:]}" for i in self._inner_index(o)]
            if sizes:
                shape = ", ".join(sizes) + "," * (len(sizes) == 1)
                start = f"np.full(({shape}), {start}, np.{numpy_name(running)})"
            self.out(f"total{o.output} = {start}")

    def _add_total(self, o: Output, held: str) -> None:
        assert o.total is not None
        running = accumulator_dtype(o.total, o.dtype)
        node = self.nest.nodes[o.source]
        value = self._widened(f"v{o.source}", o.dtype, running)
        if node.kind == "fold" and accumulator_dtype(node.name, node.dtype) == running:
            value = f"acc{o.source}"  # not rounded
        self.out(f"{held} = {fold_text(o.total, running, held, value, self.helpers)}")

    def _close_totals(self) -> None:
        for o in self.nest.totals:
            assert o.total is not None
            running = accumulator_dtype(o.total, o.dtype)
            name, index = self.outputs[o]
            self.out.depth = 1
            for i in index:
                self.out(f"for {i} in range(n{i[1:]}):")
                self.out.depth += 1
            value = narrowed(element(f"total{o.output}", index) if index else f"total{o.output}",
                             running, o.dtype, self.helpers)  # fmt: skip
            self.out(store_text(element(name, index), value, o.dtype, self.helpers))
