"""The reference interpreter: every kind of op and stage, state, symbolic sizes, checks, errors."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import Case, graph_and_inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.ir import dtypes
from weft.ir.analysis.verify import verify
from weft.ir.dims import SymbolicDim
from weft.ir.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.graph import Graph, Operation, Value
from weft.ir.interpreter.evaluate import as_array, bind_symbols, evaluate_op, interpret
from weft.ir.interpreter.state import DictState
from weft.ir.locations import Location
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.ops.state import UPDATES
from weft.ir.spec import Attrs, ConstArray, OpSpec
from weft.ir.text.parser import parse_graph
from weft.ir.types import TOKEN, TensorType, tensor_type

Array = np.ndarray[Any, Any]
F32 = np.float32
STEP = (Location("model.py", 12, 5),)


def f32(*dims: int | str | SymbolicDim | None) -> TensorType:
    return tensor_type(dtypes.float32, *dims)


def graph_of(b: Builder, *results: Value, stage: str = "traced") -> Graph:
    return b.graph("g", [f"x{i}" for i in range(len(b.args))], results, stage)


# -- ops that are more than their operands ---------------------------------------------------------


def counter() -> Graph:
    """Reads w, adds x, writes it back, reads again."""
    return parse_graph(
        """graph @counter(%x: f32[2]) -> (f32[2], f32[2], token, token) stage=traced {
             %0 = variable() {name="w", dtype=f32, shape=[2]} : ref<f32[2]>
             %1 = read(%0) : f32[2]
             %2 = add(%1, %x) : f32[2]
             %3 = assign(%0, %2) : token
             %4 = read(%0) after(%3) : f32[2]
             %5 = group() after(%3, %4) : token
             return %1, %4, %3, %5
           }"""
    )


def test_reads_see_writes_before_them() -> None:
    state = DictState({"w": np.array([1, 2], F32)})
    x = np.array([10, 20], F32)
    old, new, written, grouped = interpret(counter(), [x], state)
    assert old.tolist() == [1, 2]
    assert new.tolist() == [11, 22]
    assert written is None
    assert grouped is None
    assert interpret(counter(), [x], state)[0].tolist() == [11, 22]


class SharingState:
    """A state that hands out and keeps its arrays themselves, as the runtime's buffers do."""

    def __init__(self, **values: Array) -> None:
        self.values = values

    def get(self, name: str) -> Array:
        return self.values[name]

    def set(self, name: str, value: Array) -> None:
        if name in self.values:
            self.values[name][...] = value  # in place: whoever shares the buffer sees it
        else:
            self.values[name] = value


def test_state_does_not_alias() -> None:
    state = SharingState(w=np.array([1, 2], F32))
    x = np.array([10, 20], F32)
    old, new, *_ = interpret(counter(), [x], state)
    assert old.tolist() == [1, 2], "a value read before a write stays what it was"
    new += 100
    x += 100
    assert state.values["w"].tolist() == [11, 22]


def test_assigned_input_is_copied() -> None:
    g = parse_graph(
        """graph @keep(%x: f32[1]) -> (token) stage=traced {
             %0 = variable() {name="w", dtype=f32, shape=[1]} : ref<f32[1]>
             %1 = assign(%0, %x) : token
             return %1
           }"""
    )
    for state in (DictState(), SharingState()):
        x = np.array([1], F32)
        interpret(g, [x], state)
        x[0] = 7
        assert state.values["w"].tolist() == [1]
        assert state.values["w"].flags.writeable


def test_dict_state_copies() -> None:
    given = np.array([1.0])
    state = DictState({"w": given})
    given[0] = 2
    state.get("w")[0] = 3
    assert state.get("w").tolist() == [1.0]


def test_uninitialised_variable() -> None:
    b = Builder()
    (ref,) = b.emit("variable", (), {"name": "w", "dtype": dtypes.float32, "shape": ()})
    (value,) = b.emit("read", (ref,), locations=STEP)
    with pytest.raises(FailedPreconditionError) as caught:
        interpret(graph_of(b, value), [], DictState())
    text = str(caught.value)
    assert "op 'read' on (ref<f32[]>): variable 'w' is not initialised" in text
    assert "at model.py:12:5" in text
    assert "hint: run wf.global_variables_initializer()" in text


def test_state_is_needed() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"the graph uses state, and interpret\(\) got none"
    ):
        interpret(counter(), [np.zeros(2, F32)])


def test_state_of_another_type() -> None:
    state = DictState({"w": np.zeros(3)})
    with pytest.raises(
        InvalidArgumentError, match=r"variable 'w' holds f64\[3\], .*wants f32\[2\]"
    ):
        interpret(counter(), [np.zeros(2, F32)], state)


@pytest.mark.parametrize("stage", ["fused", "planned"])
def test_fused_runs_its_region(stage: str) -> None:
    g = parse_graph(
        f"""graph @nest(%x: f32[2,3], %y: f32[3]) -> (f32[2], f32[2,3]) stage={stage} {{
             %0, %1 = fused(%x, %y) {{kind="loop"}} : f32[2], f32[2,3] {{
               ^(%a0: f32[2,3], %a1: f32[3])
               %0 = broadcast_to(%a1) {{shape=[2, 3]}} : f32[2,3]
               %1 = multiply(%a0, %0) : f32[2,3]
               %2 = sum(%1) {{axes=[1], keepdims=false}} : f32[2]
               yield %2, %1
             }}
             return %0, %1
           }}"""
    )
    x, y = np.arange(6, dtype=F32).reshape(2, 3), np.array([1, 10, 100], F32)
    total, product = interpret(g, [x, y])
    assert total.tolist() == [210, 543]
    assert product.tolist() == (x * y).tolist()


def test_custom_gradient_passes_outputs_on() -> None:
    g = parse_graph(
        """graph @clip(%x: f32[2]) -> (f32[2]) stage=traced {
             %0 = exp(%x) : f32[2]
             %1 = custom_gradient(%0, %x, %0) {outputs=1, inputs=1} : f32[2] {
               ^(%a0: f32[2], %a1: f32[2])
               %0 = multiply(%a0, %a1) : f32[2]
               yield %0
             }
             return %1
           }"""
    )
    assert interpret(g, [np.zeros(2, F32)])[0].tolist() == [1, 1]


# -- symbolic sizes --------------------------------------------------------------------------------


def test_symbols_take_sizes_from_inputs() -> None:
    n = SymbolicDim.symbol("n")
    b = Builder([f32("n", 2), f32(None)])
    x, y = b.args
    flat = b.emit1("reshape", x, shape=(n * 2,))
    head = b.emit1("slice", flat, starts=(1,), stops=(n * 2,), steps=(1,))
    size = b.emit1("dim_size", y, axis=0)
    count = b.emit1("iota", dtype=dtypes.int32, shape=(n, 2), axis=0)
    g = graph_of(b, head, size, count)
    for rows in (0, 1, 3):
        if rows == 0:
            with pytest.raises(InvalidArgumentError, match="start 1 is out of bounds for axis 0"):
                interpret(g, [np.zeros((0, 2), F32), np.zeros(5, F32)])
            continue
        a = np.arange(2 * rows, dtype=F32).reshape(rows, 2)
        got = interpret(g, [a, np.zeros(5, F32)])
        assert got[0].tolist() == a.ravel()[1:].tolist()
        assert got[1].tolist() == 5
        assert got[2].tolist() == [[i, i] for i in range(rows)]


def test_symbols_are_solved_from_polynomials() -> None:
    n, m = SymbolicDim.symbol("n"), SymbolicDim.symbol("m")
    b = Builder([f32(n + m), f32(2 * n + 1)])
    g = graph_of(b, *b.args)
    assert bind_symbols(g, [np.zeros(5, F32), np.zeros(7, F32)]) == {"n": 3, "m": 2}
    for shapes, fault in [((2, 7), "x0"), ((5, 6), "x0"), ((9, 0), "x0")]:
        with pytest.raises(InvalidArgumentError, match=f"input '{fault}' of graph 'g' must be"):
            bind_symbols(g, [np.zeros(n, F32) for n in shapes])


def test_one_symbol_has_one_size() -> None:
    b = Builder([f32("n"), f32("n")])
    with pytest.raises(InvalidArgumentError) as caught:
        interpret(graph_of(b, *b.args), [np.zeros(2, F32), np.zeros(3, F32)])
    assert "input 'x1' of graph 'g' must be f32[n], got f32[3] (with n=2)" in str(caught.value)


def test_a_wrong_guess_of_the_type_rule_is_found() -> None:
    """f32[n] + f32[m] types; at run time the sizes must be equal, and NumPy's rule is not ours."""
    b = Builder([f32("n"), f32("m")])
    total = b.emit1("add", *b.args, locations=STEP)
    g = graph_of(b, total)
    assert interpret(g, [np.ones(3, F32), np.ones(3, F32)])[0].tolist() == [2, 2, 2]
    with pytest.raises(ShapeError) as caught:
        interpret(g, [np.ones(3, F32), np.ones(1, F32)])
    assert "op 'add' on (f32[3], f32[1]): op 'add'" in str(caught.value)
    assert "model.py:12:5" in str(caught.value)


# -- inputs and results ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "graph 'counter' takes 1 inputs, got 0"),
        ([np.zeros(2)], "input 'x' of graph 'counter' must be f32[2], got f64[2]"),
        ([np.zeros(3, F32)], "input 'x' of graph 'counter' must be f32[2], got f32[3]"),
        ([np.zeros((2, 1), F32)], "input 'x' of graph 'counter' must be f32[2], got f32[2,1]"),
    ],
)
def test_inputs_are_checked(inputs: Sequence[Array], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        interpret(counter(), inputs, DictState())
    assert message in str(caught.value)


def test_results_are_arrays_of_their_own() -> None:
    b = Builder([f32(3)])
    (x,) = b.args
    (constant,) = b.emit("constant", (), {"value": ConstArray(np.zeros(3, F32))})
    same = b.emit1("identity", x)
    turned = b.emit1("slice", x, starts=(2,), stops=(-1,), steps=(-1,))
    g = graph_of(b, x, same, same, constant, turned)
    data = np.arange(3, dtype=F32)
    results = interpret(g, [data])
    for i, result in enumerate(results):
        assert result.flags.writeable
        assert result.flags.c_contiguous
        result += 10 * (i + 1)
    assert [r.tolist() for r in results] == [
        [10, 11, 12],
        [20, 21, 22],
        [30, 31, 32],
        [40, 40, 40],
        [52, 51, 50],
    ]
    assert data.tolist() == [0, 1, 2]
    assert interpret(g, [data])[3].tolist() == [0, 0, 0]


def test_values_are_freed_after_their_last_use() -> None:
    size, depth = 1 << 18, 40  # 1 MiB each
    b = Builder([f32(size)])
    value = b.args[0]
    for _ in range(depth):
        value = b.emit1("negative", value)
        b.emit1("abs", value)  # nobody uses it
    g = graph_of(b, value)
    x = np.ones(size, F32)
    tracemalloc.start()
    (result,) = interpret(g, [x])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result[0] == 1
    assert peak < 6 << 20


# -- references are checked ------------------------------------------------------------------------


def _scribble(arrays: Sequence[Array], attrs: Attrs) -> Array:
    arrays[0][0] = 99
    return arrays[0]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda arrays, attrs: arrays[0].astype(np.float64), "gave float64[3], its type is f32[3]"),
        (lambda arrays, attrs: arrays[0][:2], "gave float32[2], its type is f32[3]"),
        (lambda arrays, attrs: [arrays[0]] * 2, "gave 2 results, needs 1"),
        (
            lambda arrays, attrs: np.linalg.inv(arrays[0]),
            "the NumPy reference failed: LinAlgError(",
        ),
        (_scribble, "the NumPy reference failed: ValueError('assignment destination is read-only"),
    ],
)
def test_a_broken_reference_is_found(
    reference: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = OPS["abs"]
    monkeypatch.setitem(OPS, "abs", OpSpec("abs", 1, row.infer, reference, "Broken."))
    b = Builder([f32(3)])
    result = b.emit1("abs", *b.args, locations=STEP)
    x = np.zeros(3, F32)
    with pytest.raises(InternalError) as caught:
        interpret(graph_of(b, result), [x])
    assert f"op 'abs' on (f32[3]): {message}" in str(caught.value)
    assert "at model.py:12:5" in str(caught.value)
    assert x.tolist() == [0, 0, 0]


def test_error_inside_a_region_names_the_inner_op() -> None:
    inner = Builder([f32(3), tensor_type(dtypes.int64, 1)])
    picked = inner.emit1("take", *inner.args, axis=0, locations=STEP)
    b = Builder([a.type for a in inner.args])
    outside = (Location("other.py", 1, 1), *STEP)
    region = inner.block([picked])
    (result,) = b.emit("fused", b.args, regions=[region], locations=outside)
    with pytest.raises(InvalidArgumentError) as caught:
        interpret(graph_of(b, result, stage="fused"), [np.zeros(3, F32), np.array([3])])
    text = str(caught.value)
    assert text.startswith("op 'take' on (f32[3], i64[1]): index 3 is out of bounds for axis 0 of")
    assert "at model.py:12:5" in text
    assert "fused" not in text


def test_value_of_another_graph() -> None:
    stranger = Builder([f32(3)]).args[0]
    b = Builder()
    result = b.emit1("abs", stranger)
    with pytest.raises(InternalError, match=r"op 'abs' uses .* which no earlier op of its block"):
        interpret(graph_of(b, result), [])


# -- one op ----------------------------------------------------------------------------------------


def test_evaluate_op() -> None:
    x = np.array([3, -4], F32)
    (result,) = evaluate_op("abs", [x])
    assert result.dtype == F32
    assert result.tolist() == [3, 4]
    (scalar,) = evaluate_op("sum", [x], {"axes": (0,)})  # keepdims has a default
    assert type(scalar) is np.ndarray
    assert scalar.shape == ()


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("identity", {}),
        ("reshape", {"shape": (4, 1)}),
        ("broadcast_to", {"shape": (2, 2)}),
        ("permute_dims", {"axes": (1, 0)}),
    ],
)
def test_evaluate_op_shares_no_memory(op: str, attrs: dict[str, Any]) -> None:
    x = np.arange(4, dtype=F32).reshape(2, 2)
    (result,) = evaluate_op(op, [x], attrs)
    result[...] = 9
    assert x.tolist() == [[0, 1], [2, 3]]
    assert x.flags.writeable


def test_evaluate_constant_does_not_hand_out_the_attribute() -> None:
    value = ConstArray(np.zeros(2))
    (result,) = evaluate_op("constant", [], {"value": value})
    result += 1
    assert value.array.tolist() == [0, 0]


def test_evaluate_op_errors_have_the_users_line() -> None:
    with pytest.raises(TypeRuleError) as refused:
        evaluate_op("add", [np.zeros(2), np.zeros(2, F32)])
    assert "test_interpreter.py" in str(refused.value)
    with pytest.raises(NotFoundError, match="there is no op 'reshap'; did you mean 'reshape'"):
        evaluate_op("reshap", [np.zeros(2)])
    with pytest.raises(TypeRuleError, match="takes 2 operands, got 1"):
        evaluate_op("add", [np.zeros(2)])
    with pytest.raises(UnsupportedError, match="op 'read' does not run alone"):
        evaluate_op("read", [np.zeros(2)])


def test_evaluate_op_takes_any_byte_order_and_strings() -> None:
    (swapped,) = evaluate_op("abs", [np.array([-1.0], ">f4")])
    assert swapped.dtype.isnative
    assert swapped.tolist() == [1]
    words = as_array(np.array(["ä", "b"]))
    assert words.tolist() == ["ä".encode(), b"b"]
    (picked,) = evaluate_op("take", [words, np.array(1)], {"axis": 0})
    assert picked.shape == ()
    assert picked[()] == b"b"


def test_no_warnings_for_inf_and_nan(recwarn: pytest.WarningsRecorder) -> None:
    zero = np.zeros(1, F32)
    assert np.isnan(evaluate_op("divide", [zero, zero])[0][0])
    b = Builder([f32(1)])
    assert np.isinf(interpret(graph_of(b, b.emit1("log", *b.args)), [zero])[0][0])
    assert not recwarn.list


def test_ops_without_a_reference_are_known() -> None:
    """Every op is carried out by its reference or by the interpreter itself."""
    alone = {name for name, spec in OPS.items() if spec.reference is None}
    plain = {
        "variable",
        "read",
        "assign",
        "group",
        "custom_rule",
        "fused",
        "unrolled",
        "cond",
        "while",
        "scan",
        *UPDATES,
    }
    host = {name for name, spec in OPS.items() if spec.traits & {"host", "handle"}}
    stacks = {n for n in OPS if n.startswith(("stack_", "arena_"))}
    assert alone - host == plain | DATAFLOW | stacks
    op = Operation("mystery", (), {}, ())
    OPS["mystery"] = OpSpec("mystery", 0, lambda types, attrs, regions: [], None, "Nobody runs it.")
    try:
        b = Builder()
        b.ops.append(op)
        with pytest.raises(
            UnsupportedError, match=r"op 'mystery' on \(\): the interpreter does not"
        ):
            interpret(graph_of(b), [])
    finally:
        del OPS["mystery"]


# -- any graph -------------------------------------------------------------------------------------


def shuffled(graph: Graph, seed: int) -> Graph:
    """The same ops in another order that respects operands and control operands."""
    rng = random.Random(seed)
    waiting, done = list(graph.ops), set(graph.args)
    order: list[Operation] = []
    while waiting:
        ready = [op for op in waiting if done.issuperset((*op.operands, *op.control))]
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        order.append(chosen)
        done.update(chosen.results)
    return replace(graph, block=replace(graph.block, ops=tuple(order)))


@given(graph_and_inputs(), st.integers(0, 99))
@settings(max_examples=60)
def test_only_paths_order_ops(case: Case, seed: int) -> None:
    """A graph that verifies means the same in every order that its paths allow, state included."""
    verify(case.graph)
    outcomes = []
    for graph in (case.graph, shuffled(case.graph, seed)):
        verify(graph)
        state = DictState(case.state)
        results = interpret(graph, case.inputs, state)
        assert [r is None for r in results] == [v.type is TOKEN for v in graph.results]
        values = [*results, *(state.values[name] for name in sorted(state.values))]
        outcomes.append([None if v is None else (v.tolist(), v.dtype, v.shape) for v in values])
    assert repr(outcomes[0]) == repr(outcomes[1])  # NaN equals NaN here
