"""Putting things in order where some must come before others."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def stable_order(items: Sequence[T], before: Callable[[T], Iterable[T]]) -> list[T]:
    """The items, each after those of them that `before` names, else as they are given (Kahn 1962).

    What lies on a cycle, or after one, is left out.
    """
    position = {item: i for i, item in enumerate(items)}
    after: dict[T, list[T]] = {item: [] for item in items}
    missing = dict.fromkeys(items, 0)
    for item in items:
        for first in dict.fromkeys(before(item)):
            after[first].append(item)
            missing[item] += 1
    ready = [i for item, i in position.items() if not missing[item]]
    out: list[T] = []
    while ready:
        item = items[heapq.heappop(ready)]
        out.append(item)
        for follower in after[item]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, position[follower])
    return out
