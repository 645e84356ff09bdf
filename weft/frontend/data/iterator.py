"""`DatasetIterator`: one pass over a dataset, which can be saved and goes on where it was."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from weft.frontend.data.items import Gap, Items, Run, at_least
from weft.frontend.data.stages import Seeded, Stage
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from weft.ir.locations import caller_location


class DatasetIterator:
    """The elements of a dataset, from the first on. Made by `iter(dataset)`.

    Its threads end at the last element, at an error, with `close()`, at the end of a `with` block,
    or when nobody refers to it any more. Several threads may call `next`.

    >>> dataset = wf.data.Dataset.from_arrays(np.array([10, 20, 30]))
    >>> with iter(dataset) as elements:
    ...     first, state = next(elements), elements.state_dict()
    >>> again = iter(dataset)
    >>> again.load_state_dict(state)
    >>> [int(element) for element in again]
    [20, 30]
    """

    def __init__(self, stage: Stage, epoch: int) -> None:
        self._stage = stage
        drawing = {id(s): s for s in stage.walk() if isinstance(s, Seeded)}
        self._drawing = list(drawing.values())
        self._lock = threading.RLock()
        self._begin(epoch, 0, [s.seed for s in self._drawing])

    def _begin(self, epoch: int, delivered: int, seeds: list[int]) -> None:
        self._epoch, self._delivered, self._seeds = epoch, delivered, seeds
        self._to_skip = delivered
        self._run = Run({id(s): n for s, n in zip(self._drawing, seeds, strict=True)})
        self._items: Items | None = None  # opened with the first element
        self._ended = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, self._run.close, wait=False)

    @property
    def delivered(self) -> int:
        """How many elements were given."""
        return self._delivered

    def cardinality(self) -> int | None:
        """The number of elements of the dataset, those given included; None if not known."""
        return self._stage.cardinality()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopIteration
            if self._process != os.getpid():
                raise FailedPreconditionError(
                    "this iterator of a dataset was made before a fork, and its threads are the "
                    "parent's",
                    hint="make one in the child; load_state_dict(parent's state) takes it there",
                    location=caller_location(),
                )
            try:
                element = self._pull()
            except StopIteration:
                self.close()
                raise
            except BaseException as error:
                self.close()
                self._error = error
                raise
            self._delivered += 1
            return element

    def _pull(self) -> Any:
        items = self._items
        if items is None:
            items = self._items = self._stage.open(self._run, self._epoch)
        if self._to_skip:
            self._pass_over(items)
        item = next(items)
        try:
            return item()
        except StopIteration as error:  # it would end the loop, and nobody would know
            raise RuntimeError("making an element raised StopIteration") from error

    def _pass_over(self, items: Items) -> None:
        self._run.skipping = True
        done = Gap(items, self._to_skip).close()
        self._run.skipping = False
        if done < self._to_skip:
            raise FailedPreconditionError(
                f"the iterator's state is after element {self._to_skip}, but there are only {done} "
                f"now: {self._describe()}",
                hint="the data must be the same as when the state was saved",
                location=caller_location(),
            )
        self._to_skip = 0

    def close(self) -> None:
        """Stop the threads and wait for them; there are no more elements. A second time is
        allowed."""
        self._ended = True
        self._finalizer.detach()
        self._run.close()
        self._items = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    # ------------------------------------------------------------------------------- checkpoints
    def _describe(self) -> str:
        """The stages that decide what comes; how far ahead it is made may change."""
        return self._stage.shown(ahead=False)

    def state_dict(self) -> dict[str, Any]:
        """Where it is: the number of elements given, the seeds, and the pipeline as text. It takes
        no lock and waits for nobody, so a `wf.train.Saver` may save it. UnsupportedError where
        threads decide the order (deterministic=False): a number of elements is no place there."""
        self._check_ordered()
        return {
            "pipeline": self._describe(),
            "epoch": self._epoch,
            "delivered": self._delivered,
            "seeds": list(self._seeds),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the element that `state` was saved after, with its seeds.

        What comes before is passed over with the next element: rows of arrays at once, elements of
        files and generators by reading them again; functions given to `map` are not called for
        them. InvalidArgumentError, and no change, for the state of another pipeline.
        """
        self._check_ordered()
        given: object = state
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(
                f"load_state_dict takes what state_dict gave, not {given!r:.60}",
                location=caller_location(),
            )
        if state.get("pipeline") != self._describe():
            raise InvalidArgumentError(
                f"the state is that of another dataset:\n  it has   {state.get('pipeline')}\n"
                f"  this is  {self._describe()}",
                hint="load it into an iterator of a dataset that is made alike",
                location=caller_location(),
            )
        numbers = [state.get(k) for k in ("epoch", "delivered")]
        epoch, delivered = (at_least(n, 0, "a number of the state") for n in numbers)
        drawn = state.get("seeds")
        seeds = [at_least(n, 0, "a seed") for n in (drawn if isinstance(drawn, Sequence) else ())]
        if len(seeds) != len(self._drawing):
            raise InvalidArgumentError(
                f"the state has {len(seeds)} seeds, not {len(self._drawing)}"
            )
        with self._lock:
            self.close()
            self._begin(epoch, delivered, seeds)

    def _check_ordered(self) -> None:
        loose = next((s.text for s in self._stage.walk() if not s.ordered), None)
        if loose is not None:
            raise UnsupportedError(
                f"the place in a dataset is not known where threads decide the order: {loose}",
                hint="leave out deterministic=False",
                location=caller_location(),
            )
