"""`wf.initializers`: against NumPy, SciPy's distributions and np.linalg.qr; fans, keys and seeds,
in `get_variable`, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

import weft as wf
from weft.frontend.nn.initial_values import fans

I = wf.initializers  # noqa: E741 - as pages of other libraries write it
KEY = wf.random.key(3)
SHAPE = (3, 3, 40, 60)  # a window of 9: 360 inputs, 540 outputs
IN, OUT = 360, 540
#: What the standard deviation of a normal distribution becomes when it is cut off at +-2.
CUT = float(scipy.stats.truncnorm(-2, 2).std())


def scaled(kind: str, variance: float) -> Any:
    if kind == "uniform":
        limit = np.sqrt(3 * variance)
        return scipy.stats.uniform(-limit, 2 * limit)
    spread = np.sqrt(variance)
    return (
        scipy.stats.norm(0, spread)
        if kind == "normal"
        else scipy.stats.truncnorm(-2, 2, 0, spread / CUT)
    )


DRAWS: dict[str, tuple[Any, Any]] = {
    "uniform": (I.uniform(-1.0, 3.0), scipy.stats.uniform(-1, 4)),
    "normal": (I.normal(1.0, 0.5), scipy.stats.norm(1, 0.5)),
    "truncated_normal": (I.truncated_normal(1.0, 0.5), scipy.stats.truncnorm(-2, 2, 1, 0.5)),
    "variance_scaling": (I.variance_scaling(), scaled("truncated", 1 / IN)),
    "variance_scaling out": (
        I.variance_scaling(3.0, "fan_out", "normal"), scaled("normal", 3 / OUT)
    ),
    "variance_scaling avg": (
        I.variance_scaling(0.5, "fan_avg", "uniform"), scaled("uniform", 1 / (IN + OUT))
    ),
    "glorot_uniform": (I.glorot_uniform(), scaled("uniform", 2 / (IN + OUT))),
    "glorot_normal": (I.glorot_normal(), scaled("truncated", 2 / (IN + OUT))),
    "he_uniform": (I.he_uniform(), scaled("uniform", 2 / IN)),
    "he_normal": (I.he_normal(), scaled("truncated", 2 / IN)),
    "lecun_uniform": (I.lecun_uniform(), scaled("uniform", 1 / IN)),
    "lecun_normal": (I.lecun_normal(), scaled("truncated", 1 / IN)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name: str) -> None:
    """Kolmogorov and Smirnov's test of 21,600 numbers, which have the shape and dtype asked for."""
    initializer, truth = DRAWS[name]
    values = initializer(SHAPE, key=KEY)
    assert (values.shape, values.dtype) == (SHAPE, wf.float32)
    assert scipy.stats.kstest(values.numpy().ravel(), truth.cdf).pvalue > 0.01
    other = DRAWS["normal" if name == "uniform" else "uniform"][1]
    assert scipy.stats.kstest(values.numpy().ravel(), other.cdf).pvalue < 1e-6
    assert initializer((2, 2), "float64", key=KEY).dtype is wf.float64
    assert initializer((0, 2), key=KEY).shape == (0, 2)


def test_every_initializer_is_tried() -> None:
    others = {"Initializer", "zeros", "ones", "constant", "identity", "orthogonal"}
    assert {n.split()[0] for n in DRAWS} == set(I.__all__) - others


def test_constants() -> None:
    for made, truth in [
        (I.zeros()((2, 3)), np.zeros((2, 3), np.float32)),
        (I.ones()((2,), "int32"), np.ones(2, np.int32)),
        (I.zeros()((), "bool"), np.zeros((), bool)),
        (I.constant()((2,)), np.zeros(2, np.float32)),
        (I.constant(2.5)((2, 2), "float64"), np.full((2, 2), 2.5)),
        (I.constant([1, 2, 3])((2, 3), "int8"), np.array([[1, 2, 3]] * 2, np.int8)),
        (I.identity()((3, 3)), np.eye(3, dtype=np.float32)),
        (I.identity(0.5)((2, 4), "float64"), 0.5 * np.eye(2, 4)),
        (I.identity()((2, 3), "int32"), np.eye(2, 3, dtype=np.int32)),
    ]:
        got = np.asarray(made)
        assert got.dtype == truth.dtype
        np.testing.assert_array_equal(got, truth)


@pytest.mark.share(3)
@pytest.mark.parametrize("shape", [(6, 6), (7, 3), (3, 7), (2, 3, 4), (5, 1), (1, 5), (0, 3)])
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_orthogonal(shape: tuple[int, ...], way: str) -> None:
    """The Q of the same normal matrix, with the signs that make the diagonal of R positive."""
    make = lambda: I.orthogonal(2.0)(shape, "float64", key=KEY)  # noqa: E731
    got = np.asarray((wf.compile(make) if way == "compiled" else make)())
    assert got.shape == shape
    matrix = got.reshape(-1, shape[-1])
    rows, columns = matrix.shape
    a = np.asarray(wf.random.normal(KEY, (max(rows, columns), min(rows, columns)), "float64"))
    q, r = np.linalg.qr(a)
    q = q * np.sign(np.diag(r))
    np.testing.assert_allclose(matrix, 2 * (q.T if rows < columns else q), atol=1e-12)


def test_orthogonal_of_a_layer() -> None:
    q = I.orthogonal()((200, 120), key=KEY).numpy()
    np.testing.assert_allclose(q.T @ q, np.eye(120), atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), (1, 1)), ((7,), (7, 7)), ((3, 5), (3, 5)), ((2, 3, 5), (6, 10)), (SHAPE, (IN, OUT))],
)
def test_fans(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert fans(shape) == expected


# ------------------------------------------------------------------------------ where they are used
def test_keys_and_seeds() -> None:
    one = I.he_normal()
    np.testing.assert_array_equal(one((3, 2), key=KEY), one((3, 2), key=KEY))
    wf.random.set_random_seed(1)
    first, second = one((3, 2)).numpy(), one((3, 2)).numpy()
    assert not np.array_equal(first, second)
    wf.random.set_random_seed(1)
    np.testing.assert_array_equal(one((3, 2)), first)
    wf.random.set_random_seed(1)
    seeded = I.he_normal(seed=7)((3, 2)).numpy()
    assert not np.array_equal(seeded, first)
    wf.random.set_random_seed(1)
    np.testing.assert_array_equal(wf.initializers.he_normal(seed=7)((3, 2)), seeded)


def test_in_get_variable_of_a_session() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        with wf.tf1.variable_scope("layer", initializer=I.he_uniform()):
            w = wf.tf1.get_variable("w", (300, 50))
            b = wf.tf1.get_variable("b", (50,), initializer=I.constant(0.1))
            q = wf.tf1.get_variable("q", (4, 4), initializer=I.orthogonal())
        session.run(wf.global_variables_initializer())
        values, bias, turned = session.run([w, b, q])
    np.testing.assert_array_equal(bias, np.full(50, 0.1, np.float32))
    np.testing.assert_allclose(turned.T @ turned, np.eye(4), atol=1e-6)
    truth = scaled("uniform", 2 / 300)
    assert scipy.stats.kstest(values.ravel(), truth.cdf).pvalue > 0.01


def test_get_variable_begins_with_glorot_uniform() -> None:
    with wf.Graph().as_default():
        wf.random.set_random_seed(4)
        with wf.Session() as session:
            w = wf.tf1.get_variable("w", (200, 100))
            session.run(w.initializer)
            values = session.run(w)
    assert scipy.stats.kstest(values.ravel(), scaled("uniform", 2 / 300).cdf).pvalue > 0.01


def test_in_variables_and_compiled_functions() -> None:
    w = wf.Variable(lambda: I.lecun_normal()((4, 4)))
    assert w.shape == (4, 4)
    make = wf.compile(lambda key: I.glorot_normal()((5, 2), key=key))
    np.testing.assert_allclose(make(KEY), I.glorot_normal()((5, 2), key=KEY), rtol=1e-5)


def test_repr_is_the_call() -> None:
    assert repr(I.uniform(0.0, 1.0)) == "wf.initializers.uniform(minval=0.0, maxval=1.0, seed=None)"
    again = eval(repr(I.he_normal(seed=3)), {"wf": wf})
    assert repr(again) == repr(I.he_normal(seed=3))
    assert repr(I.zeros()) == "wf.initializers.zeros()"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: I.variance_scaling(mode="in"), "InvalidArgumentError", "mode 'in' is none of"),
        (lambda: I.variance_scaling(distribution="cauchy"), "InvalidArgumentError", "distribution"),
        (lambda: I.variance_scaling(0.0), "InvalidArgumentError", "scale must be a number > 0"),
        (lambda: I.variance_scaling("a"), "InvalidArgumentError", "scale must be"),
        (lambda: I.he_normal()((2,), "int32"), "TypeRuleError", "gives floats, not int32"),
        (lambda: I.he_normal()((2,), key=7), "TypeRuleError", "a key is a uint32"),
        (lambda: I.identity()((2,)), "ShapeError", "a matrix has two axes"),
        (lambda: I.orthogonal()((2,)), "ShapeError", "needs two axes or more"),
        (lambda: I.constant([1, 2])((3,)), "ShapeError", "does not broadcast"),
        (lambda: I.zeros()((-1,)), "ShapeError", "-1"),
        (lambda: wf.tf1.get_variable("unshaped", initializer=I.zeros()), "ShapeError",
         "needs a shape"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
