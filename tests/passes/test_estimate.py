"""What ops are taken to cost."""

from __future__ import annotations

import re

import pytest
from paths import ROOT

from weft.ir.cost.rates import (
    NS_PER_RANDOM_BLOCK,
    START_NS,
    arithmetic,
    product,
    scanned,
    sorted_row,
    streamed,
)
from weft.ir.cost.work import nanoseconds
from weft.ir.graph import Graph
from weft.ir.text.parser import parse_graph
from weft.passes.placement import CostModel

PRICES = {
    "f32": product(4), "f16": product(2), "bf16": product(2), "i32": product(4),
    "f64": product(8), "i64": product(8), "c64": 4 * product(4), "c128": 4 * product(8),
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
    found, least = nanoseconds(graph.ops), m * n * k * PRICES[dtype]
    assert least < found < 1.1 * least
    assert CostModel().costs_of(graph).nanoseconds(graph.ops[0]) == found + START_NS


def op_line(line: str, args: str, result: str) -> Graph:
    return parse_graph(f"""
graph @g({args}) -> ({result}) stage=traced {{
  %0 = {line} : {result}
  return %0
}}
""")


@pytest.mark.parametrize("op", ["negative", "exp", "tanh", "lgamma"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_an_elementwise_op_has_the_price_that_its_loop_is_cut_by(op: str, dtype: str) -> None:
    """Once all functions were one price, 0.15 ns: 19 times too little for lgamma."""
    graph = op_line(f"{op}(%x)", f"%x: {dtype}[1024]", f"{dtype}[1024]")
    moved = streamed(2 * 1024 * (8 if dtype == "f64" else 4))
    assert nanoseconds(graph.ops) == 1024 * arithmetic([(op, dtype)]) + moved


def test_kernels_of_their_own_are_not_only_the_bytes_that_they_move() -> None:
    """Once a sort was, a two-hundredth of what it takes."""
    row, rows = "f32[100000]", "f32[1000, 100]"
    sort = "sort(%x) {axis=0, descending=false}"
    assert nanoseconds(op_line(sort, f"%x: {row}", row).ops) > sorted_row(100_000, 4, False)
    many = nanoseconds(
        op_line("cumulative_sum(%x) {axis=1, reverse=false}", f"%x: {rows}", rows).ops
    )
    assert many > 100_000 * scanned("cumulative_sum", 1, 4)
    bits = op_line("random_bits(%k) {shape=[100000]}", "%k: u32[2]", "u32[100000]")
    assert nanoseconds(bits.ops) > 50_000 * NS_PER_RANDOM_BLOCK


def test_a_product_in_a_region_has_the_price_of_one_alone() -> None:
    """Once those in loops had the three times higher one of a loop over elements."""
    loop = parse_graph("""
graph @g(%x: f32[64, 64]) -> (f32[64, 64]) stage=traced {
  %0 = scan(%x) {carries=1, sequences=0, length=10, reverse=false} : f32[64, 64] {
  ^(%c: f32[64, 64])
    %1 = matmul(%c, %c) {transpose_a=false, transpose_b=false} : f32[64, 64]
    yield %1
  }
  return %0
}
""")
    assert nanoseconds(loop.ops) == pytest.approx(10 * 64**3 * product(4), rel=0.1)


#: How often a running loop, or Python, has a look at what else there is: no price of work.
LOOKS = {"PACE_NS", "PERIOD_NS", "SLICE_NS"}


def test_prices_stand_in_one_table() -> None:
    """No constant of passes, code generation or runtime is in nanoseconds or cycles."""
    found = set()
    for folder in ("passes", "codegen", "runtime"):
        for path in (ROOT / "weft" / folder).rglob("*.py"):
            for line in path.read_text().splitlines():
                names, equals, _ = line.partition(" = ")
                if equals and re.fullmatch(r"[A-Z_]+(, [A-Z_]+)*", names):
                    units = (set(name.split("_")) & {"NS", "CYCLES"} for name in names.split(", "))
                    found |= {n for n, u in zip(names.split(", "), units, strict=True) if u}
    assert found == LOOKS
