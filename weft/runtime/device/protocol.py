"""`Device`: what a device does for a step - memory, copies, launches, recordings of launches.

Addresses are integers. Work is done in the order in which it was asked for; `synchronize` and
`download` wait for it, all else need not. A device keeps who asked for how much memory, for people
who run out of it, and the calls it was asked for last, for the error of a kernel that fails: the
driver says that one has failed, and never which."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.codegen.cuda.source.kernel import Launch
from weft.ir.graph import Operation

if TYPE_CHECKING:
    from weft.runtime.device.plan import Place, PlanArg, PlannedLaunch, PlannedProduct


class Holder(Protocol):
    """A holder of idle memory that it can give back."""

    def drop_spare(self) -> None:
        """Let go what only makes the next call faster."""

    def drop_idle(self) -> None:
        """Let all of it go."""


class Resident:
    """The memory of a device by what it is for."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def may_ask(self, holder: Holder) -> None:
        """`holder` is asked to let go what it can, when memory is short."""
        with self._lock:
            self._holders.add(holder)

    def drop_spare(self) -> None:
        """Ask all holders."""
        for holder in self._asked():
            holder.drop_spare()

    def drop_idle(self) -> None:
        """Ask all holders; arrays that only hold each other go, too, those let go just now and
        others."""
        for holder in self._asked():
            holder.drop_idle()
        gc.collect()

    def _asked(self) -> list[Holder]:
        with self._lock:
            return list(self._holders)

    def add(self, what: str, nbytes: int) -> None:
        """So much more (or less) is there for `what`."""
        with self._lock:
            self._held[what] += nbytes
            if not self._held[what]:
                del self._held[what]

    @property
    def nbytes(self) -> int:
        """All of it."""
        with self._lock:
            return self._held.total()

    def describe(self, most: int = 6) -> str:
        """The largest first."""
        with self._lock:
            held = self._held.most_common()
        if not held:
            return "nothing"
        text = ", ".join(f"{what} ({nbytes:,} bytes)" for what, nbytes in held[:most])
        rest = held[most:]
        return text + (f" and {len(rest)} more ({sum(n for _, n in rest):,} bytes)" if rest else "")


def no_room(device: str, what: str, nbytes: int, resident: Resident, total: int) -> str:
    """The message for memory that is not there."""
    return f"device {device} has no {nbytes:,} bytes for {what}: {what_is_there(resident, total)}"


def what_is_there(resident: Resident, total: int) -> str:
    """What there is instead."""
    of = f" of {total:,}" if total else ""
    return f"resident are {resident.nbytes:,}{of} bytes: {resident.describe()}"


#: So many calls are remembered, of each so many kernels are told, of each so many lines.
MOST_CALLS, MOST_KERNELS, MOST_LINES = 8, 8, 4
#: The number of a call whose launches are not all asked for.
_OPEN = 1 << 62


class Launching(Protocol):
    """The interface that launches kernels."""

    def launches(self) -> Sequence[PlannedLaunch]:
        """Them, in order."""


class Call:
    """The last call of a plan on one activation. name: of the function. number: the calls of a
    device are numbered as they are all asked for."""

    __slots__ = ("name", "number", "of")

    def __init__(self, name: str, of: Launching) -> None:
        self.name, self.of = name, weakref.ref(of)
        self.number = _OPEN

    def describe(self) -> str:
        """`'step': kernel 'exp_each' (/home/me/a.py:3), ...`: with the lines of its ops."""
        of = self.of()
        told = [] if of is None else list(dict.fromkeys(map(_launch, of.launches())))
        rest = [f"and {len(told) - MOST_KERNELS} more"] if len(told) > MOST_KERNELS else []
        kernels = ", ".join([*told[:MOST_KERNELS], *rest])
        return f"'{self.name}': {kernels or 'its kernels are not known any more'}"


class Calls:
    """The calls that a device was asked for last. Any thread may call any of these; a step costs an
    append and a number."""

    def __init__(self) -> None:
        self._asked: deque[Call] = deque(maxlen=MOST_CALLS)
        self._numbers = itertools.count(1)
        self.last = 0  # the number of the last call that is all asked for
        self._done = 0  # that of the last one that is known to be done

    def begin(self, call: Call) -> None:
        """Its launches are asked for from now on."""
        call.number = _OPEN
        self._asked.append(call)

    def end(self, call: Call) -> None:
        """All of them have been."""
        call.number = self.last = next(self._numbers)

    def done(self, number: int) -> None:
        """The device has done the calls up to that one."""
        if number > self._done:
            self._done = number

    def describe(self) -> str:
        """A line for each call that is not known to be done, the last one last."""
        asked = self._asked.copy()
        left = {call for call in asked if call.number > self._done}
        told = [call.describe() for call in sorted(left, key=lambda call: call.number)]
        if len(asked) == MOST_CALLS and asked[0] in left:
            told.insert(0, "calls before these, which are not remembered")
        return "".join([f"\n  {line}" for line in dict.fromkeys(reversed(told))][::-1])


def _launch(node: PlannedLaunch) -> str:
    places = () if node.op is None else node.op.locations
    lines = list(dict.fromkeys(f"{place.file}:{place.line}" for place in places))[:MOST_LINES]
    return f"kernel '{node.launch.kernel.name}'" + (f" ({', '.join(lines)})" if lines else "")


Array = np.ndarray[Any, Any]


def bytes_of(array: Array) -> Array:
    """A C-contiguous array as u8, in its own memory."""
    return array.reshape(-1).view(np.uint8)


class Memory(Protocol):
    """`nbytes` bytes of a device at `address`, which is a multiple of 256. They are given back when
    the object dies."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Mark(Protocol):
    """A point in the work of a device: all that was asked for before it."""

    def wait(self) -> None:
        """Wait until the device is there. Errors of kernels come out here."""

    def done(self) -> bool:
        """Whether it is there; also if something before it has failed."""


class Prepared:
    """A launch that is ready but for its arguments: `words` has an i64 for each parameter. handle:
    the device's own."""

    __slots__ = ("handle", "words")

    def __init__(self, parameters: int) -> None:
        self.words = np.zeros(max(parameters, 1), np.int64)
        self.handle: Any = None


class LibraryCall(Protocol):
    """A library's part of a product. args: the places of what it is given."""

    @property
    def op(self) -> Operation: ...
    @property
    def args(self) -> Sequence[PlanArg]: ...

    def prepare(self) -> Prepared:
        """Make it ready, but for the addresses, which are the words."""


class Libraries(Protocol):
    """The libraries that do products on a device beside weft's own kernels."""

    def choose(
        self, product: PlannedProduct, at: Callable[[Place], int]
    ) -> Sequence[PlannedLaunch | LibraryCall]:
        """What is to be asked for, to do a product; the same each time. at: where constants are."""

    def describe(self, products: Sequence[PlannedProduct]) -> list[str]:
        """What does these products, or is to, and why, for people."""


class Recording(Protocol):
    """Recorded work of a device, to be launched again. A node is what `Device.recorded` gave."""

    def __call__(self) -> None:
        """Do all of it."""

    def relaunch(self, node: object, prepared: Prepared) -> bool:
        """From now on launch with the words as they are now, in place of a launch that was recorded
        with the same `prepared`. What has been asked for before is not changed by that. False if it
        cannot be, and then the recording is of no use any more."""

    def recopy(self, node: object, target: int, source: int, nbytes: int) -> bool:
        """The same of a copy on the device, of as many bytes."""


class Device(Protocol):
    """A device. name: "/gpu:0". description: what it is, for people. emulated: whether there is
    no such machine. cc: the compute capability that kernels are compiled for. resident: what has
    memory of it. calls: those that it was asked for last. libraries: what else does products.

    Any thread may call any of these.
    """

    name: str
    description: str
    emulated: bool
    cc: tuple[int, int]
    resident: Resident
    calls: Calls
    dlpack: tuple[int, int]

    @property
    def libraries(self) -> Libraries: ...

    @property
    def stream(self) -> int: ...

    def begin(self) -> None:
        """This thread is to ask for launches, copies on the device and the like, one after another:
        call this first, and again after anything else that may be about a device."""

    def allocate(self, nbytes: int, what: str, early: bool = False, spare: bool = False) -> Memory:
        """Memory that is not cleared. early: for what is uploaded before the device has done what
        it was asked for so far. spare: nothing idle is given up for it. ResourceExhaustedError,
        which says what for and what else is there, if there is not so much."""

    def reclaim(self) -> bool:
        """Give back what died so far, and let what is asked for from now on wait for the streams of
        others that used it (`forget`). False if such a stream cannot be waited for now."""

    def host(self, nbytes: int) -> Array:
        """u8 memory of the host that copies to and from the device are fast for."""

    def upload(self, address: int, source: Array, after: Mark | None = None) -> None:
        """Copy a C-contiguous array of the host to the device, when that has done what it was
        asked for, or is at `after`. Memory that `host` gave must not change before `sent` has
        passed; another array has been read when this returns. What is asked for later sees the
        copy."""

    def download(self, target: Array, address: int, after: Mark | None = None) -> None:
        """Wait for all that was asked for, or for `after` alone, and copy to a C-contiguous array
        of the host."""

    def mark(self) -> Mark:
        """Where the device is when it has done all that was asked for."""

    def sent(self) -> Mark:
        """Where it is when it has read all that was uploaded."""

    def keep(self, thing: object) -> None:
        """Hold `thing` until the device has done what was asked for; it goes with a later call."""

    def wait_for(self, stream: int) -> None:
        """What is asked for from now on begins when another library's stream has done what it was
        given."""

    def precede(self, stream: int, after: Mark | None = None) -> None:
        """What another library's stream is given from now on begins when the device has done what
        was asked for, or is at `after`."""

    def forget(self, stream: int) -> None:
        """Memory that dies from now on is not used again before another library's stream has done
        what it was given. Safe at any time, in any thread."""

    def number_at(self, address: int) -> int:
        """The number of the GPU whose memory this is. InvalidArgumentError if it is no GPU's."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy on the device; what overlaps is the same place."""

    def copy_from(self, other: Device, target: int, source: int, nbytes: int) -> None:
        """Copy from memory of another device, at `source`, to this one's, at `target`: after all
        that either device was asked for, before all that either is asked for from now on."""

    def clear(self, address: int, nbytes: int) -> None:
        """Set bytes to zero."""

    def put(self, address: int, value: int) -> None:
        """Store an i64."""

    def prepare(self, launch: Launch, spans: Sequence[int]) -> Prepared:
        """Make a launch ready, compile its kernel if that is not done. spans: for each parameter
        how many bytes the kernel may touch from its address on (0 for integers)."""

    def launch(self, prepared: Prepared) -> None:
        """Launch with the words as they are now."""

    def capture(self, work: Callable[[], None]) -> Recording | None:
        """What does again all that `work` asks the device for, with the words as they are now, in
        one go; None if this device has nothing for that, or could not do it now. `work` itself is
        not carried out."""

    def recorded(self) -> object:
        """While the `work` of `capture` runs: the node of what was asked for last."""

    def timed(self, work: Callable[[], None]) -> float:
        """The seconds for which the device does what `work` asks for, by its own clock.
        UnsupportedError if it has none."""

    def synchronize(self) -> None:
        """Wait for all that was asked for. Errors of kernels come out here."""
