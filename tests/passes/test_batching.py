"""Batching over the op table: an op for a batch gives what the op gives for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from compiled_checks import same
from example_counts import examples
from gradient_cases import CASES, Case
from graphs import Case as GraphCase
from graphs import graph_and_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import every

from weft.ir.analysis.verify import verify
from weft.ir.dtypes import as_dtype, bool_, float32, float64, int32, int64, string
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import interpret, type_of
from weft.ir.interpreter.state import DictState
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.types import TensorType
from weft.passes.batching.batch import batch_block
from weft.passes.batching.rules import RULES, batched_type

Array = np.ndarray[Any, Any]
ROWS = 3


def batched(graph: Graph, flags: Sequence[bool]) -> Graph:
    """The graph for ROWS rows of the arguments with a flag; all results have the batch axis."""
    pairs = zip(graph.args, flags, strict=True)
    kinds = [batched_type(a.type, ROWS) if f else a.type for a, f in pairs]
    builder = Builder(kinds)
    operands = list(zip(builder.args, flags, strict=True))
    found = batch_block(builder, graph.block, operands, ROWS)
    results = []
    for value, is_batched in found:
        assert isinstance(value.type, TensorType)
        if not is_batched:
            value = builder.emit1("broadcast_to", value, shape=(ROWS, *value.type.shape))
        results.append(value)
    made = builder.graph(graph.name, graph.arg_names, results, graph.stage)
    verify(made)
    return made


def rows_of(xs: Sequence[Array], flags: Sequence[bool]) -> list[Array]:
    """A batch of each input with a flag: itself, and with its rows in other orders."""
    rng = np.random.default_rng(3)
    out = []
    for x, flag in zip(xs, flags, strict=True):
        made = np.empty((ROWS, *x.shape), x.dtype)
        for k in range(ROWS):
            made[k] = x[rng.permutation(len(x))] if k and x.ndim else x[()]
        out.append(made if flag else x)
    return out


def check(graph: Graph, xs: Sequence[Array], flags: Sequence[bool], exact: bool) -> None:
    given_rows = rows_of(xs, flags)
    made = interpret(batched(graph, flags), given_rows, DictState({}))
    pairs = list(zip(given_rows, flags, strict=True))
    for k in range(ROWS):
        row = [x[k : k + 1].reshape(x.shape[1:]) if f else x for x, f in pairs]
        for every_row, want in zip(made, interpret(graph, row, DictState({})), strict=True):
            got = every_row[k : k + 1].reshape(want.shape)
            if want.dtype == object:
                assert got.tolist() == want.tolist()
            elif exact or not as_dtype(want.dtype).is_inexact:
                assert same(got, want), f"row {k}: {got!r} != {want!r}"
            else:
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", every(2, CASES), ids=str)
def test_every_differentiable_op(case: Case) -> None:
    builder = Builder([type_of(x) for x in case.operands])
    made = builder.emit(case.op, builder.args, case.attrs)
    graph = builder.graph("op", [f"x{i}" for i in range(len(builder.args))], made)
    count = len(case.operands)
    if case.op not in RULES and OPS[case.op].traits & {"host"}:
        with pytest.raises(UnsupportedError, match=case.op):
            batched(graph, [True] * count)
        return
    for mask in range(1, 2**count):
        flags = [bool(mask >> k & 1) for k in range(count)]
        check(graph, case.operands, flags, exact=False)


#: Ops that graphs of the traced stage may hold and that act on nothing outside.
PURE = [
    name
    for name, spec in OPS.items()
    if not spec.traits & {"host", "handle", "reads_state", "writes_state"}
    and name not in ("variable", "group")
]


#: Their makers give sizes that depend on values; many small systems are eliminated at once, in
#: another order, which matters where they are singular: `test_every_differentiable_op` has others.
APART = {"ensure_shape", "lu", "lu_solve", "triangular_solve"}
APART |= {"exchange"}  # in test_shard_map_processes


@pytest.mark.share(6)
@pytest.mark.parametrize("op", sorted({*RULES} - APART))
def test_every_rule(op: str) -> None:
    """Over random graphs of the op alone, with special values."""
    met: list[bool] = []

    @settings(max_examples=24, derandomize=True, database=None, deadline=None)
    @given(graph_and_inputs(stage="traced", ops=[op], max_ops=1), st.integers(0, 2**16))
    def look(case: GraphCase, mask: int) -> None:
        flags = [bool(mask >> k & 1) for k in range(len(case.inputs))]
        if len(met) == 12 or not any(flags) or not case.graph.ops:
            return
        with np.errstate(all="ignore"):
            if op in SUMS:
                check(case.graph, [whole(x) for x in case.inputs], flags, exact=False)
            else:
                check(case.graph, case.inputs, flags, exact=True)
        met.append(True)

    look()
    if op not in UNMET:
        assert met


#: Ops that add up, in an order that is not that of the row alone.
SUMS = {"matmul", "conv", "conv_input", "conv_kernel", "sum", "prod", "attention", "attention_grad"}
#: No maker of random graphs of this stage makes these, or only without operands of their own.
UNMET = {"scalar_function", "stack_pop", "stack_push", "stack_add"}


def whole(x: Array) -> Array:
    """Small whole numbers, whose sums are the same in any order."""
    if x.dtype == object or not as_dtype(x.dtype).is_inexact:
        return x
    return np.asarray(np.clip(np.round(np.nan_to_num(x.real)), -4, 4)).astype(x.dtype)


@given(
    graph_and_inputs(
        stage="traced",
        ops=[n for n in PURE if n not in APART],
        dtypes=(float32, float64, int32, int64),
    ),
    st.integers(0, 2**16),
)
@examples(300, deadline=None)
def test_graphs(case: GraphCase, mask: int) -> None:
    """Of whole numbers, so that sums in another order are the same."""
    flags = [bool(mask >> k & 1) for k in range(len(case.inputs))]
    xs = [whole(x) for x in case.inputs]
    with np.errstate(all="ignore"):
        check(case.graph, xs, flags, exact=False)


#: Ops that are run row by row: rare, or without a form for many rows.
ROW_BY_ROW = {
    "first_occurrence", "string_split", "substr", "decode_raw", "dim_size", "iota", "constant",
    "custom_gradient", "custom_rule", "cond", "while", "scan", "stack_new", "fused", "unrolled",
    "arena_add", "arena_pop", "arena_push", "axis_index", *DATAFLOW,
    "substr_utf8", "string_split_rows", "unicode_decode", "unicode_encode", "string_reduce_join",
    "string_format", "decode_json", "sparse_matmul", "sparse_pairs_padded",
    "quantized_matmul",
}  # fmt: skip


def test_every_op_has_a_rule_or_is_known_to_have_none() -> None:
    assert set(PURE) - set(RULES) == ROW_BY_ROW & set(PURE)


def test_ops_without_a_rule_run_row_by_row() -> None:
    kind = TensorType(int64, (4,))
    builder = Builder([kind])
    (y,) = builder.emit("first_occurrence", builder.args, {"size": 9})
    graph = builder.graph("op", ["x"], [y])
    made = batched(graph, [True])
    assert [op.name for op in made.ops] == ["scan"]
    check(graph, [np.array([1, 2, 1, 8])], [True], exact=True)


def test_the_gradient_of_a_shared_bool_is_no_sum() -> None:
    kind, flag = TensorType(float32, ()), TensorType(bool_, ())
    body = Builder([kind, flag])
    builder = Builder([kind, flag])
    x, b = builder.args
    (y,) = builder.emit(
        "custom_gradient", [x, b, b], {"outputs": 1, "inputs": 1},
        regions=(body.block([body.args[1]]),),
    )  # fmt: skip
    given = [np.ones((), np.float32), np.array(True)]
    check(builder.graph("op", ["x", "b"], [y]), given, [True, False], exact=True)


def test_shapes_are_checked_for_all_rows() -> None:
    kind = TensorType(float32, (4,))
    builder = Builder([kind])
    (y,) = builder.emit("ensure_shape", builder.args, {"shape": (4,)})
    check(builder.graph("op", ["x"], [y]), [np.ones(4, np.float32)], [True], exact=True)


def test_what_acts_outside_is_refused() -> None:
    kind = TensorType(float32, (4,))
    builder = Builder([kind])
    builder.emit("write_file", _two_strings(builder), {})
    block = builder.block([])
    outer = Builder([batched_type(kind, 2), batched_type(TensorType(string), 2)])
    with pytest.raises(UnsupportedError, match="op 'write_file' acts outside the graph"):
        batch_block(outer, block, [(a, True) for a in outer.args], 2)


def _two_strings(builder: Builder) -> list[Value]:
    name = builder.add_arg(TensorType(string))
    return [name, name]


def test_prints_are_done_row_by_row_and_what_all_share_once() -> None:
    kind = TensorType(float32, (4,))
    builder = Builder([kind])
    builder.emit("print", builder.args, {"message": "x"})
    block = builder.block([])
    outer = Builder([batched_type(kind, 2)])
    assert batch_block(outer, block, [(outer.args[0], True)], 2) == []
    assert [op.name for op in outer.ops] == ["scan", "group"]
    assert [op.name for op in outer.ops[0].regions[0].ops] == ["print", "constant"]
    shared = Builder([kind])
    assert batch_block(shared, block, [(shared.args[0], False)], 2) == []
    assert [op.name for op in shared.ops] == ["print"]


def ops_of(block: Block) -> list[Operation]:
    return [op for op in block.ops for op in (op, *(i for r in op.regions for i in ops_of(r)))]


def test_rows_that_share_a_matrix_are_rows_of_one_product() -> None:
    a, b = TensorType(float32, (1, 3)), TensorType(float32, (3, 2))
    builder = Builder([a, b])
    (y,) = builder.emit("matmul", builder.args)
    made = batched(builder.graph("op", ["a", "b"], [y]), [True, False])
    (product,) = (op for op in made.ops if op.name == "matmul")
    assert [str(v.type) for v in product.operands] == ["f32[3,3]", "f32[3,2]"]
