"""Ops that move elements, by copies or by index, as Numba source.

Copies are loop nests over raw bits. `take` and its kin see their operand as (outer, size, inner),
`gather_nd` and `scatter_nd_*` as rows that a tuple of indices numbers. Each index is checked: one
out of bounds is reported, and its elements are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.codegen.call import Address
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.nests.nest import Access, Nest, Store, simplify_nest
from weft.codegen.numba.nests import nest_source
from weft.codegen.numba.scalars import scalar_text
from weft.codegen.numba.source import (
    KernelSource,
    Lines,
    Number,
    Param,
    View,
    load_text,
    stored,
)
from weft.ir.analysis.index_maps import contiguous_strides, index_sizes
from weft.ir.cost.rates import streamed
from weft.ir.graph import Operation, Value
from weft.ir.ops.data_movement import COMBINES
from weft.ir.spec import int_attr, ints_attr, static_attr

#: An op's kernels, in order. True: the result lies where the first operand does.
Printer = Callable[[Operation, bool], list[KernelSource]]
#: The dtype that stands for elements of so many bytes.
_RAW = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "c128"}


def dense(
    name: str, value: Value, shape: Sequence[int] | None = None, *, written: bool = False,
    dtype: str | None = None,
) -> View:  # fmt: skip
    """A value as an array of `shape` (its own if None), which lies row by row."""
    known = tensor(value)
    sizes = tuple(known.static_shape if shape is None else shape)
    return View(name, dtype or known.dtype.short, Address(value), sizes, contiguous_strides(sizes),
                written)  # fmt: skip


def template(
    key: str, name: str, params: Sequence[Param], text: str, helpers: set[str], *,
    checks: bool = False, units: int | None = None, nanoseconds: float = 0.0, **values: str,
) -> KernelSource:  # fmt: skip
    """A kernel whose body is written out: `$name` in `text` becomes a value."""
    out = Lines()
    out.many(text, **values)
    return KernelSource(
        key, name, tuple(params), tuple(out.lines), frozenset(helpers), checks, units, nanoseconds
    )


def load(array: str, dtype: str, helpers: set[str]) -> Callable[[str], str]:
    """`in0[i]` as a value, given the index."""

    def text(index: str) -> str:
        return load_text(f"{array}[{index}]", dtype, helpers)

    return text


# ------------------------------------------------------------------------------------------- copies
def copy_source(
    shape: Sequence[int], itemsize: int, source: tuple[Address, Sequence[int]],
    target: tuple[Address, Sequence[int]],
) -> KernelSource:  # fmt: skip
    """Copy `shape` elements between (address, strides in elements) pairs."""
    raw = _RAW[itemsize]
    read, write = Access(0, raw, 0, tuple(source[1])), Store(0, raw, ("load", 0), None,
                                                             tuple(target[1]))  # fmt: skip
    flags = (False,) * len(shape)
    nest = Nest("strided_copy", tuple(shape), flags, (read,), (), (write,))
    return nest_source(simplify_nest(nest), [(target[0], 0)], [(source[0], 0)])


def _whole(source: Value, target: Value) -> KernelSource:
    shape, walk = tensor(source).static_shape, contiguous_strides(tensor(source).static_shape)
    return copy_source(
        shape, tensor(source).dtype.itemsize, (Address(source), walk), (Address(target), walk)
    )


def concat(op: Operation, in_place: bool) -> list[KernelSource]:
    """A copy for each operand that has elements."""
    axis = int_attr(op.attrs, "axis")
    out, itemsize = tensor(op.result).static_shape, tensor(op.result).dtype.itemsize
    into, offset, made = contiguous_strides(out), 0, []
    for operand in op.operands:
        shape = tensor(operand).static_shape
        if 0 not in shape:
            source = (Address(operand), contiguous_strides(shape))
            made.append(copy_source(shape, itemsize, source, (Address(op.result, offset), into)))
        offset += shape[axis] * math.prod(out[axis + 1 :]) * itemsize
    return made


def pad(op: Operation, in_place: bool) -> list[KernelSource]:
    """Fill with the scalar, then copy the operand into its place."""
    x, fill = op.operands
    out, itemsize = tensor(op.result).static_shape, tensor(op.result).dtype.itemsize
    into, shape = contiguous_strides(out), tensor(x).static_shape
    still = (0,) * len(out)
    made = [copy_source(out, itemsize, (Address(fill), still), (Address(op.result), into))]
    lo = ints_attr(op.attrs, "lo")
    offset = sum(a * s for a, s in zip(lo, into, strict=True)) * itemsize
    if 0 not in shape:
        source = (Address(x), contiguous_strides(shape))
        made.append(copy_source(shape, itemsize, source, (Address(op.result, offset), into)))
    return made


def slice_update(op: Operation, in_place: bool) -> list[KernelSource]:
    """Copy the operand, then the update into its slice."""
    x, update = op.operands
    itemsize, whole = tensor(x).dtype.itemsize, contiguous_strides(tensor(x).static_shape)
    starts: tuple[int, ...] = op.attrs["starts"]  # type: ignore[assignment]
    offset = sum(a * s for a, s in zip(starts, whole, strict=True)) * itemsize
    steps = ints_attr(op.attrs, "steps")
    into = tuple(s * t for s, t in zip(whole, steps, strict=True))
    shape = tensor(update).static_shape
    made = [] if in_place else [_whole(x, op.result)]
    if 0 not in shape:
        source = (Address(update), contiguous_strides(shape))
        made.append(copy_source(shape, itemsize, source, (Address(op.result, offset), into)))
    return made


def dim_size(op: Operation, in_place: bool) -> list[KernelSource]:
    """The size is known when the plan is made."""
    size = tensor(op.operands[0]).static_shape[int_attr(op.attrs, "axis")]
    params: list[Param] = [dense("out", op.result, written=True), Number("size", size)]
    return [template("numba-dim-size", "dim_size", params, "out[0] = size", set())]


def copy_bytes(target: Address, source: Address, nbytes: int) -> KernelSource:
    """Bytes from one buffer to another, which may be the same."""
    params = [
        View("target", "u8", target, (nbytes,), (1,), True), View("source", "u8", source, (nbytes,),
                                                                  (1,)),
    ]  # fmt: skip
    text = "for i in range(lo, hi):\n    target[i] = source[i]"
    return template("numba-copy-bytes", "copy", params, text, set(), units=nbytes,
                    nanoseconds=streamed(2 * nbytes) / max(nbytes, 1))  # fmt: skip


# ----------------------------------------------------------------------------------------- by index
def check_indices(gather: Operation, index: Value) -> KernelSource:
    """Only looks at the indices of a gather or scatter."""
    sizes, dtype = index_sizes(gather), tensor(index).dtype.short
    rows = math.prod(tensor(index).static_shape) // max(len(sizes), 1)
    params: list[Param] = [dense("index", index, (rows, len(sizes)))]
    params += [Number(f"size{k}", n) for k, n in enumerate(sizes)] + [Number("rows", rows)]
    lines = ["for r in range(rows):"]
    for k in range(len(sizes)):
        lines.append(f"    if wrapped(index[r, {k}], size{k}) < 0:")
        lines.append(f"        fault(faults, r * {len(sizes)} + {k}, index[r, {k}], 0)")
    text = "\n".join([*lines, *["    pass"] * (not sizes)])
    return template(f"numba-check-{dtype}-{len(sizes)}", "check_indices", params, text,
                    {"wrapped", "fault"}, checks=True)  # fmt: skip


def along_axis(op: Operation, in_place: bool) -> list[KernelSource]:
    """take, index_add, take_along_axis, scatter_along_axis_add."""
    x, index = op.operands[:2]
    axis = int_attr(op.attrs, "axis")
    shape, picks = tensor(x).static_shape, tensor(index).static_shape
    along = op.name in ("take_along_axis", "scatter_along_axis_add")
    n = picks[axis] if along else math.prod(picks)
    outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    gather = len(op.operands) == 2
    data, other = (x, op.result) if gather else (op.result, op.operands[2])
    places = (outer, n, inner)
    params: list[Param] = [
        dense("data", data, (outer, size, inner), written=not gather),
        dense("index", index, places if along else (n,)),
        dense("out" if gather else "updates", other, places, written=gather),
        *(Number(k, v) for k, v in zip(("outer", "size", "inner", "n"), (outer, size, inner, n),
                                       strict=True)),
    ]  # fmt: skip
    helpers = {"wrapped", "fault"}
    meet = _meet(op, "data[o, at, i]", "[o, j, i]", helpers)
    if along:
        text = f"""
        for o in range(outer):
            for j in range(n):
                for i in range(inner):
                    at = wrapped(index[o, j, i], size)
                    if at < 0:
                        fault(faults, (o * n + j) * inner + i, index[o, j, i], 0)
                    else:
                        {meet}"""
    else:
        text = f"""
        for j in range(n):
            at = wrapped(index[j], size)
            if at < 0:
                fault(faults, j, index[j], 0)
            else:
                for o in range(outer):
                    for i in range(inner):
                        {meet}"""
    key = f"numba-{op.name}-{tensor(x).dtype.short}-{tensor(index).dtype.short}"
    return _indexed(op, in_place, template(key, op.name, params, text, helpers, checks=True))


def _indexed(op: Operation, in_place: bool, kernel: KernelSource) -> list[KernelSource]:
    """With the copy of the operand before what updates it, and checks before both: what is wrong
    leaves variables as they are."""
    x, index = op.operands[:2]
    if len(op.operands) == 2:
        return [kernel]
    first = [check_indices(op, index)]
    return [*first, *([] if in_place else [_whole(x, op.result)]), kernel]


def _meet(op: Operation, data: str, place: str, helpers: set[str]) -> str:
    """The statement that moves an element, or combines one with what is there."""
    dtype = tensor(op.operands[0]).dtype.short
    if len(op.operands) == 2:
        return f"out{place} = {data}"
    combine = COMBINES[op.name]
    if combine is None:
        return f"{data} = updates{place}"
    held, value = (load_text(x, dtype, helpers) for x in (data, f"updates{place}"))
    made = scalar_text(combine, dtype, [held, value], dtype, helpers)
    return f"{data} = {stored(made, dtype, helpers)}"


def by_rows(op: Operation, in_place: bool) -> list[KernelSource]:
    """gather_nd and scatter_nd_*."""
    x, index = op.operands[:2]
    shape, picks = tensor(x).static_shape, tensor(index).static_shape
    depth, rows, inner = picks[-1], math.prod(picks[:-1]), math.prod(shape[picks[-1] :])
    gather = len(op.operands) == 2
    data, other = (x, op.result) if gather else (op.result, op.operands[2])
    helpers = {"wrapped", "fault"}
    params: list[Param] = [
        dense("data", data, (math.prod(shape[:depth]), inner), written=not gather),
        dense("index", index, (rows, depth)),
        dense("out" if gather else "updates", other, (rows, inner), written=gather),
        Number("rows", rows), Number("inner", inner),
        *(Number(f"size{k}", shape[k]) for k in range(depth)),
    ]  # fmt: skip
    lines = ["for r in range(rows):", "    row, good = int64(0), True"]
    for k in range(depth):
        lines += [
            f"    at = wrapped(index[r, {k}], size{k})",
            "    if at < 0:",
            f"        fault(faults, r * {depth} + {k}, index[r, {k}], 0)",
            "        good = False",
            f"    row = row * size{k} + at",
        ]
    lines += ["    if good:", "        for i in range(inner):"]
    lines += [f"            {_meet(op, 'data[row, i]', '[r, i]', helpers)}"]
    key = f"numba-{op.name}-{tensor(x).dtype.short}-{tensor(index).dtype.short}-{depth}"
    made = template(key, op.name, params, "\n".join(lines), helpers, checks=True)
    return _indexed(op, in_place, made)


def first_occurrence(op: Operation, in_place: bool) -> list[KernelSource]:
    """From the last index to the first each notes its place: of equal ones the first is left."""
    index, size = op.operands[0], int_attr(op.attrs, "size")
    n = tensor(index).static_shape[0]
    params: list[Param] = [
        dense("out", op.result, written=True), dense("index", index), Number("size", size),
        Number("n", n),
    ]  # fmt: skip
    text = """
    first = np.empty(max(size, 1), np.int64)
    good = True
    for k in range(n):
        j = n - 1 - k
        at = wrapped(index[j], size)
        if at < 0:
            fault(faults, j, index[j], 0)
            good = False
        else:
            first[at] = j
    if good:
        for j in range(n):
            out[j] = first[wrapped(index[j], size)]"""
    key = f"numba-first-occurrence-{tensor(index).dtype.short}"
    return [template(key, op.name, params, text, {"wrapped", "fault"}, checks=True)]


def sparse_matmul(op: Operation, in_place: bool) -> list[KernelSource]:
    """Entry by entry, in their order."""
    x, entries, values = op.operands
    shape, (n, _) = tensor(x).static_shape, tensor(entries).static_shape
    rows, row, width = tensor(op.result).static_shape[0], int_attr(op.attrs, "row"), shape[1:]
    params: list[Param] = [
        dense("out", op.result, (rows, *width), written=True), dense("x", x, (shape[0], *width)),
        dense("entries", entries, (n, 2)), dense("values", values, (n,)), Number("rows", rows),
        Number("inner", shape[0]), Number("n", n),
    ]  # fmt: skip
    sizes = ["rows", "inner"] if row == 0 else ["inner", "rows"]
    at = ", i" if width else ""
    text = f"""
    out[:] = 0
    good = True
    for k in range(n):
        a = wrapped(entries[k, 0], {sizes[0]})
        b = wrapped(entries[k, 1], {sizes[1]})
        if a < 0:
            fault(faults, 2 * k, entries[k, 0], 0)
            good = False
        if b < 0:
            fault(faults, 2 * k + 1, entries[k, 1], 0)
            good = False
        if good:
            r, c = {"a, b" if row == 0 else "b, a"}
            {"for i in range(x.shape[1]):" if width else "if True:"}
                out[r{at}] += values[k] * x[c{at}]"""
    kind = f"{tensor(x).dtype.short}-{tensor(entries).dtype.short}-{len(shape)}-{row}"
    key = f"numba-sparse-matmul-{kind}"
    return [template(key, op.name, params, text, {"wrapped", "fault"}, checks=True)]


#: The entries of both by rows, then the pairs and the places of each row.
_PADDED_PAIRS = """
    lines = np.zeros(rows + 2, np.int64)
    starts = np.zeros(inner + 2, np.int64)
    entries = np.empty(n, np.int64)
    order = np.empty(m, np.int64)
    for k in range(n):
        if 0 <= a[k, 0] < rows and 0 <= a[k, 1] < inner:
            lines[a[k, 0] + 2] += 1
    for k in range(m):
        if 0 <= b[k, 0] < inner and 0 <= b[k, 1] < columns:
            starts[b[k, 0] + 2] += 1
    for k in range(rows):
        lines[k + 2] += lines[k + 1]
    for k in range(inner):
        starts[k + 2] += starts[k + 1]
    for k in range(n):
        if 0 <= a[k, 0] < rows and 0 <= a[k, 1] < inner:
            entries[lines[a[k, 0] + 1]] = k
            lines[a[k, 0] + 1] += 1
    for k in range(m):
        if 0 <= b[k, 0] < inner and 0 <= b[k, 1] < columns:
            order[starts[b[k, 0] + 1]] = k
            starts[b[k, 0] + 1] += 1
    marks = np.empty(columns + 1, np.int64)
    pairs = 0
    places = 0
    for r in range(rows):
        first = pairs
        for e in range(lines[r], lines[r + 1]):
            i = entries[e]
            for t in range(starts[a[i, 1]], starts[a[i, 1] + 1]):
                if pairs < room:
                    left[pairs] = i
                    right[pairs] = order[t]
                    place[pairs] = b[order[t], 1]
                    pairs += 1
        met = np.sort(place[first:pairs])
        for k in range(met.size):
            if k == 0 or met[k] != met[k - 1]:
                marks[met[k]] = places
                indices[places, 0] = r
                indices[places, 1] = met[k]
                places += 1
        for k in range(first, pairs):
            place[k] = marks[place[k]]
    for k in range(pairs, room):
        left[k] = 0
        right[k] = 0
        place[k] = room - 1
    for k in range(places, room):
        indices[k, 0] = rows
        indices[k, 1] = columns"""


def padded_pairs(op: Operation, in_place: bool) -> list[KernelSource]:
    """Row by row of the first matrix: the pairs, and then their columns in order."""
    a, b = op.operands[:2]
    n, m, room = tensor(a).static_shape[0], tensor(b).static_shape[0], int_attr(op.attrs, "room")
    names = ("indices", "left", "right", "place")
    params: list[Param] = [
        dense(name, v, written=True) for name, v in zip(names, op.results, strict=True)
    ]
    params += [dense("a", a, (n, 2)), dense("b", b, (m, 2)), Number("n", n), Number("m", m),
               Number("room", room)]  # fmt: skip
    sizes = zip(("rows", "inner", "columns"), static_attr(op.attrs, "shape"), strict=True)
    params += [Number(name, size) for name, size in sizes]
    return [template("numba-sparse-pairs-padded", op.name, params, _PADDED_PAIRS, set())]


PRINTERS: dict[str, Printer] = {
    "sparse_matmul": sparse_matmul, "sparse_pairs_padded": padded_pairs,
    "concat": concat, "pad": pad, "slice_update": slice_update, "dim_size": dim_size,
    "take": along_axis, "index_add": along_axis, "take_along_axis": along_axis,
    "scatter_along_axis_add": along_axis, "first_occurrence": first_occurrence,
    **dict.fromkeys(
        ("gather_nd", "scatter_nd_add", "scatter_nd_update", "scatter_nd_min", "scatter_nd_max"),
        by_rows,
    ),
}  # fmt: skip
