"""What `SyncReplicas` adds to a graph: slots for gradients, queues, and the chief's step.

One step of worker w: it assigns its gradients to slots of its own beside the parameters, puts
(epoch, step, w) into the queue `arrivals`, and waits for a token, the (epoch, step) to go on with,
in a queue of its own. The chief takes arrivals until m different workers have come with the present
step, adds the slots of those m *in the order of the workers' numbers*, neighbours in pairs
(`means.in_pairs`), ((g0 + g1) + (g2 + g3)) / m, applies the mean, counts the step, and gives each
of the m a token. Whoever comes with another step gets a token at once, and its gradient is never
read. So the bits depend on which workers were taken, and not on who came first; with m workers in
all they are fixed.

Nobody waits for ever, and nobody hands in twice for a step that is being added up, when processes
end and start again: an epoch is the life of one chief, greater than all before; workers discard
tokens that are not later than what they have; the chief gives every worker a token when it starts.
The epoch is in a table beside the global step, and so in no checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.control.branches import cond
from weft.frontend.control.loops import while_loop
from weft.frontend.devices import beside
from weft.frontend.indexed_slices import IndexedSlices, added
from weft.frontend.ops.arithmetic import (
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
from weft.frontend.ops.creation import arange, constant, zeros
from weft.frontend.ops.rearrange import stack
from weft.frontend.ops.reduction import count_nonzero
from weft.frontend.queues.kinds import FIFOQueue, PaddingFIFOQueue
from weft.frontend.queues.tables import MutableHashTable
from weft.frontend.session.scopes import control_dependencies, group
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Effect, Trace
from weft.frontend.train.optimizer import GradientAndVariable, Optimizer
from weft.frontend.train.replicas.means import in_pairs, mean_tensor
from weft.frontend.variable import Variable
from weft.ir.dtypes import bool_, int64

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
    """What all workers and the chief of one graph share. counts: (m, n); named: the shared name
    for a name, if things are shared by name."""

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
