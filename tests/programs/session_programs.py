"""Random programs as users of sessions write them, with a device for most ops: branches and loops,
arrays in loops, switches by hand, variables, queues, strings, control dependencies, gradients.

The same seed gives the same program with and without devices.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.session.compiling import pruned
from weft.ir.graph import Graph
from weft.passes.sizes import tie_sizes
from weft.runtime.dataflow.host_dispatch import HostObjects

DEVICES = ("/job:ps/task:0", "/job:worker/task:1", "/job:worker/task:0")
F32, I64, BOOL, STRING = wf.float32, wf.int64, wf.bool, wf.string
OTHER_FLOATS = (wf.float64, wf.float16, wf.bfloat16)
WORDS = (b"a", b"bb", b"", b"xyz")
QUEUES = 3
#: What the variables v0, v1, v2 start as, and the names of what is fed.
STARTS = (np.float32([0.5, 1.5]), np.float32([1, -1]), np.int64(2))
FEEDS = ("x", "n", "p", "y")


class Programs:
    """One program under construction. pool: the tensors that ops may use here."""

    def __init__(self, seed: int, placed: bool) -> None:
        self.random = random.Random(seed)
        self.chance = random.Random(7 * seed + 1)  # of devices only
        self.placed, self.stay = placed, (seed % 4) / 4
        self.count = 1 + seed % len(DEVICES) if seed % 5 else len(DEVICES)
        self.last = DEVICES[0]
        self.pool: list[Any] = []
        self.depth = 0
        self.variables: list[Any] = []
        self.queues: list[Any] = []

    def device(self) -> Any:
        """Where the next op is; nothing says it for some."""
        if self.chance.random() >= self.stay:
            self.last = DEVICES[self.chance.randrange(self.count)]
        free = self.chance.random() < 0.15
        return wf.device(self.last) if self.placed and not free else contextlib.nullcontext()

    def here(self, made: Callable[[], Any]) -> Any:
        """What is made, on some device."""
        with self.device():
            return made()

    @contextlib.contextmanager
    def region(self, args: Sequence[Any]) -> Iterator[None]:
        """Build a branch or a body with these arguments."""
        held, self.pool = self.pool, [*self.pool, *args]
        self.depth += 1
        yield
        self.pool = held
        self.depth -= 1

    # -- values -----------------------------------------------------------------------------------

    def some(self, dtype: Any = None, shape: tuple[int, ...] | None = None) -> Any:
        """A tensor that is there already, or a constant."""
        fits = [
            t
            for t in self.pool
            if dtype in (None, t.dtype) and (shape is None or tuple(t.shape) == shape)
        ]
        if fits and self.random.random() < 0.85:
            back = [self.random.randrange(len(fits)) for _ in range(2)]
            return fits[-1 - min(back)]
        dtype = dtype or self.random.choice([F32, I64, BOOL])
        shape = self.random.choice([(), (2,), (0,), (2, 3)]) if shape is None else shape
        return self.here(lambda: wf.constant(self.array(dtype, shape), dtype=dtype))

    def array(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Small numbers, or short strings."""
        n = int(np.prod(shape))
        if dtype == STRING:
            return np.array([self.random.choice(WORDS) for _ in range(n)], object).reshape(shape)
        low, high = (0, 1) if dtype == BOOL else (-3, 5)
        rows = np.array([self.random.randint(low, high) for _ in range(n)]).reshape(shape)
        return rows.astype(bool) if dtype == BOOL else rows if dtype == I64 else rows / 2

    def add(self, made: Callable[[], Any]) -> None:
        """A new tensor, made on some device; its numbers stay small."""

        def small() -> Any:
            t = made()
            if t.dtype == I64:
                return t % 7
            if t.dtype in (F32, *OTHER_FLOATS):
                most = wf.constant(4, dtype=t.dtype)
                return wf.maximum(wf.minimum(t, most), -most)
            return t

        self.pool.append(self.here(small))

    # -- ops --------------------------------------------------------------------------------------

    def ops(self, count: int) -> None:
        """Some ops; what they give joins the pool."""
        kinds = [self.arithmetic] * 3 + [self.compare, self.cast, self.reduce, self.move]
        kinds += [self.where, self.words, self.select]
        if self.variables:
            kinds += [self.read, self.write, self.write, self.ordered]
        if self.depth == 0:
            kinds += [self.queue, self.switch]
        if self.depth < 3:
            kinds += [self.cond, self.loop, self.loop, self.scan, self.array_in_loop]
        for _ in range(count):
            self.random.choice(kinds)()

    def arithmetic(self) -> None:
        dtype = self.random.choice([F32, F32, I64, *OTHER_FLOATS, wf.complex64])
        shape = self.random.choice([(), (2,), (0,), (2, 3)])
        a, b = self.some(dtype, shape), self.some(dtype, self.random.choice([shape, ()]))
        op = self.random.choice([wf.add, wf.subtract, wf.multiply])
        self.add(lambda: op(a, b))

    def compare(self) -> None:
        a, b = self.some(I64, ()), self.some(I64, ())
        op = self.random.choice([wf.less, wf.equal, wf.greater_equal])
        self.add(lambda: op(a, b))

    def cast(self) -> None:
        t, to = self.some(), self.random.choice([F32, I64, *OTHER_FLOATS])
        if t.dtype == STRING:
            self.add(lambda: wf.astype(wf.string_length(t), I64))
        else:
            self.add(lambda: wf.real(t) if t.dtype == wf.complex64 else wf.astype(t, to))

    def reduce(self) -> None:
        t = self.some(self.random.choice([F32, I64]), self.random.choice([(2,), (0,), (2, 3)]))
        self.add(lambda: wf.sum(t))

    def move(self) -> None:
        t, kind = self.some(self.random.choice([F32, I64]), (2, 3)), self.random.randrange(4)
        made = (
            lambda: wf.reshape(t, (3, 2))[:2, :],
            lambda: wf.concat([t, t], axis=0)[1:3],
            lambda: t[0, :2],
            lambda: wf.flip(t, axis=1),
        )
        self.add(made[kind])

    def where(self) -> None:
        c, a, b = self.some(BOOL, ()), self.some(F32, (2,)), self.some(F32, (2,))
        self.add(lambda: wf.where(c, a, b))

    def words(self) -> None:
        a, b = self.some(STRING, self.random.choice([(), (2,), (0,)])), self.some(STRING, ())
        joined = self.here(lambda: wf.string_join([a, b], separator="-"))
        self.add(lambda: wf.substr(joined, 0, 6))

    def select(self) -> None:
        """Sizes that values decide."""
        t = self.some(I64, (2,))
        found = self.here(lambda: wf.nonzero(t)[0])
        held = self.here(lambda: wf.gather(t, found))
        self.add(lambda: wf.sum(held))

    # -- state ------------------------------------------------------------------------------------

    def read(self) -> None:
        self.pool.append(self.random.choice(self.variables).read())

    def write(self) -> None:
        v = self.random.choice(self.variables)
        x = self.some(v.dtype, tuple(v.shape))
        self.add(lambda: v.read() + x)
        v.assign(self.pool[-1])
        if self.random.random() < 0.5:
            v.assign_add(x)

    def ordered(self) -> None:
        """What is there before and after an assignment, and what comes after it elsewhere."""
        v = self.random.choice(self.variables)
        x, other = self.some(v.dtype, tuple(v.shape)), self.some()
        self.add(lambda: x + wf.constant(1, dtype=v.dtype))
        before = v.read()
        with wf.control_dependencies([v.assign(self.pool[-1]), other]):
            self.pool.append(self.here(lambda: wf.constant(3, dtype=I64) + 0))
            after = v.read()
        self.add(lambda: before + after)

    def queue(self) -> None:
        """Each queue once: what is ordered by nothing may go either way."""
        if not self.queues:
            return
        queue, x = self.queues.pop(), self.some(I64, ())
        put = queue.enqueue(self.here(lambda: x + 1))
        if self.random.random() < 0.7:
            with wf.control_dependencies([put]):
                taken = queue.dequeue()
            self.add(lambda: taken)

    # -- control flow -----------------------------------------------------------------------------

    def switch(self) -> None:
        p, x = self.some(BOOL, ()), self.some(F32, (2,))
        below, above = self.here(lambda: wf.switch(x, p))
        a, b = self.here(lambda: below + 1.0), self.here(lambda: above - 1.0)
        merged, index = self.here(lambda: wf.merge([a, b]))
        self.add(lambda: wf.stop_gradient(merged))
        self.add(lambda: wf.astype(index, I64))

    def cond(self) -> None:
        p = self.some(BOOL, ())
        kinds = [F32, I64, BOOL, STRING, wf.float16]
        gives = [
            (self.random.choice(kinds), self.random.choice([(), (2,)]))
            for _ in range(self.random.randint(1, 2))
        ]

        def branch() -> list[Any]:
            with self.region([]):
                self.ops(self.random.randrange(4))
                return [self.some(*kind) for kind in gives]

        self.pool += self.here(lambda: wf.cond(p, branch, branch))

    def loop(self) -> None:
        kinds = [F32, I64, BOOL, wf.float64, STRING]
        carried = [
            self.some(self.random.choice(kinds), self.random.choice([(), (2,), (0,)]))
            for _ in range(self.random.randrange(3))
        ]
        end, parallel = self.some(I64, ()), self.random.choice([1, 2, 10])

        def test(i: Any, *carried: Any) -> Any:
            with self.region([i, *carried]):
                going = self.here(lambda: i < wf.minimum(end, wf.constant(4, dtype=I64)))
                if self.random.random() < 0.3:
                    also = self.some(BOOL, ())
                    going = self.here(lambda: wf.logical_and(going, also))
                return going

        def body(i: Any, *carried: Any) -> Any:
            with self.region([i, *carried]):
                self.ops(self.random.randrange(4))
                following = self.here(lambda: i + 1)
                return [following, *(self.some(x.dtype, tuple(x.shape)) for x in carried)]

        start = [wf.constant(0, dtype=I64), *carried]
        self.pool += self.here(
            lambda: wf.while_loop(test, body, start, parallel_iterations=parallel)
        )

    def scan(self) -> None:
        start, xs = self.some(F32, ()), self.some(F32, self.random.choice([(2,), (0,)]))

        def step(carry: Any, x: Any) -> Any:
            with self.region([carry, x]):
                self.ops(self.random.randrange(2))
                other = self.some(F32, ())
                self.add(lambda: carry + x * 0.5)
                following = self.pool[-1]
                return following, self.here(lambda: following - other)

        last, ys = self.here(lambda: wf.scan(step, start, xs))
        self.pool.append(last)
        self.add(lambda: ys)

    def array_in_loop(self) -> None:
        x, n = self.some(F32, (2,)), self.random.randint(1, 3)
        out = self.here(lambda: wf.TensorArray(F32, n, element_shape=[2]))

        def body(i: Any, h: Any, out: Any) -> Any:
            with self.region([i, h]):
                self.add(lambda: h * 0.5 + 1.0)
                h = self.pool[-1]
                return self.here(lambda: (i + 1, h, out.write(i, h)))

        start = (wf.constant(0, dtype=I64), x, out)
        made = self.here(lambda: wf.while_loop(lambda i, h, out: i < n, body, start))
        self.add(lambda: wf.sum(made[2].stack(), axis=0) * 0.25)


def _gradients(made: Programs, fetches: list[Any], by: list[Any]) -> list[Any]:
    """Gradients of the first order, some of the second."""
    found: list[Any] = []
    terms = [t for t in fetches if t.dtype == F32]
    colocated = made.random.random() < 0.5
    for _ in range(made.random.randint(0, 2)):
        if not terms:
            break
        with made.device():
            loss = sum((wf.sum(t * t) for t in terms), wf.constant(0.0))
        made_of = wf.gradients(loss, by, colocate_gradients_with_ops=colocated)
        terms = [t for t in made_of if t is not None]
        found += terms
    return found


def build(seed: int, placed: bool = True) -> tuple[Any, Any, list[Any], list[Any]]:
    """A wf.Graph, what initialises it, its placeholders and fetches."""
    with wf.Graph().as_default() as graph:
        return (graph, *build_here(seed, placed))


def build_here(seed: int, placed: bool) -> tuple[Any, list[Any], list[Any]]:
    """As `build`, in the graph that is current."""
    made = Programs(seed, placed)
    kinds = ((F32, [2]), (I64, []), (BOOL, []), (F32, ["b", 3]))
    feeds = [wf.placeholder(*k, name=n) for k, n in zip(kinds, FEEDS, strict=True)]
    for k, start in enumerate(STARTS):
        with made.device():
            made.variables.append(wf.Variable(start, name=f"v{k}"))
    for k in range(QUEUES):
        with made.device():
            made.queues.append(wf.FIFOQueue(1000, I64, shapes=[[]], name=f"q{k}"))
    init = wf.global_variables_initializer()
    made.pool += feeds[:3]
    made.add(lambda: wf.sum(feeds[3], axis=0))
    made.ops(made.random.randint(3, 8))
    fetches = made.pool[3:]
    made.random.shuffle(fetches)
    fetches = fetches[:8]
    fetches += _gradients(made, fetches, [feeds[0], feeds[3]])
    return init, feeds, fetches


def arrays(seed: int) -> list[Any]:
    """What to feed."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rng.integers(4), 3)).astype(np.float32)
    x = rng.normal(size=2).astype(np.float32)
    return [x, np.int64(rng.integers(-1, 5)), np.bool_(rng.integers(2)), rows]


def step_of(seed: int) -> tuple[Graph, list[Any], dict[str, Any], Callable[[], HostObjects]]:
    """A step in the IR: it, its inputs, the values of variables, and what makes its queues."""
    graph, _, feeds, fetches = build(seed)
    given = {f._value: np.asarray(a) for f, a in zip(feeds, arrays(seed), strict=True)}
    step = tie_sizes(pruned(graph, [t._value for t in fetches], given))
    named = dict(zip(FEEDS, given.values(), strict=True))
    inputs = [named[name] for name in step.arg_names]
    state = {f"v{k}": np.asarray(start) for k, start in enumerate(STARTS)}

    def host() -> HostObjects:
        queues = {f"q{k}": wf.FIFOQueue(1000, I64, [[]])._queue for k in range(QUEUES)}
        return HostObjects(queues, timeout=2.0)

    return step, inputs, state, host
