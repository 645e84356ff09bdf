"""A softmax over classes whose weights are in parts on several devices (the paper, section 6.4).

Each part multiplies where it is, and gives two numbers for each row: the log of the sum of its
exponentials, and the logit of the label if that is its own. So a part receives the inputs and sends
[batch] numbers; neither weights nor logits travel.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.devices import beside
from weft.frontend.nn.embedding import part_of_id, part_sizes
from weft.frontend.ops.arithmetic import add, equal, greater_equal, subtract, where
from weft.frontend.ops.index import as_indices, take_along_axis
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.promotion import TensorLike, cast
from weft.frontend.ops.rearrange import stack
from weft.frontend.ops.reduction import logsumexp
from weft.frontend.ops.shape import expand_dims, squeeze
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dims import format_shape
from weft.ir.dtypes import int64
from weft.ir.errors import ShapeError
from weft.ir.locations import caller_location


def sharded_softmax_cross_entropy(
    weights: Sequence[TensorLike],
    biases: Sequence[TensorLike] | None,
    labels: TensorLike,
    inputs: TensorLike,
    partition_strategy: str = "mod",
) -> Tensor:
    """-log softmax(inputs @ weights.T + biases)[label] for each row: [batch].

    weights: the parts of [num_classes, dim], as for `embedding_lookup`; biases: the parts of
    [num_classes], or None. labels: integers [batch]. inputs: [batch, dim]. In a graph with devices
    each part's product is on the part's device; pass `colocate_gradients_with_ops=True` to the
    optimizer, and its gradient is, too. ShapeError for what does not fit, InvalidArgumentError when
    it runs for a label that is no class.
    """
    op = "wf.nn.sharded_softmax_cross_entropy"
    parts = [as_tensor(w) for w in weights]
    offsets = None if biases is None else [as_tensor(b) for b in biases]
    x = as_tensor(inputs)
    label = cast(as_indices("nn.sharded_softmax_cross_entropy", labels), int64)
    fits = x.ndim == 2 and label.ndim == 1 and all(w.ndim == 2 for w in parts) and parts
    if not fits or (offsets is not None and len(offsets) != len(parts)):
        shapes = ", ".join(format_shape(w.shape) for w in parts)
        raise ShapeError(
            f"{op}: weights {shapes}, labels {format_shape(label.shape)} and inputs "
            f"{format_shape(x.shape)} are not parts of [classes, dim], [batch] and [batch, dim]",
            hint="give as many parts of the biases [classes] as of the weights",
            location=caller_location(),
        )
    rows = part_sizes(parts, partition_strategy)
    known = greater_equal(label, 0)
    owner, row = part_of_id(where(known, label, 0), rows, partition_strategy)
    row = where(known, row, sum(rows))  # no part has that
    sums: list[Tensor] = []
    found: Tensor | None = None
    for number, part in enumerate(parts):
        mine = equal(owner, number)
        with beside(part):
            logits = matmul(x, part, transpose_b=True)
            if offsets is not None:
                logits = add(logits, offsets[number])
            sums.append(logsumexp(logits, axis=1))
            place = expand_dims(where(mine, row, 0), 1)
            own = squeeze(take_along_axis(logits, place, axis=1), axis=1)
            own = where(mine, own, 0)
        found = own if found is None else add(found, own)
    assert found is not None
    total = sums[0] if len(sums) == 1 else logsumexp(stack(sums, axis=0), axis=0)
    return subtract(total, found)
