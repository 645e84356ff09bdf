"""The rendezvous: where tensors of a step meet their readers, by (step, key, iterations).

Nothing here blocks, and callbacks run outside of the lock: in `put`'s thread if somebody waited, in
`get`'s if the value was there first. A large tensor may first be offered by its sender: it is
fetched when somebody asks for it, or earlier if there is room (`offer`'s `claim`).

A reader names who sends what it waits for. What others put under its key is refused: at once if it
waits, else when it comes; until then both lie there, so whoever is first keeps nobody out."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from weft.comm.errors import DuplicateKeyError, LimitError, StepOverError, WrongSenderError
from weft.comm.limits import Limits

#: The number of the message in the partitioned program, and the counters of the enclosing loops.
Key = tuple[int, tuple[int, ...]]
#: Takes the value, DEAD, or an exception.
Callback = Callable[[Any], None]


@dataclass(slots=True, eq=False)
class Value:
    """A tensor that waits for its reader. bytes: that count as held. source: who has sent it; None:
    it is not said."""

    value: Any
    bytes: int
    on_taken: Callable[[], None] | None
    source: str | None


@dataclass(slots=True, eq=False)
class Waiter:
    """A reader that waits. source: who is to send it; None: anyone. offered: its bytes are on their
    way."""

    callback: Callback
    since: float
    source: str | None
    offered: bool = False


@dataclass(slots=True, eq=False)
class Offer:
    """A tensor that its sender still has. claim: fetches it."""

    claim: Callable[[], None]
    source: str | None


@dataclass(slots=True, eq=False)
class Several:
    """Tensors that several senders have put under one key; `source` fits no reader."""

    held: list[Value | Offer]
    source: str = ""


Held = Value | Offer | Several
Entry = Held | Waiter


class Strays:
    """A mark: others than the sender have put something under the key."""


STRAYS: Final = Strays()


def each(entries: Iterable[Entry]) -> Iterator[Value | Offer]:
    """The values and offers among them."""
    for entry in entries:
        if isinstance(entry, Several):
            yield from entry.held
        elif not isinstance(entry, Waiter):
            yield entry


def fits(sender: str | None, expected: str | None) -> bool:
    """Whether a reader takes it. None, of either: it is not said who sends it."""
    return sender == expected or sender is None or (expected is None and sender != "")


def wrong_sender(step: int, key: Key, sender: str | None, expected: str | None) -> WrongSenderError:
    """What is refused."""
    return WrongSenderError(f"{sender} sent key {key} of step {step}, which is {expected}'s")


MASTER_SHIFT: Final = 36  # a step's number: its master's (28 bits), and that one's count of steps


class Dead:
    """The dead value: sent for what a branch not taken would have computed (the paper's section
    3.4)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DEAD"


DEAD: Final = Dead()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A key that somebody waits for, for a stall report. `offered`: its bytes are on their way."""

    key: Key
    seconds: float
    offered: bool


#: The keys that one reader waits for: its numbers of them, and who is to send each.
Wanted = Mapping[Key, tuple[int, str | None]]


class _Fan:
    """A reader of several keys. left: those that have not come."""

    __slots__ = ("call", "left", "since")

    def __init__(
        self, left: dict[Key, tuple[int, str | None]], call: Callable[[int, Any], None]
    ) -> None:
        self.left, self.call, self.since = left, call, time.monotonic()


class _Step:
    """fan: a reader whose keys have no entries; `unfold` makes them, for what is not a `put`."""

    __slots__ = ("entries", "error", "fan")

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.error: BaseException | None = None
        self.fan: _Fan | None = None

    def unfold(self) -> None:
        """Have an entry for each key of `fan`."""
        fan, self.fan = self.fan, None
        if fan is not None:
            for key, (number, source) in fan.left.items():
                self.entries[key] = Waiter(partial(fan.call, number), fan.since, source)


class Rendezvous:
    """The table of one task's steps. Thread-safe.

    on_stray: called with ": " and what a reader did not take as it was another sender's.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        on_stray: Callable[[str], None] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._on_stray = on_stray
        self._lock = threading.Lock()
        self._steps: dict[int, _Step] = {}
        self._low: dict[int, int] = {}  # per master, the last step that is forgotten
        self._held = 0
        self._ended: BaseException | None = None  # why no step goes on
        self._lent = array("q", [0])
        self._recall: Callable[[int], None] = lambda step: None

    def lend(self, lent: array[int], recall: Callable[[int], None]) -> Mapping[int, Any]:
        """Native code may take the messages of some steps, of none of those in the table that this
        returns. lent: one number, of how many steps it does; recall: is called, outside of the
        lock, before anything is done here with a step, and when something was kept of it: has who
        waits wait here."""
        self._lent, self._recall = lent, recall
        return self._steps

    @property
    def held_bytes(self) -> int:
        """Bytes of the values that nobody has taken yet."""
        return self._held

    @property
    def steps(self) -> int:
        """Steps that something is known of."""
        return len(self._steps)

    def _step(self, step: int) -> _Step:
        found = self._steps.get(step)
        if found is None:
            if step <= self._low.get(step >> MASTER_SHIFT, -1):
                raise StepOverError(f"step {step} is over")
            if len(self._steps) >= self._limits.steps:
                self._make_room(step)
            found = self._steps[step] = _Step()
            found.error = self._ended
        return found

    def _make_room(self, step: int) -> None:
        """Forget the older half of the aborted steps, of which little more will come."""
        aborted = [s for s, state in self._steps.items() if state.error is not None]
        if not aborted:
            raise LimitError(
                f"step {step} would be the {len(self._steps) + 1}th that is not forgotten; "
                f"at most {self._limits.steps} are kept"
            )
        for old in aborted[: (len(aborted) + 1) // 2]:
            del self._steps[old]

    def put(
        self,
        step: int,
        key: Key,
        value: Any,
        *,
        size: int = 0,
        on_taken: Callable[[], None] | None = None,
        source: str | None = None,
    ) -> bool:
        """Give `value` (or DEAD) to who waits or will wait for `key`.

        `size`: its bytes, which count as held until it is taken. `on_taken` is called once the
        value is taken or dropped. source: who sends it; None fits every reader. False if the step
        is over or aborted: the value is dropped. Raises DuplicateKeyError for a second value,
        WrongSenderError where a reader waits for another one's, LimitError where it would exceed
        the limits.
        """
        fan = found = entry = None
        kept = False
        if self._lent[0]:
            self._recall(step)
        with self._lock:
            state = self._steps.get(step)
            if state is not None and (fan := state.fan) is not None:
                found = fan.left.pop(key, None)
            if state is not None and fan is not None and found is not None:
                if source != found[1] and not fits(source, found[1]):
                    fan.left[key] = found
                    raise wrong_sender(step, key, source, found[1])
                if not fan.left:
                    self._end_fan(state, step)
            elif state is not None and type(entry := self._entry(state, key)) is Waiter:
                if source != entry.source and not fits(source, entry.source):
                    raise wrong_sender(step, key, source, entry.source)
                self._remove(state, step, key)
            else:
                kept = self._keep(step, key, Value(value, size, on_taken, source))
        if kept:
            if self._lent[0]:  # a run that native code has begun meanwhile does not look here
                self._recall(step)
            return True
        if fan is not None and found is not None:
            fan.call(found[0], value)
        elif type(entry) is Waiter:
            entry.callback(value)
        if on_taken is not None:
            on_taken()
        return found is not None or type(entry) is Waiter

    def _entry(self, state: _Step, key: Key) -> Entry | None:
        return state.entries.get(key) if state.error is None else None

    def _end_fan(self, state: _Step, step: int) -> None:
        """Under the lock: all that it wanted has come."""
        state.fan = None
        if not state.entries:
            del self._steps[step]

    def _keep(self, step: int, key: Key, new: Value) -> bool:
        """Under the lock: keep a value that nobody waits for. False if the step is over."""
        try:
            state = self._step(step)
        except StepOverError:
            return False
        if state.error is not None:
            return False
        self._add(state, step, key, new, new.bytes)
        self._held += new.bytes
        return True

    def _add(self, state: _Step, step: int, key: Key, new: Value | Offer, size: int) -> None:
        """Under the lock: something more of a step that goes on."""
        there = state.entries.get(key)
        if there is None:
            self._check_room(state, step, size)
            state.entries[key] = new
            return
        others = list(each([there]))
        if type(there) is Waiter or any(fits(new.source, other.source) for other in others):
            raise DuplicateKeyError(f"step {step} has an offer or value for key {key} already")
        self._check_room(state, step, size)
        state.entries[key] = Several([*others, new])

    def _remove(self, state: _Step, step: int, key: Key) -> None:
        """Under the lock. Of a step without entries nothing is known but that it is not over."""
        del state.entries[key]
        if not state.entries and state.fan is None:
            del self._steps[step]

    def _check_room(self, state: _Step, step: int, size: int) -> None:
        if len(state.entries) >= self._limits.keys:
            raise LimitError(f"step {step} has {len(state.entries)} keys that nobody has taken")
        if self._held + size > self._limits.held_bytes:
            raise LimitError(
                f"{self._held} bytes wait to be taken, {size} more of step {step} exceed the "
                f"limit of {self._limits.held_bytes} (Limits.held_bytes)"
            )

    def offer(
        self, step: int, key: Key, claim: Callable[[], None], source: str | None = None
    ) -> bool:
        """A sender has a value for `key`, which `claim` fetches: called (once, outside of the
        lock) when somebody asks for the key, at once if somebody waits. Its `put` comes later.

        True if somebody waited. Raises as `put` does, and StepOverError (also if the step is
        aborted).
        """
        if self._lent[0]:
            self._recall(step)
        with self._lock:
            state = self._step(step)
            if state.error is not None:
                raise StepOverError(f"step {step} is aborted: {state.error}")
            state.unfold()
            entry = state.entries.get(key)
            if waits := type(entry) is Waiter:
                if not fits(source, entry.source):
                    raise wrong_sender(step, key, source, entry.source)
                if entry.offered:
                    raise DuplicateKeyError(
                        f"step {step} has an offer or value for key {key} already"
                    )
                entry.offered = True
            else:
                self._add(state, step, key, Offer(claim, source), 0)
        if waits:
            claim()
        elif self._lent[0]:  # as in `put`
            self._recall(step)
        return waits

    def withdraw(self, step: int, key: Key, source: str | None = None) -> bool:
        """Take an offer that nobody has asked for out of the table, to fetch it early (its `put`
        comes later). False if it is not there any more."""
        with self._lock:
            state = self._steps.get(step)
            there = None if state is None else state.entries.get(key)
            if state is None or there is None:
                return False
            held = list(each([there]))
            rest = [x for x in held if type(x) is not Offer or x.source != source]
            if len(rest) == len(held):
                return False
            self._leave(state, step, key, rest)
            return True

    def _leave(self, state: _Step, step: int, key: Key, rest: list[Value | Offer]) -> None:
        """Under the lock: only these are still under the key."""
        if rest:
            state.entries[key] = rest[0] if len(rest) == 1 else Several(rest)
        else:
            self._remove(state, step, key)

    def get(self, step: int, key: Key, callback: Callback, source: str | None = None) -> None:
        """Call `callback` with the value for `key`, DEAD or an exception, now or later, once.
        source: who may send it; None: anyone."""
        claim: Callable[[], None] | None = None
        entry: Value | Strays | BaseException | None
        if self._lent[0]:
            self._recall(step)
        with self._lock:
            try:
                state = self._steps.get(step) or self._step(step)
                entry, claim = self._take(state, step, key, callback, source)
            except (StepOverError, LimitError) as error:
                entry = error
        if entry is None and claim is None:
            return
        if entry is STRAYS:
            self._refuse_strays(step, key, source)
            self.get(step, key, callback, source)
            return
        if claim is not None:
            claim()
        elif isinstance(entry, Value):
            if entry.on_taken is not None:
                entry.on_taken()
            callback(entry.value)
        elif entry is not None:
            callback(entry)

    def expect(self, step: int, wanted: Wanted, call: Callable[[int, Any], None]) -> None:
        """As `get` for each of the keys: `call` gets its number, and what comes for it."""
        there: Iterable[Key] = wanted
        if self._lent[0]:
            self._recall(step)
        with self._lock:
            try:
                state = self._steps.get(step) or self._step(step)
                if state.error is None and state.fan is None:
                    left = dict(wanted)
                    there = [key for key in wanted if key in state.entries] if state.entries else ()
                    for key in there:
                        del left[key]
                    if left:
                        state.fan = _Fan(left, call)
            except (StepOverError, LimitError):
                pass  # each is told by `get`
        for key in there:
            number, source = wanted[key]
            self.get(step, key, partial(call, number), source)

    def _take(
        self, state: _Step, step: int, key: Key, callback: Callback, source: str | None
    ) -> tuple[Value | Strays | BaseException | None, Callable[[], None] | None]:
        if state.error is not None:
            return state.error, None
        if state.fan is not None and key in state.fan.left:
            state.unfold()
        entry = state.entries.get(key)
        if type(entry) is Waiter:
            return DuplicateKeyError(f"step {step} waits for key {key} already"), None
        if entry is not None and entry.source != source and not fits(entry.source, source):
            return STRAYS, None
        if type(entry) is Value:
            self._held -= entry.bytes
            self._remove(state, step, key)
            return entry, None
        claim = entry.claim if type(entry) is Offer else None
        state.entries[key] = Waiter(callback, time.monotonic(), source, claim is not None)
        return None, claim

    def _refuse_strays(self, step: int, key: Key, source: str | None) -> None:
        """Drop what is under the key and not of its reader's sender."""
        with self._lock:
            state = self._steps.get(step)
            there = None if state is None else state.entries.get(key)
            if state is None or there is None or type(there) is Waiter:
                return
            held = list(each([there]))
            fitting = [x for x in held if fits(x.source, source)][:1]
            strays = [x for x in held if x not in fitting]
            self._leave(state, step, key, fitting)
            self._held -= sum(x.bytes for x in strays if type(x) is Value)
        for stray in strays:
            if type(stray) is Value and stray.on_taken is not None:
                stray.on_taken()
            if self._on_stray is not None:
                self._on_stray(f": {wrong_sender(step, key, stray.source, source)}")

    def cancel(self, step: int, key: Key, error: BaseException) -> bool:
        """Call who waits for `key` with `error` (a deadline, say); False if nobody does."""
        if self._lent[0]:
            self._recall(step)
        with self._lock:
            state = self._steps.get(step)
            if state is not None:
                state.unfold()
            entry = None if state is None else state.entries.get(key)
            if state is None or type(entry) is not Waiter:
                return False
            self._remove(state, step, key)
        entry.callback(error)
        return True

    def abort(self, step: int, error: BaseException) -> bool:
        """End the step: call all who wait, and all who will, with `error`; drop its values.

        False if the step was aborted already (the first error stays) or is over.
        """
        with self._lock:
            try:
                state = self._step(step)
            except (StepOverError, LimitError):
                return False
            if state.error is not None:
                return False
            state.unfold()
            state.error = error
            entries, state.entries = state.entries, {}
            self._held -= sum(e.bytes for e in each(entries.values()) if type(e) is Value)
        _end(entries, error)
        if self._lent[0]:
            self._recall(step)  # who waits finds the error
        return True

    def abort_all(self, error: BaseException) -> None:
        """`abort` every step, those to come, too."""
        with self._lock:
            self._ended = self._ended or error
        for step in list(self._steps):
            self.abort(step, error)

    def forget(self, low_water: int) -> None:
        """Drop all that is known of the steps of that master up to `low_water`; what comes for
        them later is dropped. Who still waits is called with StepOverError."""
        master = low_water >> MASTER_SHIFT
        with self._lock:
            if low_water <= self._low.get(master, -1):
                return
            self._low[master] = low_water
            over = [s for s in self._steps if s <= low_water and s >> MASTER_SHIFT == master]
            for one in over:
                self._steps[one].unfold()
            dropped = [(s, self._steps.pop(s).entries) for s in over]
            held = [e for _, entries in dropped for e in each(entries.values())]
            self._held -= sum(e.bytes for e in held if type(e) is Value)
        for step, entries in dropped:
            _end(entries, StepOverError(f"step {step} is over"))

    def is_over(self, step: int) -> bool:
        """Whether messages of the step are dropped: it is aborted or forgotten."""
        state = self._steps.get(step)
        if state is not None:
            return state.error is not None
        return step <= self._low.get(step >> MASTER_SHIFT, -1)

    def waiting(self, step: int) -> list[Waiting]:
        """The keys that somebody waits for in the step, longest first."""
        if self._lent[0]:
            self._recall(step)
        now = time.monotonic()
        with self._lock:
            state = self._steps.get(step)
            if state is not None:
                state.unfold()
            found = [
                Waiting(key, now - entry.since, entry.offered)
                for key, entry in (state.entries.items() if state else ())
                if type(entry) is Waiter
            ]
        return sorted(found, key=lambda w: -w.seconds)

    def unclaimed(self, step: int) -> list[Key]:
        """The keys of the step whose values (or offers) nobody has asked for."""
        with self._lock:
            state = self._steps.get(step)
            return [
                key
                for key, entry in (state.entries.items() if state else ())
                if type(entry) is not Waiter
            ]


def _end(entries: dict[Key, Entry], error: BaseException) -> None:
    for entry in entries.values():
        if type(entry) is Waiter:
            entry.callback(error)
    for held in each(entries.values()):
        if type(held) is Value and held.on_taken is not None:
            held.on_taken()
