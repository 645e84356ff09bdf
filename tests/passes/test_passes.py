"""Passes keep what a graph means, on random graphs and rule by rule; sizes, effects, locations.

The golden texts of single passes are in tests/cases; the manager's tests in test_pass_manager.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from graphs import Case, graph_and_inputs, graphs
from hypothesis import assume, given
from interpreter_checks import bits_are_defined, exactly, results

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.dtypes import ALL, float64
from weft.ir.errors import ShapeError, WeftError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import evaluate_op, interpret
from weft.ir.interpreter.state import DictState
from weft.ir.spec import ConstArray
from weft.ir.text.parser import parse_graph
from weft.passes.differential import (
    difference,
    random_inputs,
    random_sizes,
    random_state,
    unequal,
)
from weft.passes.manager import bytes_moved, kernel_count, peak_bytes
from weft.passes.pipelines import PASSES, PIPELINES, STANDARD
from weft.passes.simplify.algebra import is_lossless, simplify
from weft.passes.sizes import infer_sizes, specialize

Array = np.ndarray[Any, Any]
#: Linear ops: rounding differences stay small.
LINEAR = ("matmul", "sum", "permute_dims", "reshape", "broadcast_to", "add", "constant", "slice")
#: Passes that make ``fused`` ops of what is not fused yet.
FUSING = ("fuse", "fuse_elementwise", "fuse_folds")
BY_NAME = pytest.mark.parametrize("name", list(PASSES))


def prepared(name: str, graph: Graph) -> Graph:
    """What the pass `name` takes: stacks are handles before marks for autodiff go, and these may
    not be in what is fused."""
    if name in ("strip_gradient_ops", "unroll", *FUSING):
        graph = PASSES["lower_stacks"](graph)
    if name in ("unroll", *FUSING):
        graph = PASSES["strip_barriers"](PASSES["strip_gradient_ops"](graph))
    return PASSES["fuse"](graph) if name == "unroll" else graph  # `unrolled` ops come after fusion


# ------------------------------------------------------------------------------- on random graphs


@pytest.mark.share(12)
@BY_NAME
@examples(100)
@given(case=graph_and_inputs(stage="traced"))
def test_a_pass_keeps_the_meaning(name: str, case: Case) -> None:
    assume(bits_are_defined(case.graph))
    new = PASSES[name](prepared(name, case.graph))
    verify(new)
    for a, b in zip(results(case.graph, case), results(new, case), strict=True):
        assert exactly(a, b)


@pytest.mark.share(12)
@BY_NAME
@examples(100)
@given(graph=graphs(stage="traced", symbolic=True))
def test_a_pass_is_idempotent_and_deterministic(name: str, graph: Graph) -> None:
    graph = prepared(name, graph)
    new = PASSES[name](graph)
    verify(new)
    assert PASSES[name](graph) == new
    if name not in FUSING:  # what is fused is not fused again
        assert PASSES[name](new) == new


@pytest.mark.share(2)
@pytest.mark.parametrize("pipeline", list(PIPELINES))
@examples(100)
@given(case=graph_and_inputs(stage="traced", max_ops=25))
def test_a_pipeline_keeps_the_meaning(pipeline: str, case: Case) -> None:
    assume(bits_are_defined(case.graph))
    new = case.graph
    for run in PIPELINES[pipeline]:
        new = run(new)
        verify(new)
    for a, b in zip(results(case.graph, case), results(new, case), strict=True):
        assert exactly(a, b)


@examples(100)
@given(case=graph_and_inputs(stage="traced", ops=LINEAR, dtypes=[float64]))
def test_floating_sums_keep_their_meaning(case: Case) -> None:
    rng = np.random.default_rng(0)
    case.inputs = [np.asarray(rng.uniform(1, 2, x.shape)) for x in case.inputs]
    assume(all(x.dtype == np.float64 and np.isfinite(x).all() for x in constants(case.graph)))
    new = case.graph
    for run in STANDARD:
        new = run(new)
    for a, b in zip(results(case.graph, case), results(new, case), strict=True):
        assert not unequal(a, b, 1e-12)


def constants(graph: Graph) -> list[Array]:
    """The arrays of the constants of `graph`."""
    held = [op.attrs["value"] for op in graph.walk() if op.name == "constant"]
    return [c.array for c in held if isinstance(c, ConstArray)]


@examples(100)
@given(graph=graphs(stage="traced", symbolic=True))
def test_specialising_keeps_the_meaning(graph: Graph) -> None:
    sizes = random_sizes(graph, 0)
    inputs, state = random_inputs(graph, 0, sizes), random_state(graph, 0, sizes)
    shapes = [x.shape for x in inputs]
    try:
        wanted = interpret(graph, inputs, DictState(state))
    except WeftError:
        return  # these sizes do not fit, or an index is out of bounds
    # a region whose results have unknown dims need not fit operands that became known
    assume("?" not in str(graph) or not any(op.regions for op in graph.ops))
    new = specialize(graph, sizes, shapes)
    verify(new)
    for a, b in zip(wanted, interpret(new, inputs, DictState(state)), strict=True):
        assert exactly(a, b)


# ------------------------------------------------------------------------------------ rule by rule

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -3.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, 0.1]
REAL = np.array(SPECIAL, np.float32)
COMPLEX = np.array([complex(a, b) for a in SPECIAL[:9] for b in SPECIAL[:9]], np.complex64)
BYTES = np.arange(0, 256, 23, dtype=np.uint8)
INTS = np.array([0, 1, -1, 7, -128, 127], np.int8)
FLAGS = np.array([True, False])


def rule(text: str, x: Array, y: Array | None = None) -> tuple[Graph, list[Array]]:
    """A graph of one-line ops `name(a, b) {attrs}` on %x, %y; each line is called %0, %1, ..."""
    arrays = [x] if y is None else [x, y]
    kind = {"f": "f32", "c": "c64", "u": "u8", "i": "i8", "b": "bool"}
    args = ", ".join(
        f"%{n}: {kind[a.dtype.kind]}{list(a.shape)}" for n, a in zip("xy", arrays, strict=False)
    )
    body, last = [], ""
    for i, line in enumerate(text.strip().splitlines()):
        op, _, result = line.strip().rpartition(" : ")
        body.append(f"%{i} = {op} : {result}")
        last = result
    source = f"graph @g({args}) -> ({last}) stage=traced {{\n"
    return parse_graph(source + "\n".join(body) + f"\nreturn %{len(body) - 1}\n}}"), arrays


def full(number: object, kind: str) -> str:
    """Two lines: a uniform array of type `kind`."""
    dtype, _, shape = kind.partition("[")
    return (
        f"constant() {{value={dtype}[] {number}}} : {dtype}[]\n"
        f"broadcast_to(%0) {{shape=[{shape}}} : {kind}\n"
    )


def cast(kind: str) -> str:
    """One line: %x as type `kind`."""
    return f"astype(%x) {{dtype={kind.partition('[')[0]}}} : {kind}\n"


F = f"f32[{len(REAL)}]"
C = f"c64[{len(COMPLEX)}]"
U = f"u8[{len(BYTES)}]"
I8 = f"i8[{len(INTS)}]"

#: (name, text, input, the ops that are left)
RULES: list[tuple[str, str, Array, list[str]]] = [
    ("x + 0 stays", full("0.0", F) + f"add(%x, %1) : {F}", REAL, ["add"]),
    ("x + -0", full("-0.0", F) + f"add(%x, %1) : {F}", REAL, []),
    ("x - 0", full("0.0", F) + f"subtract(%x, %1) : {F}", REAL, []),
    ("x - -0 stays", full("-0.0", F) + f"subtract(%x, %1) : {F}", REAL, ["subtract"]),
    ("-0 - x", full("-0.0", F) + f"subtract(%1, %x) : {F}", REAL, ["negative"]),
    ("0 - x stays", full("0.0", F) + f"subtract(%1, %x) : {F}", REAL, ["subtract"]),
    ("x - x stays", f"subtract(%x, %x) : {F}", REAL, ["subtract"]),
    ("x * 1", full("1.0", F) + f"multiply(%1, %x) : {F}", REAL, []),
    ("x * -1", full("-1.0", F) + f"multiply(%x, %1) : {F}", REAL, ["negative"]),
    ("x * 0 stays", full("0.0", F) + f"multiply(%x, %1) : {F}", REAL, ["multiply"]),
    ("x / 1", full("1.0", F) + f"divide(%x, %1) : {F}", REAL, []),
    ("x / -1", full("-1.0", F) + f"divide(%x, %1) : {F}", REAL, ["negative"]),
    ("x / 8 stays", full("8.0", F) + f"divide(%x, %1) : {F}", REAL, ["divide"]),
    ("x / 10 stays", full("10.0", F) + f"divide(%x, %1) : {F}", REAL, ["divide"]),
    ("x / 2**-140 stays", full("7.2e-43", F) + f"divide(%x, %1) : {F}", REAL, ["divide"]),
    ("x / 0 stays", full("0.0", F) + f"divide(%x, %1) : {F}", REAL, ["divide"]),
    ("x ** 0", full("0.0", F) + f"power(%x, %1) : {F}", REAL, []),
    ("x ** 1", full("1.0", F) + f"power(%x, %1) : {F}", REAL, []),
    ("x ** 2", full("2.0", F) + f"power(%x, %1) : {F}", REAL, ["square"]),
    ("x ** -1", full("-1.0", F) + f"power(%x, %1) : {F}", REAL, ["reciprocal"]),
    ("x ** 0.5 stays", full("0.5", F) + f"power(%x, %1) : {F}", REAL, ["power"]),
    ("-(-x)", f"negative(%x) : {F}\nnegative(%0) : {F}", REAL, []),
    ("x + -x", f"negative(%x) : {F}\nadd(%0, %x) : {F}", REAL, ["subtract"]),
    ("x - -x", f"negative(%x) : {F}\nsubtract(%x, %0) : {F}", REAL, ["add"]),
    ("-x * -x", f"negative(%x) : {F}\nmultiply(%0, %0) : {F}", REAL, ["multiply"]),
    ("(-x)**2", f"negative(%x) : {F}\nsquare(%0) : {F}", REAL, ["square"]),
    ("|x|**2", f"abs(%x) : {F}\nsquare(%0) : {F}", REAL, ["square"]),
    ("||x||", f"abs(%x) : {F}\nabs(%0) : {F}", REAL, ["abs"]),
    ("floor floor", f"floor(%x) : {F}\nfloor(%0) : {F}", REAL, ["floor"]),
    ("floor ceil stays", f"floor(%x) : {F}\nceil(%0) : {F}", REAL, ["floor", "ceil"]),
    ("max(x, x)", f"maximum(%x, %x) : {F}", REAL, []),
    ("real conj of a real", f"conj(%x) : {F}\nreal(%0) : {F}", REAL, []),
    ("where(c, x, x)", f"isnan(%x) : bool[{len(REAL)}]\nwhere(%0, %x, %x) : {F}", REAL, []),
    ("cast and back", cast("f64" + F[3:]) + f"astype(%0) {{dtype=f32}} : {F}", REAL, []),
    ("sum over no axes", f"sum(%x) {{axes=[]}} : {F}", REAL, ["add"]),
    ("max over no axes", f"max(%x) {{axes=[]}} : {F}", REAL, []),
    ("prod over no axes", f"prod(%x) {{axes=[]}} : {F}", REAL, []),
    ("z * 1 stays", full("(1.0, 0.0)", C) + f"multiply(%x, %1) : {C}", COMPLEX, ["multiply"]),
    ("z / 1 stays", full("(1.0, 0.0)", C) + f"divide(%x, %1) : {C}", COMPLEX, ["divide"]),
    ("z - 0", full("(0.0, 0.0)", C) + f"subtract(%x, %1) : {C}", COMPLEX, []),
    ("conj conj z", f"conj(%x) : {C}\nconj(%0) : {C}", COMPLEX, []),
    ("prod over no axes of z", f"prod(%x) {{axes=[]}} : {C}", COMPLEX, ["prod"]),
    ("i + 0", full("0", I8) + f"add(%x, %1) : {I8}", INTS, []),
    ("i - i", f"subtract(%x, %x) : {I8}", INTS, []),
    ("i * 0", full("0", I8) + f"multiply(%x, %1) : {I8}", INTS, []),
    ("i * -1", full("-1", I8) + f"multiply(%x, %1) : {I8}", INTS, ["negative"]),
    ("i // 1", full("1", I8) + f"floor_divide(%x, %1) : {I8}", INTS, []),
    ("i % 1", full("1", I8) + f"remainder(%x, %1) : {I8}", INTS, []),
    ("i ** 2", full("2", I8) + f"power(%x, %1) : {I8}", INTS, ["square"]),
    ("i ** 3", full("3", I8) + f"power(%x, %1) : {I8}", INTS, ["square", "multiply"]),
    ("i & -1", full("-1", I8) + f"bitwise_and(%x, %1) : {I8}", INTS, []),
    ("i | -1", full("-1", I8) + f"bitwise_or(%x, %1) : {I8}", INTS, []),
    ("u & 255", full("255", U) + f"bitwise_and(%x, %1) : {U}", BYTES, []),
    ("u ^ 0", full("0", U) + f"bitwise_xor(%1, %x) : {U}", BYTES, []),
    ("u << 0", full("0", U) + f"bitwise_left_shift(%x, %1) : {U}", BYTES, []),
    ("x // x stays", f"floor_divide(%x, %x) : {U}", BYTES, ["floor_divide"]),
    ("~~u", f"bitwise_invert(%x) : {U}\nbitwise_invert(%0) : {U}", BYTES, []),
    ("|u|", f"abs(%x) : {U}", BYTES, []),
    ("round u", f"round(%x) : {U}", BYTES, []),
    ("u as f16 and back", cast("f16" + U[2:]) + f"astype(%0) {{dtype=u8}} : {U}", BYTES, []),
    ("b and true", full("true", "bool[2]") + "logical_and(%x, %1) : bool[2]", FLAGS, []),
    ("b or true", full("true", "bool[2]") + "logical_or(%x, %1) : bool[2]", FLAGS, []),
    ("b xor false", full("false", "bool[2]") + "logical_xor(%x, %1) : bool[2]", FLAGS, []),
    ("b & true", full("true", "bool[2]") + "bitwise_and(%1, %x) : bool[2]", FLAGS, []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "x", "left"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_simplify_rule(text: str, x: Array, left: list[str]) -> None:
    """The rule applies, or does not, and the result is the same on every special value."""
    graph, inputs = rule(text, x)
    new = PASSES["dce"](simplify(graph))
    shaping = ("constant", "broadcast_to", "reshape")
    assert [op.name for op in new.ops if op.name not in shaping] == left
    assert exactly(interpret(graph, inputs)[0], interpret(new, inputs)[0])


def test_cubes_are_products_to_one_rounding() -> None:
    graph, inputs = rule(full("3.0", F) + f"power(%x, %1) : {F}", REAL)
    new = PASSES["dce"](simplify(graph))
    assert "power" not in [op.name for op in new.ops]
    (a,), (b,) = interpret(graph, inputs), interpret(new, inputs)
    np.testing.assert_allclose(b, a, rtol=2**-22)
    assert (np.signbit(a) == np.signbit(b))[~np.isnan(a)].all()


SOFTPLUS = """constant() {value=F0[] 0.0} : F0[]
broadcast_to(%0) {shape=SHAPE} : F
greater(%x, %1) : B
where(%2, %x, %1) : F
negative(%x) : F
where(%2, %4, %x) : F
exp(%5) : F
log1p(%6) : F
add(%3, %7) : F
tanh(%8) : F"""


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("written_out", [True, False])
def test_tanh_of_a_softplus_is_a_quotient(name: str, written_out: bool) -> None:
    """Both forms, at special values and over the range: as the truth to 4 places, NaN as before."""
    kind = np.float32 if name == "f32" else np.float64
    top = np.linspace(-120, 120, 2001) if name == "f32" else np.linspace(-760, 760, 2001)
    x = np.concatenate([REAL, top]).astype(kind)
    form = f"f32[{x.size}]"
    text = f"exp(%x) : {form}\nlog1p(%0) : {form}\ntanh(%1) : {form}"
    if not written_out:
        text = SOFTPLUS.replace("SHAPE", f"[{x.size}]").replace("F0", "f32")
        text = text.replace("B", f"bool[{x.size}]").replace(": F", f": {form}")
    graph, inputs = rule(text, x)
    if name == "f64":  # `rule` calls every float f32
        graph = parse_graph(str(graph).replace("f32", "f64"))
    new = PASSES["dce"](simplify(graph))
    assert not {"tanh", "log1p"} & {op.name for op in new.ops}
    (a,), (b,) = interpret(graph, inputs), interpret(new, inputs)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    with np.errstate(all="ignore"):
        e = np.exp(np.minimum(x.astype(np.longdouble), 100))
        truth = np.where(np.isnan(x), 0, e * (e + 2) / (e * (e + 2) + 2))
    unit = np.spacing(np.abs(truth.astype(kind))).astype(np.longdouble)
    assert (np.abs(np.where(np.isnan(b), 0, b) - truth) <= 4 * unit).all()


@pytest.mark.parametrize("a", ALL, ids=str)
@pytest.mark.parametrize("b", ALL, ids=str)
def test_lossless_casts_come_back(a: Any, b: Any) -> None:
    """`is_lossless` says yes only where a round trip gives every extreme value back."""
    if not is_lossless(a, b) or a.kind == "string":
        return
    if a.is_integer:
        info = np.iinfo(a.numpy)
        values = np.array([info.min, info.max, info.max - 1, 0, 1], a.numpy)
    else:
        values = np.array([0, 1]).astype(a.numpy)
        if a.is_inexact:
            small = [65504.0, 2.0**-24, -0.0, np.inf] if a.name == "float16" else [1e38, 1e-38]
            values = np.array([*small, 1 / 3, -0.0, np.nan, 2.0**-120 if a.bits > 16 else 1])
            values = values.astype(a.numpy)
    (wide,) = evaluate_op("astype", [values], {"dtype": b})
    back = wide.real if wide.dtype.kind == "c" and values.dtype.kind != "c" else wide
    assert exactly(back.astype(a.numpy), values), f"{a} -> {b}"


def test_lossless_pairs() -> None:
    names = {(a.short, b.short) for a in ALL for b in ALL if is_lossless(a, b) and a is not b}
    assert {("i8", "f16"), ("u8", "bf16"), ("i32", "f64"), ("bf16", "f32"), ("u32", "i64")} <= names
    assert {("bool", "f16"), ("f64", "c128"), ("c64", "c128")} <= names
    wrong = {("i32", "f32"), ("f16", "bf16"), ("i8", "u16"), ("i64", "f64"), ("f64", "c64")}
    assert not names & (wrong | {("i16", "f16"), ("i8", "bool"), ("c64", "f64")})


# ----------------------------------------------------------------------------------------- effects

STATE = """
graph @g(%x: f32[2]) -> (f32[2], token) stage=traced {
  %w = variable() {name="w", dtype=f32, shape=[2]} : ref<f32[2]>
  %a = read(%w) : f32[2]
  %b = add(%a, %x) : f32[2]
  %t = assign(%w, %b) : token
  %c = read(%w) after(%t) : f32[2]
  %d = multiply(%c, %c) : f32[2]
  %u = assign(%w, %d) after(%c) : token
  return %a, %u
}
"""


def test_order_survives_every_pass() -> None:
    """The order that only data gave (read before assign) is explicit and kept to the end."""
    graph = parse_graph(STATE)
    for name in ("order_effects", "simplify", "fold", "cse", "dce", "strip_gradient_ops"):
        graph = PASSES[name](graph)
        verify(graph)
    names = [op.name for op in graph.ops]
    assert names.count("read") == 1  # the second one is the value just stored
    state = DictState({"w": np.array([1.0, 2.0], np.float32)})
    old, _ = interpret(graph, [np.array([1.0, 1.0], np.float32)], state)
    np.testing.assert_array_equal(old, [1, 2])
    np.testing.assert_array_equal(state.values["w"], [4, 9])


def test_order_is_kept_where_a_rewrite_drops_the_data_that_gave_it() -> None:
    """assign(w, read(w) * 0) must still come after the read, though its value is a constant."""
    graph = parse_graph("""
    graph @g() -> (i32[2]) stage=traced {
      %w = variable() {name="w", dtype=i32, shape=[2]} : ref<i32[2]>
      %zero = constant() {value=i32[] 0} : i32[]
      %z = broadcast_to(%zero) {shape=[2]} : i32[2]
      %a = read(%w) : i32[2]
      %b = multiply(%a, %z) : i32[2]
      %t = assign(%w, %b) : token
      return %a
    }""")
    for run in STANDARD:
        graph = run(graph)
        verify(graph)  # raises where two accesses are not ordered
    (assign,) = [op for op in graph.ops if op.name == "assign"]
    assert [v.op.name for v in assign.control if v.op is not None] == ["read"]


def test_reads_of_unchanged_state_merge_with_both_locations() -> None:
    graph = parse_graph("""
    graph @g() -> (f32[], f32[]) stage=traced {
      %w = variable() {name="w", dtype=f32, shape=[]} : ref<f32[]> loc("m.py":1:1)
      %v = variable() {name="w", dtype=f32, shape=[]} : ref<f32[]> loc("m.py":2:1)
      %a = read(%w) : f32[] loc("m.py":3:1)
      %b = read(%v) : f32[] loc("m.py":4:1)
      return %a, %b
    }""")
    graph = PASSES["order_effects"](graph)
    (read,) = [op for op in graph.ops if op.name == "read"]
    assert [p.line for p in read.locations] == [3, 4]


def test_pure_ops_lose_their_control_operands() -> None:
    graph = parse_graph("""
    graph @g(%x: f32[2]) -> (f32[2], token) stage=traced {
      %w = variable() {name="w", dtype=f32, shape=[2]} : ref<f32[2]>
      %t = assign(%w, %x) : token
      %y = identity(%x) after(%t) : f32[2]
      %g = group() after(%y) : token
      return %y, %g
    }""")
    ops = {op.name: op for op in PASSES["order_effects"](graph).ops}
    assert not ops["identity"].control
    assert ops["group"].control == ops["assign"].results


# --------------------------------------------------------------------------------------- specialise

BATCH = """
graph @step(%x: f32[b,4], %y: f32[2*b+1]) -> (f32[4*b], i64[]) stage=traced {
  %0 = reshape(%x) {shape=[4*b]} : f32[4*b] loc("m.py":1:1)
  %1 = dim_size(%x) {axis=0} : i64[] loc("m.py":2:1)
  return %0, %1
}
"""


def test_specialize_gives_static_types() -> None:
    graph = parse_graph(BATCH)
    sizes = infer_sizes(graph, [(3, 4), (7,)])
    assert sizes == {"b": 3}
    new = specialize(graph, sizes)
    assert [str(a.type) for a in new.args] == ["f32[3,4]", "f32[7]"]
    assert [str(r.type) for r in new.results] == ["f32[12]", "i64[]"]
    assert [op.locations for op in new.ops] == [op.locations for op in graph.ops]
    folded = PASSES["fold"](new)
    assert interpret(folded, [np.zeros((3, 4), np.float32), np.zeros(7, np.float32)])[1] == 3
    assert specialize(new, {"b": 5}) is new


def test_specialize_keeps_other_symbols() -> None:
    graph = parse_graph("graph @g(%x: f32[a,b]) -> (f32[a,b]) stage=traced { return %x }")
    assert [str(a.type) for a in specialize(graph, {"a": 2}).args] == ["f32[2,b]"]


def test_specialize_fills_in_unknown_dims() -> None:
    graph = parse_graph(
        "graph @g(%x: f32[?,b]) -> (f32[?,b]) stage=traced { %0 = exp(%x) : f32[?,b] return %0 }"
    )
    new = specialize(graph, infer_sizes(graph, [(5, 2)]), [(5, 2)])
    assert str(new.results[0].type) == "f32[5,2]"


def test_a_size_that_does_not_fit_names_the_users_line() -> None:
    graph = parse_graph("""
    graph @g(%x: f32[b,2], %y: f32[3,2]) -> (f32[3,2]) stage=traced {
      %0 = add(%x, %y) : f32[3,2] loc("model.py":12:5)
      return %0
    }""")
    with pytest.raises(ShapeError, match=r"f32\[4,2\], f32\[3,2\](?s:.*)model.py:12:5"):
        specialize(graph, {"b": 4})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 4)], "takes 2 inputs, got 1"),
        ([(3, 4), (7, 1)], r"input 'y' has shape \[7,1\], which does not fit f32\[2\*b\+1\]"),
        ([(3, 4), (9,)], r"input 'y' has shape \[9\], .* with b=3"),
        ([(3, 5), (7,)], r"input 'x' has shape \[3,5\]"),
    ],
)
def test_infer_sizes_errors(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        infer_sizes(parse_graph(BATCH), shapes)


def test_infer_sizes_solves_in_any_order_and_says_what_stays_open() -> None:
    text = "graph @g(%x: f32[a*b], %y: f32[a+b], %z: f32[a]) -> () stage=traced { return }"
    assert infer_sizes(parse_graph(text), [(6,), (5,), (2,)]) == {"a": 2, "b": 3}
    text = "graph @g(%x: f32[a*b]) -> () stage=traced { return }"
    with pytest.raises(ShapeError, match=r"do not decide the dimension a\*b of input 'x'"):
        infer_sizes(parse_graph(text), [(6,)])


# ----------------------------------------------------------------------------------------- metrics


def test_metrics() -> None:
    graph = parse_graph("""
    graph @g(%x: f32[10]) -> (f32[10]) stage=traced {
      %0 = exp(%x) : f32[10]
      %1 = reshape(%0) {shape=[2, 5]} : f32[2,5]
      %2 = sin(%1) : f32[2,5]
      %3 = reshape(%2) {shape=[10]} : f32[10]
      %4 = add(%3, %x) : f32[10]
      return %4
    }""")
    assert kernel_count(graph) == 3
    assert bytes_moved(graph) == 40 * (2 + 2 + 3)
    assert peak_bytes(graph) == 80
    symbolic = parse_graph(
        "graph @g(%x: f32[b]) -> (f32[b]) stage=traced { %0 = exp(%x) : f32[b] return %0 }"
    )
    assert (bytes_moved(symbolic), peak_bytes(symbolic), kernel_count(symbolic)) == (None, None, 1)


def test_difference_notices_results_and_state() -> None:
    graph = parse_graph(STATE)
    change: Callable[[str, str], Graph] = lambda a, b: parse_graph(STATE.replace(a, b))  # noqa: E731
    assert difference(graph, graph, 0) == ""
    assert "variable 'w'" in (difference(graph, change("multiply(", "add("), 0) or "")
    assert "result 0" in (difference(graph, change("return %a", "return %b"), 0) or "")


@pytest.mark.parametrize("axis", [0, 1, None])
def test_mean_and_variance_share_a_sum(axis: int | None) -> None:
    f = wf.compile(lambda x: (wf.mean(x, axis=axis), wf.var(x, axis=axis)))
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    for got, expected in zip(f(x), (x.mean(axis), x.var(axis)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    sums = [op for op in parse_graph(f.ir(x, after="cse")).walk() if op.name == "sum"]
    assert len(sums) == 2  # of x, and of the squares
