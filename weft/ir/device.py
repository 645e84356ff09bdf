"""Names of devices, full and partial: `/job:ps/task:0/cpu:0`, `/job:ps`, `/gpu:1`.

A device belongs to a task, a task to a job. The grammar and the rule by which nested scopes merge
are those of TensorFlow 1 (`tf.DeviceSpec`); its longer spellings are read, and weft's short one is
printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.locations import Locations, caller_location

#: The job of a session without a cluster; it has one task.
LOCAL_JOB = "localhost"
LOCAL_TASK = f"/job:{LOCAL_JOB}/task:0"
#: The CPU of this process, by its full name; what GPUs there are, the runtime knows.
LOCAL_DEVICES = (f"{LOCAL_TASK}/cpu:0",)

_JOB = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]{1,9}")
#: Kinds that may stand without `device:` in front. Others are written `/device:tpu:0`, as in TF.
_SHORT_KINDS = ("cpu", "gpu")
_HINT = (
    'a device is written "/job:ps/task:0/cpu:0"; every part may be left out, and TensorFlow\'s '
    '"/job:ps/replica:0/task:0/device:CPU:0" is the same'
)
#: What other libraries call devices.
_OTHERS = {
    "cuda": "NVIDIA's GPUs are 'gpu:0', 'gpu:1', ... here; wf.devices() lists what there is",
    **dict.fromkeys(("tpu", "mps", "xla", "rocm", "hip"),
                    "weft runs on 'cpu:0' and on NVIDIA's GPUs, 'gpu:0'"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device, or what is known about one: None is a part that is not given.

    job: the name of the job. task: the number of the task in it. kind: "cpu" or "gpu", small.
    index: the number of the device of that kind in its task. Raises InvalidArgumentError for parts
    that no device can have.

    >>> wf.DeviceSpec.parse("/job:ps/task:1/gpu:0")
    DeviceSpec(job='ps', task=1, kind='gpu', index=0)
    >>> print(wf.DeviceSpec(job="worker").merged(wf.DeviceSpec(kind="gpu", index=1)))
    /job:worker/gpu:1
    """

    job: str | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None

    def __post_init__(self) -> None:
        if self.job is not None and not _JOB.fullmatch(self.job):
            raise _bad(f"the job's name {self.job!r}", "letters, digits, _ and -, a letter first")
        if self.kind is not None and not _KIND.fullmatch(self.kind):
            raise _bad(f"the kind {self.kind!r}", "kinds are cpu and gpu")
        if self.kind is not None and self.kind != self.kind.lower():
            object.__setattr__(self, "kind", self.kind.lower())
        for what, number in (("task", self.task), ("index", self.index)):
            plain = number is None or type(number) is int
            if not plain or (number is not None and not 0 <= number < 10**9):
                raise _bad(f"the {what} {number!r}", "it is an integer from 0 on")

    @staticmethod
    def parse(text: str) -> DeviceSpec:
        """The spec that `text` names; the inverse of `str`.

        Parts stand in any order, the later of two wins, `*` means any, the first slash may be left
        out, and the empty text is the spec that says nothing. Of replicas there is only number 0.
        Raises InvalidArgumentError.
        """
        if not isinstance(text, str):
            raise InvalidArgumentError(f"a device is a string, not {text!r}", hint=_HINT)
        return _parse(text)

    def __str__(self) -> str:
        """The canonical text, such as `/job:ps/task:0/cpu:0` or `/gpu:*`; "" says nothing."""
        text = ""
        if self.job is not None:
            text += f"/job:{self.job}"
        if self.task is not None:
            text += f"/task:{self.task}"
        if self.kind is not None or self.index is not None:
            lead = self.kind if self.kind in _SHORT_KINDS else f"device:{self.kind or '*'}"
            text += f"/{lead}:{'*' if self.index is None else self.index}"
        return text

    def merged(self, inner: DeviceSpec) -> DeviceSpec:
        """This spec with what `inner` says in place of it, part by part (TensorFlow 1's rule)."""
        return DeviceSpec(
            self.job if inner.job is None else inner.job,
            self.task if inner.task is None else inner.task,
            self.kind if inner.kind is None else inner.kind,
            self.index if inner.index is None else inner.index,
        )

    def matches(self, full: DeviceSpec) -> bool:
        """Whether `full` has every part that this spec gives."""
        return (
            self.job in (None, full.job)
            and self.task in (None, full.task)
            and self.kind in (None, full.kind)
            and self.index in (None, full.index)
        )

    @property
    def is_full(self) -> bool:
        """Whether it names one device: every part is given."""
        return None not in (self.job, self.task, self.kind, self.index)

    @property
    def task_name(self) -> str:
        """`/job:ps/task:0`. Raises InvalidArgumentError if the job or the task is not given."""
        if self.job is None or self.task is None:
            raise InvalidArgumentError(f"the device {str(self)!r} names no task", hint=_HINT)
        return f"/job:{self.job}/task:{self.task}"


def is_local(spec: DeviceSpec) -> bool:
    """Whether a device of this process fits."""
    return any(spec.matches(_parse(name)) for name in LOCAL_DEVICES)


def local_gpu(spec: DeviceSpec) -> int | None:
    """The number of the GPU of this process that `spec` means; None if it means none."""
    index = spec.index or 0
    return index if spec.matches(DeviceSpec(LOCAL_JOB, 0, "gpu", index)) and spec.kind else None


def check_local(
    spec: DeviceSpec,
    location: Locations = (),
    gpu: int | None = None,
    *,
    devices: Callable[[], Sequence[str]],
) -> None:
    """Raise InvalidArgumentError, which says what there is, unless `spec` is the CPU of this
    process or, with `gpu`, that GPU of it. devices: the full names of what there is."""
    if gpu is not None:
        if not spec.matches(DeviceSpec(LOCAL_JOB, 0, "gpu", gpu)):
            raise InvalidArgumentError(
                f"an op is to run on '{spec}', but it is part of what runs on /gpu:{gpu}",
                hint="take the wf.device away",
                location=location,
            )
    elif not is_local(spec):
        hint = "other tasks belong to a cluster: wf.Session(target) of one of its tasks"
        number, names = local_gpu(spec), devices()
        if number is not None:
            hint = f"wf.compile(device='gpu:{number}') runs a whole function on a GPU"
        if any(spec.matches(_parse(name)) for name in names):
            raise InvalidArgumentError(
                f"an op is to run on '{spec}', but it is part of what runs on the CPU",
                hint=hint,
                location=location,
            )
        raise InvalidArgumentError(
            f"there is no device '{spec}' here; the devices are: {', '.join(names)}",
            hint=hint,
            location=location,
        )


def short(device: str) -> str:
    """A full name without its task: `/gpu:0`."""
    spec = _parse(device)
    return str(DeviceSpec(None, None, spec.kind, spec.index))


def named_device(text: str) -> DeviceSpec:
    """`DeviceSpec.parse(text)` for a text that the user's program has; errors say where."""
    try:
        return DeviceSpec.parse(text)
    except WeftError as error:
        raise error.at(caller_location()) from None


def canonical_device(text: str) -> str:
    """`text` as `str(DeviceSpec.parse(text))`. Raises InvalidArgumentError."""
    return str(DeviceSpec.parse(text))


@lru_cache(maxsize=1024)
def _parse(text: str) -> DeviceSpec:
    job: str | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None
    device = ""  # the part that named the kind
    parts = text.removeprefix("/").split("/") if text.strip("/") else []
    for part in parts:
        name, *rest = part.split(":")
        match name, rest:
            case "job", [str() as given]:
                job = None if given == "*" else given
            case "task", [str() as given]:
                task = _number(given, text)
            case "replica", ["0" | "*"]:
                pass
            case "replica", _:
                raise InvalidArgumentError(
                    f"the device {text!r} is of another replica than 0",
                    hint="weft's jobs have tasks, no replicas: leave that part out",
                )
            case _, _:
                found = _kind(name, rest, text)
                if device and found[0] != kind:
                    raise InvalidArgumentError(
                        f"the device {text!r} is of two kinds: {device} and {part}", hint=_HINT
                    )
                kind, index = found
                device = part
    try:
        return DeviceSpec(job, task, kind, index)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the device {text!r}: {error.what}", hint=error.hint) from None


def _kind(name: str, rest: list[str], text: str) -> tuple[str | None, int | None]:
    """Kind and index of `cpu:0`, `CPU`, `device:cpu:0` or `device:gpu:*`."""
    if name == "device" and len(rest) in (1, 2):
        name, *rest = rest
    elif name.lower() not in _SHORT_KINDS:
        part = ":".join((name, *rest))
        raise InvalidArgumentError(
            f"the device {text!r} has a part that is not understood: {part!r}",
            hint=_OTHERS.get(name.lower(), _HINT),
        )
    if len(rest) > 1 or not name:
        raise InvalidArgumentError(f"the device {text!r} is not well formed", hint=_HINT)
    kind = None if name == "*" else name.lower()
    return kind, _number(rest[0], text) if rest else None


def _number(given: str, text: str) -> int | None:
    if given == "*":
        return None
    if not _NUMBER.fullmatch(given):
        raise InvalidArgumentError(
            f"the device {text!r} has {given!r} where a number or * belongs", hint=_HINT
        )
    return int(given)


def _bad(what: str, hint: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what} cannot be part of a device's name", hint=hint)
