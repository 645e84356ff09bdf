"""`SyncReplicas`: replicas of a model that train it in step, with backup workers, out of variables
and queues (the paper, section 4.4); `microbatch_gradients`.

One step of worker w: it assigns its gradients to slots of its own beside the parameters, puts
(epoch, step, w) into the queue `arrivals`, and waits for a token, the (epoch, step) to go on with,
in a queue of its own. The chief takes arrivals until m different workers have come with the present
step, adds the slots of those m *in the order of the workers' numbers*, neighbours in pairs
(`in_pairs`), ((g0 + g1) + (g2 + g3)) / m, applies the mean, counts the step, and gives each of the
m a token. Whoever comes with another step gets a token at once, and its gradient is never read. So
the bits depend on which workers were taken, and not on who came first; with m workers in all they
are fixed.

Nobody waits for ever, and nobody hands in twice for a step that is being added up, when processes
end and start again: an epoch is the life of one chief, greater than all before; workers discard
tokens that are not later than what they have; the chief gives every worker a token when it starts.
The epoch is in a table beside the global step, and so in no checkpoint.

Microbatches: a sum over the rows of a batch rounds otherwise than the sum of the sums over its
halves. So that k workers have the bits of one process on all their rows, both compute in the same
microbatches, whose gradients are added in pairs of neighbours: what a worker adds up of a power of
two of them is then one of the sums that one process makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.autodiff.indexed_slices import IndexedSlices, added
from weft.frontend.control.branches import cond
from weft.frontend.control.loops import map_fn, while_loop
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, Trace, current_trace, graph_around
from weft.frontend.ops.creation import arange, constant, zeros
from weft.frontend.ops.elementwise import (
    add,
    divide,
    equal,
    greater,
    less,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    subtract,
    where,
)
from weft.frontend.ops.manipulation import reshape, stack
from weft.frontend.ops.promotion import check_int
from weft.frontend.ops.reduction import count_nonzero
from weft.frontend.optim.clipping import in_pairs, mean_tensor
from weft.frontend.optim.optimizer import GradientAndVariable, Optimizer
from weft.frontend.queues.queue import FIFOQueue, PaddingFIFOQueue
from weft.frontend.queues.runners import QueueRunner
from weft.frontend.queues.tables import MutableHashTable
from weft.frontend.session.session import Session
from weft.frontend.state.scopes import beside, control_dependencies, group
from weft.frontend.state.variable import Variable
from weft.frontend.train.hooks import SessionRunHook
from weft.ir.dims import product
from weft.ir.dtypes import bool_, int64
from weft.ir.errors import (
    FailedPreconditionError,
    GradientError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
)
from weft.ir.locations import caller_location
from weft.runtime.resources.coordinator import Coordinator

Given = list[tuple[Tensor | IndexedSlices, Variable]]
Named = Callable[[str], str | None]
_EPOCH = np.int64(0)  # the key of the only entry of the table


def _chosen_sum(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of those of two tensors that are chosen, and whether one is."""
    total = where(a[1], where(b[1], add(a[0], b[0]), a[0]), b[0])
    return total, logical_or(a[1], b[1])


def kinds_of(given: Given) -> list[bool]:
    """Which of the gradients are sparse."""
    return [isinstance(g, IndexedSlices) for g, _ in given]


class SharedParts:
    """The queues and variables that all workers and the chief of one graph share. counts: (m, n);
    named: the shared name for a name, if things are shared by name."""

    def __init__(
        self, name: str, opt: Optimizer, counts: tuple[int, int], named: Named, trace: Trace,
        given: Given, global_step: Variable,
    ) -> None:  # fmt: skip
        self.name, self.trace, self.global_step = name, trace, global_step
        self._opt, self._named = opt, named
        self._needed, self._total = counts
        self.variables = [v for _, v in given]
        self.sparse = kinds_of(given)
        with beside(global_step):
            self.arrivals = self._queue("arrivals", 3)
            self.tokens = [self._queue(f"tokens_{w}", 2) for w in range(self._total)]
            self._epochs = MutableHashTable(
                int64, int64, np.int64(0), shared_name=named("epoch"), name=f"{name}/epoch"
            )
        self._slots = [self._made_slots(g, v) for g, v in given]
        self.chief: Effect | None = None  # its step, once it is made

    def _queue(self, name: str, components: int) -> FIFOQueue:
        return FIFOQueue(
            -1, [int64] * components, [[]] * components, shared_name=self._named(name),
            name=f"{self.name}/{name}",
        )  # fmt: skip

    def _made_slots(
        self, gradient: Any, variable: Variable
    ) -> list[Variable] | list[PaddingFIFOQueue]:
        """One for each worker, beside the variable."""
        names = [f"{variable.name}/gradient_{w}" for w in range(self._total)]
        with beside(variable):
            if isinstance(gradient, IndexedSlices):
                dtypes = [int64, int64, int64, variable.dtype]
                shapes = [[], [], [None], [None, *variable.shape[1:]]]
                return [
                    PaddingFIFOQueue(-1, dtypes, shapes, shared_name=self._named(n), name=n)
                    for n in names
                ]
            start = np.zeros(variable.shape, variable.dtype.numpy)
            return [
                Variable(start, trainable=False, name=n, shared_name=self._named(n)) for n in names
            ]

    # ------------------------------------------------------------------------------------ workers
    def hand_in(
        self, number: int, worker: int, gradient: Tensor | IndexedSlices, tag: Tensor
    ) -> Any:
        """Put a gradient into its slot."""
        slot = self._slots[number][worker]
        if isinstance(slot, Variable):
            return slot.assign(gradient)
        assert isinstance(gradient, IndexedSlices)
        indices = gradient.indices.astype(int64)
        return slot.enqueue([tag[0], tag[1], indices, gradient.values])

    def token_after(self, handed: Sequence[Any], worker: int, tag: Tensor) -> Tensor:
        """When `handed` is done: say so, and wait for the (epoch, step) to go on with."""
        with beside(self.global_step):
            with control_dependencies(handed):
                arrived = self.arrivals.enqueue([tag[0], tag[1], np.int64(worker)])
            with control_dependencies([arrived]):
                own = [tag[0] + 0, tag[1] + 0]

            def known(epoch: Tensor, step: Tensor) -> Tensor:
                same = equal(epoch, own[0])
                later = logical_or(greater(epoch, own[0]), logical_and(same, greater(step, own[1])))
                return logical_not(later)

            return stack(while_loop(known, lambda *_: self.tokens[worker].dequeue(), own))

    def now(self) -> Tensor:
        """The present (epoch, step)."""
        with beside(self.global_step):
            return stack([self._epochs.lookup(_EPOCH), self.global_step.read()])

    # -------------------------------------------------------------------------------------- chief
    def chief_init(self) -> Effect:
        """A new epoch: greater than the last, and than those of chiefs of which nothing is left."""
        with control_dependencies(None), beside(self.global_step):
            epoch = maximum(add(self._epochs.lookup(_EPOCH), 1), np.int64(time.time_ns()))
            step = self.global_step.read()
            with control_dependencies([self._epochs.insert(_EPOCH, epoch)]):
                given = [q.enqueue([epoch, step]) for q in self.tokens]
        return group(*given, name=f"{self.name}_chief_init")

    def chief_step(self) -> Effect:
        """See `SyncReplicas.chief_step`."""
        if self.chief is None:
            with control_dependencies(None):
                self.chief = self._made_step()
        return self.chief

    def _made_step(self) -> Effect:
        with beside(self.global_step):
            epoch, step = self._epochs.lookup(_EPOCH), self.global_step.read()
            count, chosen, late = self._arrived(epoch, step)
        with control_dependencies([count]):
            pairs: list[GradientAndVariable] = []
            for number, variable in enumerate(self.variables):
                with beside(variable):
                    pairs.append((self._mean(number, (chosen, late), epoch, step), variable))
            applied = self._opt.apply_gradients(pairs, global_step=self.global_step)
        with control_dependencies([applied]), beside(self.global_step):
            handed = [
                self._give(worker, chosen[worker], epoch, add(step, 1))
                for worker in range(self._total)
            ]
        return group(*handed, name=f"{self.name}_chief")

    def _give(self, worker: int, chosen: Tensor, epoch: Tensor, step: Tensor) -> Any:
        """A token for the worker, if it is one of the chosen."""
        queue = self.tokens[worker]
        if self._needed == self._total:
            return queue.enqueue([epoch, step])
        return cond(chosen, lambda: queue.enqueue([epoch, step]), lambda: None)

    def _arrived(self, epoch: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many workers have come with this step, bool[n]: which, and i64[n]: how often each has
        come with another. Who has gets a token."""
        total, needed = self._total, self._needed

        def take(count: Tensor, chosen: Tensor, late: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            tag_epoch, tag_step, worker = self.arrivals.dequeue()
            fresh = logical_and(equal(tag_epoch, epoch), equal(tag_step, step))
            mine = equal(arange(total), worker)
            other = logical_and(mine, logical_not(fresh))
            for number, queue in enumerate(self.tokens):
                cond(other[number], lambda q=queue: q.enqueue([epoch, step]), lambda: None)
            chosen = logical_or(chosen, logical_and(mine, fresh))
            count = count_nonzero(chosen).astype(int64)
            return count, chosen, add(late, other.astype(int64))

        start = [
            constant(np.int64(0)), zeros((total,), dtype=bool_), zeros((total,), dtype=int64)
        ]  # fmt: skip
        count, chosen, late = while_loop(lambda count, *_: less(count, needed), take, start)
        return count, chosen, late

    def _mean(
        self, number: int, arrived: tuple[Tensor, Tensor], epoch: Tensor, step: Tensor
    ) -> Tensor | IndexedSlices:
        """The mean of the chosen workers' gradients, added in pairs in the order of numbers."""
        slots, (chosen, late) = self._slots[number], arrived
        every = self._needed == self._total
        if self.sparse[number]:
            shape = self.variables[number].shape
            rows = [
                self._rows(queue, epoch, step)
                if every
                else self._rows_if(queue, chosen[w], late[w], epoch, step, shape)
                for w, queue in enumerate(slots)
            ]
            return added([IndexedSlices(v, i, shape) for i, v in rows]) / self._needed
        values = [v.read() for v in slots if isinstance(v, Variable)]
        if every:
            return mean_tensor(values)
        held = [(value, chosen[worker]) for worker, value in enumerate(values)]
        return divide(in_pairs(held, _chosen_sum)[0], self._needed)

    def _rows(self, queue: Any, epoch: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Indices and values that a worker handed in for this step; what is before them is of
        others, and dropped."""

        def other(tag_epoch: Tensor, tag_step: Tensor, *_: Tensor) -> Tensor:
            return logical_not(logical_and(equal(tag_epoch, epoch), equal(tag_step, step)))

        first = queue.dequeue()
        _, _, indices, values = while_loop(other, lambda *_: queue.dequeue(), first)
        return indices, values

    def _rows_if(
        self, queue: Any, chosen: Tensor, late: Tensor, epoch: Tensor, step: Tensor,
        shape: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The same of a chosen worker. Of another nothing: as many as came late are dropped."""

        def none() -> tuple[Tensor, Tensor]:
            def drop(left: Tensor) -> Tensor:
                queue.dequeue()
                return subtract(left, 1)

            while_loop(lambda left: greater(left, 0), drop, [late])
            dtype = queue.dtypes[-1]
            return zeros((0,), dtype=int64), zeros((0, *shape[1:]), dtype=dtype)

        found: tuple[Tensor, Tensor] = cond(chosen, lambda: self._rows(queue, epoch, step), none)
        return found


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

    >>> with wf.Graph().as_default():
    ...     w, step = wf.Variable(1.0), wf.train.get_or_create_global_step()
    ...     sync = wf.train.SyncReplicas(wf.train.SGD(0.25), replicas_to_aggregate=2)
    ...     workers = [sync.minimize(g * w, step, worker=n) for n, g in enumerate((1.0, 3.0))]
    ...     chief = sync.make_session_run_hook(is_chief=True)
    ...     with wf.train.MonitoredTrainingSession(hooks=[chief]) as session:
    ...         _ = session.run(workers)  # the gradients 1 and 3
    ...         print(session.run([w, step]))
    [np.float32(0.5), np.int64(1)]
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
        gate_gradients: Any = None,
        aggregation_method: Any = None,
    ) -> Effect:
        """`compute_gradients` and `apply_gradients`."""
        pairs = self._opt.compute_gradients(
            loss, var_list, colocate_gradients_with_ops=colocate_gradients_with_ops,
            gate_gradients=gate_gradients, aggregation_method=aggregation_method,
        )  # fmt: skip
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


_WHAT = "wf.train.microbatch_gradients"


def microbatch_gradients(
    optimizer: Optimizer | SyncReplicas,
    loss: Any,
    batch: Any,
    microbatches: int,
    var_list: Sequence[Variable] | Variable | None = None,
) -> tuple[Tensor, list[GradientAndVariable]]:
    """The mean of `loss` over the microbatches of a batch, and its gradients, for
    `apply_gradients`: one microbatch after another, in a loop.

    loss: a function of a microbatch (of as many arguments as `batch` is a tuple or list of) that
    gives the mean over its rows. batch: tensors of one size of the first axis, which is known and a
    multiple of `microbatches`. optimizer, var_list: as `optimizer.compute_gradients`.

    The order of all sums follows from `microbatches` alone: k workers of `SyncReplicas` (or towers
    of `mean_gradients`) with n microbatches each, of one size, have bit for bit the gradients and
    mean losses (added in pairs) of one process with k * n of them, if n is a power of two: in
    sessions with `reproducible=True`; in others if n is 2 or more, since one alone is no loop and
    may be fused otherwise. The memory is `microbatches` times that of the gradients. ShapeError for
    sizes that do not divide.

    >>> w, optimizer = wf.Variable(1.0), wf.train.SGD(0.5)
    >>> def step(x):
    ...     loss, pairs = wf.train.microbatch_gradients(optimizer, lambda x: wf.mean(x * w), x, 2)
    ...     return loss, optimizer.apply_gradients(pairs)
    >>> print(wf.compile(step)(wf.asarray([1.0, 2.0, 3.0, 6.0]))[0], w.read())
    Tensor(3., dtype=float32) Tensor(-0.5, dtype=float32)
    """
    trace = current_trace()
    if trace is None:
        raise FailedPreconditionError(
            f"{_WHAT} is for graphs and compiled functions",
            hint="use it inside `with graph.as_default():` or @wf.compile",
            location=caller_location(),
        )
    if not callable(loss) or not isinstance(optimizer, Optimizer | SyncReplicas):
        raise TypeRuleError(
            f"{_WHAT}: the arguments are an optimizer and a function that computes the loss, got a "
            f"{type(optimizer).__name__} and a {type(loss).__name__}",
            location=caller_location(),
        )
    count = check_int(_WHAT, microbatches, "microbatches")
    if count < 1:
        raise InvalidArgumentError(
            f"{_WHAT}: microbatches={count}, at least 1 is needed", location=caller_location()
        )
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    cut = tuple(_cut(as_tensor(part), count) for part in parts)
    pairs: list[GradientAndVariable] = []

    def body(rows: tuple[Tensor, ...]) -> tuple[Any, ...]:
        value = loss(*rows)
        pairs[:] = optimizer.compute_gradients(value, var_list)
        return (value, *(_leaves(g) for g, _ in pairs if g is not None))

    values, *stacks = map_fn(body, cut)
    rest = iter(stacks)
    found = [(None if g is None else _mean(g, next(rest), count), v) for g, v in pairs]
    return _mean_tensor(values, count), found


def _cut(part: Tensor, count: int) -> Tensor:
    """[microbatches, rows, ...]."""
    rows = part.shape[0] if part.ndim else 0
    if not isinstance(rows, int) or not rows or rows % count:
        raise ShapeError(
            f"{_WHAT}: {part.describe()} cannot be cut into {count} microbatches of one size",
            hint="the first axis is of the batch; its size must be known, and a multiple",
            location=caller_location(),
        )
    return reshape(part, (count, rows // count, *part.shape[1:]))


def _leaves(gradient: Tensor | IndexedSlices) -> Any:
    if isinstance(gradient, IndexedSlices):
        return gradient.values, gradient.indices
    return gradient


def _mean(like: Tensor | IndexedSlices, stack: Any, count: int) -> Tensor | IndexedSlices:
    """The mean of the microbatches' gradients; of sparse ones the rows of all."""
    if not isinstance(like, IndexedSlices):
        return _mean_tensor(stack, count)
    values, indices = (reshape(x, (product(x.shape[:2]), *x.shape[2:])) for x in stack)
    return IndexedSlices(values, indices, like.dense_shape) / count


def _mean_tensor(stack: Tensor, count: int) -> Tensor:
    return mean_tensor([stack[i] for i in range(count)])
