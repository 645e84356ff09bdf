"""Specialisations of one function or session: at most `limit`, each made once however many threads
ask.

`TraceLock` notices when its holder waits for the thread that wants it: tracing runs the user's
Python code, which may start threads that call compiled functions and wait for them; with a plain
lock both sides would wait for ever.

Of compiled methods each object keeps its own in its `__dict__`, as `functools.cached_property`
does; so does a class, those of its class methods. A copy of the object and one that was pickled
begin without any: specialisations hold locks and native code."""

from __future__ import annotations

import concurrent.futures.thread as executors
import inspect
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

from weft.frontend.core.slow import PerformanceWarning, warn
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
    suggest,
)
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock, in_child

_POLL = 0.05  # seconds between two looks at what the holder does
PATIENCE = 60.0  # seconds that the holder may spend in one wait for what cannot be told
_JOIN = threading.Thread.join.__code__
_RESULT = Future.result.__code__
_RUN = executors._WorkItem.run.__code__

_wanted: dict[int, TraceLock] = {}  # by thread: the lock that it waits for
in_child(_wanted.clear)  # the numbers of threads that are gone are given out again


class TraceLock:
    """A reentrant lock. `acquire` gives up where waiting for it could never end."""

    def __init__(self) -> None:
        self._lock = ForkLock()

    @property
    def owner(self) -> int | None:
        """The thread that holds it."""
        return self._lock.owner

    def acquire(self, name: str) -> bool:
        """True once this thread holds the lock; False if the holder waits for this thread.

        FailedPreconditionError if the holder stays for a minute in one wait for something else (a
        queue, an event), because that might be this thread, too.
        """
        if not self._lock.acquire(blocking=False):
            _wanted[threading.get_ident()] = self
            try:
                if not self._wait(name):
                    return False
            finally:
                _wanted.pop(threading.get_ident(), None)
        return True

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def _wait(self, name: str) -> bool:
        place: tuple[FrameType, int] | None = None
        since = 0.0
        while not self._lock.acquire(timeout=_POLL):
            owner = self.owner
            if owner is None:
                continue
            if _waits_for_me(owner):
                return False
            now = _waiting_place(owner)
            if now is None or now != place:
                place, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise FailedPreconditionError(
                    f"'{name}' is being traced by another thread, which has been waiting for "
                    f"something for {PATIENCE:g} seconds",
                    hint="if it waits for this thread, neither can go on: call the function once "
                    "before threads are started, and wait for no thread in it",
                    location=caller_location(),
                )
        return True


def _frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_for_me(thread: int) -> bool:
    """Whether `thread` waits for this thread, or for one that does."""
    seen = set[int]()
    waiting: int | None = thread
    while waiting is not None and waiting not in seen:
        seen.add(waiting)
        waiting = _awaited(waiting)
        if waiting == threading.get_ident():
            return True
    return False


def _awaited(thread: int) -> int | None:
    """The thread that `thread` waits for now, if that can be told: in Thread.join, Future.result,
    or for a `TraceLock`."""
    lock = _wanted.get(thread)
    if lock is not None:
        return lock.owner
    for frame in _frames(thread):
        if frame.f_code is _JOIN:
            found: int | None = frame.f_locals["self"].ident
            return found
        if frame.f_code is _RESULT:
            return _runner(frame.f_locals["self"])
        if frame.f_code.co_filename != _JOIN.co_filename:
            return None
    return None


def _runner(future: object) -> int | None:
    """The thread of an executor that works on `future`."""
    for thread in list(sys._current_frames()):
        for frame in _frames(thread):
            if frame.f_code is _RUN and frame.f_locals["self"].future is future:
                return thread
    return None


def _waiting_place(thread: int) -> tuple[FrameType, int] | None:
    """Where `thread` waits for a lock, condition or event of `threading`; None if it does not."""
    frame = next(_frames(thread), None)
    if frame is None or frame.f_code.co_filename != _JOIN.co_filename:
        return None
    return frame, frame.f_lasti  # holding the frame tells a later wait from this one


class RecompileWarning(PerformanceWarning):
    """A function is compiled again and again: some argument makes each call's signature new.

    >>> import warnings
    >>> @wf.compile
    ... def total(x):
    ...     return wf.sum(x)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for n in range(1, 9):
    ...         _ = total(np.ones(n, np.float32))
    >>> print(caught[0].message)
    'total' is compiled for the 8th signature; it differs from the nearest in
      x: f32[8] instead of f32[1] (specialisation 1)
      hint: wf.compile(input_signature=[wf.TensorType(dtype, (None, ...)), ...]) compiles once for
      sizes that are None; or pad to a few sizes
    """


#: The so many-th signature of a function is told of.
MANY = 8


def warn_of_many(
    name: str, reasons: Sequence[str], static: Collection[str], open_sizes: bool
) -> None:
    """A RecompileWarning at the caller's line: what the signatures of a function differ in, and how
    there would be fewer. reasons: how the last one differs from the nearest. static: the parameters
    that are static; open_sizes: whether sizes may be left open (`input_signature=`)."""
    names = [line.partition(":")[0] for line in reasons]
    changing = next((n for n in names if n in static), None)
    if changing is not None:
        cure = (
            f"each value of the static argument '{changing}' compiles anew; a number need not be "
            "static"
        )
    elif open_sizes and all(_SIZES.search(line) for line in reasons):
        cure = (
            "wf.compile(input_signature=[wf.TensorType(dtype, (None, ...)), ...]) compiles once "
            "for sizes that are None; or pad to a few sizes"
        )
    else:
        cure = "pass arguments of one structure and dtype"
    _warn(
        f"'{name}' is compiled for the {MANY}th signature; it differs from the nearest in\n  "
        + "\n  ".join(reasons)
        + f"\n  hint: {cure}"
    )


#: Of a line of `differences`: the same dtype on both sides, of other sizes.
_SIZES = re.compile(r": (\w+)\[[^]]*\] instead of \1\[")


def _warn(message: str) -> None:
    warn(message, RecompileWarning, caller_location())


class CacheInfo(NamedTuple):
    """Counts of a function's specialisations. size: held. made: ever made. evicted: thrown away to
    stay within limit."""

    size: int
    made: int
    evicted: int
    limit: int


class Specialization:
    """The entry of one signature; later calls set `used`, the clock hand clears it. compiled: it
    was, and has not only filled its sizes into what others have, too."""

    __slots__ = ("compiled", "number", "used")

    def __init__(self) -> None:
        self.used = False
        self.compiled = True
        self.number = 0

    def take_used(self) -> bool:
        """Whether it was used since this was last asked."""
        used, self.used = self.used, False
        return used


S = TypeVar("S", bound=Specialization)


class Specializations(Generic[S]):
    """A map from signature to specialisation with one lock per signature being made.

    The eviction is the CLOCK approximation of least-recently-used (Corbato 1969): setting one flag
    is all that a call pays for it.
    """

    def __init__(self, name: str, limit: int = 256, look: str | None = None) -> None:
        """look: a call that shows what makes signatures new."""
        self.name = name
        self._look = look or f"{name}.explain(...)"
        self.limit = limit
        self.entries: dict[Hashable, S] = {}
        self.made = 0
        self.evicted = 0
        self._compiled = 0  # of those made
        self._lock = ForkLock()
        self._pending: dict[Hashable, TraceLock] = {}
        self._warned = False

    def get_or_make(self, key: Hashable, make: Callable[[], S]) -> S:
        """The specialisation for `key`; `make` runs at most once per key at a time.

        FailedPreconditionError where it can never end: in a thread that `make` itself waits for.
        """
        with self._lock:
            entry = self.entries.get(key)
            if entry is not None:
                entry.used = True
                return entry
            lock = self._pending.setdefault(key, TraceLock())
        if not lock.acquire(self.name):
            raise FailedPreconditionError(
                f"'{self.name}' is called with arguments of the types that it is being traced for, "
                "by a thread that the trace waits for",
                hint="do not call the function from a thread that it starts itself",
                location=caller_location(),
            )
        try:
            entry = self.entries.get(key)
            if entry is None:
                try:
                    entry = make()
                    self._add(key, entry)
                finally:
                    with self._lock:
                        self._pending.pop(key, None)
            return entry
        finally:
            lock.release()

    def info(self) -> CacheInfo:
        """The counts."""
        return CacheInfo(len(self.entries), self.made, self.evicted, self.limit)

    def _add(self, key: Hashable, entry: S) -> None:
        with self._lock:
            while len(self.entries) >= self.limit:
                self._evict()
            self.made += 1
            entry.number = self.made
            self.entries[key] = entry
            self._compiled += entry.compiled
            many = self._compiled > self.limit
            warn, self._warned = many and not self._warned, self._warned or many
        if warn:
            self._warn()

    def _evict(self) -> None:
        """Move the hand: recently used entries go to the back without their flag, the first other
        goes."""
        while True:
            key, entry = next(iter(self.entries.items()))
            del self.entries[key]
            if not entry.take_used():
                self.evicted += 1
                return
            self.entries[key] = entry

    def _warn(self) -> None:
        _warn(
            f"'{self.name}' has been compiled for {self.limit} different signatures; "
            "the least recently used ones are dropped, and planned again when they come back (with "
            "the kernels that there are).\n"
            f"  hint: {self._look} shows which argument differs from call to call"
        )


T = TypeVar("T")
_ATTRIBUTE = "__weft_compiled__"
_lock = ForkLock()  # held while an object gets its first compiled method


class Methods(dict[object, T], Generic[T]):
    """The compiled methods of one object, by the function of its class that each belongs to.

    `owner`: the object. The dict that a copied object shares with the original is not its own.
    """

    def __init__(self, owner: object = None) -> None:
        super().__init__()
        self.owner = owner

    def __deepcopy__(self, memo: object) -> Methods[T]:
        return Methods()

    def __reduce__(self) -> tuple[type[Methods[T]], tuple[()]]:
        return (Methods, ())


def bind(function: object, name: str, instance: Any, make: Callable[[], T]) -> T:
    """The compiled method of `instance` that belongs to `function`; `make` makes it on first use.

    UnsupportedError for an object that has no `__dict__`.
    """
    try:
        held = instance.__dict__.get(_ATTRIBUTE)
    except AttributeError:
        raise UnsupportedError(
            f"'{name}' is a compiled method of a class without __dict__",
            hint="leave __slots__ out, or compile a function that takes the object's tensors",
            location=caller_location(),
        ) from None
    if held is not None and held.owner is instance and function in held:
        found: T = held[function]
        return found
    with _lock:
        held = instance.__dict__.get(_ATTRIBUTE)
        if held is None or held.owner is not instance:
            held = Methods(instance)
            if isinstance(instance, type):
                setattr(instance, _ATTRIBUTE, held)
            else:
                instance.__dict__[_ATTRIBUTE] = held
        if function not in held:
            held[function] = make()
        found = held[function]
    return found


def defines(function: object, instance: object) -> bool:
    """Whether the class of `instance` (or a base) has `function` as a method or a property, or
    `instance`, being a class, has it as a class method."""
    members = [m for c in type(instance).__mro__ for m in vars(c).values()]
    if any(m is function or getattr(m, "fget", None) is function for m in members):
        return True
    own = instance.__mro__ if isinstance(instance, type) else ()
    held = (m for c in own for m in vars(c).values() if isinstance(m, classmethod))
    return any(m.__func__ is function for m in held)


def below(function: object) -> Callable[[Any], Any] | None:
    """classmethod or staticmethod, if `function` is one: `wf.compile` stands above it then."""
    kinds = (classmethod, staticmethod)
    return next((kind for kind in kinds if isinstance(function, kind)), None)


def signature_of(function: Any) -> inspect.Signature:
    """The signature of what `wf.compile` was given. TypeRuleError, at the user's line, for what has
    none."""
    kind = type(function).__name__
    if isinstance(function, property):
        raise TypeRuleError(
            f"wf.compile was given a {kind}, not a function",
            hint=f"write @{kind} above @wf.compile, not below it",
            location=caller_location(),
        )
    if not callable(function):
        raise TypeRuleError(
            f"wf.compile takes a function, got a {kind}",
            hint="write @wf.compile above a def",
            location=caller_location(),
        )
    try:
        return inspect.signature(function)
    except ValueError:
        name = getattr(function, "__name__", kind)
        raise TypeRuleError(
            f"wf.compile cannot tell the parameters of '{name}': it is a {kind} without a "
            "signature, so not written in Python",
            hint="compile a Python function of tensors that calls functions of weft",
            location=caller_location(),
        ) from None


def check_names(
    option: str, names: Iterable[str], parameters: Sequence[str], function: str
) -> None:
    """InvalidArgumentError for a name, given in `option` of wf.compile, that is no parameter."""
    for name in names:
        if name not in parameters:
            raise InvalidArgumentError(
                f"{option} names '{name}', but the parameters of '{function}' are "
                f"{', '.join(parameters) or 'none'}{suggest(name, parameters)}",
                location=caller_location(),
            )


def parameter_names(
    option: str, given: object, parameters: Sequence[str], function: str
) -> tuple[str, ...]:
    """The parameters that an option of wf.compile names: one or several, by name or by position
    (negative: from the last). InvalidArgumentError for what is neither, or not there.
    """
    names = []
    for item in given if isinstance(given, Iterable) and not isinstance(given, str) else (given,):
        if isinstance(item, int) and not isinstance(item, bool):
            if not -len(parameters) <= item < len(parameters):
                raise InvalidArgumentError(
                    f"{option} names parameter {item}, but '{function}' has {len(parameters)}: "
                    f"{', '.join(parameters) or 'none'}",
                    location=caller_location(),
                )
            item = parameters[item]
        if not isinstance(item, str):
            raise InvalidArgumentError(
                f"{option} takes names or positions of parameters, but got a "
                f"{type(item).__name__}: {item!r:.60}",
                location=caller_location(),
            )
        names.append(item)
    check_names(option, names, parameters, function)
    return tuple(dict.fromkeys(names))


def is_bound(function: object) -> bool:
    """Whether `function` is a method together with its object."""
    return isinstance(function, types.MethodType)
