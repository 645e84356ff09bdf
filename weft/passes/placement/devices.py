"""Devices that a graph can be placed on, the links between them, and the rates of GPUs.

`Rates` is a roofline, as long as nothing was measured (Williams, Waterman, Patterson 2009): an op
takes what its arithmetic takes at the rate of the device, or what its bytes take, whichever is
more; and each op is a launch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from weft.ir.analysis.effects import is_string, runs_on_host
from weft.ir.cost.rates import (
    BUS_BYTES_PER_S,
    BUS_LATENCY_S,
    GPU_BYTES_PER_S,
    GPU_FLOPS,
    GPU_LAUNCH_S,
    GPU_READ_S,
    GPU_SLOWER,
    GPU_TRANSCENDENTAL,
    GPU_USED,
    LINK_BYTES_PER_S,
    LINK_LATENCY_S,
    LINK_MESSAGE_S,
    LOCAL_BYTES_PER_S,
    LOCAL_LATENCY_S,
    START_NS,
)
from weft.ir.cost.work import work
from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec
from weft.ir.errors import InvalidArgumentError, NotFoundError, WeftError
from weft.ir.graph import Operation, Value
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.types import HandleType, RefType, StackType, TensorType


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a device. flops, bytes_per_s: operations on f32, and bytes of its memory, in a
    second; the defaults are an H100's. used: how much of both kernels reach. launch_s: of a kernel.
    read_s: until the host knows what a loop or a branch decides by."""

    flops: float = GPU_FLOPS
    bytes_per_s: float = GPU_BYTES_PER_S
    used: float = GPU_USED
    launch_s: float = GPU_LAUNCH_S
    read_s: float = GPU_READ_S

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_per_s", "used"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"rates: {name}={getattr(self, name)} is not > 0")
        for name in ("launch_s", "read_s"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(f"rates: {name}={getattr(self, name)} is not >= 0")

    def nanoseconds(self, op: Operation, nbytes: float) -> float:
        """One run of an op that is a kernel. op: with all sizes known, if they are. nbytes: of its
        operands and results."""
        flops, moved = _operations(op)
        return self.of_kernel(flops, nbytes if moved is None else moved)

    def of_nest(self, ops: Iterable[Operation], nbytes: float) -> float:
        """One run of ops that are one kernel. nbytes: what goes into it and out of it."""
        return self.of_kernel(sum(_operations(op)[0] for op in ops), nbytes)

    def of_kernel(self, flops: float, nbytes: float) -> float:
        """One run of a kernel of so many operations on f32."""
        rate = max(flops / self.flops, nbytes / self.bytes_per_s)
        return (self.launch_s + rate / self.used) * 1e9


def _operations(op: Operation) -> tuple[float, float | None]:
    """The arithmetic of an op as operations on f32, and its bytes; (0, None) if a size depends on
    values."""
    try:
        found = work(op)
    except (WeftError, ValueError):
        return 0.0, None
    flops = (found.flops or 0) + GPU_TRANSCENDENTAL * (found.transcendentals or 0)
    kind = op.results[0].type if op.results else None
    slower = GPU_SLOWER.get(kind.dtype.short, 1.0) if isinstance(kind, TensorType) else 1.0
    return flops * slower, found.bytes_read + found.bytes_written


CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one task.

    name: its full name, "/job:ps/task:0/cpu:0". scale: how many times as long as on the machine of
    the prices (`ir/cost/rates.py`) ops take. memory: bytes; None: no limit is known.
    kernels: the ops that it has kernels for; None: on a cpu all. dtypes: short names of those that
    its kernels take; None: all. rates: what its ops are priced by; None: as on a CPU. Raises
    InvalidArgumentError.
    """

    name: str
    scale: float = 1.0
    memory: int | None = None
    kernels: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    rates: Rates | None = None

    def __post_init__(self) -> None:
        spec = DeviceSpec.parse(self.name)
        if not spec.is_full:
            raise InvalidArgumentError(
                f"{self.name!r} does not name one device",
                hint='a device to place on has all parts, such as "/job:ps/task:0/cpu:0"',
            )
        object.__setattr__(self, "name", str(spec))
        if not self.scale > 0:
            raise InvalidArgumentError(f"device {self.name}: the scale {self.scale} is not > 0")
        if self.kernels is None and spec.kind != CPU:
            raise InvalidArgumentError(
                f"device {self.name}: which ops it has kernels for must be said",
                hint='of cpus weft knows it; pass kernels=frozenset({"matmul", ...})',
            )

    @property
    def spec(self) -> DeviceSpec:
        """The name in parts."""
        return DeviceSpec.parse(self.name)

    @property
    def task(self) -> str:
        """`/job:ps/task:0`."""
        return self.spec.task_name

    @property
    def kind(self) -> str:
        """`cpu` or `gpu`."""
        return str(self.spec.kind)

    def lacks(self, op: Operation) -> str:
        """Why the device cannot run the op; empty if it can."""
        if self.leaves_to_host(op):
            return f"runs on the host, not on a {self.kind}"
        if self.kernels is not None and op.name not in self.kernels:
            return f"has no kernel for {self.kind}"
        if self.kind != CPU and _is_of_host(op):
            return ""
        values = (*op.operands, *op.results)
        other = next((t for v in values if self._takes_not(t := tensor_of(v))), None)
        return "" if other is None else f"has no kernel for {self.kind} on {other}"

    def leaves_to_host(self, op: Operation) -> bool:
        """Whether the op is one of the host that it does not do on behalf of this device."""
        if self.kind == CPU or not _is_of_host(op):
            return False
        has = self.kernels is None or op.name in self.kernels
        return not (has and (self._asks_of_variable(op) or _is_python_call(op)))

    def _asks_of_variable(self, op: Operation) -> bool:
        """Whether Python does the op beside a variable, wherever that is (`is_initialized`)."""
        return bool(op.operands) and all(isinstance(v.type, RefType) for v in op.operands)

    def _takes_not(self, t: TensorType | None) -> bool:
        return t is not None and self.dtypes is not None and t.dtype.short not in self.dtypes


def _is_of_host(op: Operation) -> bool:
    values = (*op.operands, *op.results)
    return runs_on_host(op) or any(isinstance(v.type, HandleType) for v in values)


def _is_python_call(op: Operation) -> bool:
    """Whether the host does the op for any device, in the middle of its step."""
    return op.name in PYTHON_CALLS and not any(is_string(v.type) for v in op.operands + op.results)


def tensor_of(value: Value) -> TensorType | None:
    """The tensor that a value is, or holds as a variable or stack."""
    t = value.type
    return (
        t.tensor
        if isinstance(t, (RefType, StackType))
        else t
        if isinstance(t, TensorType)
        else None
    )


@dataclass(frozen=True, slots=True)
class Links:
    """Latency and bandwidth of messages between devices.

    latency_s: from task to task, one way. bytes_per_s: what goes into or out of one task, all its
    peers together. message_s: for each message, so long are sender and receiver busy. The local_
    ones are between devices of one task, the bus_ ones into or out of a GPU. The defaults are
    ZeroMQ over loopback on two cores, and PCIe 4.0 with 16 lanes.
    """

    latency_s: float = LINK_LATENCY_S
    bytes_per_s: float = LINK_BYTES_PER_S
    message_s: float = LINK_MESSAGE_S
    local_latency_s: float = LOCAL_LATENCY_S
    local_bytes_per_s: float = LOCAL_BYTES_PER_S
    bus_latency_s: float = BUS_LATENCY_S
    bus_bytes_per_s: float = BUS_BYTES_PER_S

    def __post_init__(self) -> None:
        for name in ("latency_s", "message_s", "local_latency_s", "bus_latency_s"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(f"links: {name}={getattr(self, name)} is not >= 0")
        for name in ("bytes_per_s", "local_bytes_per_s", "bus_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"links: {name}={getattr(self, name)} is not > 0")


def check_devices(devices: Sequence[Device]) -> None:
    """Refuse no device, and two of one name. Raises InvalidArgumentError."""
    if not devices:
        raise InvalidArgumentError("there is no device to place on")
    seen: set[str] = set()
    for device in devices:
        if device.name in seen:
            raise InvalidArgumentError(f"two devices are called {device.name}")
        seen.add(device.name)


def listed(devices: Sequence[Device], most: int = 12) -> str:
    """The names of devices for a message."""
    shown = ", ".join(d.name for d in devices[:most])
    return shown + (f" and {len(devices) - most} more" if len(devices) > most else "")


# ------------------------------------------------------------------------------------------- files


def read_devices(
    path: str, gpu: Callable[[str], Device] | None = None
) -> tuple[list[Device], Links | None]:
    """The devices in a JSON file, and the links if it has them.

    ``{"devices": ["/job:ps/task:0/cpu:0", {"name": "/job:worker/task:0-999/cpu:0", "scale": 2.0,
    "memory": 8589934592, "kernels": ["matmul"]}], "links": {"latency_s": 5e-5, "bytes_per_s":
    1e9}}``; a list alone is the devices. ``task:0-999`` are so many tasks with such a device.
    "flops", "bytes_per_s", "used", "launch_s" and "read_s" are `Rates`. gpu: what makes a GPU of
    which the file does not say the kernels. NotFoundError, InvalidArgumentError.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{path} cannot be read as JSON: {error}") from None
    try:
        rows = data.get("devices") if isinstance(data, dict) else data
        if not isinstance(rows, list):
            raise InvalidArgumentError("there is no list of devices")
        devices = list(_devices(rows, gpu))
        check_devices(devices)
        links = data.get("links") if isinstance(data, dict) else None
        return devices, None if links is None else links_from(links)
    except InvalidArgumentError as error:
        hint = error.hint or _FORM
        raise InvalidArgumentError(f"{path}: {error.what}", hint=hint) from None


_FORM = '{"devices": ["/job:ps/task:0/cpu:0", ...], "links": {"latency_s": 5e-5, ...}}'


_RATES = {field.name: float for field in fields(Rates)}
_TASKS = re.compile(r"(.*/task:)(\d+)-(\d+)(/.*)")


def _devices(rows: Sequence[Any], gpu: Callable[[str], Device] | None) -> Iterator[Device]:
    types = {"name": str, "scale": float, "memory": int, "kernels": list, **_RATES}
    for row in rows:
        given = {"name": row} if isinstance(row, str) else row
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            raise InvalidArgumentError(f"{row!r} is no device", hint=_FORM)
        known = _checked(given, types)
        rates = {name: float(known.pop(name)) for name in _RATES if name in known}
        if "kernels" in known:
            known["kernels"] = frozenset(map(str, known["kernels"]))
        for name in _tasks(known.pop("name")):
            on_gpu = DeviceSpec.parse(name).kind == "gpu"
            made = gpu(name) if gpu is not None and on_gpu and "kernels" not in known else None
            if rates:
                base = made.rates if made is not None and made.rates is not None else None
                own = replace(base, **rates) if base is not None else _rates(rates, on_gpu)
                known["rates"] = own
            yield Device(name, **known) if made is None else replace(made, **known)


def _rates(given: Mapping[str, float], on_gpu: bool) -> Rates:
    """Rates of a device. A processor that says its own is no GPU: it decides at once what it runs,
    and starts a kernel as fast as one."""
    if on_gpu:
        return Rates(**given)
    return Rates(**{"used": 1.0, "launch_s": START_NS * 1e-9, "read_s": 0.0, **given})


def _tasks(name: str) -> Iterator[str]:
    """The names that one with a range of tasks stands for."""
    found = _TASKS.fullmatch(name)
    if found is None:
        yield name
        return
    first, last = int(found[2]), int(found[3])
    if last < first:
        raise InvalidArgumentError(f"{name!r}: there are no tasks from {first} to {last}")
    for task in range(first, last + 1):
        yield f"{found[1]}{task}{found[4]}"


def links_from(data: object) -> Links:
    """Links as a mapping says. Raises InvalidArgumentError."""
    if not isinstance(data, Mapping):
        raise InvalidArgumentError(f"links are a mapping, not {data!r}", hint=_FORM)
    names = [field.name for field in fields(Links)]
    return Links(**_checked(data, dict.fromkeys(names, float)))


def _checked(given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    for name, value in given.items():
        if name not in types:
            known = ", ".join(types)
            raise InvalidArgumentError(f"there is no field {name!r}", hint=f"there are {known}")
        wanted = (int, float) if types[name] is float else types[name]
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise InvalidArgumentError(f"{name}={value!r} is no {types[name].__name__}")
    return dict(given)
