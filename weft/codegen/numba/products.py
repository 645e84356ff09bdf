"""Products as Numba source: the loops of their definition, readable and slow.

A matmul is a loop nest over rows, columns and what it sums over. A `fused` op with a product is
three kernels at most: what computes an operand, the product, what follows it; between them values
are in scratch memory. Convolutions and pooling loop over the positions of a window (`weft.ir.ops.
windows`), attention over the scores of one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.call import Address, Scratch
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.nests.nest import Access, Nest, Statement, Store, build_nest, simplify_nest
from weft.codegen.numba.nests import Place, nest_source
from weft.codegen.numba.scalars import (
    accumulator_dtype,
    fold_text,
    identity_text,
    narrowed,
    scalar_text,
)
from weft.codegen.numba.source import (
    HALVES,
    KernelSource,
    Number,
    Param,
    View,
    numpy_name,
    stored,
)
from weft.codegen.numba.structural import Printer, dense, load, template
from weft.codegen.products.calls import (
    alone,
    product_in,
    result_strides,
    unconverted,
    without_product,
)
from weft.codegen.windows.geometry import Triple, sizes_of, triple
from weft.ir.analysis.index_maps import Read, contiguous_strides, read_of
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Operation, Value
from weft.ir.spec import int_attr, ints_attr


# ------------------------------------------------------------------------------------------- matmul
def matmul(op: Operation, in_place: bool) -> list[KernelSource]:
    """A product of matrices that are in memory."""
    reads = [_Operand((Address(v), 0), Read(v, 0, contiguous_strides(tensor(v).static_shape)),
                      tensor(v).dtype.short) for v in op.operands]  # fmt: skip
    into = contiguous_strides(tensor(op.result).static_shape)
    return [_matmul(op, reads, (Address(op.result), 0), into)]


class _Operand:
    """An operand of a product: where it is, how it is walked, and the dtype that it has there."""

    def __init__(self, place: Place, read: Read, dtype: str) -> None:
        self.place, self.read, self.dtype = place, read, dtype


def _matmul(
    op: Operation, operands: Sequence[_Operand], out: Place, strides: Sequence[int]
) -> KernelSource:
    """The nest over the batch, rows, columns, and k."""
    *batch, m, n = tensor(op.result).static_shape
    turned = bool(op.attrs["transpose_a"]), bool(op.attrs["transpose_b"])
    k = tensor(op.operands[0]).static_shape[-2 if turned[0] else -1]
    dtype = tensor(op.result).dtype.short
    wide = "f32" if dtype in HALVES else dtype
    loads: list[Access] = []
    statements: list[Statement] = []
    args: list[tuple[str, int]] = []
    for number, given in enumerate(operands):
        walk = given.read.strides
        lead = (0,) * (len(batch) - len(walk) + 2) + tuple(walk[:-2])
        rows, columns = walk[-2:][:: -1 if turned[number] else 1]
        steps = (rows, 0, columns) if number == 0 else (0, columns, rows)
        loads.append(Access(number, given.dtype, given.read.offset, (*lead, *steps)))
        args.append(("load", number))
        if given.dtype != wide:
            args[-1] = ("value", len(statements))
            statements.append(Statement("astype", given.dtype, (("load", number),), wide))
    statements.append(Statement("multiply", wide, tuple(args), wide))
    store = Store(0, dtype, ("value", len(statements) - 1), "sum", (*strides, 0))
    extents, reduced = (*batch, m, n, k), (False,) * (len(batch) + 2) + (True,)
    nest = Nest("matmul", extents, reduced, tuple(loads), tuple(statements), (store,))
    nest = simplify_nest(nest)
    return nest_source(nest, [out], [given.place for given in operands])


def fused_product(op: Operation, in_place: tuple[tuple[int, int], ...]) -> list[KernelSource]:
    """The kernels of a `fused` op that holds a product."""
    product = product_in(op)
    places = [(Address(v), 0) for v in op.operands]
    memory = _Scratch()
    first: list[KernelSource] = []
    operands = [_operand(op, product, v, places, memory, first) for v in product.operands]
    strides = result_strides(op) if product.name == "matmul" else None
    if strides is not None:
        return memory.settle([*first, _matmul(product, operands, (Address(op.result), 0), strides)])
    made = tensor(product.result)
    held = memory.place(made.nbytes)
    if product.name == "matmul":
        into = contiguous_strides(made.static_shape)
        main = _matmul(product, operands, held, into)
    else:
        main = _convolution(product, [o.place for o in operands], held)
    rest, _ = without_product(op)
    nest = build_nest(rest, in_place)
    after = nest_source(nest, [(Address(v), 0) for v in op.results], [*places, held])
    return memory.settle([*first, main, after])


class _Scratch:
    """Scratch memory of one op: values at offsets."""

    def __init__(self) -> None:
        self.nbytes = 0

    def place(self, nbytes: int) -> Place:
        at, self.nbytes = self.nbytes, self.nbytes + (nbytes + 63) // 64 * 64
        return Scratch(0), at

    def settle(self, kernels: Sequence[KernelSource]) -> list[KernelSource]:
        """The kernels, all of which have the whole."""
        whole = Scratch(self.nbytes)

        def filled(p: Param) -> Param:
            if isinstance(p, View) and isinstance(p.address, Scratch):
                return replace(p, address=whole)
            return p

        return [replace(k, params=tuple(filled(p) for p in k.params)) for k in kernels]


def _operand(
    op: Operation, product: Operation, value: Value, places: Sequence[Place], memory: _Scratch,
    first: list[KernelSource],
) -> _Operand:  # fmt: skip
    """Where an operand of the product is; `first` gets the kernel that makes it, if one must."""
    args = op.regions[0].args
    given = unconverted(value) if product.name == "matmul" else value
    read = read_of(given)
    whole = contiguous_strides(tensor(given).static_shape)
    there = read.source in args
    if there and (product.name == "matmul" or (read.offset, tuple(read.strides)) == (0, whole)):
        return _Operand(places[args.index(read.source)], read, tensor(given).dtype.short)
    place = memory.place(tensor(value).nbytes)
    first.append(nest_source(build_nest(alone(op, value)), [place], places))
    walk = contiguous_strides(tensor(value).static_shape)
    return _Operand(place, Read(value, 0, walk), tensor(value).dtype.short)


# ------------------------------------------------------------------------------------- convolutions
_AXES = range(3)


def _sliding(strides: Triple, lo: Triple, dilation: Triple) -> list[Param]:
    rows = (("stride", strides), ("dilation", dilation), ("lo", lo))
    return [Number(f"{name}{k}", row[k]) for name, row in rows for k in _AXES]


#: The position of the large side that tap k and position o of the small side meet at.
_MEET = """
{pad}p{k} = o{k} * stride{k} + k{k} * dilation{k} - lo{k}
{pad}if p{k} < 0 or p{k} >= large{k}:
{pad}    continue"""


def _loops(depth: int, names: Sequence[tuple[str, str]]) -> tuple[str, int]:
    """`for` lines for each (name, extent), and the depth inside."""
    lines = []
    for name, extent in names:
        lines.append("    " * depth + f"for {name} in range({extent}):")
        depth += 1
    return "\n".join(lines), depth


def _taps(depth: int) -> tuple[str, int]:
    """Loops over the taps of a window, left where they meet nothing."""
    text = ""
    for k in _AXES:
        text += "\n" + "    " * depth + f"for k{k} in range(window{k}):"
        depth += 1
        text += _MEET.format(pad="    " * depth, k=k)
    return text, depth


def _convolution(op: Operation, operands: Sequence[Place], out: Place) -> KernelSource:
    """conv, conv_input and conv_kernel: sums of x[n, p, g, i] w[k, i, g, j] over two of the three
    sides; y is [n, o, g, j]."""
    s = sizes_of(op)
    helpers: set[str] = set()
    running = accumulator_dtype("sum", s.dtype)
    shapes = {
        "x": (s.batch, *s.large, s.groups, s.inside),
        "w": (*s.window, s.inside, s.groups, s.outside),
        "y": (s.batch, *s.small, s.groups, s.outside),
    }
    index = {"x": "n, p0, p1, p2, g, i", "w": "k0, k1, k2, i, g, j", "y": "n, o0, o1, o2, g, j"}
    made = {"conv": "y", "conv_input": "x", "conv_kernel": "w"}[op.name]
    given = {"conv": "xw", "conv_input": "yw", "conv_kernel": "xy"}[op.name]
    places = {**dict(zip(given, operands, strict=True)), made: out}
    params: list[Param] = [
        View(v, s.dtype, places[v][0], shapes[v], contiguous_strides(shapes[v]), v == made,
             places[v][1]) for v in (made, *given)
    ]  # fmt: skip
    numbers = {"batch": s.batch, "groups": s.groups, "inside": s.inside, "outside": s.outside}
    numbers |= {f"{name}{k}": row[k] for k in _AXES for name, row in
                (("large", s.large), ("window", s.window), ("small", s.small))}  # fmt: skip
    params += [Number(k, v) for k, v in numbers.items()] + _sliding(s.strides, s.lo, s.dilation)
    wide = [f"{numpy_name(running)}({load(v, s.dtype, helpers)(index[v])})" for v in given]
    term = scalar_text("multiply", running, wide, running, helpers)
    text = _CONVOLUTIONS[op.name](running, term, helpers)
    end = "acc" if op.name == "conv" else "total[" + index[made].removeprefix("n, ") + "]"
    value = stored(narrowed(end, running, s.dtype, helpers), s.dtype, helpers)
    text = text.replace("STORE", f"{made}[{index[made]}] = {value}")
    each = s.multiply_adds / max(s.batch, 1)
    units = None if op.name == "conv_kernel" else s.batch
    return template(f"numba-{op.name}-{s.dtype}", op.name, params, text, helpers, units=units,
                    nanoseconds=each)  # fmt: skip


_SMALL = [(f"o{k}", f"small{k}") for k in _AXES]
_LARGE = [(f"p{k}", f"large{k}") for k in _AXES]


def _sum_of_taps(running: str, term: str, helpers: set[str]) -> str:
    """conv: each element is a sum over the taps and the input channels."""
    head, depth = _loops(0, [("n", "lo, hi"), *_SMALL, ("g", "groups"), ("j", "outside")])
    taps, inside = _taps(depth)
    pad, deep = "    " * depth, "    " * inside
    return "\n".join([
        head, f"{pad}acc = {identity_text('sum', running)}" + taps,
        f"{deep}for i in range(inside):",
        f"{deep}    acc = {fold_text('sum', running, 'acc', term, helpers)}", f"{pad}STORE",
    ])  # fmt: skip


def _spread_of_taps(running: str, term: str, helpers: set[str]) -> str:
    """conv_input: each element of y is added, times w, at all positions that its window sees."""
    head, depth = _loops(1, [*_SMALL, ("g", "groups"), ("j", "outside")])
    taps, inside = _taps(depth)
    deep, held = "    " * inside, "total[p0, p1, p2, g, i]"
    last, end = _loops(1, [*_LARGE, ("g", "groups"), ("i", "inside")])
    sizes = "large0, large1, large2, groups, inside"
    return "\n".join([
        "for n in range(lo, hi):",
        f"    total = np.zeros(({sizes}), np.{numpy_name(running)})", head + taps,
        f"{deep}for i in range(inside):",
        f"{deep}    {held} = {fold_text('sum', running, held, term, helpers)}", last,
        "    " * end + "STORE",
    ])  # fmt: skip


def _products_of_taps(running: str, term: str, helpers: set[str]) -> str:
    """conv_kernel: for each tap the sum of the products of what meets there."""
    head, depth = _loops(0, [("n", "batch"), *_SMALL])
    taps, inside = _taps(depth)
    rest, deep = _loops(inside, [("i", "inside"), ("g", "groups"), ("j", "outside")])
    held = "total[k0, k1, k2, i, g, j]"
    last, end = _loops(0, [*((f"k{k}", f"window{k}") for k in _AXES), ("i", "inside"),
                           ("g", "groups"), ("j", "outside")])  # fmt: skip
    sizes = "window0, window1, window2, inside, groups, outside"
    return "\n".join([
        f"total = np.zeros(({sizes}), np.{numpy_name(running)})", head + taps, rest,
        "    " * deep + f"{held} = {fold_text('sum', running, held, term, helpers)}", last,
        "    " * end + "STORE",
    ])  # fmt: skip


_CONVOLUTIONS = {
    "conv": _sum_of_taps, "conv_input": _spread_of_taps, "conv_kernel": _products_of_taps,
}  # fmt: skip


def conv(op: Operation, in_place: bool) -> list[KernelSource]:
    """A convolution of arrays that are in memory."""
    return [_convolution(op, [(Address(v), 0) for v in op.operands], (Address(op.result), 0))]


_Shapes = dict[str, tuple[int, ...]]


def windows(op: Operation, in_place: bool) -> list[KernelSource]:
    """Pooling: window_sum, window_spread, window_max, window_pick, window_place."""
    attrs, dtype = op.attrs, tensor(op.result).dtype.short
    window = triple(ints_attr(attrs, "window"), 1)
    spread = op.name == "window_spread"
    first, last = tensor(op.operands[0]).static_shape, tensor(op.result).static_shape
    if op.name == "window_place":
        last = tensor(op.operands[1]).static_shape
    large, small = (last, first) if spread else (first, last)
    sizes = {"batch": first[0], "channels": first[-1]}
    big, little = triple(large[1:-1], 1), triple(small[1:-1], 1)
    for k in _AXES:
        sizes |= {f"large{k}": big[k], f"window{k}": window[k], f"small{k}": little[k]}
    whole: _Shapes = {"x": (first[0], *big, first[-1]), "y": (first[0], *little, first[-1])}
    helpers: set[str] = set()
    views, text = _WINDOWS[op.name](op, whole, dtype, helpers)
    sliding = [triple(ints_attr(attrs, n), f) for n, f in
               (("strides", 1), ("lo", 0), ("dilation", 1))]  # fmt: skip
    params = [*views, *(Number(k, v) for k, v in sizes.items()), *_sliding(*sliding)]
    return [template(f"numba-{op.name}-{dtype}", op.name, params, text, helpers)]


_AT = {"x": "n, p0, p1, p2, c", "y": "n, o0, o1, o2, c"}


def _window_sum(
    op: Operation, whole: _Shapes, dtype: str, helpers: set[str]
) -> tuple[list[Param], str]:
    running = accumulator_dtype("sum", dtype)
    spread = op.name == "window_spread"
    head, depth = _loops(0, [("n", "batch"), *_SMALL, ("c", "channels")])
    taps, inside = _taps(depth)
    given, made = ("y", "x") if spread else ("x", "y")
    value = f"{numpy_name(running)}({load(given, dtype, helpers)(_AT[given])})"
    held = "total[n, p0, p1, p2, c]" if spread else "acc"
    step = "    " * inside + f"{held} = {fold_text('sum', running, held, value, helpers)}"
    end = stored(narrowed(held, running, dtype, helpers), dtype, helpers)
    if spread:
        last, deep = _loops(0, [("n", "batch"), *_LARGE, ("c", "channels")])
        zero = f"np.zeros((batch, large0, large1, large2, channels), np.{numpy_name(running)})"
        lines = [
            f"total = {zero}",
            head + taps,
            step,
            last,
            "    " * deep + f"x[{_AT['x']}] = {end}",
        ]
    else:
        pad = "    " * depth
        lines = [head, f"{pad}acc = {identity_text('sum', running)}" + taps, step,
                 f"{pad}y[{_AT['y']}] = {end}"]  # fmt: skip
    return [
        dense(made, op.result, whole[made], written=True),
        dense(given, op.operands[0], whole[given]),
    ], "\n".join(lines)


def _best(dtype: str, helpers: set[str]) -> tuple[str, int]:
    """Loops that leave the largest element of a window in `best`, and its position in b0, b1, b2
    (`found`: there is one)."""
    head, depth = _loops(0, [
        ("n", "batch"), *((f"o{k}", f"small{k}") for k in _AXES), ("c", "channels"),
    ])  # fmt: skip
    taps, inside = _taps(depth)
    wide = "f32" if dtype in HALVES else dtype
    seen = load("x", dtype, helpers)(_AT["x"])
    nan = " or (seen != seen and best == best)" if as_dtype(dtype).is_floating else ""
    pad, deep = "    " * depth, "    " * inside
    return "\n".join([
        head, f"{pad}best, found = {identity_text('max', wide)}, False",
        f"{pad}b0, b1, b2 = 0, 0, 0" + taps, f"{deep}seen = {seen}",
        f"{deep}if not found or seen > best{nan}:",
        f"{deep}    best, found = seen, True", f"{deep}    b0, b1, b2 = p0, p1, p2",
    ]), depth  # fmt: skip


def _window_best(
    op: Operation, whole: _Shapes, dtype: str, helpers: set[str]
) -> tuple[list[Param], str]:
    text, depth = _best(dtype, helpers)
    pad = "    " * depth
    x = dense("x", op.operands[0], whole["x"])
    if op.name == "window_max":
        y = dense("y", op.result, whole["y"], written=True)
        return [y, x], f"{text}\n{pad}y[{_AT['y']}] = {stored('best', dtype, helpers)}"
    if op.name == "window_pick":
        y = dense("y", op.result, whole["y"], written=True)
        zero = "uint16(0)" if dtype in HALVES else f"{numpy_name(dtype)}(0)"
        more = f"\n{pad}y[{_AT['y']}] = t[n, b0, b1, b2, c] if found else {zero}"
        return [y, x, dense("t", op.operands[1], whole["x"])], text + more
    running = accumulator_dtype("sum", dtype)
    value = f"{numpy_name(running)}({load('g', dtype, helpers)(_AT['y'])})"
    held = "total[n, b0, b1, b2, c]"
    zero = f"total = np.zeros((batch, large0, large1, large2, channels), np.{numpy_name(running)})"
    last, inner = _loops(0, [
        ("n", "batch"), *((f"p{k}", f"large{k}") for k in _AXES), ("c", "channels"),
    ])  # fmt: skip
    end = stored(narrowed(f"total[{_AT['x']}]", running, dtype, helpers), dtype, helpers)
    text = "\n".join([
        zero, text, f"{pad}if found:",
        f"{pad}    {held} = {fold_text('sum', running, held, value, helpers)}",
        last, "    " * inner + f"out[{_AT['x']}] = {end}",
    ])  # fmt: skip
    out = dense("out", op.result, whole["x"], written=True)
    return [out, x, dense("g", op.operands[1], whole["y"])], text


_WINDOWS = {
    "window_sum": _window_sum, "window_spread": _window_sum, "window_max": _window_best,
    "window_pick": _window_best, "window_place": _window_best,
}  # fmt: skip


# ---------------------------------------------------------------------------------------- attention
def _heads(name: str, value: Value, inner: bool, written: bool = False) -> View:
    """A value as [batch, head, row, column]."""
    shape = tensor(value).static_shape
    if inner:
        *batch, rows, heads, depth = shape
    elif len(shape) > 2:
        *batch, heads, rows, depth = shape
    else:
        (rows, depth), heads, batch = shape, 1, []
    steps = (heads * rows * depth, depth, heads * depth, 1) if inner else (
        heads * rows * depth, rows * depth, depth, 1)  # fmt: skip
    sizes = (math.prod(batch), heads, rows, depth)
    return View(name, tensor(value).dtype.short, Address(value), sizes, steps, written)


def _mask(op: Operation, mask: Value, batch: tuple[int, ...], last: tuple[int, int, int]) -> View:
    """The mask as [batch axes..., head, row, column]: one axis for each, without a stride where it
    is broadcast."""
    own = tensor(mask).static_shape
    wanted = (*batch, *last)
    steps = contiguous_strides(own)
    lead = len(wanted) - len(own)
    strides = [0] * lead + [s if n != 1 else 0 for s, n in zip(steps, own, strict=True)]
    return View("mask", tensor(mask).dtype.short, Address(mask), wanted, tuple(strides))


def _attention_parts(op: Operation, masks: Sequence[Value]) -> tuple[list[Param], str, str, str]:
    """The arrays of query, key and value, the text that makes `scores[j]` of row (b, h, i), the
    condition under which column j is seen, and the numbers' names."""
    inner = bool(op.attrs["heads_inner"])
    query = op.operands[0]
    views = [
        _heads(n, v, inner) for n, v in zip(("query", "key", "value"), op.operands, strict=False)
    ]
    shape = tensor(query).static_shape
    batch = tuple(shape[:-3])
    _, heads, rows, depth = views[0].shape
    columns, width = views[1].shape[2], views[2].shape[3]
    params: list[Param] = list(views)
    kind = numpy_name(tensor(query).dtype.short)
    lines = [
        "for j in range(columns):",
        "    dot = 0.0",
        "    for d in range(depth):",
        "        dot += float64(query[b, h, i, d]) * float64(key[b, h, j, d])",
        f"    score = {kind}(dot) * {kind}({float(op.attrs['scale'])!r})",  # type: ignore[arg-type]
    ]
    if op.attrs["causal"]:
        lines += ["    if j > i:", f"        score = {kind}(-np.inf)"]
    for mask in masks:
        params.append(_mask(op, mask, batch, (heads, rows, columns)) if len(shape) > 2 else
                      _mask(op, mask, (), (1, rows, columns)))  # fmt: skip
        where = ", ".join([*(f"b{k}" for k in range(len(batch))), "h", "i", "j"])
        if tensor(mask).dtype.short == "bool":
            fill = float(op.attrs["fill"])  # type: ignore[arg-type]
            text = f"{kind}({'-np.inf' if fill == -math.inf else repr(fill)})"
            lines += [f"    if not mask[{where}]:", f"        score = {text}"]
        else:
            lines += [f"    score = score + mask[{where}]"]
    lines.append("    scores[j] = score")
    numbers = {"heads": heads, "rows": rows, "columns": columns, "depth": depth, "width": width}
    numbers |= {f"batch{k}": n for k, n in enumerate(batch)}
    params += [Number(k, v) for k, v in numbers.items()]
    indices = []
    rest = "b"
    for k in range(len(batch) - 1, -1, -1):
        indices.append(f"b{k} = {rest} % batch{k}" if k else f"b{k} = {rest}")
        rest = f"{rest} // batch{k}" if rest == "b" else f"({rest}) // batch{k}"
    row = ["i = r % rows", "h = r // rows % heads", "b = r // (rows * heads)"]
    return params, "\n".join([*row, *(indices if masks else []), *lines]), (
        " if j <= i" if op.attrs["causal"] else ""), kind  # fmt: skip


def _indented(text: str, depth: int) -> str:
    return "\n".join("    " * depth + line for line in text.splitlines())


def _attention_key(op: Operation, kind: str, masks: Sequence[Value]) -> str:
    names = [tensor(m).dtype.short for m in masks]
    how = [op.attrs[n] for n in ("scale", "causal", "fill", "heads_inner")]
    rank = len(tensor(op.operands[0]).static_shape)
    return f"numba-{op.name}-{kind}-{how}-{names}-{rank}"


def attention(op: Operation, in_place: bool) -> list[KernelSource]:
    """softmax(scale query key^T, masked) value, row by row, and the logarithm of each row's sum."""
    masks = op.operands[3:]
    params, scores, seen, kind = _attention_parts(op, masks)
    out, sums = op.results
    inner = bool(op.attrs["heads_inner"])
    made = _heads("out", out, inner, True)
    places: list[Param] = [made, View("sums", made.dtype, Address(sums), made.shape[:3],
                                      contiguous_strides(made.shape[:3]), True)]  # fmt: skip
    weight = f"exp(scores[j] - most){seen} else {kind}(0)" if seen else "exp(scores[j] - most)"
    text = "\n".join([
        f"scores = np.empty(columns, np.{kind})", "for r in range(lo, hi):", _indented(scores, 1),
        f"    most = {kind}(-np.inf)", "    for j in range(columns):",
        "        most = maximum(most, scores[j])",
        "    if not isfinite(most):", f"        most = {kind}(0)",
        "    total = 0.0", "    for j in range(columns):",
        f"        scores[j] = {weight}",
        "        total += scores[j]",
        "    for d in range(width):", "        acc = 0.0", "        for j in range(columns):",
        f"            acc += float64(scores[j] / {kind}(total)) * float64(value[b, h, j, d])",
        f"        out[b, h, i, d] = {kind}(acc)",
        f"    sums[b, h, i] = log({kind}(total)) + most",
    ])  # fmt: skip
    units = math.prod(made.shape[:3])
    return [template(_attention_key(op, kind, masks), op.name, [*places, *params], text,
                     {"exp", "log", "maximum", "isfinite"}, units=units,
                     nanoseconds=float(params[1].shape[2] * made.shape[3]))]  # type: ignore[union-attr]  # fmt: skip


def attention_grad(op: Operation, in_place: bool) -> list[KernelSource]:
    """The gradients of attention in query, key and value, row by row."""
    *operands, out, sums, g = op.operands
    masks = operands[3:]
    params, scores, seen, kind = _attention_parts(op, masks)
    inner = bool(op.attrs["heads_inner"])
    made = [_heads(f"d_{n}", v, inner, True) for n, v in
            zip(("query", "key", "value"), op.results, strict=True)]  # fmt: skip
    held = [_heads("out", out, inner), _heads("g", g, inner)]
    shape = held[0].shape[:3]
    logs = View("sums", held[0].dtype, Address(sums), shape, contiguous_strides(shape))
    weight = f"exp(scores[j] - sums[b, h, i]){seen} else {kind}(0)" if seen else (
        "exp(scores[j] - sums[b, h, i])")  # fmt: skip
    masked = []
    if any(tensor(m).dtype.short == "bool" for m in masks):
        where = ", ".join([*(f"b{k}" for k in range(len(tensor(op.operands[0]).static_shape) - 3)),
                           "h", "i", "j"])  # fmt: skip
        masked = [f"        if not mask[{where}]:", "            d_score = 0.0"]
    scale = float(op.attrs["scale"])  # type: ignore[arg-type]
    text = "\n".join([
        f"scores = np.empty(columns, np.{kind})",
        *(f"total_{v.name} = np.zeros(({', '.join(names)}))" for v, names in zip(
            made, (("batch", "heads", "rows", "depth"), ("batch", "heads", "columns", "depth"),
                   ("batch", "heads", "columns", "width")), strict=True)),
        "for r in range(batch * heads * rows):", _indented(scores, 1),
        "    delta = 0.0", "    for d in range(width):",
        "        delta += float64(g[b, h, i, d]) * float64(out[b, h, i, d])",
        "    for j in range(columns):",
        f"        weight = float64({weight})",
        "        d_weight = 0.0", "        for d in range(width):",
        "            d_weight += float64(g[b, h, i, d]) * float64(value[b, h, j, d])",
        f"        d_score = weight * (d_weight - delta) * {scale!r}",
        *(["        if j > i:", "            d_score = 0.0"] if seen else []),
        *masked,
        "        for d in range(depth):",
        "            total_d_query[b, h, i, d] += d_score * float64(key[b, h, j, d])",
        "            total_d_key[b, h, j, d] += d_score * float64(query[b, h, i, d])",
        "        for d in range(width):",
        "            total_d_value[b, h, j, d] += weight * float64(g[b, h, i, d])",
        *_written(made[0], ("rows", "depth"), kind), *_written(made[1], ("columns", "depth"), kind),
        *_written(made[2], ("columns", "width"), kind),
    ])  # fmt: skip
    params = [*made, *held, logs, *params, Number("batch", shape[0])]
    return [template(_attention_key(op, kind, masks), op.name, params, text, {"exp"})]


def _written(view: View, sizes: tuple[str, str], kind: str) -> list[str]:
    rows, columns = sizes
    return [
        "for b in range(batch):", "    for h in range(heads):", f"        for i in range({rows}):",
        f"            for d in range({columns}):",
        f"                {view.name}[b, h, i, d] = {kind}(total_{view.name}[b, h, i, d])",
    ]  # fmt: skip


def quantized(op: Operation, in_place: bool) -> list[KernelSource]:
    """x times quantised weights, element by element of the result."""
    x, weights, scale = op.operands
    m, k = tensor(x).static_shape
    n, groups = tensor(scale).static_shape
    bits, zero = int_attr(op.attrs, "bits"), int_attr(op.attrs, "zero")
    signed = bits == 4 and bool(op.attrs["signed"])
    params: list[Param] = [
        dense("out", op.result, (m, n), written=True), dense("x", x, (m, k)),
        dense("w", weights, (n, k * bits // 8)), dense("scale", scale, (n, groups)),
        Number("columns", n), Number("k", k), Number("run", k // groups),
    ]  # fmt: skip
    if bits == 8:
        number = ["q = int32(w[j, p])"]
    else:
        number = ["q = (int32(w[j, p // 2]) >> (4 * (p % 2))) & 15"]
        number += ["q = q ^ 8"] if signed else []
    text = "\n".join([
        "for r in range(lo, hi):", "    i = r // columns", "    j = r % columns",
        "    total = 0.0", "    for p in range(k):", *(f"        {line}" for line in number),
        f"        number = float32(q - {zero + 8 * signed}) * scale[j, p // run]",
        "        total += float64(x[i, p]) * float64(number)",
        "    out[i, j] = float32(total)",
    ])  # fmt: skip
    kind = f"{tensor(weights).dtype.short}-{bits}-{zero}-{signed:d}"
    return [template(f"numba-quantized-{kind}", op.name, params, text, set(), units=m * n,
                     nanoseconds=float(k))]  # fmt: skip


PRINTERS: dict[str, Printer] = {
    "matmul": matmul,
    **dict.fromkeys(("conv", "conv_input", "conv_kernel"), conv),
    **dict.fromkeys(_WINDOWS, windows),
    "quantized_matmul": quantized,
    "attention": attention,
    "attention_grad": attention_grad,
}
