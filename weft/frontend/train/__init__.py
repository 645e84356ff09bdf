"""`wf.train`: optimizers, gradient clipping and learning-rate schedules, as code over public
ops; checkpoints.
"""

from __future__ import annotations

from weft.frontend.files.inputs import (
    batch,
    batch_join,
    input_producer,
    limit_epochs,
    maybe_batch,
    range_input_producer,
    shuffle_batch,
    shuffle_batch_join,
    slice_input_producer,
    string_input_producer,
)
from weft.frontend.queues.runners import (
    Coordinator,
    LooperThread,
    QueueRunner,
    add_queue_runner,
    start_queue_runners,
)
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
from weft.frontend.train.saver import Saver
from weft.frontend.train.saver_files import (
    CheckpointState,
    best_checkpoint,
    checkpoint_exists,
    get_checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_variable,
)
from weft.frontend.train.saver_graph import SaveOps, restore_v2, save_v2
from weft.frontend.train.saver_restore import RestoreReport
from weft.frontend.train.schedules import (
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_warmup,
    natural_exp_decay,
    piecewise_constant,
    polynomial_decay,
)
from weft.runtime.checkpoint.stateful import Stateful, register_state

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
    "CheckpointState",
    "Coordinator",
    "GradientDescentOptimizer",
    "LBFGS",
    "LooperThread",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "QueueRunner",
    "add_queue_runner",
    "start_queue_runners",
    "RMSProp",
    "RMSPropOptimizer",
    "RestoreReport",
    "SGD",
    "SaveOps",
    "Saver",
    "Stateful",
    "batch",
    "batch_join",
    "best_checkpoint",
    "checkpoint_exists",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "cosine_decay",
    "exponential_decay",
    "get_checkpoint_state",
    "global_norm",
    "input_producer",
    "inverse_time_decay",
    "latest_checkpoint",
    "limit_epochs",
    "linear_warmup",
    "list_variables",
    "load_variable",
    "maybe_batch",
    "natural_exp_decay",
    "piecewise_constant",
    "polynomial_decay",
    "range_input_producer",
    "register_state",
    "restore_v2",
    "save_v2",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "string_input_producer",
]
