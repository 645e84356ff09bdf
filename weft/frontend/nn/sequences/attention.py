"""Attention in several heads: as a function and as a layer with a cache of keys and values, masks,
and encodings of positions.

Tensors of heads are [batch, heads, time, depth], which `scaled_dot_product_attention` takes and the
compiler makes one kernel of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.activations import scaled_dot_product_attention
from weft.frontend.nn.initial_values import Initializer, glorot_uniform
from weft.frontend.nn.module import Module
from weft.frontend.nn.recurrent import as_int64, positive_size
from weft.frontend.ops.creation import arange
from weft.frontend.ops.creation import zeros as zeros_of
from weft.frontend.ops.elementwise import (
    add,
    less,
    less_equal,
    logical_and,
    multiply,
    subtract,
)
from weft.frontend.ops.indexing import at
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import (
    concat,
    cut,
    expand_dims,
    known_size,
    moveaxis,
    reshape,
    stack,
    unstack,
)
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_dtype,
    check_int,
    check_size,
    expand,
    inexact_tensor,
    strong_tensor,
    widened,
)
from weft.frontend.ops.special import cos, sin
from weft.frontend.state.variable import Variable
from weft.ir.dims import Dim, SymbolicDim, format_shape, same
from weft.ir.dtypes import DType, float32, float64, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location


# ----------------------------------------------------------------------------------------- masks
def causal_mask(rows: Any, columns: Any = None, offset: TensorLike = 0) -> Tensor:
    """True where column j is at most row i + offset -> bool [rows, columns]: who looks only back.

    columns: as many as rows by default. offset: an integer, how many columns come before row 0 (a
    cache's length); of integers [...] the mask is [..., rows, columns].

    >>> wf.nn.causal_mask(2, 3, offset=1)
    Tensor([[ True,  True, False],
            [ True,  True,  True]], dtype=bool)
    """
    op = "nn.causal_mask"
    height = check_size(op, rows, "rows")
    width = height if columns is None else check_size(op, columns, "columns")
    first = expand_dims(expand_dims(as_int64(op, offset, "offset is of integers"), -1), -1)
    return less_equal(arange(width), add(expand_dims(arange(height), 1), first))


def padding_mask(lengths: TensorLike, maxlen: Any) -> Tensor:
    """True where a column is within the length of its row -> bool [batch, 1, 1, maxlen], for heads
    and rows of queries: what `sequence_mask` gives, with axes to broadcast.

    >>> wf.nn.padding_mask([1, 3], 3)[:, 0, 0]
    Tensor([[ True, False, False],
            [ True,  True,  True]], dtype=bool)
    """
    op = "nn.padding_mask"
    count, within = check_size(op, maxlen, "maxlen"), as_int64(op, lengths)
    if within.ndim != 1:
        raise ShapeError(
            f"wf.{op}: lengths are [batch], got {within.describe()}", location=caller_location()
        )
    return reshape(less(arange(count), expand_dims(within, 1)), (within.shape[0], 1, 1, count))


# ------------------------------------------------------------------------------------- positions
def sinusoidal_positions(
    positions: TensorLike, depth: int, *, base: float = 10000.0, dtype: object = float32
) -> Tensor:
    """sin and cos of positions in `depth` / 2 wavelengths, side by side -> [..., depth] (Vaswani et
    al. 2017, section 3.5): column 2i is sin(p / base^(2i/depth)), column 2i+1 its cos.

    positions: a size n for 0 .. n-1, or a tensor of positions [...]. depth: even.
    InvalidArgumentError for another.

    >>> wf.nn.sinusoidal_positions(2, 4).numpy().round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]], dtype=float32)
    """
    op = "nn.sinusoidal_positions"
    kind = check_dtype(dtype)
    if isinstance(positions, (int, np.integer, SymbolicDim)) and not isinstance(positions, bool):
        places = arange(check_size(op, positions, "positions"))
    else:
        places = strong_tensor(positions)
    angles = _angles(op, places, depth, base, float64 if kind is float64 else float32)
    pairs = stack([sin(angles), cos(angles)], axis=-1)
    return cast(reshape(pairs, (*places.shape, depth)), kind)


def _angles(op: str, places: Tensor, depth: object, base: float, dtype: DType) -> Tensor:
    """Angles [..., depth / 2] of positions [...]."""
    size = check_int(op, depth, "depth")
    if size < 2 or size % 2:
        raise InvalidArgumentError(
            f"wf.{op}: depth must be even and at least 2, got {size}", location=caller_location()
        )
    rates = base ** (-np.arange(0, size, 2) / size)  # in float64, rounded once
    return multiply(expand_dims(cast(places, dtype), -1), as_tensor(rates.astype(dtype.name)))


def rotary_embedding(
    x: TensorLike,
    positions: TensorLike | None = None,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
) -> Tensor:
    """`x` [..., time, depth] with each pair of columns turned by an angle that grows with the
    position, so that products of queries and keys know how far apart they are (J. Su et al.,
    "RoFormer", 2021, equation 34).

    positions: [time], or [batch, time] for x of [batch, heads, time, depth]; 0 .. time-1 by
    default. The angle of pair i is position / base^(2i/depth). Pairs are columns i and i + depth/2,
    as in LLaMA and GPT-NeoX; interleaved: columns 2i and 2i+1, as in the paper. ShapeError for an
    x without these axes, InvalidArgumentError for an odd depth.

    >>> x = wf.asarray([[1.0, 0.0], [1.0, 0.0]])
    >>> wf.nn.rotary_embedding(x).numpy().round(3)
    array([[1.   , 0.   ],
           [0.54 , 0.841]], dtype=float32)
    """
    op = "nn.rotary_embedding"
    t = inexact_tensor(x, op)
    depth = t.shape[-1] if t.ndim >= 2 else None
    if not isinstance(depth, int):
        raise ShapeError(
            f"wf.{op}: takes [..., time, depth] with a known depth, got {t.describe()}",
            location=caller_location(),
        )
    places = arange(known_size(op, t, -2)) if positions is None else strong_tensor(positions)
    if places.ndim == 2 and t.ndim == 4:
        places = expand_dims(places, 1)  # the same for all heads
    wide = widened(t)
    angles = _angles(op, places, depth, base, wide.dtype)
    turns = cos(angles), sin(angles)
    if interleaved:
        pairs = reshape(wide, (*t.shape[:-1], depth // 2, 2))
        first, second = unstack(pairs, axis=-1)
        return cast(reshape(stack(_turned(first, second, *turns), axis=-1), t.shape), t.dtype)
    halves = cut(wide, t.ndim - 1, 0, depth // 2), cut(wide, t.ndim - 1, depth // 2, depth)
    return cast(concat(_turned(*halves, *turns), axis=-1), t.dtype)


def _turned(first: Tensor, second: Tensor, across: Tensor, up: Tensor) -> list[Tensor]:
    return [
        subtract(multiply(first, across), multiply(second, up)),
        add(multiply(second, across), multiply(first, up)),
    ]


# ----------------------------------------------------------------------------------- many heads
def multi_head_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    attn_mask: TensorLike | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """`scaled_dot_product_attention` of each head's columns, the heads side by side again.

    query: [batch, rows, num_heads * depth], key: [batch, columns, num_kv_heads * depth], value:
    [batch, columns, num_kv_heads * width]; the result is [batch, rows, num_heads * width].
    num_kv_heads: num_heads by default; fewer are each shared by as many heads (J. Ainslie et al.,
    "GQA", 2023). attn_mask: broadcasts to [batch, num_heads, rows, columns]; the rest is as there.
    ShapeError for sizes that heads do not divide. `MultiHeadAttention` has the projections.

    >>> x = wf.ones([2, 5, 8])
    >>> wf.nn.multi_head_attention(x, x, x, num_heads=4, is_causal=True).shape
    (2, 5, 8)
    """
    op = "nn.multi_head_attention"
    heads = positive_size("multi_head_attention", "num_heads", num_heads)
    kept = heads if num_kv_heads is None else positive_size(
        "multi_head_attention", "num_kv_heads", num_kv_heads)  # fmt: skip
    _check_groups(op, heads, kept)
    q = _split_heads(op, "query", query, heads)
    k, v = _split_heads(op, "key", key, kept), _split_heads(op, "value", value, kept)
    k, v = (_shared(t, heads // kept) for t in (k, v))
    made = scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal, scale=scale)
    return _joined_heads(made)


def _check_groups(op: str, heads: int, kept: int) -> None:
    if heads % kept:
        raise InvalidArgumentError(
            f"wf.{op}: num_kv_heads {kept} does not divide num_heads {heads}",
            location=caller_location(),
        )


def _split_heads(op: str, name: str, x: TensorLike, heads: int) -> Tensor:
    """[batch, time, heads * depth] as [batch, heads, time, depth]."""
    t = inexact_tensor(x, op)
    size = t.shape[-1] if t.ndim == 3 else None
    if not isinstance(size, int) or size % heads:
        raise ShapeError(
            f"wf.{op}: {name} is [batch, time, size] with a size that {heads} heads divide, got "
            f"{t.describe()}",
            location=caller_location(),
        )
    return moveaxis(reshape(t, (*t.shape[:2], heads, size // heads)), 2, 1)


def _joined_heads(t: Tensor) -> Tensor:
    """[batch, heads, time, depth] as [batch, time, heads * depth]."""
    heads, depth = t.shape[1], t.shape[3]
    assert isinstance(heads, int)
    assert isinstance(depth, int)
    return reshape(moveaxis(t, 1, 2), (t.shape[0], t.shape[2], heads * depth))


def _shared(t: Tensor, count: int) -> Tensor:
    """Each head `count` times."""
    if count == 1:
        return t
    batch, heads, time, depth = t.shape
    assert isinstance(heads, int)
    wide = expand(expand_dims(t, 2), (batch, heads, count, time, depth))
    return reshape(wide, (batch, heads * count, time, depth))


class KVCache(NamedTuple):
    """Keys and values of the positions that a decoder has seen: `key` and `value` [batch, heads,
    max_length, depth], of which the first `length` [batch] positions count.

    A value like others: `append` gives a new one (in a compiled function written in place), and all
    of it has the batch as its first axis, as beam search wants of a state.

    >>> cache = wf.nn.KVCache.empty(batch_size=1, num_heads=2, max_length=4, depth=3)
    >>> cache.append(wf.ones([1, 2, 1, 3]), wf.ones([1, 2, 1, 3])).length
    Tensor([1], dtype=int64)
    """

    key: Tensor
    value: Tensor
    length: Tensor

    @staticmethod
    def empty(
        batch_size: Dim, num_heads: int, max_length: int, depth: int, dtype: object = float32
    ) -> KVCache:
        """One with nothing in it."""
        kind = check_dtype(dtype)
        held = expand(
            zeros_of((1, num_heads, max_length, depth), dtype=kind),
            (batch_size, num_heads, max_length, depth),
        )
        return KVCache(held, held, expand(zeros_of((1,), dtype=int64), (batch_size,)))

    def append(self, key: TensorLike, value: TensorLike) -> KVCache:
        """With keys and values [batch, heads, new, depth] after the others.
        InvalidArgumentError where there is no room, when it runs; ShapeError for other shapes."""
        k, v = as_tensor(key), as_tensor(value)
        for t, held in ((k, self.key), (v, self.value)):
            new = t.shape[2] if t.ndim == 4 else None
            expected = (*held.shape[:2], new, held.shape[3])
            if not isinstance(new, int) or not all(map(same, t.shape, expected)):
                raise ShapeError(
                    f"wf.nn.KVCache.append: {t.describe()} for a cache of "
                    f"{format_shape(held.shape)}",
                    hint="[batch, heads, new positions, depth], a known number of new positions",
                    location=caller_location(),
                )
        (batch, heads, new, _), op = k.shape, "nn.KVCache.append"
        assert isinstance(new, int)
        places = add(expand_dims(self.length, 1), arange(new))  # [batch, new]
        index = (
            reshape(arange(known_size(op, k, 0)), (batch, 1, 1)),
            reshape(arange(known_size(op, k, 1)), (1, heads, 1)),
            reshape(places, (batch, 1, new)),
        )
        after = [at(held)[index].set(t) for held, t in ((self.key, k), (self.value, v))]
        return KVCache(after[0], after[1], add(self.length, new))

    def mask(self, rows: int) -> Tensor:
        """Which positions the last `rows` rows see: bool [batch, 1, rows, max_length], True up to
        the row's own."""
        width = known_size("nn.KVCache.mask", self.key, 2)
        first = expand_dims(subtract(self.length, rows), 1)
        last = add(first, arange(rows))  # [batch, rows]
        return less_equal(arange(width), expand_dims(expand_dims(last, 1), 3))


class MultiHeadAttention(Module):
    """Projections of queries, keys and values, attention in heads, and a projection of what they
    found (Vaswani et al. 2017, section 3.2.2).

    num_heads, size: of all heads together, and of the output; heads divide it. num_kv_heads: heads
    of keys and values, fewer are shared (GQA). rotary: turn queries and keys by their positions
    (`rotary_embedding`). use_bias: of the four projections. input_size, memory_size: of queries,
    and of keys and values; without them the variables are made at the first call. initializer: of
    matrices, Glorot's uniform one by default.

    >>> layer = wf.nn.MultiHeadAttention(num_heads=2, size=8, input_size=6)
    >>> layer(wf.ones([3, 5, 6]), is_causal=True).shape
    (3, 5, 8)
    >>> list(layer.named_variables())[:2]
    ['query_kernel', 'query_bias']
    """

    def __init__(
        self,
        num_heads: int,
        size: int,
        *,
        num_kv_heads: int | None = None,
        rotary: bool = False,
        use_bias: bool = True,
        input_size: int | None = None,
        memory_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        kind = "MultiHeadAttention"
        self.num_heads = positive_size(kind, "num_heads", num_heads)
        self.size = positive_size(kind, "size", size)
        given = num_heads if num_kv_heads is None else num_kv_heads
        self.num_kv_heads = positive_size(kind, "num_kv_heads", given)
        _check_groups(f"nn.{kind}", self.num_heads, self.num_kv_heads)
        if self.size % self.num_heads:
            raise InvalidArgumentError(
                f"wf.nn.{kind}: {self.num_heads} heads do not divide size {self.size}",
                location=caller_location(),
            )
        self.rotary, self.use_bias = bool(rotary), bool(use_bias)
        self.dtype = check_dtype(dtype)
        self._initializer = glorot_uniform() if initializer is None else initializer
        self._sizes: tuple[int, int] | None = None
        if input_size is not None:
            self.build(input_size, memory_size)

    @property
    def head_size(self) -> int:
        """The columns of a head."""
        return self.size // self.num_heads

    def build(self, input_size: int, memory_size: int | None = None) -> None:
        """Make the variables, for queries of that size, and keys and values of memory_size (the
        same by default). Once: later calls change nothing. ShapeError for other sizes."""
        kind = "MultiHeadAttention"
        size = positive_size(kind, "input_size", input_size)
        other = size if memory_size is None else positive_size(kind, "memory_size", memory_size)
        if self._sizes is not None:
            if self._sizes != (size, other):
                raise ShapeError(
                    f"wf.nn.{kind}: made for inputs of sizes {self._sizes}, got {(size, other)}",
                    location=caller_location(),
                )
            return
        kept = self.num_kv_heads * self.head_size
        self.query_kernel, self.query_bias = self._projection("query", size, self.size)
        self.key_kernel, self.key_bias = self._projection("key", other, kept)
        self.value_kernel, self.value_bias = self._projection("value", other, kept)
        self.output_kernel, self.output_bias = self._projection("output", self.size, self.size)
        self._sizes = size, other

    def _projection(self, name: str, rows: int, columns: int) -> tuple[Variable, Variable | None]:
        make = lambda: self._initializer((rows, columns), self.dtype)  # noqa: E731
        kernel = Variable(make, name=f"MultiHeadAttention/{name}_kernel")
        if not self.use_bias:
            return kernel, None
        start = zeros_of((columns,), dtype=self.dtype)
        return kernel, Variable(lambda: start, name=f"MultiHeadAttention/{name}_bias")

    def empty_cache(self, batch_size: Dim, max_length: int) -> KVCache:
        """A cache of this layer with nothing in it.

        >>> layer = wf.nn.MultiHeadAttention(num_heads=2, size=8)
        >>> layer.empty_cache(batch_size=1, max_length=5).key.shape
        (1, 2, 5, 4)
        """
        return KVCache.empty(batch_size, self.num_kv_heads, max_length, self.head_size, self.dtype)

    def __call__(
        self,
        query: TensorLike,
        key: TensorLike | None = None,
        value: TensorLike | None = None,
        *,
        attn_mask: TensorLike | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
    ) -> Any:
        """The output [batch, rows, size] for queries [batch, rows, input_size].

        key: [batch, columns, memory_size], the queries by default; value: the keys by default.
        attn_mask: bool, or floats that are added, broadcasts to [batch, num_heads, rows, columns].
        With a cache (output, cache with the new keys and values): rows are the next positions, each
        sees those before it, and attn_mask is bool, of the cache's max_length columns.
        """
        op = "nn.MultiHeadAttention"
        x = as_tensor(query)
        memory = x if key is None else as_tensor(key)
        self.build(_width(op, x), _width(op, memory))
        q = self._heads(op, "query", x, self.num_heads)
        k = self._heads(op, "key", memory, self.num_kv_heads)
        v = self._heads(op, "value", memory if value is None else as_tensor(value),
                        self.num_kv_heads)  # fmt: skip
        if cache is None:
            q, k = self._turned(q, None), self._turned(k, None)
            return self._found(q, k, v, attn_mask, is_causal)
        rows = q.shape[2]
        if not isinstance(rows, int):
            raise ShapeError(
                f"wf.{op}: with a cache the number of rows is known, got {x.describe()}",
                location=caller_location(),
            )
        places = add(expand_dims(cache.length, 1), arange(rows))
        after = cache.append(self._turned(k, places), v)
        mask = _both(op, after.mask(rows), attn_mask)
        return self._found(self._turned(q, places), after.key, after.value, mask, False), after

    def _turned(self, t: Tensor, places: Tensor | None) -> Tensor:
        return rotary_embedding(t, places) if self.rotary else t

    def _found(
        self, q: Tensor, k: Tensor, v: Tensor, mask: TensorLike | None, is_causal: bool
    ) -> Tensor:
        shared = self.num_heads // self.num_kv_heads
        k, v = _shared(k, shared), _shared(v, shared)
        made = scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        return self._projected("output", _joined_heads(made))

    def _heads(self, op: str, name: str, x: Tensor, heads: int) -> Tensor:
        return _split_heads(op, name, self._projected(name, x), heads)

    def _projected(self, name: str, x: Tensor) -> Tensor:
        made = matmul(x, getattr(self, f"{name}_kernel"))
        bias = getattr(self, f"{name}_bias")
        return made if bias is None else add(made, bias)


def _both(op: str, mask: Tensor, given: TensorLike | None) -> Tensor:
    if given is None:
        return mask
    further = strong_tensor(given)
    if further.dtype.kind != "bool":
        raise TypeRuleError(
            f"wf.{op}: with a cache attn_mask is bool, got {further.dtype.name}",
            location=caller_location(),
        )
    return logical_and(mask, further)


def _width(op: str, t: Tensor) -> int:
    size = t.shape[-1] if t.ndim == 3 else None
    if not isinstance(size, int):
        raise ShapeError(
            f"wf.{op}: takes [batch, time, size] with a known size, got {t.describe()}",
            location=caller_location(),
        )
    return size
