"""The rendezvous: who waits gets, once, in any order; aborts and limits."""

from __future__ import annotations

import random
import threading
from array import array
from functools import partial
from typing import Any

import pytest

from weft.comm.errors import CommError, DuplicateKeyError, LimitError, StepOverError
from weft.comm.limits import Limits
from weft.comm.rendezvous import DEAD, MASTER_SHIFT, Key, Rendezvous

KEY = (3, ())


def take(rendezvous: Rendezvous, step: int, key: tuple[int, tuple[int, ...]] = KEY) -> list[Any]:
    got: list[Any] = []
    rendezvous.get(step, key, got.append)
    return got


def test_value_first_and_reader_first() -> None:
    r = Rendezvous()
    assert r.put(1, KEY, "a", size=10)
    assert r.held_bytes == 10
    assert take(r, 1) == ["a"]
    assert r.held_bytes == 0
    got = take(r, 1)
    assert got == []
    assert r.put(1, KEY, DEAD)
    assert got == [DEAD]


def test_iterations_and_steps_are_apart() -> None:
    r = Rendezvous()
    first, second, other = take(r, 1, (3, (0,))), take(r, 1, (3, (1,))), take(r, 2, (3, (0,)))
    r.put(1, (3, (1,)), "second")
    assert (first, second, other) == ([], ["second"], [])
    r.put(2, (3, (0,)), "other")
    assert (first, other) == ([], ["other"])


def test_second_value_and_second_reader_are_errors() -> None:
    r = Rendezvous()
    r.put(1, KEY, "a")
    twice = r"step 1 has an offer or value for key \(3, \(\)\)"
    with pytest.raises(DuplicateKeyError, match=twice):
        r.put(1, KEY, "b")
    assert take(r, 1) == ["a"]
    take(r, 1)
    (error,) = take(r, 1)
    assert isinstance(error, DuplicateKeyError)


def test_abort_wakes_all_and_keeps_the_first_error() -> None:
    r = Rendezvous()
    taken: list[str] = []
    r.put(1, (9, ()), "unread", size=5, on_taken=lambda: taken.append("dropped"))
    got, other = take(r, 1), take(r, 2)
    first = RuntimeError("first")
    assert r.abort(1, first)
    assert not r.abort(1, RuntimeError("second"))
    assert got == [first]
    assert other == []
    assert take(r, 1, (4, ())) == [first]
    assert taken == ["dropped"]
    assert r.held_bytes == 0
    assert not r.put(1, KEY, "late", on_taken=lambda: taken.append("late"))
    assert taken == ["dropped", "late"]
    assert r.is_over(1)
    assert not r.is_over(2)


def test_abort_before_anything_is_known() -> None:
    r = Rendezvous()
    error = RuntimeError("early")
    assert r.abort(5, error)
    assert take(r, 5) == [error]


def test_forget_is_per_master_and_for_good() -> None:
    r = Rendezvous()
    other = (7 << MASTER_SHIFT) | 1
    waiter = take(r, 2)
    r.put(3, KEY, "kept")
    r.put(other, KEY, "other")
    r.forget(2)
    assert isinstance(waiter[0], StepOverError)
    assert not r.put(1, KEY, "late")
    assert isinstance(take(r, 2)[0], StepOverError)
    assert take(r, 3) == ["kept"]
    assert take(r, other) == ["other"]
    r.forget(1)  # goes nowhere
    assert r.is_over(2)


def test_cancel_of_one_reader() -> None:
    r = Rendezvous()
    got = take(r, 1)
    late = TimeoutError("late")
    assert r.cancel(1, KEY, late)
    assert got == [late]
    assert not r.cancel(1, KEY, late)
    r.put(1, KEY, "a")
    assert take(r, 1) == ["a"]


def test_offer_is_claimed_by_a_reader() -> None:
    r = Rendezvous()
    claims: list[str] = []
    assert not r.offer(1, KEY, lambda: claims.append("one"))
    assert r.unclaimed(1) == [KEY]
    assert claims == []
    got = take(r, 1)
    assert claims == ["one"]
    with pytest.raises(DuplicateKeyError):
        r.offer(1, KEY, lambda: claims.append("again"))
    r.put(1, KEY, "a")
    assert got == ["a"]
    got = take(r, 1)
    assert r.offer(1, KEY, lambda: claims.append("two"))
    assert claims == ["one", "two"]
    assert [(w.key, w.offered) for w in r.waiting(1)] == [(KEY, True)]
    r.abort(2, RuntimeError("x"))
    with pytest.raises(StepOverError, match="aborted"):
        r.offer(2, KEY, lambda: None)


def test_withdrawn_offer() -> None:
    r = Rendezvous()
    r.offer(1, KEY, lambda: pytest.fail("claimed"))
    assert r.withdraw(1, KEY)
    assert not r.withdraw(1, KEY)
    got = take(r, 1)
    r.put(1, KEY, "a")
    assert got == ["a"]


@pytest.mark.parametrize("way", ["put", "offer"])
def test_what_comes_as_native_code_begins(way: str) -> None:
    """Its step is recalled, as native code does not look for what is kept here."""
    looks = iter([0, 1])

    class Lent(array):  # type: ignore[type-arg]
        def __getitem__(self, place: Any) -> Any:
            return next(looks)

    table, recalled = Rendezvous(Limits()), list[int]()
    table.lend(Lent("q", [0]), recalled.append)
    if way == "put":
        table.put(1, (7, ()), 5)
    else:
        table.offer(1, (7, ()), lambda: None)
    assert recalled == [1]


def test_limits() -> None:
    r = Rendezvous(Limits(held_bytes=100, steps=2, keys=2))
    r.put(1, (1, ()), "a", size=60)
    with pytest.raises(LimitError, match="60 bytes wait to be taken, 50 more of step 1"):
        r.put(1, (2, ()), "b", size=50)
    got = take(r, 1, (2, ()))
    r.put(1, (2, ()), "b", size=50)  # somebody waits: nothing is held
    assert got == ["b"]
    r.put(1, (2, ()), "b")
    with pytest.raises(LimitError, match="step 1 has 2 keys"):
        r.put(1, (3, ()), "c")
    r.put(2, KEY, "a")
    with pytest.raises(LimitError, match="step 3 would be the 3th"):
        r.put(3, KEY, "a")
    r.forget(1)
    assert r.held_bytes == 0
    r.put(3, KEY, "a")


def test_waiting_says_who_waits_longest() -> None:
    r = Rendezvous()
    take(r, 1, (1, ()))
    take(r, 1, (2, (5,)))
    r.put(1, (3, ()), "x")
    assert [w.key for w in r.waiting(1)] == [(1, ()), (2, (5,))]
    assert r.waiting(2) == []
    assert r.unclaimed(1) == [(3, ())]


def test_threads_meet() -> None:
    """Each of many values is got exactly once, whoever comes first."""
    r = Rendezvous()
    got: dict[int, int] = {}
    count = 2000

    def put(parity: int) -> None:
        for key in range(parity, count, 2):
            r.put(1, (key, ()), key)

    def get(parity: int) -> None:
        for key in range(count - 1 - parity, -1, -2):
            r.get(1, (key, ()), lambda value, key=key: got.__setitem__(key, value))  # type: ignore[misc]

    threads = [threading.Thread(target=f, args=(p,)) for f in (put, get) for p in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {key: key for key in range(count)}
    assert r.waiting(1) == r.unclaimed(1) == []


def test_steps_that_nothing_waits_in_take_no_room() -> None:
    """However many steps there are between two that are forgotten."""
    r, error = Rendezvous(Limits(steps=4)), LimitError("late")
    for step in range(1, 50):
        assert take(r, step) == []
        r.put(step, KEY, step)
        r.put(step, KEY, step)
        assert take(r, step) == [step]
        r.offer(step, KEY, lambda: None)
        assert r.withdraw(step, KEY)
        got = take(r, step)
        assert r.cancel(step, KEY, error)
        assert got == [error]
        assert r.steps == 0
    r.abort(50, error)
    assert (r.steps, take(r, 50)) == (1, [error])


def test_nobody_waits_once_all_steps_are_ended() -> None:
    r, error = Rendezvous(), LimitError("closed")
    got = take(r, 1)
    r.abort_all(error)
    assert got == [error]
    assert (take(r, 1), take(r, 2)) == ([error], [error])
    assert not r.put(3, KEY, "x")


def test_aborted_steps_make_room_for_others() -> None:
    """Steps that fail beside a long one, up to which nothing is forgotten."""
    r, error = Rendezvous(Limits(steps=4)), LimitError("failed")
    long = take(r, 1)
    for step in range(2, 50):
        r.abort(step, error)
        assert take(r, step) == [error]
        assert r.steps <= 4
    r.put(1, KEY, "came")
    assert long == ["came"]


def _one_history(seed: int, together: bool) -> list[Any]:
    """What a reader of five keys hears, and others see, while things happen at random; what one
    turn brings is in no order."""
    rng, table, seen = random.Random(seed), Rendezvous(), []
    history: list[list[Any]] = []
    keys: list[Key] = [(k, ()) for k in range(5)]
    wanted = {key: (i, f"task {i % 2}") for i, key in enumerate(keys)}
    asks = rng.randrange(8)

    def note(number: int, made: Any) -> None:
        seen.append((number, made if isinstance(made, int) else repr(made)))

    def ask() -> None:
        if together:
            table.expect(1, wanted, note)
            return
        for key, (number, source) in wanted.items():
            table.get(1, key, partial(note, number), source)

    for turn in range(30):
        if turn == asks:
            ask()
        key = rng.choice(keys)
        source = f"task {key[0] % 2}" if rng.random() < 0.8 else "a stranger"
        act = rng.choices(["put", "offer", "cancel", "look", "get", "abort", "forget"],
                          [60, 12, 6, 10, 6, 3, 3])[0]  # fmt: skip
        try:
            if act == "put":
                seen.append(table.put(1, key, turn, size=8, source=source))
            elif act == "offer":
                seen.append(table.offer(1, key, partial(seen.append, f"claim {key}"), source))
            elif act == "cancel":
                seen.append(table.cancel(1, key, RuntimeError("cancelled")))
            elif act == "look":
                found = [(w.key, w.offered) for w in table.waiting(1)]
                seen += [sorted(found), sorted(table.unclaimed(1)), table.held_bytes]
            elif act == "get":
                table.get(1, key, partial(note, 9), source)
            elif act == "abort":
                seen.append(table.abort(1, RuntimeError("aborted")))
            else:
                table.forget(1)
        except CommError as error:
            seen.append(repr(error))
        seen.append(table.steps)
        history.append(sorted(seen, key=repr))
        seen.clear()
    return history


def test_expect_is_get_for_each_key() -> None:
    told = [_one_history(seed, together=True) for seed in range(60)]
    assert told == [_one_history(seed, together=False) for seed in range(60)]
    assert str(told).count("(4, ") > 40  # much has come
