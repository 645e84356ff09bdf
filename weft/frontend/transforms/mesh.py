"""`Mesh` and `PartitionSpec`: named axes of shards, and how tensors are cut along them.

The names and meanings are those of `jax.sharding`."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from weft.frontend.core import pytree
from weft.frontend.core.device_scope import as_spec as as_device
from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.manipulation import permute_dims, reshape
from weft.ir.device import DeviceSpec
from weft.ir.dims import Dim
from weft.ir.errors import InvalidArgumentError, ShapeError, UnsupportedError, suggest
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    from weft.runtime.cluster.spec import ClusterTask
    from weft.runtime.device.backends.info import DeviceInfo
    from weft.runtime.mesh import ProcessMesh


class PartitionSpec:
    """How a tensor is cut over a mesh: for each axis of the tensor a name of the mesh's, a tuple of
    names (the first one varies slowest), or None: not cut. Axes at the end may be left out; over
    names that it does not have the tensor is the same.

    >>> wf.PartitionSpec("data", None, ("model", "expert"))
    PartitionSpec('data', None, ('model', 'expert'))
    """

    __slots__ = ("axes",)

    def __init__(self, *axes: str | Sequence[str] | None) -> None:
        self.axes: tuple[tuple[str, ...], ...] = tuple(map(_names, axes))
        given = self.names
        twice = next((name for name in given if given.count(name) > 1), None)
        if twice is not None:
            raise InvalidArgumentError(
                f"{self}: the axis {twice!r} of the mesh stands twice", location=caller_location()
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All names in it, in order."""
        return tuple(name for names in self.axes for name in names)

    def __repr__(self) -> str:
        shown = (None if not n else n[0] if len(n) == 1 else n for n in self.axes)
        return f"PartitionSpec({', '.join(map(repr, shown))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(self.axes)


def _names(axis: object) -> tuple[str, ...]:
    names: tuple[Any, ...] = () if axis is None else (axis,)
    if isinstance(axis, (tuple, list)):
        names = tuple(axis)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(
            f"PartitionSpec: {axis!r:.60} is no name of an axis, and no tuple of names",
            hint="None is for an axis that is not cut",
            location=caller_location(),
        )
    return names


class Mesh:
    """Shards by named axes: for each combination of their indices there is one, in row-major order.

    shape: the size of each axis, by its name. Without devices and a task `wf.shard_map` computes
    all shards in this process, as a batch.

    devices: that of each shard, in row-major order: names, full or partial, as `wf.device` takes
    them, or what `wf.devices()` gives. `wf.shard_map` then writes all shards into one program, each
    on its device: of a `wf.compile(cluster=...)`, of a `wf.Graph`, or of several GPUs of this
    process.

    task: this process's place in its cluster (`wf.train.cluster_from_environment()`), all tasks of
    whose job make meshes of the same shapes in the same order, and run the same program on the same
    arrays: then each computes the shard of its number. timeout: how many seconds a collective waits
    for the other processes; connect_timeout: how long those may take to come. key_file: the key of
    tasks on several hosts, as of `wf.train.Server`. An error in a collective ends the mesh.

    UnavailableError for a process that does not come, InvalidArgumentError for a shape of more or
    fewer shards than there are devices, or tasks of the job, FailedPreconditionError where another
    process has this task's place, and for tasks on several hosts without a key.

    >>> mesh = wf.Mesh({"data": 2, "model": 4})
    >>> mesh.size, mesh.axis_names
    (8, ('data', 'model'))
    """

    def __init__(
        self,
        shape: Mapping[str, int],
        *,
        devices: Sequence[str | DeviceSpec | DeviceInfo] | None = None,
        task: ClusterTask | None = None,
        timeout: float = 300.0,
        connect_timeout: float = 60.0,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._shape = _checked(shape)
        self._processes: ProcessMesh | None = None
        self._devices: tuple[DeviceSpec, ...] = ()
        if devices is not None:
            self._devices = _checked_devices(devices, self.size, task)
        if task is not None:
            # who computes all shards here does not wait for these modules
            from weft.runtime.cluster.transport import remote_of
            from weft.runtime.mesh import ProcessMesh

            addresses = _addresses_of(task, self.size)
            what = f"{task.cluster.to_json()}{task.job}".encode()
            where = hashlib.blake2b(what, digest_size=12).hexdigest()
            name = f"mesh{next(_numbers)}"  # the same in each run: plans on disk have it
            self._processes = ProcessMesh(
                name, f"{where}-{name}", self._shape, task.task, timeout, connect_timeout,
                remote_of(addresses, key_file, "wf.Mesh"),
            )  # fmt: skip

    @property
    def name(self) -> str:
        """That by which exchanges of processes know the mesh; "" of one in this process."""
        return self._processes.name if self._processes is not None else ""

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Those of the shards, in row-major order; none of a mesh without devices."""
        return self._devices

    def close(self) -> None:
        """Leave the other processes, if there are any; those that wait for this one hear of it."""
        if self._processes is not None:
            self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def shape(self) -> Mapping[str, int]:
        """The size of each axis, by its name."""
        return MappingProxyType(self._shape)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, the slowest first."""
        return tuple(self._shape)

    @property
    def size(self) -> int:
        """How many shards there are."""
        return prod(self._shape.values())

    def __repr__(self) -> str:
        of = f" of processes, here {self._processes.place}" if self._processes else ""
        if self._devices:
            of = f" on {', '.join(map(str, self._devices))}"
        return f"Mesh({self._shape}{of})"

    def check(self, spec: PartitionSpec) -> None:
        """InvalidArgumentError for a spec with a name that is none of the mesh's."""
        for name in spec.names:
            if name not in self._shape:
                raise InvalidArgumentError(
                    f"{spec}: the mesh has no axis {name!r}{suggest(name, self.axis_names)}",
                    hint=f"it has {', '.join(map(repr, self._shape))}",
                    location=caller_location(),
                )

    def cut(self, t: Tensor, spec: PartitionSpec, path: str) -> Tensor:
        """The tensor with the axes of the mesh that the spec names in front, in the mesh's order,
        and behind them the shape of a shard. ShapeError where shards would differ in size."""
        shares = self.check_cut(t, spec, path)
        if not shares:
            return t
        shape: list[Dim] = []
        front: dict[str, int] = {}
        back = []
        for k, size in enumerate(t.shape):
            names = spec.axes[k] if k < len(spec.axes) else ()
            for name in names:
                front[name] = len(shape)
                shape.append(self._shape[name])
            back.append(len(shape))
            shape.append(shares.get(k, size))
        return _turned(reshape(t, tuple(shape)), [*self._ordered(front), *back])

    def check_cut(self, t: Tensor, spec: PartitionSpec, path: str) -> dict[int, int]:
        """The sizes of a shard along the axes that are cut. Errors as those of `cut`."""
        self.check(spec)
        if len(spec.axes) > t.ndim:
            raise ShapeError(
                f"shard_map: {spec} for {path}, which is {t.describe()}",
                hint="a spec has at most an entry for each axis",
                location=caller_location(),
            )
        return {
            k: self._share(t.shape[k], names, k, spec, path)
            for k, names in enumerate(spec.axes)
            if names
        }

    def check_joined(self, t: Tensor, spec: PartitionSpec, path: str) -> None:
        """InvalidArgumentError for a spec that a shard of a result cannot have."""
        self.check(spec)
        if len(spec.axes) > t.ndim:
            raise InvalidArgumentError(
                f"shard_map: {spec} for {path}, which has {t.ndim} axes in a shard",
                location=caller_location(),
            )

    def _share(
        self, size: Dim, names: Sequence[str], axis: int, spec: PartitionSpec, path: str
    ) -> int:
        """The size of a shard along an axis that is cut."""
        parts = prod(self._shape[name] for name in names)
        if not isinstance(size, int):
            raise UnsupportedError(
                f"shard_map: {spec} cuts axis {axis} of {path}, whose size is open",
                hint="give it a size in the input_signature",
                location=caller_location(),
            )
        if size % parts:
            raise ShapeError(
                f"shard_map: {spec} cuts axis {axis} of {path}, of size {size}, into {parts} "
                "shards of one size",
                location=caller_location(),
            )
        return size // parts

    def joined(self, t: Tensor, spec: PartitionSpec) -> Tensor:
        """What `cut` has taken apart."""
        front = {name: k for k, name in enumerate(self._ordered_names(spec.names))}
        order, shape = [], []
        for k, size in enumerate(t.shape[len(front) :]):
            names = spec.axes[k] if k < len(spec.axes) else ()
            order += [*(front[name] for name in names), len(front) + k]
            whole = prod(self._shape[name] for name in names)
            shape.append(size * whole if isinstance(size, int) else size)
        return reshape(_turned(t, order), tuple(shape))

    def _ordered_names(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self.axis_names.index)

    def _ordered(self, places: Mapping[str, int]) -> list[int]:
        return [places[name] for name in self._ordered_names(places)]


def _turned(t: Tensor, order: Sequence[int]) -> Tensor:
    return t if list(order) == sorted(order) else permute_dims(t, tuple(order))


def _checked(shape: object) -> dict[str, int]:
    """The axes of a mesh. InvalidArgumentError for what are none."""
    found: dict[Any, Any] = dict(shape) if isinstance(shape, Mapping) else {}
    good = all(isinstance(n, str) and n and type(k) is int and k > 0 for n, k in found.items())
    if not found or not good:
        raise InvalidArgumentError(
            f"wf.Mesh takes the size of each axis, at least 1, by its name, got {shape!r:.80}",
            hint='wf.Mesh({"data": 2, "model": 4})',
            location=caller_location(),
        )
    return found


def _checked_devices(devices: Any, size: int, task: object) -> tuple[DeviceSpec, ...]:
    """The devices of a mesh. InvalidArgumentError for what are none, or not one for each shard."""
    if task is not None:
        raise InvalidArgumentError(
            "wf.Mesh: devices= is for one program that holds all shards, task= for processes that "
            "each compute one",
            hint="give one of them",
            location=caller_location(),
        )
    given = [devices] if isinstance(devices, (str, DeviceSpec)) else devices
    try:
        names = [getattr(device, "name", device) for device in given]
        found = tuple(as_device(name, "wf.Mesh: devices holds") for name in names)
    except TypeError:
        raise InvalidArgumentError(
            f"wf.Mesh: devices is a list of devices, got {devices!r:.60}",
            hint='wf.Mesh({"data": 2}, devices=["/gpu:0", "/gpu:1"])',
            location=caller_location(),
        ) from None
    except InvalidArgumentError as error:
        raise error.at(caller_location()) from None
    if len(found) != size:
        raise InvalidArgumentError(
            f"wf.Mesh: a mesh of {size} shards, and {len(found)} devices",
            hint="one for each shard, in row-major order; several shards may be on one device",
            location=caller_location(),
        )
    return found


_numbers = itertools.count()  # of meshes of processes, made in the same order in all of them


def _addresses_of(task: ClusterTask, size: int) -> list[str]:
    """Where the tasks of a mesh are. Errors for tasks without a mesh."""
    from weft.runtime.cluster.spec import addresses_of

    found = addresses_of(task, "wf.Mesh")
    if len(found) != size:
        raise InvalidArgumentError(
            f"wf.Mesh: a mesh of {size} processes, and the job '{task.job}' has {len(found)} tasks",
            location=caller_location(),
        )
    return list(found)


def differs_error(path: str, name: str) -> InvalidArgumentError:
    """For a result that is to be the same along an axis, and is not."""
    return InvalidArgumentError(
        f"shard_map: {path} differs along the axis '{name}', which its out_specs do not have",
        hint=f"name '{name}' in its spec, or return what is the same in all shards, as "
        f"wf.collectives.pmean(x, '{name}') is",
        location=caller_location(),
    )


#: A spec, its single name, or None: not cut; as a tree of such, or its beginning.
Specs = Any


def as_spec(spec: object) -> PartitionSpec | None:
    """The spec that stands for one leaf; None for what is a tree."""
    if isinstance(spec, PartitionSpec):
        return spec
    if spec is None or isinstance(spec, str):
        return PartitionSpec(spec) if spec else PartitionSpec()
    return None


def spec_of_each(what: str, specs: Specs, structure: pytree.Structure) -> list[PartitionSpec]:
    """A spec for each leaf of a structure, from a tree of specs that may end before it."""
    spec = as_spec(specs)
    if spec is not None:
        return [spec] * pytree.count_leaves(structure)
    parts = pytree.children(specs)
    if structure is None or parts is None or len(parts) != len(structure.children):
        raise _no_spec(what, specs, f" for {pytree.describe(structure)}")
    pairs = zip(parts, structure.children, strict=True)
    return [spec for part, child in pairs for spec in spec_of_each(what, part, child)]


def leaves_with_specs(
    what: str, specs: Specs, tree: Any, root: str
) -> tuple[list[tuple[Any, PartitionSpec, str]], pytree.Structure]:
    """The leaves of a tree, each with its spec and its path from `root`; and the structure."""
    leaves, structure = pytree.flatten(tree)
    each = spec_of_each(what, specs, structure)
    return list(zip(leaves, each, pytree.paths(structure, root), strict=True)), structure


def _no_spec(what: str, given: object, of: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(
        f"shard_map: {what} has {given!r:.60}{of}",
        hint="a wf.PartitionSpec, a name, or None; a tuple, list or dict of them nests as the "
        "tensors do",
        location=caller_location(),
    )


def axes_of(what: str, specs: Specs, name: str) -> Any:
    """What `wf.vmap` takes for one axis of the mesh: 0 for leaves that are cut along it, which
    have it in front, else None; a tree as the specs are."""

    def axis(leaf: object) -> int | None:
        spec = as_spec(leaf)
        if spec is None:
            raise _no_spec(what, leaf)
        return 0 if name in spec.names else None

    return pytree.tree_map(axis, specs)
