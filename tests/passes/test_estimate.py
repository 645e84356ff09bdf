"""What ops are taken to cost."""

from __future__ import annotations

import pytest

from weft.ir.cost.rates import FLOP_NS, PRODUCT_NS, START_NS, WIDE_PRODUCT_NS
from weft.ir.cost.work import nanoseconds
from weft.ir.text.parser import parse_graph
from weft.passes.placement import CostModel

PRICES = {
    "f32": PRODUCT_NS, "f16": PRODUCT_NS, "bf16": PRODUCT_NS, "i32": PRODUCT_NS,
    "f64": WIDE_PRODUCT_NS, "i64": WIDE_PRODUCT_NS, "c64": 4 * PRODUCT_NS,
    "c128": 4 * WIDE_PRODUCT_NS,
}  # fmt: skip


@pytest.mark.parametrize("dtype", PRICES)
@pytest.mark.parametrize(("m", "k", "n"), [(256, 256, 256), (32, 784, 100), (512, 128, 1024)])
def test_a_product_has_the_price_of_its_dtype(dtype: str, m: int, k: int, n: int) -> None:
    """Whatever its shape: once only square ones had it, others the three times higher one of a
    loop."""
    graph = parse_graph(f"""
graph @g(%x: {dtype}[{m},{k}], %w: {dtype}[{k},{n}]) -> ({dtype}[{m},{n}]) stage=traced {{
  %0 = matmul(%x, %w) {{transpose_a=false, transpose_b=false}} : {dtype}[{m},{n}]
  return %0
}}
""")
    found, least = nanoseconds(graph.ops), 2 * m * n * k * PRICES[dtype]
    assert least < found < 1.1 * least
    assert CostModel().costs_of(graph).nanoseconds(graph.ops[0]) == found + START_NS


def test_a_loop_over_elements_has_another() -> None:
    graph = parse_graph("""
graph @g(%x: f32[1024]) -> (f32[1024]) stage=traced {
  %0 = multiply(%x, %x) : f32[1024]
  return %0
}
""")
    assert nanoseconds(graph.ops) > 1024 * FLOP_NS
