"""Versions of models: loaded bundles, and their signatures as functions of flat lists of arrays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from weft.frontend.bundle.load import Bundle
from weft.frontend.bundle.signature import DEFAULT, type_from_json
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim, format_dim
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    WeftError,
    suggest,
)
from weft.ir.types import TensorType
from weft.runtime.step import RunContext

Array = np.ndarray[Any, Any]

#: What a size that is open is when a signature is tried: small, and no factor of common sizes.
_TRIED = 5
#: Calls of each number of rows that are timed, and the seconds after which no more are tried.
_REPEATS, _TRYING = 3, 1.0
#: Calls of so many seconds run in the event loop's thread, and numbers of rows that are noted.
_QUICK, _MOST_NOTED = 3e-4, 4096


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a signature, with the name that requests use."""

    name: str
    type: TensorType


class Signature:
    """A signature of a loaded bundle as a function from a list of arrays to a list of arrays.

    inputs, outputs: in the order of the manifest. writes: whether calls change variables. loops:
    whether it has loops, which may take any time, and can be stopped. by_rows: whether calls may be
    joined along the first axis (`find_batches` sets it); why_not: what is against it; pace: of
    calls by rows, the seconds that they took when they were tried, in the order of rows; ran: of
    which rows calls ran, so that nothing is compiled for them (`rows_of`)."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        entry = bundle.manifest["signatures"][name]
        self.name = name
        self.inputs = [Port(one["name"], type_from_json(one)) for one in entry["inputs"]]
        self.outputs = [Port(one["name"], type_from_json(one)) for one in entry["outputs"]]
        self.writes = bool(entry["updates"])
        self.by_rows, self.why_not = False, "it was not tried"
        self.pace: list[tuple[int, float]] = []
        self.ran: set[int] = set()
        self.loops = bundle.has_loops(name)
        self._few_sizes = self._has_few_sizes()
        self._function = bundle.flat(name)

    def __call__(self, arrays: Sequence[Array], context: RunContext | None = None) -> list[Array]:
        """One call. arrays: one for each input, of its dtype and sizes. context: when to stop it.
        Errors are those of the compiled function."""
        if context is None:
            outputs = self._function(*arrays)
        else:
            outputs = self._function.run_within(context, tuple(arrays), {})
        return [np.asarray(output) for output in outputs]

    def check(self, arrays: Sequence[Array]) -> None:
        """InvalidArgumentError for arrays whose sizes are not those of the inputs, which are of
        their dtypes."""
        sizes: dict[str, int] = {}
        for port, array in zip(self.inputs, arrays, strict=True):
            wanted = port.type.shape
            fits = len(wanted) == array.ndim
            for dim, size in zip(wanted, array.shape, strict=False):
                known = (
                    sizes.setdefault(format_dim(dim), size) if isinstance(dim, SymbolicDim) else dim
                )
                fits = fits and known == size
            if not fits:
                raise InvalidArgumentError(
                    f"input '{port.name}' has the shape {list(array.shape)}, but signature "
                    f"'{self.name}' takes {shown_shape(port.type)}"
                )

    def made_up(self, rows: int, seed: int) -> list[Array]:
        """Arrays of random values that fit the inputs, with `rows` rows where that is open: floats
        from -1 to 1, other numbers 0 and 1."""
        rng = np.random.default_rng(seed)
        symbol = self._row_symbol()
        made = []
        for port in self.inputs:
            dims = port.type.shape
            shape = [d if isinstance(d, int) else rows if d == symbol else _TRIED for d in dims]
            kind = port.type.dtype
            bits = rng.integers(0, 2, shape)
            if kind.kind == "string":
                array = np.where(bits, b"a", b"b").astype(object)
            elif kind.is_inexact:
                array = np.asarray(rng.uniform(-1, 1, shape)).astype(kind.numpy)
            else:
                array = np.asarray(bits).astype(kind.numpy)
            made.append(array)
        return made

    def _row_symbol(self) -> SymbolicDim | None:
        first = self.inputs[0].type.shape[:1] if self.inputs else ()
        return first[0] if first and isinstance(first[0], SymbolicDim) else None

    def warm_up(self) -> str | None:
        """Calls with made-up values, so that requests of few rows wait for no compilation (kernels
        for 1 row are other ones), and the pace of one row; why one failed, or None. A signature
        that writes variables is not called."""
        if self.writes:
            return None
        try:
            for rows in (2,) if self._row_symbol() is None else (2, 1):
                self(self.made_up(rows, 0))
        except WeftError as error:
            return error.what
        self.pace = self._tried(1)
        return None

    def find_batches(self, most: int) -> None:
        """Set `by_rows`: whether a call with the rows of two requests gives each its own. The sizes
        must say so, and calls with made-up rows, together and apart, must agree: a softmax along
        the first axis has the sizes of one along the last. Then try calls of 1, 2, 4, ... rows, up
        to `most`, for `pace`."""
        self.why_not = self._why_no_sizes() or self._why_no_rows()
        self.by_rows = not self.why_not
        self.pace = self._tried(most) if self.by_rows else []

    def _tried(self, most: int) -> list[tuple[int, float]]:
        found, rows, begun = list[tuple[int, float]](), 1, time.monotonic()
        while rows <= most:
            try:
                arrays = self.made_up(rows, rows)
                self(arrays)  # kernels for so many rows may be compiled now
                taken = []
                for _ in range(_REPEATS):
                    before = time.perf_counter()
                    self(arrays)
                    taken.append(time.perf_counter() - before)
            except WeftError:  # what so many rows need is not there: memory, say
                break
            self.ran.add(rows)
            found.append((rows, min(taken)))
            each = [seconds / rows for rows, seconds in found]
            if time.monotonic() - begun > _TRYING or min(each[-3:]) > 1.5 * min(each):
                break
            rows *= 2
        return found

    def rows_of(self, arrays: Sequence[Array]) -> int:
        """By how many rows `ran` and `pace` know a call: 1 if all sizes are fixed."""
        return 1 if self._row_symbol() is None else arrays[0].shape[0]

    def is_quick(self, rows: int) -> bool:
        """Whether a call of so many rows was seen to take less time than a thread takes to wake."""
        return (
            rows in self.ran and self.seconds(rows) <= _QUICK and not self.loops and self._few_sizes
        )

    def _has_few_sizes(self) -> bool:
        """Whether the number of rows says all sizes of the inputs."""
        symbol = self._row_symbol()
        first = (p.type.shape[:1] for p in self.inputs)
        others = (d for p in self.inputs for d in p.type.shape[1:])
        return all(isinstance(d, int) or d == symbol for (d,) in filter(None, first)) and all(
            isinstance(d, int) for d in others
        )

    def note(self, rows: int) -> None:
        """A call of so many rows has run."""
        if len(self.ran) < _MOST_NOTED:
            self.ran.add(rows)

    def seconds(self, rows: int) -> float:
        """How long a call of so many rows may take, between or beyond those that were tried."""
        if not self.pace:
            return 1.0
        last, seconds = self.pace[-1]
        if rows >= last:
            return seconds * rows / last
        for (low, before), (high, after) in pairwise([(0, 0.0), *self.pace]):
            if rows <= high:
                return before + (after - before) * (rows - low) / (high - low)
        return seconds

    def best_rows(self, most: int) -> int:
        """The most rows, up to `most`, of which a call takes little longer for each than any."""
        tried = [rows for rows, _ in self.pace if rows <= most]
        if self.pace and self.pace[-1][0] < most:
            tried.append(most)
        return max(worthwhile(self, tried), default=most)

    def _why_no_sizes(self) -> str:
        symbol = self._row_symbol()
        if symbol is None:
            return "its first input has no open first size"
        if self.writes:
            return "it writes variables"
        for port in (*self.inputs, *self.outputs):
            shape = port.type.shape
            if not shape or shape[0] != symbol:
                return f"the first size of '{port.name}' is not '{format_dim(symbol)}'"
            if any(isinstance(d, SymbolicDim) and d.symbols & symbol.symbols for d in shape[1:]):
                return f"'{port.name}' has '{format_dim(symbol)}' among its other sizes"
        return "" if self.outputs else "it has no outputs"

    def _why_no_rows(self) -> str:
        parts = [self.made_up(rows, seed) for rows, seed in ((1, 1), (2, 2))]
        try:
            joined = self([np.concatenate(both) for both in zip(*parts, strict=True)])
            apart = [self(part) for part in parts]
        except WeftError as error:
            return f"a call with made-up values failed: {error.what}"
        for port, whole, *halves in zip(self.outputs, joined, *apart, strict=True):
            if not _close(whole, np.concatenate(halves)):
                return f"rows of '{port.name}' depend on other rows"
        return ""


def _close(a: Array, b: Array) -> bool:
    """Whether two arrays are equal up to how kernels for other sizes round."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "OUSbiu":
        return bool(np.array_equal(a, b))
    coarse = a.dtype.itemsize == 2
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    tolerance = 2e-2 if coarse else 1e-4 if a.dtype in (np.float32, np.complex64) else 1e-9
    x, y = a.astype(wide), b.astype(wide)
    return bool(np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True))


def worthwhile(signature: Signature, rows: Sequence[int]) -> list[int]:
    """Those numbers of rows of which a call takes at most a quarter longer for each row than the
    best of them."""
    each = [signature.seconds(one) / one for one in (max(one, 1) for one in rows)]
    return [one for one, seconds in zip(rows, each, strict=True) if seconds <= 1.25 * min(each)]


def shown_shape(kind: TensorType) -> list[int]:
    """The shape as protocols write it: -1 for sizes that are open."""
    return [d if isinstance(d, int) else -1 for d in kind.shape]


class Version:
    """A bundle that is loaded, as a version of a model. signatures: those that can be served, by
    name; refused: why the others cannot; writers: how many calls that write variables run in
    threads."""

    def __init__(self, model: str, number: int, bundle: Bundle) -> None:
        self.model, self.number = model, number
        self._lock = threading.Lock()
        self._users = self.writers = 0
        self._when_idle: Callable[[], None] | None = None
        entries: Mapping[str, Any] = bundle.manifest["signatures"]
        self.signatures: dict[str, Signature] = {}
        self.refused: dict[str, str] = {}
        for name in entries:
            one = Signature(bundle, name)
            ports = [p for p in (*one.inputs, *one.outputs) if p.type.dtype.is_complex]
            if ports:
                self.refused[name] = (
                    f"'{ports[0].name}' is complex, for which requests have no form"
                )
            else:
                self.signatures[name] = one
        if not self.signatures:
            raise UnsupportedError(
                f"model '{model}' has no signature that can be served: "
                + "; ".join(f"{n}: {why}" for n, why in self.refused.items())
            )

    def signature(self, name: object = None) -> Signature:
        """The signature `name`; None: "serving_default", or the only one. NotFoundError for one
        that is none, InvalidArgumentError for no name where there are several."""
        if name is None:
            if DEFAULT not in self.signatures and len(self.signatures) > 1:
                raise InvalidArgumentError(
                    f"model '{self.model}' has no signature '{DEFAULT}': name one of "
                    f"{', '.join(self.signatures)}"
                )
            name = DEFAULT if DEFAULT in self.signatures else next(iter(self.signatures))
        if not isinstance(name, str):
            raise InvalidArgumentError("the name of a signature must be a string")
        if name in self.refused:
            raise InvalidArgumentError(f"signature '{name}' is not served: {self.refused[name]}")
        if name not in self.signatures:
            raise NotFoundError(
                f"model '{self.model}' has no signature '{name:.60}'"
                f"{suggest(name[:60], list(self.signatures))}"
            )
        return self.signatures[name]

    @contextmanager
    def used(self) -> Iterator[None]:
        """While it is entered, a request uses the version."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                told = self._when_idle if not self._users else None
            if told is not None:
                told()

    def add_writer(self, count: int) -> None:
        """A call that writes variables begins to run in a thread (1), or has ended (-1)."""
        with self._lock:
            self.writers += count

    def when_idle(self, tell: Callable[[], None]) -> None:
        """Call `tell` each time that no request uses it any more; at once, if none does now."""
        with self._lock:
            self._when_idle = tell
            idle = not self._users
        if idle:
            tell()
