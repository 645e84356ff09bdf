"""Cells made of cells (layers, dropout, residual connections), cells with layer norms and of
images, and layers that run in both directions.

Names and meaning are those of TensorFlow 1 (`tf.nn.rnn_cell`, `tf.contrib.rnn`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.initial_values import Initializer
from weft.frontend.nn.losses import dropout, layer_norm
from weft.frontend.nn.recurrent import (
    Activation,
    LSTMCell,
    LSTMState,
    RNNCell,
    bidirectional_dynamic_rnn,
    positive_size,
)
from weft.frontend.nn.windows import conv2d
from weft.frontend.ops.creation import zeros as zeros_of
from weft.frontend.ops.elementwise import add, multiply
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import concat, split
from weft.frontend.ops.promotion import TensorLike, expand
from weft.frontend.ops.special import sigmoid, tanh
from weft.ir.dims import Dim, format_shape, same
from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location


def _cells(kind: str, cells: object) -> list[RNNCell]:
    """A list of cells. TypeRuleError for anything else, InvalidArgumentError for none."""
    items = list(cells) if isinstance(cells, (list, tuple)) else None
    if items is None or not all(isinstance(cell, RNNCell) for cell in items):
        raise TypeRuleError(
            f"wf.nn.{kind}: takes a list of cells (wf.nn.RNNCell), got {cells!r:.60}",
            location=caller_location(),
        )
    if not items:
        raise InvalidArgumentError(
            f"wf.nn.{kind}: takes at least one cell", location=caller_location()
        )
    return items


class MultiRNNCell(RNNCell):
    """Layers of cells as one cell: the output of each is the input of the next; the state is a
    tuple of their states, the output that of the last.

    A cell that is in the list twice shares its variables, if its inputs have one size.

    >>> cell = wf.nn.MultiRNNCell([wf.nn.LSTMCell(4), wf.nn.GRUCell(2)])
    >>> output, (lower, upper) = wf.nn.dynamic_rnn(cell, wf.ones([3, 5, 6]))
    >>> output.shape, lower.c.shape, upper.shape
    ((3, 5, 2), (3, 4), (3, 2))
    """

    def __init__(self, cells: Sequence[RNNCell], input_size: int | None = None) -> None:
        self.cells = _cells("MultiRNNCell", cells)
        super().__init__(self.cells[-1].num_units, input_size, dtype=self.cells[-1].dtype)

    @property
    def output_size(self) -> int:
        """The size of an output: that of the last cell."""
        return self.cells[-1].output_size

    def zero_state(self, batch_size: Dim) -> tuple[Any, ...]:
        """The states of the cells before a sequence."""
        return tuple(cell.zero_state(batch_size) for cell in self.cells)

    def _make(self, inputs: int) -> None:
        for cell in self.cells:
            cell.build(inputs)
            inputs = cell.output_size

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        if len(state) != len(self.cells):
            raise ShapeError(
                f"MultiRNNCell: {len(state)} states for {len(self.cells)} cells",
                location=caller_location(),
            )
        after = []
        for cell, own in zip(self.cells, state, strict=True):
            inputs, own = cell(inputs, own)
            after.append(own)
        return inputs, tuple(after)


class _Wrapper(RNNCell):
    """A cell around another, whose variables, state and output size are its own."""

    def __init__(self, cell: RNNCell) -> None:
        (self.cell,) = _cells(type(self).__name__, [cell])
        super().__init__(self.cell.num_units, dtype=self.cell.dtype)

    @property
    def output_size(self) -> int:
        """The size of an output: that of the cell inside."""
        return self.cell.output_size

    def zero_state(self, batch_size: Dim) -> Any:
        """The state of the cell inside before a sequence."""
        return self.cell.zero_state(batch_size)

    def _make(self, inputs: int) -> None:
        self.cell.build(inputs)


class DropoutWrapper(_Wrapper):
    """A cell whose inputs, outputs and states lose some of their elements in training
    (`model.train()`; W. Zaremba et al., "Recurrent neural network regularization", 2014).

    Rates are of what is dropped, as in `wf.nn.dropout` (1 - TF1's keep_prob); random numbers are of
    the process-wide generator, new ones at each step. Of an `LSTMState` c stays whole, as in TF1.

    >>> cell = wf.nn.DropoutWrapper(wf.nn.GRUCell(2), output_rate=0.5)
    >>> x = wf.ones([1, 3, 4])
    >>> still = wf.nn.dynamic_rnn(cell, x)[0]  # not in training: nothing is dropped
    >>> bool(wf.all(still == wf.nn.dynamic_rnn(cell.cell, x)[0]))
    True
    """

    def __init__(
        self,
        cell: RNNCell,
        input_rate: float = 0.0,
        output_rate: float = 0.0,
        state_rate: float = 0.0,
    ) -> None:
        rates: dict[str, object] = {
            "input_rate": input_rate,
            "output_rate": output_rate,
            "state_rate": state_rate,
        }
        for name, rate in rates.items():
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
                raise InvalidArgumentError(
                    f"wf.nn.DropoutWrapper: {name} must be a number in [0, 1], got {rate!r:.40}",
                    location=caller_location(),
                )
        super().__init__(cell)
        self.input_rate, self.output_rate, self.state_rate = input_rate, output_rate, state_rate

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        if not self.training:
            return self.cell(inputs, state)
        output, after = self.cell(dropout(inputs, self.input_rate), state)
        return dropout(output, self.output_rate), self._dropped(after)

    def _dropped(self, state: Any) -> Any:
        if self.state_rate == 0:
            return state
        if isinstance(state, LSTMState):
            return LSTMState(state.c, dropout(state.h, self.state_rate))
        if isinstance(state, tuple) and type(state) is tuple:
            return tuple(self._dropped(part) for part in state)
        return pytree.tree_map(lambda t: dropout(t, self.state_rate), state)


class ResidualWrapper(_Wrapper):
    """output = residual_fn(inputs, the cell's output), their sum by default (K. He et al. 2016;
    TF1's). ShapeError where the sizes differ.

    >>> cell = wf.nn.ResidualWrapper(wf.nn.GRUCell(3))
    >>> output, state = cell(wf.ones([1, 3]), cell.zero_state(1))
    >>> bool(wf.all(output == 1 + state))
    True
    """

    def __init__(
        self, cell: RNNCell, residual_fn: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> None:
        super().__init__(cell)
        self.residual_fn = residual_fn

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        output, after = self.cell(inputs, state)
        if self.residual_fn is not None:
            return self.residual_fn(inputs, output), after
        if not same(inputs.shape[-1], output.shape[-1]):
            raise ShapeError(
                f"ResidualWrapper: inputs {format_shape(inputs.shape)} and outputs "
                f"{format_shape(output.shape)} do not add",
                hint="a cell as large as its inputs, or residual_fn=",
                location=caller_location(),
            )
        return add(inputs, output), after


class LayerNormLSTMCell(LSTMCell):
    """LSTM with a layer norm of each gate, and of the cells before the output (J. Ba et al., "Layer
    normalization", 2016; TF1's LayerNormBasicLSTMCell).

    i, j, f, o = [x, h] @ kernel, each normalized over its units, times its row of gates_scale, plus
    its row of gates_offset; c' = sigmoid(f + forget_bias)*c + sigmoid(i)*activation(j), normalized
    with cell_scale and cell_offset; output = h' = sigmoid(o)*activation(c'). As in TF1 c' is kept
    normalized. The order i, j, f, o is `LSTMCell`'s.

    >>> cell = wf.nn.LayerNormLSTMCell(4, input_size=3)
    >>> output, state = cell(wf.ones([2, 3]), cell.zero_state(2))
    >>> list(cell.named_variables())
    ['kernel', 'gates_scale', 'gates_offset', 'cell_scale', 'cell_offset']
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        activation: Activation = tanh,
        epsilon: float = 1e-5,
        initializer: Initializer | None = None,
        input_size: int | None = None,
        dtype: object = float32,
    ) -> None:
        self.epsilon = epsilon
        super().__init__(
            num_units, forget_bias=forget_bias, activation=activation, initializer=initializer,
            input_size=input_size, dtype=dtype,
        )  # fmt: skip

    def _make(self, inputs: int) -> None:
        n = self.num_units
        self.kernel = self._matrix(inputs + n, 4 * n, "kernel")
        self.gates_scale = self._vector(4 * n, "gates_scale", 1.0)
        self.gates_offset = self._vector(4 * n, "gates_offset")
        self.cell_scale = self._vector(n, "cell_scale", 1.0)
        self.cell_offset = self._vector(n, "cell_offset")

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        c, h = state
        gates = split(matmul(concat([inputs, h], axis=1), self.kernel), 4, axis=1)
        scales, offsets = split(self.gates_scale, 4), split(self.gates_offset, 4)
        i, j, f, o = (
            layer_norm(gate, scale, offset, epsilon=self.epsilon)
            for gate, scale, offset in zip(gates, scales, offsets, strict=True)
        )
        kept = multiply(sigmoid(add(f, self.forget_bias)), c)
        new = add(kept, multiply(sigmoid(i), self.activation(j)))
        new = layer_norm(new, self.cell_scale, self.cell_offset, epsilon=self.epsilon)
        output = multiply(sigmoid(o), self.activation(new))
        return output, LSTMState(new, output)


class ConvLSTMCell(RNNCell):
    """LSTM of images: products with matrices are convolutions (X. Shi et al., "Convolutional LSTM
    network", 2015, without peepholes; TF1's).

    Inputs are [batch, height, width, channels] of the size input_shape = (height, width, channels),
    outputs [batch, height, width, output_channels]; `dynamic_rnn` takes [batch, time, height, ...].
    i, j, f, o = conv([x, h], kernel) + bias, with zeros around ("SAME"); the rest is `LSTMCell`'s.

    >>> cell = wf.nn.ConvLSTMCell((6, 5, 2), output_channels=3, kernel_shape=(3, 3))
    >>> wf.nn.dynamic_rnn(cell, wf.ones([2, 4, 6, 5, 2]))[0].shape
    (2, 4, 6, 5, 3)
    """

    input_rank = 4

    def __init__(
        self,
        input_shape: Sequence[int],
        output_channels: int,
        kernel_shape: Sequence[int] = (3, 3),
        forget_bias: float = 1.0,
        activation: Activation = tanh,
        initializer: Initializer | None = None,
        dtype: object = float32,
    ) -> None:
        shapes = {"input_shape": (input_shape, 3), "kernel_shape": (kernel_shape, 2)}
        for name, (shape, count) in shapes.items():
            if not isinstance(shape, (list, tuple)) or len(shape) != count:
                raise InvalidArgumentError(
                    f"wf.nn.ConvLSTMCell: {name} is {count} sizes, got {shape!r:.60}",
                    location=caller_location(),
                )
        self.input_shape = [positive_size("ConvLSTMCell", "input_shape", n) for n in input_shape]
        self.kernel_shape = [positive_size("ConvLSTMCell", "kernel_shape", n) for n in kernel_shape]
        self.forget_bias, self.activation = forget_bias, activation
        super().__init__(output_channels, self.input_shape[-1], initializer, dtype)

    def zero_state(self, batch_size: Dim) -> LSTMState:
        """The state of a sequence that has not begun."""
        size = (*self.input_shape[:2], self.num_units)
        zeros = expand(zeros_of((1, *size), dtype=self.dtype), (batch_size, *size))
        return LSTMState(zeros, zeros)

    def _make(self, inputs: int) -> None:
        n = self.num_units
        shape = (*self.kernel_shape, inputs + n, 4 * n)
        self.kernel = self._variable(shape, "kernel")
        self.bias = self._vector(4 * n, "bias")

    def call(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As the class says."""
        if not all(map(same, inputs.shape[1:], self.input_shape)):
            raise ShapeError(
                f"ConvLSTMCell: made for images of shape {tuple(self.input_shape)}, got "
                f"{inputs.describe()}",
                location=caller_location(),
            )
        c, h = state
        made = add(conv2d(concat([inputs, h], axis=3), self.kernel, padding="SAME"), self.bias)
        i, j, f, o = split(made, 4, axis=3)
        kept = multiply(sigmoid(add(f, self.forget_bias)), c)
        new = add(kept, multiply(sigmoid(i), self.activation(j)))
        output = multiply(sigmoid(o), self.activation(new))
        return output, LSTMState(new, output)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[RNNCell],
    cells_bw: Sequence[RNNCell],
    inputs: TensorLike,
    sequence_length: TensorLike | None = None,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    time_major: bool = False,
) -> tuple[Tensor, tuple[Any, ...], tuple[Any, ...]]:
    """(outputs, last states forward, last states backward) of layers that each run in both
    directions: the outputs of both, side by side, are the inputs of the next (TF1's).

    outputs: [batch, time, sizes of the last two cells together]; states: one for each layer. The
    other arguments are those of `bidirectional_dynamic_rnn`, initial states one for each layer.

    >>> cells = [wf.nn.GRUCell(4), wf.nn.GRUCell(3)], [wf.nn.GRUCell(4), wf.nn.GRUCell(3)]
    >>> outputs, ahead, back = wf.nn.stack_bidirectional_dynamic_rnn(*cells, wf.ones([2, 5, 6]))
    >>> outputs.shape, [state.shape for state in back]
    ((2, 5, 6), [(2, 4), (2, 3)])
    """
    op = "stack_bidirectional_dynamic_rnn"
    ahead, back = _cells(op, cells_fw), _cells(op, cells_bw)
    starts = [
        [None] * len(cells) if given is None else list(given)
        for cells, given in ((ahead, initial_states_fw), (back, initial_states_bw))
    ]
    counts = [len(part) for part in (ahead, back, *starts)]
    if len(set(counts)) != 1:
        raise InvalidArgumentError(
            f"wf.nn.{op}: {counts[0]} cells forward, {counts[1]} backward, {counts[2]} and "
            f"{counts[3]} initial states",
            location=caller_location(),
        )
    x, states = as_tensor(inputs), []
    for fw, bw, one, other in zip(ahead, back, *starts, strict=True):
        outputs, last = bidirectional_dynamic_rnn(
            fw, bw, x, sequence_length, one, other, time_major
        )
        x = concat(outputs, axis=-1)
        states.append(last)
    return x, tuple(s[0] for s in states), tuple(s[1] for s in states)
