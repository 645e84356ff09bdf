"""Attention fusion: softmax between two products becomes one op, which stores no scores.

Before::

    %2 = matmul(%q, %k) {transpose_b=true} : f32[2,12,512,512]
    %3 = multiply(%2, %scale) : f32[2,12,512,512]
    %4 = where(%mask, %3, %minus_inf) : f32[2,12,512,512]
    %5 = ... softmax of the last axis of %4: max, subtract, exp, sum, divide ...
    %6 = matmul(%5, %v) : f32[2,12,512,64]

After: ``%6, %7 = attention(%q, %k, %v) {scale=0.125, causal=true}``, where the mask is that of a
causal model; its gradient, which reads the weights %5, becomes ``attention_grad`` with it. Operands
that are permuted from (..., rows, heads, depth) are read as they are. The rules:

* f32 or f64, a softmax of the last axis as `wf.nn.softmax` makes it, with or without its test for
  infinities; before it a multiple of the product, up to one mask (`where` with a number for what is
  hidden, or `add`), and the causal one, which must hide by -inf;
* who else reads a matrix of scores or weights is the gradient in query, key and value: a weight
  that is dropped out or returned, or the gradient in an added mask, leaves all as it is.

`match_softmax` finds the pattern and its gradient, `fuse_attention` writes the ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.ir.analysis.known_values import constant_of
from weft.ir.cost.thresholds import LEAST_SCORES, MOST_MASK
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import bool_
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.sizes import fixed, hint
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import (
    bind,
    extend,
    rebuilt,
    shape_of,
    tensor,
    with_block,
    with_operands,
)

Array = np.ndarray[Any, Any]


class Unfit(Exception):
    """The reason why a softmax between products stays as it is."""


@dataclass(slots=True)
class Match:
    """A softmax between products: operands, attributes, and the ops whose results are replaced."""

    query: Value
    key: Value
    value: Value
    out: Operation
    key_turned: bool = False  # the key operand is (..., depth, columns)
    mask: Value | None = None
    scale: float = 1.0
    fill: float = float("-inf")
    causal: bool = False
    g: Value | None = None
    ops: list[Operation] = field(default_factory=list)
    #: op -> (which gradient: 0 query, 1 key, 2 value; whether its last two axes are swapped)
    grads: dict[Operation, tuple[int, bool]] = field(default_factory=dict)


Readers = dict[Value, list[Operation | None]]


def blocks_in(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from blocks_in(region)


def readers_in(block: Block) -> Readers:
    readers: Readers = {}
    for op in block.ops:
        inside = [
            v for r in op.regions for inner in blocks_in(r) for o in inner.ops for v in o.operands
        ]
        inside += [v for r in op.regions for inner in blocks_in(r) for v in inner.results]
        for value in dict.fromkeys((*op.operands, *op.control, *inside)):
            readers.setdefault(value, []).append(op)
    for value in block.results:
        readers.setdefault(value, []).append(None)
    return readers


# ------------------------------------------------------------------------------------- matching
def made_by(value: Value, name: str) -> Operation | None:
    return value.op if value.op is not None and value.op.name == name else None


def _spread(value: Value) -> Value:
    """What a broadcast repeats, or the value itself."""
    op = made_by(value, "broadcast_to")
    return value if op is None else op.operands[0]


def _number(value: Value) -> float | None:
    """The one number that all elements are."""
    held = constant_of(_spread(value))
    if held is None or held.array.size != 1 or held.array.dtype.kind != "f":
        return None
    return float(held.array.reshape(()))


def _folds_last(op: Operation | None) -> bool:
    if op is None:
        return False
    rank = tensor(op.operands[0]).rank
    return op.attrs["axes"] == (rank - 1,) and bool(op.attrs["keepdims"])


def _softmax(op: Operation, found: list[Operation]) -> Value | None:
    """The scores that `op`, a division, is the softmax of; adds the ops in between to `found`."""
    exp, total = made_by(op.operands[0], "exp"), made_by(_spread(op.operands[1]), "sum")
    if exp is None or total is None or not _folds_last(total):
        return None
    less = made_by(exp.operands[0], "subtract")
    if total.operands[0] is not exp.result or less is None:
        return None
    scores, most = less.operands[0], _spread(less.operands[1])
    guard = made_by(most, "where")
    inner = [less, exp, total, op]
    if guard is not None:
        test = made_by(guard.operands[0], "isfinite")
        if test is None or test.operands[0] is not guard.operands[1]:
            return None
        if _number(guard.operands[2]) != 0.0:
            return None
        inner += [guard, test]
        most = guard.operands[1]
    largest = made_by(most, "max")
    if largest is None or not _folds_last(largest) or largest.operands[0] is not scores:
        return None
    found += [*inner, largest]
    return scores


def match_softmax(op: Operation, readers: Readers) -> Match | None:
    """The attention whose weights `op` makes; None if it is something else. Unfit if it is a
    softmax between two products that must stay."""
    if op.name != "divide":
        return None
    ops: list[Operation] = []
    scores = _softmax(op, ops)
    if scores is None:
        return None
    product, chain = _chain(scores)
    outs = [r for r in readers.get(op.result, []) if r is not None and _multiplies(r, op.result)]
    if product is None or not outs:
        return None
    query, key = product.operands
    made = Match(query, key, outs[0].operands[1], outs[0])
    made.key_turned = not product.attrs["transpose_b"]
    _check_types(made, product, op)
    _read_chain(made, chain)
    made.ops += [*ops, product, *chain]
    _match_gradient(made, op, chain, readers)
    _check_readers(made, op, readers)
    return made


def _multiplies(op: Operation, weights: Value) -> bool:
    """Whether `op` is weights @ value."""
    return (
        op.name == "matmul"
        and op.operands[0] is weights
        and op.operands[1] is not weights
        and not op.attrs["transpose_a"]
        and not op.attrs["transpose_b"]
    )


def _chain(scores: Value) -> tuple[Operation | None, list[Operation]]:
    """The product that scores are made of, and the ops after it, the last one first."""
    chain: list[Operation] = []
    value = scores
    while value.op is not None and value.op.name in ("where", "add", "multiply", "divide"):
        op = value.op
        chain.append(op)
        if op.name == "where":
            value = op.operands[1]
        else:
            first, second = op.operands
            turned = op.name in ("add", "multiply") and not _leads_to_product(first)
            value = second if turned else first
    return made_by(value, "matmul"), chain


def _leads_to_product(value: Value) -> bool:
    while value.op is not None and value.op.name in ("where", "multiply", "divide", "add"):
        value = value.op.operands[1 if value.op.name == "where" else 0]
    return made_by(value, "matmul") is not None


def _check_types(made: Match, product: Operation, weights: Operation) -> None:
    operands = [made.query, made.key, made.value, made.out.result]
    types = [tensor(v) for v in operands]
    if types[0].dtype.short not in ("f32", "f64"):
        raise Unfit(f"its dtype is {types[0].dtype.name}, not float32 or float64")
    if not all(t.is_static for t in types) or product.attrs["transpose_a"]:
        raise Unfit("the query is transposed, or sizes are not known")
    if any(t.shape[:-2] != types[0].shape[:-2] for t in types):
        raise Unfit("the batch dimensions of query, key and value are not the same")
    rows, columns = tensor(weights.result).static_shape[-2:]
    if hint(rows) * hint(columns) < LEAST_SCORES:
        raise Unfit(f"it has fewer than {LEAST_SCORES} scores")


def _read_chain(made: Match, chain: Sequence[Operation]) -> None:
    """Scale and masks, from the outermost op inwards."""
    scores = shape_of(chain[0].result) if chain else ()
    for k, op in enumerate(chain):
        if op.name in ("multiply", "divide"):
            factor = [_number(v) for v in op.operands]
            number = factor[1] if factor[1] is not None else factor[0]
            if k != len(chain) - 1 or number is None or (op.name == "divide" and not factor[1]):
                raise Unfit("its scores are multiplied by something else than one number")
            made.scale = 1.0 / number if op.name == "divide" else number
        elif op.name == "where":
            fill = _number(op.operands[2])
            mask = _unspread(op.operands[0])
            if fill is None:
                raise Unfit("what its mask hides has several numbers")
            hides = fill == float("-inf")
            if hides and not made.causal and _is_causal(mask, scores[-2:]):
                if made.mask is not None and not np.isneginf(made.fill):
                    raise Unfit("another mask lies over the causal one")
                made.causal = True
                continue
            if made.mask is not None:
                raise Unfit("it has several masks")
            made.mask, made.fill = mask, fill
        else:
            if made.mask is not None:
                raise Unfit("it has several masks")
            first, second = op.operands
            made.mask = _unspread(second if _leads_to_product(first) else first)
    if made.mask is not None and shape_of(made.mask)[-1:] != scores[-1:]:
        raise Unfit("its mask has one value for all columns")


def _unspread(value: Value) -> Value:
    """A mask without leading broadcasts; its last axis is kept."""
    inner = _spread(value)
    same_last = shape_of(inner)[-1:] == shape_of(value)[-1:]
    return inner if same_last and len(shape_of(inner)) else value


def _is_causal(mask: Value, size: tuple[Any, ...]) -> bool:
    """Whether row i of the mask is on up to column i, in all matrices."""
    shape = shape_of(mask)
    if len(shape) < 2 or shape[-2:] != size or not all(isinstance(n, int) for n in shape):
        return False
    if any(n != 1 for n in shape[:-2]):
        return False
    held = _known(mask, {})
    if held is None:
        return False
    return bool(np.array_equal(held.reshape(held.shape[-2:]), np.tri(*size, dtype=np.bool_)))


def _known(value: Value, seen: dict[Value, Array | None]) -> Array | None:
    """The elements of what is computed of constants and indices alone, if they are not many."""
    if value in seen:
        return seen[value]
    op, found = value.op, None
    if op is not None and isinstance(value.type, TensorType) and value.type.is_static:
        held = constant_of(value)
        elements = int(np.prod([fixed(n) for n in value.type.static_shape], dtype=np.int64))
        spec = lookup(op.name)
        plain = not op.regions and not op.control and spec.reference is not None
        computes = plain and not spec.traits & {"no_fold", "host", "reads_state", "writes_state"}
        if held is not None:
            found = held.array
        elif computes and elements <= MOST_MASK and len(op.results) == 1:
            operands = [_known(v, seen) for v in op.operands]
            given = [a for a in operands if a is not None]
            if len(given) == len(operands) and spec.reference is not None:
                found = np.asarray(spec.reference(given, op.attrs))
    seen[value] = found
    return found


# ------------------------------------------------------------------------------------- gradient
def _match_gradient(
    made: Match, weights: Operation, chain: Sequence[Operation], readers: Readers
) -> None:
    """The ops that make the gradients of the operands, if there are any."""
    others = [r for r in readers.get(weights.result, []) if r is not made.out]
    if not others:
        return
    dot = next((r for r in others if r and r.name == "multiply" and _dotted(r, weights)), None)
    if dot is not None:
        _match_scores_gradient(made, weights, dot, chain, readers)
    for op in others:
        if op is None or op.name != "matmul":
            continue
        g, turned = _other_factor(op, weights.result)
        if g is None or made.g not in (None, g):
            raise Unfit("its weights are read by another product")
        made.g = g
        made.grads[op] = (2, turned)


def _dotted(op: Operation, weights: Operation) -> bool:
    """Whether `op` is (g @ value^T) * weights."""
    return any(made_by(v, "matmul") for v in op.operands if v is not weights.result)


def _other_factor(op: Operation, weights: Value) -> tuple[Value | None, bool]:
    """Of weights^T @ g, or g^T @ weights, which is its transpose: g, and which it is."""
    a, b = op.operands
    if a is weights and op.attrs["transpose_a"] and not op.attrs["transpose_b"]:
        return b, False
    if b is weights and op.attrs["transpose_a"] and not op.attrs["transpose_b"]:
        return a, True
    return None, False


def _match_scores_gradient(
    made: Match,
    weights: Operation,
    dot: Operation,
    chain: Sequence[Operation],
    readers: Readers,
) -> None:
    product = next(v.op for v in dot.operands if v is not weights.result)
    if product is None or product.operands[1] is not made.value or product.attrs["transpose_a"]:
        raise Unfit("its gradient is not that of softmax")
    if not product.attrs["transpose_b"]:
        raise Unfit("its gradient is not that of softmax")
    made.g = product.operands[0]
    total = _only(readers, dot.result, "sum")
    less = next((r for r in readers.get(product.result, []) if r and r.name == "subtract"), None)
    if total is None or not _folds_last(total) or less is None:
        raise Unfit("its gradient is not that of softmax")
    if less.operands[0] is not product.result or _spread(less.operands[1]) is not total.result:
        raise Unfit("its gradient is not that of softmax")
    d_scores = _only(readers, less.result, "multiply")
    if d_scores is None or weights.result not in d_scores.operands:
        raise Unfit("its gradient is not that of softmax")
    made.ops += [product, dot, total, less, d_scores]
    value = _back_through(made, chain, d_scores.result, readers)
    for op in readers.get(value, []):
        made.grads[_of_operand(made, op, value)[0]] = _of_operand(made, op, value)[1]


def _only(readers: Readers, value: Value, name: str) -> Operation | None:
    """The one reader of a value, an op of this name."""
    found = readers.get(value, [])
    return found[0] if len(found) == 1 and found[0] and found[0].name == name else None


def _back_through(made: Match, chain: Sequence[Operation], value: Value, readers: Readers) -> Value:
    """The cotangent of the product, from that of the scores: masks and scale, outermost first."""
    for op in chain:
        if op.name == "add":
            continue
        following = _only(readers, value, op.name)
        if op.name == "where":
            fits = (
                following is not None
                and following.operands[0] is op.operands[0]
                and following.operands[1] is value
                and _number(following.operands[2]) == 0.0
            )
        else:
            numbers = [_number(v) for v in op.operands if _number(v) is not None]
            fits = following is not None and numbers == [
                _number(v) for v in following.operands if v is not value
            ]
        if not fits or following is None:
            raise Unfit("its gradient is not that of its scale and masks")
        made.ops.append(following)
        value = following.result
    return value


def _of_operand(
    made: Match, op: Operation | None, d_product: Value
) -> tuple[Operation, tuple[int, bool]]:
    """Which gradient `op` makes of the cotangent of query key^T, and whether transposed."""
    if op is not None and op.name == "matmul":
        a, b = op.operands
        flags = bool(op.attrs["transpose_a"]), bool(op.attrs["transpose_b"])
        if a is d_product and b is made.key and flags == (False, made.key_turned):
            return op, (0, False)
        if a is d_product and b is made.query and flags == (True, False):
            return op, (1, False)
        if a is made.query and b is d_product and flags == (True, False):
            return op, (1, True)
    raise Unfit("its scores' cotangent is read by something else")


def _check_readers(made: Match, weights: Operation, readers: Readers) -> None:
    inside = {*made.ops, made.out, *made.grads}
    spread = [
        r for op in made.ops for v in op.results for r in readers.get(v, ())
        if r is not None and r.name == "broadcast_to"
    ]  # fmt: skip
    inside.update(spread)
    for op in (*made.ops, *spread):
        for value in op.results:
            for reader in readers.get(value, ()):
                if reader is None:
                    raise Unfit("a matrix of scores or weights is a result")
                if reader not in inside:
                    raise Unfit(f"'{reader.name}' reads a matrix of scores or weights, too")
    if made.grads and made.g is None:
        raise Unfit("its gradient is not that of softmax")


def fuse_attention(graph: Graph) -> Graph:
    """Make `attention` and `attention_grad` of what the module's docstring shows."""
    return with_block(graph, _block(graph.block))


def attention_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each softmax between two products of a graph, before this pass, what becomes
    of it."""
    found = []
    for block in blocks_in(graph.block):
        readers = readers_in(block)
        for op in block.ops:
            try:
                made = match_softmax(op, readers)
            except Unfit as why:
                found.append((op, str(why)))
                continue
            if made is not None:
                found.append((op, "one kernel, and no matrix of scores is stored"))
    return found


def _block(block: Block) -> Block:
    readers = readers_in(block)
    matches: list[Match] = []
    for op in block.ops:
        try:
            made = match_softmax(op, readers)
        except Unfit:
            continue
        if made is not None:
            matches.append(made)
    at = {m.out: m for m in matches} | {op: m for m in matches for op in m.grads}
    if not at and not any(op.regions for op in block.ops):
        return block
    builder, mapping = extend(block), dict[Value, Value]()
    written: dict[int, tuple[Sequence[Value], bool]] = {}
    grads: dict[int, Sequence[Value]] = {}
    for op in block.ops:
        match = at.get(op)
        if match is None:
            regions = op.regions and tuple(_block(r) for r in op.regions)
            new = with_operands(op, mapping, regions)
            builder.ops.append(new)
            bind(mapping, op, new.results)
            continue
        writer = _Writer(builder, mapping, match)
        if op is match.out:
            written[id(match)] = writer.forward()
            bind(mapping, op, [writer.outward(written[id(match)][0][0], written[id(match)][1])])
            continue
        results, inner = written[id(match)]
        if id(match) not in grads:
            grads[id(match)] = writer.backward(results, inner)
        which, turned = match.grads[op]
        made_value = writer.outward(grads[id(match)][which], inner)
        bind(mapping, op, [writer.swapped(made_value) if turned else made_value])
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


_INNER = (0, 2, 1, 3)


class _Writer:
    """Appends the ops of one match to a block."""

    def __init__(self, builder: Builder, mapping: dict[Value, Value], match: Match) -> None:
        self.builder, self.mapping, self.match = builder, mapping, match
        ops = [*match.ops, match.out, *match.grads]
        self.locations = merge_locations(*(op.locations for op in ops))

    def forward(self) -> tuple[Sequence[Value], bool]:
        """The results of `attention`, and whether heads are inside of rows."""
        operands, inner = self.operands()
        return self.builder.emit(
            "attention", operands, self.attrs(inner), locations=self.locations
        ), inner

    def backward(self, results: Sequence[Value], inner: bool) -> Sequence[Value]:
        """The results of `attention_grad`."""
        assert self.match.g is not None
        g = self.mapping.get(self.match.g, self.match.g)
        operands, _ = self.operands()
        operands += [*results, self.permuted(g, _INNER) if inner else g]
        return self.builder.emit(
            "attention_grad", operands, self.attrs(inner), locations=self.locations
        )

    def operands(self) -> tuple[list[Value], bool]:
        """Query, key, value and the mask; those with heads inside if all three are permuted."""
        m = self.match
        found = [self.mapping.get(v, v) for v in (m.query, m.key, m.value)]
        if m.key_turned:
            found[1] = self.swapped(found[1])
        inner = all(tensor(v).rank == 4 and _axes(v) == _INNER for v in found)
        if inner:
            found = [self.permuted(v, _INNER) for v in found]
        if m.mask is not None:
            found.append(self.mapping.get(m.mask, m.mask))
        return found, inner

    def attrs(self, inner: bool) -> dict[str, Any]:
        m = self.match
        has_fill = m.mask is not None and tensor(m.mask).dtype == bool_
        fill = m.fill if has_fill else float("-inf")
        return {"scale": m.scale, "causal": m.causal, "fill": fill, "heads_inner": inner}

    def outward(self, value: Value, inner: bool) -> Value:
        """A result with heads before rows."""
        return self.permuted(value, _INNER) if inner else value

    def swapped(self, value: Value) -> Value:
        """The last two axes the other way round."""
        rank = tensor(value).rank
        return self.permuted(value, (*range(rank - 2), rank - 1, rank - 2))

    def permuted(self, value: Value, axes: tuple[int, ...]) -> Value:
        """permute_dims; of one that it undoes, what that permutes."""
        held = _axes(value)
        if held is not None and value.op is not None:
            axes, value = tuple(held[k] for k in axes), value.op.operands[0]
        if axes == tuple(range(len(axes))):
            return value
        return self.builder.emit1("permute_dims", value, axes=axes, locations=self.locations)


def _axes(value: Value) -> tuple[int, ...] | None:
    op = made_by(value, "permute_dims")
    axes = None if op is None else op.attrs["axes"]
    return axes if isinstance(axes, tuple) else None
