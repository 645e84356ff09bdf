"""Sizes that a plan is made for and that may become others: what passes and planning say of them.

A size is an `int`, or a `traced_sizes.Traced`, which behaves as one and notes what depends on it.
Where a number only steers speed, or is in a text for people, `hint` gives it without a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from weft.ir.polynomials import Terms, atoms_in, subtracted, text_of
from weft.ir.size_tape import FAR, Tape
from weft.ir.traced_floats import OnTape, now
from weft.ir.traced_sizes import Traced


def new_size(tape: Tape, value: int) -> int:
    """A size that is now `value`, at least 2."""
    return cast(int, Traced(tape, value, tape.leaf(value)))


def hint(x: int) -> int:
    """The number as it is now: for choices that are right whatever it is."""
    return int(now(x))


def fixed(x: Any) -> Any:
    """A number, or a tuple of such, as Python's own; one from a tape must stay what it is."""
    if isinstance(x, tuple):
        return tuple([fixed(v) for v in x])
    return int(x) if type(x) is Traced else x


def roughly(x: Any) -> int:
    """The number as it is now, for choices that are right whatever it is, and good for numbers like
    it: a condition is that the sizes that it is made of change by a factor of at most 8."""
    if type(x) is not Traced:
        return int(x)
    for number in x.atoms:
        one = Traced(x.tape, x.tape.atoms[number].value, {(number,): 1})
        if not one.value // 8 <= one <= 8 * one.value:
            raise AssertionError
    return int(x.value)


def is_traced(x: object) -> bool:
    """Whether the number comes from a tape."""
    return type(x) is Traced


def terms_of(x: Any) -> Terms:
    """The polynomial that a number is."""
    if type(x) is Traced:
        return x.terms
    return {(): x} if x else {}


def is_wide(x: object) -> bool:
    """Whether the number comes from a tape that is to serve as many sizes as it can."""
    return isinstance(x, OnTape) and x.tape.wide


def same_size(a: int, b: int) -> bool:
    """Whether two sizes are equal whatever the sizes are that they are made of; no condition."""
    return a is b or terms_of(a) == terms_of(b)


def at_most(a: int, b: int) -> bool:
    """Whether a <= b is known, whatever the sizes are that they are made of; no condition."""
    given: tuple[Any, Any] = (a, b)
    tape = next((x.tape for x in given if type(x) is Traced), None)
    if tape is None or same_size(a, b):
        return hint(a) <= hint(b)
    return bool(tape.interval(subtracted(terms_of(b), terms_of(a)))[0] >= 0)


def largest(a: Any, b: Any) -> int:
    """The larger one; no condition which that is."""
    return _chosen(max, a, b)


def smallest(a: Any, b: Any) -> int:
    """The smaller one; no condition which that is."""
    return _chosen(min, a, b)


def _chosen(choose: Callable[[Any, Any], Any], a: Any, b: Any) -> int:
    tape = next((x.tape for x in (a, b) if type(x) is Traced), None)
    if tape is None:
        return int(choose(a, b))
    (low, high), (least, most) = (tape.interval(terms_of(x)) for x in (a, b))
    if low >= most or least >= high:
        first = (low >= most) == (choose is max)
        return cast(int, a if first else b)
    texts = sorted(text_of(terms_of(x)) for x in (a, b))
    atoms = atoms_in((*terms_of(a), *terms_of(b)))
    ends, found = (choose(low, least), choose(high, most)), choose(now(a), now(b))
    (made,) = tape.opaque(f"{choose.__name__}({', '.join(texts)})", atoms, [found], ends)
    return cast(int, Traced(tape, found, made))


def of_sizes(function: Callable[..., tuple[int, ...]]) -> Callable[..., tuple[int, ...]]:
    """Decorate a function from sizes, and what has a plain value, to sizes that is called anew for
    other ones: what it compares is no condition. How many it gives must not depend on them."""

    def call(*args: Any) -> tuple[int, ...]:
        tape = next((a.tape for a in args if isinstance(a, OnTape)), None)
        if tape is None:
            return function(*args)
        values = [now(a) for a in args]
        found = function(*values)
        fixed = tuple((k, v) for k, (a, v) in enumerate(zip(args, values, strict=True)) if a is v)
        return _called(tape, _Partial(function, len(args), fixed), args, found)

    return call


class _Partial:
    """A function with some arguments filled in: equal to another one that gives the same."""

    def __init__(
        self, function: Callable[..., Any], count: int, fixed: tuple[tuple[int, Any], ...]
    ) -> None:
        self.function, self.count, self.fixed = function, count, fixed

    def __call__(self, *given: Any) -> Any:
        rest, args = iter(given), [None] * self.count
        for k, value in self.fixed:
            args[k] = value
        taken = {k for k, _ in self.fixed}
        for k in range(self.count):
            if k not in taken:
                args[k] = next(rest)
        return self.function(*args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Partial) and (self.function, self.count, self.fixed) == (
            other.function, other.count, other.fixed
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.function, self.count))


def _called(
    tape: Tape, function: Callable[..., Any], args: Iterable[Any], found: tuple[int, ...]
) -> tuple[int, ...]:
    given = [a for a in args if isinstance(a, OnTape)]
    atoms = frozenset(k for a in given for k in a.atoms)
    text = f"{tape.called(function)}({', '.join(a.text for a in given)})"
    text += "[0]" if len(found) == 1 else ""
    made = tape.opaque(text, atoms, found, (-FAR, FAR))
    return tuple([cast(int, Traced(tape, v, t)) for v, t in zip(found, made, strict=True)])


def next_power(n: int) -> int:
    """The least power of two that is not less than n; of other sizes, that of those."""
    return _next_power(n)[0]


@of_sizes
def _next_power(n: int) -> tuple[int, ...]:
    return (1 << max(n - 1, 0).bit_length(),)
