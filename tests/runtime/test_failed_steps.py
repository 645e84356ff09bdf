"""What a step that fails leaves in its variables: the old value or a new one, never a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.extend.ops import unregister_op

X = np.arange(100, 140, dtype=np.float32)
PAIRS = X.reshape(20, 2)
#: Element 3 is out of bounds of 40, 20, 8 and 5.
BAD = np.array([1, 2, 3, 99, 4, 0, 2, 3])
ZEROS = np.zeros(8, np.float32)


def _loop(times: int, body: Callable[[Any, Any], Any], start: Any) -> Any:
    return wf.fori_loop(0, times, body, start)


CASES: dict[str, tuple[tuple[int, ...], Callable[[Any, Any], Any]]] = {
    "take": ((8,), lambda v, i: wf.gather(X, i)),
    "rows": ((8, 2), lambda v, i: wf.take(PAIRS, i, axis=0)),
    "take_along_axis": (
        (8, 1), lambda v, i: wf.take_along_axis(X.reshape(8, 5), i[:, None], axis=1)),
    "gather_nd": ((8,), lambda v, i: wf.gather_nd(X, i[:, None])),
    "fused": ((8,), lambda v, i: wf.gather(X, i) * 2),
    "softmax": ((8, 2), lambda v, i: wf.nn.softmax(wf.take(PAIRS, i, axis=0))),
    "loop": ((8,), lambda v, i: _loop(3, lambda k, c: c + wf.gather(X, i), ZEROS)),
    "cond": ((8,), lambda v, i: wf.cond(i[0] > 0, lambda: wf.gather(X, i), lambda: wf.zeros(8))),
    "scatter": ((8,), lambda v, i: wf.scatter_nd_add(v, i[:, None], X[:8])),
    "scatter on a fused value": (
        (8,), lambda v, i: wf.scatter_nd_update(v * 0.5 + 3, i[:, None], X[:8])),
    "two scatters": (
        (8,), lambda v, i: wf.scatter_nd_add(
            wf.scatter_nd_add(v, i[:3, None], X[:3]), i[:, None], X[:8])),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
@pytest.mark.parametrize("name", CASES)
def test_the_variable_is_as_it_was(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    shape, value = CASES[name]
    before = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    v = wf.Variable(before)

    @wf.compile(device=device)
    def step(i: Any) -> None:
        v.assign(value(v.value(), i))

    with pytest.raises(wf.errors.InvalidArgumentError, match="is out of bounds"):
        step(BAD)
    assert v.numpy().tobytes() == before.tobytes()
    good = np.minimum(BAD, 4)
    step(good)
    with wf.Graph().as_default(), wf.Session() as session:
        wanted = session.run(value(wf.constant(before), wf.constant(good)))
    np.testing.assert_allclose(v.numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_a_loop_over_a_variable_ends_with_what_an_iteration_left(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its carry is in the variable's memory, which nothing else is needed for."""
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    v, at_once = (wf.Variable(np.zeros(4, np.float32)) for _ in range(2))

    @wf.compile(device=device)
    def step(i: Any) -> None:
        v.assign(_loop(8, lambda k, c: c * 2 + wf.gather(X, i[k]), v.value()))

    with pytest.raises(wf.errors.InvalidArgumentError, match="is out of bounds"):
        step(BAD)
    states = [np.float32(0)]
    for k in BAD[:3]:
        states.append(states[-1] * 2 + X[k])
    assert v.numpy().tolist() in [[float(state)] * 4 for state in states]

    @wf.compile(device=device)
    def gathers(i: Any) -> None:
        at_once.assign(_loop(2, lambda k, c: wf.gather(X, i + k), at_once.value()))

    with pytest.raises(wf.errors.InvalidArgumentError, match="is out of bounds"):
        gathers(BAD[:4])
    assert at_once.numpy().tolist() == [0] * 4


def test_a_kernel_of_the_user_that_raises() -> None:
    def same(x: Any) -> Any:
        return wf.TensorType(x.dtype, x.shape)

    op = wf.register_op("doubled_or_not", reference=lambda x: x * 2, type_rule=same)

    @wf.register_kernel(op)
    def doubled(x: Any, out: Any) -> None:
        for i in range(x.shape[0]):
            if x[i] < 0:
                raise ValueError("negative")
            out[i] = 2 * x[i]

    try:
        v = wf.Variable(np.array([1.0, 2.0, 3.0]))

        @wf.compile
        def step(x: Any) -> None:
            v.assign(op(x))

        with pytest.raises(wf.errors.UnknownError, match="raised an error"):
            step(np.array([5.0, 6.0, -7.0]))
        assert v.numpy().tolist() == [1, 2, 3]
        step(np.array([5.0, 6.0, 7.0]))
        assert v.numpy().tolist() == [10, 12, 14]
    finally:
        unregister_op("doubled_or_not")
