"""States that are cut, foreign or malformed: one clear error each, and nothing is changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf

E = wf.errors


def made(kind: str) -> Any:
    """One that holds something."""
    match kind:
        case "table":
            thing: Any = wf.MutableHashTable(wf.string, wf.float32, [0.0, 0.0])
            thing.insert(["a", "b"], [[1.0, 2.0], [3.0, 4.0]])
        case "barrier":
            thing = wf.Barrier([wf.float32, wf.int64], [[2], []])
            thing.insert_many(0, ["p", "q", "r"], np.ones((3, 2), np.float32))
            thing.insert_many(1, ["q"], [5])
        case "dense":
            thing = wf.ConditionalAccumulator(wf.float32, [3])
            thing.apply_grad([1.0, 2.0, 3.0])
        case "rows":
            thing = wf.SparseConditionalAccumulator(wf.float32, [4, 2])
            thing.apply_grad([1, 3], [[1.0, 2.0], [3.0, 4.0]])
        case "stack":
            thing = wf.Stack(wf.float32, 2, element_shape=[2])
            thing.push([1.0, 2.0])
        case "fifo":
            thing = wf.FIFOQueue(5, [wf.float32, wf.string], [[2], []])
            thing.enqueue([[1.0, 2.0], "x"])
        case _:
            thing = wf.RandomShuffleQueue(5, 0, [wf.float32], [[2]], seed=3)
            thing.enqueue([[1.0, 2.0]])
    return thing


KINDS = ["table", "barrier", "dense", "rows", "stack", "fifo", "shuffle"]
MISSING = object()
#: What no part of any state may be.
BROKEN = [
    MISSING,
    2**80,
    "x",
    [1],
    3.5,
    np.zeros(3),
    [None],
    [np.zeros(3)],
    np.array(["a"], object),
]


def places(state: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = list(state) if isinstance(state, dict) else range(len(state))
    for key in keys:
        yield (*at, key)
        if isinstance(state[key], (dict, list)):
            yield from places(state[key], (*at, key))


def broken(state: Any, place: tuple[Any, ...], value: Any) -> Any:
    out = copy.deepcopy(state)
    *way, last = place
    inner = out
    for key in way:
        inner = inner[key]
    if value is MISSING:
        del inner[last]
    else:
        inner[last] = value
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_no_part_may_be_broken(kind: str) -> None:
    thing = made(kind)
    state = thing.state_dict()
    for place in places(state):
        if place == ("closed",) or (place[0] == "incomplete" and isinstance(place[-1], int)):
            continue  # anything is true or false; one key fewer is a state, too
        for value in BROKEN:
            with pytest.raises(E.WeftError) as error:
                thing.load_state_dict(broken(state, place, value))
            assert thing.name in str(error.value), place
            assert __file__ in str(error.value)
            assert str(thing.state_dict()) == str(state), place
    thing.load_state_dict(state)


def test_what_does_not_fit_together() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("dense", {"count": 0}, "no sum, or a sum of nothing"),
        ("dense", {"count": -1}, "out of range"),
        ("dense", {"sum": np.zeros(3)}, "array of float32 was expected, not float64"),
        ("rows", {"counts": np.array([1, 0])}, "do not fit together"),
        ("rows", {"indices": np.array([3, 1])}, "do not fit together"),
        ("rows", {"indices": np.array([1, 4])}, r"index 4 is no row of \[4,2\]"),
        ("stack", {"values": np.zeros((3, 2), np.float32)}, "3 values were saved, max_size=2"),
        ("stack", {"values": np.zeros((1, 2))}, "array of float32 was expected"),
        ("fifo", {"components": [np.ones((1, 2), np.float32)] * 2}, "array of string was expected"),
        ("shuffle", {"count": -1}, "out of range"),
        ("table", {"keys": np.array(["a", "b"], object)}, "strings are bytes"),
    ]
    for kind, change, text in cases:
        thing = made(kind)
        state = thing.state_dict()
        with pytest.raises(E.WeftError, match=text):
            thing.load_state_dict({**state, **change})
        assert str(thing.state_dict()) == str(state)
    barrier = made("barrier")
    state = barrier.state_dict()
    state["incomplete"][0]["values"] = [None, None]
    with pytest.raises(E.InvalidArgumentError, match="misses no component, or all"):
        barrier.load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_loaded_is_a_copy(kind: str) -> None:
    thing = made(kind)
    state, wanted = thing.state_dict(), str(thing.state_dict())
    thing.load_state_dict(state)
    for place in places(state):
        inner: Any = state
        for key in place:
            inner = inner[key]
        if isinstance(inner, np.ndarray) and inner.dtype != object:
            inner[...] = 7
    assert str(thing.state_dict()) == wanted
