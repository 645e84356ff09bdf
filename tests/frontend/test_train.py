"""`wf.train`: each optimizer against a float64 transcription of its formula; clipping,
schedules, errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest

import weft as wf

Array = np.ndarray[Any, Any]
START = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]])
SCALE = np.array([[1.0, 3.0, 0.5], [2.0, 0.1, 1.5]])
STEPS = 10


def gradient(w: Array) -> Array:
    """Of the loss below."""
    return SCALE * w**3 + np.cos(w)


def loss(w: Any) -> Any:
    return wf.sum(SCALE * w**4 / 4 + wf.sin(w))


# --------------------------------------------------------------- formulas, straight from TF1's docs
def sgd() -> Iterator[Any]:
    w = START.copy()
    while True:
        w -= 0.05 * gradient(w)
        yield w


def momentum(nesterov: bool = False) -> Iterator[Any]:
    w, a = START.copy(), np.zeros_like(START)
    while True:
        g = gradient(w)
        a = 0.8 * a + g
        w -= 0.01 * (g + 0.8 * a if nesterov else a)
        yield w


def adagrad() -> Iterator[Any]:
    w, a = START.copy(), np.full_like(START, 0.1)
    while True:
        g = gradient(w)
        a += g * g
        w -= 0.3 * g / np.sqrt(a)
        yield w


def adadelta() -> Iterator[Any]:
    w, a, u = START.copy(), np.zeros_like(START), np.zeros_like(START)
    while True:
        g = gradient(w)
        a = 0.9 * a + 0.1 * g * g
        d = np.sqrt(u + 1e-6) / np.sqrt(a + 1e-6) * g
        u = 0.9 * u + 0.1 * d * d
        w -= 2.0 * d
        yield w


def rmsprop(centered: bool = False) -> Iterator[Any]:
    w, ms, mom, mg = START.copy(), np.ones_like(START), np.zeros_like(START), np.zeros_like(START)
    while True:
        g = gradient(w)
        ms = 0.9 * ms + 0.1 * g * g
        mg = 0.9 * mg + 0.1 * g
        mom = 0.5 * mom + 0.02 * g / np.sqrt(ms - (mg * mg if centered else 0) + 1e-3)
        w -= mom
        yield w


def adam(weight_decay: float = 0.0) -> Iterator[Any]:
    w, m, v, t = START.copy(), np.zeros_like(START), np.zeros_like(START), 0
    while True:
        g = gradient(w)
        t += 1
        m = 0.8 * m + 0.2 * g
        v = 0.99 * v + 0.01 * g * g
        rate = 0.1 * np.sqrt(1 - 0.99**t) / (1 - 0.8**t)
        w = w - rate * m / (np.sqrt(v) + 1e-7) - 0.1 * weight_decay * w
        yield w


def lbfgs() -> Iterator[Any]:
    """Nocedal and Wright, algorithm 7.4, with lists in place of a fixed history."""
    w, pairs, before = START.copy().ravel(), [], None
    while True:
        g = gradient(w.reshape(START.shape)).ravel()
        if before is not None:
            s, y = w - before[0], g - before[1]
            if s @ y > 1e-10:
                pairs = [*pairs, (s, y)][-3:]
        q, alphas = g.copy(), []
        for s, y in reversed(pairs):
            alphas.append((s @ q) / (s @ y))
            q -= alphas[-1] * y
        if pairs:
            s, y = pairs[-1]
            q *= (s @ y) / (y @ y)
        for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
            q += s * (alpha - (y @ q) / (s @ y))
        before = (w.copy(), g.copy())
        w = w - 0.5 * (1.0 if pairs or len(alphas) else min(1.0, 1 / np.abs(g).sum())) * q
        yield w.reshape(START.shape)


OPTIMIZERS: dict[str, tuple[Callable[[], wf.train.Optimizer], Callable[[], Iterator[Any]]]] = {
    "SGD": (lambda: wf.train.SGD(0.05), sgd),
    "Momentum": (lambda: wf.train.Momentum(0.01, 0.8), momentum),
    "Nesterov": (lambda: wf.train.Momentum(0.01, 0.8, use_nesterov=True), lambda: momentum(True)),
    "Adagrad": (lambda: wf.train.Adagrad(0.3), adagrad),
    "Adadelta": (lambda: wf.train.Adadelta(2.0, 0.9, 1e-6), adadelta),
    "RMSProp": (lambda: wf.train.RMSProp(0.02, 0.9, 0.5, 1e-3), rmsprop),
    "RMSProp centered": (
        lambda: wf.train.RMSProp(0.02, 0.9, 0.5, 1e-3, True),
        lambda: rmsprop(True),
    ),
    "Adam": (lambda: wf.train.Adam(0.1, 0.8, 0.99, 1e-7), adam),
    "AdamW": (lambda: wf.train.AdamW(0.1, 0.8, 0.99, 1e-7, weight_decay=0.3), lambda: adam(0.3)),
    "LBFGS": (lambda: wf.train.LBFGS(0.5, history=3), lbfgs),
}


def compiled_steps(make: Callable[[], wf.train.Optimizer], dtype: Any) -> tuple[Any, Any]:
    w = wf.Variable(START.astype(dtype))
    optimizer = make()

    @wf.compile
    def step() -> Any:
        value = loss_like(w)
        optimizer.minimize(value)
        return value

    return w, step


def loss_like(w: Any) -> Any:
    scale = wf.astype(SCALE, w.dtype)
    return wf.sum(scale * w**4 / 4 + wf.sin(w))


@pytest.mark.share(5)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_formula_compiled(name: str) -> None:
    """Ten compiled steps in float64 against NumPy."""
    make, reference = OPTIMIZERS[name]
    w, step = compiled_steps(make, np.float64)
    for _, expected in zip(range(STEPS), reference(), strict=False):
        step()
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_formula_eager(name: str) -> None:
    """The same with a loss function and no trace."""
    make, reference = OPTIMIZERS[name]
    w = wf.Variable(START)
    optimizer = make()
    for _, expected in zip(range(STEPS), reference(), strict=False):
        optimizer.minimize(lambda: loss(w))
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_formula_in_a_session(name: str) -> None:
    """As the paper writes it: build the graph, then run the training op."""
    make, reference = OPTIMIZERS[name]
    with wf.Graph().as_default():
        w = wf.Variable(START)
        train = make().minimize(loss(w))
        session = wf.Session()
        session.run(wf.global_variables_initializer())
        for _, expected in zip(range(STEPS), reference(), strict=False):
            assert session.run(train) is None
            np.testing.assert_allclose(session.run(w), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.share(5)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32(name: str) -> None:
    make, reference = OPTIMIZERS[name]
    w, step = compiled_steps(make, np.float32)
    for _ in range(5):
        step()
    expected = next(islice(reference(), 4, None))
    assert w.numpy().dtype == np.float32
    np.testing.assert_allclose(w.numpy(), expected, rtol=2e-3, atol=2e-4)


CONVERGE: dict[str, Callable[[], wf.train.Optimizer]] = {
    "SGD": lambda: wf.train.SGD(0.1),
    "Momentum": lambda: wf.train.Momentum(0.02, 0.9),
    "Adagrad": lambda: wf.train.Adagrad(1.0),
    "Adadelta": lambda: wf.train.Adadelta(1.0, 0.9, 1e-3),
    "RMSProp": lambda: wf.train.RMSProp(0.01),
    "Adam": lambda: wf.train.Adam(0.1),
    "AdamW": lambda: wf.train.AdamW(0.1, weight_decay=0.0),
    "LBFGS": lambda: wf.train.LBFGS(),
    "LBFGS search": lambda: wf.train.LBFGS(line_search=8),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", CONVERGE)
def test_converges_on_least_squares(name: str) -> None:
    """A regression with two variables of different shapes, compiled."""
    rng = np.random.default_rng(0)
    x, true = rng.normal(size=(64, 4)), rng.normal(size=(4, 2))
    y = x @ true + 0.7
    w, b = wf.Variable(np.zeros((4, 2))), wf.Variable(np.zeros(2))
    optimizer = CONVERGE[name]()

    def objective() -> Any:
        return wf.mean(wf.square(wf.matmul(x, w) + b - y))

    @wf.compile
    def step() -> Any:
        optimizer.minimize(objective if isinstance(optimizer, wf.train.LBFGS) else objective())
        return objective()

    for _ in range(60 if "LBFGS" in name else 400):
        value = step()
    assert float(value) < 1e-3
    np.testing.assert_allclose(w.numpy(), true, atol=0.05)


@pytest.mark.slow
def test_lbfgs_line_search_on_rosenbrock() -> None:
    """A narrow valley, where fixed steps diverge; eager."""
    p = wf.Variable([-1.2, 1.0], dtype=wf.float64)

    def rosenbrock() -> Any:
        return 100 * (p[1] - p[0] ** 2) ** 2 + (1 - p[0]) ** 2

    optimizer = wf.train.LBFGS(line_search=20, history=5)
    values = []
    for _ in range(45):
        optimizer.minimize(rosenbrock, [p])
        values.append(float(rosenbrock()))
    assert values[-1] < 1e-8
    assert all(b <= a + 1e-12 for a, b in pairwise(values))


@pytest.mark.share(4)
@pytest.mark.parametrize("line_search", [0, 12])
@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_lbfgs_in_a_graph(mode: str, line_search: int) -> None:
    """The steps of a compiled function, with data that each run feeds, in a session."""
    start = [-1.2, 1.0]

    def rosenbrock(p: Any, q: Any, by: Any) -> Any:
        return by * (q - p**2) ** 2 + (1 - p) ** 2

    def optimizer() -> Any:
        return wf.train.LBFGS(0.5 if not line_search else 1.0, line_search=line_search, history=4)

    p, q = (wf.Variable(v, dtype=wf.float64) for v in start)
    compiled = optimizer()

    @wf.compile
    def step(by: Any) -> None:
        loss = lambda: rosenbrock(p.read(), q.read(), by)  # noqa: E731
        compiled.minimize(loss if line_search else loss(), [p, q])

    wanted = []
    for i in range(6):
        step(np.float64(10.0 + i))
        wanted.append([float(p), float(q)])
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        a, b = (wf.Variable(v, dtype=wf.float64) for v in start)
        count = wf.Variable(0, trainable=False)
        by = wf.placeholder(wf.float64, [])
        loss = lambda: rosenbrock(a.read(), b.read(), by)  # noqa: E731
        given = loss if line_search else loss()
        train = optimizer().minimize(given, global_step=count)
        session.run(wf.global_variables_initializer())
        for i in range(6):
            session.run(train, {by: 10.0 + i})
            np.testing.assert_allclose(session.run([a, b]), wanted[i], rtol=1e-9, atol=1e-12)
        assert session.run(count) == 6


def test_tf1_names() -> None:
    train = wf.train
    assert train.GradientDescentOptimizer is train.SGD
    assert train.AdagradOptimizer(0.01).initial_accumulator_value == 0.1
    defaults = train.RMSPropOptimizer(0.1)
    assert (defaults.decay, defaults.momentum, defaults.epsilon) == (0.9, 0.0, 1e-10)
    adam = train.AdamOptimizer()
    assert (adam.learning_rate, adam.beta1, adam.beta2, adam.epsilon) == (
        0.001,
        0.9,
        0.999,
        1e-8,
    )
    assert (train.AdadeltaOptimizer().rho, train.AdadeltaOptimizer().epsilon) == (0.95, 1e-8)
    assert train.MomentumOptimizer(0.1, 0.9).use_nesterov is False


def test_slots_and_state() -> None:
    w = wf.Variable(START, name="w")
    optimizer = wf.train.Adam()
    assert optimizer.get_slot(w, "m") is None
    optimizer.minimize(lambda: loss(w))
    assert optimizer.get_slot_names() == ["m", "v"]
    slot = optimizer.get_slot(w, "m")
    assert slot is not None
    assert slot.shape == w.shape
    assert not slot.trainable
    assert len(optimizer.variables()) == 3
    assert "w/Adam/m" in slot.name


def test_variables_are_found_or_chosen() -> None:
    a, b = wf.Variable(2.0), wf.Variable(3.0)
    frozen = wf.Variable(5.0, trainable=False)
    sgd_ = wf.train.SGD(0.1)
    sgd_.minimize(lambda: a * b * frozen)
    np.testing.assert_allclose([float(a), float(b), float(frozen)], [0.5, 2.0, 5.0])
    sgd_.minimize(lambda: a * b, var_list=[a])
    np.testing.assert_allclose([float(a), float(b)], [0.3, 2.0])
    pairs = sgd_.compute_gradients(lambda: a * a, [a, b])
    assert pairs[1][0] is None
    np.testing.assert_allclose(pairs[0][0], 0.6)
    sgd_.apply_gradients(pairs)
    np.testing.assert_allclose([float(a), float(b)], [0.24, 2.0])


def test_learning_rate_may_be_a_schedule() -> None:
    w, count = wf.Variable(0.0), wf.Variable(0, trainable=False)
    optimizer = wf.train.SGD(lambda: wf.train.exponential_decay(1.0, count, 1, 0.5))

    @wf.compile
    def step() -> None:
        optimizer.minimize(w * 1.0, global_step=count)

    values = []
    for _ in range(4):
        step()
        values.append(float(w))
    np.testing.assert_allclose(values, [-1, -1.5, -1.75, -1.875])
    assert int(count) == 4


def test_learning_rate_may_be_an_argument() -> None:
    w = wf.Variable(1.0)

    @wf.compile
    def step(rate: Any) -> None:
        wf.train.SGD(rate).minimize(w * 2.0)

    step(0.5)
    step(np.float32(0.25))
    np.testing.assert_allclose(float(w), -0.5)


def test_grad_loss() -> None:
    w = wf.Variable([1.0, 2.0])
    wf.train.SGD(1.0).minimize(lambda: w * w, grad_loss=wf.asarray([1.0, 0.0]))
    np.testing.assert_allclose(w.numpy(), [-1, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda w: wf.train.SGD().minimize(wf.sum(w)), "GradientError", "outside a trace the loss"),
        (
            lambda w: wf.train.SGD().minimize(lambda: wf.asarray(1.0)),
            "GradientError",
            "no trainable",
        ),
        (
            lambda w: wf.train.SGD().minimize(lambda: wf.asarray(1.0), [w]),
            "GradientError",
            "none of the",
        ),
        (
            lambda w: wf.train.SGD().minimize(lambda: wf.sum(w), [1.0]),
            "GradientError",
            "not a wf.Variable",
        ),
        (
            lambda w: wf.train.SGD().apply_gradients([(np.ones(3), w)]),
            "InvalidArgumentError",
            "does not fit",
        ),
        (lambda w: wf.train.LBFGS(history=0), "InvalidArgumentError", "history must be"),
        (
            lambda w: wf.train.LBFGS(line_search=3).minimize(wf.sum(w)),
            "UnsupportedError",
            "line search",
        ),
        (
            lambda w: wf.train.Optimizer(0.1).minimize(lambda: wf.sum(w)),
            "UnsupportedError",
            "_update",
        ),
        (
            lambda w: wf.train.piecewise_constant(1, [1, 2], [0.1]),
            "InvalidArgumentError",
            "need 3 values",
        ),
        (lambda w: wf.global_norm([None]), "InvalidArgumentError", "at least one tensor"),
    ],
)
def test_errors(call: Any, error: str, message: str) -> None:
    w = wf.Variable([1.0, 2.0])
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call(w)
    assert caught.value.locations[0].file == __file__


HYPERPARAMETERS: list[Callable[[Any], Any]] = [
    wf.train.SGD,
    wf.train.Adam,
    lambda v: wf.train.Momentum(0.1, v),
    lambda v: wf.train.Adagrad(initial_accumulator_value=v),
    lambda v: wf.train.Adadelta(rho=v),
    lambda v: wf.train.Adadelta(epsilon=v),
    lambda v: wf.train.RMSProp(decay=v),
    lambda v: wf.train.RMSProp(momentum=v),
    lambda v: wf.train.RMSProp(epsilon=v),
    lambda v: wf.train.Adam(beta1=v),
    lambda v: wf.train.Adam(beta2=v),
    lambda v: wf.train.Adam(epsilon=v),
    lambda v: wf.train.AdamW(weight_decay=v),
    lambda v: wf.train.LBFGS(v),
    lambda v: wf.train.LBFGS(armijo=v),
]


@pytest.mark.parametrize("make", HYPERPARAMETERS)
def test_hyperparameters_are_checked(make: Callable[[Any], Any]) -> None:
    make(0.5)
    make(np.float32(0.5))
    for value in ("a", None, 1j, True, [0.1], np.array("a"), wf.asarray([True])):
        with pytest.raises(wf.errors.TypeRuleError, match="must be a real number, got") as caught:
            make(value)
        assert caught.value.locations[0].file == __file__
    for number in (-1.0, float("nan"), np.inf, np.array(-1.0), wf.asarray(-0.5)):
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"must be (finite and|in \[0)"):
            make(number)


def test_tensors_variables_and_functions_are_hyperparameters() -> None:
    for rate in (wf.asarray(0.5), np.array(0.5), wf.Variable(0.5), lambda: 0.5):
        w = wf.Variable(1.0)
        wf.train.SGD(rate).minimize(lambda w=w: 1.0 * w)  # type: ignore[misc]
        assert float(w) == 0.5
    for name in ("beta1", "beta2"):
        with pytest.raises(wf.errors.InvalidArgumentError, match=rf"{name} must be in \[0, 1\)"):
            wf.train.Adam(**{name: 1.0})
    with pytest.raises(wf.errors.InvalidArgumentError, match="history must be an integer"):
        wf.train.LBFGS(history=2.5)  # type: ignore[arg-type]


def test_complex_variables() -> None:
    z = wf.Variable(np.array([1 + 2j, -3j]))
    wf.train.SGD(0.25).minimize(lambda: wf.sum(wf.square(wf.abs(z))))
    np.testing.assert_allclose(z.numpy(), [0.5 + 1j, -1.5j])
    with pytest.raises(wf.errors.UnsupportedError, match="is complex128"):
        wf.train.Adam().minimize(lambda: wf.sum(wf.abs(z)))


def test_integer_variables_are_left_alone() -> None:
    w, count = wf.Variable(2.0), wf.Variable(3)
    wf.train.SGD(0.1).minimize(lambda: w * wf.astype(count, wf.float32))
    assert float(w) == pytest.approx(1.7)
    assert int(count) == 3


def test_lbfgs_wants_the_same_variables() -> None:
    a, b = wf.Variable([1.0]), wf.Variable([1.0])
    optimizer = wf.train.LBFGS()
    optimizer.minimize(lambda: wf.sum(a * a))
    with pytest.raises(wf.errors.InvalidArgumentError, match="make an optimizer for each"):
        optimizer.minimize(lambda: wf.sum(b * b))


# ------------------------------------------------------------------------------ clipping, schedules
def test_clipping() -> None:
    x, y = np.array([3.0, 4.0]), np.array([[12.0]])
    np.testing.assert_allclose(wf.clip_by_norm(x, 2.5), [1.5, 2.0])
    np.testing.assert_allclose(wf.clip_by_norm(x, 10.0), x)
    np.testing.assert_allclose(wf.clip_by_norm(np.zeros(2), 1.0), [0, 0])
    np.testing.assert_allclose(
        wf.clip_by_norm(np.array([[3.0, 4], [0.3, 0.4]]), 1, axes=1), [[0.6, 0.8], [0.3, 0.4]]
    )
    assert float(wf.global_norm([x, None, y])) == 13
    clipped, norm = wf.clip_by_global_norm([x, None, y], 6.5)
    assert float(norm) == 13
    assert clipped[1] is None
    np.testing.assert_allclose(clipped[0], x / 2)
    np.testing.assert_allclose(clipped[2], y / 2)
    same, _ = wf.clip_by_global_norm([x], 100.0)
    np.testing.assert_allclose(same[0], x)
    known, _ = wf.clip_by_global_norm([x], 1.0, use_norm=10.0)
    np.testing.assert_allclose(known[0], x / 10)
    np.testing.assert_allclose(wf.train.clip_by_value([-3.0, 0.5], -1, 1), [-1, 0.5])


def test_clipping_in_a_training_step() -> None:
    w = wf.Variable([3.0, 4.0])
    optimizer = wf.train.SGD(1.0)

    @wf.compile
    def step() -> None:
        pairs = optimizer.compute_gradients(wf.sum(w * w) / 2)
        clipped, _ = wf.clip_by_global_norm([g for g, _ in pairs], 1.0)
        optimizer.apply_gradients(list(zip(clipped, [v for _, v in pairs], strict=True)))

    step()
    np.testing.assert_allclose(w.numpy(), [2.4, 3.2], rtol=1e-6)


SCHEDULES: dict[str, tuple[Callable[[Any], Any], Callable[[float], float]]] = {
    "exponential": (
        lambda s: wf.train.exponential_decay(0.1, s, 10, 0.5),
        lambda s: 0.1 * 0.5 ** (s / 10),
    ),
    "exponential stairs": (
        lambda s: wf.train.exponential_decay(0.1, s, 10, 0.5, staircase=True),
        lambda s: 0.1 * 0.5 ** (s // 10),
    ),
    "natural": (
        lambda s: wf.train.natural_exp_decay(0.1, s, 10, 0.5),
        lambda s: 0.1 * np.exp(-0.5 * s / 10),
    ),
    "inverse": (
        lambda s: wf.train.inverse_time_decay(0.1, s, 10, 0.5, True),
        lambda s: 0.1 / (1 + 0.5 * (s // 10)),
    ),
    "polynomial": (
        lambda s: wf.train.polynomial_decay(0.1, s, 20, 0.01, 2.0),
        lambda s: 0.09 * (1 - min(s, 20) / 20) ** 2 + 0.01,
    ),
    "polynomial cycle": (
        lambda s: wf.train.polynomial_decay(0.1, s, 20, 0.01, cycle=True),
        lambda s: 0.09 * (1 - s / (20 * max(1, np.ceil(s / 20)))) + 0.01,
    ),
    "cosine": (
        lambda s: wf.train.cosine_decay(0.1, s, 20, 0.1),
        lambda s: 0.1 * (0.9 * (1 + np.cos(np.pi * min(s, 20) / 20)) / 2 + 0.1),
    ),
    "piecewise": (
        lambda s: wf.train.piecewise_constant(s, [5, 20], [1.0, 0.5, 0.1]),
        lambda s: 1.0 if s <= 5 else 0.5 if s <= 20 else 0.1,
    ),
    "warmup": (
        lambda s: wf.train.linear_warmup(0.1, s, 10),
        lambda s: 0.1 * min(1, (s + 1) / 10),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    schedule, reference = SCHEDULES[name]
    for s in (0, 1, 5, 6, 9, 10, 19, 20, 21, 45):
        np.testing.assert_allclose(schedule(s), reference(s), rtol=1e-6)
        np.testing.assert_allclose(schedule(wf.Variable(s)), reference(s), rtol=1e-6)
    assert schedule(3).dtype is wf.float32
