"""`wf.nn`: the parts of neural networks, under TensorFlow 1's names.

Enters and leaves: tensors. Composed of public ops, so gradients and fusion need nothing special.
Imports: `core`, `ops`, `eager`, `state`, `control`, `autodiff`, `random`, `sparse`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.nn.activations import (
    elu,
    gelu,
    hard_sigmoid,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    relu,
    relu6,
    scaled_dot_product_attention,
    selu,
    silu,
    softmax,
    softplus,
    softsign,
)
from weft.frontend.nn.embedding import (
    Candidates,
    embedding_lookup,
    embedding_lookup_sparse,
    log_uniform_candidate_sampler,
    nce_loss,
    sampled_softmax_loss,
    sharded_softmax_cross_entropy,
    uniform_candidate_sampler,
)
from weft.frontend.nn.losses import (
    Moments,
    batch_norm,
    dropout,
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
from weft.frontend.nn.module import Module
from weft.frontend.nn.pooling import (
    avg_pool,
    avg_pool1d,
    avg_pool2d,
    max_pool,
    max_pool1d,
    max_pool2d,
    pool,
)
from weft.frontend.nn.recurrent import (
    BasicRNNCell,
    GRUCell,
    LSTMCell,
    LSTMState,
    RNNCell,
    bidirectional_dynamic_rnn,
    dynamic_rnn,
    reverse_sequence,
    sequence_mask,
)
from weft.frontend.nn.windows import (
    conv,
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_transpose,
    conv3d,
    depthwise_conv2d,
    separable_conv2d,
)
from weft.frontend.ops.reduction import logsumexp, top_k
from weft.frontend.ops.special import sigmoid, tanh

batch_normalization = batch_norm  # TF1's name

__all__ = [
    "BasicRNNCell",
    "Candidates",
    "GRUCell",
    "LSTMCell",
    "LSTMState",
    "Module",
    "Moments",
    "RNNCell",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "batch_normalization",
    "bidirectional_dynamic_rnn",
    "conv",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "depthwise_conv2d",
    "dropout",
    "dynamic_rnn",
    "elu",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "gelu",
    "hard_sigmoid",
    "l2_loss",
    "l2_normalize",
    "layer_norm",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "log_uniform_candidate_sampler",
    "logsumexp",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "mean_squared_error",
    "mish",
    "moments",
    "nce_loss",
    "pool",
    "relu",
    "relu6",
    "reverse_sequence",
    "sampled_softmax_loss",
    "scaled_dot_product_attention",
    "selu",
    "separable_conv2d",
    "sequence_mask",
    "sharded_softmax_cross_entropy",
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
    "uniform_candidate_sampler",
    "weighted_cross_entropy_with_logits",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
