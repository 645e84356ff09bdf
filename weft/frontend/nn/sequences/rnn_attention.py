"""Attention of recurrent decoders: Bahdanau's and Luong's scores of a memory, the mean by softmax
or from left to right (monotonic), and the cell that looks at the memory at each step.

Formulas and names are those of TensorFlow 1 (`tf.contrib.seq2seq`). There a mechanism is made for
one memory; here it is a module, whose variables stay, and `attend` says of which memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.frontend.control.loops import scan
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.activations import softmax
from weft.frontend.nn.initial_values import Initializer, glorot_uniform
from weft.frontend.nn.module import Module
from weft.frontend.nn.recurrent import RNNCell, positive_size, row_lengths, true_rows
from weft.frontend.ops.creation import arange
from weft.frontend.ops.creation import zeros as zeros_of
from weft.frontend.ops.elementwise import (
    add,
    clip,
    divide,
    equal,
    greater,
    multiply,
    square,
    subtract,
    where,
)
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import concat, expand_dims, known_size, moveaxis, reshape
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_dtype,
    expand,
    finfo,
    inexact_tensor,
    widened,
)
from weft.frontend.ops.reduction import cumulative_prod, cumulative_sum
from weft.frontend.ops.reduction import sum as sum_of
from weft.frontend.ops.special import exp, log, sigmoid, sqrt, tanh
from weft.frontend.random.generator import default_generator
from weft.frontend.state.variable import Variable
from weft.ir.dims import Dim
from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location


class Memory(NamedTuple):
    """What a mechanism has made of a memory: keys [batch, time, num_units], values [batch, time,
    depth] and which places count, bool [batch, time]."""

    keys: Tensor
    values: Tensor
    within: Tensor


class AttentionMechanism(Module):
    """The common part of `BahdanauAttention` and `LuongAttention`: how a query scores the places of
    a memory [batch, time, depth].

    num_units: the size in which query and memory meet. memory_size, query_size: their sizes;
    without them the variables are made when both are there. initializer: of matrices, Glorot's
    uniform one by default. A mechanism of one's own is a subclass with a method `scores`.

    >>> class Sum(wf.nn.AttentionMechanism):
    ...     def scores(self, query, keys):  # every query scores alike
    ...         return wf.expand_dims(wf.sum(keys, axis=2), 1)
    >>> attention = Sum(4)
    >>> attention(wf.ones([1, 4]), attention.read(wf.ones([1, 2, 3]), query_size=4))[1]
    Tensor([[0.5, 0.5]], dtype=float32)
    """

    def __init__(
        self,
        num_units: int,
        memory_size: int | None = None,
        query_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        self.num_units = positive_size(type(self).__name__, "num_units", num_units)
        self.dtype = check_dtype(dtype)
        self._initializer = glorot_uniform() if initializer is None else initializer
        self._sizes: tuple[int, int] | None = None
        if memory_size is not None and query_size is not None:
            self.build(memory_size, query_size)

    def build(self, memory_size: int, query_size: int) -> None:
        """Make the variables. Once: later calls change nothing. ShapeError for other sizes."""
        kind, sizes = type(self).__name__, (int(memory_size), int(query_size))
        if self._sizes is None:
            self._make(*sizes)
            self._sizes = sizes
        elif self._sizes != sizes:
            raise ShapeError(
                f"{kind}: made for a memory and queries of sizes {self._sizes}, got {sizes}",
                location=caller_location(),
            )

    def read(
        self, memory: TensorLike, query_size: int, memory_sequence_length: TensorLike | None = None
    ) -> Memory:
        """The keys of a memory [batch, time, depth]; of each row the first
        memory_sequence_length [batch] places count, the values of others are 0."""
        kind, values = type(self).__name__, as_tensor(memory)
        if values.ndim != 3 or not isinstance(values.shape[2], int):
            raise ShapeError(
                f"{kind}: a memory is [batch, time, depth] with a known depth, got "
                f"{values.describe()}",
                location=caller_location(),
            )
        self.build(values.shape[2], query_size)
        op, batch = f"nn.{kind}", values.shape[0]
        lengths = None
        if memory_sequence_length is not None:
            lengths = row_lengths(op, "memory_sequence_length", memory_sequence_length, batch)
        within = true_rows(lengths, known_size(op, values, 1), batch)
        if lengths is not None:
            values = where(expand_dims(within, 2), values, 0)
        return Memory(matmul(values, self.memory_kernel), values, within)

    def __call__(
        self, query: TensorLike, memory: Memory, alignments: TensorLike | None = None
    ) -> tuple[Tensor, Tensor]:
        """(context [rows, depth], alignments [rows, time]) for queries [rows, query size]: the mean
        of the values, weighted with the softmax of the scores. A row of the memory serves rows /
        batch queries that follow each other, as those of a beam. One without places gives 0.

        alignments: those of the last step, `initial_alignments` by default; softmax does not look
        at them."""
        q, batch = as_tensor(query), memory.keys.shape[0]
        rows = q.shape[0]
        time, depth = memory.values.shape[1:]
        count = self._beam(rows, batch)
        q = reshape(q, (batch, count, q.shape[1]))
        weights = self._weights(self.scores(q, memory.keys), memory, alignments)
        context = matmul(weights, memory.values)
        return reshape(context, (rows, depth)), reshape(weights, (rows, time))

    def _beam(self, rows: Dim, batch: Dim) -> Dim:
        """How many queries there are for a row of the memory."""
        if rows == batch or rows is None or batch is None:
            return 1
        if isinstance(rows, int) and isinstance(batch, int) and (not batch or rows % batch):
            raise ShapeError(
                f"{type(self).__name__}: {rows} queries for a memory of {batch} rows",
                location=caller_location(),
            )
        try:
            return rows // batch
        except ShapeError:  # sizes of two feeds, which the step finds to be the same, or not
            return 1

    def initial_alignments(self, memory: Memory, rows: Dim) -> Tensor:
        """The alignments [rows, time] before the first step: 0."""
        zero = zeros_of((1, 1), dtype=memory.values.dtype)
        return expand(zero, (rows, memory.values.shape[1]))

    def _weights(self, scores: Tensor, memory: Memory, alignments: TensorLike | None) -> Tensor:
        """The alignments [batch, n, time] of scores; `alignments` are those of the last step."""
        within = expand_dims(memory.within, 1)
        scores = where(within, scores, float(np.finfo(np.float32).min))
        return where(within, softmax(scores), 0)

    # ------------------------------------------------------------------------- for subclasses
    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [batch, n, time] of queries [batch, n, query size] and keys [batch, time,
        num_units]."""
        raise NotImplementedError

    def _make(self, memory_size: int, query_size: int) -> None:
        self.memory_kernel = self._matrix(memory_size, self.num_units, "memory_kernel")

    def _matrix(self, rows: int, columns: int, name: str) -> Variable:
        make = lambda: self._initializer((rows, columns), self.dtype)  # noqa: E731
        return Variable(make, name=f"{type(self).__name__}/{name}")

    def _filled(self, shape: tuple[int, ...], value: float, name: str) -> Variable:
        start = add(zeros_of(shape, dtype=self.dtype), value)
        return Variable(lambda: start, name=f"{type(self).__name__}/{name}")


class BahdanauAttention(AttentionMechanism):
    """score = sum(v * tanh(memory @ memory_kernel + query @ query_kernel)) (D. Bahdanau et al.,
    "Neural machine translation by jointly learning to align and translate", 2015, A.1.2).

    normalize: g * v / |v| in place of v, and a bias within tanh (T. Salimans and D. Kingma 2016;
    C. Raffel et al. 2017); g begins at sqrt(1 / num_units).

    >>> attention = wf.nn.BahdanauAttention(4)
    >>> memory = attention.read(wf.ones([2, 5, 3]), query_size=6, memory_sequence_length=[5, 2])
    >>> context, alignments = attention(wf.ones([2, 6]), memory)
    >>> context.shape, alignments[1].numpy()
    ((2, 3), array([0.5, 0.5, 0. , 0. , 0. ], dtype=float32))
    """

    def __init__(
        self,
        num_units: int,
        normalize: bool = False,
        memory_size: int | None = None,
        query_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        self.normalize = bool(normalize)
        super().__init__(num_units, memory_size, query_size, initializer, dtype)

    def _make(self, memory_size: int, query_size: int) -> None:
        super()._make(memory_size, query_size)
        n = self.num_units
        self.query_kernel = self._matrix(query_size, n, "query_kernel")
        make = lambda: reshape(self._initializer((n, 1), self.dtype), (n,))  # noqa: E731
        self.v = Variable(make, name="BahdanauAttention/v")
        if self.normalize:
            self.g = self._filled((), n**-0.5, "g")
            self.bias = self._filled((n,), 0.0, "bias")

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """As the class says."""
        both = add(expand_dims(keys, 1), expand_dims(matmul(query, self.query_kernel), 2))
        v: Any = self.v
        if self.normalize:
            both = add(both, self.bias)
            v = divide(multiply(self.g, v), sqrt(sum_of(square(v))))
        return sum_of(multiply(tanh(both), v), axis=-1)


class LuongAttention(AttentionMechanism):
    """score = query . (memory @ memory_kernel) (M. Luong et al., "Effective approaches to
    attention-based neural machine translation", 2015, "general"); the query's size is num_units.

    scale: times a number g that is learned, and begins at 1.

    >>> attention = wf.nn.LuongAttention(6)
    >>> memory = attention.read(wf.ones([2, 5, 3]), query_size=6)
    >>> attention(wf.ones([2, 6]), memory)[0].shape
    (2, 3)
    """

    def __init__(
        self,
        num_units: int,
        scale: bool = False,
        memory_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        self.scale = bool(scale)
        super().__init__(num_units, memory_size, num_units, initializer, dtype)

    def _make(self, memory_size: int, query_size: int) -> None:
        if query_size != self.num_units:
            raise ShapeError(
                f"LuongAttention: num_units is {self.num_units}, the queries have size "
                f"{query_size}",
                hint="both are multiplied: num_units is the output size of the cell",
                location=caller_location(),
            )
        super()._make(memory_size, query_size)
        if self.scale:
            self.g = self._filled((), 1.0, "g")

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """As the class says."""
        found = matmul(query, keys, transpose_b=True)
        return multiply(self.g, found) if self.scale else found


#: The ways to compute monotonic attention.
_MODES = ("recursive", "parallel", "hard")


def _check_mode(what: str, mode: object) -> None:
    if mode not in _MODES:
        raise InvalidArgumentError(
            f"{what}: mode={mode!r:.40} is none of {', '.join(_MODES)}", location=caller_location()
        )


def monotonic_attention(
    p_choose_i: TensorLike, previous_attention: TensorLike, mode: str = "parallel"
) -> Tensor:
    """The probabilities that each place is looked at, from left to right (C. Raffel et al., "Online
    and linear-time attention by enforcing monotonic alignments", 2017; TF's).

    From where it looked at the last step, place by place, p_choose_i [..., time] says how probable
    it is to stay; previous_attention [..., time] are the probabilities of the last step. What is
    given sums to less than 1 where the end may be passed. mode: "recursive" is exact, one place
    after the other (equation 8); "parallel" is its solution by cumulative products (11), which
    loses precision where many are close to 0 or 1; "hard" is for p_choose_i and
    previous_attention of only 0 and 1, as at test time. InvalidArgumentError for other modes,
    ShapeError for shapes that do not fit, TypeRuleError for what is not floating.

    >>> p, before = [[0.5, 0.5, 1.0]], [[0.0, 1.0, 0.0]]  # it looked at place 1
    >>> wf.nn.monotonic_attention(p, before, "recursive")
    Tensor([[0. , 0.5, 0.5]], dtype=float32)
    >>> wf.nn.monotonic_attention([[1.0, 0.0, 1.0]], before, "hard")
    Tensor([[0., 0., 1.]], dtype=float32)
    """
    op = "nn.monotonic_attention"
    _check_mode(f"wf.{op}", mode)
    p, before = (inexact_tensor(as_tensor(x), op) for x in (p_choose_i, previous_attention))
    dtype = p.dtype
    if not p.ndim or p.ndim != before.ndim:
        raise ShapeError(
            f"wf.{op}: both are [..., time], got {p.describe()} and {before.describe()}",
            location=caller_location(),
        )
    p, before = widened(p), expand(widened(before), p.shape)
    if mode == "recursive":
        made = _recursive(p, before)
    elif mode == "parallel":
        least = finfo(p.dtype).smallest_normal
        logs = log(clip(subtract(1.0, p), least, 1.0))
        passed = exp(_before_each(cumulative_sum(logs, axis=-1, include_initial=True)))
        reached = cumulative_sum(divide(before, clip(passed, 1e-10, 1.0)), axis=-1)
        made = multiply(multiply(p, passed), reached)
    else:
        p = multiply(p, cumulative_sum(before, axis=-1))
        passed = cumulative_prod(subtract(1.0, p), axis=-1, include_initial=True)
        made = multiply(p, _before_each(passed))
    return cast(made, dtype)


def _before_each(running: Tensor) -> Tensor:
    """What a running sum or product that begins with none was before each place."""
    return running[..., :-1]


def _recursive(p: Tensor, before: Tensor) -> Tensor:
    """q[i] = (1 - p[i - 1]) q[i - 1] + before[i]; the result is p[i] q[i]."""
    first = expand(zeros_of((1,) * p.ndim, dtype=p.dtype), (*p.shape[:-1], 1))
    passed = _before_each(concat([first, subtract(1.0, p)], axis=-1))

    def step(q: Tensor, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        stays, comes = given
        made = add(multiply(stays, q), comes)
        return made, made

    rows = moveaxis(passed, -1, 0), moveaxis(before, -1, 0)
    nothing = expand(zeros_of((1,) * (p.ndim - 1), dtype=p.dtype), p.shape[:-1])
    _, reached = scan(step, nothing, rows)
    return multiply(p, moveaxis(reached, 0, -1))


class _Monotonic(AttentionMechanism):
    """A mechanism that looks from left to right: its scores are chances to stop at a place."""

    def __init__(
        self, sigmoid_noise: float, score_bias_init: float, mode: str, *given: Any
    ) -> None:
        what = f"wf.nn.{type(self).__name__}"
        _check_mode(what, mode)
        self.mode = mode
        numbers: dict[str, object] = {
            "sigmoid_noise": sigmoid_noise, "score_bias_init": score_bias_init,
        }  # fmt: skip
        for name, value in numbers.items():
            real = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not real or (name == "sigmoid_noise" and not sigmoid_noise >= 0):
                raise InvalidArgumentError(
                    f"{what}: {name} must be a number{' from 0 on' if real else ''}, got "
                    f"{value!r:.40}",
                    location=caller_location(),
                )
        self.sigmoid_noise, self._score_bias_init = float(sigmoid_noise), float(score_bias_init)
        super().__init__(*given)

    def _make(self, memory_size: int, query_size: int) -> None:
        super()._make(memory_size, query_size)
        self.score_bias = self._filled((), self._score_bias_init, "score_bias")

    def initial_alignments(self, memory: Memory, rows: Dim) -> Tensor:
        """All on the first place."""
        time = memory.values.shape[1]
        first = cast(equal(arange(time), 0), memory.values.dtype)
        return expand(expand_dims(first, 0), (rows, time))

    def _weights(self, scores: Tensor, memory: Memory, alignments: TensorLike | None) -> Tensor:
        if alignments is None:
            before = expand_dims(self.initial_alignments(memory, scores.shape[0]), 1)
        else:
            before = reshape(as_tensor(alignments), scores.shape)
        scores = add(scores, self.score_bias)
        if self.sigmoid_noise > 0 and self.training:
            noise = default_generator().normal(scores.shape, dtype=scores.dtype)
            scores = add(scores, multiply(noise, self.sigmoid_noise))
        hard = self.mode == "hard"
        p = cast(greater(scores, 0), scores.dtype) if hard else sigmoid(scores)
        p = where(expand_dims(memory.within, 1), p, 0)
        return monotonic_attention(p, before, self.mode)


class BahdanauMonotonicAttention(_Monotonic, BahdanauAttention):
    """`BahdanauAttention` that looks at the memory from left to right: the sigmoid of score +
    score_bias is the chance to stop at a place (`monotonic_attention`; C. Raffel et al. 2017).

    sigmoid_noise: in training (`model.train()`) so many times a normal number, of the process-wide
    generator, is added to each score, so that chances come close to 0 and 1. score_bias_init: a
    negative one, such as -2, begins with a long look. mode: as of `monotonic_attention`, and an
    attribute, which may be set to "hard" after training. Others as of `BahdanauAttention`.

    >>> attention = wf.nn.BahdanauMonotonicAttention(4, score_bias_init=-1.0)
    >>> memory = attention.read(wf.ones([2, 5, 3]), query_size=6, memory_sequence_length=[5, 2])
    >>> context, alignments = attention(wf.ones([2, 6]), memory)
    >>> after = attention(wf.ones([2, 6]), memory, alignments)[1]
    >>> bool(wf.all(wf.cumulative_sum(after, axis=1) <= wf.cumulative_sum(alignments, axis=1)))
    True
    """

    def __init__(
        self,
        num_units: int,
        normalize: bool = False,
        sigmoid_noise: float = 0.0,
        score_bias_init: float = 0.0,
        mode: str = "parallel",
        memory_size: int | None = None,
        query_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        super().__init__(
            sigmoid_noise, score_bias_init, mode, num_units, normalize, memory_size, query_size,
            initializer, dtype,
        )  # fmt: skip


class LuongMonotonicAttention(_Monotonic, LuongAttention):
    """`LuongAttention` that looks at the memory from left to right, as
    `BahdanauMonotonicAttention` does.

    >>> attention = wf.nn.LuongMonotonicAttention(6, mode="hard")
    >>> memory = attention.read(wf.ones([1, 3, 2]), query_size=6)
    >>> _ = attention.score_bias.assign(100.0)  # it stays where it is
    >>> attention(wf.ones([1, 6]), memory, [[0.0, 1.0, 0.0]])[1]
    Tensor([[0., 1., 0.]], dtype=float32)
    """

    def __init__(
        self,
        num_units: int,
        scale: bool = False,
        sigmoid_noise: float = 0.0,
        score_bias_init: float = 0.0,
        mode: str = "parallel",
        memory_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        super().__init__(
            sigmoid_noise, score_bias_init, mode, num_units, scale, memory_size, initializer, dtype
        )


class AttentionState(NamedTuple):
    """The state of a cell that attends: the state of the cell inside, the attention of the last
    step [batch, size] and its alignments [batch, time of the memory].

    >>> cell = wf.nn.AttentionWrapper(wf.nn.GRUCell(4), wf.nn.BahdanauAttention(3))
    >>> cell.attend(wf.ones([2, 5, 6])).zero_state(2).attention.shape
    (2, 6)
    """

    cell: Any
    attention: Tensor
    alignments: Tensor


class AttentionWrapper(Module):
    """A cell that looks at a memory at each step (Luong et al. 2015, input feeding; TF1's).

    The cell gets [x, last attention]; its output is the query. attention = context, or with
    attention_layer_size [output, context] @ attention_kernel. The output is the attention, or the
    cell's own without output_attention. `attend` makes the cell that `dynamic_rnn` takes.

    >>> model = wf.nn.AttentionWrapper(wf.nn.LSTMCell(8), wf.nn.LuongAttention(8), 5)
    >>> decoder = model.attend(wf.ones([2, 7, 3]), memory_sequence_length=[7, 4])
    >>> outputs, state = wf.nn.dynamic_rnn(decoder, wf.ones([2, 6, 4]))
    >>> outputs.shape, state.alignments.shape
    ((2, 6, 5), (2, 7))
    """

    def __init__(
        self,
        cell: RNNCell,
        attention_mechanism: AttentionMechanism,
        attention_layer_size: int | None = None,
        output_attention: bool = True,
    ) -> None:
        kinds = ((cell, RNNCell), (attention_mechanism, AttentionMechanism))
        for given, kind in kinds:
            if not isinstance(given, kind):
                raise TypeRuleError(
                    f"wf.nn.AttentionWrapper: takes a cell and an attention mechanism, got a "
                    f"{type(given).__name__} where a {kind.__name__} is to be",
                    location=caller_location(),
                )
        self.cell, self.mechanism = cell, attention_mechanism
        self.attention_layer_size = None if attention_layer_size is None else positive_size(
            "AttentionWrapper", "attention_layer_size", attention_layer_size)  # fmt: skip
        self.output_attention = bool(output_attention)
        self.attention_kernel: Variable | None = None

    def attend(
        self, memory: TensorLike, memory_sequence_length: TensorLike | None = None
    ) -> RNNCell:
        """The cell for a memory [batch, time, depth], of which the first memory_sequence_length
        [batch] places count. Its state is an `AttentionState`. For a beam search it takes rows /
        batch rows for each row of the memory, which need not be repeated."""
        found = self.mechanism.read(memory, self.cell.output_size, memory_sequence_length)
        depth = found.values.shape[2]
        assert isinstance(depth, int)
        size = self.attention_layer_size
        if size is not None and self.attention_kernel is None:
            shape = (self.cell.output_size + depth, size)
            make = lambda: glorot_uniform()(shape, self.cell.dtype)  # noqa: E731
            self.attention_kernel = Variable(make, name="AttentionWrapper/attention_kernel")
        return _Attending(self, found, depth if size is None else size)


class _Attending(RNNCell):
    """A wrapper's cell with its memory, whose variables are the wrapper's."""

    def __init__(self, wrapper: AttentionWrapper, memory: Memory, size: int) -> None:
        self.wrapper, self._memory, self._attention_size = wrapper, memory, size
        super().__init__(wrapper.cell.num_units, dtype=wrapper.cell.dtype)

    @property
    def output_size(self) -> int:
        """The size of an output: of the attention, or of the cell's output."""
        attends = self.wrapper.output_attention
        return self._attention_size if attends else self.wrapper.cell.output_size

    def zero_state(self, batch_size: Dim) -> AttentionState:
        """The state of a sequence that has not begun."""
        alignments = self.wrapper.mechanism.initial_alignments(self._memory, batch_size)
        attention = expand(
            zeros_of((1, 1), dtype=self._memory.values.dtype), (batch_size, self._attention_size)
        )
        return AttentionState(self.wrapper.cell.zero_state(batch_size), attention, alignments)

    def _make(self, inputs: int) -> None:
        self.wrapper.cell.build(inputs + self._attention_size)

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As `AttentionWrapper` says."""
        before = AttentionState(*state)
        output, cell = self.wrapper.cell(concat([inputs, before.attention], axis=1), before.cell)
        attention, alignments = self.wrapper.mechanism(output, self._memory, before.alignments)
        if self.wrapper.attention_kernel is not None:
            both = concat([output, attention], axis=1)
            attention = matmul(both, self.wrapper.attention_kernel)
        made = attention if self.wrapper.output_attention else output
        return made, AttentionState(cell, attention, alignments)
