"""Random numbers with state: `Generator`, and TensorFlow 1's functions over a process-wide one.

The state is a key in a `wf.Variable`: a call replaces it and draws from a key derived from it,
eagerly and inside `wf.compile` alike. In a `wf.Graph`, where only control dependencies order
effects, each call makes its own state when the graph is built, as TensorFlow 1's random ops do;
every step that fetches it advances it. Calls in bodies of its loops and branches share one."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, current_trace, suspend_trace
from weft.frontend.ops.promotion import TensorLike, check_dtype, check_int
from weft.frontend.random import distributions
from weft.frontend.state.variable import Variable
from weft.frontend.transforms.axes import indices_of_shards
from weft.ir.dtypes import DEFAULT_FLOAT
from weft.ir.process import ForkLock
from weft.runtime.resources.variables import VariableState

_DEFAULT_SEED = 0


class Generator:
    """A source of random numbers that starts at `seed` and remembers where it is.

    `state` is the variable that holds the key: save it, restore it, or assign `wf.random.key(seed)`
    to it.

    >>> rng = wf.random.Generator(seed=1)
    >>> rng.randint([3], 0, 10), rng.randint([3], 0, 10)
    (Tensor([0, 3, 3], dtype=int64), Tensor([7, 1, 5], dtype=int64))
    >>> rng.reset(1)
    >>> rng.randint([3], 0, 10)
    Tensor([0, 3, 3], dtype=int64)
    """

    __slots__ = ("state",)

    def __init__(self, seed: int = _DEFAULT_SEED, name: str = "random_state") -> None:
        with suspend_trace():
            self.state = Variable(distributions.key(seed), trainable=False, name=name)
        self.state.of_graph = False  # it gives keys to any graph

    def __repr__(self) -> str:
        return f"<wf.random.Generator with the key in {self.state!r}>"

    def next_key(self) -> Tensor:
        """A fresh key, for the functions of `wf.random`; advances the state."""
        trace = current_trace()
        if trace is not None and trace.root().kind == "graph":
            own = self._own(trace)
            key = _advance(own)
            handle = trace.root().effects.ref(own).op
            if handle is not None and key._value is not None and key._value.op is not None:
                handle.device, handle.group = key._value.op.device, key._value.op.group
        else:
            key = _advance(self.state)
        for index in indices_of_shards():  # of which each has numbers of its own
            key = distributions.fold_in(key, index)
        return key

    def _own(self, trace: Trace) -> Variable:
        """The state of an op in a graph: one of its own; in bodies, which are traced more than
        once, one for all of the graph's, or each tracing would find a variable more."""
        held = _in_bodies.setdefault(trace.root(), {})
        if trace is not trace.root() and id(self.state) in held:
            return held[id(self.state)][1]
        with suspend_trace():
            own = Variable(_advance(self.state), trainable=False, name=self.state.name)
        _in_graphs.add(own.state)
        if trace is not trace.root():
            held[id(self.state)] = self.state, own
        return own

    def reset(self, seed: int) -> None:
        """Start again at `seed`."""
        self.state.assign(distributions.key(seed))

    def uniform(
        self,
        shape: Any = (),
        minval: TensorLike = 0.0,
        maxval: TensorLike = 1.0,
        dtype: object = None,
    ) -> Tensor:
        """As `wf.random.uniform`."""
        return distributions.uniform(self.next_key(), shape, dtype, minval, maxval)

    def normal(
        self,
        shape: Any = (),
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: object = None,
    ) -> Tensor:
        """As `wf.random.normal`."""
        return distributions.normal(self.next_key(), shape, dtype, mean, stddev)

    def truncated_normal(
        self,
        shape: Any = (),
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: object = None,
    ) -> Tensor:
        """As `wf.random.truncated_normal`."""
        return distributions.truncated_normal(self.next_key(), shape, dtype, mean, stddev)

    def randint(
        self, shape: Any, minval: TensorLike, maxval: TensorLike, dtype: object = None
    ) -> Tensor:
        """As `wf.random.randint`."""
        return distributions.randint(self.next_key(), shape, minval, maxval, dtype)

    def bernoulli(self, p: TensorLike = 0.5, shape: Any = None) -> Tensor:
        """As `wf.random.bernoulli`."""
        return distributions.bernoulli(self.next_key(), p, shape)

    def categorical(self, logits: TensorLike, axis: int = -1, shape: Any = None) -> Tensor:
        """As `wf.random.categorical`."""
        return distributions.categorical(self.next_key(), logits, axis, shape)

    def choice(
        self,
        a: int | TensorLike,
        shape: Any = (),
        replace: bool = True,
        p: TensorLike | None = None,
        axis: int = 0,
    ) -> Tensor:
        """As `wf.random.choice`."""
        return distributions.choice(self.next_key(), a, shape, replace, p, axis)

    def permutation(self, x: int | TensorLike, axis: int = 0) -> Tensor:
        """As `wf.random.permutation`."""
        return distributions.permutation(self.next_key(), x, axis)

    def shuffle(self, x: TensorLike) -> Tensor:
        """As `wf.random.shuffle`."""
        return distributions.shuffle(self.next_key(), x)


def _advance(state: Variable) -> Tensor:
    """Replace the key in `state`, and a key for one use. Derived from what was stored, so that
    in a graph fetching the numbers makes the assignment happen.
    """
    with state.state.lock:
        stored = state.assign(distributions.fold_in(state, 0))
    return distributions.fold_in(stored, 1)


#: The states that calls in graphs made for themselves.
_in_graphs: weakref.WeakSet[VariableState] = weakref.WeakSet()
#: Of graphs: by the generator's state (which is kept, as its id is the key) that of their bodies.
_in_bodies: weakref.WeakKeyDictionary[Trace, dict[int, tuple[Variable, Variable]]] = (
    weakref.WeakKeyDictionary()
)
_lock = ForkLock()
_seed = _DEFAULT_SEED
_generators: dict[int | None, Generator] = {}


def _start(op_seed: int | None) -> Tensor:
    """The key that a process-wide generator starts at."""
    base = distributions.key(_seed)
    return base if op_seed is None else distributions.fold_in(base, op_seed & 0xFFFFFFFF)


def default_generator(seed: int | None = None) -> Generator:
    """The process-wide generator; with `seed`, the process-wide one for that op seed.

    Made on first use from the global seed (0 unless `set_random_seed` was called), so that programs
    repeat.

    >>> wf.random.set_random_seed(0)
    >>> wf.random.default_generator().uniform([3]).numpy().round(3)
    array([0.043, 0.691, 0.859], dtype=float32)
    >>> wf.random.default_generator(seed=5).uniform([3]).numpy().round(3)  # a stream of its own
    array([0.623, 0.323, 0.524], dtype=float32)
    """
    if seed is not None:
        seed = check_int("random.default_generator", seed, "seed")
    with _lock:
        if seed not in _generators:
            with suspend_trace():
                made = Generator(0, "global_random_state")
                made.state.assign(_start(seed))
            _generators[seed] = made
        return _generators[seed]


def set_random_seed(seed: int) -> None:
    """Start the process-wide generators again at `seed` (TF1's name).

    Compiled functions that drew from them go on with the new state.

    >>> wf.random.set_random_seed(0)
    >>> first = wf.random.default_generator().uniform([3])
    >>> wf.random.set_random_seed(0)
    >>> bool(wf.all(wf.random.default_generator().uniform([3]) == first))
    True
    """
    restart_generators(check_int("set_random_seed", seed, "seed"), ())


def restart_generators(seed: int, but: Collection[int | None]) -> None:
    """As `set_random_seed`, but the generators of the op seeds `but` go on."""
    global _seed
    with _lock, suspend_trace():
        _seed = seed
        for op_seed, generator in _generators.items():
            if op_seed not in but:
                generator.state.assign(_start(op_seed))


def process_state() -> tuple[int, dict[int | None, Generator]]:
    """The global seed, and the process-wide generators made so far by op seed: for checkpoints.

    Takes no lock: a checkpoint asks while it holds those of variables.
    """
    return _seed, dict(_generators)


def is_graph_state(variable: Variable) -> bool:
    """Whether it is the state of a random op of a graph."""
    return variable.state in _in_graphs


def random_uniform(
    shape: Any,
    minval: TensorLike = 0,
    maxval: TensorLike = 1,
    dtype: object = None,
    seed: int | None = None,
) -> Tensor:
    """Uniform in [minval, maxval) from the process-wide generator (TF1's random_uniform).

    Integer dtypes give integers. seed: draw from the process-wide stream of that op seed.
    """
    generator = default_generator(seed)
    target = check_dtype(dtype, DEFAULT_FLOAT)
    if target.is_integer:
        return generator.randint(shape, minval, maxval, target)
    return generator.uniform(shape, minval, maxval, target)


def random_normal(
    shape: Any,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: object = None,
    seed: int | None = None,
) -> Tensor:
    """Normally distributed, from the process-wide generator (TF1's random_normal)."""
    return default_generator(seed).normal(shape, mean, stddev, dtype)


def truncated_normal(
    shape: Any,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: object = None,
    seed: int | None = None,
) -> Tensor:
    """Normal within two standard deviations, from the process-wide generator (TF1's name)."""
    return default_generator(seed).truncated_normal(shape, mean, stddev, dtype)


def random_shuffle(x: TensorLike, seed: int | None = None) -> Tensor:
    """The rows of x in random order, from the process-wide generator (TF1's random_shuffle)."""
    return default_generator(seed).shuffle(x)
