"""Compiled functions in which `wf.device` says which part runs on an (emulated) GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

F32 = np.float32


@pytest.fixture(autouse=True)
def _two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")


def test_a_part_on_the_gpu_and_the_rest_on_the_cpu() -> None:
    queue, v = wf.tf1.FIFOQueue(9, [wf.float32], [(3,)]), wf.Variable(np.ones(3, F32))

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        with wf.device("gpu:0"):
            y = wf.exp(x) * 2.0
        queue.enqueue(y)
        v.assign_add(y)
        return y + 1.0, queue.dequeue(), x

    x = np.array([0, 1, 2], F32)
    for k in range(1, 3):
        y = np.exp(x) * 2
        more, taken, same = f(x)
        np.testing.assert_allclose(more.numpy(), y + 1, rtol=1e-6)
        np.testing.assert_allclose(taken.numpy(), y, rtol=1e-6)
        np.testing.assert_array_equal(same.numpy(), x)
        np.testing.assert_allclose(v.numpy(), 1 + k * y, rtol=1e-6)
    text = f.explain(x)
    assert "runs in parts on /cpu:0 and /gpu:0" in text
    assert "part of /gpu:0" in text
    assert "parts on /cpu:0 and /gpu:0" in f.summary(x)


def test_two_gpus_of_one_function() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        halves = []
        for k, half in enumerate((x[:2], x[2:])):
            with wf.device(f"gpu:{k}"):
                halves.append(wf.sum(half * half))
        return halves[0] + halves[1]

    assert float(f(np.array([1, 2, 3, 4], F32))) == 30.0
    assert "/gpu:1" in f.explain(np.ones(4, F32))


def test_a_whole_function_on_the_gpu_and_gradients_with_their_ops() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:0"):
            return wf.grad(lambda t: wf.sum(wf.sin(t)))(x)

    x = np.array([0, 1, 2], F32)
    np.testing.assert_allclose(f(x).numpy(), np.cos(x), rtol=1e-6)


def test_open_sizes_and_loops() -> None:
    @wf.compile(input_signature=[wf.TensorType(wf.float32, (None,))])
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:0"):
            y = wf.fori_loop(0, 3, lambda i, t: t * 2.0, x)
        return wf.sum(y)

    for n in (3, 5):
        assert float(f(np.ones(n, F32))) == 8.0 * n


def test_the_cpu_alone_stays_native() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("/cpu:0"):
            return wf.exp(x)

    assert f.asm(np.ones(3, F32))


def test_a_device_that_is_not_there() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:7"):
            y = wf.exp(x)
        return y + 1.0

    with pytest.raises(wf.errors.WeftError, match=r"op 'exp' is to run on /gpu:7") as caught:
        f(np.ones(3, F32))
    assert caught.value.locations[0].file == __file__


def _on_gpu(x: wf.Tensor) -> wf.Tensor:
    with wf.device("gpu:0"):
        y = wf.exp(x)
    return y + 1.0


# ---------------------------------------------- functions for a GPU that the host has a part in


def test_a_function_for_a_gpu_with_ops_of_the_host() -> None:
    queue, v = wf.tf1.FIFOQueue(9, [wf.float32], [()]), wf.Variable(np.zeros(4, F32))

    @wf.compile(device="gpu:0")
    def f(x: wf.Tensor) -> Any:
        y = wf.exp(x)
        large = y[y > 1.0]
        queue.enqueue(wf.sum(large))
        v.assign_add(y)
        return {"large": large * 2.0, "y": y, "sum": queue.dequeue(), "text": wf.asarray("a")}

    x = np.array([-1, 0, 1, 2], F32)
    y = np.exp(x)
    made = f(x)
    for k in range(2):
        assert isinstance(made["y"], wf.DeviceArray)
        assert isinstance(made["large"], wf.DeviceArray)
        assert isinstance(made["sum"], wf.DeviceArray)
        np.testing.assert_allclose(made["large"].numpy(), 2 * y[y > 1], rtol=1e-6)
        np.testing.assert_allclose(made["sum"].numpy(), y[y > 1].sum(), rtol=1e-6)
        assert made["text"].numpy() == b"a"
        made = f(wf.to_device(x, "gpu:0")) if k == 0 else made
    np.testing.assert_allclose(v.numpy(), 2 * y, rtol=1e-6)
    text = f.explain(x)
    assert "runs in parts on /cpu:0 and /gpu:0: op 'nonzero' at " in text
    with pytest.raises(wf.errors.UnsupportedError, match=r"op 'nonzero' at .* on the host"):
        f.asm(x)


def test_a_part_of_a_function_for_a_gpu_on_the_processor() -> None:
    @wf.compile(device="gpu:0")
    def f(a: wf.Tensor) -> wf.Tensor:
        b = a * 2.0
        with wf.device("cpu:0"):
            c = wf.linalg.cholesky(b)
        return c * 3.0

    a = np.eye(3, dtype=F32) + 0.5
    np.testing.assert_allclose(f(a).numpy(), 3 * np.linalg.cholesky(2 * a), rtol=1e-6)
    whole = wf.compile(lambda a: wf.linalg.cholesky(a), device="gpu:0")
    with pytest.raises(wf.errors.UnsupportedError, match="no GPU kernel") as caught:
        whole(a)
    assert 'wf.device("cpu:0")' in str(caught.value)

    @wf.compile(device="gpu:1")
    def loops(x: wf.Tensor) -> wf.Tensor:
        def body(i: wf.Tensor, t: wf.Tensor) -> wf.Tensor:
            rows = wf.nonzero(t > wf.astype(i, wf.float32))[0]
            return t + wf.astype(rows.size, wf.float32)

        return wf.fori_loop(0, 3, body, x)

    x, expected = np.array([0, 1, 2], F32), np.array([0, 1, 2], F32)
    for i in range(3):
        expected = expected + (expected > i).sum()
    made = loops(x)
    np.testing.assert_array_equal(made.numpy(), expected)
    assert made.device == "gpu:1"


def test_results_share_no_memory_and_arrays_of_another_gpu_are_copied() -> None:
    queue = wf.tf1.FIFOQueue(9, [wf.float32], [()])

    @wf.compile(device="gpu:0")
    def f(x: wf.Tensor, words: wf.Tensor) -> Any:
        queue.enqueue(wf.sum(x))
        return x, words, queue.dequeue()

    words = np.array(["a", "b"], object)
    for where in ("gpu:0", "gpu:1"):
        x = wf.to_device(np.ones(3, F32), where)
        same, text, total = f(x, words)
        assert same is not x
        assert same.device == "gpu:0"
        assert text.numpy().tolist() == [b"a", b"b"]
        assert float(total) == 3.0
        np.testing.assert_array_equal(same.numpy(), np.ones(3))
    take = wf.compile(lambda x: x * 2.0, device="gpu:0", donate="x")
    take(same)
    np.testing.assert_array_equal(x.numpy(), np.ones(3))


def test_arguments_that_are_only_passed_on_strings_among_them() -> None:
    f = wf.compile(lambda words, x: (words, x), device="gpu:0")
    words, x = np.array([b"a", b"b"], object), np.ones(3, F32)
    text, same = f(words, x)
    words[0], x[0] = b"c", 2.0
    assert text.numpy().tolist() == [b"a", b"b"]
    assert same.device == "gpu:0"
    np.testing.assert_array_equal(same.numpy(), np.ones(3))


def _until(x: wf.Tensor) -> wf.Tensor:
    return wf.while_loop(lambda h: wf.sum(h) < 9, lambda h: wf.concat([h, h]), x, (None,))


def _array(x: wf.Tensor) -> wf.Tensor:
    held = wf.TensorArray(wf.float32, 1, infer_shape=False)
    return held.write(0, x[x > 0.0]).read(0) * 2.0


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[x > 0.5],
        lambda x: wf.stack(wf.nonzero(x)),
        wf.argwhere,
        lambda x: wf.stack(wf.dynamic_partition(x, [0, 1, 0, 1], 2)),
        lambda x: wf.dynamic_stitch([[0, 1, 2, 3]], [x]),
        lambda x: wf.grad(lambda t: wf.sum(wf.boolean_mask(t, t > 0.5) ** 2))(x),
        lambda x: wf.zeros([wf.astype(x[2], wf.int32)]) + 1.0,
        lambda x: wf.scan(lambda c, _: (c * 2, None), x, length=wf.astype(x[2], wf.int32))[0],
        lambda x: wf.py_function(lambda t: t[:2], [x], wf.float32, (None,)) * 2.0,
        lambda x: wf.sparse.from_dense(x).values,
        _until,
        _array,
    ],
)
def test_sizes_from_values_on_a_gpu(f: Any) -> None:
    """What the same function gives on the processor."""
    x = np.array([0, 1, 2, 0.5], F32)
    expected = wf.compile(f)(x)
    made = wf.compile(f, device="gpu:0")(x)
    assert isinstance(made, wf.DeviceArray)
    np.testing.assert_allclose(made.numpy(), expected.numpy(), rtol=1e-6)


def test_files_in_a_function_for_a_gpu(tmp_path: Path) -> None:
    name = str(tmp_path / "m")
    save = wf.compile(lambda x: (wf.train.save_v2(name, ["a"], [x]), x)[1], device="gpu:0")
    save(F32(1))
    assert wf.train.restore_v2(name, ["a"], [wf.float32], [[]])[0].numpy() == 1.0


def test_open_sizes_with_ops_of_the_host() -> None:
    @wf.compile(device="gpu:0", input_signature=[wf.TensorType(wf.float32, (None,))])
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.unique_values(wf.floor(x)) * 2.0

    for n in (3, 5):
        made = f(np.arange(n, dtype=F32) / 2)
        np.testing.assert_array_equal(made.numpy(), 2 * np.unique(np.arange(n) // 2))


def test_open_sizes_are_recorded_and_replayed(tmp_path: Path) -> None:
    @wf.compile(device="gpu:0", input_signature=[wf.TensorType(wf.float32, (None,))])
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.unique_values(wf.floor(x)) * 2.0

    with wf.record(str(tmp_path), steps=10) as files:
        for n in (3, 5):
            f(np.arange(n, dtype=F32) / 2)
    assert len(files) == 2
    for file in files:
        assert not wf.replay(file).differences("recorded")


def test_copies_that_a_transfer_guard_disallows() -> None:
    f = wf.compile(lambda x: wf.unique_values(x * 2.0), device="gpu:0")
    f(np.ones(3, F32))
    x = wf.to_device(np.ones(3, F32), "gpu:0")
    refused = wf.errors.FailedPreconditionError
    with wf.transfer_guard("disallow"):
        with pytest.raises(refused, match=r"argument x of 'lambda'.* is copied to gpu:0"):
            f(np.ones(3, F32))
        with pytest.raises(refused, match=r"a step of 'lambda' copies .* from gpu:0 to cpu:0"):
            f(x)
    queue = wf.tf1.FIFOQueue(9, [wf.float32, wf.string], [(), ()])
    queue.enqueue([4.0, "a"])

    @wf.compile(device="gpu:0")
    def taken(x: wf.Tensor) -> Any:
        number, text = queue.dequeue()
        return x + 1.0, text, number

    with (
        wf.transfer_guard("disallow"),
        pytest.raises(refused, match=r"result 2 of 'taken', f32\[\] \(made at .* to gpu:0"),
    ):
        taken(x)
    assert int(queue.size()) == 1  # nothing ran
    assert float(taken(x)[2]) == 4
    part = wf.compile(lambda x: _on_gpu(x))
    with wf.transfer_guard("disallow"), pytest.raises(refused, match="from gpu:0 to cpu:0"):
        part(np.ones(3, F32))


def test_what_a_function_for_a_gpu_with_ops_of_the_host_refuses() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match="WEFT_EMULATE_GPU"):
        wf.compile(wf.unique_values, device="gpu:5")(np.ones(3, F32))
    with pytest.raises(wf.errors.UnsupportedError, match="passes for the processor, too"):
        wf.compile(lambda x: wf.unique_values(x), device="gpu:0", passes="dce,cse")(np.ones(3, F32))
