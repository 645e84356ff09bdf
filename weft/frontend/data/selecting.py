"""Stages that choose elements, count them, or make each from what came before: filter, take, skip,
enumerate, scan, ignore_errors, and the source of whole numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.data.items import (
    Function,
    Gap,
    Interrupted,
    Item,
    Items,
    Run,
    Value,
    passed_over,
)
from weft.frontend.data.stages import Stage
from weft.ir.dataclass import dataclass

_log = logging.getLogger("weft.data")


@dataclass(frozen=True)
class FromList(Stage):
    """Elements that are there."""

    elements: Sequence[Any]

    def cardinality(self) -> int | None:
        return len(self.elements)

    def open(self, run: Run, epoch: int) -> Items:
        return _Listed(self.elements)


class _Listed(Items):
    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements, self._at = elements, 0

    def __next__(self) -> Item:
        if self._at == len(self._elements):
            raise StopIteration
        element = self._elements[self._at]
        self._at += 1
        return Value(element)

    def skip(self, n: int) -> int:
        done = min(n, len(self._elements) - self._at)
        self._at += done
        return done


class Whole(Sequence[Any]):
    """The numbers of a range as arrays without axes, int64."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        return np.asarray(self._numbers[at], np.int64)


@dataclass(frozen=True)
class Filter(Stage):
    """The elements of which a function says True."""

    function: Function

    def cardinality(self) -> int | None:
        return 0 if self.up.cardinality() == 0 else None

    def open(self, run: Run, epoch: int) -> Items:
        return _Filtered(self.function, self.up.open(run, epoch), run)


class _Filtered(Items):
    def __init__(self, function: Function, up: Items, run: Run) -> None:
        self._function, self._up, self._run = function, up, run

    def __next__(self) -> Item:
        while not self._run.closed:
            element = next(self._up)()
            if self._says(element):
                return Value(element)
        raise StopIteration

    def _says(self, element: Any) -> bool:
        said = self._function(element)
        answer = np.asarray(said)
        if answer.shape or answer.dtype != np.bool_:
            raise self._function.refused(
                f"gave {said!r:.60}, no bool", "it says True for the elements that stay"
            )
        return bool(answer)


@dataclass(frozen=True)
class Take(Stage):
    """The first `count` elements, at most."""

    count: int

    def cardinality(self) -> int | None:
        n = self.up.cardinality()
        return None if n is None else min(n, self.count)

    def open(self, run: Run, epoch: int) -> Items:
        part = run.part()
        return _Taken(self.up.open(part, epoch), self.count, part)


class _Taken(Items):
    def __init__(self, up: Items, count: int, part: Run) -> None:
        self._up, self._left, self._part = up, count, part

    def __next__(self) -> Item:
        if not self._left:
            self._part.close(wait=False)  # those who work ahead need not
            raise StopIteration
        self._left -= 1
        return next(self._up)

    def skip(self, n: int) -> int:
        try:
            done = self._up.skip(min(n, self._left))
        except Interrupted as stopped:
            self._left -= stopped.passed
            raise
        self._left -= done
        return done


@dataclass(frozen=True)
class Skip(Stage):
    """The elements after the first `count`; None: there are none."""

    count: int | None

    def cardinality(self) -> int | None:
        if self.count is None:
            return 0
        n = self.up.cardinality()
        return None if n is None else max(n - self.count, 0)

    def open(self, run: Run, epoch: int) -> Items:
        if self.count is None:
            return _Listed(())
        return _Later(self.up.open(run, epoch), self.count)


class _Later(Items):
    def __init__(self, up: Items, count: int) -> None:
        self._up, self._before = up, Gap(up, count)

    def __next__(self) -> Item:
        self._before.close()
        return next(self._up)

    def skip(self, n: int) -> int:
        def some(left: int) -> int:
            self._before.close()
            return self._up.skip(left)

        return passed_over(n, some)


@dataclass(frozen=True)
class Enumerate(Stage):
    """Pairs of a number and an element."""

    start: int

    def open(self, run: Run, epoch: int) -> Items:
        return _Numbered(self.up.open(run, epoch), self.start)


class _Numbered(Items):
    def __init__(self, up: Items, start: int) -> None:
        self._up, self._number = up, start

    def __next__(self) -> Item:
        number = np.asarray(self._number, np.int64)
        self._number += 1
        item = next(self._up)
        return lambda: (number, item())

    def skip(self, n: int) -> int:
        try:
            done = self._up.skip(n)
        except Interrupted as stopped:
            self._number += stopped.passed
            raise
        self._number += done
        return done


@dataclass(frozen=True)
class Scan(Stage):
    """What a function gives for each element and a state, which it hands on."""

    function: Function
    state: Any

    def open(self, run: Run, epoch: int) -> Items:
        return _Scanned(self.function, self.state, self.up.open(run, epoch))


class _Scanned(Items):
    def __init__(self, function: Function, state: Any, up: Items) -> None:
        self._function, self._state, self._up = function, state, up

    def __next__(self) -> Item:
        given = self._function.of(self._state, next(self._up)())
        if type(given) is not tuple or len(given) != 2:
            raise self._function.refused(
                f"gave {given!r:.60}", "it gives two values: the next state, and the element"
            )
        self._state, element = given
        return Value(element)


@dataclass(frozen=True)
class IgnoreErrors(Stage):
    """The elements that could be made."""

    log_warning: bool

    def cardinality(self) -> int | None:
        return 0 if self.up.cardinality() == 0 else None

    def open(self, run: Run, epoch: int) -> Items:
        return _Faultless(self.up.open(run, epoch), self.log_warning, run)


class _Faultless(Items):
    def __init__(self, up: Items, log_warning: bool, run: Run) -> None:
        self._up, self._log, self._run = up, log_warning, run

    def __next__(self) -> Item:
        while not self._run.closed:
            try:
                item = next(self._up)
            except StopIteration:
                raise
            except Exception as error:
                self._note(error)
                continue
            try:
                return Value(item())
            except Exception as error:
                self._note(error)
        raise StopIteration

    def _note(self, error: Exception) -> None:
        if self._log:
            _log.warning("ignore_errors: an element is left out", exc_info=error)
