"""Random arithmetic in kernel source, by its rules, for whoever gives it a meaning."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from weft.codegen.cuda.source.kernel import CASTS, NUMPY

INTEGERS = [d for d in CASTS if d[0] in "iu"]
COUNT = 24


class Expressions:
    """Texts of expressions over `a_DTYPE` and `b_DTYPE`, of every dtype."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of(self, dtype: str, depth: int) -> str:
        """One of `dtype`, wrapped where the vocabulary asks for it."""
        pick = self.random.choice
        if depth == 0:
            return pick([f"a_{dtype}", f"b_{dtype}", f"{dtype}({self.literal(dtype)})"])
        kind = self.random.randrange(6)
        if kind == 0:
            return f"({self.of(dtype, depth - 1)} if {self.condition(depth - 1)} else " + (
                f"{self.of(dtype, depth - 1)})"
            )
        if kind == 1:
            return self.cast(dtype, depth - 1)
        left, right = self.of(dtype, depth - 1), self.of(dtype, depth - 1)
        if dtype[0] == "f":
            return f"({left} {pick('+-*/')} {right})" if kind > 2 else f"(-{left})"
        if kind == 2:
            return f"{dtype}({pick('-~')}{left})"
        if kind == 3:
            return f"{dtype}({left} {pick(['<<', '>>'])} {self.random.randrange(42)})"
        op = pick(["+", "-", "*", "&", "|", "^", "//", "%"])
        return f"{dtype}({left} {op} {right})"

    def cast(self, dtype: str, depth: int) -> str:
        """From another dtype, or from arithmetic that is wider than its operands."""
        if dtype[0] == "f":
            return f"{dtype}({self.of(self.random.choice(CASTS), depth)})"
        other = self.random.choice(INTEGERS)
        if self.random.randrange(4) == 0:
            return f"{dtype}({self.condition(depth)})"
        left, right = self.of(other, depth), self.of(other, depth)
        return f"{dtype}({left} {self.random.choice('+-*&')} {right})"

    def condition(self, depth: int) -> str:
        """One of type bool."""
        pick, dtype = self.random.choice, self.random.choice(CASTS)
        kind = self.random.randrange(5 if depth else 2)
        order = pick(["<", "<=", ">", ">=", "==", "!="])
        if kind == 0 and dtype[0] in "iu":
            return f"({self.of(dtype, depth)} {order} {self.literal('i8')})"
        if kind <= 1:
            return f"({self.of(dtype, depth)} {order} {self.of(dtype, depth)})"
        if kind == 2:
            return f"(not {self.condition(depth - 1)})"
        if kind == 3:
            return f"boolean({self.of(dtype, depth)})"
        word = pick(["and", "or", "&", "|", "^"])
        return f"({self.condition(depth - 1)} {word} {self.condition(depth - 1)})"

    def literal(self, dtype: str) -> str:
        """A number for a cast."""
        if dtype[0] == "f":
            return repr(self.random.choice([0.0, -0.0, 1.5, -2.25, 0.1, 1e30]))
        return str(self.random.choice([0, 1, 2, 7, -1, -3, 100]))


def values(dtype: str, seed: int) -> np.ndarray:
    """COUNT numbers with the extremes among them."""
    rng = np.random.default_rng(seed)
    if dtype[0] == "f":
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 0.1, -3.0]
        return rng.permutation([*special, *rng.normal(size=COUNT - 8) * 1e3]).astype(NUMPY[dtype])
    info = np.iinfo(NUMPY[dtype])
    low, high = max(info.min, -50), 50
    plain = rng.integers(low, high, COUNT - 5, dtype=np.int64).astype(NUMPY[dtype])
    special = np.array([info.min, info.max, 0, 1, info.max // 2], NUMPY[dtype])
    return rng.permutation(np.concatenate([plain, special]))


def program(seed: int, each: int, dtypes: Sequence[str] = CASTS) -> list[str]:
    """Statements that write `each` expressions of each dtype to out_DTYPE[number * COUNT + t]."""
    made = Expressions(seed)
    lines = [f"{v}_{d} = x{v}_{d}[t]" for d in CASTS for v in "ab"]
    for dtype in dtypes:
        for number in range(each):
            text = made.of(dtype, 3)
            lines.append(f"out_{dtype}[i64({number * COUNT}) + t] = {text}")
    return lines
