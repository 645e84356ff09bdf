"""Ftrl, Lion, Lamb and Adafactor against float64 transcriptions of their formulas; gradient
accumulation, loss scaling, moving averages: eagerly, compiled, in sessions, in checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

T = wf.train
Array = np.ndarray[Any, Any]
START = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]])
SCALE = np.array([[1.0, 3.0, 0.5], [2.0, 0.1, 1.5]])
STEPS = 10


def gradient(w: Array) -> Array:
    return SCALE * w**3 + np.cos(w)


def loss(w: Any) -> Any:
    scale = wf.astype(SCALE, w.dtype)
    return wf.sum(scale * w**4 / 4 + wf.sin(w))


# --------------------------------------------------------------------- straight from the pages
def ftrl(power: float = -0.5, shrinkage: float = 0.0) -> Iterator[Array]:
    """TensorFlow's documentation of ApplyFtrlV2."""
    w, n, z = START.copy(), np.full_like(START, 0.1), np.zeros_like(START)
    lr, l1, l2 = 0.5, 0.3, 0.2
    while True:
        g = gradient(w)
        new = n + g * g
        z += g + 2 * shrinkage * w - (new**-power - n**-power) / lr * w
        quadratic = 1.0 / (new**power * lr) + 2 * l2
        w = np.where(np.abs(z) > l1, (np.sign(z) * l1 - z) / quadratic, 0.0)
        n = new
        yield w


def lion() -> Iterator[Array]:
    w, m = START.copy(), np.zeros_like(START)
    while True:
        g = gradient(w)
        w = w - 0.02 * (np.sign(0.8 * m + 0.2 * g) + 0.1 * w)
        m = 0.95 * m + 0.05 * g
        yield w


def lamb() -> Iterator[Array]:
    w, m, v, t = START.copy(), np.zeros_like(START), np.zeros_like(START), 0
    while True:
        g, t = gradient(w), t + 1
        m, v = 0.8 * m + 0.2 * g, 0.99 * v + 0.01 * g * g
        u = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-6) + 0.1 * w
        w = w - 0.05 * np.linalg.norm(w) / np.linalg.norm(u) * u
        yield w


def rms(x: Array) -> float:
    return float(np.sqrt((x * x).mean()))


def adafactor(rate: float | None = None, scaled: bool = True) -> Iterator[Array]:
    """Algorithm 4 of the paper, with sums and an outer product where weft has means."""
    w, t = START.copy(), 0
    r, c = np.zeros(2), np.zeros(3)
    while True:
        g, t = gradient(w), t + 1
        beta = 1 - t**-0.8
        squares = g * g + 1e-30
        r = beta * r + (1 - beta) * squares.sum(1)
        c = beta * c + (1 - beta) * squares.sum(0)
        u = g / np.sqrt(np.outer(r, c) / r.sum())
        u /= max(1.0, rms(u) / 1.0)
        step = min(1e-2, 1 / np.sqrt(t)) if rate is None else rate
        w = w - step * (max(1e-3, rms(w)) if scaled else 1.0) * u
        yield w


Make = Callable[[], Any]
OPTIMIZERS: dict[str, tuple[Make, Callable[[], Iterator[Array]]]] = {
    "Ftrl": (lambda: T.Ftrl(0.5, -0.5, 0.1, 0.3, 0.2), ftrl),
    "Ftrl power": (lambda: T.Ftrl(0.5, -0.7, 0.1, 0.3, 0.2), lambda: ftrl(-0.7)),
    "Ftrl shrinkage": (
        lambda: T.Ftrl(0.5, -0.5, 0.1, 0.3, 0.2, l2_shrinkage_regularization_strength=0.4),
        lambda: ftrl(shrinkage=0.4),
    ),
    "Lion": (lambda: T.Lion(0.02, 0.8, 0.95, weight_decay=0.1), lion),
    "Lion variable": (
        lambda: T.Lion(0.02, 0.8, 0.95, weight_decay=wf.Variable(np.float64(0.1))),
        lion,
    ),
    "Lamb": (lambda: T.Lamb(0.05, 0.8, 0.99, weight_decay=0.1), lamb),
    "Adafactor": (T.Adafactor, adafactor),
    "Adafactor rate": (
        lambda: T.Adafactor(0.05, multiply_by_parameter_scale=False),
        lambda: adafactor(0.05, scaled=False),
    ),
}


@pytest.mark.share(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("way", ["eager", "compiled", "session"])
def test_formula(name: str, way: str) -> None:
    make, reference = OPTIMIZERS[name]
    follow(make(), reference(), way)


def follow(optimizer: Any, reference: Iterator[Array], way: str) -> None:
    """Ten steps of the loss above in float64 are those of the reference."""
    expected = [next(reference) for _ in range(STEPS)]
    if way == "session":
        with wf.Graph().as_default(), wf.Session() as session:
            w = wf.Variable(START)
            train = optimizer.minimize(loss(w))
            session.run(wf.global_variables_initializer())
            for truth in expected:
                assert session.run(train) is None
                np.testing.assert_allclose(session.run(w), truth, rtol=1e-9, atol=1e-10)
        return
    w = wf.Variable(START)

    def step() -> None:
        optimizer.minimize(lambda: loss(w)) if way == "eager" else optimizer.minimize(loss(w))

    run = step if way == "eager" else wf.compile(step)
    for truth in expected:
        run()
        np.testing.assert_allclose(w.numpy(), truth, rtol=1e-9, atol=1e-10)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_converges_on_least_squares(name: str) -> None:
    kind = name.split()[0]
    make: dict[str, Make] = {
        "Ftrl": lambda: T.Ftrl(1.0), "Lion": lambda: T.Lion(0.01), "Lamb": lambda: T.Lamb(0.01),
        "Adafactor": lambda: T.Adafactor(0.03),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    x, true = rng.normal(size=(64, 4)), rng.normal(size=(4, 2))
    y = x @ true + 0.7
    w, b = wf.Variable(np.full((4, 2), 0.1)), wf.Variable(np.full(2, 0.1))
    optimizer = make[kind]()

    @wf.compile
    def step() -> Any:
        value = wf.mean(wf.square(wf.matmul(x, w) + b - y))
        optimizer.minimize(value)
        return value

    values = [float(step()) for _ in range(500)]
    assert values[-1] < 2e-3 < values[0] / 100


def test_float32_and_vectors() -> None:
    """Adafactor of vectors has no factors; the state is as small as promised."""
    v = wf.Variable(np.array([1.0, -2.0], np.float32))
    cube = wf.Variable(np.ones((2, 3, 4), np.float32))
    optimizer = T.Adafactor()
    optimizer.minimize(lambda: wf.sum(v**2) + wf.sum(cube**2))
    assert optimizer.get_slot(v, "v").shape == (2,)
    assert optimizer.get_slot(v, "row") is None
    assert optimizer.get_slot(cube, "row").shape == (2, 3)
    assert optimizer.get_slot(cube, "column").shape == (2, 4)
    np.testing.assert_allclose(v.numpy(), [1 - 0.01 * 2.5**0.5, -2 + 0.01 * 2.5**0.5], rtol=1e-5)
    half = wf.Variable(np.ones(3), dtype=wf.bfloat16)
    for make, _ in OPTIMIZERS.values():
        make().minimize(lambda: wf.sum(half))
        assert half.dtype is wf.bfloat16


def test_lamb_where_a_length_is_0() -> None:
    w = wf.Variable([0.0, 0.0])
    T.Lamb(0.1).apply_gradients([(wf.asarray([1.0, -1.0]), w)])
    np.testing.assert_allclose(w.numpy(), [-0.1, 0.1], rtol=1e-5)
    T.Lamb(0.1).apply_gradients([(wf.asarray([0.0, 0.0]), w)])
    np.testing.assert_allclose(w.numpy(), [-0.1, 0.1], rtol=1e-5)


def test_ftrl_makes_exact_zeros() -> None:
    w = wf.Variable([0.5, 0.5])
    T.Ftrl(1.0, l1_regularization_strength=2.0).apply_gradients([(wf.asarray([0.5, -9.0]), w)])
    assert w.numpy()[0] == 0
    assert w.numpy()[1] > 0


def test_rows_of_a_table() -> None:
    """IndexedSlices give what the dense gradient gives."""
    rows = wf.IndexedSlices([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [2, 0, 2], (4, 2))
    for make, _ in OPTIMIZERS.values():
        both = []
        for g in (rows, rows.to_dense()):
            w = wf.Variable(np.arange(8.0, dtype=np.float32).reshape(4, 2))
            make().apply_gradients([(g, w)])
            both.append(w.numpy())
        np.testing.assert_array_equal(*both)


HYPERPARAMETERS: list[Callable[[Any], Any]] = [
    T.Ftrl, T.Lion, T.Lamb, T.Adafactor,
    lambda v: T.Ftrl(initial_accumulator_value=v), lambda v: T.Ftrl(l1_regularization_strength=v),
    lambda v: T.Ftrl(l2_regularization_strength=v),
    lambda v: T.Ftrl(l2_shrinkage_regularization_strength=v),
    lambda v: T.Lion(beta1=v), lambda v: T.Lion(weight_decay=v), lambda v: T.Lamb(beta2=v),
    lambda v: T.Lamb(weight_decay=v), lambda v: T.Adafactor(decay_rate=v),
    lambda v: T.Adafactor(epsilon2=v),
]  # fmt: skip


@pytest.mark.parametrize("make", HYPERPARAMETERS)
def test_hyperparameters_are_checked(make: Callable[[Any], Any]) -> None:
    make(0.5)
    for value in ("a", 1j, True, [0.1]):
        with pytest.raises(wf.errors.TypeRuleError, match="must be a real number") as caught:
            make(value)
        assert caught.value.locations[0].file == __file__
    for number in (-1.0, float("nan")):
        with pytest.raises(wf.errors.InvalidArgumentError, match="must be"):
            make(number)


def test_names_and_copies() -> None:
    assert T.FtrlOptimizer is T.Ftrl
    assert repr(T.Lion(0.1)) == "Lion(learning_rate=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0)"
    assert "learning_rate=None" in repr(T.Adafactor())
    assert "optimizer=SGD(learning_rate=0.1)" in repr(T.GradientAccumulation(T.SGD(0.1), 2))
    w = wf.Variable([1.0])
    optimizer = T.GradientAccumulation(T.Lion(0.1), 2)
    optimizer.minimize(lambda: wf.sum(w**2), [w])
    w2, copied = copy.deepcopy((w, optimizer))
    for v, o in ((w, optimizer), (w2, copied)):
        o.minimize(lambda v=v: wf.sum(v**2), [v])  # type: ignore[misc]
        np.testing.assert_allclose(v.numpy(), [0.9])


# ------------------------------------------------------------------------------------- accumulation
def accumulated(steps: int, average: bool) -> Iterator[Array]:
    """Adam by hand, once for each `steps` gradients of the same w."""
    w, m, v, t, total, k = START.copy(), np.zeros_like(START), np.zeros_like(START), 0, 0.0, 0
    while True:
        total, k = total + gradient(w), k + 1
        if k == steps:
            g: Any = total / steps if average else total
            t += 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w = w - rate * m / (np.sqrt(v) + 1e-8)
            total, k = 0.0, 0
        yield w


@pytest.mark.share(3)
@pytest.mark.parametrize("way", ["eager", "compiled", "session"])
@pytest.mark.parametrize(("steps", "average"), [(1, True), (3, True), (4, False)])
def test_accumulation(way: str, steps: int, average: bool) -> None:
    optimizer = T.GradientAccumulation(T.Adam(0.1), steps, average)
    follow(optimizer, accumulated(steps, average), way)


@pytest.mark.parametrize("way", ["compiled", "session"])
def test_accumulation_of_microbatches_is_the_step_of_the_batch(way: str) -> None:
    """Four parts of a batch, one after the other, against the whole; momentum moves with applied
    steps only."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 8, 3)), rng.normal(size=(6, 8))
    whole, parts = wf.Variable(np.zeros(3)), wf.Variable(np.zeros(3))
    plain = T.Momentum(0.1, 0.9)
    wrapped = T.GradientAccumulation(T.Momentum(0.1, 0.9), 4)

    def objective(w: Any, x: Any, y: Any) -> Any:
        return wf.mean(wf.square(wf.matmul(x, w) - y))

    if way == "session":
        with wf.Graph().as_default(), wf.Session() as session:
            part = wf.Variable(np.zeros(3))
            fed = wf.placeholder(wf.float64, [2, 3]), wf.placeholder(wf.float64, [2])
            train = wrapped.minimize(objective(part, *fed), [part])
            session.run(wf.global_variables_initializer())
            for bx, by in zip(x, y, strict=True):
                for i in range(4):
                    rows = slice(2 * i, 2 * i + 2)
                    session.run(train, {fed[0]: bx[rows], fed[1]: by[rows]})
            got = session.run(part)
    else:
        step = wf.compile(lambda x, y: wrapped.minimize(objective(parts, x, y), [parts]) and None)
        for bx, by in zip(x, y, strict=True):
            for i in range(4):
                rows = slice(2 * i, 2 * i + 2)
                step(bx[rows], by[rows])
        got = parts.numpy()
    for bx, by in zip(x, y, strict=True):
        plain.minimize(lambda bx=bx, by=by: objective(whole, bx, by), [whole])  # type: ignore[misc]
    np.testing.assert_allclose(got, whole.numpy(), rtol=1e-12)


def test_accumulation_counts_global_steps_and_takes_rows() -> None:
    table, count = wf.Variable(np.ones((4, 2), np.float32)), wf.Variable(0, trainable=False)
    optimizer = T.GradientAccumulation(T.SGD(1.0), 2)

    @wf.compile
    def step(ids: Any) -> None:
        rows = wf.nn.embedding_lookup(table, ids)
        optimizer.minimize(wf.sum(rows), [table], global_step=count)

    step(np.array([0, 0]))
    np.testing.assert_array_equal(table.numpy(), 1)
    step(np.array([0, 3]))
    np.testing.assert_array_equal(table.numpy()[:, 0], [1 - 1.5, 1, 1, 0.5])
    assert int(count) == 2


def test_accumulation_counts_for_one_list_of_variables() -> None:
    """Two lists in turn would be one count: with two steps the first would never change."""
    a, b = wf.Variable(0.0, name="a"), wf.Variable(0.0, name="b")
    optimizer = T.GradientAccumulation(T.SGD(1.0), 2)
    optimizer.minimize(lambda: a + b, [a, b])
    optimizer.minimize(lambda: a + b, [b, a])
    assert (float(a), float(b)) == (-1, -1)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"with the variables \(b\), before"):
        optimizer.minimize(lambda: a + b, [b])


# ------------------------------------------------------------------------------------ loss scaling
@pytest.mark.share(2)
@pytest.mark.parametrize("way", ["eager", "compiled", "session"])
def test_scaling_changes_nothing_where_all_is_finite(way: str) -> None:
    """A power of two is exact."""
    make, reference = OPTIMIZERS["Lamb"]
    follow(T.LossScaling(make(), 2.0**10, growth_interval=3), reference(), way)


@pytest.mark.parametrize("way", ["eager", "compiled", "session"])
def test_scales(way: str) -> None:
    """Doubled after two good steps, halved by a bad one, which changes neither w nor Adam."""
    xs = [1.0, 1.0, 1.0, np.inf, 1.0, np.nan, np.nan, 1.0, 1.0]
    truth = wf.Variable(0.0)
    plain = T.Adam(0.1)
    expected, scales, scale, good = [], [], 8.0, 0
    for x in xs:
        if np.isfinite(x):
            plain.minimize(lambda: truth * 1.0)
            good += 1
            scale, good = (scale * 2, 0) if good == 2 else (scale, good)
        else:
            scale, good = max(scale / 2, 1), 0
        expected.append(float(truth))
        scales.append(scale)
    inner = T.Adam(0.1)
    optimizer = T.LossScaling(inner, 8.0, growth_interval=2)
    got, seen = [], []
    if way == "session":
        with wf.Graph().as_default(), wf.Session() as session:
            w, x = wf.Variable(0.0), wf.placeholder(wf.float32, [])
            train = optimizer.minimize(w * x)
            now = optimizer.loss_scale()
            session.run(wf.global_variables_initializer())
            for value in xs:
                session.run(train, {x: value})
                got.append(float(session.run(w)))
                seen.append(float(session.run(now)))
    else:
        w = wf.Variable(0.0)
        step: Any = lambda x: optimizer.minimize(lambda: w * x)  # noqa: E731
        if way == "compiled":
            step = wf.compile(lambda x: optimizer.minimize(w * x) and None)
        for value in xs:
            step(np.float32(value))
            got.append(float(w))
            seen.append(float(optimizer.loss_scale()))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert seen == scales
    assert inner.step is not None
    assert int(inner.step.numpy()) == 6


def test_mixed_precision_learns_what_float16_alone_does_not() -> None:
    """A loss whose gradients in float16 are 0 unless it is scaled; the variables are float32."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype(np.float16)
    y = (x @ np.array([1.0, -2.0, 0.5])).astype(np.float16)

    def trained(optimizer: Any) -> float:
        w = wf.Variable(np.zeros(3, np.float32))

        @wf.compile
        def step() -> None:
            error = x @ wf.astype(w, wf.float16) - y
            value = wf.sum(error * error * 2.0**-20 * 2.0**-6)
            optimizer.minimize(value, [w])

        for _ in range(100):
            step()
        return float(np.abs(w.numpy() - [1.0, -2.0, 0.5]).max())

    rate = 0.3 * 2.0**26 / 64
    assert trained(T.LossScaling(T.SGD(rate), 2.0**15)) < 0.02
    assert trained(T.SGD(rate)) > 0.2


def test_scaling_without_change_and_one_in_the_other() -> None:
    w = wf.Variable(0.0)
    inner = T.GradientAccumulation(T.SGD(1.0), 2)
    optimizer = T.LossScaling(inner, 4.0, growth_interval=1, dynamic=False)
    step = wf.compile(lambda x: optimizer.minimize(w * x) and None)
    values = []
    for x in (1.0, np.inf, 3.0, 5.0, 7.0):
        step(np.float32(x))
        values.append(float(w))
    assert values == [0, 0, -2, -2, -8]
    assert float(optimizer.loss_scale()) == 4


@pytest.mark.parametrize("scale_inside", [True, False])
def test_the_loss_is_scaled_wherever_the_scaling_is(scale_inside: bool) -> None:
    """Eagerly each op rounds to float16: gradients of 2^-26 and 2^-25 are 0 without a scale."""
    w = wf.Variable([2.0, 4.0])

    def objective() -> Any:
        half = wf.astype(w, wf.float16) * 2.0**-12
        return wf.sum(half * half * 0.0625)

    sgd = T.SGD(2.0**23)
    T.GradientAccumulation(sgd, 1).minimize(objective)
    np.testing.assert_array_equal(w.numpy(), [2.0, 4.0])
    if scale_inside:
        optimizer: Any = T.GradientAccumulation(T.LossScaling(sgd, 2.0**12), 2)
    else:
        optimizer = T.LossScaling(T.GradientAccumulation(sgd, 2), 2.0**12)
    for _ in range(2):
        optimizer.minimize(objective)
    np.testing.assert_array_equal(w.numpy(), [1.875, 3.75])


def test_scales_beyond_float16() -> None:
    """The gradient of a float16 variable is divided by 2^17, not by infinity."""
    w = wf.Variable(wf.asarray([1.0], dtype=wf.float16))
    table = wf.Variable(wf.ones((2, 1), dtype=wf.float16))
    optimizer = T.LossScaling(T.SGD(1.0), 2.0**17)

    @wf.compile
    def step() -> None:
        rows = wf.nn.embedding_lookup(table, [1])
        optimizer.minimize(wf.astype(wf.sum(w) + wf.sum(rows), wf.float32) * 0.125, [w, table])

    step()
    assert float(optimizer.loss_scale()) == 2.0**17
    np.testing.assert_array_equal(w.numpy(), [0.875])
    np.testing.assert_array_equal(table.numpy(), [[1.0], [0.875]])


@pytest.mark.parametrize("wrap", [lambda o: T.GradientAccumulation(o, 1), T.LossScaling])
def test_around_an_optimizer_without_a_rate(wrap: Callable[[Any], Any]) -> None:
    follow(wrap(T.Adafactor()), adafactor(), "compiled")


def test_no_line_search_is_left_out() -> None:
    """Within another, L-BFGS has gradients only."""
    w = wf.Variable([1.0])
    optimizer = T.LossScaling(T.LBFGS(line_search=3))
    with pytest.raises(wf.errors.UnsupportedError, match="a line search computes the loss again"):
        optimizer.minimize(lambda: wf.sum(w**2))


def test_checkpoints_of_wrappers(tmp_path: Path) -> None:
    """Restored before the first step, and after."""

    def model() -> tuple[Any, Any, Any, Any]:
        w = wf.Variable([1.0, 2.0], name="w")
        inner = T.Adafactor(0.1, name="inner")
        outer = T.GradientAccumulation(inner, 3, name="outer")
        scaled = T.LossScaling(outer, 8.0, growth_interval=2, name="scaled")
        saver = T.Saver({"w": w, "inner": inner, "outer": outer, "scaled": scaled})
        return w, saver, scaled, wf.compile(lambda: scaled.minimize(wf.sum(w**2), [w]) and None)

    w, saver, scaled, step = model()
    for _ in range(4):
        step()
    path = saver.save(None, tmp_path / "model")
    for _ in range(3):
        step()
    for early in (True, False):
        w2, saver2, scaled2, step2 = model()
        if not early:
            for _ in range(2):
                step2()
        saver2.restore(None, path)
        for _ in range(3):
            step2()
        np.testing.assert_array_equal(w2.numpy(), w.numpy())
        assert float(scaled2.loss_scale()) == float(scaled.loss_scale())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: T.GradientAccumulation(0.1, 2), "TypeRuleError", "goes around an optimizer"),
        (lambda: T.GradientAccumulation(T.SGD(), 0), "InvalidArgumentError", "steps must be at"),
        (lambda: T.GradientAccumulation(T.SGD(), 1.5), "InvalidArgumentError", "steps"),
        (lambda: T.LossScaling(T.SGD(), 0.5), "InvalidArgumentError", "initial_scale must be at"),
        (lambda: T.LossScaling(T.SGD(), growth_interval=0), "InvalidArgumentError", "growth_int"),
        (lambda: T.LossScaling(T.SGD(), factor=1.0), "InvalidArgumentError", "factor must be"),
        (lambda: T.Ftrl(0.1, 0.5), "InvalidArgumentError", "learning_rate_power must be 0 or less"),
        (lambda: T.ExponentialMovingAverage("a"), "TypeRuleError", "decay must be a real number"),
        (lambda: T.ExponentialMovingAverage(1.0), "InvalidArgumentError", "decay must be in"),
        (lambda: T.ExponentialMovingAverage(0.9).apply(), "InvalidArgumentError", "no variables"),
        (lambda: T.ExponentialMovingAverage(0.9).apply([wf.Variable(1)]), "TypeRuleError",
         "floating variables have averages"),
        (lambda: T.ExponentialMovingAverage(0.9).apply([wf.asarray(1.0)]), "UnsupportedError",
         "only in a graph"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__


# --------------------------------------------------------------------------------- moving averages
def averaged(decay: float, counted: bool, debias: bool) -> Iterator[tuple[Array, Array]]:
    """The variable, which goes down by a tenth in each step, and its average."""
    w, n = START.copy(), 0
    average, biased = START.copy() if not debias else np.zeros_like(START), np.zeros_like(START)
    while True:
        w = w - 0.1 * w
        d = min(decay, (1 + n) / (10 + n)) if counted else decay
        biased = d * biased + (1 - d) * w
        n += 1
        average = biased / (1 - d**n) if debias else d * average + (1 - d) * w
        yield w, average


@pytest.mark.parametrize("way", ["eager", "compiled", "session"])
@pytest.mark.parametrize(("counted", "debias"), [(False, False), (True, False), (False, True)])
def test_moving_average(way: str, counted: bool, debias: bool) -> None:
    reference = averaged(0.7, counted, debias)

    def made() -> tuple[Any, Any, Any]:
        w, n = wf.Variable(START, name="w"), wf.Variable(0, trainable=False)
        ema = T.ExponentialMovingAverage(0.7, n if counted else None, debias)
        return w, n, ema

    if way == "session":
        with wf.Graph().as_default(), wf.Session() as session:
            w, n, ema = made()
            with wf.control_dependencies([w.assign_sub(w * 0.1)]):
                follow_up = ema.apply([w])
            with wf.control_dependencies([follow_up]):
                train = n.assign_add(1)
            session.run(wf.global_variables_initializer())
            if not debias:  # the average begins with the initial value
                np.testing.assert_array_equal(session.run(ema.average(w)), START)
            for _ in range(6):
                session.run(train)
                truth = next(reference)
                for got, expected in zip(session.run([w, ema.average(w)]), truth, strict=True):
                    np.testing.assert_allclose(got, expected, rtol=1e-12)
        return
    w, n, ema = made()

    def step() -> None:
        w.assign_sub(w * 0.1)
        ema.apply([w])
        n.assign_add(1)

    if way == "eager" and not debias:  # a trace makes it before its first step runs
        T.ExponentialMovingAverage.apply(ema, [w])
    run = step if way == "eager" else wf.compile(step)
    for _ in range(6):
        run()
        for got, expected in zip((w, ema.average(w)), next(reference), strict=True):
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


def test_names_and_restoring_averages(tmp_path: Path) -> None:
    """TensorFlow 1's way: train with averages, evaluate with them in place of the variables."""
    with wf.Graph().as_default(), wf.Session() as session:
        w = wf.Variable([1.0], name="w")
        fixed = wf.Variable([5.0], trainable=False, name="fixed")
        ema = T.ExponentialMovingAverage(0.5)
        assert ema.average(w) is None
        assert ema.average_name(w) == "w/ExponentialMovingAverage"
        with wf.control_dependencies([w.assign_add([2.0])]):
            train = ema.apply()
        assert ema.average_name(w) == ema.average(w).name == "w/ExponentialMovingAverage"
        assert ema.average(fixed) is None
        session.run(wf.global_variables_initializer())
        session.run(train)
        path = T.Saver().save(session, tmp_path / "model")
    with wf.Graph().as_default(), wf.Session() as session:
        w, fixed = wf.Variable([0.0], name="w"), wf.Variable([0.0], trainable=False, name="fixed")
        found = T.ExponentialMovingAverage(0.5).variables_to_restore()
        assert found == {"w/ExponentialMovingAverage": w, "fixed": fixed}
        T.Saver(found).restore(session, path)
        assert [float(v[0]) for v in session.run([w, fixed])] == [2.0, 5.0]
        only = T.ExponentialMovingAverage(0.5).variables_to_restore([])
        assert only == {"w": w, "fixed": fixed}


def test_averages_of_tensors_in_a_graph() -> None:
    """They begin at 0, and are as if they had not."""
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [])
        total = x * 2.0
        ema = T.ExponentialMovingAverage(0.9)
        train = ema.apply([total])
        average = ema.average(total)
        assert average is not None
        session.run(wf.global_variables_initializer())
        biased = 0.0
        for n, value in enumerate([3.0, 5.0, 1.0], 1):
            session.run(train, {x: value})
            biased = 0.9 * biased + 0.1 * 2 * value
            np.testing.assert_allclose(session.run(average), biased / (1 - 0.9**n), rtol=1e-5)


def test_apply_takes_what_a_function_has_read() -> None:
    w, other = wf.Variable(1.0), wf.Variable(1.0)
    ema = T.ExponentialMovingAverage(0.5)
    optimizer = T.SGD(0.5)

    @wf.compile
    def step() -> None:
        optimizer.minimize(wf.sum(w * 2.0))
        ema.apply()

    step()
    assert float(w) == 0
    assert float(ema.average(w)) == 0.5
    assert ema.average(other) is None
    assert ema.variables() == [ema.average(w)]
