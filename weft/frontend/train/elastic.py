"""`Elastic`: data-parallel training by processes of which some may be lost, and others may join.

A step is two compiled functions. One gives the gradients of a microbatch, flat, and the scalars
that the loss function returns behind them; each process calls it for some microbatches, and
`weft/comm/elastic.py` adds all up, whoever takes part. The other one applies the mean, in all
processes alike. So a process changes its variables only when a sum is there, and nothing has to be
taken back when one of them dies in the midst of a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Self

import numpy as np

from weft.comm.elastic import ElasticGroup
from weft.comm.errors import (
    AddressError,
    AuthenticationError,
    CommError,
    GroupEndedError,
    InsecureAddressError,
    LeftBehindError,
    ProgramsDifferError,
    UnreachableError,
)
from weft.comm.group import Call
from weft.frontend.compile.decorator import compile
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.creation import zeros
from weft.frontend.ops.elementwise import divide
from weft.frontend.ops.manipulation import concat, reshape, split
from weft.frontend.ops.promotion import cast, check_int
from weft.frontend.optim.optimizer import Optimizer, dense_gradient
from weft.frontend.state.variable import Variable
from weft.ir.dtypes import float32, float64
from weft.ir.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnavailableError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Block, Operation
from weft.ir.locations import caller_location
from weft.ir.ops.state import UPDATES
from weft.runtime.cluster.spec import ClusterTask, addresses_of
from weft.runtime.cluster.transport import remote_of

_WHAT = "train.Elastic"
#: What errors of the transport are to users.
_ERRORS: Sequence[tuple[type[CommError], type[WeftError], str]] = (
    (LeftBehindError, AbortedError, "start the process anew: it gets the state of the others"),
    (ProgramsDifferError, InvalidArgumentError, "all processes run the same program"),
    (UnreachableError, UnavailableError, "connect_timeout= says how long processes may take to "
     "start, least= how many go on"),
    (GroupEndedError, FailedPreconditionError, ""),
    (AddressError, FailedPreconditionError, "one process is at each address"),
    (AuthenticationError, FailedPreconditionError, "all processes need the same key_file"),
    (InsecureAddressError, FailedPreconditionError, "key_file= is the cluster's key"),
    (CommError, UnavailableError, ""),
)  # fmt: skip


class Elastic:
    """A training step over processes, some of which may be killed while others join: the losses are
    bit for bit those of a run that nothing happens to, in one process or many.

    loss: a function of the arrays of a microbatch that gives a mean over examples, or a tuple of it
    and of further scalars, as a tree. It may not assign to variables. variables: those that the
    optimizer trains; state: others that newcomers need. microbatches: into how many parts of one
    size a batch is cut, which the processes share out; the bits depend on it. name: of the run, the
    same in all its processes and of no other run of this user. size: how many processes begin;
    least: how many go on. task: this process's place in its cluster
    (`wf.train.cluster_from_environment()`), at the addresses of whose job the processes of the run
    may be (all of them begin it, if no size is given); key_file: the key of tasks on several hosts,
    as of `wf.train.Server`. Without a task all processes are of this host. timeout: how many
    seconds a step waits for a process that lives; connect_timeout: how long for processes that are
    lacking.

    Called with whole batches, the same in all processes, it does a step, and gives the means of
    what the loss returns. Batches have to follow from `step`, the number of steps that are done: a
    process that comes late begins with that of the others, and their variables. A process that was
    given up while it was stopped, or that the network has cut off, gets an AbortedError.
    UnavailableError for too few processes, FailedPreconditionError for hosts without a key.

    >>> w = wf.Variable(wf.zeros(3))
    >>> def loss(x, y):
    ...     return wf.mean((wf.matmul(x, w) - y) ** 2)
    >>> with wf.train.Elastic(loss, wf.train.SGD(0.1), [w], name="doc", size=1) as train:
    ...     while train.step < 2:
    ...         print(f"{float(train(np.ones((8, 3), 'f'), np.ones(8, 'f'))):.2f}")
    1.00
    0.16
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        variables: Sequence[Variable],
        *,
        name: str,
        size: int | None = None,
        microbatches: int = 8,
        state: Sequence[Variable] = (),
        least: int = 1,
        timeout: float = 60.0,
        connect_timeout: float = 60.0,
        task: ClusterTask | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        addresses = () if task is None else addresses_of(task, _WHAT)
        if size is None and task is None:
            raise InvalidArgumentError(
                f"{_WHAT}: size= or task= says how many processes begin", location=caller_location()
            )
        if task is not None and size is not None and size > len(addresses):
            raise InvalidArgumentError(
                f"{_WHAT}: size={size}, and the job '{task.job}' has {len(addresses)} tasks",
                location=caller_location(),
            )
        self._variables = _checked(variables)
        self._optimizer, self._loss = optimizer, loss
        self._microbatches = _positive("microbatches", microbatches)
        wide = any(v.dtype is float64 for v in self._variables)
        self._dtype = float64 if wide else float32  # of sums; 16-bit floats are widened
        self._sizes = [prod(v.shape) for v in self._variables]
        self._results: pytree.Structure = None
        self._gradients = compile(self._flat_gradients)
        self._update = compile(self._updated)
        self._update.trace(np.zeros(sum(self._sizes), self._dtype.numpy))  # makes the slots
        self._state = [*self._variables, *optimizer.variables(), *state]
        with _Translated():
            self._group = ElasticGroup(
                name, _positive("size", len(addresses) if size is None else size),
                self._give, self._take, _positive("least", least), timeout, connect_timeout,
                remote_of(addresses, key_file, _WHAT) if addresses else None,
                0 if task is None else task.task,
            )  # fmt: skip

    # ------------------------------------------------------------------------------------ public
    @property
    def step(self) -> int:
        """How many steps are done: the number of the batch that is next."""
        return self._group.step

    @property
    def rank(self) -> int:
        """This process's number among those that take part now: 0 saves checkpoints, say. It may
        become smaller."""
        return self._group.rank

    @property
    def size(self) -> int:
        """How many processes take part now."""
        return self._group.size

    @property
    def changes(self) -> Sequence[str]:
        """Who was lost and who has come, at which step; also written to the log "weft.comm"."""
        return tuple(self._group.changes)

    @shows_as_seen
    def __call__(self, *arrays: Any) -> Any:
        whole = [np.asarray(a) for a in arrays]
        rows = self._rows(whole)

        def part(k: int) -> Any:
            own = slice(k * rows, (k + 1) * rows)
            return np.asarray(self._gradients(*(a[own] if a.ndim else a for a in whole)))

        forms = " ".join(f"{a.dtype}{list(a.shape)}" for a in whole)
        count = self._microbatches
        what = f"step {self._group.step}, gradients of {count} microbatches of {forms}"
        with _Translated():
            total = self._group.sum(count, part, Call(what))
        if self._results is None:  # it had no part in the sum: only a trace knows the results
            self._gradients.trace(*(a[:rows] if a.ndim else a for a in whole))
        means = self._update(total)
        return pytree.unflatten(self._results, list(means))

    def close(self) -> None:
        """Take part no more; the others go on. A second time nothing."""
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Elastic(step {self.step}, rank {self.rank} of {self.size})"

    # ------------------------------------------------------------------------------------ a step
    def _rows(self, whole: Sequence[np.ndarray[Any, Any]]) -> int:
        """How many rows a microbatch has. ShapeError for batches that cannot be cut."""
        counts = {a.shape[0] for a in whole if a.ndim}
        if len(counts) != 1 or min(counts) % self._microbatches or not min(counts):
            shown = ", ".join(str(list(a.shape)) for a in whole)
            raise ShapeError(
                f"{_WHAT}: arrays of the shapes {shown} cannot be cut into {self._microbatches} "
                "microbatches of one size along their first axis",
                location=caller_location(),
            )
        return int(counts.pop()) // self._microbatches

    def _flat_gradients(self, *arrays: Tensor) -> Tensor:
        """The gradients of a microbatch, one behind the other, and the scalars."""
        trace = current_trace()
        assert trace is not None
        start = len(trace.builder.ops)
        made = self._loss(*arrays)
        leaves, self._results = pytree.flatten(made)
        if not leaves or (made[0] if isinstance(made, tuple) else made) is not leaves[0]:
            raise InvalidArgumentError(
                f"{_WHAT}: the loss function returns {pytree.describe(self._results)}",
                hint="return the loss, or a tuple of it and of further scalars",
                location=caller_location(),
            )
        scalars = [as_tensor(leaf) for leaf in leaves]
        for t in scalars:
            if t.ndim or not t.dtype.is_floating:
                raise InvalidArgumentError(
                    f"{_WHAT}: the loss function returns {t.describe()}, and not a scalar whose "
                    "mean over microbatches says something",
                    location=caller_location(),
                )
        for op in trace.builder.ops[start:]:
            _check_pure(op)
        pairs = self._optimizer.compute_gradients(scalars[0], self._variables)
        slopes = [
            zeros(v.shape, dtype=v.dtype) if g is None else dense_gradient(g) for g, v in pairs
        ]
        return concat([reshape(cast(t, self._dtype), (-1,)) for t in (*slopes, *scalars)])

    def _updated(self, total: Tensor) -> list[Tensor]:
        """Apply the mean of the gradients; the means of the scalars."""
        mean = divide(total, self._microbatches)
        (length,) = mean.shape
        assert isinstance(length, int)
        count = length - sum(self._sizes)
        *slopes, scalars = split(mean, [*self._sizes, count])
        shaped = [
            (cast(reshape(g, v.shape), v.dtype), v)
            for g, v in zip(slopes, self._variables, strict=True)
        ]
        self._optimizer.apply_gradients(shaped)
        return [scalars[k] for k in range(count)]

    # ------------------------------------------------------------------------------------- state
    def _give(self) -> list[np.ndarray[Any, Any]]:
        return [v.numpy() for v in self._state]

    def _take(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        for v, array in zip(self._state, arrays, strict=True):
            v.assign(array)


class _Translated:
    """Errors of the transport become those that users know."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, CommError):
            made, hint = next((m, h) for k, m, h in _ERRORS if isinstance(error, k))
            raise made(str(error), hint=hint or None, location=caller_location()) from None


def _positive(name: str, given: object) -> int:
    number = check_int(_WHAT, given, name)
    if number < 1:
        raise InvalidArgumentError(
            f"{_WHAT}: {name} is at least 1, got {number}", location=caller_location()
        )
    return number


def _checked(variables: Any) -> list[Variable]:
    """The variables to train. TypeRuleError, UnsupportedError for what cannot be."""
    found = list(variables) if isinstance(variables, Sequence) else []
    if not found or not all(isinstance(v, Variable) for v in found):
        raise TypeRuleError(
            f"{_WHAT}: variables is a list of wf.Variable, got {variables!r:.60}",
            location=caller_location(),
        )
    for v in found:
        if not v.dtype.is_floating:
            raise UnsupportedError(
                f"{_WHAT}: variable '{v.name}' is {v.dtype.name}, and only real floats are trained",
                location=caller_location(),
            )
    return found


def _check_pure(op: Operation) -> None:
    for inner in (op, *(o for region in op.regions for o in Block.walk(region))):
        if inner.name in UPDATES or inner.name == "assign":
            raise UnsupportedError(
                f"{_WHAT}: the loss assigns to a variable, which would be another value in each "
                "process",
                hint="a wf.random.Generator keeps its key in a variable: give keys as an array of "
                "the batch",
                location=inner.locations,
            )
