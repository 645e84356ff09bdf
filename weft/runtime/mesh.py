"""`ProcessMesh`: this process's place in a mesh of processes, which does its exchanges.

For each axis of the mesh it has a group of the processes that differ in that axis alone
(`weft/comm/group.py`), through shared memory if all are of one host, else by TCP. All make them in
the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.comm.errors import (
    CommError,
    DeadlineError,
    GroupEndedError,
    PeerLostError,
    ProgramsDifferError,
    UnreachableError,
)
from weft.comm.group import Call, Group
from weft.comm.members import Remote
from weft.ir.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    WeftError,
)
from weft.ir.ops.collectives import close_mesh, open_mesh
from weft.ir.spec import Attrs, int_attr, ints_attr

Array = np.ndarray[Any, Any]
_ADDS: Mapping[str, np.ufunc] = {
    "psum": np.add, "total": np.add, "pmax": np.maximum, "pmin": np.minimum,
}  # fmt: skip
#: What errors of the transport are to users, the first that fits.
_ERRORS: Sequence[tuple[type[CommError], type[WeftError], str]] = (
    (ProgramsDifferError, InvalidArgumentError, "all processes run the same program on arrays of "
     "the same shapes"),
    (DeadlineError, DeadlineExceededError, "wf.Mesh(timeout=...) says how long a collective waits"),
    (GroupEndedError, AbortedError, "an error ends a mesh for good: make a new one in all "
     "processes"),
    (UnreachableError, UnavailableError, "wf.Mesh(connect_timeout=...) says how long processes may "
     "take to start"),
    (PeerLostError, UnavailableError, "an error ends a mesh for good: make a new one in all "
     "processes"),
    (CommError, FailedPreconditionError, ""),
)  # fmt: skip


class ProcessMesh:
    """The groups of process `rank` in a mesh of this shape, in row-major order of ranks.

    name: what exchanges call it. address: the same in all processes of the mesh, and of no other
    mesh of this host and user. remote: where all are, if they are of several hosts. Raises
    UnavailableError for a process that does not come, FailedPreconditionError where another one is
    in its place.
    """

    def __init__(
        self,
        name: str,
        address: str,
        shape: Mapping[str, int],
        rank: int,
        timeout: float,
        connect_timeout: float,
        remote: Remote | None = None,
    ) -> None:
        self.name = name
        sizes = tuple(shape.values())
        indices = np.unravel_index(rank, sizes)
        self.place = {axis: int(k) for axis, k in zip(shape, indices, strict=True)}
        self._groups: dict[str, Group] = {}
        try:
            for axis, size in shape.items():
                others = [k for other, k in self.place.items() if other != axis]
                places = [{**self.place, axis: k} for k in range(size)]
                row = [int(np.ravel_multi_index([*p.values()], sizes)) for p in places]
                self._groups[axis] = Group(
                    "-".join([address, axis, *map(str, others)]), self.place[axis], size,
                    timeout, connect_timeout,
                    remote=remote and remote.of(row), label=f"{name}/{axis}",
                )  # fmt: skip
        except CommError as error:
            self.close(str(error))
            raise _as_users_know(error) from None
        open_mesh(name, self.exchange)

    def close(self, why: str = "its program closed the mesh") -> None:
        """Leave all groups; processes that wait for this one hear why."""
        close_mesh(self.name)
        for group in self._groups.values():
            group.close(why)

    def exchange(
        self, kind: str, arrays: Sequence[Array], attrs: Attrs, out: Array | None = None
    ) -> Array:
        """The result of an op `exchange`, in `out` where that saves a copy. Whatever goes wrong
        closes the mesh."""
        axis = str(attrs["axis_name"])
        group = self._groups[axis]
        if kind == "axis_index":
            return np.array(group.rank, np.int64)
        (x,) = arrays
        if kind in ("enter", "leave"):
            return x
        if kind == "first":
            return x if group.rank == 0 else np.zeros_like(x)
        if kind == "split":
            return np.split(x, group.size, int_attr(attrs, "dim"))[group.rank]
        try:
            return _collective(group, kind, x, attrs, out)
        except CommError as error:
            self._leave(group, str(error))
            raise _as_users_know(error) from None
        except BaseException as error:
            self._leave(group, str(error) or type(error).__name__)
            raise

    def _leave(self, broken: Group, why: str) -> None:
        """Leave the other groups, too: who waits there hears of what went wrong here."""
        for group in self._groups.values():
            if group is not broken:
                group.close(why)


def _collective(group: Group, kind: str, x: Array, attrs: Attrs, out: Array | None) -> Array:
    dim, sources = int_attr(attrs, "dim"), ints_attr(attrs, "sources")
    named = f"{kind} over '{attrs['axis_name']}'"
    if kind == "join":
        named += f" along axis {dim}"
    if attrs["shapes"]:
        named += f" of arrays of the shapes {attrs['shapes']} as one,"
    if kind == "ppermute":
        named += f" from {list(sources)}"
    call = Call(named, str(attrs["line"]))
    if kind in _ADDS:
        return group.reduce(x, _ADDS[kind], call, out)
    if kind == "all_gather":
        return group.gather(x, call)
    if kind == "join":
        return np.concatenate(list(group.gather(x, call)), dim)
    if kind == "psum_scatter":
        return group.scatter(x, np.add, call)
    if kind == "all_to_all":
        return group.exchange(x, call)
    return group.permute(x, sources, call)


def _as_users_know(error: CommError) -> WeftError:
    made, hint = next((m, h) for kind, m, h in _ERRORS if isinstance(error, kind))
    return made(str(error), hint=hint or None)
