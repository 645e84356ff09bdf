"""Recurrent networks: cells (`BasicRNNCell`, `GRUCell`, `LSTMCell`), `dynamic_rnn` and
`bidirectional_dynamic_rnn` over sequences of several lengths, `sequence_mask`, `reverse_sequence`.

Formulas, orders of gates and names of variables are TensorFlow 1's. A cell is a `Module`; its
variables are made when it first sees an input, or by `build`. A sequence is a loop in native code
(`wf.scan`), in compiled functions and in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from weft.frontend.control.loops import scan
from weft.frontend.control.region import overlap
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.initial_values import Initializer, glorot_uniform
from weft.frontend.nn.module import Module
from weft.frontend.ops.creation import arange
from weft.frontend.ops.creation import zeros as zeros_of
from weft.frontend.ops.elementwise import add, clip, less, multiply, subtract, where
from weft.frontend.ops.indexing import take_along_axis
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import concat, expand_dims, moveaxis, reshape, split
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    check_dtype,
    check_positive,
    check_size,
    expand,
    filled,
    strong_tensor,
)
from weft.frontend.ops.special import sigmoid, tanh
from weft.frontend.state.variable import Variable
from weft.ir.dims import Dim, format_shape, same
from weft.ir.dtypes import as_dtype, bool_, float32, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

Activation = Callable[[Any], Tensor]


# ------------------------------------------------------------------------------ several lengths
def sequence_mask(lengths: TensorLike, maxlen: Any, dtype: object = bool_) -> Tensor:
    """Which places of rows are within the lengths -> lengths.shape + [maxlen] (TF1's).

    lengths: integers. maxlen: given, as in compiled code shapes are known before values are; in a
    graph it may be a tensor. dtype: of the result, True as 1.

    >>> wf.nn.sequence_mask([1, 3], 3, dtype=wf.int32)
    Tensor([[1, 0, 0],
            [1, 1, 1]], dtype=int32)
    """
    op = "nn.sequence_mask"
    count = check_size(op, maxlen, "maxlen")
    return cast(less(arange(count), expand_dims(as_int64(op, lengths), -1)), check_dtype(dtype))


def as_int64(op: str, x: TensorLike, what: str = "lengths are integers") -> Tensor:
    """Integers as int64. TypeRuleError, which says `what` is expected, for others."""
    t = strong_tensor(x)
    if not t.dtype.is_integer:
        raise TypeRuleError(f"wf.{op}: {what}, got {t.dtype.name}", location=caller_location())
    return cast(t, int64)


def row_lengths(op: str, name: str, lengths: TensorLike, batch: Dim) -> Tensor:
    """Lengths as int64 [batch], one for each row. TypeRuleError, ShapeError for others."""
    t = as_int64(op, lengths)
    if t.ndim != 1 or not same(t.shape[0], batch):
        raise ShapeError(
            f"wf.{op}: {name} of shape {format_shape(t.shape)} for a batch of {batch}",
            hint="one length for each row",
            location=caller_location(),
        )
    return t


def true_rows(lengths: Tensor | None, size: Dim, batch: Dim) -> Tensor:
    """Which places are within the lengths, all of them without lengths: bool [batch, size]."""
    if lengths is None:
        return filled(True, bool_, (batch, size))
    return less(arange(size), expand_dims(lengths, 1))


def reverse_sequence(
    x: TensorLike, seq_lengths: TensorLike, seq_axis: int = 1, batch_axis: int = 0
) -> Tensor:
    """`x` with the first seq_lengths[i] places along `seq_axis` in reverse order, for each i along
    `batch_axis`; the places after them stay (TF1's).

    seq_lengths: integers, one for each i, at most the size of seq_axis (larger ones count as it).
    ShapeError for another number of them, InvalidArgumentError for axes that are the same.

    >>> wf.nn.reverse_sequence([[1, 2, 3, 4], [1, 2, 3, 4]], [2, 4])
    Tensor([[2, 1, 3, 4],
            [4, 3, 2, 1]], dtype=int64)
    """
    op = "nn.reverse_sequence"
    t, lengths = strong_tensor(x), as_int64(op, seq_lengths)
    time = check_axis(op, seq_axis, t.ndim, "seq_axis")
    batch = check_axis(op, batch_axis, t.ndim, "batch_axis")
    if time == batch:
        raise InvalidArgumentError(
            f"wf.{op}: seq_axis and batch_axis are both {time}", location=caller_location()
        )
    size = t.shape[time]
    if lengths.ndim != 1 or not same(lengths.shape[0], t.shape[batch]):
        raise ShapeError(
            f"wf.{op}: seq_lengths of shape {format_shape(lengths.shape)} for {t.describe()}, of "
            f"which axis {batch} is the batch",
            location=caller_location(),
        )
    if not isinstance(size, int):
        raise ShapeError(
            f"wf.{op}: the size of axis {time} of {t.describe()} is not known",
            hint="the time axis has a static size: wf.placeholder(dtype, [None, 20, 8])",
            location=caller_location(),
        )
    lengths = clip(lengths, 0, size)
    places, n = arange(size), expand_dims(lengths, 1)
    index = where(less(places, n), subtract(subtract(n, 1), places), places)  # [batch, time]
    if time < batch:
        index = moveaxis(index, 1, 0)
    for axis in range(t.ndim):
        if axis not in (time, batch):
            index = expand_dims(index, axis)
    shape = tuple(t.shape)
    return take_along_axis(t, expand(index, shape), axis=time)


# ---------------------------------------------------------------------------------------- cells
class RNNCell(Module):
    """The common part of cells: a cell is called with an input [batch, inputs] and a state, and
    gives an output and the next state.

    num_units: the size of the state. input_size: of the inputs; without it the variables are made
    when the first input is there. initializer: of matrices, Glorot's uniform one by default.

    >>> class Sum(wf.nn.RNNCell):
    ...     def call(self, x, state):
    ...         return x + state, x + state
    >>> outputs, state = wf.nn.dynamic_rnn(Sum(1), wf.ones([1, 3, 1]))
    >>> outputs[0, :, 0], state
    (Tensor([1., 2., 3.], dtype=float32), Tensor([[3.]], dtype=float32))
    """

    #: The rank of an input; its last axis is the one that variables are made for.
    input_rank = 2

    def __init__(
        self,
        num_units: int,
        input_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        self.num_units = positive_size(type(self).__name__, "num_units", num_units)
        self.dtype = check_dtype(dtype)
        self._initializer = glorot_uniform() if initializer is None else initializer
        self._inputs: int | None = None
        if input_size is not None:
            self.build(input_size)

    def build(self, input_size: int) -> None:
        """Make the variables, for inputs of that size. Once: later calls change nothing.
        ShapeError for another size."""
        size = positive_size(type(self).__name__, "input_size", input_size)
        if self._inputs is None:
            self._make(size)
            self._inputs = size
        elif self._inputs != size:
            raise ShapeError(
                f"{type(self).__name__}: made for inputs of size {self._inputs}, got {size}",
                location=caller_location(),
            )

    def __call__(self, inputs: TensorLike, state: Any) -> tuple[Tensor, Any]:
        """(output, next state) for an input [batch, inputs]."""
        x = as_tensor(inputs)
        depth = x.shape[-1] if x.ndim == self.input_rank else None
        if not isinstance(depth, int):
            kind = "[batch, inputs]" if self.input_rank == 2 else f"of rank {self.input_rank}"
            raise ShapeError(
                f"{type(self).__name__}: an input is {kind} with a known size, got {x.describe()}",
                location=caller_location(),
            )
        self.build(depth)
        return self.call(x, state)

    @property
    def output_size(self) -> int:
        """The size of an output."""
        return self.num_units

    def zero_state(self, batch_size: Dim) -> Any:
        """The state of a sequence that has not begun.

        >>> wf.nn.GRUCell(2).zero_state(1)
        Tensor([[0., 0.]], dtype=float32)
        """
        return self._zeros(batch_size, self.num_units)

    # ------------------------------------------------------------------------- for subclasses
    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """(output, next state); what a subclass computes."""
        raise NotImplementedError

    def _make(self, inputs: int) -> None:
        """Make the variables; those without any need not say so."""

    def _matrix(self, rows: int, columns: int, name: str) -> Variable:
        return self._variable((rows, columns), name)

    def _variable(self, shape: tuple[int, ...], name: str) -> Variable:
        make = lambda: self._initializer(shape, self.dtype)  # noqa: E731
        return Variable(make, name=f"{type(self).__name__}/{name}")

    def _vector(self, size: int, name: str, value: float = 0.0) -> Variable:
        start = add(zeros_of((size,), dtype=self.dtype), value)
        return Variable(lambda: start, name=f"{type(self).__name__}/{name}")

    def _zeros(self, batch: Dim, size: int) -> Tensor:
        return expand(zeros_of((1, size), dtype=self.dtype), (batch, size))


def positive_size(kind: str, what: str, value: object) -> int:
    """A size of at least 1, as an int. InvalidArgumentError for less."""
    return check_positive(f"nn.{kind}", value, what)


def _affine(parts: list[Any], kernel: Variable, bias: Variable) -> Tensor:
    return add(matmul(concat(parts, axis=1), kernel), bias)


class BasicRNNCell(RNNCell):
    """output = next state = activation([x, state] @ kernel + bias) (Elman 1990; TF1's).

    >>> cell = wf.nn.BasicRNNCell(2, input_size=3)
    >>> output, state = cell(wf.ones([4, 3]), cell.zero_state(4))
    >>> output.shape, [v.shape for v in cell.variables()]
    ((4, 2), [(5, 2), (2,)])
    """

    def __init__(
        self,
        num_units: int,
        activation: Activation = tanh,
        input_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        self.activation = activation
        super().__init__(num_units, input_size, initializer, dtype)

    def _make(self, inputs: int) -> None:
        self.kernel = self._matrix(inputs + self.num_units, self.num_units, "kernel")
        self.bias = self._vector(self.num_units, "bias")

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        output = self.activation(_affine([inputs, state], self.kernel, self.bias))
        return output, output


class GRUCell(RNNCell):
    """Gated recurrent unit (Cho et al. 2014; TF1's, whose reset gate is before the matrix).

    r, u = sigmoid([x, h] @ gate_kernel + gate_bias); c = activation([x, r*h] @ candidate_kernel +
    candidate_bias); output = next h = u*h + (1-u)*c. The gates' bias begins at 1.

    >>> cell = wf.nn.GRUCell(2, input_size=3)
    >>> output, state = cell(wf.ones([4, 3]), cell.zero_state(4))
    >>> list(cell.named_variables())
    ['gate_kernel', 'gate_bias', 'candidate_kernel', 'candidate_bias']
    """

    def __init__(
        self,
        num_units: int,
        activation: Activation = tanh,
        input_size: int | None = None,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        self.activation = activation
        super().__init__(num_units, input_size, initializer, dtype)

    def _make(self, inputs: int) -> None:
        n = self.num_units
        self.gate_kernel = self._matrix(inputs + n, 2 * n, "gate_kernel")
        self.gate_bias = self._vector(2 * n, "gate_bias", 1.0)
        self.candidate_kernel = self._matrix(inputs + n, n, "candidate_kernel")
        self.candidate_bias = self._vector(n, "candidate_bias")

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        gates = sigmoid(_affine([inputs, state], self.gate_kernel, self.gate_bias))
        reset, update = split(gates, 2, axis=1)
        parts = [inputs, multiply(reset, state)]
        found = self.activation(_affine(parts, self.candidate_kernel, self.candidate_bias))
        output = add(multiply(update, state), multiply(subtract(1, update), found))
        return output, output


class LSTMState(NamedTuple):
    """The state of an `LSTMCell`: cells c and output h (TF1's LSTMStateTuple).

    >>> wf.nn.LSTMCell(2).zero_state(1).c
    Tensor([[0., 0.]], dtype=float32)
    """

    c: Tensor
    h: Tensor


class LSTMCell(RNNCell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with peepholes (Gers and
    Schmidhuber 2000) and a projection of the output (Sak et al. 2014) if asked for.

    i, j, f, o = [x, h] @ kernel + bias; with use_peepholes w_i_diag*c is added to i, w_f_diag*c to
    f, and w_o_diag*c' to o. c' = sigmoid(f + forget_bias)*c + sigmoid(i)*activation(j), within
    +-cell_clip; h' = sigmoid(o)*activation(c'), with num_proj times `projection`, within
    +-proj_clip. The output is h'.

    >>> cell = wf.nn.LSTMCell(4, use_peepholes=True, num_proj=2, input_size=3)
    >>> output, state = cell(wf.ones([5, 3]), cell.zero_state(5))
    >>> output.shape, state.c.shape, list(cell.named_variables())[3:]
    ((5, 2), (5, 4), ['w_i_diag', 'w_o_diag', 'projection'])
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: Initializer | None = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        forget_bias: float = 1.0,
        activation: Activation = tanh,
        input_size: int | None = None,
        dtype: object = float32,
    ) -> None:
        self.use_peepholes, self.forget_bias = use_peepholes, forget_bias
        self.cell_clip, self.proj_clip = cell_clip, proj_clip
        self.num_proj = (
            None if num_proj is None else positive_size("LSTMCell", "num_proj", num_proj)
        )
        self.activation = activation
        super().__init__(num_units, input_size, initializer, dtype)

    @property
    def output_size(self) -> int:
        """The size of an output: num_proj, or num_units without it."""
        return self.num_units if self.num_proj is None else self.num_proj

    def zero_state(self, batch_size: Dim) -> LSTMState:
        """The state of a sequence that has not begun."""
        c = self._zeros(batch_size, self.num_units)
        return LSTMState(c, self._zeros(batch_size, self.output_size))

    def _make(self, inputs: int) -> None:
        n = self.num_units
        self.kernel = self._matrix(inputs + self.output_size, 4 * n, "kernel")
        self.bias = self._vector(4 * n, "bias")
        if self.use_peepholes:
            self.w_f_diag, self.w_i_diag, self.w_o_diag = (
                Variable(self._row(n), name=f"LSTMCell/w_{gate}_diag") for gate in "fio"
            )
        if self.num_proj is not None:
            self.projection = self._matrix(n, self.num_proj, "projection")

    def _row(self, n: int) -> Callable[[], Tensor]:
        return lambda: reshape(self._initializer((1, n), self.dtype), (n,))

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        c, h = state
        i, j, f, o = split(_affine([inputs, h], self.kernel, self.bias), 4, axis=1)
        if self.use_peepholes:
            i, f = add(i, multiply(self.w_i_diag, c)), add(f, multiply(self.w_f_diag, c))
        kept = multiply(sigmoid(add(f, self.forget_bias)), c)
        new = add(kept, multiply(sigmoid(i), self.activation(j)))
        if self.cell_clip is not None:
            new = clip(new, -self.cell_clip, self.cell_clip)
        if self.use_peepholes:
            o = add(o, multiply(self.w_o_diag, new))
        output = multiply(sigmoid(o), self.activation(new))
        if self.num_proj is not None:
            output = matmul(output, self.projection)
            if self.proj_clip is not None:
                output = clip(output, -self.proj_clip, self.proj_clip)
        return output, LSTMState(new, output)


# ------------------------------------------------------------------------------------- sequences
def dynamic_rnn(
    cell: RNNCell,
    inputs: TensorLike,
    sequence_length: TensorLike | None = None,
    initial_state: Any = None,
    time_major: bool = False,
    *,
    dtype: object = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
) -> tuple[Tensor, Any]:
    """(outputs, last state) of a cell over sequences [batch, time, inputs]; time_major: [time,
    batch, inputs], outputs too.

    sequence_length: integers [batch]. After its end a sequence gives outputs of 0, and its state
    stays. initial_state: zeros by default. dtype: TensorFlow's, must be that of the inputs
    (TypeRuleError). parallel_iterations, swap_memory: as for `wf.while_loop`, they change nothing:
    the loop is a `wf.scan`. ShapeError for inputs that are no sequences, and another number of
    lengths.

    >>> cell = wf.nn.LSTMCell(4)
    >>> outputs, state = wf.nn.dynamic_rnn(cell, wf.ones([2, 5, 3]), sequence_length=[5, 2])
    >>> outputs.shape, state.h.shape, bool(wf.all(outputs[1, 2:] == 0))
    ((2, 5, 4), (2, 4), True)
    """
    op = "nn.dynamic_rnn"
    x = _sequences(op, cell, inputs)
    overlap(f"wf.{op}", parallel_iterations)
    _check_dtype(op, x, dtype)
    x = x if time_major else moveaxis(x, 1, 0)
    batch, depth = x.shape[1], x.shape[-1]
    assert isinstance(depth, int)
    cell.build(depth)  # here, as a body of a loop makes no variables
    state = cell.zero_state(batch) if initial_state is None else initial_state
    state = pytree.tree_map(as_tensor, state)
    if sequence_length is None:
        last, outputs = scan(lambda s, row: _swapped(cell(row, s)), state, x)
        return (outputs if time_major else moveaxis(outputs, 0, 1)), last
    lengths = row_lengths(op, "sequence_length", sequence_length, batch)

    def step(carry: tuple[Any, Tensor], row: Tensor) -> tuple[Any, Tensor]:
        before, left = carry
        output, after = cell(row, before)
        going = less(0, left)
        kept = pytree.tree_map(lambda new, old: chosen_rows(going, new, old), after, before)
        return (kept, subtract(left, 1)), chosen_rows(going, output, 0)

    (last, _), outputs = scan(step, (state, lengths), x)
    return (outputs if time_major else moveaxis(outputs, 0, 1)), last


def _check_dtype(op: str, x: Tensor, dtype: object) -> None:
    """TypeRuleError for another dtype than that of the inputs."""
    if dtype is not None and as_dtype(dtype) is not x.dtype:
        raise TypeRuleError(
            f"wf.{op}: dtype={as_dtype(dtype).name}, but the inputs are {x.dtype.name}",
            hint="the state has the dtype of the inputs: convert these with wf.astype",
            location=caller_location(),
        )


def chosen_rows(chosen: Tensor, new: Tensor, old: TensorLike) -> Tensor:
    """The rows of `new` that are chosen, of `old` the others."""
    for axis in range(1, new.ndim):
        chosen = expand_dims(chosen, axis)
    return where(chosen, new, old)


def _swapped(made: tuple[Tensor, Any]) -> tuple[Any, Tensor]:
    return made[1], made[0]


def _sequences(op: str, cell: object, inputs: TensorLike) -> Tensor:
    if not isinstance(cell, RNNCell):
        raise TypeRuleError(
            f"wf.{op}: takes a wf.nn.RNNCell, got a {type(cell).__name__}",
            hint="wf.scan runs any step function over time",
            location=caller_location(),
        )
    x = as_tensor(inputs)
    if x.ndim != cell.input_rank + 1 or not isinstance(x.shape[-1], int):
        further = "" if cell.input_rank == 2 else f" (of rank {cell.input_rank + 1})"
        raise ShapeError(
            f"wf.{op}: sequences are [batch, time, inputs]{further} with a known size of inputs, "
            f"got {x.describe()}",
            location=caller_location(),
        )
    return x


def bidirectional_dynamic_rnn(
    cell_fw: RNNCell,
    cell_bw: RNNCell,
    inputs: TensorLike,
    sequence_length: TensorLike | None = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    time_major: bool = False,
    *,
    dtype: object = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
) -> tuple[tuple[Tensor, Tensor], tuple[Any, Any]]:
    """((outputs forward, outputs backward), (last states)): `dynamic_rnn` of one cell from the
    first place to the last of each sequence, and of another from the last to the first (TF1's).

    Outputs of both stand at the places of their inputs. Other arguments as of `dynamic_rnn`.

    >>> forward, backward = wf.nn.GRUCell(4), wf.nn.GRUCell(4)
    >>> outputs, states = wf.nn.bidirectional_dynamic_rnn(forward, backward, wf.ones([2, 5, 3]))
    >>> wf.concat(outputs, axis=2).shape
    (2, 5, 8)
    """
    op = "nn.bidirectional_dynamic_rnn"
    x = _sequences(op, cell_bw, inputs)
    overlap(f"wf.{op}", parallel_iterations)
    _check_dtype(op, x, dtype)
    time, batch = (0, 1) if time_major else (1, 0)

    def turned(t: Tensor) -> Tensor:
        if sequence_length is None:
            return _flipped(t, time)
        return reverse_sequence(t, sequence_length, time, batch)

    forward = dynamic_rnn(cell_fw, x, sequence_length, initial_state_fw, time_major)
    back, last = dynamic_rnn(cell_bw, turned(x), sequence_length, initial_state_bw, time_major)
    return (forward[0], turned(back)), (forward[1], last)


def _flipped(t: Tensor, axis: int) -> Tensor:
    return t[::-1] if axis == 0 else t[:, ::-1]
