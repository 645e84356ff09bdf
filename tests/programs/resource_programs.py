"""Random programs on tables, barriers, accumulators, stacks and queues, in branches and loops.

One walk over a program does everything at once (Python's if and while, objects outside of graphs),
which is the truth; another adds it to a `wf.Graph`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from hypothesis import strategies as st
from program_forms import Outcome, Program, Steps, contents

import weft as wf

#: ("name of an op", number of a value) or ("cond" / "loop", number of a value, bodies).
Command = tuple[Any, ...]
LATE = 10**6  # a step that no accumulator has moved on to


def objects() -> dict[str, Any]:
    """One of each, and two queues."""
    return {
        "table": wf.MutableHashTable(wf.int64, wf.int64, -1, name="table"),
        "words": wf.MutableHashTable(wf.string, wf.int64, 0, name="words"),
        "barrier": wf.Barrier([wf.int64, wf.int64], [[], []], name="barrier"),
        "dense": wf.ConditionalAccumulator(wf.float64, [], name="dense", reduction_type="SUM"),
        "rows": wf.SparseConditionalAccumulator(wf.float64, [4, 2], name="rows"),
        "stack": wf.Stack(wf.int64, element_shape=[], name="stack"),
        "q0": wf.FIFOQueue(-1, wf.int64, [[]], name="q0"),
        "q1": wf.FIFOQueue(-1, wf.int64, [[]], name="q1"),
    }


class Walk:
    """Carries commands out, or adds them to the graph that is current."""

    def __init__(self, held: dict[str, Any], in_graph: bool) -> None:
        self.held = held
        self.in_graph = in_graph
        self.last: list[Any] = []

    def then(self, call: Any) -> Any:
        """The call, after the last one."""
        with wf.control_dependencies(self.last) if self.in_graph else nullcontext():
            made = call()
        leaves = list(made) if isinstance(made, (list, tuple)) else [made]
        self.last = [x for x in leaves if x is not None] or self.last
        return made

    def commands(self, commands: Sequence[Command], pool: list[Any]) -> None:
        for name, number, *bodies in commands:
            x = pool[number % len(pool)]
            pool.append(getattr(self, name)(x, len(pool), *bodies) % 97)

    def body(self, commands: Sequence[Command], pool: list[Any]) -> Any:
        """The last value of a body, which begins anew: its ops are in program order."""
        outside, self.last = self.last, []
        self.commands(commands, pool := list(pool))
        self.last = outside
        return pool[-1]

    # ----------------------------------------------------------------------------- control flow
    def cond(self, x: Any, n: int, one: Any, other: Any) -> Any:
        branches = [lambda c=c: self.body(c, [x]) for c in (one, other)]
        if self.in_graph:
            return self.then(lambda: wf.cond(x % 2 == 0, *branches))
        return branches[int(x) % 2]()

    def loop(self, x: Any, n: int, inner: Any) -> Any:
        def step(i: Any, value: Any) -> list[Any]:
            return [i + 1, (value + self.body(inner, [value, i])) % 97]

        if self.in_graph:
            loop = lambda: wf.while_loop(lambda i, v: i < x % 4, step, [wf.constant(0), x])  # noqa: E731
            return self.then(loop)[1]
        i, value = wf.constant(0), x
        while int(i) < int(x) % 4:
            i, value = step(i, value)
        return value

    # ------------------------------------------------------------------------------------ tables
    def insert(self, x: Any, n: int) -> Any:
        self.then(lambda: self.held["table"].insert(wf.stack([x % 5, x % 3]), wf.stack([x, x + 1])))
        return x + n

    def remove(self, x: Any, n: int) -> Any:
        self.then(lambda: self.held["table"].remove(x % 5))
        return x + n

    def lookup(self, x: Any, n: int) -> Any:
        return self.then(lambda: self.held["table"].lookup(x % 5)) + 1

    def export(self, x: Any, n: int) -> Any:
        keys, values = self.then(self.held["table"].export)
        return wf.sum(keys * 3 + values) + self.then(self.held["table"].size)

    def count_word(self, x: Any, n: int) -> Any:
        word = self.then(lambda: self.held["words"].lookup("a"))
        self.then(lambda: self.held["words"].insert("a", word + x))
        return word

    # --------------------------------------------------------------------- barriers, accumulators
    def barrier(self, x: Any, n: int) -> Any:
        b = self.held["barrier"]
        keys = ["k", "l"]
        self.then(lambda: b.insert_many(0, keys, wf.stack([x, x * 2])))
        left = self.then(b.incomplete_size)
        self.then(lambda: b.insert_many(1, keys[::-1], wf.stack([x * 3, x * 5])))
        first, _, (one, two) = self.then(lambda: b.take_many(2, allow_small_batch=n % 2 == 0))[:3]
        return wf.sum(one * two * wf.constant([1, 7])) + wf.astype(left, wf.int64) + first[0] % 8

    def apply(self, x: Any, n: int) -> Any:
        a = self.held["dense"]
        self.then(lambda: a.apply_grad(wf.astype(x, wf.float64), local_step=x % 8))
        return wf.astype(self.then(a.num_accumulated), wf.int64)

    def take(self, x: Any, n: int) -> Any:
        a = self.held["dense"]
        self.then(lambda: a.apply_grad(wf.astype(x, wf.float64), local_step=LATE))
        return wf.astype(self.then(lambda: a.take_grad(1)), wf.int64)

    def set_step(self, x: Any, n: int) -> Any:
        self.then(lambda: self.held["dense"].set_global_step(x % 6))
        return x + 2

    def apply_rows(self, x: Any, n: int) -> Any:
        rows = wf.astype(wf.stack([wf.stack([x, x + 1]), wf.stack([x * 2, x])]), wf.float64)
        where = wf.stack([x % 4, (x + n) % 4])
        self.then(lambda: self.held["rows"].apply_grad(where, rows, local_step=LATE))
        return x + n

    def take_rows(self, x: Any, n: int) -> Any:
        self.apply_rows(x, n)
        indices, values, *_ = self.then(lambda: self.held["rows"].take_grad(1)[:2])
        return wf.sum(indices) + wf.astype(wf.sum(values * 6), wf.int64)

    # -------------------------------------------------------------------------- stacks and queues
    def push(self, x: Any, n: int) -> Any:
        return self.then(lambda: self.held["stack"].push(x)) + 1

    def pop(self, x: Any, n: int) -> Any:
        self.push(x * 2, n)
        size = self.then(self.held["stack"].size)
        return self.then(self.held["stack"].pop) + wf.astype(size, wf.int64)

    def enqueue(self, x: Any, n: int) -> Any:
        queues = [self.held["q0"], self.held["q1"]]
        self.then(lambda: wf.QueueBase.from_list(x % 2, queues).enqueue(x))
        return wf.astype(self.then(self.held["q1"].size), wf.int64)

    def dequeue(self, x: Any, n: int) -> Any:
        self.enqueue(x, n)
        queues = [self.held["q0"], self.held["q1"]]
        return self.then(lambda: wf.QueueBase.from_list(x % 2, queues).dequeue())


OPS = [
    name
    for name, made in vars(Walk).items()
    if callable(made) and made.__code__.co_varnames[:3] == ("self", "x", "n")
]
PLAIN = st.tuples(st.sampled_from([o for o in OPS if o not in ("cond", "loop")]), st.integers(0, 9))


def bodies(inner: st.SearchStrategy[Command]) -> st.SearchStrategy[Command]:
    listed = st.lists(inner, max_size=4)
    number = st.integers(0, 9)
    return st.one_of(
        inner,
        st.tuples(st.just("cond"), number, listed, listed),
        st.tuples(st.just("loop"), number, listed),
    )


COMMANDS = st.lists(st.recursive(PLAIN, bodies, max_leaves=6), min_size=1, max_size=5)


def at_once(commands: Sequence[Command], x: int) -> Outcome:
    """The values and what the objects hold, without any graph."""
    held = objects()
    pool: list[Any] = [wf.constant(x)]
    Walk(held, False).commands(commands, pool)
    return Outcome([[np.asarray(v) for v in pool]], objects=contents(held))


def program(commands: Sequence[Command], x: int) -> Program:
    """Commands as steps in a graph."""

    def steps() -> Steps:
        held = objects()
        given = wf.placeholder(wf.int64, [], name="x")
        pool: list[Any] = [given]
        walk = Walk(held, True)
        walk.commands(commands, pool)
        with wf.control_dependencies(walk.last):
            values = [wf.identity(v) for v in pool]
        return Steps(values, [{given: np.int64(x)}])

    return Program(f"resources {commands}", steps, want=at_once(commands, x))


PROGRAMS = st.builds(program, COMMANDS, st.integers(0, 96))

#: In the body of a loop: a branch with a loop that waits for the branch, and a loop with host ops.
LOOP_AFTER_BRANCH: list[Command] = [
    ("loop", 2, [("cond", 0, [], [("loop", 0, []), ("loop", 0, [("apply", 5), ("push", 4)])])])
]
