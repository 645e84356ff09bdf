"""Hierarchical softmax: classes as the leaves of a binary tree, so that a loss looks at
log2(classes) rows of the weights (F. Morin and Y. Bengio, "Hierarchical probabilistic neural
network language model", 2005).

A class's probability is the product of the decisions from the root to its leaf, so all of them
add up to 1 by construction. The tree is complete, in heap order: node 1 is the root, the children
of node n are 2n and 2n + 1, leaf c is node classes + c; no table of it is kept."""

from __future__ import annotations

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.activations import softplus
from weft.frontend.ops.creation import arange
from weft.frontend.ops.elementwise import (
    add,
    bitwise_and,
    bitwise_right_shift,
    equal,
    greater_equal,
    less,
    logical_or,
    maximum,
    multiply,
    negative,
    subtract,
    where,
)
from weft.frontend.ops.indexing import as_indices, take
from weft.frontend.ops.manipulation import expand_dims
from weft.frontend.ops.promotion import TensorLike, cast
from weft.frontend.ops.reduction import sum as sum_of
from weft.ir.dims import format_shape, same
from weft.ir.dtypes import int64
from weft.ir.errors import ShapeError
from weft.ir.locations import caller_location


def hierarchical_softmax_loss(
    weights: TensorLike, biases: TensorLike | None, labels: TensorLike, inputs: TensorLike
) -> Tensor:
    """-log of the probability of the label in a binary tree of the classes, one loss for each row
    [batch].

    weights: [classes - 1, dim], a row for each inner node; biases: [classes - 1], or None. labels:
    integers [batch], 0 .. classes - 1, inputs: [batch, dim]. A node sends a row to its second child
    with probability sigmoid(weights . input + bias). The gradient of a variable is that of the rows
    looked up, `IndexedSlices` in optimizers. ShapeError for what does not fit,
    InvalidArgumentError when it runs for a label that is no class.

    Morin and Bengio 2005; the tree is complete, so classes that are like each other should have
    numbers next to each other.

    >>> weights, inputs = wf.zeros([3, 2]), wf.ones([4, 2])  # 4 classes, 2 decisions for each
    >>> wf.nn.hierarchical_softmax_loss(weights, None, [0, 1, 2, 3], inputs).numpy().round(3)
    array([1.386, 1.386, 1.386, 1.386], dtype=float32)
    """
    op = "nn.hierarchical_softmax_loss"
    w, x = as_tensor(weights), as_tensor(inputs)
    label = cast(as_indices(op, labels), int64)
    nodes = w.shape[0] if w.ndim == 2 else None
    offsets = None if biases is None else as_tensor(biases)
    fits = x.ndim == 2 and label.ndim == 1 and same(x.shape[0], label.shape[0])
    fits = fits and w.ndim == 2 and same(w.shape[1], x.shape[1])
    fits = fits and (offsets is None or (offsets.ndim == 1 and same(offsets.shape[0], nodes)))
    if not fits or not isinstance(nodes, int) or nodes < 1:
        given = "none" if offsets is None else format_shape(offsets.shape)
        raise ShapeError(
            f"wf.{op}: weights {format_shape(w.shape)}, biases {given}, labels "
            f"{format_shape(label.shape)} and inputs {format_shape(x.shape)} are not [classes - 1, "
            "dim], [classes - 1], [batch] and [batch, dim]",
            location=caller_location(),
        )
    classes = nodes + 1
    wrong = logical_or(less(label, 0), greater_equal(label, classes))
    leaf = expand_dims(add(label, classes), 1)
    height = arange(1, (2 * nodes + 1).bit_length())  # of a node above the leaf
    node = bitwise_right_shift(leaf, height)  # [batch, decisions]
    second = equal(bitwise_and(bitwise_right_shift(leaf, subtract(height, 1)), 1), 1)
    row = where(expand_dims(wrong, 1), nodes, subtract(maximum(node, 1), 1))  # nodes: no row
    logits = sum_of(multiply(take(w, row, axis=0), expand_dims(x, 1)), axis=2)
    if offsets is not None:
        logits = add(logits, take(offsets, row, axis=0))
    losses = softplus(where(second, negative(logits), logits))
    return sum_of(where(less(node, 1), 0, losses), axis=1)  # short paths have ended
