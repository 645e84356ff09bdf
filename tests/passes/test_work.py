"""Exact counts of work: flops, transcendental functions, bytes, against counts made by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.cost.rates import ELEMENTWISE
from weft.ir.cost.work import MOVES, Work, has_rule, work
from weft.ir.graph import Operation
from weft.ir.ops import OPS
from weft.ir.text.parser import parse_graph


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


def kernels_of(f: Callable[..., Any], *args: Any) -> list[Operation]:
    """The ops of the final graph that are kernels."""
    graph = wf.compile(f)._specialized(args, {}).on_cpu("a test").graph
    return [op for op in graph.ops if op.name not in ("constant", "variable", "read", "assign")]


def only(f: Callable[..., Any], *args: Any) -> Work:
    """The work of a function that is one op."""
    (op,) = kernels_of(f, *args)
    return work(op)


def op_of(line: str, args: str) -> Operation:
    """One op from its text."""
    types = line.rpartition(" : ")[2]
    graph = parse_graph(
        f"graph @g({args}) -> ({types}) stage=traced {{\n  %r = {line}\n  return %r\n}}\n"
    )
    return graph.ops[0]


def test_every_op_is_counted() -> None:
    assert [name for name in OPS if not has_rule(name)] == []
    assert set(OPS) >= MOVES | set(ELEMENTWISE)
    assert not MOVES & set(ELEMENTWISE)
    assert all("elementwise" in OPS[name].traits for name in ELEMENTWISE)
    assert all(not row.flops for row in ELEMENTWISE.values() if row.calls)


def test_a_chain() -> None:
    found = only(lambda x, w, b: wf.tanh(x * w + b) / wf.sqrt(x), *(ones(10, 8),) * 3)
    assert found == Work(4 * 80, 80, 3 * 320, 320)


def test_a_broadcast_operand_counts_once() -> None:
    found = only(lambda x, b: x + b, ones(10, 8), ones(8))
    assert found == Work(80, 0, 320 + 32, 320)


def test_neighbours_share_what_they_read() -> None:
    found = only(lambda x: x[1:9] - x[0:8], ones(10))
    assert found == Work(8, 0, 9 * 4, 8 * 4)


def test_a_strided_read_counts_what_it_touches() -> None:
    found = only(lambda x: x[::2, 1:3] + 1.0, ones(10, 8))
    assert found == Work(10, 0, 40, 40)


@pytest.mark.parametrize(("name", "flops"), [("sum", 72), ("max", 72), ("prod", 72)])
def test_reductions(name: str, flops: int) -> None:
    found = only(lambda x: getattr(wf, name)(x, axis=1), ones(8, 10))
    assert found == Work(flops, 0, 320, 32)


def test_a_sum_of_products_in_one_kernel() -> None:
    found = only(lambda x, y: wf.sum(x * y), ones(100), ones(100))
    assert found == Work(100 + 99, 0, 800, 4)


def test_cumulative_sum() -> None:
    assert only(lambda x: wf.cumulative_sum(x, axis=1), ones(8, 10)) == Work(72, 0, 320, 320)


def test_fourier_transforms() -> None:
    """5 n log2(n), half of it for real numbers."""
    x = ones(3, 16, dtype=np.complex64)
    assert only(lambda x: wf.fft.fft(x), x) == Work(3 * 5 * 16 * 4, 0, 384, 384)
    assert only(lambda x: wf.fft.rfft(x), ones(3, 16)) == Work(3 * 160, 0, 192, 3 * 9 * 8)
    assert only(lambda x: wf.fft.irfft(x, n=30), x).bytes_written == 3 * 30 * 4


def test_matmul() -> None:
    found = only(lambda a, b: a @ b, ones(16, 32), ones(32, 24))
    assert found == Work(2 * 16 * 32 * 24, 0, 4 * (16 * 32 + 32 * 24), 4 * 16 * 24)
    transposed = op_of(
        "matmul(%a, %b) {transpose_a=true, transpose_b=false} : f64[4,5]",
        "%a: f64[3,4], %b: f64[3,5]",
    )
    assert work(transposed) == Work(2 * 3 * 4 * 5, 0, 8 * (12 + 15), 8 * 20)


def test_complex_numbers_count_for_more() -> None:
    x = ones(5, dtype=np.complex64)
    assert only(lambda a, b: a * b, x, x).flops == 6 * 5
    assert only(lambda a, b: a + b, x, x).flops == 2 * 5
    assert only(lambda a, b: a / b, x, x).flops == 11 * 5


def test_conversions_have_no_flops() -> None:
    assert only(lambda x: wf.astype(x, "float64"), ones(6)) == Work(0, 0, 24, 48)


def test_reads_by_index() -> None:
    rows = np.array([3, 1])
    assert only(lambda x, i: wf.take(x, i, axis=0), ones(100, 5), rows) == Work(0, 0, 40 + 16, 40)


def test_updates_in_place_touch_what_they_change() -> None:
    line = "index_add(%x, %i, %u) {axis=0} : f32[100,5]"
    op = op_of(line, "%x: f32[100,5], %i: i64[2], %u: f32[2,5]")
    assert work(op) == Work(10, 0, 2000 + 16 + 40, 2000)
    assert work(op, in_place=True) == Work(10, 0, 16 + 40 + 40, 40)


def test_a_scan_counts_every_iteration() -> None:
    def f(x: Any) -> Any:
        return wf.scan(lambda c, row: (wf.tanh(c * row), c), ones(4), x)

    found = [work(op) for op in kernels_of(f, ones(7, 4))]
    assert sum(w.flops or 0 for w in found) == 7 * 4
    assert sum(w.transcendentals or 0 for w in found) == 7 * 4


def test_a_while_counts_if_its_trips_are_known() -> None:
    def counted(x: Any) -> Any:
        return wf.while_loop(lambda i, c: i < 20, lambda i, c: (i + 1, c * 2.0), (0, x))[1]

    (op,) = [op for op in wf.compile(counted).trace(ones()).ops if op.name == "while"]
    # 21 tests; 20 times the counter and the product
    assert work(op).flops == 21 + 2 * 20

    def unknown(x: Any) -> Any:
        return wf.while_loop(lambda c, d: c < 100.0, lambda c, d: (c * 2.0, d), (x, x))

    (op,) = [op for op in wf.compile(unknown).trace(ones()).ops if op.name == "while"]
    assert work(op).flops is None
    assert "depends on values" in work(op).unknown


def test_a_cond_counts_if_its_branches_agree() -> None:
    def f(x: Any, same: bool) -> Any:
        other = (lambda: x * 2.0) if same else (lambda: wf.exp(x) + 1.0)
        return wf.cond(wf.sum(x) > 0, lambda: x + 1.0, other)

    for same in (True, False):
        made = kernels_of(lambda x, s=same: f(x, s), ones(8))
        (found,) = [op for op in made if op.name == "cond"]
        assert (work(found).flops is None) == (not same)


def test_a_convolution_does_not_count_its_padding() -> None:
    line = "conv(%x, %w) {strides=[1], lo=[1], dilation=[1], groups=1, size=[5]} : f32[2,5,4]"
    op = op_of(line, "%x: f32[2,5,3], %w: f32[3,3,4]")
    # of 15 pairs of a position and a tap the first and the last are padding
    assert work(op).flops == 2 * 13 * 2 * 3 * 4


def test_attention_in_training() -> None:
    """Of several results; the gradient is counted, too."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return wf.sum(wf.nn.scaled_dot_product_attention(q, k, v, is_causal=True) ** 2)

    x = ones(2, 4, 16, 8)
    found = {op.name: op for op in kernels_of(wf.grad(loss, (0, 1, 2)), x, x, x)}
    scores = 2 * 4 * 16 * 16
    forward, backward = work(found["attention"]), work(found["attention_grad"])
    assert len(found["attention"].results) > 1
    assert forward.flops == 2 * scores * (8 + 8) + 4 * scores
    assert backward.flops == 2 * scores * (3 * 8 + 2 * 8) + 5 * scores
    assert forward.transcendentals == backward.transcendentals == scores
