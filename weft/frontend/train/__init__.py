"""`wf.train`: optimizers, schedules, checkpoints, and training in sessions and on many tasks.

Enters: variables, sessions, clusters. Leaves: trained variables, checkpoints. This file gives the
public names; optimizers are in `optim`. Imports: all of `frontend` but `tools`, each name on its
first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import no_such_name as _no_such_name
from weft.ir.process import load as _load

# Names are loaded when they are used first, as those of weft itself: who trains in one process does
# not wait for the modules of sessions, queues and clusters.
if TYPE_CHECKING:
    from weft.frontend.optim.averages import ExponentialMovingAverage
    from weft.frontend.optim.clipping import (
        clip_by_global_norm,
        clip_by_norm,
        clip_by_value,
        global_norm,
        mean_gradients,
    )
    from weft.frontend.optim.lbfgs import LBFGS
    from weft.frontend.optim.more_optimizers import Adafactor, Ftrl, Lamb, Lion
    from weft.frontend.optim.optimizer import (
        SGD,
        Adadelta,
        Adagrad,
        Adam,
        AdamW,
        Momentum,
        Optimizer,
        RMSProp,
    )
    from weft.frontend.optim.schedules import (
        cosine_decay,
        exponential_decay,
        inverse_time_decay,
        linear_warmup,
        natural_exp_decay,
        piecewise_constant,
        polynomial_decay,
    )
    from weft.frontend.optim.wrappers import GradientAccumulation, LossScaling
    from weft.frontend.queues.inputs import (
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
    from weft.frontend.train.elastic import Elastic
    from weft.frontend.train.hooks import (
        CheckpointSaverHook,
        LoggingTensorHook,
        NanLossDuringTrainingError,
        NanTensorHook,
        ProfilerHook,
        SecondOrStepTimer,
        SessionRunArgs,
        SessionRunContext,
        SessionRunHook,
        SessionRunValues,
        StepCounterHook,
        StopAtStepHook,
        SummarySaverHook,
    )
    from weft.frontend.train.monitored_session import MonitoredSession, MonitoredTrainingSession
    from weft.frontend.train.parameter_servers import (
        GreedyLoadBalancingStrategy,
        RoundRobinStrategy,
        byte_size_load_fn,
        replica_device_setter,
    )
    from weft.frontend.train.saved_items import RestoreReport, Stateful, register_state
    from weft.frontend.train.saver import (
        CheckpointState,
        SaveOps,
        Saver,
        best_checkpoint,
        checkpoint_exists,
        get_checkpoint_state,
        latest_checkpoint,
        list_variables,
        load_variable,
        restore_v2,
        save_v2,
    )
    from weft.frontend.train.scaffold import (
        Scaffold,
        create_global_step,
        get_global_step,
        get_or_create_global_step,
        global_step,
    )
    from weft.frontend.train.sharded_saver import ShardedSaver
    from weft.frontend.train.sync_replicas import SyncReplicas, microbatch_gradients
    from weft.runtime.cluster.ray_cluster import RayCluster
    from weft.runtime.cluster.resolvers import (
        JsonResolver,
        KubernetesResolver,
        RankResolver,
        SlurmResolver,
    )
    from weft.runtime.cluster.resolvers import from_environment as cluster_from_environment
    from weft.runtime.cluster.server import Server
    from weft.runtime.cluster.spec import Cluster, ClusterSpec, ClusterTask

    # TensorFlow 1's names
    GradientDescentOptimizer = SGD
    MomentumOptimizer = Momentum
    AdagradOptimizer = Adagrad
    AdadeltaOptimizer = Adadelta
    RMSPropOptimizer = RMSProp
    AdamOptimizer = Adam
    FtrlOptimizer = Ftrl
    SyncReplicasOptimizer = SyncReplicas

_NAMES = {
    "weft.frontend.queues.inputs":
        "batch batch_join input_producer limit_epochs maybe_batch range_input_producer "
        "shuffle_batch shuffle_batch_join slice_input_producer string_input_producer",
    "weft.frontend.queues.runners":
        "Coordinator LooperThread QueueRunner add_queue_runner start_queue_runners",
    "weft.frontend.optim.optimizer": "Adadelta Adagrad Adam AdamW RMSProp SGD Momentum Optimizer",
    "weft.frontend.optim.clipping":
        "clip_by_global_norm clip_by_norm clip_by_value global_norm mean_gradients",
    "weft.frontend.optim.lbfgs": "LBFGS",
    "weft.frontend.optim.more_optimizers": "Adafactor Ftrl Lamb Lion",
    "weft.frontend.optim.wrappers": "GradientAccumulation LossScaling",
    "weft.frontend.optim.averages": "ExponentialMovingAverage",
    "weft.frontend.train.elastic": "Elastic",
    "weft.frontend.train.hooks":
        "CheckpointSaverHook LoggingTensorHook NanLossDuringTrainingError NanTensorHook "
        "SecondOrStepTimer StepCounterHook StopAtStepHook SessionRunArgs SessionRunContext "
        "SessionRunHook SessionRunValues SummarySaverHook ProfilerHook",
    "weft.frontend.train.scaffold":
        "Scaffold create_global_step get_global_step get_or_create_global_step global_step",
    "weft.frontend.train.monitored_session": "MonitoredSession MonitoredTrainingSession",
    "weft.frontend.train.parameter_servers":
        "GreedyLoadBalancingStrategy RoundRobinStrategy byte_size_load_fn replica_device_setter",
    "weft.frontend.train.sync_replicas": "microbatch_gradients SyncReplicas",
    "weft.frontend.train.sharded_saver": "ShardedSaver",
    "weft.frontend.train.saver":
        "Saver SaveOps restore_v2 save_v2 CheckpointState best_checkpoint checkpoint_exists "
        "get_checkpoint_state latest_checkpoint list_variables load_variable",
    "weft.frontend.train.saved_items": "RestoreReport Stateful register_state",
    "weft.frontend.optim.schedules":
        "cosine_decay exponential_decay inverse_time_decay linear_warmup natural_exp_decay "
        "piecewise_constant polynomial_decay",
}  # fmt: skip
# TensorFlow 1's names: found, but not shown
_OLD_NAMES = {
    "GradientDescentOptimizer": "SGD",
    "MomentumOptimizer": "Momentum",
    "AdagradOptimizer": "Adagrad",
    "AdadeltaOptimizer": "Adadelta",
    "RMSPropOptimizer": "RMSProp",
    "AdamOptimizer": "Adam",
    "FtrlOptimizer": "Ftrl",
    "SyncReplicasOptimizer": "SyncReplicas",
}
_LATER = {name: (module, name) for module, names in _NAMES.items() for name in names.split()}
_LATER |= {old: _LATER[name] for old, name in _OLD_NAMES.items()}
_LATER |= {
    "cluster_from_environment": ("weft.runtime.cluster.resolvers", "from_environment"),
    "JsonResolver": ("weft.runtime.cluster.resolvers", "JsonResolver"),
    "KubernetesResolver": ("weft.runtime.cluster.resolvers", "KubernetesResolver"),
    "RankResolver": ("weft.runtime.cluster.resolvers", "RankResolver"),
    "RayCluster": ("weft.runtime.cluster.ray_cluster", "RayCluster"),
    "SlurmResolver": ("weft.runtime.cluster.resolvers", "SlurmResolver"),
    "Cluster": ("weft.runtime.cluster.spec", "Cluster"),
    "ClusterSpec": ("weft.runtime.cluster.spec", "ClusterSpec"),
    "ClusterTask": ("weft.runtime.cluster.spec", "ClusterTask"),
    "Server": ("weft.runtime.cluster.server", "Server"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load what a public name stands for. AttributeError for a name that is none."""
        if name not in _LATER:
            raise _no_such_name(__name__, name)
        found = globals()[name] = _load(*_LATER[name])
        return found

    def __dir__() -> list[str]:
        """The public names, those too that are not loaded yet; not TensorFlow 1's."""
        return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


__all__ = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "CheckpointSaverHook",
    "CheckpointState",
    "Cluster",
    "ClusterSpec",
    "ClusterTask",
    "Coordinator",
    "Elastic",
    "ExponentialMovingAverage",
    "Ftrl",
    "GradientAccumulation",
    "GreedyLoadBalancingStrategy",
    "JsonResolver",
    "KubernetesResolver",
    "LBFGS",
    "Lamb",
    "Lion",
    "LoggingTensorHook",
    "LooperThread",
    "LossScaling",
    "Momentum",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "Optimizer",
    "ProfilerHook",
    "QueueRunner",
    "RMSProp",
    "RankResolver",
    "RayCluster",
    "RestoreReport",
    "RoundRobinStrategy",
    "SGD",
    "SaveOps",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "Server",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "ShardedSaver",
    "SlurmResolver",
    "Stateful",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "SyncReplicas",
    "add_queue_runner",
    "batch",
    "batch_join",
    "best_checkpoint",
    "byte_size_load_fn",
    "checkpoint_exists",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "cluster_from_environment",
    "cosine_decay",
    "create_global_step",
    "exponential_decay",
    "get_checkpoint_state",
    "get_global_step",
    "get_or_create_global_step",
    "global_norm",
    "global_step",
    "input_producer",
    "inverse_time_decay",
    "latest_checkpoint",
    "limit_epochs",
    "linear_warmup",
    "list_variables",
    "load_variable",
    "maybe_batch",
    "mean_gradients",
    "microbatch_gradients",
    "natural_exp_decay",
    "piecewise_constant",
    "polynomial_decay",
    "range_input_producer",
    "register_state",
    "replica_device_setter",
    "restore_v2",
    "save_v2",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "start_queue_runners",
    "string_input_producer",
]
