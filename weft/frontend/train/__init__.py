"""`wf.train`: optimizers, gradient clipping and learning-rate schedules, as code over public
ops.
"""

from __future__ import annotations

from weft.frontend.train.adaptive import Adadelta, Adagrad, Adam, AdamW, RMSProp
from weft.frontend.train.clipping import (
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    global_norm,
)
from weft.frontend.train.gradient_descent import SGD, Momentum
from weft.frontend.train.lbfgs import LBFGS
from weft.frontend.train.optimizer import Optimizer
from weft.frontend.train.schedules import (
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_warmup,
    natural_exp_decay,
    piecewise_constant,
    polynomial_decay,
)

# TensorFlow 1's names
GradientDescentOptimizer = SGD
MomentumOptimizer = Momentum
AdagradOptimizer = Adagrad
AdadeltaOptimizer = Adadelta
RMSPropOptimizer = RMSProp
AdamOptimizer = Adam

__all__ = [
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "AdamW",
    "GradientDescentOptimizer",
    "LBFGS",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "SGD",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "cosine_decay",
    "exponential_decay",
    "global_norm",
    "inverse_time_decay",
    "linear_warmup",
    "natural_exp_decay",
    "piecewise_constant",
    "polynomial_decay",
]
