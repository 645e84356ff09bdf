"""`SyncReplicas`: replicas of a model that train it in step, with backup workers, out of variables
and queues (the paper, section 4.4). What it adds to a graph is in `sync_parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.queues.runners import QueueRunner
from weft.frontend.session.scopes import group
from weft.frontend.session.session import Session
from weft.frontend.tracing.region_trace import graph_around
from weft.frontend.tracing.trace import Effect, Trace, current_trace
from weft.frontend.train.monitored.hooks import SessionRunHook
from weft.frontend.train.optimizer import GradientAndVariable, Optimizer
from weft.frontend.train.replicas.sync_parts import Given, SharedParts, kinds_of
from weft.frontend.variable import Variable
from weft.ir.errors import (
    FailedPreconditionError,
    GradientError,
    InvalidArgumentError,
    TypeRuleError,
)
from weft.ir.locations import caller_location
from weft.runtime.resources.coordinator import Coordinator


class SyncReplicas:
    """Makes an optimizer synchronous over `total_num_replicas` workers, of which each step takes
    the gradients of the first `replicas_to_aggregate` (default: all of them).

    In the graph that is being built. Each worker calls `minimize` or `apply_gradients` with its
    number, `worker=`, and the variables in the same order; one of them, the chief, runs
    `chief_step` again and again besides (`get_chief_queue_runner()`, or a thread). shared_name:
    replicas with graphs of their own in one process find the variables and queues that they share
    by it (the model's variables need shared names, too); without it all replicas are in one graph.

    A gradient is dropped if it comes after its step was made. Sparse gradients (`IndexedSlices`)
    are added in the same order.
    """

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        *,
        shared_name: str | None = None,
        name: str = "sync_replicas",
    ) -> None:
        if not isinstance(opt, Optimizer):
            raise TypeRuleError(
                f"SyncReplicas takes a wf.train.Optimizer, got a {type(opt).__name__}",
                location=caller_location(),
            )
        total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        numbers = (replicas_to_aggregate, total)
        whole = all(type(n) is int for n in numbers)
        if not whole or not 1 <= replicas_to_aggregate <= total:
            raise InvalidArgumentError(
                f"SyncReplicas: replicas_to_aggregate={replicas_to_aggregate} of "
                f"total_num_replicas={total}",
                hint="of n workers each step takes the first m: 1 <= m <= n",
                location=caller_location(),
            )
        self.name = name
        self._opt = opt
        self._needed = replicas_to_aggregate
        self._total = total
        self._shared_name = shared_name
        self._shared: SharedParts | None = None
        self._local_steps: dict[int, Variable] = {}

    # ------------------------------------------------------------------------------------ workers
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[GradientAndVariable]:
        """As that of the optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def minimize(
        self,
        loss: Any,
        global_step: Variable | None = None,
        var_list: Sequence[Variable] | Variable | None = None,
        *,
        worker: int = 0,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
    ) -> Effect:
        """`compute_gradients` and `apply_gradients`."""
        pairs = self._opt.compute_gradients(
            loss, var_list, colocate_gradients_with_ops=colocate_gradients_with_ops
        )
        return self.apply_gradients(pairs, global_step, worker=worker, name=name)

    def apply_gradients(
        self,
        grads_and_vars: Sequence[GradientAndVariable],
        global_step: Variable | None = None,
        *,
        worker: int = 0,
        name: str | None = None,
    ) -> Effect:
        """What worker number `worker` runs for each step: hand in the gradients, wait for a token.

        global_step: the variable that counts the steps; it is needed. GradientError if no variable
        has a gradient, InvalidArgumentError for a number that is no worker's and for other
        variables than the other workers gave.
        """
        trace = self._graph()
        given: Given = [(g, v) for g, v in grads_and_vars if g is not None]
        if not isinstance(global_step, Variable):
            raise InvalidArgumentError(
                f"{self.name}: the workers need the variable that counts the steps",
                hint="global_step=wf.train.get_or_create_global_step()",
                location=caller_location(),
            )
        if not given:
            raise GradientError(
                f"{self.name}: none of the variables has a gradient", location=caller_location()
            )
        if isinstance(worker, bool) or worker not in range(self._total):
            raise InvalidArgumentError(
                f"{self.name}: there is no worker {worker!r}, only 0 to {self._total - 1}",
                location=caller_location(),
            )
        shared = self._shared_parts(trace, given, global_step)
        local = self._local_step(worker)
        tag = local.read()
        handed = [shared.hand_in(i, worker, g, tag) for i, (g, _) in enumerate(given)]
        token = shared.token_after(handed, worker, tag)
        return group(local.assign(token), name=name or f"{self.name}_worker_{worker}")

    def _local_step(self, worker: int) -> Variable:
        """(epoch, step) that the worker computes for: on its device."""
        if worker not in self._local_steps:
            self._local_steps[worker] = Variable(
                np.zeros(2, np.int64), trainable=False, name=f"{self.name}/local_step_{worker}",
                shared_name=self._named(f"local_step_{worker}"),
            )  # fmt: skip
        return self._local_steps[worker]

    @property
    def local_step_init_op(self) -> Effect:
        """Lets the workers of this graph begin at the present global step: run it whenever they
        start, after the variables are initialized or restored.

        A worker that is started anew in the middle of a step hands its gradient in again, which
        takes the place of the first: it should be of the same batch.
        """
        shared = self._made()
        steps = list(self._local_steps.values())
        return group(*(v.assign(shared.now()) for v in steps), name="local_step_init")

    # -------------------------------------------------------------------------------------- chief
    @property
    def chief_step(self) -> Effect:
        """What the chief runs once for each global step: wait for the gradients, apply their mean,
        count the step, let the workers go on."""
        done = None if self._shared is None else self._shared.chief
        return self._made().chief_step() if done is None else done

    @property
    def chief_init_op(self) -> Effect:
        """Run by the chief whenever it starts, after the variables are initialized or restored and
        before `chief_step`: a new epoch begins. Workers that wait for a token of the chief before
        this one get one, and what was handed in to it is dropped. A first start may do without."""
        return self._made().chief_init()

    def get_chief_queue_runner(self) -> QueueRunner:
        """Runs `chief_step` again and again, in a thread (`create_threads(session, coordinator)`);
        at a stop it closes the queues, so that nobody waits for ever."""
        shared = self._made()
        queues = [shared.arrivals, *shared.tokens]
        stop = group(
            *(q.close(cancel_pending_enqueues=True) for q in queues), name=f"{self.name}_stop"
        )
        return QueueRunner(shared.arrivals, [shared.chief_step()], close_op=stop, cancel_op=stop)

    def make_session_run_hook(self, is_chief: bool) -> SessionRunHook:
        """For a `wf.train.MonitoredSession`: runs what is to be run whenever a session is made, and
        in the chief's process `chief_step` in a thread."""
        return _SyncHook(self, is_chief)

    # ------------------------------------------------------------------------------------- pieces
    def _graph(self) -> Trace:
        trace = graph_around(current_trace())
        if trace is None or trace.kind != "graph":
            raise FailedPreconditionError(
                f"{self.name}: replicas are trained in a graph, and none is being built",
                hint="use it inside `with graph.as_default():`",
                location=caller_location(),
            )
        return trace

    def _made(self) -> SharedParts:
        if self._shared is None:
            raise FailedPreconditionError(
                f"{self.name}: no worker has been built yet",
                hint="call minimize or apply_gradients first",
                location=caller_location(),
            )
        if self._graph() is not self._shared.trace:
            raise FailedPreconditionError(
                f"{self.name}: the chief's step belongs to the graph of the workers",
                hint="ask for it inside `with graph.as_default():`",
                location=caller_location(),
            )
        return self._shared

    def _shared_parts(self, trace: Trace, given: Given, global_step: Variable) -> SharedParts:
        if self._shared is None:
            counts = (self._needed, self._total)
            self._shared = SharedParts(
                self.name, self._opt, counts, self._named, trace, given, global_step
            )
        shared = self._shared
        if shared.trace is not trace or shared.global_step is not global_step:
            raise InvalidArgumentError(
                f"{self.name}: all workers are built in one graph, with one global step",
                hint="a graph of its own for each: a SyncReplicas each, with one shared_name",
                location=caller_location(),
            )
        same = [id(v) for _, v in given] == [*map(id, shared.variables)]
        if not same or kinds_of(given) != shared.sparse:
            raise InvalidArgumentError(
                f"{self.name}: the workers have gradients of different variables",
                hint="give compute_gradients the same var_list",
                location=caller_location(),
            )
        return shared

    def _named(self, name: str) -> str | None:
        return None if self._shared_name is None else f"{self._shared_name}/{name}"


class _SyncHook(SessionRunHook):
    def __init__(self, sync: SyncReplicas, is_chief: bool) -> None:
        self._sync, self._is_chief = sync, is_chief
        self._first: list[Effect] = []
        self._runner: QueueRunner | None = None

    def begin(self) -> None:
        """Add the ops."""
        if self._is_chief:
            self._first.append(self._sync.chief_init_op)
            self._runner = self._sync.get_chief_queue_runner()
        self._first.append(self._sync.local_step_init_op)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Begin at the present step; the chief in an epoch of its own."""
        for op in self._first:
            session.run(op)
        if self._runner is not None:
            self._runner.create_threads(session, coord, daemon=True, start=True)
