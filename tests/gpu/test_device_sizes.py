"""Plans of sessions on a GPU for many sizes: the bits of the plan that each set of sizes has by
itself, errors as there, and passes that run a few times for many sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_device import use_fake
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.runtime.device.backends import registry
from weft.runtime.device.execution.size_plan import DeviceSizePlan

Array = np.ndarray[Any, Any]
DIM = 12


def _scanned(x: Any, w: Any) -> Any:
    """A loop with as many iterations as there are rows."""
    last, rows = wf.scan(lambda c, row: (c * 0.5 + row, c * row), init=w[0] * 1.0, xs=x)
    return rows * 0.5 + last


def _until(x: Any, w: Any) -> Any:
    return wf.while_loop(lambda y: wf.max(wf.abs(y)) > 1.0, lambda y: y[::-1] * 0.7, x)


LAYERS: dict[str, Callable[[Any, Any], Any]] = {
    "dense": lambda x, w: wf.tanh(x @ w) * 0.5 + x,
    "self": lambda x, w: (x @ wf.matrix_transpose(x)) @ x * 0.01,
    "normal": lambda x, w: x - wf.mean(x, axis=1, keepdims=True),
    "columns": lambda x, w: x - 0.5 * wf.mean(x, axis=0),
    "softmax": lambda x, w: wf.nn.softmax(x * 1.5 - 0.25),
    "over rows": lambda x, w: wf.nn.softmax(x, axis=0),
    "norm": lambda x, w: x / (1 + wf.sqrt(wf.sum(wf.square(x)))),
    "gram": lambda x, w: x @ (wf.matrix_transpose(x) @ x) * 0.01,
    "cumulative": lambda x, w: wf.cumulative_sum(x, axis=0) * 0.1,
    "sorted": lambda x, w: wf.sort(x, axis=0),
    "flat": lambda x, w: wf.reshape(wf.reshape(x, [-1]) * 2, [-1, DIM]),
    "rows": lambda x, w: x + wf.gather(w, wf.cast(wf.abs(x[:, 0] * 10), wf.int64) % DIM),
    "concat": lambda x, w: wf.concat([x, w, x], axis=0)[3:-DIM],
    "scan": _scanned,
    "until": _until,
}

_QUICK = ("dense", "over rows", "norm", "gram", "rows", "concat", "scan", "until")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[DeviceSizePlan]:
    """All plans for many sizes that are made from now on."""
    made: list[DeviceSizePlan] = []
    init = DeviceSizePlan.__init__

    def noted(self: DeviceSizePlan, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(DeviceSizePlan, "__init__", noted)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    return made


def _random(rows: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, DIM)).astype(np.float32)


class _Model:
    """Layers in a session on /gpu:0, with their gradients."""

    def __init__(self, names: list[str], **options: Any) -> None:
        self.graph = wf.Graph()
        with self.graph.as_default(), wf.device("/gpu:0"):
            self.x = wf.placeholder(wf.float32, [None, DIM])
            self.w = wf.Variable(_random(DIM) * 0.3)
            value = self.x
            for name in names:
                value = LAYERS[name](value, self.w)
            total = wf.sum(value * value)
            self.fetched = [value, total, *wf.gradients(total, [self.x])]
            self.session = wf.Session(**options)
            self.session.run(wf.global_variables_initializer())

    def run(self, rows: int) -> list[Array]:
        return [np.asarray(v) for v in self.session.run(self.fetched, {self.x: _random(rows)})]


def _check(names: list[str], counts: list[int]) -> None:
    many = _Model(names)
    for rows in counts:
        got, own = many.run(rows), _Model(names).run(rows)
        for one, other in zip(got, own, strict=True):
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in LAYERS]
)
def test_bits_of_each_layer_are_those_of_a_plan_of_ones_own(
    name: str, plans: list[DeviceSizePlan]
) -> None:
    _check([name], [5, 7, 20])
    assert plans


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(LAYERS)), min_size=2, max_size=3),
    counts=st.lists(st.integers(2, 40), min_size=3, max_size=4),
)
def test_bits_of_layers_together(names: list[str], counts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_EMULATE_GPU", "1")
        _check(names, counts)


def test_few_plans_serve_many_sizes_and_compile_nothing(
    plans: list[DeviceSizePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = use_fake(monkeypatch, runs=False)
    model = _Model(["dense", "softmax", "columns"])
    for rows in (40, 41, 64):
        model.run(rows)
    compiled = len(api.compiler.compiled)
    for rows in range(33, 65):
        model.run(rows)
    assert len(plans) <= 2
    assert len(api.compiler.compiled) == compiled


def test_an_index_out_of_bounds_is_told_of_with_the_sizes_of_the_call(
    plans: list[DeviceSizePlan],
) -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        index = wf.placeholder(wf.int64, [None])
        table = wf.Variable(_random(6))
        rows = wf.gather(table, index) * 2.0
        session.run(wf.global_variables_initializer())
        for count in (3, 4, 5):
            session.run(rows, {index: np.arange(count)})
        with pytest.raises(wf.errors.InvalidArgumentError) as caught:
            session.run(rows, {index: np.array([0, 1, 2, 3, 9, 1, 2])})
        assert "i64[7]" in str(caught.value)
        assert "index 9" in str(caught.value)
        assert "test_device_sizes.py" in str(caught.value)
        np.testing.assert_array_equal(
            session.run(rows, {index: np.array([5, 5])}), _random(6)[[5, 5]] * 2
        )
    assert plans


def test_people_are_shown_the_plan_of_their_sizes(plans: list[DeviceSizePlan]) -> None:
    model = _Model(["dense"])
    for rows in (5, 6, 7):
        model.run(rows)
    assert plans
    text = str(model.session.explain(model.fetched, {model.x: _random(7)}))
    assert "7" in text
    assert "Traced" not in text


def test_constants_are_on_the_device_once(plans: list[DeviceSizePlan]) -> None:
    held = np.random.default_rng(0).standard_normal((1000, 12)).astype(np.float32)
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, DIM])
        y = wf.matmul(x, wf.matrix_transpose(wf.constant(held)))
        session.run(y, {x: _random(40)})
        session.run(y, {x: _random(41)})
        device = registry.gpu(0)
        before = device.resident.describe(1000).count("constants of")
        for rows in range(42, 60):
            np.testing.assert_allclose(
                session.run(y, {x: _random(rows)}), _random(rows) @ held.T, rtol=1e-4, atol=1e-5
            )
        assert len(plans) == 1
        assert device.resident.describe(1000).count("constants of") == before


def test_regions_whose_sizes_depend_on_values(plans: list[DeviceSizePlan]) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        data, mask = wf.placeholder(wf.float32, [70, DIM]), wf.placeholder(wf.bool, [70])
        with wf.device("/cpu:0"):
            chosen = wf.boolean_mask(data, mask)
        with wf.device("/gpu:0"):
            made = wf.sum(wf.tanh(chosen * 2.0), axis=0)
        for count in (5, 6, 7, 8, 7, 5, 0, 40):
            picked = np.arange(70) < count
            np.testing.assert_allclose(
                session.run(made, {data: _random(70), mask: picked}),
                np.tanh(_random(70)[picked] * 2.0).sum(axis=0), rtol=1e-5, atol=1e-5,
            )  # fmt: skip
    assert 0 < len(plans) < 4


def test_the_first_sizes_of_a_region_have_a_plan_of_their_own(
    plans: list[DeviceSizePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [40])
        with wf.device("/cpu:0"):
            some = wf.boolean_mask(x, x > 0)
        with wf.device("/gpu:0"):
            y = wf.tanh(some) * 2
        made = []
        for count in (10, 20, 30):
            given = np.where(np.arange(40) < count, 1.0, -1.0).astype(np.float32)
            np.testing.assert_allclose(
                session.run(y, {x: given}), np.tanh(np.ones(count)) * 2, rtol=1e-6
            )
            made.append(len(plans))
    assert made[0] == 0
    assert made[1] == made[2] > 0
