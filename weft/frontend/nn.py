"""`wf.nn`: what neural networks are made of, under TensorFlow 1's names."""

from __future__ import annotations

from weft.frontend.nn_activations import (
    elu,
    gelu,
    hard_sigmoid,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    relu,
    relu6,
    selu,
    silu,
    softmax,
    softplus,
    softsign,
)
from weft.frontend.nn_losses import (
    Moments,
    batch_norm,
    dropout,
    embedding_lookup,
    l2_loss,
    l2_normalize,
    layer_norm,
    mean_squared_error,
    moments,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from weft.frontend.ops_elementwise import sigmoid, tanh
from weft.frontend.ops_reduction import logsumexp
from weft.frontend.ops_sort import top_k

batch_normalization = batch_norm  # TF1's name

__all__ = [
    "Moments",
    "batch_norm",
    "batch_normalization",
    "dropout",
    "elu",
    "embedding_lookup",
    "gelu",
    "hard_sigmoid",
    "l2_loss",
    "l2_normalize",
    "layer_norm",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "mean_squared_error",
    "mish",
    "moments",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
    "softsign",
    "sparse_softmax_cross_entropy_with_logits",
    "tanh",
    "top_k",
    "weighted_cross_entropy_with_logits",
]
