"""`progress`: a bar in the terminal while something is iterated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from weft.frontend.data.dataset import Dataset
from weft.frontend.data.iterator import DatasetIterator

T = TypeVar("T")


def progress(
    elements: Iterable[T], description: str = "", total: int | None = None, **options: Any
) -> Iterator[T]:
    """The elements, with a rich progress bar: how many of `total`, elements per second, the time
    left. `total` is known for datasets of known size and for what has a `len`; without it the bar
    shows what is done.

    options: those of `rich.progress.Progress`, such as disable=True or console=. The threads of a
    dataset end with the loop, however it ends.
    """
    if total is None:
        if isinstance(elements, Dataset):
            total = elements.cardinality()
        elif isinstance(elements, DatasetIterator):
            whole = elements.cardinality()
            total = None if whole is None else whole - elements.delivered
        elif isinstance(elements, Sized):
            total = len(elements)
    return _shown(elements, description, total, options)


def _shown(
    elements: Iterable[T], description: str, total: int | None, options: dict[str, Any]
) -> Iterator[T]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    iterator = iter(elements)
    try:
        with Progress(*columns, **options) as bar:
            task = bar.add_task(description, total=total)
            for element in iterator:
                yield element
                bar.advance(task)
    finally:
        if isinstance(iterator, DatasetIterator) and iterator is not elements:
            iterator.close()
