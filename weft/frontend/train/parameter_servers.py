"""Parameters on several tasks (the paper, section 4.2): `replica_device_setter` spreads variables
over parameter servers and leaves everything else to the worker (TensorFlow 1's function for
`wf.device`); `create_partitioned_variables` makes one table of several variables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.device_scope import OpToPlace
from weft.frontend.core.tensor import as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.state.variable import Variable
from weft.ir.device import DeviceSpec
from weft.ir.dims import format_shape
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InvalidArgumentError, ShapeError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.cluster.spec import ClusterSpec

#: Ops whose results parameter servers hold: variables, and tables.
PS_OPS = ("variable", "table")

Strategy = Callable[[OpToPlace], int]


class RoundRobinStrategy:
    """The tasks in turn, in the order in which variables are made.

    >>> turns = wf.train.RoundRobinStrategy(num_tasks=2)
    >>> with wf.Graph().as_default():
    ...     with wf.device(wf.train.replica_device_setter(2, ps_strategy=turns)):
    ...         a, b, c = (wf.Variable(0.0) for _ in "abc")
    ...     with wf.tf1.colocate_with(b):
    ...         print((b + 1.0).device)
    /job:ps/task:1
    """

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = _checked(num_tasks)
        self._next = 0
        self._lock = threading.Lock()

    def __call__(self, op: OpToPlace) -> int:
        """The number of the task for `op`."""
        with self._lock:
            task, self._next = self._next, (self._next + 1) % self._num_tasks
        return task


class GreedyLoadBalancingStrategy:
    """The task with the least load so far, the first of equal ones.

    load_fn: what an op adds to the load of its task; `byte_size_load_fn` balances bytes.

    >>> greedy = wf.train.GreedyLoadBalancingStrategy(2, wf.train.byte_size_load_fn)
    >>> place = wf.train.replica_device_setter(ps_tasks=2, ps_strategy=greedy)
    >>> with wf.Graph().as_default(), wf.device(place):
    ...     tables = [wf.Variable(np.zeros(n)) for n in (100, 10, 20)]  # 800, 80 and 160 bytes
    >>> greedy.loads
    (800.0, 240.0)
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[OpToPlace], float]) -> None:
        self._loads = [0.0] * _checked(num_tasks)
        self._load_fn = load_fn
        self._lock = threading.Lock()

    def __call__(self, op: OpToPlace) -> int:
        """The number of the task for `op`."""
        load = float(self._load_fn(op))
        if not load >= 0:
            raise InvalidArgumentError(
                f"GreedyLoadBalancingStrategy: the load of {op!r} is {load}",
                hint="load_fn gives a number of at least 0",
                location=caller_location(),
            )
        with self._lock:
            task = min(range(len(self._loads)), key=self._loads.__getitem__)
            self._loads[task] += load
        return task

    @property
    def loads(self) -> tuple[float, ...]:
        """The load of each task so far."""
        with self._lock:
            return tuple(self._loads)


def byte_size_load_fn(op: OpToPlace) -> float:
    """The bytes that a variable takes.

    >>> greedy = wf.train.GreedyLoadBalancingStrategy(2, wf.train.byte_size_load_fn)
    >>> place = wf.train.replica_device_setter(ps_tasks=2, ps_strategy=greedy)
    >>> with wf.Graph().as_default(), wf.device(place):
    ...     v = wf.Variable(np.zeros((3, 4), np.float32))
    >>> greedy.loads
    (48.0, 0.0)
    """
    return float(op.nbytes)


def _checked(num_tasks: int) -> int:
    if type(num_tasks) is not int or num_tasks < 1:
        raise InvalidArgumentError(
            f"the number of tasks must be at least 1, got {num_tasks!r}", location=caller_location()
        )
    return num_tasks


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: ClusterSpec | dict[str, list[str]] | None = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Strategy | None = None,
) -> Callable[[OpToPlace], DeviceSpec | None] | None:
    """A function for `wf.device` that puts variables on the tasks of `ps_device`, in turn, and all
    other ops on `worker_device`; None if there are no such tasks.

    ps_tasks: how many there are; or cluster, whose job of that name says it. merge_devices: whether
    the `wf.device` scopes within go before (else an op that they put somewhere stays there).
    ps_ops: names of ops in place of ("variable", "table"). ps_strategy: a function from an op to
    the number of its task, such as `GreedyLoadBalancingStrategy`, in place of taking turns.
    NotFoundError for a cluster without that job.

    >>> place = wf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")
    >>> with wf.Graph().as_default(), wf.device(place):
    ...     a, b = wf.Variable(1.0), wf.Variable(2.0)
    ...     y = wf.exp(a + b)
    ...     with wf.tf1.colocate_with(b):
    ...         z = wf.exp(b)
    >>> y.device, z.device
    ('/job:worker/task:1', '/job:ps/task:1')
    """
    try:
        ps, worker = DeviceSpec.parse(ps_device), DeviceSpec.parse(worker_device)
        if cluster is not None:
            ps_tasks = ClusterSpec(cluster).num_tasks(str(ps.job))
    except WeftError as error:
        raise error.at(caller_location()) from None
    if ps_tasks == 0:
        return None
    strategy: Strategy = RoundRobinStrategy(ps_tasks) if ps_strategy is None else ps_strategy
    held = frozenset(PS_OPS if ps_ops is None else ps_ops)

    def choose(op: OpToPlace) -> DeviceSpec | None:
        within = DeviceSpec.parse(op.device)
        if op.device and not merge_devices:
            return None
        if op.type not in held:
            return worker.merged(within)
        place = ps
        if ps.job is not None and within.job in (None, ps.job):
            place = ps.merged(DeviceSpec(task=strategy(op)))
        return place.merged(within)

    return choose


def create_partitioned_variables(
    shape: Sequence[int],
    slicing: Sequence[int],
    initializer: Callable[..., Any] | Any,
    trainable: bool = True,
    name: str | None = None,
    dtype: object = None,
) -> list[Variable]:
    """The parts of a variable of `shape`, cut along the one axis on which `slicing` is not 1, as
    variables `name/part_0`, `name/part_1`, ...; the first ones are one longer where it does not
    divide. `wf.nn.embedding_lookup` and the losses of `wf.nn` take the list; for rows in the order
    of the whole, they need `partition_strategy="div"`.

    initializer: a value of `shape`, of which each part gets its slice, or a function that gives a
    part's from its shape, called as `initializer(shape)` or, with a dtype, `initializer(shape,
    dtype=dtype)`: nothing as large as the whole is made then. InvalidArgumentError for a slicing
    that cuts several axes or into more parts than there are rows.

    >>> rows = np.arange(10).reshape(5, 2)
    >>> parts = wf.tf1.create_partitioned_variables([5, 2], [2, 1], rows, name="table")
    >>> [(part.name, part.shape) for part in parts]
    [('table/part_0', (3, 2)), ('table/part_1', (2, 2))]
    >>> wf.nn.embedding_lookup(parts, [0, 4], partition_strategy="div")  # not "mod", its default
    Tensor([[0, 1],
            [8, 9]], dtype=int64)
    """
    full, cuts = tuple(shape), tuple(slicing)
    whole = all(type(n) is int for n in (*full, *cuts)) and len(full) == len(cuts)
    cut = [axis for axis, n in enumerate(cuts) if n != 1]
    if not whole or len(cut) > 1 or any(not 1 <= n <= d for n, d in zip(cuts, full, strict=True)):
        raise InvalidArgumentError(
            f"create_partitioned_variables: slicing={list(cuts)} of shape={list(full)}",
            hint="one number for each axis: the parts along one of them, at most its size; else 1",
            location=caller_location(),
        )
    axis = cut[0] if cut else 0
    count = cuts[axis] if cuts else 1
    value = None if callable(initializer) else _value(initializer, full, dtype)
    trace = current_trace()
    label = f"{name or 'variable'}/part"
    if trace is not None and f"{trace.name_scope}{label}_0" in trace.variables:
        raise InvalidArgumentError(
            f"create_partitioned_variables: there is a variable '{label}_0' already",
            hint="give each table a name of its own",
            location=caller_location(),
        )
    made, start = [], 0
    for number in range(count):
        size = full[axis] // count + (number < full[axis] % count) if full else 1
        part = (*full[:axis], size, *full[axis + 1 :]) if full else ()
        if value is None:
            given = initializer(part) if dtype is None else initializer(part, dtype=as_dtype(dtype))
        else:
            given = value[(slice(None),) * axis + (slice(start, start + size),)] if full else value
        made.append(Variable(given, trainable=trainable, dtype=dtype, name=f"{label}_{number}"))
        start += size
    return made


def _value(initializer: Any, full: tuple[int, ...], dtype: object) -> np.ndarray[Any, Any]:
    t = as_tensor(initializer, None if dtype is None else as_dtype(dtype))
    if t.shape != full:
        raise ShapeError(
            f"create_partitioned_variables: an initializer of shape {format_shape(t.shape)} for a "
            f"variable of shape {list(full)}",
            location=caller_location(),
        )
    return t._concrete("the initial value of a partitioned variable", "pass a function of a shape")
