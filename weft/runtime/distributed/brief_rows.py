"""The nodes of a small part (`brief.py`) as functions that carry them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built, HostOp
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.dataflow.nodes import Node
from weft.runtime.distributed.exchange import Edge
from weft.runtime.distributed.messages import Wire

COMPUTE, HOST, SEND, RECV, FETCH = range(5)


class _AllDead:
    """In place of the outputs of a node that is dead as a whole."""

    def __getitem__(self, port: int) -> Any:
        return DEAD


DEAD_NODE: Any = _AllDead()
_TOKEN: Sequence[Any] = (None,)


class Run(Protocol):
    """What the functions need of a `brief.BriefRun`."""

    step: int
    wire: Wire

    def send(self, edge: Edge, iterations: tuple[int, ...], value: Any) -> None: ...
    def take(self, i: int, made: Any) -> None: ...
    def begin_host(self, i: int, host: HostOp, given: list[Any]) -> None: ...


#: Carries a row out, given the run and what all rows have given so far, by row. What begins
#: something (HOST, RECV) has `take` called later, the others note what they give.
Act = Callable[[Run, list[Any]], None]
_Places = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Row:
    """One node. inputs, control: (row, port) that it reads, or that must be alive, port CONTROL:
    the node as a whole. dtype, shape: of what a recv gives."""

    number: int
    does: int
    inputs: tuple[tuple[int, int], ...]
    control: tuple[tuple[int, int], ...]
    op: Operation | None
    act: Act
    host: HostOp | None = None
    dtype: Any = None
    shape: tuple[int, ...] = ()

    @property
    def begins(self) -> bool:
        """Whether what it gives comes later."""
        return self.does in (HOST, RECV)

    def is_alive(self, values: Sequence[Any]) -> bool:
        """Whether it runs: all that it reads is alive. What a send moves may be dead, and so may
        what it comes after."""
        inputs = self.inputs[1:] if self.does == SEND else self.inputs
        control = () if self.does == SEND else self.control
        return all(
            values[k] is not DEAD_NODE and (port == at.CONTROL or values[k][port] is not DEAD)
            for k, port in (*inputs, *control)
        )


def control_of(node: Node) -> list[tuple[Node, int]]:
    """What a node comes after: (node, port)."""
    return [(c, at.CONTROL) if isinstance(c, Node) else c for c in node.control]


def row_of(built: Built, node: Node, number: dict[Node, int]) -> Row | None:
    """The row of a node; None for what is there from the beginning."""
    inputs = tuple([(number[source], port) for source, port in node.inputs])
    control = tuple([(number[source], port) for source, port in control_of(node)])
    i, op = number[node], built.op_of.get(node)
    if node.kind in (at.FEED, at.CONSTANT):
        return None
    if node.kind == at.FETCH:
        return Row(i, FETCH, inputs, control, op, _computing(i, op, inputs, list))
    if node.kind == at.PLAN:
        made = built.plans[node.number]
        act = _computing(i, op, inputs, made, tuple(made.plan.donated.values()))
        return Row(i, COMPUTE, inputs, control, op, act)
    host = built.hosts[node.number]
    if host.op.name == "send":
        act = _sending(i, Edge.of(host.op), inputs)
        return Row(i, SEND, inputs, control, op, act, host)
    if host.op.name == "recv":
        act, kind = _receiving(i, Edge.of(host.op), inputs), host.op.result.type
        assert isinstance(kind, TensorType)
        shape, dtype = kind.static_shape, kind.dtype.numpy
        return Row(i, RECV, inputs, control, op, act, host, dtype, shape)
    if host.now is not None:
        act = _computing(i, host.op, inputs, host.now)
        return Row(i, COMPUTE, inputs, control, host.op, act)
    written = () if host.reads_only or host.keeps else tuple(range(len(inputs)))
    act = _hosting(i, host, inputs, written)
    return Row(i, HOST, inputs, control, host.op, act, host)


def _reading(inputs: _Places, copied: Sequence[int] = ()) -> Callable[[list[Any]], list[Any]]:
    """What gathers the inputs of a row; `copied`: those that it may write to."""
    if copied:
        read = _reading(inputs)

        def copies(values: list[Any]) -> list[Any]:
            given = read(values)
            for k in copied:
                given[k] = given[k].copy()
            return given

        return copies
    if not inputs:
        return lambda values: []
    if len(inputs) == 1:
        ((row, port),) = inputs
        return lambda values: [values[row][port]]
    return lambda values: [values[k][p] for k, p in inputs]


def _iterations(inputs: _Places) -> Callable[[list[Any]], tuple[int, ...]]:
    """The counters of the enclosing loops."""
    if not inputs:
        return lambda values: ()
    return lambda values: tuple([int(values[k][p]) for k, p in inputs])


def _computing(
    i: int,
    op: Operation | None,
    inputs: _Places,
    call: Callable[[list[Any]], Sequence[Any]],
    copied: Sequence[int] = (),
) -> Act:
    read = _reading(inputs, copied)

    def act(run: Run, values: list[Any]) -> None:
        try:
            values[i] = call(read(values))
        except WeftError as error:
            if op is not None:
                error.at(op.locations)
            raise

    return act


def _sending(i: int, edge: Edge, inputs: _Places) -> Act:
    (row, port), *counters = inputs
    iterations = _iterations(counters)

    def act(run: Run, values: list[Any]) -> None:
        run.send(edge, iterations(values), values[row][port])
        values[i] = _TOKEN

    return act


def _receiving(i: int, edge: Edge, inputs: _Places) -> Act:
    key, source, iterations = edge.key, edge.source, _iterations(inputs)

    def act(run: Run, values: list[Any]) -> None:
        place = key, iterations(values)
        run.wire.rendezvous.get(run.step, place, partial(run.take, i), source)

    return act


def _hosting(i: int, host: HostOp, inputs: _Places, copied: Sequence[int]) -> Act:
    read = _reading(inputs, copied)

    def act(run: Run, values: list[Any]) -> None:
        run.begin_host(i, host, read(values))

    return act
