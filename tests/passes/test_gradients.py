"""Every gradient rule against central finite differences, first and second order, in float64.

Complex values are differentiated by their real and imaginary parts. `CASES` must hold a case for
each differentiable op of the table; the first tests say which op has no rule or no case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gradient_cases import CASES, HERE, Build, Case, loss_graph
from scipy.special import polygamma
from shares import every

from weft.ir.analysis.verify import verify
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import bool_, complex128, float32, float64, int64
from weft.ir.errors import GradientError, TypeRuleError, WeftError
from weft.ir.graph import Block, Graph, Value
from weft.ir.interpreter.evaluate import evaluate_op, interpret, type_of
from weft.ir.interpreter.state import DictState
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW
from weft.ir.ops.core import CustomRule
from weft.ir.ops.state import UPDATES
from weft.ir.types import TensorType, Type, tensor_type
from weft.passes.autodiff.reverse_mode import differentiate, gradients
from weft.passes.autodiff.table import GRADIENTS, NO_GRADIENT
from weft.passes.rewriting.expression import Expr
from weft.passes.simplify.cse_dce import dce

Array = np.ndarray[Any, Any]


# --------------------------------------------------------------------------------------- the check


def numeric_gradient(graph: Graph, inputs: list[Array], index: int, eps: float) -> Array:
    """dL/dRe + i dL/dIm by central differences."""
    x = inputs[index]
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        for unit in (1, 1j) if x.dtype.kind == "c" else (1,):
            values = []
            for sign in (1, -1):
                moved = x.copy()
                moved[at] += sign * eps * unit
                trial = [*inputs[:index], moved, *inputs[index + 1 :]]
                values.append(float(interpret(graph, trial)[0]))
            out[at] += unit * (values[0] - values[1]) / (2 * eps)
    return out


def check(build: Build, inputs: Sequence[Array], *, stage: str = "traced") -> None:
    """Compare first and second derivatives with finite differences."""
    inputs = list(inputs)
    for order in (1, 2):
        graph, wrt = loss_graph(build, inputs, order)
        full = differentiate(graph.at_stage(stage), wrt)
        verify(full)
        assert all(op.locations for op in full.ops)
        found = interpret(full, inputs)[1:]
        for i, grad in zip(wrt, found, strict=True):
            wanted = numeric_gradient(graph, inputs, i, 1e-5)
            scale = max(1.0, float(np.abs(wanted).max(initial=0)))
            np.testing.assert_allclose(
                grad, wanted, rtol=2e-6, atol=2e-7 * scale, err_msg=f"order {order}, operand {i}"
            )


# ----------------------------------------------------------------------------------------- tests


def test_every_op_has_a_row() -> None:
    missing = [
        f"op '{name}' has no row in passes/autodiff/*.py: add a rule or list it in NO_GRADIENT"
        for name in OPS
        if name not in GRADIENTS and name not in NO_GRADIENT
    ]
    assert not missing, "\n".join(missing)


def test_rows_are_of_ops_and_no_op_has_two() -> None:
    assert set(GRADIENTS) | NO_GRADIENT <= set(OPS)
    assert not set(GRADIENTS) & NO_GRADIENT


def test_every_rule_has_a_case() -> None:
    apart = {"custom_gradient", "custom_rule", "fused"}  # tests of their own below
    apart |= {"unrolled"}  # as fused; no trace holds it
    apart |= {"cond", "while", "scan"}  # in test_control_gradients
    apart |= {"attention", "attention_grad"}  # errors: a pass makes these ops after gradients
    apart |= {"sparse_matmul", "quantized_matmul"}
    apart |= {"py_function", *DATAFLOW, *COMMUNICATION}  # errors, but switch and merge:
    assert {"switch", "merge"} <= set(DATAFLOW)  # in test_switch_gradients
    apart |= {"dynamic_partition", "unique"}  # in test_dynamic_ops: the sizes of their results
    apart |= {"scalar_function"}  # an error: its gradient is another op's (test_elementwise)
    apart |= {"cholesky", "eigh", "eig", "lu_solve"}  # in test_linalg_decompositions
    apart |= UPDATES  # in test_state_ops
    apart |= {"exchange"}  # in test_shard_map_processes
    apart |= {"update_open"}  # in test_variable
    apart |= {"stack_add", "stack_pop", "stack_push"}  # in test_while_gradients
    missing = sorted(set(GRADIENTS) - {c.op for c in CASES} - apart)
    assert not missing, f"ops with a gradient rule but no case in CASES: {missing}"


@pytest.mark.share(6)
@pytest.mark.parametrize("case", every(2, CASES), ids=str)
def test_rule_against_finite_differences(case: Case) -> None:
    def build(builder: Builder, args: Sequence[Value]) -> Sequence[Value]:
        return builder.emit(case.op, args, case.attrs, locations=HERE)

    check(build, case.operands)


def takes_floats(name: str) -> bool:
    """Whether op `name` is elementwise, takes float64 operands and has a meaning for each."""
    spec = OPS[name]
    if "elementwise" not in spec.traits or spec.attrs:
        return False
    try:
        spec.infer([tensor_type(float64, 3)] * (spec.arity or 1), {}, ())
    except WeftError:
        return False
    return True


FLAT = sorted(n for n in NO_GRADIENT if takes_floats(n) and n != "nextafter")


@pytest.mark.parametrize("name", FLAT)
def test_no_gradient_ops_are_piecewise_constant(name: str) -> None:
    operands = [np.array([0.3, 1.7, -2.4]), np.array([1.1, -0.6, 0.7])][: OPS[name].arity]
    (here,) = evaluate_op(name, operands)
    (near,) = evaluate_op(name, [x + 1e-6 for x in operands])
    np.testing.assert_array_equal(here, near)


# ------------------------------------------------------------------------ points without derivative


def grad_of(op: str, *inputs: Array, **attrs: Any) -> list[Array]:
    """The gradients of sum(op(inputs)) with respect to all inputs."""
    builder = Builder([type_of(x) for x in inputs])
    y = Expr(builder, builder.emit(op, builder.args, attrs, locations=HERE)[0], HERE)
    graph = builder.graph("g", [f"x{i}" for i in range(len(inputs))], [y.sum(range(y.rank)).value])
    return interpret(differentiate(graph, range(len(inputs))), inputs)[1:]


def test_ties_of_max_are_shared_equally() -> None:
    x = np.array([[3.0, 1.0, 3.0], [2.0, 2.0, 2.0]])
    (g,) = grad_of("max", x, axes=(1,), keepdims=False)
    np.testing.assert_allclose(g, [[0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]])


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_ties_of_maximum_are_halved(op: str) -> None:
    a, b = grad_of(op, np.array([1.0, 2.0]), np.array([1.0, 5.0]))
    larger = op == "maximum"
    np.testing.assert_allclose(a, [0.5, 0.0 if larger else 1.0])
    np.testing.assert_allclose(b, [0.5, 1.0 if larger else 0.0])


def test_choices_at_zero() -> None:
    zero = np.array([0.0])
    assert grad_of("abs", zero)[0] == 0
    assert grad_of("abs", zero.astype(np.complex128))[0] == 0
    assert [float(g[0]) for g in grad_of("hypot", zero, zero)] == [0, 0]


@pytest.mark.parametrize(
    ("base", "exponent", "wanted"),
    [(0.0, 0.0, (0, 0)), (0.0, 1.0, (1, 0)), (0.0, 2.0, (0, 0)), (3.0, 0.0, (0, np.log(3)))],
)
def test_power_is_safe_at_zero(base: float, exponent: float, wanted: tuple[float, float]) -> None:
    grads = grad_of("power", np.array([base]), np.array([exponent]))
    np.testing.assert_allclose([float(g[0]) for g in grads], wanted)


def test_logaddexp_of_infinities() -> None:
    a = np.array([-np.inf, np.inf, -np.inf, np.inf])
    b = np.array([-np.inf, np.inf, 1.0, 1.0])
    grads = grad_of("logaddexp", a, b)
    np.testing.assert_allclose(grads, [[0.5, 0.5, 0, 1], [0.5, 0.5, 1, 0]])


def test_trigamma_at_whole_numbers() -> None:
    x = np.array([1.0, 2.0, 30.0, -0.5, 0.5, 1e-3, 1e4, -7.3])
    (g,) = grad_of("digamma", x)
    np.testing.assert_allclose(g, polygamma(1, x), rtol=1e-13)


def test_third_derivative_of_lgamma_at_whole_numbers() -> None:
    def build(builder: Builder, args: Sequence[Value]) -> Sequence[Value]:
        return builder.emit("digamma", args, locations=HERE)

    check(build, [np.array([1.0, 2.0, 5.0, 12.0])])


def test_last_write_of_scatter_nd_update_gets_the_gradient() -> None:
    x, index, u = np.zeros(3), np.array([[1], [1], [0]]), np.array([5.0, 6.0, 7.0])
    graph_x, graph_u = _scatter_gradient("scatter_nd_update", x, index, u)
    np.testing.assert_array_equal(graph_u, [0, 1, 1])
    np.testing.assert_array_equal(graph_x, [0, 0, 1])


def test_ties_of_scatter_nd_max_are_shared() -> None:
    x, index, u = np.array([5.0, 1.0]), np.array([[0], [0], [1]]), np.array([5.0, 5.0, 0.0])
    graph_x, graph_u = _scatter_gradient("scatter_nd_max", x, index, u)
    np.testing.assert_allclose(graph_x, [1 / 3, 1])
    np.testing.assert_allclose(graph_u, [1 / 3, 1 / 3, 0])


def _scatter_gradient(op: str, x: Array, index: Array, u: Array) -> list[Array]:
    builder = Builder([type_of(a) for a in (x, index, u)])
    y = Expr(builder, builder.emit1(op, *builder.args, locations=HERE), HERE).sum([0])
    graph = builder.graph("g", ["x", "i", "u"], [y.value])
    return interpret(differentiate(graph, [0, 2]), [x, index, u])[1:]


# -------------------------------------------------------------------------------------- composition


def test_a_value_used_twice_adds_up() -> None:
    def build(b: Builder, args: Sequence[Value]) -> Sequence[Value]:
        x = Expr(b, args[0], HERE)
        y = x.op("sin") * x + x.op("exp")
        return [y.value, (y * x).value]

    check(build, [np.array([0.3, -1.2])])


def test_cotangents_of_neighbouring_slices_are_joined() -> None:
    def build(b: Builder, args: Sequence[Value]) -> Sequence[Value]:
        x = Expr(b, args[0], HERE)
        i, j, k = (x.slice_axis(1, at, at + 2) for at in (1, 3, 5))
        return [(i.op("sin") * k + j.op("exp")).value]

    x = np.random.default_rng(0).normal(size=(2, 8))
    check(build, [x])
    graph, wrt = loss_graph(build, [x], 1)
    names = [op.name for op in dce(differentiate(graph, wrt)).ops]
    assert (names.count("pad"), names.count("concat")) == (1, 2)
    (g,) = interpret(differentiate(graph, wrt), [x])[1:]
    assert (g[:, [0, 7]] == 0).all()


def test_softmax_cross_entropy_third_order() -> None:
    def build(b: Builder, args: Sequence[Value]) -> Sequence[Value]:
        x, labels = (Expr(b, v, HERE) for v in args)
        top = x.op("max", axes=(1,), keepdims=True).broadcast_to(x.shape)
        e = (x - top).op("exp")
        total = e.sum([1], keepdims=True).op("log").broadcast_to(x.shape)
        loss = (labels * (x - top - total)).sum([0, 1])
        (g,) = gradients(b, [loss.value], [x.value])
        assert g is not None
        return [g]

    rng = np.random.default_rng(0)
    check(build, [rng.normal(size=(2, 3)), rng.uniform(size=(2, 3))])


def test_gradients_with_respect_to_inner_values_and_reads() -> None:
    builder = Builder()
    ref = builder.emit(
        "variable", (), {"name": "w", "dtype": float64, "shape": (2,)}, locations=HERE
    )[0]
    w = Expr(builder, builder.emit1("read", ref, locations=HERE), HERE)
    inner = w * w
    y = inner.op("sin").sum([0])
    grads = gradients(builder, [y.value], [w.value, inner.value, y.value])
    assert None not in grads
    graph = builder.graph("g", [], [g for g in grads if g is not None])
    values = np.array([0.4, 2.0])
    dw, dinner, dy = interpret(graph, [], DictState({"w": values}))
    np.testing.assert_allclose(dinner, np.cos(values**2))
    np.testing.assert_allclose(dw, 2 * values * np.cos(values**2))
    assert dy == 1


def test_unconnected_is_none() -> None:
    builder = Builder([tensor_type(float64, 2)] * 3 + [tensor_type(int64, 2)])
    a, b, c, n = (Expr(builder, v, HERE) for v in builder.args)
    y = a * b.op("stop_gradient") + n.astype(float64) + a.op("floor")
    grads = gradients(builder, [y.value], [x.value for x in (a, b, c, n)])
    assert [g is None for g in grads] == [False, True, True, True]


def test_only_ops_between_xs_and_ys_are_walked() -> None:
    builder = Builder([tensor_type(float64, 2)])
    x = Expr(builder, builder.args[0], HERE)
    before = x.op("sin")
    y = before.op("exp")
    y.op("tan")
    start = len(builder.ops)
    gradients(builder, [y.value], [before.value])
    assert not {"cos", "tan"} & {op.name for op in builder.ops[start:]}


def test_unneeded_operands_cost_nothing() -> None:
    builder = Builder([tensor_type(float64, 2, 3), tensor_type(float64, 3, 4)])
    y = builder.emit1("matmul", *builder.args, locations=HERE)
    start = len(builder.ops)
    gradients(builder, [y], [builder.args[1]])
    assert [op.name for op in builder.ops[start:]].count("matmul") == 1


def test_grad_ys() -> None:
    builder = Builder([tensor_type(float64, 3), tensor_type(float64, 3)])
    x, seed = builder.args
    y = builder.emit1("square", x, locations=HERE)
    (g,) = gradients(builder, [y], [x], [seed])
    assert g is not None
    graph = builder.graph("g", ["x", "seed"], [g])
    a, b = np.array([1.0, 2, 3]), np.array([0.5, 0, -1])
    np.testing.assert_allclose(interpret(graph, [a, b])[0], 2 * a * b)


def test_differentiate_gives_zeros_where_unconnected() -> None:
    builder = Builder([tensor_type(float64), tensor_type(float64, 2)])
    y = builder.emit1("exp", builder.args[0], locations=HERE)
    graph = differentiate(builder.graph("g", ["x", "z"], [y]), [0, 1])
    loss, dx, dz = interpret(graph, [np.array(0.0), np.zeros(2)])
    assert loss == dx == 1
    assert (dz == 0).all()


# --------------------------------------------------------------------- custom gradients, regions


def _custom_exp(b: Builder, args: Sequence[Value]) -> Sequence[Value]:
    """y = exp(x) with the gradient 3 * g * y * c, where y and c are captured."""
    x, c = (Expr(b, v, HERE) for v in args)
    y = x.op("exp")
    inner = Builder([y.value.type, y.value.type, c.value.type])
    g, captured, factor = (Expr(inner, v, HERE) for v in inner.args)
    region = inner.block([(3 * (g * captured) * factor).value])
    operands = [y.value, x.value, y.value, c.value]
    attrs = {"outputs": 1, "inputs": 1}
    return b.emit("custom_gradient", operands, attrs, regions=[region], locations=HERE)


def test_custom_gradient_replaces_the_rule_at_every_order() -> None:
    x, c = np.array([0.2, -1.0]), np.array([2.0, 5.0])
    builder = Builder([type_of(x), type_of(c)])
    (y,) = _custom_exp(builder, builder.args)
    first = gradients(builder, [y], builder.args)
    assert first[0] is not None
    assert first[1] is None  # a capture gets no gradient
    second = gradients(builder, [first[0]], builder.args)
    results = [first[0], *(g for g in second if g is not None)]
    dx, dxx, dxc = interpret(builder.graph("g", ["x", "c"], results), [x, c])
    np.testing.assert_allclose(dx, 3 * np.exp(x) * c)
    np.testing.assert_allclose(dxx, 3 * np.exp(x) * c)  # through the captured exp(x), as JAX
    np.testing.assert_allclose(dxc, 3 * np.exp(x))


def test_custom_gradient_with_an_unused_output() -> None:
    builder = Builder([tensor_type(float64, 2)])
    x = Expr(builder, builder.args[0], HERE)
    outputs = [x.op("sin").value, x.op("cos").value]
    inner = Builder([x.value.type] * 2)
    a, b = (Expr(inner, v, HERE) for v in inner.args)
    region = inner.block([(a + 10 * b).value])
    attrs = {"outputs": 2, "inputs": 1}
    ys = builder.emit(
        "custom_gradient", [*outputs, x.value], attrs, regions=[region], locations=HERE
    )
    (g,) = gradients(builder, [ys[1]], [x.value])
    assert g is not None
    (found,) = interpret(builder.graph("g", ["x"], [g]), [np.zeros(2)])
    np.testing.assert_allclose(found, [10, 10])


def test_a_rule_is_traced_for_its_gradient() -> None:
    """A row of its own, and within the region of a custom_gradient; text does not hold the rule."""

    def traced(types: Sequence[Type]) -> Block:
        inner = Builder(types)
        g, x = (Expr(inner, v, HERE) for v in inner.args)
        return inner.block([(g * x.op("sin")).value])

    def called(b: Builder, args: Sequence[Value], rule: str) -> Sequence[Value]:
        return b.emit("custom_rule", args, {"rule": rule, "like": (0,)}, locations=HERE)

    x = np.array([0.3, 1.0])
    builder = Builder([type_of(x)] * 2)
    (y,) = called(builder, builder.args, CustomRule("sine", traced))
    found = [g for g in gradients(builder, [y], builder.args) if g is not None]
    made = interpret(dce(builder.graph("g", ["g", "x"], found)), [np.full(2, 3.0), x])
    np.testing.assert_allclose(made, [np.sin(x), 3 * np.cos(x)])

    for rule in (CustomRule("sine", traced), "sine"):
        builder = Builder([type_of(x)])
        region = Builder([type_of(x)] * 2)
        block = region.block(called(region, region.args, rule))
        attrs = {"outputs": 1, "inputs": 1}
        operands = [builder.args[0]] * 3
        (y,) = builder.emit("custom_gradient", operands, attrs, regions=[block], locations=HERE)
        if isinstance(rule, CustomRule):
            (g,) = gradients(builder, [y], builder.args)
            assert g is not None
            (dx,) = interpret(builder.graph("g", ["x"], [g]), [x])
            np.testing.assert_allclose(dx, np.sin(x))
        else:
            with pytest.raises(GradientError, match="the text of a graph does not hold"):
                gradients(builder, [y], builder.args)


def test_guarded_rows_get_no_cotangent() -> None:
    """Not even NaN; the forward value is that of all rows."""
    x = np.array([[4.0, 1.0], [-1.0, 9.0]])
    builder = Builder([type_of(x), tensor_type(bool_, 2)])
    guarded = builder.emit1("row_guard", *builder.args, locations=HERE)
    y = builder.emit1("sqrt", guarded, locations=HERE)
    (g,) = gradients(builder, [y], builder.args[:1])
    assert g is not None
    graph = builder.graph("g", ["x", "flags"], [guarded, g])
    with np.errstate(invalid="ignore"):
        value, found = interpret(graph, [x, np.array([True, False])])
    np.testing.assert_array_equal(value, x)
    np.testing.assert_allclose(found, [[0.25, 0.5], [0, 0]])
    with pytest.raises(TypeRuleError, match="not bools for the first axes of a f64\\[2,2\\]"):
        builder.emit("row_guard", [builder.args[0]] * 2)


def test_fused_is_differentiated_through_its_region() -> None:
    def build(b: Builder, args: Sequence[Value]) -> Sequence[Value]:
        inner = Builder([v.type for v in args])
        x, y = (Expr(inner, v, HERE) for v in inner.args)
        z = x.op("sin") * y
        region = inner.block([z.value, z.sum([0]).value])
        return b.emit("fused", args, {"kind": "loop"}, regions=[region], locations=HERE)

    check(build, [np.array([0.3, 1.0]), np.array([2.0, -1.0])], stage="fused")


# --------------------------------------------------------------------------------- symbolic shapes


def test_symbolic_dims() -> None:
    n = SymbolicDim.symbol("n")
    builder = Builder([TensorType(float64, (n, 3)), TensorType(float64, (3,))])
    x, w = (Expr(builder, v, HERE) for v in builder.args)
    y = x * w.broadcast_to((n, 3))
    y = (y.op("concat", x, axis=0).slice_axis(0, 0, n * 2) * 2).op("max", axes=(0,), keepdims=True)
    z = y.op("prod", axes=(0, 1), keepdims=False) + x.op("prod", axes=(0,), keepdims=False).sum([0])
    graph = differentiate(builder.graph("g", ["x", "w"], [z.value]), [0, 1])
    verify(graph)
    rng = np.random.default_rng(1)
    inputs = [rng.uniform(1, 2, (4, 3)), rng.uniform(2, 3, 3)]
    _, dx, dw = interpret(graph, inputs)
    loss = graph.block.results[0]
    forward = Graph("f", type(graph.block)(graph.args, graph.ops, (loss,)), graph.arg_names)
    for i, found in enumerate((dx, dw)):
        wanted = numeric_gradient(forward, inputs, i, 1e-6)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


# ----------------------------------------------------------------------------------------- errors


def test_error_for_an_op_without_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(GRADIENTS, "erf")
    builder = Builder([tensor_type(float32, 2)])
    y = builder.emit1("erf", builder.args[0], locations=HERE)
    with pytest.raises(GradientError, match=r"op 'erf' has no gradient(?s:.*)model.py:7:3"):
        gradients(builder, [y], builder.args)


def test_error_for_integer_and_complex_losses() -> None:
    builder = Builder([tensor_type(float64, 2)])
    x = Expr(builder, builder.args[0], HERE)
    with pytest.raises(GradientError, match=r"gradient of a i64\[2\](?s:.*)model.py:7:3"):
        gradients(builder, [x.astype(int64).value], builder.args)
    with pytest.raises(GradientError, match=r"complex value .* needs grad_ys"):
        gradients(builder, [x.astype(complex128).value], builder.args)


def test_error_for_a_grad_y_that_does_not_fit() -> None:
    builder = Builder([tensor_type(float64, 2), tensor_type(float32, 2)])
    x, seed = builder.args
    y = builder.emit1("exp", x, locations=HERE)
    with pytest.raises(GradientError, match=r"grad_y of type f32\[2\] is given for a f64\[2\]"):
        gradients(builder, [y], [x], [seed])


def test_error_for_a_loss_that_is_no_scalar() -> None:
    builder = Builder([tensor_type(float64, 2)])
    y = builder.emit1("exp", builder.args[0], locations=HERE)
    with pytest.raises(GradientError, match=r"is a f64\[2\], not a scalar"):
        differentiate(builder.graph("g", ["x"], [y]), [0])
