"""Sizes that remember how they came about: where the conditions hold for other sizes, a program
would have decided as it did, and its numbers are those that are computed anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st

from weft.ir.size_tape import MOST, Tape
from weft.ir.sizes import (
    hint,
    is_traced,
    largest,
    new_size,
    of_sizes,
    roughly,
    same_size,
    smallest,
    terms_of,
)

OPS = (
    "add", "sub", "mul", "floordiv", "mod", "ceil", "less", "equal", "price", "floor", "max",
    "largest", "smallest", "blocks", "known", "truth",
)  # fmt: skip
Step = tuple[str, int, int, int]


@of_sizes
def blocks(size: int, factor: int) -> tuple[int, int]:
    count = max(1, size // 7) if size > 50 else 3
    return count, factor * size


def run(program: Sequence[Step], sizes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The numbers and the decisions of a program."""
    held, decided = list(sizes), list[Any]()
    for op, i, j, constant in program:
        a, b = held[i % len(held)], held[j % len(held)]
        match op:
            case "add":
                held.append(a + b * constant)
            case "sub":
                held.append(a - constant)
            case "mul":
                held.append(a * b if -3000 < a < 3000 and -3000 < b < 3000 else a)
            case "floordiv":
                held.append(a // max(b, 1))
            case "mod":
                held.append(a % constant)
            case "ceil":
                held.append(-(-a // constant))
            case "less":
                decided.append(bool(a < b + constant))
            case "equal":
                decided.append(bool(a == constant))
            case "price":
                cost = 0.3 * a + 0.07 * constant * b
                decided.append(bool(cost / max(a, 1) < 0.5 * constant))
            case "floor":
                held.append(math.floor(a * 1.5 / constant))
            case "max":
                held.append(max(a, b))
            case "largest":
                held.append(largest(a, b + constant))
            case "smallest":
                held.append(smallest(a, b + constant))
            case "blocks":
                held += blocks(a, constant)
            case "known":
                decided.append(f"{a % 3}")
            case "truth":
                decided.append(bool(a - b))
    return held, decided


@examples(250)
@example([("add", 0, 0, 1), ("sub", 0, 0, 1), ("floor", 3, 0, 5)], [101, 2], [(51, 2), (50, 2)])
@given(
    program=st.lists(
        st.tuples(st.sampled_from(OPS), st.integers(0, 9), st.integers(0, 9), st.integers(1, 40)),
        max_size=12,
    ),
    sizes=st.lists(st.integers(2, 200), min_size=2, max_size=2),
    others=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=8, max_size=8),
)
def test_other_sizes_give_what_the_program_gives(
    program: list[Step], sizes: list[int], others: list[tuple[int, int]]
) -> None:
    tape = Tape()
    leaves = [new_size(tape, n) for n in sizes]
    held, decided = run(program, leaves)
    assert ([hint(x) for x in held], decided) == run(program, sizes)
    found = tape.sizes([terms_of(x) for x in held])
    mine = found.evaluate(sizes)
    assert mine is not None
    assert mine.tolist() == [hint(x) for x in held]
    near = [(sizes[0] + k, sizes[1] + k) for k in (-1, 1)]
    for given_sizes in (*others, *near):
        got = found.evaluate(given_sizes)
        if got is not None:
            wanted, then = run(program, given_sizes)
            assert got.tolist() == wanted
            assert decided == then


def test_what_is_known_is_no_condition() -> None:
    tape = Tape()
    n, m = new_size(tape, 10), new_size(tape, 10)
    assert n > 1
    assert n * 64 != 100
    assert n * 4 * m == m * 4 * n
    assert 64 * n // 64 is not None
    assert same_size(64 * n // 64, n)
    assert same_size((256 * n + 63) // 64, 4 * n)
    assert not same_size(n, m)
    assert largest(n + 1, 1) >= 2
    assert {n: 1}.get(n) == 1
    assert {n: 1}.get(m) is None  # equal now, but not the same
    assert isinstance(n, int)
    assert is_traced(n)
    assert tape.sizes([terms_of(n)]).evaluate([3, 5]).tolist() == [3]  # type: ignore[union-attr]
    assert tape.sizes([terms_of(n)]).evaluate([1, 5]) is None
    assert tape.sizes([terms_of(n)]).evaluate([MOST + 1, 5]) is None
    assert tape.sizes([terms_of(n)]).conditions == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda n: range(n),
        lambda n: f"{n}",
        lambda n: str(n),
        lambda n: [0] * n,
        lambda n: np.zeros(n),
        lambda n: np.array([n, 1], np.int64),
        lambda n: np.arange(3) * n,
        lambda n: n * np.arange(3),
        lambda n: int(n),
        lambda n: 1 << n,
        lambda n: math.log2(n),
        lambda n: n & 3,
        lambda n: np.arange(3) < n,
    ],
)
def test_what_needs_the_number_fixes_it(use: Any) -> None:
    tape = Tape()
    n = new_size(tape, 12)
    made, wanted = use(n), use(12)
    assert np.array_equal(np.asarray(made), np.asarray(wanted))
    found = tape.sizes([terms_of(n)])
    assert found.evaluate([12]) is not None
    assert found.evaluate([13]) is None


def test_roughly_allows_a_factor_of_eight() -> None:
    tape = Tape()
    n = new_size(tape, 80)
    assert roughly(n * 4) == 320
    found = tape.sizes([terms_of(n)])
    assert [found.evaluate([k]) is not None for k in (9, 10, 80, 640, 641)] == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_a_number_of_another_tape_is_plain() -> None:
    """What a cache has kept."""
    first, second = Tape(), Tape()
    kept, n = new_size(first, 7), new_size(second, 9)
    total = n + kept
    assert total == 16 - 9 + n
    found = second.sizes([terms_of(total)])
    assert found.evaluate([20]).tolist() == [27]  # type: ignore[union-attr]
    assert first.sizes([terms_of(kept)]).conditions == 0
