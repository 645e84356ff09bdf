"""Named axes: what collectives in the code that is traced now are over, rows of a batch, devices or
processes of a mesh; and the op `exchange`, a collective of processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import current_trace, graph_around
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim
from weft.ir.errors import UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue


@dataclass(frozen=True, slots=True)
class NamedAxis:
    """An axis that collectives are over: how many rows it has. mesh: the name of the mesh of
    processes whose axis it is; "": of none. placed: whether it is one of a mesh of devices."""

    size: Dim
    mesh: str = ""
    placed: bool = False

    @property
    def is_of_mesh(self) -> bool:
        """Whether its rows are shards, not those of a batch."""
        return self.placed or bool(self.mesh)


_axes: ContextVar[Mapping[str, NamedAxis]] = ContextVar("axes", default=MappingProxyType({}))


def named_axes() -> Mapping[str, NamedAxis]:
    """The axes that have names around this code."""
    return _axes.get()


@contextmanager
def axes_called(axes: Mapping[str, NamedAxis]) -> Iterator[None]:
    """What is traced within may use the axes by their names."""
    token = _axes.set({**_axes.get(), **axes})
    try:
        yield
    finally:
        _axes.reset(token)


_averaging: ContextVar[tuple[str, ...]] = ContextVar("averaging", default=())


def averaged_axes() -> tuple[str, ...]:
    """The axes over whose rows optimizers in this code take the mean of gradients."""
    return _averaging.get()


@contextmanager
def gradients_averaged(axes: Sequence[str]) -> Iterator[None]:
    """Optimizers in what is traced within take the mean of gradients over the rows of the axes."""
    token = _averaging.set(tuple(axes))
    try:
        yield
    finally:
        _averaging.reset(token)


def exchange(
    kind: str, operands: Sequence[Tensor], axis_name: str, axis: NamedAxis, **attrs: AttrValue
) -> Tensor:
    """The only result of `exchanges`."""
    (made,) = exchanges(kind, operands, axis_name, axis, **attrs)
    return made


def exchanges(
    kind: str, operands: Sequence[Tensor], axis_name: str, axis: NamedAxis, **attrs: AttrValue
) -> list[Tensor]:
    """An op `exchange` in the current trace, over an axis of a mesh of processes."""
    trace = current_trace()
    assert trace is not None
    if graph_around(trace) is not None:  # where nothing is in order by itself
        raise UnsupportedError(
            "wf.shard_map over processes is not for a wf.Graph",
            hint="call it in a function of wf.compile, or by itself",
            location=caller_location(),
        )
    where = caller_location()
    line = f"{where[0].file}:{where[0].line}" if where else ""
    given: dict[str, AttrValue] = {
        "kind": kind, "mesh": axis.mesh, "axis_name": axis_name, "size": axis.size, "line": line,
    }  # fmt: skip
    values = trace.emit("exchange", [trace.lift(t) for t in operands], {**attrs, **given})
    return [trace.tensor(value) for value in values]


def indices_of_shards() -> list[Tensor]:
    """The index of the shard along each axis of the meshes of devices or processes around this
    code."""
    return [_index(name, axis) for name, axis in named_axes().items() if axis.is_of_mesh]


def _index(name: str, axis: NamedAxis) -> Tensor:
    if axis.mesh:
        return exchange("axis_index", [], name, axis)
    trace = current_trace()
    assert trace is not None
    (value,) = trace.emit("axis_index", (), {"axis_name": name})
    return trace.tensor(value)
