"""Row kernels as pseudo-code for people: rows, passes, what is kept in between."""

from __future__ import annotations

from weft.codegen.nests.nest import affine
from weft.codegen.nests.row_passes import Pass, Schedule, schedule
from weft.codegen.nests.rows import COLUMNS, Output, RowNest


def describe_rows(nest: RowNest) -> str:
    """The whole kernel; its first line counts the passes and says what is kept where."""
    plan = schedule(nest)
    lines = [f"kernel {nest.name}  # {nest.key}", f"  # {summary(nest, plan)}"]
    for k in range(nest.outer):
        lines.append("  " * (k + 1) + f"for i{k} in range({nest.extents[k]}):  # rows")
    pad = "  " * (nest.outer + 1)
    for p, nodes in enumerate(plan.row_nodes):
        lines += [pad + nest.describe_node(n) for n in nodes]
        if p < len(plan.passes):
            lines += _describe_pass(nest, plan, plan.passes[p], pad)
    lines += [pad + _describe_output(nest, o) for o in (*plan.row_stores, *plan.row_totals)]
    return "\n".join(lines)


def summary(nest: RowNest, plan: Schedule) -> str:
    """`row kernel: 3 passes over each row; v7 (exp) kept in out0's row`."""
    count = len(plan.passes)
    what = f"each block of {COLUMNS} columns" if nest.by_columns else "each row"
    text = f"row kernel: {count} pass{'es' if count != 1 else ''} over {what}"
    one = "one block" if nest.by_columns else "one row"
    for n, held in plan.kept.items():
        where = f"scratch of {one}" if held is None else f"out{held.output}'s row"
        node = nest.nodes[n]
        text += f"; v{n} ({node.name or 'load'}) kept in {where}"
    return text


def _describe_pass(nest: RowNest, plan: Schedule, step: Pass, pad: str) -> list[str]:
    lines = []
    for k in range(nest.outer, len(nest.extents)):
        lines.append(pad + f"for i{k} in range({nest.extents[k]}):")
        pad += "  "
    for n in step.compute:
        note = "  # kept by an earlier pass" if n in step.reload else ""
        lines.append(pad + nest.describe_node(n) + note)
    for n in step.folds:
        node = nest.nodes[n]
        lines.append(pad + f"v{n} = {node.name}(v{n}, v{node.args[0]})")
    return lines + [pad + _describe_output(nest, o) for o in (*step.stores, *step.totals)]


def _describe_output(nest: RowNest, o: Output) -> str:
    where = f"out{o.output}[{affine(0, o.strides)}]"
    return (
        f"{where} = v{o.source}"
        if o.total is None
        else f"{where} = {o.total}({where}, v{o.source})"
    )
