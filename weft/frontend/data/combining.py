"""Stages that read several datasets: zip, concatenate, sampling and choosing among some; and those
that a function makes of each element, one after the other (flat_map) or in turns (interleave).

Each dataset that need not be read to its end is opened as a part of the run, which is closed when
the stage needs it no more, so its threads do not stay."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from typing import Any

import numpy as np

from weft.frontend.core.pytree import Structure, unflatten
from weft.frontend.data.items import (
    Crew,
    Function,
    Interrupted,
    Item,
    Items,
    Raises,
    Run,
    Unordered,
    made,
    passed_over,
)
from weft.frontend.data.stages import Seeded, Stage
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import Locations

_LOOK = 0.2  # seconds after which who waits for a worker looks whether the run was closed


def least(counts: Sequence[int | None]) -> int | None:
    """The least of some cardinalities; of one that is not known nothing is, unless one is 0."""
    known = [n for n in counts if n is not None]
    return min(known) if len(known) == len(counts) or 0 in known else None


def total(counts: Sequence[int | None]) -> int | None:
    """The sum of some cardinalities; None if one is not known."""
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


class Several(Stage):
    """Base: a stage that reads `parts`, and has none before it."""

    settings = ""  # what else was given, as text

    def own(self, ahead: bool) -> str:
        shown = ", ".join(p.shown(ahead) for p in self.parts)
        return f"{self.text}({shown}{self.settings})"


class _Opened:
    """A part that is being read."""

    __slots__ = ("items", "run")

    def __init__(self, stage: Stage, run: Run, epoch: int) -> None:
        self.run = run.part()
        self.items = stage.open(self.run, epoch)

    def close(self) -> None:
        self.run.close(wait=False)


# ---------------------------------------------------------------------------------- side by side
@dataclass(frozen=True)
class Zip(Several):
    """An element of each part at a time."""

    zipped: tuple[Stage, ...]
    structure: Structure

    @property
    def parts(self) -> tuple[Stage, ...]:
        return self.zipped

    def own(self, ahead: bool) -> str:
        form = unflatten(self.structure, [*range(len(self.zipped))])
        plain = form == (*range(len(self.zipped)),)
        return super().own(ahead) + ("" if plain else f" as {form}")

    def cardinality(self) -> int | None:
        return least([p.cardinality() for p in self.zipped])

    def open(self, run: Run, epoch: int) -> Items:
        return _Zipped([_Opened(p, run, epoch) for p in self.zipped], self.structure)


class _Zipped(Items):
    def __init__(self, parts: list[_Opened], structure: Structure) -> None:
        self._parts, self._structure = parts, structure
        self._ended = False

    def _end(self) -> None:
        self._ended = True
        for part in self._parts:
            part.close()

    def __next__(self) -> Item:
        if self._ended:
            raise StopIteration
        items: list[Item] = []
        failed: Exception | None = None
        for part in self._parts:
            try:
                items.append(next(part.items))
            except StopIteration:
                self._end()
                raise
            except Exception as error:  # the others move on, too: they stay side by side
                failed = failed or error
        if failed is not None:
            raise failed
        return lambda: unflatten(self._structure, [item() for item in items])

    def skip(self, n: int) -> int:
        if self._ended:
            return 0
        done, failed = n, None
        for part in self._parts:
            left = n
            while left:
                try:
                    left -= part.items.skip(left)
                    break
                except Interrupted as stopped:  # all move on: they stay side by side
                    left -= stopped.passed
                    failed = failed or stopped.error
            done = min(done, n - left)
        if done < n:
            self._end()
        if failed is not None:
            raise Interrupted(done, failed)
        return done


@dataclass(frozen=True)
class Concatenate(Stage):
    """The elements of this one, then those of another."""

    other: Stage

    @property
    def parts(self) -> tuple[Stage, ...]:
        return (self.other,)

    def own(self, ahead: bool) -> str:
        return f"concatenate({self.other.shown(ahead)})"

    def cardinality(self) -> int | None:
        return total([self.up.cardinality(), self.other.cardinality()])

    def open(self, run: Run, epoch: int) -> Items:
        return _Joined(self, run, epoch)


class _Joined(Items):
    def __init__(self, stage: Concatenate, run: Run, epoch: int) -> None:
        self._items = stage.up.open(run, epoch)
        self._later: Stage | None = stage.other
        self._run, self._epoch = run, epoch

    def _go_on(self) -> bool:
        later, self._later = self._later, None
        if later is None:
            return False
        self._items = later.open(self._run, self._epoch)
        return True

    def __next__(self) -> Item:
        try:
            return next(self._items)
        except StopIteration:
            if not self._go_on():
                raise
        return next(self._items)

    def skip(self, n: int) -> int:
        def some(left: int) -> int:
            done = self._items.skip(left)
            return done or (self._items.skip(left) if self._go_on() else 0)

        return passed_over(n, some)


# ------------------------------------------------------------------------------- one of several
@dataclass(frozen=True)
class Sampled(Seeded, Several):
    """Each time the next element of a part that is drawn by weight."""

    sampled: tuple[Stage, ...]
    weights: tuple[float, ...]
    stop: bool
    settings: str = ""

    @property
    def parts(self) -> tuple[Stage, ...]:
        return self.sampled

    def cardinality(self) -> int | None:
        return None if self.stop else total([p.cardinality() for p in self.sampled])

    def open(self, run: Run, epoch: int) -> Items:
        return _Drawn(self, self.bits(run, epoch), run, epoch)


class _Turns(Items):
    """Base: elements of parts, one of which is chosen each time; an exhausted one is None."""

    def __init__(self, parts: Sequence[Stage], stop: bool, run: Run, epoch: int) -> None:
        self._parts: list[_Opened | None] = [_Opened(p, run, epoch) for p in parts]
        self._stop, self._run = stop, run

    def _choose(self) -> int:
        """Which part is next. StopIteration at the end."""
        raise NotImplementedError

    def _of(self, at: int) -> Item | None:
        """The next item of a part; None if it has no more."""
        part = self._parts[at]
        if part is None:
            return None
        try:
            return next(part.items)
        except StopIteration:
            part.close()
            self._parts[at] = None
            if self._stop:
                self._end()
            return None

    def _end(self) -> None:
        for part in self._parts:
            if part is not None:
                part.close()
        self._parts = [None] * len(self._parts)

    def __next__(self) -> Item:
        while any(self._parts) and not self._run.closed:
            item = self._of(self._choose())
            if item is not None:
                return item
        raise StopIteration


class _Drawn(_Turns):
    def __init__(self, stage: Sampled, bits: np.random.PCG64, run: Run, epoch: int) -> None:
        super().__init__(stage.sampled, stage.stop, run, epoch)
        self._weights, self._bits = stage.weights, bits

    def _choose(self) -> int:
        """Drawn among those that have more: what an exhausted one would get, the others share."""
        weights = [w if p else 0.0 for w, p in zip(self._weights, self._parts, strict=True)]
        whole = sum(weights)
        if not whole:
            self._end()
            raise StopIteration
        left = int(self._bits.random_raw()) / 2.0**64 * whole
        at = -1
        for i, weight in enumerate(weights):
            if weight:
                at = i
                left -= weight
                if left < 0:
                    break
        return at


@dataclass(frozen=True)
class Chosen(Several):
    """Each time the next element of the part that the choices name."""

    chosen: tuple[Stage, ...]
    choices: Stage
    stop: bool
    location: Locations
    settings: str = ""

    @property
    def parts(self) -> tuple[Stage, ...]:
        return (*self.chosen, self.choices)

    def cardinality(self) -> int | None:
        return None

    def open(self, run: Run, epoch: int) -> Items:
        return _ByChoice(self, run, epoch)


class _ByChoice(_Turns):
    def __init__(self, stage: Chosen, run: Run, epoch: int) -> None:
        super().__init__(stage.chosen, stage.stop, run, epoch)
        self._choices, self._location = _Opened(stage.choices, run, epoch), stage.location

    def _end(self) -> None:
        super()._end()
        self._choices.close()

    def _choose(self) -> int:
        try:
            given = next(self._choices.items)()
        except StopIteration:
            self._end()
            raise
        number = np.asarray(given)
        if number.shape or number.dtype.kind not in "iu" or not 0 <= number < len(self._parts):
            raise InvalidArgumentError(
                f"choose_from_datasets: the choice {given!r:.60} is none of the {len(self._parts)} "
                "datasets",
                hint="choices are whole numbers, 0 for the first dataset",
                location=self._location,
            )
        return int(number)


# ------------------------------------------------------------------- datasets made of elements
def _inner(function: Function, element: Any) -> Stage:
    given = function(element)
    stage = getattr(given, "_stage", None)  # of a Dataset, whose module imports this one
    if not isinstance(stage, Stage):
        raise function.refused(
            f"gave {given!r:.60}, no Dataset",
            "Dataset.from_arrays(arrays) and Dataset.from_generator make one",
        )
    return stage


@dataclass(frozen=True)
class FlatMap(Stage):
    """The elements of the datasets that a function makes, one dataset after the other."""

    function: Function

    def cardinality(self) -> int | None:
        return 0 if self.up.cardinality() == 0 else None

    def open(self, run: Run, epoch: int) -> Items:
        return _Flat(self.function, self.up.open(run, epoch), run, epoch)


class _Flat(Items):
    def __init__(self, function: Function, up: Items, run: Run, epoch: int) -> None:
        self._function, self._up, self._run, self._epoch = function, up, run, epoch
        self._now: _Opened | None = None

    def _open(self) -> _Opened:
        if self._now is None:
            if self._run.closed:
                raise StopIteration
            stage = _inner(self._function, next(self._up)())
            self._now = _Opened(stage, self._run, self._epoch)
        return self._now

    def _next_one(self) -> None:
        if self._now is not None:
            self._now.close()
            self._now = None

    def __next__(self) -> Item:
        while True:
            now = self._open()
            try:
                return next(now.items)
            except StopIteration:
                self._next_one()

    def skip(self, n: int) -> int:
        def some(left: int) -> int:
            while not (done := self._open().items.skip(left)):
                self._next_one()
            return done

        return passed_over(n, some)


@dataclass(frozen=True)
class Interleave(Stage):
    """The datasets that a function makes, `cycle` at a time, `block` elements of each in turn.

    The turns are TensorFlow's: a dataset that ends makes room for the next one, which is opened
    when its place comes round again.
    """

    function: Function
    cycle: int
    block: int
    workers: int
    deterministic: bool

    @property
    def ordered(self) -> bool:
        return self.deterministic or self.workers < 2

    def cardinality(self) -> int | None:
        return 0 if self.up.cardinality() == 0 else None

    def open(self, run: Run, epoch: int) -> Items:
        up = self.up.open(run, epoch)
        if not self.workers:
            return _InTurns(self, up, run, epoch)
        return (_Ahead if self.ordered else _Loose)(self, up, run, epoch)


class _InTurns(Items):
    def __init__(self, stage: Interleave, up: Items, run: Run, epoch: int) -> None:
        self._stage, self._up, self._run, self._epoch = stage, up, run, epoch
        self._open: list[_Opened | None] = [None] * stage.cycle
        self._at = self._given = 0  # which one, and how many elements of its block were given
        self._ended = False  # there are no more to open

    def _advance(self) -> None:
        self._at, self._given = (self._at + 1) % self._stage.cycle, 0

    def _count(self, n: int) -> None:
        self._given += n
        if self._given == self._stage.block:
            self._advance()

    def _now(self) -> _Opened:
        """The one whose turn it is. StopIteration at the end."""
        while not self._run.closed:
            now = self._open[self._at]
            if now is not None:
                return now
            if not self._ended:
                try:
                    item = next(self._up)
                except StopIteration:
                    self._ended = True
                else:
                    stage = _inner(self._stage.function, item())
                    self._open[self._at] = _Opened(stage, self._run, self._epoch)
                    continue
            if not any(self._open):
                break
            self._advance()
        raise StopIteration

    def _close(self, now: _Opened) -> None:
        now.close()
        self._open[self._at] = None
        self._advance()

    def __next__(self) -> Item:
        while True:
            now = self._now()
            try:
                item = next(now.items)
            except StopIteration:
                self._close(now)
                continue
            except BaseException:
                self._count(1)
                raise
            self._count(1)
            return item

    def skip(self, n: int) -> int:
        return passed_over(n, self._skip_some)

    def _skip_some(self, n: int) -> int:
        """Pass over up to n items of the block of one that has some."""
        while True:
            now = self._now()
            wanted = min(n, self._stage.block - self._given)
            try:
                done = now.items.skip(wanted)
            except Interrupted as stopped:
                self._count(stopped.passed)
                raise
            if done < wanted:
                self._close(now)
            else:
                self._count(done)
            if done:
                return done


class _Block:
    """Elements made ahead. ended: there are no more; opened: the function gave a dataset."""

    __slots__ = ("ended", "items", "opened")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.ended = False
        self.opened = True


class _Place:
    """A place in the cycle: what was made of its dataset, and the block that is being made."""

    __slots__ = ("coming", "ended", "items", "now", "source")

    def __init__(self, source: Item | None, now: _Opened | None) -> None:
        self.source, self.now = source, now
        self.items: deque[Item] = deque()
        self.coming: Future[_Block] = Future()
        self.ended = False


class _Ahead(_InTurns):
    """The same elements in the same order; workers open the datasets of the cycle and make a block
    of each ahead. A task is a place: a worker makes its next block."""

    def __init__(self, stage: Interleave, up: Items, run: Run, epoch: int) -> None:
        super().__init__(stage, up, run, epoch)
        self._crew: Crew | None = None
        self._places: list[_Place | None] = []

    def __next__(self) -> Item:
        if self._crew is None:
            if self._run.skipping:
                return super().__next__()
            self._begin()
        while True:
            place = self._places[self._at]
            if place is None:
                if not any(self._places):
                    raise StopIteration
                self._advance()
                continue
            while not place.items and not place.ended:
                self._wait(place)
            if place.items:
                self._count(1)
                return place.items.popleft()
            self._places[self._at] = self._next_place()
            self._advance()

    def skip(self, n: int) -> int:
        return super().skip(n) if self._crew is None else Items.skip(self, n)

    def _begin(self) -> None:
        stage = self._stage
        self._crew = self._run.crew("weft-data-interleave", stage.cycle)
        self._places = [None] * stage.cycle
        for i in range(stage.cycle):  # in the order in which their turns come
            at = (self._at + i) % stage.cycle
            now = self._open[at]
            self._places[at] = self._next_place() if now is None else self._asked(_Place(None, now))
        self._crew.start(self._work, stage.workers)

    def _next_place(self) -> _Place | None:
        if self._ended:
            return None
        try:
            return self._asked(_Place(next(self._up), None))
        except StopIteration:
            self._ended = True
            return None
        except BaseException as error:
            return self._asked(_Place(Raises(error), None))

    def _asked(self, place: _Place) -> _Place:
        assert self._crew is not None
        self._crew.put(place)
        return place

    def _wait(self, place: _Place) -> None:
        """Take the block that is being made, and ask for the next one."""
        while True:
            try:
                block = place.coming.result(_LOOK)
                break
            except TimeoutError:
                if self._run.closed:
                    raise StopIteration from None
        if not block.opened:  # its place is the next one's at once, as without workers
            self._places[self._at] = self._next_place()
            block.items[0]()
        place.items.extend(block.items)
        if block.ended:
            place.ended = True
        else:
            place.coming = Future()
            self._asked(place)

    def _work(self) -> None:
        crew = self._crew
        assert crew is not None
        while not crew.should_stop():
            try:
                place: _Place = crew.take()
            except StopIteration:
                return
            place.coming.set_result(self._block(place))

    def _block(self, place: _Place) -> _Block:
        block = _Block()
        if place.now is None:
            assert place.source is not None
            try:
                stage = _inner(self._stage.function, place.source())
                place.now = _Opened(stage, self._run, self._epoch)
            except BaseException as error:  # the loop's to see, whatever it is
                block.items, block.ended, block.opened = [Raises(error)], True, False
                return block
        while len(block.items) < self._stage.block and not self._run.closed:
            try:
                block.items.append(made(next(place.now.items)))
            except StopIteration:
                block.ended = True
                place.now.close()
                break
            except BaseException as error:
                block.items.append(Raises(error))
        return block


class _Loose(Unordered):
    """Workers read a dataset each, and give what they have made at once."""

    def __init__(self, stage: Interleave, up: Items, run: Run, epoch: int) -> None:
        super().__init__("weft-data-interleave", up, min(stage.workers, stage.cycle), run)
        self._function, self._epoch = stage.function, epoch

    def _give(self, crew: Crew, item: Item) -> bool:
        try:
            now = _Opened(_inner(self._function, item()), self._run, self._epoch)
        except BaseException as error:
            return crew.put(Raises(error))
        while not crew.should_stop():
            try:
                item = made(next(now.items))
            except StopIteration:
                now.close()
                return True
            except BaseException as error:
                item = Raises(error)
            if not crew.put(item):
                return False
        return False
